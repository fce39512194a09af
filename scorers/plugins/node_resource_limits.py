"""NodeResourceLimits: spread the limits of pods, so that few nodes are overcommitted.

For each resource, with the limits of the node's pods and of the pod to place,

    raw = (capacity - limits) * 100 / capacity        negative if the node is overcommitted

then the weighted mean over all resources, and over the nodes in the request

    score = (raw - lowest) * 100 / (highest - lowest)

in integers, rounded toward zero, as Go divides. If all are equal, all score 0.

Rules for special cases: a pod's limit counts the same before and after it is placed, including init containers,
sidecars, and overhead. A container without a limit counts with `defaultLimits`, but at least with its request; with
"allocatable" the pod counts as much as the node's allocatable. Pods that have ended do not count. A resource that a
node does not have is skipped for that node, with its weight. `capacity` is allocatable times a ratio in percent: from
the node's annotation node.koordinator.sh/limit-to-allocatable, otherwise from `limitToAllocatableRatio`, otherwise 100.

With `filter`, a node is rejected if the pod's limit exceeds the unused part of that capacity (unresolvable if it
exceeds the whole capacity); limits of zero always pass.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from scorers.cluster.columns import AmountColumns
from scorers.cluster.pods import PodInfo
from scorers.cluster.table import ClusterTable
from scorers.plugin_api.arguments import Arguments
from scorers.plugin_api.framework import Scores, Verdicts
from watcher.arrays import I64
from watcher.core.kubernetes.objects import Container, Node, Pod, PodSpec, Quantity
from watcher.core.kubernetes.pod_resources import (
    CPU,
    MEMORY,
    Amounts,
    amount,
    exact_amounts,
    of_containers,
    of_pod_level,
    rounded,
)
from watcher.core.kubernetes.resize import spec_in_effect
from watcher.decoding.json_text import decode_json
from watcher.decoding.text import whole_number

log = logging.getLogger(__name__)


ALLOCATABLE = "allocatable"
RATIO_ANNOTATION = "node.koordinator.sh/limit-to-allocatable"
LARGEST_RATIO = 100_000
LARGEST = 1 << 56  # bound of capacities and of their unused part
FURTHEST = 1 << 40  # bound of raw scores, percent


class WeightedResource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A resource and its weight."""

    name: str
    weight: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1


class NodeResourceLimitsArgs(Arguments, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """`defaultLimits` by resource: a quantity or "allocatable"; `limitToAllocatableRatio` by resource: a percentage as
    number or as text, like "120%"."""

    resources: Annotated[tuple[WeightedResource, ...], msgspec.Meta(min_length=1)] = (
        WeightedResource(CPU),
        WeightedResource(MEMORY),
    )
    default_limits: dict[str, Quantity] = msgspec.field(default_factory=lambda: {CPU: "100m", MEMORY: "200Mi"})
    limit_to_allocatable_ratio: dict[str, int | str] = msgspec.field(default_factory=dict)
    filter: bool = False

    def problems(self) -> list[str]:
        """Report invalid quantities and ratios, and duplicate resources."""
        names = [resource.name for resource in self.resources]
        found = [f"resources: {name} is listed twice" for name in sorted(set(names)) if names.count(name) > 1]
        for name, quantity in self.default_limits.items():
            if quantity == ALLOCATABLE:
                continue
            try:
                if amount(name, quantity) < 0:
                    found.append(f"defaultLimits.{name}: must not be negative (given: {quantity!r})")
            except ValueError as error:
                found.append(f'defaultLimits.{name}: {error}, and not "{ALLOCATABLE}"')
        for name, ratio in self.limit_to_allocatable_ratio.items():
            try:
                read_ratio(ratio)
            except ValueError as error:
                found.append(f"limitToAllocatableRatio.{name}: {error}")
        return found


def read_ratio(ratio: object) -> int:
    """Parse a percentage: 120, "120%", or "120". Raises ValueError for invalid input."""
    number = None if isinstance(ratio, bool) else whole_number(str(ratio).strip().removesuffix("%"))
    if number is None or not 0 < number <= LARGEST_RATIO:
        raise ValueError(f'must be a percentage like 120 or "120%", above 0 (given: {str(ratio)[:40]!r})')
    return number


def scaled(allocatable: I64, ratio: I64) -> I64:
    """Return allocatable * ratio / 100 [n], rounded down, at most LARGEST. Avoids the 64-bit overflow of the direct
    product."""
    whole, rest = np.divmod(allocatable, 100)
    exact: I64 = np.minimum(whole * ratio + rest * ratio // 100, LARGEST)
    return exact


def raw_scores(limits: I64, capacity: I64) -> I64:
    """Return (capacity - limits) * 100 / capacity [n], rounded toward zero; 0 without capacity. Capacities are at most
    LARGEST."""
    there = np.where(capacity > 0, capacity, 1)
    left = np.clip(there - limits, -LARGEST, LARGEST)  # absurd limits must not overflow
    raw = _divided(left * 100, there)
    return np.where(capacity > 0, np.clip(raw, -FURTHEST, FURTHEST), 0)


def normalised(raw: I64) -> I64:
    """Scale linearly from 0 for the lowest to 100 for the highest; return 0 for all if they are equal."""
    if not len(raw) or raw.min() == raw.max():
        return np.zeros_like(raw)
    return _divided((raw - raw.min()) * 100, np.full_like(raw, raw.max() - raw.min()))


def _divided(values: I64, by: I64) -> I64:
    quotient: I64 = np.sign(values) * (np.abs(values) // by)
    return quotient


@dataclass(frozen=True, slots=True)
class _PodLimit:
    """Limits of a pod as counted here, and the resources for which it counts as the node's whole allocatable."""

    limits: Amounts
    unlimited: frozenset[str]


@dataclass(slots=True)
class _Sums:
    limits: AmountColumns = field(default_factory=AmountColumns)
    unlimited: AmountColumns = field(
        default_factory=AmountColumns
    )  # number of pods that count as the node's whole allocatable
    ratio: AmountColumns = field(default_factory=AmountColumns)  # from the nodes' annotations, 0: none
    annotation: dict[int, str] = field(default_factory=dict)


class NodeResourceLimits:
    """The plug-in described in the module docstring."""

    name = "NodeResourceLimits"
    arguments = NodeResourceLimitsArgs

    def __init__(self, arguments: NodeResourceLimitsArgs, table: ClusterTable, *, profile: str = "default") -> None:
        self.args = arguments
        self._names = tuple(resource.name for resource in arguments.resources)
        self._ratio = {name: read_ratio(ratio) for name, ratio in arguments.limit_to_allocatable_ratio.items()}
        given = arguments.default_limits
        self._defaults = exact_amounts({name: size for name, size in given.items() if size != ALLOCATABLE})
        self._table = table
        self._sums = _Sums()
        self._last: tuple[PodSpec, _PodLimit] | None = None
        table.listen(self)

    # --- event handlers ----------------------------------------------------------------------------------------------

    def assigned(self, row: int, info: PodInfo, at: float) -> None:
        self._add(row, info, 1)

    def unassigned(self, row: int, info: PodInfo) -> None:
        self._add(row, info, -1)

    def node_changed(self, row: int, node: Node | None) -> None:
        """Update the ratio from the node's annotation."""
        text = "" if node is None else node.metadata.annotations.get(RATIO_ANNOTATION, "")
        if text == self._sums.annotation.get(row, ""):
            return  # the kubelet updates node objects frequently
        self._reserve()
        self._sums.annotation[row] = text
        self._sums.ratio.set(row, {})
        if node is None or not text:
            return
        try:
            given = decode_json(text, type=dict[str, int | str])
            self._sums.ratio.set(row, {name: read_ratio(ratio) for name, ratio in given.items()})
        except ValueError as error:  # includes msgspec's errors
            log.warning("node %s: invalid annotation %s ignored: %s", node.metadata.name, RATIO_ANNOTATION, error)

    def _add(self, row: int, info: PodInfo, times: int) -> None:
        self._reserve()
        counted = self._limit_of(info.pod)
        self._sums.limits.add(row, counted.limits, times=times)
        self._sums.unlimited.add(row, dict.fromkeys(counted.unlimited, 1), times=times)

    def _reserve(self) -> None:
        self._sums.limits.reserve(len(self._table))
        self._sums.unlimited.reserve(len(self._table))
        self._sums.ratio.reserve(len(self._table))

    # --- scoring and filtering ---------------------------------------------------------------------------------------

    def score(self, pod: PodInfo, table: ClusterTable, rows: I64, *, now: float) -> Scores:
        counted = self._limit_of(pod.pod)
        total, weights = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
        steps: dict[str, npt.NDArray[Any]] = {}
        for resource in self.args.resources:
            capacity, limits = self._state(table, resource.name, rows)
            limits = limits + self._of(counted, resource.name, table, rows)
            raw = raw_scores(limits, capacity)
            there = capacity > 0
            total += np.where(there, raw * resource.weight, 0)
            weights += np.where(there, resource.weight, 0)
            steps[f"{resource.name} limits, with the pod"] = limits
            steps[f"{resource.name} capacity"] = capacity
            steps[f"{resource.name} raw"] = np.where(there, raw, np.nan)
        known = weights > 0
        raw = _divided(total, np.where(known, weights, 1))
        values = np.zeros(len(rows))
        values[known] = normalised(raw[known])
        steps["raw"] = np.where(known, raw, np.nan)

        def reason(i: int) -> str:
            if not known[i]:
                return f"the node has none of {', '.join(self._names)}: 0"
            worst = min(self._names, key=lambda name: np.fmin(steps[f"{name} raw"][i], np.inf))
            share = 100 * steps[f"{worst} limits, with the pod"][i] / steps[f"{worst} capacity"][i]
            return f"{worst} limits with the pod: {share:.0f} % of capacity; relative to these nodes: {values[i]:.0f}"

        return Scores(values, steps, {"podLimits": self._shown(counted)}, reason)

    def filter(self, pod: PodInfo, table: ClusterTable, rows: I64, *, now: float) -> Verdicts:
        """Pass all nodes unless `filter` is set."""
        codes = np.zeros(len(rows), dtype=np.int64)
        if not self.args.filter:
            return Verdicts(codes)
        counted = self._limit_of(pod.pod)
        steps: dict[str, npt.NDArray[Any]] = {}
        never = codes
        for code, name in enumerate(self._names, start=1):
            capacity, limits = self._state(table, name, rows)
            more = self._of(counted, name, table, rows)
            codes = np.where((codes == 0) & (more > 0) & (more > capacity - limits), code, codes)
            never = np.where((never == 0) & (more > 0) & (more > capacity), code + len(self._names), never)
            steps[f"{name} limits"], steps[f"{name} capacity"] = limits, capacity
        insufficient = tuple(f"Insufficient {name} limit" for name in self._names)
        return Verdicts(
            np.where(never > 0, never, codes),
            ("", *insufficient, *insufficient),
            steps,
            {"podLimits": self._shown(counted)},
            unresolvable=frozenset(range(len(insufficient) + 1, 2 * len(insufficient) + 1)),
        )

    def _state(self, table: ClusterTable, resource: str, rows: I64) -> tuple[I64, I64]:
        """Return capacity and limits of the nodes in these rows."""
        self._reserve()
        allocatable = table.allocatable.column(resource)
        ratio = self._sums.ratio.column(resource)
        ratio = np.where(ratio > 0, ratio, self._ratio.get(resource, 100))
        limits = self._sums.limits.column(resource) + self._sums.unlimited.column(resource) * allocatable
        return scaled(allocatable[rows], ratio[rows]), limits[rows]

    def _of(self, counted: _PodLimit, resource: str, table: ClusterTable, rows: I64) -> I64:
        if resource in counted.unlimited:
            return table.allocatable.column(resource)[rows]
        return np.full(len(rows), counted.limits.get(resource, 0), dtype=np.int64)

    def _shown(self, counted: _PodLimit) -> dict[str, int | str]:
        return {name: ALLOCATABLE if name in counted.unlimited else counted.limits.get(name, 0) for name in self._names}

    def _limit_of(self, pod: Pod) -> _PodLimit:
        """Return the limits of a pod, cached for the last pod, which is filtered, scored, and counted in succession."""
        spec = spec_in_effect(pod)
        if self._last is None or self._last[0] != spec:
            self._last = spec, self._counted(spec)
        return self._last[1]

    def _counted(self, spec: PodSpec) -> _PodLimit:
        """Combine the limits of the containers as kube-scheduler combines requests. A resource without limit in a
        container that has no default for it counts as the node's whole allocatable, unless the pod as a whole has a
        limit."""
        whole = {} if spec.resources is None else of_pod_level(exact_amounts(spec.resources.limits))
        every = (*spec.containers, *spec.init_containers)
        unlimited = {
            name
            for name in self._names
            if name not in whole
            and self.args.default_limits.get(name) == ALLOCATABLE
            and any(name not in each.resources.limits for each in every)
        }
        limits = {**of_containers(spec, self._limits_of_container), **whole}
        overhead = exact_amounts(spec.overhead)
        total = {name: limits.get(name, 0) + overhead.get(name, 0) for name in self._names if name not in unlimited}
        return _PodLimit(rounded(total), frozenset(unlimited))

    def _limits_of_container(self, container: Container) -> Amounts:
        """Return limits in billionths, at least the requests; a resource without limit has the default."""
        limits, requests = exact_amounts(container.resources.limits), exact_amounts(container.resources.requests)
        return {name: max(limits.get(name, self._defaults.get(name, 0)), requests.get(name, 0)) for name in self._names}
