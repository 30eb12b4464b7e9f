"""What PyTorch operations ask of a GPU stays within limits, and the limits follow what they ask for."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from torch._subclasses.fake_tensor import (  # noqa: E402
    DataDependentOutputException,
    DynamicOutputShapeException,
)

from tests.runtime.device import launches  # noqa: E402

AGAIN = "python -m tests.runtime.device.launches --write"
SLACK = 0.9  # of a limit: what falls below makes the limit worthless


@pytest.mark.parametrize(("name", "kind"), launches.PAIRS, ids=lambda each: each)
def test_an_operation_launches_and_moves_no_more_than_its_limits(name, kind):
    found, limit = launches.measure(name, kind), launches.limits()[f"{name}: {kind}"]
    assert found.reads == 0, "the host waits for the GPU"
    for what, count in (("launches", found.launches), ("bytes", found.bytes)):
        assert count <= limit[what], f"{count:,} {what}, the limit is {limit[what]:,}"
        assert count >= SLACK * limit[what], f"{count:,} {what}, the limit is {limit[what]:,}: lower it by `{AGAIN}`"


def test_every_operation_on_tables_has_limits():
    ops = launches.ops
    found = {name for name in ops.__all__ if name.islower()} - {"arrays"}  # which take no table
    assert found == {name.split(",")[0] for name in launches.CASES} | launches.ON_THE_HOST
    assert launches.limits().keys() == {f"{name}: {kind}" for name, kind in launches.PAIRS}


def counted(function, *shapes):
    with launches.mode(), launches.pretending():
        given = [launches.numbers(*shape) for shape in shapes]
        with launches.counting() as counter:
            function(*given)
    return launches.Counts(counter.launches.total(), counter.bytes, counter.reads.total())


def test_views_launch_nothing():
    assert counted(lambda x: x.view(2, 6)[:, None].expand(2, 3, 6)[..., 0].transpose(0, 1), (3, 4)) == (0, 0, 0)


def test_a_sum_reads_both_and_writes_one():
    assert counted(lambda x, y: x + y, (3, 4), (3, 4)) == (1, 3 * 12 * 8, 0)


def test_a_gather_reads_what_it_fetches():
    assert counted(lambda x, at: x[at], (1000,), (5,)) == (1, 3 * 5 * 8, 0)
    assert counted(lambda x, at: x.index_select(0, at), (1000, 2), (5,)) == (1, 5 * 8 + 2 * 10 * 8, 0)


def test_a_sum_in_place_is_not_copied_to_itself():
    def run(x, y):
        x[:, :2] += y

    assert counted(run, (3, 4), (3, 2)) == (1, 3 * 6 * 8, 0)


def test_a_tensor_that_moves_to_the_host_is_read():
    assert counted(lambda x: x.cpu(), (3,)).reads == 1


@pytest.mark.parametrize("read", [lambda x: x.sum().item(), torch.ops.aten.nonzero.default])
def test_values_that_decide_something_are_read(read):
    with launches.mode(), launches.pretending():
        x = launches.numbers(3)
        with (
            launches.counting() as counter,
            pytest.raises((DataDependentOutputException, DynamicOutputShapeException)),
        ):
            read(x)
    assert counter.reads.total() == 1


def test_kernels_of_triton_are_counted_and_none_runs():
    from maskwright.runtime.device.torch.gpu import apply

    with launches.mode(), launches.pretending():
        masks, x = launches.numbers(2, 4, kind=torch.int32), launches.numbers(2, 128, kind=torch.float32)
        with launches.counting() as counter:
            apply.apply(masks, x, x)
    assert dict(counter.launches) == {"apply_masks": 1}
    assert counter.bytes == 2 * 4 * 4 + 2 * 128 * 4
