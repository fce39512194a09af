"""Query cost for a real Prometheus: one tick of load-watcher compared with one minute of the Go load-watcher.

    python -m benchmarks.bench_provider                    # 1,000 nodes × 4 CPUs and 200 × 64, raw series and rules
    python -m benchmarks.bench_provider --sizes 5000x4     # takes some minutes longer

Each minute, the Go load-watcher queries METHOD(METRIC[WINDOW]) for two methods, seventeen metrics, and three windows.
Node exporters provide seven of the metrics; queries of the others return nothing at almost no cost and are excluded
here. With recording rules, the queries are those of the Go load-watcher. With raw series, the query is the same
statistic of the expression that the rule of the node-exporter mixin has (for the network, over 3 minutes), as a
subquery: METHOD((EXPRESSION)[WINDOW:15s]), where 15 s is the interval of the samples.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cluster import BEHIND_S, history_until, write_exporters, write_rules
from benchmarks.report import Table, amount, at_least
from tests.real.parts import Prometheus, PromqlServer
from watcher.core.queries.promql import is_plain
from watcher.core.windows.settings import RefreshSettings
from watcher.sources.base import Fetch
from watcher.sources.prometheus.provider import PrometheusProvider
from watcher.sources.prometheus.queries import CANDIDATES
from watcher.sources.settings import ProviderSettings

METRICS = ProviderSettings().wanted
METHODS = ("avg_over_time", "stddev_over_time")
WINDOWS = ("5m", "10m", "15m")
STEP = "15s"
INTERVAL_S = 60.0
SPAN_S = 180.0  # range of a steady tick: one interval plus two minutes of overlap
FETCHES = 10
ROUNDS = 3
MIXIN = {
    "instance:node_cpu:ratio": CANDIDATES["CPU"][2].expression.replace("<label>", "instance"),
    "instance:node_memory_utilisation:ratio": CANDIDATES["Memory"][1].expression.replace("<label>", "instance"),
}
"""Expressions of the mixin, where load-watcher has cheaper ones."""
RAW_S, RULES_S = (
    1380.0,
    1020.0,
)  # seconds of history: a window and a minute, plus the five minutes of a rate for raw series


@dataclass
class Cost:
    """Cost of one tick: CPU seconds of the server and of the client, number of queries, and elapsed seconds."""

    cpu: float
    own: float
    questions: int
    seconds: float = 0.0


async def our_ticks(prometheus: PromqlServer, *, now: float) -> tuple[Cost, Mapping[str, str]]:
    """Return the mean cost of steady ticks that end at `now`, and the expressions that they query."""
    provider = PrometheusProvider(ProviderSettings(address=prometheus.url), RefreshSettings())
    await provider.start()
    try:
        at = now - INTERVAL_S * FETCHES
        first = await _fetch(provider, at - INTERVAL_S)
        await _fetch(provider, at)  # the next fetch knows the times of the raw samples of this one
        before, began, started = prometheus.cpu_seconds(), time.monotonic(), time.process_time()
        for number in range(1, FETCHES + 1):
            await _fetch(provider, at + INTERVAL_S * number)
        seconds = (time.monotonic() - began) / FETCHES
        own = (time.process_time() - started) / FETCHES
        cpu = (prometheus.cpu_seconds() - before) / FETCHES
    finally:
        await provider.close()
    return Cost(cpu, own, len(first.plans), seconds), {name: plan.expression for name, plan in first.plans.items()}


async def _fetch(provider: PrometheusProvider, until: float) -> Fetch:
    fetch = await provider.fetch(until - SPAN_S, until)
    missing = {metric.name for metric in METRICS} - {batch.metric.name for batch in fetch.batches}
    if missing or fetch.failures:
        raise RuntimeError(f"no samples of {sorted(missing)}; {fetch.failures}")
    return fetch


def questions(expressions: Mapping[str, str]) -> list[str]:
    """Return the queries of the Go load-watcher in one minute for metrics with these expressions."""
    asked = []
    for window in WINDOWS:
        for method in METHODS:
            for expression in expressions.values():
                selected = f"{expression}[{window}]" if is_plain(expression) else f"({expression})[{window}:{STEP}]"
                asked.append(f"{method}({selected})")
    return asked


def their_tick(prometheus: Prometheus, asked: list[str], *, now: float, nodes: int) -> Cost:
    """Return the cost of these queries, sent one after another as the Go load-watcher does."""
    before = prometheus.cpu_seconds()
    for question in asked:
        rows = prometheus.query(question, time=now)
        if len(rows) < nodes:
            raise RuntimeError(f"{question} returned {len(rows)} rows for {nodes} nodes")
    return Cost(prometheus.cpu_seconds() - before, 0.0, len(asked))


def compare(nodes: int, *, raw: bool, cpus: int = 4) -> tuple[Cost, Cost]:
    """Measure both in turns with a Prometheus of their own; return the round with the median ratio."""
    with tempfile.TemporaryDirectory() as folder, Prometheus(Path(folder)) as prometheus:
        now = time.time()
        history = (RAW_S if raw else RULES_S) + INTERVAL_S * FETCHES
        fleet = history_until(now, nodes, seconds=history)
        if raw:
            write_exporters(prometheus, fleet, cpus=cpus)
        else:
            write_rules(prometheus, fleet)
        rounds = []
        for _ in range(ROUNDS):
            ours, expressions = asyncio.run(our_ticks(prometheus, now=now - BEHIND_S))
            asked = questions({**expressions, **MIXIN} if raw else expressions)
            rounds.append((ours, their_tick(prometheus, asked, now=now - BEHIND_S, nodes=nodes)))
    return sorted(rounds, key=lambda both: both[1].cpu / both[0].cpu)[ROUNDS // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", nargs="+", default=["1000x4", "200x64"], help="nodes and CPUs per node")
    options = parser.parse_args()
    table = Table(
        f"CPU time of a real Prometheus for one tick, {len(METRICS)} metrics, windows of 5, 10 and 15 minutes",
        ["", "queries", "CPU", "own CPU", "queries (Go)", "CPU (Go)", "ratio", "goal"],
    )
    for size in options.sizes:
        nodes, cpus = map(int, size.split("x"))
        for raw in (True, False):
            ours, theirs = compare(nodes, raw=raw, cpus=cpus)
            ratio = theirs.cpu / ours.cpu if ours.cpu else None
            kind = f"raw series of node exporters, {cpus} CPUs each" if raw else "recording rules"
            table.add(
                f"{nodes:,} nodes, {kind}",
                str(ours.questions),
                amount(1e3 * ours.cpu, "ms"),
                amount(1e3 * ours.own, "ms"),
                str(theirs.questions),
                amount(1e3 * theirs.cpu, "ms"),
                amount(ratio, "×"),
                at_least(ratio, 20) if raw else "",
            )
    table.notes.append(
        f"Mean of {FETCHES} steady ticks; round of {ROUNDS} with the median ratio; own CPU: load-watcher's provider. "
        f"Go: avg_over_time and stddev_over_time over each window, of raw expressions as a subquery at {STEP}, "
        "without the ten metrics that node exporters lack."
    )
    print(table.markdown())


if __name__ == "__main__":
    main()
