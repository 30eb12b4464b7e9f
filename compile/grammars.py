"""Compile context-free grammars: Lark's notation, GBNF and EBNF."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np

from ..automata.budget import Budget, Meter
from ..automata.dfa import BYTES, Dfa
from ..automata.minimize import canonical
from ..errors import ConstraintError
from ..table import LazyTable, TransitionTable
from .bind import bind
from .grammar.form import Grammar
from .grammar.network import Network, build
from .grammar.stacks import Stacks
from .text import begin_budget, check_vocabulary, source_of
from .vocabulary import Vocabulary

Syntax = Literal["lark", "gbnf", "ebnf"]
_STARTS: dict[str, str] = {"lark": "start", "gbnf": "root", "ebnf": "root"}


def compile_grammar(
    grammar: str,
    vocabulary: Vocabulary,
    *,
    start: str | None = None,
    syntax: Syntax = "lark",
    budget: Budget | None = None,
) -> TransitionTable:
    r"""Compile a context-free grammar into a table of exactly the texts that it derives.

    grammar: in Lark's notation, in GBNF (llama.cpp), or in EBNF (W3C, as XGrammar writes it), as `syntax` says. start:
    the rule to begin with; "start" in Lark's, "root" in the others. budget: limits for this compilation and for what
    is read later: all states that are ever made, and seconds for any one token or mask.

    There is no lexer: a text is allowed if any derivation spells it, with whatever `%ignore` names between terminals.
    These are the texts that Lark's Earley parser takes with `lexer="dynamic_complete"`.

    Returns a `LazyTable`: a `Matcher` reads the grammar as it is, state by state as its text comes. Whatever needs
    arrays, such as operations on a device, completes it, which raises ConstraintError for a grammar of which there is
    no finite table.

    Raises GrammarError, with line, column and a caret, for a grammar that is malformed, has a rule that derives no text
    at all, or uses what cannot be exact; ConstraintError if the vocabulary lacks bytes that it needs; BudgetError;
    TypeError and ValueError for arguments of another kind.

    >>> vocab = Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), b"(("], eos=0)
    >>> table = compile_grammar('start: "(" start ")" | /[0-9]+/', vocab)
    >>> table.accepts([257, *(1 + b for b in b"42))"), 0])
    True
    """
    check_vocabulary(vocabulary)
    if not isinstance(grammar, str):
        raise TypeError(f"grammar must be a str, not {type(grammar).__name__}")
    if syntax not in get_args(Syntax):
        raise ValueError(f"syntax must be one of {', '.join(map(repr, get_args(Syntax)))}, not {syntax!r}")
    if start is not None and not isinstance(start, str):
        raise TypeError(f"start must be the name of a rule, not {type(start).__name__}")
    meter = begin_budget(budget)
    start = _STARTS[syntax] if start is None else start
    form = _reader(syntax)(grammar, start=start, meter=meter)
    return compile_form(form, vocabulary, source=source_of("grammar", syntax, start, grammar), meter=meter)


def compile_form(form: Grammar, vocabulary: Vocabulary, *, source: str, meter: Meter) -> TransitionTable:
    """Return the table of a grammar that was read; the same errors as `compile_grammar`."""
    network = build(form, meter)
    missing = _missing(network, vocabulary)
    if missing:
        if not network.embeds and not network.specials:
            return _regular(network, vocabulary, source, meter)
        raise ConstraintError(
            f"the vocabulary has no token for the single byte {missing[:1]!r}"
            + (f" and {len(missing) - 1} others" if len(missing) > 1 else "")
            + ": a grammar needs one of each byte that it reads, so that every text that was begun can be finished"
        )
    reader = Stacks(network, vocabulary, meter)

    def make() -> TransitionTable:
        again = replace(meter.budget).begin()
        if network.specials:
            raise ConstraintError(
                f"a grammar with special tokens ({', '.join(network.specials)}) has no arrays: follow it with a Matcher"
            )
        if not network.embeds:
            return _regular(network, vocabulary, source, again)
        raise ConstraintError(
            "this grammar has no finite table: a rule stands within itself with something on either side, so what is "
            "open has to be remembered; follow it with a Matcher, without max_tokens"
        )

    return LazyTable(
        reader, make, vocab_size=vocabulary.size, eos=vocabulary.eos, vocabulary=vocabulary.fingerprint, source=source,
        depth=0, nested=network.embeds,
    )  # fmt: skip


def _reader(syntax: Syntax) -> Callable[..., Grammar]:
    """Return what reads a notation; lark is only imported for its own."""
    if syntax == "lark":
        from .grammar.lark import read_lark

        return read_lark
    from .grammar.ebnf import read_ebnf
    from .grammar.gbnf import read_gbnf

    return read_gbnf if syntax == "gbnf" else read_ebnf


def _missing(network: Network, vocabulary: Vocabulary) -> bytes:
    """Return the bytes that a network reads and that are no tokens."""
    used: Any = (network.transition.reshape(-1, network.classes) >= 0).any(axis=0)
    read = used[network.class_of[:BYTES]]
    single = {token[0] for token in vocabulary.tokens if len(token) == 1} if not vocabulary.spells_all_bytes else None
    return b"" if single is None else bytes(b for b in np.flatnonzero(read).tolist() if b not in single)


def _regular(network: Network, vocabulary: Vocabulary, source: str, meter: Meter) -> TransitionTable:
    """Return the table of a grammar without self-embedding, by its minimal automaton."""
    return bind(automaton(network, meter), vocabulary, source=source, meter=meter)


def automaton(network: Network, meter: Meter) -> Dfa:
    """Return the minimal DFA of a network in which no rule embeds itself. Raises BudgetError."""
    stacks = Stacks(network, _NO_TOKENS, meter)
    cells = stacks.all_states()
    class_of: Any = network.class_of[:BYTES].astype(np.uint16)
    return canonical(class_of, cells, stacks.accepting(), meter=meter)


_NO_TOKENS = Vocabulary.from_bytes([b"\0"])
