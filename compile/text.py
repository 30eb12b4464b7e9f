"""Compile constraints on text: regular expressions and lists of choices."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from ..automata.budget import Budget, Meter
from ..automata.deadline import look
from ..automata.nfa import Nfa
from ..automata.subsets import determinize
from ..depth import enough_stack
from ..errors import ConstraintError, RegexError
from ..lazy.lazy_table import Compiled, LazyTable
from ..lazy.machine.lazy_machine import ByteMachine
from ..lazy.protocol import LazyMachine
from ..table.transition_table import TransitionTable
from ..vocabulary.vocabulary import Vocabulary
from .arguments import begin_budget, check_vocabulary, source_of
from .bind.bind import bind
from .regex.lower import to_dfa
from .regex.pattern_rules import PatternRules


def compile_regex(
    pattern: str, vocabulary: Vocabulary, *, flags: str = "", lazy: bool = True, budget: Budget | None = None
) -> Compiled:
    r"""Compile a regular expression into a table of exactly the texts that it matches from start to end.

    Lookahead, lookbehind of any width, `\b` and anchors are exact. Ignoring case, `\p{..}` matches what a class of the
    property's characters would: these, and all that differ from one of them in case only; `\P{..}` matches all others.

    Args:
        pattern: In the syntax and meaning of Python's `re` for text, and `\p{..}` besides.
        vocabulary: The tokens that texts are written with.
        flags: Letters of "aimsx", as in `(?aimsx)`; "u" is taken too and, as in `re`, says nothing new.
        lazy: Whether to return a `LazyTable`, whose states are made when a `Matcher` reaches them. A vocabulary that
            does not have all single bytes makes the whole table.
        budget: Limits of this compilation, and of states and bytes of what is read lazily.

    Returns:
        A `LazyTable`, or a `TransitionTable`.

    Raises:
        RegexError: The pattern is malformed, or uses what is not supported: back-references, groups that depend on
            whether another matched, atomic groups, and possessive quantifiers after more than a character or class.
        ConstraintError: The pattern is no str, matches nothing, or nothing that the vocabulary can write.
        BudgetError: A limit was reached.
        TypeError: Another argument is of another type.

    Examples:
        >>> vocab = Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), b"20"], eos=0)
        >>> table = compile_regex(r"\d{4}-\d\d", vocab)
        >>> table.accepts([257, *(1 + b for b in b"26-11"), 0])
        True
    """
    check_vocabulary(vocabulary)
    if not isinstance(flags, str):
        raise TypeError(f'flags must be a str of letters, such as "im", not {type(flags).__name__}')
    if not isinstance(lazy, bool):
        raise TypeError(f"lazy must be True or False, not {lazy!r}")
    with begin_budget(budget) as meter:
        if lazy and vocabulary.spells_all_bytes:
            return _lazily(pattern, vocabulary, flags, meter).made_by(_again, pattern, vocabulary, flags, budget)
        return _whole(pattern, vocabulary, flags, meter)


def _whole(pattern: str, vocabulary: Vocabulary, flags: str, meter: Meter) -> TransitionTable:
    dfa = to_dfa(pattern, flags=flags, meter=meter)
    if dfa.is_empty:
        raise _matches_nothing(pattern)
    return bind(dfa, vocabulary, source=source_of("regex", flags, pattern), meter=meter)


def _lazily(pattern: str, vocabulary: Vocabulary, flags: str, meter: Meter) -> LazyTable:

    def machine(meter: Meter) -> ByteMachine:
        rules = PatternRules(pattern, vocabulary, flags=flags)
        if rules.is_empty:
            raise _matches_nothing(pattern)
        rules.begin_reading()
        return ByteMachine(rules, vocabulary, meter, seconds=budget.seconds)

    budget = meter.budget
    patient = replace(budget, seconds=math.inf)

    def renewed(old: ByteMachine) -> LazyMachine:
        return machine(patient.begin()) if old.is_large else old

    def make() -> TransitionTable:
        with begin_budget(meter.budget) as again:
            return _whole(pattern, vocabulary, flags, again)

    with enough_stack(partial(RegexError, pattern=pattern, position=0)):
        first = machine(patient.begin())
    meter.check(states=first.num_states, bytes=first.nbytes, doing="reading a pattern")
    return LazyTable(
        first, make, vocabulary, source=source_of("regex", flags, pattern), depth=0, nested=False, renewed=renewed
    )


def _again(pattern: str, vocabulary: Vocabulary, flags: str, budget: Budget | None) -> Compiled:
    return compile_regex(pattern, vocabulary, flags=flags, budget=budget)


def _matches_nothing(pattern: str) -> ConstraintError:
    return ConstraintError(f"the pattern matches nothing: {pattern!r}")


def compile_choices(choices: Iterable[str], vocabulary: Vocabulary, *, budget: Budget | None = None) -> TransitionTable:
    """Compile a list of texts into a table that allows exactly these; one may be the prefix of another.

    Each may be written in any segmentation into tokens.

    Args:
        choices: The texts.
        vocabulary: The tokens that texts are written with.
        budget: Limits of this compilation.

    Returns:
        The table.

    Raises:
        ConstraintError: There are no texts, or one is no text.
        BudgetError: A limit was reached.
        TypeError: An argument is of another type.

    Examples:
        >>> vocab = Vocabulary.from_bytes([b"", b"red", b"green", b"re", b"d"], eos=0)
        >>> table = compile_choices(["red", "green"], vocab)
        >>> table.accepts([1]), table.accepts([3, 4, 0]), table.accepts([3])
        (True, True, False)
    """
    check_vocabulary(vocabulary)
    if isinstance(choices, (str, bytes)):
        raise ConstraintError("choices is one text: pass a list of them")
    if not isinstance(choices, Iterable):
        raise TypeError(f"choices must be a list of texts, or another iterable, not {type(choices).__name__}")
    with begin_budget(budget) as meter:
        nfa = Nfa(meter=meter)
        texts = []
        for i, choice in enumerate(choices):
            look("reading the choices")
            if not isinstance(choice, str):
                raise ConstraintError(f"choice {i} is {type(choice).__name__}, not text")
            try:
                texts.append(choice.encode())
            except UnicodeEncodeError as error:
                raise ConstraintError(
                    f"choice {i} has a lone surrogate at position {error.start}, which no UTF-8 spells: remove it"
                ) from None
        if not texts:
            raise ConstraintError("there are no choices: nothing could be written")
        dfa = determinize(nfa, nfa.union([nfa.literal(text) for text in texts]), meter)
        return bind(dfa, vocabulary, source=source_of("choices", *(repr(text) for text in texts)), meter=meter)
