"""A schema as a node of the algebra in which a `oneOf` is kept as it is, a gate.

Written out, each branch of a `oneOf` stands beside the negations of all others. `compile.json_schema` needs it so. Here
a gate is a `Reference`, whose node is what is written out, and `SchemaNode.gates` has its branches.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from ...automata.budget import Meter
from ..json_schema.algebra import ANY, NEVER, Node, Reference, any_of
from ..json_schema.approximations import Approximations
from ..json_schema.branches import Branches
from ..json_schema.context import Compiler
from ..json_schema.dialects import DIALECTS
from ..json_schema.documents import Documents, Scope, Target
from ..json_schema.keywords import HANDLERS, formula
from ..json_schema.source import Json, Path, SchemaSource, read

_FEW = 16  # branches of which all pairs are compared

Gates = Mapping[Reference, tuple[Node, ...]]
"""The branches of each gate."""


class SchemaNode(NamedTuple):
    """The node of a schema, and its gates."""

    node: Node
    gates: Gates


def schema_node(
    schema: SchemaSource,
    *,
    approximations: Approximations | None = None,
    documents: Mapping[str, SchemaSource] | None = None,
    meter: Meter,
) -> SchemaNode:
    """Return the JSON values that a schema describes. Arguments and errors are those of `keywords.formula`."""
    approximations = approximations or Approximations()
    if approximations.allowed:  # what is approximated depends on where negations stand
        return SchemaNode(formula(schema, approximations=approximations, documents=documents, meter=meter), {})
    compiler = _GatedCompiler(Documents(read(schema), documents), approximations, meter)
    root = compiler.documents.root
    node = compiler.begin(partial(compiler.enter, Target(root.root, root, ""), ""))
    return SchemaNode(node, compiler.gates)


class _GatedBranches(Branches):
    """Branches of which those that may overlap become a gate."""

    def __init__(self, meter: Meter) -> None:
        super().__init__(meter)
        self.gates: dict[Reference, tuple[Node, ...]] = {}
        self._gate_of: dict[tuple[Node, ...], Reference] = {}

    def exactly_one(self, nodes: list[Node]) -> list[Node]:
        """Return nodes whose union is what is in exactly one of several: these, or their gate."""
        nodes = [node for node in nodes if node is not NEVER]
        if len(nodes) < 2 or self.disjoint.all(nodes):
            return nodes
        if ANY in nodes or len(set(nodes)) < len(nodes):  # little is left
            return super().exactly_one(nodes)
        key = tuple(nodes)
        gate = self._gate_of.get(key)
        if gate is None:
            if len(nodes) <= _FEW and not any(earlier for _, earlier in self.disjoint.overlapping(nodes)):
                return nodes
            plain = super().exactly_one
            gate = self._gate_of[key] = Reference(lambda: any_of(plain(nodes)))
            self.gates[gate] = key
        return [gate]


class _GatedCompiler(Compiler):
    """A compiler of schemas that keeps gates."""

    def __init__(self, documents: Documents, approximations: Approximations, meter: Meter) -> None:
        handlers = {
            dialect: {word: HANDLERS[word] for word in HANDLERS if word in dialect.keywords}
            for dialect in DIALECTS.values()
        }
        super().__init__(documents, approximations, meter, handlers)
        self.branches = branches = _GatedBranches(meter)
        self.gates = branches.gates

    def peek(self, node: Node, schema: Json, scope: Scope, path: Path) -> Node:
        """Return an item's node, written out if it is a gate."""
        if type(node) is Reference and node in self.gates:
            return node.node
        return super().peek(node, schema, scope, path)
