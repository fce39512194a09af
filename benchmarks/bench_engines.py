"""What one tick costs the PromQL engines that keep the samples of many nodes, measured, and calculated for more nodes.

    python -m benchmarks.bench_engines                     # 1,000 nodes × 4 CPUs, Prometheus and VictoriaMetrics
    python -m benchmarks.bench_engines --nodes 2000 --scale 10000

Questions, samples and answers are proportional to the nodes, so what is not measured is calculated: so many times the
measured. Where that would not hold (a limit of the server, a timeout of ours) is in docs/prometheus.md.
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
from watcher.providers.prometheus.queries import DEFAULT_METRICS

ENGINES: dict[str, tuple[type[PromqlServer], str]] = {
    "Prometheus": (
        Prometheus,
        r'^prometheus_http_response_size_bytes_sum\{handler="/api/v1/query(?:_range)?"\} (\S+)',
    ),
    "VictoriaMetrics": (VictoriaMetrics, r"^vm_tcplistener_written_bytes_total\{.*\} (\S+)"),
}
"""Name, what runs it, and how it tells of the bytes that it has answered with."""


@dataclass
class Measured:
    """Of one tick: what it costs the server, and the bytes of all answers."""

    cost: Cost
    answered: float


def answered_bytes(server: PromqlServer, counter: str) -> float:
    """Since the server started."""
    time.sleep(1.1)  # VictoriaMetrics makes its page once a second
    page = server.session.get(f"{server.url}/metrics", timeout=20).text
    return sum(float(value) for value in re.findall(counter, page, re.MULTILINE))


def measure(engine: str, nodes: int, *, raw: bool, cpus: int) -> Measured:
    """Steady ticks of ours with a server of its own."""
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
        # The first fetch, which also looks around, brings about as much as the others.
        answered = (answered_bytes(server, counter) - before) / (FETCHES + 1)
    return Measured(cost, answered)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=1000, help="measured")
    parser.add_argument("--scale", type=int, nargs="*", default=[10_000, 50_000], help="nodes to calculate for")
    parser.add_argument("--cpus", type=int, default=4, help="of each node")
    options = parser.parse_args()
    table = Table(
        f"One tick a minute: {len(DEFAULT_METRICS)} metrics, any number of windows",
        ["", "nodes", "questions", "server's CPU", "of a core", "answers", "time"],
    )
    for engine in ENGINES:
        for raw in (False, True):
            found = measure(engine, options.nodes, raw=raw, cpus=options.cpus)
            what = f"{engine}, raw series, {options.cpus} CPUs each" if raw else f"{engine}, recording rules"
            for nodes in (options.nodes, *options.scale):
                add_row(table, what, found, nodes=nodes, measured=options.nodes)
    table.notes.append(
        f"Measured: the mean of {FETCHES} steady ticks, each for the last {SPAN_S:.0f} s, on loopback and not "
        "compressed; CPU is user and system time of the server process, from /proc. Calculated: in proportion to the "
        "nodes, but for the time, which depends on the server's cores."
    )
    print(table.markdown())


def add_row(table: Table, what: str, found: Measured, *, nodes: int, measured: int) -> None:
    """What was measured, or what follows from it for another number of nodes."""
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
