"""The engines, given grammars."""

from __future__ import annotations

import functools
from typing import Any

from maskwright.compile.grammar import terminals

from ... import peers
from .cases import Case
from .ebnf import to_ebnf

OURS, REFERENCE = "maskwright", "llguidance"


class Maskwright(peers.Maskwright):
    """`compile_grammar` and `Matcher`."""

    def compile(self, case: Case) -> Any:
        """Return a grammar's table."""
        return self.mw.compile_grammar(case.lark, self.vocab)

    def forget(self) -> None:
        """Have the next grammar's terminals made anew, as those of a grammar that nobody has compiled before."""
        terminals._memo.clear()

    def size(self, compiled: Any) -> int:
        """Return the bytes that a table takes after it was read."""
        return int(compiled.memory)


class Llguidance(peers.Llguidance):
    """llguidance: an Earley parser above a lexer by derivatives, made as they are needed."""

    def compile(self, case: Case) -> Any:
        """Return a matcher at the start, which sessions copy."""
        return self.at_start(self.lib.LLMatcher.grammar_from_lark(case.llguidance))

    def forget(self) -> None:
        """Do nothing: it keeps nothing."""

    def size(self, compiled: Any) -> None:
        """Return nothing: it does not say."""


class Xgrammar(peers.Xgrammar):
    """xgrammar, with EBNF in place of Lark; turning one into the other is not timed."""

    def compile(self, case: Case) -> Any:
        """Return a compiled grammar."""
        return self.compiler.compile_grammar(ebnf(case))

    def forget(self) -> None:
        """Do nothing: its cache is off."""

    def size(self, compiled: Any) -> int:
        """Return the bytes of a compiled grammar."""
        return int(compiled.memory_size_bytes)


ENGINES: dict[str, type[peers.Engine]] = {
    "maskwright": Maskwright,
    "llguidance": Llguidance,
    "xgrammar": Xgrammar,
}


@functools.cache
def ebnf(case: Case) -> str:
    """Return a case's grammar as EBNF."""
    return to_ebnf(case.lark)
