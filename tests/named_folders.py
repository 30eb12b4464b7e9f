"""A run that names folders runs tests of each of them, and says how many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from pathlib import Path
from typing import Any

import pytest

APART = ("tests/devices", "tests/spark", "tests/engines/real")
"""Folders that only a run which names them collects: each needs an environment of its own.

`norecursedirs` cannot say this: newer pytest leaves out what it matches even where it is named.
"""

_NARROWING = ("keyword", "deselect", "lf", "stepwise")
"""Options with which a user may well leave out all of a folder."""


class NamedFolders:
    """Counts the tests of each folder or file that the command line names, and refuses names without any."""

    def __init__(self, config: pytest.Config) -> None:
        paths = [(config.invocation_params.dir / each.partition("::")[0]).resolve() for each in config.args]
        is_given = config.args_source is pytest.Config.ArgsSource.ARGS
        self.names = {path: name for path, name in zip(paths, config.args, strict=True) if is_given and path.exists()}
        self.root = config.rootpath
        self.may_be_empty = any(getattr(config.option, each, None) for each in _NARROWING)
        self.only_collects = bool(config.option.collectonly)
        self.is_worker = hasattr(config, "workerinput")  # the process that started it decides
        self.ran: Counter[Path | None] = Counter()

    def name_of(self, path: Path) -> Path | None:
        """Return the narrowest name that a file is collected for, None where no name holds it."""
        within = [each for each in self.names if path.is_relative_to(each)]
        return max(within, key=lambda each: len(each.parts), default=None)

    def empty(self, found: Container[Path | None]) -> str:
        """Return the names of which nothing was found, "" if there are none."""
        return "" if self.may_be_empty else ", ".join(name for path, name in self.names.items() if path not in found)

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Leave out the folders that stand apart, unless they, or something in them, are named."""
        apart = collection_path in {self.root / each for each in APART}
        return True if apart and not any(path.is_relative_to(collection_path) for path in self.names) else None

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Refuse a name of which no test was selected, before anything runs; with workers that shows at the end."""
        empty = self.empty({self.name_of(item.path) for item in session.items})
        if empty and not self.is_worker and not session.testsfailed:
            raise pytest.UsageError(f"no test was collected of {empty}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test that was not skipped; in workers, too, whose reports come here."""
        if report.when == "call" and not report.skipped:
            self.ran[self.name_of(self.root / report.location[0])] += 1

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Fail a run in which all tests of a name were skipped."""
        if exitstatus == pytest.ExitCode.OK and not self.only_collects and not self.is_worker and self.empty(self.ran):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say how many tests ran, in all and of each name."""
        if self.only_collects:
            return
        of_each = "".join(f", {name}: {self.ran[path]}" for path, name in self.names.items())
        terminalreporter.line(f"tests that ran: {self.ran.total()}{of_each}")
        if empty := self.empty(self.ran):
            terminalreporter.line(f"ERROR: no test ran of {empty}", red=True)
