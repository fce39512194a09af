"""Balancers in a closed loop: several traces under each balancer, and paired differences from the default scheduler.

    python -m benchmarks.balancing daily
    python -m benchmarks.balancing --data DIRECTORY --runs balancing.csv

Without the name of a scenario, all run: `daily`, `weekly` and `overcommit` of `load-watcher simulate --generate`, and
`recorded`, pods with the load of VMs (`benchmarks.vm_pods`), from the files that `python -m benchmarks.bench_backtest`
reads. The placement is that of the default scheduler; TargetLoadPacking, without a balancer, is there for comparison.
In traces of several days, the first day does not count; those of one day have no forecasts. After the last change of
demand, each trace continues for three hours with constant demand, in which only the time to the last eviction counts.
All runs take 50 minutes on an idle core: `--runs FILE` keeps what is done, and continues there.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from functools import partial
from itertools import pairwise
from pathlib import Path

import msgspec

from benchmarks.bench_backtest import SIZES, USAGE
from benchmarks.closed_loop import DAY_MINUTES, PairedDifference, difference
from benchmarks.report import Table
from benchmarks.vm_pods import vm_trace
from lab.backtest.layouts import read_bitbrains
from lab.balancers.registry import BALANCERS
from lab.simulate.constant_demand import with_constant_demand
from lab.simulate.engine import SimulationOptions, simulate
from lab.simulate.policies import find_policy
from lab.simulate.results import BalancingResult, SimulationRun
from lab.simulate.trace_columns import TraceColumns, read_course
from lab.traces.generating import generate
from lab.traces.records import Record
from watcher.core.intervals import student_975

ALONE = "DefaultScheduler"
PLACEMENT = "TargetLoadPacking"
NAMES = (ALONE, PLACEMENT, *BALANCERS)
DAY_S = 86_400.0
REST_S = 10_800.0


@dataclass(frozen=True, slots=True)
class BalancedScenario:
    """A trace of `days` with `pods` pods in total; recorded ones have as many pods as fit."""

    nodes: int
    days: int
    pods: int = 0


SCENARIOS = {
    "daily": BalancedScenario(50, 1, 1000),
    "weekly": BalancedScenario(20, 5, 1100),
    "overcommit": BalancedScenario(50, 1, 1000),
    "recorded": BalancedScenario(30, 3),
}


@dataclass(frozen=True, slots=True)
class BalancingRun:
    """One balancer on one trace: node-minutes of overload, evictions, pods that were evicted twice within a day, the
    minutes from the last change of demand to the last eviction, core-hours that evicted pods did not do or repeated,
    the mean share of tainted nodes, and the changes of marks per node and day."""

    scenario: str
    name: str
    seed: int
    overload: int
    moves: int
    moved_twice: int
    rest_minutes: float
    lost_core_hours: float
    tainted: float
    patches: float


def records_of(scenario: str, seed: int, data: Path | None) -> Iterator[Record]:
    of = SCENARIOS[scenario]
    if scenario != "recorded":
        return generate(scenario, nodes=of.nodes, pods=of.pods, seed=seed, hours=24.0 * of.days)
    assert data is not None
    return vm_trace(read_bitbrains(data / USAGE, data / SIZES), nodes=of.nodes, seed=seed, days=of.days)


def run(work: tuple[str, int, Sequence[str]], data: Path | None) -> list[BalancingRun]:
    """Simulate balancers on the trace of a scenario and seed."""
    scenario, seed, names = work
    if not names:
        return []
    course = read_course(records_of(scenario, seed, data))
    ends = course.begins + SCENARIOS[scenario].days * DAY_S
    course = with_constant_demand(course, since=ends, until=ends + REST_S)
    return [_run(scenario, seed, name, course, ends) for name in names]


def _run(scenario: str, seed: int, name: str, course: TraceColumns, ends: float) -> BalancingRun:
    policy, _ = find_policy(name if name == PLACEMENT else ALONE, {}, cwd=Path())
    balancer = BALANCERS[name]() if name in BALANCERS else None
    found = simulate(course, policy, SimulationOptions(seed=seed), balancer=balancer)
    days = SCENARIOS[scenario].days
    counted = slice(DAY_MINUTES if days > 1 else 0, days * DAY_MINUTES)
    overload = int(found.minutes().overloaded[counted].sum())
    if found.balancing is None:
        return BalancingRun(scenario, name, seed, overload, 0, 0, 0.0, 0.0, 0.0, 0.0)
    return _counted(found, found.balancing, counted, ends, scenario=scenario, name=name, seed=seed, overload=overload)


def _counted(
    found: SimulationRun,
    of: BalancingResult,
    counted: slice,
    ends: float,
    *,
    scenario: str,
    name: str,
    seed: int,
    overload: int,
) -> BalancingRun:
    begins = found.begins + 60.0 * counted.start
    times: dict[int, list[float]] = {}
    for move in of.moves:
        if begins <= move.time < ends:
            times.setdefault(move.pod, []).append(move.time)
    last = max((move.time for move in of.moves), default=ends)
    nodes = SCENARIOS[scenario].nodes
    return BalancingRun(
        scenario,
        name,
        seed,
        overload,
        sum(map(len, times.values())),
        sum(any(after - before < DAY_S for before, after in pairwise(each)) for each in times.values()),
        max(last - ends, 0.0) / 60.0,
        float(of.lost[counted].sum()),
        float(of.marked[counted].mean()) / nodes,
        of.patches / (nodes * (SCENARIOS[scenario].days + REST_S / DAY_S)),
    )


# --- output ----------------------------------------------------------------------------------------------------------


def mean_of(values: Sequence[float]) -> PairedDifference:
    """The mean of at least two seeds, with its interval."""
    half = student_975(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return PairedDifference(statistics.fmean(values), half, 0)


def table_of(scenario: str, results: Sequence[BalancingRun]) -> Table:
    """One row for each balancer, means with 95 % intervals; differences are of the same traces without a balancer."""
    runs = {name: sorted((each for each in results if each.name == name), key=lambda each: each.seed) for name in NAMES}
    of, seeds = SCENARIOS[scenario], len(runs[ALONE])
    columns = [
        "balancer",
        "overload, node-minutes",
        "difference",
        "worse",
        "moves",
        "twice",
        "rest, min",
        "lost, core-h",
    ]
    title = f"{scenario}: {of.nodes} nodes, {of.days} day{'s' if of.days > 1 else ''}, {seeds} traces"
    table = Table(title, [*columns, "tainted, %", "patches"])
    for name, each in runs.items():
        if not each:
            continue
        change = difference([(a.overload, b.overload) for a, b in zip(runs[ALONE], each, strict=True)])
        cells = ["", ""] if name == ALONE else [str(change), str(change.worse)]
        values = [mean_of([float(getattr(run, field)) for run in each]) for field in SHOWN]
        shown = [f"{value.mean:,.0f} ± {value.interval:,.0f}" if value.mean else "0" for value in values[:5]]
        marks = [f"{100.0 * values[5].mean:.0f}", f"{values[6].mean:.0f}"]
        table.add(name, shown[0], *cells, *shown[1:], *marks)
    return table


SHOWN = ("overload", "moves", "moved_twice", "rest_minutes", "lost_core_hours", "tainted", "patches")


def as_csv(results: Sequence[BalancingRun], *, header: bool = True) -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, [each.name for each in fields(BalancingRun)], lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(asdict(each) for each in results)
    return text.getvalue()


def read_runs(path: Path) -> list[BalancingRun]:
    """Read what `as_csv` wrote; a missing file has no runs."""
    with path.open(newline="") if path.exists() else io.StringIO() as file:
        return [msgspec.convert(row, BalancingRun, strict=False) for row in csv.DictReader(file)]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.balancing", description=__doc__.partition("\n")[0])
    parser.add_argument("scenario", nargs="*", metavar="SCENARIO", help=f"{', '.join(SCENARIOS)}; default: all")
    parser.add_argument("--data", type=Path, help="directory of the recorded load")
    parser.add_argument("--seeds", type=int, default=10, choices=range(2, 21), metavar="2..20")
    parser.add_argument("--balancer", action="append", choices=NAMES, metavar="NAME", help="default: all of them")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--runs", type=Path, help="CSV file of the runs, to continue")
    given = parser.parse_args()
    given.scenario = given.scenario or list(SCENARIOS)
    if unknown := set(given.scenario) - set(SCENARIOS):
        parser.error(f"unknown scenario {', '.join(sorted(unknown))}; available: {', '.join(SCENARIOS)}")
    if "recorded" in given.scenario and given.data is None:
        parser.error(f"the load of recorded is missing: add --data DIRECTORY, with {USAGE} and {SIZES}")
    return given


def measure(given: argparse.Namespace) -> list[BalancingRun]:
    """Run what is missing in `--runs`; return all runs of the wanted balancers."""
    wanted = list(dict.fromkeys([ALONE, *(given.balancer or NAMES)]))
    results = read_runs(given.runs) if given.runs is not None else []
    done = {(each.scenario, each.name, each.seed) for each in results}
    keys = [(scenario, seed) for scenario in given.scenario for seed in range(1, given.seeds + 1)]
    work = [
        (*key, [name for name in wanted if (key[0], name, key[1]) not in done and _applies(name, key[0])])
        for key in keys
    ]
    with ProcessPoolExecutor(given.processes) as pool:
        for (scenario, seed), found in zip(keys, pool.map(partial(run, data=given.data), work), strict=True):
            if given.runs is not None and found:
                header = not given.runs.exists()
                with given.runs.open("a") as file:
                    file.write(as_csv(found, header=header))
            results += found
            print(f"{scenario}, seed {seed}", file=sys.stderr)
    return [each for each in results if each.name in wanted and (each.scenario, each.seed) in keys]


def _applies(name: str, scenario: str) -> bool:
    """Whether a trace is long enough for the forecasts of a balancer."""
    return SCENARIOS[scenario].days > 1 or name not in BALANCERS or not BALANCERS[name]().horizon


def main() -> None:
    given = arguments()
    results = measure(given)
    for scenario in given.scenario:
        print(table_of(scenario, [each for each in results if each.scenario == scenario]).markdown())


if __name__ == "__main__":
    main()
