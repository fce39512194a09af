"""Nodes, pods and demands for tests of the agent's decisions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from agent.decision.analysis import Analysis, AnalyzerState, Demand, PodDemand
from agent.model import ContainerState, CpuThrottle, MetricSample, PodState, State
from agent.qos import QosClass

CPU = "cpu_total_usage"
CPU_PERCENT = "cpu_total_utilization"
MEMORY = "memory_total_usage"


def pod(name: str, cpu: float | None = None, **values: Any) -> PodState:
    """A BestEffort pod of namespace "default", unless told otherwise."""
    values = {"namespace": "default", "uid": f"uid-{name}", "qos": QosClass.BEST_EFFORT, **values}
    return PodState(name=name, cpu=cpu, **values)


def running(name: str, cpu: float, **values: Any) -> PodState:
    """A pod of one container, which uses all that the pod does; `quota`, `cpu_request`, … are the container's."""
    of_container = {
        key: values.pop(key)
        for key in ("quota", "period", "cpu_request", "cpu_limit", "extended_cpu_limit", "throttled")
        if key in values
    }
    container = ContainerState(name="main", id=f"{name}-main", cpu=cpu, **of_container)
    return pod(name, cpu, containers=(container,), **values)


def state(pods: Iterable[PodState] = (), time: float = 1_000.0, **metrics: float) -> State:
    """Metrics of the node by name, one series each."""
    return State(time, {name: (MetricSample(value, time),) for name, value in metrics.items()}, tuple(pods))


def wanted(
    pods: Iterable[PodState], *metrics: str, step: int = 10, least: int = 0, grace: float | None = None
) -> dict[str, PodDemand]:
    """All of the pods, for these metrics."""
    each = PodDemand(frozenset(metrics), CpuThrottle(min_ratio=least, step_ratio=step), grace)
    return {one.uid: each for one in pods}


def analysis(demand: Demand | None = None, time: float = 1_000.0, **values: Any) -> Analysis:
    """What the analyzer would hand on, with this demand."""
    given: Mapping[str, Any] = {
        "time": time,
        "findings": (),
        "demand": demand or Demand(),
        "preview": Demand(),
        "keep_away": None,
        "because": "",
        "may_restore": False,
        "released": (),
        "events": (),
        "warnings": (),
        "memory": AnalyzerState(),
    }
    return Analysis(**{**given, **values})
