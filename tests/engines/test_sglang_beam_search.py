"""SGLang's beam search with catalogues, on a naive stand-in for SGLang's search: equal to maskwright's own."""

from __future__ import annotations

import functools
import json
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import maskwright as mw  # noqa: E402
from maskwright.engines.catalogues import Catalogues  # noqa: E402
from maskwright.engines.options import options_of  # noqa: E402
from maskwright.engines.sglang import plugin  # noqa: E402
from maskwright.engines.sglang.beam_search import CatalogueBeams  # noqa: E402
from maskwright.runtime import torch_ops  # noqa: E402
from maskwright.runtime.decode import beam_search  # noqa: E402
from tests.engines import fakes  # noqa: E402

V, END = 300, 299
PROMPT = (5, 6, 7)
rng = np.random.default_rng(0)
SIDS = np.unique(rng.integers(0, [290, 40, 40], (4000, 3)), axis=0)
KEEP = np.arange(len(SIDS)) % 7 == 0


def model(texts: list[tuple[int, ...]]) -> torch.Tensor:
    """Return logits (n, V) after texts: any function of all their tokens."""
    seeds = torch.tensor([[1 + sum((at + 1) * token for at, token in enumerate(text))] for text in texts])
    return 3 * torch.sin(seeds * torch.arange(1, V + 1) * 0.37)


# ------------------------------------------------------------------------------------------------ SGLang's search


class Leaf(NamedTuple):
    """SGLang's `BeamNode`."""

    token: int
    text: tuple[int, ...]


class Params(types.SimpleNamespace):
    def __init__(self, custom: Any = None, **given: Any) -> None:
        fields = {"beam_width": 20, "max_new_tokens": 64, "stop_token_ids": (), "ignore_eos": False}
        super().__init__(custom_params=custom, **fields | given)

    def verify(self, vocab_size: int) -> None:
        assert vocab_size == V


class Coordinator:
    """SGLang's `BeamCoordinator`, with one request at a time, and its `BeamGroup`s as plain objects."""

    def __init__(self) -> None:
        self.aborted, self.retired, self.room = [], [], 1000

    def _collect_stop_token_ids(self, req: Any, params: Any) -> list[int]:
        return [] if params.ignore_eos else sorted({END, *params.stop_token_ids})

    def validate_and_init(self, req: Any, recv_req: Any) -> str | None:
        params = req.sampling_params
        if recv_req == "constrained":
            return "Beam search is not supported with constrained decoding."
        req.beam_group = types.SimpleNamespace(
            width=params.beam_width, most=min(params.max_new_tokens, self.room), completed=[], total=[0.0], leader=req,
            beams=[PROMPT], stops=self._collect_stop_token_ids(req, params),
        )  # fmt: skip
        req.beam_group.max_new_tokens = req.beam_group.most
        return None

    def retire_group(self, req: Any) -> None:
        self.retired.append(req)

    def _rows_topk_logprobs(self, pieces: Any, count: int) -> Any:  # a function of the module, in SGLang
        return torch.cat([piece.log_softmax(-1) for piece in pieces if len(piece)]).topk(count)

    def _select_group(self, group: Any, scores: torch.Tensor, tokens: torch.Tensor, tick: int) -> Any:
        final = len(group.beams[0]) - len(PROMPT) + 1 == group.most
        found = [
            (total + score, row, token)
            for row, total in enumerate(group.total)
            for score, token in zip(scores[row].tolist(), tokens[row].tolist(), strict=True)
        ]
        found = sorted(found, key=lambda each: -each[0])[: 2 * group.width if not final else group.width]
        going: list[Any] = []
        for score, row, token in found:
            text = (*group.beams[row], token)
            if len(going) < group.width and (final or token in group.stops):
                end = types.SimpleNamespace(
                    cum_logprob=score, leaf=Leaf(token, text), matched_token=None if final else token
                )
                group.completed.append(end)
            elif len(going) < group.width:
                going.append((score, row, token, text))
        if final:
            return torch.tensor([token for _, _, token in found]), None
        assert len(going) == group.width  # SGLang would end the request here, in the middle of its beams
        group.total, parents, chosen, group.beams = map(list, zip(*going, strict=True))
        return torch.tensor(chosen), torch.tensor(parents)

    def _finish_group(self, group: Any) -> None:
        group.done = True

    def _abort_group(self, group: Any) -> None:
        self.aborted.append(group.leader.to_finish)


class Scheduler:
    def __init__(self) -> None:
        self.tokenizer = types.SimpleNamespace(eos_token_id=END)
        self.model_config = types.SimpleNamespace(vocab_size=V, hf_eos_token_id={END})
        self.req_to_token_pool = types.SimpleNamespace(device="cpu")
        self.server_args = types.SimpleNamespace(tp_size=1)

    def init_beam_coordinator(self) -> None:
        pass


def hooked(hooks: Any, *owners: type) -> None:
    """Put hooks around the functions of classes, as SGLang's registry does."""
    for path, (kind, hook) in hooks.items():
        name = path.rpartition(".")[2]
        (owner,) = [each for each in owners if hasattr(each, name)]
        original = getattr(owner, name)

        def call(self, *given, hook=hook, original=original, kind=kind, name=name):
            if kind == "AFTER":
                result = original(self, *given)
                hook(result, self, *given)
                return result
            if name.startswith("_rows"):  # which has no self in SGLang
                return hook(functools.partial(original, self), *given)
            return hook(original, self, *given)

        setattr(owner, name, call)


@pytest.fixture(scope="module")
def options(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("catalogues")
    mw.Catalogue.of(SIDS, np.arange(len(SIDS)), vocab_size=V, kind="matrix").save(folder / "items")
    mw.Catalogue.of(SIDS, np.arange(len(SIDS)), vocab_size=V).save(folder / "table")
    mw.compile_sids(SIDS[:3], vocab_size=V).save(folder / "few")
    mw.compile_sequences([*SIDS[:500].tolist(), *SIDS[:90, :2].tolist()], vocab_size=V, eos=END).save(folder / "ended")
    mw.compile_sequences([*SIDS[:500].tolist(), *SIDS[:90, :2].tolist()], vocab_size=V).save(folder / "loose")
    np.save(folder / "keep.npy", KEEP)
    return json.dumps({
        "catalogues": {name: str(folder / name) for name in ("items", "table", "few", "ended", "loose")},
        "filters": {
            name: {"catalogue": of, "keep": str(folder / "keep.npy")}
            for name, of in (("kept", "items"), ("left", "table"))
        },
    })  # fmt: skip


@pytest.fixture
def server(options) -> types.SimpleNamespace:
    """Return the classes of an SGLang with catalogues, its scheduler made."""
    return served(options)


def served(options: str) -> types.SimpleNamespace:
    given = options_of({"MASKWRIGHT_ENGINE_OPTIONS": options})
    made = types.SimpleNamespace(
        Coordinator=type("Coordinator", (Coordinator,), {}), Params=type("Params", (Params,), {}),
        Scheduler=type("Scheduler", (Scheduler,), {}), catalogues=Catalogues(given),
    )  # fmt: skip
    made.beams = CatalogueBeams(list(given.catalogues), lambda: made.catalogues)
    hooked(made.beams.hooks(), made.Coordinator, made.Params, made.Scheduler)
    made.Scheduler().init_beam_coordinator()
    return made


def searched(server: Any, params: Any, coordinator: Any = None, logits=model) -> Any:
    """Run one request as SGLang does."""
    return list(steps(server, params, coordinator, logits))[-1]


def steps(server: Any, params: Any, coordinator: Any = None, logits=model) -> Iterator[Any]:
    """Yield the beams of one request after each step: the prompt, then all beams, the first of them apart."""
    coordinator = coordinator or server.Coordinator()
    req = types.SimpleNamespace(sampling_params=params)
    params.verify(V)
    assert coordinator.validate_and_init(req, "free") is None
    group = req.beam_group
    for tick in range(group.most):
        rows = logits(group.beams)
        waiting = coordinator._rows_topk_logprobs([rows[:1], rows[1:]], 2 * group.width)
        coordinator._select_group(group, *waiting, tick)
        yield group
    coordinator._finish_group(group)
    yield group


def best(group: Any, width: int) -> list[tuple[tuple[int, ...], float]]:
    """Return the tokens and scores of the beams of a request, the best first."""
    found = ((beam.leaf.text[3:], beam.cum_logprob / (len(beam.leaf.text) - 3)) for beam in group.completed)
    return sorted(found, key=lambda each: -each[1])[:width]


def refused(server: Any, params: Any, recv_req: Any = "free") -> str:
    coordinator = server.Coordinator()
    try:
        params.verify(V)
    except ValueError as error:
        return str(error)
    return coordinator.validate_and_init(types.SimpleNamespace(sampling_params=params), recv_req) or ""


def exact(dev: Any, beams: int) -> list[tuple[tuple[int, ...], float]]:
    """Return what maskwright's own search finds, and its scores."""

    def step(tokens, texts, t):
        texts = texts if t == 0 else [(*text, int(token)) for text, token in zip(texts, tokens, strict=True)]
        return model(texts), texts

    found = beam_search(
        step, [PROMPT] * beams, dev, ops=torch_ops, batch=1, beams=beams, max_tokens=3, length_penalty=1.0,
        count_eos=True, gather=lambda texts, at: [texts[i] for i in at.tolist()],
    )  # fmt: skip
    return [
        (tuple(tokens[:length].tolist()), float(score))
        for tokens, length, score, valid in zip(*(part[0] for part in found[:4]), strict=True)
        if valid
    ]


MATRIX = mw.sort_sids(SIDS, vocab_size=V)
ASKED = {
    "items": ({}, lambda: torch_ops.to_device(MATRIX)),
    "table": ({}, lambda: torch_ops.to_device(mw.compile_sids(SIDS, vocab_size=V))),
    "few": ({}, lambda: torch_ops.to_device(mw.compile_sids(SIDS[:3], vocab_size=V))),
    "filter": ({"maskwright_filter": "kept"}, lambda: torch_ops.to_device(MATRIX.filter(KEEP))),
    "deny": (
        {"maskwright_filter": ["kept"], "maskwright_deny": list(range(2000))},
        lambda: torch_ops.to_device(MATRIX.filter(KEEP & (np.arange(len(SIDS)) >= 2000))),
    ),
    "table, deny": (
        {"maskwright_filter": "left", "maskwright_deny": list(range(2000))},
        lambda: torch_ops.to_device(MATRIX.filter(KEEP & (np.arange(len(SIDS)) >= 2000))),
    ),
}


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("width", [2, 20, 70])
def test_beams_are_those_of_the_exact_search(server, name, width):
    asked, put = ASKED[name]
    catalogue = "items" if name in ("filter", "deny") else name.split(",")[0]
    params = server.Params({"maskwright_catalogue": catalogue, **asked}, beam_width=width)
    group = searched(server, params)
    found = best(group, width)
    want = exact(put(), width)
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in want]
    assert np.allclose([score for _, score in found], [score for _, score in want], atol=1e-5, rtol=0)


def test_a_search_keeps_the_version_that_it_began_with_and_the_next_one_has_the_newest(tmp_path):
    mw.Catalogue.of(SIDS, np.arange(len(SIDS)), vocab_size=V, kind="matrix").save(tmp_path / "items")
    shop = mw.Catalogue.open(tmp_path / "items", log=tmp_path / "log")
    there, keep = dict(enumerate(map(tuple, SIDS.tolist()))), KEEP.copy()
    np.save(tmp_path / "keep.npy", keep)
    options = {
        "catalogues": {"items": {"file": str(tmp_path / "items"), "log": str(tmp_path / "log")}},
        "filters": {"kept": {"catalogue": "items", "keep": str(tmp_path / "keep.npy")}},
    }
    server = served(json.dumps(options))
    draws, running, done = np.random.default_rng(1), [], 0
    while done < 24:
        name = ["plain", "kept", "deny"][done % 3]
        gone = draws.choice(list(there), 9, replace=False).tolist()
        asked = {"plain": {}, "kept": {"maskwright_filter": "kept"}, "deny": {"maskwright_deny": gone}}[name]
        left = [sid for i, sid in there.items() if not (name == "deny" and i in gone) and (name != "kept" or keep[i])]
        want = exact(torch_ops.to_device(mw.sort_sids(left, vocab_size=V)), 20)
        running.append((steps(server, server.Params({"maskwright_catalogue": "items", **asked})), want))
        next(running[-1][0])
        shop.delete(worst := [next(i for i, sid in there.items() if sid == tokens) for tokens, _ in want[:3]])
        new = draws.integers(0, [290, 40, 40], (20, 3)).tolist()
        new[0][1] = END  # which no search writes
        shop.insert(new, range(keep.size, keep.size + 20))
        there |= dict(zip(range(keep.size + 1, keep.size + 20), map(tuple, new[1:]), strict=True))
        for each in worst:
            del there[each]
        keep = draws.random(keep.size + 20) < 0.2
        np.save(tmp_path / "new.npy", keep)
        (tmp_path / "new.npy").replace(tmp_path / "keep.npy")
        while running and draws.random() < 0.6:  # searches end while others that began before or after them go on
            search, want = running.pop(int(draws.integers(len(running))))
            found = best(list(search)[-1], 20)
            assert [tokens for tokens, _ in found] == [tokens for tokens, _ in want]
            assert np.allclose([score for _, score in found], [score for _, score in want], atol=1e-5, rtol=0)
            done += 1
    shop.delete(list(there))
    assert "leaves no item of the catalogue" in refused(server, server.Params({"maskwright_catalogue": "items"}))
    (tmp_path / "log").unlink()
    assert "cannot be read: " in refused(server, server.Params({"maskwright_catalogue": "items"}))


def test_catalogues_that_change_are_refused_where_several_processes_are_one_engine(tmp_path):
    mw.Catalogue.of(SIDS, np.arange(len(SIDS)), vocab_size=V, kind="matrix").save(tmp_path / "items")
    mw.Catalogue.open(tmp_path / "items", log=tmp_path / "log")
    files = {"file": str(tmp_path / "items"), "log": str(tmp_path / "log")}
    given = options_of({"MASKWRIGHT_ENGINE_OPTIONS": json.dumps({"catalogues": {"items": files}})})
    scheduler = Scheduler()
    scheduler.server_args.tp_size = 2
    with pytest.raises(mw.errors.ConstraintError, match="'items' has a log, and the processes of this engine"):
        CatalogueBeams(["items"], lambda: Catalogues(given)).place(None, scheduler)


def test_requests_without_a_catalogue_are_searched_as_before(server):
    for custom in (None, {"thinking_budget": 3}):
        group = searched(server, server.Params(custom, max_new_tokens=4, ignore_eos=True))
        plain = searched(
            types.SimpleNamespace(Coordinator=Coordinator), Params(custom, max_new_tokens=4, ignore_eos=True)
        )
        assert [beam.leaf for beam in group.completed] == [beam.leaf for beam in plain.completed]


@pytest.mark.parametrize(
    ("asked", "given", "said"),
    [
        ({"maskwright_catalogue": "no"}, {}, "names 'no', and there are 'ended', 'few', 'items', 'loose', 'table'"),
        ({"maskwright_catalog": "items"}, {}, "maskwright_catalog is no field"),
        ({"maskwright_catalogue": "items"}, {"beam_width": None}, "add a beam_width of 2 or more"),
        ({"maskwright_catalogue": "items"}, {"max_new_tokens": 2}, "max_new_tokens is 2, and an item of"),
        ({"maskwright_catalogue": "items", "maskwright_filter": "no"}, {}, "names 'no', and there are 'kept', 'left'"),
        ({"maskwright_catalogue": "items", "maskwright_deny": ["a"]}, {}, "ids of the catalogue 'items' are integers"),
        ({"maskwright_catalogue": "items"}, {"stop_token_ids": (0, 17)}, "stop_token_ids token 0 ends an answer"),
        ({"maskwright_catalogue": "ended"}, {}, "'ended' has items that end by a token"),
        ({"maskwright_catalogue": "loose"}, {}, "or that begin with others"),
    ],
)  # fmt: skip
def test_a_request_that_cannot_be_kept_is_refused_by_the_field(server, asked, given, said):
    assert said in refused(server, server.Params(asked, **given))


def test_what_sglang_refuses_and_a_context_without_room_are_refused_too(server):
    params = server.Params({"maskwright_catalogue": "items"})
    assert "constrained decoding" in refused(server, params, "constrained")
    coordinator = server.Coordinator()
    coordinator.room = 2
    req = types.SimpleNamespace(sampling_params=server.Params({"maskwright_catalogue": "items"}))
    assert "room for 2 more tokens, and an item takes 3" in coordinator.validate_and_init(req, "free")
    assert coordinator.retired == [req]


def test_a_model_that_rules_all_items_out_is_an_error_of_the_request(server, monkeypatch):
    fakes.sglang(monkeypatch)
    coordinator = server.Coordinator()
    nothing = lambda texts: torch.full((len(texts), V), torch.nan)  # noqa: E731
    group = searched(server, server.Params({"maskwright_catalogue": "items"}), coordinator, nothing)
    assert "gives no item" in coordinator.aborted[0][0]
    assert not hasattr(group, "done")


def test_the_scheduler_stops_where_a_catalogue_is_not_the_models(options):
    given = options_of({"MASKWRIGHT_ENGINE_OPTIONS": options})
    beams, scheduler = CatalogueBeams(list(given.catalogues), lambda: Catalogues(given)), Scheduler()
    scheduler.model_config.hf_eos_token_id = {END, 17}
    with pytest.raises(
        mw.errors.ConstraintError, match="has token 17 in a semantic ID, and it is in the model's eos_token"
    ):
        beams.place(None, scheduler)


def test_hooks_are_put_in_place_where_catalogues_are_named_and_another_release_stops_it(monkeypatch, options, caplog):
    made = fakes.sglang(monkeypatch)
    monkeypatch.delenv("MASKWRIGHT_ENGINE_OPTIONS", raising=False)
    plugin.register()
    assert [path.rpartition(".")[2] for path in made.hooks] == ["verify"]
    _, check = made.hooks.popitem()[1]
    with pytest.raises(ValueError, match="names 'items', and there are none"):
        check(None, Params({"maskwright_catalogue": "items"}), V)
    monkeypatch.setenv("MASKWRIGHT_ENGINE_OPTIONS", options)
    plugin.register()
    assert len(made.hooks) == 6
    made = fakes.sglang(monkeypatch, "0.5.24")
    with pytest.raises(SystemExit, match=r"tested with SGLang 0\.5\.23 to 0\.5\.23, and this is 0\.5\.24"):
        plugin.register()
    monkeypatch.setenv("MASKWRIGHT_ENGINE_OPTIONS", '{"whitespace": "compact", "catalogues": {}}')
    caplog.clear()
    plugin.register()
    assert [path.rpartition(".")[2] for path in made.hooks] == ["verify"]
    assert not caplog.text
    fakes.sglang(monkeypatch)
    monkeypatch.setenv("MASKWRIGHT_ENGINE_OPTIONS", '{"catalogs": {}}')
    with pytest.raises(SystemExit, match="has no option 'catalogs'"):
        plugin.register()
