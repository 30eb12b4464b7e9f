r"""The classes of llguidance's Python package, with maskwright underneath, for loops that are written for that package.

Patterns, schemas and grammars mean what maskwright's own compilers say: `\d`, `\w` and `\s` of patterns are ASCII,
and oneOf is exact. What is not offered is refused by its name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..compile.json_schema.source import check_text_depth, text_of
from ..depth import enough_stack
from ..errors import ConstraintError, MaskwrightError, MissingDependencyError
from ..runtime.host.bitmask_rows import fill_bitmasks, words_of_rows, write_row
from ..runtime.host.matcher import Matcher
from ..vocabulary.vocabulary import Vocabulary
from .constraints import EngineConstraints, Kind
from .options import EngineOptions
from .refusing import Refusing

StopReason = Literal["NotStopped", "NoExtension", "EndOfSentence", "InternalError"]

_SOURCES: dict[str, Kind] = {
    "json_schema": "json", "lark_grammar": "grammar", "regex": "regex", "choice": "choice", "ebnf": "grammar",
    "gbnf": "gbnf",
}  # fmt: skip
"""What one of the grammars in a grammar's text may be."""

_JSON_DEFAULTS: dict[str, Any] = {
    "whitespace_flexible": True, "whitespace_pattern": None, "item_separator": ",", "key_separator": ":",
    "coerce_one_of": False, "lenient": False,
}  # fmt: skip
_LOGIT_BIAS = 200  # of what is allowed

_NOT_OFFERED = {
    "get_capture": "nothing is captured: read the text that was written",
    "get_captures": "nothing is captured: read the text that was written",
    "unsafe_compute_mask_ptr": "masks are not written to addresses: use fill_next_token_bitmask",
    "with_slices": "masks need no slices: leave them out",
    "greedy_tokenize": "use tokenize_str, which writes as the tokenizer does",
    "tokenize_partial": "use compute_ff_tokens of a matcher, which keeps tokens that may still grow",
}


class _Refusing(Refusing):
    _package, _not_offered = "llguidance", _NOT_OFFERED


# ---------------------------------------------------------------------------------------------------- tokenizers


class TokenizerWrapper:
    """A tokenizer of one's own: the bytes of each id in `tokens`, ids of control tokens, and a call that encodes."""

    def __init__(self, gtokenizer: Any) -> None:
        self.tokens: Sequence[bytes] = gtokenizer.tokens
        self.eos_token_id: int = gtokenizer.eos_token_id
        self.bos_token_id: int | None = gtokenizer.bos_token_id
        self.special_token_ids: Sequence[int] = getattr(gtokenizer, "special_token_ids", [])
        self._encode = gtokenizer

    def __call__(self, text: str) -> Sequence[int]:
        """Return the ids of a text; the tokenizer is given bytes where it takes them."""
        try:
            found: Sequence[int] = self._encode(text.encode())
        except (TypeError, AttributeError):
            found = self._encode(text)
        return found


class LLTokenizer(_Refusing):
    """A tokenizer's vocabulary, and what was compiled for it.

    tokenizer: a `TokenizerWrapper`, the path of a tokenizer's file or folder, or the text of a tokenizer.json; nothing
    is downloaded. n_vocab: the width of logits. eos_token: the token that ends a text, or all that do. slices: taken,
    and not needed.

    Raises ConstraintError for a tokenizer whose tokens have no exact bytes, for no token that ends a text,
    and for a name without a file.
    """

    def __init__(
        self,
        tokenizer: str | TokenizerWrapper,
        n_vocab: int | None = None,
        eos_token: int | Sequence[int] | None = None,
        slices: Sequence[str] | None = None,
    ) -> None:
        self._take(_vocabulary_of(tokenizer, n_vocab, eos_token))

    @classmethod
    def from_vocabulary(cls, vocabulary: Vocabulary) -> LLTokenizer:
        """Return that of a `Vocabulary`, whatever tokenizer it was read from."""
        made = cls.__new__(cls)
        made._take(vocabulary)
        return made

    def _take(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.flexible = EngineConstraints(vocabulary, EngineOptions(whitespace="flexible"))
        self.compact = EngineConstraints(vocabulary, EngineOptions().compact())

    @property
    def vocab_size(self) -> int:
        """V: tokens are 0 .. V - 1."""
        return self.vocabulary.size

    @property
    def eos_token(self) -> int:
        """The first token that ends a text."""
        assert self.vocabulary.eos is not None
        return self.vocabulary.eos

    @property
    def eos_tokens(self) -> list[int]:
        """All tokens that end a text."""
        return list(self.vocabulary.ends)

    @property
    def is_canonical(self) -> bool:
        """Whether texts are encoded by the tokenizer itself."""
        return self.vocabulary.encoder is not None

    def tokenize_str(self, text: str) -> list[int]:
        """Return ids that spell a text as the tokenizer writes it inside a longer one."""
        return self.vocabulary.encode(text)

    def tokenize_bytes(self, utf8bytes: bytes) -> list[int]:
        """Return ids that spell bytes, as `tokenize_str` does."""
        return self.vocabulary.encode(utf8bytes)

    def decode_bytes(self, tokens: Iterable[int]) -> bytes:
        """Return what tokens spell; control tokens spell nothing."""
        return self.vocabulary.decode(tokens)

    def decode_str(self, tokens: Iterable[int]) -> str:
        """Return what tokens spell, with U+FFFD for what is no UTF-8."""
        return self.decode_bytes(tokens).decode(errors="replace")

    def is_special_token(self, token: int) -> bool:
        """Return whether a token is a control token."""
        return token in self.vocabulary.special


def from_tokenizer(
    hf_tokenizer: Any,
    n_vocab: int | None = None,
    eos_token: int | Sequence[int] | None = None,
    slices: Sequence[str] | None = None,
) -> LLTokenizer:
    """Return the tokenizer of a transformers one, as `llguidance.hf.from_tokenizer`. Raises as `LLTokenizer` does."""
    return LLTokenizer.from_vocabulary(Vocabulary.from_transformers(hf_tokenizer, size=n_vocab, eos=eos_token))


def _vocabulary_of(tokenizer: Any, size: int | None, eos: int | Sequence[int] | None) -> Vocabulary:
    if not isinstance(tokenizer, str):
        marked = {i for i, token in enumerate(tokenizer.tokens) if token[:1] == b"\xff"}  # as llguidance marks them
        special = sorted(marked | set(tokenizer.special_token_ids))
        names = {i: tokenizer.tokens[i].lstrip(b"\xff").decode(errors="replace") for i in special}
        unique = len(set(names.values())) == len(names)
        return Vocabulary.from_bytes(
            tokenizer.tokens,
            eos=tokenizer.eos_token_id if eos is None else eos,
            special={name: i for i, name in names.items()} if unique else special,
            size=size,
            encode=tokenizer,
        )
    if tokenizer.lstrip().startswith("{"):
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise MissingDependencyError(
                "the text of a tokenizer.json is read with tokenizers: pip install tokenizers"
            ) from None
        return Vocabulary.from_transformers(Tokenizer.from_str(tokenizer), size=size, eos=eos)
    if not os.path.exists(tokenizer):
        raise ConstraintError(
            f"there is no file {tokenizer!r}, and nothing is downloaded: download it, or use from_tokenizer",
            argument="tokenizer",
        )
    return Vocabulary.from_file(tokenizer, size=size, eos=eos)


# ------------------------------------------------------------------------------------------------------ grammars


class _Asked(NamedTuple):
    """One constraint, as a grammar's text names it."""

    kind: Kind
    source: str
    compact: bool  # no whitespace in JSON


def grammar_from(format: str, text: str) -> str:
    """Return the text by which `LLMatcher` knows a constraint, in the formats of `llguidance.grammar_from`.

    Formats are "json_schema" and "json", "regex", "choice" (a JSON list of texts), "lark", "gbnf", "ebnf", "cfg" and
    "grammar" (Lark's notation or EBNF, as the text looks), and "llguidance" for a text that is one already. What a
    text says is checked once a matcher takes it. Raises ValueError for other formats.
    """
    if format in ("json_schema", "json"):
        return LLMatcher.grammar_from_json_schema(text)
    if format == "llguidance":
        return text
    if format == "lark":
        return LLMatcher.grammar_from_lark(text)
    names = {"regex": "regex", "choice": "choice", "gbnf": "gbnf", "ebnf": "ebnf", "cfg": "ebnf", "grammar": "ebnf"}
    if format not in names:
        raise ValueError(f"Unknown grammar type: {format}")
    return _one(names[format], text if isinstance(text, str) else text_of(text))


def _one(name: str, source: str, **options: Any) -> str:
    return json.dumps({"grammars": [{name: source, **options}]})


def _asked(grammar: str) -> _Asked:
    """Return the constraint of a grammar's text. Raises ConstraintError."""
    if not grammar.lstrip().startswith("{"):
        return _Asked("grammar", grammar, False)
    check_text_depth(grammar)
    try:
        found = json.loads(grammar, parse_float=_exact)
    except ValueError as error:
        raise ConstraintError(f"the grammar begins like JSON and is none: {error}") from None
    given = found.get("grammars") if set(found) <= {"grammars", "max_tokens"} else None
    if not isinstance(given, list) or len(given) != 1 or not isinstance(given[0], dict):
        raise ConstraintError('a grammar in JSON is {"grammars": [..]} with one grammar and no other fields')
    if found.get("max_tokens") is not None:
        raise ConstraintError("max_tokens of a grammar is not kept: limit the tokens of the request")
    entry = {key: value for key, value in given[0].items() if value is not None}
    given_options = entry.pop("x-guidance", None)
    entry.pop("name", None)
    if len(entry) != 1 or not entry.keys() <= _SOURCES.keys():
        raise ConstraintError(f"a grammar has one of {', '.join(_SOURCES)}, not {', '.join(entry) or 'nothing'}")
    ((name, source),) = entry.items()
    if given_options is not None and name != "json_schema":
        raise ConstraintError(f"x-guidance is for json_schema, and this grammar has {name}: leave it out")
    options = _options(given_options, "x-guidance")
    if name == "json_schema":
        options = {**_own_options(source), **options}
        source = source if isinstance(source, str) else json.dumps(source)
    if not isinstance(source, str):
        raise ConstraintError(f"{name} of a grammar is a text, not {json.dumps(source)[:40]}")
    if name == "regex":
        _check_sets(source)
    return _Asked(_SOURCES[name], source, name == "json_schema" and not _whitespace(options))


def _options(given: Any, name: str) -> dict[str, Any]:
    """Return options of JSON as an object, none for None. Raises ConstraintError for anything else."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConstraintError(f"{name} must be an object of options, not {str(given)[:40]}")
    return dict(given)


def _own_options(schema: Any) -> dict[str, Any]:
    """Return the options that a schema, or the text of one, has itself. Raises ConstraintError."""
    if isinstance(schema, str):
        check_text_depth(schema)
        try:
            schema = json.loads(schema)
        except ValueError:
            return {}  # the compiler says where it is malformed
    return _options(schema.get("x-guidance"), "x-guidance") if isinstance(schema, dict) else {}


def _exact(number: str) -> float:
    """Return a number of JSON that a float holds. Raises ConstraintError for another one, which would change."""
    value = float(number)
    if Decimal(repr(value)) != Decimal(number):
        raise ConstraintError(f"{number} is not exact as a float: make the grammar with grammar_from_json_schema")
    return value


def _whitespace(options: Mapping[str, Any]) -> bool:
    """Return whether JSON may have whitespace. Raises ConstraintError for options that are not kept."""
    for name, value in options.items():
        if name not in _JSON_DEFAULTS:
            raise ConstraintError(f"x-guidance has no option {name!r}: there are {', '.join(_JSON_DEFAULTS)}")
        if name != "whitespace_flexible" and value not in (None, _JSON_DEFAULTS[name]):
            raise ConstraintError(f'x-guidance: "{name}": {json.dumps(value)} is not supported: leave it out')
    flexible = options.get("whitespace_flexible")
    if not isinstance(flexible, bool | None):
        raise ConstraintError(f'x-guidance: "whitespace_flexible" must be true or false, not {str(flexible)[:40]}')
    return flexible is not False


def _check_sets(pattern: str) -> None:
    """Raise ConstraintError for sets inside sets, which Rust's patterns have and Python's read as characters."""
    at, inside = 0, False
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 1
        elif not inside and char == "[":
            inside = True
            at += pattern.startswith("^", at + 1)
            at += pattern.startswith("]", at + 1)  # here a character
        elif inside and char == "]":
            inside = False
        elif inside and (char == "[" or pattern[at : at + 2] in ("&&", "~~", "--")):
            raise ConstraintError(
                f"position {at}: {pattern[at : at + 2]!r} in a set is Rust's, for sets of sets, and not supported: "
                "write the characters one by one, and \\ before one that is meant"
            )
        at += 1


@lru_cache(maxsize=1)
def _bytes_alone() -> LLTokenizer:
    """Return a tokenizer of all bytes, for checks that have no other."""
    return LLTokenizer.from_vocabulary(Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256))], eos=0))


# ------------------------------------------------------------------------------------------------------ matchers


class LLMatcher(_Refusing):
    """One sequence that is being written.

    grammar: Lark's notation or EBNF, or a text of `grammar_from`. log_level: taken, and nothing is logged. A
    constraint that cannot be compiled, a token that is not allowed and a rollback too far put the matcher into an
    error, of which `is_error` and `get_error` tell and which it never leaves, as llguidance has it; nothing is raised.

    Raises ConstraintError for `limits`, which are llguidance's own.
    """

    def __init__(self, tokenizer: LLTokenizer, grammar: str, *, log_level: int = 1, limits: Any = None) -> None:
        if limits is not None:
            raise ConstraintError("are llguidance's own and not kept: leave them out", argument="limits")
        self._tokenizer, self._error = tokenizer, ""
        self._matcher: Matcher | None = None
        try:
            with enough_stack():
                asked = _asked(grammar)
            chosen = tokenizer.compact if asked.compact else tokenizer.flexible
            self._matcher = chosen.matcher(asked.kind, asked.source)
        except MaskwrightError as error:
            self._error = str(error)

    # ----------------------------------------------------------------------------------------------- grammars

    @staticmethod
    def grammar_from_json_schema(
        schema: str | Mapping[str, Any] | bool,
        defaults: Mapping[str, Any] | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the grammar of a JSON Schema.

        Options of JSON come from defaults, then the schema's "x-guidance", then overrides. Of them
        "whitespace_flexible" may be False, for JSON without spaces and line breaks; others only have their usual
        values. Raises ValueError for a text that is no JSON, and for options that are no object.
        """
        source = schema if isinstance(schema, str) else text_of(schema)
        check_text_depth(source)
        found = json.loads(source)
        options = {
            **_options(defaults, "defaults"),
            **_own_options(found if isinstance(found, dict) else None),
            **_options(overrides, "overrides"),
        }
        return _one("json_schema", source, **{"x-guidance": options})

    @staticmethod
    def grammar_from_regex(regex: str) -> str:
        """Return the grammar of a pattern, of the whole text."""
        return _one("regex", regex)

    @staticmethod
    def grammar_from_lark(lark: str) -> str:
        """Return the grammar of a text in Lark's notation."""
        return _one("lark_grammar", lark)

    @staticmethod
    def validate_grammar(grammar: str, tokenizer: LLTokenizer | None = None, *, limits: Any = None) -> str:
        """Return what is wrong with a grammar, "" if it can be compiled; for a tokenizer of all bytes if None."""
        return LLMatcher(tokenizer or _bytes_alone(), grammar, limits=limits).get_error()

    @staticmethod
    def validate_grammar_with_warnings(
        grammar: str, tokenizer: LLTokenizer | None = None, *, limits: Any = None
    ) -> tuple[bool, list[str]]:
        """Return whether a grammar is wrong, and why; there are no warnings."""
        error = LLMatcher.validate_grammar(grammar, tokenizer, limits=limits)
        return bool(error), [error] if error else []

    def get_grammar_warnings(self) -> list[str]:
        """Return nothing: a constraint is kept exactly, or not compiled."""
        return []

    # -------------------------------------------------------------------------------------------------- state

    def is_error(self) -> bool:
        """Return whether the matcher is in an error."""
        return bool(self._error)

    def get_error(self) -> str:
        """Return what went wrong, "" if nothing did."""
        return self._error

    def is_accepting(self) -> bool:
        """Return whether the text is complete as it stands."""
        return self._whole is not None and self._whole.is_accepting

    def is_stopped(self) -> bool:
        """Return whether nothing but the end can follow, the end was taken, or the matcher is in an error."""
        return self.stop_reason() != "NotStopped"

    def stop_reason(self) -> StopReason:
        """Return why the matcher stopped."""
        matcher = self._whole
        if matcher is None:
            return "InternalError"
        if matcher.is_terminated:
            return "EndOfSentence"
        return "NoExtension" if matcher.num_tokens and matcher.is_finished else "NotStopped"

    @property
    def _whole(self) -> Matcher | None:
        """What matches; None in an error."""
        return None if self._error else self._matcher

    def _fails(self, error: str) -> bool:
        self._error = self._error or error
        return False

    def deep_copy(self) -> LLMatcher:
        """Return a matcher that stands here and goes its own way."""
        twin = LLMatcher.__new__(LLMatcher)
        twin._tokenizer, twin._error = self._tokenizer, self._error
        twin._matcher = None if self._matcher is None else self._matcher.copy()
        return twin

    # ------------------------------------------------------------------------------------------------- tokens

    def consume_token(self, sampled_token: int) -> bool:
        """Take a token and return True; False, in an error, where it is not allowed.

        Once the matcher has stopped the end is taken and not counted.
        """
        matcher = self._whole
        if matcher is None:
            return False
        if sampled_token in self._tokenizer.vocabulary.ends and self.is_stopped():
            return True
        try:
            if not matcher.is_terminated and matcher.advance(sampled_token):
                return True
        except ValueError as error:
            return self._fails(str(error))
        return self._fails(f"token {sampled_token} is not allowed after {matcher.num_tokens} tokens")

    def consume_tokens(self, sampled_tokens: Iterable[int]) -> bool:
        """Take tokens one after the other; False, in an error, at the first that is not allowed."""
        return not self._error and all(self.consume_token(token) for token in sampled_tokens)

    def try_consume_tokens(self, tokens: Iterable[int]) -> int:
        """Take tokens up to where the matcher stops, or to the first that is not allowed, which is no error.

        Returns how many were taken.
        """
        taken = 0
        for token in tokens:
            if self.is_stopped() or not self.validate_tokens([token]):
                break
            taken += self.consume_token(token)
        return taken

    def validate_tokens(self, tokens: Iterable[int]) -> int:
        """Return how many of these tokens may follow, the end among them; 0 once the matcher has stopped.

        A token that is none of the vocabulary's is an error.
        """
        if self._whole is None or self.is_stopped():
            return 0
        try:
            return self._whole.validate_tokens(tokens)
        except ValueError as error:
            self._fails(str(error))
            return 0

    def rollback(self, num_tokens: int) -> bool:
        """Take back the last tokens and return True; False, in an error, if there are not as many."""
        if self._whole is None:
            return False
        try:
            self._whole.rollback(num_tokens)
        except ValueError as error:
            return self._fails(str(error))
        return True

    def reset(self) -> bool:
        """Go back to the start; False in an error."""
        if self._whole is not None:
            self._whole.reset()
        return not self._error

    def compute_ff_tokens(self) -> list[int]:
        """Return tokens, segmented as the tokenizer does, that can be taken at once; the last that may grow is kept."""
        return [] if self._whole is None else self._whole.forced_tokens()

    def compute_ff_bytes(self) -> bytes:
        """Return the bytes that must follow; b"" if there is a choice, or an end is possible."""
        return b"" if self._whole is None else self._whole.forced_text()

    # -------------------------------------------------------------------------------------------------- masks

    def fill_bitmask(self, bitmask: Any, row: int = 0) -> None:
        """Write what is allowed next into a row of bitmasks; in an error, the ends alone. Raises as `Matcher` does."""
        write_row(words_of_rows(bitmask), row, self._words())

    def _words(self) -> NDArray[np.uint32]:
        if self._whole is not None:
            return self._whole.mask()
        words = np.zeros(-(-self._tokenizer.vocab_size // 32), np.uint32)
        for end in self._tokenizer.vocabulary.ends:
            words[end >> 5] |= np.uint32(1 << (end & 31))
        return words

    def compute_bitmask(self) -> bytes:
        """Return what is allowed next: 32-bit words, ceil(V / 32), of which bit i of word w is token 32 * w + i."""
        return self._words().tobytes()

    def compute_logit_bias(self) -> bytes:
        """Return what is allowed next, a byte a token: 200 if it is and else 0."""
        bits = np.unpackbits(self._words().view(np.uint8), bitorder="little")[: self._tokenizer.vocab_size]
        return (bits * np.uint8(_LOGIT_BIAS)).tobytes()


# ------------------------------------------------------------------------------------------------------- batches


class LLExecutor:
    """Threads that share the rows of a batch, see `fill_bitmasks`: num_threads, one if None."""

    def __init__(self, num_threads: int | None = None) -> None:
        self.num_threads = 1 if num_threads is None else num_threads

    def consume_token_par(self, matchers: Sequence[tuple[LLMatcher, int]]) -> list[bool]:
        """Have each matcher take its token; return what `consume_token` does. A token takes microseconds: in turn."""
        return [matcher.consume_token(token) for matcher, token in matchers]


def fill_next_token_bitmask(interp: LLMatcher, bitmask: Any, index: int = 0) -> None:
    """Write what is allowed next into a row of bitmasks: int32 (rows, words), numpy or torch in the host's memory."""
    interp.fill_bitmask(bitmask, index)


def fill_next_token_bitmask_par(executor: LLExecutor, matchers: Sequence[tuple[LLMatcher, int]], bitmask: Any) -> None:
    """Write what each matcher allows next into its row of bitmasks. Raises as `fill_bitmasks` does."""
    fill_bitmasks([each for each, _ in matchers], bitmask, [row for _, row in matchers], threads=executor.num_threads)


def consume_token_par(executor: LLExecutor, matchers: Sequence[tuple[LLMatcher, int]]) -> list[bool]:
    """Have each matcher take its token; return what `consume_token` does."""
    return executor.consume_token_par(matchers)


def get_bitmask_shape(batch_size: int, vocab_size: int) -> tuple[int, int]:
    """Return the shape of bitmasks: (rows, ceil(V / 32))."""
    return batch_size, -(-vocab_size // 32)


def allocate_token_bitmask(batch_size: int, vocab_size: int) -> NDArray[np.int32]:
    """Return bitmasks of numpy in which everything is allowed; those of torch are `engines.bitmask.allocate`'s."""
    return np.full(get_bitmask_shape(batch_size, vocab_size), -1, np.int32)


def apply_token_bitmask_inplace(logits: Any, mask: Any) -> None:
    """Write -inf over each logit (n, V) or (V,) that bitmasks (n, words) or (words,) do not allow, numpy's or torch's.

    Raises ValueError for another number of rows.
    """
    logits, mask = (each if each.ndim != 1 else each[None] for each in (logits, mask))
    if not isinstance(logits, np.ndarray):
        from .bitmask import apply

        apply(logits, mask)
        return
    if len(logits) != len(mask):
        raise ValueError(f"logits {logits.shape} and mask {mask.shape} must have as many rows")
    allowed = np.unpackbits(np.ascontiguousarray(mask).view(np.uint8), axis=1, bitorder="little")
    columns = min(logits.shape[1], allowed.shape[1])
    logits[:, :columns][allowed[:, :columns] == 0] = -np.inf
    logits[:, columns:] = -np.inf
