// The page of a server of items: asks for items, shows the beams as a tree, sells items out and brings them back.
// Whatever comes from the server is put into the page as text, never as markup.
"use strict";

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const REST = 250; // ms of rest before the server is asked
const GROWS = 350; // ms from one code of the tree to the next
const SHOWN = 10; // items in the list

const state = { catalogues: [], asked: 0, timers: [], gone: null };

async function send(method, path, body) {
  const answer = await fetch(path, {
    method, headers: body === undefined ? {} : { "Content-Type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.error?.message ?? `the server answered ${answer.status}`);
  return told;
}

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

const catalogue = () => state.catalogues.find((each) => each.name === $("catalogue").value);
const pathOf = (id) => `/v1/catalogues/${encodeURIComponent(catalogue().name)}/items/${encodeURIComponent(id)}`;

function question() {
  const ids = $("history").value.split(",").map((each) => each.trim()).filter((each) => each !== "");
  const history = catalogue().ids === "integers" ? ids.map(Number) : ids;
  const beams = Math.max(1, Number($("beams").value) || 1);
  const filter = $("filter").value.trim();
  return {
    model: $("model").value, catalogue: catalogue().name, history, beams, limit: beams, columns: "all",
    exclude_history: $("exclude").checked, ...(filter ? { filter } : {}),
  };
}

async function search() {
  const number = ++state.asked;
  $("main").setAttribute("aria-busy", "true");
  try {
    const told = await send("POST", "/v1/retrieve", question());
    if (number !== state.asked) return;
    $("fault").hidden = true;
    show(told);
  } catch (error) {
    if (number !== state.asked) return;
    fail(error);
  } finally {
    if (number === state.asked) $("main").setAttribute("aria-busy", "false");
  }
}

function fail(error) {
  $("fault").replaceChildren(element("strong", error.message));
  $("fault").hidden = false;
}

function show(told) {
  $("counts").textContent = `${told.items.length} items, epoch ${told.epoch}`;
  $("notes").replaceChildren(...told.notes.map((note) => {
    const ids = note.ids ? `: ${note.ids.join(", ")}` : "";
    return element("li", note.message + ids);
  }));
  $("found").replaceChildren(...told.items.slice(0, SHOWN).map(row));
  grow(told.items);
}

function row(item) {
  const made = element("li");
  const values = Object.entries(item.columns ?? {}).filter(([, value]) => value !== null);
  const actions = element("span", undefined, { class: "actions" });
  const add = element("button", "Add to history", { type: "button" });
  add.addEventListener("click", () => {
    $("history").value = [...($("history").value.trim() ? [$("history").value.trim()] : []), item.id].join(", ");
    search();
  });
  actions.append(add);
  if (catalogue().changes === "writes") {
    const sell = element("button", "Sell out", { type: "button" });
    sell.addEventListener("click", () => sellOut(item));
    actions.append(sell);
  }
  made.append(
    actions, element("code", String(item.id)), element("span", item.score.toFixed(2), { class: "score" }),
    element("span", values.map(([name, value]) => `${name}: ${value}`).join(" · "), { class: "values" }),
  );
  return made;
}

async function sellOut(item) {
  try {
    await send("DELETE", pathOf(item.id));
    state.gone = item;
    const back = element("button", "Bring it back", { type: "button" });
    back.addEventListener("click", bringBack);
    $("gone").replaceChildren(element("span", `${item.id} is sold out. `), back);
    $("gone").hidden = false;
    await search();
  } catch (error) {
    fail(error);
  }
}

async function bringBack() {
  const item = state.gone;
  try {
    await send("PUT", pathOf(item.id), { sid: item.sid, columns: item.columns ?? {} });
    $("gone").hidden = true;
    await search();
  } catch (error) {
    fail(error);
  }
}

// ------------------------------------------------------------------------------------------------------------ the tree

function nodes(items) {
  // every prefix of a semantic ID once, with its best score; items come best first
  const levels = [];
  for (const item of items) {
    item.sid.forEach((code, level) => {
      levels[level] ??= new Map();
      const key = item.sid.slice(0, level + 1).join(" ");
      if (!levels[level].has(key)) {
        const parent = item.sid.slice(0, level).join(" ");
        levels[level].set(key, { key, parent, code, score: item.score, items: [] });
      }
      if (level === item.sid.length - 1) levels[level].get(key).items.push(item.id);
    });
  }
  return levels;
}

function grow(items) {
  state.timers.splice(0).forEach(clearTimeout);
  const levels = nodes(items), tree = $("tree");
  tree.replaceChildren();
  const tall = Math.max(1, levels.at(-1)?.size ?? 1) * 18 + 16, step = 110, wide = levels.length * step + 190;
  tree.setAttribute("viewBox", `0 0 ${wide} ${tall}`);
  tree.setAttribute("width", wide);
  tree.setAttribute("height", tall);
  const places = new Map([["", { x: 10, y: tall / 2 }]]);
  const leaves = [...(levels.at(-1)?.values() ?? [])].sort((a, b) => (a.key < b.key ? -1 : 1));
  leaves.forEach((leaf, at) => places.set(leaf.key, { x: levels.length * step, y: at * 18 + 17 }));
  for (let level = levels.length - 2; level >= 0; level--) {
    for (const node of levels[level].values()) {
      const below = [...levels[level + 1].values()].filter((each) => each.parent === node.key);
      const middle = below.reduce((sum, each) => sum + places.get(each.key).y, 0) / below.length;
      places.set(node.key, { x: (level + 1) * step, y: middle });
    }
  }
  const best = items[0]?.score ?? 0;
  levels.forEach((level, at) => {
    const group = document.createElementNS(SVG, "g");
    group.setAttribute("class", "level");
    for (const node of level.values()) {
      const { x, y } = places.get(node.key), from = places.get(node.parent);
      const line = document.createElementNS(SVG, "path");
      const bend = (from.x + x) / 2;
      line.setAttribute("d", `M${from.x} ${from.y}C${bend} ${from.y} ${bend} ${y} ${x} ${y}`);
      line.setAttribute("stroke-width", String(Math.max(0.75, 3.5 - (best - node.score) / 3)));
      const dot = document.createElementNS(SVG, "circle");
      dot.setAttribute("cx", x);
      dot.setAttribute("cy", y);
      dot.setAttribute("r", 3);
      const text = document.createElementNS(SVG, "text");
      text.setAttribute("x", x + 7);
      text.setAttribute("y", node.items.length ? y + 4 : y - 6);
      text.textContent = node.items.length ? `${node.code}  ${node.items.join(", ")}` : String(node.code);
      group.append(line, dot, text);
    }
    tree.append(group);
    state.timers.push(setTimeout(() => group.classList.add("shown"), at * GROWS));
  });
}

// --------------------------------------------------------------------------------------------------------------- begin

function later(event) {
  clearTimeout(state.rest);
  state.rest = setTimeout(search, event.type === "change" ? 0 : REST);
}

async function begin() {
  try {
    const [models, catalogues] = [await send("GET", "/v1/models"), await send("GET", "/v1/catalogues")];
    state.catalogues = catalogues.data;
    $("model").replaceChildren(...models.data.map((each) => element("option", each.id)));
    $("catalogue").replaceChildren(...state.catalogues.map((each) => element("option", each.name)));
    chosen();
    for (const id of ["history", "filter", "beams"]) $(id).addEventListener("input", later);
    for (const id of ["exclude", "model"]) $(id).addEventListener("change", search);
    $("catalogue").addEventListener("change", chosen);
  } catch (error) {
    fail(error);
  }
}

async function chosen() {
  const shop = catalogue();
  $("about").textContent = `${shop.items.toLocaleString("en")} items of ${shop.levels} codes`;
  const named = Object.keys(shop.filters), columns = Object.keys(shop.columns);
  $("filter").placeholder = named[0] ?? (columns.length ? `an expression over ${columns.join(", ")}` : "id != 'x'");
  $("history").value = shop.first ?? "";
  $("gone").hidden = true;
  await search();
}

begin();
