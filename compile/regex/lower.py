r"""Lower a pattern's tree to the DFA of the UTF-8 texts that it matches as a whole.

Without assertions that is Thompson's construction and the subset construction. Assertions at the edges of a pattern
are resolved there, or become an intersection: (?=B)R is B.* and R. Anywhere else, in repeats too, they are made
exact with markers:

1. The i-th assertion becomes a symbol of its own, a marker, in the text. R is the language of the pattern with
   markers.
2. C_i is the language of texts in which marker i stands only where the assertion holds, other markers anywhere.
3. The pattern's language is R & C_1 & C_2 & .. with all markers deleted.

Equal assertions share a marker. An assertion inside another is treated in the same way, the place where the outer one
stands being one symbol more, which no inner one sees.

Every character in R is whole and valid UTF-8, so R keeps the result within it. C_i may therefore speak of any bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from itertools import repeat

import numpy as np

from ...automata import ops
from ...automata.budget import Budget, Meter
from ...automata.dfa import BYTES, Dfa
from ...automata.minimize import canonical
from ...automata.nfa import Fragment, Nfa
from ...automata.subsets import determinize
from ...automata.utf8 import ANY, Ranges, char_class
from ...depth import enough_stack
from ...errors import RegexError
from .characters import Dialect
from .parse import parse
from .tree import EMPTY, Anchor, Anything, Assertion, Boundary, Chars, Concat, Look, Marker, Node, Repeat, Text, Union
from .unicode import NEWLINE, complement, union

_HERE = BYTES  # the marker of a constraint by itself, and of the place where an assertion with others inside stands
_ANYTHING = Anything()
_ANY_TEXT = Repeat(Chars(ANY), 0, None)
_MARKS = Repeat(Marker(_HERE), 0, None)
_ASKS_FOR_UNICODE = re.compile(r"\(\?[aimsx]*u[aimsux]*\)")
_MOST_SPLIT = 8  # branches with assertions up to which each is lowered by itself; more of them share their markers


def to_dfa(
    pattern: str, *, flags: str = "", dialect: Dialect = "python", search: bool = False, meter: Meter | None = None
) -> Dfa:
    r"""Return the DFA of the UTF-8 encodings of the texts that a pattern matches as a whole.

    flags: letters as in (?flags), out of "aimsx" ("ims" for dialect="ecma"). dialect: "python" for the texts that
    `re.fullmatch` accepts, "ecma" for ECMA 262 with the flag u. search: the texts that hold a match anywhere, as JSON
    Schema's "pattern" asks; anchors mean the ends of the text as ever.

    Raises RegexError with a caret for a pattern that is malformed or uses what is not supported, BudgetError where
    the automata grow beyond the meter's budget.

    >>> to_dfa(r"\d{2}:\d{2}").accepts(b"23:59")
    True
    """
    with enough_stack(partial(RegexError, pattern=pattern, position=0)):
        node = settled(parse(pattern, flags, dialect))
        if search:
            node = _at_edge(_at_edge(node, True, _ANY_TEXT), False, _ANY_TEXT)
        return _Lowering(Budget().begin() if meter is None else meter).language(node)


def engine_flags(pattern: str) -> str:
    r"""Return the flags under which serving engines read a pattern: \d, \w and \s are ASCII.

    A pattern that begins with (?u), alone or among other flags, asks for all of Unicode.

    >>> engine_flags(r"\d+"), engine_flags(r"(?iu)\d+")
    ('a', '')
    """
    return "" if _ASKS_FOR_UNICODE.match(pattern) else "a"


class _Lowering:
    """One compilation: the meter, and the constraints already made."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.constraints: dict[int, Dfa] = {}  # by the assertion's identity; the tree keeps it alive

    def language(self, node: Node, markers: int = 0) -> Dfa:
        """Return the language of a tree taken as the whole text, over the bytes and `markers` markers in the tree."""
        self.meter.check(doing="taking lookarounds apart")
        node = _at_edge(_at_edge(node, True, None), False, None)
        found = _assertions(node)
        if not found:
            return self._plain(node, BYTES + markers)
        direct = None if markers else self._direct(node)
        return self._marked(node, found, BYTES + markers) if direct is None else direct

    def _plain(self, node: Node, alphabet: int, markers: Mapping[int, int] | None = None) -> Dfa:
        nfa = Nfa(alphabet, self.meter)
        return determinize(nfa, _fragment(nfa, node, markers or {}))

    # ------------------------------------------------------------------------------------------- by intersection

    def _direct(self, node: Node) -> Dfa | None:
        """Return the language if it is an intersection, a concatenation or a union of simpler ones, else None."""
        if isinstance(node, Union):
            return self._split(node)
        items = list(_items(node))
        items[0] = _boundary_at_edge(items[0], True)
        items[-1] = _boundary_at_edge(items[-1], False)
        asserting = [i for i, item in enumerate(items) if _assertions(item)]
        first, last = asserting[0], asserting[-1]
        look, before, after = items[first], items[:first], items[first + 1 :]
        if isinstance(look, Look) and not look.behind and (not before or _one_way(False, look.item, *after)):
            rest = self._joined(look, self._after(look.item), self.language(_concat(after)))
            return ops.concat(self._plain(_concat(before), BYTES), rest, self.meter) if before else rest
        look, before, after = items[last], items[:last], items[last + 1 :]
        if isinstance(look, Look) and look.behind and (not after or _one_way(True, look.item, *before)):
            rest = self._joined(look, self._before(look.item), self.language(_concat(before)))
            return ops.concat(rest, self._plain(_concat(after), BYTES), self.meter) if after else rest
        return None

    def _split(self, node: Union) -> Dfa | None:
        asserting = [item for item in node.items if _assertions(item)]
        if len(asserting) > _MOST_SPLIT:
            return None
        plain = tuple(item for item in node.items if not _assertions(item))
        language = self._plain(Union(plain), BYTES)
        for item in asserting:
            language = ops.union(language, self.language(item), self.meter)
        return language

    def _joined(self, look: Look, looked: Dfa, rest: Dfa) -> Dfa:
        return (ops.difference if look.negated else ops.intersection)(rest, looked, self.meter)

    def _after(self, item: Node) -> Dfa:
        """Return the texts that begin with the item; it must not ask what is before them."""
        return self.language(_at_edge(item, False, _ANYTHING))

    def _before(self, item: Node) -> Dfa:
        """Return the texts that end with the item; it must not ask what is after them."""
        return self.language(_at_edge(item, True, _ANYTHING))

    # ------------------------------------------------------------------------------------------------ by markers

    def _marked(self, node: Node, found: list[Assertion], base: int) -> Dfa:
        """Return the language over `base` symbols of a tree with these assertions."""
        alphabet = base + len(found)
        language = self._plain(node, alphabet, {id(assertion): base + i for i, assertion in enumerate(found)})
        for i, assertion in enumerate(found):
            constraint = _placed(self._constraint(assertion), base + i, alphabet)
            language = ops.intersection(language, constraint, self.meter)
        return self._erased(language, base)

    def _erased(self, dfa: Dfa, base: int) -> Dfa:
        """Return the words with all symbols from `base` on deleted, over an alphabet that ends there."""
        edges = dfa.edges
        nfa = Nfa(base, self.meter)
        read = edges[edges[:, 1] < base]
        np.minimum(read[:, 2], base - 1, out=read[:, 2])  # ranges may run on into the markers
        fragment = nfa.embed_edges(read, dfa.num_states, [0], np.flatnonzero(dfa.accepting).tolist())
        skipped = edges[edges[:, 2] >= base][:, [0, 3]]
        return determinize(nfa, nfa.skip(fragment, skipped + np.int32(fragment.start + 1)))

    def _constraint(self, assertion: Assertion) -> Dfa:
        """Return the texts over bytes and one marker in which it stands only where the assertion holds."""
        if isinstance(assertion, Boundary):
            return _place("inside" if assertion.negated else "boundary", assertion.word, assertion.in_empty)
        if isinstance(assertion, Anchor):
            if assertion.terminators:  # a line starts where there is no other character before
                return _beside(complement(assertion.terminators), assertion.kind == "line start", True)
            return _place(assertion.kind, (), True)
        if isinstance(assertion.item, Chars):
            return _beside(assertion.item.ranges, assertion.behind, assertion.negated)
        made = self.constraints.get(id(assertion))
        if made is None:
            made = self.constraints[id(assertion)] = ops.complement(self._broken(assertion), self.meter)
        return made

    def _broken(self, look: Look) -> Dfa:
        """Return the texts over bytes and one marker in which it stands somewhere where the lookaround fails."""
        item, behind = look.item, look.behind
        nfa = Nfa(BYTES + 1, self.meter)
        if _one_way(behind, item):
            holds = self._before(item) if behind else self._after(item)
            fails = holds if look.negated else ops.complement(holds, self.meter)
            whole = [(0, BYTES)]
            if behind:
                parts = [_looping(nfa, fails), nfa.symbols([(_HERE, _HERE)]), nfa.repeat(nfa.symbols(whole), 0, None)]
            else:
                parts = [nfa.repeat(nfa.symbols(whole), 0, None), nfa.symbols([(_HERE, _HERE)]), _looping(nfa, fails)]
            return determinize(nfa, nfa.concat(parts))
        # what is inside looks both ways, so it needs the text on both sides of a place
        here = Marker(_HERE)
        if behind:
            tree = _concat((_at_edge(item, True, _ANYTHING), here, _ANYTHING))
        else:
            tree = _concat((_ANYTHING, here, _at_edge(item, False, _ANYTHING)))
        fails = self.language(tree, markers=1)
        if not look.negated:
            place = self._plain(_concat((_ANYTHING, here, _ANYTHING)), BYTES + 1)
            fails = ops.difference(place, fails, self.meter)
        # of all markers in a text, one is the place that fails, the others are passed over
        return determinize(nfa, _looping(nfa, fails))


# ------------------------------------------------------------------------------------------------------- places


@lru_cache(maxsize=64)
def _place(kind: str, ranges: Ranges, in_empty: bool) -> Dfa:
    """Return the texts over bytes and one marker in which it stands only at places of this kind.

    ranges: what words are made of, for the two kinds that ask. in_empty: whether the empty text counts as inside.
    """
    held, others = Chars(ranges), Chars(complement(ranges))
    tree: Node
    word: Node
    gap: Node
    if kind == "start":
        tree = _concat((_MARKS, _ANYTHING))
    elif kind == "end":
        tree = _concat((_ANYTHING, _MARKS))
    elif kind == "last newline":
        tree = _concat((_ANYTHING, _MARKS, _optional(_concat((Chars(NEWLINE), _MARKS)))))
    elif kind == "boundary":
        word, gap = _concat((_MARKS, Repeat(held, 1, None), _MARKS)), Repeat(others, 1, None)
        tree = _concat((_optional(gap), Repeat(_concat((word, gap)), 0, None), _optional(word)))
    else:  # inside a word or a gap
        word, gap = _strung(held), _strung(others)
        further = _concat((word, gap))
        tree = Union(
            (
                _concat((_optional(_concat((_MARKS, gap))), Repeat(further, 0, None), word)),
                _concat((_MARKS, gap, Repeat(further, 0, None), _MARKS)),
                _concat((Repeat(further, 1, None), _MARKS)),
                _MARKS if in_empty else EMPTY,
            )
        )
    nfa = Nfa(BYTES + 1)
    return determinize(nfa, _fragment(nfa, tree, {}))


@lru_cache(maxsize=64)
def _beside(ranges: Ranges, behind: bool, negated: bool) -> Dfa:
    """Return the texts over bytes and one marker in which it stands only before (after) one of these characters.

    Negated, only where there is no such character: before any other one, or at the text's end.
    """
    held, others = Chars(ranges), Chars(complement(ranges))
    wanted, free = (others, held) if negated else (held, others)
    marked = _concat((wanted, _MARKS) if behind else (_MARKS, wanted))
    tree: Node = Repeat(Union((free, marked)), 0, None)
    if negated:
        tree = _concat((_MARKS, tree) if behind else (tree, _MARKS))
    nfa = Nfa(BYTES + 1)
    return determinize(nfa, _fragment(nfa, tree, {}))


def _strung(chars: Chars) -> Node:
    """Return a run of characters with marks between them."""
    return _concat((chars, Repeat(_concat((_MARKS, chars)), 0, None)))


def _optional(node: Node) -> Node:
    return Repeat(node, 0, 1)


def _placed(constraint: Dfa, marker: int, alphabet: int) -> Dfa:
    """Return a constraint over bytes and one marker as one on `marker` over an alphabet where all others are free."""
    if alphabet == BYTES + 1:
        return constraint
    states, classes = constraint.transition.shape
    class_of = np.full(alphabet, classes, np.uint16)
    class_of[:BYTES] = constraint.class_of[:BYTES]
    class_of[marker] = constraint.class_of[_HERE]
    transition = np.empty((states, classes + 1), np.int32)
    transition[:, :classes] = constraint.transition
    transition[:, classes] = np.arange(states)
    return canonical(class_of, transition, constraint.accepting)


def _looping(nfa: Nfa, dfa: Dfa) -> Fragment:
    """Return a fragment for the words of a DFA with any number of markers put in anywhere."""
    loops = np.empty((dfa.num_states, 4), np.int32)
    loops[:, 0] = loops[:, 3] = np.arange(dfa.num_states)
    loops[:, 1:3] = _HERE
    ends = np.flatnonzero(dfa.accepting).tolist()
    return nfa.embed_edges(np.concatenate((dfa.edges, loops)), dfa.num_states, [0], ends)


# -------------------------------------------------------------------------------------------------------- trees


def _concat(items: Sequence[Node]) -> Node:
    return items[0] if len(items) == 1 else Concat(tuple(items))


def _items(node: Node) -> tuple[Node, ...]:
    return node.items if isinstance(node, Concat) else (node,)


def _assertions(*nodes: Node) -> list[Assertion]:
    """Return the assertions in these trees, each once, but not what is inside lookarounds."""
    found: dict[int, Assertion] = {}
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if isinstance(node, (Concat, Union)):
            todo.extend(node.items)
        elif isinstance(node, Repeat):
            todo.append(node.item)
        elif isinstance(node, (Look, Boundary, Anchor)):
            found[id(node)] = node
    return list(found.values())


def _one_way(behind: bool, *nodes: Node) -> bool:
    """Whether these trees ask only for what is after (or, behind, only for what is before) where they stand."""
    for assertion in _assertions(*nodes):
        if isinstance(assertion, Look):
            if assertion.behind != behind or not _one_way(behind, assertion.item):
                return False
        elif isinstance(assertion, Boundary) or assertion.kind not in _LOOKS[behind]:
            return False
    return True


_LOOKS = {False: ("end", "last newline", "line end"), True: ("start", "line start")}
"""The anchors that ask for what is after, and those that ask for what is before."""


def _at_edge(node: Node, left: bool, beyond: Node | None) -> Node:
    """Return the node where the text starts (ends, if not left), its anchors there resolved.

    Without `beyond` that is right at the text's start. With it, the result also takes in what lies between the start
    and the node, which is `beyond` unless an anchor says that there is nothing.
    """
    if beyond is not None and not _anchored(node, left):
        return _concat((beyond, node) if left else (node, beyond))
    if isinstance(node, Union):
        return Union(tuple(map(_at_edge, node.items, repeat(left), repeat(beyond))))
    if isinstance(node, Repeat):
        return Repeat(_at_edge(node.item, left, None), node.low, 1) if node.high == 1 else node
    items: list[Node | None] = list(_items(node))
    for i in range(len(items)) if left else reversed(range(len(items))):
        item = items[i]
        if isinstance(item, Anchor):
            if beyond is not None:  # the item at the very edge, and anchored
                rest = _items(node)[1:] if left else _items(node)[:-1]
                if item.kind in ("start", "end"):
                    return _at_edge(_concat(rest), left, None)
                if item.kind == "last newline":
                    return _concat((*rest, _optional(Chars(NEWLINE))))
                line = Chars(item.terminators)
                edge = _optional(_concat((beyond, line) if left else (line, beyond)))
                return _concat((edge, *rest) if left else (*rest, edge))
            if item.kind in _LOOKS[left]:
                items[i] = None
        elif isinstance(item, Look) and item.behind == left and isinstance(item.item, Chars):
            items[i] = EMPTY if item.negated else Chars(())  # there is no character
        elif not isinstance(item, (Look, Boundary)):
            if isinstance(item, (Concat, Union, Repeat)):
                items[i] = _at_edge(item, left, beyond)
            break
    return _concat([item for item in items if item is not None])


def _anchored(node: Node, left: bool) -> bool:
    """Whether an anchor that can be resolved there stands at the node's edge, in one of its branches at least."""
    if isinstance(node, Union):
        return any(map(_anchored, node.items, repeat(left)))
    if isinstance(node, Concat):
        return bool(node.items) and _anchored(node.items[0 if left else -1], left)
    return isinstance(node, Anchor) and node.kind in _LOOKS[left]


def _boundary_at_edge(node: Node, left: bool) -> Node:
    """Return a word boundary at the text's start (end, if not left) as a lookaround; other nodes as they are."""
    if not isinstance(node, Boundary):
        return node
    if node.negated and not node.in_empty:  # some other character has to be there
        return _next(complement(node.word), not left, False)
    return _next(node.word, not left, node.negated)


@lru_cache(maxsize=64)
def _next(ranges: Ranges, behind: bool, negated: bool) -> Look:
    return Look(Chars(ranges), behind, negated)  # one object for equal ones, so that they share a marker


def settled(node: Node) -> Node:
    r"""Return the tree without those questions about one character that the characters beside them answer.

    Before "word", \b need only ask for what is before it, and (?=\w) need not ask at all.
    """
    if not _assertions(node):
        return node
    if isinstance(node, Repeat):
        return Repeat(settled(node.item), node.low, node.high)
    if isinstance(node, Union):
        return Union(tuple(map(settled, node.items)))
    if not isinstance(node, Concat):
        return node
    items = list(map(settled, node.items))
    for i, item in enumerate(items):
        if isinstance(item, Boundary):
            for behind in (True, False):
                inside = _answer(items, i, behind, item.word)
                if inside is not None:  # so the other side must, or must not, be inside too
                    items[i] = item = _next(item.word, not behind, inside != item.negated)
                    break
        if isinstance(item, Look) and isinstance(item.item, Chars):
            inside = _answer(items, i, item.behind, item.item.ranges)
            if inside is not None:
                items[i] = EMPTY if inside != item.negated else Chars(())
    return Concat(tuple(items))


def _answer(items: list[Node], i: int, behind: bool, ranges: Ranges) -> bool | None:
    """Whether the character beside item i is in the ranges, or None if there may be either kind, or none."""
    at = i - 1 if behind else i + 1
    if not 0 <= at < len(items):
        return None
    beside = _outermost(items[at], not behind)
    if not beside:
        return None
    all_of = union(ranges, beside)
    return True if all_of == ranges else False if _size(all_of) == _size(ranges) + _size(beside) else None


def _outermost(node: Node, first: bool) -> Ranges | None:
    """Return what the first (or last) character of the node's texts may be, or None if that is not plain to see."""
    if isinstance(node, Text) and node.text:
        point = ord(node.text[0 if first else -1])
        return ((point, point),)
    if isinstance(node, Chars):
        return node.ranges
    if isinstance(node, Repeat) and node.low:
        return _outermost(node.item, first)
    if isinstance(node, Concat) and node.items:
        return _outermost(node.items[0 if first else -1], first)
    if isinstance(node, Union):
        branches = list(map(_outermost, node.items, repeat(first)))
        known = [branch for branch in branches if branch is not None]
        return union(*known) if len(known) == len(branches) else None
    return None


def _size(ranges: Ranges) -> int:
    return sum(high - low + 1 for low, high in ranges)


# ---------------------------------------------------------------------------------------------------- fragments


def _fragment(nfa: Nfa, root: Node, markers: Mapping[int, int]) -> Fragment:
    """Return the fragment of a tree, its assertions exchanged for the markers listed by their identity.

    Children are built right before their parent, without recursion.
    """
    made: list[Fragment] = []
    todo: list[tuple[Node, bool]] = [(root, False)]
    while todo:
        node, ready = todo.pop()
        if isinstance(node, Text):
            made.append(nfa.literal(node.text.encode()))
        elif isinstance(node, Chars):
            made.append(_characters(nfa, node.ranges))
        elif isinstance(node, (Concat, Union)):
            if not ready:
                todo.append((node, True))
                todo.extend((item, False) for item in reversed(node.items))
                continue
            first = len(made) - len(node.items)
            parts = made[first:]
            del made[first:]
            made.append(nfa.concat(parts) if isinstance(node, Concat) else nfa.union(parts))
        elif isinstance(node, Repeat):
            if not ready:
                todo.extend(((node, True), (node.item, False)))
                continue
            made.append(nfa.repeat(made.pop(), node.low, node.high))
        elif isinstance(node, Anything):
            made.append(nfa.repeat(nfa.symbols([(0, BYTES - 1)]), 0, None))
        else:
            marker = node.symbol if isinstance(node, Marker) else markers[id(node)]
            made.append(nfa.symbols([(marker, marker)]))
    return made[0]


def _characters(nfa: Nfa, ranges: Ranges) -> Fragment:
    if not ranges:
        return nfa.nothing()
    return nfa.symbols(ranges) if ranges[-1][1] < 0x80 else nfa.embed(char_class(ranges))
