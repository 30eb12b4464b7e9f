"""Writes to an arena on CUDA come after what streams read before and before what they read later. No GPU is needed.

Streams and events are stand-ins that keep which work is done before which, as CUDA orders it.
"""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

import maskwright as mw
from tests.support.nested_schemas import SMALL

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402, only where torch is

from maskwright.runtime import torch_ops  # noqa: E402, only where torch is
from maskwright.runtime.arena.device_arrays import device_arrays  # noqa: E402, only where torch is
from maskwright.runtime.device.torch import ordering  # noqa: E402, only where torch is
from maskwright.runtime.device.torch import table as torch_table  # noqa: E402, only where torch is


class Stream:
    """A stream, and the work that is done before what it is given next."""

    def __init__(self, number):
        self.cuda_stream, self.before, self.capturing = number, set(), False

    def wait_event(self, event):
        self.before |= event.before


class Device:
    """A device without work of its own: what is done in its streams is a name."""

    def __init__(self):
        self.current, self.events, self.work = Stream(0), [], {}
        device = self

        class Event:
            def __init__(self):
                self.before, self.finished = None, False
                device.events.append(self)

            def record(self, stream):
                assert not stream.capturing
                self.before = set(stream.before)

            def query(self):
                return self.finished

        self.event = Event

    @contextlib.contextmanager
    def stream(self, stream):
        self.current, before = stream, self.current
        try:
            yield
        finally:
            self.current = before

    def do(self, name):
        """Queue work in the current stream, and keep what is done before it."""
        self.work[name] = frozenset(self.current.before)
        self.current.before.add(name)


class Copies(TorchDispatchMode):
    """Queues each copy that is not waited for as work of the device."""

    def __init__(self, device):
        super().__init__()
        self.device, self.sources = device, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.copy_.default and len(args) == 3 and args[2]:
            self.sources.append(args[1].untyped_storage().data_ptr())
            self.device.do(f"copy {len(self.sources)}")
        return func(*args, **(kwargs or {}))

    def made(self, since=0):
        return {f"copy {i + 1}" for i in range(since, len(self.sources))}


@pytest.fixture
def device(monkeypatch):
    made = Device()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: made.current)
    monkeypatch.setattr(torch.cuda, "stream", made.stream)
    monkeypatch.setattr(torch.cuda, "Event", made.event)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: made.current.capturing)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)
    monkeypatch.setattr(ordering, "pinned", lambda size: torch.full((size,), 0xAB, dtype=torch.uint8))
    monkeypatch.setattr(torch_table, "TensorMirror", torch_table.CudaMirror)
    return made


@pytest.fixture(scope="module")
def vocab():
    return mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256))], eos=0)


@pytest.fixture(scope="module")
def tables(vocab):
    return [mw.compile_regex(f"[a-z]{{1,{n}}}{n}", vocab).to_table() for n in range(2, 8)]


@pytest.mark.parametrize("budgets", [False, True])
def test_what_is_written_is_what_the_host_has(device, vocab, tables, budgets):
    arena = mw.Arena(vocab, SMALL, distances=budgets)
    torch_ops.to_device(arena, "cpu")
    handles = [arena.add(table) for table in tables]
    arena.drop(handles[0])
    mirror = arena.mirrors["torch", torch.device("cpu")]
    for name, wanted in device_arrays(arena.held).items():
        np.testing.assert_array_equal(mirror.tensors[name].numpy(), ordering.signed(wanted), err_msg=name)


def test_writes_are_in_order_with_all_streams_that_read(device, vocab, tables):
    arena = mw.Arena(vocab, SMALL)
    torch_ops.to_device(arena, "cpu")
    other, third = Stream(1), Stream(2)
    with Copies(device) as copies:
        first = arena.add(tables[0])
        device.do("read 0")
        with device.stream(other):
            torch_ops.to_device(arena, "cpu")
            device.do("read 1")  # as a graph's replay is
        assert device.work["read 0"] >= copies.made()
        assert device.work["read 1"] >= copies.made()
        assert "read 0" not in device.work["read 1"]  # reads do not wait for one another
        before = len(copies.sources)
        with device.stream(third):
            arena.add(tables[1])
            device.do("read 2")
        written = copies.made(before)
        assert written
        assert all(device.work[copy] >= {"read 0", "read 1"} for copy in written)
        device.do("read 3")
        with device.stream(other):
            device.do("read 4")
        assert device.work["read 3"] >= written
        assert device.work["read 4"] >= written
        before = len(copies.sources)
        arena.drop(first)
        arena.add(tables[2])
        assert all(device.work[copy] >= {"read 2", "read 3", "read 4"} for copy in copies.made(before))


def test_a_stream_that_comes_later_waits_for_the_last_write(device, vocab, tables):
    arena = mw.Arena(vocab, SMALL)
    torch_ops.to_device(arena, "cpu")
    with Copies(device) as copies:
        arena.add(tables[0])
        with device.stream(Stream(1)):
            arena.add(tables[0])  # which is there: nothing is written
            device.do("read")
    assert copies.made()
    assert device.work["read"] >= copies.made()


def test_buffers_wait_for_their_copies(device, vocab, tables):
    arena = mw.Arena(vocab, SMALL)
    torch_ops.to_device(arena, "cpu")
    used = []
    with Copies(device) as copies:
        for i, table in enumerate(tables[:5]):
            before = len(copies.sources)
            arena.add(table)
            (own,) = set(copies.sources[before:])  # one buffer for each write
            used.append(own)
            if i == 2:
                for event in device.events:
                    event.finished = True
    assert len(set(used[:3])) == 3
    assert set(used[3:]) < set(used[:3])
    assert used[3] != used[4]


def test_nothing_is_written_while_a_graph_is_captured(device, vocab, tables):
    arena = mw.Arena(vocab, SMALL)
    torch_ops.to_device(arena, "cpu")
    other = Stream(1)
    with device.stream(other):
        torch_ops.to_device(arena, "cpu")
    other.capturing = True
    with pytest.raises(RuntimeError, match="captured"):
        arena.add(tables[0])
    assert arena.stored.tables == 0
    other.capturing = False
    handle = arena.add(tables[0])
    dev = torch_ops.with_start_states(torch_ops.to_device(arena, "cpu"), [handle])
    assert bool(torch_ops.bitmask(dev, torch_ops.start(dev, 1)).any())
