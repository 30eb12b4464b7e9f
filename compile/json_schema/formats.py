"""The languages of the formats, each after its RFC, as DFAs over UTF-8; made when first asked for.

A few are known only between two bounds: `language` has only valid strings, `superset` has all valid ones, and `INEXACT`
says which strings lie between. The negation of a format is that of its superset, so that nothing is accepted wrongly.
Those of `IDN` need the library `idna`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...automata import ops, utf8
from ...automata.budget import Meter
from ...automata.dfa import BYTES, Dfa
from ...automata.minimize import canonical
from ...automata.nfa import Nfa
from ...automata.subsets import determinize
from .. import store
from ..regex.lower import to_dfa

IDN = frozenset({"idn-email", "idn-hostname"})
"""Formats that need the tables of the library `idna`."""

_LABELS = (
    "an internationalised label has at most 13 characters, or more where most of its letters are ASCII and the others "
    "Latin, since its length in Punycode depends on all of them at once. Its letters are of scripts in general use, "
    "none beyond U+D7A3, and Latin ones beyond ASCII stand beside no others. Letters from right to left have no marks, "
    "and only ASCII labels stand beside theirs. A joiner follows a virama or stands between letters that join. No mark "
    "follows a letter with which such a mark may compose, nor one of the same or a later combining class. Labels in "
    "Punycode (xn--) would have to be decoded"
)

INEXACT: Mapping[str, str] = {
    "byte": "where the last character's unused bits are not zero, decoders differ (RFC 4648, 3.5)",
    "date": "there was no year 0000, though RFC 3339 can write it",
    "date-time": "there was no year 0000, though RFC 3339 can write it, and second 60 is taken only where a leap "
    "second may be: at the end of June or December in UTC, with an offset of whole quarters of an hour",
    "hostname": "internationalised labels (xn--) would have to be decoded, and names of more than 127 octets "
    "are cut into pieces that bound their length",
    "idn-email": f"in a domain, {_LABELS}",
    "idn-hostname": "a name has at most four labels, the fourth of at most 61 octets, so that all are at most 253, and "
    f"{_LABELS}",
    "regex": "groups are taken up to two deep, without names, references back, property escapes and ranges such as b-y",
    "relative-json-pointer": "drafts differ on index manipulation, as in 0+1/a",
    "time": "second 60 is taken only where a leap second may be, with an offset of whole quarters of an hour",
    "uri-template": "operators that RFC 6570 reserves for the future are not taken, as in {=a}",
}


def language(name: str, meter: Meter) -> Dfa:
    """Return strings that are valid for a format of `KNOWN`: all of them, unless it is in `INEXACT`."""
    return _language(name)


def superset(name: str, meter: Meter) -> Dfa:
    """Return all strings that may be valid for a format of `KNOWN`: only valid ones, unless it is in `INEXACT`."""
    return _superset(name) if name in INEXACT else _language(name)


@cache
def _language(name: str) -> Dfa:
    dfa = _kept(f"format {name}", _FORMATS[name], _domain_names().TABLES if name in IDN else "")
    _made[id(dfa.transition)] = name
    return dfa


_made: dict[int, str] = {}  # formats by the identity of their transitions, which are never forgotten


def is_format(transition: NDArray[Any]) -> bool:
    """Return whether these are the transitions of a format's own automaton, which every schema shares."""
    return id(transition) in _made


@cache
def _superset(name: str) -> Dfa:
    return _kept(f"all that may be a {name}", SUPERSETS[name])


def _kept(name: str, make: Callable[[], Dfa], tables: str = "") -> Dfa:
    """Return the automaton of a name, from disk if this machine made it before: some take a second to make.

    tables: the versions of the tables of characters that it is made from.
    """
    key = store.name_of("format", name, tables, store.code())
    arrays: dict[str, NDArray[Any]] | None = store.load(key)
    if arrays is None:
        made = make()
        store.save(key, {"class_of": made.class_of, "transition": made.transition, "accepting": made.accepting})
        return made
    return Dfa(**arrays)


def _regex(pattern: str) -> Dfa:
    """Return the texts that a pattern in the ECMA dialect matches as a whole."""
    return to_dfa(pattern, dialect="ecma")


# ---------------------------------------------------------------------------------- dates and times (RFC 3339, 5.6)

_HOUR, _SIXTY = "(?:[01][0-9]|2[0-3])", "[0-5][0-9]"
_FRACTION = r"(?:\.[0-9]+)?"
_OFFSET = f"(?:[Zz]|[+-]{_HOUR}:{_SIXTY})"
_YEAR = "(?!0000)[0-9]{4}"
_LEAP_YEAR = "(?:[0-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"  # a century by 400
_MONTH_DAY = (
    "(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"  # of any year
)


def _date_pattern(year_0: bool) -> str:
    year, leap = ("[0-9]{4}", f"(?:{_LEAP_YEAR}|0000)") if year_0 else (_YEAR, _LEAP_YEAR)
    return f"(?:{year}-{_MONTH_DAY}|{leap}-02-29)"


def _date() -> Dfa:
    return _regex(_date_pattern(False))


def _leap_seconds(behind: bool, ahead: bool) -> str:
    """Return a pattern for times in second 60 of the last minute of a day in UTC.

    behind: those of places where it is still that day; ahead: of places where it is the next one.
    """
    found = []
    if behind:
        found.append(f"23:59:60{_FRACTION}(?:[Zz]|[+-]00:00)")
    for quarters in range(1, 96):
        hours, minutes = divmod(15 * quarters, 60)
        offset = f"{hours:02}:{minutes:02}"
        if behind:
            hour, minute = divmod(23 * 60 + 59 - 15 * quarters, 60)
            found.append(f"{hour:02}:{minute:02}:60{_FRACTION}-{offset}")
        if ahead:
            hour, minute = divmod(15 * quarters - 1, 60)
            found.append(f"{hour:02}:{minute:02}:60{_FRACTION}\\+{offset}")
    return f"(?:{'|'.join(found)})"


_PLAIN_TIME = f"{_HOUR}:{_SIXTY}:{_SIXTY}{_FRACTION}{_OFFSET}"


def _time() -> Dfa:
    return ops.union(_regex(_PLAIN_TIME), _regex(_leap_seconds(True, True)))


def _date_time() -> Dfa:
    plain = _regex(f"{_date_pattern(False)}[Tt]{_PLAIN_TIME}")
    here = _regex(f"{_YEAR}-(?:06-30|12-31)[Tt]{_leap_seconds(True, False)}")
    there = _regex(f"{_YEAR}-(?:07-01|01-01)[Tt]{_leap_seconds(False, True)}")
    return ops.union(plain, ops.union(here, there))


_ANY_TIME = f"{_HOUR}:{_SIXTY}:(?:{_SIXTY}|60){_FRACTION}{_OFFSET}"


def _duration() -> Dfa:  # RFC 3339, appendix A
    minute = "[0-9]+M(?:[0-9]+S)?"
    time = f"T(?:[0-9]+H(?:{minute})?|{minute}|[0-9]+S)"
    month = "[0-9]+M(?:[0-9]+D)?"
    date = f"(?:[0-9]+Y(?:{month})?|{month}|[0-9]+D)"
    return _regex(f"P(?:{date}(?:{time})?|{time}|[0-9]+W)")


# ------------------------------------------------------------------------------------------------------- addresses

_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_GROUP = "[0-9A-Fa-f]{1,4}"


def _ipv6_pattern() -> str:  # RFC 4291, 2.2, as RFC 3986 spells it out
    last = f"(?:{_GROUP}:{_GROUP}|{_IPV4})"
    forms = [f"(?:{_GROUP}:){{6}}{last}"]
    for after in range(5, -1, -1):
        before = "" if after == 5 else f"(?:(?:{_GROUP}:){{0,{4 - after}}}{_GROUP})?"
        forms.append(f"{before}::(?:{_GROUP}:){{{after}}}{last}")
    forms.append(f"(?:(?:{_GROUP}:){{0,5}}{_GROUP})?::{_GROUP}")
    forms.append(f"(?:(?:{_GROUP}:){{0,6}}{_GROUP})?::")
    return f"(?:{'|'.join(forms)})"


def _hostname() -> Dfa:
    """Return host names after RFC 1123, 2.1: labels of at most 63 octets, 253 in all.

    Exactly, that is 24,000 states. Here a name is cut behind the first label that ends at or after the 31st octet, and
    so on; no piece is longer than 63 octets, nor are there more than four, the last of 61. That holds every name of up
    to 127 octets whose labels have at most 32, and most others.
    """
    labels = _regex(r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*")
    foreign = _regex(r"(?:.*\.)?[Xx][Nn]--.*")
    longest, long_enough, pieces = 63, 31, 4
    class_of = np.zeros(BYTES, np.uint16)
    class_of[ord(".")] = 1
    transition = np.full((pieces, longest + 1, 2), -1, np.int32)
    place = np.arange(pieces * (longest + 1)).reshape(pieces, longest + 1)
    transition[:, :-1, 0] = place[:, 1:]
    transition[:, :-1, 1] = place[:, 1:]
    transition[:-1, long_enough:, 1] = place[1:, :1]
    transition[-1, longest - 2 :] = -1
    pieced = canonical(class_of, transition.reshape(-1, 2), np.ones(place.size, np.bool_))
    return ops.difference(ops.intersection(labels, pieced), foreign)


def _hostname_superset() -> Dfa:
    label = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
    return _regex(rf"{label}(?:\.{label})*")


def _label_pattern(beyond: str) -> str:
    letter = f"[A-Za-z0-9{beyond}]"
    return f"{letter}(?:[A-Za-z0-9{beyond}-]*{letter})?"


def _local_pattern(beyond: str) -> str:
    """Return a pattern for the Local-part of RFC 5321, 4.1.2; beyond: what RFC 6531 adds, to go between brackets."""
    atom = f"[A-Za-z0-9!#$%&'*+/=?^_`{{|}}~{beyond}-]+"
    text = rf"(?:[ !#-\[\]-~{beyond}]|\\[ -~])*"
    return rf'(?:{atom}(?:\.{atom})*|"{text}")'


def _address_literal_pattern() -> str:  # RFC 5321, 4.1.3
    number = "(?:25[0-5]|2[0-4][0-9]|[01]?[0-9]?[0-9])"
    ipv4 = rf"{number}(?:\.{number}){{3}}"

    def groups(count: int) -> str:
        return "" if not count else f"{_GROUP}(?::{_GROUP}){{{count - 1}}}"

    forms = [groups(8), f"{groups(6)}:{ipv4}"]
    for before in range(7):
        most = 6 - before
        forms.append(f"{groups(before)}::" + (f"(?:{_GROUP}(?::{_GROUP}){{0,{most - 1}}})?" if most else ""))
    forms += [f"{groups(before)}::(?:{_GROUP}:){{0,{4 - before}}}{ipv4}" for before in range(5)]
    return rf"\[(?:{ipv4}|[Ii][Pp][Vv]6:(?:{'|'.join(forms)}))\]"


def _email_pattern(beyond: str) -> str:
    """Return a pattern for the Mailbox of RFC 5321, 4.1.2; beyond: what RFC 6531 adds, to go between brackets."""
    label = _label_pattern(beyond)
    return rf"{_local_pattern(beyond)}@(?:{label}(?:\.{label})*|{_address_literal_pattern()})"


_NOT_ASCII = "\u0080-\U0010ffff"


def has_idna() -> bool:
    """Return whether the library that the formats of `IDN` need is installed."""
    return importlib.util.find_spec("idna") is not None


def _domain_names() -> ModuleType:
    from . import domain_names  # which imports `idna`

    return domain_names


def _idn_email() -> Dfa:
    """Return the Mailbox of RFC 6531, 3.3, with those domains whose labels are surely valid."""
    domain = _domain_names().mail_domain()
    return ops.concat(_regex(f"{_local_pattern(_NOT_ASCII)}@"), ops.union(domain, _regex(_address_literal_pattern())))


def _idn_hostname_superset() -> Dfa:
    label, dot = _label_pattern(_NOT_ASCII), "[.\u3002\uff0e\uff61]"
    return _regex(f"{label}(?:{dot}{label})*")


# --------------------------------------------------------------------------------- identifiers (RFC 3986, RFC 3987)

_UCS = "\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef" + "".join(
    f"{chr(plane << 16 | (0x1000 if plane == 14 else 0))}-{chr(plane << 16 | 0xFFFD)}" for plane in range(1, 15)
)
_PRIVATE = f"\ue000-\uf8ff{chr(0xF0000)}-{chr(0xFFFFD)}{chr(0x100000)}-{chr(0x10FFFD)}"
_ESCAPED = "%[0-9A-Fa-f]{2}"
_SUB = "!$&'()*+,;="


def _uri_pattern(beyond: str, private: str, relative: bool) -> str:
    unreserved = f"A-Za-z0-9._~{beyond}"
    char = f"(?:[{unreserved}{_SUB}:@-]|{_ESCAPED})"
    no_colon = f"(?:[{unreserved}{_SUB}@-]|{_ESCAPED})"
    user = f"(?:[{unreserved}{_SUB}:-]|{_ESCAPED})*"
    name = f"(?:[{unreserved}{_SUB}-]|{_ESCAPED})*"
    future = rf"[vV][0-9A-Fa-f]+\.[A-Za-z0-9._~{_SUB}:-]+"
    host = rf"(?:\[(?:{_ipv6_pattern()}|{future})\]|{name})"
    authority = f"(?:{user}@)?{host}(?::[0-9]*)?"
    segments = f"(?:/{char}*)*"
    rooted = f"//{authority}{segments}|/(?:{char}+{segments})?"
    query = rf"(?:\?(?:{char}|[/?{private}])*)?" if private else rf"(?:\?(?:{char}|[/?])*)?"
    end = f"{query}(?:#(?:{char}|[/?])*)?"
    absolute = f"[A-Za-z][A-Za-z0-9+.-]*:(?:{rooted}|{char}+{segments}|){end}"
    if not relative:
        return absolute
    return f"(?:{absolute}|(?:{rooted}|{no_colon}+{segments}|){end})"


def _uri(beyond: str, private: str, relative: bool) -> Callable[[], Dfa]:
    return lambda: _regex(_uri_pattern(beyond, private, relative))


def _uri_template(operators: str) -> Callable[[], Dfa]:  # RFC 6570, 2, and its erratum 6937 on the apostrophe
    literal = rf"(?:[!#$&-;=?-\[\]_a-z~{_UCS}{_PRIVATE}]|{_ESCAPED})"
    char = f"(?:[A-Za-z0-9_]|{_ESCAPED})"
    variable = rf"{char}(?:\.?{char})*(?::[1-9][0-9]{{0,3}}|\*)?"
    return lambda: _regex(rf"(?:{literal}|\{{[{operators}]?{variable}(?:,{variable})*\}})*")


_UUID = "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"  # RFC 4122
_POINTER = "(?:/(?:[^~/]|~[01])*)*"  # RFC 6901
_QUAD = "[A-Za-z0-9+/]"


# ------------------------------------------------------------------------------------------------------------ regex


def _regex_format() -> Dfa:
    """Return patterns that ECMA 262 takes with and without the flag u.

    Groups stand in groups, and no deeper; lookarounds stand in no group and hold none. A range of a class begins with
    the first digit or letter, or ends with the last one, and the bounds of a repetition are in order at a glance:
    telling all that are in order from the others takes hundreds of states.
    """
    syntax = r"[\^$\\.*+?()[\]{}|/]"
    escape = rf"\\(?:[dDwWsSfnrtv]|{syntax}|c[A-Za-z]|x[0-9A-Fa-f]{{2}}|u[0-9A-Fa-f]{{4}})"
    ordered = "0-[0-9]|1-[1-9]|[0-9]-9|a-[a-z]|[a-z]-z|A-[A-Z]|[A-Z]-Z"
    item = rf"(?:{ordered}|[^\]\\-]|{escape}|\\[b-])"  # a hyphen begins a class or ends it, or stands in a range
    chars = rf"\[\^?-?{item}*-?\]"
    bounds = "[0-9]+,?|0,[0-9]+|[1-9],[1-9][0-9]+|[1-9][0-9],[1-9][0-9]{2,}|"
    bounds += "|".join(f"{low},[{low}-9]" for low in range(1, 10))
    times = rf"(?:(?:[*+?]|\{{(?:{bounds})\}})\??)?"
    simple = _regex(rf"(?:(?:[^\^$\\.*+?()[\]{{}}|]|\.|{escape}|{chars}){times}|[\^$|]|\\[bB])*")
    repeated = _regex(times)
    inner = simple
    for depth in range(2):
        nfa = Nfa()
        open_group = nfa.embed(_regex(r"\((?:\?:)?"))
        parts = [nfa.concat([open_group, nfa.embed(inner), nfa.literal(b")"), nfa.embed(repeated)])]
        if depth == 1:
            opening = nfa.embed(_regex(r"\(\?<?[=!]"))
            parts.append(nfa.concat([opening, nfa.embed(simple), nfa.literal(b")")]))
        inner = determinize(nfa, nfa.repeat(nfa.union([nfa.embed(simple), *parts]), 0, None))
    return inner


_FORMATS: dict[str, Callable[[], Dfa]] = {
    "date": _date,
    "time": _time,
    "date-time": _date_time,
    "duration": _duration,
    "email": lambda: _regex(_email_pattern("")),
    "idn-email": _idn_email,
    "idn-hostname": lambda: _domain_names().host_name(),
    "hostname": _hostname,
    "ipv4": lambda: _regex(_IPV4),  # RFC 2673, 3.2
    "ipv6": lambda: _regex(_ipv6_pattern()),
    "uri": _uri("", "", False),
    "uri-reference": _uri("", "", True),
    "iri": _uri(_UCS, _PRIVATE, False),
    "iri-reference": _uri(_UCS, _PRIVATE, True),
    "uri-template": _uri_template("+#./;?&"),
    "uuid": lambda: _regex(_UUID),
    "json-pointer": lambda: _regex(_POINTER),
    "relative-json-pointer": lambda: _regex(f"(?:0|[1-9][0-9]*)(?:#|{_POINTER})"),
    "regex": _regex_format,
    "byte": lambda: _regex(f"(?:{_QUAD}{{4}})*(?:{_QUAD}[AQgw]==|{_QUAD}{{2}}[AEIMQUYcgkosw048]=)?"),
}

SUPERSETS: dict[str, Callable[[], Dfa]] = {
    "date": lambda: _regex(_date_pattern(True)),
    "time": lambda: _regex(_ANY_TIME),
    "date-time": lambda: _regex(f"{_date_pattern(True)}[Tt]{_ANY_TIME}"),
    "hostname": _hostname_superset,
    "idn-email": lambda: _regex(_email_pattern(_NOT_ASCII)),
    "idn-hostname": _idn_hostname_superset,
    "uri-template": _uri_template("+#./;?&=,!@|"),
    "relative-json-pointer": lambda: _regex(f"(?:0|[1-9][0-9]*)(?:#|(?:[+-][1-9][0-9]*)?{_POINTER})"),
    "regex": utf8.text,
    "byte": lambda: _regex(f"(?:{_QUAD}{{4}})*(?:{_QUAD}{{2}}==|{_QUAD}{{3}}=)?"),
}

KNOWN: frozenset[str] = frozenset(_FORMATS)
