"""Read text with tags: free text in which a trigger begins a tag, what stands in it, and its end.

The forms are those that serving engines take as structural tags: `{"structures": .., "triggers": ..}`, and the newer
one of formats in each other. What a format derives becomes part of a `form.Grammar`. A JSON value stands in it as a
special token of its own, `VALUE` and the number of its schema, since only `tags/values.py` knows what it derives.

Free text has one end, see `docs/reference/tags.md`: it holds none of the texts that end it. These are the triggers, the
ends of the tag that it stands in, and the texts with one of which what stands next begins. What stands next is known
before it is read (`openings.py`), so free text is an automaton of its own. `stretches.py` keeps the end of a tag out of
its other text. JSON, and what a grammar derives, end where they end; where these leave a text several readings, as
beside a grammar that is not regular, it is allowed if one of them is. With `at_least_one` a text begins with a tag, as
in XGrammar; with `at_least`, which is ours, there may be free text before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, cast

from ...automata import ops
from ...automata.budget import Budget, Meter
from ...automata.dfa import Dfa
from ...errors import Advice, ConstraintError, GrammarError, RegexError
from ...vocabulary.vocabulary import MARKS, Vocabulary
from ..grammar import form
from ..grammar.analysis import check_productive
from ..grammar.form import EMPTY, Choice, Grammar, Node, Repeat, Rule, Special, Terminal, Text
from ..grammar.notations import STARTS, Syntax, reader_of
from ..grammar.special_tokens import VALUE, replaced
from ..json_schema.schema_hash import hash_of
from ..json_schema.source import read, shown
from ..regex.lower import engine_flags, to_dfa
from .checks import count_at, fields_of, flag_at, list_at, refuse, text_at, texts_at
from .control_tokens import ControlTokens, token_name
from .ending import ended
from .occurrences import Ends, Occurrences
from .openings import Openings
from .parameters import Schema, Spelling
from .stretches import NeverError, Sealed, Stretches
from .styles import STYLES

_START = "\0text"


@dataclass(frozen=True, eq=False)
class Reading:
    """What text with tags derives, and the schemas of the JSON values in it.

    schemas: in the order of their symbols. tokens: those that are a byte of
    `MARKS` in texts of the grammar, in that order.
    """

    grammar: Grammar
    schemas: tuple[Schema, ...] = ()
    tokens: tuple[int, ...] = ()


def read_tags(source: Mapping[str, Any], meter: Meter, vocabulary: Vocabulary) -> Reading:
    """Return what a structural tag derives.

    vocabulary: whose control tokens texts name.

    Raises ConstraintError, which begins with the JSON Pointer of what is at fault; RegexError, GrammarError for what
    stands in it; BudgetError.
    """
    tokens = ControlTokens(vocabulary)
    reader = _Reader(meter, tokens, Openings(tokens, meter))
    kind = source.get("type")
    if kind == "structural_tag" and "structures" in source:
        node = reader.older(source)
    elif kind == "structural_tag":
        fields_of(source, "", {"type", "format"})
        node = reader.format(source["format"], "/format", _NOTHING)
    else:
        node = reader.format(source, "", _NOTHING)
    if tokens.ends:
        up_to_end = ended(node)
        if up_to_end is None:
            refuse("", "a token that ends a text stands where more must follow: nothing can follow it")
        node = up_to_end
    return Reading(Grammar({_START: node, **reader.rules}, _START), tuple(reader.schemas), tuple(tokens.order))


# ------------------------------------------------------------------------------------------------------ reading

KINDS = (
    "const_string", "json_schema", "regex", "grammar", "any_text", "token", "sequence", "or", "optional", "plus",
    "star", "repeat", "tag", "triggered_tags", "token_triggered_tags", "tags_with_separator", "qwen_xml_parameter",
)  # fmt: skip
_MOST_CHARS = 10**9
REFUSED = {
    "dispatch": "write it as triggered_tags, each pattern the begin of a tag",
    "token_dispatch": "write it as token_triggered_tags, each token the begin of a tag",
    "exclude_token": "which token a text is written in is not constrained: say which texts may stand here",
    "any_tokens": "which tokens a text is written in is not constrained: take any_text",
}


class _Around(NamedTuple):
    """What ends free text at the end of a format."""

    ends: Ends  # of the tag that it stands in
    nexts: Ends | None  # with one of these texts what follows begins; None where no text must follow
    alone: bool = False  # the tag has other ends, for which its content is read again
    begin: bytes = b""  # of the tag that it stands in


_NOTHING = _Around((), None)


class _UnequalError(ConstraintError):
    """Of two texts that may end free text, each allows other texts before it."""

    nexts: Ends = ()


@dataclass
class _Reader:
    """Reads formats, each into what it derives."""

    meter: Meter
    tokens: ControlTokens
    openings: Openings
    rules: dict[str, Node] = field(default_factory=dict)
    schemas: list[Schema] = field(default_factory=list)
    known: dict[str, int] = field(default_factory=dict)  # numbers of schemas by what they say
    grammars: int = 0

    def format(self, value: object, where: str, around: _Around) -> Node:
        """Return what a format derives."""
        self.meter.check(doing="reading a structural tag")
        if not isinstance(value, Mapping):
            refuse(where, f"a format is an object, not {shown(value)}")
        kind = value.get("type")
        if isinstance(kind, str) and kind in REFUSED:
            refuse(where, f"the format {kind!r} is not supported: {REFUSED[kind]}")
        if kind not in KINDS:
            refuse(where, f"the format {shown(kind)} is not known: it is one of {', '.join(KINDS)}")
        read_one: Callable[[Mapping[str, Any], str, _Around], Node] = getattr(self, f"_{kind}")
        return read_one(value, where, around)

    def older(self, source: Mapping[str, Any]) -> Node:
        """Return what the older form derives, in which all tags have schemas."""
        fields_of(source, "", {"type", "structures", "triggers"}, ("at_least_one", "stop_after_first"))
        begun, stop = flag_at(source, "at_least_one", ""), flag_at(source, "stop_after_first", "")
        tags = []
        for i, each in enumerate(list_at(source["structures"], "/structures", empty=False)):
            where = f"/structures/{i}"
            fields_of(each, where, {"begin", "schema", "end"})
            begin = self._text(each["begin"], f"{where}/begin", empty=False)
            value, end = self._value(each["schema"], f"{where}/schema"), self._text(each["end"], f"{where}/end")
            tags.append((begin, form.Sequence((value, Text(end))), f"{where}/begin"))
        counts = _Counts(int(begun), None, stop, begun)
        return self._free(tags, self._texts(source["triggers"], "/triggers"), counts, [], "/triggers", _NOTHING)

    # -------------------------------------------------------------------------------------------- plain contents

    def _const_string(self, value: Mapping[str, Any], where: str, around: _Around) -> Node:
        fields_of(value, where, {"type", "value"})
        return Text(self._text(value["value"], f"{where}/value"))

    def _regex(self, value: Mapping[str, Any], where: str, around: _Around) -> Node:
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
        self.tokens.check_pattern(pattern, flags, f"{where}/pattern")
        if dfa.is_empty:
            refuse(f"{where}/pattern", f"the pattern matches nothing: {pattern!r}")
        return Terminal(f"the pattern at {where}", dfa)

    def _any_text(self, value: Mapping[str, Any], where: str, around: _Around) -> Node:
        fields_of(value, where, {"type"}, ("excludes", "max_tokens", "max_chars"))
        if value.get("max_tokens") is not None:
            refuse(
                f"{where}/max_tokens", "tokens within a text are not counted: take max_chars, or Matcher(max_tokens=)"
            )
        excluded = self._texts(value.get("excludes", []), f"{where}/excludes")
        dfa = ops.intersection(Occurrences(excluded, self.meter).quiet(self.meter), _any_text(), self.meter)
        most = value.get("max_chars")
        if most is not None:
            if count_at(most, f"{where}/max_chars") > _MOST_CHARS:
                refuse(f"{where}/max_chars", f"the most is {_MOST_CHARS:,}: leave it out for text of any length")
            bound = to_dfa(f"(?s:.{{0,{most}}})", meter=self.meter)
            dfa = ops.intersection(dfa, bound, self.meter)
        found = Occurrences([*around.ends, *(around.nexts or ())], self.meter)
        return Terminal(f"the text at {where}", self._before(found, dfa, around, where))

    def _token(self, value: Mapping[str, Any], where: str, around: _Around) -> Node:
        return Text(self._special(value, where))

    def _json_schema(self, value: Mapping[str, Any], where: str, around: _Around) -> Node:
        fields_of(value, where, {"type", "json_schema"}, ("style", "any_order", "max_whitespace_cnt", "excludes"))
        any_order, name = flag_at(value, "any_order", where), value.get("style", "json")
        if value.get("max_whitespace_cnt") is not None:
            refuse(f"{where}/max_whitespace_cnt", "where white space may stand is said for all: whitespace='compact'")
        excluded = [] if value.get("excludes") is None else texts_at(value["excludes"], f"{where}/excludes")
        if name == "json":
            if excluded:
                refuse(f"{where}/excludes", "texts are excluded from strings by the schema: give them a pattern")
            return self._value(value["json_schema"], f"{where}/json_schema", any_order)
        return self._styled(value["json_schema"], f"{where}/json_schema", name, around, excluded, any_order)

    def _qwen_xml_parameter(self, value: Mapping[str, Any], where: str, around: _Around) -> Node:
        fields_of(value, where, {"type", "json_schema"})
        return self._styled(value["json_schema"], f"{where}/json_schema", "qwen_xml", around, [], False)

    def _styled(
        self, schema: object, where: str, name: object, around: _Around, excluded: list[str], any_order: bool
    ) -> Node:  # fmt: skip
        """Return the symbol of parameters in a style. excluded: what no value holds, beside what the style names."""
        if not isinstance(name, str) or name not in STYLES:
            at = where.removesuffix("json_schema")
            refuse(f"{at}style", f"the style is one of json, {', '.join(STYLES)}, not {shown(name)}")
        style = STYLES[name]
        texts = {text: self.tokens.spelled(text, where) for text in style.texts}
        ends = [end.decode() for end in around.ends if not set(end) & set(MARKS)]
        held = "|".join((*style.ends, *(re.escape(text) for text in (*excluded, *ends) if text)))
        lines = style.cuts_one and around.begin.endswith(b"\n")
        return self._value(schema, where, any_order, Spelling(name, style, held, lines, texts))

    def _value(self, schema: object, where: str, any_order: bool = False, spelling: Spelling | None = None) -> Node:
        if not isinstance(schema, (Mapping, bool, str, bytes, bytearray, type)):
            refuse(where, f"a schema is an object, true or false, not {shown(schema)}")
        try:
            contents = read(dict(schema) if isinstance(schema, Mapping) else schema, where)
        except TypeError as error:
            raise TypeError(f"{where}: {error}") from None
        key = hash_of(contents, None, any_order)
        if spelling is not None:
            key += f" {spelling.name} {spelling.lines} {spelling.held}"
        number = self.known.setdefault(key, len(self.schemas))
        if number == len(self.schemas):
            self.schemas.append((contents, where, any_order, spelling))
        return Special(f"{VALUE}{number}")

    def _grammar(self, value: Mapping[str, Any], where: str, around: _Around) -> Node:
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
        values = {f"{VALUE}{j}": self._value_of(text, where) for j, (text, _) in enumerate(read_one.schemas)}
        for name, body in read_one.rules.items():
            self.tokens.check_grammar(body, f"{where}/grammar")
            self.rules[prefix + name] = _renamed(replaced(body, values), prefix, spaces)
        return Sealed((spaces, Rule(prefix + read_one.start)))

    def _value_of(self, schema: str, where: str) -> Node:
        """Return the symbol of a JSON value in a grammar."""
        contents = read(schema, f"{where}/grammar")
        if isinstance(contents, dict) and "x-guidance" in contents:
            refuse(f"{where}/grammar", "where white space may stand is said for all of a tag: leave x-guidance out")
        return self._value(schema, f"{where}/grammar")

    # ------------------------------------------------------------------------------------------- put together

    def _sequence(self, value: Mapping[str, Any], where: str, around: _Around) -> Node:
        fields_of(value, where, {"type", "elements"})
        elements = list_at(value["elements"], f"{where}/elements", empty=False)
        nexts = [around.nexts]  # of each element, the last first
        for each in reversed(elements[1:]):
            nexts.append(nexts[-1] if self.openings.is_empty(each) else self.openings.of(each))
        nodes = [
            self.format(each, f"{where}/elements/{i}", around._replace(nexts=nexts[-1 - i]))
            for i, each in enumerate(elements)
        ]
        return form.Sequence(tuple(nodes))

    def _or(self, value: Mapping[str, Any], where: str, around: _Around) -> Node:
        fields_of(value, where, {"type", "elements"})
        elements = list_at(value["elements"], f"{where}/elements", empty=False)
        return Choice(tuple(self.format(each, f"{where}/elements/{i}", around) for i, each in enumerate(elements)))

    def _repeated(self, value: Mapping[str, Any], where: str, around: _Around, low: int, high: int | None) -> Node:
        nexts = around.nexts
        if nexts is not None and high != 1:
            again = self.openings.of(value["content"])
            nexts = None if again is None else tuple(dict.fromkeys((*again, *nexts)))
        return Repeat(self.format(value["content"], f"{where}/content", around._replace(nexts=nexts)), low, high)

    def _optional(self, value: Mapping[str, Any], where: str, around: _Around) -> Node:
        return self._repeated(fields_of(value, where, {"type", "content"}), where, around, 0, 1)

    def _plus(self, value: Mapping[str, Any], where: str, around: _Around) -> Node:
        return self._repeated(fields_of(value, where, {"type", "content"}), where, around, 1, None)

    def _star(self, value: Mapping[str, Any], where: str, around: _Around) -> Node:
        return self._repeated(fields_of(value, where, {"type", "content"}), where, around, 0, None)

    def _repeat(self, value: Mapping[str, Any], where: str, around: _Around) -> Node:
        fields_of(value, where, {"type", "content", "min", "max"})
        low = count_at(value["min"], f"{where}/min")
        high = None if type(value["max"]) is int and value["max"] == -1 else count_at(value["max"], f"{where}/max")
        if high is not None and high < low:
            refuse(f"{where}/max", f"at most {high} times is less than at least {low}")
        return self._repeated(value, where, around, low, high)

    # --------------------------------------------------------------------------------------------------- tags

    def _tag(self, value: Mapping[str, Any], where: str, around: _Around) -> Node:
        begin, inside = self._parts(value, where)
        return Sealed((Text(begin), inside))

    def _parts(self, value: Mapping[str, Any], where: str) -> tuple[bytes, Node]:
        """Return the begin of a tag, and what it derives after that."""
        fields_of(value, where, {"begin", "content", "end"}, ("type",))
        if value.get("type", "tag") != "tag":
            refuse(f"{where}/type", f"a tag is needed here, not {shown(value['type'])}")
        begin, end = value["begin"], value["end"]
        first = self._text_or_token(begin, f"{where}/begin")
        if isinstance(end, (str, Mapping)):
            ends: Ends = (self._text_or_token(end, f"{where}/end"),)
        else:
            ends = tuple(self._text(each, f"{where}/end") for each in list_at(end, f"{where}/end", empty=False))
        content, inside = value["content"], f"{where}/content"
        if b"" in ends:  # nothing says where it ends but the content itself
            behind = Choice(tuple(map(Text, ends)))
            return first, form.Sequence((self.format(content, inside, _NOTHING._replace(begin=first)), behind))
        stretches = Stretches(ends, inside, self.tokens.shown, self.meter)
        try:
            return first, stretches.closed(self.format(content, inside, _Around(ends, ends, begin=first)), ends)
        except _UnequalError as error:
            if error.nexts != ends or len(ends) == 1:
                raise
        ways, lost = [], None
        for each in ends:  # what may stand before one of them is another thing than before the others
            try:
                ways.append(
                    stretches.closed(self.format(content, inside, _Around(ends, (each,), True, first)), (each,))
                )
            except NeverError as error:
                lost = error
        if not ways and lost is not None:
            raise lost
        return first, Choice(tuple(ways))

    def _triggered_tags(self, value: Mapping[str, Any], where: str, around: _Around) -> Node:
        more = ("at_least_one", "stop_after_first", "excludes", "at_least", "at_most")
        fields_of(value, where, {"type", "triggers", "tags"}, more)
        triggers = self._texts(value["triggers"], f"{where}/triggers")
        excludes = self._texts(value.get("excludes", []), f"{where}/excludes")
        return self._triggered(value, where, around, triggers, excludes)

    def _token_triggered_tags(self, value: Mapping[str, Any], where: str, around: _Around) -> Node:
        more = ("at_least_one", "stop_after_first", "exclude_tokens", "at_least", "at_most")
        fields_of(value, where, {"type", "trigger_tokens", "tags"}, more)
        if value.get("exclude_tokens"):
            refuse(
                f"{where}/exclude_tokens", "free text has no special tokens, and no others are excluded: leave it out"
            )
        given = value["trigger_tokens"]
        triggers = {
            self._special({"token": each}, f"{where}/trigger_tokens/{i}")
            for i, each in enumerate(list_at(given, f"{where}/trigger_tokens"))
        }
        begins = set()
        for i, tag in enumerate(list_at(value["tags"], f"{where}/tags", empty=False)):
            begin = tag.get("begin") if isinstance(tag, Mapping) else None
            if not isinstance(begin, Mapping):
                refuse(f"{where}/tags/{i}", 'its begin must be a token, {"type": "token", "token": ..}')
            begins.add(self._special(begin, f"{where}/tags/{i}/begin"))
        for mark in sorted(begins ^ triggers):
            refuse(
                f"{where}/trigger_tokens",
                f"{self.tokens.shown(mark)} must be a trigger and the begin of a tag: it is only one",
            )
        return self._triggered(value, where, around, [], [])

    def _triggered(
        self, value: Mapping[str, Any], where: str, around: _Around, triggers: list[bytes], excludes: list[bytes]
    ) -> Node:
        tags = []
        known = set(triggers)
        for i, tag in enumerate(list_at(value["tags"], f"{where}/tags", empty=False)):
            at = f"{where}/tags/{i}"
            begin, inside = self._parts(tag, at)
            tags.append((begin, inside, f"{at}/begin"))
            if isinstance(tag["begin"], Mapping) and begin not in known:
                known.add(begin)
                triggers.append(begin)  # a token is one byte, and its own trigger
        counts = self._counts(value, where, flag_at(value, "at_least_one", where))
        return self._free(tags, triggers, counts, excludes, f"{where}/triggers", around)

    def _counts(self, value: Mapping[str, Any], where: str, begun: bool) -> _Counts:
        """Return how many tags there are at least and at most, and whether the first is the last."""
        low = max(count_at(value.get("at_least", 0), f"{where}/at_least"), int(begun))
        high = value.get("at_most")
        if high is not None and count_at(high, f"{where}/at_most") < low:
            refuse(f"{where}/at_most", f"at most {high} tags are fewer than at least {low}")
        stop = flag_at(value, "stop_after_first", where)
        if stop and low > 1:
            refuse(f"{where}/stop_after_first", f"the first tag cannot be the last of at least {low}")
        return _Counts(low, high, stop, begun)

    def _free(
        self, tags: Sequence[tuple[bytes, Node, str]], triggers: list[bytes], counts: _Counts, excludes: list[bytes],
        where: str, around: _Around,
    ) -> Node:  # fmt: skip
        """Return free text with tags in it; tags: the begin of each, what comes after it, and where that stands."""
        ends, nexts = around.ends, around.nexts or ()
        found = Occurrences([*triggers, *ends, *nexts, *excludes], self.meter)
        wins = [found.first(text) == text for text in triggers]
        live = list(dict.fromkeys(text for text, wins_it in zip(triggers, wins, strict=True) if wins_it))
        taken = {**dict.fromkeys(excludes, "excluded"), **dict.fromkeys(nexts, "what follows")}
        taken.update(dict.fromkeys(ends, "an end"))
        for text in live:
            if text in taken:
                refuse(where, f"{self.tokens.shown(text)} cannot be a trigger and {taken[text]} as well")
        behind: dict[bytes, list[Node]] = {text: [] for text in live}
        said = self.tokens.shown
        tagged = [Sealed((Text(begin), inside)) for begin, inside, _ in tags]
        for (begin, _, at), tag in zip(tags, tagged, strict=True):
            trigger = found.prefix(begin, behind)
            if trigger is None:
                lost = next((text for text in triggers if begin.startswith(text)), None)
                if lost is None:
                    refuse(at, f"no trigger is the beginning of {said(begin)}, so that this tag could never begin")
                refuse(at, f"its trigger {said(lost)} never occurs: {said(found.first(lost))} occurs within it first")
            behind[trigger].append(tag)
        rounds: list[Node] = []
        for text, nodes in behind.items():
            if not nodes:
                refuse(
                    where,
                    f"no tag begins with the trigger {self.tokens.shown(text)}, so that it could never be written",
                )
            up_to = Terminal(
                f"free text up to {self.tokens.shown(text)}", self._up_to(found, _any_text(), text, (text,))
            )
            rounds.append(form.Sequence((up_to, Choice(tuple(nodes)))))
        low, high, stop, begun = counts
        if begun and stop:
            return Choice(tuple(tagged))
        last = Terminal(f"free text ({where})", self._before(found, _any_text(), around, where))
        if begun:
            others = Repeat(Choice(tuple(rounds)), max(low - 1, 0), None if high is None else high - 1)
            return form.Sequence((Choice(tuple(tagged)), others, last))
        if not stop or high == 0:
            return form.Sequence((Repeat(Choice(tuple(rounds)), low, high), last))
        once = Choice(tuple(rounds))
        return once if low else Choice((once, last))

    def _tags_with_separator(self, value: Mapping[str, Any], where: str, around: _Around) -> Node:
        more = ("at_least_one", "stop_after_first", "at_least", "at_most")
        fields_of(value, where, {"type", "tags", "separator"}, more)
        tags: list[Node] = []
        for i, tag in enumerate(list_at(value["tags"], f"{where}/tags", empty=False)):
            begin, inside = self._parts(tag, f"{where}/tags/{i}")
            tags.append(Sealed((Text(begin), inside)))
        separator, one = Text(self._text(value["separator"], f"{where}/separator")), Choice(tuple(tags))
        low, high, stop, _ = self._counts(value, where, flag_at(value, "at_least_one", where))
        high = 1 if stop and high != 0 else high
        if high == 0:
            return Repeat(one, 0, 0)
        others = Repeat(form.Sequence((separator, one)), max(low - 1, 0), None if high is None else high - 1)
        node: Node = form.Sequence((one, others))
        return node if low else Choice((EMPTY, node))

    # ---------------------------------------------------------------------------------------- texts and free text

    def _before(self, found: Occurrences, own: Dfa, around: _Around, where: str) -> Dfa:
        """Return the texts of a DFA in which nothing occurs that ends them, before a text that must follow."""
        if around.nexts is None:
            return ops.intersection(own, found.quiet(self.meter), self.meter)
        made = [self._up_to(found, own, each, around.nexts) for each in around.nexts]
        if not all(ops.equivalent(made[0], each) for each in made[1:]):
            several = " and ".join(map(self.tokens.shown, around.nexts))
            error = _UnequalError(
                f"free text ends here with one of {several}, which share letters, so that what stands before depends "
                "on which of them it is",
                pointer=where, remedies=[Advice("Write a sequence of the free text and what follows for each of them")],
            )  # fmt: skip
            error.nexts = around.nexts
            raise error
        if made[0].is_empty and not around.alone:
            what = "the end of the tag around" if around.nexts == around.ends else "what follows this free text"
            raise NeverError(
                f"{what}, {self.tokens.shown(around.nexts[0])}, never occurs: a trigger, or a text that is excluded, "
                "occurs within it first",
                pointer=where,
            )
        return made[0]

    def _up_to(self, found: Occurrences, own: Dfa, text: bytes, nexts: Ends) -> Dfa:
        """Return the texts of a DFA before a text, with which the first occurrence of anything begins: one of nexts."""
        return ops.intersection(own, found.quiet(self.meter, found.begun(text, nexts)), self.meter)

    def _text(self, value: object, where: str, empty: bool = True) -> bytes:
        return self.tokens.spelled(text_at(value, where, empty), where)

    def _texts(self, value: object, where: str) -> list[bytes]:
        return [self.tokens.spelled(each, f"{where}/{i}") for i, each in enumerate(texts_at(value, where))]

    def _text_or_token(self, value: object, where: str) -> bytes:
        return self._special(value, where) if isinstance(value, Mapping) else self._text(value, where)

    def _special(self, value: Mapping[str, Any], where: str) -> bytes:
        """Return the byte of the token that a format names, by text or id."""
        fields_of(value, where, {"token"}, ("type",))
        if value.get("type", "token") != "token":
            refuse(where, f'a token is needed, {{"type": "token", "token": ..}}, not {shown(value["type"])}')
        return self.tokens.mark(token_name(value["token"], f"{where}/token"), f"{where}/token")


class _Counts(NamedTuple):
    """How many tags there are in free text."""

    low: int = 0
    high: int | None = None
    stop: bool = False  # the first tag is the last
    begun: bool = False  # the first tag comes before any free text


def _renamed(node: Node, prefix: str, spaces: Node) -> Node:
    """Return a node of a grammar with other names of rules, and what it ignores after each terminal."""
    if isinstance(node, Rule):
        return Rule(prefix + node.name)
    if isinstance(node, (form.Sequence, Choice)):
        return type(node)(tuple(_renamed(item, prefix, spaces) for item in node.items))
    if isinstance(node, Repeat):
        return Repeat(_renamed(node.item, prefix, spaces), node.low, node.high)
    return node if spaces is EMPTY else form.Sequence((node, spaces))


@lru_cache(1)
def _any_text() -> Dfa:
    return to_dfa("(?s:.*)", meter=Budget().begin())
