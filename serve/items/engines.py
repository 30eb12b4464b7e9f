"""Models that a running vLLM or SGLang serves: each search is asked for over HTTP.

vLLM is asked for the log-probabilities of the tokens that each beam may go on with, so all that a request says is kept
to here. SGLang searches by itself, in a catalogue of the same name: it is told which items to leave out.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ...compile.catalogue import Catalogue
from ...engines.catalogues import CATALOGUE, DENY, FILTER
from ...engines.vllm.beam_search import beam_search
from ...engines.vllm.scores import ServerError, server_scores
from ...errors import DataError
from ...runtime.integrations.item_search import Found, Placed, Query, Table
from ...table.snapshot import LiveFilter, Snapshot
from ..refusals import Refused

MOST_DENIED = 4096
"""The most items that one request tells an engine to leave out."""

_KINDS = {"vllm": "vLLM", "sglang": "SGLang"}
_SECONDS = 10.0  # in which an engine says what it serves, and encodes a text


class GivenUpError(Exception):
    """Nobody waits for the search any more."""


class EngineSearch:
    """Beam search for items with the model of an engine, one request at a time; any thread may call it.

    url: where the engine is. name: which of its models, None for the first. key: what it wants from its clients.
    Raises DataError if it does not answer, or is neither vLLM nor SGLang.
    """

    def __init__(self, url: str, name: str | None = None, key: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._headers = {"Content-Type": "application/json"}
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key}"
        try:
            served = self._ask("/v1/models", None, _SECONDS)["data"]
            own = next((each for each in served if each["id"] == name), served[0])
            self.served, self.kind, room = str(own["id"]), str(own["owned_by"]), own.get("max_model_len")
            self.context = None if room is None else int(room)
        except Refused as refused:
            raise DataError(str(refused)) from None
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{self.url}/v1/models lists no models as vLLM and SGLang do: {error!r}") from None
        if self.kind not in _KINDS:
            raise DataError(f"{self.url} is neither vLLM nor SGLang: its models are owned by {self.kind!r}")
        self.product = _KINDS[self.kind]

    def tokens_of(self) -> tuple[Callable[[str], list[int]], list[int]] | None:
        """Return what encodes a part of a text, and the tokens of "a" as a text; None if the engine encodes none."""

        def encode(text: str, whole: bool = False) -> tuple[int, ...]:
            body = {"model": self.served, "prompt": text, "add_special_tokens": whole}
            try:
                return tuple(int(token) for token in self._ask("/tokenize", body, _SECONDS)["tokens"])
            except (LookupError, TypeError, ValueError) as error:
                raise _no_answer(self.url, error) from None

        try:
            whole = list(encode("a", True))
        except Refused:
            return None
        kept = lru_cache(64)(encode)  # most requests have the server's own prompt
        return lambda text: list(kept(text)), whole

    def place(self, table: Table, before: Placed | None = None) -> Placed:
        """Return a catalogue's `table` in the host's memory: see `ItemSearch.place`."""
        return Placed.of(table, "cpu", before)

    def find(
        self, version: Catalogue, placed: Placed, query: Query, fields: Callable[[], dict[str, Any]], until: float,
        given_up: Callable[[], bool],
    ) -> tuple[Found, int]:  # fmt: skip
        """Return what a search finds, and how many items of the engine's answer are left out, as they changed.

        fields: what SGLang is told beside the prompt, see `sglang_fields`. until: the deadline, by `time.monotonic`.
        given_up: whether nobody waits for it, asked before each request. Raises GivenUpError, Refused.
        """

        def left() -> float:
            seconds = until - time.monotonic()
            if given_up() or seconds <= 0:
                raise GivenUpError
            return seconds + 1  # the service answers at the deadline itself

        if self.kind == "vllm":
            return self._by_scores(placed, query, left), 0
        told = fields()
        length, width = placed.steps, query.beams
        if width < 2:
            raise Refused("SGLang searches with 2 beams or more", param="beams")
        params = {"beam_width": width, "n": width, "max_new_tokens": length, "custom_params": told}
        answer = self._ask("/generate", {"input_ids": list(query.prompt), "sampling_params": params}, left())
        try:
            beams = (answer[0] if isinstance(answer, list) else answer)["meta_info"]["beam_results"]
            tokens = np.array([beam["output_ids"] for beam in beams], np.int64).reshape(len(beams), length)
            # SGLang divides by the length
            scores = np.array([beam["meta_info"]["sequence_score"] for beam in beams], np.float64) * length
        except (LookupError, TypeError, ValueError) as error:
            raise _no_answer(self.url, error) from None
        snapshot = version.table
        assert isinstance(snapshot, Snapshot), "a shop's catalogue lives"
        there = (snapshot if query.keep is None else query.keep).contains(tokens)
        return Found(snapshot.find(tokens[there]), scores[there]), int((~there).sum())

    def _by_scores(self, placed: Placed, query: Query, left: Callable[[], float]) -> Found:
        def scores(texts: list[list[int]], tokens: list[list[int]]) -> list[Sequence[float]]:
            return server_scores(self.url, self.served, headers=self._headers, timeout=left())(texts, tokens)

        try:
            beams = beam_search(scores, [query.prompt], placed.under([query.keep]), beams=query.beams)
        except ServerError as error:
            raise _refusal(self.url, error.status, str(error)) from None
        except ConnectionError as error:
            raise Refused(str(error), status=502, code="engine_unreachable") from None
        there = beams.valid[0].numpy()
        found = beams.states[0].numpy()[there], beams.scores[0].numpy()[there]
        return Found(found[0].astype(np.int64), found[1].astype(np.float64))

    def _ask(self, path: str, body: object, seconds: float) -> Any:
        """Return the engine's answer in JSON. Raises Refused."""
        given = None if body is None else json.dumps(body).encode()
        try:
            request = urllib.request.Request(self.url + path, given, self._headers)
            with urllib.request.urlopen(request, timeout=seconds) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            said = error.read(1000).decode(errors="replace")
            raise _refusal(self.url, error.code, f"{self.url}{path} answered {error.code}: {said}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _no_answer(self.url, error) from None


def sglang_fields(
    catalogue: str, version: Catalogue, keep: LiveFilter | None, names: Sequence[str] | None, deny: Sequence[Any]
) -> dict[str, Any]:
    """Return the fields by which SGLang's search keeps to a filter.

    keep: what passes. names: of the filters that it is made of, None if one is an expression. deny: denied ids.
    What does not pass is denied as far as it is short; else the names stand for it. Raises Refused where neither does.
    """
    if keep is None:
        return {CATALOGUE: catalogue}
    assert keep.items is not None
    assert keep.snapshot.items is not None
    out = np.flatnonzero(keep.snapshot.items.live & ~keep.items)
    if len(out) <= MOST_DENIED:
        ids = list(dict.fromkeys(version.ids.at(out)))
        if sum(rows.size for rows in version.rows_of(ids)) == len(out):  # no row of theirs passes
            return {CATALOGUE: catalogue, DENY: ids}
    if names is None:
        raise Refused(
            f"the filter leaves out {len(out):,} items, and SGLang takes a list of {MOST_DENIED:,} items, each with "
            "all its semantic IDs, or names: the operator gives the filter one name in --filter and in the engine's "
            "options",
            param="filter", code="filter_without_name",
        )  # fmt: skip
    return {CATALOGUE: catalogue, FILTER: list(names), **({DENY: list(deny)} if deny else {})}


def _refusal(url: str, status: int, said: str) -> Refused:
    """Return our answer in the place of an engine's error."""
    said = said[:1000]
    if status in (400, 413, 422):
        return Refused(said, code="engine_refused")
    if status in (429, 503):
        return Refused(said, status=503, code="engine_overloaded")
    return Refused(said, status=502, code="engine_error")


def _no_answer(url: str, error: Exception) -> Refused:
    return Refused(f"the engine at {url} gave no answer: {error!r}"[:1000], status=502, code="engine_unreachable")
