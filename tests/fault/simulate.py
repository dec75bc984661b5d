"""Live through one history again: `python -m tests.fault.simulate --fault NAME --seed N`.

What tests print where a history goes wrong. Without a seed, many of them, one after the other.
"""

import argparse
import sys
import time

from tests.support.simulation import FAULTS, simulate
from tests.support.stories import STORIES


def main(arguments: list[str] | None = None) -> int:
    """Run histories; exit code 1 if one of them ends otherwise than it must."""
    parser = argparse.ArgumentParser(prog="python -m tests.fault.simulate", description="One history, from its seed.")
    parser.add_argument("--fault", choices=[*FAULTS, "mixed"], required=True)
    parser.add_argument("--story", choices=sorted(STORIES), default="ledger")
    parser.add_argument("--seed", type=int, help="the history; without it, the first --count of them")
    parser.add_argument("--count", type=int, default=100, metavar="N")
    options = parser.parse_args(arguments)
    seeds = range(options.count) if options.seed is None else [options.seed]
    failed = 0
    for seed in seeds:
        began = time.perf_counter()
        try:
            told = str(simulate(STORIES[options.story](seed), options.fault, seed))
        except Exception as error:
            if options.seed is not None:
                raise
            failed += 1
            told = f"FAILED: {error}"
        sys.stdout.write(f"{options.fault} {seed}: {told} ({time.perf_counter() - began:.2f} s)\n")
    return int(failed > 0)


def replay(story: str, fault: str, seed: int) -> str:
    """The command that lives through a history again."""
    return f"python -m tests.fault.simulate --story {story} --fault {fault} --seed {seed}"


if __name__ == "__main__":
    sys.exit(main())
