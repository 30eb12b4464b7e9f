"""How the tokens of a vocabulary are laid out as a trie, and the walk over it."""

from __future__ import annotations

import doctest

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from maskwright.vocabulary import token_trie
from maskwright.vocabulary.token_trie import NODE_CHILD, NODE_REACH, NODE_STOP, NODE_TOKENS
from maskwright.vocabulary.vocabulary import Vocabulary

SHORT = st.binary(max_size=5) | st.lists(st.sampled_from([b"\0", b"a", b"b", b"\xff"]), max_size=7).map(b"".join)


@settings(max_examples=200, deadline=None)
@given(tokens=st.lists(SHORT, min_size=1, max_size=40).filter(any))
def test_the_trie_has_a_node_for_every_prefix_in_order(tokens: list[bytes]) -> None:
    vocab = Vocabulary.from_bytes(tokens)
    trie = vocab.trie
    nodes = sorted({token[:n] for token in tokens for n in range(1, len(token) + 1)})
    below = [[other for other in nodes if other.startswith(node)] for node in nodes]
    assert trie.byte.tolist() == [node[-1] for node in nodes]
    assert trie.depth.tolist() == [len(node) for node in nodes]
    assert trie.skip.tolist() == [i + len(subtree) for i, subtree in enumerate(below)]
    assert trie.height.tolist() == [max(map(len, s)) - len(n) for n, s in zip(nodes, below, strict=True)]
    ends = [[i for i, token in enumerate(tokens) if token == node] for node in nodes]
    assert trie.token.tolist() == [i for ids in ends for i in ids]
    assert trie.token_start.tolist() == np.cumsum([0, *map(len, ends)]).tolist()
    first = [node[0] for node in nodes]
    assert trie.root_start.tolist() == [sum(b < c for b in first) for c in range(257)]
    assert trie.longest == max(map(len, tokens))
    assert [
        bytes(vocab.token_bytes[a:b]) for a, b in zip(vocab.token_offset, vocab.token_offset[1:], strict=False)
    ] == tokens


def test_the_trie_has_the_promised_types_and_cannot_be_written() -> None:
    trie = Vocabulary.from_bytes([b"a"]).trie
    kinds = {name: array.dtype.name for name, array in vars(trie).items() if isinstance(array, np.ndarray)}
    assert kinds == {
        "byte": "uint8",
        "skip": "int32",
        "depth": "uint16",
        "height": "uint16",
        "content": "uint64",
        "token_start": "int32",
        "token": "int32",
        "root_start": "int32",
    }
    assert not any(array.flags.writeable for array in vars(trie).values() if isinstance(array, np.ndarray))


def test_the_longest_token_there_may_be_fits() -> None:
    trie = Vocabulary.from_bytes([b"a" * 65_535]).trie
    assert (trie.longest, trie.depth[-1], trie.height[0]) == (65_535, 65_535, 65_534)


@settings(max_examples=100, deadline=None)
@given(tokens=st.lists(SHORT, min_size=1, max_size=40).filter(any))
def test_branches_are_the_same_nodes_with_children_side_by_side(tokens: list[bytes]) -> None:
    trie = Vocabulary.from_bytes(tokens).trie
    byte, _, node = trie.branches
    found = []
    todo = [(b"", 0, int(node[0, NODE_CHILD]))]
    while todo:
        begin, low, high = todo.pop()
        for i in range(low, high):
            here = begin + bytes([byte[i]])
            first, below, behind = node[i, NODE_TOKENS : NODE_TOKENS + 3].tolist()
            assert [t for t, token in enumerate(tokens) if token == here] == trie.token[first:below].tolist()
            assert sorted(trie.token[first:behind]) == [t for t, token in enumerate(tokens) if token.startswith(here)]
            assert node[i, NODE_REACH] == max(len(token) for token in tokens if token.startswith(here))
            found.append(here)
            todo.append((here, int(node[i, NODE_CHILD]), int(node[i, NODE_STOP])))
    assert sorted(found) == sorted({token[:n] for token in tokens for n in range(1, len(token) + 1)})


def test_the_walk_runs_as_explained() -> None:
    result = doctest.testmod(token_trie)
    assert result.attempted
    assert result.failed == 0
