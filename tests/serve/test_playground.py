"""The playground: what its page asks, and the page itself in headless Chromium."""

from __future__ import annotations

import contextlib
import json
import random
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskwright as mw
from tests.strategies import tokenizer_zoo

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
httpx = pytest.importorskip("httpx")

from maskwright.serve import loading, playground_api  # noqa: E402
from maskwright.serve.playground_trace import FORCED, MAY_END, RESPLIT, Walker  # noqa: E402
from maskwright.serve.refusals import Refused  # noqa: E402
from maskwright.serve.settings import Limits  # noqa: E402
from tests.support import browsers  # noqa: E402
from tests.support.servers import running, wait  # noqa: E402

CITY = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "founded": {"type": "integer"}},
        "required": ["name", "founded"],
        "additionalProperties": False,
    }
)
LIST = 'start: ITEM ("," ITEM)*\nITEM: /[a-z]+/\n%ignore " "'
NESTED = 'start: "(" start ")" | /[0-9]+/'
TAGS = """{"type": "structural_tag", "triggers": ["{"], "structures": [
    {"begin": "{", "schema": {"type": "array", "items": {"type": "string"}}, "end": "}"}
]}"""
PALINDROMES = 'start: "a" start "a" | "b" start "b" | "a" | "b"'  # no letter says whether the middle was passed
DATE = "(19|20)[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
BYTES = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), b"ab", b"abc", b"bc", b'": "', b'{"'], eos=0)


@pytest.fixture(scope="module")
def service():
    with running(limits=Limits(whitespace="flexible")) as one:
        yield one
        assert one.fault is None


def ask(service, path, kind, source, **more):
    return httpx.post(f"{service.url}/playground/{path}", json={"kind": kind, "source": source, **more}, timeout=60)


def told(service, path, kind, source, **more):
    out = ask(service, path, kind, source, **more)
    assert out.status_code == 200, out.text
    return out.json()


def compiled(vocabulary, kind, source):
    if kind == "schema":
        return mw.compile_json_schema(source, vocabulary, lazy=False)
    if kind == "regex":
        return mw.compile_regex(source, vocabulary)
    if kind == "grammar":
        return mw.compile_grammar(source, vocabulary)
    if kind == "tags":
        return mw.compile_structural_tag(source, vocabulary)
    return mw.compile_choices(source.split("\n"), vocabulary)


# ------------------------------------------------------------------------------------------------------------ walks


def by_bytes(table, vocabulary, raw):
    """The first byte that no text has there, as a matcher finds it byte by byte; None if there is none."""
    byte_token = {token: i for i, token in enumerate(vocabulary.tokens) if len(token) == 1}
    matcher = mw.Matcher(table)
    for at, byte in enumerate(raw):
        if not matcher.advance(byte_token[bytes([byte])]):
            return at, matcher
    return None, matcher


def allowed(matcher, vocabulary):
    mask = matcher.mask()
    return {i for i in range(vocabulary.size) if int(mask[i >> 5]) >> (i & 31) & 1} - {vocabulary.eos}


SOURCES = [
    ("regex", "(abc|ab)*c"), ("regex", "[ab]{0,4}c?"), ("choices", "abc\nab\nbcbc\né"), ("schema", CITY),
    ("schema", '{"type": "array", "items": {"$ref": "#"}}'), ("schema", '{"enum": ["abc", "bc", "é"]}'),
    ("grammar", PALINDROMES), ("grammar", 'start: "[" (start ("," start)*)? "]" | "abc"'), ("tags", TAGS),
]  # fmt: skip


@pytest.fixture(scope="module")
def tables():
    return {(kind, source): compiled(BYTES, kind, source) for kind, source in SOURCES}


@given(
    st.sampled_from(SOURCES),
    st.lists(st.sampled_from([*'abc[],é"{}: 1', "abc", '{"', '"name": "', '"founded": ', '"b', "\x00"]), max_size=12),
)
@settings(deadline=None, max_examples=300)
def test_a_walk_says_what_a_matcher_says_byte_by_byte(tables, source, parts):
    table, raw = tables[source], "".join(parts).encode()
    tokens = BYTES.encode(raw)
    walk = Walker(BYTES).walk(table, raw, tokens)
    wrong, there = by_bytes(table, BYTES, raw)
    assert walk.wrong == wrong
    assert walk.matcher.is_accepting == there.is_accepting
    assert (walk.matcher.mask() == there.mask()).all()
    spelt = [token for token, *_ in walk.steps]
    assert raw.startswith(BYTES.decode(spelt))
    again = mw.Matcher(table)
    for at, (token, end, count, marks) in enumerate(walk.steps):
        options = allowed(again, BYTES)
        assert count == len(options)
        assert bool(marks & MAY_END) == again.is_accepting
        own = BYTES.tokens[token]
        others = [BYTES.tokens[i] for i in options]
        if marks & FORCED:  # each that is allowed begins with it, or it with each
            assert not again.is_accepting
            assert all(own.startswith(other) or other.startswith(own) for other in others)
        elif len(own) == 1 and not again.is_accepting:
            assert {other[:1] for other in others} != {own}
        assert bool(marks & RESPLIT) == (spelt[: at + 1] != tokens[: at + 1]) or marks & RESPLIT == 0
        assert again.advance(token)
        assert end == len(BYTES.decode(spelt[: at + 1]))
    if wrong is not None:
        ends = list(accumulate(len(BYTES.tokens[token]) for token in tokens))
        assert walk.token == sum(end <= wrong for end in ends)
        assert len(BYTES.decode(spelt)) == wrong
        assert [end for _, end in walk.rest] == [end for end in ends if end > wrong]


def test_a_text_that_the_tokenizer_splits_otherwise_is_not_refused():
    """The table is one of the tokens "ab", "bc" alone, and the tokenizer has "abb", "c"."""
    vocabulary = mw.Vocabulary.from_bytes([b"", b"ab", b"bc", b"abb", b"c"], eos=0)
    table = mw.compile_sequences([[1, 2]], vocab_size=5, eos=0)
    object.__setattr__(table, "vocabulary", vocabulary.fingerprint)
    walk = Walker(vocabulary).walk(table, b"abbc", [3, 4])
    assert walk.wrong is None
    assert walk.matcher.is_accepting
    assert [(step.token, step.marks & RESPLIT) for step in walk.steps] == [(1, RESPLIT), (2, RESPLIT)]


def test_another_split_is_marked_and_met_again():
    """A table that refuses a token which its bytes would not: one of tokens, not of bytes."""
    vocabulary = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), b"ab", b"abc"], eos=0)
    plain = {chr(b): 1 + b for b in range(256)}
    table = mw.compile_sequences([[plain["a"], plain["b"], plain["c"]], [257, plain["c"]]], vocab_size=259, eos=0)
    object.__setattr__(table, "vocabulary", vocabulary.fingerprint)
    walk = Walker(vocabulary).walk(table, b"abc", [258])
    assert walk.wrong is None
    assert [(step.token, bool(step.marks & RESPLIT)) for step in walk.steps] == [(257, True), (plain["c"], True)]
    walk = Walker(vocabulary).walk(table, b"abd", [257, plain["d"]])
    assert (walk.wrong, walk.token, walk.rest) == (2, 1, [(plain["d"], 3)])


def test_the_byte_is_right_where_bytes_are_no_tokens():
    vocabulary = mw.Vocabulary.from_bytes([b"", b"hel", b"help", b"lo", b"hey", b"l", b"o", b"p", b"he"], eos=0)
    table = mw.compile_choices(["hello", "hey"], vocabulary)
    walk = Walker(vocabulary).walk(table, b"help", [2])
    assert (walk.wrong, walk.token) == (3, 0)
    assert walk.rest == [(-1, 4)]
    assert [vocabulary.tokens[step.token] for step in walk.steps] == [b"hel"]


def test_what_must_come_is_known_across_tokens(service):
    place = told(service, "step", "schema", CITY, text='{"na')["place"]
    assert bytes.fromhex(place["forced"]) == b'me":'
    place = told(service, "step", "regex", "ab(cd|ce)", text="")["place"]
    assert bytes.fromhex(place["forced"]) == b"abc"
    assert not told(service, "step", "regex", "(ab)?", text="")["place"]["forced"]


def test_a_walk_of_a_real_tokenizer_is_that_of_its_tokens():
    _, vocabulary = tokenizer_zoo.tekken()
    table = mw.compile_json_schema(CITY, vocabulary, lazy=False)
    walker = Walker(vocabulary)
    for text, wrong in (
        ('{"name": "Ulm", "founded": 854}', None), ('{"name": "Ulm", "founded": 85x}', 29), ('{"name": "Ulm"', None),
        ('{"nome": "Ulm"}', 3), ('{"name": "Ulm"} ', 14), ('{"name": "Ulm a. d. Donau"}', 22), ('{"founded": 3}', 2),
    ):  # fmt: skip
        raw, tokens = text.encode(), vocabulary.encode(text)
        walk = walker.walk(table, raw, tokens)
        assert walk.wrong == wrong, text
        matcher = mw.Matcher(table)
        taken = next((n for n, token in enumerate(tokens) if not matcher.advance(token)), len(tokens))
        assert [step.token for step in walk.steps][:taken] == tokens[:taken]
        assert walk.token == (None if wrong is None else taken)


# ----------------------------------------------------------------------------------------------------------- routes


def test_a_source_has_a_size_and_a_time_and_comes_from_the_cache_the_second_time(service):
    source = f"[ab]{{3}}{random.random()}"
    first, second = (told(service, "compile", "regex", source) for _ in range(2))
    table = service.cache.compile_regex(source, flags="a", budget=service.limits.budget)
    assert (first["origin"], second["origin"]) == ("compiled", "memory")
    assert first["compile_seconds"] == first["seconds"] == second["compile_seconds"]
    assert first["fingerprint"] == table.source
    assert first["way"] == "as it is read"
    assert (second["states"], second["bytes"]) == (table.machine.num_states, table.memory)


def test_a_source_shares_the_tables_of_the_api(service):
    before = service.cache.stats.compilations
    told(service, "compile", "regex", "shared [0-9]{3}")
    body = {"model": loading.TINY, "prompt": "a", "guided_regex": "shared [0-9]{3}", "max_tokens": 20}
    assert httpx.post(f"{service.url}/v1/completions", json=body, timeout=60).status_code == 200
    assert service.cache.stats.compilations == before + 1


def test_it_is_said_which_way_down_a_grammar_takes(service):
    source = LIST.replace("ITEM", f"I{random.randrange(10**9)}")
    first, second = (told(service, "compile", "grammar", source) for _ in range(2))
    table = service.cache.compile_grammar(source, budget=service.limits.budget).to_table()
    assert (first["way"], first["origin"]) == ("regular", "compiled")
    assert (first["states"], first["edges"], second["origin"]) == (table.num_states, table.num_edges, "memory")
    out = told(service, "compile", "grammar", NESTED)
    assert (out["way"], out["depth"]) == ("delimited", 64)
    out = told(service, "compile", "grammar", PALINDROMES)
    assert (out["way"], "edges" in out) == ("as it is read", False)
    told(service, "step", "grammar", PALINDROMES, text="ab" * 40 + "a")
    table = service.cache.compile_grammar(PALINDROMES, budget=service.limits.budget)
    grown = told(service, "compile", "grammar", PALINDROMES)
    assert out["states"] < grown["states"] == table.machine.num_states


def test_reading_a_grammar_keeps_to_its_budget_and_is_counted():
    with running(limits=Limits(budget=mw.Budget(states=300, seconds=2))) as one:
        assert told(one, "step", "grammar", PALINDROMES, text="ab")["verdict"]["kind"] == "open"
        before = one.cache.stats.bytes
        error = ask(one, "step", "grammar", PALINDROMES, text="ab" * 1000).json()["error"]
        assert error["code"] == "constraint_too_expensive"
        assert "--budget-states" in error["message"]
        table = one.cache.compile_grammar(PALINDROMES, budget=one.limits.budget)
        assert before < one.cache.stats.bytes
        assert one.cache.stats.bytes >= table.memory


def test_options_of_a_schema_change_its_table(service):
    schema = '{"not": {"type": "array", "items": {"type": "string"}, "uniqueItems": true, "maxItems": 2}}'
    error = ask(service, "compile", "schema", schema).json()["error"]
    assert (error["pointer"], error["keyword"], error["param"]) == ("/not/uniqueItems", "uniqueItems", "source")
    for allow in (["uniqueItems"], ["uniqueItems", "format", "uniqueItems"], "all"):
        told(service, "compile", "schema", schema, allow=allow)
    for allow in ("uniqueItems", ["unique"], ["é"]):
        error = ask(service, "compile", "schema", schema, allow=allow).json()["error"]
        assert error["param"] == "allow"
    sizes = {told(service, "compile", "schema", CITY, whitespace=w)["states"] for w in ("flexible", "compact")}
    assert len(sizes) == 2
    fits = [
        told(service, "step", "schema", CITY, text='{"name": "Ulm", "founded": 1}', whitespace=w)["verdict"]["kind"]
        for w in (None, "flexible", "compact")
    ]
    assert fits == ["fits", "fits", "refused"]


@pytest.mark.parametrize(
    ("kind", "source", "text", "verdict"),
    [
        ("schema", CITY, '{"name": "Ulm", "founded": 854}', {"kind": "fits"}),
        ("schema", CITY, '{"name": "Ulm"', {"kind": "open"}),
        ("schema", CITY, "", {"kind": "open"}),
        ("schema", CITY, '{\n"name": "Ulm"}', {"kind": "refused", "byte": 15, "line": 2, "column": 14, "token": 11}),
        ("schema", '{"const": "éa"}', '"éb"', {"kind": "refused", "byte": 3, "line": 1, "column": 3, "token": 3}),
        ("schema", '{"const": "é"}', '"è"', {"kind": "refused", "byte": 2, "line": 1, "column": 2, "token": 2}),
        ("regex", DATE, "2024-13", {"kind": "refused", "byte": 6, "line": 1, "column": 7, "token": 6}),
        ("regex", DATE, "2024-12-31", {"kind": "fits"}),
        ("regex", DATE, "2024-12-311", {"kind": "refused", "byte": 10, "line": 1, "column": 11, "token": 10}),
        ("choices", "red\ngreen\n", "gree", {"kind": "open"}),
        ("choices", "red\r\ngreen", "red", {"kind": "fits"}),
        ("choices", "red\ngreen", "blue", {"kind": "refused", "byte": 0, "line": 1, "column": 1, "token": 0}),
        ("grammar", LIST, "a, b ,c ", {"kind": "fits"}),
        ("grammar", LIST, "a, ", {"kind": "open"}),
        ("grammar", LIST, "a,\nb", {"kind": "refused", "byte": 2, "line": 1, "column": 3, "token": 2}),
        ("grammar", "root ::= 'a' root | [é]", "aaé", {"kind": "fits"}),
        ("grammar", NESTED, "((12)", {"kind": "open"}),
        ("grammar", PALINDROMES, "abbabba", {"kind": "fits"}),
        ("grammar", PALINDROMES, "abc", {"kind": "refused", "byte": 2, "line": 1, "column": 3, "token": 2}),
        ("tags", TAGS, 'a {["b"]} c', {"kind": "fits"}),
        ("tags", TAGS, "a {[", {"kind": "open"}),
        ("tags", TAGS, "a\n{1", {"kind": "refused", "byte": 3, "line": 2, "column": 2, "token": 3}),
    ],
)
def test_a_text_has_a_verdict_and_a_place(service, kind, source, text, verdict):
    out = told(service, "step", kind, source, text=text)
    assert out["verdict"] == verdict
    raw = text.encode()
    ends = [end for _, end, *_ in [*out["tokens"], *out["rest"]]]
    assert (ends or [0])[-1] == len(raw)
    if verdict["kind"] != "refused":
        assert not out["rest"]


def test_allowed_tokens_are_those_of_a_matcher_page_by_page(service):
    vocabulary = service.loaded.vocabulary
    text, step = '{"name": "Ulm', 5
    out = told(service, "step", "schema", CITY, text=text)
    table = compiled(vocabulary, "schema", CITY)
    for at in (step, len(out["tokens"])):
        matcher = mw.Matcher(table)
        assert all(matcher.advance(token) for token, *_ in out["tokens"][:at])
        found, total = [], 1
        while len(found) < total:
            page = told(service, "allowed", "schema", CITY, text=text, step=at, offset=len(found))
            found += page["tokens"]
            total = page["total"]
            assert page["matching"] == total
            assert 0 < len(page["tokens"]) <= 100
        assert {i for i, _ in found} == allowed(matcher, vocabulary)
        assert len(found) == total
        assert all(bytes.fromhex(spelt) == vocabulary.tokens[i] for i, spelt in found)
        assert page["ends"] == matcher.is_accepting
        first = {vocabulary.tokens[i][0] for i, _ in found}
        assert {byte for low, high in page["first"] for byte in range(low, high + 1)} == first
    wanted = told(service, "allowed", "schema", CITY, text=text, step=at, filter="in")["tokens"]
    assert [bytes.fromhex(spelt) for _, spelt in wanted] == [b"ing "]
    readable = [bytes.fromhex(spelt).decode(errors="surrogateescape").isprintable() for _, spelt in found]
    assert readable == sorted(readable, reverse=True)


REFUSED = [
    ("compile", {"kind": "schema", "source": '{"properties": {"a/b": {"type": "strin"}}}'}, "source",
     "^/properties/a~1b/type"),
    ("compile", {"kind": "schema", "source": '{"a": '}, "source", "malformed JSON in line 1, column 7"),
    ("compile", {"kind": "schema", "source": "[" * 5000}, "source", "nested"),
    ("compile", {"kind": "schema", "source": '"\ud800"'}, "source", "surrogate"),
    ("compile", {"kind": "regex", "source": "(a"}, "source", r"never closed[\s\S]*\^"),
    ("compile", {"kind": "regex", "source": "a" * 300_000}, "source", "max-schema-bytes"),
    ("compile", {"kind": "choices", "source": ""}, "source", "no choices"),
    ("compile", {"kind": "choices", "source": "a\n\nb"}, "source", "line 2 is empty"),
    ("compile", {"kind": "choices", "source": "\ud800"}, "source", "surrogate"),
    ("compile", {"kind": "grammar", "source": 'start: "a"\nx: y'}, "source", r"^line 2, column 4: there is no[^^]*\^"),
    ("compile", {"kind": "grammar", "source": "%import .secret.X\nstart: X"}, "source", "relative"),
    ("compile", {"kind": "grammar", "source": "\ud800"}, "source", "surrogate"),
    ("compile", {"kind": "tags", "source": "true"}, "source", "a structural tag is an object"),
    ("compile", {"kind": "tags", "source": TAGS.replace('["{"]', '["["]')}, "source", "^/structures/0/begin: "),
    ("compile", {"kind": "novel", "source": "a"}, "kind", "kind is one of schema, regex, choices, grammar, tags"),
    ("compile", {"kind": "regex", "source": "a", "x": 1}, "x", "not supported"),
    ("compile", {"kind": "regex"}, "source", "missing"),
    ("step", {"kind": "regex", "source": "a*", "text": "a" * 1_000_000}, "text", "1,000,000 bytes.* reads 32,768"),
    ("step", {"kind": "regex", "source": "a*", "text": "\ud800"}, "text", "surrogate"),
    ("step", {"kind": "regex", "source": "a*"}, "text", "missing"),
    ("allowed", {"kind": "regex", "source": "a*", "text": "ab", "step": 2}, "step", "1 steps"),
    ("allowed", {"kind": "regex", "source": "a*", "text": "a", "step": -1}, "step", "greater"),
    ("allowed", {"kind": "regex", "source": "a*", "text": "a", "step": 1, "filter": "x" * 300}, "filter", "200"),
    ("allowed", {"kind": "regex", "source": "a*", "text": "a", "step": 1, "offset": 10**30}, "offset", "less"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "param", "said"), REFUSED, ids=lambda each: str(each)[:40])
def test_what_cannot_be_asked_is_refused(service, path, body, param, said):
    content = json.dumps(body).encode()
    out = httpx.post(
        f"{service.url}/playground/{path}", content=content, headers={"content-type": "application/json"}, timeout=60
    )
    assert out.status_code == 400, out.text
    assert out.json()["error"]["param"] == param
    assert re.search(said, out.json()["error"]["message"])


def test_a_text_that_no_tokens_write_is_said_to_be_so():
    loaded = loading.tiny()
    spelt = [token if token != b"z" else b"" for token in loaded.vocabulary.tokens]
    loaded.vocabulary = mw.Vocabulary.from_bytes(spelt, eos=0)
    with running(loaded=loaded) as one:
        out = told(one, "step", "regex", "[a-z]*", text="az")
        assert out["verdict"]["kind"] == "unwritable"
        assert "byte 1" in out["verdict"]["message"]
        assert ask(one, "allowed", "regex", "[a-z]*", text="az", step=0).json()["error"]["code"] == "unwritable"


def test_a_source_that_explodes_stops_at_the_servers_budget():
    with running(limits=Limits(budget=mw.Budget(states=50))) as one:
        error = ask(one, "compile", "choices", "\n".join(f"{n}" * 5 for n in range(30))).json()["error"]
        assert error["code"] == "constraint_too_expensive"
        assert "--budget-states" in error["message"]


def test_the_longest_text_is_walked(service, monkeypatch):
    monkeypatch.setattr(
        "maskwright.serve.playground_trace.SECONDS", 60.0
    )  # it takes one, unless others want the processor too
    out = told(service, "step", "schema", '{"type": "array"}', text="[" + "1," * ((playground_api.MOST_TEXT - 1) // 2))
    assert len(out["tokens"]) > 30_000


def test_a_walk_that_takes_too_long_is_refused(tables, monkeypatch):
    monkeypatch.setattr("maskwright.serve.playground_trace.SECONDS", 0.0)
    with pytest.raises(Refused, match="take a shorter text"):
        Walker(BYTES).walk(tables["regex", "(abc|ab)*c"], b"abc", BYTES.encode(b"abc"))


@pytest.mark.parametrize("busy", [False, True])
def test_a_walk_rests_most_of_the_time_while_others_are_busy(tables, monkeypatch, busy):
    monkeypatch.setattr("maskwright.serve.playground_trace.AT_ONCE", 0.0)
    rests = []
    monkeypatch.setattr("maskwright.serve.playground_trace.time.sleep", rests.append)
    Walker(BYTES).walk(tables["regex", "(abc|ab)*c"], b"ababc", BYTES.encode(b"ababc"), lambda: busy)
    assert bool(rests) == busy


def test_a_full_queue_refuses_and_the_api_goes_on(service, monkeypatch):
    """All threads of the playground are held; another question is told so, and completions are written."""
    held, begun = threading.Event(), threading.Semaphore(0)
    monkeypatch.setattr(playground_api, "WAITING", 0)
    original = playground_api.Playground.step

    def slow(self, asked, client):
        begun.release()
        assert held.wait(100)
        return original(self, asked, client)

    monkeypatch.setattr(playground_api.Playground, "step", slow)
    with ThreadPoolExecutor(playground_api.THREADS) as pool:
        asked = [pool.submit(ask, service, "step", "regex", "a*", text="a") for _ in range(playground_api.THREADS)]
        try:
            for _ in asked:
                assert begun.acquire(timeout=50)
            out = ask(service, "compile", "regex", "b*")
            assert (out.status_code, out.json()["error"]["code"]) == (503, "playground_busy")
            body = {"model": loading.TINY, "prompt": "a", "guided_regex": "new [0-9]{3}", "max_tokens": 20}
            assert httpx.post(f"{service.url}/v1/completions", json=body, timeout=60).status_code == 200
        finally:
            held.set()
        assert [each.result().status_code for each in asked] == [200] * len(asked)
    assert ask(service, "compile", "regex", "b*").status_code == 200


def test_random_bodies_never_fail_the_server(service):
    rng = random.Random(0)
    values = [None, True, 0, -1, 10**30, "", "a", "\ud800", "\x00", [], {}, ["\ud800"], "schema", "(", "{", '{"a":1}']
    with httpx.Client(base_url=service.url, timeout=60) as client:
        for _ in range(300):
            body = {
                "kind": rng.choice(list(playground_api.KINDS)),
                "source": rng.choice(["a", "{}", "\ud800", "["]),
                "text": "a",
            }
            for _ in range(rng.randint(0, 3)):
                names = ("kind", "source", "text", "step", "filter", "offset", "whitespace", "allow", "x")
                body[rng.choice(names)] = rng.choice(values)
            path = rng.choice(("compile", "step", "allowed"))
            out = client.post(
                f"/playground/{path}", content=json.dumps(body).encode(), headers={"content-type": "application/json"}
            )
            assert out.status_code in (200, 400), (body, out.text)
        assert client.post("/playground/step", content=b"x" * 5_000_000).status_code == 413
    assert service.fault is None


def test_the_playground_can_be_left_out_and_is_no_part_of_the_description(service):
    assert not [path for path in httpx.get(f"{service.url}/openapi.json").json()["paths"] if "playground" in path]
    asked = (("/", None, 404), ("/playground/script.js", None, 404), ("/playground/compile", {}, 404))
    with running(playground=False) as one:
        for path, body, status in (*asked, ("/v1/models", None, 200)):
            out = httpx.request("GET" if body is None else "POST", one.url + path, json=body)
            assert out.status_code == status, path


def test_the_command_takes_the_option(monkeypatch):
    from click.testing import CliRunner

    from maskwright import serve
    from maskwright.cli.main import main

    seen = []
    monkeypatch.setattr(serve, "start", lambda settings, say: seen.append(settings.playground))
    for arguments in ([], ["--no-playground"]):
        assert CliRunner().invoke(main, ["serve", *arguments]).exit_code == 0
    assert seen == [True, False]


def test_the_files_of_the_page_are_sent_with_a_policy_and_name_no_other_host(service):
    for path, kind in (("/", "html"), ("/playground/style.css", "css"), ("/playground/script.js", "javascript")):
        out = httpx.get(service.url + path)
        assert (out.status_code, out.headers["content-type"].split(";")[0]) == (200, f"text/{kind}")
        assert "default-src 'none'" in out.headers["content-security-policy"]
        assert not re.findall(r"https?://(?!www\.w3\.org)", out.text)
        for sink in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert sink not in out.text


# --------------------------------------------------------------------------------------------------------- the page


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with browsers.opened(tmp_path_factory.mktemp("profile")) as one:
        yield one


@pytest.fixture
def page(browser, service):
    with browsers.watched_page(browser, service) as one:
        yield one


def visit(page, service, kind=None, source="", text="", **more):
    fragment = "" if kind is None else "#" + urlencode({"k": kind, "s": source, "t": text, **more})
    page.goto("about:blank")
    page.goto(f"{service.url}/{fragment}")
    settled(page)


def settled(page):
    page.wait_for_selector("main[aria-busy=false]")


def change(page, name, value):
    page.fill(f"#{name}", value)
    settled(page)


def facts(page):
    names, values = page.locator("#facts dt").all_inner_texts(), page.locator("#facts dd").all_inner_texts()
    return dict(zip(names, values, strict=True))


def selected(page):
    return page.locator("#tokens [aria-selected=true]").get_attribute("id")


def eventually(read, value):
    found = None
    with contextlib.suppress(AssertionError):
        wait(lambda: read() == value, 10)
    found = read()
    assert found == value


def test_the_page_opens_with_an_example_and_no_complaint(page, service):
    visit(page, service)
    assert "Refused at token" in page.inner_text("#verdict")
    assert page.locator("#example option:not([hidden])").count() == 8
    assert loading.TINY in page.inner_text("#about")
    assert set(facts(page)) >= {"States", "Bytes"}
    assert page.complaints == []


def test_each_example_compiles_and_has_a_verdict(page, service):
    visit(page, service)
    heads = []
    for n in range(8):
        page.select_option("#example", str(n))
        settled(page)
        eventually(lambda: page.locator("#source-error").is_visible(), False)
        heads.append(page.inner_text("#verdict strong"))
        assert int(facts(page)["States"].replace(",", "").removesuffix(" so far")) >= 1
    assert {head.split(" at")[0] for head in heads} == {"Refused", "Fits so far,", "Fits."}
    assert page.complaints == []


TYPED = """(area, values) => values.forEach(value => {
  area.value = value;
  area.dispatchEvent(new Event('input'));
}) || document.getElementById('main').getAttribute('aria-busy')"""


def test_editing_a_schema_compiles_it_anew_once_for_many_keys(page, service):
    visit(page, service, "schema", CITY, '{"name": "Ulm"')
    before, asked = facts(page), []
    page.on("request", lambda request: asked.append(request.url) if request.url.endswith("compile") else None)
    assert page.locator("#source").evaluate(TYPED, [CITY[:-1], CITY[:-1] + " ", CITY[:-1] + " }"]) == "true"
    eventually(lambda: page.evaluate("1") and len(asked), 1)
    settled(page)
    assert facts(page)["States"] == before["States"]
    change(page, "source", CITY.replace("12", "30"))
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("kind", "source", "text"),
    [
        ("schema", CITY, '{"name": "Ulm", "founded": 85x}'),
        ("schema", CITY, '{\n  "name": "Ulm",\n  "founded": true}'),
        ("schema", CITY, '{"founded": 854}'),
        ("regex", DATE, "2024-02-39"),
        ("choices", "red\ngreen", "green "),
        ("grammar", PALINDROMES, "abac"),
    ],
)
def test_a_refused_text_is_marked_where_a_matcher_stops(page, service, kind, source, text):
    visit(page, service, kind, source, text)
    vocabulary = service.loaded.vocabulary
    tokens, matcher = vocabulary.encode(text), mw.Matcher(compiled(vocabulary, kind, source))
    taken = next(n for n, token in enumerate(tokens) if not matcher.advance(token))
    wrong, _ = by_bytes(matcher.table, vocabulary, text.encode())
    said = page.inner_text("#verdict")
    assert f"Refused at token {taken + 1}," in said
    assert f"(byte {wrong})" in said
    assert page.inner_text("#behind .wrong") == text[wrong]
    behind = "".join(page.locator("#behind span").all_text_contents())
    assert behind == text
    before = page.locator("#tokens .chip:not(.refused):not(.rest)").count()
    assert before >= taken
    assert page.locator("#tokens .chip.refused").count() == 1
    assert page.locator("#tokens .chip.rest").count() == len(tokens) - taken - 1
    assert selected(page) == f"token-{before}"
    found, total = page.locator("#allowed button").count(), len(allowed(matcher, vocabulary))
    assert found == min(100, total)


def test_a_text_that_fits_and_one_that_does_so_far_are_told_apart(page, service):
    visit(page, service, "schema", CITY, '{"name": "Ulm", "founded": 854}')
    assert page.inner_text("#verdict").startswith("Fits. The text is complete; nothing may follow.")
    assert page.locator("#tokens .refused, #tokens .rest").count() == 0
    change(page, "text", '{"name": "Ulm", "founded')
    assert re.match(r'Fits so far, but is not complete.\s+Next must come ":', page.inner_text("#verdict"))
    change(page, "text", '{"name": "Ulm", "founded": 85')
    assert "Next may come" in page.inner_text("#verdict")
    change(page, "text", "")
    assert re.match(r"Nothing is written yet.\s+It must begin with {", page.inner_text("#verdict"))
    change(page, "source", "true")
    change(page, "text", "8")
    assert "it may also go on with" in page.inner_text("#verdict")


def test_steps_go_by_keyboard_and_by_click_and_end_where_the_text_is_refused(page, service):
    text = '{"name": "Ulm", "founded": x1}'
    visit(page, service, "schema", CITY, text)
    last = int(selected(page).removeprefix("token-"))
    page.focus("#tokens")
    page.keyboard.press("ArrowRight")
    assert selected(page) == f"token-{last}"
    assert not page.locator("#back").is_visible()
    for n in range(1, 4):
        page.keyboard.press("ArrowLeft")
        assert selected(page) == f"token-{last - n}"
    assert page.get_attribute("#tokens", "aria-activedescendant") == f"token-{last - 3}"
    page.keyboard.press("Home")
    eventually(lambda: page.inner_text("#place"), "2 tokens are allowed at the beginning: there must come {.")
    assert page.inner_text("#place-title") == "What may come at token 1"
    page.keyboard.press("End")
    assert selected(page) == f"token-{last}"
    page.click("#token-1")
    out = told(service, "allowed", "schema", CITY, text=text, step=1)
    eventually(lambda: page.locator("#allowed li").count(), len(out["tokens"]))
    page.locator("#tokens .rest").first.click(force=True)
    assert selected(page) == "token-1"
    page.click("#back")
    assert selected(page) == f"token-{last}"


def test_allowed_tokens_are_found_by_their_text_and_more_are_shown_when_asked(page, service):
    visit(page, service, "schema", CITY, '{"name": "Ulm')
    vocabulary = service.loaded.vocabulary
    matcher = mw.Matcher(compiled(vocabulary, "schema", CITY))
    assert all(matcher.advance(token) for token in vocabulary.encode('{"name": "Ulm'))
    total = len(allowed(matcher, vocabulary))
    assert page.inner_text("#more") == f"{total - 100:,} more"
    while page.locator("#more").is_visible():
        before = page.locator("#allowed li").count()
        page.click("#more")
        eventually(lambda before=before: page.locator("#allowed li").count() > before, True)
    assert page.locator("#allowed li").count() == total
    page.fill("#filter", "ing")
    eventually(lambda: page.locator("#allowed li").all_inner_texts(), ["ing␣\n267"])
    page.fill("#filter", "ßß")
    eventually(lambda: page.inner_text("#allowed"), "None of them has ßß in it.")


def test_a_token_that_is_chosen_is_written_and_can_be_undone(page, service):
    visit(page, service, "choices", "red\ngreen\ngrey", "gr")
    page.locator("#allowed button").first.click()
    eventually(lambda: page.input_value("#text"), "gre")
    settled(page)
    eventually(lambda: page.locator("#allowed button").count(), 2)
    page.locator("#allowed button", has_text="y").click()
    eventually(lambda: page.inner_text("#verdict strong"), "Fits.")
    page.focus("#text")
    page.keyboard.press("Control+z")
    eventually(lambda: page.input_value("#text"), "gre")


def test_a_bad_schema_shows_its_pointer_and_where_that_is(page, service):
    source = '{"type": "object",\n "properties": {"a/b": {"type": "strin"}}}'
    visit(page, service, "schema", source, "{}")
    assert page.inner_text("#source-error strong") == "/properties/a~1b/type"
    assert "strin" in page.inner_text("#source-error pre")
    assert page.inner_text("#facts") == ""
    assert page.get_attribute("#source", "aria-invalid") == "true"
    page.click("#source-error button")
    area = page.locator("#source")
    assert area.evaluate("a => a.value.slice(a.selectionStart, a.selectionEnd)") == '"type"'
    assert area.evaluate("a => a.selectionStart") == source.rindex('"type"')
    change(page, "source", source.replace("strin", "string"))
    assert not page.locator("#source-error").is_visible()
    assert facts(page)["States"]
    assert page.inner_text("#verdict strong") == "Fits."


def test_a_bad_pattern_shows_its_caret(page, service):
    visit(page, service, "regex", r"(a|b)\1", "a")
    caret = page.inner_text("#source-error pre.caret").split("\n")
    assert caret[0][caret[1].index("^")] == "\\"


def test_a_keyword_that_cannot_be_enforced_can_be_left_so(page, service):
    schema = '{"not": {"type": "array", "items": {"type": "string"}, "uniqueItems": true}}'
    visit(page, service, "schema", schema, '["a"]')
    page.get_by_role("button", name="Leave uniqueItems unenforced").click()
    eventually(lambda: page.inner_text("#verdict strong"), "Fits.")
    assert page.input_value("#allow") == "uniqueItems"


HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


def test_markup_in_sources_texts_tokens_and_messages_is_text(page, service):
    def clean():
        assert page.title() == "maskwright playground"
        assert page.locator("main img, main script, main a").count() == 0

    schema = json.dumps({"properties": {HOSTILE: {"type": HOSTILE}}})
    visit(page, service, "schema", schema, HOSTILE)
    assert "<img" in page.inner_text("#source-error")
    clean()
    visit(page, service, "choices", f"{HOSTILE}\n{HOSTILE}b", f"{HOSTILE}c")
    assert "<" in page.inner_text("#tokens")
    assert "/script>" in page.inner_text("#verdict")
    clean()
    visit(page, service, "choices", HOSTILE, "")
    assert page.inner_text("#place").count("<img") == 1
    page.fill("#filter", HOSTILE[:50])
    eventually(lambda: "None of them has" in page.inner_text("#allowed"), True)
    clean()
    visit(page, service, "regex", f"({HOSTILE}", "")
    clean()
    odd = "a\u202eb\u0301\u200b\x01"
    visit(page, service, "regex", ".{0,20}", odd)
    shown = page.inner_text("#tokens")
    assert "\u202e" not in shown
    assert "\u200b" not in shown
    assert "U+0001" in shown
    clean()


def test_bytes_that_are_no_text_are_shown_by_number(page, service):
    visit(page, service, "choices", "é", "é")
    assert page.locator("#tokens b").all_inner_texts() == ["C3", "A9"]
    page.focus("#tokens")
    page.keyboard.press("ArrowLeft")
    eventually(lambda: page.locator("#allowed .key, #allowed button").all_inner_texts(), ["A9\n170"])


def test_the_address_holds_the_page_and_can_be_opened_again(page, service):
    visit(page, service, "schema", CITY, '{"name')
    change(page, "text", '{"name": "Ü&#%+ \n')
    page.select_option("#whitespace", "compact")
    settled(page)
    address = page.url
    said = parse_qs(urlsplit(address).fragment)
    assert (said["t"], said["s"], said["w"]) == (['{"name": "Ü&#%+ \n'], [CITY], ["compact"])
    verdict = page.inner_text("#verdict")
    assert "Refused" in verdict
    page.goto("about:blank")
    page.goto(address)
    settled(page)
    assert page.inner_text("#verdict") == verdict
    assert page.input_value("#source") == CITY
    assert page.input_value("#whitespace") == "compact"


def test_kinds_keep_their_own_drafts(page, service):
    visit(page, service, "regex", "a+", "aa")
    page.focus("#kind-regex")
    page.keyboard.press("ArrowRight")
    settled(page)
    assert page.is_checked("#kind-choices")
    assert not page.locator("#options").is_visible()
    page.keyboard.press("ArrowLeft")
    eventually(lambda: page.input_value("#source"), "a+")
    settled(page)
    assert page.inner_text("#verdict strong") == "Fits."


def test_the_page_says_which_way_down_a_grammar_takes_and_where_it_is_at_fault(page, service):
    visit(page, service, "grammar", LIST, "a,b")
    table = compiled(service.loaded.vocabulary, "grammar", LIST).to_table()
    assert facts(page)["Followed by"] == "a DFA"
    assert facts(page)["States"] == f"{table.num_states:,}"
    change(page, "source", PALINDROMES)
    assert facts(page)["Followed by"] == "what is read of it"
    assert facts(page)["States"].endswith(" so far")
    change(page, "source", 'start: "a"\nx: nowhere')
    assert page.inner_text("#source-error").startswith("line 2, column 4: there is no rule nowhere")
    page.click("#source-error button")
    assert page.locator("#source").evaluate("area => area.value.slice(area.selectionStart)") == "nowhere"


def test_a_text_that_is_too_long_is_said_to_be(page, service):
    visit(page, service, "regex", "a*", "a")
    change(page, "text", "a" * 40_000)
    assert "40,000 bytes" in page.inner_text("#verdict")
    assert not page.locator("#source-error").is_visible()
    change(page, "text", "a" * 5_000 + "b")
    assert "Refused at token 5,001," in page.inner_text("#verdict")
    assert page.locator("#tokens .chip").count() < 1000
    page.focus("#tokens")
    page.keyboard.press("Home")
    assert selected(page) == "token-0"
    page.locator("#tokens .jump").click()
    assert int(selected(page).removeprefix("token-")) > 100


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen_needs_no_scrolling_to_the_side(page, service, scheme):
    page.set_viewport_size({"width": 375, "height": 700})
    page.emulate_media(color_scheme=scheme)
    long = json.dumps({"enum": ["x" * 300, HOSTILE]})
    for kind, source, text in (
        (None, "", ""), ("schema", long, '"' + "x" * 200), ("schema", '{"type": "' + "y" * 300 + '"}', ""),
        ("regex", "a" * 200 + "(", "z" * 200), ("choices", "w" * 300, "w" * 299 + "q"),
    ):  # fmt: skip
        visit(page, service, kind, source, text)
        assert page.evaluate("document.documentElement.scrollWidth") <= 375


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_and_fields_have_names(page, service, scheme):
    page.emulate_media(color_scheme=scheme)
    visit(page, service)
    pairs = page.evaluate(CONTRASTS)
    assert len(pairs) > 20
    for name, ink, paper in pairs:
        light, dark = sorted((luminance(ink), luminance(paper)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (name, ink, paper)
    unnamed = page.evaluate(
        "[...document.querySelectorAll('input, select, textarea')].filter(e => !e.labels.length).map(e => e.id)"
    )
    assert unnamed == []


CONTRASTS = r"""[...document.querySelectorAll('h1, h1 span, #about, h2, label, button, select, #source, dt, dd,' +
  ' .chip, .verdict p, .verdict strong, .aside, .place, .place span, .allowed small')].filter(
  e => e.offsetParent).map(e => {
  const clear = e => /rgba\(.*, 0\)|transparent/.test(getComputedStyle(e).backgroundColor);
  let under = e;
  while (under.parentElement && clear(under)) under = under.parentElement;
  return [e.className || e.tagName, getComputedStyle(e).color, getComputedStyle(under).backgroundColor];
})"""


def luminance(color):
    channels = [int(c) / 255 for c in re.findall(r"\d+", color)[:3]]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_a_server_that_is_gone_is_said_to_be(page, service):
    visit(page, service, "regex", "a+", "a")
    page.route("**/playground/*", lambda route: route.abort())
    change(page, "source", "b+")
    assert "The server does not answer" in page.inner_text("#source-error")
    page.unroute("**/playground/*")
    change(page, "source", "a+")
    assert page.inner_text("#verdict strong") == "Fits."


def test_a_busy_server_is_asked_again(page, service):
    visit(page, service, "regex", "a+", "a")
    refusals = []

    def refuse(route):
        if len(refusals) < 2:
            refusals.append(1)
            error = {"error": {"message": "others are using the playground", "param": None, "code": "playground_busy"}}
            route.fulfill(status=503, body=json.dumps(error), content_type="application/json")
        else:
            route.continue_()

    page.route("**/playground/compile", refuse)
    change(page, "source", "aa*")
    assert page.inner_text("#verdict strong") == "Fits."
    assert len(refusals) == 2


def test_an_answer_that_comes_late_does_not_replace_a_later_one(page, service):
    visit(page, service, "regex", "a+", "a")
    asked = []

    def delay(route):
        asked.append(route.request.post_data_json["text"])
        if len(asked) == 1:
            time.sleep(0.5)
        route.continue_()

    page.route("**/playground/step", partial(delay))
    page.fill("#text", "b")
    wait(lambda: page.evaluate("1") and len(asked) == 1)
    page.fill("#text", "aa")
    settled(page)
    eventually(lambda: page.inner_text("#verdict strong"), "Fits.")
    time.sleep(0.3)
    assert page.inner_text("#verdict strong") == "Fits."
    assert page.inner_text("#counts") == "2 bytes, 2 tokens"
