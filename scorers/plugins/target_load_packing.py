"""TargetLoadPacking: fill nodes up to a target utilization, and spread pods beyond it (upstream Trimaran).

The CPU utilization of a node with the pod is predicted as

    U = 100 * (load * capacity / 100 + pod + recent) / capacity        percent

`load` is the node's measured AVG (or Latest if there is no AVG) in percent of capacity, `pod` the predicted usage of
the pod, and `recent` the predicted usage of the pods that were assigned too recently to be measured, which the
arguments `assignedPodSeconds` and `assignedPodDecay` define; `pod`, `recent`, and `capacity` are in millicores. U is 0
for a node without capacity. With target T, the score is

    U <= T:        (100 - T) * U / T + T
    T < U <= 100:  T * (100 - U) / (100 - T)
    U > 100:       0

rounded half away from zero.

The predicted usage of a container is its limit, otherwise its request times `defaultRequestsMultiplier`, otherwise
`defaultRequests.cpu`. `podDemand` defines how the containers of a pod are combined. `upstream` adds `spec.containers`
and the overhead, as Trimaran does: native sidecars, which run as long as these containers, pod-level resources and
in-place resizes do not count. `effective` combines the predicted usage of all containers as kube-scheduler combines
requests. `requests` or `limits` uses the effective requests or limits of the pod instead.

A node without metrics scores 0, as upstream. If most nodes have no metrics, the curve is applied to allocation, 100 *
(requests of the node's pods + request of the pod) / allocatable of each resource, as proposed in KEP-61. This equals
NodeResourcesFit with the strategy RequestedToCapacityRatio and the curve as its shape, and explain reports it.

`resources` may add memory and GPU (for nodes with GPUs); then the lowest of the scores counts. If the load of one
resource is unknown for a node, it counts as the lowest score of that resource among the nodes in the request; if it is
unknown for most of them, the resource does not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from scorers.cluster.columns import where_rare
from scorers.cluster.pods import PodInfo
from scorers.cluster.table import ClusterTable
from scorers.plugin_api.framework import (
    Scores,
    enough_known,
    fill_unknown_scores,
    load_decides,
    round_half_away,
    round_half_away_one,
)
from scorers.plugins.assigned_pod_arguments import AssignedPodArguments
from watcher.arrays import F64, I64, Bool
from watcher.core.kubernetes.objects import Container, Pod, Quantity, Resources
from watcher.core.kubernetes.pod_resources import (
    CPU,
    MEMORY,
    Amounts,
    amount,
    amounts,
    is_sidecar,
    of_containers,
    of_pod_level,
)
from watcher.core.kubernetes.resize import spec_in_effect
from watcher.model import MetricType

DEFAULT_TARGET = 40.0  # percent; upstream's default
GPU = "gpu"
ALLOCATION = "allocation"
LOADS = {CPU: MetricType.CPU, MEMORY: MetricType.MEMORY, GPU: MetricType.GPU}


class TargetLoadPackingArgs(
    AssignedPodArguments, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """`targetUtilization` in percent; `defaultRequests` is the predicted usage of a container without limit and request
    (0 if the map has no cpu); `defaultRequestsMultiplier` is the factor applied to requests."""

    target_utilization: Annotated[float, msgspec.Meta(gt=0, lt=100)] = DEFAULT_TARGET
    default_requests: dict[str, Quantity] = msgspec.field(default_factory=lambda: {CPU: "1000m"})
    default_requests_multiplier: str | float = "1.5"
    pod_demand: Literal["upstream", "effective", "requests", "limits"] = "upstream"
    resources: Annotated[tuple[Literal["cpu", "memory", "gpu"], ...], msgspec.Meta(min_length=1)] = ("cpu",)
    gpu_resource: str = "nvidia.com/gpu"

    @property
    def multiplier(self) -> float:
        """`defaultRequestsMultiplier` as a number. Raises ValueError if it is not one."""
        return float(self.default_requests_multiplier)

    def problems(self) -> list[str]:
        """Report invalid quantities, an invalid multiplier, and a decay without a time."""
        found = super().problems()
        for name, quantity in self.default_requests.items():
            try:
                if amount(name, quantity) < 0:
                    found.append(f"defaultRequests.{name}: must not be negative (given: {quantity!r})")
            except ValueError as error:
                found.append(f"defaultRequests.{name}: {error}")
        try:
            fits = 0.0 <= self.multiplier <= 1000.0
        except ValueError:
            fits = False
        if not fits:
            given = self.default_requests_multiplier
            found.append(f'defaultRequestsMultiplier: must be a number like "1.5", 0 to 1000 (given: {given!r})')
        return found


def packing_scores(predicted: F64, *, target: float) -> F64:
    """Return the curve of the module docstring: scores 0 to 100 [n] of predicted utilizations [n] in percent; NaN (no
    metrics) scores 0. `target` is above 0 and below 100."""
    rising = (100.0 - target) * predicted / target + target
    falling = target * (100.0 - predicted) / (100.0 - target)
    scores = np.where(predicted > target, falling, rising)
    return round_half_away(np.fmax(scores, 0.0))  # 0 for NaN and for predictions above 100 percent


def predicted_demand(pod: Pod, resource: str, arguments: TargetLoadPackingArgs) -> int:
    """Return the predicted usage of a resource by upstream's rule, in millicores or bytes."""
    total = amounts(pod.spec.overhead).get(resource, 0)
    return total + sum(_predicted(each.resources, resource, arguments) for each in pod.spec.containers)


def effective_demand(pod: Pod, resource: str, arguments: TargetLoadPackingArgs) -> int:
    """Return the predicted usage of a resource with all containers, in millicores or bytes. Pod-level limits and
    requests take the place of those of the containers. The default counts only for containers that stay."""
    spec = spec_in_effect(pod)
    overhead = amounts(spec.overhead).get(resource, 0)
    whole = spec.resources
    if whole is not None and of_pod_level(amounts({**whole.limits, **whole.requests})).get(resource) is not None:
        return overhead + _predicted(whole, resource, arguments)
    ending = {each.name for each in spec.init_containers if not is_sidecar(each)}

    def of_container(container: Container) -> Amounts:
        own = container.resources
        if container.name in ending and resource not in {**own.limits, **own.requests}:
            return {}
        return {resource: _predicted(own, resource, arguments)}

    return overhead + of_containers(spec, of_container).get(resource, 0)


def _predicted(resources: Resources, resource: str, arguments: TargetLoadPackingArgs) -> int:
    limits, requests = amounts(resources.limits), amounts(resources.requests)
    if resource in limits:  # zero included
        return limits[resource]
    if resource in requests:
        return round_half_away_one(requests[resource] * arguments.multiplier)
    return amount(resource, arguments.default_requests.get(resource, 0))


class TargetLoadPacking:
    """The score plug-in described in the module docstring."""

    name = "TargetLoadPacking"
    arguments = TargetLoadPackingArgs

    def __init__(self, arguments: TargetLoadPackingArgs, table: ClusterTable, *, profile: str = "default") -> None:
        self.args = arguments
        # the load of the first resource (CPU if configured) is required; the others count on nodes that report them
        self._resources = sorted(arguments.resources, key=lambda each: each != CPU)
        self._demand_names: dict[str, str] = {each: f"{profile}/{self.name}/{each}" for each in arguments.resources}
        for resource, name in self._demand_names.items():
            table.recent.register(name, partial(self._demand, resource=resource), arguments.unmeasured)

    def score(self, pod: PodInfo, table: ClusterTable, rows: I64, *, now: float) -> Scores:
        first, *others = self._resources
        if not load_decides(self._known(table, rows), fallback=self.fallback(table, now=now)):
            return self._by_allocation(pod, table, rows)
        steps: dict[str, F64] = {}
        values = self._of_resource(pod, table, rows, first, steps)
        for resource in others:
            scores = self._of_resource(pod, table, rows, resource, steps)
            there = table.capacity.column(self._kubernetes_name(resource))[rows] > 0
            known = np.where(np.isnan(steps[f"{resource} predicted %"]), np.nan, scores)
            counted = np.full(len(rows), np.nan)
            counted[there] = fill_unknown_scores(known[there])
            values = np.fmin(values, counted)
        inputs: dict[str, Any] = {"targetUtilization": self.args.target_utilization, "podDemand": self._demands(pod)}
        return Scores(values, steps, inputs, reason=lambda i: self._reason(i, steps, values))

    def fallback(self, table: ClusterTable, *, now: float) -> str:
        """Return ALLOCATION if the required load is unknown for most nodes."""
        first = self._resources[0]
        if first == GPU:
            return "" if enough_known(self._known(table, np.flatnonzero(table.known))) else ALLOCATION
        return "" if table.has_load(LOADS[first]) else ALLOCATION

    def _known(self, table: ClusterTable, rows: I64) -> Bool:
        """Return whether the required load is known, for the nodes that have the resource."""
        first = self._resources[0]
        known = ~np.isnan(table.load.average(LOADS[first])[rows])
        return known[table.capacity.column(self._kubernetes_name(first))[rows] > 0] if first == GPU else known

    def _of_resource(self, pod: PodInfo, table: ClusterTable, rows: I64, resource: str, steps: dict[str, F64]) -> F64:
        """Return the scores of one resource, 0 where its load is unknown, and record the steps."""
        load = table.load.average(LOADS[resource])[rows]
        capacity = table.capacity.column(self._kubernetes_name(resource))[rows].astype(np.float64)
        missing = table.recent.unmeasured(self._demand_names[resource], measured=table.load.sampled())[rows]
        more = self._demand(pod, resource=resource) + missing
        with np.errstate(divide="ignore", invalid="ignore"):
            predicted = 100.0 * (load / 100.0 * capacity + more) / capacity
        predicted = where_rare(capacity <= 0, predicted, load * 0.0)
        scores = packing_scores(predicted, target=self.args.target_utilization)
        steps[f"{resource} capacity"], steps[f"{resource} load %"] = capacity, load
        steps[f"{resource} of recent pods"] = missing
        steps[f"{resource} predicted %"], steps[f"{resource} score"] = predicted, scores
        return scores

    def _by_allocation(self, pod: PodInfo, table: ClusterTable, rows: I64) -> Scores:
        steps: dict[str, npt.NDArray[Any]] = {}
        found: dict[str, F64] = {}
        for resource in self.args.resources:
            name = self._kubernetes_name(resource)
            allocatable = table.allocatable.column(name)[rows]
            requested = table.requested.column(name)[rows] + pod.requests.get(name, 0)
            with np.errstate(divide="ignore", invalid="ignore"):
                allocated = np.where(allocatable > 0, 100.0 * requested / allocatable, np.nan)
            scores = packing_scores(allocated, target=self.args.target_utilization)
            found[resource] = np.where(np.isnan(allocated), np.nan, scores)
            steps[f"{resource} requested, with the pod"], steps[f"{resource} allocatable"] = requested, allocatable
            steps[f"{resource} allocated %"] = allocated
        values = np.nan_to_num(np.fmin.reduce(list(found.values())), nan=0.0)
        inputs = {"targetUtilization": self.args.target_utilization, "fallback": ALLOCATION}
        return Scores(values, steps, inputs, reason=lambda i: self._reason_by_allocation(i, steps, values))

    def _reason_by_allocation(self, i: int, steps: Mapping[str, npt.NDArray[Any]], values: F64) -> str:
        shares = {each: float(steps[f"{each} allocated %"][i]) for each in self.args.resources}
        message = ", ".join(f"{share:.1f} % of allocatable {each}" for each, share in shares.items() if share == share)
        return f"most nodes have no metrics: packed by requests, {message or 'nothing is allocatable'}: {values[i]:.0f}"

    def _demand(self, pod: PodInfo, *, resource: str) -> int:
        if resource == GPU:
            return pod.limits.get(self.args.gpu_resource, 0)
        if self.args.pod_demand == "requests":
            return pod.requests.get(resource, 0)
        if self.args.pod_demand == "limits":
            return pod.raised_limits.get(resource, 0)
        demand = effective_demand if self.args.pod_demand == "effective" else predicted_demand
        return demand(pod.pod, resource, self.args)

    def _demands(self, pod: PodInfo) -> Mapping[str, int]:
        return {resource: self._demand(pod, resource=resource) for resource in self.args.resources}

    def _kubernetes_name(self, resource: str) -> str:
        return self.args.gpu_resource if resource == GPU else resource

    def _reason(self, i: int, steps: Mapping[str, F64], values: F64) -> str:
        if np.isnan(steps[f"{self._resources[0]} predicted %"][i]):
            return "no metrics of this node: 0"
        target = self.args.target_utilization
        said = []
        for resource in self.args.resources:
            predicted = float(steps[f"{resource} predicted %"][i])
            if np.isnan(predicted) and steps[f"{resource} capacity"][i] == 0:
                said.append(f"the node has no {resource}")
            elif np.isnan(predicted):
                said.append(f"{resource} load unknown, lowest score of these nodes used if most have it")
            elif predicted > 100.0:
                said.append(f"{resource} would be at {predicted:.1f} %, above capacity")
            elif predicted > target:
                said.append(f"{resource} would be at {predicted:.1f} %, above the target of {target:g} %")
            else:
                said.append(f"{resource} would be at {predicted:.1f} %, {target - predicted:.1f} below the target")
        return f"{'; '.join(said)}: {values[i]:.0f}"
