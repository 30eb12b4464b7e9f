"""A server: whether every answer is complete and valid, and what constraints cost it."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
from rich.progress import track

import maskwright as mw
from maskwright.serve.loading import TINY, tiny

from . import load
from .times import Record, percentiles

CLIENTS, ANSWER = 32, 64  # tokens at most


def server(schemas: list[Any], wanted: int, each: int) -> Record:
    """Return how a server answers `each` requests for each of `wanted` schemas, and as many tokens without any."""
    vocab = tiny().vocabulary
    with load.served("--max-tokens", str(ANSWER)) as (port, process):

        def body(schema: Any, tokens: int, seed: int) -> Record:
            asked = {"model": TINY, "prompt": "Answer: ", "max_tokens": tokens, "seed": seed}
            return asked if schema is None else {**asked, "structured_outputs": {"json": schema}}

        client, taken, refused = load.Client(port), [], Counter[str]()
        for schema in schemas:
            if _odd(schema):
                continue
            status, said = client.post("/v1/completions", body(schema, ANSWER, 0))
            taken += [schema] if status == 200 else []
            if status != 200:
                refused[str(said["error"]["code"])] += 1
            if len(taken) == wanted:
                break
        order = np.random.default_rng(0).permutation(len(taken) * each).tolist()
        rss = _resident(process)
        before = load.steps(port)
        bodies = ((i, body(taken[i % len(taken)], ANSWER, i)) for i in order)
        replies, seconds = load.asked(port, CLIENTS, bodies)
        between = load.steps(port)
        tokens = [reply.body["usage"]["completion_tokens"] for reply in replies if reply.status == 200]
        written = 0

        def enough(reply: load.Reply) -> bool:
            nonlocal written
            written += reply.body["usage"]["completion_tokens"]
            return bool(written >= sum(tokens))

        def free() -> Iterator[tuple[int, Record]]:
            for i in itertools.count():
                yield i, body(None, max(1, tokens[i % len(tokens)]), i)

        plain, plain_seconds = load.asked(port, CLIENTS, free(), enough)
        after = load.steps(port)
        grown = _resident(process) - rss
    invalid = _invalid(replies, taken, vocab)

    def part(replies: list[load.Reply], seconds: float, tokens: int, steps: tuple[int, float]) -> Record:
        return {
            "requests": len(replies), "seconds": seconds, "requests_per_s": len(replies) / seconds,
            "tokens": tokens, "tokens_per_s": tokens / seconds, "steps": steps[0],
            "step_us": 1e6 * steps[1] / max(1, steps[0]),
            "latency_ms": percentiles([1e3 * reply.seconds for reply in replies]),
        }  # fmt: skip

    return {
        "schemas": len(taken), "refused": dict(refused.most_common()), "clients": CLIENTS, "max_tokens": ANSWER,
        "failed": sum(reply.status != 200 for reply in replies),
        "invalid": len(invalid), "examples": invalid[:5],
        "incomplete": sum(
            reply.status == 200 and reply.body["choices"][0]["finish_reason"] != "stop" for reply in replies
        ),
        "grown_bytes": grown,
        "constrained": part(replies, seconds, sum(tokens), (between[0] - before[0], between[1] - before[1])),
        "unconstrained": part(plain, plain_seconds, written, (after[0] - between[0], after[1] - between[1])),
    }  # fmt: skip


def _odd(schema: Any) -> bool:
    """Return whether a schema refers to what jsonschema would have to fetch."""
    text = json.dumps(schema)
    return '"$ref": "http' in text or '"$dynamicRef"' in text


def _invalid(replies: list[load.Reply], schemas: list[Any], vocab: mw.Vocabulary) -> list[Record]:
    """Return answers that are not of their schema by the table compiled here, or by jsonschema."""
    checks = [
        (mw.compile_json_schema(schema, vocab), jsonschema.validators.validator_for(schema)(schema))
        for schema in schemas
    ]
    wrong = []
    for reply in track(replies, "checking", transient=True):
        if reply.status != 200:
            continue
        text = reply.body["choices"][0]["text"]
        table, validator = checks[reply.which % len(schemas)]
        matcher = mw.Matcher(table)
        said = []
        if not (all(matcher.advance(token) for token in vocab.encode(text)) and matcher.is_accepting):
            said.append("table")
        try:
            value = json.loads(text)
            said += [str(error.message)[:200] for error in itertools.islice(validator.iter_errors(value), 1)]
        except ValueError as error:
            said.append(str(error))
        if said:
            wrong.append({"schema": schemas[reply.which % len(schemas)], "text": text[:300], "said": said})
    return wrong


def _resident(process: int) -> int:
    """Return the resident bytes of a process."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"process {process} has gone")
