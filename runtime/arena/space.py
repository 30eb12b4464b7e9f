"""Which entries of an array are free."""

from __future__ import annotations

from bisect import bisect_left, insort


class Space:
    """Which parts of an array are free."""

    def __init__(self, size: int) -> None:
        self.size = self.free = size
        self._starts, self._stops = [0], {0: size}  # of what is free, in order

    def take(self, count: int, above: int = 0) -> int:
        """Return where so many entries that were free begin, or -1: the first place where they fit.

        above: if positive, the last place instead, with no entry before this one.
        """
        if count == 0:
            return 0
        if above:
            return self._take_last(count, above)
        for at, start in enumerate(self._starts):
            stop = self._stops[start]
            if stop - start >= count:
                del self._stops[start]
                if stop - start == count:
                    del self._starts[at]
                else:
                    self._starts[at] = start + count
                    self._stops[start + count] = stop
                self.free -= count
                return start
        return -1

    def _take_last(self, count: int, above: int) -> int:
        for at in range(len(self._starts) - 1, -1, -1):
            start = self._starts[at]
            stop = self._stops[start]
            place = stop - count
            if place < above:  # all other places lie before this one
                return -1
            if place < start:
                continue
            if place == start:
                del self._starts[at], self._stops[start]
            else:
                self._stops[start] = place
            self.free -= count
            return place
        return -1

    def copy(self) -> Space:
        """Return another one with the same free."""
        other = Space(self.size)
        other.free, other._starts, other._stops = self.free, list(self._starts), dict(self._stops)
        return other

    def give(self, start: int, count: int) -> None:
        """Take entries back, and join them with what is free around them."""
        if count == 0:
            return
        self.free += count
        stop = start + count
        if stop in self._stops:
            after = self._stops.pop(stop)
            del self._starts[bisect_left(self._starts, stop)]
            stop = after
        at = bisect_left(self._starts, start)
        if at and self._stops[self._starts[at - 1]] == start:
            self._stops[self._starts[at - 1]] = stop
            return
        insort(self._starts, start)
        self._stops[start] = stop
