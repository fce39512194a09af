"""Golden cases of Crane's agent, tests/vectors/crane.json, and their pods and states."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.decision.analysis import gathered
from agent.metrics.sorters import (
    Chains,
    SortKey,
    ascending,
    cpu_usage,
    ext_cpu_usage,
    ext_mem_usage,
    mem_usage,
    ordered_by,
    running_time,
)
from agent.model import ContainerState, MetricSample, PodState, State
from agent.policy.objects import whole_number
from agent.qos import QosClass
from watcher.core.kubernetes.quantity import nano

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "crane.json").read_text())["vectors"]

CLASSES = (QosClass.UNKNOWN, QosClass.BEST_EFFORT, QosClass.BURSTABLE, QosClass.GUARANTEED)


def _with_limit_first(name: str, limit: Callable[[PodState], float | None]) -> SortKey:
    return SortKey(name, lambda p1, p2: (not limit(p1)) - (not limit(p2)), lambda pod: limit(pod), rank=True)


def _order() -> Chains:
    priority = ascending("priority", lambda pod: pod.priority, rank=True)
    qos = ascending("qosClass", lambda pod: CLASSES.index(pod.qos), rank=True)
    extended_cpu = _with_limit_first("usesExtCpu", lambda pod: pod.extended_cpu_limit)
    extended_memory = _with_limit_first("usesExtMem", lambda pod: pod.extended_memory_limit)
    return Chains(
        general=ordered_by(priority, qos, running_time),
        cpu=ordered_by(extended_cpu, priority, qos, cpu_usage, ext_cpu_usage, running_time),
        memory=ordered_by(extended_memory, priority, qos, mem_usage, ext_mem_usage, running_time),
    )


CRANE_CHAINS = _order()
"""The sorters of Crane: its plans can be compared with those of the agent only in the same order."""


def cases(kind: str) -> pytest.MarkDecorator:
    """Parametrize a test by the cases of a kind, of which at least one must exist."""
    found = [each for each in VECTORS if each["kind"] == kind]
    assert found, kind
    return pytest.mark.parametrize("case", found, ids=lambda case: case["id"])


def quantity(text: str) -> float:
    return nano(text) / 1e9


def watermarks(given: dict[str, list[str]] | None) -> dict[str, tuple[float, ...]]:
    return gathered((metric, float(whole_number(text))) for metric, texts in (given or {}).items() for text in texts)


def state_of(values: dict[str, float], pods: list[PodState] | None = None, time: float = 1_000.0) -> State:
    return State(time, {name: (MetricSample(float(value), time),) for name, value in values.items()}, tuple(pods or ()))


def pod_of(given: dict[str, Any]) -> PodState:
    def milli(name: str, of: dict[str, Any]) -> float | None:
        return of[name] / 1000.0 if name in of else None

    return PodState(
        namespace=given.get("ns", "d"),
        name=given["name"],
        uid=given["name"],
        qos=QosClass(given.get("qos", "")),
        priority=given.get("priority") or 0,
        start_time=given.get("start_time"),
        labels=given.get("labels", {}),
        cpu=float(given.get("cpu_usage", 0.0)),
        memory=int(given.get("mem_usage", 0)),
        extended_cpu_limit=milli("elastic_cpu_limit", given),
        extended_memory_limit=given.get("elastic_mem_limit"),
        grace_seconds=given.get("pod_grace", 30.0),
        containers=tuple(
            ContainerState(
                name=each["name"],
                id=each["id"],
                cpu=each["usage"],
                quota=None if each["quota"] == -1 else each["quota"],
                period=each.get("period", 100_000),
                cpu_request=milli("request_milli", each),
                cpu_limit=milli("limit_milli", each),
                extended_cpu_limit=milli("ext_cpu_milli", each),
            )
            for each in given.get("containers", ())
        ),
    )


def names(pods: list[str] | tuple[str, ...]) -> list[str]:
    return [key.partition("/")[2] for key in pods]
