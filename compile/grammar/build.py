"""Compile context-free grammars: Lark's notation, GBNF and EBNF."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import get_args

import numpy as np

from ...automata.budget import Budget, Meter
from ...automata.dfa import BYTES, Dfa
from ...automata.minimize import canonical
from ...automata.network import Network
from ...depth import enough_stack
from ...errors import ConstraintError, GrammarError, NoTableError, Unenforced
from ...lazy.grammar.lazy_grammar import NO_TOKENS, LazyGrammar
from ...lazy.lazy_table import Compiled, LazyTable
from ...table.transition_table import TransitionTable
from ...vocabulary.vocabulary import Vocabulary
from ..arguments import begin_budget, check_vocabulary, checked_depth, source_of
from ..bind.bind import bind
from ..bind.link import link_machine
from .analysis import called
from .delimited import NotDelimitedError, to_machine
from .form import Grammar
from .network import build
from .notations import STARTS, Syntax, reader_of
from .regions import delimited, with_lists
from .regular import dfa_of
from .special_tokens import spelt


def compile_grammar(
    grammar: str,
    vocabulary: Vocabulary,
    *,
    start: str | None = None,
    syntax: Syntax = "lark",
    depth: int = 64,
    budget: Budget | None = None,
) -> Compiled:
    """Compile a context-free grammar into a table of exactly the texts that it derives.

    There is no lexer: a text is allowed if any derivation spells it, with whatever `%ignore` names between terminals.
    These are the texts that Lark's Earley parser takes with `lexer="dynamic_complete"`.

    Args:
        grammar: In Lark's notation, in GBNF (llama.cpp), or in EBNF (W3C, as XGrammar writes it).
        vocabulary: The tokens that texts are written with.
        start: The rule to begin with; None for "start" in Lark's notation, "root" in the others.
        syntax: The notation: "lark", "gbnf" or "ebnf".
        depth: How many brackets may be open at once where the table is in arrays; no text is begun that cannot be ended
            within it.
        budget: Limits of this compilation and of what is read later: all states that are ever made, and seconds for any
            one token or mask.

    Returns:
        A `LazyTable`: a `Matcher` reads the grammar as it is, to any depth. Arrays are made on request: of a regular
        grammar an automaton; of one where brackets, or words around it, say where a rule within itself begins and ends,
        a table with calls. Of others there is no finite table, and `to_table` raises NoTableError.

    Raises:
        GrammarError: The grammar is malformed, has a rule that derives no text, or uses what cannot be exact.
        ConstraintError: The vocabulary lacks bytes that the grammar needs.
        BudgetError: A limit was reached.
        TypeError: An argument is of another type.
        ValueError: An argument has a value that it cannot have.

    Examples:
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
    depth = checked_depth(depth)
    with begin_budget(budget) as meter, enough_stack(partial(GrammarError, grammar=grammar, position=0)):
        start, source = request(grammar, vocabulary, start=start, syntax=syntax, depth=depth)
        form = reader_of(syntax)(grammar, start=start, meter=meter)
        made = compile_form(form, vocabulary, source=source, depth=depth, meter=meter)
    return (
        made.made_by(_again, grammar, vocabulary, start, syntax, depth, budget) if isinstance(made, LazyTable) else made
    )


def _again(
    grammar: str, vocabulary: Vocabulary, start: str, syntax: Syntax, depth: int, budget: Budget | None
) -> Compiled:
    return compile_grammar(grammar, vocabulary, start=start, syntax=syntax, depth=depth, budget=budget)


def request(grammar: str, vocabulary: Vocabulary, *, start: str | None, syntax: Syntax, depth: int) -> tuple[str, str]:
    """Return the rule that a grammar begins with, and a hash of all that its table follows from."""
    start = STARTS[syntax] if start is None else start
    return start, source_of("grammar", syntax, start, str(depth), vocabulary.names, grammar)


def compile_form(
    form: Grammar, vocabulary: Vocabulary, *, source: str, meter: Meter, depth: int = 64,
    unenforced: Callable[[], tuple[Unenforced, ...]] = tuple,
) -> Compiled:  # fmt: skip
    """Return the table of a grammar that was read; the same errors as `compile_grammar`.

    unenforced: returns what is not enforced of schemas in it.
    """
    form, vocabulary = spelt(form, vocabulary)
    form = with_lists(form)
    network = build(form, meter)
    missing = _missing(network, vocabulary)
    if missing:
        if not network.embeds:
            return _regular(network, vocabulary, source, meter).noting(unenforced())
        raise ConstraintError(
            f"the vocabulary has no token for the single byte {missing[:1]!r}"
            + (f" and {len(missing) - 1} others" if len(missing) > 1 else "")
            + ": a grammar needs one of each byte that it reads, so that every text that was begun can be finished"
        )
    reader = LazyGrammar(network, vocabulary, meter)

    def make() -> TransitionTable:
        with begin_budget(meter.budget) as again, enough_stack():
            return _whole(form, network, vocabulary, source, depth, again)

    return LazyTable(reader, make, vocabulary, source=source, depth=0, nested=network.embeds, unenforced=unenforced)


def _missing(network: Network, vocabulary: Vocabulary) -> bytes:
    """Return the bytes that a network reads and that are no tokens."""
    used = np.any(network.transition.reshape(-1, network.classes) >= 0, axis=0)
    read = used[network.class_of[:BYTES]]
    single = {token[0] for token in vocabulary.tokens if len(token) == 1} if not vocabulary.spells_all_bytes else None
    return b"" if single is None else bytes(b for b in np.flatnonzero(read).tolist() if b not in single)


def _whole(
    form: Grammar, network: Network, vocabulary: Vocabulary, source: str, depth: int, meter: Meter
) -> TransitionTable:
    """Return the table of a grammar: of an automaton, or with calls where the input alone says what is open."""
    alone = form.rules[form.start]
    if form.ignored is None and not any(called(alone)):
        # such as text with tags: free texts side by side are ambiguous, and may be counted: cheaper in an NFA
        return bind(dfa_of(alone, meter), vocabulary, source=source, meter=meter)
    if not network.embeds:
        return _regular(network, vocabulary, source, meter)
    for other in delimited(form):
        try:
            machine, start = to_machine(build(other, meter), meter)
        except NotDelimitedError:
            continue
        return link_machine(machine, start, vocabulary, source, depth, meter)
    raise NoTableError(
        "this grammar has no finite table: a rule stands within itself with something on either side, and no brackets "
        "say where it begins and ends, so what is open must be remembered"
    )


def _regular(network: Network, vocabulary: Vocabulary, source: str, meter: Meter) -> TransitionTable:
    """Return the table of a grammar without self-embedding, by its minimal automaton."""
    return bind(automaton(network, meter), vocabulary, source=source, meter=meter)


def automaton(network: Network, meter: Meter) -> Dfa:
    """Return the minimal DFA of a network in which no rule embeds itself. Raises BudgetError."""
    stacks = LazyGrammar(network, NO_TOKENS, meter)
    cells = stacks.all_states(meter)
    class_of = network.class_of[:BYTES].astype(np.uint16)
    return canonical(class_of, cells, stacks.accepting(), meter=meter)
