"""Latency of GET /watcher/{host} and of prioritize while ticks run, with all plug-ins.

    python -m benchmarks.bench_latency                          # 5,000 nodes, 12,000 requests each, about five minutes
    python -m benchmarks.bench_latency --before PATH --rounds 3 # compared with another checkout, in turns

The service is a real `load-watcher serve` that reads six metrics from a real Prometheus every 15 s and watches the
nodes and two pods per node. One client requests one node `--rate` times per second, another prioritizes all nodes ten
times per second. A request that is due while the previous one still waits counts from the time when it was due.
Afterwards, one client prioritizes 500 names, which is kube-scheduler's default sample, and then all names, without
pauses.
"""

from __future__ import annotations

import argparse
import http.client
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.bench_extender import POD, is_loaded, requests_ms
from benchmarks.bench_size import memory
from benchmarks.cluster import history_until, settings, write_rules
from benchmarks.report import Table, amount, at_most
from benchmarks.source import names as node_names
from tests.fakes.kube import FakeKube
from tests.real.parts import REPOSITORY, Prometheus
from tests.service import Service
from tests.waiting import wait_for

PLUGINS = (
    "TargetLoadPacking",
    "LoadVariationRiskBalancing",
    "LowRiskOverCommitment",
    "LoadAwareScheduling",
    "Peaks",
    "HighLoadFilter",
    "NodeResourceLimits",
)
PRIORITIZE_PER_S = 10.0
PODS_PER_NODE = 2
SAMPLE = 500
PRIORITIZE_GOALS_MS = {"sample": 6.0, "all": 15.0}
GOAL_MS = 20.0
GOAL_MB = 330.0
PRIORITIZED_PER_S = 60.0  # of 500 and of all names, at least
TURN_S = 60.0  # start, synchronisation and the first two ticks of a service


def profile() -> str:
    """Return the settings of a profile with all plug-ins."""
    plugins = ", ".join(f'{{ name = "{name}" }}' for name in PLUGINS)
    return f"[scheduler.default]\nplugins = [ {plugins} ]\n"


@contextmanager
def prioritizing(service: Service, names: Sequence[str]) -> Iterator[None]:
    """Prioritize all nodes at a fixed rate while the block runs."""
    body = msgspec.json.encode({"pod": POD, "nodenames": list(names)})
    ended = threading.Event()

    def run() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
        while not ended.wait(1.0 / PRIORITIZE_PER_S):
            connection.request("POST", "/scheduler/default/prioritize", body, {"Content-Type": "application/json"})
            connection.getresponse().read()
        connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def latencies_ms(service: Service, node: str, *, count: int, rate: float) -> list[float]:
    """Milliseconds from the time when each of `count` requests is due until its response."""
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
    found = []
    begin = time.perf_counter()
    for number in range(count):
        due = begin + number / rate
        time.sleep(max(0.0, due - time.perf_counter()))
        connection.request("GET", f"/watcher/{node}")
        answer = connection.getresponse()
        answer.read()
        found.append(1e3 * (time.perf_counter() - due))
        if answer.status != 200:
            raise RuntimeError(f"/watcher/{node} returned {answer.status}")
    connection.close()
    return found


@dataclass(frozen=True, slots=True)
class Row:
    """Latencies in ms of GET /watcher/{host}, and of prioritize by the number of names; peak of the resident memory in
    MB."""

    took: list[float]
    prioritized: Mapping[int, list[float]]
    peak: float


def write_power_models(path: Path, names: Sequence[str]) -> Path:
    """Write the power models of the nodes, which Peaks requires."""
    path.write_bytes(msgspec.json.encode({name: {"k0": 100.0, "k1": 10.0, "k2": 0.03} for name in names}))
    return path


def measure(checkout: Path, config: str, names: Sequence[str], args: argparse.Namespace) -> Row:
    """Measure the service of one checkout: milliseconds of the requests, and the peak of the memory in MB."""
    with tempfile.TemporaryDirectory() as directory:
        models = write_power_models(Path(directory) / "models.json", names)
        env = {"PYTHONPATH": str(checkout), "NODE_POWER_MODEL": str(models)}
        service = Service(Path(directory), config=config, env=env)
        with service:
            return _measure_running(service, names, args)


def _measure_running(service: Service, names: Sequence[str], args: argparse.Namespace) -> Row:
    wait_for(lambda: is_loaded(service, len(names)), what="the load", timeout=120)
    with prioritizing(service, names):
        latencies_ms(service, names[0], count=int(20 * args.rate), rate=args.rate)  # until the second tick
        took = latencies_ms(service, names[len(names) // 2], count=args.requests, rate=args.rate)
    prioritized = {
        count: requests_ms(service, names[:count], rounds=args.requests)
        for count in sorted({min(SAMPLE, len(names)), len(names)})
    }
    return Row(took, prioritized, memory("VmHWM", of=service.pid))


def add_row(table: Table, name: str, rows: Sequence[Row]) -> None:
    """Add the percentiles of all rounds of a checkout; the memory is the highest of them."""
    took = np.concatenate([each.took for each in rows])
    p50, p99, p999 = np.percentile(took, (50, 99, 99.9)).tolist()
    peak = max(each.peak for each in rows)
    table.add(
        name,
        f"{len(took):,}",
        *(amount(each, "ms") for each in (p50, p99, p999, took.max())),
        at_most(p999, GOAL_MS, "ms"),
        amount(peak, "MB"),
        at_most(peak, GOAL_MB, "MB"),
    )


def add_prioritize_rows(table: Table, name: str, rows: Sequence[Row]) -> None:
    """Add the percentiles of prioritize of all rounds of a checkout, a row for each number of names."""
    for count in rows[0].prioritized:
        took = np.concatenate([each.prioritized[count] for each in rows])
        p50, p99, p999 = np.percentile(took, (50, 99, 99.9)).tolist()
        goal = at_most(p99, PRIORITIZE_GOALS_MS["sample" if count == SAMPLE else "all"], "ms")
        table.add(
            f"{name}, {count:,} names", f"{len(took):,}", *(amount(each, "ms") for each in (p50, p99, p999)), goal
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--requests", type=int, default=12_000)
    parser.add_argument("--rate", type=float, default=150.0, help="requests per second")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--before", type=Path, help="another checkout, measured in turns with this one")
    args = parser.parse_args()
    names = node_names(args.nodes)
    checkouts: Mapping[str, Path] = {"this checkout": REPOSITORY} | ({"before": args.before} if args.before else {})
    rows: dict[str, list[Row]] = {name: [] for name in checkouts}
    duration = args.rounds * len(checkouts) * (args.requests / args.rate + args.requests / PRIORITIZED_PER_S + TURN_S)
    with tempfile.TemporaryDirectory() as directory, FakeKube() as kube, Prometheus(Path(directory) / "p") as source:
        write_rules(source, history_until(time.time(), args.nodes, ahead=duration))
        for number, name in enumerate(names):
            kube.node(name, cpu="8", memory="32Gi")
            for of_node in range(PODS_PER_NODE):
                kube.pod(f"default/pod-{number}-{of_node}", node=name)
        config = settings(source, interval="15s") + profile()
        config += f'[kubernetes]\nkubeconfig = "{kube.kubeconfig(Path(directory) / "kubeconfig")}"\n'
        for _ in range(args.rounds):
            for name, checkout in checkouts.items():
                rows[name].append(measure(checkout, config, names, args))
    table = Table(
        f"GET /watcher/{{host}} under ticks, {args.nodes:,} nodes, prioritize with {len(PLUGINS)} plug-ins beside it",
        ["service", "requests", "p50", "p99", "p99.9", "worst", "goal of p99.9", "peak memory", "goal"],
    )
    for name in checkouts:
        add_row(table, name, rows[name])
    print(table.markdown())
    prioritize = Table(
        f"prioritize under ticks, {len(PLUGINS)} plug-ins, {args.nodes:,} nodes",
        ["service", "requests", "p50", "p99", "p99.9", "goal of p99"],
    )
    for name in checkouts:
        add_prioritize_rows(prioritize, name, rows[name])
    print(prioritize.markdown())


if __name__ == "__main__":
    main()
