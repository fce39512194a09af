"""Pods per second of a real kube-scheduler without and with the extender, for pods that are all created before.

    python -m benchmarks.bench_scheduler                          # 500 nodes, 400 pods, about four minutes
    python -m benchmarks.bench_scheduler --nodes 5000 --pods 1000

The pods are replicas of one workload. The rate is the number of pods divided by the time from the first attempt to
place a pod to the last binding, both from the log of kube-scheduler; its limit on requests to the API is raised. If a
pod leaves no room for an equal one on its node, kube-scheduler without an extender reuses the ranking for the next pod
(opportunistic batching, KEP-5598). Therefore small pods and pods with a node each are measured, and the feature is also
turned off. All programs share the machine: kube-apiserver, etcd, kube-scheduler, and load-watcher.

Needs the programs of `scripts/go-programs kubernetes`.
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

import yaml

from benchmarks.report import Table, amount
from tests.real.kube import ApiServer, Etcd, Scheduler
from tests.real.parts import REPOSITORY
from tests.real.scheduled_cluster import (
    PODS,
    SETTINGS,
    NodeLoad,
    add_nodes,
    bindings,
    wait_until_loaded,
    write_trace,
)
from tests.service import Service
from tests.waiting import wait_for

BATCHING = "OpportunisticBatching"
CORES = 8
KINDS = {"many on a node": "10m", "one on a node": f"{CORES // 2 + 1}"}
"""CPU request of a pod, by kind."""
BINDING_TIMEOUT_S = 600.0
LOGGED = re.compile(
    r'^I\d{4} (\d\d:\d\d:\d\d\.\d{6}) .*"(Attempting to schedule pod|Successfully bound pod)', re.MULTILINE
)
COUNT = 'load_watcher_scheduler_request_duration_seconds_count{profile="default",verb="prioritize"}'
PROFILE = """
[scheduler.default]
plugins = [ { name = "TargetLoadPacking" } ]
"""


@dataclass(frozen=True, slots=True)
class Setup:
    """A configuration of kube-scheduler: `verbs` of the extender, empty without one; feature gates."""

    title: str
    verbs: tuple[str, ...] = ()
    gates: Mapping[str, bool] | None = None


SETUPS = (
    Setup("no extender"),
    Setup("no extender, opportunistic batching off", gates={BATCHING: False}),
    Setup("extender: prioritize", ("prioritize",)),
    Setup("extender: filter and prioritize", ("filter", "prioritize")),
)


class MeasuredScheduler(Scheduler):
    """kube-scheduler whose log has the times of attempts and bindings."""

    def __init__(self, directory: Path, api: ApiServer, setup: Setup, service: Service) -> None:
        shipped = yaml.safe_load((REPOSITORY / "deploy/scheduler/extender.yaml").read_text())
        (extender,) = shipped["extenders"]
        extender |= {"urlPrefix": f"{service.url}/scheduler/default", **{f"{verb}Verb": verb for verb in setup.verbs}}
        directory.mkdir(parents=True)
        client = {"kubeconfig": str(api.kubeconfig(directory / "kubeconfig")), "qps": 5000, "burst": 5000}
        extenders: list[Any] = [extender] if setup.verbs else []
        config = {"profiles": shipped["profiles"], "extenders": extenders, "clientConnection": client}
        super().__init__(directory, api, **config)
        gates = ",".join(f"{name}={str(on).lower()}" for name, on in (setup.gates or {}).items())
        self._gates = [f"--feature-gates={gates}"] if gates else []

    def command(self) -> Sequence[str | Path]:
        return [*super().command(), "-v=3", *self._gates]

    def seconds(self) -> float:
        """Return the time from the first attempt to the last binding."""
        times = [datetime.combine(date.min, time.fromisoformat(text)) for text, _ in LOGGED.findall(self.log())]
        return (max(times) - min(times)).total_seconds()


def measure(
    api: ApiServer, service: Service, setup: Setup, directory: Path, *, pods: int, cpu: str
) -> tuple[float, int]:
    """Return pods per second, and for how many pods the extender gave scores."""
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": cpu, "memory": "16Mi"}}}
    spec = {"schedulerName": "load-watcher", "containers": [container]}
    for i in range(pods):
        api.make(PODS, metadata={"name": f"pod-{i}", "labels": {"app": "web"}}, spec=spec)
    before = answered(service)
    with MeasuredScheduler(directory, api, setup, service) as scheduler:
        wait_for(lambda: all(bindings(api).values()), what="all pods to be bound", timeout=BINDING_TIMEOUT_S)
        seconds = scheduler.seconds()
    api.ask("DELETE", PODS, {"gracePeriodSeconds": 0})
    wait_for(lambda: not bindings(api), what="the pods to be deleted")
    return pods / seconds, answered(service) - before


def answered(service: Service) -> int:
    """Return the number of responses with scores."""
    lines = service.get("/metrics").text.splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith(COUNT))


def results(
    api: ApiServer, service: Service, directory: Path, *, nodes: int, pods: int, rounds: int
) -> Iterator[Table]:
    """Measure all configurations in turn, `rounds` times."""
    for kind, cpu in KINDS.items():
        rates: dict[str, list[float]] = {setup.title: [] for setup in SETUPS}
        scored: dict[str, int] = {}
        for number in range(rounds):
            for i, setup in enumerate(SETUPS):
                place = directory / f"scheduler-{cpu}-{number}-{i}"
                rate, scored[setup.title] = measure(api, service, setup, place, pods=pods, cpu=cpu)
                rates[setup.title].append(rate)
        base = statistics.median(rates[SETUPS[0].title])
        table = Table(
            f"{pods:,} equal pods, {kind}, on {nodes:,} nodes; median of {rounds}",
            ["kube-scheduler 1.36", "pods per second", "compared with no extender", "pods with scores of the extender"],
        )
        for setup in SETUPS:
            rate = statistics.median(rates[setup.title])
            count = f"{scored[setup.title]:,}" if setup.verbs else "–"
            table.add(setup.title, amount(rate), f"{rate / base:.2f}", count)
        yield table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=500, help="number of nodes, at least that of pods (default: 500)")
    parser.add_argument("--pods", type=int, default=400, help="number of pods (default: 400)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each configuration (default: 3)")
    options = parser.parse_args()
    chance = random.Random(1)
    loads = [(chance.uniform(5, 75), chance.uniform(10, 80)) for _ in range(options.nodes)]
    nodes = {f"node-{i:04}": NodeLoad(CORES, 4 * CORES, *load, swing=10.0) for i, load in enumerate(loads)}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        trace = write_trace(directory / "trace.csv", nodes)
        with Etcd(directory / "etcd") as etcd, ApiServer(directory / "api", etcd) as api:
            add_nodes(api, nodes)
            config = SETTINGS.format(kubeconfig=api.kubeconfig(directory / "kubeconfig")) + PROFILE
            arguments = ("--provider", "replay", "--trace", str(trace))
            with Service(directory / "service", *arguments, config=config) as service:
                wait_until_loaded(service, nodes, profile="default")
                sizes = {"nodes": options.nodes, "pods": options.pods, "rounds": options.rounds}
                for table in results(api, service, directory, **sizes):
                    print(table.markdown())


if __name__ == "__main__":
    main()
