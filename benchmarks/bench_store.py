"""Cost of the store: one day of three windows and four columns per minute, and the samples of six metrics, for several
numbers of nodes. Generates the tables of a stored day in docs/concepts/performance.md.

    python -m benchmarks.bench_store                      # realistic load, 1,000 and 5,000 nodes, 24 hours: 3 minutes
    python -m benchmarks.bench_store --nodes 20000 50000 --hours 3
    python -m benchmarks.bench_store --data noise         # every sample anywhere between 0 and 100

Saves are submitted as fast as the writer accepts them, so the percentiles include saves during the compaction of an
hour.
"""

import argparse
import asyncio
import json
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from benchmarks.report import Table, amount
from watcher.core.windows.records import SampleBlock, TickRecord, WindowRecord
from watcher.model import METRICS, Operator, Provenance, Window
from watcher.store import codec
from watcher.store.codec import Grid
from watcher.store.settings import StoreSettings
from watcher.store.store import Store

ROOT = Path(__file__).resolve().parents[1]
WINDOWS = (Window("5m", 300), Window("10m", 600), Window("15m", 900))
RESOLUTION = 15
ROWS = 60
START = 1_700_000_000 // 3600 * 3600
COLUMNS = tuple((metric.name, operator) for metric in METRICS[:2] for operator in (Operator.AVG, Operator.STD))
SAMPLED = METRICS[:6]
PROVENANCE = {metric.name: Provenance("Prometheus", metric.name, "percent", 300.0) for metric in SAMPLED}


class Fleet:
    """Load of n nodes, slot by slot. smooth: an individual level per node, a daily swing, and autocorrelated noise;
    noise: independent samples between 0 and 100."""

    def __init__(self, nodes: int, data: str) -> None:
        self.names = tuple(
            f"ip-10-{i // 65536}-{i // 256 % 256}-{i % 256}.eu-central-1.compute.internal" for i in range(nodes)
        )
        self._random = np.random.default_rng(7)
        self._smooth = data == "smooth"
        self._level = self._random.uniform(10, 60, (2, nodes))
        self._phase = self._random.random((2, nodes))
        self._drift = np.zeros((2, nodes))
        self._ring = np.stack([self._next(slot) for slot in range(-ROWS, 0)])
        self._jitter = self._random.integers(0, 1000 * RESOLUTION, nodes).astype(np.uint16)

    def _next(self, slot: int) -> Any:
        shape = self._level.shape
        if not self._smooth:
            return self._random.uniform(0, 100, shape)
        self._drift = 0.8 * self._drift + self._random.normal(0, 3, shape)
        swing = 8 * np.sin(2 * np.pi * (slot * RESOLUTION / 86400 + self._phase))
        return np.clip(self._level + swing + self._drift, 0, 100)

    def minute(self, minute: int) -> TickRecord:
        """Return the tick after four more slots."""
        first = 4 * minute
        for slot in range(first, first + 4):
            self._ring[slot % ROWS] = self._next(slot)
        when = START + 60 * minute + 60
        order = np.arange(first + 4 - ROWS, first + 4)[::-1] % ROWS
        newest = self._ring[order]
        records = tuple(
            WindowRecord(window, when, self.names, COLUMNS, _columns(newest[: window.seconds // RESOLUTION]))
            for window in WINDOWS
        )
        # A fetch overlaps the previous ones, so the last two blocks are written again.
        blocks = tuple(
            SampleBlock(
                metric.name,
                START // RESOLUTION + slot,
                self.names,
                np.ascontiguousarray(self._ring[np.arange(slot, slot + 4) % ROWS, which % 2]),
                np.broadcast_to(self._jitter, (4, len(self.names))) // 1,
            )
            for which, metric in enumerate(SAMPLED)
            for slot in (first - 8, first - 4, first)
        )
        return TickRecord(when + 0.5, when - 0.25, "Prometheus", RESOLUTION, WINDOWS, PROVENANCE, blocks, records)


def _columns(samples: Any) -> Any:
    average, deviation = samples.mean(axis=0), samples.std(axis=0)
    return np.stack([average[0], deviation[0], average[1], deviation[1]]).astype(np.float32)


async def measure(nodes: int, hours: float, data: str) -> dict[str, float]:
    """Return all values of the table for one size."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "load-watcher.db"
        store = _store_at(path)
        await store.open()
        slices = _timed_slices(store)
        saved, cpu = await _save_all(store, Fleet(nodes, data), minutes=round(60 * hours) - 1)
        answers = [answer async for answer in _history(store, nodes)]
        await store.close()
        began = time.perf_counter()
        store = _store_at(path)
        await store.open()
        reopened = time.perf_counter() - began
        await store.close()
        size, samples = path.stat().st_size, _samples_size(path)
    return {
        "file, MB": size / 1e6,
        "samples in the file, MB": samples / 1e6,
        "windows, MB per 1,000 nodes and day": (size - samples) / 1e6 / nodes * 1000 / hours * 24,
        "a save, ms: median": 1e3 * statistics.median(saved),
        "a save, ms: 99th percentile": 1e3 * float(np.percentile(saved, 99)),
        "a save, ms of CPU: median": 1e3 * statistics.median(cpu),
        "compaction of a closed hour, all windows, ms": 1e3 * sum(slices) / max(1, round(hours) - 1),
        "longest compaction slice, ms": 1e3 * max(slices),
        "history of a node, ms: median": 1e3 * statistics.median(answers),
        "history of a node, ms: worst of 25": 1e3 * max(answers),
        "opening, with all samples, ms": 1e3 * reopened,
        "peak memory of the process, MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }


def _store_at(path: Path) -> Store:
    return Store(StoreSettings(url=f"sqlite:///{path}", max_size=2**40))


def _timed_slices(store: Store) -> list[float]:
    """Record the seconds of every slice of compaction from now on. Patches a private method, because slices are not
    distinguishable from saves otherwise."""
    slices: list[float] = []
    original = store._tidy

    def timed() -> None:
        began = time.perf_counter()
        original()
        slices.append(time.perf_counter() - began)

    store._tidy = timed  # type: ignore[method-assign]
    return slices


async def _save_all(store: Store, fleet: Fleet, *, minutes: int) -> tuple[list[float], list[float]]:
    saved, cpu = [], []
    for minute in range(minutes):
        record = fleet.minute(minute)
        began, used = time.perf_counter(), time.process_time()
        store.save(record)
        while store.status.last_saved != record.end:
            assert store.status.ok, store.status.error
            await asyncio.sleep(0.0005)
        saved.append(time.perf_counter() - began)
        cpu.append(time.process_time() - used)
    return saved, cpu


async def _history(store: Store, nodes: int) -> Any:
    names = Fleet(nodes, "noise").names
    for index in np.random.default_rng(3).integers(0, nodes, 25):
        began = time.perf_counter()
        found = await store.history(host=names[index], window="15m", start=START, end=START + 86400)
        yield time.perf_counter() - began
        assert len(found) == len(COLUMNS)


def _samples_size(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("SELECT sum(length(payload)) FROM sample_block").fetchone()[0])


def bytes_per_value() -> Table:
    """Return the table of bytes per value of a closed hour with 1,280 nodes."""
    table = Table("Bytes per value of a closed hour", ["values", "bytes", "plain float32, zstd"])
    random = np.random.default_rng(1)
    fleets = {data: Fleet(1280, data) for data in ("smooth", "noise")}
    hours = {
        f"{window.label} windows over {data} load": [fleet.minute(k).records[row].values for k in range(60)]
        for data, fleet in fleets.items()
        for row, window in ((0, WINDOWS[0]), (2, WINDOWS[2]))
    }
    hours["white noise instead of windows"] = [random.uniform(0, 100, (4, 1280)).astype(np.float32) for _ in range(60)]
    for name, minutes in hours.items():
        values = np.stack(minutes)
        chunks = [
            Grid(np.arange(60) * 60, COLUMNS, fleets["noise"].names[at : at + 128], values[:, :, at : at + 128])
            for at in range(0, 1280, 128)
        ]
        size = sum(len(codec.encode_chunk(chunk)) for chunk in chunks)
        plain = sum(len(zstandard.compress(np.ascontiguousarray(chunk.values).tobytes(), 3)) for chunk in chunks)
        table.add(name, f"{size / values.size:.2f}", f"{plain / values.size:.2f}")
    return table


def measured(nodes: int, hours: float, data: str) -> dict[str, float]:
    """Run `measure` in a separate process, so that its peak memory is that of this size."""
    command = [sys.executable, "-m", "benchmarks.bench_store", "--one"]
    arguments = ["--nodes", str(nodes), "--hours", str(hours), "--data", data]
    output = subprocess.run([*command, *arguments], check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout
    found: dict[str, float] = json.loads(output)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000, 5000])
    parser.add_argument("--hours", type=float, default=24)
    parser.add_argument("--data", choices=("smooth", "noise"), default="smooth")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(asyncio.run(measure(options.nodes[0], options.hours, options.data))))
        return
    title = (
        f"{options.hours:g} hours of {options.data} load: {len(WINDOWS)} windows, {len(COLUMNS)} columns per minute, "
        f"samples of {len(SAMPLED)} metrics every {RESOLUTION} s"
    )
    table = Table(title, ["", *(f"{nodes:,} nodes" for nodes in options.nodes)])
    columns = [measured(nodes, options.hours, options.data) for nodes in options.nodes]
    for key in columns[0]:
        table.add(key, *(amount(column[key]) for column in columns))
    print(table.markdown())
    print(bytes_per_value().markdown())


if __name__ == "__main__":
    main()
