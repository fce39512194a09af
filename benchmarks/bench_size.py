"""Memory and disk usage by number of nodes, and whether both grow linearly.

    python -m benchmarks.bench_size                        # 1,000 to 50,000 nodes, about two minutes
    python -m benchmarks.bench_size --nodes 100 500 --ticks 3
    python -m benchmarks.bench_size --resolutions 5 10 15 --nodes 1000 5000 20000 --ticks 3

Each size runs in a separate process with everything that `serve` has except the source: history, store, published
bodies, the web application, and /metrics. It fills the longest window and then continues ticking, so that all rings are
full and the old and new snapshots are in memory at the same time, as at every tick.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import Table, amount, at_most
from benchmarks.source import METRICS, MadeUp, Virtual
from watcher.core.windows.resolution import history_bytes
from watcher.platform.interpreter import limit_malloc_arenas
from watcher.store.settings import StoreSettings

START = 1_700_000_010.0
TICKS = 20
HISTORY_S = 1065.0  # length of the history with the default windows
Measured = dict[str, Any]


def memory(field: str, *, of: int | str = "self") -> float:
    """Return a field of /proc/PID/status in MB: VmRSS, or VmHWM, its maximum."""
    lines = Path(f"/proc/{of}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(field + ":"))


async def measure(nodes: int, *, ticks: int, resolution: int) -> Measured:
    """Measure one size in this process; the source has a sample every `resolution` seconds."""
    from watcher.store.store import Store

    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "bench.db"
        store = Store(StoreSettings(url=f"sqlite:///{database}", max_size=2**40))
        await store.open()
        measured = await _ticks(store, nodes, ticks=ticks, resolution=resolution)
        size = store.status.size_bytes / 1e6
        await store.close()
        return {**measured, "database": size, "closed": database.stat().st_size / 1e6}


async def _ticks(store: Any, nodes: int, *, ticks: int, resolution: int) -> Measured:
    from watcher.core.publishing.compression import deflate
    from watcher.core.publishing.exposition import View, node_windows
    from watcher.tick.shared import RefreshConfig
    from watcher.tick.tick import Refresher

    clock = Virtual(START)
    source, config = MadeUp(nodes, step=float(resolution)), RefreshConfig(resolution=resolution)
    refresher = Refresher(provider=source, config=config, store=store, clock=clock, tag="t")
    spent = []
    await refresher.tick()
    gc.freeze()
    await _idle()  # the store finishes writing before the next tick
    for _ in range(ticks):
        clock.pass_time(60.0)
        began = time.process_time()
        await refresher.tick()
        deflate(node_windows(published_of(refresher).snapshot, View()))
        await _saved(store, published_of(refresher).snapshot.end)
        spent.append(time.process_time() - began)
    published = published_of(refresher)
    bodies = sum(published._default[window].size for window in published.snapshot.windows)
    now = memory("VmRSS")
    await refresher.close()
    return {
        "nodes": nodes,
        "resolution": resolution,
        "history": 1e-6 * history_bytes(resolution, nodes=nodes, metrics=len(METRICS), seconds=HISTORY_S),
        "rss": now,
        "peak": memory("VmHWM"),
        "cpu": 1e3 * statistics.median(spent),
        "bodies": bodies / 1e6,
    }


def published_of(refresher: Any) -> Any:
    """Return the published snapshot; raises RuntimeError if there is none."""
    if refresher.published is None:
        raise RuntimeError("the tick published nothing")
    return refresher.published


async def _idle() -> None:
    """Wait until this process has no pending work."""
    used = -1.0
    while time.process_time() - used > 0.01:
        used = time.process_time()
        await asyncio.sleep(0.3)


async def _saved(store: Any, end: float) -> None:
    """Wait until the tick that ends at `end` is in the database."""
    while store.status.last_saved != end:
        if not store.status.ok:
            raise RuntimeError(store.status.error)
        await asyncio.sleep(0.005)


def apart(nodes: int, *, ticks: int, resolution: int) -> Measured:
    """Measure one size in a separate process."""
    options = ["--one", str(nodes), "--ticks", str(ticks), "--resolutions", str(resolution)]
    command = [sys.executable, "-m", "benchmarks.bench_size", *options]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    measured: Measured = json.loads(output)
    return measured


def size_table(results: Sequence[Measured], *, ticks: int) -> Table:
    """Return the table of results."""
    table = Table(
        f"Memory and disk, {len(METRICS)} metrics, after {ticks} ticks over a full history",
        ["nodes", "peak RSS", "goal", "RSS", "RSS per node above the smallest", "bodies", "database", "CPU of a tick"],
    )
    smallest = results[0]
    for one in results:
        more = one["nodes"] - smallest["nodes"]
        each = 1e3 * (one["rss"] - smallest["rss"]) / more if more else None
        table.add(
            f"{one['nodes']:,}",
            amount(one["peak"], "MB"),
            at_most(one["peak"], 1000, "MB") if one["nodes"] == 50_000 else "",
            amount(one["rss"], "MB"),
            amount(each, "kB"),
            amount(one["bodies"], "MB"),
            amount(one["database"], "MB"),
            amount(one["cpu"], "ms"),
        )
    table.notes.append(
        f"The database has the longest window's samples, {ticks} minutes of windows, and its log. CPU includes "
        "generating the samples."
    )
    return table


def resolution_table(results: Sequence[Measured]) -> Table:
    """Return the table of several resolutions."""
    table = Table(
        f"Memory by resolution, {len(METRICS)} metrics, windows of 15 minutes",
        ["nodes", "resolution", "samples of the history", "peak RSS", "RSS", "database", "CPU of a tick"],
    )
    for one in results:
        table.add(
            f"{one['nodes']:,}",
            f"{one['resolution']} s",
            amount(one["history"], "MB"),
            amount(one["peak"], "MB"),
            amount(one["rss"], "MB"),
            amount(one["database"], "MB"),
            amount(one["cpu"], "ms"),
        )
    table.notes.append("The source has a sample of each metric in each slot. The samples of the history are computed.")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000, 5000, 20_000, 50_000])
    parser.add_argument("--ticks", type=int, default=TICKS)
    parser.add_argument("--resolutions", type=int, nargs="+", default=[15], help="seconds; a table of several")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        limit_malloc_arenas()  # as the service does
        (resolution,) = options.resolutions
        print(json.dumps(asyncio.run(measure(options.one, ticks=options.ticks, resolution=resolution))))
        return
    results = [
        apart(nodes, ticks=options.ticks, resolution=resolution)
        for nodes in options.nodes
        for resolution in options.resolutions
    ]
    table = size_table(results, ticks=options.ticks) if len(options.resolutions) == 1 else resolution_table(results)
    print(table.markdown())


if __name__ == "__main__":
    main()
