"""Selects the pods that the planner would evict from a node over a watermark. Simulations use it: it needs neither
control groups nor policies.

It applies a fixed policy: usage of CPU or memory above the watermark evicts, and every pod that is not protected may be
evicted. Eviction order and arithmetic are the same as in the planner.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from agent.decision.analysis import AnalyzerState
from agent.decision.analyzer import analyze
from agent.decision.plan_inputs import PlanInputs
from agent.decision.planner import plan
from agent.metrics.builtin import CPU_UTILIZATION, MEMORY_TOTAL, MEMORY_UTILIZATION
from agent.metrics.pod_actions import NODE_CORES
from agent.metrics.registry import Metrics
from agent.model import AvoidanceAction, Eviction, MetricSample, PodQos, PodScope, PodState, Policies, Rule, State
from agent.qos import QosClass

EVICT = "evict"
EVERYTHING = PodScope("QOSClass", "In", tuple(each.value for each in QosClass))


class SimulatedPod(Protocol):
    """A pod with its usage in cores and bytes; `owner` is KIND/NAME, `started` in unix seconds."""

    @property
    def uid(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def qos(self) -> str: ...
    @property
    def priority(self) -> int: ...
    @property
    def owner(self) -> str: ...
    @property
    def started(self) -> float: ...
    @property
    def cores(self) -> float: ...
    @property
    def bytes(self) -> int: ...


class SimulatedNode(Protocol):
    """A node at a point in time (unix seconds), with its capacity and usage in cores and bytes, and its pods."""

    @property
    def time(self) -> float: ...
    @property
    def cores(self) -> float: ...
    @property
    def bytes(self) -> int: ...
    @property
    def used_cores(self) -> float: ...
    @property
    def used_bytes(self) -> float: ...
    @property
    def pods(self) -> Sequence[SimulatedPod]: ...


def evicted(node: SimulatedNode, *, watermark: float) -> tuple[str, ...]:
    """The uids of the pods that the planner would evict, in eviction order; `watermark` in percent, for both CPU and
    memory."""
    rules = tuple(Rule("simulated", name, name, watermark, EVICT) for name in (CPU_UTILIZATION, MEMORY_UTILIZATION))
    policies = Policies(
        rules,
        {EVICT: AvoidanceAction(EVICT, evicts=True)},
        (PodQos("every pod", frozenset({EVICT}), scopes=(EVERYTHING,)),),
    )
    state = _state(node)
    given = PlanInputs(state, Metrics())
    made = plan(analyze(state, policies, AnalyzerState()), given)
    return tuple(step.uid for step in made.steps if isinstance(step.change, Eviction))


def _state(node: SimulatedNode) -> State:
    values = {
        CPU_UTILIZATION: 100.0 * node.used_cores / node.cores,
        MEMORY_UTILIZATION: 100.0 * node.used_bytes / node.bytes,
        NODE_CORES: node.cores,
        MEMORY_TOTAL: float(node.bytes),
    }
    metrics = {name: (MetricSample(value, node.time),) for name, value in values.items()}
    return State(node.time, metrics, tuple(_pod(pod) for pod in node.pods))


def _pod(pod: SimulatedPod) -> PodState:
    return PodState(
        pod.namespace,
        pod.name,
        pod.uid,
        qos=QosClass(pod.qos),
        priority=pod.priority,
        start_time=pod.started,
        owner=pod.owner,
        daemon=pod.owner.partition("/")[0] == "DaemonSet",
        cpu=pod.cores,
        memory=pod.bytes,
    )
