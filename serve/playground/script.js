// The playground: asks the server for a source's table, a text's way through it and what may come where, and shows it.
// Whatever comes from a source, a text, a token or a message is put into the page as text, never as markup.
"use strict";

const $ = (id) => document.getElementById(id);
const encoder = new TextEncoder();
const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const lenient = new TextDecoder("utf-8", { ignoreBOM: true });
const CHIPS = 400; // in the page at once
const EDITING = { source: 250, text: 120, filter: 120, stepping: 40 }; // ms of rest before the server is asked

const KINDS = {
  schema: { name: "JSON Schema", hint: '{"type": "object", …}' },
  regex: { name: "Regex", hint: "a pattern as in Python's re, for the whole text" },
  choices: { name: "Choices", hint: "one text a line" },
  grammar: { name: "Grammar", hint: 'start: "(" start ")" | …, or root ::= …' },
  tags: { name: "Tags", hint: '{"type": "structural_tag", …}' },
};

const EXAMPLES = [
  {
    name: "A person, as pydantic has it", kind: "schema",
    source: `{
  "title": "Person",
  "type": "object",
  "properties": {
    "name": {"type": "string", "minLength": 1, "maxLength": 40},
    "born": {"type": "string", "format": "date"},
    "languages": {
      "type": "array",
      "items": {"enum": ["en", "fr", "it"]},
      "maxItems": 3
    },
    "mentor": {"anyOf": [{"type": "string"}, {"type": "null"}]}
  },
  "required": ["name", "born"],
  "additionalProperties": false
}`,
    text: '{\n  "name": "Ada Lovelace",\n  "born": "1815-13-10",\n  "languages": ["en", "fr"],\n  "mentor": "Mary Somerville"\n}',
  },
  {
    name: "A tree, by recursion", kind: "schema",
    source: `{
  "$ref": "#/$defs/node",
  "$defs": {
    "node": {
      "type": "object",
      "properties": {
        "label": {"type": "string", "maxLength": 12},
        "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}
      },
      "required": ["label", "children"],
      "additionalProperties": false
    }
  }
}`,
    text: '{"label": "root", "children": [{"label": "left", "children": []}, {"label": "right", "chil',
  },
  {
    name: "An enum", kind: "schema",
    source: '{"enum": ["todo", "in progress", "done", 0, 1, null]}', text: '"in pro',
  },
  {
    name: "oneOf and not", kind: "schema",
    source: `{
  "type": "integer",
  "minimum": 0,
  "maximum": 100,
  "oneOf": [{"multipleOf": 3}, {"multipleOf": 5}],
  "not": {"enum": [9, 99]}
}`,
    text: "30",
  },
  {
    name: "A date, by a regex", kind: "regex",
    source: "(19|20)[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])", text: "2024-02-29",
  },
  {
    name: "Arithmetic, by a grammar", kind: "grammar",
    source: `// Lark's notation; a grammar with ::= is read as EBNF
start: sum
sum: product (("+" | "-") product)*
product: atom (("*" | "/") atom)*
atom: NUMBER | "-" atom | "(" sum ")"

%import common.NUMBER
%ignore " "`,
    text: "2 * (3 + 4) / -(5 -)",
  },
  {
    name: "Calls of a tool, by tags", kind: "tags",
    source: `{
  "type": "structural_tag",
  "structures": [{
    "begin": "<weather>",
    "schema": {
      "type": "object",
      "properties": {"city": {"type": "string", "maxLength": 20}},
      "required": ["city"],
      "additionalProperties": false
    },
    "end": "</weather>"
  }],
  "triggers": ["<weather>"]
}`,
    text: 'I will look. <weather>{"city": "Ulm"}</weather> And <weather>{"town": "York"}</weather>',
  },
  { name: "Choices", kind: "choices", source: "red\ngreen\ngrey\nblue-green\nblue", text: "gre" },
];

const state = {
  kind: "schema", drafts: {}, compiled: null, // what the server said of the source
  walk: null, step: 0, // the text's way, and the place looked at
  place: null, placed: "", // what may come there, and for which place that was asked
};

// ------------------------------------------------------------------------------------------------------- asking

const running = {}; // by channel: a later question replaces an earlier one

async function ask(channel, path, body) {
  running[channel]?.abort();
  const own = (running[channel] = new AbortController());
  for (let attempt = 0; ; attempt += 1) {
    const answer = await fetch(`/playground/${path}`, {
      method: body ? "POST" : "GET", signal: own.signal, body: body && JSON.stringify(body),
      headers: body && { "Content-Type": "application/json" },
    });
    const said = await answer.json();
    if (answer.ok) return said;
    if (answer.status !== 503 || attempt === 4) throw new Fault(said.error);
    await new Promise((done) => setTimeout(done, 500));
    own.signal.throwIfAborted();
  }
}

class Fault extends Error {
  constructor(error) {
    super(error.message);
    this.error = error;
  }
}

const timers = {};

function later(what, task) {
  clearTimeout(timers[what]);
  timers[what] = setTimeout(task, EDITING[what]);
}

function source() {
  const asked = { kind: state.kind, source: $("source").value };
  if (state.kind === "schema") {
    asked.whitespace = $("whitespace").value || null;
    const words = $("allow").value.split(/[\s,]+/).filter(Boolean);
    asked.allow = words.includes("all") ? "all" : words;
  }
  return asked;
}

async function guarded(task) {
  try {
    await task();
  } catch (error) {
    if (error.name === "AbortError") return;
    const known = error instanceof Fault ? error.error : { message: `The server does not answer (${error.message}).` };
    const ofText = known.param === "text";
    if (!ofText) showFault(known);
    showNoWalk(ofText ? known.message : "");
  }
}

function busy(on) { // what is shown is not what is asked
  $("main").setAttribute("aria-busy", String(on));
}

function compile() {
  clearTimeout(timers.source);
  keep();
  busy(true);
  running.step?.abort();
  running.allowed?.abort();
  return guarded(async () => {
    state.compiled = await ask("compile", "compile", source());
    showFault(null);
    showFacts();
    await walk();
  });
}

function walk() {
  clearTimeout(timers.text);
  keep();
  busy(true);
  running.allowed?.abort();
  return guarded(async () => {
    const text = $("text").value;
    const said = await ask("step", "step", { ...source(), text });
    showFault(null);
    state.walk = { ...said, text, bytes: encoder.encode(text) };
    state.step = said.tokens.length;
    state.place = said.place;
    $("filter").value = "";
    showWalk();
  });
}

function look() {
  if (!state.walk) return undefined;
  const asked = { step: state.step, filter: $("filter").value };
  return guarded(async () => {
    state.place = await ask("allowed", "allowed", { ...source(), text: state.walk.text, ...asked, offset: 0 });
    showPlace();
  });
}

function lookFurther() {
  const asked = { step: state.step, filter: $("filter").value, offset: state.place.tokens.length };
  return guarded(async () => {
    const said = await ask("allowed", "allowed", { ...source(), text: state.walk.text, ...asked });
    const before = state.place.tokens.length;
    state.place.tokens.push(...said.tokens);
    showPlace();
    $("allowed").children[before]?.querySelector("button")?.focus();
  });
}

// ------------------------------------------------------------------------------------------------ bytes in words

const number = (value) => value.toLocaleString("en");

function make(tag, options = {}, ...children) {
  const node = Object.assign(document.createElement(tag), options);
  node.append(...children);
  return node;
}

const NAMED = { " ": "␣", "\n": "↵", "\r": "␍", "\t": "⇥" };

function characters(bytes) { // [text, whether it is one], what is no text byte by byte
  try {
    return [[strict.decode(bytes), true]];
  } catch {
    const out = [];
    for (let at = 0; at < bytes.length; ) {
      const lead = bytes[at];
      const size = lead < 0x80 ? 1 : lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
      try {
        out.push([strict.decode(bytes.subarray(at, at + size)), true]);
        at += size;
      } catch {
        out.push([lead.toString(16).toUpperCase().padStart(2, "0"), false]);
        at += 1;
      }
    }
    return out;
  }
}

function glyphs(bytes, plainly = "") { // what bytes spell, with signs for what cannot be seen, `plainly` aside
  const out = document.createDocumentFragment();
  for (const [text, whole] of characters(bytes)) {
    if (!whole) {
      out.append(make("b", { title: `the byte ${text}, a part of a character` }, text));
      continue;
    }
    let plain = "";
    for (const one of text) {
      const code = one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
      const sign = plainly.includes(one) ? null : NAMED[one] ? make("i", {}, NAMED[one]) : /[\p{C}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]/u.test(one) ? make("b", {}, `U+${code}`) : null;
      if (sign) {
        out.append(plain, sign);
        plain = "";
      } else {
        plain += plain === "" && /\p{M}/u.test(one) ? `\u25cc${one}` : one; // a mark needs something to stand on
      }
    }
    out.append(plain);
  }
  return out;
}

const shown = (bytes) => make("code", { className: "glyphs" }, glyphs(bytes));
const quoted = (bytes) => make("code", { className: "glyphs" }, glyphs(bytes, " "));

function bytesOf(hex) {
  return Uint8Array.from(hex.match(/../g) ?? [], (pair) => parseInt(pair, 16));
}

function hexOf(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).toUpperCase().padStart(2, "0")).join(" ");
}

function listed(pieces) { // a, b or c
  const out = [];
  pieces.forEach((piece, n) => {
    if (n) out.push(n === pieces.length - 1 ? " or " : ", ");
    out.push(piece);
  });
  return out;
}

function begins(ranges) { // what may come, in words, by the first bytes of what may
  const has = (byte) => ranges.some(([low, high]) => low <= byte && byte <= high);
  const char = (byte) => shown(Uint8Array.of(byte));
  const printable = [];
  for (let byte = 0x21; byte < 0x7f; byte += 1) if (has(byte)) printable.push(byte);
  const out = [];
  if (printable.length > 80) {
    const missing = [];
    for (let byte = 0x20; byte < 0x7f; byte += 1) if (!has(byte)) missing.push(byte);
    return missing.length && missing.length < 7
      ? [make("span", {}, "any character but ", ...listed(missing.map(char)))]
      : [missing.length ? "almost any character" : "any character"];
  }
  const classOf = (byte) => (byte >= 48 && byte < 58 ? 1 : byte >= 65 && byte < 91 ? 2 : byte >= 97 && byte < 123 ? 3 : 0);
  for (let at = 0; at < printable.length; ) {
    let end = at;
    while (printable[end + 1] === printable[end] + 1 && classOf(printable[at]) && classOf(printable[end + 1]) === classOf(printable[at])) end += 1;
    if (end - at > 1) {
      out.push(make("span", {}, char(printable[at]), "–", char(printable[end])));
    } else {
      for (let n = at; n <= end; n += 1) out.push(char(printable[n]));
    }
    at = end + 1;
  }
  if (out.length > 24) out.splice(24, out.length, "others");
  if (has(0x20)) out.push("a space");
  if (has(0x0a) || has(0x0d)) out.push("a line break");
  if (has(0x09)) out.push("a tab");
  if (ranges.some(([, high]) => high >= 0xc0)) out.push("a character beyond ASCII");
  else if (ranges.some(([, high]) => high >= 0x80)) out.push("the rest of a character");
  if (ranges.some(([low]) => low < 0x20 && ![9, 10, 13].includes(low))) out.push("a control character");
  return out;
}

function following(place) { // what may come, in words; null if only the end may
  if (place.forced) return [quoted(bytesOf(place.forced))];
  return place.first.length ? listed(begins(place.first)) : null;
}

// ------------------------------------------------------------------------------------------------- the source

function showFault(error) {
  const box = $("source-error");
  box.hidden = !error;
  $("source").setAttribute("aria-invalid", String(Boolean(error)));
  box.replaceChildren();
  if (!error) return;
  state.compiled = null;
  $("facts").replaceChildren();
  const pointer = error.pointer;
  if (pointer !== undefined) box.append(make("strong", {}, pointer || "The whole schema"));
  const line = error.line === undefined ? "" : `line ${error.line}, column ${error.column}: `;
  box.append(make("pre", {}, line + (error.summary ?? error.message)));
  if (error.excerpt) {
    const lines = error.excerpt.split("\n");
    const margin = Math.min(...lines.filter((line) => line.trim()).map((line) => line.search(/\S/)));
    box.append(make("pre", { className: "caret" }, lines.map((line) => line.slice(margin)).join("\n")));
  }
  const where = pointer ? locate($("source").value, pointer) : typeof error.position === "number" && error.keyword !== "pattern" ? [error.position, error.position + 1] : null;
  if (where) {
    const show = make("button", { type: "button" }, "Show it in the source");
    show.addEventListener("click", () => select($("source"), where));
    box.append(show);
  }
  const allow = error.remedies?.find((remedy) => remedy.kind === "allow_keyword");
  if (allow) {
    const leave = make("button", { type: "button" }, `Leave ${allow.keyword} unenforced`);
    leave.addEventListener("click", () => {
      $("allow").value = `${$("allow").value} ${allow.keyword}`.trim();
      compile();
      $("source").focus();
    });
    box.append(" ", leave);
  }
}

function select(area, [start, end]) {
  area.blur();
  area.setSelectionRange(start, end);
  area.focus();
}

function locate(text, pointer) { // where in a JSON text a pointer leads: [start, end] of its key, or of its value
  const keys = pointer.split("/").slice(1).map((key) => key.replaceAll("~1", "/").replaceAll("~0", "~"));
  let at = 0;
  let found = null;
  const space = () => {
    while (/\s/.test(text[at] ?? "")) at += 1;
  };
  const string = () => {
    const [raw] = /^"(?:[^"\\]|\\.)*"/s.exec(text.slice(at)) ?? [];
    if (raw === undefined) throw new SyntaxError("no string");
    at += raw.length;
    return JSON.parse(raw);
  };
  const value = (depth, wanted) => { // wanted: whether the way so far is the pointer's
    if (depth > 500) throw new RangeError("too deep");
    space();
    const start = at;
    const open = text[at];
    if (open === "{" || open === "[") {
      at += 1;
      for (let index = 0; ; index += 1) {
        space();
        if (text[at] === "}" || text[at] === "]") break;
        const begin = at;
        let key = String(index);
        if (open === "{") {
          key = string();
          space();
          at += 1;
        }
        const named = [begin, open === "{" ? begin + JSON.stringify(key).length : null];
        const here = wanted && key === keys[depth];
        value(depth + 1, here);
        if (here && depth === keys.length - 1) found ??= [named[0], named[1] ?? at];
        space();
        if (text[at] === ",") at += 1;
        else if (text[at] !== "}" && text[at] !== "]") throw new SyntaxError("no JSON");
      }
      at += 1;
    } else if (open === '"') {
      string();
    } else {
      at += /^[^\s,\]}]*/.exec(text.slice(at, at + 400))[0].length;
      if (at === start) throw new SyntaxError("no JSON");
    }
  };
  try {
    value(0, true);
  } catch {
    return found;
  }
  return found;
}

function time(seconds) {
  if (seconds >= 1) return `${seconds.toFixed(1)} s`;
  return seconds >= 0.01 ? `${Math.round(seconds * 1e3)} ms` : `${(seconds * 1e3).toFixed(seconds < 1e-3 ? 2 : 1)} ms`;
}

function size(bytes) {
  if (bytes < 1e3) return `${bytes} bytes`;
  return bytes < 1e6 ? `${(bytes / 1e3).toFixed(bytes < 1e4 ? 1 : 0)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

function showFacts() {
  const { compiled } = state;
  const read = compiled.edges === undefined; // it has no table, and its states are made as texts come to them
  const facts = [
    ["States", `${number(compiled.states)}${read ? " so far" : ""}`],
    ...(read ? [] : [["Edges", number(compiled.edges)], ["Masks", number(compiled.masks)]]), ["Bytes", size(compiled.bytes)],
  ];
  if (state.kind === "grammar") {
    facts.unshift(["Followed by", { regular: "a DFA", delimited: "calls and returns", "as it is read": "what is read of it" }[compiled.way]]);
  }
  if (compiled.depth) facts.push(["Depth", `${number(compiled.depth)} calls`]);
  if (compiled.compile_seconds !== null) facts.push(["Compiled in", time(compiled.compile_seconds)]);
  const kept = { memory: "From the cache", disk: "From the disk" }[compiled.origin];
  if (kept) facts.push([kept, time(compiled.seconds)]);
  $("facts").replaceChildren(...facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

// --------------------------------------------------------------------------------------------------- the text

function showNoWalk(message) {
  state.walk = null;
  state.place = null;
  busy(false);
  $("verdict").className = message ? "verdict refused" : "verdict";
  $("verdict").replaceChildren(make("p", {}, message || "There is no automaton to hold the text against."));
  for (const id of ["tokens", "allowed", "place", "counts", "legend", "behind"]) $(id).replaceChildren();
  $("place-title").textContent = "What may come";
  $("more").hidden = true;
}

function tail(bytes, length) { // the end of a text, not cut within a character
  let start = Math.max(0, bytes.length - length);
  while (start > 0 && start < bytes.length && (bytes[start] & 0xc0) === 0x80) start -= 1;
  while (bytes[start] === 32 || bytes[start] === 10) start += 1;
  const line = bytes.lastIndexOf(10);
  if (line > start && line < bytes.length - 1) start = line + 1;
  while (bytes[start] === 32 && start < bytes.length - 1) start += 1;
  return start < bytes.length ? bytes.subarray(start) : bytes.subarray(-1);
}

function showWalk() {
  const { walk } = state;
  busy(false);
  const { verdict, place, bytes } = walk;
  const total = walk.tokens.length + walk.rest.length;
  $("counts").textContent = `${number(bytes.length)} byte${bytes.length === 1 ? "" : "s"}, ${number(total)} token${total === 1 ? "" : "s"}`;
  const box = $("verdict");
  const head = make("p");
  const more = make("p");
  const next = place && following(place);
  if (verdict.kind === "fits") {
    head.append(make("strong", {}, "Fits."), " The text is complete", ...(next ? ["; it may also go on with ", ...next, "."] : ["; nothing may follow."]));
  } else if (verdict.kind === "open") {
    head.append(make("strong", {}, bytes.length ? "Fits so far," : "Nothing is written yet."), bytes.length ? " but is not complete." : "");
    const how = bytes.length ? `Next ${place.forced ? "must" : "may"} come ` : `It ${place.forced ? "must begin" : "begins"} with `;
    more.append(how, ...(next ?? []), ".");
  } else if (verdict.kind === "refused") {
    head.append(
      make("strong", {}, `Refused at token ${number(verdict.token + 1)}`),
      `, line ${number(verdict.line)}, column ${number(verdict.column)} (byte ${number(verdict.byte)}). `,
    );
    const reached = walk.tokens.length ? walk.tokens.at(-1)[1] : 0;
    const before = tail(bytes.subarray(0, verdict.byte), 24);
    const context = before.length ? ["After ", quoted(before)] : ["At the beginning"];
    const wrong = shown(one(bytes, verdict.byte));
    if (reached < verdict.byte || next === null) {
      more.append(...context, next === null ? " the text is complete: nothing may follow, not " : " cannot come ", wrong, ".");
    } else {
      more.append(...context, place.forced ? " must come " : " may come ", ...next, place.ends ? ", or the end" : "", ", not ", wrong, ".");
    }
    const back = make("button", { type: "button", id: "back", hidden: true }, "Go there");
    back.addEventListener("click", () => {
      go(walk.tokens.length);
      $("tokens").focus();
    });
    head.append(back);
  } else {
    head.append(make("strong", {}, "Cannot be written."), ` ${verdict.message}`);
  }
  box.className = `verdict ${verdict.kind === "unwritable" ? "refused" : verdict.kind}`;
  box.replaceChildren(head, ...(more.childNodes.length ? [more] : []));
  const ahead = verdict.kind === "refused" ? lenient.decode(bytes.subarray(0, verdict.byte)) : "";
  if (state.kind === "schema" && /[{,]\s*("[^"]*)?$/.test(ahead.slice(-200))) { // where a key may stand
    box.append(make("p", {}, "Members come in the order of the schema."));
  }
  showChips();
  showPlace();
}

function one(bytes, at) { // the character with a byte, or what is there of it
  let end = at + 1;
  while (end < bytes.length && (bytes[end] & 0xc0) === 0x80) end += 1;
  return bytes.subarray(at, end);
}

function spans() { // [start, end, id, allowed, marks] of all tokens, those behind the refusal without the last two
  let start = 0;
  return [...state.walk.tokens.map(([id, end, count, marks]) => [id, end, count, marks]), ...state.walk.rest].map(([id, end, count, marks]) => {
    const span = [start, end, id, count, marks];
    start = end;
    return span;
  });
}

const FORCED = 1;
const MAY_END = 2;
const RESPLIT = 4;

function showChips() {
  const { walk } = state;
  const box = $("tokens");
  const whole = spans();
  const taken = walk.tokens.length;
  const low = Math.max(0, Math.min(state.step - CHIPS / 2, whole.length - CHIPS));
  const high = Math.min(whole.length, low + CHIPS);
  walk.window = [low, high];
  const out = [];
  const jump = (text, to) => {
    const chip = make("span", { className: "chip jump" }, text);
    chip.setAttribute("role", "option");
    if (to !== null) chip.dataset.step = to;
    else chip.setAttribute("aria-disabled", "true");
    return chip;
  };
  if (low > 0) out.push(jump(`${number(low)} before`, low - 1));
  for (let n = low; n < high; n += 1) {
    const [start, end, id, count, marks] = whole[n];
    const bytes = walk.bytes.subarray(start, end);
    const chip = make("span", { id: `token-${n}` }, glyphs(bytes));
    const named = id < 0 ? "a part of a token" : `token id ${id}`;
    const notes = [`${n + 1}: ${named}, bytes ${hexOf(bytes)}`];
    chip.setAttribute("role", "option");
    if (n < taken) {
      chip.className = `chip${marks & FORCED ? " forced" : ""}${marks & RESPLIT ? " resplit" : ""}`;
      notes.push(marks & FORCED ? "it had to come" : `${number(count)} tokens were allowed`);
      if (marks & MAY_END) notes.push("the text could end before it");
      if (marks & RESPLIT) notes.push("the tokenizer splits the text otherwise here, which is refused");
    } else {
      chip.className = n === taken ? "chip refused" : "chip rest";
      notes.push(n === taken ? "refused" : "not reached");
    }
    if (n <= taken) chip.dataset.step = n;
    else chip.setAttribute("aria-disabled", "true");
    chip.title = notes.join("\n");
    out.push(chip);
  }
  if (high < whole.length) out.push(jump(`${number(whole.length - high)} after`, high <= taken ? high : null));
  else if (taken === whole.length) {
    const end = make("span", { className: "chip end", id: `token-${taken}` }, walk.verdict.kind === "unwritable" ? "not tokenized" : "end of the text");
    end.setAttribute("role", "option");
    end.dataset.step = taken;
    out.push(end);
  }
  box.replaceChildren(...out);
  const marks = walk.tokens.reduce((all, [, , , own]) => all | own, 0);
  $("legend").replaceChildren(
    ...(marks & FORCED ? [make("span", { className: "sign forced" }, "had to come")] : []),
    ...(marks & RESPLIT ? [make("span", { className: "sign resplit" }, "split otherwise than the tokenizer does")] : []),
  );
  mark();
}

function mark() { // the place looked at, among the chips and in the text
  const { walk, step } = state;
  for (const chip of $("tokens").children) chip.setAttribute("aria-selected", String(Number(chip.dataset.step) === step && chip.id !== ""));
  const here = $(`token-${step}`);
  $("tokens").setAttribute("aria-activedescendant", here ? here.id : "");
  if (here) {
    const box = $("tokens");
    if (here.offsetTop < box.scrollTop) box.scrollTop = here.offsetTop - 4;
    const low = here.offsetTop + here.offsetHeight - box.clientHeight;
    if (low > box.scrollTop) box.scrollTop = low + 4;
  }
  const back = $("back");
  if (back) back.hidden = step === walk.tokens.length;
  const whole = spans();
  const [start, end] = whole[step] ?? [walk.bytes.length, walk.bytes.length];
  const wrong = walk.verdict.kind === "refused" ? walk.verdict.byte : walk.bytes.length;
  const cuts = [[Math.min(start, wrong), "read"], [Math.min(end, wrong), "here"], [wrong, "read"], [wrong + one(walk.bytes, wrong).length, "wrong"], [walk.bytes.length, ""]];
  const pieces = [];
  let at = 0;
  for (let [to, name] of cuts) {
    to = Math.min(to, walk.bytes.length);
    while (to > at && to < walk.bytes.length && (walk.bytes[to] & 0xc0) === 0x80) to -= 1;
    if (to > at) {
      pieces.push(make("span", { className: name }, lenient.decode(walk.bytes.subarray(at, to))));
      at = to;
    }
  }
  const current = walk.text === $("text").value;
  $("behind").replaceChildren(...(current ? pieces : []), "\n");
  const seen = $("behind").querySelector(".here, .wrong");
  if (seen && document.activeElement !== $("text")) {
    const area = $("text");
    const top = seen.offsetTop;
    if (top < area.scrollTop || top > area.scrollTop + area.clientHeight - 24) area.scrollTop = top - area.clientHeight / 2;
  }
  $("behind").scrollTop = $("text").scrollTop;
}

function go(step) {
  const { walk } = state;
  if (!walk || walk.verdict.kind === "unwritable") return;
  step = Math.max(0, Math.min(walk.tokens.length, step));
  if (step === state.step) return;
  state.step = step;
  const [low, high] = walk.window;
  if (step < low || step > high || (step === high && high < walk.tokens.length + walk.rest.length)) showChips();
  else mark();
  showPlaceTitle();
  later("stepping", look);
}

// -------------------------------------------------------------------------------------------------- the place

function showPlaceTitle() {
  const { walk, step } = state;
  const all = walk.tokens.length + walk.rest.length;
  $("place-title").textContent = step < all ? `What may come at token ${number(step + 1)}` : "What may come next";
}

function showPlace() {
  const { walk, place, step } = state;
  showPlaceTitle();
  if (!place) {
    $("place").replaceChildren();
    $("allowed").replaceChildren();
    $("more").hidden = true;
    return;
  }
  const before = tail(walk.bytes.subarray(0, step ? walk.tokens[step - 1][1] : 0), 24);
  const line = $("place");
  const after = before.length ? ["after ", quoted(before)] : ["at the beginning"];
  line.replaceChildren();
  if (place.total) {
    line.append(place.total === 1 ? "One token is allowed " : `${number(place.total)} tokens are allowed `, ...after, ": ", ...(place.forced ? [] : [...following(place), "."]));
  }
  if (place.forced) line.append(make("span", { className: "must" }, "there must come"), " ", quoted(bytesOf(place.forced)), ".");
  if (place.ends && place.total) line.append(" ", make("span", { className: "end" }, "The text may end here."));
  else if (place.ends) line.append(make("span", { className: "end" }, "The text ends"), " ", ...after, ": nothing may follow.");
  const filter = $("filter").value;
  const rest = place.tokens.map(([id, hex]) => tile(id, bytesOf(hex)));
  if (!rest.length && filter) {
    rest.push(make("li", { className: "empty" }, "None of them has ", shown(encoder.encode(filter)), " in it."));
  }
  $("allowed").replaceChildren(...rest);
  const left = place.matching - place.tokens.length;
  $("more").hidden = left <= 0;
  $("more").textContent = `${number(left)} more`;
}

function tile(id, bytes) {
  const { walk, step } = state;
  const start = step ? walk.tokens[step - 1][1] : 0;
  const whole = new Uint8Array(start + bytes.length);
  whole.set(walk.bytes.subarray(0, start));
  whole.set(bytes, start);
  const inside = [shown(bytes), make("small", {}, String(id))];
  let text = null;
  try {
    text = strict.decode(whole);
  } catch {
    // a part of a character: no text field can hold it
  }
  if (text === null) return make("li", {}, make("span", { className: "key", title: `bytes ${hexOf(bytes)}` }, ...inside));
  const button = make("button", { type: "button", title: `bytes ${hexOf(bytes)}\nwrite it here, in place of what follows` }, ...inside);
  button.addEventListener("click", () => write(text));
  return make("li", {}, button);
}

async function write(text) {
  const area = $("text");
  area.focus();
  area.select();
  // as typing does, so that it can be undone
  if (!document.execCommand("insertText", false, text) || area.value !== text) area.value = text;
  await walk();
  $("allowed").querySelector("button")?.focus({ preventScroll: true });
}

// ------------------------------------------------------------------------------------------- the page as an address

function address() {
  const said = new URLSearchParams({ k: state.kind, s: $("source").value, t: $("text").value });
  if (state.kind === "schema" && $("whitespace").value) said.set("w", $("whitespace").value);
  if (state.kind === "schema" && $("allow").value.trim()) said.set("a", $("allow").value.trim());
  return `#${said}`;
}

function keep() {
  history.replaceState(null, "", address());
}

function take(kind, given, text, whitespace = "", allow = "") {
  setKind(kind);
  $("source").value = given;
  $("text").value = text;
  $("whitespace").value = ["flexible", "spaced", "compact"].includes(whitespace) ? whitespace : "";
  $("allow").value = allow;
  return compile();
}

function takeAddress() {
  const said = new URLSearchParams(location.hash.slice(1));
  const kind = said.get("k");
  if (!(kind in KINDS)) return false;
  $("example").value = "";
  take(kind, said.get("s") ?? "", said.get("t") ?? "", said.get("w") ?? "", said.get("a") ?? "");
  return true;
}

function setKind(kind) {
  state.kind = kind;
  $(`kind-${kind}`).checked = true;
  $("source").placeholder = KINDS[kind].hint;
  $("source-label").textContent = `${KINDS[kind].name}, the source of the constraint`;
  $("options").hidden = kind !== "schema";
}

// ---------------------------------------------------------------------------------------------------- beginning

function begin() {
  for (const [kind, { name }] of Object.entries(KINDS)) {
    const input = make("input", { type: "radio", name: "kind", id: `kind-${kind}`, value: kind });
    input.addEventListener("change", () => {
      state.drafts[state.kind] = [$("source").value, $("text").value];
      const [own, text] = state.drafts[kind] ?? (({ source: s, text: t }) => [s, t])(EXAMPLES.find((each) => each.kind === kind));
      $("example").value = "";
      take(kind, own, text, $("whitespace").value, $("allow").value);
    });
    const label = make("label", { htmlFor: input.id }, name);
    $("kinds").append(input, label);
  }
  $("example").append(make("option", { value: "", hidden: true }, "your own"), ...EXAMPLES.map(({ name }, n) => make("option", { value: String(n) }, name)));
  $("example").addEventListener("change", () => {
    const { kind, source: given, text } = EXAMPLES[Number($("example").value)];
    take(kind, given, text);
  });
  const changed = () => {
    busy(true);
    later("source", compile);
  };
  $("source").addEventListener("input", changed);
  $("allow").addEventListener("input", changed);
  $("whitespace").addEventListener("change", compile);
  $("text").addEventListener("input", () => {
    $("behind").replaceChildren();
    busy(true);
    later("text", walk);
  });
  $("text").addEventListener("scroll", () => {
    $("behind").scrollTop = $("text").scrollTop;
  });
  $("filter").addEventListener("input", () => later("filter", look));
  $("more").addEventListener("click", lookFurther);
  $("tokens").addEventListener("click", (event) => {
    const chip = event.target.closest("[data-step]");
    if (chip) go(Number(chip.dataset.step));
  });
  $("tokens").addEventListener("keydown", (event) => {
    const to = { ArrowLeft: state.step - 1, ArrowRight: state.step + 1, Home: 0, End: Infinity }[event.key];
    if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    go(to);
  });
  $("share").addEventListener("click", async () => {
    keep();
    let said = "Copied";
    try {
      await navigator.clipboard.writeText(location.href);
    } catch {
      said = "It is the address above";
    }
    $("share").textContent = said;
    setTimeout(() => ($("share").textContent = "Copy link"), 2000);
  });
  window.addEventListener("hashchange", takeAddress);
  new ResizeObserver(() => {
    $("behind").style.height = `${$("text").offsetHeight}px`;
  }).observe($("text"));
  ask("about", "about").then((about) => {
    $("about").textContent = `${about.model}, ${number(about.tokens)} tokens`;
    const served = Array.isArray(about.whitespace) ? `as served: ${about.whitespace.map((each) => JSON.stringify(each)).join(" ")}` : `as served: ${about.whitespace}`;
    $("whitespace").options[0].textContent = served;
  }, () => {});
  if (!takeAddress()) {
    $("example").value = "0";
    const { kind, source: given, text } = EXAMPLES[0];
    take(kind, given, text);
  }
}

begin();
