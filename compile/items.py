"""`Items`: what a catalogue is asked: which items sequences mean, which rows an id has, which items a filter keeps."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import Advice, ConstraintError, TableError
from ..table.item_ids import IdIndex, ItemIds, python_values
from ..table.snapshot import Snapshot
from ..table.transition_table import TransitionTable
from .columns import Columns
from .found_items import AnyFilter, Table, on_host, ranked_items
from .item_filters import check, keeps
from .sid_tokens import CodeTokens


@dataclass(frozen=True, eq=False)
class Items:
    """Semantic IDs and the items that they stand for, to be asked. `Catalogue` says what the attributes are."""

    table: Table
    ids: ItemIds
    code_tokens: CodeTokens
    vocabulary: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    columns: Columns = field(default_factory=dict)
    epoch: int = 0
    _index: IdIndex | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        rows = self.table.num_items
        if len(self.ids) != rows:
            raise TableError(f"there are {len(self.ids):,} item ids for {rows:,} input rows")
        for name, column in self.columns.items():
            if len(column) != rows:
                raise TableError(f"the column {name!r} has {len(column):,} values for {rows:,} input rows")
        if self._index is None:
            object.__setattr__(self, "_index", IdIndex(self.ids))
        if self.code_tokens.length != self.table.max_length:
            raise TableError(f"codes have {self.code_tokens.length} levels, sequences {self.table.max_length} tokens")
        json.dumps(dict(self.metadata))  # TypeError for what is not JSON

    @property
    def num_items(self) -> int:
        """How many items there are: of a catalogue that lives, without those that were deleted."""
        if isinstance(self.table, Snapshot) and self.table.items is not None:
            return int(self.table.items.live.sum())
        return len(self)

    def filter(self, keep: Any) -> AnyFilter:
        """Return a filter that keeps some items.

        Filters of one catalogue, of one version if it lives, are joined by `&`, `|` and `~`, item by item.
        `ops.with_filters` gives each row of a batch its own; a `Matcher` and `to_device` take a filter in place of a
        table.

        Args:
            keep: (N,) booleans in the order of the input: an array, or a column of Arrow, Polars, pandas or DuckDB. Of
                a catalogue that lives one for each row that ever was; those of deleted items say nothing.

        Returns:
            A `SidFilter`; of a catalogue that lives a `LiveFilter`, which `at` takes over to later versions.

        Raises:
            ConstraintError: These are no booleans, there is a null, or there are not as many as items.

        Examples:
            >>> catalogue = Catalogue.of([[3, 1], [3, 0]], ["shoe", "hat"], vocab_size=4)
            >>> catalogue.filter([True, False]).contains([[3, 1], [3, 0]])
            array([ True, False])
        """
        return self.table.filter(keep)

    def without(self, ids: object) -> AnyFilter:
        """Return a filter that leaves out the items with any of some ids, such as those that a user has seen.

        Another item with the same semantic ID is kept.

        Args:
            ids: (n,) ids of items, which need not be there.

        Returns:
            The filter, as of `filter`.

        Examples:
            >>> catalogue = Catalogue.of([[3, 1], [3, 0]], ["shoe", "hat"], vocab_size=4)
            >>> catalogue.without(["hat"]).contains([[3, 1], [3, 0]])
            array([ True, False])
        """
        rows = np.unique(np.concatenate([np.empty(0, np.int64), *self.rows_of(list(ItemIds.of(ids)))]))
        if isinstance(self.table, Snapshot):
            return self.table.without_rows(rows)
        keep = np.ones(len(self), np.bool_)
        keep[rows] = False
        return self.filter(keep)

    def where(self, expression: str) -> AnyFilter:
        """Return a filter that keeps the items of which an expression over columns is true.

        It is a part of Python's expressions: `and`, `or`, `not`; `==`, `!=`, `<`, `<=`, `>`, `>=`, also in chains; `in`
        and `not in` with a list of values; `is None` and `is not None`; names of columns, `id` for the item's id, and
        values. A comparison with a value that is missing is false.

        Args:
            expression: Such as `"price < 50 and category in ('shoe', 'hat')"`.

        Returns:
            The filter, as of `filter`.

        Raises:
            ConstraintError: The expression is none of these, or a value is of another kind than its column.

        Examples:
            >>> catalogue = Catalogue.of([[3, 1], [3, 0]], ["shoe", "hat"], vocab_size=4, columns={"price": [70, 20]})
            >>> catalogue.where("price < 50").contains([[3, 1], [3, 0]])
            array([False,  True])
        """
        return self.filter(self.keeps(expression))

    def keeps(self, expression: str) -> NDArray[np.bool_]:
        """Return of which items an expression is true, (N,): what `where` gives to `filter`.

        Arguments are those of `where`, and so are errors.
        """
        return keeps(expression, self.columns, self.ids, self._index)

    def check_expression(self, expression: str) -> None:
        """Raise ConstraintError for an expression that `where` would refuse, without a look at the items.

        Arguments are those of `where`.
        """
        kinds = {name: column.kind for name, column in self.columns.items()}
        check(expression, kinds, "str" if self.ids.numbers is None else "int")

    def rows_of(self, ids: Any, *, removed: bool = False) -> list[NDArray[np.int64]]:
        """Return for each id the rows of its items, ascending; none for an id that no item has.

        Args:
            ids: (n,) ids: an array, a list or an Arrow column.
            removed: Whether rows of a catalogue that lives count whose items were deleted.

        Returns:
            A list of rows for each id.

        Examples:
            >>> catalogue = Catalogue.of([[3, 1], [3, 0]], ["shoe", "hat"], vocab_size=4)
            >>> [rows.tolist() for rows in catalogue.rows_of(["hat", "sock"])]
            [[1], []]
        """
        assert self._index is not None
        found = self._index.rows(python_values(ids), len(self))
        if removed or not isinstance(self.table, Snapshot) or self.table.items is None:
            return found
        live = self.table.items.live
        if found and live[np.concatenate(found)].all():  # as most are: 50 ids then take 88 us, not 102
            return found
        return [rows[live[rows]] for rows in found]

    def tokens_of(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return the tokens of the semantic IDs of rows, of deleted items too.

        Args:
            rows: (n,) rows of items.

        Returns:
            (n, L) tokens.

        Raises:
            ConstraintError: The catalogue does not live: `live()` returns one that does.
        """
        if not isinstance(self.table, Snapshot) or self.table.items is None:
            advice = Advice("Call live(), or open its file with Catalogue.open.")
            raise ConstraintError("tokens of rows are known where items live", remedies=[advice])
        return self.table.items.tokens[rows]

    def items(
        self, found: object, limit: int | None = None, *, filters: AnyFilter | Sequence[AnyFilter] | None = None
    ) -> list[Any]:
        """Return the ids of the items that were found, each once, the best first.

        What is not valid, and states that are none of a whole sequence, mean no item. Where scores are known they
        decide, and equals keep their order; items that share a semantic ID follow each other in the order of the input.

        Args:
            found: `Beams` or `Sequences` of a decoder (B, M); or final states, (B, M) or (M,), the best first, as they
                stand in `states` of these or as `states` of this class returns them.
            limit: The most items for each of B; None for all.
            filters: Those under which the search ran, filter i that of the i-th share of B: of items that share a
                semantic ID only those that it keeps come back.

        Returns:
            A list of ids for each of B; of states (M,) one list.

        Raises:
            ConstraintError: A filter is of another catalogue or version.

        Examples:
            >>> catalogue = Catalogue.of([[3, 1], [3, 0]], ["shoe", "hat"], vocab_size=4)
            >>> catalogue.items(catalogue.states([[3, 0], [3, 1]]))
            ['hat', 'shoe']
        """
        lists, is_batch = ranked_items(self.table, self.ids, found, limit, filters)
        return [list(row) for row in lists] if is_batch else list(lists[0])

    def ranked(
        self, found: object, limit: int | None = None, *, filters: AnyFilter | Sequence[AnyFilter] | None = None
    ) -> list[Any]:
        """Return pairs of an item's id and its score, as `items` orders them. Arguments are those of `items`.

        Returns:
            A list of pairs for each of B; of states (M,) one list, whose scores are NaN.

        Examples:
            >>> catalogue = Catalogue.of([[3, 1], [3, 0]], ["shoe", "hat"], vocab_size=4)
            >>> catalogue.ranked(catalogue.states([[3, 0]]))
            [('hat', nan)]
        """
        lists, is_batch = ranked_items(self.table, self.ids, found, limit, filters)
        return [list(row.items()) for row in lists] if is_batch else list(lists[0].items())

    def states(self, tokens: object) -> NDArray[np.int64]:
        """Return the final state of each sequence of tokens, as `generate` of transformers writes them.

        Args:
            tokens: (.., T) integers without the prompt, of which the first L are read.

        Returns:
            (..) states. A sequence that is not in the set has a state that means no item.

        Raises:
            ValueError: These are no integers, or fewer than L.

        Examples:
            >>> catalogue = Catalogue.of([[3, 1], [3, 0]], ["shoe", "hat"], vocab_size=4)
            >>> catalogue.items(catalogue.states([[3, 1], [0, 0]]))
            ['shoe']
        """
        array = on_host(tokens)
        length = self.code_tokens.length
        if array.ndim < 1 or array.shape[-1] < length or array.dtype.kind not in "iu":
            raise ValueError(f"tokens must be integers (.., T), T at least {length}, not {array.dtype} {array.shape}")
        flat = np.ascontiguousarray(array[..., :length], np.int64).reshape(-1, length)
        found = self.table.walk(flat) if isinstance(self.table, TransitionTable) else self.table.find(flat)
        return found.reshape(array.shape[:-1])

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"Catalogue({self.num_items:,} items, {self.table!r})"
