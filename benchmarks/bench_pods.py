"""Cost of pod usage: CPU by step, memory, and the longest time that the event loop is blocked.

    python -m benchmarks.bench_pods                        # 5,000 and 50,000 pods
    python -m benchmarks.bench_pods --pods 1000 --rounds 3

The responses of Prometheus and metrics-server are synthetic and prepared; the cost in these servers is not included.
Steps are called as in a refresh, and the fastest of several repetitions counts. A round is a refresh with the responses
of a Prometheus, the document in gzip, and a client that decodes it. Each size is measured in a separate process.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np

from benchmarks.report import Table, amount, at_most
from benchmarks.source import Virtual
from benchmarks.stall import watching
from watcher.client import to_pods
from watcher.client.arrays import decode_pods
from watcher.core.pods.published import PublishedPods
from watcher.core.pods.table import PodOrigin, PodTable, PodUsage, empty_table, merge_readings, review_pods
from watcher.core.publishing.compression import Encoding, compressed
from watcher.platform.kube.responses import read_large_page
from watcher.sources.base import PodFetch
from watcher.sources.metrics_server.pods import POD_METRICS, _unhurried, read_pods
from watcher.sources.prometheus.plans import NodeLabel
from watcher.sources.prometheus.pods import joined, read_values
from watcher.sources.prometheus_api import read_envelope, series_of, with_pauses
from watcher.tick.pods import PodRefresher
from watcher.tick.shared import RefreshConfig, TickContext, TickReports, TickWorker

START = 1_700_000_040.0
ROUNDS = 10
PODS_ON_A_NODE = 30
ORIGIN = PodOrigin("Prometheus", "cores", 120.0, "bytes", "rss")
Measured = dict[str, Any]


class Cluster:
    """Pods with names as long as those of Deployments."""

    def __init__(self, pods: int) -> None:
        self.pods = [
            (f"team-{number % 200:03d}-production", f"deployment-{number // 10:05d}-7d9f8b6c5-x{number % 100_000:05d}")
            for number in range(pods)
        ]
        self.nodes = [f"ip-10-0-{number // PODS_ON_A_NODE}.internal" for number in range(pods)]
        self.random = np.random.default_rng(7)

    def vector(self, values: Sequence[float], *, now: float) -> bytes:
        """Return the response of a Prometheus."""
        rows = [
            {"metric": {"namespace": pod[0], "pod": pod[1], "node": node}, "value": [now, repr(value)]}
            for pod, node, value in zip(self.pods, self.nodes, values, strict=True)
        ]
        data = {"resultType": "vector", "result": rows}
        return msgspec.json.encode({"status": "success", "data": data})

    def vectors(self, now: float) -> tuple[bytes, bytes, bytes]:
        """Return the responses for times, cores, and bytes."""
        random = self.random.random((3, len(self.pods)))
        columns = (now - 30.0 * random[0], random[1], random[2] * 2**32)
        times, cores, memory = (self.vector(column.tolist(), now=now) for column in columns)
        return times, cores, memory

    def listed(self) -> bytes:
        """Return the response of metrics-server for pods with two containers each."""
        used = {"usage": {"cpu": "12345678n", "memory": "123456Ki"}}
        items = [
            {
                "metadata": {"name": name, "namespace": namespace, "creationTimestamp": "2026-11-21T10:00:00Z"},
                "timestamp": "2026-11-21T10:00:00Z",
                "window": "15.2s",
                "containers": [{"name": "app", **used}, {"name": "istio-proxy", **used}],
            }
            for namespace, name in self.pods
        ]
        return msgspec.json.encode({"kind": "PodMetricsList", "metadata": {}, "items": items})

    def usage(self, now: float) -> PodUsage:
        """Return prepared readings as a PodUsage."""
        times, cores, memory = self.random.random((3, len(self.pods)))
        return PodUsage(tuple(self.pods), tuple(self.nodes), now - 30.0 * times, cores, memory * 2**32)


def read_vector(body: bytes) -> Mapping[tuple[str, str, str], float]:
    """Decode a response as a connection of the transport does."""
    rows = series_of(read_envelope(body, content_type=""), expects="vector")
    return read_values(with_pauses(rows), label=NodeLabel("node"))


def read_vectors(bodies: Sequence[bytes], nodes: Mapping[str, str]) -> PodUsage:
    """Combine three responses into one PodUsage."""
    times, cores, memory = map(read_vector, bodies)
    return joined(times, cores, memory, nodes)


def read_list(body: bytes, nodes: Mapping[str, str]) -> PodFetch:
    """Decode a list as the provider does."""
    page, _ = read_large_page(body, resource=POD_METRICS)
    return read_pods(_unhurried(page.items or []), nodes, source="KubernetesMetricsServer", now=START)


def quickest(call: Callable[[], object], *, times: int = 3) -> float:
    """Return the CPU milliseconds of the fastest of several calls."""
    taken = []
    for _ in range(times):
        began = time.process_time()
        call()
        taken.append(1e3 * (time.process_time() - began))
    return min(taken)


def into(table: PodTable, usage: PodUsage, now: float) -> PodTable:
    reviewed, _ = review_pods(usage, now=now, max_ahead_s=30.0)
    return merge_readings(table, reviewed, now=now, silent_s=90.0, stale_s=300.0)


def published(table: PodTable, config: RefreshConfig) -> PublishedPods:
    return PublishedPods(
        table,
        origin=ORIGIN,
        windows=config.windows,
        cadence_s=60.0,
        timestamp=START,
        tag="t",
        monotonic=0.0,
        age_s=1.0,
    )


def measure_steps(pods: int) -> Measured:
    """Return CPU milliseconds by step, and memory per pod."""
    cluster, config = Cluster(pods), RefreshConfig(pods="on")
    bodies, listed = cluster.vectors(START), cluster.listed()
    nodes = {node: node for node in cluster.nodes}
    placed = {f"{namespace}/{name}": node for (namespace, name), node in zip(cluster.pods, cluster.nodes, strict=True)}
    usage = read_vectors(bodies, nodes)
    table = empty_table(config.pod_slots)
    for minute in range(config.pod_slots):
        table = into(table, cluster.usage(START + 60.0 * minute), START + 60.0 * minute)
    later, after = cluster.usage(START + 900.0), START + 900.0
    ready = published(table, config)
    body = ready.body()
    return {
        "prometheus": quickest(partial(read_vectors, bodies, nodes)),
        "metrics-server": quickest(partial(read_list, listed, placed)),
        "first": quickest(partial(into, empty_table(config.pod_slots), usage, START)),
        "next": quickest(partial(into, table, later, after)),
        "body": quickest(ready.body),
        "gzip": quickest(partial(compressed, body, Encoding.GZIP)),
        "client": quickest(lambda: to_pods(decode_pods(body), received=0.0, age_at_receipt=0.0)),
        "vectors MB": sum(map(len, bodies)) / 1e6,
        "list MB": len(listed) / 1e6,
        "body MB": len(body) / 1e6,
        "gzip MB": len(compressed(body, Encoding.GZIP)) / 1e6,
        "table": table_bytes(bodies, nodes, config) / pods,
    }


def table_bytes(bodies: Sequence[bytes], nodes: Mapping[str, str], config: RefreshConfig) -> float:
    """Return the bytes of a table, including its names, which come from the responses."""
    gc.collect()
    tracemalloc.start()
    table = into(empty_table(config.pod_slots), read_vectors(bodies, nodes), START)
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(table.pods)
    return float(size)


# --- whole refreshes -------------------------------------------------------------------------------------------------


class AtHand:
    """A provider with prepared responses, which it decodes as the real provider does."""

    source = "Prometheus"
    remembers = True

    def __init__(self, cluster: Cluster) -> None:
        self.nodes = {node: node for node in cluster.nodes}
        self.bodies: tuple[bytes, ...] = ()
        self._decoding = threading.Lock()

    async def fetch_pods(self, now: float) -> PodFetch:
        """Return three responses, decoded in threads one at a time as in the transport."""
        reading = (asyncio.to_thread(self._read, body) for body in self.bodies)
        times, cores, memory = await asyncio.gather(*reading)
        return PodFetch(await asyncio.to_thread(joined, times, cores, memory, self.nodes), ORIGIN)

    def _read(self, body: bytes) -> Mapping[tuple[str, str, str], float]:
        with self._decoding:
            return read_vector(body)


async def measure_rounds(pods: int, *, rounds: int) -> Measured:
    """Run refresh, document, and client; return the longest block of the event loop in each, and its cause."""
    cluster, clock, config = Cluster(pods), Virtual(START), RefreshConfig(pods="on")
    source = AtHand(cluster)
    refresher = PodRefresher(
        TickContext(
            source,  # type: ignore[arg-type]  # only fetch_pods of the provider is used
            config,
            clock,
            "t",
            TickWorker(),
            TickReports(),
        )
    )
    worst: dict[str, tuple[float, str]] = {}
    async with watching() as idle:
        await asyncio.sleep(1.0)
    for number in range(rounds + 1):
        clock.pass_time(60.0)
        source.bodies = cluster.vectors(clock.now())
        gc.collect()
        for what, work in _work(refresher):
            async with watching() as stall:
                await work()
            if number:  # the first round sorts all names
                worst[what] = max(worst.get(what, (0.0, "")), (stall.worst, stall.culprit))
            else:
                worst[f"{what}, first"] = (stall.worst, stall.culprit)
    return {"stalls": worst, "idle stall": idle.worst}


def _work(refresher: PodRefresher) -> list[tuple[str, Callable[[], Any]]]:
    kept: dict[str, bytes] = {}

    async def refresh() -> None:
        await refresher.refresh(asyncio.get_running_loop().time() + 600.0, None)

    async def encode() -> None:
        assert refresher.published is not None
        kept["body"] = await asyncio.to_thread(refresher.published.body)
        await asyncio.to_thread(compressed, kept["body"], Encoding.GZIP)

    async def read() -> None:
        await asyncio.to_thread(lambda: to_pods(decode_pods(kept["body"]), received=0.0, age_at_receipt=0.0))

    return [("refresh", refresh), ("document", encode), ("client", read)]


# --- the tables ------------------------------------------------------------------------------------------------------

STEPS = {
    "prometheus": "decode three responses of a Prometheus",
    "metrics-server": "decode metrics-server's list, two containers per pod",
    "first": "review and store, first time",
    "next": "review and store, each minute",
    "body": "encode the document",
    "gzip": "compress the document",
    "client": "decode the document in the client",
}
SIZES = {"vectors MB": "responses of a Prometheus", "list MB": "metrics-server's list", "body MB": "document"}


def step_table(results: Mapping[int, Measured]) -> Table:
    """Return the table of CPU by step and size."""
    table = Table("CPU milliseconds per minute of pod usage", ["", *(f"{pods:,} pods" for pods in results)])
    for key, words in STEPS.items():
        table.add(words, *(amount(measured[key], "ms") for measured in results.values()))
    for key, words in SIZES.items():
        table.add(words, *(amount(measured[key], "MB") for measured in results.values()))
    table.add("document in gzip", *(amount(measured["gzip MB"], "MB") for measured in results.values()))
    table.add("memory of 1,000 pods", *(amount(measured["table"] / 1e3, "MB") for measured in results.values()))
    return table


def stall_table(results: Mapping[int, Measured]) -> Table:
    """Return the table of the longest blocks of the event loop."""
    table = Table(
        "Longest time that pod usage blocks the event loop",
        ["", "worst", "goal", "idle", "caused by"],
    )
    for pods, measured in results.items():
        for what, (stall, culprit) in measured["stalls"].items():
            goal = at_most(stall, 30.0, "ms") if pods <= 5000 else ""
            idle = amount(measured["idle stall"], "ms")
            table.add(f"{pods:,} pods, {what}", amount(stall, "ms"), goal, idle, culprit or "–")
    return table


def apart(pods: int, rounds: int) -> Measured:
    """Return the output of this program in a separate process."""
    command = [sys.executable, "-m", "benchmarks.bench_pods", "--one", str(pods), "--rounds", str(rounds)]
    measured: Measured = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pods", type=int, nargs="+", default=[5000, 50_000])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        rounds = asyncio.run(measure_rounds(options.one, rounds=options.rounds))
        print(json.dumps({**measure_steps(options.one), **rounds}))
        return
    results = {pods: apart(pods, options.rounds) for pods in options.pods}
    print(step_table(results).markdown())
    print(stall_table(results).markdown(), end="")


if __name__ == "__main__":
    main()
