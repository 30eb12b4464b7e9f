"""Grammars with brackets become tables with calls, of the same texts as the reader of the grammar has."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import numpy as np
import pytest

import maskwright as mw
from maskwright.automata.budget import Budget
from maskwright.compile.bind import library
from maskwright.compile.grammar.analysis import embedding, least, may_read, reachable
from maskwright.compile.grammar.build import compile_form
from maskwright.compile.grammar.form import Choice, Grammar, Node, Repeat, Rule, Sequence, Text
from maskwright.compile.grammar.regions import with_lists
from maskwright.compile.regex.lower import to_dfa
from maskwright.runtime import numpy_ops
from tests.oracles.naive_grammar import accepts
from tests.strategies.grammars import TERMINALS, terminal
from tests.strategies.tokenizer_zoo import tekken

LONGER = [
    b"()", b"((", b"))", b"a)", b"(a", b")(", b"[a", b"]]", b"b]", b"])", b"([", b" (", b") ", b"ab", b"be", b"begin",
    b"ende", b"<a", b"></", b"ab]", b"aa", b"a(", b"b(a", b")b", "é".encode(),
]  # fmt: skip
PAIRS = [
    (b"(", b")"), (b"(", b")"), (b"[", b"]"), (b"(", b"]"), (b"{", b"}"), (b"<", b">"), (b"be", b"en"), (b'"', b'"'),
    (b"f(", b")"), (b"(", b"))"), (b"a", b")"), (b"ab", b"]"), (b"b(", b")b"),
]  # fmt: skip
TEXTS = [b"", b"()", b"(a)", b"a", b"((a))", b"(a)(b)", b"[a]", b"bea en", b"<a>", b"a)", b"aab]", b"f()"]


@pytest.fixture(scope="module")
def vocab() -> mw.Vocabulary:
    return mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), *LONGER], eos=0)


def spelled(data: bytes) -> list[int]:
    return [1 + byte for byte in data]


def a_node(rng: random.Random, deep: int, names: list[str]) -> Node:
    kind = rng.random()
    if deep == 0 or kind < 0.2:
        texts = [Text(data) for data in (b"a", b"b", b"ab", b"", b"(", b"()", b")")]
        return rng.choice([*texts, terminal(rng.choice(TERMINALS)), *(Rule(rng.choice(names)) for _ in "12")])
    parts = [a_node(rng, deep - 1, names) for _ in range(rng.randint(0, 3))]
    if kind < 0.45:
        opener, closer = rng.choice(PAIRS)
        before, after = ([a_node(rng, deep - 1, names)] if rng.random() < 0.3 else [] for _ in "12")
        return Sequence((*before, Text(opener), *parts[:2], Text(closer), *after))
    if kind < 0.6:
        return Sequence(tuple(parts))
    if kind < 0.85:
        return Choice(tuple(parts) or (Text(b"b"),))
    low = rng.randint(0, 2)
    return Repeat(a_node(rng, deep - 1, names), low, rng.choice([None, low, low + 1]))


def random_grammar(seed: int) -> tuple[random.Random, Grammar]:
    rng = random.Random(seed)
    names = ["start", "x", "y"][: rng.randint(1, 3)]
    ignored = to_dfa("[ ]*") if rng.random() < 0.3 else None
    return rng, Grammar({name: a_node(rng, 3, names) for name in names}, "start", ignored=ignored)


def allowed(mask: np.ndarray, size: int) -> list[int]:
    return [i for i in range(size) if int(mask[i >> 5]) >> (i & 31) & 1]


def walked(
    rng: random.Random, read: mw.TransitionTable, whole: mw.TransitionTable, steps: int, size: int, less: bool = False
) -> Iterator[tuple[list[int], mw.Matcher, mw.Matcher]]:
    """Yield a text of tokens below `size`, token by token, and the matchers of two tables that allow the same along it.

    less: the second may allow less, as where it has a depth.
    """
    one, other = mw.Matcher(read), mw.Matcher(whole)
    text: list[int] = []
    for _ in range(steps):
        masks = one.mask(), other.mask()
        assert not (masks[1] & ~masks[0]).any() if less else (masks[0] == masks[1]).all(), text
        yield text, one, other
        ways = [i for i in allowed(masks[1], size) if i]
        if not ways:
            return
        text.append(rng.choice(ways))
        assert one.advance(text[-1])
        assert other.advance(text[-1])


@pytest.mark.long
@pytest.mark.parametrize("wide", [512, 3])  # own edges from which on a row is a mask, and calls beside
def test_the_table_of_a_grammar_with_brackets_allows_what_its_reader_does(vocab, monkeypatch, wide):
    monkeypatch.setattr(library, "WIDE", wide)
    with_calls = 0
    for seed in range(1000 * wide, 1000 * wide + 500):
        rng, grammar = random_grammar(seed)
        try:
            read, whole = (
                compile_form(grammar, vocab, source="test", meter=Budget(states=20_000).begin()) for _ in "12"
            )
            whole.to_table()
        except (mw.errors.GrammarError, mw.errors.ConstraintError):
            continue
        with_calls += whole.is_nested
        for text in TEXTS if seed % 4 == 0 else ():
            assert whole.accepts(spelled(text)) == read.accepts(spelled(text)) == accepts(grammar, text), (seed, text)
        for _ in range(4):
            for _ in walked(rng, read, whole, 12, vocab.size):
                pass
    assert with_calls > 20


WORDS = ("(?!(be|en)$)[ben]+", "(?!en$)[en]+", "en[be]+", "[be][en]*", "(en)?b", "en")


@pytest.mark.long
def test_words_that_close_may_be_the_beginning_of_names(vocab):
    """Random blocks between two words: such as have a table have the one of their reader, and its ends."""
    with_calls, gaps = 0, [Text(b" "), terminal(" +"), Text(b";"), Text(b"")]
    for seed in range(500):
        rng = random.Random(seed)
        names = [terminal(rng.choice(WORDS)) for _ in "12"]
        rules: dict[str, Node] = {}
        for name in ("start", "x"):
            inner: list[Node] = [
                *rng.sample(names, rng.randint(1, 2)),
                Rule("start"),
                *rng.sample([Rule("x")], seed % 2),
            ]
            before, after, behind = (rng.choice(gaps) for _ in "123")
            body = Repeat(Sequence((before, Choice(tuple(inner)))), 0, None)
            opener, closer = rng.choice([(b"be", b"en"), (b"be", b"en"), (b"(", b"en"), (b"be", b"ene")])
            rules[name] = Sequence((Text(opener), body, after, Text(closer), *rng.sample([behind], rng.randint(0, 1))))
        grammar = Grammar(rules, "start")
        depth = rng.choice([2, 64])
        read, whole = (compile_form(grammar, vocab, source="t", depth=depth, meter=Budget().begin()) for _ in "12")
        try:
            whole.to_table()
        except (mw.errors.NoTableError, mw.errors.ConstraintError):
            continue
        with_calls += whole.is_nested
        for _ in range(6):
            for text, reader, table in walked(rng, read, whole, 14, 257, less=depth == 2):
                found = accepts(grammar, bytes(i - 1 for i in text))
                assert reader.is_accepting == table.is_accepting == found, (seed, text)
                assert table.is_accepting or any(allowed(table.mask(), 257))
    assert with_calls > 100


def test_a_list_between_operators_derives_what_the_rule_did():
    """Rules with themselves at both ends are written as lists; all short texts, against a recogniser of either."""
    texts = [bytes(word) for n in range(5) for word in itertools.product(b"ab+-", repeat=n)]
    changed = 0
    for seed in range(60):
        rng = random.Random(seed)
        operand = rng.choice([Text(b"a"), Text(b"b"), Text(b""), Choice((Text(b"a"), Rule("x")))])
        ends = [
            Sequence((Rule("start"), Text(rng.choice([b"+", b"-", b""])), Rule("x"))),
            Sequence((Rule("start"), Text(b"+"), Rule("start"))), Sequence((Text(b"-"), Rule("start"))),
            Sequence((Rule("start"), Text(b"b"))), Rule("x"), Rule("start"),
        ]  # fmt: skip
        body = Choice((operand, *rng.sample(ends, rng.randint(1, 4))))
        other: Node = rng.choice([Text(b"b"), Sequence((Rule("start"), Text(b"-"), Rule("start")))])
        grammar = Grammar({"start": body, "x": other}, "start")
        lists = with_lists(grammar)
        changed += lists.rules["start"] is not body
        for text in rng.sample(texts, 60):
            assert accepts(lists, text) == accepts(grammar, text), (seed, text)
    assert changed > 20


KINDS = {
    "calculator": (
        'start: e\ne: e "+" e | e "*" e | "-" e | "(" e ")" | /[0-9]+/\n%ignore " "',
        ["1", "(1+2)*-(3)", "((((5))))"],
        ["(1", "1)", "(1+)", "()"],
    ),
    "keywords": (
        'start: s\ns: "begin" s* "end" | "if" "(" e ")" s "else" s "fi" | "X"\ne: "x" | "(" e ")" | e "," e',
        ["X", "beginend", "beginXbeginXendend", "if(x,(x))XelsebeginXendfi"],
        ["begin", "if(x)Xfi", "beginXendend", "if((x)XelseXfi"],
    ),
    "one word in another": (  # "fn" may be the beginning of a name: the next byte decides
        'start: e\ne: NAME | "fn" (" " NAME)? ":" e ";" | "(" e ")"\nNAME: /[a-z]+/',
        ["fn", "fnord", "fn:fn:a;;", "fn x:(fn:fn;);", "(fnx)"],
        ["fn:a", "fn x", "fnx:a;", "fn:a;;"],
    ),
    "a closing word in another": (  # "ends" goes on within what `end` closes, and the text may be over behind it
        'start: s\ns: "begin" (W (s | NAME))* W "end"\nNAME: /(?!(begin|end)\\b)[a-z]+/\nW: / +/',
        ["begin end", "begin ends end", "begin begin  endend  end end", "begin begin beg en end beginn end"],
        ["begin ends", "beginend", "begin end end", "begin begin end"],
    ),
    "closing words in each other": (
        'start: s (" " s)*\ns: "if" (";" s)* ";end" | "if" (";" s)* ";endif" "!" | ";ends"',
        ["if;end", "if;endif!", "if;if;end;;ends;end", "if;;ends;endif! ;ends", "if;if;endif!;endif! if;end"],
        ["if;endif", "if;end!", "if;;end", "if;ends"],
    ),
    "any case": (
        'start: e\ne: "case"i " " e* "end"i | "k"',
        ["k", "CaSe kkEnD", "case case kendend"],
        ["case k", "casek"],
    ),
    "tags": (
        'start: el\nel: "<" NAME ">" (el | TEXT)* "</" NAME ">"\nNAME: /[a-z]+/\nTEXT: /[^<]+/',
        ["<a></a>", "<a>x<b>y</b>z</a>"],
        ["<a>", "<a><b></a>", "<a></a></a>"],
    ),
    "two that begin alike": (
        'start: e\ne: "(" e ")" | "(" l ")" "!" | "a"\nl: l ";" e | e',
        ["(a)", "(a)!", "(a;(a)!)!", "((a))"],
        ["(a;a)", "(a;a)!!", "a!"],
    ),
    "at an end": (
        'start: s\ns: "if" s "then" s | "x"',
        ["x", "ifxthenx", "ififxthenxthenx", "ifxthenifxthenx"],
        ["ifx", "ifxthen", "ififxthenx"],
    ),
    "at a beginning": (
        'start: s\ns: t "do" s "od" | "x"\nt: s "!"',
        ["x", "x!dox!doxodod", "x!doxod!doxod"],
        ["x!dox", "x!"],
    ),
    "brackets that are none elsewhere": (
        'start: e\ne: "(" e ")" | "[" "a" "]" | "[a"',
        ["[a", "[a]", "([a)", "([a])"],
        ["[", "([a", "[a]]"],
    ),
    "operators of another rule": (
        'start: e\ne: t | "(" e ")"\nt: e "+" e | "n"',
        ["n", "n+n", "(n+n)+n", "((n))"],
        ["(n", "n+", "(n+)"],
    ),
    "what ended says what follows": (
        'start: "1" a "!" | "2" b "!"\na: "(" e ")" | "(" e ";" ")" "p"\nb: "(" e ")" | "(" e ";" ")" "q"\n'
        'e: "{" e "}" | "x"',
        ["1(x)!", "2({x})!", "1(x;)p!", "2(x;)q!"],
        ["1(x;)q!", "2(x;)p!", "1(x;)!"],
    ),
}


@pytest.mark.parametrize("name", sorted(KINDS))
def test_each_kind_of_bracket_is_found(vocab, name):
    source, inside, outside = KINDS[name]
    table = mw.compile_grammar(source, vocab).to_table()
    assert table.is_nested
    assert table.most_frames_required <= 3  # frames: only where so few fit no more, room has to be looked at
    for text in inside:
        assert table.accepts(spelled(text.encode())), text
    for text in outside:
        assert not table.accepts(spelled(text.encode())), text


@pytest.mark.parametrize(
    "source",
    [
        'start: x* "a" x~24\nx: "a" | "b"',
        "\n".join(["start: r0", *(f"r{i}: r{i + 1} r{i + 1}" for i in range(40)), 'r40: "a" | ']),
        "start: e\ne: " + " | ".join(f'"{i}<" e ">{i}"' for i in range(400)) + ' | "x"',
    ],
    ids=["regular", "ambiguous", "brackets"],
)
def test_what_finds_all_states_keeps_to_the_seconds_of_a_budget(vocab, source):
    lazy = mw.compile_grammar(source, vocab, budget=Budget(seconds=0.5, states=10**9, bytes=1 << 40))
    with pytest.raises(mw.errors.BudgetError, match=r"finding all states of a grammar \(budget: seconds=0.5;"):
        lazy.to_table()


def test_states_that_only_a_long_count_tells_apart_are_merged_quickly(vocab):
    """Rounds of refinement, one for each character, would take minutes."""
    grammar = 'start: "(" start ")" | "<" /[a-z]{0,2000}/ ">"'
    table = mw.compile_grammar(grammar, vocab, budget=Budget(seconds=20)).to_table()
    assert table.is_nested
    assert table.accepts(spelled(b"((<" + b"x" * 2000 + b">))"))
    assert not table.accepts(spelled(b"((<" + b"x" * 2001 + b">))"))


def test_what_is_within_itself_on_one_side_only_takes_no_brackets(vocab):
    grammar = Grammar({"start": Choice((Sequence((Text(b"("), Rule("start"))), Text(b"a")))}, "start")
    rules = reachable(grammar)
    assert not embedding(rules, least(rules, may_read))
    assert not compile_form(grammar, vocab, source="test", meter=Budget().begin()).to_table().is_nested


def test_no_text_is_begun_that_the_depth_keeps_from_ending(vocab):
    """At most `depth` brackets that may have others within are open at once, and every one can be closed."""
    table = mw.compile_grammar('start: e\ne: "(" e e ")" | "[" e "]" | "a"', vocab, depth=5).to_table()
    assert table.depth == 5
    rng = random.Random(0)
    deepest = 0
    for _ in range(60):
        matcher, height = mw.Matcher(table), 0
        for _ in range(400):
            ways = [i for i in allowed(matcher.mask(), vocab.size) if i]
            if not ways:
                break
            token = rng.choice(ways)
            assert matcher.advance(token)
            height += sum((byte in b"([") - (byte in b")]") for byte in vocab.tokens[token])
            deepest = max(deepest, height)
            assert height <= 5
        else:
            continue
        assert matcher.is_accepting
    assert deepest == 5


def test_there_is_no_table_where_what_was_read_may_ask_for_more_than_the_depth(vocab):
    """Behind `b` another bracket has to follow: on the last level that could not be opened any more."""
    grammar = 'start: e\ne: "(" "a" ")" | "(" "b" ")" "[" e "]"'
    with pytest.raises(mw.errors.NoTableError, match="no depth would be enough"):
        mw.compile_grammar(grammar, vocab).to_table()
    assert mw.compile_grammar(grammar, vocab).accepts(spelled(b"(b)[" * 70 + b"(a)" + b"]" * 70))


def test_a_word_that_may_close_one_bracket_or_open_another_makes_no_table(vocab):
    table = mw.compile_grammar('start: e\ne: "be" e* "|" | "|" e* "en" | "a"', vocab)
    with pytest.raises(mw.errors.NoTableError, match="no brackets say"):
        table.to_table()
    assert [table.accepts(spelled(text)) for text in (b"be|en|", b"bea|", b"be|a")] == [True, True, False]


def test_a_depth_that_no_text_fits_is_refused(vocab):
    grammar = 'start: e\ne: "{" ("(" e* ")")+ "}"'
    with pytest.raises(mw.errors.ConstraintError, match=r"depth 1 is enough for no text: raise it to 2"):
        mw.compile_grammar(grammar, vocab, depth=1).to_table()
    assert mw.compile_grammar(grammar, vocab, depth=2).to_table().accepts(spelled(b"{()()}"))


@pytest.mark.parametrize(
    "source",
    [
        'start: "(" start ")" | /[a-f]+(![a-f]*)?/',
        'start: e\ne: e "," e | "[" e? "]" | /"[^"]*"/ | "!" NAME\nNAME: /[a-e]+/\n%ignore " "',
        'start: e\ne: "<" NAME ">" (e | /[^<]+/)* "</" NAME ">"\nNAME: /[a-f]+/',
    ],
)
def test_rows_of_thousands_of_tokens_allow_what_the_reader_does(source):
    """Of these most lead back to a state, or away from it: what is of its characters alone is not walked."""
    rng = random.Random(5)
    words = {"".join(rng.choices("abcdef", k=rng.randint(3, 7))) for _ in range(2500)}
    words |= {"".join(rng.choices('abcdef!"<>/é ,', k=rng.randint(2, 7))) for _ in range(3000)}
    for _ in range(6000):  # more than lead back to a name are those that lead away from it
        words.add("!".join("".join(rng.choices("abcdef", k=rng.randint(0, 4))) for _ in "12"))
    brackets = ["((", "(((", "))", "a)", "b))", '","', '"]', '["', "</", "></", ">a<"]
    tokens = [b"", *(bytes([b]) for b in range(256)), *(word.encode() for word in sorted({*words, *brackets}))]
    vocab = mw.Vocabulary.from_bytes([*tokens, b"\xc3", b"a\xc3", b"\xa9b"], eos=0)
    read, whole = mw.compile_grammar(source, vocab), mw.compile_grammar(source, vocab).to_table()
    assert whole.is_nested
    assert whole.bases.masks.shape[0]
    for _ in range(250):
        one, other = mw.Matcher(read), mw.Matcher(whole)
        for _ in range(6):
            mask = one.mask()
            assert (mask == other.mask()).all()
            ways = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
            if not (ways > 0).any():
                break
            token = int(rng.choice(ways[ways > 0]))
            assert one.advance(token)
            assert other.advance(token)


def test_budgets_of_tokens_end_every_text_in_time(vocab):
    table = mw.compile_grammar(KINDS["calculator"][0], vocab)
    rng = random.Random(1)
    for _ in range(40):
        most = rng.randint(2, 12)
        matcher = mw.Matcher(table, max_tokens=most)
        text = b""
        for _ in range(most):
            token = rng.choice(allowed(matcher.mask(), vocab.size))
            assert matcher.advance(token)
            if token == vocab.eos:
                break
            text += vocab.tokens[token]
        assert table.accepts(spelled(text)), text


def test_a_device_allows_what_the_host_does(vocab):
    torch = pytest.importorskip("torch")
    from maskwright.runtime import torch_ops

    table = mw.compile_grammar(KINDS["two that begin alike"][0], vocab).to_table()
    rng = random.Random(2)
    rows, steps = 6, 10
    matchers = [mw.Matcher(table) for _ in range(rows)]
    devices = [(ops, dev := ops.to_device(table), ops.start(dev, rows)) for ops in (numpy_ops, torch_ops)]
    for _ in range(steps):
        masks = np.stack([matcher.mask() for matcher in matchers])
        for ops, dev, state in devices:
            assert (np.asarray(ops.bitmask(dev, state)).view(np.uint32) == masks).all(), ops.__name__
        tokens = [rng.choice(allowed(mask, vocab.size) or [0]) for mask in masks]
        for matcher, token in zip(matchers, tokens, strict=True):
            matcher.advance(token)
        chosen = np.array(tokens)
        devices = [
            (ops, dev, ops.advance(dev, state, chosen if ops is numpy_ops else torch.from_numpy(chosen)))
            for ops, dev, state in devices
        ]


def test_a_bracket_with_which_another_begins_at_once_makes_no_table_where_it_may_be_none(vocab):
    table = mw.compile_grammar('start: e\ne: NAME | "fn" "(" e ")" e ";"\nNAME: /[a-z]+/', vocab)
    with pytest.raises(mw.errors.NoTableError, match="no brackets"):
        table.to_table()
    texts = {b"fn": True, b"fnx": True, b"fn(a)b;": True, b"fn(fn)fn(a)b;;": True, b"fn(a)b": False, b"fn(a);": False}
    assert {text: table.accepts(spelled(text)) for text in texts} == texts


@pytest.mark.long
@pytest.mark.parametrize(
    "source",
    [
        'start: "(" (NAME | "if" start | "in" "!" | "é" start)+ ")"\nNAME: /[a-zà-ÿ_]+/\n%ignore / +/',
        'start: "<" /[^<>]*x/ start? ">"',
        'start: "(" (/([a-z][a-z])+/ ";" | /([а-я][а-я])+/ ":" | /[0-9]+/ | start)* ")"',
        'start: "begin" (start | /[0-9]+/ | /[A-Zß-ü]+/ ";")* "end"',
        'start: "begin" (W (NAME | start))* W "end"\nNAME: /(?!(begin|end)\\b)[a-zà-ÿ]+/\nW: / +/',
    ],
)
def test_wide_rows_of_a_real_vocabulary_are_as_they_are_read(source):
    """Of 131,072 tokens: sets of characters that lead back, from words that may become another, and rows in order."""
    _, vocab = tekken()
    read, table = (mw.compile_grammar(source, vocab) for _ in range(2))
    table.to_table()
    assert table.is_nested
    rng = np.random.default_rng(0)
    for _ in range(6):
        one, other = mw.Matcher(read), mw.Matcher(table)
        for _ in range(25):
            mask = one.mask()
            assert (mask == other.mask()).all()
            allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
            allowed = allowed[allowed != vocab.eos]
            if not allowed.size:
                break
            token = int(rng.choice(allowed))
            assert one.advance(token)
            assert other.advance(token)
