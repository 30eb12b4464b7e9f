"""Writes to an arena's arrays on a CUDA device, in order with what any of its streams reads of them.

A write waits for all that was queued before in streams that read the arrays, replays of CUDA graphs among it, and they
wait for the write. A stream may queue a read between the two: it is not in order with the write, and need not be. Its
thread holds a handle, and a write only touches room that no handle has: a handle's reads are queued before it is
dropped, and its table is written before `add` returns it.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .arrays import signed

_APART = 64  # bytes at whose multiples values begin, so that any type may be read there
_SPARE = 4  # buffers kept for later writes


class StreamOrder:
    """Which streams of a device read arrays, and the event behind which the last write to them is done."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._streams: dict[int, Any] = {}  # by the number that CUDA knows each by
        self._written: Any = None

    def join(self) -> bool:
        """Have the current stream wait for the last write, and later writes for it; return whether it is a new one.

        A stream that is being captured does not join: graphs are replayed in others.
        """
        stream = torch.cuda.current_stream(self._device)
        if stream.cuda_stream in self._streams or _is_capturing(stream):
            return False
        self._streams[stream.cuda_stream] = stream
        if self._written is not None:
            stream.wait_event(self._written)
        return True

    def begin(self) -> None:
        """Have the current stream, in which arrays are then written, wait for all that reads them.

        Raises RuntimeError while a stream that reads them is being captured: the graph would repeat the write.
        """
        self.join()
        own = torch.cuda.current_stream(self._device)
        if any(map(_is_capturing, (own, *self._others(own)))):
            raise RuntimeError(
                "a CUDA graph is being captured in a stream that reads this arena, and would write the table at each "
                "replay: add the table before the capture or after it"
            )
        for stream in self._others(own):
            event = cast(Any, torch.cuda.Event)()
            event.record(stream)
            own.wait_event(event)

    def end(self) -> Any:
        """Have all streams wait for what the current one was given since `begin`; return the event behind it."""
        own = torch.cuda.current_stream(self._device)
        self._written = cast(Any, torch.cuda.Event)()
        self._written.record(own)
        for stream in self._others(own):
            stream.wait_event(self._written)
        return self._written

    def _others(self, own: Any) -> list[Any]:
        return [stream for number, stream in self._streams.items() if number != own.cuda_stream]


def _is_capturing(stream: Any) -> bool:
    with torch.cuda.stream(stream):
        return torch.cuda.is_current_stream_capturing()


class Staging:
    """Pinned buffers of the host: copies from them need not be waited for. None is reused before its copies are done.

    Pageable memory would have the host wait until the device has read it.
    """

    def __init__(self) -> None:
        self._used: list[tuple[Any, Tensor]] = []  # with the event behind the copies from each
        self._free: list[Tensor] = []

    def pack(self, arrays: list[NDArray[Any]]) -> tuple[Tensor, list[Tensor]]:
        """Return a buffer that holds arrays, and each as a tensor in it: hand the buffer back to `done`."""
        arrays = [np.ascontiguousarray(signed(np.ascontiguousarray(array))) for array in arrays]
        starts = np.cumsum([0, *(-(-array.nbytes // _APART) * _APART for array in arrays)])
        buffer = self._take(int(starts[-1]))
        parts = []
        for start, array in zip(starts, arrays, strict=False):
            source = torch.from_numpy(array)
            part = buffer[start : start + array.nbytes].view(source.dtype).view(source.shape)
            parts.append(part.copy_(source))
        return buffer, parts

    def done(self, buffer: Tensor, event: Any) -> None:
        """Take back a buffer, to be used again once an event is done."""
        self._used.append((event, buffer))

    def _take(self, size: int) -> Tensor:
        waiting = []
        for event, buffer in self._used:
            if event.query():
                self._free.append(buffer)
            else:
                waiting.append((event, buffer))
        self._used = waiting
        self._free.sort(key=Tensor.numel)
        fitting = next((i for i, buffer in enumerate(self._free) if buffer.numel() >= size), None)
        found = None if fitting is None else self._free.pop(fitting)
        del self._free[: max(0, len(self._free) - _SPARE)]  # the smallest
        return pinned(1 << max(size - 1, 4095).bit_length()) if found is None else found


def pinned(size: int) -> Tensor:
    """Return so many bytes of pinned memory."""
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)
