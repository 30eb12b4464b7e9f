"""Functions of tensors alone: the primitives of `backend.Backend` in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..backend import Cache, Offer, Random
from ..device_table import map_tree
from . import compat
from .memory import SAME_SIZE, is_writable, noted, takes_logits, write_lowest

_BLOCK = 64  # scores per block maximum in `top_k`; 32 and 128 measured slower
_FEW = 1024  # scores that are sorted sooner than made into whole numbers


def signed(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array in a signed type, as unsigned ones lack kernels; `unsigned` undoes it."""
    wide = array.dtype.kind == "u" and array.dtype.itemsize > 1
    return array.view(f"i{array.dtype.itemsize}") if wide else array


def keep_bits(x: Tensor, mask: Tensor) -> Tensor:
    """Return x (n, V) with -inf where mask (n, V) is 0.

    On CPU this works on bits: `torch.where` mispredicts a branch per element there and takes 0.9 ms for 140 x 2048
    where this takes 0.08. It passes no derivative on, so `where` stays for tensors that want one.
    """
    if x.device.type != "cpu" or compat.wants_derivative(x) or x.dtype not in SAME_SIZE:
        return torch.where(mask.bool(), x, -torch.inf)
    kind = SAME_SIZE[x.dtype]
    lowest = torch.full((), -torch.inf, dtype=x.dtype).view(kind)
    return (x.resolve_neg().view(kind) ^ lowest).bitwise_and_(mask).bitwise_xor_(lowest).view(x.dtype)


def log_softmax(logits: Tensor) -> Tensor:
    """Return log-probabilities (B, V) over all columns; NaN throughout a row that has no distribution."""
    return torch.log_softmax(widen(logits), dim=-1)


def widen(logits: Tensor) -> Tensor:
    """Return logits in at least 32 bits."""
    return logits if logits.dtype == torch.float64 else logits.float()


def softmax_of(logits: Tensor, read: Callable[[Tensor, bool], Offer]) -> Offer:
    """Return what is read of log-probabilities (n, V); NaN in a row of logits that has no distribution."""
    return read(log_softmax(logits), True)


def is_floating(x: Tensor) -> bool:
    """Return whether a tensor is of floating-point numbers that have -inf: of 16 bits or more."""
    return x.is_floating_point() and x.element_size() > 1


def is_integral(x: Tensor) -> bool:
    """Return whether a tensor is of whole numbers."""
    return not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)


def top_k(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest of each row (B, n) and where they stand, largest first; -inf fills up where k > n.

    Of equal scores the first one counts as larger. Exact, in two passes for wide rows: the k blocks with the largest
    maxima hold k of the largest scores, so only those are looked into.
    """
    batch, n = scores.shape
    if k > n:
        scores = torch.nn.functional.pad(scores, (0, k - n), value=-torch.inf)
    elif n >= 4 * k * _BLOCK:
        if n % _BLOCK:
            scores = torch.nn.functional.pad(scores, (0, _BLOCK - n % _BLOCK), value=-torch.inf)
        blocks = scores.view(batch, -1, _BLOCK)
        _, block = _first_largest(blocks.amax(dim=-1) + 0.0, k)
        inside = blocks.gather(1, block[:, :, None].expand(-1, -1, _BLOCK)).view(batch, -1)
        return _first_largest(inside + 0.0, k, _places_in(block))
    best, at = _first_largest(scores + 0.0, k)  # the sum makes one zero of two
    return best, at if k <= n else at.clamp(max=n - 1)


def top_of_beams(x: Tensor, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest of x (B, m, w) + scores (B, m) and where they stand in (B, m * w); NaN counts as -inf.

    As `top_k` does, but a beam's score is added to its blocks' maxima and to the blocks looked into, not to all of x:
    rounding keeps the order, so the result is the same. NaN fills whole rows of x.
    """
    batch, m, width = x.shape
    low = -torch.inf
    if width % _BLOCK or m * width < 4 * k * _BLOCK:
        totals = (x + scores[:, :, None]).nan_to_num_(nan=low, posinf=torch.inf, neginf=low)
        return top_k(totals.view(batch, -1), k)
    blocks = x.view(batch, -1, _BLOCK)
    highest = (blocks.amax(dim=-1).view(batch, m, -1) + scores[:, :, None]).view(batch, -1)
    _, block = _first_largest(highest.nan_to_num_(nan=low, posinf=torch.inf, neginf=low), k)
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, _BLOCK))
    inside = inside + scores.gather(1, block // (width // _BLOCK))[:, :, None]
    inside = inside.nan_to_num_(nan=low, posinf=torch.inf, neginf=low).view(batch, -1)
    return _first_largest(inside, k, _places_in(block))


def _places_in(block: Tensor) -> Tensor:
    """Return where all of some blocks (B, k) stand (B, k * _BLOCK)."""
    inside = torch.arange(_BLOCK, device=block.device)
    return torch.add(inside, block[:, :, None], alpha=_BLOCK).view(block.shape[0], -1)


def _first_largest(scores: Tensor, k: int, places: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the k largest of each row (B, n) and their places (B, n), or where they stand; of equals the first places.

    `torch.topk` promises nothing for equal scores. The whole numbers that it is given here are all different: the upper
    half is the rank of the score, the lower half its place. Few scores are sorted, which is one operation.
    """
    if scores.dtype != torch.float32 or scores.numel() <= _FEW:  # 64 bits leave no room for a place beside a score
        if places is not None:
            places, order = places.sort(dim=1)
            scores = scores.gather(1, order)
        best, at = scores.sort(dim=1, descending=True, stable=True)
        best, at = best[:, :k].contiguous(), at[:, :k].contiguous()
        return best, at if places is None else places.gather(1, at)
    bits = (scores.detach() if compat.wants_derivative(scores) else scores).view(torch.int32)
    rank = (bits >> 31).bitwise_and_(0x7FFFFFFF).bitwise_xor_(bits)  # in the order of scores
    numbers = torch.arange(scores.shape[1], device=scores.device) if places is None else places
    least, at = torch.add(numbers, rank, alpha=-(1 << 32)).topk(k, largest=False)
    return scores.gather(1, at), at if places is None else least & 0xFFFFFFFF


def take(array: Tensor, index: Tensor) -> Tensor:
    """Return array (B, n) gathered at index (B, k) along the second axis."""
    return array.gather(1, index)


def gather(cache: Cache, index: Tensor) -> Any:
    """Return a tree of tensors gathered at index (n,) along each tensor's first axis."""

    def regather(leaf: Any) -> Tensor:
        if not isinstance(leaf, Tensor):
            raise TypeError(
                f"the cache holds a {type(leaf).__name__}: it must be a tree of tensors with the beams first, "
                "or pass gather= to regather it yourself"
            )
        return leaf.index_select(0, index)

    return map_tree(regather, cache)


def zeros(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return zeros on the device and of the type of `like`, in at least 32 bits."""
    return like.new_zeros(
        shape, dtype=torch.promote_types(like.dtype, torch.float32) if like.is_floating_point() else None
    )


def arange(n: int, like: Tensor) -> Tensor:
    """Return 0 .. n - 1, of the type and on the device of `like`."""
    return torch.arange(n, dtype=like.dtype, device=like.device)


def uniform(random: Random, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return random numbers in [0, 1) of the type of `like`, from a torch.Generator on its device.

    random None: from torch's default generator, the only one that `torch.compile` takes.
    """
    if random is not None and not isinstance(random, torch.Generator):
        raise TypeError(
            "random must be a torch.Generator, as torch.Generator(device).manual_seed(seed) is one, or None for "
            f"torch's default one, not a {type(random).__name__}"
        )
    return torch.rand(shape, generator=random, dtype=like.dtype, device=like.device)


def split(random: Random) -> tuple[Any, Any]:
    """Return what to draw from now and what to draw from later: of torch one generator, which goes on."""
    return random, random


def logsumexp(x: Tensor) -> Tensor:
    """Return the logarithm of each row's sum of exponentials (B,); not finite for a row without a distribution."""
    return torch.logsumexp(x, dim=-1)


def lookup(array: Tensor, index: Tensor) -> Tensor:
    """Return array (n,) at indices of any shape."""
    return array.take(index)


def integers(x: Tensor, like: Tensor) -> Tensor:
    """Return whole numbers in the type of `like`; what is too large for that, or too small, is as far out as may be."""
    if x.element_size() > like.element_size():
        bounds = torch.iinfo(like.dtype)
        x = x.clamp(bounds.min, bounds.max)
    return x.to(like.dtype)


def search(ascending: Tensor, query: Tensor) -> Tensor:
    """Return how many of ascending numbers (n,) are below each of query."""
    return torch.searchsorted(ascending, query)


def lowest(x: Tensor) -> Tensor:
    """Return -inf in the shape and type of an array."""
    return torch.full_like(x, -torch.inf, memory_format=torch.contiguous_format)


def scatter(array: Tensor, index: Tensor, value: Tensor | int) -> Tensor:
    """Return array (B, n), which may be written to, with a value, or values (B, k), at index (B, k)."""
    return array.scatter_(1, index, value)


def keep(x: Tensor, mask: Tensor, size: int) -> Tensor:
    """Return x (B, n) with -inf where mask (B, >= size) is 0, and from column `size` on; a mask is 0 or -1."""
    mask = mask[:, :size]
    if x.dtype in (torch.float16, torch.bfloat16):
        mask = mask.to(torch.int16)
    if x.shape[1] == size:
        return keep_bits(x, mask)
    padding = x.new_full((x.shape[0], x.shape[1] - size), -torch.inf)
    return torch.cat([keep_bits(x[:, :size], mask), padding], dim=1)


def pack(mask: Tensor) -> Tensor:
    """Return a mask (B, n) of 0 and -1 as bits: int32 (B, ceil(n / 32))."""
    words = -(-mask.shape[1] // 32)
    bits = torch.nn.functional.pad(mask, (0, -mask.shape[1] % 32)).view(mask.shape[0], words, 32) & 1
    shifts = torch.arange(32, dtype=torch.int32, device=mask.device)
    return (bits << shifts).sum(dim=-1, dtype=torch.int32)


def words(x: Tensor) -> Tensor:
    """Return bytes (B, 4 n) as words of a packed mask (B, n)."""
    return x.view(torch.int32)


def unpack(words: Tensor, size: int) -> Tensor:
    """Return which of `size` bits are set in words (B, ceil(size / 32)): bool (B, size)."""
    shifts = torch.arange(32, dtype=torch.int32, device=words.device)
    return ((words[:, :, None] >> shifts) & 1).view(words.shape[0], -1)[:, :size].bool()


def keep_packed(x: Tensor, words: Tensor, size: int, in_place: bool = False) -> Tensor:
    """Return x (B, n) with -inf where no bit is set in words (B, ceil(size / 32)), and from column `size` on.

    in_place: write to x itself.
    """
    if takes_logits(x):
        from .gpu import apply  # Triton is slow to import

        if in_place:
            return noted(apply.apply(words, x, x))
        return apply.apply(words, x, torch.empty_like(x, memory_format=torch.contiguous_format))
    if compat.is_plain(words) and words.device.type == "cpu" and is_writable(x):
        masks = np.ascontiguousarray(words.numpy()).view(np.uint32)
        if in_place:
            return noted(write_lowest(masks, x))
        return write_lowest(masks, x.clone(memory_format=torch.contiguous_format))
    if not in_place:
        return keep(x, -unpack(words, size).int(), size)
    forbidden = torch.nn.functional.pad(~unpack(words, size), (0, x.shape[1] - size), value=True)
    return x.masked_fill_(forbidden, -torch.inf)


def doubled(array: Tensor) -> Tensor:
    """Return a tensor with as many rows again behind its own, which are 0."""
    with torch.inference_mode(False):
        return torch.cat([array, torch.zeros_like(array)])


def put_rows(array: Tensor, index: NDArray[Any], values: NDArray[Any]) -> Tensor:
    """Return a tensor with values (n, ..) of the host in rows index (n,); it is written to where it is."""
    with torch.inference_mode(False):
        at = torch.from_numpy(index).to(array.device)
        return array.index_copy_(0, at, torch.from_numpy(signed(values)).to(array.device))


def is_concrete(*arrays: Tensor) -> bool:
    """Return whether the values of tensors can be read now, instead of being traced."""
    return not (
        torch.compiler.is_compiling()
        or compat.is_traced()
        or any(map(compat.has_no_values, arrays))
        or (any(x.is_cuda for x in arrays) and torch.cuda.is_current_stream_capturing())
    )


def is_recording(*arrays: Tensor) -> bool:
    """Return whether what is computed from tensors is recorded, with all else where it is now."""
    if torch.compiler.is_compiling():  # which asks each time where tensors are
        return False
    capturing = any(x.is_cuda for x in arrays) and torch.cuda.is_current_stream_capturing()
    return capturing or compat.is_traced()


def without_nan(x: Tensor) -> Tensor:
    """Return x with -inf where it is NaN."""
    return x.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)


def running_max(x: Tensor) -> Tensor:
    """Return the largest of each row (B, n) up to each column."""
    return x.cummax(dim=1).values


def sort(x: Tensor) -> Tensor:
    """Return each row (B, n) with the largest first."""
    return x.sort(dim=-1, descending=True).values


def all_known_true(holds: Tensor) -> bool:
    """Return whether `holds` is so throughout and that can be known now: False where values are only traced."""
    recording = holds.is_cuda and torch.cuda.is_current_stream_capturing()
    return compat.is_plain(holds) and not recording and bool(holds.all())


def to_device(array: NDArray[Any], like: Tensor) -> Tensor:
    """Return an array of the host where `like` is."""
    return torch.as_tensor(array).to(like.device, non_blocking=True)


def to_host(array: Tensor) -> NDArray[Any]:
    """Return an array on the host, once it is there."""
    found: NDArray[Any] = array.detach().cpu().numpy()
    return found


where = torch.where

concatenate = torch.cat

exp = torch.exp
