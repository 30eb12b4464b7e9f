"""What text with tags means, by looking for triggers and ends in a string: the oracle for `compile_structural_tag`.

Special tokens are single characters of the private use area. All that may follow is tried, so this is slow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jsonschema

SPECIAL = "\ue000\ue001\ue002"


def accepts(tag: Mapping[str, Any], text: str, names: Mapping[str, str]) -> bool:
    """Whether a text is as a structural tag says; names: the character of each special token."""
    if "structures" in tag:
        tags = [
            {
                "begin": each["begin"],
                "content": {"type": "json_schema", "json_schema": each["schema"]},
                "end": each["end"],
            }
            for each in tag["structures"]
        ]
        return len(text) in Naive(names).ends_of(
            {"type": "triggered_tags", "triggers": tag["triggers"], "tags": tags}, text, 0
        )
    return len(text) in Naive(names).ends_of(tag["format"], text, 0)


class Naive:
    """Where formats may end that begin at a place."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names

    def ends_of(self, part: Mapping[str, Any], text: str, at: int) -> set[int]:
        """Return where a format may end that begins at a place."""
        kind = part["type"]
        if kind == "const_string":
            return {at + len(part["value"])} if text.startswith(part["value"], at) else set()
        if kind == "regex":
            pattern = re.compile(part["pattern"])
            return {
                j for j in range(at, len(text) + 1) if pattern.fullmatch(text[at:j]) and not has_special(text[at:j])
            }
        if kind == "any_text":
            return {
                j
                for j in range(at, len(text) + 1)
                if not has_special(text[at:j])
                and not any(each in text[at:j] for each in part.get("excludes", ()))
                and j - at <= part.get("max_chars", j)
            }
        if kind == "json_schema":
            return {j for j in range(at + 1, len(text) + 1) if is_value(part["json_schema"], text[at:j])}
        if kind == "token":
            return {at + 1} if text[at : at + 1] == self.names[part["token"]] else set()
        if kind == "sequence":
            ends = {at}
            for each in part["elements"]:
                ends = {j for i in ends for j in self.ends_of(each, text, i)}
            return ends
        if kind == "or":
            return {j for each in part["elements"] for j in self.ends_of(each, text, at)}
        if kind in ("optional", "plus", "star", "repeat"):
            low, high = {"optional": (0, 1), "plus": (1, -1), "star": (0, -1)}.get(kind) or (part["min"], part["max"])
            return self.repeated(lambda i: self.ends_of(part["content"], text, i), at, low, high)
        if kind == "tag":
            return self.tag(part, text, at)
        if kind == "triggered_tags":
            return self.free(part, text, at, ())
        assert kind == "tags_with_separator", kind
        low, high = bounds(part)
        if part.get("stop_after_first"):
            high = 1 if high else 0

        def one(i: int) -> set[int]:
            return {j for each in part["tags"] for j in self.tag(each, text, i)}

        def more(i: int) -> set[int]:
            return one(i + len(part["separator"])) if text.startswith(part["separator"], i) else set()

        out = {at} if low == 0 else set()
        if high != 0:
            for i in one(at):
                out |= self.repeated(more, i, max(low - 1, 0), high - 1 if high >= 0 else -1)
        return out

    def repeated(self, one: Any, at: int, low: int, high: int) -> set[int]:
        """Return where low .. high of something may end; high -1 for any number."""
        out, now, count = set(), {at}, 0
        if low == 0:
            out = {at}
        while now and (high < 0 or count < high):
            now = {j for i in now for j in one(i)}
            count += 1
            if count >= low:
                if high < 0:
                    now -= out
                out |= now
            if count > 20:
                break
        return out

    def begins(self, begin: Any, text: str, at: int) -> int:
        """Return where the begin of a tag ends, -1 if it is not there."""
        spelled = begin if isinstance(begin, str) else self.names[begin["token"]]
        return at + len(spelled) if text.startswith(spelled, at) else -1

    def tag(self, part: Mapping[str, Any], text: str, at: int) -> set[int]:
        """Return where a tag may end that begins at a place."""
        at = self.begins(part["begin"], text, at)
        return set() if at < 0 else self.inside(part, text, at)

    def inside(self, part: Mapping[str, Any], text: str, at: int) -> set[int]:
        """Return where a tag may end whose begin ends at a place."""
        end = part["end"]
        if isinstance(end, Mapping):
            return {
                j + 1 for j in self.ends_of(part["content"], text, at) if text[j : j + 1] == self.names[end["token"]]
            }
        ends = (end,) if isinstance(end, str) else tuple(end)
        if "" in ends:
            return {j + len(e) for j in self.ends_of(part["content"], text, at) for e in ends if text.startswith(e, j)}
        return self.ended(part["content"], text, at, ends)

    def ended(self, part: Mapping[str, Any], text: str, at: int, ends: Sequence[str]) -> set[int]:
        """Return behind which end a content ends."""
        if is_plain(part):
            first = first_of(ends, text, at)
            if first is None:
                return set()
            stop, _ = first
            longest = max((e for e in ends if text[at:stop].endswith(e)), key=len)
            return {stop} if stop - len(longest) in self.ends_of(part, text, at) else set()
        if part["type"] == "triggered_tags":
            return self.free(part, text, at, ends)
        if part["type"] == "or":
            return {j for each in part["elements"] for j in self.ended(each, text, at, ends)}
        if part["type"] == "sequence":
            before = {at}
            for each in part["elements"][:-1]:
                before = {j for i in before for j in self.ends_of(each, text, i)}
            return {j for i in before for j in self.ended(part["elements"][-1], text, i, ends)}
        return {j + len(e) for j in self.ends_of(part, text, at) for e in ends if text.startswith(e, j)}

    def free(self, part: Mapping[str, Any], text: str, at: int, ends: Sequence[str]) -> set[int]:
        """Return where free text with tags may end; with ends, behind which of them."""
        low, high = bounds(part)
        stop_first = part.get("stop_after_first", False)
        watched = [*part["triggers"], *ends, *part.get("excludes", ())]
        out: set[int] = set()
        todo, seen = [(at, 0)], set()
        if part.get("at_least_one"):
            todo = [(j, 1) for each in part["tags"] for j in self.tag(each, text, at)]
        while todo:
            i, count = todo.pop()
            if (i, count) in seen:
                continue
            seen.add((i, count))
            if stop_first and count:
                out |= {i + len(e) for e in ends if text.startswith(e, i)} if ends else {i}
                continue
            found = first_of(watched, text, i)
            special = next((j for j in range(i, len(text)) if text[j] in SPECIAL), len(text))
            quiet = min(found[0] - 1 if found else len(text), special)  # free text reaches at most so far
            if count >= low and not ends:
                out |= set(range(i, quiet + 1))
            more = high < 0 or count < high
            if found is None or special < found[0]:
                if more and special < len(text):
                    for each in part["tags"]:
                        if not isinstance(each["begin"], str) and self.names[each["begin"]["token"]] == text[special]:
                            todo += [(j, count + 1) for j in self.inside(each, text, special + 1)]
                continue
            stop, which = found
            if which in ends:
                if count >= low:
                    out.add(stop)
            elif which in part["triggers"] and more:
                for each in part["tags"]:
                    if isinstance(each["begin"], str) and each["begin"].startswith(which):
                        rest = each["begin"][len(which) :]
                        if text.startswith(rest, stop):
                            todo += [(j, count + 1) for j in self.inside(each, text, stop + len(rest))]
        return out


def bounds(part: Mapping[str, Any]) -> tuple[int, int]:
    low = max(part.get("at_least", 0), int(part.get("at_least_one", False)))
    high = part.get("at_most")
    return low, -1 if high is None else high


def has_special(text: str) -> bool:
    return any(c in SPECIAL for c in text)


def first_of(patterns: Sequence[str], text: str, at: int) -> tuple[int, str] | None:
    """Return where the first occurrence of a pattern ends, and the longest that ends there; None if there is none."""
    for stop in range(at + 1, len(text) + 1):
        found = [p for p in patterns if stop - at >= len(p) and text[at:stop].endswith(p)]
        if found:
            return stop, max(found, key=len)
    return None


def is_plain(part: Mapping[str, Any]) -> bool:
    if part["type"] in ("sequence", "or"):
        return all(map(is_plain, part["elements"]))
    if part["type"] in ("optional", "plus", "star", "repeat"):
        return is_plain(part["content"])
    return part["type"] in ("const_string", "regex", "any_text")


def is_value(schema: Any, text: str) -> bool:
    """Whether a text is a value of a schema, written without white space."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    plain = json.dumps(value, separators=(",", ":"), ensure_ascii=False) == text and not has_special(text)
    return plain and jsonschema.Draft202012Validator(schema).is_valid(value)
