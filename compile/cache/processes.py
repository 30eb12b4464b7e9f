"""Compile JSON Schemas in parallel processes."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ...depth import Flat
from ...errors import ConstraintError
from ...table.transition_table import TransitionTable
from ...vocabulary.vocabulary import Vocabulary
from ..json_schema import request as requests
from ..schemas import compile_schema as schemas

_own: dict[str, Any] = {}  # of a process that compiles for others: its vocabulary and options


def compile_in_processes(
    vocabulary: Vocabulary, jobs: list[tuple[Any, Any]], options: dict[str, Any], processes: int | None
) -> Iterable[tuple[Any, TransitionTable | ConstraintError]]:
    """Yield (key, table or error) of (key, schema), as they are done."""
    # 20 ms to import, for those who have no other processes
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    count = min(len(jobs), processes or os.cpu_count() or 1)
    if not jobs:
        return
    given = {name: value for name, value in options.items() if name != "lazy"}
    plain = replace(vocabulary, encoder=None)  # a tokenizer's own function may not be one that can be sent
    with ProcessPoolExecutor(
        count, mp_context=get_context("spawn"), initializer=_begin, initargs=(plain, given)
    ) as pool:
        waiting = {pool.submit(_compile_whole, Flat(schema)): key for key, schema in jobs}
        try:
            for done in as_completed(waiting):
                yield waiting.pop(done), done.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _begin(vocabulary: Vocabulary, options: dict[str, Any]) -> None:
    _own.update(vocabulary=vocabulary, budget=options.pop("budget", None), options=options)


def _compile_whole(schema: Any) -> TransitionTable | ConstraintError:
    try:
        budget, options = _own["budget"], _own["options"]
        asked = requests.request(schema, **options)
        return schemas.compile_request(asked, _own["vocabulary"], lazy=False, budget=budget).to_table()
    except ConstraintError as error:
        return copy.copy(error)
