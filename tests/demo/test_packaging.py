"""The package as setuptools builds it for `make demo`: one place for the version, and no folder that it warns of."""

from __future__ import annotations

import tomllib
from pathlib import Path

import maskwright as mw

ROOT = Path(mw.__file__).parent
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_version_stands_in_the_package_alone():
    assert "version" not in CONFIG["project"]
    assert CONFIG["project"]["dynamic"] == ["version"]
    assert CONFIG["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "maskwright.__version__"}
    assert (ROOT / "__init__.py").read_text().count(f'__version__ = "{mw.__version__}"') == 1


def test_files_that_are_no_code_lie_in_folders_that_setuptools_knows_as_packages():
    """Setuptools warns that a folder "would be ignored" if package data lie in it and it is no package."""
    setuptools = CONFIG["tool"]["setuptools"]
    for package, patterns in setuptools["package-data"].items():
        assert package in setuptools["packages"]
        folder = ROOT.joinpath(*package.split(".")[1:])
        for pattern in patterns:
            found = list(folder.glob(pattern))
            assert found, f"{package}: nothing is called {pattern}"
            assert {path.parent for path in found} == {folder}
