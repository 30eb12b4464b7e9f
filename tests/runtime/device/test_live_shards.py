"""Beam search on a live set in shards, on 8 simulated devices of JAX and in processes of torch: as on one device."""

from __future__ import annotations

import json

import numpy as np
import pytest

import maskwright as mw
from maskwright.table.live_sids import LiveSids
from tests.support.eight_devices import EIGHT_DEVICES, errors_of, run

SETS = """
import itertools, json, re, sys
import numpy as np
import maskwright as mw
from maskwright.runtime.decode import beam_search
from maskwright.table.live_sids import LiveSids

def ids(kind):  # skewed, and most below one pair, so that some shards have no rows
    rng = np.random.default_rng(0)
    if kind == "skewed":
        return np.unique(np.minimum(rng.zipf(1.4, (3_000, 4)) - 1, 47), axis=0), 48
    below = np.concatenate([np.full((900, 2), 5), rng.integers(0, 40, (900, 2))], 1)
    return np.unique(np.concatenate([below, rng.integers(0, 40, (30, 4))]), axis=0), 40

def rounds(kind, live, sids, size):  # what changes between searches, and the set of what there is then: the oracle
    rng, present = np.random.default_rng(1), set(map(tuple, sids.tolist()))
    yield present
    gone = [row for row in sids.tolist() if tuple(row[:2]) == tuple(sids[0, :2])]  # all of a pair, and some of others
    gone += [row for row in sids[rng.random(len(sids)) < 0.3].tolist() if row not in gone]
    new = [[0, size - 1, 0, 0], [size - 1, size - 1, 3, 1], [size - 1, size - 1, 3, 2], [*sids[0, :2], size - 1, 0],
           [*sids[len(sids) // 2, :3], size - 1]]
    new = [row for row in new if tuple(row) not in present]
    live.delete(gone)
    live.insert(new)
    present = (present - set(map(tuple, gone))) | set(map(tuple, new))
    yield present
    live.insert(gone[:1])
    live.delete(new[:1])
    yield (present | {tuple(gone[0])}) - {tuple(new[0])}
    live.compact()  # the new base has room in the shapes that are
    yield (present | {tuple(gone[0])}) - {tuple(new[0])}

def check(beams, present, of, filters, count):
    for at in range(len(beams.valid)):
        found = set(map(tuple, beams.tokens[at][beams.valid[at]].tolist()))
        allowed = {row for row in present if not filters or filters[of[at]].contains([row])[0]}
        assert found <= allowed and len(found) == min(count, len(allowed)), at
"""

JAX = (
    SETS
    + """
import jax, jax.numpy as jnp
from jax.sharding import Mesh
from maskwright.runtime import jax_ops as ops

mesh = Mesh(np.array(jax.devices()), ("shards",))
same = ("tokens", "scores", "states", "valid")
for kind in ("heavy",):  # some shards have no rows, and first rows are kept
    sids, size = ids(kind)
    live = LiveSids(mw.sort_sids(sids, size), capacity=64)
    noise = jnp.asarray(np.random.default_rng(2).normal(size=(5, 3 * 20, size)), jnp.float32)
    traced = []

    def search(dev):
        traced.append(dev)
        step = lambda tokens, cache, t: (noise[t], cache)
        return beam_search(step, None, dev, ops=ops, batch=3, beams=20, max_tokens=4)

    search, devs, kept, before = jax.jit(search), None, 0, None
    for present in rounds(kind, live, sids, size):
        snapshot = live.publish()
        if devs is None:
            devs = ops.to_device(snapshot), ops.to_device(snapshot, mesh=mesh, axis="shards")
        else:
            devs = tuple(ops.with_snapshot(dev, snapshot) for dev in devs)
        filters = [snapshot.filter(snapshot.sids[:, 3] % 3 == 0), snapshot.filter(np.zeros(len(present), bool))]
        for given in ([], filters) if sys.argv[1] == "both" else (filters,):
            used = [ops.with_filters(dev, filters, [0, 1, 0]) if given else dev for dev in devs]
            one, several = (jax.tree.map(np.asarray, search(dev)) for dev in used)
            for name in same:
                a, b = getattr(one, name), getattr(several, name)
                assert np.array_equal(a[one.valid], b[one.valid]) and a.shape == b.shape, (kind, name, bool(given))
            check(several, present, [0, 1, 0], given, 20)
            valid = several.valid[0]
            assert (snapshot.sequences(several.states[0][valid]) == several.tokens[0][valid]).all()
        if before is None:
            before = used[1], several
    again = jax.tree.map(np.asarray, search(before[0]))  # what a search began with it keeps
    assert all(np.array_equal(getattr(again, name), getattr(before[1], name)) for name in same)
    assert len(traced) == (4 if sys.argv[1] == "both" else 2)  # one device and eight, with filters and without

# bytes that a step of 32 x 512 beams hands from device to device, out of what is compiled
sids = np.unique(np.minimum(np.random.default_rng(0).zipf(1.3, (50_000, 4)) - 1, 2047), axis=0)
dev = ops.to_device(LiveSids(mw.sort_sids(sids, 2048), capacity=64).publish(), mesh=mesh, axis="shards")
B, M, V = 32, 512, 2048
told = []
for level in range(4):
    m = 1 if level == 0 else M
    row, alike = (jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((8, B * m), (B * m,)))
    own = row if level > 2 else alike
    state = type(ops.start(dev, 1))(own, own, alike, own, own, alike)
    given = jax.ShapeDtypeStruct((B * m, V), jnp.float32), state, jax.ShapeDtypeStruct((B, m), jnp.float32)
    text = jax.jit(ops.select, static_argnums=(4, 5)).lower(dev, *given, M, level).compile().as_text()
    names = "(?:all-(?:reduce|gather|to-all)|collective-permute|reduce-scatter)(?:-start)?"
    found = re.findall(f"= (.*?) {names}[(]", text)
    size = sum(
        int(bits) // 8 * int(np.prod([int(d) for d in dims.split(",") if d]))
        for made in found for bits, dims in re.findall(r"[a-z]+([0-9]+)\\[([0-9,]*)\\]", made)
    )
    told.append({"collectives": len(found), "share": size / (B * M * V * 4)})
print(json.dumps(told))
"""
)

TORCH = (
    SETS
    + """
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from maskwright.runtime import torch_ops as ops

rank, count = int(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[3]}", rank=rank, world_size=count)
mesh = init_device_mesh("cpu", (count,), mesh_dim_names=("shards",))
for kind in ("skewed", "heavy"):
    sids, size = ids(kind)
    live, devs = LiveSids(mw.sort_sids(sids, size), capacity=64), None
    noise = torch.tensor(np.random.default_rng(2).normal(size=(5, 3 * 40, size)))  # of 64 bits: no two are equal
    for present in rounds(kind, live, sids, size):
        snapshot = live.publish()
        if devs is None:
            devs = ops.to_device(snapshot), ops.to_device(snapshot, mesh=mesh, axis="shards")
        else:
            devs = tuple(ops.with_snapshot(dev, snapshot) for dev in devs)
        filters = [snapshot.filter(snapshot.sids[:, 3] % 3 == 0), snapshot.filter(np.zeros(len(present), bool))]
        for given in ([], filters):
            one, several = (
                beam_search(lambda tokens, cache, t: (noise[t], cache), None,
                            ops.with_filters(dev, filters, [0, 1, 0]) if given else dev, ops=ops, batch=3, beams=40,
                            max_tokens=4)
                for dev in devs
            )
            for a, b in zip(one, several):
                assert torch.equal(a[one.valid], b[one.valid]) and a.shape == b.shape, (kind, bool(given))
            check(several, present, [0, 1, 0], given, 40)
dist.destroy_process_group()
"""
)


@pytest.mark.long
@pytest.mark.parametrize("given", ["filters", pytest.param("both", marks=pytest.mark.slow)])
def test_eight_devices_search_a_live_set_as_one_does_and_hand_over_little(given):
    pytest.importorskip("jax")
    process = run(JAX, given, **EIGHT_DEVICES)
    with process:
        out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    levels = json.loads(out.splitlines()[-1])
    assert [level["collectives"] for level in levels] == [0, 0, 1, 2]  # and at the end where each beam stands
    assert all(level["share"] <= 0.01 for level in levels)


@pytest.mark.long
def test_processes_search_a_live_set_as_one_does(tmp_path):
    pytest.importorskip("torch")
    begun = [run(TORCH, str(rank), "3", str(tmp_path / "meet")) for rank in range(3)]
    failed = [errors for errors in map(errors_of, begun) if errors]
    assert not failed, failed[0]


def test_wrong_calls_are_refused_by_name():
    jax = pytest.importorskip("jax")
    from maskwright.runtime import jax_ops as ops

    mesh = jax.make_mesh((1,), ("shards",))
    matrix = mw.sort_sids(np.random.default_rng(0).integers(0, 9, (50, 3)), 9)
    live = LiveSids(matrix, capacity=8)
    snapshot = live.publish()
    with pytest.raises(ValueError, match=r"axis='other' must be an axis of the mesh, which has {'shards': 1}"):
        ops.to_device(snapshot, mesh=mesh, axis="other")
    with pytest.raises(TypeError, match="with both mesh= and axis="):
        ops.to_device(snapshot, mesh=mesh)
    with pytest.raises(TypeError, match="a Snapshot on a mesh takes mesh= and axis= alone, not device="):
        ops.to_device(snapshot, jax.devices()[0], mesh=mesh, axis="shards")
    dev = ops.to_device(snapshot, mesh=mesh, axis="shards")
    with pytest.raises(ValueError, match="mask_logits does not take a matrix in shards"):
        ops.mask_logits(dev, jax.numpy.zeros((1, 9)), ops.start(dev, 1))
    with pytest.raises(ValueError, match="filters is empty"):
        ops.with_filters(dev, [])
    with pytest.raises(TypeError, match=r"must be LiveFilters, as Snapshot\.filter makes them, not SidFilter"):
        ops.with_filters(dev, [matrix.filter(np.ones(matrix.num_items, bool))])
    later = live.publish()
    with pytest.raises(
        mw.errors.ConstraintError, match="a filter is of snapshot 2, and on these devices is snapshot 1"
    ):
        ops.with_filters(dev, [later.filter(np.ones(later.num_sequences, bool))])
