"""What structural tags mean, by trying every reading of a string: the oracle for `compile_structural_tag`.

Special tokens are single characters of the private use area. A reading is a place up to which a format was read, and
the place where the current stretch of text began: JSON, what a grammar derives, and tags end a stretch. Everything that
may follow is tried, so this is slow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jsonschema

SPECIAL = "\ue000\ue001\ue002"
GRAMMARS = {
    'root ::= "a" root | "b"': lambda text: re.fullmatch("a*b", text) is not None,
    'root ::= "(" root ")" | "a"': lambda text: text == "(" * (len(text) // 2) + "a" + ")" * (len(text) // 2),
}
"""The grammars that are known, and what they derive."""

Place = tuple[int, int]  # where a format was read to, and where the stretch began that it stands in


def accepts(tag: Mapping[str, Any], text: str, names: Mapping[str, str]) -> bool:
    """Whether a text is as a structural tag says; names: the character of each special token.

    A name with a bar in it is that of a control token. Another is text where it stands in a text.
    """
    return any(at == len(text) for at, _ in Naive(text, names).read(tag["format"], (0, 0), (), None))


class Naive:
    """Reads formats in a text."""

    def __init__(self, text: str, names: Mapping[str, str]) -> None:
        self.text, self.names = text, names

    def read(
        self, form: Mapping[str, Any], place: Place, ends: Collection[str], nexts: Collection[str] | None
    ) -> set[Place]:
        """Return the places up to which a format may be read.

        ends: of the tag around, none of which occurs in a stretch. nexts: the texts one of which must follow.
        """
        at, start = place
        kind, text = form["type"], self.text
        if kind in ("const_string", "token"):
            value = self.spelled(form if kind == "token" else form["value"])
            return self.stretch([at + len(value)] if text.startswith(value, at) else [], start, ends)
        if kind == "regex":
            fits = re.compile(form["pattern"]).fullmatch
            found = [j for j in self.after(at) if fits(text[at:j]) and not has_special(text[at:j])]
            return self.stretch(found, start, ends)
        if kind == "any_text":
            found = [
                j
                for j in self.after(at)
                if j - at <= form.get("max_chars", j)
                and not any(self.spelled(each) in text[at:j] for each in form.get("excludes", ()))
                and self.is_free(at, j, {*ends, *(nexts or ())}, nexts)
            ]
            return self.stretch(found, start, ends)
        if kind == "json_schema":
            return {(j, j) for j in self.after(at) if is_value(form["json_schema"], text[at:j])}
        if kind == "grammar":
            return {(j, j) for j in self.after(at) if GRAMMARS[form["grammar"]](text[at:j])}
        if kind == "sequence":
            places = {place}
            for i, each in enumerate(form["elements"]):
                what = self.begins_of_all(form["elements"][i + 1 :], nexts)
                places = {j for one in places for j in self.read(each, one, ends, what)}
            return places
        if kind == "or":
            return {j for each in form["elements"] for j in self.read(each, place, ends, nexts)}
        if kind in ("optional", "plus", "star", "repeat"):
            return self.repeated(form, place, ends, nexts)
        if kind == "tag":
            return self.tag(form, at)
        if kind == "triggered_tags":
            return self.free(form, place, ends, nexts)
        assert kind == "tags_with_separator", kind
        return self.separated(form, place, ends)

    def after(self, at: int) -> range:
        return range(at, len(self.text) + 1)

    def stretch(self, found: Sequence[int], start: int, ends: Collection[str]) -> set[Place]:
        """Return the places in one stretch of text, as long as no end occurs in it."""
        return {(j, start) for j in found if not any(end in self.text[start:j] for end in ends)}

    def is_free(self, at: int, stop: int, watched: Collection[str], nexts: Collection[str] | None) -> bool:
        """Whether free text may stand at a place, and end at another: before what must follow, if something must."""
        free = self.text[at:stop]
        if has_special(free) or any(each in free for each in watched):
            return False
        first = first_of(watched, self.text, at)
        return nexts is None or (first is not None and first[0] - len(first[1]) == stop and first[1] in nexts)

    # --------------------------------------------------------------------------------------------- what begins

    def begins_of_all(self, forms: Sequence[Mapping[str, Any]], then: Collection[str] | None) -> Collection[str] | None:
        """Return the texts with one of which some formats begin, one after the other; None if there may be others."""
        for each in forms:
            if not (each["type"] == "const_string" and each["value"] == ""):
                return self.begins(each)
        return then

    def begins(self, form: Mapping[str, Any]) -> Collection[str] | None:
        kind = form["type"]
        if kind in ("const_string", "token"):
            return {self.spelled(form if kind == "token" else form["value"])} - {""} or None
        if kind == "tag":
            return {self.spelled(form["begin"])} - {""} or None
        if kind == "sequence":
            return self.begins_of_all(form["elements"], None)
        if kind == "plus" or (kind == "repeat" and form["min"] > 0):
            return self.begins(form["content"])
        if kind == "or":
            parts = [self.begins(each) for each in form["elements"]]
        elif form.get("at_least_one") or (kind == "tags_with_separator" and form.get("at_least", 0) > 0):
            parts = [self.begins({**each, "type": "tag"}) for each in form["tags"]]
        else:
            return None
        return None if None in parts else {text for part in parts for text in part or ()}

    # ------------------------------------------------------------------------------------------------- repeated

    def repeated(
        self, form: Mapping[str, Any], place: Place, ends: Collection[str], nexts: Collection[str] | None
    ) -> set[Place]:
        bounds_of = {"optional": (0, 1), "plus": (1, -1), "star": (0, -1)}
        low, high = bounds_of.get(form["type"]) or (form["min"], form["max"])
        if nexts is not None and high != 1:
            again = self.begins(form["content"])
            nexts = None if again is None else {*again, *nexts}
        out, now, count = {place} if low == 0 else set(), {place}, 0
        seen: set[tuple[Place, int]] = set()
        while now and (high < 0 or count < high):
            now = {j for i in now for j in self.read(form["content"], i, ends, nexts)}
            count += 1
            now = {each for each in now if (each, min(count, low)) not in seen}
            seen |= {(each, min(count, low)) for each in now} if high < 0 else set()
            out |= now if count >= low else set()
        return out

    def separated(self, form: Mapping[str, Any], place: Place, ends: Collection[str]) -> set[Place]:
        low, high = bounds(form)
        if form.get("stop_after_first"):
            high = 1 if high else 0
        out, count = {place} if low == 0 else set(), 0
        now = {place}
        while now and (high < 0 or count < high):
            before = now
            if count:
                separator = {"type": "const_string", "value": form["separator"]}
                before = {j for i in now for j in self.read(separator, i, ends, None)}
            now = {j for at, _ in before for each in form["tags"] for j in self.tag(each, at)}
            count += 1
            new = now - out
            if high < 0 and count > low and not new:
                break
            out |= now if count >= low else set()
        return out

    # ----------------------------------------------------------------------------------------------------- tags

    def spelled(self, value: Any) -> str:
        """Return a text with the characters of special tokens, or that of one token."""
        if not isinstance(value, str):
            return self.names[value["token"]]
        for name, character in self.names.items():
            value = value.replace(name, character) if "|" in name else value
        return value

    def tag(self, form: Mapping[str, Any], at: int) -> set[Place]:
        """Return where a tag may end that begins at a place."""
        begin = self.spelled(form["begin"])
        if not self.text.startswith(begin, at):
            return set()
        at += len(begin)
        given = form["end"] if isinstance(form["end"], list) else [form["end"]]
        ends = [self.spelled(each) for each in given]
        if "" in ends:
            places = self.read(form["content"], (at, at), (), None)
            stops = {i + len(end) for i, _ in places for end in ends if self.text.startswith(end, i)}
        else:
            places = self.read(form["content"], (at, at), ends, ends)
            stops = {
                i + len(end)
                for i, start in places
                for end in ends
                if self.text.startswith(end, i) and first_of(ends, self.text, start) == (i + len(end), end)
            }
        return {(stop, stop) for stop in stops}

    def free(
        self, form: Mapping[str, Any], place: Place, ends: Collection[str], nexts: Collection[str] | None
    ) -> set[Place]:
        """Return where free text with tags may end."""
        low, high = bounds(form)
        stop_first, begun = form.get("stop_after_first", False), form.get("at_least_one", False)
        triggers = [self.spelled(each) for each in form["triggers"]]
        for each in form["tags"]:
            begin = self.spelled(each["begin"])
            if not isinstance(each["begin"], str) and not any(begin.startswith(t) for t in triggers):
                triggers.append(begin)
        watched = {*triggers, *ends, *map(self.spelled, form.get("excludes", ())), *(nexts or ())}
        out: set[Place] = set()
        todo, seen = [(place, 0)], set()
        if begun:
            todo = [(j, 1) for each in form["tags"] for j in self.tag(each, place[0])]
        while todo:
            (at, start), count = todo.pop()
            count = min(count, low + 1) if high < 0 else count
            if ((at, start), count) in seen:
                continue
            seen.add(((at, start), count))
            if stop_first and count:
                out.add((at, start))
                continue
            if count >= low and not (stop_first and begun):
                stops = [j for j in self.after(at) if self.is_free(at, j, watched, nexts)]
                out |= self.stretch(stops, start, ends)
            found = first_of(watched, self.text, at)
            if found is None or found[1] not in triggers or (high >= 0 and count >= high):
                continue
            begins = found[0] - len(found[1])
            if has_special(self.text[at:begins]) or not self.stretch([begins], start, ends):
                continue
            for each in form["tags"]:
                if self.spelled(each["begin"]).startswith(found[1]):
                    todo += [(j, count + 1) for j in self.tag(each, begins)]
        return out


def bounds(form: Mapping[str, Any]) -> tuple[int, int]:
    low = max(form.get("at_least", 0), int(form.get("at_least_one", False)))
    high = form.get("at_most")
    return low, -1 if high is None else high


def has_special(text: str) -> bool:
    return any(c in SPECIAL for c in text)


def first_of(patterns: Collection[str], text: str, at: int) -> tuple[int, str] | None:
    """Return where the first occurrence of a pattern ends, and the longest that ends there; None if there is none."""
    for stop in range(at + 1, len(text) + 1):
        found = [p for p in patterns if stop - at >= len(p) and text[at:stop].endswith(p)]
        if found:
            return stop, max(found, key=len)
    return None


def is_value(schema: Any, text: str) -> bool:
    """Whether a text is a value of a schema, written without white space."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    plain = json.dumps(value, separators=(",", ":"), ensure_ascii=False) == text and not has_special(text)
    return plain and jsonschema.Draft202012Validator(schema).is_valid(value)
