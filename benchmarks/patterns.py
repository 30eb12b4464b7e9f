r"""Regular expressions as people write them, each with texts that match it whole and texts that do not.

Patterns are in the syntax of Python's `re` and match whole texts; so `\d`, `\w` and `\s` mean Unicode classes. The
truth of every text is what `re.fullmatch` says. A pattern with `\p{...}`, which `re` lacks, is judged by the `regex`
package; two on which either would backtrack for ages are judged by a few lines of Python, which tests hold to `re` at
small sizes. `check` holds the texts written here to that truth.

Groups:
    dates, network, numbers, identifiers, code, logs, text, multilingual, choices
        what a decoder is asked for every day
    hard
        look-around, word boundaries, properties, case folding, large counted repetitions: regular, yet often refused
        or slow
    irregular
        a group referred to again: no automaton accepts these, so refusing them is right
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

SYLLABLES = re.findall(r"\w+", "ba ca do fe gi ha in jo ka lu mer no or pe qui ra sol ta ul ven wy xan yor zu")
STRANGE = 'é٣日ß\n\t "\\.-_/:@0aZ'  # what a mutation may put in, besides the text's own characters


@dataclass(frozen=True)
class Pattern:
    """A regular expression, the group it is in, texts it matches and texts it does not."""

    name: str
    group: str
    pattern: str
    positive: tuple[str, ...]
    negative: tuple[str, ...]
    choices: tuple[str, ...] = ()  # where the pattern is nothing but these, joined by |
    judge: Callable[[str], bool] | None = None  # where `re` would take exponential time

    def truth(self) -> Callable[[str], bool]:
        """Return a function that says whether a whole text matches."""
        if self.judge is not None:
            return self.judge
        if r"\p" in self.pattern:
            import regex

            expression = regex.compile(self.pattern)
            return lambda text: expression.fullmatch(text) is not None
        compiled = re.compile(self.pattern)
        return lambda text: compiled.fullmatch(text) is not None


def check(pattern: Pattern) -> None:
    """Raise ValueError where a text does not match as written, or where there are fewer than three of a kind."""
    matches = pattern.truth()
    for texts, expected in ((pattern.positive, True), (pattern.negative, False)):
        if len(set(texts)) < 3:
            raise ValueError(f"pattern {pattern.name!r} has fewer than three texts that match={expected}: add some")
        for text in texts:
            if matches(text) != expected:
                raise ValueError(f"pattern {pattern.name!r}: match={not expected} for {text!r}, listed as {expected}")


def segments(longest: int, times: int) -> Callable[[str], bool]:
    """Return what decides `(.{0,longest}x){times}`: from each end reached, every x within reach is an end."""

    def matches(text: str) -> bool:
        ends = {0}
        for _ in range(times):
            ends = {
                at + 1
                for end in ends
                for at in range(end, min(end + longest + 1, len(text)))
                if text[at] == "x" and "\n" not in text[end:at]
            }
        return len(text) in ends

    return matches


def between(count: int) -> Callable[[str], bool]:
    """Return what decides `(?:a?){count}a{count}`: `count` to twice as many letters a."""
    return lambda text: count <= len(text) <= 2 * count and set(text) == {"a"}


def mutations(pattern: Pattern, count: int = 20) -> list[str]:
    """Return texts one or two edits away from those that match, the same ones every time; most match no more."""
    rng = random.Random(pattern.name)
    texts: list[str] = []
    seen = {*pattern.positive, *pattern.negative}
    while len(texts) < count:
        text = rng.choice(pattern.positive)
        for _ in range(rng.choice((1, 1, 2))):
            text = _edited(text, rng)
        if text not in seen:
            seen.add(text)
            texts.append(text)
    return texts


def _edited(text: str, rng: random.Random) -> str:
    at = rng.randrange(len(text) + 1)
    # the text's own characters come first: near misses find more than strange bytes do
    new = rng.choice(text) if text and rng.random() < 0.7 else rng.choice(STRANGE)
    edit = rng.randrange(6)
    if edit == 0:
        return text[:at] + new + text[at:]
    if edit == 1:
        return text[:at] + text[at + 1 :]
    if edit == 2:
        return text[:at] + new + text[at + 1 :]
    if edit == 3:
        return text[:at] + text[at : at + 2][::-1] + text[at + 2 :]
    if edit == 4:
        return text[:at] + text[at:].swapcase()
    return text[: max(at, 1)]


def _names(count: int) -> tuple[str, ...]:
    """Return different made-up names of one to three words: shared beginnings and ends, as a catalogue has them."""
    rng = random.Random(0)
    names: dict[str, None] = {}
    while len(names) < count:
        words = ("".join(rng.choices(SYLLABLES, k=rng.randint(2, 4))).capitalize() for _ in range(rng.randint(1, 3)))
        names[" ".join(words)] = None
    return tuple(names)


MANY_NAMES = _names(10_000)
COUNTRIES = tuple(
    "Argentina Australia Brazil Canada Chile China Colombia Egypt Ethiopia France Germany India Indonesia Ireland "
    "Italy Japan Kenya Mexico Morocco Netherlands Nigeria Norway Pakistan Peru Poland Portugal Romania Senegal Spain "
    "Sweden Türkiye Ukraine Uruguay Vietnam Zambia Côte_d'Ivoire New_Zealand South_Africa United_Kingdom".replace(
        " ", "|"
    )
    .replace("_", " ")
    .split("|")
)
OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
IPV6 = "|".join(
    [
        r"(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}",
        r"(?:[0-9a-fA-F]{1,4}:){1,7}:",
        *(rf"(?:[0-9a-fA-F]{{1,4}}:){{1,{7 - k}}}(?::[0-9a-fA-F]{{1,4}}){{1,{k}}}" for k in range(1, 6)),
        r"[0-9a-fA-F]{1,4}:(?::[0-9a-fA-F]{1,4}){1,6}",
        r":(?:(?::[0-9a-fA-F]{1,4}){1,7}|:)",
    ]
)

PATTERNS: tuple[Pattern, ...] = (
    # ------------------------------------------------------------------------------------------------ dates
    Pattern(
        "date",
        "dates",
        r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])",
        ("2024-02-29", "1999-12-31", "2031-07-04"),
        ("2024-13-01", "2024-00-10", "24-01-01", "2024-01-32"),
    ),
    Pattern(
        "timestamp",
        "dates",
        r"\d{4}-\d{2}-\d{2}T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)",
        ("2024-05-17T08:30:00Z", "2024-05-17T23:59:59.123456789+05:30", "1970-01-01T00:00:00.0-11:00"),
        ("2024-05-17 08:30:00Z", "2024-05-17T24:00:00Z", "2024-05-17T08:30:00", "2024-05-17T08:30:00.1234567890Z"),
    ),
    Pattern(
        "US date",
        "dates",
        r"(0?[1-9]|1[0-2])/(0?[1-9]|[12]\d|3[01])/(19|20)\d{2}",
        ("1/2/1999", "12/31/2024", "07/04/1976"),
        ("13/1/1999", "1/32/1999", "1/2/99", "00/10/2010"),
    ),
    Pattern(
        "e-mail date",
        "dates",
        r"(Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d{1,2} (Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) \d{4} "
        r"\d{2}:\d{2}:\d{2} (GMT|[+-]\d{4})",
        ("Fri, 17 May 2024 08:30:00 GMT", "Mon, 1 Jan 2001 00:00:00 +0100", "Sun, 31 Dec 2023 23:59:59 -0800"),
        ("Fri 17 May 2024 08:30:00 GMT", "Fry, 17 May 2024 08:30:00 GMT", "Fri, 17 May 2024 08:30:00 CEST"),
    ),
    Pattern(
        "12-hour time",
        "dates",
        r"(1[0-2]|0?[1-9]):[0-5]\d ?([AaPp]\.?[Mm]\.?)",
        ("12:30 PM", "7:05am", "09:59 p.m."),
        ("13:30 PM", "7:60am", "0:10 am", "10:10"),
    ),
    Pattern(
        "duration",
        "dates",
        r"P(\d+Y)?(\d+M)?(\d+W)?(\d+D)?(T(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?",
        ("P3Y6M4DT12H30M5S", "PT36H", "P1W", "PT0.25S"),
        ("3Y6M", "P6M3Y", "PT5.S", "P1H"),
    ),
    Pattern(
        "cron line",
        "dates",
        r"(@(annually|yearly|monthly|weekly|daily|hourly|reboot))|"
        r"((((\d+,)+\d+|(\d+(/|-)\d+)|\d+|\*(/\d+)?) ?){5})",
        ("@daily", "*/15 0 1,15 * 1-5", "0 4 8-14 * *", "30 2 * * 0"),
        ("@never", "*/15 0 1,15 x *", "0 4 8- 14 * * x", "a b c d e"),
    ),
    # ---------------------------------------------------------------------------------------------- network
    Pattern(
        "e-mail",
        "network",
        r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,24}",
        ("jane.doe+newsletter@example.co.uk", "support@mistral.ai", "a_b%c@mail-01.eu-west.internal.example.com"),
        ("jane.doe@", "@example.com", "jane doe@example.com", "jane@example.c", "jane@example..com"),
    ),
    Pattern(
        "e-mail, HTML form",
        "network",
        r"[a-zA-Z0-9.!#$%&'*+/=?^_`{|}~-]+@[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
        r"(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?)*",
        ("o'reilly{x}@localhost", "jane@example.com", "a|b~c@sub-domain.long-company-name-gmbh.example.org"),
        ("jane@-example.com", "jane@example-.com", "jane@@example.com", "jane@" + "a" * 64 + ".com"),
    ),
    Pattern(
        "URL",
        "network",
        r"https?://[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+(:\d{1,5})?(/[^\s?#]*)?"
        r"(\?[^\s#]*)?(#\S*)?",
        (
            "https://docs.example.com/en/latest/library/re.html?highlight=fullmatch&page=2#re.fullmatch",
            "http://example.org:8080",
            "https://fr.example.org/wiki/Cha%C3%AEne_de_caractères",
        ),
        ("ftp://example.org/file", "https://localhost/x", "https://-bad.example/", "https://example.org/a b"),
    ),
    Pattern(
        "IPv4",
        "network",
        rf"{OCTET}(?:\.{OCTET}){{3}}",
        ("192.168.0.1", "8.8.8.8", "255.255.255.255"),
        ("256.1.1.1", "1.2.3", "1.2.3.4.5", "01.2.3.400"),
    ),
    Pattern(
        "IPv4 network",
        "network",
        rf"{OCTET}(?:\.{OCTET}){{3}}/(?:3[0-2]|[12]?\d)",
        ("10.0.0.0/8", "192.168.128.0/17", "0.0.0.0/0"),
        ("10.0.0.0", "10.0.0.0/33", "10.0.0/8"),
    ),
    Pattern(
        "IPv6",
        "network",
        IPV6,
        ("2001:0db8:85a3:0000:0000:8a2e:0370:7334", "fe80::1ff:fe23:4567:890a", "::1", "::"),
        ("2001:db8::85a3::7334", "12345::", "fe80:1ff:fe23", "1:2:3:4:5:6:7:8:9"),
    ),
    Pattern(
        "MAC address",
        "network",
        r"([0-9A-F]{2}[:-]){5}[0-9A-F]{2}|([0-9a-f]{2}[:-]){5}[0-9a-f]{2}",
        ("00:1A:2B:3C:4D:5E", "a0-b1-c2-d3-e4-f5", "FF:FF:FF:FF:FF:FF"),
        ("00:1A:2B:3C:4D", "00:1a:2B:3C:4D:5E", "00:1A:2B:3C:4D:5G"),
    ),
    Pattern(
        "host name",
        "network",
        r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?\.)+[a-zA-Z]{2,63}",
        ("example.com", "ip-10-0-12-34.eu-west-3.compute.internal", "xn--bcher-kva.example"),
        ("localhost", "-a.example", "a..example", "example.c"),
    ),
    Pattern(
        "cloud resource",
        "network",
        r"arn:aws[a-z-]*:[a-z0-9-]+:[a-z0-9-]*:(\d{12})?:[a-zA-Z0-9+=/,.@:*_-]+",
        (
            "arn:aws:iam::123456789012:user/division_abc/subdivision_xyz/Bob",
            "arn:aws:s3:::my-bucket/reports/2024/*.parquet",
            "arn:aws-cn:lambda:cn-north-1:123456789012:function:resize:7",
        ),
        ("arn:aws:iam::12345:user/Bob", "arn:gcp:iam::123456789012:user/Bob", "arn:aws:iam::123456789012:"),
    ),
    # ---------------------------------------------------------------------------------------------- numbers
    Pattern(
        "JSON number",
        "numbers",
        r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?",
        ("0", "-12.5e-7", "6.02214076E23", "1234567890"),
        ("01", "1.", ".5", "+1", "1e"),
    ),
    Pattern(
        "money",
        "numbers",
        r"[$€£¥] ?\d{1,3}(,\d{3})*(\.\d{2})?|\d{1,3}(\.\d{3})*(,\d{2})? ?(€|EUR|CHF)",
        ("$1,234,567.89", "€ 12.00", "1.234,50 €", "99 CHF"),
        ("$1234,567", "12.0 $", "1,234.5 €", "€"),
    ),
    Pattern(
        "Roman numeral",
        "numbers",
        r"M{0,3}(CM|CD|D?C{0,3})(XC|XL|L?X{0,3})(IX|IV|V?I{0,3})",
        ("MCMXCIV", "XLII", "MMMDCCCLXXXVIII", ""),
        ("IIII", "VX", "MMMM", "ic"),
    ),
    Pattern(
        "coordinates",
        "numbers",
        r"[-+]?([1-8]?\d(\.\d+)?|90(\.0+)?),\s*[-+]?(180(\.0+)?|((1[0-7]\d)|([1-9]?\d))(\.\d+)?)",
        ("48.8566, 2.3522", "-33.8688,151.2093", "+90.0, -180.00"),
        ("91, 0", "48.8566", "48.8566, 181", "48,8566, 2,3522"),
    ),
    Pattern(
        "hex colour",
        "numbers",
        r"#(?:[0-9a-fA-F]{3,4}){1,2}",
        ("#fff", "#1E90FF", "#1e90ff80"),
        ("fff", "#ff", "#12345", "#ggg"),
    ),
    Pattern(
        "scale of ten",
        "numbers",
        r"(10|[0-9])(\.[05])?/10",
        ("7/10", "10/10", "8.5/10"),
        ("11/10", "7", "8.25/10"),
    ),
    # ------------------------------------------------------------------------------------------ identifiers
    Pattern(
        "UUID",
        "identifiers",
        r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
        (
            "123e4567-e89b-12d3-a456-426614174000",
            "00000000-0000-0000-0000-000000000000",
            "f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
        ),
        (
            "123e4567e89b12d3a456426614174000",
            "123E4567-e89b-12d3-a456-426614174000",
            "123e4567-e89b-12d3-a456-42661417400",
        ),
    ),
    Pattern(
        "UUID, random",
        "identifiers",
        r"[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-4[0-9A-Fa-f]{3}-[89ABab][0-9A-Fa-f]{3}-[0-9A-Fa-f]{12}",
        (
            "9B2F1C3E-6d5a-4f7b-8c9d-0e1f2a3b4c5d",
            "c56a4180-65aa-42ec-a945-5fd21dec0538",
            "ffffffff-ffff-4fff-bfff-ffffffffffff",
        ),
        (
            "c56a4180-65aa-12ec-a945-5fd21dec0538",
            "c56a4180-65aa-42ec-c945-5fd21dec0538",
            "c56a4180-65aa-42ec-a945-5fd21dec053",
        ),
    ),
    Pattern(
        "semantic version",
        "identifiers",
        r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-((?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
        r"(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?(?:\+([0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*))?",
        ("1.0.0-alpha.1+001", "0.12.345", "2.0.0-rc.1.x-y-z.--+build.11.e0f985a", "10.20.30"),
        ("1.0", "01.0.0", "1.0.0-", "1.0.0-01", "v1.0.0"),
    ),
    Pattern(
        "IBAN",
        "identifiers",
        r"[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?",
        ("DE89 3704 0044 0532 0130 00", "GB29NWBK60161331926819", "FR14 2004 1010 0505 0001 3M02 606"),
        ("DE8 3704 0044", "de89370400440532013000", "DE89 3704", "GB29-NWBK-6016"),
    ),
    Pattern(
        "bank code",
        "identifiers",
        r"[A-Z]{6}[A-Z0-9]{2}([A-Z0-9]{3})?",
        ("DEUTDEFF", "BNPAFRPPXXX", "NEDSZAJJ100"),
        ("DEUTDEF", "DEUT1EFF", "DEUTDEFF50"),
    ),
    Pattern(
        "ISBN",
        "identifiers",
        r"97[89][- ]?\d{1,5}[- ]?\d{1,7}[- ]?\d{1,6}[- ]?\d",
        ("978-3-16-148410-0", "9780262033848", "979 10 90636 07 1"),
        ("977-3-16-148410-0", "978", "978--3-16-148410-0", "978-3-16-148410-X"),
    ),
    Pattern(
        "phone, international",
        "identifiers",
        r"\+[1-9]\d{6,14}",
        ("+33142278186", "+14155552671", "+4915112345678"),
        ("0033142278186", "+0123456789", "+12345", "+1415555267112345"),
    ),
    Pattern(
        "phone, US",
        "identifiers",
        r"(\+1[ .-]?)?(\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}",
        ("(415) 555-2671", "+1 415-555-2671", "415.555.2671"),
        ("4155552671", "(415-555-2671", "+2 415-555-2671", "415-555-267"),
    ),
    Pattern(
        "payment card",
        "identifiers",
        r"4\d{12}(?:\d{3})?|5[1-5]\d{14}|3[47]\d{13}|6(?:011|5\d{2})\d{12}",
        ("4111111111111111", "5500005555555559", "378282246310005", "6011000990139424"),
        ("411111111111111", "5600005555555559", "37828224631000", "4111 1111 1111 1111"),
    ),
    Pattern(
        "vehicle number",
        "identifiers",
        r"[A-HJ-NPR-Z0-9]{17}",
        ("1HGCM82633A004352", "WVWZZZ1JZXW000001", "JH4KA8260MC000000"),
        ("1HGCM82633A00435", "1HGCM82633A0O4352", "1hgcm82633a004352"),
    ),
    Pattern(
        "UK postcode",
        "identifiers",
        r"([A-Z]{1,2}\d[A-Z\d]? ?\d[A-Z]{2}|GIR ?0A{2})",
        ("SW1A 1AA", "M11AE", "GIR 0AA", "EC1A 1BB"),
        ("SW1A1A", "sw1a 1aa", "1AA SW1A", "SW1A  1AA"),
    ),
    Pattern(
        "commit or digest",
        "identifiers",
        r"[0-9a-f]{7,40}|sha256:[0-9a-f]{64}",
        ("da39a3e", "da39a3ee5e6b4b0d3255bfef95601890afd80709", "sha256:" + "e3b0c44298fc1c14" * 4),
        ("da39a3", "DA39A3E", "sha256:" + "e3b0c44298fc1c14" * 3, "da39a3ee5e6b4b0d3255bfef95601890afd807091"),
    ),
    Pattern(
        "container image",
        "identifiers",
        r"(?:(?:[a-z0-9-]+\.)+[a-z]{2,}(?::\d{2,5})?/)?[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
        r"(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?",
        (
            "python:3.11-slim-bookworm",
            "registry.example.com:5000/team/model-server:2024.05.17_rc1@sha256:" + "0a1b2c3d" * 8,
            "ghcr.io/owner/project",
        ),
        ("Python:3.11", "python:", "python@sha256:abc", "registry.example.com:5000/team//model"),
    ),
    Pattern(
        "JSON web token",
        "identifiers",
        r"eyJ[A-Za-z0-9_-]+\.eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+",
        (
            "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIiwibmFtZSI6IkpvaG4gRG9lIiwiaWF0IjoxNTE2MjM5"
            "MDIyfQ.SflKxwRJSMeKKF2QT4fwpMeJf36POk6yJV_adQssw5c",
            "eyJh.eyJz.x",
            "eyJ0eXAi.eyJpc3Mi.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk",
        ),
        ("eyJh.eyJz", "eyJh.eyJz.", "eyJh.abc.def", "ayJh.eyJz.x"),
    ),
    Pattern(
        "slug, anchored",
        "identifiers",
        r"^[a-z0-9]+(?:-[a-z0-9]+)*$",
        ("how-to-compile-a-regular-expression-in-2024", "a", "v2-release-notes"),
        ("-a", "a--b", "A-b", "a-b-", "a_b"),
    ),
    # ------------------------------------------------------------------------------------------------- code
    Pattern(
        "dotted name",
        "code",
        r"[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)*",
        ("numpy.random.default_rng", "__init__", "maskwright.runtime.torch_ops.mask_logits"),
        ("numpy..random", "9lives", "Numpy.random", "a.b."),
    ),
    Pattern(
        "camel case",
        "code",
        r"[a-z]+([A-Z][a-z0-9]*)*",
        ("getElementsByTagName", "x", "parseHttp2Frame"),
        ("GetElements", "get_elements", "x9"),
    ),
    Pattern(
        "JSON string",
        "code",
        r'"([^"\\\x00-\x1f]|\\(["\\/bfnrt]|u[0-9a-fA-F]{4}))*"',
        (
            r'"The \"quick\" brown fox\njumps over the lazy dog \u2014 and then, in C:\\temp, it stops for a while."',
            '""',
            '"naïve café, 東京, 🙂"',
        ),
        ('"unterminated', r'"bad \x escape"', '"line\nbreak"', "'single'"),
    ),
    Pattern(
        "block comment",
        "code",
        r"/\*([^*]|\*+[^*/])*\*+/",
        (
            "/* Returns the number of bytes written,\n * or -1 with errno set when the file was closed.\n **/",
            "/**/",
            "/***** a * b / c *****/",
        ),
        ("/* open", "/* one */ two */", "// line", "/*/"),
    ),
    Pattern(
        "HTML tag",
        "code",
        r"<[a-z][a-z0-9]*(\s+[a-z-]+(=\"[^\"<]*\")?)*\s*/?>",
        (
            '<a href="https://example.com/path?x=1&amp;y=2" class="btn btn-primary" data-id="42" target="_blank">',
            "<br/>",
            "<input disabled >",
        ),
        ("<1a>", '<a href="x>', "</a>", "< a>"),
    ),
    Pattern(
        "SQL query",
        "code",
        r"SELECT (\*|[a-z_]+(, ?[a-z_]+)*) FROM [a-z_]+( WHERE [a-z_]+ ?(=|<>|<=|>=|<|>) ?('[^']*'|\d+)"
        r"( (AND|OR) [a-z_]+ ?(=|<>|<=|>=|<|>) ?('[^']*'|\d+))*)?( ORDER BY [a-z_]+( ASC| DESC)?)?( LIMIT \d+)?;",
        (
            "SELECT id, first_name, last_name, created_at FROM customers WHERE country = 'France' AND age >= 18 "
            "ORDER BY created_at DESC LIMIT 100;",
            "SELECT * FROM orders;",
            "SELECT total FROM invoices WHERE paid = 0;",
        ),
        ("SELECT FROM orders;", "select * from orders;", "SELECT * FROM orders", "SELECT a FROM b WHERE c = 'd;"),
    ),
    Pattern(
        "function call",
        "code",
        r"[a-z_]+\(([a-z_]+=(\"[^\"\\\n]*\"|-?\d+(\.\d+)?|true|false|null)"
        r"(, [a-z_]+=(\"[^\"\\\n]*\"|-?\d+(\.\d+)?|true|false|null))*)?\)",
        (
            'search_flights(origin="Paris CDG", destination="New York JFK", passengers=2, max_price=850.5)',
            "get_time()",
            'send_mail(to="jane@example.com", subject="Minutes of the meeting on Tuesday", urgent=false)',
        ),
        ('search_flights(origin="Paris)', "get_time", "get_time(x)", "f(a=1,b=2)"),
    ),
    Pattern(
        "Python signature",
        "code",
        r"(async )?def [a-z_][a-z0-9_]*\(([a-z_][a-z0-9_]*(: [A-Za-z_\[\], |.]+)?( = [^,()\n]+)?"
        r"(, [a-z_][a-z0-9_]*(: [A-Za-z_\[\], |.]+)?( = [^,()\n]+)?)*)?\)( -> [A-Za-z_\[\], |.]+)?:",
        (
            "def compile_regex(pattern: str, vocab: Vocabulary, budget: Budget | None = None) -> TransitionTable:",
            "async def main():",
            "def area(width, height = 2):",
        ),
        ("def 1x():", "def f(:", "def f()", "function f():"),
    ),
    Pattern(
        "Unix path",
        "code",
        r"(/[^/\x00\n]+)+/?",
        ("/usr/local/lib/python3.11/site-packages/numpy/core/_multiarray_umath.so", "/home/jane doe/résumé.pdf", "/a/"),
        ("usr/local", "//", "/a//b", "/"),
    ),
    Pattern(
        "Windows path",
        "code",
        r'[A-Za-z]:\\([^\\/:*?"<>|\r\n]+\\)*[^\\/:*?"<>|\r\n]*',
        ("C:\\Users\\Jane Doe\\Documents\\Quarterly report (final).docx", "D:\\", "e:\\data\\2024\\"),
        ("C:/Users", "CC:\\x", "C:\\a|b", "C:\\\\x"),
    ),
    Pattern(
        "CSV line",
        "code",
        r'("([^"]|"")*"|[^",\n]*)(,("([^"]|"")*"|[^",\n]*)){3}',
        ('1042,"Doe, Jane","12 rue de Rivoli, 75001 Paris",1984-03-12', ",,,", 'a,"b ""quoted"" b",c,d'),
        ("a,b,c", "a,b,c,d,e", 'a,"b,c,d', 'a,b"b,c,d'),
    ),
    Pattern(
        "Markdown link",
        "code",
        r"\[[^\]\n]+\]\(https?://[^\s)]+\)",
        (
            "[the Python documentation on regular expressions](https://docs.python.org/3/library/re.html#module-re)",
            "[x](http://y)",
            "[Übersicht, Teil 2](https://example.de/übersicht?teil=2)",
        ),
        ("[](https://x)", "[x] (https://y)", "[x](ftp://y)", "[x](https://y z)"),
    ),
    # ------------------------------------------------------------------------------------------------- logs
    Pattern(
        "access log",
        "logs",
        r"\d{1,3}(\.\d{1,3}){3} \S+ \S+ \[\d{2}/[A-Z][a-z]{2}/\d{4}:\d{2}:\d{2}:\d{2} [+-]\d{4}\] "
        r'"(GET|POST|PUT|DELETE|HEAD|OPTIONS|PATCH) [^\s"]+ HTTP/\d\.\d" [1-5]\d{2} (\d+|-)( "[^"]*" "[^"]*")?',
        (
            '203.0.113.42 - frank [10/Oct/2023:13:55:36 -0700] "GET /apache_pb.gif?size=large HTTP/1.0" 200 2326 '
            '"http://www.example.com/start.html" "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML)"',
            '127.0.0.1 - - [01/Jan/2024:00:00:00 +0000] "POST /api/v1/items HTTP/1.1" 404 -',
            '10.1.2.3 - - [29/Feb/2024:23:59:59 +0100] "DELETE /x HTTP/1.1" 204 0',
        ),
        (
            '127.0.0.1 - - [01/Jan/2024:00:00:00 +0000] "FETCH /api HTTP/1.1" 404 -',
            '127.0.0.1 - - [01/Jan/2024:00:00:00] "GET /api HTTP/1.1" 404 -',
            '127.0.0.1 - - [01/Jan/2024:00:00:00 +0000] "GET /api HTTP/1.1" 604 -',
        ),
    ),
    Pattern(
        "system log",
        "logs",
        r"(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ \d]\d \d{2}:\d{2}:\d{2} [a-zA-Z0-9.-]+ "
        r"[a-zA-Z0-9_./-]+(\[\d+\])?: [^\n]*",
        (
            "Feb  5 17:32:18 mail-01.example.com postfix/smtpd[28714]: connect from unknown[198.51.100.7]; "
            "client certificate not presented, continuing without verification",
            "Oct 11 22:14:15 router kernel: eth0: link up, 1000 Mbps, full duplex",
            "Dec 31 23:59:59 h cron[1]: ",
        ),
        (
            "Okt 11 22:14:15 router kernel: eth0: link up",
            "Oct 11 22:14:15 router kernel eth0 link up",
            "Oct 11 22:14 router kernel: eth0",
        ),
    ),
    Pattern(
        "application log",
        "logs",
        r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2},\d{3} (DEBUG|INFO|WARNING|ERROR|CRITICAL) +"
        r"\[[\w.-]+\] [\w.]+:\d+ - [^\n]+",
        (
            "2024-05-17 08:30:00,123 ERROR    [worker-7] app.billing.invoices:218 - could not reach the payment "
            "provider after 3 attempts: connection reset by peer (invoice 4711, customer 0815)",
            "2024-05-17 08:30:00,124 INFO [main] app:1 - started",
            "2024-05-17 08:30:00,125 DEBUG [a.b-c] x.y.z:99 - größe=5",
        ),
        (
            "2024-05-17 08:30:00.123 ERROR [worker-7] app:218 - no",
            "2024-05-17 08:30:00,123 FATAL [worker-7] app:218 - no",
            "2024-05-17 08:30:00,123 ERROR [worker 7] app:218 - no",
        ),
    ),
    Pattern(
        "cluster log",
        "logs",
        r"[IWEF]\d{4} \d{2}:\d{2}:\d{2}\.\d{6} +\d+ [a-z_]+\.go:\d+\] [^\n]+",
        (
            'E0517 08:30:00.123456       1 reflector.go:147] failed to list *v1.Pod: Get "https://10.96.0.1:443/api/v1/'
            'pods?limit=500": dial tcp 10.96.0.1:443: connect: connection refused',
            "I0101 00:00:00.000000 12345 main.go:1] ok",
            'W1231 23:59:59.999999 7 watch_cache.go:42] "slow watcher" client="controller" pending=100',
        ),
        ("X0517 08:30:00.123456 1 a.go:1] x", "E0517 08:30:00.123 1 a.go:1] x", "E0517 08:30:00.123456 1 a.py:1] x"),
    ),
    Pattern(
        "key-value log",
        "logs",
        r'[a-z_]+=("[^"\n]*"|[^\s"=]+)( [a-z_]+=("[^"\n]*"|[^\s"=]+))*',
        (
            'ts=2024-05-17T08:30:00Z level=warn msg="queue is nearly full" queue=embeddings size=9812 limit=10000 '
            'host=worker-7.internal trace_id=0af7651916cd43dd8448eb211c80319c retry_after="30 s"',
            "a=b",
            'msg="" ok=true',
        ),
        ("a = b", "a=b  c=d", 'msg="open', "A=b"),
    ),
    Pattern(
        "stack frame",
        "logs",
        r'  File "[^"\n]+", line \d+, in ([A-Za-z_][A-Za-z0-9_]*|<module>|<lambda>)\n    [^\n]+',
        (
            '  File "/srv/app/billing/invoices.py", line 218, in send_invoice\n    response = client.post(url, body)',
            '  File "<stdin>", line 1, in <module>\n    1 / 0',
            '  File "a.py", line 7, in f\n    g()',
        ),
        (
            'File "a.py", line 7, in f\n    g()',
            '  File "a.py", line x, in f\n    g()',
            '  File "a.py", line 7, in f\n  g()',
        ),
    ),
    # ------------------------------------------------------------------------------------------------- text
    Pattern(
        "sentiment",
        "text",
        r"(very )?(positive|negative)|neutral|mixed",
        ("positive", "very negative", "neutral", "mixed"),
        ("very neutral", "Positive", "negative.", "pos"),
    ),
    Pattern(
        "thought and action",
        "text",
        r"Thought: [^\n]+\nAction: (search|lookup|finish)\[[^\]\n]+\]",
        (
            "Thought: The question asks for the year in which the bridge was opened, so I should first look for the "
            "bridge itself and then read its history.\nAction: search[Øresund Bridge]",
            "Thought: I know.\nAction: finish[42]",
            "Thought: Encore une étape.\nAction: lookup[ouvert en]",
        ),
        ("Thought: I know. Action: finish[42]", "Thought: x\nAction: think[x]", "Thought: x\nAction: finish[]"),
    ),
    Pattern(
        "multiple choice",
        "text",
        r"Reasoning: [^\n]+\n\nAnswer: \([A-E]\)",
        (
            "Reasoning: Mercury has no moons, and neither has Venus, so exactly two of the eight planets have none; "
            "the other options count dwarf planets.\n\nAnswer: (B)",
            "Reasoning: -\n\nAnswer: (A)",
            "Reasoning: 因為水在零度結冰。\n\nAnswer: (E)",
        ),
        ("Answer: (B)", "Reasoning: x\nAnswer: (B)", "Reasoning: x\n\nAnswer: (F)", "Reasoning: x\n\nAnswer: B"),
    ),
    Pattern(
        "bullet list",
        "text",
        r"(- [^\n]+\n){3,7}",
        (
            "- Preheat the oven to 200 degrees.\n- Whisk the eggs with the sugar until pale.\n- Fold in the flour.\n"
            "- Bake for 35 minutes, then let it cool in the tin.\n",
            "- a\n- b\n- c\n",
            "- ä\n- ö\n- ü\n- ß\n- é\n- è\n- ê\n",
        ),
        ("- a\n- b\n", "- a\n- b\n- c", "* a\n* b\n* c\n", "- x\n" * 8),
    ),
    Pattern(
        "chess moves",
        "text",
        r"(\d+\. ?(O-O(-O)?|[KQRBN]?[a-h]?[1-8]?x?[a-h][1-8](=[QRBN])?)[+#]?"
        r"( (O-O(-O)?|[KQRBN]?[a-h]?[1-8]?x?[a-h][1-8](=[QRBN])?)[+#]?)? ?)+(1-0|0-1|1/2-1/2)?",
        (
            "1. e4 e5 2. Nf3 Nc6 3. Bb5 a6 4. Ba4 Nf6 5. O-O Be7 6. Re1 b5 7. Bb3 d6 8. c3 O-O 9. h3 h6 10. d4 1/2-1/2",
            "1.f3 e5 2.g4 Qh4# 0-1",
            "57. exd8=Q+",
        ),
        ("1. e9", "e4 e5", "1. e4 e5 2", "1. Xf3"),
    ),
    Pattern(
        "citation",
        "text",
        r"[A-Z][a-z]+, [A-Z]\.( [A-Z]\.)*(, (& )?[A-Z][a-z]+, [A-Z]\.( [A-Z]\.)*)* \((19|20)\d{2}\)\. [^.\n]+\. "
        r"[^,\n]+, \d+(\(\d+\))?, \d+-\d+\.",
        (
            "Hopcroft, J. E., & Karp, R. M. (1973). An algorithm for maximum matchings in bipartite graphs. SIAM "
            "Journal on Computing, 2(4), 225-231.",
            "Brzozowski, J. A. (1964). Derivatives of regular expressions. Journal of the ACM, 11(4), 481-494.",
            "Rabin, M., Scott, D. (1959). Finite automata. IBM Journal, 3, 114-125.",
        ),
        (
            "Brzozowski (1964). Derivatives. Journal, 11(4), 481-494.",
            "Brzozowski, J. A. (64). Derivatives. Journal, 11(4), 481-494.",
            "Brzozowski, J. A. (1964). Derivatives. Journal, 11(4), 481-494",
        ),
    ),
    Pattern(
        "user name, counted",
        "text",
        r"@[A-Za-z_][A-Za-z0-9_]{2,29}",
        ("@jane_doe_1984", "@abc", "@" + "x" * 30),
        ("@ab", "jane", "@1abc", "@" + "x" * 31),
    ),
    Pattern(
        "one hundred characters",
        "text",
        r"[^\n]{1,100}",
        ("The meeting moved to Thursday; please bring last quarter's numbers.", "a", "日本語の文章" * 16),
        ("", "x" * 101, "a\nb"),
    ),
    # ----------------------------------------------------------------------------------------- multilingual
    Pattern(
        "Russian name",
        "multilingual",
        r"[А-ЯЁ][а-яё]+(-[А-ЯЁ][а-яё]+)?( [А-ЯЁ][а-яё]+){1,2}",
        ("Анна-Мария Сергеевна Королёва", "Лев Толстой", "Пётр Ильич Чайковский"),
        ("анна Королёва", "Лев", "Lev Толстой", "Лев  Толстой"),
    ),
    Pattern(
        "Japanese date",
        "multilingual",
        r"(令和|平成|昭和)(元|[1-9]\d?)年(1[0-2]|[1-9])月([12]\d|3[01]|[1-9])日(\([月火水木金土日]\))?",
        ("令和6年5月17日(金)", "昭和64年1月7日", "平成元年1月8日"),
        ("令和6年13月17日", "明治6年5月17日", "令和6年5月17日(空)"),
    ),
    Pattern(
        "Japanese text",
        "multilingual",
        r"[ぁ-んァ-ヶー一-龯々、。「」]+",
        ("「吾輩は猫である。名前はまだ無い。」", "カタカナ", "東京都、人々"),
        ("Tokyo", "東京 都", "", "東京!"),
    ),
    Pattern(
        "German address",
        "multilingual",
        r"[A-ZÄÖÜ][a-zäöüß]+(straße|weg|platz|allee) \d{1,4}[a-z]?, \d{5} "
        r"[A-ZÄÖÜ][a-zäöüß]+( (an der|am) [A-ZÄÖÜ][a-zäöüß]+)?",
        ("Königstraße 12b, 60311 Frankfurt am Main", "Mühlweg 3, 80331 München", "Ärzteplatz 1000, 01067 Öhringen"),
        ("königstraße 12b, 60311 Frankfurt", "Königstrasse 12b, 6031 Frankfurt", "Königstraße, 60311 Frankfurt"),
    ),
    Pattern(
        "emoji",
        "multilingual",
        r"[\U0001F300-\U0001F64F\U0001F680-\U0001F6FF\U0001F900-\U0001FAFF]{1,5}",
        ("🎉", "🚀🙂🤖", "🧪🧬🔬🌍😀"),
        ("", "x", "🎉🎉🎉🎉🎉🎉", "🎉 🎉"),
    ),
    Pattern(
        "Arabic text",
        "multilingual",
        r"[\u0621-\u064A\u0660-\u0669]+( [\u0621-\u064A\u0660-\u0669]+)*[.؟]",
        ("ذهب الولد إلى المدرسة في الصباح.", "هل قرأت الكتاب ١٢٣؟", "نعم."),
        ("ذهب الولد", "hello.", "ذهب  الولد.", "."),
    ),
    Pattern(
        "Korean name",
        "multilingual",
        r"[가-힣]{2,4}( [가-힣]{2,10})?(님|씨)?",
        ("김민수 과장님", "홍길동씨", "세종대왕"),
        ("kim", "김", "김민수  과장", "김민수!"),
    ),
    Pattern(
        "translation",
        "multilingual",
        r'en: "[^"\n]+"\nfr: "[^"\n]+"\nzh: "[^"\n]+"',
        (
            'en: "The train to Lyon leaves at half past eight from platform four."\n'
            'fr: "Le train pour Lyon part à huit heures et demie du quai numéro quatre."\n'
            'zh: "去里昂的火车八点半从四号站台出发。"',
            'en: "a"\nfr: "b"\nzh: "c"',
            'en: "Thank you!"\nfr: "Merci !"\nzh: "谢谢!"',
        ),
        ('en: "a"\nfr: "b"', 'en: "a" fr: "b" zh: "c"', 'en: ""\nfr: "b"\nzh: "c"'),
    ),
    # ---------------------------------------------------------------------------------------------- choices
    Pattern(
        "countries",
        "choices",
        "|".join(COUNTRIES),
        ("New Zealand", "Türkiye", "Côte d'Ivoire", "Chile"),
        ("Atlantis", "New", "Chin", "Germanyy"),
        COUNTRIES,
    ),
    Pattern(
        "ten thousand names",
        "choices",
        "|".join(MANY_NAMES),
        (MANY_NAMES[0], MANY_NAMES[4999], MANY_NAMES[-1]),
        (MANY_NAMES[0] + "x", MANY_NAMES[1].lower(), "Nobody Atall", ""),
        MANY_NAMES,
    ),
    # ------------------------------------------------------------------------------------------------- hard
    Pattern(
        "password, look-ahead",
        "hard",
        r"(?=.*[A-Z])(?=.*[a-z])(?=.*\d)(?=.*[@$!%*?&])[A-Za-z\d@$!%*?&]{8,64}",
        ("Correct1Horse!Battery", "aA1@aaaa", "ZZZZ9999$$$$z"),
        ("correct1horse!", "CORRECT1HORSE!", "CorrectHorse!", "Correct1Horse", "aA1@aaa"),
    ),
    Pattern(
        "US social security number, look-ahead",
        "hard",
        r"(?!000|666|9\d{2})\d{3}-(?!00)\d{2}-(?!0{4})\d{4}",
        ("123-45-6789", "899-01-0001", "001-01-0001"),
        ("000-45-6789", "666-45-6789", "900-45-6789", "123-00-6789", "123-45-0000"),
    ),
    Pattern(
        "line without a word, look-ahead",
        "hard",
        r"(?:(?!password|secret)[^\n])*",
        ("user=jane host=db-01 attempts=3 the passwort was wrong", "", "sec ret pass word"),
        ("user=jane password=hunter2", "the secret", "my secrets are out"),
    ),
    Pattern(
        "price, look-behind",
        "hard",
        r"\d+(?<!0)\.\d{2}(?<!00) (EUR|USD)",
        ("19.99 EUR", "101.50 USD", "3.01 EUR"),
        ("10.99 EUR", "19.00 EUR", "19.9 EUR"),
    ),
    Pattern(
        "line with a word, boundaries",
        "hard",
        r"[^\n]*\berror\b[^\n]*",
        ("fatal error: file not found", "error", "12:30 [error] disk /dev/sda1 is full, 0 bytes left on the device"),
        ("terror in the streets", "errors: 3", "no problem"),
    ),
    Pattern(
        "title, boundaries",
        "hard",
        r"\b[A-Z]\w*\b(?: \b[A-Z]\w*\b){1,5}",
        ("The Lord Of The Rings", "War And Peace", "Vol B2 Trüb"),
        ("The lord of the rings", "Title", "The  Lord", "The Lord."),
    ),
    Pattern(
        "capitalised words, properties",
        "hard",
        r"\p{Lu}\p{Ll}+(?:[ -]\p{Lu}\p{Ll}+)*",
        ("Élodie Nuñez-Øster", "Жанна Дарк", "Αθήνα"),
        ("élodie", "東京", "Jane doe", "Jane  Doe"),
    ),
    Pattern(
        "handle, properties",
        "hard",
        r"[\p{L}\p{M}\p{N}_-]{1,32}",
        ("हिन्दी_भाषा-2024", "naïve", "東京タワー"),
        ("", "a b", "jane@doe", "x" * 33),
    ),
    Pattern(
        "Greek, property",
        "hard",
        r"\p{Script=Greek}+(?: \p{Script=Greek}+)*",
        ("Αθήνα", "η γλώσσα των αρχαίων", "ἀρχή"),
        ("Athens", "Αθήνα.", "Аthens"),
    ),
    Pattern(
        "SQL verb, any case",
        "hard",
        r"(?i)(select|insert|update|delete) [^\n;]+ (from|into|set) [a-z_]+;",
        ("Select Name, Age From Customers;", "DELETE everything FROM t;", "update x SeT y_z;"),
        ("drop table t;", "select from t;", "SELECT a FROM 9;"),
    ),
    Pattern(
        "folding beyond ASCII",
        "hard",
        r"(?i:kelvin|straße|σίσυφος|ÅNGSTRÖM)",
        ("\u212aelvin", "STRAẞE", "ΣΊΣΥΦΟΣ", "σίσυφοσ", "ångström", "\u212bngström"),
        ("strasse", "kelvi", "celsius", "angstrom"),
    ),
    Pattern(
        "Unicode words",
        "hard",
        r"\w+(?:[\s,;]+\w+)*[.!?]?",
        (
            "Le cœur a ses raisons, que la raison ne connaît point.",
            "東京は日本の首都",
            "Ελλάδα, Україна; ٣ x²",
        ),
        ("", "हिन्दी भाषा", "a - b", ".x"),
    ),
    Pattern(
        "letters only",
        "hard",
        r"[^\W\d_]+(?:['’-][^\W\d_]+)*",
        ("aujourd'hui", "Müller-Lüdenscheidt", "Здравствуйте"),
        ("x9", "snake_case", "-a", "l'"),
    ),
    Pattern(
        "Unicode digits",
        "hard",
        r"\D+\d+(?:\s\S+)*",
        ("Rechnung 4711 vom Freitag", "№ ١٢٣", "日本語2024"),
        ("4711", "Rechnung", "a1  b"),
    ),
    Pattern(
        "URL, 256 characters",
        "hard",
        r"https?://(www\.)?[-a-zA-Z0-9@:%._+~#=]{1,256}\.[a-zA-Z0-9()]{1,6}\b([-a-zA-Z0-9()@:%_+.~#?&/=]*)",
        (
            "https://www.example.com/watch?v=dQw4w9WgXcQ&list=PL0123456789#t=42s",
            "http://a.b",
            "https://user:secret@sub.domain.example.org:8443/x/(y)/~z",
        ),
        ("https://example", "htp://a.b", "https://a.b c", "https://a." + "é" * 2),
    ),
    Pattern(
        "five thousand letters",
        "hard",
        r"[a-z]{1,5000}",
        ("a", "internationalization", "lorem" * 1000),
        ("", "lorem" * 1000 + "x", "lorem ipsum"),
    ),
    Pattern(
        "280 characters",
        "hard",
        r"(?s).{1,280}",
        ("Just setting up my account.", "a\nb", "日本語" * 93),
        ("", "x" * 281, "日本語" * 94),
    ),
    Pattern(
        "twenty times up to forty",
        "hard",
        r"(.{0,40}x){20}",
        ("x" * 20, ("some words and then a x" * 20), "abcx" * 21),
        ("x" * 19, "x" * 19 + "y" * 41 + "x", "abc"),
        judge=segments(40, 20),
    ),
    Pattern(
        "thirteenth from the end",
        "hard",
        r"[01]*1[01]{12}",
        ("1000000000000", "0" * 40 + "1010101010101", "1" * 30),
        ("0000000000000", "100000000000", "1" + "0" * 13),
    ),
    Pattern(
        "optional times fifty",
        "hard",
        r"(?:a?){50}a{50}",
        ("a" * 50, "a" * 77, "a" * 100),
        ("a" * 49, "a" * 101, "a" * 50 + "b"),
        judge=between(50),
    ),
    Pattern(
        "three paragraphs",
        "hard",
        r"(?:[^\n]{1,400}\n\n){2}[^\n]{1,400}",
        (
            "It was a bright cold day in April, and the clocks were striking thirteen. " * 5
            + "\n\n"
            + "Nobody had noticed, or those who had did not say so. " * 4
            + "\n\nThat was all.",
            "a\n\nb\n\nc",
            "é" * 400 + "\n\n" + "日" * 400 + "\n\n" + "x",
        ),
        ("a\n\nb", "a\nb\n\nc", "x" * 401 + "\n\nb\n\nc"),
    ),
    Pattern(
        "lazy fields",
        "hard",
        r"<b>.*?</b>(?:, <i>.+?</i>)??",
        ("<b>bold</b>", "<b>x</b>, <i>y</i>", "<b></b></b>"),
        ("<b>bold", "<b>x</b>, <i></i>", "b>x</b>"),
    ),
    Pattern(
        "possessive number",
        "hard",
        r"-?\d++(?:\.\d++)?+%?",
        ("12.5%", "-3", "0.125"),
        ("12.", ".5", "--3", "12%%"),
    ),
    # -------------------------------------------------------------------------------------------- irregular
    Pattern(
        "repeated word",
        "irregular",
        r"([a-z]+) \1",
        ("bye bye", "cha cha", "a a"),
        ("bye by", "a b", "a a a"),
    ),
    Pattern(
        "paired tags",
        "irregular",
        r"<([a-z]+)>[^<]*</\1>",
        ("<b>bold</b>", "<title>A page</title>", "<p></p>"),
        ("<b>bold</i>", "<b>bold", "<title>A page</titles>"),
    ),
)
