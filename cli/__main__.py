"""Run the command line: `python -m maskwright.cli`."""

from __future__ import annotations

from .main import main

main()
