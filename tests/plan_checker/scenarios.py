"""Random nodes, pods, policies and loads for the plan checker, from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from agent.model import (
    AvoidanceAction,
    ContainerState,
    CpuThrottle,
    LabelSelector,
    MetricSample,
    PodQos,
    PodState,
    Policies,
    Rule,
    State,
)
from agent.qos import QosClass
from tests.plan_checker.arithmetic import MEASURES

MIB = 1 << 20
GROUPS = ("a", "b", "c")
LOADED, UNLOADED = 11, 9
"""Cycles with load, and cycles without load at the end."""
USAGE = {"cpu_total_usage": 1_000.0, "cpu_total_utilization": 100.0}
NAMES = sorted(MEASURES)


@dataclass(slots=True)
class SimulatedContainer:
    """`wants` in cores; quotas in microseconds per 100 ms."""

    name: str
    id: str
    wants: float
    request: float | None
    limit: float | None
    quota: int | None


@dataclass(slots=True)
class NodePod:
    """A pod that uses what it wants, as far as its quotas allow; `gone` is when an evicted pod ends."""

    facts: PodState
    containers: list[SimulatedContainer]
    memory: int
    takes: float
    gone: float | None = None

    def state(self, load: float) -> PodState:
        parts = tuple(self._container(each, load) for each in self.containers)
        cpu = sum(part.cpu or 0.0 for part in parts)
        ends = self.facts.terminating or self.gone is not None
        memory = int(self.memory * max(0.2, min(1.0, load))) if load else 0
        values = {"cpu": cpu, "memory": memory, "containers": parts, "terminating": ends}
        return PodState(**{name: getattr(self.facts, name) for name in PodState.__slots__} | values)

    def _container(self, each: SimulatedContainer, load: float) -> ContainerState:
        most = float("inf") if each.quota is None else each.quota / 100_000
        wants = each.wants * load
        return ContainerState(
            name=each.name,
            id=each.id,
            cpu=min(wants, most),
            quota=each.quota,
            cpu_request=each.request,
            cpu_limit=each.limit,
            throttled=wants > most,
        )


@dataclass(slots=True)
class Scenario:
    """A node with pods and policies. `refuses` is the probability that the API refuses an eviction."""

    source: random.Random
    cores: float
    bytes: int
    system_cores: float
    pods: list[NodePod]
    policies: Policies
    refuses: float
    interval: float = 10.0
    load: float = 1.0
    others: dict[str, float] = field(default_factory=dict)

    def state(self, now: float, cycle: int) -> State:
        """The state of a cycle; the load ends after LOADED cycles."""
        source = self.source
        loaded = cycle < LOADED
        self.load = 0.02 if cycle < LOADED + UNLOADED - 3 else 0.0
        if loaded:
            self.load = source.choice([0.6, 0.9, 1.0, 1.0, 1.2, 1.5])
        self.pods = [pod for pod in self.pods if pod.gone is None or pod.gone > now]
        hungry = UNLOADED - 4 > cycle - LOADED >= 0
        pods = tuple(pod.state(1.0 if hungry and place % 3 == 0 else self.load) for place, pod in enumerate(self.pods))
        cpu = sum(pod.cpu or 0.0 for pod in pods) + self.system_cores * self.load
        memory = sum(pod.memory or 0 for pod in pods) + 0.05 * self.bytes * self.load
        values = {
            "cpu_total_usage": 1_000.0 * cpu,
            "cpu_total_utilization": 100.0 * cpu / self.cores,
            "memory_total_usage": memory,
            "memory_total_utilization": 100.0 * memory / self.bytes,
            "cpu_core_numbers": self.cores,
            "memory_total": float(self.bytes),
        }
        for name in NAMES:
            values.setdefault(name, source.uniform(0.0, 100.0) if loaded else 0.0)
        if loaded and source.random() < 0.08:
            del values[source.choice(NAMES)]
        return State(now, {name: (MetricSample(value, now),) for name, value in values.items()}, pods)


def scenario(seed: str) -> Scenario:
    """The scenario of a seed."""
    source = random.Random(seed)
    cores, size = float(source.choice([4, 8, 16, 32])), source.choice([8, 16, 64]) * 1024 * MIB
    number = source.randint(1, 25)
    pods = [_pod(source, place, cores / number, size / number) for place in range(number)]
    return Scenario(
        source,
        cores,
        size,
        cores * source.choice([0.0, 0.1, 0.3]),
        pods,
        _policies(source, cores, size),
        source.choice([0.0, 0.0, 0.3]),
    )


def _pod(source: random.Random, number: int, cores: float, size: float) -> NodePod:
    name = f"p{number:02}"
    containers = []
    for place in range(source.choice([1, 1, 1, 2])):
        wants = source.choice([0.0, 0.3, 1.0, 1.0, 2.0, source.uniform(0.0, 3.0)]) * cores
        limit = None if source.random() < 0.6 else round(cores * source.choice([0.5, 1.0, 2.0]), 2)
        request = None if source.random() < 0.6 else round(cores * source.choice([0.1, 0.5]), 2)
        quota = None if limit is None else max(1_000, int(limit * 100_000))
        containers.append(SimulatedContainer(f"c{place}", f"{name}-{place}", wants, request, limit, quota))
    facts = PodState(
        namespace=source.choice(["x", "y", "z"]),
        name=name,
        uid=f"uid-{name}",
        qos=source.choice([QosClass.BEST_EFFORT, QosClass.BEST_EFFORT, QosClass.BURSTABLE, QosClass.GUARANTEED]),
        priority=source.choice([0, 0, 0, -10, 100, 2_000_000_000]),
        start_time=source.choice([None, 100.0, 200.0, float(number)]),
        labels={"group": source.choice(GROUPS)},
        owner=f"ReplicaSet/{source.choice([name, name, name, 'shared'])}",
        phase=source.choice(["Running"] * 9 + ["Succeeded"]),
        terminating=source.random() < 0.03,
        static=source.random() < 0.05,
        daemon=source.random() < 0.1,
        managed=source.random() < 0.9,
        grace_seconds=source.choice([0.0, 30.0, 60.0]),
    )
    memory = int(size * source.choice([0.1, 0.5, 1.0, 1.0, 1.5]))
    return NodePod(facts, containers, memory, source.choice([5.0, 30.0, 100.0]))


def _policies(source: random.Random, cores: float, size: float) -> Policies:
    actions = {name: _action(source, name) for name in ("one", "two", "three")[: source.randint(1, 3)]}
    marks = {
        "cpu_total_usage": 1_000.0 * cores,
        "cpu_total_utilization": 100.0,
        "memory_total_usage": float(size),
    }
    rules = []
    for number in range(source.randint(1, 4)):
        metric = source.choice(["cpu_total_usage", "cpu_total_usage", *NAMES])
        watermark = float(round(marks.get(metric, 100.0) * source.uniform(0.3, 0.95)))
        rules.append(
            Rule(
                source.choice(["nq", "other"]),
                f"r{number}",
                metric,
                watermark,
                source.choice(sorted(actions)),
                restore_watermark=None if source.random() < 0.5 else round(watermark * source.uniform(0.5, 1.0)),
                avoidance_threshold=source.choice([1, 1, 2]),
                restore_threshold=source.choice([1, 1, 3]),
                preview=source.random() < 0.1,
                on_missing="all" if source.random() < 0.2 else "nothing",
                min_dwell_seconds=source.choice([0.0, 0.0, 40.0]),
            )
        )
    return Policies(tuple(rules), actions, tuple(_pod_qos(source, name) for name in sorted(actions)))


def _action(source: random.Random, name: str) -> AvoidanceAction:
    throttles = source.random() < 0.7
    return AvoidanceAction(
        name,
        cool_down_seconds=source.choice([0.0, 20.0, 60.0, 300.0]),
        throttle=CpuThrottle(source.choice([0, 10, 40]), source.choice([5, 10, 30, 50])) if throttles else None,
        restore_step_ratio=source.choice([None, None, 5, 20]),
        force_gc=source.random() < 0.2,
        evicts=source.random() < 0.5,
        grace_seconds=source.choice([None, 5.0, 45.0]),
    )


def _pod_qos(source: random.Random, action: str) -> PodQos:
    groups = tuple(source.sample(GROUPS, source.randint(1, 3)))
    return PodQos(f"allows-{action}", frozenset({action}), LabelSelector((("group", "In", groups),)))
