"""Compile a grammar that was read: what a matcher reads, and what becomes arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...automata.budget import Meter
from ...automata.dfa import BYTES, Dfa
from ...automata.minimize import canonical
from ...automata.network import Network
from ...depth import enough_stack
from ...errors import ConstraintError, NoTableError, Unenforced
from ...lazy.grammar.lazy_grammar import NO_TOKENS, LazyGrammar
from ...lazy.lazy_table import Compiled, LazyTable
from ...table.transition_table import TransitionTable
from ...vocabulary.vocabulary import Vocabulary
from ..arguments import begin_budget
from ..bind.bind import bind
from ..bind.link import link_machine
from .analysis import called
from .delimited import NotDelimitedError, to_machine
from .form import Grammar
from .network import build
from .regions import delimited, with_lists
from .regular import dfa_of
from .special_tokens import spelt


def compile_form(
    form: Grammar, vocabulary: Vocabulary, *, source: str, meter: Meter, depth: int = 64,
    unenforced: Callable[[], tuple[Unenforced, ...]] = tuple,
) -> Compiled:  # fmt: skip
    """Return the table of a grammar that was read, without JSON values; the same errors as `compile_grammar`.

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
