"""One sequence in loops that call a function of the tokens so far and the logits before each token.

llama-cpp-python takes such functions in a `LogitsProcessorList`, LMDeploy in `logits_processors` of `GenerationConfig`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import ConstraintError
from ..runtime.device.backend import Array
from ..runtime.host.matcher import Matcher
from ..table.constraint import Constraint

_RESET = "if it is another sequence, call reset() before it"


class SequenceProcessor:
    """Sets the logits of what may not follow to -inf; what stands there at the first call is the prompt.

    max_tokens: the most tokens of the answer, EOS aside; an end is then always in reach. One processor is for one
    sequence at a time: call `reset` between two.

    Raises ConstraintError for a constraint without EOS, after whose sequences nothing could follow; ValueError as
    `Matcher` does for max_tokens.

    >>> from maskwright import Vocabulary, compile_regex
    >>> vocab = Vocabulary.from_bytes([b"", b"a", b"b"], eos=0)
    >>> processor = SequenceProcessor(compile_regex("ab", vocab))
    >>> processor(np.array([2, 2]), np.zeros(3, np.float32)), processor(np.array([2, 2, 1]), np.zeros(3, np.float32))
    (array([-inf,   0., -inf], dtype=float32), array([-inf, -inf,   0.], dtype=float32))
    """

    def __init__(self, table: Constraint, *, max_tokens: int | None = None) -> None:
        if table.eos is None:
            raise ConstraintError("has no token that ends a sequence: make it with eos", argument="table")
        self._matcher = Matcher(table, max_tokens=max_tokens)
        self._ids: NDArray[np.int64] | None = None

    def reset(self) -> None:
        """Forget the sequence: the next call is the first of another prompt."""
        self._matcher.reset()
        self._ids = None

    def __call__(self, input_ids: Array, logits: Array) -> Array:
        """Return logits (V',) or (1, V') with -inf at every token that may not follow input_ids (L,), or (1, L).

        Both are numpy's or torch's; logits stay as they are. Raises ValueError for more than one row, for tokens that
        do not continue those of the last call, or are not allowed, and for logits narrower than the vocabulary.
        """
        ids = np.asarray(input_ids.cpu() if hasattr(input_ids, "cpu") else input_ids, np.int64)
        for name, shape in (("tokens", ids.shape), ("logits", logits.shape)):
            if len(shape) not in (1, 2) or (len(shape) == 2 and shape[0] != 1):
                raise ValueError(f"{name} {tuple(shape)} must be one row: a batch takes one processor a sequence")
        ids = ids.reshape(-1)
        known = ids if self._ids is None else self._ids
        if ids.size < known.size or not np.array_equal(ids[: known.size], known):
            raise ValueError(f"{ids.size} tokens do not continue the {known.size} of the last call: {_RESET}")
        if not self._matcher.accept_tokens(ids[known.size :].tolist()):
            raise ValueError(f"tokens {ids[known.size :].tolist()} are not allowed: {_RESET}")
        self._ids = ids.copy()
        size, columns = self._matcher.table.vocab_size, logits.shape[-1]
        if columns < size:
            raise ValueError(f"there are {columns} logits for a vocabulary of {size:,} tokens")
        allowed = np.zeros(columns, np.bool_)
        bits = np.unpackbits(self._matcher.mask().view(np.uint8), bitorder="little")[:size]
        allowed[:size] = bits.astype(np.bool_)
        if isinstance(logits, np.ndarray):
            return np.where(allowed, logits, logits.dtype.type(-np.inf))
        import torch

        return logits.masked_fill(torch.from_numpy(~allowed).to(logits.device), -torch.inf)
