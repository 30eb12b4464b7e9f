"""The machine of what all schemas share: the inside of strings, numbers, words, and any object and any array."""

from __future__ import annotations

from ...automata.pushdown import PushdownMachine
from ...automata.state_ranges import KEEP, RETURN
from .layout import (
    BACKSLASH,
    CLOSE_ARRAY,
    CLOSE_OBJECT,
    HEX,
    MOST_SPACES,
    MOST_TABS,
    QUOTE,
    SPACE,
    TAB,
    Layout,
    after_number,
)
from .writer import Places, Writer


def leaves(layout: Layout) -> tuple[PushdownMachine, Places]:
    """Return the machine of the fragments that make no calls."""
    m = PushdownMachine()
    body, string = _string(m, layout.ascii)
    quote = m.state()
    m.edge(quote, QUOTE, body)
    spaced = quote
    if layout.flexible:
        spaced = m.state()
        m.edge(spaced, QUOTE, body)
        m.edge(spaced, SPACE, quote)
    key_escape = _other_escape(m, body, True)
    escape = key_escape if layout.ascii else _other_escape(m, body, False)
    words = {}
    for word in ("null", "true", "false"):
        words[word] = m.state()
        m.chain(words[word], word[1:].encode(), RETURN)
    indent = _indent(m) if layout.flexible else 0
    integer_start, integer = _number(m, layout, False)
    number_start, number = _number(m, layout, True)
    return m, Places(
        quote=quote, spaced=spaced, body=body, string=string, escape=escape, key_escape=key_escape, words=words,
        indent=indent, number=number, number_start=number_start, integer=integer, integer_start=integer_start,
        object=0, array=0,
    )  # fmt: skip


def nested(leaf: PushdownMachine, places: Places, layout: Layout) -> tuple[PushdownMachine, Places]:
    """Return the machine of any object and any array on top of that of the leaves."""
    m = PushdownMachine(leaf)
    obj, array = m.state(), m.state()
    places = Places(**{**places.__dict__, "object": obj, "array": array})
    w = Writer(m, places, layout)
    key, after_key, value, after, closing = (m.state() for _ in range(5))
    w.string(key, after_key)
    w.colon(after_key, value)
    w.anything(value, after)
    w.separator(after, key)
    w.line(after, closing)
    m.copy(obj, key)
    for state in (obj, after, closing):
        m.late(state, CLOSE_OBJECT, RETURN)
    w.line(obj, key)
    item, after, closing = (m.state() for _ in range(3))
    w.anything(item, after)
    w.separator(after, item)
    w.line(after, closing)
    m.copy(array, item)
    for state in (array, after, closing):
        m.late(state, CLOSE_ARRAY, RETURN)
    w.line(array, item)
    if layout.after:  # a site for the end of a whole value, so that a token may lead from a value into what follows
        follow, rest = m.state(), m.state()
        for byte in layout.after:
            m.edge(follow, byte, rest)
        m.edges(rest, 0, 0xF4, rest)
        m.accepting.add(rest)
        m.site((follow,), True)
    return m, places


def _string(m: PushdownMachine, ascii: bool) -> tuple[int, tuple[int, int]]:
    """Write any string after the opening quote. An escaped high surrogate needs its low one."""
    first = m.size
    body, escape, u0, u1, u2, u3, ud, s2, s3, s4, s5, s6, s7 = (m.state() for _ in range(13))
    m.edges(body, 0x20, 0x7E if ascii else 0x7F, body)
    m.edge(body, QUOTE, RETURN)
    m.edge(body, BACKSLASH, escape)
    for byte in b'"\\/bfnrt':
        m.edge(escape, byte, body)
    m.edge(escape, ord("u"), u0)
    for low, high in HEX:
        m.edges(u0, low, high, u1)
        m.edges(u1, low, high, u2)
        m.edges(u2, low, high, u3)
        m.edges(u3, low, high, body)
        m.edges(s2, low, high, s3)
        m.edges(s3, low, high, s4)
    for byte in b"dD":
        m.edge(u0, byte, ud)
        m.edge(s6, byte, s7)
    m.edges(ud, 0x30, 0x37, u2)
    for byte in b"89abAB":
        m.edge(ud, byte, s2)
    m.edge(s4, BACKSLASH, s5)
    m.edge(s5, ord("u"), s6)
    for byte in b"cdefCDEF":
        m.edge(s7, byte, u2)
    if not ascii:
        one, two, three, e0, ed, f0, f4 = (m.state() for _ in range(7))
        for state, low, high, target in (
            (body, 0xC2, 0xDF, one), (body, 0xE0, 0xE0, e0), (body, 0xE1, 0xEC, two), (body, 0xED, 0xED, ed),
            (body, 0xEE, 0xEF, two), (body, 0xF0, 0xF0, f0), (body, 0xF1, 0xF3, three), (body, 0xF4, 0xF4, f4),
            (one, 0x80, 0xBF, body), (two, 0x80, 0xBF, one), (three, 0x80, 0xBF, two), (e0, 0xA0, 0xBF, one),
            (ed, 0x80, 0x9F, one), (f0, 0x90, 0xBF, two), (f4, 0x80, 0x8F, two),
        ):  # fmt: skip
            m.edges(state, low, high, target)
    return body, (first, m.size - first)


def _other_escape(m: PushdownMachine, body: int, wide: bool) -> int:
    """Write escapes after a backslash: of control characters, quotes, backslashes; wide: of all but printable ASCII."""
    escape, u, zero, zeros, control, quote, backslash = (m.state() for _ in range(7))
    for byte in b'"\\bfnrt':
        m.edge(escape, byte, body)
    m.edge(escape, ord("u"), u)
    if wide:
        u1, u2, u3, ud = (body + k for k in (3, 4, 5, 6))  # of a string
        for low, high in HEX:
            m.edges(u, low, high, u1)
            m.edges(zero, low, high, u2)
            m.edges(zeros, max(low, ord("8")), high, u3)
        for byte in b"dD":
            m.edge(u, byte, ud)
        delete = m.state()
        m.edge(zeros, ord("7"), delete)
        for byte in b"fF":
            m.edge(delete, byte, body)
    m.edge(u, ord("0"), zero)
    m.edge(zero, ord("0"), zeros)
    m.edges(zeros, ord("0"), ord("1"), control)
    m.edge(zeros, ord("2"), quote)
    m.edge(zeros, ord("5"), backslash)
    for low, high in HEX:
        m.edges(control, low, high, body)
    m.edge(quote, ord("2"), body)
    for byte in b"cC":
        m.edge(backslash, byte, body)
    return escape


def _indent(m: PushdownMachine) -> int:
    """Write an indentation after a line break: spaces or tabs, then the next byte of the text."""
    start = m.state()
    rows = [start]
    for byte, most in ((SPACE, MOST_SPACES), (TAB, MOST_TABS)):
        state = start
        for _ in range(most):
            state, before = m.state(), state
            m.edge(before, byte, state)
            rows.append(state)
    for state in rows:
        for byte in b'"{[]}-0123456789tfn':
            m.edge(state, byte, KEEP)
    m.accepting.update(rows)  # within a fragment: nothing more has to be read
    return start


def _number(m: PushdownMachine, layout: Layout, fraction: bool) -> tuple[int, tuple[int, int]]:
    """Write any number, or any integer; return its start, and its first state and number of states."""
    first = m.size
    start, minus, zero, digits = (m.state() for _ in range(4))
    ends = [zero, digits]
    m.edge(start, ord("-"), minus)
    for state in (start, minus):
        m.edge(state, ord("0"), zero)
        m.edges(state, ord("1"), ord("9"), digits)
    m.edges(digits, ord("0"), ord("9"), digits)
    if fraction:
        point, places, e, sign, power = (m.state() for _ in range(5))
        for state in (zero, digits):
            m.edge(state, ord("."), point)
        for state in (zero, digits, places):
            for byte in b"eE":
                m.edge(state, byte, e)
        for state in (point, places):
            m.edges(state, ord("0"), ord("9"), places)
        for byte in b"+-":
            m.edge(e, byte, sign)
        for state in (e, sign, power):
            m.edges(state, ord("0"), ord("9"), power)
        ends += [places, power]
    for state in ends:
        for byte in after_number(layout):
            m.edge(state, byte, KEEP)
    m.accepting.update(ends)
    return start, (first, m.size - first)
