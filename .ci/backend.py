"""Builds distributions with setuptools. Only a wheel needs numba, which compiles the kernels that it holds."""

from __future__ import annotations

from typing import Any

from setuptools.build_meta import *  # noqa: F403
from setuptools.build_meta import get_requires_for_build_wheel as _requires

_KERNELS = ("numba>=0.68", "numpy>=2.0", "safetensors>=0.4.3", "regex>=2023.10.3", "referencing>=0.35", "lark>=1.3")


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """Return what a wheel is built with: numba, and what kernels' modules import."""
    return [*_requires(config_settings), *_KERNELS, "jsonschema-specifications>=2023.12.1"]
