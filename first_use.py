"""Makes ready ahead what the first use on a machine would make: machine code of kernels, and files of a vocabulary.

Where a library of compiled kernels fits, there are only the vocabulary's files to make. Where none does, one is made in
the cache folder if there is a C compiler, for the processes that start later; if there is none, numba compiles kernels
and keeps them.

`python -m maskwright.first_use KIND ...` uses kinds of constraints once, with a vocabulary of bytes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress

import numpy as np

from .compile.compile_grammar import compile_grammar
from .compile.schemas.compile_schema import compile_json_schema
from .compile.sequences import compile_sids
from .compile.tags.build import compile_structural_tag
from .compile.tags.tagged_text import Tag, TaggedText
from .compile.text import compile_regex
from .errors import ConstraintError, KernelError
from .kernels import compiled, native
from .runtime.arena.arena import Arena
from .runtime.arena.capacity import Capacity
from .runtime.host.matcher import Matcher
from .runtime.numpy_ops import bitmask, start, to_device, with_start_states
from .table.constraint import Constraint
from .vocabulary.vocabulary import Vocabulary

Progress = Callable[[str, int, int], None]
"""progress(what, done, of): called as work goes on."""


def warm(
    vocabulary: Vocabulary | None = None, *, processes: int | None = None, progress: Progress | None = None
) -> None:
    """Make everything ready that first use would make, for every kind of constraint.

    Processes that start later find it all.

    Args:
        vocabulary: One for which the files that its constraints share are made too; without it, only kernels.
        processes: How many compile kernels at once; None for as many as there are processors, up to 8.
        progress: Called with what is made, how much of it is, and of how much.

    Raises:
        KernelError: Kernels cannot be compiled.
        TypeError: `processes` is no integer.
        ValueError: `processes` is less than 1.

    Examples:
        >>> warm(processes=2)  # doctest: +SKIP
    """
    if processes is not None and (not isinstance(processes, int) or isinstance(processes, bool)):
        raise TypeError(f"processes must be an integer or None, not {type(processes).__name__}")
    if processes is not None and processes < 1:
        raise ValueError(f"processes={processes} must be 1 or more")
    tell = progress if progress is not None else lambda what, done, of: None
    if compiled.LIBRARY is None:
        _make_kernels(processes, tell)
    if vocabulary is not None:
        use(vocabulary, tell)


def _make_kernels(processes: int | None, tell: Progress) -> None:
    """Have a library made, or all kernels compiled by numba where none can be."""
    digest = native.library_digest()
    target = None if digest is None else native.kept_at(digest)
    if target is not None and target.is_file():
        return
    from .kernels.ahead.build import build, compiler
    from .kernels.processor import fitting

    if target is not None and compiler() is not None and fitting() and os.environ.get("MASKWRIGHT_JIT") != "1":
        build(target, fitting(), processes=processes, done=lambda done, of: tell("kernels", done, of))
        return
    command = [sys.executable, "-m", __name__]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with ThreadPoolExecutor(processes or os.cpu_count()) as pool:
        running = [
            pool.submit(subprocess.run, [*command, kind], env=environment, capture_output=True, text=True)
            for kind in KINDS
        ]
        for done, each in enumerate(as_completed(running), 1):
            ended = each.result()
            if ended.returncode:
                raise KernelError(f"compiling kernels failed: {ended.stderr[-2000:]}")
            tell("kinds of constraints", done, len(running))


def use(vocabulary: Vocabulary, tell: Progress = lambda what, done, of: None) -> None:
    """Use each kind of constraint once with a vocabulary, which makes the files that they share.

    A kind that the vocabulary cannot have, as it lacks tokens, is left out: whoever asks for it is told.
    """
    for done, each in enumerate(KINDS.values(), 1):
        with suppress(ConstraintError):
            each(vocabulary)
        tell("kinds of constraints", done, len(KINDS))


def _read(table: Constraint, vocabulary: Vocabulary) -> None:
    matcher = Matcher(table, vocabulary)
    for _ in range(3):
        allowed = np.flatnonzero(np.unpackbits(matcher.mask().view(np.uint8), bitorder="little"))
        if not allowed.size or not matcher.advance(int(allowed[0])) or matcher.is_finished:
            return


def _sids(vocabulary: Vocabulary) -> None:
    table = compile_sids(np.array([[0, 1], [0, 2], [1, 1]]), vocab_size=max(vocabulary.size, 3))
    bitmask(table, start(table, 2))
    table.contains(np.array([[0, 1]]))


def _regex(vocabulary: Vocabulary) -> None:
    _read(compile_regex("[0-9]{2}-[a-z]+|unknown", vocabulary), vocabulary)


_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "size": {"type": "number", "minimum": 0},
        "kind": {"enum": ["a", "b"]},
        "items": {"type": "array", "items": {"type": ["integer", "null"]}},
        "note": {"type": "string"},
    },
    "required": ["name"],
}


def _schema(vocabulary: Vocabulary) -> None:
    _read(compile_json_schema(_SCHEMA, vocabulary), vocabulary)


def _grammar(vocabulary: Vocabulary) -> None:
    _read(compile_grammar('start: "(" start ")" | "x"', vocabulary), vocabulary)


def _tags(vocabulary: Vocabulary) -> None:
    tags = [Tag("<call>", "</call>", schema=_SCHEMA), Tag("<number>", "</number>", regex="[0-9]+")]
    _read(compile_structural_tag(TaggedText(tags), vocabulary), vocabulary)


_SMALL = Capacity(
    states=1 << 14, edges=1 << 18, bases=1 << 10, base_targets=1 << 14, masks=64, lists=1 << 10, classes=1 << 19,
    exits=1 << 14, sites=1 << 12, site_entries=1 << 16, actions=1 << 12, pushes=1 << 14,
)  # fmt: skip


def _arena(vocabulary: Vocabulary) -> None:
    if vocabulary.eos is None:  # without which there is no arena
        return
    arena = Arena(vocabulary, _SMALL)
    view = with_start_states(to_device(arena), [arena.add(compile_regex("[ab]+", vocabulary).to_table())])
    bitmask(view, start(view, 1))


KINDS: dict[str, Callable[[Vocabulary], None]] = {
    "schemas": _schema, "grammars": _grammar, "tags": _tags, "regexes": _regex, "arenas": _arena, "SIDs": _sids,
}  # fmt: skip
"""What uses each kind of constraint once, the longest to compile first."""


if __name__ == "__main__":
    _bytes = Vocabulary.from_bytes([b"", *(bytes([byte]) for byte in range(256))], eos=0)
    for _kind in sys.argv[1:]:
        KINDS[_kind](_bytes)
