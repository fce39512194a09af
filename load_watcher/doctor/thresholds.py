"""Thresholds that make pods circle: what evicts begins where the scheduler still lets pods in.

A pod that is evicted from a node is scheduled anew, and where its node is still open to it, by the same load, goes back
there, until it is evicted again (reference/koordinator.md, 8: a scheduler up to 95 % beside an eviction at 65 %). So of
each resource a filter has to close a node below where an evictor begins; where nothing filters, packing has to aim
below it. Within one profile, packing that aims above what its filter closes never gets there.

Evictors are Koordinator's descheduler (LowNodeLoad: high thresholds, those of pools and of prod pods) and Crane's agent
(NodeQOS rules whose AvoidanceAction evicts, over the utilisation of CPU or memory).

Pure: no I/O, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from load_watcher.doctor.plugins import Args, PluginUse
from watcher.core.kubernetes.quantity import NANO, nano
from watcher.platform.checks.results import Result, fail, ok, skipped, some, warn

FULL = 100.0
TARGET = 40.0  # TargetLoadPacking's default
USAGE = {"cpu": 65.0, "memory": 95.0}  # LoadAwareScheduling's
METRICS = {"cpu_total_utilization": "cpu", "memory_total_utilization": "memory"}
POOL_KEYS = ("highThresholds", "lowThresholds", "prodHighThresholds", "prodLowThresholds", "useDeviationThresholds")

Percents = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile of plug-ins; `where` is what people call it."""

    where: str
    use: PluginUse


@dataclass(frozen=True, slots=True)
class Evictor:
    """From where on pods are evicted, percent by resource: of all that a node uses, and of what its prod pods use."""

    where: str
    node: Percents
    prod: Percents = field(default_factory=dict)


# --- what is compared ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Limit:
    percent: float
    plugin: str


def closed_at(use: PluginUse) -> dict[str, _Limit]:
    """Above which load a node takes no more pods, by resource: of several filters the lowest."""
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
    """Percentiles in the place of the mean, where there are such; 0 is none."""
    given = args.get("aggregated")
    aggregated = given if isinstance(given, Mapping) else {}
    of_percentile = _percents(aggregated, "usageThresholds") if aggregated.get("usageAggregationType") else {}
    return _in_force(of_percentile or _percents(args, "usageThresholds") or USAGE)


def closed_to_prod_at(use: PluginUse) -> dict[str, _Limit]:
    """The same of what prod pods use together."""
    args = use.filtering.get("LoadAwareScheduling", {})
    limits = _in_force(_percents(args, "prodUsageThresholds"))
    return {resource: _Limit(percent, "LoadAwareScheduling") for resource, percent in limits.items()}


def filled_to(use: PluginUse) -> dict[str, _Limit]:
    """Up to which load a node is preferred the more, the fuller it is."""
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
    given = args.get(key)
    items = given.items() if isinstance(given, Mapping) else ()
    return {str(name): float(value) for name, value in items if _is_number(value)}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


# --- the comparison --------------------------------------------------------------------------------------------------


def judge(profiles: Sequence[Profile], evictors: Sequence[Evictor]) -> Iterator[Result]:
    """Every profile by itself, and against every evictor."""
    for profile in profiles:
        yield from _never_filled(profile)
    if evictors and not profiles:
        cure = "name the scheduler's configuration by --scheduler-config, or its profiles in [scheduler.NAME]"
        yield skipped(f"{some([each.where for each in evictors])}: there is no scheduler to hold it against", cure)
    for evictor in evictors:
        found = [result for profile in profiles for result in _circles(profile, evictor)]
        yield from found
        if profiles and not found:
            yield ok(f"{evictor.where}: it begins to evict above what the scheduler fills or closes")


def _never_filled(profile: Profile) -> Iterator[Result]:
    closed = closed_at(profile.use)
    for resource, target in sorted(filled_to(profile.use).items()):
        limit = closed.get(resource)
        if limit is not None and target.percent > limit.percent:
            yield warn(
                f"{profile.where}: {target.plugin} fills nodes up to {target.percent:g} % of {resource}, and "
                f"{limit.plugin} closes them at {limit.percent:g} %",
                f"set targetUtilization below {limit.percent:g}, or the threshold above {target.percent:g}",
            )


def _circles(profile: Profile, evictor: Evictor) -> Iterator[Result]:
    closed, filled = closed_at(profile.use), filled_to(profile.use)
    for resource, begins in sorted(evictor.node.items()):
        limit = closed.get(resource)
        if limit is not None and limit.percent >= begins:
            yield _circle(profile, limit, f"{resource}", evictor, begins, "its threshold")
        elif limit is None and resource in filled and filled[resource].percent >= begins:
            yield _circle(profile, filled[resource], resource, evictor, begins, "targetUtilization")
    to_prod = closed_to_prod_at(profile.use)
    for resource, begins in sorted(evictor.prod.items()):
        limit = to_prod.get(resource)
        if limit is not None and limit.percent >= begins:
            yield _circle(profile, limit, f"{resource} by prod pods", evictor, begins, "its prod threshold")


def _circle(profile: Profile, limit: _Limit, what: str, evictor: Evictor, begins: float, name: str) -> Result:
    return fail(
        f"{profile.where}: {limit.plugin} brings pods to nodes up to {limit.percent:g} % of {what}, and "
        f"{evictor.where} evicts above {begins:g} %: a pod that is evicted goes back there",
        f"set {name} well below {begins:g}, or let the eviction begin well above {limit.percent:g}",
    )


# --- evictors, as people have them -----------------------------------------------------------------------------------


def evictors_in(content: str | bytes) -> tuple[list[Evictor], list[Result]]:
    """The evictors in a file of YAML documents, also inside ConfigMaps, and what is wrong with it."""
    try:
        documents = list(_documents(yaml.safe_load_all(content)))
    except (yaml.YAMLError, RecursionError, ValueError):
        cure = "indent by spaces, not by tabs, and put texts with a colon into quotes"
        return [], [fail("this is no YAML", cure)]
    found = [*_of_descheduler(documents), *_of_agent(documents)]
    if found:
        return found, []
    if any(each.get("kind") in KINDS for each in documents):
        return [], [skipped("it evicts nothing by a load that could be compared")]
    cure = "give the DeschedulerConfiguration with LowNodeLoad, or the NodeQOS with its AvoidanceActions"
    return [], [fail("there is nothing in it that evicts by load", cure)]


KINDS = ("DeschedulerConfiguration", "LowNodeLoadArgs", "NodeQOS", "NodeQOSEnsurancePolicy")


def _documents(given: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
    for each in given:
        if not isinstance(each, dict):
            continue
        data = each.get("data")
        if each.get("kind") == "ConfigMap" and isinstance(data, dict):
            for text in (text for text in data.values() if isinstance(text, str) and "kind:" in text):
                yield from _documents(yaml.safe_load_all(text))
        else:
            yield each


def _of_descheduler(documents: Sequence[Mapping[str, Any]]) -> Iterator[Evictor]:
    for document in documents:
        if document.get("kind") == "LowNodeLoadArgs":
            yield from _low_node_load(document)
        elif document.get("kind") == "DeschedulerConfiguration" and document.get("dryRun") is not True:
            for profile in _mappings(document.get("profiles")):
                for config in _mappings(profile.get("pluginConfig")):
                    if config.get("name") == "LowNodeLoad" and isinstance(config.get("args"), dict):
                        yield from _low_node_load(config["args"])


def _low_node_load(args: Mapping[str, Any]) -> Iterator[Evictor]:
    if args.get("paused") is True or args.get("dryRun") is True:
        return
    top = {key: args[key] for key in POOL_KEYS if key in args}
    yield from _pool("LowNodeLoad", top)
    for pool in _mappings(args.get("nodePools")):
        own = {key: pool[key] for key in POOL_KEYS if key in pool}
        yield from _pool(f"LowNodeLoad, pool {pool.get('name', '')}", {**top, **own})


def _pool(where: str, args: Mapping[str, Any]) -> Iterator[Evictor]:
    """Deviations are from a mean that nobody knows beforehand. A resource without a low threshold evicts nothing."""
    if args.get("useDeviationThresholds") is True:
        return

    def limits(high: str, low: str) -> Percents:
        lows = _percents(args, low)
        return {name: each for name, each in _percents(args, high).items() if name in lows and each < FULL}

    node, prod = limits("highThresholds", "lowThresholds"), limits("prodHighThresholds", "prodLowThresholds")
    if node or prod:
        yield Evictor(where, node, prod)


def _of_agent(documents: Sequence[Mapping[str, Any]]) -> Iterator[Evictor]:
    evicting = {
        _name(each)
        for each in documents
        if each.get("kind") == "AvoidanceAction" and isinstance(_spec(each).get("eviction"), dict)
    }
    for document in documents:
        if document.get("kind") not in ("NodeQOS", "NodeQOSEnsurancePolicy"):
            continue
        spec = _spec(document)
        for rule in _mappings(spec.get("rules") or spec.get("objectiveEnsurances")):
            metric = rule.get("metricRule")
            if str(rule.get("actionName")) not in evicting or rule.get("strategy") == "Preview":
                continue
            resource = METRICS.get(str(metric.get("name"))) if isinstance(metric, dict) else None
            watermark = _whole(metric.get("value")) if isinstance(metric, dict) else None
            if resource is not None and watermark is not None and watermark < FULL:
                yield Evictor(f"NodeQOS {_name(document)}, rule {rule.get('name', '')}", {resource: watermark})


def _whole(value: Any) -> float | None:
    """A watermark, rounded up, as Crane reads it."""
    try:
        return float(-(-nano(value) // NANO)) if isinstance(value, (str, int, float)) else None
    except ValueError:
        return None


def _spec(document: Mapping[str, Any]) -> Mapping[str, Any]:
    spec = document.get("spec")
    return spec if isinstance(spec, dict) else {}


def _name(document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata")
    return str(metadata.get("name", "")) if isinstance(metadata, dict) else ""


def _mappings(given: Any) -> list[Mapping[str, Any]]:
    return [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []
