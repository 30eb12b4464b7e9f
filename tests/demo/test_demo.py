"""The demo: its data, its model, its searches and its report, each on something small."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

from rich.console import Console  # noqa: E402  # after the checks for what is optional

from examples.demo import DataError, DemoConfig, run  # noqa: E402
from examples.demo.amazon import amazon_dataset  # noqa: E402
from examples.demo.dataset import Catalogue, TestRows  # noqa: E402
from examples.demo.evaluation import Found, allowed_set, search_both  # noqa: E402
from examples.demo.model import ModelConfig, Transformer, blocks_of, tokens_of  # noqa: E402
from examples.demo.quantizer import residual_kmeans  # noqa: E402
from examples.demo.served import calls, for_transformers  # noqa: E402
from examples.demo.synthetic import SyntheticConfig, synthetic_dataset  # noqa: E402
from examples.demo.training import TrainingConfig, train  # noqa: E402

AMAZON = Path(__file__).parents[3] / "shared" / "sids" / "Amazon"

WORLD = SyntheticConfig(items=300, users=400, levels=3, codes=16, dimension=8, branching=(4, 3, 2))
SMALL = DemoConfig(
    synthetic=WORLD,
    model=ModelConfig(width=32, layers=1, heads=2, history=5, dropout=0.0),
    training=TrainingConfig(steps=25, batch=32),
    beams=10,
    batch=8,
    test_rows=60,
    cold_shares=(0.1,),
)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tensors are tiny here; waiting for other threads costs more than they bring, above all on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# ------------------------------------------------------------------------------------------------- quantizer


def test_every_level_of_residual_kmeans_brings_the_reconstruction_closer() -> None:
    embeddings = np.random.default_rng(1).standard_normal((300, 6))
    sids, centroids = residual_kmeans(embeddings, levels=4, codes=16, seed=1)
    assert sids.shape == (300, 4)
    assert sids.min() >= 0
    assert sids.max() < 16
    error, left = [], embeddings
    for level in range(4):
        left = left - centroids[level, sids[:, level]]
        error.append(float((left**2).sum()))
    assert error == sorted(error, reverse=True)
    assert error[0] < float(((embeddings - embeddings.mean(axis=0)) ** 2).sum())
    assert error[-1] < 0.5 * error[0]


def test_equal_embeddings_get_equal_ids_and_few_items_need_few_codes() -> None:
    embeddings = np.repeat(np.eye(3), 2, axis=0)
    sids, _ = residual_kmeans(embeddings, levels=2, codes=8, seed=0)
    assert (sids[0::2] == sids[1::2]).all()
    assert len(np.unique(sids, axis=0)) == 3


# ------------------------------------------------------------------------------------------------- synthetic


def test_a_seed_determines_the_synthetic_data_and_another_seed_changes_it() -> None:
    one, same, other = (synthetic_dataset(WORLD, seed) for seed in (3, 3, 4))
    assert (one.catalogue.sids == same.catalogue.sids).all()
    assert all((a == b).all() for a, b in zip(one.train, same.train, strict=True))
    assert (one.catalogue.sids != other.catalogue.sids).any()


def test_synthetic_histories_hold_items_of_the_catalogue_and_ids_that_collide() -> None:
    data = synthetic_dataset(WORLD, 0)
    assert len(data.train) == len(data.test) == WORLD.users
    assert {len(items) for items in data.train} == set(range(WORLD.shortest - 1, WORLD.longest))
    assert all(items.min() >= 0 and items.max() < WORLD.items for items in data.train)
    assert len(np.unique(data.catalogue.sids, axis=0)) < WORLD.items


def test_the_newest_items_can_be_held_out_of_training() -> None:
    data = synthetic_dataset(WORLD, 0)
    cold = data.catalogue.newest(0.1)
    assert len(cold) == 30
    assert data.catalogue.age[cold].min() == 270
    kept = data.without(cold)
    assert 0 < len(kept) < len(data.train)
    assert not np.isin(np.concatenate(kept), cold).any()
    rows = data.rows_with_target(cold)
    assert 0 < len(rows) < len(data.test)
    assert np.isin(rows.targets, cold).all()


# ----------------------------------------------------------------------------------------------------- model


def test_the_cached_step_gives_the_logits_of_the_full_forward_pass() -> None:
    """Also after beams have been regathered, and for histories of different lengths, none among them."""
    random = np.random.default_rng(0)
    sids = random.integers(0, 16, size=(40, 4))
    histories = [random.integers(0, 40, size=n) for n in (5, 2, 0, 1)]
    written = torch.from_numpy(tokens_of(random.integers(0, 16, size=(4, 3, 4))))  # (B, M, L)
    written[:, 1, :2] = written[:, 0, :2]  # beam 1 branches off beam 0 after two tokens
    network = Transformer(ModelConfig(width=32, layers=2, heads=4, history=5), levels=4, codes=16).eval()

    blocks, counts = blocks_of(histories, sids, 5)
    step, cache = network.decoder(blocks, counts, 3)
    fed, stepped = torch.zeros(12, dtype=torch.int64), []
    for t in range(4):
        if t == 2:
            parent = torch.tensor([0, 0, 2]).repeat(4) + 3 * torch.arange(4).repeat_interleave(3)
            cache = tuple((key[parent], value[parent]) for key, value in cache)
        logits, cache = step(fed, cache, t)
        assert all(leaf.shape[:1] == (12,) for layer in cache for leaf in layer)
        stepped.append(logits.reshape(4, 3, -1))
        fed = written[:, :, t].reshape(-1)
    for row, history in enumerate(histories):
        for beam in range(3):
            past, _ = blocks_of([history], sids, 5)
            item = torch.cat((torch.zeros(1, dtype=torch.int64), written[row, beam]))
            with torch.no_grad():
                whole = network(torch.cat((past[:, : len(history)], item[None, None]), dim=1))[0, -1]
            got = torch.stack([logits[row, beam] for logits in stepped])
            torch.testing.assert_close(got, whole, atol=1e-5, rtol=1e-4)


def test_training_learns_a_rule_and_leaves_the_global_random_state_alone() -> None:
    """Every item is followed by the next one: a rule that a few steps suffice to learn."""
    catalogue = Catalogue(np.stack(np.divmod(np.arange(12), 4), axis=1), 4, np.arange(12), ("",) * 12)
    sequences = [np.arange(begin, begin + 6) % 12 for begin in range(12)]
    model = ModelConfig(width=32, layers=1, heads=2, history=5, dropout=0.0)
    state = torch.random.get_rng_state()
    network = train(catalogue, sequences, model, TrainingConfig(steps=150, batch=12, rate=1e-2), seed=0)
    assert torch.equal(state, torch.random.get_rng_state())
    rows = TestRows((np.array([3, 4]), np.array([9])), np.array([5, 10]))
    table = allowed_set(catalogue, np.arange(12), network.vocab_size)
    free, constrained = search_both(network, catalogue, rows, table, beams=4, batch=2)
    assert free.recall(catalogue.sids[rows.targets], 1) == 1.0
    assert constrained.recall(catalogue.sids[rows.targets], 1) == 1.0


def test_training_on_nothing_is_refused() -> None:
    catalogue = Catalogue(np.zeros((1, 2), dtype=np.int64), 4, np.arange(1), ("",))
    with pytest.raises(ValueError, match="nothing to train on"):
        train(catalogue, [np.array([0])], ModelConfig(), TrainingConfig(), seed=0)


# ------------------------------------------------------------------------------------------------ evaluation


def test_an_item_is_found_when_its_id_is_returned_and_empty_beams_find_nothing() -> None:
    sids = np.array([[[1, 2], [3, 4]], [[1, 2], [0, 0]]])
    returned = np.array([[True, True], [True, False]])
    found = Found(sids, returned, returned, np.zeros(1))
    targets = np.array([[3, 4], [0, 0]])
    assert found.recall(targets, 1) == 0.0
    assert found.recall(targets, 2) == 0.5


def test_with_fewer_allowed_ids_than_beams_each_comes_back_once() -> None:
    data = synthetic_dataset(WORLD, 0)
    network = Transformer(SMALL.model, levels=3, codes=16).eval()
    table = allowed_set(data.catalogue, np.arange(4), network.vocab_size)
    _, found = search_both(network, data.catalogue, data.test.take(np.arange(3)), table, beams=10, batch=2)
    allowed = np.unique(data.catalogue.sids[:4], axis=0)
    assert found.returned.sum(axis=1).tolist() == [len(allowed)] * 3
    assert (found.exists == found.returned).all()
    for row in range(3):
        assert (np.unique(found.sids[row][found.returned[row]], axis=0) == allowed).all()


@pytest.mark.parametrize("seed", [0, 1])
def test_run_returns_only_ids_that_exist_when_constrained_and_writes_its_report(tmp_path: Path, seed: int) -> None:
    lines: list[str] = []
    report = run(None, tmp_path / "new", seed, config=SMALL, progress=lines.append)
    assert report.next_item.constrained.share_valid == 1.0
    assert report.next_item.unconstrained.share_valid < 1.0
    assert report.next_item.constrained.recall_at_10 >= report.next_item.constrained.recall_at_1
    cold = report.cold_start[0].comparison
    assert cold is not None
    assert cold.constrained.share_valid == 1.0
    assert cold.random_at_1 == 1 / cold.ids
    assert any("training" in line for line in lines)
    living = report.living
    assert living is not None
    assert living.in_stock[1] == 1.0
    assert 0.3 < living.in_stock[0] < 0.7
    assert living.sold_out > 0
    assert (living.still_running, living.sold_out_after) == (1.0, 0)
    before, after, alone = living.recall_at_10
    assert before == 0.0
    assert alone >= after
    assert alone > 0.1  # ten of thirty items
    assert living.added == len(synthetic_dataset(WORLD, seed).catalogue.newest(0.1))

    written = json.loads((tmp_path / "new" / "demo.json").read_text(encoding="utf-8"))
    assert written["next_item"] == json.loads(json.dumps(dataclasses.asdict(report.next_item)))
    assert written["seed"] == seed
    assert (tmp_path / "new" / "demo.png").read_bytes().startswith(b"\x89PNG")
    console = Console(file=io.StringIO(), width=200)
    report.print(console)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "unconstrained" in shown
    assert "100.0%" in shown
    assert "the next searches return 0 of them" in shown


def test_a_share_whose_items_no_test_row_asks_for_is_reported_as_such(tmp_path: Path) -> None:
    data = _release(tmp_path, test=_csv(TEST[:1]))
    report = run(data, tmp_path / "out", 0, config=dataclasses.replace(SMALL, cold_shares=(0.2,)))
    assert report.cold_start[0].comparison is None
    assert report.living is None
    console = Console(file=io.StringIO(), width=200)
    report.print(console)
    assert isinstance(console.file, io.StringIO)
    assert "no test row" in console.file.getvalue()


def test_fewer_than_ten_beams_and_negative_seeds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 10"):
        DemoConfig(beams=5)
    with pytest.raises(ValueError, match="seed is -1"):
        run(None, tmp_path, -1, config=SMALL)


# ---------------------------------------------------------------------------------------------------- amazon

HISTORY = ["history_item_title", "item_title", "history_item_id", "item_id", "history_item_sid", "item_sid"]
COLUMNS = ["user_id", *HISTORY]
SIDS = ["<a_3><b_0>", "<a_3><b_1>", "<a_0><b_9>", "<a_3><b_1>", "<a_1><b_1>"]


def _line(user: str, history: list[int], target: int) -> list[str]:
    titles = [f"Item {item}, 1\u2033 wide" for item in history]
    sids = [SIDS[item] for item in history]
    return [user, str(titles), f"Item {target}", str(history), str(target), str(sids), SIDS[target]]


def _csv(lines: list[list[str]], header: list[str] = COLUMNS) -> str:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([header, *lines])
    return text.getvalue()


VALID = [_line("A1", [0, 1], 2), _line("A1", [0, 1, 2], 1), _line("A2", [4], 0)]
TEST = [_line("A1", [0, 1, 2, 1], 0), _line("A2", [4, 0], 2), _line("A3", [1], 2)]


def _release(directory: Path, **changed: str) -> Path:
    """Write a small release whose files are as given in `changed`, and return its directory."""
    index = {str(item): [token + ">" for token in sid.split(">")[:-1]] for item, sid in enumerate(SIDS)}
    texts = {
        "index/Pens.index.json": changed.get("index", json.dumps(index)),
        "info/Pens.txt": changed.get(
            "info", "".join(f"{sid}\tItem &quot;{item}&quot;\t{item}\n" for item, sid in enumerate(SIDS))
        ),
        "valid/Pens.csv": changed.get("valid", _csv(VALID)),
        "test/Pens.csv": changed.get("test", _csv(TEST)),
    }
    for name, text in texts.items():
        path = directory / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")
    return directory / "data"


def test_the_amazon_layout_is_read(tmp_path: Path) -> None:
    data = amazon_dataset(_release(tmp_path))
    assert data.name == "Amazon reviews, Pens"
    assert data.catalogue.sids.tolist() == [[3, 0], [3, 1], [0, 9], [3, 1], [1, 1]]
    assert data.catalogue.codes == 10
    assert data.catalogue.titles[2] == 'Item "2"'
    assert [items.tolist() for items in data.train] == [[0, 1, 2, 1], [4, 0]]
    assert [items.tolist() for items in data.test.histories] == [[0, 1, 2, 1], [4, 0], [1]]
    assert data.test.targets.tolist() == [0, 2, 2]


def test_items_age_in_the_order_in_which_they_are_first_asked_for(tmp_path: Path) -> None:
    """Item 2 is the next item of the first row; the others are in histories from the start, or nowhere."""
    assert amazon_dataset(_release(tmp_path)).catalogue.age.tolist() == [0, 1, 4, 2, 3]


def test_a_test_row_is_never_a_training_step(tmp_path: Path) -> None:
    leaking = _csv([*VALID, *TEST[:2], _line("A1", [0, 1, 2, 1, 0], 4)])
    data = amazon_dataset(_release(tmp_path, valid=leaking))
    assert [items.tolist() for items in data.train] == [[0, 1, 2, 1], [4, 0]]


def test_histories_that_were_cut_to_a_window_are_joined(tmp_path: Path) -> None:
    windows = _csv([_line("A9", [0, 1], 2), _line("A9", [1, 2], 4), _line("A9", [2, 4], 3), _line("A9", [0], 1)])
    data = amazon_dataset(_release(tmp_path, valid=windows))
    assert [items.tolist() for items in data.train] == [[0, 1, 2, 4, 3], [0, 1]]


BROKEN = _line("A1", [0], 1)
ERRORS = [
    ("index", "{", r"Pens\.index\.json: not a JSON file"),
    ("index", "[]", r"Pens\.index\.json: expected one object"),
    ("index", '{"1": ["<a_0>"]}', r"Pens\.index\.json: item 0 is missing"),
    ("index", '{"0": ["a0"]}', r"item 0: \['a0'\] is not a semantic ID"),
    ("index", '{"0": ["<b_0>"]}', r"item 0: \['<b_0>'\] is not a semantic ID"),
    ("index", '{"0": [7]}', r"item 0: \[7\] is not a semantic ID"),
    ("index", '{"0": ["<a_0>"], "1": ["<a_0>", "<b_0>"]}', r"item 1 has 2 tokens, item 0 has 1"),
    ("info", "<a_3><b_0>\tItem 0\t0\nno tabs\n", r"Pens\.txt, line 2: expected semantic ID, title and item"),
    ("info", "<a_3><b_0>\tItem 9\t9\n", r"Pens\.txt, line 1: item '9' is not in the index.* 0 to 4"),
    ("info", "<a_3><b_0>\tItem 1\t1\n", r"Pens\.txt, line 1: item 1 has ID <a_3><b_0> here.*same release"),
    ("valid", "", r"valid.Pens\.csv, line 1: no column user_id"),
    ("valid", _csv([], COLUMNS[:-1]), r"valid.Pens\.csv, line 1: no column item_sid"),
    ("valid", _csv([]), r"valid.Pens\.csv: there are no rows"),
    ("test", _csv([TEST[0], TEST[1][:-1]]), r"test.Pens\.csv, line 3: more or fewer fields"),
    ("test", _csv([[*TEST[0], "x"]]), r"test.Pens\.csv, line 2: more or fewer fields"),
    (
        "test",
        _csv([[*BROKEN[:3], "[5]", *BROKEN[4:]]]),
        r"test.Pens\.csv, line 2: item 5 is not in the index",
    ),
    ("test", _csv([[*BROKEN[:3], "[0", *BROKEN[4:]]]), r"line 2: history_item_id is '\[0'; expected a list"),
    (
        "test",
        _csv([[*BROKEN[:3], "open('x')", *BROKEN[4:]]]),
        r"history_item_id is \"open\('x'\)\"; expected",
    ),
    (
        "test",
        _csv([[*BROKEN[:3], "[0, 1]", *BROKEN[4:]]]),
        r"line 2: history_item_id lists 2, history_item_sid 1",
    ),
    ("test", _csv([[*BROKEN[:4], "one", *BROKEN[5:]]]), r"line 2: item 'one' is not in the index"),
    ("test", _csv([[*BROKEN[:4], "9" * 5000, *BROKEN[5:]]]), r"line 2: item '9+' is not in the index"),
    (
        "test",
        _csv([[*BROKEN[:6], "<a_9><b_9>"]]),
        r"line 2: item 1 has ID <a_9><b_9> here and codes \[3, 1\]",
    ),
    (
        "test",
        ",".join(COLUMNS) + '\r\nA1,"[',
        r"test.Pens\.csv, line 2: unexpected end of data; check the quotes",
    ),
]


@pytest.mark.parametrize(("file", "text", "message"), ERRORS)
def test_a_malformed_file_is_named_with_its_row(tmp_path: Path, file: str, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        amazon_dataset(_release(tmp_path, **{file: text}))


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    directory = _release(tmp_path)
    (directory / "info" / "Pens.txt").write_bytes(b"ok\n\xff")
    with pytest.raises(DataError, match=r"Pens\.txt: not UTF-8 text at byte 3"):
        amazon_dataset(directory)


def test_missing_and_ambiguous_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a directory"):
        amazon_dataset(tmp_path / "nowhere")
    directory = _release(tmp_path)
    (directory / "info" / "Ink.txt").write_text("")
    with pytest.raises(DataError, match=r"exactly one file \*\.txt, found Ink\.txt, Pens\.txt"):
        amazon_dataset(directory)
    for path in (directory / "info").iterdir():
        path.unlink()
    with pytest.raises(DataError, match=r"exactly one file \*\.txt, found none"):
        amazon_dataset(directory)
    (directory / "info").rmdir()
    with pytest.raises(DataError, match="info is missing"):
        amazon_dataset(directory)


@pytest.mark.skipif(not AMAZON.is_dir(), reason="the Amazon data is not next to the checkout")
def test_the_released_amazon_data_is_read() -> None:
    data = amazon_dataset(AMAZON)
    assert data.catalogue.sids.shape == (3459, 3)
    assert len(np.unique(data.catalogue.sids, axis=0)) == 3444
    assert len(data.test) == 4866
    assert sum(len(items) - 1 for items in data.train) > 9000
    cold = data.catalogue.newest(0.02)
    assert len(cold) == 69
    assert len(data.rows_with_target(cold)) > 100


# ------------------------------------------------------------------------------------------------- the server


def test_the_server_finds_what_the_demo_finds() -> None:
    dataset = synthetic_dataset(WORLD, 0)
    catalogue, rows = dataset.catalogue, dataset.test.take(np.arange(5))
    network = train(catalogue, dataset.train, SMALL.model, SMALL.training, 0).eval()
    table = allowed_set(catalogue, np.arange(len(catalogue.sids)), network.vocab_size)
    _, constrained = search_both(network, catalogue, rows, table, beams=10, batch=5)
    for row, history in enumerate(rows.histories):
        first, gone, again = calls(network, catalogue, history, 10)
        found = [tuple(item["sid"]) for item in first.answer["items"]]
        expected = [tuple(sid) for sid in constrained.sids[row].tolist()]
        assert list(dict.fromkeys(found)) == expected[: len(dict.fromkeys(found))]
        best = first.answer["items"][0]
        assert best["columns"]["title"] == catalogue.titles[best["id"]]
        assert gone.answer["deleted"] == 1
        assert best["id"] not in [item["id"] for item in again.answer["items"]]
        assert first.command.startswith("curl localhost:8000/v1/retrieve -H")


def test_the_network_has_the_same_logits_as_a_model_of_transformers() -> None:
    torch.manual_seed(0)
    network = Transformer(ModelConfig(width=32, layers=2, heads=2, history=5, dropout=0.0), levels=3, codes=7).eval()
    made = for_transformers(network, 3)
    blocks = torch.cat([torch.zeros(2, 4, 1, dtype=torch.int64), torch.randint(1, 8, (2, 4, 3))], dim=2)
    with torch.no_grad():
        expected = network(blocks)
        flat = (blocks + torch.arange(4) * 8).flatten(1)
        found = made(input_ids=flat).logits.view(2, 4, 4, 4, 8)
    for level in range(3):
        assert torch.allclose(found[:, :, level, level + 1], expected[:, :, level], atol=1e-5)
        assert torch.isinf(found[:, :, level, level]).all()
