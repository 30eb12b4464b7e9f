"""Regular expressions on a real vocabulary: exactness, compiling, masks and logits, against three published engines.

Claims checked here (Tekken, 131,072 tokens; the patterns are in `patterns/`, the engines in `benchmarks/peers/`):

- every regular pattern is accepted exactly; what each peer refuses or gets wrong is listed beside;
- compiling takes at most 1/40 of outlines-core's time in the median, and never more than 1/4;
- one mask and one advance on the host take at most 4 microseconds in the median, 12 at the 99th percentile;
- masking a batch of logits is at least as fast as llguidance's compiled kernel;
- importing and the first compilation in a new process take less than a second together.

    python -m benchmarks.suites.regexes                       everything, about half an hour
    python -m benchmarks.suites.regexes --quick               two patterns a group and few rounds, to see that it runs
    python -m benchmarks.suites.regexes --only compile steps
    python -m benchmarks.suites.regexes --engines maskwright  other engines' outcomes are kept, all are timed

Each part runs in a process of its own; `results/regex.json` holds what all of them measured, table and plot are made
from it.
"""

from __future__ import annotations
