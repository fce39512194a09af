"""What a pod will use, before it was measured, and what a node has (reference/koordinator.md, 3.1 to 3.3).

The default estimator: of each resource with a factor (percent), under the name that the pod's class has for it,

    estimate = factor * limit or request, whichever is more / 100      rounded half away from zero, the limit at most

A pod that asks for none of cpu or memory counts 250 millicores and 200 MiB.

The other one goes by what pods of the same workload were measured to use (`owners`), where enough is known of them.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from scorers.cluster.koordinator_classes import BATCH_CPU, BATCH_MEMORY, priority_class, resource_of
from scorers.cluster.pods import PodInfo
from scorers.cluster.resources import CPU, LARGEST, MEMORY, Amounts, amounts
from scorers.plugin_api.framework import round_half_away_one
from scorers.plugins.koordinator.workload_usage import MEASURED, OwnerHistoryArgs, Usage, WorkloadUsage, workload_of
from watcher.core.kubernetes.objects import Node, Pod, Quantity

FACTORS = "scheduling.koordinator.sh/load-estimated-scaling-factors"
AFTER_SCHEDULED = "scheduling.koordinator.sh/load-estimated-seconds-after-pod-scheduled"
AFTER_INITIALIZED = "scheduling.koordinator.sh/load-estimated-seconds-after-initialized"
RAW_ALLOCATABLE = "node.koordinator.sh/raw-allocatable"

LARGEST_FACTOR = 1000
UNASKED: Mapping[str, int] = {CPU: 250, BATCH_CPU: 250, MEMORY: 200 << 20, BATCH_MEMORY: 200 << 20}
"""What a pod that does not ask for it is taken to use."""


class Rules(Protocol):
    """What an estimator needs of the plug-in's arguments; `factors` in percent."""

    @property
    def factors(self) -> Mapping[str, int]: ...

    @property
    def allow_customize_estimation(self) -> bool: ...

    @property
    def estimated_seconds_after_pod_scheduled(self) -> int | None: ...

    @property
    def estimated_seconds_after_initialized(self) -> int | None: ...

    @property
    def history(self) -> OwnerHistoryArgs: ...


class Estimator(Protocol):
    """Says what a pod will use. One that goes by what pods were measured to use is told of these (`history`)."""

    @property
    def history(self) -> WorkloadUsage | None: ...

    def estimate(self, info: PodInfo) -> Amounts:
        """By resource; asked for each pod, so in a time that does not depend on how many there are."""
        ...

    def told(self, info: PodInfo) -> Mapping[str, str]:
        """How that came about, by resource, in words; empty for Koordinator's own."""
        ...


class DefaultEstimator:
    """Koordinator's, see above."""

    history = None

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def estimate(self, info: PodInfo) -> Amounts:
        """By factors."""
        return default_estimator(info, self._rules)

    def told(self, info: PodInfo) -> Mapping[str, str]:
        """Its amounts are Koordinator's, and explained by them."""
        return {}


class OwnerHistoryEstimator:
    """A percentile of what the pods of the same workload used lately, the pod's limit at most; the default estimator's
    where too little is known of them."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.history: WorkloadUsage | None = WorkloadUsage(rules.history.percentile)

    def estimate(self, info: PodInfo) -> Amounts:
        """Each resource by itself: cpu may be known where memory is not."""
        found = dict(default_estimator(info, self._rules))
        kind = priority_class(info.pod)
        for resource, usage in self._usage(info).items():
            if resource in found and self._is_enough(usage):
                limit = info.limits.get(resource_of(kind, resource) or "", 0)
                found[resource] = min(usage.amount, limit if limit > 0 else LARGEST)
        return found

    def told(self, info: PodInfo) -> Mapping[str, str]:
        """What it goes by, and why not by history."""
        workload = workload_of(info.pod)
        if workload is None:
            return dict.fromkeys(MEASURED, "by default: the pod has no controller")
        if self.history is None or not self.history.measured:
            return dict.fromkeys(MEASURED, "by default: it is not known what pods use")
        wanted = self._rules.history
        needed = f"needed are {wanted.min_readings} of {wanted.min_pods}"
        return {
            resource: f"p{wanted.percentile} of {usage} of {workload}"
            if self._is_enough(usage)
            else f"by default: of {workload} there are {usage}, {needed}"
            for resource, usage in self._usage(info).items()
        }

    def _usage(self, info: PodInfo) -> Mapping[str, Usage]:
        workload = workload_of(info.pod)
        return {} if workload is None or self.history is None else self.history.of(workload)

    def _is_enough(self, usage: Usage) -> bool:
        wanted = self._rules.history
        return usage.readings >= wanted.min_readings and usage.pods >= wanted.min_pods


DEFAULT = "defaultEstimator"
OWNER_HISTORY = "ownerHistoryEstimator"
ESTIMATORS: Mapping[str, Callable[[Rules], Estimator]] = {
    DEFAULT: DefaultEstimator,
    OWNER_HISTORY: OwnerHistoryEstimator,
}


def default_estimator(info: PodInfo, rules: Rules) -> Amounts:
    """See above."""
    kind = priority_class(info.pod)
    return {
        resource: _estimated(info, resource_of(kind, resource), factor)
        for resource, factor in factors_of(info.pod, rules).items()
    }


def factors_of(pod: Pod, rules: Rules) -> Mapping[str, int]:
    """Percent by resource: the pod's annotation where it may have one, and what that leaves out from the arguments. One
    that is no JSON map of whole numbers 0 to 1000 is passed over."""
    text = pod.metadata.annotations.get(FACTORS, "") if rules.allow_customize_estimation else ""
    if not text:
        return rules.factors
    try:
        own = msgspec.json.decode(text, type=dict[str, int])
    except (msgspec.DecodeError, ValueError):
        return rules.factors
    if any(not 0 <= factor <= LARGEST_FACTOR for factor in own.values()):
        return rules.factors
    return {**rules.factors, **own}


def _estimated(info: PodInfo, resource: str | None, factor: int) -> int:
    if resource is None:
        return 0
    limit, request = info.limits.get(resource, 0), info.requests.get(resource, 0)
    asked = max(limit, request)
    if asked <= 0:
        return UNASKED.get(resource, 0)
    size = round_half_away_one(asked * factor / 100)
    return min(size, limit if limit > 0 else LARGEST, LARGEST)


def forced_until(pod: Pod, rules: Rules, *, scheduled: float) -> float | None:
    """Until when (unix seconds, of the measurement, not of the clock) a pod counts as its estimate whatever is
    measured: so long after it was initialised, else after it was `scheduled`; None: not at all."""
    after_initialized = _seconds(pod, AFTER_INITIALIZED, rules, rules.estimated_seconds_after_initialized)
    if after_initialized > 0:
        for condition in pod.status.conditions:
            if condition.type == "Initialized" and condition.status == "True" and condition.last_transition_time:
                return condition.last_transition_time.timestamp() + after_initialized
    after_scheduled = _seconds(pod, AFTER_SCHEDULED, rules, rules.estimated_seconds_after_pod_scheduled)
    return scheduled + after_scheduled if after_scheduled > 0 else None


def _seconds(pod: Pod, annotation: str, rules: Rules, otherwise: int | None) -> int:
    text = pod.metadata.annotations.get(annotation, "") if rules.allow_customize_estimation else ""
    if text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)
    return otherwise or 0


def allocatable_of(node: Node) -> Amounts:
    """What pods may have of a node: its status, overlaid with the annotation node.koordinator.sh/raw-allocatable, which
    says what there was before it was amplified. Raises ValueError where the annotation cannot be read."""
    given = amounts(node.status.allocatable)
    text = node.metadata.annotations.get(RAW_ALLOCATABLE, "")
    if not text:
        return given
    try:
        raw = msgspec.json.decode(text, type=dict[str, Quantity])
    except msgspec.DecodeError as error:
        raise ValueError(f"{RAW_ALLOCATABLE}: {error}") from None
    return {**given, **amounts(raw)}
