"""Loading the model to serve, and turning texts and conversations into its tokens."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConstraintError, DataError
from ..vocabulary.vocabulary import Vocabulary
from .refusals import Refused
from .settings import ModelSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel


TINY = "maskwright-tiny"
POSITIONS = 4096  # of an untrained model
_WORDS = (b'{"', b'": ', b'": "', b'", "', b'"}', b"true", b"false", b"null", b", ", b"the ", b"ing ", b"and ")
Chat = Callable[[list[dict[str, Any]], list[dict[str, Any]] | None, Mapping[str, Any]], list[int]]
_OWN = {"conversation", "messages", "tools", "tokenize", "add_generation_prompt", "chat_template"}  # of a template


@dataclass
class Loaded:
    """A model, its vocabulary, and its encoders of text and conversations."""

    model: PreTrainedModel
    vocabulary: Vocabulary
    name: str
    encode: Callable[[str], list[int]]  # a prompt, with the token that begins every text
    chat: Chat  # messages, tools and variables of the chat template
    context: int | None  # most tokens of prompt and answer together
    stop_ids: frozenset[int] = frozenset()  # tokens that end free text, beside the vocabulary's ends
    notes: list[str] = field(default_factory=list)  # for the operator, at start
    calls: str = "hermes"  # the family of the model, by how it writes calls of tools


def loaded(settings: ModelSettings) -> Loaded:
    """Return the model that settings name, or a small one made on the spot. Raises DataError, ConstraintError."""
    if settings.folder is None:
        found = tiny()
    else:
        found = load(
            settings.folder, tokenizer=settings.tokenizer, eos=settings.eos, name=settings.name, device=settings.device,
            dtype=settings.dtype,
        )  # fmt: skip
    return replace(found, calls=settings.calls)


def tiny(seed: int = 0) -> Loaded:
    """Return a small model with random weights over bytes and a few words. It writes nonsense and needs no download."""
    vocabulary = Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), *_WORDS], eos=0)
    model = untrained(vocabulary.size, 0.1, seed)
    note = (
        "there is no --model, so the server made a small model with random weights. It writes nonsense, but the "
        "nonsense always fits the constraint"
    )
    return Loaded(
        model, vocabulary, TINY, vocabulary.encode, _joined(vocabulary.encode), POSITIONS,
        notes=[note],
    )  # fmt: skip


def untrained(tokens: int, spread: float, seed: int = 0) -> PreTrainedModel:
    """Return a small model with random weights, of which larger ones make it surer. Token 0 ends a text."""
    torch, transformers = packages()
    config = transformers.LlamaConfig(
        vocab_size=tokens, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        bos_token_id=None, eos_token_id=0, pad_token_id=0, initializer_range=spread, max_position_embeddings=POSITIONS,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return transformers.LlamaForCausalLM(config).eval()  # type: ignore[no-any-return]


def load(
    folder: Path,
    *,
    tokenizer: Path | None = None,
    eos: int | None = None,
    name: str | None = None,
    device: str | None = None,
    dtype: str = "auto",
) -> Loaded:
    """Return the causal language model of transformers in a folder, without downloads and without running its code.

    tokenizer: a folder or file, if not in the model's folder. eos: the token that ends a text, if not the tokenizer's;
    control tokens of the model's generation config end texts as well. device: None for a GPU if there is one, else the
    CPU. Raises DataError, ConstraintError.
    """
    model = read_model(folder, device, dtype)
    outputs: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    size = int(outputs.weight.shape[0] if outputs is not None else model.config.get_text_config().vocab_size)
    ends = _ends(model)
    source, notes = tokenizer or folder, []
    if has_tokenizer(source):
        tok = read_tokenizer(source)
        if eos is None and tok.eos_token_id is None and ends:
            eos = ends[0]
        vocabulary = Vocabulary.from_transformers(tok, size=size, eos=eos).with_ends(ends)
        begins = None if tok.bos_token_id is None else [int(tok.bos_token_id)]
        encode, chat = of_transformers(tok)
        if not getattr(tok, "chat_template", None):
            chat = _joined(encode)
            notes.append(_NO_TEMPLATE.format(source))
    else:
        vocabulary = Vocabulary.from_file(source, size=size, eos=ends[0] if eos is None and ends else eos)
        vocabulary = vocabulary.with_ends(ends)
        encode, begins = vocabulary.encode, None
        chat = _joined(encode)
        notes.append(_NO_TEMPLATE.format(source))
    if vocabulary.eos is None:
        raise ConstraintError(f"{source} does not say which token ends a text: pass its id with --eos")

    def begun(text: str) -> list[int]:
        return encode(text) or list(begins or [])

    most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    stops = frozenset(ends).difference(vocabulary.ends)
    return Loaded(
        model, vocabulary, name or folder.resolve().name, begun, chat, None if most is None else int(most), stops, notes
    )


def read_model(folder: Path, device: str | None, dtype: str, *, of_items: bool = False) -> PreTrainedModel:
    """Return the model of transformers in a folder, ready to be asked. Raises DataError.

    of_items: whether it may be an encoder-decoder, which only semantic IDs are searched with.
    """
    torch, transformers = packages()
    if not (folder / "config.json").is_file():
        raise DataError(f"{folder} has no config.json: --model takes the folder of a model that transformers has saved")
    kind, load = "causal", transformers.AutoModelForCausalLM
    try:
        if of_items and transformers.AutoConfig.from_pretrained(str(folder), **_LOCAL).is_encoder_decoder:
            kind, load = "encoder-decoder", transformers.AutoModelForSeq2SeqLM
        model = load.from_pretrained(str(folder), dtype=dtype, **_LOCAL)
    except Exception as error:  # transformers raises errors of many kinds for a damaged folder
        raise DataError(
            f"transformers cannot load a {kind} language model from {folder} ({_one_line(error)})"
        ) from error
    return model.eval().to(device or ("cuda" if torch.cuda.is_available() else "cpu"))  # type: ignore[no-any-return]


def has_tokenizer(source: Path) -> bool:
    """Return whether a folder has a tokenizer of transformers."""
    return source.is_dir() and (source / "tokenizer_config.json").exists()


def read_tokenizer(source: Path) -> Any:
    """Return the tokenizer of transformers in a folder. Raises DataError."""
    _, transformers = packages()
    try:
        return transformers.AutoTokenizer.from_pretrained(str(source), **_LOCAL)
    except Exception as error:
        raise DataError(f"transformers cannot read the tokenizer of {source} ({_one_line(error)})") from error


_LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
_NO_TEMPLATE = (
    '{} has no chat template: the messages of a conversation are joined as lines of "role: content", with "assistant:" '
    "at the end"
)


def packages() -> tuple[Any, Any]:
    """Return torch and transformers, which shows no bars of its own here."""
    import torch
    import transformers

    logging: Any = transformers.utils.logging
    logging.disable_progress_bar()
    return torch, transformers


def _one_line(error: Exception) -> str:
    """Return the kind of another package's error and the beginning of what it says."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _ends(model: PreTrainedModel) -> list[int]:
    """Return the tokens that end a text according to the model's configuration."""
    own = getattr(model.generation_config, "eos_token_id", None)
    own = model.config.eos_token_id if own is None else own
    return [int(each) for each in (own if isinstance(own, (list, tuple)) else [own]) if each is not None]


def of_transformers(tok: Any) -> tuple[Callable[[str], list[int]], Chat]:
    """Return the encoders of a tokenizer of transformers. A lock lets one thread use it at a time."""
    lock = threading.Lock()

    def encode(text: str) -> list[int]:
        with lock:
            return [int(i) for i in tok(text)["input_ids"]]

    def chat(
        messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, variables: Mapping[str, Any]
    ) -> list[int]:
        for name in sorted(_OWN.intersection(variables)):
            raise Refused(f"the server itself says what {name!r} is", param=f"chat_template_kwargs.{name}")
        options = {"tools": tools, "tokenize": False, "add_generation_prompt": True}
        with lock:
            try:
                text = tok.apply_chat_template(messages, **options, **variables)
            except Exception as error:  # a template is a program with errors of its own
                raise Refused(
                    f"the model's chat template does not take these messages: {_one_line(error)}", param="messages"
                ) from None
            return [int(i) for i in tok(text, add_special_tokens=False)["input_ids"]]

    return encode, chat


def _joined(encode: Callable[[str], list[int]]) -> Chat:
    """Return an encoder of conversations for a model without a chat template."""

    def chat(
        messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, variables: Mapping[str, Any]
    ) -> list[int]:
        if variables:
            raise Refused(
                f"the model has no chat template that reads {', '.join(sorted(variables))}: leave it out",
                param="reasoning_effort" if set(variables) == {"reasoning_effort"} else "chat_template_kwargs",
            )
        lines = [f"tools: {json.dumps(tools)}"] if tools else []
        lines += [f"{message['role']}: {_said(message)}" for message in messages]
        return encode("\n".join([*lines, "assistant:"]))

    return chat


def _said(message: dict[str, Any]) -> str:
    calls: Sequence[Any] = message.get("tool_calls") or ()
    said = [message["content"]] if message.get("content") else []
    return " ".join([*said, *(json.dumps(call["function"]) for call in calls)])
