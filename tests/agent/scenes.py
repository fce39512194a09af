"""Nodes, pods and demands for tests of the agent's decisions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from agent.decision.analysis import Analysis, AnalyzerState, Demand, PodDemand
from agent.model import Change, ContainerState, CpuThrottle, MetricSample, PodState, State, Step
from agent.qos import QosClass

C = TypeVar("C", bound=Change)

CPU = "cpu_total_usage"
CPU_PERCENT = "cpu_total_utilization"
MEMORY = "memory_total_usage"


def pod(name: str, cpu: float | None = None, **values: Any) -> PodState:
    """A pod, by default BestEffort and in the namespace "default"."""
    values = {"namespace": "default", "uid": f"uid-{name}", "qos": QosClass.BEST_EFFORT, **values}
    return PodState(name=name, cpu=cpu, **values)


def running(name: str, cpu: float, **values: Any) -> PodState:
    """A pod with one container that has the whole usage; `quota`, `cpu_request`, … are those of the container."""
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
    """The demand for all of the pods, for these metrics."""
    each = PodDemand(frozenset(metrics), CpuThrottle(min_ratio=least, step_ratio=step), grace)
    return {one.uid: each for one in pods}


def changes(steps: Iterable[Step], kind: type[C]) -> list[tuple[Step, C]]:
    """The steps whose change is of this kind, each with its change."""
    return [(step, step.change) for step in steps if isinstance(step.change, kind)]


def analysis(demand: Demand | None = None, time: float = 1_000.0, **values: Any) -> Analysis:
    """The result of the analyzer with this demand."""
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
