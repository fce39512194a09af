"""Duration of `load-watcher report` over seven days of a generated cluster, in a real Prometheus.

    python -m benchmarks.bench_report                       # 40, 200 and 1,000 nodes: ten minutes
    python -m benchmarks.bench_report --nodes 200 --raw     # the node exporter's counters instead of recording rules
    python -m benchmarks.bench_report --keep DIRECTORY      # keep the data of Prometheus, or use what is there

The blocks are written by history/main.go, which needs Go: 1,000 nodes with 20 pods each, scraped every 60 s, have 2.8
billion samples (5 GB). Prometheus and the report share the CPUs of the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import Table, amount, at_most
from tests.real.parts import Prometheus

SOURCE = Path(__file__).with_name("history")
GOAL_S, GOAL_NODES = 60.0, 1000
HOUR_S = 3600


@dataclass(frozen=True)
class Cost:
    """Wall time and CPU time in seconds, memory in MB, and the JSON document of the report."""

    wall: float
    own_cpu: float
    server_cpu: float
    own_mb: float
    document: dict[str, Any]


def build(directory: Path) -> Path:
    """Build the program that writes blocks. Raises CalledProcessError, FileNotFoundError without Go."""
    program = directory / "history"
    compiler = shutil.which("go") or "/usr/local/go/bin/go"
    subprocess.run([compiler, "build", "-o", program, "."], check=True, cwd=SOURCE)
    return program


def generate(program: Path, data: Path, *arguments: str) -> dict[str, int]:
    """Write the blocks to `data`, unless they are there; return the numbers of series and samples, and the end."""
    made = data.with_suffix(".json")
    if not made.exists():
        end = str(int(time.time()) // HOUR_S * HOUR_S)
        command = [str(program), "-end", end, "-out", str(data), *arguments]
        made.write_text(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    found: dict[str, int] = json.loads(made.read_text())
    return found


def report(server: Prometheus, folder: Path, *, end: int, days: float) -> Cost:
    page = folder / "report.html"
    command = [sys.executable, "-m", "load_watcher", "report", "--prometheus", server.url, "--days", str(days)]
    command += ["--end", str(end), "--file", str(page)]
    began, server_before = time.monotonic(), server.cpu_seconds()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)  # with the processes of its simulation; `ru_maxrss` is of the largest
    wall = time.monotonic() - began
    if process.returncode is None:
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    document = json.loads(page.with_suffix(".json").read_text())
    own = used.ru_utime + used.ru_stime
    return Cost(wall, own, server.cpu_seconds() - server_before, used.ru_maxrss / 1024.0, document)


@contextmanager
def folder_of(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="bench-report-") as made:
        yield Path(made)


def measure(program: Path, folder: Path, nodes: int, options: argparse.Namespace) -> tuple[dict[str, int], Cost]:
    """Measure one size; the data is in a folder of the same name as long as it is kept."""
    given = {"nodes": nodes, "pods": options.pods, "interval": options.interval, "days": options.days + 0.1}
    own = folder / f"{nodes}x{options.pods}-{options.interval}{'-raw' if options.raw else ''}"
    flags = [f"-{name}={value}" for name, value in given.items()] + (["-raw"] if options.raw else [])
    made = generate(program, own / "tsdb", *flags)
    with Prometheus(own, flags=["--storage.tsdb.retention.time=15d"]) as server:
        return made, report(server, own, end=made["ends"], days=options.days)


def add_row(table: Table, nodes: int, made: dict[str, int], cost: Cost) -> None:
    queries = cost.document["queries"]
    table.add(
        f"{nodes:,} nodes",
        amount(made["samples"] / 1e6, "million"),
        f"{sum(each['requests'] for each in queries):,}",
        amount(sum(each["values"] for each in queries) / 1e6, "million"),
        amount(cost.server_cpu, "s"),
        amount(cost.own_cpu, "s"),
        amount(cost.own_mb, "MB"),
        amount(cost.wall, "s"),
        at_most(cost.wall, GOAL_S, "s") if nodes == GOAL_NODES else "",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[40, 200, 1000])
    parser.add_argument("--pods", type=int, default=20, help="running pods per node")
    parser.add_argument("--interval", type=int, default=60, help="seconds between scrapes")
    parser.add_argument("--days", type=float, default=7.0)
    parser.add_argument("--raw", action="store_true", help="no recording rules: 8 CPUs per node as raw counters")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="keep the blocks here, or use those of a run")
    options = parser.parse_args()
    source = "raw counters of 8 CPUs per node" if options.raw else "recording rules"
    title = (
        f"Report over {options.days:g} days, {options.pods} pods per node, scraped every {options.interval} s, {source}"
    )
    columns = ["", "stored samples", "requests", "values read", "CPU of Prometheus", "CPU of the report"]
    table = Table(title, [*columns, "memory", "wall time", "goal"])
    with folder_of(options.keep) as folder:
        program = build(folder)
        for nodes in options.nodes:
            add_row(table, nodes, *measure(program, folder, nodes, options))
    print(table.markdown())


if __name__ == "__main__":
    main()
