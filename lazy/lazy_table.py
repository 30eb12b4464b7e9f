"""`LazyTable`: a constraint that is read state by state, and compiled to a `TransitionTable` on request."""

from __future__ import annotations

import copy
import os
import threading
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import BudgetError, NoTableError, Unenforced
from ..kernels.limits import MOST_DEPTH
from ..table.grouped import token_rows
from ..table.several_ends import all_ends, as_eos
from ..table.transition_table import TransitionTable
from ..vocabulary.vocabulary import Vocabulary
from .protocol import BoundsEnds, LazyMachine
from .unique.unique_items import UniqueItems


class LazyTable:
    """A constraint that is read state by state, and compiled to a `TransitionTable` on request.

    Compilers return it. A `Matcher` makes each state when a text first comes to it. With a budget of tokens it
    completes the table where an end may come out of reach. Whatever needs arrays, such as `put` or `Matcher.state`,
    calls `to_table`. Reading raises `BudgetError` if a new state exceeds the budget, or `TableError` after an
    interrupted write; `to_table` still works then.

    Examples:
        >>> from maskwright import compile_regex
        >>> table = compile_regex("[ab]+", Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256))], eos=0))
        >>> table.is_complete, table.accepts([98, 99, 0]), table.to_table().num_states, table.is_complete
        (False, True, 4, True)
    """

    def __init__(
        self, machine: LazyMachine, make: Callable[[], TransitionTable], vocabulary: Vocabulary, *, source: str,
        depth: int, nested: bool = True, renewed: Callable[[Any], LazyMachine] | None = None,
        unenforced: Callable[[], tuple[Unenforced, ...]] = tuple, is_small: bool = True,
    ) -> None:  # fmt: skip
        """machine: what is read. make: works out the arrays. vocabulary: that of both, which is not kept.

        renewed: returns the machine for a new matcher. unenforced: returns what of a schema is not enforced, as far as
        it is known. is_small: whether a matcher may wait for the arrays.
        """
        self.is_small = is_small
        self.vocab_size, self.eos, self.other_ends = vocabulary.size, vocabulary.eos, vocabulary.other_ends
        self.vocabulary, self.source, self.depth = vocabulary.fingerprint, source, depth
        self._machine: LazyMachine | None = machine
        self._make: Callable[[], TransitionTable] | None = lambda: make().noting(unenforced())
        self._renewed = renewed
        self._unenforced = unenforced
        self._nested = nested
        self._made_by: tuple[Callable[..., Compiled], tuple[Any, ...]] | None = None
        self._table: TransitionTable | None = None
        self._refused = False  # whether there is known to be no table
        self.unique: UniqueItems | None = None  # what a matcher sees to beside the machine
        self._lock = threading.Lock()

    @property
    def ends(self) -> tuple[int, ...]:
        """The tokens that end a sequence, `eos` first; () where there is none."""
        return all_ends(self.eos, self.other_ends)

    @property
    def is_complete(self) -> bool:
        """Whether the arrays are there."""
        return self._table is not None

    def to_table(self) -> TransitionTable:
        """Return the table, whose arrays are worked out by the first call.

        Returns:
            The table; every call returns the same.

        Raises:
            BudgetError: The table is larger than the budget of the compilation allows.
            NoTableError: A grammar has no finite table.
        """
        with self._lock:
            if self._table is None:
                assert self._make is not None
                self._table = self._make()
                self._machine = self._make = self._renewed = None  # matchers that read it keep what they need
            return self._table

    @property
    def machine(self) -> LazyMachine | None:
        """The machine that is read, None once the arrays are there."""
        return self._machine

    def reading(self) -> LazyMachine | None:
        """Return the machine that a new matcher reads, None once the table is complete.

        That is a new machine where so many states of the last one were reached that its budget would not last.
        """
        machine, renewed = self._machine, self._renewed
        if machine is None or renewed is None or (found := renewed(machine)) is machine:
            return machine
        if self._lock.acquire(blocking=False):  # otherwise another thread completes the table
            try:
                if self._table is None:
                    self._machine = found
            finally:
                self._lock.release()
        return found

    @property
    def has_bounds(self) -> bool:
        """Whether it is known how many tokens an end is away at most, so that texts can be kept to a number of them."""
        machine = self._machine
        return machine is None or (self.unique is None and isinstance(machine, BoundsEnds) and machine.has_bounds)

    def has_arrays(self) -> bool:
        """Return whether there is a finite table, within the budget; it is worked out to know that.

        The answer is kept unless time ran out, which the next call may have more of; `to_table` may be called again.

        Returns:
            Whether there is.

        Raises:
            ConstraintError: The constraint is at fault.
        """
        if self._table is None and not self._refused:
            try:
                self.to_table()
            except (NoTableError, BudgetError) as error:
                self._refused = error.limit != "seconds"
        return self._table is not None

    def keep_with(self, around: Callable[[Callable[[], TransitionTable]], TransitionTable]) -> None:
        """Have the arrays worked out by another function, which may have them from elsewhere, or keep them there.

        Args:
            around: Called with the function that works them out; returns the table.
        """
        make = self._make
        if make is not None:
            self._make = lambda: around(make)

    def seeing_to(self, unique: UniqueItems, no_table: NoTableError) -> LazyTable:
        """Return this table, beside whose states matchers see to distinct items and keys, which no arrays can do.

        The keywords that this enforces are then no longer among `unenforced`.

        Args:
            unique: What matchers see to.
            no_table: What `to_table` raises.

        Returns:
            This table.
        """
        unenforced = self._unenforced

        def refuse() -> TransitionTable:
            raise copy.copy(no_table)

        self.unique, self._make, self.is_small = unique, refuse, False
        self._unenforced = lambda: tuple([each for each in unenforced() if each.keyword not in unique.keywords])
        return self

    @property
    def unenforced(self) -> tuple[Unenforced, ...]:
        """What of a schema is not enforced, as `allow` let it, as far as it has been read."""
        return self._unenforced() if self._table is None else self._table.unenforced

    @property
    def memory(self) -> int:
        """Bytes that the constraint takes in this process now: what has been written so far."""
        machine = self._machine
        if machine is not None:
            return int(machine.nbytes)
        return self.to_table().memory

    @property
    def fixed_length(self) -> int | None:
        """The length of every sequence, None as long as it is not known."""
        return None if self._table is None else self._table.fixed_length

    @property
    def max_length(self) -> int | None:
        """Most tokens in a sequence, None where there is no most, or as long as it is not known."""
        return None if self._table is None else self._table.max_length

    @property
    def is_nested(self) -> bool:
        """Whether the table has calls, or may have some as long as it is not complete."""
        return self._nested if self._table is None else self._table.is_nested

    def contains(self, sids: ArrayLike) -> NDArray[np.bool_]:
        """Return whether rows of tokens are in the set. It makes arrays if frames may run out.

        Args:
            sids: (N, L) tokens; EOS may close a row, also more than once.

        Returns:
            (N,) bool.
        """
        machine = self._machine  # another thread may complete the table meanwhile
        may_run_out = machine is not None and machine.most_frames_required > -MOST_DEPTH  # of frames
        if machine is None or (may_run_out and self.unique is None):
            return self.to_table().contains(sids)
        rows = as_eos(token_rows(sids), self.eos, self.other_ends).tolist()
        return np.array(
            [
                _accepts(machine, row, self.vocab_size, self.eos)
                and (self.unique is None or self.unique.accepts([token for token in row if token != self.eos]))
                for row in rows
            ],
            np.bool_,
        )

    @property
    def left_out(self) -> int:
        """How often a way on was left out of masks, as the search for a text that completes it took long.

        Masks are exact where it is 0. It is 0 of all but a few schemas whose states are derivatives.
        """
        machine = self._machine
        return 0 if machine is None else machine.left_out

    def accepts(self, tokens: Sequence[int] | NDArray[Any]) -> bool:
        """Return whether one sequence of tokens is in the set.

        Args:
            tokens: (L,); EOS may close it, also more than once, as in a batch.

        Returns:
            Whether it is.
        """
        return bool(self.contains(np.asarray(tokens)[None])[0])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Work out the table and write it to a file, as `TransitionTable.save` does.

        Args:
            path: The file.

        Raises:
            BudgetError: As in `to_table`.
            NoTableError: As in `to_table`.
            FileNotFoundError: There is no folder for it.
        """
        self.to_table().save(path)

    def __repr__(self) -> str:
        if self._table is not None:
            return f"LazyTable({self._table!r})"
        ends = f"ends={self.ends}" if self.other_ends else f"eos={self.eos}"
        return f"LazyTable(vocab_size={self.vocab_size}, {ends}, not worked out yet)"

    def made_by(self, function: Callable[..., Compiled], *arguments: object) -> LazyTable:
        """Note the call that makes this constraint: a pickle carries that.

        Args:
            function: What is called.
            *arguments: Its arguments, the `Vocabulary` among them.

        Returns:
            This table.
        """
        self._made_by = function, arguments
        return self

    def __reduce__(self) -> Any:
        # what it was compiled from is small and compiled again in little time; a table may be neither
        if self._table is not None or self._made_by is None:
            return _itself, (self.to_table(),)
        function, arguments = self._made_by
        sent = [replace(each, encoder=None) if isinstance(each, Vocabulary) else each for each in arguments]
        return function, tuple(sent)  # a tokenizer's function may not be one that can be sent

    def __copy__(self) -> LazyTable:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> LazyTable:
        return self  # constraints do not change


def _itself(table: TransitionTable) -> TransitionTable:
    return table


def _accepts(machine: LazyMachine, tokens: list[int], vocab_size: int, eos: int | None) -> bool:
    """Return whether a machine accepts tokens, which EOS may close."""
    node, stack = 0, _Stack(-1, None)
    for i, token in enumerate(tokens):
        if token == eos:
            is_whole = stack.below is None and machine.accepts(node)
            return is_whole and all(other == eos for other in tokens[i:])
        found = machine.advance(node, stack, token, _Stack.pushed) if 0 <= token < vocab_size else None
        if found is None:
            return False
        node, stack = found
    return stack.below is None and machine.accepts(node)


class _Stack:
    """Open frames of one text: what `LazyMachine.advance` asks of a stack."""

    __slots__ = ("below", "height", "site")
    packed: bytes | None = None

    def __init__(self, site: int, below: _Stack | None) -> None:
        self.site, self.below = site, below
        self.height: int = 0 if below is None else below.height + 1

    def pushed(self, site: int) -> _Stack:
        return _Stack(site, self)

    def top(self, most: int) -> bytes:
        """Return at most so many sites from the top, int32, the outermost first."""
        sites: list[int] = []
        at = self
        while len(sites) < most and at.below is not None:
            sites.append(at.site)
            at = at.below
        return array("i", reversed(sites)).tobytes()


Compiled: TypeAlias = TransitionTable | LazyTable
"""What the compilers of text return."""
