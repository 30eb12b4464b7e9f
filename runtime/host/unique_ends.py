"""Whether an item that is being written can still become one that its array does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...lazy.unique.memory import AFTER, KEY, KEY_STRING, NUMBER, STRING, Level, Memory
from ...lazy.unique.values import significant
from .stack_reader import Configuration, Stack, StackReader

_MOST_STEPS = 50_000  # of one search
_MOST_AHEAD = 500  # steps of a search for endless items
_MOST_PLACES = 64  # within a string, that are looked at together
_MOST_KEPT = 1 << 16  # answers
_RANK = {byte: rank for rank, byte in enumerate(b'"]},:123456789')}  # ends come first, then what is never equal
_SPACE = b" \t\n\r"

Step = Callable[[Configuration, int], "Configuration | None"]


class UniqueEnds:
    """Answers whether there is a distinct item, by a search for its text over the machine that reads the array.

    A search goes on with one byte after the other, and ends where an item ends that is not equal to an earlier one. It
    ends too where it comes back to a place of the machine with more written: so infinitely many items begin this way.
    No place of the machine is a dead end, so a search that does not end so has seen all items, which are few.
    """

    def __init__(self, reader: StackReader, byte_tokens: list[int]) -> None:
        self._reader, self._byte_tokens = reader, byte_tokens
        self.left_out = 0  # how often a search took too long
        self._endless: set[Any] = set()  # places from which there are infinitely many items
        self._witness: dict[Any, bytes] = {}  # the rest of an item that was found last
        self._free: dict[Any, bool] = {}
        self._bytes_at: dict[Configuration, frozenset[int]] = {}

    def step(self, place: Configuration, byte: int) -> Configuration | None:
        """Return the place behind a byte; None where it is not allowed."""
        token = self._byte_tokens[byte]
        return None if token < 0 else self._reader.step(place, token)

    def read(self, place: Configuration, text: bytes) -> Configuration | None:
        """Return the place behind more bytes; None where one is not allowed."""
        at: Configuration | None = place
        for byte in text:
            at = None if at is None else self.step(at, byte)
        return at

    def bytes_at(self, place: Configuration) -> frozenset[int]:
        """Return the bytes that may follow."""
        found = self._bytes_at.get(place)
        if found is None:
            if len(self._bytes_at) > _MOST_KEPT:
                self._bytes_at.clear()
            mask = self._reader.mask(place).data
            tokens = enumerate(self._byte_tokens)
            found = frozenset([byte for byte, t in tokens if t >= 0 and mask[t >> 5] >> (t & 31) & 1])
            self._bytes_at[place] = found
        return found

    def can_end(self, place: Configuration, memory: Memory) -> bool:
        """Return whether each item that is open can be written so that it is distinct from the earlier ones."""
        if not memory.may_repeat:
            return True
        level, mode = memory.level, memory.mode
        assert level is not None
        for i, unique in enumerate(level.uniques):
            if unique is level and mode == AFTER:
                break
            if not _is_open(unique, memory):
                continue
            if i == len(level.uniques) - 1 or memory.may_equal(unique, unique.among):
                return self._search(place, memory, i)
        return True

    def _key(self, place: Configuration, memory: Memory, i: int) -> Any:
        """Return what items depend on that begin like that of the i-th unique array; None if on what was written."""
        if any(each.among.size for each in memory.uniques[i + 1 :]):
            return None
        shape = None if memory.level is None else memory.level.shape  # in which branch of a union, among others
        return (*place, i, memory.mode == NUMBER and _is_settled(memory.text), memory.rule, shape)

    def _search(self, place: Configuration, memory: Memory, i: int) -> bool:
        key = self._key(place, memory, i)
        if key in self._endless:
            return True
        known = self._witness.get(key)
        if known is not None:
            after = memory.read(known)
            if after is not None and _ended(after, memory, i):
                return True
        return self._search_on(place, memory, i) is not False

    def is_endless(self, place: Configuration, memory: Memory) -> bool:
        """Return whether each item that is open may become infinitely many, as far as a short search sees."""
        for i, unique in enumerate(memory.uniques):
            if not _is_open(unique, memory):
                continue
            key = self._key(place, memory, i)
            if key is None:
                return False
            if key not in self._endless and self._search_on(place, memory, i, _MOST_AHEAD) is not None:
                return False
        return True

    def _search_on(self, place: Configuration, memory: Memory, i: int, most: int = 0) -> bool | None:
        """Search depth first, from a place that is not known: whether there is an item, None if there are endless ones.

        most: after how many steps the search stops that looks for endless ones, and for nothing else; 0 for any item.
        """
        path = [(place, memory)]
        text = bytearray()
        todo = [self._ways(place, memory)]
        steps = 0
        while todo:
            if not todo[-1]:
                todo.pop()
                path.pop()
                if text:
                    text.pop()
                continue
            byte = todo[-1].pop()
            at, before = path[-1]
            steps += 1
            if steps > (most or _MOST_STEPS):
                self.left_out += not most
                return False
            after = before.read(_BYTES[byte])
            if after is None:
                continue
            if _ended(after, memory, i):
                if most:
                    continue
                self._keep(path, i, bytes((*text, byte)))
                return True
            following = self.step(at, byte)
            if following is None:
                continue
            again = _again(path, following, after, i)
            if again > 0 or (again < 0 and after.mode == NUMBER and _may_be_endless(self.bytes_at(following), after)):
                self._keep(path, i, None)
                return None
            if again < 0:
                continue
            path.append((following, after))
            text.append(byte)
            todo.append(self._ways(following, after))
        return False

    def _ways(self, place: Configuration, memory: Memory) -> list[int]:
        """Return the bytes to go on with, the best one last; spaces only if there is nothing else."""
        found = list(self.bytes_at(place))
        if memory.mode not in (STRING, KEY_STRING):
            found = [byte for byte in found if byte not in _SPACE] or found
        found.sort(key=lambda byte: _RANK.get(byte, 99 if byte == 92 else 50), reverse=True)
        return found

    def _keep(self, path: list[tuple[Configuration, Memory]], i: int, text: bytes | None) -> None:
        """Keep that there are infinitely many items from the places of a path; or the text that ends one."""
        if len(self._endless) > _MOST_KEPT:
            self._endless.clear()
        if len(self._witness) > _MOST_KEPT:
            self._witness.clear()
        if text is not None:
            key = self._key(*path[0], i)
            if key is not None:
                self._witness[key] = text
            return
        for place, memory in path:
            key = self._key(place, memory, i)
            if key is not None:
                self._endless.add(key)

    def is_free(self, place: Configuration) -> bool:
        """Return whether infinitely many strings begin like one that is open, whatever characters come."""
        return self._kept_free(place, self._ways_of_string, frozenset(range(256)))

    def is_free_number(self, place: Configuration) -> bool:
        """Return whether infinitely many numbers begin like one that is open and not 0, whatever digits come."""
        return self._kept_free(place, self._ways_of_number, _NONZERO)

    def _kept_free(
        self, place: Configuration, ways_of: Callable[[Configuration], _Ways | None], telling: frozenset[int]
    ) -> bool:
        """Return whether all places within a value come back to themselves by bytes that tell values apart."""
        key = (*place, len(telling))
        found = self._free.get(key)
        if found is None:
            if len(self._free) > _MOST_KEPT:
                self._free.clear()
            ways = ways_of(place)
            found = self._free[key] = ways is not None and _all_endless(ways, telling)
        return found

    def _ways_of_string(self, place: Configuration) -> _Ways | None:
        ways: _Ways = {}
        todo = [(place, False)]
        escaped: dict[Configuration, bool] = {place: False}
        while todo:
            at, is_escape = todo.pop()
            ways[at] = []
            for byte in self.bytes_at(at):
                if byte == 34 and not is_escape:
                    continue
                after = self.step(at, byte)
                if after is None:
                    continue
                ways[at].append((byte, after))
                begins = byte == 92 and not is_escape
                if after not in escaped:
                    if len(escaped) >= _MOST_PLACES:
                        return None
                    escaped[after] = begins
                    todo.append((after, begins))
                elif escaped[after] != begins:
                    return None
        return ways

    def _ways_of_number(self, place: Configuration) -> _Ways | None:
        ways: _Ways = {}
        todo = [place]
        while todo:
            at = todo.pop()
            if at in ways:
                continue
            if len(ways) >= _MOST_PLACES:
                return None
            after = [(byte, self.step(at, byte)) for byte in self.bytes_at(at) if byte in _OF_NUMBER]
            ways[at] = [(byte, each) for byte, each in after if each is not None]
            todo += [each for _, each in ways[at]]
        return ways


_Ways = dict[Configuration, list[tuple[int, Configuration]]]
_OF_NUMBER = frozenset(b"+-.0123456789eE")
_NONZERO = frozenset(b"123456789")


def _all_endless(ways: _Ways, telling: frozenset[int]) -> bool:
    """Return whether from each place a way leads to a cycle in which a byte tells values apart."""
    reach: dict[Configuration, set[Configuration]] = {}
    for place in ways:
        seen: set[Configuration] = set()
        todo = [place]
        while todo:
            for _, after in ways[todo.pop()]:
                if after not in seen:
                    seen.add(after)
                    todo.append(after)
        reach[place] = seen
    turning = {at for at in ways for byte, after in ways[at] if byte in telling and (after == at or at in reach[after])}
    return all(at in turning or turning & reach[at] for at in ways)


_BYTES = [bytes([byte]) for byte in range(256)]


def _is_open(unique: Level, memory: Memory) -> bool:
    """Return whether an item of an array is open or may come next, or a key of an object is open or must come next."""
    return unique.is_array or (unique is memory.level and memory.mode in (KEY, KEY_STRING))


def _ended(after: Memory, before: Memory, i: int) -> bool:
    """Return whether an item of the i-th unique array ended in between."""
    now = after.uniques
    return len(now) <= i or now[i] is not before.uniques[i]


def _again(path: list[tuple[Configuration, Memory]], place: Configuration, memory: Memory, i: int) -> int:
    """Return 1 if a text came back to a place with more written, -1 with the same, 0 if it did not come back."""
    node, stack = place
    least = stack.height
    found = 0
    for (other, under), before in reversed(path):
        least = min(least, under.height)
        if other == node and under.height == least and _at_height(stack, least) is under:
            inside = before.uniques[i + 1 :]  # in which a cycle must not go from one item to the next
            now = memory.uniques[i + 1 : i + 1 + len(inside)]
            if [each.among for each in inside] != [each.among for each in now]:
                continue
            if _is_more(before, memory):
                return 1
            found = -1 if under is stack else found
    return found


def _at_height(stack: Stack, height: int) -> Stack:
    while stack.height > height:
        assert stack.below is not None
        stack = stack.below
    return stack


def _is_more(before: Memory, after: Memory) -> bool:
    """Return whether what was written in between makes another value."""
    if after.mode == NUMBER and before.mode == NUMBER and before.level is after.level:
        return _progress(before.text) != _progress(after.text)
    if after.text != before.text or after.mode != before.mode:
        return True
    return bool(_contents(before.level) != _contents(after.level))


def _contents(level: Level | None) -> Any:
    """Return what the innermost open array or object holds, and those around it."""
    return None if level is None else (level.key, dict(level.parts()), _contents(level.below) if level.recorded else 0)


def _progress(text: bytes) -> bytes:
    """Return a number without zeros that do not change it."""
    text = text.lower()
    plain, e, power = text.partition(b"e")
    if e:
        sign = power[:1] if power[:1] in (b"+", b"-") else b""
        return b"0e" if _is_settled(text) else plain + e + sign + power[len(sign) :].lstrip(b"0")
    return plain.rstrip(b"0") if b"." in plain else plain


def _is_settled(text: bytes) -> bool:
    """Return whether a number with an exponent is 0 whatever the exponent is."""
    plain, e, _ = text.lower().partition(b"e")
    return bool(e) and significant(plain)[1] == ""


def _may_be_endless(found: frozenset[int], memory: Memory) -> bool:
    """Return whether digits may come after ever more zeros of a fraction."""
    text = memory.text.lower()
    return b"." in text and b"e" not in text and any(byte in b"123456789" for byte in found)
