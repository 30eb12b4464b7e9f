"""The engines, given JSON Schemas."""

from __future__ import annotations

import json
from typing import Any

from ... import peers

OURS, ANY_ORDER, REFERENCE = "maskwright", "maskwright, any order", "llguidance"


class Maskwright(peers.Maskwright):
    """`compile_json_schema` and `Matcher`."""

    def compile(self, schema: Any) -> Any:
        """Return a schema's table."""
        return self.mw.compile_json_schema(schema, self.vocab)


class AnyOrder(Maskwright):
    """The same, members in any order."""

    def compile(self, schema: Any) -> Any:
        """Return a schema's table."""
        return self.mw.compile_json_schema(schema, self.vocab, any_order=True)


class Llguidance(peers.Llguidance):
    """llguidance: an Earley parser over derivatives, as it is used for JSON Schema."""

    def compile(self, schema: Any) -> Any:
        """Return a matcher at the start, which sessions copy."""
        return self.at_start(self.lib.LLMatcher.grammar_from_json_schema(json.dumps(schema)))


class Xgrammar(peers.Xgrammar):
    """xgrammar, with any white space, and with additional members where a schema allows them."""

    def compile(self, schema: Any) -> Any:
        """Return a compiled grammar."""
        return self.compiler.compile_json_schema(json.dumps(schema), any_whitespace=True, strict_mode=False)


ENGINES: dict[str, type[peers.Engine]] = {
    OURS: Maskwright,
    ANY_ORDER: AnyOrder,
    "llguidance": Llguidance,
    "xgrammar": Xgrammar,
}
