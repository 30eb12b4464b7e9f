"""vLLM's logits processor under batches as vLLM makes them, held against sets. `make test-engines` has vLLM's own."""

from __future__ import annotations

import gc
import importlib
import json
import os
import random
import types
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import maskwright as mw  # noqa: E402
from maskwright.engines.vllm import plugin  # noqa: E402
from maskwright.table.snapshot import Snapshot  # noqa: E402
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


class Shop:
    """A catalogue that another store changes while an engine serves, and a filter in a file; beside them plain sets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.there = dict(enumerate(SIDS))
        self.kept = set(range(0, len(SIDS), 2))
        mw.Catalogue.of(SIDS, range(len(SIDS)), vocab_size=V, kind="matrix").save(folder / "shop")
        self.store = mw.Catalogue.open(folder / "shop", log=folder / "log")
        self.versions, self.count = 0, len(SIDS)
        self.write_filter()

    def write_filter(self) -> None:
        np.save(self.folder / "new.npy", [i in self.kept for i in range(self.count)])
        (self.folder / "new.npy").replace(self.folder / "shop.npy")

    def change(self, rng: random.Random) -> None:
        """Insert and delete items, or let the filter keep others."""
        self.versions += 1
        if rng.random() < 0.5:
            new = [tuple(rng.randrange(10, 16) for _ in range(3)) for _ in range(3)]
            names = list(range(self.count, self.count + 3))
            self.store.insert(new, names)
            self.there |= dict(zip(names, new, strict=True))
            self.count += 3
            gone = rng.sample(sorted(self.there), 3)
            self.store.delete(gone)
            for each in gone:
                del self.there[each]
        else:
            self.kept = {i for i in range(self.count) if rng.random() < 0.1}
            self.write_filter()
        if rng.random() < 0.05:
            self.store.save(self.folder / "shop")

    def asked(self, rng: random.Random) -> tuple[dict, Callable[[], set]]:
        """Return what a request says, and what gives the items that may be written when it begins."""
        deny = rng.sample(sorted(self.there), 5)
        fields = {"maskwright_catalogue": "shop"}
        return rng.choice([
            (fields, lambda: set(self.there.values())),
            (fields | {"maskwright_deny": deny}, lambda: {sid for i, sid in self.there.items() if i not in deny}),
            (fields | {"maskwright_filter": "in shop"}, lambda: {self.there[i] for i in self.kept & set(self.there)}),
        ])  # fmt: skip


@pytest.fixture
def engine(monkeypatch, tmp_path):
    """Return vLLM's stand-ins and the module of the processor, with catalogues in the options."""
    made = fakes.vllm(monkeypatch)
    mw.Catalogue.of(SIDS, range(len(SIDS)), vocab_size=V, kind="matrix").save(tmp_path / "matrix")
    mw.compile_sids(sorted(OTHER), vocab_size=V).save(tmp_path / "table")
    mw.compile_sequences(sorted(LOOSE), vocab_size=V).save(tmp_path / "loose")
    mw.compile_sequences(sorted(ENDED), vocab_size=V, eos=EOS).save(tmp_path / "ended")
    mw.Catalogue.of(SIDS, range(len(SIDS)), vocab_size=V).save(tmp_path / "items")
    made.shop = Shop(tmp_path)
    np.save(tmp_path / "keep.npy", [bool(i % 3) for i in range(len(SIDS))])
    for name, held in (("loose", LOOSE), ("ended", ENDED)):
        np.save(tmp_path / f"{name}.npy", [sequence in some(held) for sequence in sorted(held)])
    options = {
        "catalogues": {name: str(tmp_path / name) for name in ("matrix", "table", "loose", "ended", "items")}
        | {"shop": {"file": str(tmp_path / "shop"), "log": str(tmp_path / "log")}},
        "filters": {
            "kept": {"catalogue": "matrix", "keep": str(tmp_path / "keep.npy")},
            "in shop": {"catalogue": "shop", "keep": str(tmp_path / "shop.npy")},
        }
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
        parallel_config=types.SimpleNamespace(world_size=1, distributed_executor_backend="uni"),
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

    def __init__(self, rng: random.Random, shop: Shop | None = None) -> None:
        fields, self.items = ASKED[rng.choice(list(ASKED))]
        self.of_shop: Callable[[], set] | None = None
        if shop is not None and rng.random() < 0.7:
            fields, self.of_shop = shop.asked(rng)
            self.items = FIXED  # until it begins
        self.prompt = [rng.randrange(V) for _ in range(rng.choice([3, 5, 60]))]
        shortest = min(map(len, self.items or [()]))
        limit = rng.choice([max(1, shortest), 5, 16])
        self.params = fakes.ItemParams(fields, EOS, max_tokens=limit)
        self.room = min(limit, 64 - len(self.prompt))
        self.written: list[int] = []
        self.handed: list[int] = []  # vLLM's list, which lags behind under async scheduling
        self.ends_at_once = self.room < shortest

    def begin(self) -> None:
        """Take the items of now, once."""
        if self.of_shop is not None:
            self.items, self.of_shop = self.of_shop(), None
            self.ends_at_once = self.ends_at_once or not self.items

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


@pytest.mark.parametrize(("seed", "changes"), [*((seed, 0) for seed in range(6)), (6, 0.5), (7, 1)])
def test_rows_that_come_go_move_and_resume_are_allowed_what_leads_to_an_item(engine, seed, changes):
    rng, (made, module) = random.Random(seed), engine
    processor = module.CatalogueProcessor(config(), DEVICE, False)
    before = snapshots()
    assert processor.is_argmax_invariant() is False
    rows: list[Request] = []
    waiting: list[Request] = []  # preempted
    answers = 0
    while answers < 80:
        if rng.random() < changes:
            made.shop.change(rng)
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
            new = waiting.pop() if waiting and rng.random() < 0.5 else Request(rng, made.shop if changes else None)
            new.begin()
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
    assert not changes or made.shop.versions > 20
    del rows, waiting, row, gone, new, update
    assert snapshots() <= before


def snapshots() -> int:
    """Return how many versions of catalogues there are in memory."""
    gc.collect()
    return sum(type(each) is Snapshot for each in gc.get_objects())  # a proxy asks its object, which may be gone


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


def filters_of(processor) -> int:
    """Return how many filters of requests are on the device."""
    return sum(len(placed.filters or ()) for placed in processor.rows.placed.values())


def context(rows: list[tuple[int, int, int, int]], slots: list[int]) -> types.SimpleNamespace:
    """Return what vLLM says of rows: slot, place among those of its request, position, and token that was fed."""
    slot, local, position, token = (torch.tensor(each, dtype=torch.int32) for each in zip(*rows, strict=True))
    return types.SimpleNamespace(
        expanded_idx_mapping=slot, expanded_local_pos=local, pos=position.long(), input_ids=token,
        idx_mapping_np=np.array(slots),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("seed", "drafts", "changes"), [(0, 0, 0), (1, 3, 0), (2, 3, 0), (3, 1, 0), (4, 0, 0.5), (5, 3, 1)]
)
def test_states_on_the_device_follow_accepted_drafts_reordered_rows_and_reused_slots(engine, seed, drafts, changes):
    rng, count = random.Random(seed), 6
    slots = Slots(count)
    processor = engine[1].CatalogueProcessor(config(drafts), slots)
    before = snapshots()
    live: dict[int, Request] = {}
    waiting: list[Request] = []
    fed: dict[int, int] = {}  # tokens of a prompt that were fed already
    answers = accepted = versions = 0
    while answers < 80:
        if rng.random() < changes:
            engine[0].shop.change(rng)
        for slot in range(count):
            if slot not in live and rng.random() < 0.5:
                shop = engine[0].shop if changes else None
                new = waiting.pop() if waiting and rng.random() < 0.5 else Request(rng, shop)
                new.begin()
                slots.fill(slot, new)
                named = processor.add_request(slot, new.params)
                assert named == (new.items is not None)
                live[slot], fed[slot] = new, 0
        processor.apply_staged_writes()
        versions = max(versions, len(processor.rows.placed))
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
    assert 0 < filters_of(processor) <= count  # of requests that are gone, until others take their slots
    assert versions > 7 if changes else versions == 6
    live.clear()
    waiting.clear()
    del request, new
    for slot in range(count):
        processor.add_request(slot, fakes.ItemParams(None))
    processor.apply_staged_writes()
    assert filters_of(processor) == 0
    assert len(processor.rows.placed) == 6
    assert snapshots() <= before
    untouched = torch.zeros(1, V + 3)
    assert processor.apply(untouched, context([(0, 0, 5, 3)], [0])) is untouched


def test_speculation_that_may_accept_what_is_not_allowed_is_refused(engine):
    for how in ({"enable_adaptive_verification": True}, {"rejection_sample_method": "synthetic"}):
        with pytest.raises(mw.errors.ConstraintError, match="do not keep to a catalogue"):
            engine[1].CatalogueProcessor(config(2, **how), Slots(2))


def test_what_changes_needs_one_process_that_begins_requests(engine, monkeypatch):
    several, pickled = config(), config()
    several.parallel_config.world_size = 2
    pickled.parallel_config.distributed_executor_backend = "mp"
    for where in (DEVICE, Slots(2)):
        with pytest.raises(mw.errors.ConstraintError, match="'shop' has a log, and the processes of this engine"):
            engine[1].CatalogueProcessor(several, where, False)
    with pytest.raises(mw.errors.ConstraintError, match="'shop' has a log: the second model runner needs it in the pr"):
        engine[1].CatalogueProcessor(pickled, Slots(2))
    engine[1].CatalogueProcessor(pickled, DEVICE, False)
    options = json.loads(os.environ["MASKWRIGHT_ENGINE_OPTIONS"])
    del options["catalogues"]["shop"], options["filters"]["in shop"]
    monkeypatch.setenv("MASKWRIGHT_ENGINE_OPTIONS", json.dumps(options))
    for each in (several, pickled):
        engine[1].CatalogueProcessor(each, Slots(2))


def test_a_request_whose_items_went_since_it_was_admitted_gets_an_empty_answer(engine, caplog):
    shop, check = engine[0].shop, engine[1].CatalogueProcessor.validate_params
    slots = Slots(2)
    processors = [engine[1].CatalogueProcessor(config(), where, False) for where in (DEVICE, slots)]
    given = [fakes.ItemParams({"maskwright_catalogue": "shop"}, EOS) for _ in range(3)]
    check(given[0])
    shop.store.delete(list(shop.there))
    with pytest.raises(fakes.ValidationError, match="leaves no item of the catalogue 'shop'"):
        check(given[2])
    processors[0].update_state(types.SimpleNamespace(removed=[], added=[(0, given[0], [5], [])], moved=[]))
    assert finite(processors[0].apply(torch.zeros(1, V))) == [{EOS}]
    slots.prompt_len.np[1] = slots.prefill_len.np[1] = 1
    processors[1].add_request(1, given[1])
    processors[1].apply_staged_writes()
    assert finite(processors[1].apply(torch.zeros(1, V), context([(1, 0, 0, 5)], [1]))) == [{EOS}]
    assert caplog.text.count("an answer is empty: maskwright_catalogue leaves no item") == 2


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


def test_a_release_without_a_field_of_requests_keeps_to_items_all_the_same(engine):
    older = fakes.ItemParams(ASKED["plain"][0], EOS)
    del older.trace_decode_token_ids  # vLLM 0.28 has none
    engine[1].CatalogueProcessor.validate_params(older)


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
        for placed in faked.placed.values():
            placed.states = tuple(map(mode.from_tensor, placed.states))
        for name in ("_of", "_base", "_limit"):
            setattr(faked, name, mode.from_tensor(getattr(faked, name)))
        found = processor.apply(torch.zeros(4, V + 3), given)
    assert found.shape == (4, V + 3)
    assert type(found).__name__ == "FakeTensor"
