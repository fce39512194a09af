"""Check many plans of random scenarios: `python -m tests.plan_checker [--plans N] [--seed TEXT]`.

The exit status is 1 if there is a finding. A finding names its scenario; `--scenario NAME` runs this one alone.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.plan_checker.loop import CheckedLoop

SHOWN = 20


def main(arguments: list[str] | None = None) -> int:
    """Run scenarios until the number of plans is reached; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.plan_checker", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--plans", type=int, default=50_000, help="number of plans (default: %(default)s)")
    parser.add_argument("--seed", default="1", help="seed of the scenarios (default: %(default)s)")
    parser.add_argument("--scenario", help="run only this scenario, for example 1/17")
    options = parser.parse_args(arguments)
    began, results, number = time.perf_counter(), CheckedLoop(), 0
    if options.scenario:
        results.run(options.scenario)
    while not options.scenario and results.plans < options.plans:
        results.run(f"{options.seed}/{number}")
        number += 1
    for finding in results.findings[:SHOWN]:
        print(finding)
    steps = ", ".join(f"{count} {kind}" for kind, count in sorted(results.steps.items()))
    seconds = time.perf_counter() - began
    print(f"{results.plans} plans of {max(1, number)} scenarios ({steps}) in {seconds:.1f} s:", end=" ")
    print(f"{len(results.findings)} findings")
    return 1 if results.findings else 0


if __name__ == "__main__":
    sys.exit(main())
