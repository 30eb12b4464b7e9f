"""Read text with tags: free text in which a trigger begins a tag, what stands in it, and its end.

The forms are those that serving engines take as structural tags: `{"structures": .., "triggers": ..}`, and the newer
one of formats in each other. What a format derives becomes part of a `form.Grammar`. A JSON value stands in it as a
special token of its own, `VALUE` and the number of its schema, since only `tags/values.py` knows what it derives.

Text has one reading. Free text ends with the first trigger that occurs in it, or with the end of the tag that it stands
in, whichever comes first; of two that end at the same byte the longer one counts. A content of plain text ends where
the end of its tag first occurs. JSON, and what a grammar derives, end where they end; where these leave a text several
readings, as beside a grammar that is not regular, it is allowed if one of them is. With `at_least_one` a
text begins with a tag, as in XGrammar; with `at_least`, which is ours, there may be free text before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast

from ...automata import ops
from ...automata.budget import Budget, Meter
from ...automata.dfa import Dfa
from ...errors import ConstraintError, GrammarError, RegexError
from ..grammar import form
from ..grammar.analysis import check_productive
from ..grammar.form import EMPTY, Choice, Grammar, Node, Repeat, Rule, Special, Terminal, Text
from ..grammar.notations import STARTS, Syntax, reader_of
from ..grammar.regular import dfa_of
from ..grammar.special_tokens import TOKEN, VALUE
from ..json_schema.schema_hash import hash_of
from ..json_schema.source import read, shown
from ..regex.lower import engine_flags, to_dfa
from .checks import count_at, fields_of, flag_at, list_at, refuse, text_at, texts_at
from .occurrences import Ends, Occurrences
from .tagged_text import parts_of

_START = "\0text"


@dataclass(frozen=True, eq=False)
class Reading:
    """What text with tags derives, and the schemas of the JSON values in it.

    schemas: each with its JSON Pointer, and whether members may come in any order.
    """

    grammar: Grammar
    schemas: tuple[tuple[Any, str, bool], ...] = ()
    tokens: Mapping[str, str] = field(default_factory=dict)  # the JSON Pointer of each special token, by its name


def read_tags(source: Mapping[str, Any], meter: Meter) -> Reading:
    """Return what a structural tag derives.

    Raises ConstraintError, which begins with the JSON Pointer of what is at fault; RegexError, GrammarError for what
    stands in it; BudgetError.
    """
    reader = _Reader(meter)
    kind = source.get("type")
    if kind == "structural_tag" and "structures" in source:
        node = reader.older(source)
    elif kind == "structural_tag":
        fields_of(source, "", {"type", "format"})
        node = reader.format(source["format"], "/format")
    else:
        node = reader.format(source, "")
    return Reading(Grammar({_START: node, **reader.rules}, _START), tuple(reader.schemas), reader.tokens)


# ------------------------------------------------------------------------------------------------------ reading

_KINDS = (
    "const_string", "json_schema", "regex", "grammar", "any_text", "token", "sequence", "or", "optional", "plus",
    "star", "repeat", "tag", "triggered_tags", "token_triggered_tags", "tags_with_separator",
)  # fmt: skip
_MOST_CHARS = 10**9
_PLAIN = ("const_string", "regex", "any_text", "sequence", "or", "optional", "plus", "star", "repeat")
_REFUSED = {
    "qwen_xml_parameter": "parameters written as XML are not supported: take json_schema, or a regex of the parameters",
    "dispatch": "write it as triggered_tags, each pattern the begin of a tag",
    "token_dispatch": "write it as token_triggered_tags, each token the begin of a tag",
    "exclude_token": "which token a text is written in is not constrained: say which texts may stand here",
    "any_tokens": "which tokens a text is written in is not constrained: take any_text",
}


@dataclass
class _Reader:
    """Reads formats, each into what it derives; with `ends`, into that and the end of the tag that it stands in."""

    meter: Meter
    rules: dict[str, Node] = field(default_factory=dict)
    schemas: list[tuple[Any, str, bool]] = field(default_factory=list)
    known: dict[str, int] = field(default_factory=dict)  # numbers of schemas by what they say
    tokens: dict[str, str] = field(default_factory=dict)
    grammars: int = 0

    def format(self, value: Any, where: str, ends: Ends = ()) -> Node:
        """Return what a format derives, before one of `ends` if there are any."""
        self.meter.check(doing="reading a structural tag")
        if not isinstance(value, Mapping):
            refuse(where, f"a format is an object, not {shown(value)}")
        kind = value.get("type")
        if isinstance(kind, str) and kind in _REFUSED:
            refuse(where, f"the format {kind!r} is not supported: {_REFUSED[kind]}")
        if kind not in _KINDS:
            refuse(where, f"the format {shown(kind)} is not known: it is one of {', '.join(_KINDS)}")
        read_one: Callable[[Mapping[str, Any], str, Ends], Node] = getattr(self, f"_{kind}")
        return read_one(value, where, ends)

    def older(self, source: Mapping[str, Any]) -> Node:
        """Return what the older form derives, in which all tags have schemas."""
        fields_of(source, "", {"type", "structures", "triggers"})
        tags = []
        for i, each in enumerate(list_at(source["structures"], "/structures", empty=False)):
            where = f"/structures/{i}"
            fields_of(each, where, {"begin", "schema", "end"})
            begin = text_at(each["begin"], f"{where}/begin", empty=False)
            value = self._value(each["schema"], f"{where}/schema")
            tags.append((begin, _followed(value, (text_at(each["end"], f"{where}/end"),)), f"{where}/begin"))
        return self._free(tags, texts_at(source["triggers"], "/triggers"), 0, None, False, [], "/triggers", ())

    # -------------------------------------------------------------------------------------------- plain contents

    def _const_string(self, value: Mapping[str, Any], where: str, ends: Ends) -> Node:
        fields_of(value, where, {"type", "value"})
        return self._ended(Text(text_at(value["value"], f"{where}/value")), where, ends)

    def _regex(self, value: Mapping[str, Any], where: str, ends: Ends) -> Node:
        fields_of(value, where, {"type", "pattern"}, ("flags",))
        pattern = value["pattern"]
        if not isinstance(pattern, str):
            refuse(f"{where}/pattern", f"a text is needed, not {shown(pattern)}")
        flags = value.get("flags", engine_flags(pattern))
        if not isinstance(flags, str):
            refuse(f"{where}/flags", f"a text is needed, not {shown(flags)}")
        try:
            dfa = to_dfa(pattern, flags=flags, meter=self.meter)
        except RegexError as error:
            raise error.at(f"{where}/pattern") from None
        except ConstraintError as error:
            raise error.at(f"{where}/flags") from None
        if dfa.is_empty:
            refuse(f"{where}/pattern", f"the pattern matches nothing: {pattern!r}")
        return self._ended(Terminal(f"the pattern at {where}", dfa), where, ends)

    def _any_text(self, value: Mapping[str, Any], where: str, ends: Ends) -> Node:
        fields_of(value, where, {"type"}, ("excludes", "max_tokens", "max_chars"))
        if value.get("max_tokens") is not None:
            refuse(
                f"{where}/max_tokens", "tokens within a text are not counted: take max_chars, or Matcher(max_tokens=)"
            )
        dfa = self._without(texts_at(value.get("excludes", []), f"{where}/excludes"))
        most = value.get("max_chars")
        if most is not None:
            if count_at(most, f"{where}/max_chars") > _MOST_CHARS:
                refuse(f"{where}/max_chars", f"the most is {_MOST_CHARS:,}: leave it out for text of any length")
            bound = to_dfa(f"(?s:.{{0,{most}}})", meter=self.meter)
            dfa = ops.intersection(dfa, bound, self.meter)
        return self._ended(Terminal(f"the text at {where}", dfa), where, ends)

    def _token(self, value: Mapping[str, Any], where: str, ends: Ends) -> Node:
        return _followed(self._special(value, where), ends)

    def _json_schema(self, value: Mapping[str, Any], where: str, ends: Ends) -> Node:
        fields_of(value, where, {"type", "json_schema"}, ("style", "any_order", "max_whitespace_cnt", "excludes"))
        if value.get("style", "json") != "json":
            refuse(f"{where}/style", f"values are written as JSON, not as {shown(value['style'])}")
        any_order = flag_at(value, "any_order", where)
        if value.get("max_whitespace_cnt") is not None:
            refuse(f"{where}/max_whitespace_cnt", "where white space may stand is said for all: whitespace='compact'")
        if value.get("excludes") is not None and texts_at(value["excludes"], f"{where}/excludes"):
            refuse(f"{where}/excludes", "texts are excluded from strings by the schema: give them a pattern")
        return _followed(self._value(value["json_schema"], f"{where}/json_schema", any_order), ends)

    def _value(self, schema: Any, where: str, any_order: bool = False) -> Node:
        if not isinstance(schema, (Mapping, bool, str, bytes, bytearray, type)):
            refuse(where, f"a schema is an object, true or false, not {shown(schema)}")
        try:
            contents = read(dict(schema) if isinstance(schema, Mapping) else schema, where)
        except TypeError as error:
            raise TypeError(f"{where}: {error}") from None
        number = self.known.setdefault(hash_of(contents, None, any_order), len(self.schemas))
        if number == len(self.schemas):
            self.schemas.append((contents, where, any_order))
        return Special(f"{VALUE}{number}")

    def _grammar(self, value: Mapping[str, Any], where: str, ends: Ends) -> Node:
        fields_of(value, where, {"type", "grammar"}, ("syntax", "start"))
        text, syntax = value["grammar"], value.get("syntax", "ebnf")
        if not isinstance(text, str):
            refuse(f"{where}/grammar", f"a text is needed, not {shown(text)}")
        if not isinstance(syntax, str) or syntax not in STARTS:
            refuse(f"{where}/syntax", f"the syntax is one of {', '.join(STARTS)}, not {shown(syntax)}")
        start = value.get("start", STARTS[syntax])
        if not isinstance(start, str):
            refuse(f"{where}/start", f"the name of a rule is needed, not {shown(start)}")
        try:
            read_one = reader_of(cast(Syntax, syntax))(text, start=start, meter=self.meter)
            check_productive(read_one)
        except GrammarError as error:
            raise error.at(f"{where}/grammar") from None
        prefix = f"{self.grammars}\0"
        self.grammars += 1
        spaces = (
            EMPTY if read_one.ignored is None else Repeat(Terminal(f"what {where} ignores", read_one.ignored), 0, None)
        )
        for name, body in read_one.rules.items():
            self.rules[prefix + name] = _renamed(body, prefix, spaces)
        return _followed(form.Sequence((spaces, Rule(prefix + read_one.start))), ends)

    # ------------------------------------------------------------------------------------------- put together

    def _sequence(self, value: Mapping[str, Any], where: str, ends: Ends) -> Node:
        fields_of(value, where, {"type", "elements"})
        elements = list(enumerate(list_at(value["elements"], f"{where}/elements", empty=False)))
        apart = len(elements) - (bool(ends) and not _is_plain(value))  # otherwise the last ends where the tag does
        nodes = [self.format(each, f"{where}/elements/{i}", () if i < apart else ends) for i, each in elements]
        whole = form.Sequence(tuple(nodes))
        return whole if apart < len(elements) else self._ended(whole, where, ends)

    def _or(self, value: Mapping[str, Any], where: str, ends: Ends) -> Node:
        fields_of(value, where, {"type", "elements"})
        elements = list_at(value["elements"], f"{where}/elements", empty=False)
        return Choice(tuple(self.format(each, f"{where}/elements/{i}", ends) for i, each in enumerate(elements)))

    def _repeated(self, value: Mapping[str, Any], where: str, ends: Ends, low: int, high: int | None) -> Node:
        node = Repeat(self.format(value["content"], f"{where}/content"), low, high)
        return self._ended(node, where, ends) if _is_plain(value) else _followed(node, ends)

    def _optional(self, value: Mapping[str, Any], where: str, ends: Ends) -> Node:
        return self._repeated(fields_of(value, where, {"type", "content"}), where, ends, 0, 1)

    def _plus(self, value: Mapping[str, Any], where: str, ends: Ends) -> Node:
        return self._repeated(fields_of(value, where, {"type", "content"}), where, ends, 1, None)

    def _star(self, value: Mapping[str, Any], where: str, ends: Ends) -> Node:
        return self._repeated(fields_of(value, where, {"type", "content"}), where, ends, 0, None)

    def _repeat(self, value: Mapping[str, Any], where: str, ends: Ends) -> Node:
        fields_of(value, where, {"type", "content", "min", "max"})
        low = count_at(value["min"], f"{where}/min")
        high = None if type(value["max"]) is int and value["max"] == -1 else count_at(value["max"], f"{where}/max")
        if high is not None and high < low:
            refuse(f"{where}/max", f"at most {high} times is less than at least {low}")
        return self._repeated(value, where, ends, low, high)

    # --------------------------------------------------------------------------------------------------- tags

    def _tag(self, value: Mapping[str, Any], where: str, ends: Ends) -> Node:
        begin, inside = self._parts(value, where)
        return _followed(form.Sequence((_spelt(begin), inside)), ends)

    def _parts(self, value: Mapping[str, Any], where: str) -> tuple[bytes | Special, Node]:
        """Return the begin of a tag, and what it derives after that."""
        fields_of(value, where, {"begin", "content", "end"}, ("type",))
        if value.get("type", "tag") != "tag":
            refuse(f"{where}/type", f"a tag is needed here, not {shown(value['type'])}")
        begin, end = value["begin"], value["end"]
        first: bytes | Special = (
            self._special(begin, f"{where}/begin") if isinstance(begin, Mapping) else text_at(begin, f"{where}/begin")
        )
        content, inside = value["content"], f"{where}/content"
        if isinstance(end, Mapping):
            return first, form.Sequence((self.format(content, inside), self._special(end, f"{where}/end")))
        several = [end] if isinstance(end, str) else list_at(end, f"{where}/end", empty=False)
        ends = tuple(text_at(each, f"{where}/end") for each in several)
        if b"" in ends:  # nothing says where it ends but the content itself
            return first, _followed(self.format(content, inside), ends)
        return first, self.format(content, inside, ends)

    def _triggered_tags(self, value: Mapping[str, Any], where: str, ends: Ends) -> Node:
        more = ("at_least_one", "stop_after_first", "excludes", "at_least", "at_most")
        fields_of(value, where, {"type", "triggers", "tags"}, more)
        triggers = texts_at(value["triggers"], f"{where}/triggers")
        return self._triggered(value, where, ends, triggers, texts_at(value.get("excludes", []), f"{where}/excludes"))

    def _token_triggered_tags(self, value: Mapping[str, Any], where: str, ends: Ends) -> Node:
        more = ("at_least_one", "stop_after_first", "exclude_tokens", "at_least", "at_most")
        fields_of(value, where, {"type", "trigger_tokens", "tags"}, more)
        if value.get("exclude_tokens"):
            refuse(
                f"{where}/exclude_tokens", "free text has no special tokens, and no others are excluded: leave it out"
            )
        given = value["trigger_tokens"]
        triggers = {
            self._special({"token": each}, f"{where}/trigger_tokens/{i}").name
            for i, each in enumerate(list_at(given, f"{where}/trigger_tokens"))
        }
        begins = set()
        for i, tag in enumerate(list_at(value["tags"], f"{where}/tags", empty=False)):
            begin = tag.get("begin") if isinstance(tag, Mapping) else None
            if not isinstance(begin, Mapping):
                refuse(f"{where}/tags/{i}", 'its begin must be a token, {"type": "token", "token": ..}')
            begins.add(self._special(begin, f"{where}/tags/{i}/begin").name)
        for name in sorted(begins ^ triggers):
            refuse(
                f"{where}/trigger_tokens", f"{_called(name)} must be a trigger and the begin of a tag: it is only one"
            )
        return self._triggered(value, where, ends, [], [])

    def _triggered(
        self, value: Mapping[str, Any], where: str, ends: Ends, triggers: list[bytes], excludes: list[bytes]
    ) -> Node:
        tags = []
        for i, tag in enumerate(list_at(value["tags"], f"{where}/tags", empty=False)):
            at = f"{where}/tags/{i}"
            tags.append((*self._parts(tag, at), f"{at}/begin"))
        low, high, stop = self._counts(value, where)
        begun = flag_at(value, "at_least_one", where)
        return self._free(tags, triggers, low, high, stop, excludes, f"{where}/triggers", ends, begun)

    def _counts(self, value: Mapping[str, Any], where: str) -> tuple[int, int | None, bool]:
        """Return how many tags there are at least and at most, and whether the first is the last."""
        low = count_at(value.get("at_least", 0), f"{where}/at_least")
        low = max(low, int(flag_at(value, "at_least_one", where)))
        high = value.get("at_most")
        if high is not None and count_at(high, f"{where}/at_most") < low:
            refuse(f"{where}/at_most", f"at most {high} tags are fewer than at least {low}")
        stop = flag_at(value, "stop_after_first", where)
        if stop and low > 1:
            refuse(f"{where}/stop_after_first", f"the first tag cannot be the last of at least {low}")
        return low, high, stop

    def _free(
        self, tags: Sequence[tuple[bytes | Special, Node, str]], triggers: list[bytes], low: int, high: int | None,
        stop: bool, excludes: list[bytes], where: str, ends: Ends, begun: bool = False,
    ) -> Node:  # fmt: skip
        """Return free text with tags in it; tags: the begin of each, what comes after it, and where that stands.

        begun: the first tag comes before any free text.
        """
        found = Occurrences([*triggers, *ends, *excludes], self.meter)
        wins = [found.first(text) == text for text in triggers]
        live = list(dict.fromkeys(text for text, wins_it in zip(triggers, wins, strict=True) if wins_it))
        for text in live:
            if text in ends or text in excludes:
                refuse(
                    where, f"{_shown(text)} cannot be a trigger and {'an end' if text in ends else 'excluded'} as well"
                )
        behind: dict[bytes, list[Node]] = {text: [] for text in live}
        quiet = Terminal(f"free text ({where})", self._occurring(found, None))
        rounds: list[Node] = []
        tagged = [form.Sequence((_spelt(begin), inside)) for begin, inside, _ in tags]
        for begin, inside, at in tags:
            if isinstance(begin, Special):
                rounds.append(form.Sequence((quiet, begin, inside)))
                continue
            trigger = next((text for text in live if begin.startswith(text)), None)
            if trigger is None:
                lost = next((text for text in triggers if begin.startswith(text)), None)
                if lost is None:
                    refuse(at, f"no trigger is the beginning of {_shown(begin)}, so that this tag could never begin")
                refuse(
                    at, f"its trigger {_shown(lost)} never occurs: {_shown(found.first(lost))} occurs within it first"
                )
            behind[trigger].append(form.Sequence((Text(begin[len(trigger) :]), inside)))
        for text, nodes in behind.items():
            if not nodes:
                refuse(where, f"no tag begins with the trigger {_shown(text)}, so that it could never be written")
            up_to = Terminal(f"free text up to {_shown(text)}", self._occurring(found, (text,)))
            rounds.append(form.Sequence((up_to, Choice(tuple(nodes)))))
        last: Node = quiet
        if ends:
            last = Terminal(f"free text up to an end ({where})", self._occurring(found, ends))
            if last.dfa.is_empty:
                refuse(
                    where,
                    f"the end of the tag around, {_shown(ends[0])}, never occurs: a trigger, or a text that is "
                    "excluded, occurs within it first",
                )
        if begun and stop:
            return _followed(Choice(tuple(tagged)), ends)
        if begun:
            others = Repeat(Choice(tuple(rounds)), max(low - 1, 0), None if high is None else high - 1)
            return form.Sequence((Choice(tuple(tagged)), others, last))
        if not stop or high == 0:
            return form.Sequence((Repeat(Choice(tuple(rounds)), low, high), last))
        once = _followed(Choice(tuple(rounds)), ends)
        return once if low else Choice((once, last))

    def _tags_with_separator(self, value: Mapping[str, Any], where: str, ends: Ends) -> Node:
        more = ("at_least_one", "stop_after_first", "at_least", "at_most")
        fields_of(value, where, {"type", "tags", "separator"}, more)
        tags: list[Node] = []
        for i, tag in enumerate(list_at(value["tags"], f"{where}/tags", empty=False)):
            begin, inside = self._parts(tag, f"{where}/tags/{i}")
            tags.append(form.Sequence((_spelt(begin), inside)))
        separator, one = Text(text_at(value["separator"], f"{where}/separator")), Choice(tuple(tags))
        low, high, stop = self._counts(value, where)
        high = 1 if stop and high != 0 else high
        if high == 0:
            return _followed(Repeat(one, 0, 0), ends)
        others = Repeat(form.Sequence((separator, one)), max(low - 1, 0), None if high is None else high - 1)
        node: Node = form.Sequence((one, others))
        return _followed(node if low else Choice((EMPTY, node)), ends)

    # --------------------------------------------------------------------------------------------- automata

    def _ended(self, node: Node, where: str, ends: Ends) -> Node:
        """Return the node of a plain format and one of the ends after it, the first that occurs."""
        if not ends:
            return node
        found = Occurrences(ends, self.meter)
        each = []
        for end in ends:  # whichever occurs first says what the content is
            both = dfa_of(_followed(node, (end,)), self.meter)
            each.append(ops.intersection(both, found.dfa((end,), self.meter), self.meter))
        dfa = ops.unions(each, self.meter)
        if dfa.is_empty:
            refuse(
                where,
                f"whatever this is, an end of its tag, {_shown(ends[0])}, occurs within it first: take another end",
            )
        return Terminal(f"what {where} says, and its end", dfa)

    def _occurring(self, found: Occurrences, which: Ends | None) -> Dfa:
        return ops.intersection(found.dfa(which, self.meter), _any_text(), self.meter)

    def _without(self, texts: list[bytes]) -> Dfa:
        return self._occurring(Occurrences(texts, self.meter), None) if texts else _any_text()

    def _special(self, value: Mapping[str, Any], where: str) -> Special:
        """Return the token that a format names, by text or id."""
        fields_of(value, where, {"token"}, ("type",))
        if value.get("type", "token") != "token":
            refuse(where, f'a token is needed, {{"type": "token", "token": ..}}, not {shown(value["type"])}')
        token = value["token"]
        if isinstance(token, str) and token and "\0" not in token:
            name = token
        elif isinstance(token, int) and not isinstance(token, bool):
            name = f"{TOKEN}{token}"
        else:
            refuse(f"{where}/token", f"a token is given by its name or its id, not by {shown(token)}")
        self.tokens.setdefault(name, f"{where}/token")
        return Special(name)


def _spelt(begin: bytes | Special) -> Node:
    return Text(begin) if isinstance(begin, bytes) else begin


def _called(name: str) -> str:
    return f"token {name.removeprefix(TOKEN)}" if name.startswith(TOKEN) else repr(name)


def _shown(text: bytes) -> str:
    return repr(text.decode(errors="backslashreplace"))


def _followed(node: Node, ends: Ends) -> Node:
    """Return a node and one of the ends after it, wherever it ends."""
    return form.Sequence((node, Choice(tuple(map(Text, ends))))) if ends else node


def _renamed(node: Node, prefix: str, spaces: Node) -> Node:
    """Return a node of a grammar with other names of rules, and what it ignores after each terminal."""
    if isinstance(node, Rule):
        return Rule(prefix + node.name)
    if isinstance(node, (form.Sequence, Choice)):
        return type(node)(tuple(_renamed(item, prefix, spaces) for item in node.items))
    if isinstance(node, Repeat):
        return Repeat(_renamed(node.item, prefix, spaces), node.low, node.high)
    return node if spaces is EMPTY else form.Sequence((node, spaces))


def _is_plain(value: Any) -> bool:
    """Whether a format is put together from texts and patterns alone, without tags."""
    return isinstance(value, Mapping) and value.get("type") in _PLAIN and all(map(_is_plain, parts_of(value)))


@lru_cache(1)
def _any_text() -> Dfa:
    return to_dfa("(?s:.*)", meter=Budget().begin())
