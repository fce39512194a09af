"""Thresholds that cause eviction loops: eviction begins at a load at which the scheduler still places pods.

An evicted pod is scheduled again; if its old node still passes the filters at the same load, the pod returns there and
is evicted again. So for each resource, a filter must reject a node at a lower utilization than an evictor evicts at;
without a filter, the packing target must be lower. Within one profile, packing cannot reach a target above the limit of
the profile's filter.

Supported evictors are Koordinator's descheduler (LowNodeLoad: high thresholds, also of pools and for prod pods) and
Crane's agent (NodeQOS rules on CPU or memory utilization whose AvoidanceAction evicts).

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from load_watcher.doctor.scheduler.plugins import Args, PluginUse, ProfilePlugins, documents_in, mapping, mappings
from watcher.core.kubernetes.quantity import NANO, nano
from watcher.core.messages import shorten_names
from watcher.decoding.yaml_text import decode_yaml_documents
from watcher.platform.checks.results import CheckResult, fail, ok, skipped, warn

FULL = 100.0
TARGET = 40.0  # TargetLoadPacking's default
USAGE = {"cpu": 65.0, "memory": 95.0}  # LoadAwareScheduling's
METRICS = {"cpu_total_utilization": "cpu", "memory_total_utilization": "memory"}
POOL_KEYS = ("highThresholds", "lowThresholds", "prodHighThresholds", "prodLowThresholds", "useDeviationThresholds")

LARGEST = 1e15
"""Larger numbers are ignored; an int of JSON may be too large for a float."""
KINDS = ("DeschedulerConfiguration", "LowNodeLoadArgs", "NodeQOS", "NodeQOSEnsurancePolicy")
Percents = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class EvictionThresholds:
    """Eviction thresholds in percent by resource: of a node's total usage, and of the usage of its prod pods."""

    where: str
    node: Percents
    prod: Percents = field(default_factory=dict)


# --- limits of a profile ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Limit:
    percent: float
    plugin: str


def filter_limits(use: PluginUse) -> dict[str, _Limit]:
    """Utilization in percent above which a node is rejected, by resource; the lowest limit of several filters."""
    given: list[tuple[str, Percents]] = []
    if (args := use.filtering.get("HighLoadFilter")) is not None:
        given.append(("HighLoadFilter", _percents(args, "usageThresholds")))
    if (args := use.filtering.get("LoadAwareScheduling")) is not None:
        given.append(("LoadAwareScheduling", _load_aware(args)))
    found: dict[str, _Limit] = {}
    for plugin, limits in given:
        for resource, percent in limits.items():
            if resource not in found or percent < found[resource].percent:
                found[resource] = _Limit(percent, plugin)
    return found


def _load_aware(args: Args) -> Percents:
    """Usage thresholds in percent by resource, for percentiles if configured, otherwise for the mean. A threshold of 0
    is off.
    """
    aggregated = mapping(args.get("aggregated"))
    of_percentile = _percents(aggregated, "usageThresholds") if aggregated.get("usageAggregationType") else {}
    return _in_force(of_percentile or _percents(args, "usageThresholds") or USAGE)


def prod_filter_limits(use: PluginUse) -> dict[str, _Limit]:
    """Like `filter_limits`, for the total usage of a node's prod pods."""
    args = use.filtering.get("LoadAwareScheduling", {})
    limits = _in_force(_percents(args, "prodUsageThresholds"))
    return {resource: _Limit(percent, "LoadAwareScheduling") for resource, percent in limits.items()}


def packing_targets(use: PluginUse) -> dict[str, _Limit]:
    """Target utilization in percent by resource; below it, fuller nodes get higher scores."""
    args = use.scoring.get("TargetLoadPacking")
    if args is None:
        return {}
    target, resources = args.get("targetUtilization", TARGET), args.get("resources", ["cpu"])
    if not _is_number(target) or not isinstance(resources, Iterable):
        return {}
    return {each: _Limit(float(target), "TargetLoadPacking") for each in resources if each in ("cpu", "memory")}


def _in_force(limits: Percents) -> Percents:
    return {resource: percent for resource, percent in limits.items() if percent > 0}


def _percents(args: Mapping[str, Any], key: str) -> Percents:
    return {str(name): float(value) for name, value in mapping(args.get(key)).items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST


# --- the comparison --------------------------------------------------------------------------------------------------


def compare_thresholds(
    profiles: Sequence[ProfilePlugins], evictors: Sequence[EvictionThresholds]
) -> Iterator[CheckResult]:
    """Check the limits within every profile, and compare them with every evictor."""
    for profile in profiles:
        yield from _never_filled(profile)
    if evictors and not profiles:
        where = shorten_names([each.where for each in evictors])
        yield skipped(
            f"{where}: no scheduler profile to compare it with; give one with --scheduler-config or [scheduler.NAME]"
        )
    for evictor in evictors:
        found = [result for profile in profiles for result in _circles(profile, evictor)]
        yield from found
        if profiles and not found:
            yield ok(f"{evictor.where}: its eviction thresholds are above the limits of the scheduler")


def _never_filled(profile: ProfilePlugins) -> Iterator[CheckResult]:
    closed = filter_limits(profile.use)
    for resource, target in sorted(packing_targets(profile.use).items()):
        limit = closed.get(resource)
        if limit is not None and target.percent > limit.percent:
            yield warn(
                f"{profile.where}: {target.plugin} fills nodes up to {target.percent:g} % of {resource}, but "
                f"{limit.plugin} rejects them above {limit.percent:g} %",
                f"set targetUtilization below {limit.percent:g}, or the threshold above {target.percent:g}",
            )


def _circles(profile: ProfilePlugins, evictor: EvictionThresholds) -> Iterator[CheckResult]:
    closed, filled = filter_limits(profile.use), packing_targets(profile.use)
    for resource, begins in sorted(evictor.node.items()):
        limit = closed.get(resource)
        if limit is not None and limit.percent >= begins:
            yield _circle(profile, limit, f"{resource}", evictor, begins, f"the threshold of {limit.plugin}")
        elif limit is None and resource in filled and filled[resource].percent >= begins:
            yield _circle(profile, filled[resource], resource, evictor, begins, "targetUtilization")
    to_prod = prod_filter_limits(profile.use)
    for resource, begins in sorted(evictor.prod.items()):
        limit = to_prod.get(resource)
        if limit is not None and limit.percent >= begins:
            yield _circle(
                profile, limit, f"{resource} by prod pods", evictor, begins, f"the prod threshold of {limit.plugin}"
            )


def _circle(
    profile: ProfilePlugins, limit: _Limit, what: str, evictor: EvictionThresholds, begins: float, name: str
) -> CheckResult:
    return fail(
        f"{profile.where}: {limit.plugin} allows pods on nodes up to {limit.percent:g} % of {what}, but "
        f"{evictor.where} evicts above {begins:g} %: an evicted pod can return to its node",
        f"set {name} well below {begins:g}, or the eviction threshold well above {limit.percent:g}",
    )


# --- configurations of evictors --------------------------------------------------------------------------------------


def evictors_in(content: str | bytes) -> tuple[list[EvictionThresholds], list[CheckResult]]:
    """Return the evictors in a file of YAML documents, also inside ConfigMaps, and the problems of the file."""
    try:
        documents = list(documents_in(decode_yaml_documents(content), marker="kind:"))
    except msgspec.DecodeError:
        cure = "indent with spaces, not with tabs, and quote text that contains a colon"
        return [], [fail("invalid YAML", cure)]
    found = [*_of_descheduler(documents), *_of_agent(documents)]
    if found:
        return found, []
    if any(each.get("kind") in KINDS for each in documents):
        return [], [skipped("it has no eviction thresholds that can be compared")]
    cure = "give the DeschedulerConfiguration with LowNodeLoad, or the NodeQOS with its AvoidanceActions"
    return [], [fail("it configures no eviction by load", cure)]


def _of_descheduler(documents: Sequence[Mapping[str, Any]]) -> Iterator[EvictionThresholds]:
    for document in documents:
        if document.get("kind") == "LowNodeLoadArgs":
            yield from _low_node_load(document)
        elif document.get("kind") == "DeschedulerConfiguration" and document.get("dryRun") is not True:
            for profile in mappings(document.get("profiles")):
                for config in mappings(profile.get("pluginConfig")):
                    if config.get("name") == "LowNodeLoad" and isinstance(config.get("args"), dict):
                        yield from _low_node_load(config["args"])


def _low_node_load(args: Mapping[str, Any]) -> Iterator[EvictionThresholds]:
    if args.get("paused") is True or args.get("dryRun") is True:
        return
    top = {key: args[key] for key in POOL_KEYS if key in args}
    yield from _pool("LowNodeLoad", top)
    for pool in mappings(args.get("nodePools")):
        own = {key: pool[key] for key in POOL_KEYS if key in pool}
        yield from _pool(f"LowNodeLoad, pool {pool.get('name', '')}", {**top, **own})


def _pool(where: str, args: Mapping[str, Any]) -> Iterator[EvictionThresholds]:
    """Yield the evictor of a node pool. Deviation thresholds are skipped, since they depend on the mean load. Resources
    without a low threshold do not cause evictions.
    """
    if args.get("useDeviationThresholds") is True:
        return

    def limits(high: str, low: str) -> Percents:
        lows = _percents(args, low)
        return {name: each for name, each in _percents(args, high).items() if name in lows and each < FULL}

    node, prod = limits("highThresholds", "lowThresholds"), limits("prodHighThresholds", "prodLowThresholds")
    if node or prod:
        yield EvictionThresholds(where, node, prod)


def _of_agent(documents: Sequence[Mapping[str, Any]]) -> Iterator[EvictionThresholds]:
    evicting = {
        _name(each)
        for each in documents
        if each.get("kind") == "AvoidanceAction" and isinstance(mapping(each.get("spec")).get("eviction"), dict)
    }
    for document in documents:
        if document.get("kind") not in ("NodeQOS", "NodeQOSEnsurancePolicy"):
            continue
        spec = mapping(document.get("spec"))
        for rule in mappings(spec.get("rules") or spec.get("objectiveEnsurances")):
            metric = mapping(rule.get("metricRule"))
            if str(rule.get("actionName")) not in evicting or rule.get("strategy") == "Preview":
                continue
            resource, watermark = METRICS.get(str(metric.get("name"))), _whole(metric.get("value"))
            if resource is not None and watermark is not None and watermark < FULL:
                yield EvictionThresholds(
                    f"NodeQOS {_name(document)}, rule {rule.get('name', '')}", {resource: watermark}
                )


def _whole(value: Any) -> float | None:
    """A watermark in percent, rounded up to a whole number as by Crane; None if it is not a quantity."""
    try:
        return float(-(-nano(value) // NANO)) if isinstance(value, (str, int, float)) else None
    except ValueError:
        return None


def _name(document: Mapping[str, Any]) -> str:
    return str(mapping(document.get("metadata")).get("name", ""))
