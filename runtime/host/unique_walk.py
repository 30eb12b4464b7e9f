"""Which tokens make two items of an array equal, or leave no distinct item: a walk over the tokens that might."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...lazy.unique.memory import (
    AFTER,
    COLON,
    KEY,
    KEY_STRING,
    NUMBER,
    STRING,
    TEXT,
    VALUE,
    Level,
    Memory,
    is_escaping,
)
from ...lazy.unique.values import number_value, significant, string_is_whole, string_value
from ...lazy.unique.written import Written
from .host_reader import tokens_of
from .item_tokens import ItemTokens, TokenSet
from .stack_reader import Configuration
from .unique_ends import UniqueEnds

_AROUND = frozenset(b" \t\n\r,]}")
_OF_NUMBER = frozenset(b"0123456789.eE+-") | _AROUND
_FEW = 16  # strings that are looked up one by one, and objects of `Written` that are looked through
_TOLD = (VALUE, AFTER, STRING, NUMBER)  # where an item begins or ends, or is a scalar: `UniqueWalk.barred`
_MOST_KEPT = 1 << 16
_MOST_TRIED = 300  # tokens of one place
_BYTES = [bytes([byte]) for byte in range(256)]


class UniqueWalk:
    """Finds the tokens of a mask that must not come, as items of open arrays would be equal or could not be distinct.

    At most places it is known which tokens can be such: those that end an item, and those after which few items begin
    like the open one. Each is tried. Elsewhere a walk over the trie goes where an item is written on that may equal an
    earlier one.
    """

    def __init__(self, ends: UniqueEnds, items: ItemTokens) -> None:
        self._ends, self._items = ends, items
        self._risky: dict[Any, _Risky] = {}
        self._whole: dict[Any, dict[bytes, TokenSet] | None] = {}

    def risky(self, place: Configuration, memory: Memory, mask: NDArray[np.uint32]) -> _Risky:
        """Return the tokens of a mask that may be barred at a place, whatever was written."""
        level = memory.level
        is_zero = memory.mode == NUMBER and not significant(memory.text)[1]  # which it stays with any exponent
        key = (*place, memory.mode, memory.rule, memory.around, None if level is None else level.shape, is_zero)
        found = self._risky.get(key)
        if found is None:
            if len(self._risky) > _MOST_KEPT:
                self._risky.clear()
            found = self._risky[key] = self._find_risky(place, memory, mask)
        return found

    def _find_risky(self, place: Configuration, memory: Memory, mask: NDArray[np.uint32]) -> _Risky:
        items, mode, level = self._items, memory.mode, memory.level
        openers = self._openers(memory, mask)
        if level is None or not level.uniques:  # nothing that was written counts
            return _Risky(tuple([token for token in openers if not self._may_come(place, memory, token)]), None)
        behind_quotes = mode in (STRING, KEY_STRING)
        commas = _allowed(items.commas_behind_quotes if behind_quotes else items.commas, mask)
        crossing = [token for token in commas if not self._is_harmless(place, memory, token)]
        crossing += [t for t in openers if b"," not in items.tokens[t] and self._begins_in_need(memory, t)]
        if level.has_distinct_items and mode in _TOLD:
            return _Risky(tuple(crossing), None)
        if level.written is not None and mode not in (KEY, KEY_STRING, AFTER):  # a key comes behind a comma
            return _Risky(tuple(crossing), tuple([t for t in commas if not self._is_harmless(place, memory, t, 0)]))
        if mode == STRING and not self._ends.is_free(place):
            return _Risky(tuple(crossing), None)
        others = _allowed(items.quotes, mask) if mode == STRING else tokens_of(mask).tolist()
        if len(others) > _MOST_TRIED:
            return _Risky(tuple(crossing), None)
        return _Risky(tuple(crossing), tuple([t for t in others if not self._is_harmless(place, memory, t, 0)]))

    def _openers(self, memory: Memory, mask: NDArray[np.uint32]) -> list[int]:
        """Return the tokens of a mask that may open an array or object."""
        items, mode, around = self._items, memory.mode, memory.around
        tokens = _allowed(items.openers_behind_quotes if mode in (STRING, KEY_STRING) else items.openers, mask)
        if mode != TEXT or around is None:
            return tokens
        nearest = around.distance
        return [] if nearest is None else [token for token in tokens if len(items.tokens[token]) > nearest]

    def _may_come(self, place: Configuration, memory: Memory, token: int) -> bool:
        """Return whether a token may come where no array of distinct items is open."""
        after = memory.read(self._items.tokens[token])
        if after is None or not after.uniques:
            return after is not None
        at = self._ends.read(place, self._items.tokens[token])
        return at is not None and self._ends.can_end(at, after)

    def _begins_in_need(self, memory: Memory, token: int) -> bool:
        """Return whether a token may lead into an array that needs some values later, which an item must not have."""
        after = memory.read(self._items.tokens[token])
        return after is None or any(each.among.size > _size(each) for each in after.uniques)

    def _is_harmless(self, place: Configuration, memory: Memory, token: int, ended: int = 1) -> bool:
        """Return whether a token ends at most so many items, and the open one may become any of infinitely many.

        Answers hold for all memories in which the same arrays are open.
        """
        text = self._items.tokens[token]
        if not text:
            return True
        if _has_brackets(text, memory) and (ended or memory.mode not in (VALUE, COLON)):
            return False
        after = memory.read(text)
        if after is None:
            return False
        if len(after.uniques) < len(memory.uniques):
            return False
        if any(_size(now) > _size(then) + ended for now, then in zip(after.uniques, memory.uniques, strict=False)):
            return False
        if ended and after.mode == AFTER:  # an item that is not equal to an earlier one
            return True
        at = self._ends.read(place, text)
        return at is not None and self._ends.is_endless(at, after)

    def barred(self, place: Configuration, memory: Memory) -> list[TokenSet]:
        """Return tokens that must not come, at a place where some item may equal an earlier one."""
        level = memory.level
        assert level is not None
        written, mode = level.among, memory.mode
        if not level.has_distinct_items or mode not in (VALUE, AFTER, STRING, NUMBER):
            return self._walk(place, memory, None)
        for each in level.uniques[:-1]:
            if memory.may_equal(each, each.among):
                return self._walk(place, memory, None)
        if mode == STRING:
            if self._ends.is_free(place) and string_is_whole(memory.text):
                return self._closing(string_value(memory.text), written)
            return self._walk(place, memory, None)
        if mode == NUMBER:
            if significant(memory.text)[1] and self._ends.is_free_number(place):
                return self._number_ends(memory.text, written)
            return self._walk(place, memory, None)
        return self._between_items(place, memory, level, written)

    def _closing(self, prefix: bytes, written: Written) -> list[TokenSet]:
        """Return the tokens that end a string equal to an earlier one; as it may become any, no others are barred."""
        closing, size = self._items.closing, len(prefix)
        strings = written.strings(prefix, _FEW)
        if len(strings) < _FEW:
            found = [closing.get(each[size:]) for each in strings]
            return [each for each in found if each is not None]
        whole = {prefix + content for content in closing} if prefix else closing.keys()
        return [closing[each[size:]] for each in written.those_in(whole)]

    def _number_ends(self, text: bytes, written: Written) -> list[TokenSet]:
        """Return the tokens that end a number equal to an earlier one."""
        ends = self._items.number_ends
        return [tokens for content, tokens in ends.items() if number_value(text + content) in written]

    def _between_items(self, place: Configuration, memory: Memory, level: Level, written: Written) -> list[TokenSet]:
        """Return the tokens between two items, which follow from those that an earlier object of `Written` kept."""
        rule = memory.rule if memory.mode == VALUE or level.rule is None else level.rule.item(level.count)
        key = (*place, memory.mode, rule, level.shape)
        found: list[TokenSet] | None = written.barred.get(key)
        if found is not None:
            return found
        before: Written | None = written.before
        for _ in range(_FEW):
            if before is None or key in before.barred:
                break
            before = before.before
        if written.has_only_strings and (tokens := self._whole_strings(place, memory)) is not None:
            found = [tokens[each] for each in written.those_in(tokens.keys())]
        elif before is None or key not in before.barred:
            found = self._walk(place, memory, None)
        else:
            more = self._walk(place, memory, written.since(before))
            found = before.barred[key]
            if more:
                found = [*found, *more]
        written.barred[key] = found
        return found

    def _whole_strings(self, place: Configuration, memory: Memory) -> dict[bytes, TokenSet] | None:
        """Return the tokens that write a string between items, if strings there may become any; else None."""
        key = (*place, memory.mode)
        if key not in self._whole:
            begins = (b'"', b' "') if memory.mode == VALUE else (b',"', b', "')
            at = next((found for each in begins if (found := self._ends.read(place, each)) is not None), None)
            is_free = at is not None and self._ends.is_free(at)
            strings = self._items.strings if memory.mode == VALUE else self._items.next_strings
            if len(self._whole) > _MOST_KEPT:
                self._whole.clear()
            self._whole[key] = strings if is_free else None
        return self._whole[key]

    def _walk(self, place: Configuration, memory: Memory, watched: Written | None) -> list[TokenSet]:
        """Return tokens after which an item is equal to an earlier one, or cannot be distinct.

        watched: the values that items may be equal to, all of the innermost array if None.
        """
        items, ends, outer = self._items, self._ends, len(memory.uniques) - 1
        byte, skip, start, root = items.byte, items.skip, items.start, items.root
        found: list[TokenSet] = []
        todo = [(root[b], root[b + 1], place, memory) for b in _likely(memory, watched, outer) if root[b] < root[b + 1]]
        while todo:
            node, stop, at, before = todo.pop()
            likely = _likely(before, watched, outer) & ends.bytes_at(at)
            is_free = before.mode == STRING and ends.is_free(at)
            while node < stop:
                here, node = node, skip[node]
                if byte[here] not in likely:
                    continue
                if is_free and byte[here] != 34 and not items.has_quote_below(here):
                    continue
                following = ends.step(at, byte[here])
                if following is None:
                    continue
                after = before.read(_BYTES[byte[here]])
                if after is None:
                    found.append(items.between(start[here], start[node]))
                    continue
                if not _may_equal(after, watched, outer):
                    continue
                if start[here] < start[here + 1] and not ends.can_end(following, after):
                    found.append(items.between(start[here], start[here + 1]))
                if node == here + 1:
                    continue
                todo.append((here + 1, node, following, after))
        return found


class _Risky(NamedTuple):
    """Tokens that may be barred at a place, whatever was written."""

    crossing: tuple[int, ...]  # that end an item, and after which the next one may be equal or not distinct
    others: tuple[int, ...] | None  # all that may be barred; None if they are many, or found in another way


def _size(level: Level) -> int:
    return 0 if level.written is None else level.written.size


def _has_brackets(text: bytes, memory: Memory) -> bool:
    """Return whether a token opens or closes an array or object, where a text stands."""
    is_string, is_escape = memory.mode in (STRING, KEY_STRING), is_escaping(memory.text)
    for byte in text:
        if is_string and (is_escape or byte == 92):
            is_escape = not is_escape
        elif byte == 34:
            is_string = not is_string
        elif not is_string and byte in b"[]{}":
            return True
    return False


def _allowed(ids: NDArray[np.int64], mask: NDArray[np.uint32]) -> list[int]:
    """Return those of some tokens that are in a mask."""
    found: list[int] = ids[(mask[ids >> 5] >> (ids & 31).astype(np.uint32) & 1).astype(np.bool_)].tolist()
    return found


def _may_equal(memory: Memory, watched: Written | None, outer: int) -> bool:
    """Return whether an open item may equal an earlier one; watched: those of the outer-th array that count."""
    for i, unique in enumerate(memory.uniques):
        if watched is None or i > outer:
            among = unique.among
        elif i == outer:
            among = watched
        else:
            continue
        if memory.may_equal(unique, among):
            return True
    return False


def _likely(memory: Memory, watched: Written | None, outer: int) -> frozenset[int]:
    """Return the bytes by which an item goes on that may equal an earlier one, and those around items."""
    level = memory.level
    is_outer = level is not None and level.written is not None and len(level.uniques) - 1 == outer
    among = watched if watched is not None and is_outer else memory.candidates()
    if level is None or among is None:
        return _ALL
    mode = memory.mode
    if mode == VALUE:
        return among.first_bytes | _SPACE if level.count or not level.is_array else _ALL
    if mode == AFTER:
        return _AROUND
    if mode == NUMBER:
        return _OF_NUMBER
    is_key = mode == KEY_STRING
    if (is_key or (mode == STRING and level.is_array)) and b"\\" not in memory.text:
        return among.next_bytes(memory.text) | _QUOTES
    return _ALL


_ALL = frozenset(range(256))
_SPACE = frozenset(b" \t\n\r")
_QUOTES = frozenset(b'"\\')
