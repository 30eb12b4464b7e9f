"""Text with values in it, JSON and bare, as a machine: an automaton over bytes and values on top of the library.

Where a part of the text is not regular, the values become rules beside its own instead, and the whole is a grammar.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ...automata.budget import Meter
from ...automata.dfa import BYTES, Dfa
from ...automata.formulas import uncollected
from ...automata.network import Network
from ...errors import RegexError, SchemaError, Unenforced
from ...lazy.lazy_table import Compiled
from ...lazy.unique.memory import start_around
from ...table.transition_table import TransitionTable
from ...vocabulary.vocabulary import MARKS, Vocabulary
from ..arguments import begin_budget
from ..bind.link import link
from ..grammar.analysis import called
from ..grammar.build import automaton, compile_form
from ..grammar.form import Grammar, Graph, Node, Terminal
from ..grammar.network import build as network_of
from ..grammar.regular import dfa_of
from ..grammar.special_tokens import VALUE, has_specials, replaced
from ..json_schema.algebra import all_of
from ..json_schema.approximations import Approximations
from ..json_schema.build import build
from ..json_schema.enough_values import DependsError
from ..json_schema.keywords import formula
from ..json_schema.lazily import lazily
from ..json_schema.library import Library, frames
from ..json_schema.remembered import remembering
from ..json_schema.request import Request, blaming_order, wrong_pattern
from ..json_schema.skeleton import Value
from ..json_schema.source import placed
from .json_rules import Rules, rules_of, without_graphs
from .parameters import Parameters, Schema, has_containers
from .text_places import TextPlaces
from .value_machine import Symbols, TextEmitter


def compile_values(
    grammar: Grammar, schemas: Sequence[Schema], vocabulary: Vocabulary, asked: Request, meter: Meter
) -> Compiled:
    """Return the table of a grammar without special tokens, but with the values of some schemas.

    schemas: as `Reading` has them.
    """
    sets = asked.any_order or any(any_order for _, _, any_order, _ in schemas)
    with uncollected(), blaming_order(sets):
        symbols, nodes = Symbols(), {}
        found: list[Approximations] = []
        for j, schema in enumerate(schemas):
            nodes[f"{VALUE}{j}"], approximations = node_of(schema, symbols, asked, meter)
            found.append(approximations)
        rules = {name: replaced(body, nodes) for name, body in grammar.rules.items()}
        grammar = Grammar(rules, grammar.start, None, grammar.source, grammar.where)

        def unenforced() -> tuple[Unenforced, ...]:
            return tuple(each for approximations in found for each in approximations.found)

        dfa = _joined(grammar, symbols, meter)
        if dfa is None:
            if symbols.remembered is not None:
                raise symbols.remembered.also_refused(DependsError("the text around it is not regular"))
            form = with_rules(grammar, symbols, asked, meter)
            return compile_form(
                form, vocabulary, source=asked.source, depth=asked.depth, meter=meter, unenforced=unenforced
            )
        layout = replace(asked.layout, after=_behind(dfa, symbols))
        library = Library.of(vocabulary, layout, meter if layout.after else None)

        def emitted(meter: Meter) -> TextEmitter:
            return TextEmitter(dfa, symbols, library, meter, asked.depth)

        def make() -> TransitionTable:
            with uncollected(), blaming_order(sets), begin_budget(meter.budget) as again:
                whole = TextEmitter(dfa, symbols, library, again)
                whole.finish()
                return link(library, whole.machine, asked.source, frames(whole.machine, asked.depth), again)

        table = lazily(
            library, emitted, make, vocabulary, source=asked.source, depth=asked.depth, renews=sets,
            unenforced=unenforced, meter=meter,
        )  # fmt: skip
        remembered = symbols.remembered
        if remembered is None:
            return table
        try:
            places = TextPlaces(dfa, symbols)
        except DependsError as reason:
            raise remembered.also_refused(reason) from None
        return remembered.seen_to(table, start_around(places.start()), vocabulary)


def node_of(schema: Schema, symbols: Symbols, asked: Request, meter: Meter) -> tuple[Node, Approximations]:
    """Return what stands for a schema: the symbol of a JSON value, or the graph of parameters in a style.

    Also what of the schema is not enforced.
    """
    contents, where, any_order, spelling = schema
    asked = asked._replace(contents=contents, any_order=any_order or asked.any_order)
    found = Approximations(asked.allowed, where)

    def make(widened: Request, held: str | None = None) -> Value:
        nonlocal found
        found = Approximations(widened.allowed, where)
        return value_of(found, widened, meter, held)

    value, remembered = remembering(asked, make, meter, where)
    rule = symbols.remember(remembered)
    if spelling is None:
        return symbols.of(value, 0, where, rule), found
    if value.object is None:
        raise SchemaError("parameters are an object, and the schema allows none", where)
    if value.object.free >= 0 or (spelling.style.item is None and has_containers(value.object, contents)):
        # JSON in them must not hold what ends a parameter either
        value = make(asked._replace(allowed=found.allowed), spelling.held)
    members = value.object
    assert members is not None
    parameters = Parameters(spelling, contents, where, partial(symbols.of, where=where), meter)
    try:
        return parameters.graph(members, rule), found
    except DependsError as reason:
        assert remembered is not None
        raise remembered.also_refused(reason) from None


def value_of(approximations: Approximations, asked: Request, meter: Meter, held: str | None = None) -> Value:
    """Return the skeleton of a schema; errors say where in the whole it stands.

    held: a pattern of what no string and no key in a member of the value has.
    """
    contents, where = asked.contents, approximations.within
    try:
        node = formula(contents, approximations=approximations, documents=asked.documents, meter=meter)
        if held is not None:
            inner = {"not": {"type": "string", "pattern": held}, "propertyNames": {"not": {"pattern": held}}}
            inner |= {key: {"$ref": "#/$defs/inner"} for key in ("items", "additionalProperties")}
            outer = {"additionalProperties": {"$ref": "#/$defs/inner"}, "$defs": {"inner": inner}}
            node = all_of((node, formula(outer, meter=meter)))
        return build(node, meter, asked.any_order)
    except SchemaError as error:
        raise error.at(placed(where, error.pointer)) from error
    except RegexError as error:
        wrong = wrong_pattern(error, contents)
        raise wrong.at(where + wrong.pointer) from error


def _joined(grammar: Grammar, symbols: Symbols, meter: Meter) -> Dfa | None:
    """Return the DFA of a grammar over bytes and its values, None if a called rule has some or is not regular."""
    for name, body in grammar.rules.items():
        if grammar.start in called(body) or (name != grammar.start and has_specials(body)):
            return None
    numbers = {name: BYTES + n for n, name in enumerate(symbols.names)}
    networks: dict[str, Network] = {}
    others = {name: body for name, body in grammar.rules.items() if name != grammar.start}
    for name in dict.fromkeys(called(grammar.rules[grammar.start])):
        networks[name] = network_of(Grammar(others, name, None, grammar.source, grammar.where), meter)
        if networks[name].embeds:
            return None
    return dfa_of(grammar.rules[grammar.start], meter, numbers, lambda name: automaton(networks[name], meter))


def with_rules(grammar: Grammar, symbols: Symbols, asked: Request, meter: Meter) -> Grammar:
    """Return a grammar in which values are rules."""
    made = Rules(asked.layout, meter)
    nodes: dict[str, Node] = {}
    for name, (index, label) in symbols.names.items():
        value = symbols.values[index]
        nodes[name] = (
            made.value(value, label) if isinstance(value, Value) else Terminal("bare text", value.of(label, meter))
        )
    rules: dict[str, Node] = {}
    graphs: dict[str, Graph] = {}
    for name, body in grammar.rules.items():
        rules[name] = replaced(without_graphs(body, graphs), nodes)
    for name, graph in graphs.items():
        rules |= {key: replaced(body, nodes) for key, body in rules_of(graph, name).items()}
    return Grammar(rules | made.finish(), grammar.start, None, grammar.source, grammar.where)


def _behind(dfa: Dfa, symbols: Symbols) -> bytes:
    """Return the bytes with which a text goes on after a JSON value."""
    found: set[int] = set()
    for n, (index, _) in enumerate(symbols.names.values()):
        if isinstance(symbols.values[index], Value):
            to = dfa.transition[:, dfa.class_of[BYTES + n]]
            rows = dfa.transition[np.unique(to[to >= 0])][:, dfa.class_of] >= 0
            found.update(np.flatnonzero(rows[:, :BYTES].any(axis=0)).tolist())
            if rows[:, BYTES:].any():  # another value
                found.update(_BEGINS)
    return bytes(sorted(found - set(MARKS)))  # which no token has within it


_BEGINS = b'"[{-0123456789tfn'  # with which values begin
