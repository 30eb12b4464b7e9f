"""Constraints of requests, tried in processes beside vLLM's API, whose loop answers all clients."""

from __future__ import annotations

import atexit
import copy
import hashlib
import json
import os
import shutil
import tempfile
import threading
from collections import OrderedDict
from pathlib import Path

from ...compile.cache.folder import Folder
from ...compile.cache.lanes import Lanes
from ...errors import ConstraintError, MaskwrightError, ProcessError
from ...first_use import use
from ..constraints import EngineConstraints, Kind, processes_beside
from ..options import VARIABLE, options_of

_FOLDER_BYTES = 4 << 30
_VERDICTS = 10_000  # that are remembered, of some hundred bytes each


def share_tables() -> None:
    """Have all processes of this engine read tables from one folder, if the operator named none; it goes with this one.

    Processes that start later have the option from the environment. Options that are wrong stop the engine later: of
    what a plugin raises at once, vLLM only writes a log.
    """
    try:
        if options_of().cache_directory is not None:
            return
    except ConstraintError:
        return
    folder, maker = tempfile.mkdtemp(prefix="maskwright-tables-"), os.getpid()
    given = json.loads(os.environ.get(VARIABLE, "").strip() or "{}")
    os.environ[VARIABLE] = json.dumps({**given, "cache_directory": folder})
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == maker else None)


class Admission:
    """Tries constraints in processes under hard limits, and remembers what came of it: no table stays in this process.

    Tables are put into the folder from which the engine's process reads them. What can be read as texts come to its
    states, only the engine's process reads.
    """

    def __init__(self, constraints: EngineConstraints) -> None:
        vocabulary, directory = constraints.vocabulary, constraints.options.cache_directory
        folder = None if directory is None else Folder(Path(directory), _FOLDER_BYTES, vocabulary)
        self.constraints, self._lanes = constraints, Lanes(vocabulary, processes_beside(), use, folder)
        self._lock = threading.Lock()
        self._verdicts: OrderedDict[bytes, MaskwrightError | None] = OrderedDict()

    async def admit(self, kind: Kind, source: str) -> None:
        """Find out whether a constraint can be kept to; `check` knows it then."""
        key = _key(kind, source)
        with self._lock:
            if key in self._verdicts:
                self._verdicts.move_to_end(key)
                return
        verdict = None
        try:
            await self._lanes.tried(self.constraints.source(kind, source), self.constraints.options.budget)
        except MaskwrightError as error:
            verdict = error
        with self._lock:
            self._verdicts[key] = verdict
            while len(self._verdicts) > _VERDICTS:
                self._verdicts.popitem(last=False)

    def check(self, kind: Kind, source: str) -> None:
        """Raise the error of a constraint that was refused; compile one here that was not tried or is forgotten."""
        key = _key(kind, source)
        with self._lock:
            verdict, known = self._verdicts.get(key), key in self._verdicts
            if isinstance(verdict, ProcessError):  # of a process that ended, which says nothing of the constraint
                del self._verdicts[key]
        if not known:
            self.constraints.compile(kind, source)
        elif verdict is not None:
            raise copy.copy(verdict)


def _key(kind: Kind, source: str) -> bytes:
    return hashlib.sha256(f"{kind} {source}".encode("utf-8", "surrogatepass")).digest()
