"""Macros of XGrammar's EBNF, against a naive reading of free text with tags."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest

import maskwright as mw
from maskwright.compile.grammar.ebnf import read_ebnf
from tests.oracles.naive_grammar import members

VOCAB = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), b""], eos=0, special={"<|a|>": 257})


def dispatched(
    text: str, tags: dict[str, Callable[[str], set[int]]], excludes: Sequence[str], loop: bool
) -> set[int]:  # fmt: skip
    """Return where free text with tags may end, read character by character; rules: where each may end in a text."""
    found: set[int] = set()
    todo = [0]
    seen = {0}
    while todo:
        begin = todo.pop()
        for end in range(begin, len(text) + 1):
            free = text[begin:end]
            if any(free.endswith(each) for each in excludes):
                break
            complete = [tag for tag in tags if free.endswith(tag)]
            if not complete:
                found.add(end)
                continue
            for length in tags[max(complete, key=len)](text[end:]):
                behind = end + length
                if not loop:
                    found.add(behind)
                elif behind not in seen:
                    seen.add(behind)
                    todo.append(behind)
            break
    return found


def word(*words: str) -> Callable[[str], set[int]]:
    return lambda text: {len(each) for each in words if text.startswith(each)}


CASES: list[tuple[str, dict[str, Callable[[str], set[int]]], list[str], bool]] = [
    ('root ::= TagDispatch(("ab", x))\nx ::= "c" | "cc"', {"ab": word("c", "cc")}, [], True),
    ('root ::= TagDispatch(("ab", x), ("b", y), loop_after_dispatch=false)\nx ::= "c"\ny ::= "" | "a"',
     {"ab": word("c"), "b": word("", "a")}, [], False),
    ('root ::= TagDispatch(("aa", x), excludes=("ca", "bb",))\nx ::= [bc]', {"aa": word("b", "c")}, ["ca", "bb"], True),
    ('root ::= TagDispatch(excludes=("abc"))', {}, ["abc"], True),
    ('root ::= TagDispatch( # a comment\n  ("abca", x) , ("ca", y)\n)\nx ::= "b"\ny ::= "c"',
     {"abca": word("b"), "ca": word("c")}, [], True),
]  # fmt: skip


@pytest.mark.parametrize(("grammar", "tags", "excludes", "loop"), CASES)
def test_free_text_with_tags_is_what_a_naive_reading_says(
    grammar: str, tags: dict[str, Callable[[str], set[int]]], excludes: list[str], loop: bool
) -> None:
    texts = ["".join(letters) for n in range(7) for letters in itertools.product("abc", repeat=n)]
    expected = {text for text in texts if len(text) in dispatched(text, tags, excludes, loop)}
    found = {member.decode() for member in members(read_ebnf(grammar), [b"a", b"b", b"c"], 6)}
    assert found == expected
    assert len(expected) not in (0, len(texts))


def test_a_dispatch_is_read_and_made_into_arrays() -> None:
    text = 'root ::= body "</answer>"\nbody ::= TagDispatch(("<call>", call), excludes=("</answer>",))\n'
    text += 'call ::= "{" ("x" | call)* "}" "\\n"'
    table = mw.compile_grammar(text, VOCAB, syntax="ebnf")
    texts = {
        "é </answer>": True, "a <call>{x{x}\n}\n b<call</answer>": True, "<call> </answer>": False, "a": False,
        "</answer></answer>": False, "<call>{}\n<call>{}\n</answer>": True, "<call>{}\n": False,
    }  # fmt: skip
    assert {text: table.accepts(VOCAB.encode(text)) for text in texts} == texts
    flat = mw.compile_grammar(
        'root ::= TagDispatch(("<c>", x))\nx ::= Regex("\\\\d{2}") ";"', VOCAB, syntax="ebnf"
    ).to_table()
    texts = {"a <c>12; b<c": True, "<c>1;": False, "<c>১২;": False, "": True}
    assert {text: flat.accepts(VOCAB.encode(text)) for text in texts} == texts


def test_tokens_by_their_numbers_are_these_tokens() -> None:
    table = mw.compile_grammar('root ::= Token(257) "a"', VOCAB, syntax="ebnf")
    assert table.accepts([257, 1 + ord("a")])
    assert not table.accepts([1 + ord("a")])
    with pytest.raises(mw.errors.GrammarError, match="is the name of a control token"):
        mw.compile_grammar('root ::= TagDispatch(("<|a|>", x))\nx ::= "b"', VOCAB, syntax="ebnf")
