"""Start time: imports, and the time from the start of the process to the first response of GET /watcher.

    python -m benchmarks.bench_start
    python -m benchmarks.bench_start --nodes 100 --rounds 1

The critical start is the one after a crash: the database has the last windows, the source is unavailable, and
schedulers already send requests. Each round is a new process; the median counts.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.bench_size import memory
from benchmarks.cluster import history_until, settings, wait_for_windows, write_rules
from benchmarks.report import Table, amount, at_most
from benchmarks.source import METRICS
from tests.real.parts import REPOSITORY, Prometheus
from tests.real.stored_maxima import fill_week, stored_hours
from tests.service import Service
from tests.waiting import wait_for

PAUSE_S = 0.002
GIVE_UP_S = 60.0
CLEAN = [sys.executable, "-c"]


class Start(NamedTuple):
    """Seconds and CPU seconds from the start of a process to its first 200 of GET /watcher, or to its end."""

    elapsed: float
    cpu: float


class Row(NamedTuple):
    """A line of the table: the start, its goal in seconds, and the peak of the memory in MB once bounds are served."""

    words: str
    start: Start
    goal: float | None = None
    peak: float | None = None


def first_answer(service: Service) -> Start:
    """Start the service and send requests until it responds."""
    began = time.monotonic()
    service.launch()
    while time.monotonic() < began + GIVE_UP_S:
        try:
            if service.get("/watcher").status == 200:
                return Start(time.monotonic() - began, service.cpu_seconds())
        except OSError:  # not listening yet
            pass
        if not service.is_running():
            raise RuntimeError(f"the service exited:\n{service.log()}")
        time.sleep(PAUSE_S)
    raise RuntimeError(f"no response within {GIVE_UP_S:g} s:\n{service.log()}")


def imported(module: str, *, rounds: int) -> Start:
    """Return the time for a new interpreter to start, import the module, and exit."""
    taken = []
    for _ in range(rounds):
        began, used = time.monotonic(), _of_children()
        subprocess.run([*CLEAN, f"import {module}"], check=True, cwd=REPOSITORY)
        taken.append(Start(time.monotonic() - began, _of_children() - used))
    return _medians(taken)


def _of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _medians(starts: Sequence[Start]) -> Start:
    return Start(*map(statistics.median, zip(*starts, strict=True)))


def after_a_crash(folder: Path, *, nodes: int, rounds: int) -> Start:
    """Start with the database of a killed service and without its Prometheus."""
    service = _killed(folder, nodes=nodes)
    return _median(lambda: service, rounds)


def with_a_week(folder: Path, *, nodes: int, rounds: int) -> dict[bool, tuple[Start, float]]:
    """The same with seven days of maxima, with forecasts and without: the start, and the peak of the memory in MB once
    the bounds are served."""
    service = _killed(folder, nodes=nodes)
    asyncio.run(fill_week(f"sqlite:///{service.directory / 'load-watcher.db'}", now=time.time()))
    found: dict[bool, tuple[Start, float]] = {}
    for enabled in (True, False):  # a start without forecasts removes the maxima
        if not enabled:
            text = service.config_file.read_text()
            service.config_file.write_text(f"{text}[forecast]\nenabled = false\n")
        start = _median(lambda: service, rounds)
        service.start()
        if enabled:
            wait_for(lambda: b'"state":"bound"' in service.get("/api/v1/forecasts").body, what="bounds", timeout=60)
        found[enabled] = start, memory("VmHWM", of=service.pid)
        service.kill()
    return found


def _killed(folder: Path, *, nodes: int) -> Service:
    with Prometheus(folder / "prometheus") as prometheus:
        write_rules(prometheus, history_until(time.time(), nodes))
        service = Service(folder / "service", config=settings(prometheus, max_staleness="1h"))
        service.start()
        try:
            wait_for_windows(service, nodes=nodes)
            wait_for_stored(service)
            place = f"sqlite:///{service.directory / 'load-watcher.db'}"
            wait_for(lambda: stored_hours(place) >= 2, what="maxima in the database", timeout=90)
        finally:
            service.kill()
    return service


def wait_for_stored(service: Service) -> None:
    """Wait until the database has the served snapshot: the writer is at most one tick behind."""
    give_up = time.monotonic() + GIVE_UP_S
    while b"load_watcher_store_queued_ticks 0" not in service.get("/metrics").body:
        if time.monotonic() > give_up:
            raise RuntimeError("the database does not store the ticks")
        time.sleep(0.05)


def fresh_host(folder: Path, *, rounds: int) -> Start:
    """Start with an empty database and the load of this machine."""
    starts = iter(range(rounds))
    return _median(lambda: Service(folder / f"host-{next(starts)}", "--provider", "host"), rounds)


def fresh_prometheus(folder: Path, *, nodes: int, rounds: int) -> Start:
    """Start with an empty database and a Prometheus with recording rules."""
    starts = iter(range(rounds))
    with Prometheus(folder / "prometheus") as prometheus:
        write_rules(prometheus, history_until(time.time(), nodes))
        config = settings(prometheus)
        return _median(lambda: Service(folder / f"service-{next(starts)}", config=config), rounds)


def _median(make: Callable[[], Service], rounds: int) -> Start:
    taken = []
    for _ in range(rounds):
        service = make()
        try:
            taken.append(first_answer(service))
        finally:
            service.kill()
    return _medians(taken)


def rows(folder: Path, *, nodes: Sequence[int], rounds: int) -> list[Row]:
    """Measure all starts."""
    few, many = min(nodes), max(nodes)
    crash = [
        Row(
            f"after kill -9, {count:,} nodes in the database, Prometheus down",
            after_a_crash(folder / f"crash-{count}", nodes=count, rounds=rounds),
            0.8,
        )
        for count in dict.fromkeys((few, many))
    ]
    weeks = [
        Row(f"the same with a week of maxima, forecasts {'on' if enabled else 'off'}", start, peak=peak)
        for enabled, (start, peak) in with_a_week(folder / "week", nodes=many, rounds=rounds).items()
    ]
    return [
        Row("Python itself, nothing imported", imported("sys", rounds=rounds)),
        Row("import watcher.client", imported("watcher.client", rounds=rounds)),
        Row("import watcher.service.server and the Prometheus provider", imported(_SERVING, rounds=rounds), 1.0),
        *crash,
        *weeks,
        Row("first start, host provider", fresh_host(folder, rounds=rounds)),
        Row(
            f"first start, Prometheus with {few:,} nodes",
            fresh_prometheus(folder / "fresh", nodes=few, rounds=rounds),
            1.0,
        ),
    ]


_SERVING = "watcher.service.server, watcher.sources.prometheus.provider"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000, 5000])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    table = Table(
        f"From the start of the process to the first 200 of GET /watcher, {len(METRICS)} metrics",
        ["", "time", "goal", "CPU", "peak memory"],
    )
    with tempfile.TemporaryDirectory() as folder:
        for words, start, most, peak in rows(Path(folder), nodes=options.nodes, rounds=options.rounds):
            goal = "" if most is None else at_most(start.elapsed, most, "s")
            memory_used = "" if peak is None else amount(peak, "MB")
            table.add(words, amount(start.elapsed, "s"), goal, amount(start.cpu, "s"), memory_used)
    table.notes.append(
        f"Medians of {options.rounds} starts. Imports are complete interpreter runs. The host provider measures its "
        "first load over half a second, which is the minimum for a start."
    )
    print(table.markdown())


if __name__ == "__main__":
    main()
