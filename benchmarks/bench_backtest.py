"""Quality of forecasts on real traces: `load-watcher forecast backtest` for several seeds, machines and horizons.

    python -m benchmarks.bench_backtest --data DIRECTORY     # two minutes
    LOAD_WATCHER_TRACES=DIRECTORY python -m benchmarks.bench_backtest

DIRECTORY has bitbrains-usage.csv.gz, bitbrains-vms.csv.gz and planetlab-cpu.csv.gz, which are not part of the project:
the help of the command names their columns. Without them, the benchmark prints what is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import MISSED, REACHED, Table, at_least, at_most

USAGE, SIZES, DAYS = "bitbrains-usage.csv.gz", "bitbrains-vms.csv.gz", "planetlab-cpu.csv.gz"
LEVELS = (0.8, 0.9, 0.95, 0.99)
LOWEST, HIGHEST = 93.0, 97.0


def backtest(*arguments: str) -> dict[str, Any]:
    """Run the command and return its JSON. Raises CalledProcessError."""
    command = [sys.executable, "-m", "load_watcher", "forecast", "backtest", *arguments, "-o", "json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return dict(json.loads(done.stdout))


def bitbrains(data: Path, *arguments: str) -> dict[str, Any]:
    return backtest(str(data / USAGE), "--layout", "bitbrains", "--vms", str(data / SIZES), *arguments)


def share(value: float | None) -> str:
    return "–" if value is None else f"{100.0 * value:.2f} %"


def predictors(title: str, found: dict[str, Any]) -> Table:
    """A row for each predictor."""
    table = Table(title, ["", "history", "level", "violations", "mean severity", "p99 severity", "savings"])
    for row in (*found["rows"], found["chosen"]):
        history, level = row["history_s"], row["level"]
        table.add(
            row["predictor"].replace("_", " "),
            "–" if history is None else f"{history / 3600:g} h",
            "–" if level is None else f"{100.0 * level:g} %",
            *(share(row[name]) for name in ("violations", "mean_severity", "p99_severity", "savings")),
        )
    return table


def goals(found: Sequence[dict[str, Any]]) -> Table:
    """The goal at level 0.95 and 6 h, for each seed."""
    table = Table("Level 95 %, 6 h, 8 VMs per machine", ["seed", "result", "goal"])
    for seed, each in enumerate(found, 1):
        chosen = each["chosen"]
        coverage, lowest = 100.0 * (1.0 - chosen["violations"]), 100.0 * chosen["lowest_machine_coverage"]
        inside = REACHED if LOWEST <= coverage <= HIGHEST else MISSED
        severity, saved = 100.0 * chosen["mean_severity"], 100.0 * chosen["savings"]
        table.add(f"{seed}: coverage", f"{coverage:.1f} %", f"{LOWEST:g}–{HIGHEST:g} %: {inside}")
        table.add(f"{seed}: stated coverage", share(chosen["stated_coverage"]), "")
        table.add(f"{seed}: lowest coverage of a machine", f"{lowest:.1f} %", at_least(lowest, 85.0, " %"))
        table.add(f"{seed}: mean severity", f"{severity:.2f} %", at_most(severity, 0.5, "%"))
        table.add(f"{seed}: savings", f"{saved:.1f} %", at_least(saved, 50.0, " %"))
    return table


def calibration(data: Path, deals: int) -> Table:
    """Coverage and stated coverage of the shipped predictor for each size of machine, horizon and level."""
    columns = ["VMs per machine, horizon", *(f"level {100.0 * level:g} %" for level in LEVELS)]
    table = Table("Coverage / stated / of the lowest machine", columns)
    for size in (8, 3, 1):
        for horizon in ("1h", "6h", "24h"):
            cells = []
            for level in LEVELS:
                dealt = ("--per-machine", str(size), "--deals", str(deals if size > 1 else 1))
                chosen = bitbrains(data, *dealt, "--horizon", horizon, "--level", str(level))["chosen"]
                shares = (1.0 - chosen["violations"], chosen["stated_coverage"], chosen["lowest_machine_coverage"])
                cells.append(" / ".join(f"{100.0 * each:.1f}" for each in shares))
            table.add(f"{size}, {horizon}", *cells)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("LOAD_WATCHER_TRACES"))
    parser.add_argument("--deals", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    if options.data is None:
        print("The traces are not there: name their directory with --data or in LOAD_WATCHER_TRACES.")
        return
    if missing := [name for name in (USAGE, SIZES, DAYS) if not (options.data / name).is_file()]:
        print(f"{options.data} does not contain {', '.join(missing)}: nothing was measured.")
        raise SystemExit(2)
    deals = ("--deals", str(options.deals))
    found = [bitbrains(options.data, *deals, "--seed", str(seed)) for seed in range(1, options.seeds + 1)]
    print(predictors("Bitbrains, peak of the next 6 h", found[0]).markdown())
    print(goals(found).markdown())
    print(calibration(options.data, options.deals).markdown())
    days = backtest(str(options.data / DAYS), "--layout", "planetlab", "--history", "2h", "--start", "2h", *deals)
    print(predictors("PlanetLab, peak of the next 6 h from 2 h of history", days).markdown())


if __name__ == "__main__":
    main()
