"""Control tokens in the texts of structural tags: where a text has the name of one, it means that token.

Each stands in a text as one byte that UTF-8 does not have, so that whatever looks for triggers and ends reads it too.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache

from ...automata.deadline import look
from ...errors import Advice, ConstraintError
from ...vocabulary.vocabulary import MARKS, Vocabulary
from ..grammar.form import Node
from ..grammar.special_tokens import TOKEN, checked_token
from ..json_schema.source import shown
from ..regex.parse import parse
from .checks import refuse
from .spelled_names import spelled_name

END = MARKS[-1:]
"""The byte of all tokens that end a text."""
_LOOKS_LIKE_ONE = re.compile(r"<[|\uff5c][^\s<>]*[|\uff5c]>")


class ControlTokens:
    """The control tokens of a vocabulary by name, and the bytes of those that a structural tag names."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.order: list[int] = []  # the tokens that have bytes, in the order of `MARKS`
        self.ends = False  # whether a token that ends a text was named
        self._names: dict[bytes, str] = {}
        names = control_names(vocabulary)
        # whether there are control tokens, and the vocabulary knows none of their names
        self._unnamed = not vocabulary.special_ids and bool(vocabulary.special.difference(vocabulary.ends))
        self._known = names
        self._found = _any_of(names) if names else None

    def spelled(self, text: str, where: str) -> bytes:
        """Return the bytes of a text, in which control tokens are one byte each.

        Raises ConstraintError for a lone surrogate, and for what looks like a control token that has no name.
        """
        if self._found is None:
            return self._encoded(text, where)
        parts: list[bytes] = []
        at = 0
        for found in self._found.finditer(text):
            look("reading a structural tag")
            parts += self._encoded(text[at : found.start()], where), self.mark(found.group(), where)
            at = found.end()
        return b"".join((*parts, self._encoded(text[at:], where)))

    def mark(self, name: str, where: str) -> bytes:
        """Return the byte of a token by its name, or by `TOKEN` and its id."""
        try:
            token = checked_token(name, self.vocabulary, ends=True)
        except ConstraintError as error:
            raise error.at(where) from None
        if token in self.vocabulary.ends:
            self.ends = True
            self._names.setdefault(END, name)
            self._check_count(where)
            return END
        if token not in self.order:
            self.order.append(token)
            self._check_count(where)
        mark = MARKS[self.order.index(token) :][:1]
        self._names.setdefault(mark, name)
        return mark

    def _check_count(self, where: str) -> None:
        most = len(MARKS) - self.ends
        if len(self.order) > most:
            refuse(where, f"{len(self.order)} special tokens in one constraint: the most is {most}")

    def check_pattern(self, pattern: str, flags: str, where: str) -> None:
        """Raise ConstraintError for a pattern that spells the name of a control token, which no pattern matches."""
        name = spelled_name(parse(pattern, flags), self._known) if self._known else None
        if name is not None:
            raise _no_text(
                f"the pattern has the name of the control token {name!r}, and a pattern matches characters alone",
                "Put the token between two formats of a sequence, as {} (or write one character of the name as a "
                "class, such as [<], if the characters are meant)",
                name, where,
            )  # fmt: skip

    def check_grammar(self, body: Node, where: str) -> None:
        """Raise ConstraintError for a rule that spells the name of a control token, in quotes or in a pattern."""
        name = spelled_name(body, self._known) if self._known else None
        if name is not None:
            raise _no_text(
                f"the grammar has the name of the control token {name!r} in quotes or in a pattern, which mean its "
                "characters alone",
                "Write the token without quotes in GBNF or in Lark's notation, or put it between two formats of a "
                "sequence, as {} (or write one character of the name as a class, if the characters are meant)",
                name, where,
            )  # fmt: skip

    def shown(self, text: bytes) -> str:
        """Return a text as a user writes it, in quotes."""
        parts = [self._names.get(text[i : i + 1], text[i : i + 1]) for i in range(len(text))]
        raw = b"".join(part.encode() if isinstance(part, str) else part for part in parts)
        return repr(raw.replace(TOKEN.encode(), b"token ").decode(errors="backslashreplace"))

    def _encoded(self, text: str, where: str) -> bytes:
        if self._unnamed and (found := _LOOKS_LIKE_ONE.search(text)):
            raise _no_text(
                f"{found.group()!r} looks like a control token, and the vocabulary knows no names of its own",
                "Make the vocabulary with special={name: id}, or name the token by its id, as {}",
                0, where,
            )  # fmt: skip
        try:
            return text.encode()
        except UnicodeEncodeError as error:
            refuse(where, f"the text has a lone surrogate at position {error.start}, which no UTF-8 spells: remove it")


def control_names(vocabulary: Vocabulary) -> tuple[str, ...]:
    """Return the names of the control tokens of a vocabulary, which have no bytes."""
    return tuple(name for name, i in vocabulary.special_ids.items() if name and not vocabulary.tokens[i])


@lru_cache(16)
def _any_of(texts: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern of any of some texts, the longest first: some tokenizers have a thousand control tokens."""
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))))


def token_name(token: object, where: str) -> str:
    """Return the name that grammars have for a token that is given by its name or its id."""
    if isinstance(token, int) and not isinstance(token, bool):
        return f"{TOKEN}{token}"
    if not isinstance(token, str) or not token or "\0" in token:
        refuse(where, f"a token is given by its name or its id, not by {shown(token)}")
    return token


def _no_text(message: str, advice: str, token: str | int, where: str) -> ConstraintError:
    """Return the error for a control token that cannot be meant by its name; advice: with {} for its format."""
    written = json.dumps({"type": "token", "token": token}, ensure_ascii=False)
    return ConstraintError(message, pointer=where, remedies=[Advice(advice.replace("{}", written))])
