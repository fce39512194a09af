"""Cost of the extender in the process of the watcher and as a process of its own.

    python -m benchmarks.bench_extender                     # 5,000 nodes, about three minutes
    python -m benchmarks.bench_extender --nodes 500

The profile has TargetLoadPacking and LoadAwareScheduling with percentiles, so that the separate extender also requests
koordlet's usages. The watcher refreshes every 15 s. The client sends one request after the other.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import quantiles

import msgspec

from benchmarks.report import Table, amount
from tests.fakes.kube import FakeKube
from tests.real.scheduled_cluster import mixed_nodes, write_trace
from tests.service import ExtenderService, Service
from tests.waiting import wait_for

SETTINGS = """
[refresh]
interval = "15s"

[kubernetes]
kubeconfig = "{kubeconfig}"
"""
PROFILE = """
[scheduler.default]
plugins = [
  { name = "TargetLoadPacking" },
  { name = "LoadAwareScheduling", args = { aggregated = { scoreAggregationType = "p95" } } },
]
"""
POD = {
    "metadata": {"name": "web", "namespace": "default", "uid": "u"},
    "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}]},
}
COLUMNS = "/api/v1/columns?window=15m&type=CPU&type=Memory&type=GPU&operator=Latest&operator=AVG&operator=STD"


def requests_ms(service: Service, names: Sequence[str], *, rounds: int) -> list[float]:
    """Milliseconds of each request to prioritize for these nodes."""
    body = msgspec.json.encode({"pod": POD, "nodenames": list(names)})
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
    found = []
    for _ in range(rounds):
        begun = time.perf_counter()
        connection.request("POST", "/scheduler/default/prioritize", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        scores = answer.read()
        found.append(1000 * (time.perf_counter() - begun))
        assert answer.status == 200
        assert scores.count(b"Score") == len(names)
    connection.close()
    return found


def rss_mb(service: Service) -> float:
    """Resident memory of the process in MB."""
    status = Path(f"/proc/{service.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def is_loaded(service: Service, count: int) -> bool:
    nodes = service.get("/scheduler/default/nodes").json()["nodes"]
    return sum(bool(each["load"]) for each in nodes.values()) == count


def measure_one(
    title: str,
    answering: Service,
    processes: Sequence[Service],
    names: Sequence[str],
    table: Table,
    args: argparse.Namespace,
) -> None:
    """Add the row of one way to run the extender."""
    requests_ms(answering, names, rounds=5)
    cells = []
    for asked in (names[: max(1, len(names) // 10)], names):
        begun = answering.cpu_seconds()
        took = requests_ms(answering, asked, rounds=args.rounds)
        cpu = 1000 * (answering.cpu_seconds() - begun) / args.rounds
        cells += [amount(quantiles(took, n=100)[49]), amount(quantiles(took, n=100)[98]), amount(cpu)]
    begun_cpu = [each.cpu_seconds() for each in processes]
    time.sleep(args.seconds)
    idle = [
        60 * (each.cpu_seconds() - before) / args.seconds for each, before in zip(processes, begun_cpu, strict=True)
    ]
    memory = " + ".join(amount(rss_mb(each)) for each in processes)
    table.add(title, *cells, " + ".join(map(amount, idle)), memory)


def bytes_table(watcher: Service) -> Table:
    """Sizes of the documents that a separate extender requests after each refresh."""
    table = Table("Documents per refresh", ("document", "bytes", "gzip"))
    for title, path in (("columns", COLUMNS), ("columns with koordlet's usages", f"{COLUMNS}&aggregate=koordlet")):
        connection = http.client.HTTPConnection("127.0.0.1", watcher.port, timeout=60)
        connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
        body = connection.getresponse().read()
        connection.close()
        table.add(title, amount(len(gzip.decompress(body))), amount(len(body)))
    return table


def main() -> None:
    """Measure both ways, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=30.0, help="duration of the idle measurement")
    args = parser.parse_args()
    nodes = mixed_nodes(args.nodes, seed=1, silent=0)
    parts = (f"ms for {args.nodes // 10:,} nodes", "p99", "CPU ms", f"ms for {args.nodes:,} nodes", "p99", "CPU ms")
    table = Table("prioritize", ("extender", *parts, "idle CPU s/min", "MB"))
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        root = Path(directory)
        kube = stack.enter_context(FakeKube())
        for name, size in nodes.items():
            kube.node(name, cpu=str(size.cores), memory=f"{size.gib}Gi")
        settings = SETTINGS.format(kubeconfig=kube.kubeconfig(root / "kubeconfig"))
        source = ("--provider", "replay", "--trace", str(write_trace(root / "trace.csv", nodes)))
        with Service(root / "inside", *source, config=settings + PROFILE) as inside:
            wait_for(lambda: is_loaded(inside, args.nodes), what="the load")
            measure_one("in process", inside, [inside], list(nodes), table, args)
        watcher = stack.enter_context(Service(root / "watcher", *source, config=settings))
        env = {"LOAD_WATCHER_URL": watcher.url}
        extender = stack.enter_context(ExtenderService(root / "extender", config=settings + PROFILE, env=env))
        wait_for(lambda: is_loaded(extender, args.nodes), what="the load")
        measure_one("separate (watcher + extender)", extender, [watcher, extender], list(nodes), table, args)
        print(table.markdown())
        print(bytes_table(watcher).markdown())


if __name__ == "__main__":
    main()
