"""The engines: how each is made for a tokenizer, and how it starts a sequence."""

from __future__ import annotations

import collections
import functools
import importlib.metadata
from collections.abc import Iterable
from typing import Any, ClassVar, Protocol

from .sessions import Session, no_fault
from .tokenizers import Tokenizer


class Engine(Protocol):
    """What every engine here does; `compile`, which suites add, raises an exception where it refuses."""

    package: ClassVar[str]

    def __init__(self, tokenizer: Tokenizer) -> None: ...

    def compile(self, what: Any) -> Any: ...

    def session(self, compiled: Any) -> Session: ...


class Maskwright:
    """maskwright: `Matcher` over what its compilers give."""

    package: ClassVar[str] = "maskwright"

    def __init__(self, tokenizer: Tokenizer) -> None:
        import maskwright

        self.mw: Any = maskwright
        self.vocab = self.mw.Vocabulary.from_bytes(tokenizer.tokens, eos=tokenizer.eos, special=tokenizer.special)

    def session(self, compiled: Any) -> Session:
        matcher = self.mw.Matcher(compiled)
        return Session(matcher.mask, matcher.advance, matcher.mask, no_fault)


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

    def at_start(self, grammar: Any) -> Any:
        """Return a matcher at the start of a grammar, which sessions copy. Raises ValueError where it is refused."""
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

    def session(self, compiled: Any) -> Session:
        matcher = self.lib.GrammarMatcher(compiled)
        mask = functools.partial(matcher.fill_next_token_bitmask, self.bits)
        return Session(mask, matcher.accept_token, lambda: self.bits.numpy().view("uint32")[0], no_fault)


PACKAGES = {each.package.replace("_", "-"): each.package for each in (Maskwright, Outlines, Llguidance, Xgrammar)}
"""The package of each engine, by the name that engine has in records."""


def versions(names: Iterable[str]) -> dict[str, str]:
    """Return the version of each engine; "NAME, so and so" is an engine's NAME used in another way."""
    return {name: importlib.metadata.version(PACKAGES[name.split(",")[0]]) for name in names}
