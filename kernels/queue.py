"""A queue of entries of an array, the least value first, for kernels that settle each entry once.

Kernels take names from this file.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .arrays import Int, Int64Array
from .compiled import kernel


class Queue(NamedTuple):
    """A binary heap of entries by their values; an entry's value may sink while it waits."""

    value: Int64Array  # (N,) of each entry
    heap: Int64Array  # (N,) entries that wait, each no greater than the two below it
    place: Int64Array  # (N,) where each entry waits, -1 where it does not
    waiting: Int64Array  # (1,) how many wait


@kernel
def queue_of(count: Int, value: int) -> Queue:
    """Return a queue of which none of the entries waits yet, all with one value."""
    return Queue(
        np.full(count, value, np.int64), np.empty(count, np.int64), np.full(count, -1, np.int64), np.zeros(1, np.int64)
    )


@kernel
def lower(queue: Queue, entry: Int, value: Int) -> bool:
    """Give an entry a lower value and have it wait, in time log N; return False where the value is not lower."""
    heap, place = queue.heap, queue.place
    if value >= queue.value[entry]:
        return False
    queue.value[entry] = value
    at = np.int64(place[entry])
    if at < 0:
        at = np.int64(queue.waiting[0])
        queue.waiting[0] += 1
    while at > 0:
        above = (at - 1) >> 1
        if queue.value[heap[above]] <= value:
            break
        heap[at] = heap[above]
        place[heap[at]] = at
        at = above
    heap[at] = entry
    place[entry] = at
    return True


@kernel
def take(queue: Queue) -> Int:
    """Take out the entry with the least value, in time log N, and return it; -1 if none waits."""
    heap, place = queue.heap, queue.place
    if queue.waiting[0] == 0:
        return np.int64(-1)
    queue.waiting[0] -= 1
    count = np.int64(queue.waiting[0])
    first, last = np.int64(heap[0]), heap[count]
    place[first] = -1
    if count == 0:
        return first
    at = np.int64(0)
    while 2 * at + 1 < count:
        below = 2 * at + 1
        if below + 1 < count and queue.value[heap[below + 1]] < queue.value[heap[below]]:
            below += 1
        if queue.value[heap[below]] >= queue.value[last]:
            break
        heap[at] = heap[below]
        place[heap[at]] = at
        at = below
    heap[at] = last
    place[last] = at
    return first
