"""The models that rank items: loading one, and turning prompts and histories into its tokens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...compile.catalogue import Catalogue
from ...errors import ConstraintError, DataError
from ...runtime.integrations.item_search import ItemSearch
from ...vocabulary.vocabulary import Vocabulary
from .. import loading
from ..settings import ModelSettings
from .engines import EngineSearch

HISTORY = "{history}"
"""What stands in a prompt for the semantic IDs of a history."""

Encode = Callable[[str], list[int]]


@dataclass
class ItemModel:
    """A model, and how a text becomes tokens before and behind the semantic IDs of a history."""

    search: ItemSearch | EngineSearch
    name: str
    width: int | None  # logits; an engine does not say
    context: int | None  # most tokens of a prompt and a semantic ID together
    plain: Encode | None  # tokens of a part of a text; None without a tokenizer
    between: Sequence[int] = ()  # tokens that stand between two items of a history
    begin: Sequence[int] = ()  # tokens that begin every prompt
    end: Sequence[int] = ()  # tokens that end every prompt
    vocabulary: str = ""  # the fingerprint of the tokenizer's vocabulary, "" if it is not known

    def tokens(self, prompt: str, history: Sequence[Sequence[int]]) -> list[int]:
        """Return the tokens of a prompt in which those of the items of a history stand for "{history}".

        Raises ConstraintError for text if the model has no tokenizer.
        """
        before, _, behind = prompt.partition(HISTORY)
        items: list[int] = []
        for at, item in enumerate(history):
            items += [*(self.between if at else ()), *item]
        return [*self.begin, *self.part(before), *items, *self.part(behind), *self.end]

    def part(self, text: str) -> list[int]:
        """Return the tokens of a part of a prompt. Raises ConstraintError if the model has no tokenizer."""
        if not text:
            return []
        if self.plain is None:
            raise ConstraintError(
                f"has text, and the model {self.name!r} has no tokenizer: send tokens, or a history of items",
                argument="prompt",
            )
        return self.plain(text)

    @property
    def about(self) -> str:
        """Where it runs, for the log of the server."""
        if isinstance(self.search, EngineSearch):
            return f"{self.search.product} at {self.search.url} serves it"
        held = "one cache for all beams of a prompt" if self.search.shares_prompts else "a cache for each beam"
        return f"{self.width:,} tokens, on {self.search.model.device}; {held}"

    def check(self, name: str, catalogue: Catalogue) -> None:
        """Raise ConstraintError if the model cannot write the semantic IDs of a catalogue."""
        size = catalogue.table.vocab_size
        if self.width is not None and size > self.width:
            raise ConstraintError(
                f"the catalogue {name!r} has {size:,} tokens, and the model {self.name!r} {self.width:,}: make it "
                "for this model"
            )
        if catalogue.vocabulary and self.vocabulary and catalogue.vocabulary != self.vocabulary:
            raise ConstraintError(
                f"the catalogue {name!r} was made for the vocabulary {catalogue.vocabulary}, and the model "
                f"{self.name!r} has {self.vocabulary}: make it for this tokenizer"
            )


def load(settings: ModelSettings, between: str = "") -> ItemModel:
    """Return the model of an engine, or of transformers in a folder, a decoder or an encoder-decoder.

    between: text that stands between two items of a history. Raises DataError; ConstraintError for text without a
    tokenizer.
    """
    made = _of_folder(settings) if settings.url is None else _of_engine(settings, settings.url)
    made.between = made.part(between)
    return made


def _of_folder(settings: ModelSettings) -> ItemModel:
    """Return the model of transformers in a folder."""
    assert settings.folder is not None, "the example has a model of its own"
    model = loading.read_model(settings.folder, settings.device, settings.dtype, of_items=True)
    search, config = ItemSearch(model), model.config
    context = None if config.is_encoder_decoder else getattr(config.get_text_config(), "max_position_embeddings", None)
    name = settings.name or settings.folder.resolve().name
    made = ItemModel(search, name, search.width, None if context is None else int(context), None)
    source = settings.tokenizer or settings.folder
    if loading.has_tokenizer(source):
        tokenizer = loading.read_tokenizer(source)
        made.plain = _plain(tokenizer)
        made.begin, made.end = _around(tokenizer("a")["input_ids"], made.plain)
        made.vocabulary = Vocabulary.from_transformers(tokenizer, size=search.width, eos=settings.eos).fingerprint
    elif settings.tokenizer is not None:
        raise DataError(f"{source} is no folder of a tokenizer of transformers, as --tokenizer takes it here")
    return made


def _of_engine(settings: ModelSettings, url: str) -> ItemModel:
    """Return the model of a running vLLM or SGLang, which also encodes texts unless there is a tokenizer."""
    search = EngineSearch(url, settings.name, settings.key)
    made = ItemModel(search, settings.name or search.served, None, search.context, None)
    encodes = None
    if settings.tokenizer is not None:
        tokenizer = loading.read_tokenizer(settings.tokenizer)
        encodes = _plain(tokenizer), tokenizer("a")["input_ids"]
    else:
        encodes = search.tokens_of()
    if encodes is not None:
        made.plain, whole = encodes
        made.begin, made.end = _around(whole, made.plain)
    return made


def example() -> ItemModel:
    """Return the small model of the example, which reads bytes of text and the codes of its catalogue."""
    from .example import NAME, WIDTH, vocabulary

    known, search = vocabulary(), ItemSearch(loading.untrained(WIDTH, 0.3))
    return ItemModel(search, NAME, WIDTH, loading.POSITIONS, known.encode, vocabulary=known.fingerprint)


def _plain(tokenizer: Any) -> Encode:
    """Return what encodes a part of a text, without what begins and ends one. A lock lets in one thread at a time."""
    lock = threading.Lock()

    def encode(text: str) -> list[int]:
        with lock:
            return [int(i) for i in tokenizer(text, add_special_tokens=False)["input_ids"]]

    return encode


def _around(given: Sequence[Any], plain: Encode) -> tuple[list[int], list[int]]:
    """Return the tokens that a tokenizer puts before and behind every text; given: those of "a"."""
    whole, inside = [int(i) for i in given], plain("a")
    for at in range(len(whole) - len(inside) + 1):
        if whole[at : at + len(inside)] == inside:
            return whole[:at], whole[at + len(inside) :]
    return [], []
