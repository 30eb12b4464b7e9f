"""Compiled tables, and errors of compilations, in the files of a folder."""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from ... import errors
from ...automata.budget import Budget
from ...errors import BudgetError, ConstraintError
from ...table.transition_table import TransitionTable
from ...vocabulary.vocabulary import Vocabulary
from .. import store
from ..constraint_source import Source

Key: TypeAlias = tuple[str, str, bool, Budget | None]
"""What two compilations have in common that are the same: the kind and hash of the source, lazy, and the budget."""


_SUFFIXES = (".safetensors", ".json")  # of tables, and of errors
_STALE = 3600.0  # seconds after which a file that was never finished belongs to no process any more


def key_of(source: Source, hashed: str, budget: Budget | None) -> Key:
    """Return what two compilations have in common that are the same; the first two say what the table allows.

    hashed: that of the source.
    """
    return source.kind, hashed, source.lazy, budget


@dataclass
class Folder:
    """Tables and errors in files, each under a hash of all that it follows from, the code that made it among it.

    A file is written under another name and then renamed, so that no process reads half of one, and carries a checksum.
    """

    path: Path
    limit: int
    vocabulary: Vocabulary
    _since: int = field(default=-1)  # bytes written since files were last counted

    def _name(self, key: Key) -> str:
        return store.name_of("table", self.vocabulary.fingerprint, key[0], key[1], store.code())

    def read(self, key: Key) -> TransitionTable | ConstraintError | None:
        """Return what is kept under a key; None if there is nothing, or it is damaged."""
        name = self._name(key)
        for suffix in _SUFFIXES:
            file = self.path / f"{name}{suffix}"
            try:
                found = self._read_table(file) if suffix == _SUFFIXES[0] else _read_error(file, name)
            except Exception:  # whatever a reader of missing or damaged files may raise
                continue
            if isinstance(found, TransitionTable) and found.source != key[1]:
                continue  # somebody has renamed it
            with contextlib.suppress(OSError):
                os.utime(file)  # what is used stays
            return found
        return None

    def _read_table(self, file: Path) -> TransitionTable:
        return TransitionTable.load(file, vocabulary=self.vocabulary)

    def write(self, key: Key, found: TransitionTable | ConstraintError) -> None:
        """Keep a table or an error, if the folder can be written; not one that another budget would not run into."""
        if isinstance(found, BudgetError):
            return
        table = isinstance(found, TransitionTable)
        file = self.path / f"{self._name(key)}{_SUFFIXES[not table]}"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if isinstance(found, TransitionTable):
                found.save(file)
            else:
                _write_error(file, found, self._name(key))
            self._prune(file.stat().st_size)
        except OSError:
            return
        except Exception as error:  # safetensors has an error of its own for what the disk refuses
            if type(error).__name__ != "SafetensorError":
                raise

    def _prune(self, written: int) -> None:
        """Remove files that were not used for longest, once there are more bytes than the limit; now and then."""
        if 0 <= self._since <= self.limit // 16 - written:
            self._since += written
            return
        self._since = 0
        files, now = [], time.time()
        for file in self.path.iterdir():
            with contextlib.suppress(OSError):  # another process may have removed it
                stat = file.stat()
                if file.name.endswith(".part"):
                    if now - stat.st_mtime > _STALE:
                        file.unlink()
                elif file.name.startswith("table-") and file.suffix in _SUFFIXES:
                    files.append((stat.st_mtime, stat.st_size, file))
        total = sum(size for _, size, _ in files)
        for _, size, file in sorted(files):
            if total <= self.limit:
                break
            with contextlib.suppress(OSError):
                file.unlink()
                total -= size


def _write_error(file: Path, error: ConstraintError, name: str) -> None:
    kept = {"name": name, "error": errors.error_to_json(error)}
    temporary = file.with_name(f"{file.name}.{uuid.uuid4().hex}.part")
    try:
        temporary.write_text(json.dumps({**kept, "checksum": _checksum(kept)}))
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def _read_error(file: Path, name: str) -> ConstraintError:
    kept = json.loads(file.read_text())
    if kept.pop("checksum") != _checksum(kept) or kept["name"] != name:
        raise ValueError(f"{file} was changed after it was written")
    found = errors.error_from_json(kept["error"])
    if not isinstance(found, ConstraintError):
        raise TypeError(f"{file} holds no error of a constraint")
    return found


def _checksum(kept: dict[str, Any]) -> str:
    return store.name_of("error", json.dumps(kept, sort_keys=True))
