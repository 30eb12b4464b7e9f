"""The tokenizer that a command compiles for: --tokenizer, --size and --eos."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from ..errors import ConstraintError, DataError
from ..vocabulary.vocabulary import Vocabulary
from .options import Decorator, gathered

_SAID = 120  # letters shown of the error of another package


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer's folder or file, the width of the model's logits, and the tokens that end a text, () for its own."""

    tokenizer: Path
    size: int | None
    eos: tuple[int, ...]

    def vocabulary(self) -> Vocabulary:
        """Return its vocabulary. Errors name the folder or file."""
        source = self.tokenizer
        try:
            return Vocabulary.from_file(source, size=self.size, eos=self.eos or None)
        except DataError as error:
            if error.__cause__ is None or not (source / "tokenizer_config.json").exists():
                raise
            said = " ".join(f"{type(error.__cause__).__name__}: {error.__cause__}".split())
            said = said if len(said) <= _SAID else f"{said[:_SAID]}..."
            raise DataError(
                f"transformers cannot build the tokenizer of the folder {source} ({said}): save it again with "
                "save_pretrained, or pass the tokenizer's own file"
            ) from None
        except ConstraintError as error:
            if error.argument is not None:  # an option of the command is wrong, not the tokenizer
                raise
            raise ConstraintError(f"{source} holds no tokenizer to compile for: {error.message}") from None


def _if_given(tokenizer: Path | None, size: int | None, eos: tuple[int, ...]) -> Tokenizer | None:
    if tokenizer is not None:
        return Tokenizer(tokenizer, size, eos)
    if size is not None or eos:
        raise click.UsageError("--size and --eos go with --tokenizer")
    return None


def _options(required: bool) -> tuple[Decorator, ...]:
    return (
        click.option(
            "--tokenizer",
            type=click.Path(exists=True, path_type=Path),
            required=required,
            metavar="SOURCE",
            help="A tokenizer's folder, or a tokenizer.json, tekken.json, SentencePiece .model or tiktoken file.",
        ),
        click.option(
            "--size", type=click.IntRange(min=1), help="Width of the model's logits, if it exceeds the tokens."
        ),
        click.option(
            "--eos",
            type=click.IntRange(min=0),
            multiple=True,
            help="Token that ends a text, if not the tokenizer's own; more than once for several.",
        ),
    )


tokenizer = gathered("tokenizer", Tokenizer, *_options(required=True))
optional_tokenizer = gathered("tokenizer", _if_given, *_options(required=False))


def single_bytes() -> Vocabulary:
    """Return the vocabulary of the 256 single bytes."""
    return Vocabulary.from_bytes([bytes([byte]) for byte in range(256)])
