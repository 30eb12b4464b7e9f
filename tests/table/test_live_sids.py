"""Live sets: against Counters of Python, and in every operation and decoder against tables of what is in the set."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest

import maskwright as mw
from maskwright.errors import TableFileError
from maskwright.runtime import numpy_ops
from maskwright.runtime.decode import beam_search, sample_sequences
from maskwright.runtime.device import live_cursor
from maskwright.table import live_base, live_sids, update_log
from maskwright.table.live_sids import LiveSids
from tests.marks import marked
from tests.strategies.item_sets import KINDS, Changing, some_logits, walked
from tests.support.backends import ALL, backend, out


@pytest.mark.parametrize("kind", KINDS)
def test_a_set_has_the_items_that_were_inserted_and_not_deleted(kind):
    c = Changing(kind)
    asked = np.concatenate([c.base.sids.astype(np.int64), c.draw(300)])
    seen = []
    for step in range(40):
        c.update()
        if step % 15 == 14:
            c.live.compact()
            assert c.live.num_delta == 0
        snapshot = c.live.publish()
        seen.append((snapshot, set(c.items)))
        assert snapshot.epoch == step + 1
        assert snapshot.num_sequences == len(c.items)
    for snapshot, items in seen:  # the old ones as they were
        assert snapshot.contains(asked).tolist() == [row in items for row in map(tuple, asked.tolist())]
        assert snapshot.contains([*items]).all()
    assert not snapshot.contains([[-1] * c.length, [c.vocab] * c.length]).any()


def test_one_of_two_items_with_a_sequence_may_go_and_no_more_than_there_are():
    live = LiveSids(mw.sort_sids([[1, 1], [1, 1], [2, 2]], 3), capacity=8)
    live.insert([[0, 1], [0, 1]])
    for row in ([1, 1], [0, 1]):
        live.delete([row])
        assert live.publish().contains([row]).all()
        with pytest.raises(mw.errors.ConstraintError, match=r"not as many items \[., 1\] to delete: none was removed"):
            live.delete([[2, 2], row, row])
        assert live.publish().contains([row, [2, 2]]).all()
        live.delete([row])
        assert not live.publish().contains([row]).any()
    live.insert([[1, 1]])
    assert live.publish().contains([[1, 1]]).all()
    assert live.num_delta == 0


def test_a_full_delta_names_compaction_and_takes_nothing():
    live = LiveSids(mw.sort_sids([[1, 1, 1]], 9), capacity=4, widths=(4, 4, 3))
    live.insert([[0, 0, i] for i in range(3)])
    for rows, message in (
        ([[2, 0, 0], [3, 0, 0]], "the delta is full: it has 3 of 4 sequences"),
        ([[0, 0, 8]], "full at depth 2: a prefix would have more than 3 of its"),
    ):
        with pytest.raises(mw.errors.ConstraintError, match=message) as found:
            live.insert(rows)
        assert "compact()" in str(found.value.remedies[0])
        assert live.num_delta == 3
    live.compact()
    live.insert([[2, 0, 0], [3, 0, 0], [0, 0, 8]])
    assert live.publish().num_sequences == 7


def test_what_are_no_items_of_the_set_is_refused():
    live = LiveSids(mw.sort_sids([[1, 1]], 3))
    for rows, message in (
        ([1, 1], r"sids must be integers \(N, 2\)"),
        ([[0.5, 1]], r"sids must be integers \(N, 2\), not float64"),
        ([[1, 1], [0, 3]], r"row 1 has a token outside 0 \.\. 2: \[0, 3\]"),
        ([[-1, 0]], "row 0 has a token outside"),
    ):
        for change in (live.insert, live.delete):
            with pytest.raises(mw.errors.ConstraintError, match=message):
                change(rows)
    live.insert([])
    with pytest.raises(TypeError, match="must be a SortedMatrix"):
        LiveSids(mw.compile_sids([[1]], 2))
    with pytest.raises(ValueError, match="positive number of sequences"):
        LiveSids(live.base, capacity=0)
    with pytest.raises(ValueError, match="widths must be 2 positive numbers"):
        LiveSids(live.base, widths=(3,))


@pytest.mark.parametrize(  # compiling takes JAX seconds
    ("name", "kind"),
    marked([(n, k) for n in ALL for k in KINDS if n != "jax" or k == "skewed"], slow=[("jax", "skewed")]),
)
def test_operations_agree_with_the_table_of_what_is_in_the_set(name, kind):
    c, (ops, into) = Changing(kind, 1), backend(name)
    dev = ops.to_device(c.live.publish())
    states = 24
    logits = some_logits(states, c.vocab, 2)
    width = max(level.width for level in dev.levels)

    def all_of(dev: Any, logits: Any, state: Any, tokens: Any) -> Any:
        return (
            ops.mask_logits(dev, logits, state), ops.bitmask(dev, state), ops.allowed_tokens(dev, state, width),
            ops.accepting(dev, state), ops.log_mass(dev, logits, state), ops.candidates(dev, logits, state, 3),
            ops.advance(dev, state, tokens), ops.accepting(dev, state) if name == "numpy" else ops.distance(dev, state),
        )  # fmt: skip

    if name == "jax":
        import jax

        all_of = jax.jit(all_of)
    for _ in range(3):
        for _ in range(4):
            c.update(30)
        dev, table = ops.with_snapshot(dev, c.live.publish()), c.table()
        known = np.array(list(c.items))
        depths = c.rng.integers(0, c.length + 1, states)
        rows = np.concatenate([known[c.rng.integers(0, len(known), 16)], c.draw(states - 16)])
        tokens = c.draw(states)[:, 0]
        state = walked(ops, dev, rows, depths, into)
        masked, bits, (listed, are), accepting, mass, best, after, far = all_of(dev, into(logits), state, into(tokens))
        for i in range(states):
            node = table.walk(rows[i : i + 1, : depths[i]]) if depths[i] else np.zeros(1, np.int64)
            wanted = numpy_ops.bitmask(table, numpy_ops.State(node))
            np.testing.assert_array_equal(out(bits)[i].view(np.uint32), wanted[0])
            allowed = np.flatnonzero(np.unpackbits(wanted.view(np.uint8), bitorder="little"))
            np.testing.assert_array_equal(np.flatnonzero(out(masked)[i] > -np.inf), allowed)
            if depths[i] >= dev.base.masked:
                np.testing.assert_array_equal(out(listed)[i][out(are)[i]], allowed)
            assert bool(out(accepting)[i]) == bool(numpy_ops.accepting(table, numpy_ops.State(node))[0])
            expected = numpy_ops.candidates(table, logits[i : i + 1], numpy_ops.State(node), 3)
            np.testing.assert_array_equal(out(best.tokens)[i], expected.tokens[0])
            np.testing.assert_allclose(out(best.scores)[i], expected.scores[0], rtol=1e-4, atol=1e-5)
            total = numpy_ops.log_mass(table, logits[i : i + 1], numpy_ops.State(node))[0]
            np.testing.assert_allclose(out(mass)[i], total, rtol=1e-4, atol=1e-5)
            assert (out(after.node)[i] == dev.dead) == (tokens[i] not in allowed)
            assert name == "numpy" or node[0] == table.dead or out(far)[i] == c.length - depths[i]
        if name != "jax":
            asked = np.concatenate([known, c.draw(50)])
            found = out(ops.contains(dev, into(asked)))
            np.testing.assert_array_equal(found, c.live.publish().contains(asked))


@pytest.mark.parametrize(("kind", "pairs"), [*((kind, live_cursor.PAIRS) for kind in KINDS), ("few tokens", 1 << 20)])
@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_searches_keep_their_snapshot_while_the_set_changes(name, kind, pairs, monkeypatch):
    """pairs: so many that tokens of base and delta are compared, where few tokens would be marked, too."""
    monkeypatch.setattr(live_cursor, "PAIRS", pairs)
    c, (ops, into) = Changing(kind, 2), backend(name)
    dev = ops.to_device(c.live.publish())
    weights = some_logits(c.length, c.vocab, 3)

    def with_updates(tokens: Any, cache: Any, t: int) -> Any:
        c.update()
        if t == 1:
            c.live.compact()
        c.live.publish()
        return into(weights[np.full(len(tokens), t)]), cache

    def plain(tokens: Any, cache: Any, t: int) -> Any:
        return weights[np.full(len(tokens), t)], cache

    for _ in range(6):
        snapshot = c.live.publish()
        dev, table, items = ops.with_snapshot(dev, snapshot), c.table(), set(c.items)
        options = {"batch": 2, "max_tokens": c.length}
        found = beam_search(with_updates, None, dev, ops=ops, beams=7, **options)
        wanted = beam_search(plain, None, table, ops=numpy_ops, beams=7, **options)
        np.testing.assert_array_equal(out(found.tokens), wanted.tokens)
        np.testing.assert_allclose(out(found.scores), wanted.scores, rtol=1e-4, atol=1e-4)
        valid = wanted.valid[0]
        np.testing.assert_array_equal(
            snapshot.sequences(out(found.states)[0][valid]), wanted.tokens[0][valid].astype(np.int64)
        )
        random: Any = np.random.default_rng(0)
        if name == "torch":
            import torch

            random = torch.Generator().manual_seed(0)
        drawn = sample_sequences(with_updates, None, dev, random, ops=ops, samples=5, **options)
        assert out(drawn.valid).all()
        assert {tuple(row) for row in out(drawn.tokens).reshape(-1, c.length).tolist()} <= items


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_an_empty_set_allows_nothing_and_takes_items_again(name):
    ops, _ = backend(name)
    live = LiveSids(mw.sort_sids([[1, 1], [2, 2]], 3), capacity=4)
    live.delete([[1, 1], [2, 2]])
    assert [each.shape for each in live.items()] == [(0, 2), (0,)]
    live.compact()
    dev = ops.to_device(live.publish())
    assert not out(ops.bitmask(dev, ops.start(dev, 2))).any()
    live.insert([[0, 2]])
    dev = ops.with_snapshot(dev, live.publish())
    assert out(ops.bitmask(dev, ops.start(dev, 1))).tolist() == [[1]]


def test_the_logits_processor_takes_a_snapshot_beside_other_constraints():
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from maskwright.runtime.integrations.transformers import ConstraintLogitsProcessor

    c = Changing("few tokens", 7)
    for _ in range(5):
        c.update()
    snapshot, eos = c.live.publish(), c.vocab
    tables = [snapshot, c.base, c.base.filter(np.arange(c.base.num_items) % 2 == 0)]
    processor = ConstraintLogitsProcessor(tables, eos_token_ids=eos)
    ids = torch.zeros(9, 1, dtype=torch.int64)
    generator = torch.Generator().manual_seed(0)
    for _ in range(c.length):
        scores = processor(ids, torch.randn(9, c.vocab + 1, generator=generator))
        ids = torch.cat([ids, scores.argmax(-1, keepdim=True)], 1)
    assert (processor(ids, torch.zeros(9, c.vocab + 1)).argmax(-1) == eos).all()
    for row, tokens in enumerate(ids[:, 1:]):
        assert tables[row // 3].contains(tokens[None]).all()
    c.live.delete(list(c.items.elements()))
    with pytest.raises(mw.errors.ConstraintError, match="the live set of table 0 is empty"):
        ConstraintLogitsProcessor(c.live.publish(), eos_token_ids=eos)


def test_nothing_is_compiled_again_for_updates_and_compaction():
    jax = pytest.importorskip("jax")
    from maskwright.runtime import jax_ops

    c = Changing("skewed", 3)
    traces = []

    @jax.jit
    def masked(dev: Any, logits: Any) -> Any:
        traces.append(1)
        return jax_ops.mask_logits(dev, logits, jax_ops.start(dev, 1))

    dev, logits = jax_ops.to_device(c.live.publish()), some_logits(1, c.vocab)
    for step in range(9):
        c.update()
        if step % 3 == 2:
            c.live.compact()
        dev = jax_ops.with_snapshot(dev, c.live.publish())
        allowed = np.flatnonzero(np.asarray(masked(dev, logits))[0] > -np.inf).tolist()
        assert allowed == sorted({row[0] for row in c.items})
    assert len(traces) == 1


def test_updates_go_on_while_base_and_delta_are_joined(monkeypatch):
    c = Changing("skewed", 4)
    joining, go_on = threading.Event(), threading.Event()
    made = live_base.LiveBase.of

    def slow(*given: Any) -> Any:
        joining.set()
        assert go_on.wait(10)
        return made(*given)

    c.update()
    monkeypatch.setattr(live_base.LiveBase, "of", slow)
    thread = threading.Thread(target=c.live.compact)
    thread.start()
    assert joining.wait(10)
    for _ in range(5):
        c.update()
        assert c.live.publish().num_sequences == len(c.items)
    go_on.set()
    thread.join(10)
    assert c.live.base is not c.base
    snapshot = c.live.publish()
    assert snapshot.num_sequences == len(c.items)
    assert snapshot.contains([*c.items]).all()


def test_a_compaction_whose_delta_cannot_take_what_came_meanwhile_changes_nothing(monkeypatch):
    base = mw.sort_sids([[i, i] for i in range(20)], 32)
    live = LiveSids(base, 4, widths=(4, 4))
    live.insert([[25, 25]])
    live.delete([[i, i] for i in range(10)])
    joined = live_sids.join

    def meanwhile(*given: Any) -> Any:
        found = joined(*given)
        live.insert([[i, i] for i in range(10)])  # the new base has none of them, and the delta has room for four
        return found

    monkeypatch.setattr(live_sids, "join", meanwhile)
    with pytest.raises(mw.errors.ConstraintError, match="the delta has room for 4"):
        live.compact()
    monkeypatch.undo()
    assert live.publish().contains([*base.sids, [25, 25]]).all()
    live.delete([[3, 3]])
    live.compact()
    snapshot = live.publish()
    assert (snapshot.num_sequences, snapshot.contains([[3, 3], [4, 4]]).tolist()) == (20, [False, True])
    assert snapshot.sequences([-1, 1 << 40]).tolist() == [[-1, -1]] * 2


def test_a_log_goes_on_over_compactions_and_knows_how_many_items_its_base_has(tmp_path):
    base = mw.sort_sids([[1, 1], [1, 1], [2, 2]], 32)
    live = LiveSids(base, 4, widths=(4, 4), log=tmp_path / "log")
    for first in (10, 20):
        live.insert([[first + i, 0] for i in range(4)])
        live.compact()
    live.close()
    assert LiveSids(base, 4, widths=(4, 4), log=tmp_path / "log").publish().num_sequences == 10
    with pytest.raises(TableFileError, match="a log of another base"):
        LiveSids(mw.sort_sids([[1, 1], [2, 2]], 32), 4, log=tmp_path / "log")


def test_a_log_holds_every_update_that_was_acknowledged_and_none_by_half(tmp_path):
    path = tmp_path / "log"
    c = Changing("few tokens", 5, log=path)
    states = [(path.stat().st_size, Counter(c.items))]
    for _ in range(3):
        add = c.draw(2)
        c.live.insert(add)
        c.items.update(map(tuple, add.tolist()))
        states.append((path.stat().st_size, Counter(c.items)))
        gone = next(iter(c.items))
        c.live.delete([gone])
        c.items = +(c.items - Counter([gone]))
        states.append((path.stat().st_size, Counter(c.items)))
    data = path.read_bytes()
    copy = tmp_path / "copy"
    for size in range(len(data) + 1):
        copy.write_bytes(data[:size])
        again = LiveSids(c.base, 300, widths=(300,) * 4, log=copy)
        wanted = [items for end, items in states if end <= size] or [states[0][1]]
        snapshot = again.publish()
        assert snapshot.num_sequences == len(wanted[-1])
        assert snapshot.contains([*wanted[-1]]).all()
        again.close()
    again = LiveSids(c.base, 300, widths=(300,) * 4, log=copy)
    again.insert([[0, 0, 0, 0]])  # what comes after is written behind the last whole update
    again.close()
    assert LiveSids(c.base, 300, widths=(300,) * 4, log=copy).publish().contains([[0, 0, 0, 0]]).all()
    damaged = bytearray(data)
    damaged[states[2][0] + 12] ^= 1
    copy.write_bytes(damaged)
    with pytest.raises(TableFileError, match=f"damaged at byte {states[2][0]}"):
        LiveSids(c.base, 300, widths=(300,) * 4, log=copy)
    assert copy.read_bytes() == damaged  # nothing is cut away
    damaged = bytearray(data)
    damaged[-1] ^= 1
    copy.write_bytes(damaged)
    assert LiveSids(c.base, 300, widths=(300,) * 4, log=copy).publish().num_sequences == len(states[-2][1])
    other = mw.sort_sids([[1, 2, 3, 4]], 5)
    c.live.close()
    with pytest.raises(TableFileError, match="a log of another base"):
        LiveSids(other, log=path)
    copy.write_bytes(b"something else")
    with pytest.raises(TableFileError, match="no log of a live set"):
        LiveSids(other, log=copy)


def test_an_update_that_cannot_be_written_is_not_made(tmp_path, monkeypatch):
    c = Changing("few tokens", 6, log=tmp_path / "log")
    size = (tmp_path / "log").stat().st_size
    write = update_log.os.pwrite

    def full(handle: int, data: bytes, at: int) -> int:
        write(handle, data[:5], at)
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(update_log.os, "pwrite", full)
    with pytest.raises(OSError, match="no space left"):
        c.live.insert([[1, 2, 3, 4]])
    assert c.live.publish().num_sequences == len(c.items)
    assert (tmp_path / "log").stat().st_size == size


def test_a_prefix_never_has_more_rows_of_a_delta_than_a_step_reads():
    rng = np.random.default_rng(8)
    for widths in ((400, 400, 9, 4), (400, 90, 20, 2), (120, 40, 40, 40)):
        live, rows = LiveSids(mw.sort_sids([[9, 9, 9, 9]], 10), capacity=400, widths=widths), set()
        refused = 0
        for _ in range(150):
            new = rng.integers(0, 5, (int(rng.integers(1, 6)), 4))
            grown = rows | set(map(tuple, new.tolist()))
            fits = all(
                max(Counter(row[:depth] for row in grown).values()) <= width for depth, width in enumerate(widths)
            )
            if fits:
                live.insert(new)
                rows = grown
            else:
                with pytest.raises(mw.errors.ConstraintError, match="full"):
                    live.insert(new)
                refused += 1
            assert live.num_delta == len(rows)
        assert refused
        assert live.publish().contains([*rows]).all()


def test_torch_traces_nothing_again_for_updates_filters_and_compaction():
    torch = pytest.importorskip("torch")
    from maskwright.runtime import torch_ops

    c = Changing("skewed", 9)
    traced = []

    def count(graph: Any, _: Any) -> Any:
        traced.append(1)
        return graph.forward

    @torch.compile(backend=count, fullgraph=True, dynamic=False)
    def masked(dev: Any, logits: Any) -> Any:
        return torch_ops.mask_logits(dev, logits, torch_ops.start(dev, 2))

    logits = torch.zeros(2, c.vocab)
    dev, plain = torch_ops.to_device(c.live.publish()), torch_ops.to_device(c.base)
    for step in range(4):
        c.update()
        if step == 2:
            c.live.compact()
        dev = torch_ops.with_snapshot(dev, c.live.publish())
        allowed = np.flatnonzero(masked(dev, logits)[0].numpy() > -np.inf).tolist()
        assert allowed == sorted({row[0] for row in c.items})
    assert len(traced) == 1
    for seed in range(3):
        keep = np.random.default_rng(seed).random((2, c.base.num_items)) < 0.1
        masked(torch_ops.with_filters(plain, [c.base.filter(each) for each in keep]), logits)
    assert len(traced) == 2


def test_a_base_is_not_written_over_its_log(tmp_path):
    log = tmp_path / "log"
    live = LiveSids(mw.sort_sids([[3, 1], [3, 0]], 8), 10, log=log)
    live.insert([[2, 2]])
    (tmp_path / "link").symlink_to(log)
    for path in (log, tmp_path / "." / "log", tmp_path / "link"):
        with pytest.raises(mw.errors.ConstraintError, match="base and log are two files") as caught:
            live.compact(save=path)
        assert caught.value.argument == "save"
    live.close()
    with pytest.raises(mw.errors.ConstraintError, match="base and log are two files"):
        LiveSids.load(log, log=log)
    assert LiveSids(mw.sort_sids([[3, 1], [3, 0]], 8), 10, log=log).publish().contains([[2, 2]]).all()


def test_a_log_is_opened_with_less_room_than_its_updates_had(tmp_path):
    base, log = mw.sort_sids([[3, 1], [3, 0]], 8), tmp_path / "log"
    live = LiveSids(base, 10, log=log)
    live.insert([[2, i] for i in range(5)])
    live.delete([[2, 3], [3, 1]])
    live.close()
    again = LiveSids(base, 3, log=log)
    assert again.items()[0].tolist() == [[2, 0], [2, 1], [2, 2], [2, 4], [3, 0]]
    with pytest.raises(mw.errors.ConstraintError, match=r"has 5 new sequences, and the delta has room for 3") as caught:
        again.insert([[1, i] for i in range(5)])
    assert "compact" not in str(caught.value)


def test_what_refreshes_a_device_is_a_snapshot_of_its_live_set():
    live = LiveSids(mw.sort_sids([[3, 1], [3, 0]], 8), 10)
    snapshot = live.publish()
    dev = numpy_ops.to_device(snapshot)
    for wrong in (live, live.base, snapshot.filter([True, False])):
        with pytest.raises(TypeError, match="snapshot must be a Snapshot"):
            numpy_ops.with_snapshot(dev, wrong)
    with pytest.raises(mw.errors.ConstraintError, match="it is of another live set"):
        numpy_ops.with_snapshot(dev, LiveSids(mw.sort_sids([[3, 1, 1]], 8), 10).publish())
