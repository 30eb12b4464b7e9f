"""vLLM's logits processor under batches as vLLM makes them, held against sets. `make test-engines` has vLLM's own."""

from __future__ import annotations

import importlib
import json
import random
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import maskwright as mw  # noqa: E402
from maskwright.engines.vllm import plugin  # noqa: E402
from tests.engines import fakes  # noqa: E402

V, EOS = 40, 1
DEVICE = torch.device("cpu")


def sequences(seed: int, lengths: tuple[int, ...]) -> set[tuple[int, ...]]:
    """Return distinct sequences of few tokens, so that many begin alike."""
    rng = random.Random(seed)
    return {tuple(rng.randrange(10, 16) for _ in range(rng.choice(lengths))) for _ in range(60)}


def some(kept: set[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """Return two in three of a set, without its shortest."""
    shortest = min(map(len, kept))
    return {sequence for i, sequence in enumerate(sorted(kept)) if i % 3 and len(sequence) > shortest}


FIXED, OTHER, LOOSE, ENDED = sequences(0, (3,)), sequences(1, (4,)), sequences(2, (2, 3, 5)), sequences(3, (1, 3, 4))
SIDS = sorted(FIXED)
KEPT = {sid for i, sid in enumerate(SIDS) if i % 3}
ASKED = {
    "plain": ({"maskwright_catalogue": "matrix"}, FIXED),
    "filter": ({"maskwright_catalogue": "matrix", "maskwright_filter": "kept"}, KEPT),
    "deny": (
        {"maskwright_catalogue": "matrix", "maskwright_deny": [1, 4, 5]},
        set(SIDS) - {SIDS[i] for i in (1, 4, 5)},
    ),
    "table": ({"maskwright_catalogue": "table"}, OTHER),
    "loose": ({"maskwright_catalogue": "loose"}, LOOSE),
    "ended": ({"maskwright_catalogue": "ended"}, ENDED),
    "loose filter": ({"maskwright_catalogue": "loose", "maskwright_filter": "some loose"}, some(LOOSE)),
    "ended filter": ({"maskwright_catalogue": "ended", "maskwright_filter": "some ended"}, some(ENDED)),
    "items deny": ({"maskwright_catalogue": "items", "maskwright_deny": [0, 4]}, set(SIDS) - {SIDS[0], SIDS[4]}),
    "free": ({"session_id": 3}, None),
}
"""By name: what a request says, and what may be written; None for anything."""


@pytest.fixture
def engine(monkeypatch, tmp_path):
    """Return vLLM's stand-ins and the module of the processor, with catalogues in the options."""
    made = fakes.vllm(monkeypatch)
    mw.Catalogue.of(SIDS, range(len(SIDS)), vocab_size=V, kind="matrix").save(tmp_path / "matrix")
    mw.compile_sids(sorted(OTHER), vocab_size=V).save(tmp_path / "table")
    mw.compile_sequences(sorted(LOOSE), vocab_size=V).save(tmp_path / "loose")
    mw.compile_sequences(sorted(ENDED), vocab_size=V, eos=EOS).save(tmp_path / "ended")
    mw.Catalogue.of(SIDS, range(len(SIDS)), vocab_size=V).save(tmp_path / "items")
    np.save(tmp_path / "keep.npy", [bool(i % 3) for i in range(len(SIDS))])
    for name, held in (("loose", LOOSE), ("ended", ENDED)):
        np.save(tmp_path / f"{name}.npy", [sequence in some(held) for sequence in sorted(held)])
    options = {
        "catalogues": {name: str(tmp_path / name) for name in ("matrix", "table", "loose", "ended", "items")},
        "filters": {"kept": {"catalogue": "matrix", "keep": str(tmp_path / "keep.npy")}}
        | {f"some {name}": {"catalogue": name, "keep": str(tmp_path / f"{name}.npy")} for name in ("loose", "ended")},
    }
    monkeypatch.setenv("MASKWRIGHT_ENGINE_OPTIONS", json.dumps(options))
    return made, importlib.import_module("maskwright.engines.vllm.logits_processor")


def config(drafts: int = 0, **speculative) -> types.SimpleNamespace:
    """Return the part of vLLM's configuration that the processor reads."""
    model = types.SimpleNamespace(
        max_model_len=64, skip_tokenizer_init=False, get_vocab_size=lambda: V + 3,
        try_get_generation_config=lambda: {"eos_token_id": [EOS, 2]},
    )  # fmt: skip
    how = {"enable_adaptive_verification": False, "rejection_sample_method": "standard"} | speculative
    return types.SimpleNamespace(
        model_config=model, num_speculative_tokens=drafts,
        speculative_config=types.SimpleNamespace(**how) if drafts else None,
    )  # fmt: skip


def allowed(items: set[tuple[int, ...]] | None, written: list[int], room: int) -> set[int]:
    """Return what may come next of a vocabulary of V + 3: whatever leads to an item in time, or the end."""
    if items is None:
        return set(range(V + 3))
    if EOS in written:
        return {EOS}
    done = tuple(written)
    after = {
        each[len(done)] for each in items if len(each) > len(done) and each[: len(done)] == done if len(each) <= room
    }
    lost = not after and done not in items
    return after | ({EOS} if done in items or lost else set())


class Request:
    """One request of a simulation."""

    def __init__(self, rng: random.Random) -> None:
        fields, self.items = ASKED[rng.choice(list(ASKED))]
        self.prompt = [rng.randrange(V) for _ in range(rng.choice([3, 5, 60]))]
        shortest = min(map(len, self.items or [()]))
        limit = rng.choice([max(1, shortest), 5, 16])
        self.params = fakes.ItemParams(fields, EOS, max_tokens=limit)
        self.room = min(limit, 64 - len(self.prompt))
        self.written: list[int] = []
        self.handed: list[int] = []  # vLLM's list, which lags behind under async scheduling
        self.ends_at_once = self.room < shortest

    def may(self, ahead: list[int] = []) -> set[int]:  # noqa: B006  # it is only read
        return {EOS} if self.ends_at_once else allowed(self.items, self.written + ahead, self.room)

    @property
    def over(self) -> bool:
        return EOS in self.written or len(self.written) >= self.room

    def check(self) -> None:
        """Assert that an answer is one item."""
        text = self.written[: self.written.index(EOS)] if EOS in self.written else self.written
        if self.items is not None:
            assert text == [] if self.ends_at_once else tuple(text) in self.items


def finite(logits: torch.Tensor) -> list[set[int]]:
    return [set(torch.isfinite(row).nonzero().flatten().tolist()) for row in logits]


# ------------------------------------------------------------------------------------------------ the first runner


@pytest.mark.parametrize("seed", range(6))
def test_rows_that_come_go_move_and_resume_are_allowed_what_leads_to_an_item(engine, seed):
    rng, (_, module) = random.Random(seed), engine
    processor = module.CatalogueProcessor(config(), DEVICE, False)
    assert processor.is_argmax_invariant() is False
    rows: list[Request] = []
    waiting: list[Request] = []  # preempted
    answers = 0
    while answers < 80:
        update = types.SimpleNamespace(removed=[], added=[], moved=[])
        for at in reversed(range(len(rows))):
            gone = rows[at]
            drawn = rng.random()
            if not gone.over and drawn > 0.1:
                continue
            if gone.over:
                gone.check()
                answers += 1
            elif drawn < 0.05:  # preempted; otherwise cancelled
                waiting.append(gone)
            last = len(rows) - 1
            update.removed.append(at)
            if at != last:
                update.moved.append((last, at, False))
                rows[at] = rows[last]
            rows.pop()
        # vLLM fills holes with new requests before it moves others: here they come once the holes are closed
        processor.update_state(update)
        update = types.SimpleNamespace(removed=[], added=[], moved=[])
        while len(rows) < 8 and rng.random() < 0.7:
            new = waiting.pop() if waiting and rng.random() < 0.5 else Request(rng)
            new.handed = list(new.written)
            update.added.append((len(rows), new.params, new.prompt, new.handed))
            rows.append(new)
        if len(rows) > 1 and rng.random() < 0.3:
            a, b = rng.sample(range(len(rows)), 2)
            update.moved.append((a, b, True))
            rows[a], rows[b] = rows[b], rows[a]
        processor.update_state(update if update.added or update.moved else None)
        if not rows:
            continue
        if rng.random() < 0.1:  # tokens were thrown away, as after a cache could not be read
            row = rng.choice(rows)
            del row.written[len(row.written) // 2 :], row.handed[len(row.written) // 2 :]
            row.handed[:] = row.written
        logits = torch.zeros(len(rows), V + 3)
        assert processor.apply(logits) is logits
        for row, found in zip(rows, finite(logits), strict=True):
            assert found == row.may()
            row.written.append(rng.choice(sorted(found)))
            row.handed.append(row.written[-1])
    assert {at for at, row in enumerate(rows) if row.items is not None} == set(processor.rows.held)
    processor.update_state(types.SimpleNamespace(removed=range(len(rows)), added=[], moved=[]))
    assert not processor.rows.held


def test_a_token_that_is_not_known_or_not_allowed_stops_the_engine(engine):
    processor = engine[1].CatalogueProcessor(config(), DEVICE, False)
    for token in (-1, 39, EOS):
        params, written = fakes.ItemParams(ASKED["plain"][0], EOS), [SIDS[0][0]]
        processor.update_state(types.SimpleNamespace(removed=[], added=[(0, params, [5], written)], moved=[]))
        processor.apply(torch.zeros(1, V))
        written.append(token)
        with pytest.raises(RuntimeError, match=f"vLLM wrote token {token} where the catalogue does not allow it"):
            processor.apply(torch.zeros(1, V))


# ----------------------------------------------------------------------------------------------- the second runner


class Slots:
    """The state of requests that vLLM's second runner shares with processors."""

    def __init__(self, count: int) -> None:
        self.device, self.max_num_reqs, self.vocab_size = DEVICE, count, V + 3
        self.all_token_ids = types.SimpleNamespace(gpu=torch.full((count, 64), -7, dtype=torch.int32))
        self.prompt_len, self.prefill_len = (types.SimpleNamespace(np=np.zeros(count, np.int32)) for _ in range(2))

    def fill(self, slot: int, request: Request) -> None:
        tokens = request.prompt + request.written
        self.prompt_len.np[slot], self.prefill_len.np[slot] = len(request.prompt), len(tokens)
        self.all_token_ids.gpu[slot, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)


def context(rows: list[tuple[int, int, int, int]], slots: list[int]) -> types.SimpleNamespace:
    """Return what vLLM says of rows: slot, place among those of its request, position, and token that was fed."""
    slot, local, position, token = (torch.tensor(each, dtype=torch.int32) for each in zip(*rows, strict=True))
    return types.SimpleNamespace(
        expanded_idx_mapping=slot, expanded_local_pos=local, pos=position.long(), input_ids=token,
        idx_mapping_np=np.array(slots),
    )  # fmt: skip


@pytest.mark.parametrize(("seed", "drafts"), [(0, 0), (1, 3), (2, 3), (3, 1)])
def test_states_on_the_device_follow_accepted_drafts_reordered_rows_and_reused_slots(engine, seed, drafts):
    rng, count = random.Random(seed), 6
    slots = Slots(count)
    processor = engine[1].CatalogueProcessor(config(drafts), slots)
    live: dict[int, Request] = {}
    waiting: list[Request] = []
    fed: dict[int, int] = {}  # tokens of a prompt that were fed already
    answers = accepted = 0
    while answers < 80:
        for slot in range(count):
            if slot not in live and rng.random() < 0.5:
                new = waiting.pop() if waiting and rng.random() < 0.5 else Request(rng)
                slots.fill(slot, new)
                named = processor.add_request(slot, new.params)
                assert named == (new.items is not None)
                live[slot], fed[slot] = new, 0
        processor.apply_staged_writes()
        order = [slot for slot in live if rng.random() < 0.8]
        rng.shuffle(order)
        if not order:
            continue
        rows, truth, step = [], [], {}
        for slot in order:
            request = live[slot]
            text = request.prompt + request.written
            prefill = int(slots.prefill_len.np[slot])
            if fed[slot] < prefill:  # a part of the prompt, or all that is left of it
                fed[slot] = prefill if rng.random() < 0.7 else rng.randrange(fed[slot], prefill) + 1
                if fed[slot] < prefill:
                    rows.append((slot, 0, fed[slot] - 1, text[fed[slot] - 1]))
                    truth.append(None)  # its token is thrown away
                    continue
                proposed = []
            else:
                proposed = []
                for _ in range(rng.randrange(drafts + 1)):
                    may = sorted(request.may(proposed))
                    proposed.append(rng.choice(may) if rng.random() < 0.8 else rng.choice([0, 12, V, V + 2, EOS]))
            first, good = len(text) - 1, True
            for at, token in enumerate([text[-1], *proposed]):
                good = good and (at == 0 or token in request.may(proposed[: at - 1]))
                rows.append((slot, at, first + at, token))
                truth.append(request.may(proposed[:at]) if good else {EOS} if request.items is not None else None)
            step[slot] = proposed
        logits = torch.zeros(len(rows), V + 3)
        found = finite(processor.apply(logits, context(rows, order)))
        for at, want in enumerate(truth):
            assert want is None or found[at] == want
        at = {(slot, local): row for row, (slot, local, _, _) in enumerate(rows)}
        for slot, proposed in step.items():
            request, taken = live[slot], 0
            while taken < len(proposed) and proposed[taken] in found[at[slot, taken]] and rng.random() < 0.7:
                taken += 1
            accepted += taken
            request.written += [*proposed[:taken], rng.choice(sorted(found[at[slot, taken]]))]
            del request.written[request.room :]
            if EOS in request.written:
                del request.written[request.written.index(EOS) + 1 :]
            if request.over:
                request.check()
                answers += 1
            elif rng.random() < 0.06:
                waiting.append(request)  # preempted: another slot, with what it has written
            elif rng.random() > 0.04:  # else cancelled
                continue
            del live[slot]
    assert accepted > 20 or not drafts
    filters = next(placed.filters for placed in processor.rows.placed if placed.filters is not None)
    assert len(filters) <= count  # of requests that are gone, until others take their slots
    for slot in range(count):
        processor.add_request(slot, fakes.ItemParams(None))
    processor.apply_staged_writes()
    assert len(filters) == 0
    untouched = torch.zeros(1, V + 3)
    assert processor.apply(untouched, context([(0, 0, 5, 3)], [0])) is untouched


def test_speculation_that_may_accept_what_is_not_allowed_is_refused(engine):
    for how in ({"enable_adaptive_verification": True}, {"rejection_sample_method": "synthetic"}):
        with pytest.raises(mw.errors.ConstraintError, match="do not keep to a catalogue"):
            engine[1].CatalogueProcessor(config(2, **how), Slots(2))


# ----------------------------------------------------------------------------------------------------- admission


@pytest.mark.parametrize(
    ("fields", "given", "field", "said"),
    [
        ({"maskwright_catalogue": "no"}, {}, "maskwright_catalogue", "names 'no'"),
        ({"maskwright_catalog": "no"}, {}, "maskwright_catalog", "is no field"),
        (ASKED["plain"][0], {"max_tokens": 2}, "max_tokens", "less than an item of 'matrix' takes, 3"),
        (ASKED["table"][0], {"min_tokens": 5}, "min_tokens", "more than an item of 'table' may have, 4"),
        (ASKED["plain"][0], {"structured_outputs": object()}, "structured_outputs", "another constraint"),
        (ASKED["plain"][0], {"ignore_eos": True}, "ignore_eos", "from ending"),
        (ASKED["plain"][0], {"stop": ["a"]}, "stop", "cut an item"),
        (ASKED["plain"][0], {"stop_token_ids": [30, 12]}, "stop_token_ids", "token 12 ends an answer"),
        (ASKED["plain"][0], {"bad_words": ["a"]}, "bad_words", "nothing to write"),
        (ASKED["plain"][0], {"allowed_token_ids": [3]}, "allowed_token_ids", "nothing to write"),
        (ASKED["plain"][0], {"thinking_token_budget": 0}, "thinking_token_budget", "tokens of its own"),
        (ASKED["plain"][0], {"logit_bias": {3: -float("inf")}}, "logit_bias", "finite"),
    ],
)
def test_requests_that_cannot_be_kept_to_an_item_are_the_clients_error(engine, fields, given, field, said):
    check = engine[1].CatalogueProcessor.validate_params
    with pytest.raises(fakes.ValidationError) as error:
        check(fakes.ItemParams(fields, **given))
    assert error.value.parameter == field
    assert said in str(error.value)
    check(fakes.ItemParams(None, **given))
    check(fakes.ItemParams(ASKED["plain"][0], max_tokens=None, stop_token_ids=[30], logit_bias={3: -5.0}))


def test_an_engine_starts_only_where_its_catalogues_can_be_written(engine, monkeypatch):
    made, module = engine
    made.tokenizer.eos_token_id = 12
    with pytest.raises(
        mw.errors.ConstraintError, match="token 12 in a semantic ID, and it is the tokenizer's eos_token"
    ):
        module.CatalogueProcessor(config(), DEVICE, False)
    made.tokenizer.eos_token_id = None
    with pytest.raises(mw.errors.ConstraintError, match="this model has none"):
        module.CatalogueProcessor(config(), DEVICE, False)
    made.tokenizer.eos_token_id = EOS
    monkeypatch.setenv("MASKWRIGHT_ENGINE_OPTIONS", "")
    with pytest.raises(mw.errors.ConstraintError, match="names no catalogues"):
        module.CatalogueProcessor(config(), DEVICE, False)
    fakes.vllm(monkeypatch, "0.33.0")
    with pytest.raises(mw.errors.MissingDependencyError, match=r"this is 0\.33\.0"):
        module.CatalogueProcessor(config(), DEVICE, False)


def test_what_nothing_would_keep_to_is_refused_by_the_plugin(monkeypatch):
    made = fakes.vllm(monkeypatch, plugins=["maskwright"])
    plugin.register()
    name = "maskwright.engines.vllm.logits_processor:CatalogueProcessor"
    processor = importlib.import_module("maskwright.engines.vllm.logits_processor").CatalogueProcessor

    def verify(processors, fields):
        model = types.SimpleNamespace(logits_processors=processors)
        made.Params(None, extra_args=fields)._validate_structured_outputs(model, object(), object())

    for loaded in ([name], [processor]):
        verify(loaded, {"maskwright_catalogue": "a"})
    verify(None, {"session_id": 1})
    for loaded in (None, ["other.module:Class", fakes.Manager]):
        with pytest.raises(fakes.ValidationError, match="starts vLLM with --logits-processors maskwright"):
            verify(loaded, {"maskwright_catalogue": "a"})
    for kind in (made.Completion, made.Chat):
        assert kind({"session_id": 1}).to_beam_search_params(3, {}) == (3, {})
        for asked in (kind({"maskwright_catalogue": "a"}), kind(None, object())):
            with pytest.raises(fakes.ValidationError, match="keeps to no constraint"):
                asked.to_beam_search_params(3, {})


def test_the_second_runner_is_never_made_to_wait_for_values(engine):
    """Fake tensors have no values: whatever reads one raises."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    slots = Slots(3)
    processor = engine[1].CatalogueProcessor(config(2), slots)
    for slot, name in enumerate(("filter", "loose", "free")):
        request = Request(random.Random(0))
        request.written = []
        slots.fill(slot, request)
        processor.add_request(slot, fakes.ItemParams(ASKED[name][0], EOS))
    processor.apply_staged_writes()
    rows = [(0, 0, 5, 3), (1, 0, 5, 3), (1, 1, 6, 3), (2, 0, 5, 3)]
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        given = context(rows, [0, 1, 2])
        given.idx_mapping_np = np.arange(3)
        faked = processor.rows
        for placed in faked.placed:
            placed.states = tuple(map(mode.from_tensor, placed.states))
        for name in ("_of", "_base", "_limit"):
            setattr(faked, name, mode.from_tensor(getattr(faked, name)))
        found = processor.apply(torch.zeros(4, V + 3), given)
    assert found.shape == (4, V + 3)
    assert type(found).__name__ == "FakeTensor"
