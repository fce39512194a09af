"""Selects the pods that the planner of the node agent would evict from a simulated node over a watermark.

It applies a fixed policy: usage of CPU or memory above the watermark evicts, and every pod that is not protected may be
evicted. Eviction order and arithmetic are those of the planner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.decision.analysis import AnalyzerState
from agent.decision.analyzer import analyze
from agent.decision.plan_inputs import PlanInputs
from agent.decision.planner import plan
from agent.metrics.builtin import CPU_UTILIZATION, MEMORY_TOTAL, MEMORY_UTILIZATION
from agent.metrics.pod_actions import NODE_CORES
from agent.metrics.registry import Metrics
from agent.model import AvoidanceAction, Eviction, MetricSample, PodQos, PodScope, PodState, Policies, Rule, State
from agent.qos import QosClass

if TYPE_CHECKING:  # the image of the agent has this module, but not the laboratory
    from lab.simulate.engine import OverloadedNode, PodUsageView

EVICT = "evict"
EVERYTHING = PodScope("QOSClass", "In", tuple(each.value for each in QosClass))


def evicted(node: OverloadedNode, *, watermark: float) -> tuple[str, ...]:
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


def _state(node: OverloadedNode) -> State:
    values = {
        CPU_UTILIZATION: 100.0 * node.used_cores / node.cores,
        MEMORY_UTILIZATION: 100.0 * node.used_bytes / node.bytes,
        NODE_CORES: node.cores,
        MEMORY_TOTAL: float(node.bytes),
    }
    metrics = {name: (MetricSample(value, node.time),) for name, value in values.items()}
    return State(node.time, metrics, tuple(_pod(pod) for pod in node.pods))


def _pod(pod: PodUsageView) -> PodState:
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
