"""Which objects of a value must not repeat a key, as their members are counted: for a memory beside a lazy machine."""

from __future__ import annotations

from collections.abc import Iterable

from ...automata.budget import Meter
from ...lazy.unique.memory import Rule
from ...lazy.unique.values import Value
from ...lazy.unique.written import Written
from .algebra import (
    STRING,
    AllOf,
    AnyOf,
    Contains,
    Items,
    MemberCount,
    Members,
    Names,
    Node,
    Not,
    Pattern,
    Reference,
    force,
    restrict,
)
from .enough_values import DependsError
from .key_classes import partition
from .member_letters import FEW
from .string_languages import holds
from .unique_rules import bearing

_MOST_COUNTED = 1000  # members that a memory counts


class KeyRules:
    """The rules of the values of a schema: an object repeats no key if some formula about it counts its members.

    Which branch of a schema it is in does not matter: a text that repeats no key says the same.
    """

    def __init__(self, root: Node) -> None:
        self._bears = bearing(root, _is_count)
        self._rules: dict[frozenset[Node], KeyRule] = {}
        self.root = self.rule([root])

    def rule(self, nodes: Iterable[Node]) -> KeyRule | None:
        """Return the rule of values about which some nodes speak; None if no members in them are counted."""
        found = frozenset([node for node in nodes if self._bears[node]])
        if not found:
            return None
        if found not in self._rules:
            self._rules[found] = KeyRule(self, found)
        return self._rules[found]

    def check(self, meter: Meter) -> None:
        """Raise DependsError unless an object can go on to distinct keys wherever its members are counted."""
        todo = [] if self.root is None else [self.root]
        seen = set(todo)
        while todo:
            rule = todo.pop()
            rule.check(meter)
            for each in rule.below():
                if each is not None and each not in seen:
                    seen.add(each)
                    todo.append(each)


class KeyRule:
    """The rule of some values: see `lazy.unique.memory.Rule`."""

    is_unique = False

    def __init__(self, rules: KeyRules, nodes: frozenset[Node]) -> None:
        self._rules = rules
        self._atoms = _in_place(nodes)
        self._members = [atom for atom in self._atoms if isinstance(atom, Members)]
        self._known: dict[str, KeyRule | None] = {}
        self.has_distinct_keys = any(map(_is_count, self._atoms))

    def among(self, written: Written) -> Written:
        """Return what is written."""
        return written

    def item(self, index: int) -> KeyRule | None:
        """Return the rule of an item."""
        found: list[Node] = []
        for atom in self._atoms:
            if isinstance(atom, Items):
                found.append(atom.prefix[index] if index < len(atom.prefix) else atom.rest)
            elif isinstance(atom, Contains):
                found.append(atom.node)
        return self._rules.rule(found)

    def member(self, key: str) -> KeyRule | None:
        """Return the rule of a member."""
        if key not in self._known:
            if len(self._known) > _MOST_COUNTED:
                self._known.clear()
            found: list[Node] = []
            for each in self._members:
                own = [value for name, value in each.properties if name == key]
                own += [value for source, value in each.patterns if holds(Pattern(source), key)]
                found += own or [each.rest]
            self._known[key] = self._rules.rule(found)
        return self._known[key]

    def tells(self, key: str) -> bool:
        """Return False: in which branch an object is does not matter."""
        return False

    def narrowed(self, key: str, value: Value) -> KeyRule:
        """Return this rule."""
        return self

    def at_key(self, key: str) -> KeyRule:
        """Return this rule."""
        return self

    def is_declared(self, key: str) -> bool:
        """Return whether a key certainly comes at most once."""
        return self.has_distinct_keys

    def below(self) -> Iterable[KeyRule | None]:
        """Yield the rules of members and items, those of all undeclared keys as one."""
        for key in {key for each in self._members for key, _ in each.properties}:
            yield self.member(key)
        yield self._rules.rule([node for each in self._members for node in (*dict(each.patterns).values(), each.rest)])
        longest = max([len(atom.prefix) for atom in self._atoms if isinstance(atom, Items)], default=0)
        for index in range(longest + 1):
            yield self.item(index)

    def check(self, meter: Meter) -> None:
        """Raise DependsError if keys of some class may run out, or too many members are counted."""
        counts = [atom for atom in self._atoms if isinstance(atom, MemberCount)]
        least = max([max(atom.low, (atom.high or 0) + 1) for atom in counts], default=0)
        if not self.has_distinct_keys:
            return
        if least > _MOST_COUNTED:
            raise DependsError(f"a matcher counts {_MOST_COUNTED:,} members at most")
        keys = tuple({key: None for each in self._members for key, _ in each.properties})
        patterns = [Pattern(source) for each in self._members for source, _ in each.patterns]
        names = [restrict(force(atom.node), STRING) for atom in self._atoms if isinstance(atom, Names)]
        if not patterns and not names:
            return
        language, classes = partition(keys, [*dict.fromkeys([*patterns, *names])], meter)
        for letter in range(len(keys), len(keys) + len(classes)):
            words = language.words(letter, max(least, FEW), meter)
            if words is not None and len(words) > FEW:
                raise DependsError("some of its keys may be used up")


class PairRule:
    """The rule of a value in which items of arrays and keys of objects are remembered."""

    def __init__(self, rules: PairRules, items: Rule | None, keys: Rule | None) -> None:
        self._rules, self._items, self._keys = rules, items, keys
        self.has_distinct_keys = keys is not None and keys.has_distinct_keys

    @property
    def is_unique(self) -> bool:
        """Whether the items must be distinct if the value is an array."""
        return self._items is not None and self._items.is_unique

    def among(self, written: Written) -> Written:
        """Return the values that the next item of an array must not have."""
        return written if self._items is None else self._items.among(written)

    def item(self, index: int) -> Rule | None:
        """Return the rule of an item."""
        return self._rules.rule(*[None if each is None else each.item(index) for each in (self._items, self._keys)])

    def member(self, key: str) -> Rule | None:
        """Return the rule of a member."""
        return self._rules.rule(*[None if each is None else each.member(key) for each in (self._items, self._keys)])

    def tells(self, key: str) -> bool:
        """Return whether the value of a member tells which branches hold."""
        return self._items is not None and self._items.tells(key)

    def narrowed(self, key: str, value: Value) -> Rule | None:
        """Return the rule of objects in which a member that tells has a value."""
        return self._rules.rule(None if self._items is None else self._items.narrowed(key, value), self._keys)

    def at_key(self, key: str) -> Rule | None:
        """Return the rule of objects in which a key comes before members that would tell what is said of it."""
        return self._rules.rule(None if self._items is None else self._items.at_key(key), self._keys)

    def is_declared(self, key: str) -> bool:
        """Return whether a key certainly comes at most once."""
        return any(each is not None and each.is_declared(key) for each in (self._items, self._keys))


class PairRules:
    """Makes rules of pairs, each once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Rule, Rule], PairRule] = {}

    def rule(self, items: Rule | None, keys: Rule | None) -> Rule | None:
        """Return the rule of a value that has both rules, or one."""
        if items is None or keys is None:
            return keys if items is None else items
        if (items, keys) not in self._known:
            self._known[items, keys] = PairRule(self, items, keys)
        return self._known[items, keys]


def _is_count(node: Node) -> bool:
    return isinstance(node, MemberCount) and node.args[2] is not None


def _in_place(nodes: Iterable[Node]) -> list[Node]:
    """Return the atoms of some nodes about one value, those of `Reference` parts too."""
    todo, seen, found = [*nodes], set(nodes), list[Node]()
    while todo:
        node = todo.pop()
        parts = (force(node),) if type(node) is Reference else node.args if type(node) in (AllOf, AnyOf, Not) else ()
        if not parts:
            found.append(node)
        for part in parts:
            if part not in seen:
                seen.add(part)
                todo.append(part)
    return found
