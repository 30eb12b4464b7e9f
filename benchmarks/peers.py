"""Engines that constrain decoding by a regular expression, driven alike: maskwright and its peers.

An engine is made once for a tokenizer. `compile` takes a pattern; `session` starts one sequence over what it gave. A
session's `mask` computes which tokens may come next, `commit` takes one. All are the engine's own calls with nothing
around them, so that they can be timed, and every engine works on one thread.

    python peers.py ENGINE [--memory GB]

is a worker that checks an engine: it reads names of patterns, one a line, and answers each with two lines of JSON,
{"compiled": seconds to the first mask} or {"refused": why}, then {"wrong_accepts": [...], "wrong_rejects": [...], ...}.
Native code cannot be interrupted, so a worker that takes too long is killed by whoever asks.
"""

from __future__ import annotations

import argparse
import collections
import functools
import importlib.metadata
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from patterns import PATTERNS, Pattern, mutations

# compiled first, so that a process is warm
SMALL = Pattern("small", "warm-up", "yes, twice|no, never", (), (), choices=("yes, twice", "no, never"))


@dataclass(frozen=True)
class Tokenizer:
    """A vocabulary's bytes by token, empty for special tokens, and how a text is cut into tokens."""

    tokens: list[bytes]
    special: list[int]
    eos: int
    encode: Callable[[str], list[int]]

    @functools.cached_property
    def bytes_alone(self) -> dict[int, int]:
        """The token of each single byte."""
        return {token[0]: i for i, token in enumerate(self.tokens) if len(token) == 1}

    def spell(self, text: str) -> list[int]:
        """Return a text's bytes as one token each."""
        return [self.bytes_alone[byte] for byte in text.encode()]


def tekken() -> Tokenizer:
    """Return Tekken, 131,072 tokens, from the file that comes with mistral-common."""
    import mistral_common
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    tekkenizer = Tekkenizer.from_file(Path(mistral_common.__file__).parent / "data" / "tekken_240911.json")
    special = range(tekkenizer.num_special_tokens)
    tokens = [b"" if i in special else tekkenizer.id_to_byte_piece(i) for i in range(tekkenizer.n_words)]
    return Tokenizer(
        tokens, list(special), tekkenizer.eos_id, lambda text: tekkenizer.encode(text, bos=False, eos=False)
    )


class Session(NamedTuple):
    """One sequence being written."""

    mask: Callable[[], Any]  # compute which tokens may come next
    commit: Callable[[int], Any]  # take a token; False or ValueError where the engine refuses it
    bits: Callable[[], Any]  # the mask that was computed: uint32 (ceil(V / 32),), bit i of word w for token 32 w + i
    fault: Callable[[], str]  # why the engine gave up on the sequence, or nothing


class Engine(Protocol):
    """What every engine here does; `compile` raises an exception where the engine refuses a pattern."""

    package: ClassVar[str]

    def __init__(self, tokenizer: Tokenizer) -> None: ...

    def compile(self, pattern: Pattern) -> Any: ...

    def session(self, compiled: Any) -> Session: ...


def no_fault() -> str:
    """Return nothing: the engine reports every failure where it happens."""
    return ""


# -------------------------------------------------------------------------------------------------- engines


class Maskwright:
    """`compile_regex` and `Matcher`."""

    package: ClassVar[str] = "maskwright"

    def __init__(self, tokenizer: Tokenizer) -> None:
        import maskwright

        self.mw: Any = maskwright
        self.vocab = self.mw.Vocabulary.from_bytes(tokenizer.tokens, eos=tokenizer.eos, special=tokenizer.special)

    def compile(self, pattern: Pattern) -> Any:
        return self.mw.compile_regex(pattern.pattern, self.vocab)

    def session(self, compiled: Any) -> Session:
        matcher = self.mw.Matcher(compiled)
        return Session(matcher.mask, matcher.advance, matcher.mask, no_fault)


class MaskwrightChoices(Maskwright):
    """`compile_choices`, for the patterns that are lists."""

    def compile(self, pattern: Pattern) -> Any:
        return self.mw.compile_choices(list(pattern.choices), self.vocab)


class Outlines:
    """outlines-core: an index of all states and tokens, made when compiling."""

    package: ClassVar[str] = "outlines_core"

    def __init__(self, tokenizer: Tokenizer) -> None:
        import numpy as np
        import outlines_core

        ids = collections.defaultdict(list)
        for i, token in enumerate(tokenizer.tokens):
            if token:
                ids[token].append(i)
        self.lib: Any = outlines_core
        self.vocab = self.lib.Vocabulary(tokenizer.eos, dict(ids))
        self.bits = np.zeros((len(tokenizer.tokens) + 31) // 32, np.uint32)

    def compile(self, pattern: Pattern) -> Any:
        return self.lib.Index(pattern.pattern, self.vocab)

    def session(self, compiled: Any) -> Session:
        guide = self.lib.Guide(compiled)
        mask = functools.partial(guide.write_mask_into, self.bits.ctypes.data, self.bits.size, 4)
        return Session(mask, functools.partial(guide.advance, return_tokens=False), lambda: self.bits, no_fault)


class Llguidance:
    """llguidance: derivatives of the expression, taken as they are needed."""

    package: ClassVar[str] = "llguidance"

    def __init__(self, tokenizer: Tokenizer) -> None:
        import llguidance
        import llguidance.numpy
        import numpy as np

        class Wrapped:
            """What llguidance asks of a tokenizer."""

            eos_token_id, bos_token_id, special_token_ids = tokenizer.eos, None, tokenizer.special
            # special tokens need bytes too; 0xff is in no text
            tokens: ClassVar[list[bytes]] = [token or b"\xff<%d>" % i for i, token in enumerate(tokenizer.tokens)]

            def __call__(self, text: str | bytes) -> list[int]:
                return tokenizer.encode(text if isinstance(text, str) else text.decode("utf-8", "replace"))

        self.lib: Any = llguidance
        self.tokenizer = self.lib.LLTokenizer(self.lib.TokenizerWrapper(Wrapped()))
        self.fill: Any = llguidance.numpy.fill_next_token_bitmask
        self.bits = np.zeros((1, (len(tokenizer.tokens) + 31) // 32), np.int32)

    def compile(self, pattern: Pattern) -> Any:
        grammar = self.lib.LLMatcher.grammar_from_regex(pattern.pattern)
        matcher = self.lib.LLMatcher(self.tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def session(self, compiled: Any) -> Session:
        matcher = compiled.deep_copy()
        mask = functools.partial(self.fill, matcher, self.bits, 0)
        return Session(mask, matcher.consume_token, lambda: self.bits.view("uint32")[0], matcher.get_error)


class Xgrammar:
    """xgrammar: a pushdown automaton, with masks prepared when compiling."""

    package: ClassVar[str] = "xgrammar"

    def __init__(self, tokenizer: Tokenizer) -> None:
        import xgrammar

        self.lib: Any = xgrammar
        tokens = [token or b"<special_%d>" % i for i, token in enumerate(tokenizer.tokens)]
        info = self.lib.TokenizerInfo(
            tokens, vocab_type=self.lib.VocabType.RAW, vocab_size=len(tokens), stop_token_ids=[tokenizer.eos]
        )
        self.compiler = self.lib.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.bits = self.lib.allocate_token_bitmask(1, len(tokens))

    def compile(self, pattern: Pattern) -> Any:
        return self.compiler.compile_regex(pattern.pattern)

    def session(self, compiled: Any) -> Session:
        matcher = self.lib.GrammarMatcher(compiled)
        mask = functools.partial(matcher.fill_next_token_bitmask, self.bits)
        return Session(mask, matcher.accept_token, lambda: self.bits.numpy().view("uint32")[0], no_fault)


ENGINES: dict[str, type[Engine]] = {
    "maskwright": Maskwright,
    "maskwright, choices": MaskwrightChoices,
    "outlines-core": Outlines,
    "llguidance": Llguidance,
    "xgrammar": Xgrammar,
}
PEERS = ("outlines-core", "llguidance", "xgrammar")


def engines() -> list[str]:
    """Return the engines that can be run here: maskwright once it has the functions that are driven."""
    import maskwright

    present = all(hasattr(maskwright, name) for name in ("Vocabulary", "compile_regex", "compile_choices", "Matcher"))
    return [name for name in ENGINES if present or name in PEERS]


def takes(engine: str, pattern: Pattern) -> bool:
    """Return whether a pattern is of the kind an engine is for."""
    return bool(pattern.choices) or engine != "maskwright, choices"


def versions(names: Iterable[str] | None = None) -> dict[str, str]:
    """Return the version of each engine, of all that can be run here if none are named."""
    return {name: importlib.metadata.version(ENGINES[name].package) for name in names or engines()}


def first_mask(engine: Engine, pattern: Pattern) -> tuple[Any, float]:
    """Return a compiled pattern and the seconds from the pattern to the first mask."""
    begin = time.perf_counter()
    compiled = engine.compile(pattern)
    engine.session(compiled).mask()
    return compiled, time.perf_counter() - begin


# ------------------------------------------------------------------------------------------------ exactness


class FaultError(Exception):
    """An engine gave up on a sequence, or refused a token that its own mask allows."""


def allows(bits: Any, token: int) -> bool:
    """Return whether a mask allows a token."""
    return bool(int(bits[token >> 5]) >> (token & 31) & 1)


def accepts(session: Session, tokens: Sequence[int], eos: int) -> tuple[bool, bool]:
    """Return whether a new session takes all tokens and then EOS, and whether some mask forbade a token it then took.

    Where one text must follow, an engine may allow only the tokens that its tokenizer would cut it into. The text can
    still be written then, so it counts as accepted; that not every way to write it is allowed is the second answer.
    """
    narrow = False
    for token in tokens:
        session.mask()
        if fault := session.fault():
            raise FaultError(fault)
        allowed = allows(session.bits(), token)
        try:
            taken = session.commit(token) is not False
        except ValueError:
            taken = False
        if allowed and not taken:
            raise FaultError(f"refuses token {token}, which its mask allows")
        if not taken:
            return False, narrow
        narrow |= not allowed
    session.mask()
    if fault := session.fault():
        raise FaultError(fault)
    return allows(session.bits(), eos), narrow


def verdicts(engine: Engine, compiled: Any, pattern: Pattern, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the texts that an engine wrongly accepts and rejects, in the tokenizer's tokens or byte by byte.

    The texts are the pattern's own and mutations of those it matches. `narrow` counts the accepted ones that a mask
    forbade on the way, `faults` are failures.
    """
    matches = pattern.truth()
    found: dict[str, Any] = {"texts": 0, "narrow": 0, "wrong_accepts": [], "wrong_rejects": [], "faults": []}
    for text in (*pattern.positive, *pattern.negative, *mutations(pattern)):
        expected = matches(text)
        for way, tokens in (("tokens", tokenizer.encode(text)), ("bytes", tokenizer.spell(text))):
            found["texts"] += 1
            shown = {"text": text if len(text) <= 200 else text[:100] + " ... " + text[-20:], "by": way}
            try:
                accepted, narrow = accepts(engine.session(compiled), tokens, tokenizer.eos)
            except FaultError as error:
                found["faults"].append({**shown, "error": str(error)[:300]})
                continue
            found["narrow"] += accepted and narrow
            if accepted != expected:
                found["wrong_accepts" if accepted else "wrong_rejects"].append(shown)
    return found


def answers(engine: Engine, tokenizer: Tokenizer, names: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Yield what the worker says about each pattern named."""
    by_name = {pattern.name: pattern for pattern in PATTERNS}
    for name in names:
        pattern = by_name[name]
        try:
            compiled, seconds = first_mask(engine, pattern)
        except Exception as error:  # each engine has errors of its own; all mean that it refused
            yield {"refused": f"{type(error).__name__}: {error}"}
            continue
        yield {"compiled": seconds}
        yield verdicts(engine, compiled, pattern, tokenizer)
        del compiled


def main() -> None:
    """Answer on standard output until standard input ends."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("--memory", type=float, default=8.0, help="most memory to take, in GB")
    arguments = parser.parse_args()
    most = int(arguments.memory * 1e9)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what native code prints must not come between the answers
    tokenizer = tekken()
    engine = ENGINES[arguments.engine](tokenizer)
    first_mask(engine, SMALL)
    print(json.dumps({"ready": True}), file=answer, flush=True)
    for line in answers(engine, tokenizer, (line.rstrip("\n") for line in sys.stdin)):
        print(json.dumps(line), file=answer, flush=True)


if __name__ == "__main__":
    main()
