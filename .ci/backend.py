"""Builds distributions with setuptools. Only a wheel needs numba, which compiles the kernels that it holds."""

from __future__ import annotations

import tomllib
from pathlib import Path

from setuptools.build_meta import *  # noqa: F403
from setuptools.build_meta import get_requires_for_build_wheel as _requires

_PROJECT = Path(__file__).parent.parent / "pyproject.toml"


def get_requires_for_build_wheel(config_settings: dict[str, str | list[str]] | None = None) -> list[str]:
    """Return what a wheel is built with: numba, and what kernels' modules import."""
    groups = tomllib.loads(_PROJECT.read_text())["dependency-groups"]
    return [*_requires(config_settings), *groups["kernels"]]
