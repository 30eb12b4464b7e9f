"""The cache: hits among many tables, and threads that ask for the same ones."""

from __future__ import annotations

import copy
import json
import threading
import time
from functools import partial
from typing import Any

import numpy as np
from rich.progress import track

import maskwright as mw

from .times import ROWS, Record, microseconds, percentiles


def cache(schemas: list[Any], vocab: mw.Vocabulary, kept: int) -> Record:
    """Return the time of hits among `kept` tables, by dict and by text, and what many threads compile."""
    held = mw.Cache(vocab, max_bytes=1 << 40)
    resident, compiling = [], []
    for schema in track(schemas, "cache", transient=True):
        begin = time.perf_counter_ns()
        try:
            held.compile_json_schema(schema)
        except mw.errors.ConstraintError:
            continue
        compiling.append((time.perf_counter_ns() - begin) / 1e3)
        resident.append(schema)
        if len(resident) == kept:
            break
    texts = [json.dumps(schema) for schema in resident]
    for text in texts:
        held.compile_json_schema(text)  # the first time in this spelling
    order = np.random.default_rng(0).permutation(len(resident))
    dicts = [copy.deepcopy(resident[i]) for i in order]  # equal to what was asked for, and not the same
    again = [texts[i][:1] + texts[i][1:] for i in order]
    by_dict = [microseconds(partial(held.compile_json_schema, schema)) for schema in dicts]
    by_text = [microseconds(partial(held.compile_json_schema, text)) for text in again]
    stats = held.stats
    fresh = mw.Cache(vocab)
    new = resident[:10]
    ready = threading.Barrier(ROWS)

    def ask() -> None:
        ready.wait()
        for schema in new:
            fresh.compile_json_schema(schema)

    threads = [threading.Thread(target=ask) for _ in range(ROWS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {
        "resident": len(resident), "bytes": stats.bytes, "schema_bytes": percentiles([len(text) for text in texts]),
        "hit_by_dict_us": percentiles(by_dict), "hit_by_text_us": percentiles(by_text),
        "compile_us": percentiles(compiling), "compilations": fresh.stats.compilations, "threads": ROWS,
    }  # fmt: skip
