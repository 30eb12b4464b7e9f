"""`python -m tests.fuzz --minutes 10`: try to break everything, and keep what does.

`--replay FILE` tries one finding again. With `--check-bounds` kernels are compiled anew, in a minute or two, and raise
IndexError where they would read outside an array.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from .campaign import CHECKED, Campaign, replay
from .cases import KINDS


def main() -> int:
    """Return 0 if cases of each kind were tried and nothing was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long to try")
    parser.add_argument("--kind", action="append", choices=KINDS, help="try only these; may be given again")
    parser.add_argument("--seed", type=int, help="the same seed tries the same; by default the time decides")
    parser.add_argument("--findings", type=Path, default=Path("findings"), help="the folder for what is found")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="try one finding again")
    parser.add_argument("--check-bounds", action="store_true", help="kernels check each index; for these alone: "
                        + ", ".join(CHECKED))  # fmt: skip
    given = parser.parse_args()
    if given.check_bounds and not os.environ.get("NUMBA_BOUNDSCHECK"):
        os.environ.update(NUMBA_BOUNDSCHECK="1", MASKWRIGHT_JIT="1")
        os.execv(sys.executable, [sys.executable, "-m", "tests.fuzz", *sys.argv[1:]])
    if given.replay is not None:
        outcome = replay(given.replay)
        print(f"{outcome.found}: {outcome.where}\n{outcome.detail}")
        return int(outcome.is_wrong)
    seed = int(time.time()) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    kinds = tuple(given.kind or (CHECKED if given.check_bounds else KINDS))
    campaign = Campaign(kinds, seed, given.findings, say=lambda line: print(line, flush=True))
    campaign.run(60 * given.minutes)
    print(json.dumps(campaign.counts(), indent=2))
    print(f"cases that were tried: {campaign.tried.total()}")
    for kind in kinds:
        if not campaign.tried[kind]:
            print(f"ERROR: no case of {kind} was tried")
    return int(bool(campaign.findings) or not all(campaign.tried[kind] for kind in kinds))


sys.exit(main())
