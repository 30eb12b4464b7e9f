"""vLLM's plugin, on small stand-ins for vLLM's classes. `make test-engines` runs it inside vLLM."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import sys
import time
import types

import numpy as np
import pytest

pytest.importorskip("torch")

import maskwright as mw
from maskwright.engines.constraints import EngineConstraints
from maskwright.engines.options import EngineOptions, options_of
from maskwright.engines.vllm import plugin
from tests.engines import fakes
from tests.strategies import tokenizer_zoo

KINDS = [
    ("JSON", '{"enum": [12, "x"]}', b'"x"'),
    ("JSON_OBJECT", "", b"{}"),
    ("REGEX", "[ab]{2}", b"ab"),
    ("CHOICE", '["red", "green"]', b"green"),
    ("GRAMMAR", 'root ::= "(" root ")" | "x"', b"((x))"),
    ("GRAMMAR", 'start: "x" /[0-9]/', b"x7"),
    ("STRUCTURAL_TAG", fakes.TAG, b"a<f>1</f>"),
]  # fmt: skip


def vocabulary() -> mw.Vocabulary:
    return tokenizer_zoo.byte_level_bpe()[1]


@pytest.fixture
def backend(monkeypatch):
    """Return the backend of an engine, and the vocabulary of its tokenizer."""
    fakes.vllm(monkeypatch)
    made = importlib.import_module("maskwright.engines.vllm.backend")
    vocab = vocabulary()
    return made.MaskwrightBackend(None, None, vocab.size, EngineConstraints(vocab, EngineOptions())), vocab


@pytest.mark.parametrize(("kind", "source", "text"), KINDS)
def test_every_kind_of_constraint_is_written_as_its_matcher_says(backend, kind, source, text):
    engine, vocab = backend
    grammar = engine.compile_grammar(fakes.Options[kind], source, {vocab.eos})
    bitmask = engine.allocate_token_bitmask(2)
    assert bitmask.shape == (2, -(-vocab.size // 32))
    tokens = [*vocab.encode(text), vocab.eos]
    assert grammar.validate_tokens([*tokens, vocab.eos]) == tokens
    for token in tokens:
        assert not grammar.is_terminated()
        grammar.fill_bitmask(bitmask, 1)
        assert bitmask[1].numpy().view(np.uint32).tolist() == grammar.matcher.mask().tolist()
        assert (bitmask[0] == -1).all()
        assert bitmask[1, token >> 5] >> (token & 31) & 1
        assert grammar.accept_tokens("r", [token]) is True
    assert grammar.is_terminated()
    assert grammar.validate_tokens([tokens[0]]) == []
    assert grammar.accept_tokens("r", [5]) is True  # vLLM goes on where it is told to ignore an end
    grammar.rollback(len(tokens))
    assert grammar.validate_tokens(tokens) == tokens
    grammar.accept_tokens("r", tokens)
    grammar.reset()
    assert not grammar.is_terminated()


def test_drafts_are_cut_where_they_are_not_allowed_and_padding_is_none(backend):
    engine, vocab = backend
    grammar = engine.compile_grammar(fakes.Options.REGEX, "[ab]{3}")
    (a,), (c,) = vocab.encode(b"a"), vocab.encode(b"c")
    assert grammar.validate_tokens([a, a, c, a]) == [a, a]
    assert grammar.validate_tokens([a, -1, a]) == [a]
    assert grammar.validate_tokens([a, vocab.size]) == [a]
    assert grammar.accept_tokens("r", [c]) is False
    assert grammar.matcher.num_tokens == 0


def test_a_stop_token_that_is_text_is_refused_by_name(backend):
    engine, vocab = backend
    (a,) = vocab.encode(b"a")
    with pytest.raises(
        mw.errors.ConstraintError, match=f"token {a}, b'a', ends an answer and is text .* stop_token_ids"
    ):
        engine.compile_grammar(fakes.Options.REGEX, "[ab]{3}", {vocab.eos, a})


# ------------------------------------------------------------------------------------------------------ the plugin


def config(backend: str = "auto", tokenizer: object = None, ends: object = 0) -> types.SimpleNamespace:
    model = types.SimpleNamespace(
        get_vocab_size=lambda: 610, skip_tokenizer_init=False, is_diffusion=False, logits_processors=None,
        try_get_generation_config=lambda: {"eos_token_id": ends},
    )  # fmt: skip
    asked = types.SimpleNamespace(backend=backend)
    return types.SimpleNamespace(structured_outputs_config=asked, model_config=model, tokenizer=tokenizer)


def test_the_plugin_replaces_what_it_knows(monkeypatch):
    made = fakes.vllm(monkeypatch, plugins=None)
    before = [dict(vars(each)) for each in (made.Params, made.Manager, made.BeamSearch)]
    plugin.register()
    assert [dict(vars(each)) for each in (made.Params, made.Manager, made.BeamSearch)] == before

    made = fakes.vllm(monkeypatch, "0.33.1+cpu", plugins=["maskwright"])
    with pytest.raises(
        mw.errors.MissingDependencyError,
        match=r"vLLM 0\.32\.0 to 0\.32\.0, and this is 0\.33\.1\+cpu, whose .* is the same: .*\"untested\": true",
    ):
        plugin.register()
    assert not hasattr(made.Manager.__init__, "of_maskwright")

    made = fakes.vllm(monkeypatch, plugins=["maskwright"])
    made.Params._validate_structured_outputs = lambda self, model_config, tokenizer: None
    with pytest.raises(
        mw.errors.MissingDependencyError,
        match=r"_validate_structured_outputs takes \(self, model_config, tokenizer\) and not \(self, model_config, ",
    ):
        plugin.register()
    assert not hasattr(made.Manager.__init__, "of_maskwright")

    made = fakes.vllm(monkeypatch, plugins=["maskwright"])
    made.BeamSearch._init_beam_search_structured_output = lambda self, outputs: None
    plugin.register()
    assert "_init_beam_search_structured_output takes (self, outputs) and not (self, structured_outputs" in made.said[0]
    assert made.Manager.__init__.of_maskwright
    assert not hasattr(made.Completion.to_beam_search_params, "of_maskwright")

    made = fakes.vllm(monkeypatch, "0.32.0+cpu", plugins=["other", "maskwright"])
    plugin.register()
    once = made.Manager.__init__
    plugin.register()
    assert made.Manager.__init__ is once
    assert once.of_maskwright


def test_a_release_that_is_not_known_loads_where_the_operator_says_so_with_one_warning_a_part(monkeypatch, caplog):
    made = fakes.vllm(monkeypatch, "0.34.0", plugins=["maskwright"])
    made.Params._validate_structured_outputs = lambda self, model_config, structured_outputs_config, tokenizer: 1
    with pytest.raises(mw.errors.MissingDependencyError, match=r"_validate_structured_outputs differ: "):
        plugin.register()
    monkeypatch.setenv("MASKWRIGHT_ENGINE_OPTIONS", '{"untested": true}')
    plugin.register()
    assert made.Params._validate_structured_outputs.of_maskwright
    assert made.Completion.to_beam_search_params.of_maskwright
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == [
        "structured outputs may not work as they should", "beam search may not work as they should",
            "admission may not work as they should",
    ]  # fmt: skip
    made.Manager.__init__ = lambda self, config: None
    with pytest.raises(mw.errors.MissingDependencyError, match=r"takes \(self, config\) and not \(self, vllm_config\)"):
        plugin.register()


def test_the_plugin_imports_neither_the_engine_nor_kernels_before_it_is_called():
    for name in ("maskwright.engines.vllm.plugin", "maskwright.engines.sglang.plugin"):
        source = importlib.util.find_spec(name).origin
        with open(source) as file:
            lines = [line for line in file if line.startswith(("import", "from"))]
        assert not [
            line for line in lines if "vllm" in line or "sglang" in line or "runtime" in line or "torch" in line
        ]


def test_requests_are_checked_and_the_manager_has_its_backend(monkeypatch):
    made = fakes.vllm(monkeypatch, plugins=["maskwright"])
    plugin.register()
    tokenizer = tokenizer_zoo.byte_level_bpe()[0]
    monkeypatch.setattr(mw.Vocabulary, "from_transformers", lambda tok, size: vocabulary())
    manager = made.Manager(config(tokenizer=tokenizer))
    assert type(manager.backend) is sys.modules["maskwright.engines.vllm.backend"].MaskwrightBackend
    with pytest.raises(
        mw.errors.ConstraintError, match="asks for the backend outlines, and VLLM_PLUGINS for maskwright"
    ):
        made.Manager(config("outlines", tokenizer))
    whole = config()

    def ask(stops=(), **asked):
        params = made.Params(fakes.Asked(**asked), stops)
        params._validate_structured_outputs(whole.model_config, whole.structured_outputs_config, tokenizer)
        return params

    assert ask(json='{"type": "integer"}').structured_outputs._backend == "maskwright"
    assert ask(regex="a+", stops=(0,)).structured_outputs._backend == "maskwright"
    for asked, field, said in (
        ({"json": '{"properties": {"a": {"type": "strin"}}}'}, "json", "/properties/a/type: "),
        ({"json": '{"not": {"uniqueItems": true}}'}, "json", 'with "allow": ["uniqueItems"] in MASKWRIGHT_ENGINE_'),
        ({"regex": "(a"}, "regex", "never closed"),
        ({"grammar": "root ::= x"}, "grammar", "line 1, column 10"),
        ({"json": "{}", "whitespace_pattern": " "}, "whitespace_pattern", "is not enforced"),
        ({"json": "{}", "disable_any_whitespace": True}, "disable_any_whitespace", "is not enforced"),
        ({"json": "{}", "json_object": False}, "json_object", "must be true"),
        ({"regex": "a+", "stops": (50,)}, "regex", "token 50, "),
    ):
        with pytest.raises(fakes.ValidationError) as error:
            ask(**asked)
        assert error.value.parameter == f"structured_outputs.{field}"
        assert said in str(error.value)
    for asked, said in (({"json": "[" * 100_000}, "nested too deeply"), ({"json": " "}, "cannot be an empty string")):
        with pytest.raises(fakes.ValidationError, match=said):  # vLLM's own checks come first
            ask(**asked)
    params = ask(json="{}")
    params._validate_structured_outputs(whole.model_config, whole.structured_outputs_config, tokenizer)  # once more
    whole.model_config.is_diffusion = True
    with pytest.raises(fakes.ValidationError, match="diffusion"):
        ask(json="{}")


def test_what_takes_long_is_tried_beside_the_loop_and_the_engine_reads_its_table(monkeypatch):
    """A bomb, and then a constraint that has a table: the loop answers meanwhile, and compiles nothing itself."""
    budget = {"budget": {"seconds": 1.5}}
    monkeypatch.setenv("MASKWRIGHT_ENGINE_OPTIONS", json.dumps(budget))
    made = fakes.vllm(monkeypatch, plugins=["maskwright"])
    plugin.register()
    options = options_of()
    assert options.budget.seconds == 1.5
    assert options.cache_directory is not None
    tokenizer, vocab = tokenizer_zoo.byte_level_bpe()
    monkeypatch.setattr(mw.Vocabulary, "from_transformers", lambda tok, size: vocab)
    whole = config()
    llm = made.AsyncLLM(whole, tokenizer)
    compiled = []
    compile_here = EngineConstraints.compile
    monkeypatch.setattr(
        EngineConstraints, "compile", lambda self, *given: compiled.append(given) or compile_here(self, *given)
    )

    async def ask(**asked):
        return await llm.add_request("r", "x", made.Params(fakes.Asked(**asked)), priority=3)

    async def served():
        assert await ask(regex="a+") == ("r", 3)  # by processes that have started
        gaps, last = [], time.monotonic()
        bomb = asyncio.ensure_future(ask(regex=r"(?:\d*[a-zé]?(?=.{3,40}x)){8}[a-w]*"))
        table = asyncio.ensure_future(ask(json='{"enum": ["red", "green"]}'))
        while not (bomb.done() and table.done()):
            await asyncio.sleep(0.005)
            gaps.append(time.monotonic() - last)
            last = time.monotonic()
        assert table.result() == ("r", 3)
        assert await llm.add_request("r", "x", made.Params()) == ("r", 0)
        for asked, said in (
            ({"json": '{"properties": {"a": {"type": "strin"}}}'}, "/properties/a/type: "),
            ({"json": "[" * 100_000}, "nested too deeply"),
        ):
            with pytest.raises(fakes.ValidationError, match=said):
                await ask(**asked)
        with pytest.raises(fakes.ValidationError, match=r"needs (far )?more than") as late:
            await bomb
        assert late.value.parameter == "structured_outputs.regex"
        return sorted(gaps)

    gaps = asyncio.run(served())
    assert len(gaps) > 20
    assert gaps[len(gaps) // 2] < 0.1
    assert not compiled
    engine = EngineConstraints(vocab, options)  # of another process
    assert engine.matcher("json", '{"enum": ["red", "green"]}').accepts(vocab.encode(b'"red"'))


def test_options_that_are_wrong_stop_the_engine_and_not_the_plugin(monkeypatch):
    monkeypatch.setenv("MASKWRIGHT_ENGINE_OPTIONS", '{"budget": 3}')
    made = fakes.vllm(monkeypatch, plugins=["maskwright"])
    plugin.register()  # vLLM would only log what it raises, and go on with another backend
    assert made.AsyncLLM.add_request.of_maskwright
    tokenizer, vocab = tokenizer_zoo.byte_level_bpe()
    monkeypatch.setattr(mw.Vocabulary, "from_transformers", lambda tok, size: vocab)
    with pytest.raises(mw.errors.ConstraintError, match="budget must be an object"):
        made.Manager(config(tokenizer=tokenizer))


def test_a_mask_that_takes_too_long_ends_its_request_and_no_other(backend, monkeypatch, caplog):
    engine, vocab = backend
    grammar = engine.compile_grammar(fakes.Options.REGEX, "aa[ab]d")
    other = engine.compile_grammar(fakes.Options.REGEX, "[ab]+")
    machine = type(grammar.matcher.table.machine)
    read, asked = machine.mask, []

    def mask(self, *given):
        asked.append(given)
        if len(asked) > 2:
            raise mw.errors.BudgetError("too long", limit="seconds")
        return read(self, *given)

    monkeypatch.setattr(machine, "mask", mask)
    (a,) = vocab.encode(b"a")
    bitmask = engine.allocate_token_bitmask(2)
    for _ in range(2):
        grammar.fill_bitmask(bitmask, 0)
        assert grammar.accept_tokens("r", [a]) is True
    grammar.fill_bitmask(bitmask, 0)
    assert [at for at in range(vocab.size) if bitmask[0, at >> 5] >> (at & 31) & 1] == [vocab.eos]
    assert "takes too long after 2 tokens" in caplog.text
    assert grammar.accept_tokens("r", [vocab.eos]) is False  # at which vLLM ends the request with an error
    assert grammar.validate_tokens([a]) == []
    assert not grammar.is_terminated()
    assert other.accept_tokens("s", [a]) is True
    grammar.rollback(1)
    assert grammar.accept_tokens("r", [a]) is True  # as before: it is the mask after two that is late
    asked.clear()
    grammar.fill_bitmask(bitmask, 0)
    assert grammar.accept_tokens("r", [a]) is True


def test_all_ends_of_the_models_generation_config_end_an_answer(monkeypatch):
    made = fakes.vllm(monkeypatch, plugins=["maskwright"])
    plugin.register()
    tokenizer = tokenizer_zoo.byte_level_bpe()[0]
    other = 608  # beyond the tokenizer's own
    engine = made.Manager(config(tokenizer=tokenizer, ends=[0, other])).backend
    vocab = engine.constraints.vocabulary
    assert vocab.ends == (0, other)
    grammar = engine.compile_grammar(fakes.Options.REGEX, "ab", {0, other})
    bitmask = engine.allocate_token_bitmask(1)
    assert grammar.accept_tokens("", vocab.encode(b"ab"))
    grammar.fill_bitmask(bitmask, 0)
    allowed = np.unpackbits(bitmask.numpy().view(np.uint8), bitorder="little")
    assert np.flatnonzero(allowed).tolist() == [0, other]
    assert grammar.accept_tokens("", [other])
    assert grammar.is_terminated()
    made = fakes.vllm(monkeypatch, plugins=["maskwright"])
    plugin.register()  # as in another process
    with pytest.raises(
        mw.errors.ConstraintError, match=r"token 50, .* out of eos_token_id of the model's generation config"
    ):
        made.Manager(config(tokenizer=tokenizer_zoo.byte_level_bpe()[0], ends=[0, 50]))


# ------------------------------------------------------------------------------------------------ constraints, options


def test_a_tokenizer_without_an_end_is_refused():
    vocab = mw.Vocabulary.from_bytes([b"a", b"b"])
    with pytest.raises(mw.errors.ConstraintError, match="no token that ends a text"):
        EngineConstraints(vocab, EngineOptions())


def test_options_say_how_constraints_are_compiled():
    given = {"whitespace": "compact", "allow": ["uniqueItems"], "budget": {"seconds": 5}}
    options = options_of({"MASKWRIGHT_ENGINE_OPTIONS": json.dumps(given)})
    assert options == EngineOptions("compact", ("uniqueItems",), mw.Budget(seconds=5))
    vocab = vocabulary()
    matcher = EngineConstraints(vocab, options).matcher("json", '{"type": "array", "uniqueItems": true}')
    assert matcher.accepts(vocab.encode("[1,1]"))
    assert not matcher.accepts(vocab.encode("[1, 1]"))
    assert options_of({}) == EngineOptions()


def test_what_an_operator_allows_to_stay_unenforced_is_logged_once_a_request(monkeypatch, caplog):
    fakes.vllm(monkeypatch)
    backend = importlib.import_module("maskwright.engines.vllm.backend")
    constraints = EngineConstraints(vocabulary(), EngineOptions(allow=("uniqueItems",)))
    for tells in (True, False):
        server = backend.MaskwrightBackend(None, None, 610, constraints, tells)
        for request, source, at in (
            ("r-1", '{"type": "array", "uniqueItems": true}', "/uniqueItems"),
            ("r-2", '{"type": "array", "uniqueItems": true}', "/uniqueItems"),
            ("r-3", '{"type": "array"}', None),
            ("r-4", '{"properties": {"a": {"type": "array", "uniqueItems": true}}}', "/properties/a/uniqueItems"),
        ):
            caplog.clear()
            grammar = server.compile_grammar(fakes.Options.JSON, source)
            opened = constraints.vocabulary.encode("[" if at != "/properties/a/uniqueItems" else '{"a": [')
            assert all(grammar.accept_tokens(request, [token]) for token in opened)
            said = [record.getMessage() for record in caplog.records]
            assert len(said) == (at is not None and tells)
            assert all(each.startswith(f"request {request} is not enforced in full: {at} is not") for each in said)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{", "is no JSON"),
        ("[]", "must be an object"),
        ('{"whitespce": 1}', "has no option 'whitespce'"),
        ('{"whitespace": "some"}', "flexible, spaced, compact"),
        ('{"allow": "uniqueItems"}', 'allow must be "all" or a list of format, '),
        ('{"allow": ["type"]}', '"type" is none of these'),
        ('{"budget": {"seconds": -1}}', "must be 0 or more"),
        ('{"budget": {"hours": 1}}', "states, seconds, bytes"),
        ('{"cache_directory": ""}', "must be a path"),
        ('{"untested": 1}', "must be true or false"),
    ],
)
def test_options_that_are_wrong_are_refused_by_name(given, said):
    with pytest.raises(mw.errors.ConstraintError, match="MASKWRIGHT_ENGINE_OPTIONS") as error:
        options_of({"MASKWRIGHT_ENGINE_OPTIONS": given})
    assert said in str(error.value)
