"""What a matcher remembers of a text to enforce keywords of a schema that states cannot enforce."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from ...automata.budget import Meter
from ...errors import AllowKeyword, NoTableError, ReadOnDemand, SchemaError
from ...lazy.lazy_table import LazyTable
from ...lazy.unique.memory import Memory, Rule
from ...lazy.unique.unique_items import UniqueItems
from ...vocabulary.vocabulary import Vocabulary
from .algebra import Node
from .approximations import Approximations
from .enough_values import DependsError
from .key_rules import KeyRules, PairRules
from .keywords import formula
from .request import Request
from .source import Schema
from .unique_rules import UniqueRules

T = TypeVar("T")
UNIQUE = "uniqueItems"
_COUNTS = frozenset({"minProperties", "maxProperties"})
_MOST_TRIED = 50  # keywords that are tried alone, to say which of them is at fault


class Remembered(NamedTuple):
    """The rule of a schema's values, the keywords that it enforces, and the error of states for the first of them."""

    rule: Rule
    keywords: frozenset[str]
    refused: SchemaError

    def also_refused(self, why: DependsError) -> SchemaError:
        """Return the error of a keyword that a matcher cannot enforce either."""
        return _also_refused(self.refused, why)

    def seen_to(self, made: LazyTable, start: Memory, vocabulary: Vocabulary) -> LazyTable:
        """Return a table beside which matchers remember what this asks for. start: before a text."""
        return made.seeing_to(UniqueItems(start, vocabulary, self.keywords), _no_table(self.refused))


def remembering(
    asked: Request, make: Callable[[Request], T], meter: Meter, where: str = ""
) -> tuple[T, Remembered | None]:
    """Return what a function makes of a schema, and what is to be remembered beside it, if states do not do.

    make: called with a request that allows more keywords, as long as it raises the SchemaError of one that a matcher
    may enforce. where: begins the pointers of errors, if the schema stands in something else.

    Raises SchemaError for a keyword that cannot be enforced so either.
    """
    refused: list[SchemaError] = []
    widened, rule = asked, None
    while True:
        try:
            made = make(widened)
            break
        except SchemaError as error:
            is_remembered = error.keyword == UNIQUE or error.keyword in _COUNTS
            if not is_remembered or not any(isinstance(each, AllowKeyword) for each in error.remedies):
                raise
            refused.append(error)
        more = {UNIQUE} if refused[-1].keyword == UNIQUE else _COUNTS
        widened = widened._replace(allowed=widened.allowed | more)
        found = Approximations(widened.allowed, where)
        rule = _rule(widened, widened.allowed - asked.allowed, refused[-1], found, meter)
    if rule is None:
        return made, None
    return made, Remembered(rule, widened.allowed - asked.allowed, refused[0])


def _rule(
    widened: Request, keywords: frozenset[str], refused: SchemaError, found: Approximations, meter: Meter
) -> Rule | None:  # fmt: skip
    """Return the rule by which a matcher enforces keywords. Raises SchemaError, for the one refused, if none does."""
    items = keys = None
    try:
        if UNIQUE in keywords:
            items = _rule_of_items(widened, widened.contents, found, meter)
        if not _COUNTS.isdisjoint(keywords):
            of_keys = KeyRules(_formula(widened, widened.contents, found, meter))
            of_keys.check(meter)
            keys = of_keys.root
    except DependsError as reason:
        raise _also_refused(_at_fault(widened, refused, found, meter), reason) from None
    return PairRules().rule(items, keys)


def _formula(widened: Request, contents: Schema, found: Approximations, meter: Meter) -> Node:
    return formula(contents, approximations=found, documents=widened.documents, meter=meter, widened=False)


def _rule_of_items(widened: Request, contents: Schema, found: Approximations, meter: Meter) -> Rule | None:
    node = _formula(widened, contents, found, meter)
    rules = UniqueRules(node, widened.any_order)
    rules.check(meter)
    return rules.rule(node, node)


def _at_fault(widened: Request, refused: SchemaError, found: Approximations, meter: Meter) -> SchemaError:
    """Return the error of states for the keyword that is refused alone, without the others like it, if one is."""
    told = [each.pointer for each in found.found if each.keyword == UNIQUE]
    if refused.keyword != UNIQUE or len(told) > _MOST_TRIED:
        return refused
    for where in told:
        alone = _without(widened.contents, found.within, {other for other in told if other != where})
        try:
            _rule_of_items(widened, alone, Approximations(widened.allowed), meter)
        except DependsError:
            return SchemaError(refused.message, where, UNIQUE, remedies=refused.remedies)
        except SchemaError:  # some are in other documents, which stay as they are
            continue
    return refused


def _without(schema: Any, where: str, pointers: set[str]) -> Any:
    """Return a schema without the keywords to which some pointers lead. where: the pointer of the schema itself."""
    if isinstance(schema, list):
        return [_without(each, f"{where}/{i}", pointers) for i, each in enumerate(schema)]
    if not isinstance(schema, dict):
        return schema
    paths = {key: f"{where}/{key.replace('~', '~0').replace('/', '~1')}" for key in schema}
    return {key: _without(each, paths[key], pointers) for key, each in schema.items() if paths[key] not in pointers}


def _also_refused(refused: SchemaError, why: DependsError) -> SchemaError:
    return SchemaError(
        f'"{refused.keyword}" cannot be enforced exactly: {why}', refused.pointer, refused.keyword,
        remedies=refused.remedies,
    )  # fmt: skip


def _no_table(refused: SchemaError) -> NoTableError:
    where = refused.pointer or "/"
    why = "items have too many values" if refused.keyword == UNIQUE else "undeclared keys are too many"
    return NoTableError(
        f'{where}: no table can enforce "{refused.keyword}" here, as {why}; a matcher remembers which came',
        remedies=(*refused.remedies, ReadOnDemand()),
    )
