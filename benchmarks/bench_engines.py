"""Cost of one tick for PromQL engines with the samples of many nodes: measured, and extrapolated to more nodes.

    python -m benchmarks.bench_engines                     # 1,000 nodes × 4 CPUs, Prometheus and VictoriaMetrics
    python -m benchmarks.bench_engines --nodes 2000 --scale 10000

Samples and responses are proportional to the number of nodes, so results for more nodes are extrapolated linearly.
docs/tasks/prometheus.md describes the limits of this (server limits and client timeouts).
"""

from __future__ import annotations

import argparse
import asyncio
import re
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bench_provider import FETCHES, INTERVAL_S, RAW_S, RULES_S, SPAN_S, Cost, our_ticks
from benchmarks.cluster import BEHIND_S, history_until, write_exporters, write_rules
from benchmarks.report import Table, amount
from tests.real.parts import Prometheus, PromqlServer, VictoriaMetrics
from watcher.sources.settings import ProviderSettings

ENGINES: dict[str, tuple[type[PromqlServer], str]] = {
    "Prometheus": (
        Prometheus,
        r'^prometheus_http_response_size_bytes_sum\{handler="/api/v1/query(?:_range)?"\} (\S+)',
    ),
    "VictoriaMetrics": (VictoriaMetrics, r"^vm_tcplistener_written_bytes_total\{.*\} (\S+)"),
}
"""Engine name -> class that runs it, and pattern of the metric that counts response bytes."""


@dataclass
class Measured:
    """Cost of one tick for the server, and the bytes of all responses."""

    cost: Cost
    answered: float


def answered_bytes(server: PromqlServer, counter: str) -> float:
    """Return the response bytes since the server started."""
    time.sleep(1.1)  # VictoriaMetrics updates its metrics once a second
    page = server.session.get(f"{server.url}/metrics", timeout=20).text
    return sum(float(value) for value in re.findall(counter, page, re.MULTILINE))


def measure(engine: str, nodes: int, *, raw: bool, cpus: int) -> Measured:
    """Measure steady ticks against a separate server."""
    kind, counter = ENGINES[engine]
    with tempfile.TemporaryDirectory() as folder, kind(Path(folder)) as server:
        now = time.time()
        fleet = history_until(now, nodes, seconds=(RAW_S if raw else RULES_S) + INTERVAL_S * FETCHES)
        if raw:
            write_exporters(server, fleet, cpus=cpus)
        else:
            write_rules(server, fleet)
        before = answered_bytes(server, counter)
        cost, _ = asyncio.run(our_ticks(server, now=now - BEHIND_S))
        # The first fetch, which includes discovery, returns about as much data as the others.
        answered = (answered_bytes(server, counter) - before) / (FETCHES + 1)
    return Measured(cost, answered)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=1000, help="measured")
    parser.add_argument("--scale", type=int, nargs="*", default=[], help="numbers of nodes to extrapolate to")
    parser.add_argument("--cpus", type=int, default=4, help="CPUs per node (default 4)")
    options = parser.parse_args()
    table = Table(
        f"One tick per minute: {len(ProviderSettings().wanted)} metrics, any number of windows",
        ["", "nodes", "queries", "server CPU", "of a core", "responses", "time"],
    )
    for engine in ENGINES:
        for raw in (False, True):
            found = measure(engine, options.nodes, raw=raw, cpus=options.cpus)
            what = f"{engine}, raw series, {options.cpus} CPUs each" if raw else f"{engine}, recording rules"
            for nodes in (options.nodes, *options.scale):
                add_row(table, what, found, nodes=nodes, measured=options.nodes)
    table.notes.append(
        f"Measured: mean of {FETCHES} steady ticks, each for the last {SPAN_S:.0f} s, not compressed."
        + (" Calculated: proportional to the nodes." if options.scale else "")
    )
    print(table.markdown())


def add_row(table: Table, what: str, found: Measured, *, nodes: int, measured: int) -> None:
    """Add a row with the measured values, or with values extrapolated to another number of nodes."""
    times = nodes / measured
    table.add(
        what,
        f"{nodes:,} {'measured' if nodes == measured else 'calculated'}",
        str(found.cost.questions),
        amount(1e3 * found.cost.cpu * times, "ms"),
        f"{100 * found.cost.cpu * times / INTERVAL_S:.1f} %",
        amount(found.answered * times / 1e6, "MB"),
        amount(1e3 * found.cost.seconds, "ms") if nodes == measured else "–",
    )


if __name__ == "__main__":
    main()
