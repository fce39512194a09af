"""Cost of simulating a day: generating a trace, reading it, and placing its pods under some policies.

    python -m benchmarks.bench_simulate                    # 1,000 nodes, 20,000 pods, 24 hours: some four minutes
    python -m benchmarks.bench_simulate --nodes 100 --pods 2000

CPU time in one process on one core.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from benchmarks.report import Table, amount, at_most
from lab.simulate.engine import SimulationOptions, simulate
from lab.simulate.policies import find_policy
from lab.simulate.results import RunSummary
from lab.simulate.trace_columns import TraceColumns, read_course
from lab.traces.files import open_writer, read_trace
from lab.traces.generating import generate
from load_watcher.commands.lab.simulated_eviction import evicted

SCENARIO = "daily"
POLICIES = (
    *("LeastAllocated", "TargetLoadPacking", "LoadVariationRiskBalancing", "LowRiskOverCommitment"),
    "LoadAwareScheduling",
)
GOAL_S = 120.0
GOAL_PODS = 20_000

Found = TypeVar("Found")


def timed(call: Callable[[], Found]) -> tuple[Found, float]:
    """Return the result and the CPU seconds."""
    began = time.process_time()
    found = call()
    return found, time.process_time() - began


def write(path: Path, *, nodes: int, pods: int, hours: float) -> int:
    """Generate the trace; return its size in bytes."""
    with open_writer(path) as writer:
        for record in generate(SCENARIO, nodes=nodes, pods=pods, seed=1, hours=hours):
            writer.write(record)
    return path.stat().st_size


def read(path: Path) -> TraceColumns:
    """Return the trace as columns."""
    return read_course(read_trace(path))


def place(course: TraceColumns, name: str) -> RunSummary:
    """Run one policy, including the evictions that it would need."""
    policy, _ = find_policy(name, {}, cwd=Path())
    return simulate(course, policy, SimulationOptions(), evictor=partial(evicted, watermark=90.0)).summary()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=GOAL_PODS)
    parser.add_argument("--hours", type=float, default=24.0)
    options = parser.parse_args()
    title = f"{options.nodes:,} nodes, {options.pods:,} pods, {options.hours:g} hours in steps of a minute"
    table = Table(title, ["", "CPU", "goal", "decisions per second"])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.csv.gz"
        size, taken = timed(partial(write, path, nodes=options.nodes, pods=options.pods, hours=options.hours))
        table.add(f"generating the trace, {size / 1e6:.1f} MB", amount(taken, "s"), "", "")
        course, taken = timed(partial(read, path))
        table.add("reading the trace", amount(taken, "s"), "", "")
    for name in POLICIES:
        summary, taken = timed(partial(place, course, name))
        goal = at_most(taken, GOAL_S, "s") if options.pods == GOAL_PODS else ""
        table.add(name, amount(taken, "s"), goal, amount(summary.pods / taken))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
    table.notes.append(f"One core, scenario {SCENARIO}, the planner's evictions included. Peak memory: {peak:,.0f} MB.")
    print(table.markdown())


if __name__ == "__main__":
    main()
