"""A digest of the files that kernels are compiled from."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

MARKS = (b"compiled import", b"Kernels take names from this file.")
"""What is in every file of kernels, and in every other file whose constants and types kernels use."""


@cache
def source_digest(package: str) -> str | None:
    """Return a digest of the files of kernels in an imported package, None if none can be read, as in an archive.

    It takes 5 ms, once per process. The first kernel asks for it while the package is imported, so that it describes
    the sources that are loaded, not later ones.
    """
    every = [(path, path.read_bytes()) for path in _sources(package)]
    files = [(path, source) for path, source in every if any(mark in source for mark in MARKS)]
    if not files:
        return None
    digest = hashlib.sha256()
    own = Path(__file__).with_name("jit.py")
    for path, source in [*files, (own, own.read_bytes())]:
        digest.update(f"\0{path.name}\0{len(source)}\0".encode() + source)
    return digest.hexdigest()


def _sources(package: str) -> Iterator[Path]:
    """Yield the Python files of an imported package, or the one of a module, in an order that is always the same."""
    module = sys.modules[package]
    if not hasattr(module, "__path__"):
        if (file := getattr(module, "__file__", None)) and os.path.isfile(file):
            yield Path(file)
        return
    folders = [folder for folder in module.__path__ if os.path.isdir(folder)]
    while folders:
        with os.scandir(folders.pop()) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
        for entry in entries:
            if entry.name.endswith(".py"):
                yield Path(entry.path)
            elif entry.is_dir() and os.path.isfile(os.path.join(entry.path, "__init__.py")):
                folders.append(entry.path)
