"""Compile text with tags: free text in which tags hold JSON, what a pattern matches, or what a grammar derives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from ...automata.budget import Budget
from ...depth import Flat, enough_stack
from ...lazy.lazy_table import Compiled, LazyTable
from ...vocabulary.vocabulary import Vocabulary
from ..arguments import begin_budget, check_vocabulary
from ..grammar.build import compile_form
from ..grammar.special_tokens import spelt
from ..json_schema.layout import Whitespace
from ..json_schema.request import Request, request, warn_of
from ..json_schema.schema_hash import hash_of
from .reading import read_tags
from .tagged_text import TaggedText, plain


@enough_stack()
def compile_structural_tag(
    tag: TaggedText | Mapping[str, Any] | str,
    vocabulary: Vocabulary,
    *,
    whitespace: Whitespace | tuple[str, str] = "flexible",
    ascii: bool = False,
    allow: Iterable[str] | Literal["all"] = (),
    documents: Mapping[str, Any] | None = None,
    any_order: bool = False,
    depth: int = 64,
    budget: Budget | None = None,
) -> Compiled:
    """Compile free text in which triggers open tags, and what stands in these, into a table of exactly such texts.

    Wherever a trigger occurs in free text, one of the tags that begin with it follows, up to its end. Free text holds
    neither the end of the tag around it nor the text that must follow. The name of a control token in a text means that
    token. Begins and ends may be special tokens; such a token is then itself alone, even if it has bytes, and those
    bytes by other tokens are text.

    Args:
        tag: A `TaggedText`, or a structural tag as serving engines take it, a dict or JSON text: {"type":
            "structural_tag", "structures": [{"begin": .., "schema": .., "end": ..}], "triggers": [..]}, or the form
            with a "format" in place of the latter two.
        vocabulary: The tokens that texts are written with.
        whitespace: Of all JSON in it, as of `compile_json_schema`.
        ascii: Of all JSON in it, as of `compile_json_schema`.
        allow: Of all JSON in it, as of `compile_json_schema`.
        documents: Of all JSON in it, as of `compile_json_schema`.
        any_order: Of all JSON in it, as of `compile_json_schema`; a format of JSON may ask for it itself.
        depth: Of all JSON in it, as of `compile_json_schema`.
        budget: Limits of this compilation and of what is read later.

    Returns:
        A `LazyTable`: a `Matcher` reads what it is made from, and arrays are made on request.

    Raises:
        ConstraintError: The tag is at fault; `pointer` says where.
        SchemaError: A schema in it is at fault.
        RegexError: A pattern in it is at fault.
        GrammarError: A grammar in it is at fault.
        BudgetError: A limit was reached.
        TypeError: An argument is of another type.
        ValueError: An argument has a value that it cannot have.

    Examples:
        >>> vocab = Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), b"<f", b"</"], eos=0)
        >>> text = {"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}
        >>> tag = {"type": "structural_tag", "structures": [text], "triggers": ["<f"]}
        >>> table = compile_structural_tag(tag, vocab)
        >>> [table.accepts(vocab.encode(text)) for text in ("so: <f>12</f>.", "so: <f>12", "so: <f>a</f>.")]
        [True, False, False]
    """
    check_vocabulary(vocabulary)
    source = plain(tag)
    asked = request(
        True, whitespace=whitespace, ascii=ascii, allow=allow, documents=documents, any_order=any_order, depth=depth
    )
    with begin_budget(budget) as meter:
        reading = read_tags(source, meter, vocabulary)
        hashed = source_of_tags(source, asked, vocabulary)
        grammar, marked = spelt(reading.grammar, vocabulary, reading.tokens)
        if reading.schemas:
            from .values import compile_values  # as for schemas: not for those who have none

            made = compile_values(grammar, reading.schemas, marked, asked._replace(source=hashed), meter)
            warn_of(allow, made)
        else:
            made = compile_form(grammar, marked, source=hashed, depth=asked.depth, meter=meter)
    if not isinstance(made, LazyTable):
        return made
    options = {
        "whitespace": whitespace, "ascii": ascii, "allow": asked.allowed, "any_order": any_order, "depth": depth,
        "budget": budget,
    }  # fmt: skip
    return made.made_by(_again, Flat(source), Flat(asked.documents), vocabulary, options)


def _again(
    source: Mapping[str, Any], documents: Mapping[str, Any] | None, vocabulary: Vocabulary, options: dict[str, Any]
) -> Compiled:
    return compile_structural_tag(source, vocabulary, documents=documents, **options)


@enough_stack()
def source_of_tags(source: Mapping[str, Any], asked: Request, vocabulary: Vocabulary) -> str:
    """Return a hash of all that the table of text with tags follows from; asked: how its JSON is written."""
    return hash_of(
        dict(source), asked.documents, "structural tag 2", asked.layout, sorted(asked.allowed), asked.any_order,
        asked.depth, vocabulary.names,
    )  # fmt: skip
