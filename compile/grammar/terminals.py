r"""What a terminal given by a pattern may stand for, as a DFA.

lark's Earley parser with lexer="dynamic_complete" matches a pattern at a place of the text, as `re.match` does, and
then at the same place of the text cut behind each shorter prefix of that match. What it finds are the words whose own
preferred match they are: a path that a backtracking matcher prefers on a longer text is there, and preferred, on its
own word too, so what follows does not matter. `/a|ab/` takes "a" and never "ab", `/".*?"/` no word with a quote inside.

That is less than the pattern's language only where a matcher may stop before it has read as much as it could. Where
one character always decides how to go on, and nothing is lazy, it is the language. Elsewhere the subset construction
is done over ordered lists of threads, each cut behind the first that matches: the leftmost-first automaton of Thompson
and Pike, over classes of characters, which become bytes at the end.

An assertion is a question about a place in the word. The ordered automaton reads, before every character and at the
end, a symbol that says which assertions hold there; the result is intersected with the texts of which these symbols say
what is true, and they are erased. What an assertion asks must be settled by the word itself:

- A lookahead or a boundary that may look past the end of the word makes parts of the words, each with what may follow:
  see `words_in_context`. Anything else that may look past an end of the word is refused, by name.
- A lookahead whose answer is the same for every text behind the word that begins with no letter, digit or underscore,
  such as the one of `(?!if\b)[a-z]+`, is judged by the word alone. lark judges its longest candidate by what follows.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator
from functools import lru_cache
from threading import Lock

import numpy as np

from ...automata import ops
from ...automata.budget import Budget, Meter
from ...automata.dfa import BYTES, Dfa
from ...automata.minimize import canonical
from ...automata.nfa import Nfa
from ...automata.subsets import determinize
from ...automata.utf8 import ANY, Ranges, text
from ...errors import RegexError
from ..regex.lower import _assertions, _at_edge, _Lowering, settled
from ..regex.parse import parse
from ..regex.preferred import PreferredWords, fewest
from ..regex.tree import (
    EMPTY,
    Anchor,
    Anything,
    Assertion,
    Boundary,
    Chars,
    Concat,
    Look,
    Marker,
    Node,
    Repeat,
    Text,
    Union,
)
from ..regex.unicode import ignoring_case, shorthand, union

_MOST_ASSERTIONS = 8  # different ones in a pattern: each doubles the symbols that say which hold
_MANY = 1 << 40  # characters, where there is no bound
_ANYTHING = Anything()
_REMEMBERED = 512  # terminals
_LARGEST_REMEMBERED = 1 << 20  # bytes

_memo: OrderedDict[str, Dfa] = OrderedDict()
_memo_lock = Lock()


def words(pattern: str, meter: Meter | None = None) -> Dfa:
    r"""Return the DFA of the words, in UTF-8, that a terminal with this pattern in Python's syntax takes.

    Raises RegexError with a caret for a pattern that is malformed, or of which no exact set of words exists because
    what it matches depends on the text around; BudgetError where the automata grow beyond the meter's budget.

    >>> dfa = words('".*?"')
    >>> dfa.accepts(b'"a"'), dfa.accepts(b'"a" or "b"')
    (True, False)
    """
    with _memo_lock:
        if pattern in _memo:
            _memo.move_to_end(pattern)
            return _memo[pattern]
    return _remembered(pattern, _words(pattern, Budget().begin() if meter is None else meter))


def language(pattern: str, meter: Meter) -> Dfa:
    """Return the DFA of the texts, in UTF-8, that a pattern matches as a whole, whatever a matcher would prefer.

    Raises RegexError for a pattern that is malformed, has a lazy quantifier or asks for the text around.
    """
    node = parse(pattern)
    lowering = _Lowering(meter)
    if _assertions(node):
        _check(pattern, node, lowering)
    if _has_lazy_repeat(node):
        raise RegexError(
            "a lazy quantifier says what a matcher prefers, and here a pattern is all that it matches: make the rule "
            "lazy, as name[lazy]",
            pattern,
            _place_of_lazy(pattern),
        )
    return lowering.language(settled(node))


def _has_lazy_repeat(root: Node) -> bool:
    todo = [root]
    while todo:
        node = todo.pop()
        if isinstance(node, Repeat):
            if node.lazy and node.low != node.high:
                return True
            todo.append(node.item)
        elif isinstance(node, (Concat, Union)):
            todo.extend(node.items)
        elif isinstance(node, Look):
            todo.append(node.item)
    return False


def _place_of_lazy(pattern: str) -> int:
    found = (s for s in _SIGNS.finditer(pattern) if s.group()[0] in "*+?}" and s.group()[1:] == "?")
    return next((s.start() for s in found), 0)


def in_any_case(text: str) -> Dfa:
    """Return the DFA of a text, which must not be empty, in UTF-8, each character in any case that Python's `re` takes.

    The same as `words` returns for (?i:text), in a quarter of the time: keywords are most of many a grammar.
    """
    pattern = f"(?i:{re.escape(text)})"
    with _memo_lock:
        if pattern in _memo:
            _memo.move_to_end(pattern)
            return _memo[pattern]
    rows: list[dict[int, int]] = []
    for c in text:
        begin = len(rows)
        rows.append({})
        for spelling in _cases(c):
            state = begin
            for byte in spelling[:-1]:
                if byte not in rows[state]:
                    rows[state][byte] = len(rows)
                    rows.append({})
                state = rows[state][byte]
            rows[state][spelling[-1]] = -1 - begin  # to where the next character begins
        for row in rows[begin:]:
            for byte, state in row.items():
                if state == -1 - begin:
                    row[byte] = len(rows)
    used = sorted({byte for row in rows for byte in row})
    column = {byte: i + 1 for i, byte in enumerate(used)}
    class_of = np.zeros(BYTES, np.uint16)
    class_of[used] = np.arange(1, len(used) + 1)
    transition = np.full((len(rows) + 1, len(used) + 1), -1, np.int32)
    for s, row in enumerate(rows):
        for byte, state in row.items():
            transition[s, column[byte]] = state
    accepting = np.zeros(len(rows) + 1, np.bool_)
    accepting[-1] = True
    return _remembered(pattern, canonical(class_of, transition, accepting))


@lru_cache(maxsize=4096)
def _cases(c: str) -> tuple[bytes, ...]:
    """Return a character in each of its cases, as UTF-8."""
    ranges = ignoring_case(((ord(c), ord(c)),), False)
    if "\ud800" <= c <= "\udfff":
        c.encode()  # raises UnicodeEncodeError
    return tuple(chr(point).encode() for low, high in ranges for point in range(low, high + 1))


def _remembered(pattern: str, dfa: Dfa) -> Dfa:
    if dfa.nbytes <= _LARGEST_REMEMBERED:
        with _memo_lock:
            _memo[pattern] = dfa
            if len(_memo) > _REMEMBERED:
                _memo.popitem(last=False)
    return dfa


def _parsed(pattern: str) -> Node:
    """Return the tree of a terminal's pattern. Its conditionals would come in another order, which counts here."""
    node = parse(pattern)
    for sign in _SIGNS.finditer(pattern):
        if sign.group() == "(?(":
            said = "a conditional in a terminal is not supported: write the two cases as branches"
            raise RegexError(said, pattern, sign.start())
    return node


def _words(pattern: str, meter: Meter) -> Dfa:
    node = _parsed(pattern)
    lowering = _Lowering(meter)
    asked = _assertions(node)
    if asked:
        _check(pattern, node, lowering)
    if _first(node, ()) is not None:
        return lowering.language(settled(node))
    _check_count(pattern, asked)
    dfa = PreferredWords(node, asked, meter).dfa()
    for i, assertion in enumerate(asked):
        dfa = ops.intersection(dfa, _truth(assertion, i, dfa.alphabet, True, lowering), meter)
        dfa = ops.intersection(dfa, _truth(assertion, i, dfa.alphabet, False, lowering), meter)
    return lowering._erased(dfa, BYTES) if asked else dfa


def _check_count(pattern: str, asked: list[Assertion]) -> None:
    if len(asked) > _MOST_ASSERTIONS:
        raise RegexError(
            f"a terminal with {len(asked)} different assertions, of which {_MOST_ASSERTIONS} are supported where "
            "parts are lazy or begin alike: write some of them out",
            pattern,
            _place_of(asked[_MOST_ASSERTIONS], pattern),
        )


def words_in_context(pattern: str, meter: Meter) -> tuple[tuple[Dfa, Dfa], ...]:
    r"""Return the words of a terminal in parts, each with the texts that may follow its words.

    A lookahead, or a boundary at the end, may look past the word: `/[?](?![a-z])/` has one word, and what follows it
    begins with no letter. Raises the errors of `words`.
    """
    node, lowering = _parsed(pattern), _Lowering(meter)
    asked = _assertions(node)
    if not asked or not _check(pattern, node, lowering, ahead=True):
        return ((words(pattern, meter), text()),)
    _check_count(pattern, asked)
    dfa = PreferredWords(node, asked, meter).dfa()
    alphabet = dfa.alphabet + 1  # the last symbol ends the word
    nfa = Nfa(alphabet, meter)
    end = nfa.symbols([(alphabet - 1, alphabet - 1)])
    parts = [nfa.embed(ops.widen(dfa, alphabet, (), meter)), end, nfa.embed(ops.widen(text(), alphabet, (), meter))]
    whole = determinize(nfa, nfa.concat(parts))
    for i, assertion in enumerate(asked):
        for holds in (True, False):
            right = ops.widen(_truth(assertion, i, dfa.alphabet, holds, lowering), alphabet, [alphabet - 1], meter)
            whole = ops.intersection(whole, right, meter)
    class_of = np.concatenate((whole.class_of[:BYTES], whole.class_of[-1:], whole.class_of[BYTES:-1]))
    whole = lowering._erased(canonical(class_of, whole.transition, whole.accepting, meter=meter), BYTES + 1)
    behind = whole.transition[:, whole.class_of[BYTES]]
    found = []
    for state in np.unique(behind[behind >= 0]).tolist():
        own = canonical(whole.class_of[:BYTES], whole.transition, behind == state, meter=meter)
        after = canonical(whole.class_of[:BYTES], whole.transition, whole.accepting, state, meter)
        found.append((own, after))
    return tuple(found)


# ------------------------------------------------------------------------------------- where one character decides


def _first(node: Node, follow: Ranges) -> Ranges | None:
    """Return what the first character may be of a node and what follows, or None where it may not decide how to go on.

    follow: what the first character after the node may be. A lazy repeat, branches that begin alike, and a branch that
    may be empty before another are never decided.
    """
    if isinstance(node, Text):
        return ((ord(node.text[0]),) * 2,) if node.text else follow
    if isinstance(node, Chars):
        return node.ranges
    if isinstance(node, Concat):
        found: Ranges | None = follow
        for item in reversed(node.items):
            if found is None:
                break
            found = _first(item, found)
        return found
    if isinstance(node, Union):
        total: Ranges = ()
        for i, item in enumerate(node.items):
            branch = _first(item, follow)
            if branch is None or not _apart(total, branch) or (i + 1 < len(node.items) and not fewest(item)):
                return None
            total = union(total, branch)
        return total
    if isinstance(node, Repeat):
        if node.high == 0:
            return follow
        empty = not fewest(node.item)
        if (node.lazy and node.low != node.high) or (empty and node.high != 1):
            return None
        begin = _first(node.item, ())
        if begin is None or (node.low != node.high and not _apart(begin, follow)):
            return None
        inside = _first(node.item, follow if node.high == 1 else union(begin, follow))
        return None if inside is None else union(begin, follow) if node.low == 0 else inside
    return follow


def _apart(a: Ranges, b: Ranges) -> bool:
    """Whether no character is in both."""
    if len(a) == 1 == len(b):
        return a[0][1] < b[0][0] or b[0][1] < a[0][0]
    return not a or not b or _size(union(a, b)) == _size(a) + _size(b)


def _size(ranges: Ranges) -> int:
    return sum(high - low + 1 for low, high in ranges)


def _most(node: Node) -> int:
    """Return the largest number of characters that a node reads, _MANY or more where there is none."""
    if isinstance(node, Text):
        return len(node.text)
    if isinstance(node, Chars):
        return 1
    if isinstance(node, Concat):
        return sum([_most(item) for item in node.items])
    if isinstance(node, Union):
        return max([_most(item) for item in node.items])
    if isinstance(node, Repeat):
        most = _most(node.item)
        return 0 if most == 0 else _MANY if node.high is None else min(most * node.high, _MANY)
    return 0


# --------------------------------------------------------------------------------------------- what is asked where


def _check(pattern: str, node: Node, lowering: _Lowering, *, ahead: bool = False) -> bool:
    """Raise RegexError for an assertion whose answer the word itself does not settle.

    ahead: whether a lookahead and a boundary may ask for what follows. Returns whether one does.
    """
    asks = False
    for assertion, before, after in _places(node, 0, 0):
        if _reach(assertion, True) > before:
            raise RegexError(
                f"{_named(assertion)} may ask for what is before the terminal, and a terminal stands in many places: "
                "leave it out, or put what it asks for into the terminal",
                pattern,
                _place_of(assertion, pattern),
            )
        if _reach(assertion, False) > after and not (after and _settled_inside(assertion, after, lowering)):
            if ahead and (isinstance(assertion, Boundary) or (isinstance(assertion, Look) and not assertion.behind)):
                asks = True
                continue
            raise RegexError(
                f"{_named(assertion)} may ask for what follows the terminal, so which words it takes depends on the "
                "text around: leave it out, or put what it asks for into the terminal",
                pattern,
                _place_of(assertion, pattern),
            )
    return asks


def _places(node: Node, before: int, after: int) -> Iterator[tuple[Assertion, int, int]]:
    """Yield the assertions of a tree where they stand, with how many characters of the word lie before and after."""
    if isinstance(node, Concat):
        counts = [fewest(item) for item in node.items]
        left, right = before, after + sum(counts)
        for item, count in zip(node.items, counts, strict=True):
            right -= count
            yield from _places(item, left, right)
            left += count
    elif isinstance(node, Union):
        for item in node.items:
            yield from _places(item, before, after)
    elif isinstance(node, Repeat):
        if node.high != 0:
            yield from _places(node.item, before, after)
    elif isinstance(node, (Look, Boundary, Anchor)):
        yield node, before, after


def _reach(assertion: Assertion, back: bool) -> int:
    """Return how many characters beyond its place an assertion may look, back or ahead."""
    if isinstance(assertion, Boundary):
        return 1
    if isinstance(assertion, Anchor):
        backward = assertion.kind in ("start", "line start")
        return 0 if backward != back else 2 if assertion.kind == "last newline" else 1
    inner = [(_reach(a, back) - (b if back else 0)) for a, b, _ in _places(assertion.item, 0, 0)]
    if assertion.behind != back:  # only what is asked inside can look the other way
        return max(0, *inner) if inner and not assertion.behind else _MANY if any(r > 0 for r in inner) else 0
    most = _most(assertion.item)
    return most + max(0, *inner) if inner else most


def _settled_inside(assertion: Assertion, after: int, lowering: _Lowering) -> bool:
    """Whether a lookahead before `after` characters of the word says the same whatever stands behind the word.

    That is asked of texts that begin with no character of words, and of the end.
    """
    if not isinstance(assertion, Look) or assertion.behind or _reach(assertion, True):
        return False
    if _within_a_word(assertion.item):
        return True
    meter = lowering.meter
    holds = lowering.language(_at_edge(assertion.item, False, _ANYTHING))
    end = Marker(BYTES)  # of the word
    in_context = ops.widen(holds, BYTES + 1, [BYTES], meter)
    nfa = Nfa(BYTES + 1, meter)
    behind = nfa.concat([nfa.symbols([(BYTES, BYTES)]), nfa.repeat(nfa.symbols([(0, BYTES - 1)]), 0, None)])
    alone = ops.concat(ops.widen(holds, BYTES + 1, (), meter), determinize(nfa, behind), meter)
    word = Repeat(Chars(ANY), min(after, 16), None)
    separate = Concat((Chars(shorthand("W", False)), Repeat(Chars(ANY), 0, None)))
    texts = lowering._plain(Concat((word, end, Union((EMPTY, separate)))), BYTES + 1)
    return ops.intersection(ops.symmetric_difference(in_context, alone, meter), texts, meter).is_empty


def _within_a_word(item: Node) -> bool:
    """Whether an item plainly reads only letters, digits and underscores, and then at most asks for a boundary."""
    items: list[Node] = list(item.items) if isinstance(item, Concat) else [item]
    if isinstance(items[-1], Boundary):
        items.pop()
    if _assertions(*items):
        return False
    word = shorthand("w", False)
    while items:
        node = items.pop()
        if isinstance(node, (Concat, Union)):
            items.extend(node.items)
        elif isinstance(node, Repeat):
            items.append(node.item)
        elif isinstance(node, Text):
            if not all(c.isalnum() or c == "_" for c in node.text):
                return False
        elif not isinstance(node, Chars) or union(word, node.ranges) != word:
            return False
    return True


def _named(assertion: Assertion) -> str:
    if isinstance(assertion, Look):
        return f"this look{'behind' if assertion.behind else 'ahead'}"
    if isinstance(assertion, Boundary):
        return "this boundary of words"
    return "this anchor"


_SIGNS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?(?:<?[=!]|\()|[\^$]|[*+?}][+?]", re.DOTALL)
_SPELT = {
    "start": ("^", r"\A"), "line start": ("^",), "end": (r"\Z",), "last newline": ("$",), "line end": ("$",)
}  # fmt: skip


def _place_of(assertion: Assertion, pattern: str) -> int:
    """Return where the first assertion of this kind stands in a pattern, for messages."""
    if isinstance(assertion, Look):
        spelt: tuple[str, ...] = (f"(?{'<' if assertion.behind else ''}{'!' if assertion.negated else '='}",)
    elif isinstance(assertion, Boundary):
        spelt = (r"\B" if assertion.negated else r"\b",)
    else:
        spelt = _SPELT[assertion.kind]
    signs = list(_SIGNS.finditer(pattern))
    # a possessive quantifier asks that none follows
    found = [s for s in signs if s.group() in spelt] or [s for s in signs if s.group()[1:] == "+"]
    return found[0].start() if found else 0


def _truth(assertion: Assertion, bit: int, alphabet: int, holds: bool, lowering: _Lowering) -> Dfa:
    """Return the texts in which the symbols with this bit (or without, if not `holds`) stand only where it is right."""
    marked = lowering._constraint(assertion)
    if not holds:
        nfa = Nfa(BYTES + 1, lowering.meter)
        around = nfa.repeat(nfa.symbols([(0, BYTES - 1)]), 0, None)
        one = nfa.symbols([(BYTES, BYTES)])
        after = nfa.repeat(nfa.symbols([(0, BYTES - 1)]), 0, None)
        wrong = ops.intersection(determinize(nfa, nfa.concat([around, one, after])), marked, lowering.meter)
        nfa = Nfa(BYTES + 1, lowering.meter)
        edges = np.concatenate((wrong.edges, _loops(wrong.num_states)))
        ends = np.flatnonzero(wrong.accepting).tolist()
        found = nfa.embed_edges(edges, wrong.num_states, [0], ends)
        marked = ops.complement(determinize(nfa, found), lowering.meter)
    states, classes = marked.transition.shape
    symbols = np.arange(alphabet - BYTES)
    class_of = np.full(alphabet, classes, np.uint16)
    class_of[:BYTES] = marked.class_of[:BYTES]
    class_of[BYTES:][(symbols >> bit & 1) == holds] = marked.class_of[BYTES]
    transition = np.empty((states, classes + 1), np.int32)
    transition[:, :classes] = marked.transition
    transition[:, classes] = np.arange(states)
    return canonical(class_of, transition, marked.accepting, meter=lowering.meter)


def _loops(states: int) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    loops = np.empty((states, 4), np.int32)
    loops[:, 0] = loops[:, 3] = np.arange(states)
    loops[:, 1:3] = BYTES
    return loops
