"""`Memory`: what of a JSON text must be remembered so that items of arrays and keys of objects stay distinct.

It stands beside the state of a machine that reads the text, which knows what JSON is: a memory reads only texts that
the machine reads too. Memories are not changed, so that sequences share them, and taking tokens back takes no time.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Protocol

from .values import Value, begun_string, compound, entry, number_value, string_value
from .written import EMPTY, Written

VALUE, STRING, NUMBER, LITERAL, AFTER, KEY, KEY_STRING, COLON, TEXT = range(9)
"""Where a text stands: before a value or in one, after a value or a bracket that closes one; before a key, in one, or
behind it; in text around values."""

_SPACE = b" \t\n\r"
_STOP = re.compile(rb'["\\]')
_NUMBER = re.compile(rb"[-+.0-9eE]*")
_LITERALS: dict[bytes, bool | None] = {b"true": True, b"false": False, b"null": None}


class Rule(Protocol):
    """What a schema says of one value, as far as distinct items and keys go. Rules are known by their identity."""

    @property
    def is_unique(self) -> bool:
        """Whether the items must be distinct if the value is an array."""

    @property
    def has_distinct_keys(self) -> bool:
        """Whether no key may come twice if the value is an object."""

    def among(self, written: Written) -> Written:
        """Return the values that the next item of an array must not have: what is written, and what must come later."""

    def item(self, index: int) -> Rule | None:
        """Return the rule of an item; None if nothing in it has to be remembered."""

    def member(self, key: str) -> Rule | None:
        """Return the rule of a member; None if nothing in it has to be remembered."""

    def tells(self, key: str) -> bool:
        """Return whether the value of a member tells which branches of a union hold."""

    def narrowed(self, key: str, value: Value) -> Rule | None:
        """Return the rule of objects in which a member that tells has a value."""

    def at_key(self, key: str) -> Rule | None:
        """Return the rule of objects in which a key comes before members that would tell what is said of it."""

    def is_declared(self, key: str) -> bool:
        """Return whether a key certainly comes at most once."""


class Around(Protocol):
    """A place in the text around JSON values, such as that of tags. Places are known by their identity."""

    @property
    def distance(self) -> int | None:
        """The fewest bytes before a value that has a rule; None if no more comes."""

    def read(self, text: bytes, at: int) -> tuple[Around, int, Rule | None]:
        """Return the place behind more bytes, the end of the text, and None.

        If a value begins within it: the place behind that value, where it begins, and its rule.
        """


class Level:
    """An open array or object.

    written: the items of an array of distinct items, or the keys of an object of distinct keys, else None. among: what
    its next item or key must not be, or the open one. recorded: whether it stands inside of such an item.
    """

    __slots__ = (
        "among", "below", "count", "digest", "earlier", "is_array", "is_idle", "key", "last", "matching", "name",
        "recorded", "rule", "shape", "uniques", "written",
    )  # fmt: skip

    def __init__(self, below: Level | None, is_array: bool, rule: Rule | None) -> None:
        self.below, self.is_array, self.rule = below, is_array, rule
        self.count = 0  # values so far
        self.key: str | None = None
        self.earlier: Level | None = None  # before its last value
        self.last: Value = None  # that value, if values are recorded
        self.name: int | str = 0  # and its index or key
        self.recorded: bool = below is not None and (below.recorded or below.has_distinct_items)
        is_distinct = rule is not None and (rule.is_unique if is_array else rule.has_distinct_keys)
        self.written: Written | None = EMPTY if is_distinct else None
        self.among: Written = EMPTY if not self.has_distinct_items or rule is None else rule.among(EMPTY)
        around: tuple[Level, ...] = () if below is None else below.uniques
        self.uniques: tuple[Level, ...] = around if self.written is None else (*around, self)
        self.shape: Any = (None if below is None else below.shape, is_array, rule)
        self.matching: Any = None  # what is kept of `Memory.matching`
        self.digest = b""  # once `code` was asked for
        self.is_idle: bool = rule is None and (below is None or below.is_idle)

    def after(self, value: Value) -> Level | None:
        """Return the level behind one more value; None if it is equal to an earlier item."""
        written, rule = self.written, self.rule
        if written is not None and self.is_array:
            if value in self.among:
                return None
            written = written.plus(value)
        elif self.is_telling:
            assert rule is not None
            assert self.key is not None
            rule = rule.narrowed(self.key, value)
        elif not self.recorded and (not self.is_array or rule is None):
            return self  # nothing of it counts
        found: Level = object.__new__(Level)
        found.below, found.is_array = self.below, self.is_array
        found.recorded, found.key = self.recorded, self.key
        found._take(rule, self)
        found.count, found.earlier, found.last, found.name = self.count + 1, None, None, 0
        if self.recorded:
            found.earlier, found.last = self, value
            found.name = self.count if self.is_array or self.key is None else self.key
        found.written, found.matching, found.digest = written, None, b""
        found.among = self.among
        if written is not None and self.is_array and rule is not None:
            found.among = rule.among(written)
        found.uniques = self.uniques if written is None else (*self.uniques[:-1], found)
        return found

    def _take(self, rule: Rule | None, before: Level) -> None:
        """Have a rule, that of a level before or what is left of it."""
        self.rule, self.shape, self.is_idle = rule, before.shape, before.is_idle
        if rule is not before.rule:
            self.shape = before.shape[0], before.is_array, rule
            self.is_idle = rule is None and (before.below is None or before.below.is_idle)

    @property
    def has_distinct_items(self) -> bool:
        """Whether it is an array of distinct items."""
        return self.is_array and self.written is not None

    @property
    def is_telling(self) -> bool:
        """Whether it is an object whose member that is being written tells which branches hold."""
        return not self.is_array and self.key is not None and self.rule is not None and self.rule.tells(self.key)

    @property
    def name_of_next(self) -> int | str:
        """The index or the key of the next value."""
        return self.count if self.is_array or self.key is None else self.key

    @property
    def is_final(self) -> bool:
        """Whether the last value is not replaced by another one."""
        return self.is_array or (self.rule is not None and self.rule.is_declared(str(self.name)))

    def with_key(self, key: str) -> Level | None:
        """Return the level behind a key; None if it must not come again."""
        found: Level = object.__new__(Level)
        for name in Level.__slots__:
            setattr(found, name, getattr(self, name))
        found.key, found.digest = key, b""
        if self.rule is not None:
            found._take(self.rule.at_key(key), self)
        if self.written is not None:
            content = key.encode("utf-8", "surrogatepass")
            if content in self.written:
                return None
            found.written = found.among = self.written.plus(content)
            found.uniques = (*self.uniques[:-1], found)
        return found

    def code(self) -> bytes:
        """Return bytes that levels have in common that remember the same."""
        todo: list[Level] = [self]
        while todo:
            at = todo[-1]
            before = [each for each in (at.below, at.earlier) if each is not None and not each.digest]
            if before or at.digest:
                todo += before
                if at.digest:
                    todo.pop()
                continue
            parts = [b"" if each is None else each.digest for each in (at.below, at.earlier)]
            parts.append(entry(at.name, at.last))
            parts.append(b"" if at.written is None else at.written.code())
            parts.append(f"{at.is_array} {id(at.rule)} {at.count} {at.key!r}".encode())
            at.digest = hashlib.sha256(b"".join(len(each).to_bytes(8, "little") + each for each in parts)).digest()
            todo.pop()
        return self.digest

    def parts(self) -> list[tuple[int | str, Value]]:
        """Return the values so far, by index or key."""
        found: list[tuple[int | str, Value]] = []
        at = self
        while at.earlier is not None:
            found.append((at.name, at.last))
            at = at.earlier
        found.reverse()
        return found


class Memory:
    """What is remembered of a text so far: see the module."""

    __slots__ = ("_may_repeat", "around", "level", "mode", "rule", "text")

    def __init__(
        self, level: Level | None, mode: int, text: bytes, rule: Rule | None, around: Around | None = None
    ) -> None:  # fmt: skip
        self.level, self.mode, self.text, self.rule = level, mode, text, rule
        self.around = around  # behind the value, if it stands in other text
        self._may_repeat: bool | None = None

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Memory)
            and (self.mode, self.text, self.rule, self.around) == (other.mode, other.text, other.rule, other.around)
            and _code(self.level) == _code(other.level)
        )

    def __hash__(self) -> int:
        return hash((self.mode, self.text, self.around, _code(self.level)))

    @property
    def uniques(self) -> tuple[Level, ...]:
        """The open arrays of distinct items and objects of distinct keys, the outermost first."""
        return () if self.level is None else self.level.uniques

    def read(self, text: bytes) -> Memory | None:
        """Return the memory behind more bytes, which the machine reads too; None if two items or keys become equal."""
        level, mode, kept, rule, around = self.level, self.mode, self.text, self.rule, self.around
        at, size = 0, len(text)
        value: Value
        while at < size:
            if mode == TEXT:
                assert around is not None
                around, at, rule = around.read(text, at)
                mode = VALUE if at < size else TEXT
                continue
            if mode in (STRING, KEY_STRING):
                start = at
                at, is_whole = _string_end(kept, text, at)
                if _keeps(level, mode):
                    kept += text[start:at]
                else:  # whether an escape is begun
                    kept = b"\\" if at == size and not is_whole and is_escaping(kept + text[start:at]) else b""
                if not is_whole:
                    break
                at += 1
                if mode == STRING:
                    mode, value = AFTER, string_value(kept)
                else:
                    assert level is not None
                    mode = COLON
                    known = level.rule
                    if known is not None:
                        key = string_value(kept).decode("utf-8", "surrogatepass")
                        level = level.with_key(key)
                        if level is None:
                            return None
                        rule = None if level.rule is None else level.rule.member(key)
                    kept = b""
                    continue
            elif mode == NUMBER:
                found = _NUMBER.match(text, at)
                assert found is not None
                if _keeps(level, mode):
                    kept += found[0]
                at = found.end()
                if at == size:
                    break
                mode, value = AFTER, number_value(kept) if kept else None
            elif mode == LITERAL:
                kept += text[at : at + 1]
                at += 1
                if kept not in _LITERALS:
                    continue
                mode, value = AFTER, _LITERALS[kept]
            else:
                byte = text[at]
                if mode == VALUE and byte not in b" \t\n\r[]{":
                    if byte == 34:
                        mode = STRING
                        at += 1
                    else:
                        mode = LITERAL if byte in b"tfn" else NUMBER
                    kept = b""
                    continue
                at += 1
                if byte in _SPACE:
                    continue
                if byte in b"[{":
                    level = Level(level, byte == 91, rule)
                    mode = VALUE if byte == 91 else KEY
                    rule = level.rule.item(0) if byte == 91 and level.rule is not None else None
                    continue
                if byte == 34:
                    mode, kept = KEY_STRING, b""
                    continue
                if byte == 58:
                    mode = VALUE
                    continue
                assert level is not None
                if byte == 44:
                    mode = VALUE if level.is_array else KEY
                    rule = level.rule.item(level.count) if level.is_array and level.rule is not None else None
                    continue
                value = compound(level.is_array, level.parts()) if level.recorded else None
                mode, level = AFTER, level.below
            kept, rule = b"", None  # behind a value
            if level is not None:
                level = level.after(value)
                if level is None:
                    return None
            elif around is not None:
                mode = TEXT
        same = level is self.level and mode == self.mode and kept == self.text and rule is self.rule
        return self if same and around is self.around else Memory(level, mode, kept, rule, around)

    # ------------------------------------------------------------------------------------------- what may be equal

    @property
    def is_idle(self) -> bool:
        """Whether no array of distinct items is open, or can begin."""
        if self.around is not None and self.around.distance is not None:
            return False
        return self.rule is None and (self.level is None or self.level.is_idle)

    @property
    def may_repeat(self) -> bool:
        """Whether an item that is being written, or the next one of an open array, may equal an earlier one."""
        if self._may_repeat is None:
            self._may_repeat = False
            for each in self.uniques:
                if self.may_equal(each, each.among):
                    self._may_repeat = True
                    break
        return self._may_repeat

    def may_equal(self, unique: Level, among: Written) -> bool:
        """Return whether the item or key that is being written, or the next one, may equal one of some values.

        unique: one of `uniques`. The next key counts only between the brackets of the object itself.
        """
        level, mode = self.level, self.mode
        assert level is not None
        if not among.size:
            return False
        if not unique.is_array:
            if mode == KEY_STRING and level is unique:
                return bool(among.strings(begun_string(self.text), 1))
            return level is unique
        if level is unique:
            return self._may_be(among)
        whole = _whole(level, unique, among)
        if mode in (AFTER, KEY) or (mode == VALUE and level.is_array and not level.count):  # it may end
            return bool(_matching(level, unique, among)) if whole is None else whole.has_compound(level.is_array)
        if mode == KEY_STRING:
            keys = EMPTY
            if whole is not None:
                keys = whole.parts(False, None)
            else:
                for key in {key for each in _matching(level, unique, among) for key in each.parts}:
                    keys = keys.plus(str(key).encode("utf-8", "surrogatepass"))
            return bool(keys.strings(begun_string(self.text), 1))
        if mode == COLON:
            return bool(_matching(level, unique, among)) if whole is None else whole.has_compound(level.is_array)
        name = level.name_of_next
        if whole is not None:
            parts = whole.parts(level.is_array, name)
        else:
            parts = EMPTY
            for each in _matching(level, unique, among):
                if name in each.parts and each.parts[name] not in parts:
                    parts = parts.plus(each.parts[name])
        if not parts.size:
            return False
        is_final = level.is_array or (level.rule is not None and level.rule.is_declared(str(name)))
        return not is_final or self._may_be(parts)

    def _may_be(self, values: Written) -> bool:
        """Return whether the value that is being written, or the next one, may be one of some."""
        mode = self.mode
        if mode == STRING:
            return bool(values.strings(begun_string(self.text), 1))
        if mode == NUMBER:
            return values.may_be_number(self.text)
        return mode != LITERAL or values.has_literal(self.text)

    def candidates(self) -> Written | None:
        """Return the values that the value that is being written, or the next one, may equal; None if not known."""
        level = self.level
        if level is None:
            return None
        uniques = [each for each in level.uniques if each.is_array or each is level]  # no other key is written here
        if len(uniques) != 1:
            return None
        unique = uniques[0]
        if not unique.is_array:
            return unique.among if level is unique and self.mode == KEY_STRING else None
        if level is unique:
            return unique.among
        whole = _whole(level, unique, unique.among)
        if whole is not None and self.mode == KEY_STRING:
            return whole.parts(False, None)
        if whole is None or (not level.is_array and level.key is None):
            return None
        return whole.parts(level.is_array, level.name_of_next)


def _whole(level: Level, unique: Level, among: Written) -> Written | None:
    """Return values whose arrays or objects an open one may become, if it and all around it hold nothing yet."""
    if level.earlier is not None:
        return None
    assert level.below is not None
    if level.below is unique:
        return among
    around = _whole(level.below, unique, among)
    return None if around is None else around.parts(level.below.is_array, level.below.name_of_next)


def _matching(level: Level, unique: Level, among: Written) -> list[Any]:
    """Return the arrays or objects that an open one may still become, so that an item equals one of some."""
    later: list[Level] = []
    values: list[Any]
    at = level
    while True:
        if at.matching is not None and at.matching[0] is among:
            values = at.matching[1]
            break
        if at.earlier is None:
            assert at.below is not None
            whole = _whole(at, unique, among)
            if whole is not None:
                first = later[-1] if later else None  # behind its first value, which none may have
                if first is not None and first.is_final and first.last not in whole.parts(at.is_array, first.name):
                    values = []
                    break
                values = whole.compounds(at.is_array)
            else:
                name = at.below.name_of_next
                around = [each.parts.get(name) for each in _matching(at.below, unique, among)]
                values = [each for each in around if hasattr(each, "parts") and each.is_array == at.is_array]
            at.matching = among, values
            break
        later.append(at)
        at = at.earlier
    for at in reversed(later):
        name, value = at.name, at.last
        if at.is_final:
            values = [each for each in values if name in each.parts and each.parts[name] == value]
        else:  # the key may come again
            values = [each for each in values if name in each.parts]
        at.matching = among, values
    return values


def _code(level: Level | None) -> bytes:
    return b"" if level is None else level.code()


def _keeps(level: Level | None, mode: int) -> bool:
    """Return whether the text of a value or a key counts."""
    if level is None:
        return False
    if mode == KEY_STRING:
        return level.rule is not None
    return level.recorded or level.has_distinct_items or level.is_telling


def is_escaping(text: bytes) -> bool:
    """Return whether an odd number of backslashes ends a text."""
    return bool((len(text) - len(text.rstrip(b"\\"))) & 1)


def _string_end(kept: bytes, text: bytes, at: int) -> tuple[int, bool]:
    """Return where the quote is that ends a string, and True; the end of the text, and False, if there is none."""
    if kept.endswith(b"\\") and is_escaping(kept):
        at += 1
    while True:
        found = _STOP.search(text, at)
        if found is None:
            return len(text), False
        at = found.start()
        if text[at] == 34:
            return at, True
        at += 2
        if at > len(text):
            return len(text), False


def start(rule: Rule | None) -> Memory:
    """Return the memory before a text whose value has a rule."""
    return Memory(None, VALUE, b"", rule)


def start_around(place: Around) -> Memory:
    """Return the memory before a text with values in it."""
    return Memory(None, TEXT, b"", None, place)
