"""Constrained texts in two lines: the vocabulary and the tables of a tokenizer are made here, and kept.

`generate` writes texts with a model of transformers; `logits_processor` is for those who call `model.generate`
themselves. Both compile a constraint for the tokenizer's vocabulary and keep it for the next call.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from .automata.budget import Budget
from .compile.cache.cache import Cache
from .compile.constraint_source import Source
from .errors import ConstraintError
from .vocabulary.vocabulary import Vocabulary

OPTIONS = frozenset(
    {
        "bad_words_ids", "distances", "cache_implementation", "do_sample", "early_stopping", "epsilon_cutoff",
        "eta_cutoff", "length_penalty", "logits_processor", "min_new_tokens", "min_p", "no_repeat_ngram_size",
        "num_beams", "num_return_sequences", "repetition_penalty", "temperature", "top_k", "top_p", "typical_p",
        "use_cache",
    }
)  # fmt: skip

_MOST = 4  # tokenizers whose vocabularies are kept

_lock = threading.Lock()
_caches: OrderedDict[tuple[Any, ...], tuple[Any, Cache]] = OrderedDict()  # with each the tokenizer whose id it is by


def cache_of(tokenizer: Any, *, size: int | None = None, ends: Sequence[int] = ()) -> Cache:
    """Return the cache of a tokenizer's constraints: the same for the same tokenizer, size and ends.

    size: V, the width of the model's logits. ends: tokens that end the model's texts. Those of them that spell no
    text also end a constraint's. The tokenizer's own one comes first if it is among them, or if there are none. The
    last four tokenizers are kept.
    Raises ConstraintError for a tokenizer without exact bytes, or where nothing ends a text.
    """
    own = tokenizer.eos_token_id
    eos = own if own is not None and (not ends or own in ends) else next(iter(ends), None)
    if eos is None:
        raise ConstraintError(
            "no token ends a text: neither the tokenizer has an eos_token nor the model's generation config an "
            "eos_token_id; set one of them"
        )
    key = id(tokenizer), len(tokenizer), tuple(tokenizer.all_special_ids), size, eos, tuple(ends)
    with _lock:
        if key not in _caches:
            vocabulary = Vocabulary.from_transformers(tokenizer, size=size, eos=eos).with_ends(ends)
            _caches[key] = tokenizer, Cache(vocabulary)
            while len(_caches) > _MOST:
                _caches.popitem(last=False)
        _caches.move_to_end(key)
        return _caches[key][1]


@overload
def generate(model: Any, tokenizer: Any, prompts: str, **options: Any) -> str: ...


@overload
def generate(model: Any, tokenizer: Any, prompts: Sequence[Any], **options: Any) -> Any: ...


def generate(
    model: object,
    tokenizer: object,
    prompts: str | Sequence[Any],
    *,
    schema: object = None,
    regex: str | None = None,
    choices: Sequence[str] | None = None,
    grammar: str | None = None,
    budget: Budget | None = None,
    max_new_tokens: int = 256,
    **options: Any,
) -> Any:
    """Return complete texts that a constraint allows, as a model of transformers writes them after prompts.

    Exactly one of schema, regex, choices and grammar is given. The vocabulary and the table are made at the first call,
    and kept for the next.

    Args:
        model: A model of transformers.
        tokenizer: Its tokenizer.
        prompts: One text, one conversation (a list of messages with role and content), or a list of either.
        schema: A dict, JSON text, True for any JSON, or a pydantic class.
        regex: A pattern, as `compile_regex` takes it.
        choices: Texts, one of which is written.
        grammar: A grammar in Lark's notation.
        budget: Limits of compiling.
        max_new_tokens: Tokens in which each text is complete, its end among them.
        options: Of `model.generate`: do_sample, temperature, top_k, top_p, min_p, typical_p, epsilon_cutoff,
            eta_cutoff, num_beams, num_return_sequences, length_penalty, early_stopping, repetition_penalty,
            no_repeat_ngram_size, bad_words_ids, min_new_tokens, logits_processor, use_cache, cache_implementation. A
            grammar of which there is no table needs distances=False as well: texts that are too long are then cut off.

    Returns:
        A text, or a list of one for each prompt; with num_return_sequences a list of texts in the place of each, which
        has fewer where beam search finds fewer.

    Raises:
        TypeError: Not one constraint is given, there are other options, or prompts are neither texts nor conversations.
        ConstraintError: What the compiler of the constraint raises.
        ValueError: `max_new_tokens` is too few for a match, or a prompt has no tokens.
        MissingDependencyError: transformers is not installed.

    Examples:
        >>> import maskwright as mw
        >>> mw.generate(model, tokenizer, "The capital of France: ", regex="[A-Z][a-z]{2,9}")  # doctest: +SKIP
        'Paris'
    """
    source = _one_source(schema=schema, regex=regex, choices=choices, grammar=grammar)
    unknown = sorted(set(options) - OPTIONS)
    if unknown:
        raise TypeError(
            f"mw.generate does not take {', '.join(unknown)}: call model.generate with mw.logits_processor, or with "
            "custom_generate=constrained_generate"
        )
    single = isinstance(prompts, str) or _is_conversation(prompts)
    asked = [prompts] if single else list(prompts)
    if isinstance(prompts, Mapping) or not all(isinstance(prompt, str) or _is_conversation(prompt) for prompt in asked):
        raise TypeError("prompts must be texts, conversations as lists of messages, or a list of either")
    from .runtime.integrations import texts

    cache = cache_of(tokenizer, size=texts.size_of(model), ends=texts.ends_of(model))
    table = cache.compile(source, budget)
    if not asked:
        return []
    options["max_new_tokens"] = max_new_tokens
    found: list[Any] = texts.written_texts(model, tokenizer, asked, cache.vocabulary, table, options)
    if options.get("num_return_sequences") is None:
        found = [first for first, *_ in found]
    return found[0] if single else found


def logits_processor(
    tokenizer: object,
    model: object = None,
    *,
    schema: object = None,
    regex: str | None = None,
    choices: Sequence[str] | None = None,
    grammar: str | None = None,
    budget: Budget | None = None,
    max_tokens: int | None = None,
) -> Any:
    """Return a logits processor for `model.generate`, by a tokenizer and a source.

    Exactly one of schema, regex, choices and grammar is given.

    Args:
        tokenizer: That of the model.
        model: The one that will be called, which says how wide its logits are and what ends its texts; without it the
            tokenizer says so.
        schema: As in `generate`.
        regex: As in `generate`.
        choices: As in `generate`.
        grammar: As in `generate`.
        budget: Limits of compiling.
        max_tokens: Tokens that are enough for a complete match, the end aside; let max_new_tokens be one more.

    Returns:
        A `ConstraintLogitsProcessor`, for `model.generate(logits_processor=[..])`.

    Raises:
        TypeError: Not one constraint is given.
        ConstraintError: What the compiler of the constraint raises.
        MissingDependencyError: transformers is not installed.

    Examples:
        >>> processor = logits_processor(tokenizer, model, schema={"type": "object"})  # doctest: +SKIP
        >>> model.generate(**inputs, logits_processor=[processor])  # doctest: +SKIP
    """
    source = _one_source(schema=schema, regex=regex, choices=choices, grammar=grammar)
    from .runtime.integrations import texts
    from .runtime.integrations.processor import ConstraintLogitsProcessor

    ends = [] if model is None else texts.ends_of(model)
    cache = cache_of(tokenizer, size=None if model is None else texts.size_of(model), ends=ends)
    return ConstraintLogitsProcessor(cache.compile(source, budget), max_tokens=max_tokens, eos_token_ids=ends)


def _one_source(**given: object) -> Source:
    """Return the one source that is given by name. Raises TypeError for none or several."""
    named = {name: value for name, value in given.items() if value is not None}
    if len(named) != 1:
        asked = ", ".join(f"{name}=" for name in given)
        raise TypeError(f"pass exactly one of {asked} here; {', '.join(named) or 'none'} given")
    [(name, value)] = named.items()
    makers: dict[str, Callable[[Any], Source]] = {
        "schema": Source.json_schema, "regex": Source.regex, "choices": Source.choices, "grammar": Source.grammar
    }  # fmt: skip
    return makers[name](value)


def _is_conversation(prompts: object) -> bool:
    """Return whether this is one list of messages, not a list of prompts."""
    return (
        isinstance(prompts, list | tuple) and bool(prompts) and all(isinstance(message, Mapping) for message in prompts)
    )
