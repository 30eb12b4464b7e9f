"""Run in the environment of the engines: mask rows in vLLM's classes, and batches of them in XGrammar's.

    python rows.py CASES OUT

CASES: a JSON list of [schema, text of an instance]. Each class writes the same texts, in turn.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
import types
from pathlib import Path
from typing import Any

import numpy as np

ROUNDS, ROWS, THREADS = 3, 256, 2
Cases = list[tuple[str, list[int]]]


def tokenizer() -> Any:
    """Return Tekken as a tokenizer of transformers."""
    import mistral_common
    from transformers.integrations import mistral

    convert: Any = mistral.convert_tekken_tokenizer  # type: ignore[attr-defined]  # which it does not export
    return convert(str(Path(mistral_common.__file__).parent / "data" / "tekken_240911.json"))


def backends(tok: Any) -> dict[str, Any]:
    """Return vLLM's backends of structured outputs by name, ours among them."""
    from vllm.v1.structured_output.backend_guidance import GuidanceBackend
    from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend

    from maskwright.engines.constraints import EngineConstraints
    from maskwright.engines.options import EngineOptions
    from maskwright.engines.vllm.backend import MaskwrightBackend
    from maskwright.vocabulary.vocabulary import Vocabulary

    space = types.SimpleNamespace
    text = space(model_type="llama")
    config = space(
        structured_outputs_config=space(disable_any_whitespace=False, disable_additional_properties=False),
        speculative_config=None,
        model_config=space(
            hf_config=text, hf_text_config=text, tokenizer="tekken", tokenizer_mode="auto", model="tekken",
            architectures=["LlamaForCausalLM"],
        ),
    )  # fmt: skip
    size = len(tok)
    constraints = EngineConstraints(Vocabulary.from_transformers(tok, size=size), EngineOptions())
    given = {"vllm_config": config, "tokenizer": tok, "vocab_size": size}
    return {
        "maskwright": MaskwrightBackend(config, tok, size, constraints),
        "guidance": GuidanceBackend(**given),
        "xgrammar": XgrammarBackend(**given),
    }


def compiled(backend: Any, schema: str, eos: int) -> Any:
    """Return the grammar of a schema in vLLM's classes, None where it is refused."""
    from vllm.v1.structured_output.backend_types import StructuredOutputOptions

    try:
        return backend.compile_grammar(StructuredOutputOptions.JSON, schema, stop_token_ids={eos})
    except Exception:
        return None


def written(grammar: Any, tokens: list[int]) -> bool:
    """Return whether a grammar takes a whole text."""
    return grammar is not None and all(grammar.accept_tokens("r", [token]) for token in tokens)


def rows(cases: Cases, eos: int, known: dict[str, Any]) -> dict[str, Any]:
    """Return the processor microseconds of a fill and of an accept, of the first round and of later ones.

    A class writes all texts, a token of each in turn as in a batch, before the next class does.
    """
    taken: dict[str, dict[str, list[float]]] = {name: {"first": [], "later": [], "accept": []} for name in known}
    for round_ in range(ROUNDS):
        for name, backend in known.items():
            mask = backend.allocate_token_bitmask(len(cases))
            grammars = [compiled(backend, schema, eos) for schema, _ in cases]
            for step in range(max(len(tokens) for _, tokens in cases)):
                for row, (_, tokens) in enumerate(cases):
                    if step >= len(tokens):
                        continue
                    begin = time.thread_time_ns()
                    grammars[row].fill_bitmask(mask, row)
                    filled = time.thread_time_ns()
                    accepted = grammars[row].accept_tokens("r", [tokens[step]])
                    ended = time.thread_time_ns()
                    assert accepted
                    assert int(mask[row, tokens[step] >> 5]) >> (tokens[step] & 31) & 1
                    taken[name]["later" if round_ else "first"].append((filled - begin) / 1e3)
                    taken[name]["accept"].append((ended - filled) / 1e3)
    return {
        name: {
            kind: {"mean": float(np.mean(us)), "p50": float(np.median(us)), "p99": float(np.percentile(us, 99))}
            for kind, us in each.items()
        }
        for name, each in taken.items()
    }


def batch(cases: Cases, tok: Any) -> dict[str, Any]:
    """Return the milliseconds in which 256 rows are filled on two threads: by the clock, and of the processor."""
    import xgrammar

    from maskwright.engines import xgrammar as ours

    size = len(tok)
    made: dict[str, tuple[list[Any], Any, Any]] = {}
    for name, module in (("maskwright", ours), ("xgrammar", xgrammar)):
        info = module.TokenizerInfo.from_huggingface(tok, vocab_size=size, stop_token_ids=[tok.eos_token_id])
        compiler = module.GrammarCompiler(info)
        grammars = [compiler.compile_json_schema(schema) for schema, _ in cases]
        matchers = [module.GrammarMatcher(grammars[i % len(cases)]) for i in range(ROWS)]
        bitmask = module.allocate_token_bitmask(ROWS, size)
        made[name] = matchers, module.BatchGrammarMatcher(max_threads=THREADS), bitmask
    clock: dict[str, list[float]] = {name: [] for name in made}
    processor: dict[str, list[float]] = {name: [] for name in made}
    shortest = min(len(tokens) for _, tokens in cases)
    for round_ in range(2):
        for name, (matchers, together, bitmask) in made.items():
            for step in range(shortest):
                begin = time.perf_counter(), time.process_time()
                together.batch_fill_next_token_bitmask(matchers, bitmask)
                ended = time.perf_counter(), time.process_time()
                if round_:  # the first finds what is read for the first time
                    clock[name].append(1e3 * (ended[0] - begin[0]))
                    processor[name].append(1e3 * (ended[1] - begin[1]))
                for i, matcher in enumerate(matchers):
                    assert matcher.accept_token(cases[i % len(cases)][1][step])
            for matcher in matchers:
                matcher.reset()
    return {
        name: {
            "clock_ms": {"mean": float(np.mean(clock[name])), "p50": float(np.median(clock[name]))},
            "processor_ms": {"mean": float(np.mean(processor[name])), "p50": float(np.median(processor[name]))},
        }
        for name in made
    }


if __name__ == "__main__":
    import vllm

    tok = tokenizer()
    eos = tok.eos_token_id
    known = backends(tok)
    cases: Cases = []
    refused = dict.fromkeys(known, 0)
    for schema, text in json.loads(Path(sys.argv[1]).read_text()):
        tokens = [*tok.encode(text, add_special_tokens=False), eos]
        takes = {name: written(compiled(backend, schema, eos), tokens) for name, backend in known.items()}
        for name, taken in takes.items():
            refused[name] += not taken
        if all(takes.values()):
            cases.append((schema, tokens))
    versions = {name: importlib.metadata.version(name) for name in ("sglang", "xgrammar", "llguidance")}
    told = {
        "cases": len(cases), "tokens": sum(len(tokens) for _, tokens in cases), "refused": refused,
        "rows": rows(cases, eos, known), "batch": batch(cases, tok),
        "versions": {"vllm": vllm.__version__, **versions},
    }  # fmt: skip
    Path(sys.argv[2]).write_text(json.dumps(told))
