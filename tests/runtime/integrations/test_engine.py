"""An `Engine` writes for each request what it would write alone, whoever else is there, comes or goes."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import json
import math
import random

import numpy as np
import pytest

import maskwright as mw

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from maskwright.lazy.lazy_table import LazyTable  # noqa: E402
from maskwright.runtime.device.torch import compat, drawing  # noqa: E402
from maskwright.runtime.integrations.engine import Engine  # noqa: E402

TREE = {
    "$ref": "#/$defs/t",
    "$defs": {
        "t": {
            "type": "object",
            "properties": {
                "v": {"enum": [1, 22]},
                "c": {"type": "array", "items": {"$ref": "#/$defs/t"}, "maxItems": 2},
            },
            "required": ["v"],
            "additionalProperties": False,
        }
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def vocab():
    words = [b'{"', b'": ', b'"}', b"}}", b'", "', b'"v": ', b"]}", b"green", b"re"]
    return mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), *words], eos=0)


@pytest.fixture(scope="module")
def model(vocab):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=vocab.size + 3, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        bos_token_id=None, eos_token_id=0, pad_token_id=0, initializer_range=0.5, max_position_embeddings=512,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).double().eval()


@pytest.fixture(scope="module")
def tables(vocab):
    return [
        None,
        mw.compile_regex("[a-c]{2,9}(ok)?", vocab),
        mw.compile_json_schema(TREE, vocab, whitespace=(", ", ": "), depth=3),
        mw.compile_choices(["red", "green", "greenest"], vocab),
        mw.compile_json_schema({"type": "array", "items": {"type": "boolean"}, "maxItems": 3}, vocab),
    ]


def spelt(vocab, request):
    return vocab.decode(request.tokens)


def is_member(vocab, table, request):
    matcher = mw.Matcher(table)
    return all(map(matcher.advance, request.tokens)) and matcher.is_accepting


def asked(tables, count, seed):
    """Requests of all kinds."""
    rng = random.Random(seed)
    for n in range(count):
        yield {
            "prompt": [rng.randrange(1, 260) for _ in range(rng.choice((1, 3, 17)))],
            "table": rng.choice(tables), "max_tokens": rng.choice((25, 40)), "seed": n,
            "temperature": rng.choice((0, 0.7, 1.0)), "top_k": rng.choice((None, 3)), "jump": rng.random() < 0.7,
        }  # fmt: skip


@pytest.mark.parametrize("with_vocabulary", [False, True])
def test_each_request_is_written_as_it_would_be_alone(with_vocabulary, model, vocab, tables):
    spelling = vocab if with_vocabulary else None

    def engine(rows):
        return Engine(model, spelling, rows=rows, eos=0, chunk=8)

    shared, alone = engine(3), engine(1)
    rng = random.Random(1)
    requests = []
    waiting = list(asked(tables, 24, 2))
    for options in waiting:
        requests.append(shared.add(**options))
        for _ in range(rng.randrange(6)):
            shared.step()
    shared.run()
    for options, request in zip(waiting, requests, strict=True):
        own = alone.add(**options)
        alone.run()
        assert request.tokens == own.tokens
        assert request.finished == own.finished
        assert request.forced == own.forced
        assert np.allclose(request.log_probs, own.log_probs, atol=1e-9)
        assert len(request.log_probs) == len(request.tokens) <= options["max_tokens"]
        if options["table"] is None:
            assert request.finished == "stop" or len(request.tokens) == options["max_tokens"]
        else:
            assert request.finished == "stop"  # budgets see to it
            assert is_member(vocab, options["table"], request)
    assert len({request.finished for request in requests}) == 2


def counted(calls, name, work, *args, **options):
    calls[name] += 1
    return work(*args, **options)


@pytest.mark.parametrize("mixed", [False, True])
def test_the_kernel_writes_what_array_operations_write(mixed, model, vocab, tables, monkeypatch):
    """Rows with and without a constraint, each with filters of its own; the kernel reads 32 bits."""
    narrow = copy.deepcopy(model).float()
    grammar = mw.compile_grammar('start: "a" start "a" | "b" start "b" | "ab"', vocab)
    kinds = [*tables, grammar] if mixed else tables[1:]
    written = []
    for by_kernel in (True, False):
        drawn = collections.Counter()
        counting = functools.partial(counted, drawn, "draw_packed", drawing.draw_packed)
        monkeypatch.setattr(drawing, "draw_packed", counting)
        if not by_kernel:
            monkeypatch.setattr(drawing, "can_draw", lambda *_: False)
        engine = Engine(narrow, vocab, rows=4)
        requests = [engine.add(**options, complete=not mixed) for options in asked(kinds, 24, seed=5)]
        engine.run()
        written.append([(request.tokens, request.finished) for request in requests])
        for request, other in zip(requests, asked(kinds, 24, seed=5), strict=True):
            if request.finished == "stop" and other["table"] is not None:
                assert is_member(vocab, other["table"], request)
        monkeypatch.undo()
        assert bool(drawn["draw_packed"]) == by_kernel
    assert written[0] == written[1]


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("wanted", [1, 2, -1])
def test_a_model_of_fewer_outputs_than_there_are_tokens_is_refused(kind, wanted, model, vocab, tables):
    config = copy.deepcopy(model.config)
    config.vocab_size = vocab.size - 1
    narrow = transformers.LlamaForCausalLM(config).to(kind).eval()
    table = mw.compile_grammar('start: "a" start "a" | "ab"', vocab) if wanted < 0 else tables[wanted]
    engine = Engine(narrow, vocab, rows=2)
    engine.add([3, 4], table, max_tokens=30, jump=False, complete=wanted > 0)
    with pytest.raises(mw.errors.VocabularyMismatchError):
        engine.run()


def test_without_a_constraint_it_is_what_the_model_generates(model, vocab):
    engine = Engine(model, rows=2, eos=0, chunk=5)
    prompts = [[5, 9, 200], [7], list(range(30, 60)), [8, 8]]
    requests = [engine.add(prompt, max_tokens=12, temperature=0) for prompt in prompts]
    engine.run()
    for prompt, request in zip(prompts, requests, strict=True):
        ids = torch.tensor([prompt])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
        expected = out[0, len(prompt) :].tolist()
        assert request.tokens == [token for token in expected if token != 0]
        assert request.finished == ("stop" if 0 in expected else "length")


def test_what_is_drawn_is_distributed_as_the_masked_model_has_it(model, vocab):
    table = mw.compile_choices(["a", "ab", "b", "cc"], vocab)
    prompt = [9, 4]
    engine = Engine(model, vocab, rows=16)
    requests = [engine.add(prompt, table, max_tokens=5, seed=seed) for seed in range(600)]
    engine.run()
    found = collections.Counter(spelt(vocab, request) for request in requests)

    @torch.no_grad()
    def probability(tokens):
        """Of a whole sequence, EOS included, by the model's own softmax over what is allowed."""
        matcher, ids, total = mw.Matcher(table), list(prompt), 1.0
        for token in [*tokens, 0]:
            logits = model(torch.tensor([ids])).logits[0, -1]
            bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")[: len(logits)].astype(bool)
            allowed = torch.zeros(len(logits), dtype=torch.bool)
            allowed[: len(bits)] = torch.from_numpy(bits)
            total *= float(torch.softmax(logits.masked_fill(~allowed, -math.inf), -1)[token])
            matcher.advance(token)
            ids.append(token)
        return total

    texts = [b"a", b"ab", b"b", b"cc"]
    expected = {text: 600 * probability([1 + byte for byte in text]) for text in texts}
    assert set(found) <= set(texts)
    assert sum(expected.values()) == pytest.approx(600)
    statistic = sum((found[text] - mean) ** 2 / mean for text, mean in expected.items())
    assert statistic < 30.7  # chi-square, 3 degrees of freedom, at 1e-6


def test_forced_text_costs_no_pass_of_the_model(model, vocab):
    table = mw.compile_regex("(yes|no), because the answer is [ab]", vocab)
    passes = {}
    for jump in (False, True):
        engine = Engine(model, vocab, rows=1)
        request = engine.add([3], table, max_tokens=60, temperature=0, jump=jump)
        engine.run()
        assert request.finished == "stop"
        assert is_member(vocab, table, request)
        passes[jump] = engine.calls
        assert request.forced == (0 if not jump else len(request.tokens) - engine.calls)
    assert passes[True] <= 3
    assert passes[False] == len(request.tokens)  # the end is all that is left then


def test_tokens_are_told_as_they_are_written(model, vocab, tables):
    engine = Engine(model, vocab, rows=3)
    requests = [engine.add(**options) for options in asked(tables, 12, 7)]
    told = collections.defaultdict(list)
    ends = []
    while engine.busy:
        for request, tokens in engine.step():
            told[id(request)] += tokens
            if request.finished is not None:
                ends.append(request)
    assert ends and len(ends) == len({id(each) for each in ends}) == 12  # noqa: PT018
    assert all(told[id(request)] == request.tokens for request in requests)


def test_a_sequence_without_a_budget_may_be_cut_and_says_so(model, vocab):
    table = mw.compile_regex("[a-z]{30}", vocab)
    engine = Engine(model, vocab)
    request = engine.add([3], table, max_tokens=10, seed=0, complete=False)
    engine.run()
    assert request.finished == "length"
    assert len(request.tokens) == 10
    with pytest.raises(ValueError, match="30 tokens are known to be enough"):
        engine.add([3], table, max_tokens=29)


def test_no_table_is_worked_out_to_end_in_time(model, vocab, monkeypatch):
    def never(self):
        raise AssertionError("a request waits for a table")

    monkeypatch.setattr(LazyTable, "to_table", never)
    sources = [
        TREE,
        {"type": "array", "items": {"enum": ["abc", 5]}, "minItems": 2},
        {"type": "string", "minLength": 9},
    ]
    constraints = [mw.compile_json_schema(source, vocab) for source in sources]
    engine = Engine(model, vocab, rows=3)
    requests = [engine.add([3 + n], table, max_tokens=24 + n, seed=n) for n in range(8) for table in constraints]
    engine.run()
    for request in requests:
        assert request.finished == "stop"
        assert is_member(vocab, request.table, request)


def test_items_are_written_by_a_matrix_as_by_a_table(model, vocab):
    sids = np.random.default_rng(0).integers(1, 200, (300, 3))
    engine = Engine(model, eos=0, rows=4)
    kinds = [mw.sort_sids(sids, vocab_size=vocab.size), mw.compile_sids(sids, vocab_size=vocab.size)]
    written = [[engine.add([5 + n], table, max_tokens=9, seed=n) for n in range(12)] for table in kinds]
    engine.run()
    assert [request.tokens for request in written[0]] == [request.tokens for request in written[1]]
    assert {tuple(request.tokens) for request in written[0]} <= set(map(tuple, sids.tolist()))


def test_a_request_can_be_cancelled_at_any_time(model, vocab):
    table = mw.compile_regex("[a-z]{30}", vocab)
    engine = Engine(model, vocab, rows=1)
    first, second, third = (engine.add([3], table, max_tokens=40, seed=n) for n in range(3))
    for _ in range(4):
        engine.step()
    engine.cancel(second)
    engine.cancel(first)
    engine.cancel(first)
    assert (first.finished, second.finished) == ("cancelled", "cancelled")
    assert 1 <= len(first.tokens) < 30
    assert not second.tokens
    engine.run()
    assert third.finished == "stop"
    with pytest.raises(ValueError, match="not one of"):
        Engine(model, rows=1).cancel(dataclasses.replace(first, finished=None))


def test_a_model_that_rules_all_out_is_said_to(vocab, model):
    broken = transformers.LlamaForCausalLM(model.config).double().eval()
    with torch.no_grad():
        broken.lm_head.weight.fill_(math.nan)
    engine = Engine(broken, vocab, rows=2)
    request = engine.add([3], mw.compile_regex("[ab]c", vocab), max_tokens=9)
    engine.run()
    assert (request.finished, request.tokens) == ("no distribution", [])


def test_a_constraint_reads_nothing_on_the_host_that_there_is_not_without(model, vocab, tables, monkeypatch):
    counted = collections.Counter()
    for name in ("tolist", "item", "numpy", "__bool__", "__int__", "__float__", "__index__"):
        real = getattr(torch.Tensor, name)

        def counting(self, *args, name=name, real=real):
            counted[name] += 1
            return real(self, *args)

        monkeypatch.setattr(torch.Tensor, name, counting)

    monkeypatch.setattr(compat, "is_plain", lambda *_: False)  # as on an accelerator

    def reads(table):
        engine = Engine(model, vocab, rows=2)
        for seed in range(2):
            engine.add([3, 4], table, max_tokens=30, seed=seed, jump=False)
        engine.step()
        counted.clear()
        for _ in range(3):
            engine.step()
        return dict(counted)

    assert reads(tables[2]) == reads(None)
    assert reads(tables[2])["tolist"] == 3


def test_mistakes_are_named(model, vocab, tables):
    other = mw.Vocabulary.from_bytes([b"", b"a"], eos=0)
    with pytest.raises(ValueError, match="rows=0"):
        Engine(model, rows=0)
    with pytest.raises(TypeError, match="chunk"):
        Engine(model, chunk=1.5)
    with pytest.raises(TypeError, match="transformers"):
        Engine(3)
    with pytest.raises(ValueError, match="eos=5"):
        Engine(model, vocab, eos=5)
    for wrong, said in ((-1, "not -1"), ([0, 10**6], "not 1000000"), ([], "empty list"), ("0", "not '0'")):
        for into in (vocab, None):
            with pytest.raises(mw.errors.ConstraintError, match=f"eos .*{said}"):
                Engine(model, into, eos=wrong)
    with pytest.raises(TypeError, match="a Vocabulary, not Arena"):
        Engine(model, mw.Arena(vocab))
    engine = Engine(model, vocab)
    with pytest.raises(ValueError, match="prompt is empty"):
        engine.add([], max_tokens=3)
    with pytest.raises(ValueError, match="max_tokens=0"):
        engine.add([3], max_tokens=0)
    with pytest.raises(ValueError, match="temperature"):
        engine.add([3], max_tokens=3, temperature=-1)
    with pytest.raises(TypeError, match="a Matcher takes"):
        engine.add([3], "a", max_tokens=3)
    with pytest.raises(ValueError, match=r"Engine\(model, eos=0\)"):
        Engine(model).add([3], tables[1], max_tokens=3)
    named = Engine(model, eos=0)
    named.add([3], tables[1], max_tokens=3)
    with pytest.raises(mw.errors.VocabularyMismatchError, match="compile it with the engine's"):
        named.add([3], mw.compile_regex("a", other), max_tokens=3)
    with pytest.raises(mw.errors.VocabularyMismatchError):
        engine.add([3], mw.compile_regex("a", other), max_tokens=3)
    assert not engine.busy
    assert json.dumps(engine.calls) == "0"


@pytest.mark.parametrize("way", ["kernels", "operations"])
def test_requests_end_by_any_end_of_the_vocabulary(vocab, model, way, monkeypatch):
    if way == "operations":
        monkeypatch.setattr(compat, "is_plain", lambda *x: False)
    blank = mw.Vocabulary.from_bytes([*vocab.tokens, b"", b"", b""], eos=[0, vocab.size, vocab.size + 2])
    engine = Engine(model, blank, rows=3)
    assert engine.ends == blank.ends
    sources = [mw.compile_regex("[a-c]{2,9}(ok)?", blank), mw.compile_choices(["red", "redder"], blank), None]
    requests = [engine.add([5, 6], table, max_tokens=12, seed=i) for i, table in enumerate(sources * 4)]
    engine.run()
    for request in requests:
        assert not set(request.tokens) & set(blank.ends)
        if request.table is not None:
            assert is_member(blank, request.table, request)
    with pytest.raises(ValueError, match="but the vocabulary's sequences end by"):
        Engine(model, blank, eos=0)
    with pytest.raises(ValueError, match=r"the table has eos 0, .* and the engine \[0, 266, 268\]"):
        engine.add([3], dataclasses.replace(sources[0].to_table(), other_ends=()), max_tokens=9)


@pytest.mark.parametrize("temperature", [0, 0.7])
def test_the_best_tokens_are_told_beside_each_that_was_drawn(model, vocab, tables, temperature):
    """Against the model's own softmax over all allowed tokens, asked token by token."""
    engine = Engine(model, vocab, rows=3)
    kept = [
        engine.add([5, 6], table, max_tokens=9, temperature=temperature, top_k=4, seed=n, best=best)
        for n, (table, best) in enumerate(zip([*tables, tables[1]], [3, 5, 3, 20, 1, 0], strict=True))
    ]
    engine.run()
    assert not kept[-1].tops
    several = 0
    for request in kept[:-1]:
        assert len(request.tops) == len(request.log_probs) == len(request.tokens)
        matcher = None if request.table is None else mw.Matcher(request.table, vocab, max_tokens=9)
        for at, (token, log_prob, tops) in enumerate(zip(request.tokens, request.log_probs, request.tops, strict=True)):
            with torch.no_grad():
                logits = model(torch.tensor([[5, 6, *request.tokens[:at]]])).logits[0, -1].numpy()
            if matcher is not None:
                bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")
                logits = np.where(np.pad(bits, (0, logits.size))[: logits.size] == 1, logits, -np.inf)
                assert matcher.advance(token)
            if tops == [(token, 0.0)]:  # forced, or all that is allowed
                continue
            x = logits / (temperature or 1.0)
            x -= np.logaddexp.reduce(x)
            best = [i for i in np.argsort(-x, kind="stable")[: request.best] if np.isfinite(x[i])]
            assert [i for i, _ in tops] == best
            assert np.allclose([value for _, value in tops], x[best], atol=1e-6)
            assert math.isclose(log_prob, x[token], abs_tol=1e-6)
            several += 1
    assert several > 10
