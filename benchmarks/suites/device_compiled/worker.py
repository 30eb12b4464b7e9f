"""A process that compiles what it is asked for, line by line: `python -m benchmarks.suites.device_compiled.worker`.

A line of its input is `{"step": ..., "target": ...}`; a line of its output is the record of that, or `{"error": ...}`.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from .reading import read
from .steps import STEPS
from .targets import TARGETS


def record(step: str, target: str) -> dict[str, Any]:
    """Return the counts of a step compiled for a target; seconds are those of the processor."""
    arguments = STEPS[step].arguments(TARGETS[target].platform)
    begin = time.process_time()
    compiled = TARGETS[target].compile(STEPS[step].function, arguments)
    seconds = time.process_time() - begin
    return {**read(compiled), "seconds": round(seconds, 2)}


def main() -> None:
    """Answer until the input ends."""
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            told = record(asked["step"], asked["target"])
        except Exception as error:  # a compiler may fail in any way; the one who asks says what that means
            told = {"error": f"{type(error).__name__}: {str(error)[:2000]}"}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
