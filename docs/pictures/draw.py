"""Draws the pictures whose numbers come from compiled tables, machines and searches.

`python docs/pictures/draw.py` writes them beside this file. A test compares each with the file. The pipeline is drawn
by hand.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator, Sequence
from html import escape
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import maskwright as mw
from maskwright.runtime import numpy_ops
from maskwright.runtime.decode import beam_search

STYLE = """<style>
text { fill: #1f2328; font: 14px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; text-anchor: middle }
.left { text-anchor: start } .right { text-anchor: end }
.b { font-weight: 600 } .s { font-size: 12.5px } .faint { fill: #59636e }
.code { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 13px }
.card { fill: #fff; stroke: #d0d7de } .box { fill: #f6f8fa; stroke: #818b98 }
.row { fill: #ddf4ff; stroke: #0969da } .warm { fill: #fff1e5; stroke: #bc4c00 }
.good { fill: #dafbe1; stroke: #1a7f37 }
.ghost { fill: none; stroke: #818b98; stroke-dasharray: 4 3 } .hot { fill: none; stroke: #1a7f37; stroke-width: 3 }
.line { fill: none; stroke: #59636e; stroke-width: 1.5 } .tip { fill: #59636e }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc } .faint { fill: #9198a1 }
.card { fill: #0d1117; stroke: #3d444d } .box { fill: #151b23; stroke: #656c76 }
.row { fill: #12263f; stroke: #4493f8 } .warm { fill: #2f1d0f; stroke: #db6d28 }
.good { fill: #12321d; stroke: #3fb950 }
.ghost { stroke: #656c76 } .hot { stroke: #3fb950 } .line { stroke: #9198a1 } .tip { fill: #9198a1 }
}
</style>
<defs><marker id="m" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" markerUnits="userSpaceOnUse" \
orient="auto"><path class="tip" d="M0 0 8 4 0 8z"/></marker></defs>"""


class Picture:
    """Elements of an SVG, on a card that is readable on any page."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            f' role="img" aria-labelledby="t">\n<title id="t">{escape(title)}</title>\n{STYLE}',
            f'<rect class="card" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"/>',
        ]

    def text(self, x: float, y: float, words: Any, kind: str = "") -> None:
        """Add a text, centred at x unless its kind has "left" or "right"; y is its baseline."""
        named = f' class="{kind}"' if kind else ""
        self.lines.append(f'<text{named} x="{x:g}" y="{y:g}">{escape(str(words))}</text>')

    def box(self, x: float, y: float, width: float, height: float, kind: str = "box", round_by: float = 6) -> None:
        """Add a rectangle."""
        corner = f' rx="{round_by:g}"' if round_by else ""
        self.lines.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"{corner}/>')

    def path(self, way: str, kind: str = "line", tip: bool = True) -> None:
        """Add a line, with a tip at its end."""
        end = ' marker-end="url(#m)"' if tip else ""
        self.lines.append(f'<path class="{kind}"{end} d="{way}"/>')

    def cells(self, x: float, y: float, values: Sequence[Any], kinds: str | Sequence[str], width: float = 46) -> None:
        """Add an array: one cell for each value."""
        kinds = [kinds] * len(values) if isinstance(kinds, str) else kinds
        for at, (value, kind) in enumerate(zip(values, kinds, strict=True)):
            self.box(x + at * width, y, width, 26, kind, 0)
            self.text(x + (at + 0.5) * width, y + 18, value, "code")

    def drop(self, x: float, y: float, to_x: float, to_y: float) -> None:
        """Add an arrow downwards, bent where the ends do not lie below each other."""
        half = (to_y - y) / 2
        self.path(f"M{x:g} {y:g}C{x:g} {y + half:g} {to_x:g} {to_y - half - 6:g} {to_x:g} {to_y:g}")

    def legend(self, y: float, *entries: tuple[float, str, str]) -> None:
        """Add samples of kinds of boxes: where each stands, its kind and its meaning."""
        for x, kind, words in entries:
            self.box(x, y, 16, 16, kind, 3)
            self.text(x + 24, y + 13, words, "left s")

    def svg(self) -> str:
        """Return the whole file."""
        return "\n".join([*self.lines, "</svg>\n"])


class Node(NamedTuple):
    """A state of a trie, and the states below it."""

    state: int
    tokens: tuple[int, ...]  # on the way to it
    below: list[Node]
    y: float


def trie(table: Any, top: float, gap: float) -> Node:
    """Return the states of a trie, read off its arrays, leaves `gap` below each other and others in the middle."""
    edge_start, edges = table.rows.edge_start, len(table.edges.target)
    rows, leaves = len(edge_start) - 1, count()

    def node(state: int, tokens: tuple[int, ...]) -> Node:
        first, stop = (int(edge_start[min(s, rows)]) + max(s - rows, 0) for s in (state, state + 1))
        below = []
        for edge in range(first, stop):
            if (token := int(table.edges.token[edge])) < table.vocab_size:  # else a tail ends
                target = int(table.edges.target[edge]) if edge < edges else edge + rows - edges + 1
                below.append(node(target, (*tokens, token)))
        y = (below[0].y + below[-1].y) / 2 if below else top + gap * next(leaves)
        return Node(state, tokens, below, y)

    return node(0, ())


def nodes(root: Node) -> Iterator[Node]:
    """Yield all nodes of a trie, depth first."""
    yield root
    for each in root.below:
        yield from nodes(each)


def branch(
    picture: Picture, x: float, y: float, to_x: float, to_y: float, words: Any, kind: str = "line", tip: bool = True
) -> None:
    """Draw an edge to the right, with its token above the end."""
    middle = x + 26
    picture.path(f"M{x:g} {y:g}C{middle:g} {y:g} {middle - 8:g} {to_y:g} {middle + 22:g} {to_y:g}H{to_x:g}", kind, tip)
    picture.text((middle + 18 + to_x) / 2, to_y - 5, words, "code")


def items_of(table: Any, state: int) -> str:
    """Return which input rows a final state stands for, in words."""
    rows = table.input_rows(np.array([state]))[0].tolist()
    return f"item{'s' * (len(rows) > 1)} {' and '.join(map(str, sorted(rows)))}"


def arrays() -> str:
    """Draw a small trie with all of its arrays."""
    table = mw.compile_sids([[5, 1, 7], [5, 1, 2], [0, 3, 3], [5, 1, 7]], vocab_size=8)
    rows, edges = len(table.rows.edge_start) - 1, len(table.edges.target)
    picture = Picture(860, 560, "A trie of four items, and the arrays that hold it")
    for depth in range(4):
        picture.text(90 + 190 * depth, 30, f"depth {depth}", "faint s")
    for node in nodes(trie(table, 66, 48)):
        x = 90 + 190 * len(node.tokens)
        is_row, is_final = node.state < rows, not node.below
        picture.box(
            x - 32, node.y - 14, 64, 28, "good" if is_final else "row" if is_row else "box", 6 if is_row else 14
        )
        picture.text(x, node.y + 5, f"row {node.state}" if is_row else node.state)
        if is_final:
            picture.text(x + 44, node.y + 5, items_of(table, node.state), "left")
        for each in node.below:
            branch(picture, x + 32, node.y, x + 157, each.y, each.tokens[-1])

    left, wide = 160, 46
    starts = table.rows.edge_start.tolist()
    picture.text(20, 224, "row", "left s faint")
    picture.text(20, 248, "rows.edge_start", "left code")
    for row, start in enumerate(starts):
        x = left + start * wide
        picture.text(x + 23, 224, row if row < rows else "end", "faint s")
        picture.cells(x, 230, [start], "row")
        picture.path(f"M{x + 23} 256V279")
    tokens, ends = table.edges.token.tolist(), len(table.edges.token)
    kinds = ["row"] * edges + ["box"] * (ends - edges)
    picture.text(20, 298, "edges.token", "left code")
    picture.cells(left, 280, tokens, kinds)
    picture.text(20, 330, "edges.target", "left code")
    picture.cells(left, 312, table.edges.target.tolist(), "row")
    inside = [at for at in range(edges, ends) if tokens[at] < table.vocab_size]
    picture.cells(left + edges * wide, 312, [at + rows - edges + 1 for at in inside], "ghost")
    picture.text(20, 362, "owner of the edge", "left s faint")
    owners = [next(row for row in range(rows) if starts[row] <= at < starts[row + 1]) for at in range(edges)]
    for at, owner in enumerate([*owners, *range(rows, rows + ends - edges)]):
        picture.text(left + (at + 0.5) * wide, 362, owner, "s faint")
    for at, words in ((ends - 2, ("after", "EOS")), (ends - 1, ("dead", "state"))):
        for line, word in enumerate(words):
            picture.text(left + (at + 0.5) * wide, 378 + 15 * line, word, "s faint")

    starts, finals = table.trie.item_start.tolist(), [n.state for n in nodes(trie(table, 0, 1)) if not n.below]
    picture.text(20, 428, "final state", "left s faint")
    picture.text(20, 452, "trie.item_start", "left code")
    for at, start in enumerate(starts):
        x = left + start * wide
        picture.text(x + 23, 428, sorted(finals)[at] if at < len(finals) else "end", "faint s")
        picture.cells(x, 434, [start], "good")
        if at < len(finals):
            picture.path(f"M{x + 23} 460V483")
    picture.text(20, 502, "trie.item_row", "left code")
    picture.cells(left, 484, table.trie.item_row.tolist(), "good")
    picture.text(454, 428, "depth", "left s faint")
    picture.text(454, 452, "trie.level_start", "left code")
    for at, start in enumerate(table.trie.level_start.tolist()):
        picture.text(611 + at * wide, 428, at if at < 3 else "end", "faint s")
        picture.cells(588 + at * wide, 434, [start], "row")
    picture.legend(
        528, (20, "row", "rows and their edges"), (206, "box", "entries of tails"),
        (358, "ghost", "computed, not stored"), (542, "good", "final states and their items"),
    )  # fmt: skip
    return picture.svg()


def shared_mask() -> str:
    """Draw the rows of a pattern, one of which shares a mask, a class list and coded targets."""
    letters = [letter.encode() for letter in string.ascii_lowercase]
    pairs = [first + second for first in letters[:6] for second in letters[:6]]
    vocab = mw.Vocabulary.from_bytes([b"", *letters, b'"', b'a"', b'"a', *pairs], eos=0)
    table = mw.compile_regex('"[a-z]*"', vocab).to_table()
    picture = Picture(860, 344, "Three rows of a pattern: one shares a mask with a class list and coded targets")
    (base,) = {base for base in table.rows.base.tolist() if base >= 0}
    sharing = table.rows.base.tolist().index(base)
    for row, name in enumerate(("the start", "inside the string", "accepting")):
        x = 20 + row * 280
        lo, hi = table.rows.edge_start[row : row + 2]
        own = zip(table.edges.token[lo:hi].tolist(), table.edges.target[lo:hi].tolist(), strict=True)
        picture.box(x, 16, 260, 92, "row")
        picture.text(x + 130, 40, f"row {row}: {name}", "b")
        for line, (token, target) in enumerate(own):
            words = f"own edge: {token} {vocab.tokens[token].decode()} → row {target}"
            picture.text(x + 130, 66 + 22 * line, words, "s")
        if lo == hi:
            picture.text(x + 130, 66, f"no own edges, base {base}" if row == sharing else "no edges", "s")
    picture.path(f"M{20 + sharing * 280 + 40} 108V151")

    mask = np.unpackbits(table.bases.masks[table.bases.mask[base]].view(np.uint8), count=vocab.size, bitorder="little")
    listed = table.classes.token.tolist()
    picture.text(20, 170, "bases.masks", "left code")
    left, wide = 150, 10.5
    for token, bit in enumerate(mask):
        kind = "card" if not bit else "warm" if token in listed else "row"
        picture.box(left + token * wide, 152, wide, 26, kind, 0)
    runs = (
        (0, 0, "EOS"),
        (1, 26, "1 to 26: a to z"),
        (27, 29, '27 "  ·  28 a"  ·  29 "a'),
        (30, 65, "30 to 65: pairs"),
    )
    for first, last, words in runs:
        picture.text(left + (first + last + 1) / 2 * wide, 146 if first == 27 else 196, words, "s faint")
    picture.text(20, 196, "filled: allowed", "left s faint")
    number, targets = table.classes.number.tolist(), table.bases.target.tolist()
    picture.text(20, 246, "classes.token", "left code")
    picture.text(20, 276, "classes.number", "left code")
    picture.cells(400, 228, listed, "warm")
    picture.cells(400, 258, number, "warm")
    picture.text(520, 246, "tokens that lead elsewhere, with their class", "left s faint")
    picture.text(520, 276, "all other tokens have class 0", "left s faint")
    for at, token in enumerate(listed):
        picture.drop(left + (token + 0.5) * wide, 178, 423 + 46 * at, 227)
    picture.text(20, 318, "bases.target", "left code")
    for at, code in enumerate(targets):
        picture.cells(150 + at * 300, 300, [code], "warm" if at else "row")
        target = (code >> 1) + (code & 1) * sharing
        picture.text(206 + at * 300, 318, f"class {at}: code {code} → row {target}", "left s")
    return picture.svg()


def exits() -> str:
    """Draw the stack of a table with calls under a text, and how one token leaves two frames."""
    vocab = mw.Vocabulary.from_bytes([b"", b"(", b")", b"))", b"x"], eos=0)
    table = mw.compile_grammar('start: "x" | "(" start ")"', vocab).to_table()
    tokens, matcher = [*vocab.encode("((x"), 3], mw.Matcher(table, vocab)
    picture = Picture(860, 394, "The stack under the text ((x)), and how the token )) leaves two frames")
    places = [(matcher.state, list(matcher.stack))]
    for token in tokens:
        assert matcher.advance(token)
        places.append((matcher.state, list(matcher.stack)))
    assert matcher.is_accepting
    picture.text(20, 32, "Rows and stack", "left b")
    for at, (state, stack) in enumerate(places):
        x = 20 + at * 176
        picture.box(x, 118, 116, 34, "row")
        picture.text(x + 58, 140, f"row {state}", "b")
        for height, site in enumerate(stack):
            picture.box(x + 14, 84 - 32 * height, 88, 26, "warm", 3)
            picture.text(x + 58, 102 - 32 * height, f"site {site}", "s")
        if not stack:
            picture.text(x + 58, 102, "empty stack", "s faint")
        if at < len(tokens):
            picture.path(f"M{x + 116} 135H{x + 175}")
            picture.text(x + 146, 128, vocab.tokens[tokens[at]].decode(), "code")

    (before, stack), token, (after, _) = places[-2], tokens[-1], places[-1]
    wide, top = 92, 262
    picture.text(20, 200, f"The exit {vocab.tokens[token].decode()} of row {before}, step by step", "left b")
    listed = table.exits.of_row[before]
    entries = slice(*table.exits.start[listed : listed + 2])
    texts = [vocab.tokens[each].decode() for each in table.exits.token[entries]]
    rows: list[tuple[Any, int]] = list(zip(texts, table.exits.symbol[entries].tolist(), strict=True))
    lists = [(f"exit list of row {before}", ("token", "symbol"), rows)]
    for where, site in zip(("on top", "below it"), reversed(stack), strict=True):
        entries = slice(*table.sites.start[site : site + 2])
        rows = list(zip(table.sites.symbol[entries].tolist(), table.sites.target[entries].tolist(), strict=True))
        lists.append((f"site {site}, {where}", ("symbol", "target"), rows))
    key: Any = vocab.tokens[token].decode()
    for at, (name, (of_key, of_value), rows) in enumerate(lists):
        x = 20 + at * 270
        picture.text(x + wide, top - 30, name)
        picture.text(x + wide / 2, top - 8, of_key, "s faint")
        picture.text(x + 1.5 * wide, top - 8, of_value, "s faint")
        used = [row[0] for row in rows].index(key)
        for line, row in enumerate(rows):
            picture.cells(x, top + 28 * line, row, "warm" if line == used else "box", wide)
        key = rows[used][1] if at == 0 else -1 - rows[used][1]
        y, to_x = top + 28 * used + 13, x + 270 if at < 2 else x + 234
        to_y = top + 13 + 28 * ([row[0] for row in lists[at + 1][2]].index(key) if at < 2 else 0)
        picture.path(f"M{x + 2 * wide} {y}C{x + 2 * wide + 44} {y} {to_x - 46} {to_y} {to_x - 1} {to_y}")
    assert rows[used][1] == after
    picture.box(794, top - 4, 50, 34, "row")
    picture.text(819, top + 18, f"row {after}", "s b")
    notes = (
        ("The token ends the inner brackets.", "One byte, ), is left over: symbol 1."),
        ("A target of -1 - y leaves this frame", "too, with symbol y: here 0."),
        ("Brackets ended, no byte is left:", f"go on in row {after}, where a text may end."),
    )
    for at, lines in enumerate(notes):
        for line, words in enumerate(lines):
            picture.text(20 + 270 * at, 352 + 20 * line, words, "left s")
    return picture.svg()


def dense_head() -> str:
    """Draw a trie whose root has a mask, whose next rows have edges, and whose rest are tails."""
    sids = [[0, 2, 5, 1], [0, 2, 7, 3], [1, 1, 0, 6], [2, 0, 4, 4], [2, 3, 1, 2], [2, 6, 6, 0], [4, 7, 2, 5],
            [5, 0, 1, 1], [6, 1, 3, 3], [6, 5, 5, 7], [7, 4, 0, 2]]  # fmt: skip
    table = mw.compile_sids(sids, vocab_size=8)
    rows = len(table.rows.edge_start) - 1
    picture = Picture(860, 520, "A trie with a mask at its root, rows with edges below it, and tails")
    for depth in range(5):
        picture.text(66 + 170 * depth, 30, f"depth {depth}", "faint s")
    for node in nodes(trie(table, 58, 31)):
        x, is_row = 66 + 170 * len(node.tokens), node.state < rows
        has_mask = node.state < len(table.rows.base) and table.rows.base[node.state] >= 0
        kind = "good" if has_mask else "row" if is_row else "box"
        picture.box(x - 30, node.y - 12, 60, 24, kind, 6 if is_row else 12)
        picture.text(x, node.y + 5, f"row {node.state}" if is_row else node.state, "s")
        for each in node.below:
            branch(picture, x + 30, node.y, x + 139, each.y, each.tokens[-1])
    (mask,) = table.bases.masks
    bits = [int(bit) for bit in np.unpackbits(mask.view(np.uint8), count=8, bitorder="little")]
    token = 5
    rank, first = sum(bits[:token]), int(table.rows.edge_start[0])
    width = int(table.rows.edge_start[1]) - first
    assert table.edges.token[first + rank] == token
    left = 150
    picture.text(20, 430, "bases.masks", "left code")
    picture.cells(left, 412, bits, ["good" if bit else "box" for bit in bits], 34)
    for at in range(8):
        picture.text(left + 34 * at + 17, 406, at, "s faint")
    picture.text(20, 486, "edges.token", "left code")
    picture.cells(left, 468, table.edges.token[first : first + width].tolist(), "good", 34)
    picture.drop(left + 34 * token + 17, 438, left + 34 * rank + 17, 467)
    picture.text(470, 430, f"Token {token}: its bit is set, and {rank} bits below it are set.", "left s")
    picture.text(470, 450, f"So its edge is edge_start[0] + {rank} = {first + rank}.", "left s")
    picture.legend(472, (470, "good", "row with a mask"), (630, "row", "row with edges only"))
    picture.legend(494, (470, "box", "tail entry: one token each"))
    return picture.svg()


def lazy_machine() -> str:
    """Draw the rows that a lazy machine makes under a text."""
    repeats, text = 12, "abba"
    pattern = f"[ab]*a[ab]{{{repeats}}}"
    vocab = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256))], eos=0)
    lazy = mw.compile_regex(pattern, vocab)
    assert isinstance(lazy, mw.LazyTable)
    assert lazy.machine is not None
    matcher, made = mw.Matcher(lazy, vocab), [lazy.machine.num_states]
    for token in vocab.encode(text):
        assert matcher.advance(token)
        made.append(lazy.machine.num_states)

    def formula(so_far: str) -> list[str]:  # an `a` so many characters back asks for the others
        back = [len(so_far) - at for at, letter in enumerate(so_far) if letter == "a"]
        return ["P", *(f"[ab]{{{repeats + 1 - n}}}" for n in back)]

    states = [formula(text[:at]) for at in range(len(text) + 1)]
    assert made == [1, *range(1, len(text) + 1)]  # the start's, then that of each state that a token left
    whole = len(lazy.to_table().rows.edge_start) - 1
    picture = Picture(860, 340, f"The rows that a lazy machine of {pattern} makes under the text {text}")
    picture.text(20, 34, "P  =", "left")
    picture.text(56, 34, pattern, "left code")
    for at, parts in enumerate(states):
        x, is_last = 20 + 172 * at, at == len(text)
        picture.box(x, 56, 122, 88, "ghost" if is_last else "row")
        for line, words in enumerate(parts):
            picture.text(x + 61, 80 + 24 * line, words if line == 0 else f"or {words}", "code")
        if is_last:
            picture.text(x + 61, 164, "no row until the", "s faint")
            picture.text(x + 61, 181, "next step asks", "s faint")
        else:
            other = "b" if text[at] == "a" else "a"
            picture.path(f"M{x + 122} 100H{x + 171}")
            picture.text(x + 146, 93, text[at], "code")
            if formula(text[:at] + other) == parts:
                picture.path(f"M{x + 40} 144C{x + 34} 190 {x + 88} 190 {x + 82} 145")
                picture.text(x + 61, 196, other, "code")
            else:
                picture.path(f"M{x + 61} 144V187")
                picture.text(x + 50, 168, other, "code")
                picture.box(x, 188, 122, 28, "ghost")
                picture.text(x + 61, 207, "no row yet", "s faint")
        picture.text(x + 61, 276, text[:at] or "(no text)", "code" if at else "s")
        picture.cells(x + 38, 288, [made[at]], "row")
    picture.text(
        20,
        250,
        "Text so far, and rows made. Reading a token makes the row of the state that it leaves.",
        "left s faint",
    )
    picture.text(840, 34, f"The whole table has {whole:,} rows.", "right s faint")
    return picture.svg()


def filtered_beams() -> str:
    """Draw a beam search of width 2 under a filter, with every edge of the trie."""
    sids = [[0, 1, 2], [0, 1, 4], [0, 3, 1], [2, 0, 5], [2, 4, 1], [3, 2, 0], [3, 5, 5]]
    keep = np.array([True, False, True, False, False, True, True])
    model: dict[tuple[int, ...], dict[int, float]] = {  # the probabilities of tokens behind each prefix
        (): {0: 0.3, 2: 0.5, 3: 0.2}, (0,): {1: 0.6, 3: 0.4}, (2,): {0: 0.5, 4: 0.5}, (3,): {2: 0.7, 5: 0.3},
        (0, 1): {2: 0.3, 4: 0.7}, (0, 3): {1: 1.0}, (2, 0): {5: 1.0}, (2, 4): {1: 1.0}, (3, 2): {0: 1.0},
        (3, 5): {5: 1.0},
    }  # fmt: skip
    table = mw.compile_sids(sids, vocab_size=6)
    live: set[tuple[int, ...]] = set()

    def step(tokens: Any, cache: Any, t: int) -> tuple[Any, Any]:
        if t:
            cache[:, t - 1] = tokens
        so_far = [tuple(row[:t].tolist()) for row in cache]
        live.update(so_far)
        with np.errstate(divide="ignore"):
            logits = np.log([[model[each].get(token, 0.0) for token in range(6)] for each in so_far])
        return logits.astype(np.float32), cache

    chosen = table.filter(keep)
    dev = numpy_ops.with_filters(numpy_ops.to_device(table), [chosen])
    out = beam_search(step, np.zeros((2, 3), np.int64), dev, ops=numpy_ops, batch=1, beams=2, max_tokens=3)
    best = [tuple(row.tolist()) for row in out.tokens[0]]
    live.update(best)
    kept = {tuple(row[:n]) for row, wanted in zip(sids, keep, strict=True) if wanted for n in range(4)}

    picture = Picture(860, 450, "A beam search of width 2 under a filter that leaves three items out")
    for depth in range(4):
        picture.text(70 + 190 * depth, 30, f"step {depth}" if depth else "start", "faint s")
    chance: dict[tuple[int, ...], float] = {(): 1.0}
    for node in nodes(trie(table, 62, 46)):
        x = 70 + 190 * len(node.tokens)
        kind = "ghost" if node.tokens not in kept else "good" if node.tokens in live else "box"
        picture.box(x - 32, node.y - 14, 64, 28, kind)
        picture.text(x, node.y + 5, f"{chance[node.tokens]:.2g}", "faint" if kind == "ghost" else "")
        for each in node.below:
            token = each.tokens[-1]
            chance[each.tokens] = chance[node.tokens] * model[node.tokens][token]
            line = "ghost" if each.tokens not in kept else "hot" if each.tokens in live else "line"
            words = f"{token}: {model[node.tokens][token]:.2g}"
            branch(picture, x + 32, node.y, x + 157, each.y, words, line, tip=line == "line")
        if not node.below:
            item = sids.index(list(node.tokens))
            rank = f", result {best.index(node.tokens) + 1}" if node.tokens in best else ""
            picture.text(x + 42, node.y + 5, f"item {item}{rank}", "left s" if keep[item] else "left s faint")
    np.testing.assert_allclose(np.exp(out.scores[0]), [chance[each] for each in best], rtol=1e-5)
    picture.text(
        20, 432, "On each edge: token and probability. In each box: probability of the sequence.", "left s faint"
    )
    picture.legend(
        390, (20, "good", "live beam"), (140, "box", "cut: not among the best two"),
        (380, "ghost", "no kept item below it: never offered"),
    )  # fmt: skip
    return picture.svg()


PICTURES: dict[str, Callable[[], str]] = {
    "arrays": arrays,
    "shared_mask": shared_mask,
    "exits": exits,
    "dense_head": dense_head,
    "lazy_machine": lazy_machine,
    "filtered_beams": filtered_beams,
}
"""What is drawn, by the name of its file."""


def main() -> None:
    """Write every picture."""
    for name, draw in PICTURES.items():
        Path(__file__).with_name(f"{name}.svg").write_text(draw())


if __name__ == "__main__":
    main()
