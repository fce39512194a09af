"""Estimated usage of a pod before it is measured, and the allocatable resources of a node.

The default estimator computes, for each resource with a factor (percent), under the resource name of the pod's class:

    estimate = factor * max(limit, request) / 100      rounded half away from zero, at most the limit

A pod without requests and limits for cpu or memory counts as 250 millicores or 200 MiB.

The other estimator uses the measured usage of pods of the same workload (`workload_usage`) if enough readings exist.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from scorers.cluster.koordinator_classes import BATCH_CPU, BATCH_MEMORY, priority_class, resource_of
from scorers.cluster.pods import PodInfo
from scorers.plugin_api.framework import round_half_away_one
from scorers.plugins.koordinator.arguments import OWNER_HISTORY, LoadAwareSchedulingArgs
from scorers.plugins.koordinator.workload_usage import (
    MEASURED,
    UsagePercentile,
    WorkloadUsage,
    workload_of,
)
from watcher.core.kubernetes.objects import Node, Pod, Quantity
from watcher.core.kubernetes.pod_resources import CPU, MAX_AMOUNT, MEMORY, Amounts, amounts
from watcher.decoding.json_text import decode_json

FACTORS = "scheduling.koordinator.sh/load-estimated-scaling-factors"
AFTER_SCHEDULED = "scheduling.koordinator.sh/load-estimated-seconds-after-pod-scheduled"
AFTER_INITIALIZED = "scheduling.koordinator.sh/load-estimated-seconds-after-initialized"
RAW_ALLOCATABLE = "node.koordinator.sh/raw-allocatable"

LARGEST_FACTOR = 1000
DEFAULT_ESTIMATES: Mapping[str, int] = {CPU: 250, BATCH_CPU: 250, MEMORY: 200 << 20, BATCH_MEMORY: 200 << 20}
"""Estimates for a pod without request and limit for the resource: millicores and bytes."""


class DefaultEstimator:
    """Estimates the usage of a pod by Koordinator's rules (see the module docstring)."""

    history: WorkloadUsage | None = None
    """Receives the measured usage, if the estimator is based on it."""

    def __init__(self, rules: LoadAwareSchedulingArgs) -> None:
        self._rules = rules

    def estimate(self, info: PodInfo) -> Amounts:
        """Amounts by resource (millicores, bytes). Called for each pod, so its cost must not depend on the number of
        pods."""
        return default_estimator(info, self._rules)

    def explain(self, info: PodInfo) -> Mapping[str, str]:
        """The basis of the estimate by resource, for reasons shown to users; empty: Koordinator's own rules need no
        explanation."""
        return {}


class OwnerHistoryEstimator(DefaultEstimator):
    """Estimates a percentile of the recent usage of pods of the same workload, at most the pod's limit. Uses the
    default estimator if there are too few readings."""

    def __init__(self, rules: LoadAwareSchedulingArgs) -> None:
        super().__init__(rules)
        self.history = WorkloadUsage(rules.history.percentile)

    def estimate(self, info: PodInfo) -> Amounts:
        """Amounts by resource. Each resource is decided separately: there may be enough readings of cpu but not of
        memory."""
        found = dict(super().estimate(info))
        kind = priority_class(info.pod)
        for resource, usage in self._usage(info).items():
            if resource in found and self._is_enough(usage):
                limit = info.limits.get(resource_of(kind, resource) or "", 0)
                found[resource] = min(usage.amount, limit if limit > 0 else MAX_AMOUNT)
        return found

    def explain(self, info: PodInfo) -> Mapping[str, str]:
        """The basis of the estimate by resource, and why the history was not used."""
        workload = workload_of(info.pod)
        if workload is None:
            return dict.fromkeys(MEASURED, "default estimator: the pod has no controller")
        if self.history is None or not self.history.measured:
            return dict.fromkeys(MEASURED, "default estimator: the usage of pods is unknown")
        wanted = self._rules.history
        needed = f"required: {wanted.min_readings} of {wanted.min_pods}"
        found = {}
        for resource, usage in self._usage(info).items():
            lacking = self.history.without_readings(workload, usage)
            basis = f"{usage} ({lacking} without readings)" if lacking else str(usage)
            found[resource] = (
                f"p{wanted.percentile} of {basis} of {workload}"
                if self._is_enough(usage)
                else f"default estimator: {workload} has {basis}, {needed}"
            )
        return found

    def _usage(self, info: PodInfo) -> Mapping[str, UsagePercentile]:
        workload = workload_of(info.pod)
        return {} if workload is None or self.history is None else self.history.of(workload)

    def _is_enough(self, usage: UsagePercentile) -> bool:
        wanted = self._rules.history
        return usage.readings >= wanted.min_readings and usage.pods >= wanted.min_pods


def estimator_for(args: LoadAwareSchedulingArgs) -> DefaultEstimator:
    """The estimator that the arguments name."""
    return OwnerHistoryEstimator(args) if args.estimator == OWNER_HISTORY else DefaultEstimator(args)


def default_estimator(info: PodInfo, rules: LoadAwareSchedulingArgs) -> Amounts:
    """Koordinator's default estimate (see the module docstring)."""
    kind = priority_class(info.pod)
    return {
        resource: _estimated(info, resource_of(kind, resource), factor)
        for resource, factor in factors_of(info.pod, rules).items()
    }


def factors_of(pod: Pod, rules: LoadAwareSchedulingArgs) -> Mapping[str, int]:
    """Percent by resource: from the pod's annotation if allowed, otherwise from the arguments. An annotation that is
    not a JSON map of integers from 0 to 1000 is ignored."""
    text = pod.metadata.annotations.get(FACTORS, "") if rules.allow_customize_estimation else ""
    if not text:
        return rules.factors
    try:
        own = decode_json(text, type=dict[str, int])
    except msgspec.DecodeError:
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
        return DEFAULT_ESTIMATES.get(resource, 0)
    size = round_half_away_one(asked * factor / 100)
    return min(size, limit if limit > 0 else MAX_AMOUNT, MAX_AMOUNT)


def forced_until(pod: Pod, rules: LoadAwareSchedulingArgs, *, scheduled: float) -> float | None:
    """Time (unix seconds, compared with the time of the measurement) until which a pod counts as its estimate
    regardless of measurements: a configured time after it was initialized, otherwise after it was `scheduled`. None if
    not configured."""
    after_initialized = _seconds(pod, AFTER_INITIALIZED, rules, rules.estimated_seconds_after_initialized)
    if after_initialized > 0:
        for condition in pod.status.conditions:
            if condition.type == "Initialized" and condition.status == "True" and condition.last_transition_time:
                return condition.last_transition_time.timestamp() + after_initialized
    after_scheduled = _seconds(pod, AFTER_SCHEDULED, rules, rules.estimated_seconds_after_pod_scheduled)
    return scheduled + after_scheduled if after_scheduled > 0 else None


def _seconds(pod: Pod, annotation: str, rules: LoadAwareSchedulingArgs, otherwise: int | None) -> int:
    text = pod.metadata.annotations.get(annotation, "") if rules.allow_customize_estimation else ""
    digits = text.removeprefix("+")
    if digits.isascii() and digits.isdigit() and len(digits) < 10:
        return int(digits)
    return otherwise or 0


def allocatable_of(node: Node) -> Amounts:
    """Allocatable resources of a node: its status, overridden by the annotation node.koordinator.sh/raw-allocatable,
    which has the values before amplification. Raises ValueError for an invalid annotation."""
    given = amounts(node.status.allocatable)
    text = node.metadata.annotations.get(RAW_ALLOCATABLE, "")
    if not text:
        return given
    try:
        raw = decode_json(text, type=dict[str, Quantity])
    except msgspec.DecodeError as error:
        raise ValueError(f"{RAW_ALLOCATABLE}: {error}") from None
    return {**given, **amounts(raw)}
