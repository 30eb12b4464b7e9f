"""The functions of arrays that operations and decoders are written against, whatever library the arrays are of.

`numpy_arrays`, `torch.arrays` and `jax.arrays` are modules that have them all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = Any
"""A torch.Tensor, a jax.Array or a numpy array: what they have in common has no type of its own."""

Placed: TypeAlias = Any
"""What `to_device` of the same library returns: a table, a matrix, an arena or a table that is read on demand."""

States: TypeAlias = Any
"""A state of whatever kind: a tuple of arrays with the batch first, `node` the first of them."""

Cache: TypeAlias = Any
"""A model's cache: a tree of dicts, lists and tuples whose leaves are arrays with the batch first, or None."""

Random: TypeAlias = Any
"""What numbers are drawn from: a generator of numpy or torch, a key of JAX, or an array of uniform numbers."""


class Offer(NamedTuple):
    """What states at one depth offer, ends aside."""

    scores: Array  # (n, w) those given where a token is allowed, else -inf
    tokens: Array  # (n, w) ascending where they are allowed; None: column v is token v
    edges: Array = None  # (n, w) where tokens lead, as the kind numbers it; None where that is looked up


class Backend(Protocol):
    """Functions of arrays. B, n, k are sizes; the first axis is the batch."""

    def where(self, condition: Array, a: Array, b: Array, /) -> Array:
        """Return a where a condition holds, else b."""

    def concatenate(self, arrays: list[Array], axis: int, /) -> Array:
        """Return arrays one behind the other."""

    def exp(self, x: Array, /) -> Array:
        """Return e to the power of x."""

    def zeros(self, shape: tuple[int, ...], like: Array) -> Array:
        """Return zeros of the type of `like` where that is, in at least 32 bits."""

    def arange(self, n: int, like: Array) -> Array:
        """Return 0 .. n - 1, of the type of `like`, where that is."""

    def integers(self, x: Array, like: Array) -> Array:
        """Return whole numbers in the type of `like`."""

    def take(self, array: Array, index: Array) -> Array:
        """Return array (B, n) gathered at index (B, k) along the second axis."""

    def gather(self, cache: Cache, index: Array) -> Any:
        """Return a tree of arrays gathered at index (n,) along each array's first axis."""

    def lookup(self, array: Array, index: Array) -> Array:
        """Return array (n,) at indices of any shape."""

    def search(self, ascending: Array, query: Array) -> Array:
        """Return how many of ascending numbers (n,) are below each of query."""

    def scatter(self, array: Array, index: Array, value: Array | int) -> Array:
        """Return array (B, n), which may be written to, with a value, or values (B, k), at index (B, k)."""

    def lowest(self, x: Array) -> Array:
        """Return -inf in the shape and type of an array."""

    def without_nan(self, x: Array) -> Array:
        """Return x with -inf where it is NaN."""

    def running_max(self, x: Array) -> Array:
        """Return the largest of each row (B, n) up to each column."""

    def sort(self, x: Array) -> Array:
        """Return each row (B, n) with the largest first."""

    def top_k(self, scores: Array, k: int) -> tuple[Array, Array]:
        """Return the k largest of each row (B, n) and their places, largest first, of equals the first place.

        -inf fills up where k > n.
        """

    def top_of_beams(self, x: Array, scores: Array, k: int) -> tuple[Array, Array]:
        """Return the k largest of x (B, m, w) + scores (B, m) and their places in (B, m * w), in the order of `top_k`.

        NaN counts as -inf.
        """

    def log_softmax(self, logits: Array) -> Array:
        """Return log-probabilities (B, V); NaN throughout a row that has no distribution."""

    def widen(self, logits: Array) -> Array:
        """Return logits in at least 32 bits."""

    def softmax_of(self, logits: Array, read: Callable[[Array, bool], Offer]) -> Offer:
        """Return the log-probabilities of what is read of logits (n, V), under the full softmax.

        read: takes logits or log-probabilities, and which of the two they are. A row of logits that has no distribution
        gets NaN or -inf.
        """

    def logsumexp(self, x: Array) -> Array:
        """Return the logarithm of each row's sum of exponentials (B,); not finite for a row without a distribution."""

    def keep(self, x: Array, mask: Array, size: int) -> Array:
        """Return x (B, n) with -inf where mask (B, >= size) is 0, and from column `size` on; a mask is 0 or -1."""

    def keep_packed(self, x: Array, words: Array, size: int, in_place: bool = False) -> Array:
        """Return x (B, n) with -inf where no bit is set in words (B, ceil(size / 32)), and from column `size` on."""

    def pack(self, mask: Array) -> Array:
        """Return a mask (B, n) of 0 and -1 as bits: (B, ceil(n / 32))."""

    def words(self, x: Array) -> Array:
        """Return bytes (B, 4 n) as words of a packed mask (B, n)."""

    def unpack(self, words: Array, size: int) -> Array:
        """Return which of `size` bits are set in words (B, ceil(size / 32)): bool (B, size)."""

    def doubled(self, array: Array) -> Array:
        """Return an array with as many rows again behind its own, which are 0."""

    def put_rows(self, array: Array, index: NDArray[np.int64], values: NDArray[Any]) -> Array:
        """Return an array with values (n, ..) of the host in rows index (n,); the one given is used up."""

    def uniform(self, random: Random, shape: tuple[int, ...], like: Array) -> Array:
        """Return random numbers in [0, 1) of the type of `like`, from a generator or key of the library."""

    def split(self, random: Random) -> tuple[Any, Any]:
        """Return a generator or key to draw from now, and one to draw from later."""

    def is_concrete(self, *arrays: Array) -> bool:
        """Return whether the values of arrays can be read now, instead of being traced."""

    def is_recording(self, *arrays: Array) -> bool:
        """Return whether operations on arrays are recorded, with all other arrays as they are now."""

    def is_integral(self, x: Array) -> bool:
        """Return whether an array is of whole numbers."""

    def is_floating(self, x: Array) -> bool:
        """Return whether an array is of floating-point numbers that have -inf: of 16 bits or more."""

    def all_known_true(self, holds: Array) -> bool:
        """Return whether `holds` is true throughout; False where its values are only traced."""

    def to_device(self, array: NDArray[Any], like: Array) -> Array:
        """Return an array of the host where `like` is."""

    def to_host(self, array: Array) -> NDArray[Any]:
        """Return an array on the host, once it is there."""


class Operations(Protocol):
    """The operations that decoders ask for: `torch_ops`, `jax_ops` and `numpy_ops` have them."""

    @property
    def arrays(self) -> Backend:
        """The functions of arrays of the library."""

    def start(self, dev: Placed, batch: int, /) -> States:
        """Return the state of `batch` sequences with nothing written yet."""

    def first_tokens(self, dev: Placed, cache: Cache, count: int, token: int, /) -> Array:
        """Return `count` copies of the token a model is first fed with."""

    def accepting(self, dev: Placed, state: States, /) -> Array:
        """Return whether each sequence may end where it stands: bool (B,)."""

    def advance(self, dev: Placed, state: States, tokens: Array, /) -> States:
        """Return the state after one more token (B,) each; the dead state where it was not allowed."""

    def mask_logits(self, dev: Placed, logits: Array, state: States, remaining: Array | None = None, /) -> Array:
        """Return logits (B, V) with -inf at every token that is not allowed."""

    def select(
        self,
        dev: Placed,
        logits: Array,
        state: States,
        scores: Array,
        beams: int,
        level: int,
        renormalize: bool = ...,
        /,
    ) -> Any:
        """Return the `beams` best continuations over all beams of each batch element, EOS aside."""

    def end_scores(self, dev: Placed, logits: Array, state: States, renormalize: bool = ..., /) -> Array:
        """Return the log-probability of EOS (B,) where a sequence may end, -inf elsewhere."""

    def allowed_tokens(
        self, dev: Placed, state: States, width: int, remaining: Array | None = None, /
    ) -> tuple[Array, Array]:
        """Return the first `width` tokens that each state allows, and EOS; and which of them there are."""

    def draw(
        self,
        dev: Placed,
        logits: Array,
        state: States,
        uniforms: Callable[[], Array],
        filters: Any,
        remaining: Array | None,
        mass: bool,
        /,
    ) -> Any:
        """Return drawn tokens from one kernel, or None: then drawing takes array operations."""
