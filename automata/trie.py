"""Sort token sequences and lay their trie out as flat arrays.

A set of sequences goes through three kernels, each linear in the input:

1. `load_words` packs the first tokens of each sequence into one uint64, as many as fit, most significant first.
2. `sort_words` orders sequence numbers by that word with a most-significant-digit radix sort, and takes up the
   next word only for runs of equal words. It leaves behind how many tokens each neighbouring pair shares.
3. `count_nodes` and `fill_nodes` read those shared lengths: every prefix shared by two sequences becomes a row
   of edges, numbered breadth first; what follows a sequence's last shared prefix is a *tail*, a run of tokens
   that needs no row.

Building the trie of 10 M x 8 tokens takes 0.6 s on one thread; `np.lexsort` alone takes 3 to 13, by input type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kernels.compiled import kernel

IntArray = NDArray[np.signedinteger[Any]]
Progress = Callable[[str, int, int], None]
"""Called with (stage, done, total) as a build goes on."""

_SMALL = 24  # ranges up to this size are insertion-sorted; 16 to 32 measured alike
_WIDE = 2**31  # entries from which on indices take 64 bits
_FETCH = 1024  # sequences touched ahead while the trie is written
_CHUNK = 1 << 20  # sequences per kernel call, so that progress can be shown between calls


@dataclass(frozen=True)
class Trie:
    """A trie in breadth-first order: rows of edges for shared prefixes, runs of tokens for what follows them.

    S rows, E edges, T tail entries, Q distinct sequences, N input sequences. Edge e of a row leads to row
    `edge_target[e]` if that is below S, else to tail entry `edge_target[e] - S`. A tail runs on to the next
    entry until one holds V, the vocabulary's size.
    """

    row_start: IntArray  # (S + 1,)
    edge_token: NDArray[Any]  # (E + T + 2,) edges, tails, then V and V + 1
    edge_target: IntArray  # (E,)
    accepting: NDArray[np.bool_]  # (S,) rows where a sequence ends
    level_start: IntArray  # (D + 1,) rows of depth d are level_start[d] .. level_start[d + 1]
    item_start: IntArray  # (Q + 1,) groups of equal sequences, in order of the state they end in
    item_row: IntArray  # (N,) input row numbers, group by group
    min_length: int
    max_length: int


# ---------------------------------------------------------------------------------------------------- words


@kernel(inline="always")
def _begin(offsets: Any, length: int, i: int) -> Any:
    """Where sequence i starts; `offsets` is empty when all have the same length."""
    return offsets[i] if offsets.size else i * length


@kernel(inline="always")
def _word(values: Any, begin: int, stop: int, bits: int, per_word: int) -> Any:
    """Tokens begin..stop as one uint64: token + 1 in `bits` bits each, 0 where the sequence has ended."""
    word = np.uint64(0)
    for j in range(per_word):
        word <<= np.uint64(bits)
        if begin + j < stop:
            word |= np.uint64(values[begin + j]) + np.uint64(1)
    return word


@kernel
def load_words(
    values: Any,
    offsets: Any,
    length: int,
    lo: int,
    hi: int,
    vocab_size: int,
    bits: int,
    per_word: int,
    words: Any,
    shift: int,
    counts: Any,
) -> int:
    """Pack the first tokens of sequences lo..hi into `words`; return the flat index of the first bad token, or -1.

    Counts the words by their digit at `shift` into `counts` (2^k,) on the way.
    """
    limit = np.uint64(vocab_size)
    mask = np.uint64(counts.size - 1)
    for i in range(lo, hi):
        begin = _begin(offsets, length, i)
        stop = _begin(offsets, length, i + 1)
        for j in range(begin, stop):
            # a negative token becomes a huge unsigned one, so one comparison checks both ends
            if np.uint64(values[j]) >= limit:
                return int(j)
        word = _word(values, begin, stop, bits, per_word)
        words[i] = word
        counts[(word >> np.uint64(shift)) & mask] += 1
    return -1


@kernel
def into_buckets(words: Any, shift: int, start: Any, words_out: Any, index_out: Any) -> None:
    """Move all words to their buckets by the digit at `shift`, with their numbers; `start` holds first places."""
    mask = np.uint64(start.size - 1)
    for i in range(words.size):
        digit = (words[i] >> np.uint64(shift)) & mask
        at = start[digit]
        start[digit] = at + 1
        words_out[at] = words[i]
        index_out[at] = i


# --------------------------------------------------------------------------------------------------- sorting


@kernel(inline="always")
def _insertion_sort(words: Any, index: Any, lo: int, hi: int) -> None:
    for i in range(lo + 1, hi):
        word, at = words[i], index[i]
        j = i
        while j > lo and words[j - 1] > word:
            words[j] = words[j - 1]
            index[j] = index[j - 1]
            j -= 1
        words[j] = word
        index[j] = at


@kernel
def _scatter(words: Any, index: Any, lo: int, hi: int, shift: int, start: Any, words_out: Any, index_out: Any) -> None:
    """Move lo..hi to their buckets by the digit at `shift`; `start` holds each bucket's first place."""
    mask = np.uint64(start.size - 1)
    for i in range(lo, hi):
        digit = (words[i] >> np.uint64(shift)) & mask
        at = start[digit]
        start[digit] = at + 1
        words_out[at] = words[i]
        index_out[at] = index[i]


@kernel
def _histogram(words: Any, lo: int, hi: int, shift: int, counts: Any) -> None:
    mask = np.uint64(counts.size - 1)
    for i in range(lo, hi):
        counts[(words[i] >> np.uint64(shift)) & mask] += 1


@kernel
def _radix_sort(words: Any, index: Any, lo: int, hi: int, top_bits: int, spare_words: Any, spare_index: Any) -> None:
    """Sort lo..hi by the lowest `top_bits` bits of their words, stably; the bits above are all equal."""
    stack = [(lo, hi, top_bits)]
    while len(stack):
        a, b, bits = stack.pop()
        n = b - a
        if n <= _SMALL:
            _insertion_sort(words, index, a, b)
            continue
        # one bucket per element or so: more only costs cache misses, fewer only costs passes
        digit_bits = 1
        while (1 << digit_bits) < n and digit_bits < 12 and digit_bits < bits:
            digit_bits += 1
        shift = bits - digit_bits
        counts = np.zeros(1 << digit_bits, np.int64)
        _histogram(words, a, b, shift, counts)
        at = 0
        single = False
        for d in range(counts.size):
            c = counts[d]
            single |= c == n
            counts[d] = at
            at += c
        if single:  # a shared prefix: nothing to move
            if shift:
                stack.append((a, b, shift))
            continue
        _scatter(words[a:b], index[a:b], 0, n, shift, counts, spare_words, spare_index)
        words[a:b] = spare_words[:n]
        index[a:b] = spare_index[:n]
        if shift:
            first = a
            for d in range(counts.size):
                last = a + counts[d]  # after scattering, each count holds its bucket's end
                if last - first > _SMALL:
                    stack.append((first, last, shift))
                elif last - first > 1:
                    _insertion_sort(words, index, first, last)
                first = last


@kernel
def sort_words(
    values: Any,
    offsets: Any,
    length: int,
    bits: int,
    per_word: int,
    words: Any,
    index: Any,
    lo: int,
    hi: int,
    sort_bits: int,
    shared: Any,
    spare_words: Any,
    spare_index: Any,
) -> None:
    """Sort sequences lo..hi, already loaded into `words`, and note how many tokens each shares with the one before.

    `shared[i]` for lo < i < hi; equal sequences get -1. `sort_bits` are the low bits in which words may differ.
    """
    last_token = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    top = per_word * bits
    stack = [(lo, hi, 0)]
    while len(stack):
        a, b, depth = stack.pop()
        if depth:
            for i in range(a, b):
                begin = _begin(offsets, length, index[i])
                stop = _begin(offsets, length, index[i] + 1)
                words[i] = _word(values, begin + depth, stop, bits, per_word)
            _radix_sort(words, index, a, b, top, spare_words, spare_index)
        else:
            _radix_sort(words, index, a, b, sort_bits, spare_words, spare_index)
        run = a
        for i in range(a + 1, b + 1):
            if i < b:
                difference = words[i] ^ words[i - 1]
                if difference == 0:
                    shared[i] = -1
                    continue
                zeros = 0  # equal leading tokens: count token-sized steps, no more than per_word of them
                while difference >> np.uint64(top - bits * (zeros + 1)) == 0:
                    zeros += 1
                shared[i] = depth + zeros
            # a run of equal words ends here; if its last token is real, later tokens may still differ
            if i - run > 1 and words[run] & last_token != 0:
                stack.append((run, i, depth + per_word))
            run = i


# --------------------------------------------------------------------------------------------------- the trie


@kernel
def count_nodes(offsets: Any, length: int, index: Any, shared: Any, rows: Any, edges: Any) -> Any:
    """Count rows and edges by depth into `rows` and `edges`; return (tail entries, distinct, shortest, longest)."""
    n = index.size
    tails = 0
    distinct = 0
    shortest = np.int64(1) << 62
    longest = 0
    i = 0
    before = -1  # tokens shared with the sequence before
    while i < n:
        j = i + 1
        while j < n and shared[j] < 0:
            j += 1
        after = shared[j] if j < n else 0  # the root is always a row
        size = _begin(offsets, length, index[i] + 1) - _begin(offsets, length, index[i])
        shortest = min(shortest, size)
        longest = max(longest, size)
        for depth in range(before + 1, after + 1):
            rows[depth] += 1
        branch = max(before, after)
        for depth in range(max(before, 0), min(branch + 1, size)):
            edges[depth] += 1
        if branch < size:
            tails += size - branch  # its tokens after the last edge, and `end`
        distinct += 1
        before = after
        i = j
    return tails, distinct, shortest, longest


@kernel
def fill_nodes(
    values: Any,
    offsets: Any,
    length: int,
    index: Any,
    shared: Any,
    at: Any,
    lo_hi: Any,
    next_row: Any,
    next_edge: Any,
    row_of: Any,
    row_start: Any,
    edge_token: Any,
    edge_target: Any,
    accepting: Any,
    num_rows: int,
    num_edges: int,
    end: int,
    item_start: Any,
    item_state: Any,
) -> None:
    """Write the trie of sorted sequences lo_hi[0] .. lo_hi[1]; `at` and the per-depth counters carry over calls.

    `at` is (next sequence, tokens shared with the one before, next tail entry, next group, unused).
    """
    n = index.size
    i, before, tail, group = at[0], at[1], at[2], at[3]
    fetched = i
    while i < lo_hi[1]:
        if i >= fetched:
            # sequences lie in no order: touch a block of them first, so that their cache misses overlap
            stop = min(fetched + _FETCH, n)
            touched = np.int64(0)
            for k in range(fetched, stop):
                touched += np.int64(values[_begin(offsets, length, index[k])])
            at[4] = touched
            fetched = stop
        j = i + 1
        while j < n and shared[j] < 0:
            j += 1
        after = shared[j] if j < n else np.int64(0)
        begin = _begin(offsets, length, index[i])
        size = _begin(offsets, length, index[i] + 1) - begin
        branch = max(before, after)
        for depth in range(before + 1, after + 1):
            row_of[depth] = next_row[depth]
            row_start[next_row[depth]] = next_edge[depth]
            next_row[depth] += 1
        for depth in range(max(before, 0), min(branch + 1, size)):
            edge = next_edge[depth]
            next_edge[depth] = edge + 1
            edge_token[edge] = values[begin + depth]
            edge_target[edge] = row_of[depth + 1] if depth < branch else num_rows + tail
        item_start[group] = i
        if branch < size:
            for depth in range(branch + 1, size):
                edge_token[num_edges + tail] = values[begin + depth]
                tail += 1
            edge_token[num_edges + tail] = end
            item_state[group] = num_rows + tail
            tail += 1
        else:  # a prefix of the next sequence
            accepting[row_of[size]] = True
            item_state[group] = row_of[size]
        group += 1
        before = after
        i = j
    at[0], at[1], at[2], at[3] = i, before, tail, group


@kernel
def fill_masks(row_start: Any, edge_token: Any, base_row: Any, masks: Any) -> None:
    """Set the bit of each edge's token in the mask (U, words) of each row that has one."""
    for row in range(base_row.size):
        if base_row[row] >= 0:
            for e in range(row_start[row], row_start[row + 1]):
                token = np.int64(edge_token[e])
                masks[base_row[row], token >> 5] |= np.uint32(1) << np.uint32(token & 31)


def build_trie(
    values: NDArray[Any],
    offsets: IntArray,
    length: int,
    count: int,
    vocab_size: int,
    *,
    progress: Progress | None = None,
) -> Trie:
    """Sort `count` sequences and return their trie.

    values: (count * length,) flat tokens of any integer dtype. offsets: (count + 1,) where sequences start, or
    empty when each has `length` tokens.
    Raises IndexError with the flat index of the first token outside 0 .. vocab_size - 1.
    """
    report = progress or (lambda stage, done, total: None)
    index, shared = sort(values, offsets, length, count, vocab_size, progress)
    longest = length if not offsets.size else int(np.diff(offsets).max())
    rows = np.zeros(longest + 2, np.int64)
    edges = np.zeros(longest + 2, np.int64)
    tails, distinct, shortest, longest = count_nodes(offsets, length, index, shared, rows, edges)
    num_rows, num_edges = int(rows.sum()), int(edges.sum())
    num_states = num_rows + tails + 2
    target_type: type[np.signedinteger[Any]] = np.int64 if num_edges + num_states >= _WIDE else np.int32

    row_start = np.empty(num_rows + 1, target_type)
    row_start[num_rows] = num_edges
    edge_token = np.empty(num_edges + tails + 2, np.min_scalar_type(vocab_size + 1))
    edge_token[-2:] = vocab_size, vocab_size + 1
    edge_target = np.empty(num_edges, target_type)
    accepting = np.zeros(num_rows, np.bool_)
    item_start = np.empty(distinct + 1, index.dtype)
    item_start[distinct] = count
    item_state = np.empty(distinct, target_type)
    next_row = np.concatenate([[0], np.cumsum(rows)[:-1]])
    next_edge = np.concatenate([[0], np.cumsum(edges)[:-1]])
    row_of = np.zeros(rows.size, np.int64)
    at = np.array([0, -1, 0, 0, 0])
    for lo in range(0, count, _CHUNK):
        hi = min(lo + _CHUNK, count)
        fill_nodes(
            values, offsets, length, index, shared, at, np.array([lo, hi]),
            next_row, next_edge, row_of, row_start, edge_token, edge_target,
            accepting, num_rows, num_edges, vocab_size, item_start, item_state,
        )  # fmt: skip
        report("building", hi, count)
    item_start, index = _by_state(item_start, index, item_state, accepting)
    depth = int(np.count_nonzero(rows))  # row counts are positive down to the deepest row
    return Trie(
        row_start=row_start,
        edge_token=edge_token,
        edge_target=edge_target,
        accepting=accepting,
        level_start=np.concatenate([[0], np.cumsum(rows[:depth])]),
        item_start=item_start,
        item_row=index,
        min_length=int(shortest),
        max_length=int(longest),
    )


def sort(
    values: NDArray[Any],
    offsets: IntArray,
    length: int,
    count: int,
    vocab_size: int,
    progress: Progress | None = None,
) -> tuple[IntArray, IntArray]:
    """Return sorted sequence numbers (N,) and tokens shared with the one before (N,), -1 where equal.

    Equal sequences stand in the order of the input. Arguments and errors are those of `build_trie`.
    """
    report = progress or (lambda stage, done, total: None)
    index_type: type[np.signedinteger[Any]] = np.int32 if count < _WIDE else np.int64
    bits = int(vocab_size).bit_length()
    per_word = 64 // bits
    top = bits * per_word
    digit_bits = min(bits, 12)
    shift = top - digit_bits
    counts = np.zeros(1 << digit_bits, np.int64)
    loaded = np.empty(count, np.uint64)
    for lo in range(0, count, _CHUNK):
        hi = min(lo + _CHUNK, count)
        bad = load_words(values, offsets, length, lo, hi, vocab_size, bits, per_word, loaded, shift, counts)
        if bad >= 0:
            raise IndexError(bad)
        report("reading", hi, count)
    ends = np.cumsum(counts)
    spare = int(counts.max())
    # one pass over everything puts each sequence into its first token's bucket; buckets are then sorted in cache
    index = np.empty(count, index_type)
    words = np.empty(count, np.uint64)
    into_buckets(loaded, shift, ends - counts, words, index)
    del loaded
    shared = np.zeros(count, np.int32)  # which is what neighbours in different buckets share
    spare_words, spare_index = np.empty(spare, np.uint64), np.empty(spare, index_type)
    first = 0
    for last in ends[counts > 0].tolist():
        sort_words(
            values, offsets, length, bits, per_word,
            words, index, first, last, shift, shared, spare_words, spare_index,
        )  # fmt: skip
        first = last
        report("sorting", last, count)
    return index, shared


def _by_state(
    item_start: IntArray, item_row: IntArray, item_state: IntArray, accepting: NDArray[np.bool_]
) -> tuple[IntArray, IntArray]:
    """Reorder groups of equal sequences by the state they end in, so that accepting states and groups match up."""
    if not accepting.any():  # all end in tails, and tails were written in order
        return item_start, item_row
    order = np.argsort(item_state, kind="stable")
    sizes = np.diff(item_start)[order]
    first = np.concatenate([[0], np.cumsum(sizes)]).astype(item_start.dtype)
    source = np.repeat(item_start[:-1][order] - first[:-1], sizes) + np.arange(item_row.size)
    return first, item_row[source]
