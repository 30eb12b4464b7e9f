"""Patterns that are regular yet often refused or slow, and some that are not regular."""

from __future__ import annotations

from collections.abc import Callable

from .pattern import Pattern


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


HARD: tuple[Pattern, ...] = (
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
