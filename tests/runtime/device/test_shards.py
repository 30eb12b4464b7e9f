"""Beam search on a matrix in shards, on 8 simulated devices of JAX and in processes of torch: that of one device."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import maskwright as mw
from maskwright.runtime import decode
from maskwright.table.sharded_matrix import ShardedMatrix
from tests.strategies.datasets import write_files
from tests.support.eight_devices import EIGHT_DEVICES, errors_of, run

ROOT = Path(__file__).parents[3]

SETS = """
import json, os, sys
import numpy as np
import maskwright as mw
from pathlib import Path
from maskwright.runtime.decode import beam_search
from maskwright.table.sharded_matrix import ShardedMatrix
from tests.strategies.datasets import write_files

def keeps_of(sids):  # some items, those of one sequence, and none
    rng = np.random.default_rng(4)
    some = rng.random(len(sids)) < 0.2
    return [some, (sids == sids[0]).all(1), some & ~some]

def check_kept(tokens, valid, sids, keeps, of, beams):  # found is only what a filter keeps, and enough of it
    for at, number in enumerate(of):
        found = set(map(tuple, tokens[at][valid[at]].tolist()))
        kept = set(map(tuple, sids[keeps[number]].tolist()))
        assert found <= kept and len(found) == min(beams, len(kept)), (at, number)

def ids(kind):
    rng = np.random.default_rng(0)
    if kind == "skewed":  # with first rows kept, and depths at which many tokens may follow
        return np.minimum(rng.zipf(1.3, (6_000, 4)) - 1, 63), 64
    if kind == "heavy":  # most of all below one pair: some shards are empty
        below = np.concatenate([np.full((2000, 2), 5), rng.integers(0, 40, (2000, 2))], 1)
        return np.concatenate([below, rng.integers(0, 40, (60, 4))]), 40
    return rng.integers(0, 3000, (4000, 4)), 3000  # nothing branches from the third token on
"""

JAX = (
    SETS
    + """
import itertools, re
import jax, jax.numpy as jnp
from jax.sharding import Mesh
from maskwright.runtime import jax_ops as ops

wide = sys.argv[1] == "wide"
jax.config.update("jax_enable_x64", wide)
mesh = Mesh(np.array(jax.devices()).reshape(1, 8), ("model", "shards"))
for kind, beams in (("skewed", 60), ("heavy", 9), ("spread", 20)):
    sids, size = ids(kind)
    matrix = mw.sort_sids(sids, size)
    sharded = ShardedMatrix(matrix, 8)
    devs = [ops.to_device(matrix), ops.to_device(sharded, mesh=mesh, axis="shards")]
    others = []
    if kind != "spread":  # from files, which begin within a pair
        folder = Path(sys.argv[2]) / kind
        write_files(folder, matrix, [matrix.num_sequences * at // 9 for at in range(1, 9)])
        files = mw.Catalogue.open_shards(folder, 8)
        others = [ops.to_device(files, mesh=mesh, axis="shards")]
    weights = jnp.asarray(np.random.default_rng(1).normal(size=(97, size)).round(1), jnp.float32)  # with many ties

    def step(tokens, cache, t):
        return weights[(tokens * 31 + t) % 97], cache

    for renormalize in (False, True) if kind == "skewed" else (False,):
        found = [
            jax.jit(lambda dev: beam_search(step, None, dev, ops=ops, batch=2, beams=beams, max_tokens=matrix.length,
                                            renormalize=renormalize))(dev)
            for dev in [*devs, *others]
        ]
        one, all_of_them, *of_files = (jax.tree.map(np.asarray, each) for each in found)
        assert one.valid.any()
        for name in one._fields:
            a, b = getattr(one, name), getattr(all_of_them, name)
            assert np.array_equal(a[one.valid], b[one.valid]) and a.shape == b.shape, (kind, renormalize, name)
            assert all(np.array_equal(a[one.valid], getattr(each, name)[one.valid]) for each in of_files), name
        rows = matrix.find(all_of_them.tokens[one.valid])
        assert np.array_equal(rows, all_of_them.states[one.valid])

    # under filters: as one device does, what they keep and nothing else, and nothing is compiled again for others
    traced = []

    def filtered_search(dev):
        traced.append(dev)
        return beam_search(step, None, dev, ops=ops, batch=3, beams=beams, max_tokens=matrix.length)

    search, keeps = jax.jit(filtered_search), keeps_of(sids)
    for of in ([0, 1, 2], [1, 2, 0]):
        filters = [[matrix.filter(keep) for keep in keeps]] * 2
        if others:
            filters.append([files.filter(keep) for keep in keeps])
        one, *several = (
            jax.tree.map(np.asarray, search(ops.with_filters(dev, each, of)))
            for dev, each in zip([*devs, *others], filters, strict=True)
        )
        for name, other in itertools.product(one._fields, several):
            a, b = getattr(one, name), getattr(other, name)
            assert np.array_equal(a[one.valid], b[one.valid]), (kind, of, name)
        for other in several:
            check_kept(other.tokens, other.valid, sids, keeps, of, beams)
    assert len(traced) == 2 + len(others)  # once for one device, once for eight

# bytes that a step of 32 x 512 beams hands from device to device, out of what is compiled
sids = np.minimum(np.random.default_rng(0).zipf(1.3, (50_000, 4)) - 1, 2047)
sids[:, 3] %= 8  # few enough to be summed
matrix = mw.sort_sids(sids, 2048)
dev = ops.to_device(ShardedMatrix(matrix, 8), mesh=mesh, axis="shards")
B, M, V = 32, 512, 2048
kind = jnp.int64 if wide else jnp.int32
told = []
for filtered, level in itertools.product((False, True), range(matrix.length)):
    if filtered and level == 0:
        dev = ops.with_filters(dev, [matrix.filter(keep) for keep in keeps_of(sids)], np.arange(B) % 3)
    m = 1 if level == 0 else M
    shape = (8, B * m) if level > 2 else (B * m,)
    row, each = jax.ShapeDtypeStruct(shape, kind), jax.ShapeDtypeStruct((B * m,), kind)
    state = type(ops.start(dev, B))(row, row, *[each] * (2 if filtered else 1))
    given = jax.ShapeDtypeStruct((B * m, V), jnp.float32), state, jax.ShapeDtypeStruct((B, m), jnp.float32)
    text = jax.jit(ops.select, static_argnums=(4, 5)).lower(dev, *given, M, level).compile().as_text()
    size = count = 0
    for line in text.splitlines():
        made = re.search(r"= (.*?) (all-(reduce|gather|to-all)|collective-permute|reduce-scatter)(-start)?\\(", line)
        if made:
            count += 1
            for bits, dims in re.findall(r"[a-z]+([0-9]+)\\[([0-9,]*)\\]", made[1]):
                size += int(bits) // 8 * int(np.prod([int(d) for d in dims.split(",") if d]))
    told.append({"collectives": count, "share": size / (B * M * V * 4), "read": dev.part.read(level)})
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
for kind, beams in (("skewed", 60), ("heavy", 9), ("spread", 20)):
    sids, size = ids(kind)
    matrix = mw.sort_sids(sids, size)
    devs = ops.to_device(matrix), ops.to_device(ShardedMatrix(matrix, count), mesh=mesh, axis="shards")
    weights = torch.tensor(np.random.default_rng(1).normal(size=(97, size)), dtype=torch.float32)
    noise = torch.tensor(np.random.default_rng(2).normal(size=(5, 2 * beams, size)), dtype=torch.float32)

    def step(tokens, cache, t):  # no two beams have equal scores
        return weights[(tokens * 31 + t) % 97] + (noise[t] if t else noise[0, :1]), cache

    for renormalize in (False, True):
        one, both = (
            beam_search(step, None, dev, ops=ops, batch=2, beams=beams, max_tokens=matrix.length,
                        renormalize=renormalize)
            for dev in devs
        )
        assert one.valid.any()
        for a, b in zip(one, both):
            assert torch.equal(a[one.valid], b[one.valid]) and a.shape == b.shape, (kind, renormalize)
    keeps, of = keeps_of(sids), [2, 0, 1]
    filters = [matrix.filter(keep) for keep in keeps]
    noise = torch.tensor(np.random.default_rng(3).normal(size=(5, 3 * beams, size)), dtype=torch.float32)
    one, both = (
        beam_search(step, None, ops.with_filters(dev, filters, of), ops=ops, batch=3, beams=beams,
                    max_tokens=matrix.length)
        for dev in devs
    )
    for a, b in zip(one, both):
        assert torch.equal(a[one.valid], b[one.valid]) and a.shape == b.shape, kind
    check_kept(both.tokens, both.valid, sids, keeps, of, beams)
    if kind == "heavy":  # from files, which begin within a pair
        folder = Path(sys.argv[3]).parent / "files"
        if rank == 0:
            write_files(folder, matrix, [matrix.num_sequences * at // 7 for at in range(1, 7)])
        dist.barrier()
        files = mw.Catalogue.open_shards(folder, count)
        dev = ops.to_device(files, mesh=mesh, axis="shards")
        one, both = (
            beam_search(step, None, dev, ops=ops, batch=3, beams=beams, max_tokens=matrix.length)
            for dev in (devs[0], dev)
        )
        for a, b in zip(one, both):
            assert torch.equal(a[one.valid], b[one.valid]) and a.shape == b.shape
        of_files = [files.filter(keep) for keep in keeps]
        for of_matrix, of_files in ((filters, of_files), ([filters[0] & ~filters[1]], [of_files[0] & ~of_files[1]])):
            of = [2, 0, 1] if len(of_files) == 3 else [0, 0, 0]
            one, both = (
                beam_search(step, None, ops.with_filters(at, kept, of), ops=ops, batch=3, beams=beams,
                            max_tokens=matrix.length)
                for at, kept in ((devs[0], of_matrix), (dev, of_files))
            )
            assert one.valid.any()
            for a, b in zip(one, both):
                assert torch.equal(a[one.valid], b[one.valid]) and a.shape == b.shape
        again = mw.Catalogue.open_shards(folder, count)
        unread = ops.to_device(again, mesh=mesh, axis="shards")
        dist.barrier()
        if rank == 0:
            (folder / "shard-0.bin").unlink()
        dist.barrier()
        for call in (lambda: ops.to_device(files, mesh=mesh, axis="shards"),
                     lambda: ops.with_filters(unread, [again.filter(keeps[0])])):
            try:
                call()
            except mw.errors.TableFileError as error:  # in all processes, none of which waits for another
                assert "shard-0.bin is missing" in str(error), error
            else:
                raise AssertionError("a file that is missing was taken")
        ops.with_filters(dev, of_files)  # what was read once stays
dist.destroy_process_group()
os._exit(0)  # threads of gloo may still run, which abort a process that takes itself apart
"""
)


@pytest.mark.long
@pytest.mark.parametrize("bits", ["narrow", pytest.param("wide", marks=pytest.mark.slow)])
def test_eight_devices_search_as_one_does_and_hand_over_little(bits, tmp_path):
    pytest.importorskip("jax")
    process = run(JAX, bits, str(tmp_path), **EIGHT_DEVICES)
    with process:
        out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    levels = json.loads(out.splitlines()[-1])
    assert [level["collectives"] for level in levels] == [0, 0, 1, 2] * 2  # and at the end where each beam stands
    assert all(level["share"] <= 0.01 for level in levels)
    reads = [level["read"] for level in levels]
    assert min(reads[2:4]) <= 16 < max(reads[2:4])  # both ways of choosing are there


@pytest.mark.long
@pytest.mark.parametrize("count", [3, *(pytest.param(count, marks=pytest.mark.slow) for count in (2, 4))])
def test_processes_search_as_one_does(count, tmp_path):
    pytest.importorskip("torch")
    begun = [run(TORCH, str(rank), str(count), str(tmp_path / "meet")) for rank in range(count)]
    failed = [errors for errors in map(errors_of, begun) if errors]
    assert not failed, failed[0]


def test_a_shard_begins_where_a_pair_does():
    rng = np.random.default_rng(0)
    matrix = mw.sort_sids(np.minimum(rng.zipf(1.5, (20_000, 4)) - 1, 30), 31)
    for count in (1, 2, 7):
        sharded = ShardedMatrix(matrix, count)
        assert sharded.starts[0] == 0
        assert sharded.starts[-1] == matrix.num_sequences
        pairs = [tuple(row) for row in matrix.sids[:, :2].tolist()]
        owners = [set(pairs[low:high]) for low, high in zip(sharded.starts[:-1], sharded.starts[1:], strict=True)]
        assert sum(map(len, owners)) == len(set(pairs)) == sharded.head.num_sequences
        heaviest = max(pairs.count(pair) for pair in set(pairs))
        assert max(sharded.sizes) <= matrix.num_sequences / count + heaviest


def test_wrong_calls_are_refused_by_name():
    jax = pytest.importorskip("jax")
    pytest.importorskip("torch")
    from maskwright.runtime import jax_ops, torch_ops

    matrix = mw.sort_sids(np.random.default_rng(0).integers(0, 9, (50, 3)), 9)
    for shards in (0, True, 1.5):
        with pytest.raises(mw.errors.ConstraintError, match="shards must be an integer, 1 or more"):
            ShardedMatrix(matrix, shards)
    with pytest.raises(mw.errors.ConstraintError, match="sequences of 2 tokens have no shards"):
        ShardedMatrix(mw.sort_sids([[1, 2]], 3), 1)
    with pytest.raises(TypeError, match="shards are of a SortedMatrix, not of a ndarray"):
        ShardedMatrix(matrix.sids, 2)
    mesh = jax.make_mesh((1,), ("shards",))
    sharded = ShardedMatrix(matrix, 2)
    for ops in (jax_ops, torch_ops):
        with pytest.raises(TypeError, match="pass mesh= and axis="):
            ops.to_device(sharded)
        with pytest.raises(TypeError, match=r"mesh and axis are for .* or a Snapshot, not for a SortedMatrix"):
            ops.to_device(matrix, mesh=mesh)
    with pytest.raises(ValueError, match=r"axis='shards' must be an axis of 2 devices, the mesh has {'shards': 1}"):
        jax_ops.to_device(sharded, mesh=mesh, axis="shards")
    given = {"device": "cpu", "distances": True, "on_demand": True, "platform": "cpu"}
    for ops in (jax_ops, torch_ops):
        for name, value in given.items():
            if name != "platform" or ops is jax_ops:
                with pytest.raises(
                    TypeError, match=f"a ShardedMatrix on a mesh takes mesh= and axis= alone, not {name}="
                ):
                    ops.to_device(sharded, mesh=mesh, axis="shards", **{name: value})


@contextmanager
def on_one_device(library, tmp_path, sharded):
    """Yield the operations of a library, a matrix on a mesh of one device, a function for arrays, and what draws."""
    if library == "jax":
        jax = pytest.importorskip("jax")
        from maskwright.runtime import jax_ops

        dev = jax_ops.to_device(sharded, mesh=jax.make_mesh((1,), ("shards",)), axis="shards")
        yield jax_ops, dev, jax.numpy.asarray, jax.random.key(0)
        return
    torch = pytest.importorskip("torch")
    from torch.distributed.device_mesh import init_device_mesh

    from maskwright.runtime import torch_ops

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("shards",))
        yield torch_ops, torch_ops.to_device(sharded, mesh=mesh, axis="shards"), torch.as_tensor, torch.Generator()
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("library", ["jax", "torch"])
def test_other_operations_are_refused_by_name(library, tmp_path):
    matrix = mw.sort_sids(np.random.default_rng(0).integers(0, 9, (50, 3)), 9)
    with on_one_device(library, tmp_path, ShardedMatrix(matrix, 1)) as (ops, dev, array, random):
        x, state = array(np.zeros((1, 9), np.float32)), ops.start(dev, 1)
        tokens = array(np.zeros((1, 3), np.int32))
        calls = {
            "mask_logits": lambda: ops.mask_logits(dev, x, state),
            "log_probs": lambda: ops.log_probs(dev, array(np.zeros((1, 3, 9), np.float32)), tokens),
            "mask_logits|bitmask": lambda: decode.sample(dev, x, state, random, ops=ops),
            "mask_logits|bitmask|allowed_tokens": lambda: decode.sample_sequences(
                lambda tokens, cache, t: (x, cache), None, dev, random, ops=ops, batch=1, samples=1, max_tokens=3
            ),
        }
        for name, call in calls.items():
            with pytest.raises(ValueError, match=f"^({name}) does not take a matrix in shards: beam_search does"):
                call()


@pytest.mark.parametrize("library", ["jax", "torch"])
def test_filters_that_are_of_something_else_are_refused_by_name(library, tmp_path):
    matrix, other = (mw.sort_sids(np.random.default_rng(seed).integers(0, 9, (50, 3)), 9) for seed in (0, 1))
    keep, sharded = np.ones(50, bool), ShardedMatrix(matrix, 1)
    with on_one_device(library, tmp_path, sharded) as (ops, dev, array, _):
        with pytest.raises(TypeError, match=r"filters must be SidFilters, as filter\(\) makes them, not ndarray"):
            ops.with_filters(dev, [keep])
        with pytest.raises(ValueError, match="filters is empty"):
            ops.with_filters(dev, [])
        with pytest.raises(
            mw.errors.ConstraintError, match="a filter is of another matrix than the one on these devices"
        ):
            ops.with_filters(dev, [other.filter(keep)])
        kept = matrix.filter(keep)
        with pytest.raises(ValueError, match="of must be numbers of the 1 filters"):
            ops.with_filters(dev, [kept], of=[1])
        x, scores = array(np.zeros((1, 9), np.float32)), array(np.zeros((1, 1), np.float32))
        with pytest.raises(ValueError, match="the state is of the matrix with other filters or none"):
            ops.select(ops.with_filters(dev, [kept]), x, ops.start(dev, 1), scores, 2, 0)


@pytest.mark.parametrize("library", ["jax", "torch"])
def test_filters_that_are_not_of_these_files_are_refused_by_name(library, tmp_path):
    matrix = mw.sort_sids(np.random.default_rng(0).integers(0, 9, (50, 3)), 9)
    write_files(tmp_path / "files", matrix, [20])
    files, other = (mw.Catalogue.open_shards(tmp_path / "files", 1) for _ in range(2))
    keep = np.ones(50, bool)
    with on_one_device(library, tmp_path, files) as (ops, dev, _, _):
        with pytest.raises(TypeError, match=r"must be FilesFilters, as filter\(\) makes them of ShardedFiles, not Si"):
            ops.with_filters(dev, [matrix.filter(keep)])
        with pytest.raises(mw.errors.ConstraintError, match="a filter is of other files than those on these devices"):
            ops.with_filters(dev, [other.filter(keep)])
        with pytest.raises(ValueError, match="filters is empty"):
            ops.with_filters(dev, [])
        with pytest.raises(ValueError, match="of must be numbers of the 1 filters"):
            ops.with_filters(dev, [files.filter(keep)], of=[1])
        with pytest.raises(TypeError, match=r"filters must be SidFilters, as filter\(\) makes them, not FilesFilter"):
            ops.with_filters(ops.to_device(matrix), [files.filter(keep)])


@pytest.mark.parametrize("wide", [False, True])
def test_places_that_overflow_are_refused_by_name(wide):
    jax = pytest.importorskip("jax")
    from maskwright.runtime import jax_ops

    size, beams = 1 << 16, 1 << 15  # 2^31 continuations
    rng = np.random.default_rng(0)
    matrix = mw.sort_sids(np.concatenate([np.zeros((50, 2), int), rng.integers(0, size, (50, 2))], 1), size)

    def reached(beams):
        mesh = jax.make_mesh((1,), ("shards",))
        dev = jax_ops.to_device(ShardedMatrix(matrix, 1), mesh=mesh, axis="shards")
        row = jax.ShapeDtypeStruct((beams,), jax.numpy.arange(0).dtype)
        state = type(jax_ops.start(dev, 1))(row, row, row)
        logits, scores = (jax.ShapeDtypeStruct(shape, np.float32) for shape in ((beams, size), (1, beams)))
        found = jax.eval_shape(lambda *given: jax_ops.select(dev, *given, beams, 2), logits, state, scores)
        return found.tokens.shape

    with jax.enable_x64(wide):
        assert reached(beams - 1) == (1, beams - 1)
        if wide:
            assert reached(beams) == (1, beams)
            return
        with pytest.raises(
            ValueError, match=r"have 2,147,483,648 continuations, .* in its 32-bit mode: set jax_enable"
        ):
            reached(beams)
