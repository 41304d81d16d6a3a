"""Long hunts: `python -m tests.simulation --scenario storm --seeds 1..500`. Prints each seed that finds something."""

import argparse
import sys
import time
import traceback

from tests.simulation.run import run
from tests.simulation.scenarios import SCENARIOS


def main() -> int:
    """How many seeds found something, at most 1."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--scenario", choices=[*SCENARIOS, "all"], default="all")
    asked.add_argument("--seeds", default="1..20", help="one seed, or A..B")
    asked.add_argument("--brief", action="store_true", help="one line a finding")
    options = asked.parse_args()
    low, _, high = options.seeds.partition("..")
    names = list(SCENARIOS) if options.scenario == "all" else [options.scenario]
    found = 0
    for name in names:
        for seed in range(int(low), int(high or low) + 1):
            begun = time.perf_counter()
            try:
                outcome = run(SCENARIOS[name], seed)
            except BaseException as error:
                found += 1
                print(f"{name} {seed}: {type(error).__name__}: {error}", flush=True)
                if not options.brief:
                    traceback.print_exc()
                if isinstance(error, KeyboardInterrupt):
                    return 1
                continue
            took = time.perf_counter() - begun
            print(
                f"{name} {seed}: well, {took:.1f} s for {outcome.virtual_s:.0f} s, n {outcome.head.n},"
                f" {outcome.terms} terms, {outcome.dropped} dropped, {sum(outcome.passed.values())} gates",
                flush=True,
            )
    return min(found, 1)


if __name__ == "__main__":
    sys.exit(main())
