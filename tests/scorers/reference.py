"""Expected scores of plug-ins, computed node by node as their documents define them, for comparison with the arrays.

Percentages are of a node's capacity; None means unknown. Whole numbers where Kubernetes has them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scorers.cluster.pods import PodInfo


@dataclass
class NodeState:
    """A node: its capacity (millicores and bytes), its pods, and its load as (type, operator) -> percent."""

    name: str
    has: Mapping[str, int]
    pods: Sequence[PodInfo] = ()
    load: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def percent(self, kind: str) -> float | None:
        return self.load.get((kind, "AVG"), self.load.get((kind, "Latest")))

    def requested(self, resource: str) -> int:
        return sum(pod.requests.get(resource, 0) for pod in self.pods)

    def limited(self, resource: str) -> int:
        return sum(pod.raised_limits.get(resource, 0) for pod in self.pods)

    def counted(self, resource: str) -> int:
        return sum(pod.counted_requests.get(resource, 0) for pod in self.pods)


KINDS = {"cpu": "CPU", "memory": "Memory"}


def half_away(value: float) -> int:
    """As Go's math.Round."""
    whole = math.trunc(value)
    return whole + (int(math.copysign(1, value)) if abs(value - whole) >= 0.5 else 0)


# --- kube-scheduler --------------------------------------------------------------------------------------------------


def least_allocated(node: NodeState, pod: PodInfo) -> int:
    """NodeResourcesFit: cpu and memory alike."""
    scores = []
    for resource in KINDS:
        has, wants = node.has.get(resource, 0), node.counted(resource) + pod.counted_requests.get(resource, 0)
        if has:
            scores.append(0 if wants > has else (has - wants) * 100 // has)
    return sum(scores) // len(scores) if scores else 0


def most_allocated(node: NodeState, pod: PodInfo) -> int:
    scores = []
    for resource in KINDS:
        has, wants = node.has.get(resource, 0), node.counted(resource) + pod.counted_requests.get(resource, 0)
        if has:
            scores.append(min(wants, has) * 100 // has)
    return sum(scores) // len(scores) if scores else 0


def balanced_allocation(node: NodeState, pod: PodInfo) -> int:
    shares = []
    for resource in KINDS:
        has, wants = node.has.get(resource, 0), node.requested(resource) + pod.requests.get(resource, 0)
        if has:
            shares.append(min(wants / has, 1.0))
    if len(shares) < 2:
        return 100
    return int((1 - abs(shares[0] - shares[1]) / 2) * 100)


# --- TargetLoadPacking -----------------------------------------------------------------------------------------------


def packing(percent: float, target: float) -> int:
    if percent > 100:
        return 0
    if percent > target:
        return half_away(target * (100.0 - percent) / (100.0 - target))
    return half_away((100.0 - target) * percent / target + target)


def packed_by_load(node: NodeState, demand: float, recent: float, target: float) -> int:
    """`demand` of the pod and `recent`, the demand of pods that are not measured yet, are in millicores."""
    percent, has = node.percent("CPU"), node.has.get("cpu", 0)
    if percent is None:
        return 0
    return packing(100.0 * (percent / 100.0 * has + (demand + recent)) / has if has else 0.0, target)


def packed_by_requests(node: NodeState, pod: PodInfo, target: float) -> int:
    has = node.has.get("cpu", 0)
    return packing(100.0 * (node.requested("cpu") + pod.requests.get("cpu", 0)) / has, target) if has else 0


# --- LoadVariationRiskBalancing --------------------------------------------------------------------------------------


def risk_score(node: NodeState, pod: PodInfo, resource: str, *, margin: float, sensitivity: float) -> float | None:
    """The score of one resource, 0 to 100, not rounded."""
    percent = node.percent(KINDS[resource])
    if percent is None:
        return None
    has = node.has.get(resource, 0)
    if has == 0:
        return 0.0
    used, deviation = percent / 100 * has, node.load.get((KINDS[resource], "STD"), 0.0) / 100 * has
    mu = min(max((min(used, has) + pod.requests.get(resource, 0)) / has, 0.0), 1.0)
    sigma = min(deviation / has, 1.0)
    sigma = sigma ** (1 / sensitivity) if sensitivity > 0 else float(sigma == 1.0)
    return (1 - (mu + min(margin * sigma, 1.0)) / 2) * 100


def document_score(node: NodeState, request: int, recent: int, resource: str, *, margin: float) -> float | None:
    """KEP-61, of one resource; `recent` are the requests of pods that are not measured yet."""
    percent, has = node.percent(KINDS[resource]), node.has.get(resource, 0)
    if percent is None:
        return None
    if has == 0:
        return 0.0
    mean = min(percent / 100 + (request + recent) / has, 1.0)
    return (1 - min(mean + margin * node.load.get((KINDS[resource], "STD"), 0.0) / 100, 1.0)) * 100


# --- LowRiskOverCommitment -------------------------------------------------------------------------------------------


def limit_risk(node: NodeState, pod: PodInfo, resource: str) -> float:
    has = node.has.get(resource, 0)
    request = min(node.requested(resource) + pod.requests.get(resource, 0), has)
    limit = node.limited(resource) + pod.raised_limits.get(resource, 0)
    return (limit - has) / (limit - request) if limit > has else 0.0


# --- Peaks -----------------------------------------------------------------------------------------------------------


def rise_in_watts(node: NodeState, request: int, model: tuple[float, float] | None) -> float | None:
    """The rise in power by this number of millicores; None if the node is excluded: its load is unknown, or it has no
    room."""
    percent, has = node.percent("CPU"), node.has.get("cpu", 0)
    if percent is None or has == 0 or model is None:
        return None
    predicted = percent + 100 * request / has
    if predicted > 100:
        return None
    k1, k2 = model
    return k1 * (math.exp(k2 * predicted) - math.exp(k2 * percent))


# --- HighLoadFilter --------------------------------------------------------------------------------------------------


def is_let_through(
    node: NodeState, pod: PodInfo, thresholds: Mapping[str, float], *, stale: bool, fail_open: bool
) -> bool:
    unknown = False
    for resource, kind in KINDS.items():
        percent = None if stale else node.percent(kind)
        if percent is None:
            unknown = True
            continue
        has, wants = node.has.get(resource, 0), pod.requests.get(resource, 0)
        more = math.inf if wants > 0 and has <= 0 else 100 * wants / has if has else 0.0
        if percent + more > thresholds.get(resource, 100.0):
            return False
    return fail_open or not unknown
