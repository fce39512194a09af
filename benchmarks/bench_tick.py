"""Cost of a tick: CPU time by stage, and the longest time that the event loop is blocked.

    python -m benchmarks.bench_tick                        # 5,000 and 50,000 nodes, and a real Prometheus with 5,000
    python -m benchmarks.bench_tick --nodes 500 --real 0

Stages are called as in a tick, and the fastest of several repetitions counts. Whole ticks are those of a Refresher with
a database, with a simulated clock that advances minute by minute. Each size is measured in a separate process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cluster import BEHIND_S, history_until, write_rules
from benchmarks.report import Table, amount, at_most
from benchmarks.source import METRICS, MadeUp, Virtual
from benchmarks.stall import watching
from tests.real.parts import Prometheus
from watcher.core.publishing.compression import deflate
from watcher.core.publishing.documents import Published
from watcher.core.publishing.exposition import View, node_windows
from watcher.core.review import faults, samples
from watcher.core.review.outage import OutageGuard
from watcher.core.review.samples import Reviewed
from watcher.core.windows.history import History
from watcher.core.windows.records import StoredMaxima, TickRecord
from watcher.core.windows.settings import RefreshSettings
from watcher.core.windows.snapshot import take_snapshot
from watcher.model import SeriesBatch, Snapshot
from watcher.platform.interpreter import tune_for_serving
from watcher.sources.base import Provider, provenance
from watcher.sources.prometheus.provider import PrometheusProvider
from watcher.sources.settings import ProviderSettings
from watcher.store.settings import StoreSettings
from watcher.store.store import Store
from watcher.tick.shared import RefreshConfig
from watcher.tick.tick import Refresher

START = 1_700_000_010.0
TICKS = 10
NAIVE_NODES = 500  # a plain computation over more nodes would take minutes
CONFIG = RefreshConfig()
Measured = dict[str, Any]


# --- stages ----------------------------------------------------------------------------------------------------------


def quickest(call: Callable[[], object], *, seconds: float = 1.0) -> float:
    """Return the CPU milliseconds of the fastest of at least three calls, as many as fit into `seconds`."""
    taken: list[float] = []
    give_up = time.monotonic() + seconds
    while len(taken) < 3 or (time.monotonic() < give_up and len(taken) < 50):
        began = time.process_time()
        call()
        taken.append(1e3 * (time.process_time() - began))
    return min(taken)


class Stages:
    """The stages of a tick over a full history."""

    def __init__(self, nodes: int) -> None:
        self.source = MadeUp(nodes)
        self.history = History(resolution=CONFIG.resolution, windows=CONFIG.windows)
        for back in range(15, -1, -1):
            self.take_in(self.source.answer(START - 60.0 * back - 60.0, START - 60.0 * back).batches)
        self.newest = self.source.answer(START - 120.0, START + 60.0)
        self.known = {name: provenance(plan, "Prometheus") for name, plan in self.newest.plans.items()}
        self.snapshot = self.take_snapshot()

    def take_in(self, batches: Sequence[SeriesBatch]) -> None:
        for batch in batches:
            self.history.append(batch.metric, self._reviewed(batch).cells)

    def review(self) -> None:
        """Combine, clean, and check new samples for jumps."""
        for batch in self.newest.batches:
            cells = self._reviewed(batch).cells
            time, value = self.history.newest(batch.metric, cells.names)
            fresh = cells.where(~(cells.time <= time[cells.node]))
            spread = partial(self.history.spread, batch.metric)
            faults.jumps(batch.metric, fresh, previous=value, spread=spread, limits=CONFIG.limits)

    def _reviewed(self, batch: SeriesBatch) -> Reviewed:
        cells, _ = samples.combine(batch, resolution=CONFIG.resolution, limits=CONFIG.limits)
        return samples.clean(batch.metric, cells, now=START + 60.0, limits=CONFIG.limits)

    def windows(self) -> None:
        """Compute AVG, STD, and the other statistics of every window of every metric."""
        order = np.arange(len(self.history.names), dtype=np.int64)
        for metric in self.history.metrics:
            recent = self.history.recent(metric)
            self.history.windows_of(metric, recent=recent, provenance=self.known[metric.name], order=order)

    def take_snapshot(self) -> Snapshot:
        snapshot, _ = take_snapshot(
            self.history,
            now=START + 1.0,
            source="Prometheus",
            provenance=self.known,
            guard=OutageGuard(CONFIG.limits),
            max_staleness=CONFIG.max_staleness,
        )
        return snapshot

    def refresh(self) -> None:
        """Compute windows, then the bodies of every window and shape in every encoding."""
        Published(self.take_snapshot(), tag="t", monotonic=0.0, age_s=1.0).encode_default()

    def exposition(self) -> None:
        """Render the nodes on /metrics, plain and in gzip."""
        deflate(node_windows(self.snapshot, View()))

    def naive_numpy(self) -> None:
        """Compute AVG and STD in the straightforward way with NumPy."""
        for values in self._samples():
            for window in CONFIG.windows:
                rows = values[: window.seconds // CONFIG.resolution]
                np.nanmean(rows, axis=0), np.nanstd(rows, axis=0)

    def naive_python(self) -> None:
        """Compute the same without NumPy, node by node, for NAIVE_NODES nodes."""
        for values in self._samples():
            for column in values.T[:NAIVE_NODES].tolist():
                for window in CONFIG.windows:
                    known = [value for value in column[: window.seconds // CONFIG.resolution] if value == value]
                    statistics.fmean(known)
                    mean = sum(known) / len(known)
                    (sum((value - mean) ** 2 for value in known) / len(known)) ** 0.5

    def _samples(self) -> list[Any]:
        return [self.history.recent(metric).values for metric in self.history.metrics]


def measure_stages(nodes: int) -> Measured:
    """Return CPU milliseconds by stage."""
    stages = Stages(nodes)
    measured = {
        "windows": quickest(stages.windows),
        "refresh": quickest(stages.refresh, seconds=2.0),
        "review": quickest(stages.review),
        "metrics": quickest(stages.exposition),
        "numpy": quickest(stages.naive_numpy),
        "python": quickest(stages.naive_python) * nodes / min(nodes, NAIVE_NODES),
    }
    stages.take_in(stages.newest.batches)
    return measured


# --- whole ticks -----------------------------------------------------------------------------------------------------


class Saving:
    """A store whose pending writes can be awaited, to measure them separately from the tick."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.last: TickRecord | None = None

    def save(self, record: TickRecord) -> None:
        self.last = record

    async def maxima(self, hours: range | None = None) -> list[StoredMaxima]:
        return await self.store.maxima(hours)

    async def write(self) -> float:
        """Return the CPU milliseconds of writing the records of the last tick."""
        began = time.process_time()
        if self.last is not None:
            self.store.save(self.last)
            while self.store.status.last_saved != self.last.end:
                if not self.store.status.ok:
                    raise RuntimeError(self.store.status.error)
                await asyncio.sleep(0.002)
        return 1e3 * (time.process_time() - began)


async def measure_ticks(provider: Provider, *, clock: Virtual, ticks: int) -> Measured:
    """Run real ticks; return CPU, the longest block of the event loop, and its cause."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(StoreSettings(url=f"sqlite:///{folder}/bench.db", max_size=2**40))
        await store.open()
        saving = Saving(store)
        refresher = Refresher(provider=provider, config=CONFIG, store=saving, clock=clock, tag="t")
        await provider.start()
        try:
            await refresher.tick()
            async with watching() as idle:
                await asyncio.sleep(1.0)
            rounds = [await _tick(refresher, saving, clock) for _ in range(ticks)]
        finally:
            await provider.close()
            await refresher.close()
            await store.close()
    worst = max(rounds, key=lambda one: float(one["stall"]))
    return {
        "tick": statistics.median(one["cpu"] for one in rounds),
        "stall": statistics.median(one["stall"] for one in rounds),
        "worst stall": worst["stall"],
        "culprit": worst["culprit"],
        "idle stall": idle.worst,
        "save": statistics.median(one["save"] for one in rounds),
    }


async def _tick(refresher: Refresher, saving: Saving, clock: Virtual) -> Measured:
    clock.pass_time(60.0)
    source = refresher.provider
    if isinstance(source, MadeUp):
        source.prepared = source.answer(clock.now() - 180.0, clock.now())
    before = refresher.published
    async with watching() as stall:
        began = time.process_time()
        await refresher.tick()
        cpu = 1e3 * (time.process_time() - began)
    assert refresher.published is not before, refresher.provider_health.reason
    return {"cpu": cpu, "stall": stall.worst, "culprit": stall.culprit, "save": await saving.write()}


# --- in a separate process -------------------------------------------------------------------------------------------


def measure(nodes: int, *, ticks: int) -> Measured:
    """Measure everything for one size."""
    return {
        **measure_stages(nodes),
        **asyncio.run(measure_ticks(MadeUp(nodes), clock=Virtual(START), ticks=ticks)),
    }


def measure_real(url: str, now: float, *, ticks: int) -> Measured:
    """Run ticks with a Prometheus at `url` whose newest sample is from about `now` (unix seconds); the simulated clock
    starts earlier and ends there."""
    provider = PrometheusProvider(ProviderSettings(address=url, metrics=METRICS), RefreshSettings(resolution=15))
    return asyncio.run(measure_ticks(provider, clock=Virtual(now - 60.0 * ticks), ticks=ticks))


def apart(arguments: Sequence[str]) -> Measured:
    """Return the output of this program in a separate process."""
    command = [sys.executable, "-m", "benchmarks.bench_tick", *arguments]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    measured: Measured = json.loads(output)
    return measured


def real_prometheus(nodes: int, *, ticks: int) -> Measured:
    """Run ticks with a real Prometheus that has recording rules for `nodes` nodes."""
    with tempfile.TemporaryDirectory() as folder, Prometheus(Path(folder)) as prometheus:
        now = time.time()
        write_rules(prometheus, history_until(now, nodes, seconds=960.0 + 60.0 * ticks))
        arguments = ["--one-real", prometheus.url, "--at", f"{now - BEHIND_S:.3f}", "--ticks", str(ticks)]
        return apart(arguments)


# --- the tables ------------------------------------------------------------------------------------------------------

STAGES = {
    "windows": "AVG and STD of all windows",
    "refresh": "full refresh: windows, encode, compress, publish",
    "review": "review of a fetch: combine, clean, jumps",
    "metrics": "/metrics of the nodes, once per snapshot",
    "save": "store a tick (in a separate thread)",
    "tick": "whole tick, review to publish",
}
GOALS = {("windows", 5000): 50.0, ("refresh", 5000): 150.0, ("refresh", 50_000): 1500.0}


def stage_table(results: Mapping[int, Measured]) -> Table:
    """Return the table of CPU by stage and size."""
    columns = [part for nodes in results for part in (f"{nodes:,} nodes", "goal")]
    table = Table(
        f"CPU milliseconds of a tick, {len(METRICS)} metrics, windows of 5, 10 and 15 minutes", ["", *columns]
    )
    for key, words in STAGES.items():
        cells: list[str] = []
        for nodes, measured in results.items():
            goal = GOALS.get((key, nodes))
            cells += [amount(measured[key], "ms"), at_most(measured[key], goal, "ms") if goal else ""]
        table.add(words, *cells)
    for key, words in {"numpy": "NumPy's nanmean and nanstd", "python": "a Python loop over the nodes"}.items():
        cells = []
        for measured in results.values():
            cells += [amount(measured[key], "ms"), f"{measured[key] / measured['windows']:.1f} × windows"]
        table.add(f"AVG and STD of all windows by {words}", *cells)
    table.notes.append(
        "The windows of load-watcher include counts, coverage, sample intervals, Latest. The Python loop is scaled "
        f"from {NAIVE_NODES} nodes."
    )
    return table


def stall_table(results: Mapping[str, Measured]) -> Table:
    """Return the table of the longest blocks of the event loop."""
    table = Table(
        "Longest time that a tick blocks the event loop",
        ["", "median tick", "worst tick", "goal", "idle", "CPU of a tick", "caused by"],
    )
    for name, measured in results.items():
        table.add(
            name,
            amount(measured["stall"], "ms"),
            amount(measured["worst stall"], "ms"),
            at_most(measured["worst stall"], 30.0, "ms") if "50,000" not in name else "",
            amount(measured["idle stall"], "ms"),
            amount(measured["tick"], "ms"),
            measured["culprit"] or "–",
        )
    return table


def main() -> None:
    tune_for_serving()  # as the service does
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[5000, 50_000])
    parser.add_argument(
        "--real", type=int, default=5000, help="number of nodes in the real Prometheus; 0 skips it (default 5000)"
    )
    parser.add_argument("--ticks", type=int, default=TICKS)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--one-real", help=argparse.SUPPRESS)
    parser.add_argument("--at", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(measure(options.one, ticks=options.ticks)))
        return
    if options.one_real is not None:
        print(json.dumps(measure_real(options.one_real, options.at, ticks=options.ticks)))
        return
    results = {nodes: apart(["--one", str(nodes), "--ticks", str(options.ticks)]) for nodes in options.nodes}
    print(stage_table(results).markdown())
    stalls = {f"{nodes:,} nodes, prepared samples": measured for nodes, measured in results.items()}
    if options.real:
        stalls[f"{options.real:,} nodes, real Prometheus, rules"] = real_prometheus(options.real, ticks=options.ticks)
    print(stall_table(stalls).markdown())


if __name__ == "__main__":
    main()
