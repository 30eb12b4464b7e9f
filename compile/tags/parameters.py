"""The parameters of a tool in a style of `styles.py`: from the skeleton of their schema to a graph of texts and values.

A state of the graph is one of the skeleton's object: which parameters may come next. An edge is the text before a
value, or the value itself, which is a symbol as JSON values are. Where the skeleton tells values of one parameter
apart, by labels, each label has a symbol.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from ...automata import ops
from ...automata.budget import Meter
from ...automata.dfa import Dfa
from ...automata.labelled import Labelled
from ...automata.minimize import canonical
from ...errors import Advice, SchemaError
from ...lazy.unique.memory import Rule
from ..grammar.form import Graph, Special, Terminal, Text
from ..json_schema.enough_values import DependsError
from ..json_schema.skeleton import AnyOrder, ArrayAutomaton, ObjectAutomaton, ObjectState, Step, Value
from ..regex.lower import to_dfa
from .bare_texts import Bare, Scalars, bare
from .styles import ARRAY, BOOLEAN, KINDS, NULL, NUMBER, OBJECT, STRING, RawSchema, Style

_NAME = re.compile(r"""[^\s<>"'&/=\\]([^<>"'&\x00-\x1f]*[^\s<>"'&])?""")
_DOING = "writing parameters in a style"
_LITERALS = {"null": NULL, "true": BOOLEAN, "false": BOOLEAN}
_INTEGER = "integer"
_MOST_DEEP = 16  # of objects and arrays that are written in a style


class Spelling(NamedTuple):
    """A style as a structural tag asks for it. held: a pattern of what no value holds; lines: see `bare`.

    texts: the bytes of the texts of the style, in which control tokens are one byte each.
    """

    name: str
    style: Style
    held: str
    lines: bool
    texts: Mapping[str, bytes]


Schema = tuple[Any, str, bool, Spelling | None]
"""What it says, where it stands, whether members may come in any order, and the style; None for JSON."""


class Symbol(Protocol):
    """What gives the symbol of a value, or of bare texts, and a label. rule: what is remembered of the value."""

    def __call__(self, value: Value | Bare, label: int, *, rule: Rule | None = None) -> Special: ...


class Parameters:
    """Writes the parameters of one tool. schema: their JSON Schema, and where it stands."""

    def __init__(self, spelling: Spelling, schema: RawSchema, where: str, symbol: Symbol, meter: Meter) -> None:
        self.spelling, self.style, self.where = spelling, spelling.style, where
        self.schema, self.symbol, self.meter = schema, symbol, meter
        self._states = 0
        self._edges: list[tuple[int, Text | Terminal | Special, int]] = []
        self._open: list[int] = []  # identities of the objects and arrays that are being written

    def graph(self, root: ObjectAutomaton, rule: Rule | None = None) -> Graph:
        """Return all texts of the parameters. rule: what is remembered of their values; raises DependsError."""
        end = self._state()
        if rule is not None and rule.has_distinct_keys:
            raise DependsError("parameters that are counted might come twice")
        start = self._members(root, (end,), self.schema, rule)
        return Graph(self._states, tuple(self._edges), start, end)

    def _state(self) -> int:
        self._states += 1
        self.meter.check(states=self._states, bytes=200 * self._states, doing=_DOING)
        return self._states - 1

    def _text(self, *texts: str) -> Text:
        """Return some texts of the style in a row."""
        known = self.spelling.texts
        return Text(b"".join(known[text] if text in known else text.encode() for text in texts))

    # --------------------------------------------------------------------------------------------- members

    def _members(
        self, automaton: ObjectAutomaton, ends: Sequence[int], raw: RawSchema, rule: Rule | None = None
    ) -> int:  # fmt: skip
        """Write the members of an object, which lead to ends[label]; return the state before them."""
        states: Sequence[ObjectState] = AnyOrder(automaton) if automaton.any_order else automaton.states
        known: dict[int, int] = {}
        opened: dict[tuple[int, str | None], int] = {}
        todo: list[int] = []

        def at(i: int) -> int:
            if i not in known:
                known[i] = self._state()
                todo.append(i)
            return known[i]

        start = at(0)
        while todo:
            i = todo.pop()
            here = states[i]
            if here.close >= 0:
                self._join(known[i], ends[here.close])
            ways: list[tuple[str | Dfa, Step]] = [
                (automaton.keys[j], step) for j in range(here.first, here.last) if (step := here.steps[j]) is not None
            ]
            if here.others and _may_be_others(raw):
                ways += [(self._names(automaton, c), step) for c, step in here.others.items()]
            for name, step in ways:
                key = id(step), name if isinstance(name, str) else None  # most states share their steps
                if key not in opened:
                    follow = [at(to) if to >= 0 else -1 for to in step.following]
                    opened[key] = self._member(name, step, follow, raw, rule)
                if opened[key] >= 0:
                    self._named(known[i], name, opened[key])
        return start

    def _join(self, state: int, to: int) -> None:
        """Lead from a state to another without a text."""
        self._edges.append((state, Text(b""), to))

    def _maybe(self, state: int, text: str) -> int:
        """Return the state behind a text that may stand here, or be missing."""
        if not text:
            return state
        to = self._state()
        self._edges += [(state, Text(b""), to), (state, Text(text.encode()), to)]
        return to

    def _before(self, ends: Sequence[int], text: str) -> list[int]:
        """Return states that lead to `ends`, behind a text that may be missing."""
        found = []
        for to in ends:
            found.append(to if to < 0 or not text else self._state())
            if found[-1] != to:
                self._edges += [(found[-1], Text(b""), to), (found[-1], Text(text.encode()), to)]
        return found

    def _names(self, automaton: ObjectAutomaton, c: int) -> Dfa:
        """Return the names of undeclared parameters of a class."""
        language, count = automaton.language, len(automaton.keys)
        names = to_dfa("[A-Za-z_][A-Za-z0-9_]*", meter=self.meter)
        if language is None:
            declared = to_dfa("|".join(map(re.escape, automaton.keys)), meter=self.meter)
            return ops.difference(names, declared, self.meter) if count else names
        return ops.intersection(names, _of(language, count + c, self.meter), self.meter)

    def _named(self, state: int, name: str | Dfa, to: int) -> None:
        """Lead from a state to another by the name of a parameter."""
        style = self.style
        if isinstance(name, str):
            self._edges.append((state, self._text(style.before, name, style.behind), to))
            return
        begun, named = self._state(), self._state()
        self._edges += [
            (state, self._text(style.before), begun), (begun, Terminal("a name", name), named),
            (named, self._text(style.behind), to),
        ]  # fmt: skip

    def _member(
        self, name: str | Dfa, step: Step, ends: Sequence[int], raw: RawSchema, rule: Rule | None
    ) -> int:  # fmt: skip
        """Write the value of a parameter, which leads to ends[label]; return the state before it, -1 for none."""
        style, where = self.style, f"{self.where}/properties/{_pointer(name)}"
        if not isinstance(name, str):
            if style.is_named or name.is_empty:  # what closes it would depend on its name
                return -1
            close = self._text(style.close)
        elif not _NAME.fullmatch(name):
            raise SchemaError(
                f"the style {self.spelling.name!r} cannot write the name of this parameter: take one of letters, "
                "digits and spaces between them", where,
            )  # fmt: skip
        else:
            close = self._text(style.close, name, ">") if style.is_named else self._text(style.close)
        opened = self._state()
        sub, follow = _property(raw, name), self._before(ends, style.last)
        inside = None
        if rule is not None:
            if not isinstance(name, str):
                raise DependsError("parameters may come that the schema does not declare")
            if rule.tells(name):
                raise DependsError(f"the parameter {name!r} tells whether it holds")
            inside = rule.member(name)
        self._value(opened, step.value, follow, sub, where, close, isinstance(name, str), inside)
        return opened

    # ---------------------------------------------------------------------------------------------- values

    def _value(
        self, state: int, value: Value, ends: Sequence[int], raw: RawSchema, where: str, close: Text, must: bool,
        rule: Rule | None = None,
    ) -> None:  # fmt: skip
        """Write a value behind its name, with what closes it. must: there is an error if none can be written."""
        style, kinds, named = self.style, kinds_of(value), types_seen(raw)
        seen = named | ({NUMBER} if _INTEGER in named else set())
        told, others, count = kinds, frozenset[str](), len(self._edges)
        if style.by_schema:
            told, others = kinds & seen, seen - {STRING}
            if style.is_typed:
                told |= kinds & {OBJECT, ARRAY}  # these are read as JSON, whatever the schema says
            if style.is_named and STRING in seen:
                told -= {OBJECT, ARRAY}  # an empty one is read as a string
        front = self._maybe(state, style.gap)
        by_text: dict[str, set[str]] = {}
        for kind in KINDS:
            if kind in told:
                by_text.setdefault(style.kinds[kind], set()).add(kind)
        for text, some in by_text.items():
            at = front
            if text:
                at = self._state()
                self._edges.append((front, self._text(text), at))
            self._scalars(at, value, some, others, style.by_schema and NUMBER not in named, ends, close.data)
            self._containers(at, value, some, ends, raw, where, close, rule)
        if must and not any(isinstance(read, Special) or read is close for _, read, _ in self._edges[count:]):
            raise self._none(where, kinds, seen, bool(told))

    def _none(self, where: str, kinds: Iterable[str], seen: Iterable[str], told: bool) -> SchemaError:
        """Return the error for a parameter of which no value can be written."""
        name = self.spelling.name
        if told:
            return SchemaError(
                f"the style {name!r} cannot write any value of this parameter: a reader would take each for the end "
                "of one, or for a value of another type", where,
            )  # fmt: skip
        return SchemaError(
            f"the style {name!r} says no types, and readers look for them in the keywords type, enum, anyOf, oneOf and "
            f"allOf of the parameter itself: they would read {' or '.join(sorted(seen))}, and the schema allows "
            f"{' or '.join(sorted(kinds))}", where,
            remedies=[Advice('Write the "type" beside the other keywords, and the schema in place of a $ref to it')],
        )  # fmt: skip

    def _scalars(
        self, state: int, value: Value, kinds: set[str], others: frozenset[str], integers: bool, ends: Sequence[int],
        close: bytes,
    ) -> None:  # fmt: skip
        literals = tuple((word, at) for word, at in value.literals.items() if _LITERALS[word] in kinds)
        number, string = value.number if NUMBER in kinds else None, value.string if STRING in kinds else None
        if not literals and number is None and string is None:
            return
        scalars = Scalars(value.labels, literals, number, string, others - {_INTEGER}, integers)
        made = bare(scalars, self.style, close, self.spelling.held, self.spelling.lines, self.meter)
        if made is None:
            return
        used = set(made.content.label.tolist()) - {-1}
        self._edges += [(state, self.symbol(made, at), ends[at]) for at in sorted(used) if ends[at] >= 0]

    def _containers(
        self, state: int, value: Value, kinds: set[str], ends: Sequence[int], raw: RawSchema, where: str, close: Text,
        rule: Rule | None,
    ) -> None:  # fmt: skip
        array, members = value.array if ARRAY in kinds else None, value.object if OBJECT in kinds else None
        if array is None and members is None:
            return
        closing = [self._state() if to >= 0 else -1 for to in ends]
        self._edges += [(at, close, to) for at, to in zip(closing, ends, strict=True) if at >= 0]
        if self.style.item is not None:
            if rule is not None:
                raise DependsError(f"the style {self.spelling.name!r} writes arrays in a form of its own")
            self._nested(state, array, members, closing, raw, where)
            return
        if self.spelling.lines:
            closing = self._before(closing, "\n")
            if not kinds & {STRING, NUMBER, BOOLEAN, NULL}:
                state = self._maybe(state, "\n")
        json = Value(value.labels, array=array, object=members)
        self._edges += [(state, self.symbol(json, at, rule=rule), to) for at, to in enumerate(closing) if to >= 0]

    def _nested(
        self, state: int, array: ArrayAutomaton | None, members: ObjectAutomaton | None, ends: Sequence[int],
        raw: RawSchema, where: str,
    ) -> None:  # fmt: skip
        """Write an object or array in the style itself; one within itself is left out."""
        for automaton in (array, members):
            if automaton is None or id(automaton) in self._open or len(self._open) >= _MOST_DEEP:
                continue
            self._open.append(id(automaton))
            inner = container_of(raw, ARRAY if automaton is array else OBJECT)
            if automaton.free >= 0:
                if ends[automaton.free] >= 0:
                    self._join(state, ends[automaton.free])  # an empty one, as nothing says what stands in it
            elif isinstance(automaton, ObjectAutomaton):
                self._join(state, self._members(automaton, ends, inner))
            else:
                self._join(state, self._items(automaton, ends, inner, where))
            self._open.pop()

    def _items(self, automaton: ArrayAutomaton, ends: Sequence[int], raw: RawSchema, where: str) -> int:
        """Write the items of an array, which lead to ends[label]; return the state before them."""
        style, known = self.style, [self._state() for _ in automaton.states]
        sub = raw.get("items") if isinstance(raw, Mapping) else None
        for i, here in enumerate(automaton.states):
            if here.close >= 0:
                self._join(known[i], ends[here.close])
            if here.item is not None:
                follow = self._before([known[to] if to >= 0 else -1 for to in here.item.following], style.last)
                at = self._state()
                self._edges.append((known[i], self._text(style.item or ""), at))
                self._value(at, here.item.value, follow, sub, f"{where}/items", self._text(style.item_close), True)
        return known[0]


def kinds_of(value: Value) -> frozenset[str]:
    """Return the types of a value."""
    found = {_LITERALS[word] for word in value.literals}
    parts = ((NUMBER, value.number), (STRING, value.string), (OBJECT, value.object), (ARRAY, value.array))
    return frozenset(found | {kind for kind, part in parts if part is not None})


def has_containers(automaton: ObjectAutomaton, raw: RawSchema) -> bool:
    """Whether a parameter that is written may be an object or array. raw: the schema of the parameters."""
    states, others = automaton.reading(), _may_be_others(raw)
    steps = {step for state in states for step in (*state.steps, *(state.others.values() if others else ())) if step}
    return any(step.value.object is not None or step.value.array is not None for step in steps)


def _may_be_others(raw: RawSchema) -> bool:
    """Whether parameters that a schema does not declare are written: if it says so, or declares none."""
    if not isinstance(raw, Mapping):
        return True
    return not raw.get("properties") or "patternProperties" in raw or bool(raw.get("additionalProperties"))


def _property(raw: RawSchema, name: str | Dfa) -> Any:
    """Return the schema of a parameter as readers find it, by the name alone; None if there is none."""
    if not isinstance(raw, Mapping) or not isinstance(name, str):
        return None
    properties = raw.get("properties")
    return properties.get(name) if isinstance(properties, Mapping) else None


def container_of(raw: RawSchema, kind: str) -> Any:
    """Return the schema, one of several perhaps, in which readers look for what an object or array has in it."""
    if not isinstance(raw, Mapping):
        return None
    given = raw.get("type")
    if given == kind or (isinstance(given, (list, tuple)) and kind in given):
        return raw
    if given is None and any(word in raw for word in (("items",) if kind == ARRAY else ("properties",))):
        return raw
    for word in ("anyOf", "oneOf"):
        for each in raw.get(word) or ():
            found = container_of(each, kind)
            if found is not None:
                return found
    return None


def types_seen(raw: RawSchema) -> frozenset[str]:
    """Return the types that readers of engines find in the schema of a parameter: strings where they find none."""
    found = _types(raw) if isinstance(raw, Mapping) else set()
    return frozenset(found or {STRING})


def _types(raw: Mapping[str, Any]) -> set[str]:
    given = raw.get("type")
    found = {each for each in (given if isinstance(given, (list, tuple)) else (given,)) if isinstance(each, str)}
    if isinstance(raw.get("enum"), (list, tuple)):
        found |= {_type_of(each) for each in raw["enum"]}
    for word in ("anyOf", "oneOf", "allOf"):
        for each in raw.get(word) or ():
            found |= types_seen(each)
    return found


def _type_of(value: Any) -> str:
    if value is None:
        return NULL
    kinds: Iterable[tuple[Any, str]] = (
        (bool, BOOLEAN), (int, _INTEGER), (float, NUMBER), (str, STRING), ((list, tuple), ARRAY), (Mapping, OBJECT),
    )  # fmt: skip
    return next((name for kind, name in kinds if isinstance(value, kind)), NUMBER)


def _of(words: Labelled, label: int, meter: Meter) -> Dfa:
    return canonical(words.class_of, words.transition, words.label == label, meter=meter)


def _pointer(name: str | Dfa) -> str:
    return name.replace("~", "~0").replace("/", "~1") if isinstance(name, str) else "*"
