"""Cost of the forecasts: CPU per five minutes, the longest time that the event loop waits, memory, and stored bytes.

python -m benchmarks.bench_forecast                  # 5,000 nodes, CPU and memory, seven days, three horizons
python -m benchmarks.bench_forecast --nodes 50000
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import Table, amount
from benchmarks.stall import watching
from watcher.core.forecast.document import forecasts_body
from watcher.core.forecast.fleet import LATE_S, METRICS, FleetForecast
from watcher.core.forecast.maxima import HOUR_SLOTS, SLOT_S, encode
from watcher.core.forecast.settings import ForecastSettings
from watcher.core.windows.records import MaximaHour, TickRecord
from watcher.model import Provenance, Window
from watcher.platform.interpreter import tune_for_serving
from watcher.store.settings import StoreSettings
from watcher.store.store import Store

HOUR = 475_000
NOW = HOUR * 3600 + LATE_S
TICK_S = 60
CELLS = 8  # of a node and metric in a tick: two minutes of slots of 15 s
GOAL_MS, HOLD_MS, MEMORY_MB, STORE_MB = 300.0, 10.0, 26.2, 60.0


def hours_of(nodes: int, days: int) -> list[MaximaHour]:
    """The maxima of all nodes: a level per node, a daily swing, and noise of a few points."""
    random = np.random.default_rng(7)
    names = tuple(f"ip-10-{i // 65536}-{i // 256 % 256}-{i % 256}.eu-central-1.compute.internal" for i in range(nodes))
    level, phase = random.uniform(20, 60, nodes), random.random(nodes)
    hours = []
    for hour in range(HOUR - 24 * days, HOUR):
        swing = 15 * np.sin(2 * np.pi * (hour / 24 + phase))
        for metric in METRICS:
            codes = encode(level + swing + random.normal(0, 4, (HOUR_SLOTS, nodes)))
            hours.append(MaximaHour(metric, hour, names, codes))
    return hours


async def in_thread(work: Callable[[], Any]) -> tuple[float, float]:
    """Run in a thread; return CPU milliseconds, and the longest time in ms that the event loop waited meanwhile."""
    async with watching() as stall:
        began = time.process_time()
        await asyncio.to_thread(work)
        cpu = 1000 * (time.process_time() - began)
    return cpu, stall.worst


def samples(fleet: FleetForecast, nodes: tuple[str, ...]) -> None:
    """One tick: the samples of two minutes of both metrics."""
    node = np.tile(np.arange(len(nodes), dtype=np.int64), CELLS)
    times = NOW + np.repeat(np.arange(CELLS) * 15.0, len(nodes))
    for metric in METRICS:
        fleet.maxima.add(metric, nodes, node, times, np.full(len(node), 30.0))


def advance(fleet: FleetForecast, now: float) -> None:
    for chunk in fleet.due_chunks(now):
        fleet.advance(chunk, now)


async def stored_bytes(hours: list[MaximaHour]) -> int:
    """The size of an SQLite file with these hours."""
    with tempfile.TemporaryDirectory() as directory:
        store = Store(StoreSettings(url=f"sqlite:///{Path(directory) / 'a.db'}"))
        await store.open()
        origin = {metric: Provenance("Prometheus", metric, "percent", 0.0) for metric in METRICS}
        for first in range(0, len(hours), 24):
            part = tuple(hours[first : first + 24])
            store.save(TickRecord(NOW, NOW, "Prometheus", 15, (Window("15m", 900),), origin, (), (), maxima=part))
        await store.close()
        return (Path(directory) / "a.db").stat().st_size


async def measure(nodes: int) -> Table:
    config = ForecastSettings()
    hours = hours_of(nodes, config.history // 86400)
    names = hours[0].nodes
    fleet = FleetForecast(config)
    table = Table(
        f"Forecasts of {nodes:,} nodes, two metrics, three horizons, seven days", ["", "CPU", "longest hold", "goal"]
    )

    def row(name: str, cost: tuple[float, float], goal: str = "") -> None:
        table.add(name, amount(cost[0], "ms"), amount(cost[1], "ms"), goal)

    idle = await in_thread(lambda: time.sleep(0.5))
    row("nothing, for comparison", idle)
    row("load the stored maxima", await in_thread(lambda: fleet.maxima.load(hours, newest=int(NOW // SLOT_S))))
    row("go through the history at a start", await in_thread(lambda: advance(fleet, NOW)), f"hold {HOLD_MS:g} ms")
    tick = await in_thread(lambda: samples(fleet, names))
    row("samples of a tick", tick)
    view = await in_thread(lambda: fleet.table(NOW))
    row("table of a tick, twice per tick", view)
    hourly = await in_thread(lambda: advance(fleet, NOW + 3600))
    row("bounds of an hour", hourly, f"hold {HOLD_MS:g} ms")
    body = await in_thread(lambda: forecasts_body(fleet.table(NOW), names, types=None, horizons=(6,)))
    row("body of /api/v1/forecasts, once per change", body)
    ticks = SLOT_S / TICK_S
    per_five_minutes = ticks * (tick[0] + 2 * view[0]) + hourly[0] / 12
    row("five minutes on average", (per_five_minutes, max(tick[1], view[1], hourly[1])), f"{GOAL_MS:g} ms")
    states = sum(
        bounds.calibration.issued.nbytes + bounds.calibration.alpha.nbytes + 3 * 8 * len(bounds.judged)
        for chunk in fleet.bounds
        for bounds in chunk.values()
    )
    table.notes.append(
        f"Memory: maxima {fleet.maxima.nbytes / 1e6:.1f} MB, bounds of the last week {states / 1e6:.1f} MB "
        f"(goal: {MEMORY_MB:g} MB together at 5,000 nodes). "
        f"SQLite: {await stored_bytes(hours) / 1e6:.1f} MB (goal: {STORE_MB:g} MB at 5,000 nodes)."
    )
    return table


def main() -> None:
    tune_for_serving()
    np.unique(np.zeros(1))  # imports modules at its first call
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5000)
    print(asyncio.run(measure(parser.parse_args().nodes)).markdown())


if __name__ == "__main__":
    main()
