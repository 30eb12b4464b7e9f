"""Pictures of automata: a byte DFA, or a compiled table, as a graph for Graphviz."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..automata.dfa import Dfa
from ..errors import ConstraintError, MissingDependencyError, VocabularyMismatchError
from ..table.transition_table import TransitionTable, integer_vocabulary
from ..vocabulary.vocabulary import Vocabulary

if TYPE_CHECKING:
    import graphviz


FORMATS = (".svg", ".pdf", ".png", ".dot")
"""Endings of the files that `write` makes; only .dot, the graph's source, needs no program."""

_MOST_RANGES = 10  # of a label; the tooltip has them all
_MOST_NAMED = 3  # tokens of an edge up to which they are named, not counted
_IN_CLASS = "\\[]^-"  # letters that mean something in a class
_CAPTION = 80  # letters
_NAME = 24  # letters of a token

Counts = dict[int, int]


def draw_dfa(dfa: Dfa, *, allowed: Counts | None = None, title: str = "") -> Any:
    """Return a `graphviz.Digraph` of a byte DFA: edges have classes of bytes, accepting states a double border.

    allowed: how many tokens each state allows, as `tokens_by_state` counts them. Raises MissingDependencyError.
    """
    graph = _graph(title)
    for state, accepting in enumerate(dfa.accepting.tolist()):
        note = ""
        if allowed is not None:
            note = in_tokens(allowed[state]) if state in allowed else "no token ends here"
        _add_state(graph, state, accepting, note)
    between: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for state, low, high, target in dfa.edges.tolist():
        between.setdefault((state, target), []).append((low, high))
    for (state, target), ranges in between.items():
        _add_edge(graph, state, target, byte_class(ranges, _MOST_RANGES), byte_class(ranges))
    return graph


def draw_table(table: TransitionTable, *, vocabulary: Vocabulary | None = None, title: str = "") -> Any:
    """Return a `graphviz.Digraph` of a table: states with the number of tokens they allow, EOS aside.

    Edges have up to three tokens by name, more by number. Names are ids, or what the tokens spell if `vocabulary` is
    given. Raises VocabularyMismatchError if the table was compiled for another one, MissingDependencyError.
    """
    _check_compiled_for(table, vocabulary)
    graph = _graph(title)
    for state in range(num_drawn(table)):
        tokens, targets = moves(table, state)
        _add_state(graph, state, bool(table.is_accepting(state)), in_tokens(tokens.size))
        for target in np.unique(targets).tolist():
            there = tokens[targets == target]
            names = ", ".join(_name(token, vocabulary) for token in there[:_MOST_NAMED].tolist())
            label = names if there.size <= _MOST_NAMED else in_tokens(there.size)
            _add_edge(graph, state, target, label, names if label == names else f"{names}, ...")
    return graph


def write(graph: graphviz.Digraph, path: Path) -> None:
    """Write a graph to a file of one of `FORMATS`, which its ending says.

    Raises MissingDependencyError where the program `dot` is not installed, ConstraintError where it fails.
    """
    if path.suffix not in FORMATS:
        raise ValueError(f"{path} does not end in {', '.join(FORMATS)}")
    if path.suffix == ".dot":
        path.write_text(graph.source, encoding="utf-8")
        return
    import graphviz

    try:
        drawn = graph.pipe(format=path.suffix[1:])
    except graphviz.ExecutableNotFound:
        raise MissingDependencyError(
            f"drawing {path.name} needs the program dot of Graphviz: apt install graphviz, brew install graphviz or "
            f"https://graphviz.org/download; or write {path.stem}.dot, which needs none"
        ) from None
    except subprocess.CalledProcessError as error:
        said = " ".join(bytes(error.stderr or b"").decode(errors="replace").split())
        raise ConstraintError(f"dot cannot draw this graph ({said[:300]}): write {path.stem}.dot instead") from error
    path.write_bytes(drawn)


# -------------------------------------------------------------------------------------------------------- contents


def num_drawn(table: TransitionTable) -> int:
    """Return how many states of a table are drawn: all but its last two, the one after EOS and the dead one."""
    return table.num_states - 2


def in_tokens(count: int) -> str:
    """Return a number of tokens in words.

    >>> in_tokens(1), in_tokens(2000)
    ('1 token', '2,000 tokens')
    """
    return f"{count:,} token{'s' * (count != 1)}"


def moves(table: TransitionTable, state: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the tokens that a state allows, ascending, EOS aside, and the state each leads to: (n,), (n,)."""
    rows, edges = table.num_rows, table.num_edges
    if state >= rows:
        token = table.edges.token[edges + state - rows : edges + state - rows + 1].astype(np.int64)
        token = token[token < table.vocab_size]
        return token, np.full(token.size, state + 1, np.int64)
    own = slice(table.rows.edge_start[state], table.rows.edge_start[state + 1])
    target = np.full(table.vocab_size, table.dead, np.int64)
    if not table.is_trie and table.rows.base[state] >= 0:
        base = table.rows.base[state]
        group = table.bases.class_list[base]
        classed = slice(table.classes.start[group], table.classes.start[group + 1])
        class_of = np.zeros(table.vocab_size, np.int64)
        class_of[table.classes.token[classed]] = table.classes.number[classed]
        mask = table.bases.masks[table.bases.mask[base]].astype("<u4").view(np.uint8)
        inside = np.flatnonzero(np.unpackbits(mask, count=table.vocab_size, bitorder="little"))
        codes = table.bases.target[table.bases.target_start[base] + class_of[inside]].astype(np.int64)
        target[inside] = (codes >> 1) + (codes & 1) * state
    target[table.edges.token[own]] = table.edges.target[own]
    tokens = np.flatnonzero(target != table.dead)
    return tokens, target[tokens]


def tokens_by_state(dfa: Dfa, table: TransitionTable, vocabulary: Vocabulary) -> Counts:
    """Return how many tokens, EOS aside, each state of a DFA allows; states in which no token ends are left out.

    table: what the DFA was bound to for this vocabulary. The two are walked side by side, one token to each target.
    """
    _check_compiled_for(table, vocabulary)
    counts: Counts = {}
    todo = [(0, 0)]
    while todo:
        state, row = todo.pop()
        if state in counts:
            continue
        tokens, targets = moves(table, row)
        counts[state] = tokens.size
        following, first = np.unique(targets, return_index=True)
        for target, token in zip(following.tolist(), tokens[first].tolist(), strict=True):
            end = state
            for byte in vocabulary.tokens[token]:
                end = dfa.step(end, byte)
            todo.append((end, target))
    return counts


def byte_class(ranges: Sequence[tuple[int, int]], most: int | None = None) -> str:
    r"""Return bytes as a character class: printable ASCII as it is, "␣" for the space, other bytes as \t or \x80.

    ranges: (lowest, highest) in order. most: after as many ranges the rest is left out and the bytes are counted.

    >>> byte_class([(97, 122)]), byte_class([(48, 48)]), byte_class([(45, 45), (0x80, 0xBF)])
    ('[a-z]', '0', '[\\-\\x80-\\xbf]')
    """
    size = sum(high - low + 1 for low, high in ranges)
    if size == 256:
        return "any byte"
    if size == 1:
        return _letter(ranges[0][0])
    shown = ranges[:most]
    inside = "".join(
        _letter(low, _IN_CLASS) + ("-" if high > low + 1 else "") + (_letter(high, _IN_CLASS) if high > low else "")
        for low, high in shown
    )
    return f"[{inside}]" if len(shown) == len(ranges) else f"[{inside}…] ({size} bytes)"


def _letter(byte: int, escaped: str = "\\") -> str:
    letter = chr(byte)
    if letter == " ":
        return "␣"
    if not 0x20 < byte < 0x7F:
        return repr(letter)[1:-1] if byte < 0x80 else f"\\x{byte:02x}"
    return f"\\{letter}" if letter in escaped else letter


def _name(token: int, vocabulary: Vocabulary | None) -> str:
    if vocabulary is None:
        return str(token)
    spelt = vocabulary.tokens[token]
    try:
        return _cut(repr(spelt.decode()), _NAME)
    except UnicodeDecodeError:
        return _cut(repr(spelt), _NAME)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _check_compiled_for(table: TransitionTable, vocabulary: Vocabulary | None) -> None:
    if vocabulary is None or vocabulary.fingerprint == table.vocabulary:
        return
    if table.vocabulary == integer_vocabulary(table.vocab_size):
        raise VocabularyMismatchError(
            f"the table's tokens are integers below {table.vocab_size:,}, which spell nothing: it has no tokenizer, so "
            "draw it without one"
        )
    raise VocabularyMismatchError(
        f"the table was compiled for vocabulary {table.vocabulary}, not {vocabulary.fingerprint}: "
        "pass the tokenizer, and its size and eos, that it was compiled with"
    )


# ------------------------------------------------------------------------------------------------------- Graphviz


def _graph(title: str) -> Any:
    try:
        import graphviz
    except ModuleNotFoundError:
        raise MissingDependencyError("drawing needs graphviz: pip install 'maskwright[draw]'") from None
    graph = graphviz.Digraph("automaton")
    graph.attr(rankdir="LR", fontname="Helvetica", fontsize="12")
    if title:
        printable = "".join(c if c.isprintable() else repr(c)[1:-1] for c in title)
        graph.attr(label=graphviz.escape(_cut(printable, _CAPTION)), labelloc="t")
    graph.attr("node", shape="box", style="rounded", fontname="Helvetica", fontsize="12", height="0.4")
    graph.attr("edge", fontname="Courier", fontsize="11")
    graph.node("start", shape="point", width="0.05", label="")
    graph.edge("start", "0")
    return graph


def _add_state(graph: graphviz.Digraph, state: int, accepting: bool, note: str) -> None:
    label = f"{state}\\n{note}" if note else str(state)  # \n is Graphviz's own: a new line
    graph.node(str(state), label=label, peripheries="2" if accepting else "1")


def _add_edge(graph: graphviz.Digraph, state: int, target: int, label: str, tooltip: str) -> None:
    from graphviz import escape  # backslashes as they are, and no label is taken for HTML

    graph.edge(str(state), str(target), label=escape(label), tooltip=escape(tooltip))
