"""Arrays kept on disk between processes, for what a vocabulary needs computed only once.

A cache and nothing more: files lie in the folder that the environment variable MASKWRIGHT_CACHE names, else in the
user's cache folder. Whatever cannot be read, or does not match its checksum, is made again; where nothing can be
written, nothing is kept. Files are written under another name and then renamed, so that no process reads half of one.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file

VERSION = 6
"""Version of what is kept: raised when the same name would mean other arrays."""


def folder() -> Path:
    """Return the folder of the cache, which need not exist."""
    named = os.environ.get("MASKWRIGHT_CACHE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "maskwright"


def name_of(kind: str, *parts: str | bytes) -> str:
    """Return the name under which something is kept that follows from these parts alone."""
    digest = hashlib.sha256(f"{kind}\0{VERSION}\0{np.__version__}".encode())
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return f"{kind}-{digest.hexdigest()[:40]}"


PARTS = ("automata", "compile", "kernels", "lazy", "table", "vocabulary")
"""Folders of this package whose code decides what a compilation makes."""


@cache
def code() -> str:
    """Return a name of the code at hand, as part of the name of what follows from it and from nothing else."""
    root = Path(__file__).parent.parent
    files = sorted(path for part in PARTS for path in (root / part).rglob("*.py"))
    stats = [(path.relative_to(root).as_posix(), path.stat()) for path in files]
    return hashlib.sha256(repr([(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]).encode()).hexdigest()


def load(name: str) -> dict[str, NDArray[Any]] | None:
    """Return the arrays kept under a name, None if there are none or they are damaged."""
    try:
        with safe_open(os.fspath(folder() / f"{name}.safetensors"), framework="numpy") as file:
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            checksum = (file.metadata() or {}).get("checksum")
    except Exception:  # whatever a reader of missing or damaged files may raise
        return None
    return arrays if checksum == _checksum(arrays) else None


def save(name: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Keep arrays under a name, if the folder can be written."""
    target = folder() / f"{name}.safetensors"
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    whole = {key: np.ascontiguousarray(array) for key, array in arrays.items()}
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        save_file(whole, os.fspath(temporary), metadata={"checksum": _checksum(whole)})
        temporary.replace(target)
    except OSError:
        temporary.unlink(missing_ok=True)
    except Exception as error:  # safetensors has an error of its own for what the disk refuses
        temporary.unlink(missing_ok=True)
        if type(error).__name__ != "SafetensorError":
            raise


def _checksum(arrays: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for key in sorted(arrays):
        array = np.ascontiguousarray(arrays[key])
        digest.update(f"{key} {array.dtype.str} {array.shape};".encode())
        digest.update(array.view(np.uint8).data if array.size else b"")
    return digest.hexdigest()
