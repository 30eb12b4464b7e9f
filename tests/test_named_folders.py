"""A run of tests that names folders has tests of each, or fails and says which has none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import named_folders
from tests.named_folders import APART

CONFTEST = Path(named_folders.__file__).read_text() + """

def pytest_configure(config):
    config.pluginmanager.register(NamedFolders(config))
"""  # fmt: skip
PASSES = "def test_that_passes(): pass\n"
SKIPPED = "import pytest\ndef test_that_is_skipped(): pytest.skip('no reason')\n"
SKIPPED_AS_A_WHOLE = "import pytest\npytest.skip('no package', allow_module_level=True)\n"
MARKED = "import pytest\n@pytest.mark.slow\ndef test_that_is_marked(): pass\n"


@pytest.fixture
def tree(tmp_path) -> Path:
    """Make a project with one test in each folder that stands apart, and two beside them."""
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = tests\nmarkers =\n    slow: is slow\n")
    write(tmp_path, "tests/conftest.py", CONFTEST)
    for folder in APART:
        write(tmp_path, f"{folder}/test_one.py", PASSES)
    write(tmp_path, "tests/engines/test_two.py", PASSES)
    write(tmp_path, "tests/test_three.py", PASSES)
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def run(root: Path, *arguments: str) -> tuple[int, str]:
    """Return the exit status of pytest and its output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "--import-mode=importlib", "-p", "no:cacheprovider", *arguments]
    out = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    return out.returncode, out.stdout + out.stderr


def test_folders_that_stand_apart_are_run_only_by_name(tree):
    status, told = run(tree)
    assert (status, "tests that ran: 2\n" in told) == (0, True), told
    status, told = run(tree, "tests/engines")
    assert (status, "tests that ran: 1, tests/engines: 1\n" in told) == (0, True), told


@pytest.mark.parametrize("named", [*APART, f"{APART[-1]}/test_one.py::test_that_passes"])
def test_what_stands_apart_runs_if_it_is_named(tree, named):
    status, told = run(tree, named)
    assert (status, f"tests that ran: 1, {named}: 1\n" in told) == (0, True), told


def test_a_folder_and_one_inside_it_are_counted_each_for_itself(tree):
    status, told = run(tree, "tests/engines/real", "tests/engines")
    if status == pytest.ExitCode.USAGE_ERROR:  # pytest 8.1 collects one of the two
        assert "no test was collected of tests/engines\n" in told
    else:
        assert (status, "tests that ran: 2, tests/engines/real: 1, tests/engines: 1\n" in told) == (0, True), told


@pytest.mark.parametrize(
    ("text", "arguments"), [("", ()), (SKIPPED_AS_A_WHOLE, ()), (MARKED, ("-m", "not slow"))],
    ids=["without tests", "skipped as a whole", "none of the mark"],
)  # fmt: skip
def test_a_folder_of_which_nothing_is_collected_fails_by_name(tree, text, arguments):
    write(tree, "tests/empty/test_four.py", text)
    status, told = run(tree, "tests/engines", "tests/empty", *arguments)
    assert status == pytest.ExitCode.USAGE_ERROR
    assert "no test was collected of tests/empty" in told


@pytest.mark.parametrize("text", [SKIPPED, SKIPPED_AS_A_WHOLE, ""], ids=["skipped", "skipped as a whole", "without"])
def test_a_folder_of_which_nothing_ran_in_workers_fails_by_name(tree, text):
    pytest.importorskip("xdist")
    write(tree, "tests/empty/test_four.py", text)
    status, told = run(tree, "tests/engines", "tests/empty", "-n", "1")
    assert status == pytest.ExitCode.TESTS_FAILED
    assert "tests that ran: 1, tests/engines: 1, tests/empty: 0\n" in told
    assert "ERROR: no test ran of tests/empty" in told


def test_a_folder_whose_tests_are_all_skipped_fails_by_name(tree):
    write(tree, "tests/spark/test_one.py", SKIPPED)
    status, told = run(tree, "tests/engines", "tests/spark")
    assert status == pytest.ExitCode.TESTS_FAILED
    assert "tests that ran: 1, tests/engines: 1, tests/spark: 0\n" in told
    assert "ERROR: no test ran of tests/spark" in told


def test_a_user_may_leave_out_all_of_a_folder_by_name(tree):
    status, told = run(tree, "tests/engines", "tests/test_three.py", "-k", "test_two")
    assert (status, "tests that ran: 1, tests/engines: 1, tests/test_three.py: 0\n" in told) == (0, True), told


def test_a_test_that_fails_has_run(tree):
    write(tree, "tests/spark/test_one.py", "def test_that_fails(): assert False\n")
    status, told = run(tree, "tests/spark")
    assert (status, "tests that ran: 1, tests/spark: 1\n" in told) == (1, True), told
