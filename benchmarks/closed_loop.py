"""Placement by windows and by forecasts in a closed loop: several traces under all policies, and paired differences.

    python -m benchmarks.closed_loop weekly --png closed-loop.png
    python -m benchmarks.closed_loop bitbrains --data DIRECTORY --runs bitbrains.csv
    python -m benchmarks.closed_loop planetlab --data DIRECTORY --seeds 5 --policy HighLoad --policy HighLoad:forecast

`weekly` is the scenario of `load-watcher simulate --generate`; the other traces are pods with the load of VMs
(`benchmarks.vm_pods`), from the files that `python -m benchmarks.bench_backtest` reads. Overloaded pods are throttled.
The first day does not count, because there are no forecasts. A difference is that of the same trace with forecasts and
with windows; its interval is the mean ± t * standard error (95 %, Student). Ten traces take an hour on an idle core:
`--runs FILE` keeps what is done, and continues there.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import statistics
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.bench_backtest import DAYS, SIZES, USAGE
from benchmarks.report import Table
from benchmarks.vm_pods import vm_trace
from lab.backtest.layouts import read_bitbrains, read_planetlab
from lab.simulate.engine import SimulationOptions, simulate
from lab.simulate.policies import find_policy
from lab.simulate.trace_columns import TraceColumns, read_course
from lab.traces.generating import generate
from lab.traces.records import Record
from watcher.core.intervals import student_975

BASELINES = ("Random", "PowerOfTwoChoices", "LeastAllocated", "DefaultScheduler")
BY_WINDOWS = ("Packing", "Packing80", "Risk")
BY_BOTH = ("LoadAwareScheduling", "LoadAware95", "HighLoad", "HighLoad95")
FORECAST = ":forecast"
POLICIES = (*BASELINES, *BY_WINDOWS, *(name + suffix for name in BY_BOTH for suffix in ("", FORECAST)))
CONFIG = Path(__file__).parent.parent / "docs" / "examples" / "simulation.toml"
PODS_PER_NODE = 100  # over nine days, in the scenario; some 18 at a time
DAY_MINUTES = 1440


@dataclass(frozen=True, slots=True)
class ClosedLoopOptions:
    """What the traces are made of; `data` is the directory of recorded load."""

    trace: str
    nodes: int
    days: int
    data: Path | None


@dataclass(frozen=True, slots=True)
class LoopResult:
    """One policy on one trace, from the second day on: node-minutes of overload, mean of nodes used, core-hours of
    demand beyond the nodes' capacity, hours by which pods ended later (in the whole trace), and hours in which pods
    waited for a node."""

    policy: str
    seed: int
    overload: int
    nodes_used: float
    unmet_core_hours: float
    late_hours: float
    waiting_hours: float


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """A mean difference, half the width of its interval, and the number of seeds in which it is positive."""

    mean: float
    interval: float
    worse: int

    def __str__(self) -> str:
        return f"{self.mean:+,.0f} ± {self.interval:,.0f}"


def difference(pairs: Sequence[tuple[float, float]]) -> PairedDifference:
    """Compare (before, after) of at least two seeds."""
    found = [after - before for before, after in pairs]
    interval = student_975(len(found) - 1) * statistics.stdev(found) / math.sqrt(len(found))
    return PairedDifference(statistics.fmean(found), interval, sum(each > 0.0 for each in found))


def records_of(options: ClosedLoopOptions, seed: int) -> Iterator[Record]:
    nodes, days = options.nodes, options.days
    if options.trace == "weekly":
        pods = PODS_PER_NODE * nodes * days // 9
        return generate(options.trace, nodes=nodes, pods=pods, seed=seed, hours=24.0 * days)
    assert options.data is not None
    if options.trace == "bitbrains":
        grid = read_bitbrains(options.data / USAGE, options.data / SIZES)
    else:
        grid = read_planetlab(options.data / DAYS)
    return vm_trace(grid, nodes=nodes, seed=seed, days=days)


def run(work: tuple[int, Sequence[str]], options: ClosedLoopOptions) -> list[LoopResult]:
    """Simulate policies on the trace of a seed."""
    seed, names = work
    if not names:
        return []
    course = read_course(records_of(options, seed))
    profiles = tomllib.loads(CONFIG.read_text())["scheduler"]
    return [_run_policy(name, seed, course, profiles) for name in names]


def _run_policy(name: str, seed: int, course: TraceColumns, profiles: Mapping[str, Any]) -> LoopResult:
    policy, _ = find_policy(name, profiles, cwd=CONFIG.parent)
    found = simulate(course, policy, SimulationOptions(seed=seed, throttle=True))
    summary, series, rest = found.summary(), found.series, slice(min(DAY_MINUTES, course.minutes - 1), None)
    return LoopResult(
        name,
        seed,
        int(found.minutes().overloaded[rest].sum()),
        float(series.used[rest].mean()),
        float(series.unmet[rest].sum() / 60.0),
        summary.throttled_hours,
        float(series.waiting[rest].sum() / 60.0),
    )


# --- output ----------------------------------------------------------------------------------------------------------


def table_of(options: ClosedLoopOptions, results: Sequence[LoopResult]) -> Table:
    """One row for each policy, with the differences of forecasts from windows."""
    by_policy: dict[str, list[LoopResult]] = {}
    for each in results:
        by_policy.setdefault(each.policy, []).append(each)
    seeds = len({each.seed for each in results})
    title = f"{options.trace}: {options.nodes} nodes, {options.days} days, {seeds} traces"
    columns = ["policy", "overload, node-minutes", "difference", "traces worse", "nodes used", "difference"]
    columns += ["unmet core-hours", "difference", "pods waiting, mean"]
    table = Table(title, columns)
    for name, runs in by_policy.items():
        overload, used, worse, unmet = "", "", "", ""
        if name.endswith(FORECAST) and (before := by_policy.get(name.removesuffix(FORECAST))):
            found = difference([(a.overload, b.overload) for a, b in zip(before, runs, strict=True)])
            nodes = difference([(a.nodes_used, b.nodes_used) for a, b in zip(before, runs, strict=True)])
            overload, worse = str(found), f"{found.worse}"
            used = f"{nodes.mean:+.1f} ± {nodes.interval:.1f}"
            unmet = str(
                difference([(a.unmet_core_hours, b.unmet_core_hours) for a, b in zip(before, runs, strict=True)])
            )
        means = [statistics.fmean(getattr(each, one) for each in runs) for one in MEANS]
        waiting = means[3] / (24.0 * max(1, options.days - 1))
        row = (f"{means[0]:,.0f}", overload, worse, f"{means[1]:.1f}", used, f"{means[2]:,.0f}", unmet)
        table.add(name, *row, f"{waiting:,.0f}")
    return table


MEANS = ("overload", "nodes_used", "unmet_core_hours", "waiting_hours")


def draw(path: Path, results: Sequence[LoopResult]) -> None:
    """Draw the mean overload against the mean number of nodes used, with an arrow from windows to forecasts."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 5.2), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    place = {}
    for name in dict.fromkeys(each.policy for each in results):
        runs = [each for each in results if each.policy == name]
        place[name] = tuple(statistics.fmean(getattr(each, one) for each in runs) for one in MEANS[:2])
    for name, (overload, used) in place.items():
        ahead = name.endswith(FORECAST)
        axes.scatter(used, overload + 1.0, color="#D55E00" if ahead else "#0072B2", zorder=3)
        if ahead and name.removesuffix(FORECAST) in place:
            old, before = place[name.removesuffix(FORECAST)]
            axes.annotate(
                "", (used, overload + 1.0), (before, old + 1.0), arrowprops={"arrowstyle": "->", "color": "#888"}
            )
        else:
            axes.annotate(name, (used, overload + 1.0), (6, 4), textcoords="offset points", fontsize=9)
    axes.set_yscale("log")
    axes.set_xlabel("nodes used, mean")
    axes.set_ylabel("overload + 1, node-minutes")
    axes.set_title("Blue: windows and baselines; orange: forecasts", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Software": None})


def as_csv(results: Sequence[LoopResult], *, header: bool = True) -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(LoopResult.__dataclass_fields__), lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(asdict(each) for each in results)
    return text.getvalue()


def read_runs(path: Path) -> list[LoopResult]:
    """Read what `as_csv` wrote; a missing file has no runs."""
    with path.open(newline="") if path.exists() else io.StringIO() as file:
        return [msgspec.convert(row, LoopResult, strict=False) for row in csv.DictReader(file)]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.closed_loop", description=__doc__.partition("\n")[0])
    parser.add_argument("trace", choices=("weekly", "bitbrains", "planetlab"))
    parser.add_argument("--data", type=Path, help="directory of the recorded load")
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--days", type=int, default=9)
    parser.add_argument("--seeds", type=int, default=10, choices=range(2, 21), metavar="2..20")
    parser.add_argument("--policy", action="append", choices=POLICIES, metavar="NAME", help="default: all of them")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--runs", type=Path, help="CSV file of the runs of this trace, to continue")
    parser.add_argument("--png", type=Path, help="picture to write")
    parser.add_argument("-o", "--output", choices=("text", "json", "csv"), default="text")
    given = parser.parse_args()
    needed = {"bitbrains": (USAGE, SIZES), "planetlab": (DAYS,)}.get(given.trace, ())
    if needed and given.data is None:
        parser.error(f"the load of {given.trace} is missing: add --data DIRECTORY, with {' and '.join(needed)}")
    if missing := [name for name in needed if not (given.data / name).is_file()]:
        parser.error(f"--data {given.data} does not contain {' and '.join(missing)}")
    return given


def measure(given: argparse.Namespace, options: ClosedLoopOptions) -> list[LoopResult]:
    """Run what is missing in `--runs`; return all runs of the wanted policies, by policy and seed."""
    wanted, seeds = given.policy or POLICIES, range(1, given.seeds + 1)
    results = read_runs(given.runs) if given.runs is not None else []
    done = {(each.policy, each.seed) for each in results}
    work = [(seed, [name for name in wanted if (name, seed) not in done]) for seed in seeds]
    with ProcessPoolExecutor(given.processes) as pool:
        for seed, found in enumerate(pool.map(partial(run, options=options), work), 1):
            if given.runs is not None and found:
                header = not given.runs.exists()
                with given.runs.open("a") as file:
                    file.write(as_csv(found, header=header))
            results += found
            print(f"{seed} of {given.seeds} traces", file=sys.stderr)
    chosen = [each for each in results if each.policy in wanted and each.seed in seeds]
    return sorted(chosen, key=lambda each: (POLICIES.index(each.policy), each.seed))


def main() -> None:
    given = arguments()
    options = ClosedLoopOptions(given.trace, given.nodes, given.days, given.data)
    results = measure(given, options)
    if given.png is not None:
        draw(given.png, results)
    if given.output == "json":
        print(json.dumps({**asdict(options), "data": str(given.data or ""), "results": [asdict(r) for r in results]}))
    elif given.output == "csv":
        print(as_csv(results), end="")
    else:
        print(table_of(options, results).markdown())


if __name__ == "__main__":
    main()
