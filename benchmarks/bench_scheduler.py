"""Pods per second of a real kube-scheduler without and with the extender, for pods that exist before it starts.

    python -m benchmarks.bench_scheduler                          # 500 nodes, 400 pods, about four minutes
    python -m benchmarks.bench_scheduler --nodes 5000 --pods 1000

The pods are replicas of one workload. The rate is the number of pods divided by the time from the first attempt to
place a pod to the last binding, both from the log of kube-scheduler; its limit on requests to the API is raised. The
cycle is the mean time to find the node of a pod, one pod after the other; bindings run at the same time.

If a pod leaves no room for an equal one on its node, kube-scheduler without an extender can reuse the ranking for the
next pod (opportunistic batching, KEP-5598), unless the pods have topology spread constraints; the default constraints
of kube-scheduler count. Therefore small pods and pods with a node each are measured, also without default constraints.
All programs share the machine: kube-apiserver, etcd, kube-scheduler, and load-watcher.

Needs the programs of `scripts/go-programs kubernetes`.
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import tempfile
from collections.abc import Iterator, Sequence
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

NO_SPREADING = {"name": "PodTopologySpread", "args": {"defaultingType": "List"}}
"""Configuration of the plug-in without default constraints."""
CORES = 8
KINDS = {"many on a node": "10m", "one on a node": f"{CORES // 2 + 1}"}
"""CPU request of a pod, by kind."""
BINDING_TIMEOUT_S = 600.0
LOGGED = re.compile(
    r'^I\d{4} (\d\d:\d\d:\d\d\.\d{6}) .*"(Attempting to schedule pod|Successfully bound pod)', re.MULTILINE
)
CYCLE = "scheduler_scheduling_algorithm_duration_seconds"
COUNT = 'load_watcher_scheduler_request_duration_seconds_count{profile="default",verb="prioritize"}'
PROFILE = """
[scheduler.default]
plugins = [ { name = "TargetLoadPacking" } ]
"""


@dataclass(frozen=True, slots=True)
class Setup:
    """A configuration of kube-scheduler: `verbs` of the extender, empty without one; `spreads` by default."""

    title: str
    verbs: tuple[str, ...] = ()
    spreads: bool = True


SETUPS = (
    Setup("no extender"),
    Setup("no extender, no default spreading", spreads=False),
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
        plugins: list[Any] = [] if setup.spreads else [NO_SPREADING]
        profiles = [{**profile, "pluginConfig": plugins} for profile in shipped["profiles"]]
        super().__init__(directory, api, profiles=profiles, extenders=extenders, clientConnection=client)

    def command(self) -> Sequence[str | Path]:
        return [*super().command(), "-v=3", "--authorization-always-allow-paths=/healthz,/metrics"]

    def seconds(self) -> float:
        """Return the time from the first attempt to the last binding."""
        times = [datetime.combine(date.min, time.fromisoformat(text)) for text, _ in LOGGED.findall(self.log())]
        return (max(times) - min(times)).total_seconds()

    def hints(self) -> int:
        """Return the number of pods that were placed by the ranking of another pod."""
        return self.log().count("OpportunisticBatch provided node hint")

    def cycle_s(self) -> float:
        """Return the mean time of finding a node."""
        found = {}
        for line in self.session.get(f"{self.url}/metrics", timeout=60).text.splitlines():
            if line.startswith(CYCLE):
                name, _, value = line.removeprefix(CYCLE).partition(" ")
                found[name] = float(value)
        return found["_sum"] / found["_count"]


@dataclass(frozen=True, slots=True)
class Measured:
    """Pods per second, mean time of a scheduling cycle, pods placed by the ranking of another pod, and responses of the
    extender with scores."""

    rate: float
    cycle_s: float
    hints: int
    scored: int


def measure(api: ApiServer, service: Service, setup: Setup, directory: Path, *, pods: int, cpu: str) -> Measured:
    """Place the pods once."""
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": cpu, "memory": "16Mi"}}}
    spec = {"schedulerName": "load-watcher", "containers": [container]}
    for i in range(pods):
        api.make(PODS, metadata={"name": f"pod-{i}", "labels": {"app": "web"}}, spec=spec)
    before = answered(service)
    with MeasuredScheduler(directory, api, setup, service) as scheduler:
        wait_for(lambda: all(bindings(api).values()), what="all pods to be bound", timeout=BINDING_TIMEOUT_S)
        rate, cycle_s, hints = pods / scheduler.seconds(), scheduler.cycle_s(), scheduler.hints()
    api.ask("DELETE", PODS, {"gracePeriodSeconds": 0})
    wait_for(lambda: not bindings(api), what="the pods to be deleted")
    return Measured(rate, cycle_s, hints, answered(service) - before)


def answered(service: Service) -> int:
    """Return the number of responses with scores."""
    lines = service.get("/metrics").text.splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith(COUNT))


def results(
    api: ApiServer, service: Service, directory: Path, *, nodes: int, pods: int, rounds: int
) -> Iterator[Table]:
    """Measure all configurations in turn, `rounds` times."""
    columns = ["pods per second", "ratio", "cycle", "ratio", "reused rankings", "pods with scores of the extender"]
    for kind, cpu in KINDS.items():
        measured: dict[str, list[Measured]] = {setup.title: [] for setup in SETUPS}
        for number in range(rounds):
            for i, setup in enumerate(SETUPS):
                place = directory / f"scheduler-{cpu}-{number}-{i}"
                measured[setup.title].append(measure(api, service, setup, place, pods=pods, cpu=cpu))
        title = f"{pods:,} equal pods, {kind}, on {nodes:,} nodes; median of {rounds}"
        table = Table(title, ["kube-scheduler 1.36", *columns])
        medians = {title: median(each) for title, each in measured.items()}
        base = medians[SETUPS[0].title]
        for title, found in medians.items():
            rates = amount(found.rate), f"{found.rate / base.rate:.2f}"
            cycles = amount(1e3 * found.cycle_s, "ms"), f"{found.cycle_s / base.cycle_s:.2f}"
            table.add(title, *rates, *cycles, f"{found.hints:,}", f"{found.scored:,}")
        yield table


def median(measured: Sequence[Measured]) -> Measured:
    """Return the median of each quantity."""
    names = ("rate", "cycle_s", "hints", "scored")
    rate, cycle_s, hints, scored = (statistics.median(getattr(each, name) for each in measured) for name in names)
    return Measured(rate, cycle_s, int(hints), int(scored))


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
