"""Fields, plug-ins and arguments of KubeSchedulerConfiguration that the scheduler check knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from load_watcher.doctor.plugins import FILTERING, SCORING

KIND = "KubeSchedulerConfiguration"
GROUP = "kubescheduler.config.k8s.io"
API_VERSION = f"{GROUP}/v1"
# API versions with the first release of Kubernetes that does not support them any more.
GONE = {"v1alpha1": "1.19", "v1alpha2": "1.21", "v1beta1": "1.25", "v1beta2": "1.28", "v1beta3": "1.29"}
TRIMARAN = ("TargetLoadPacking", "LoadVariationRiskBalancing", "LowRiskOverCommitment", "Peaks")
RIVALS = ("NodeResourcesFit", "NodeResourcesBalancedAllocation")
"""Score plug-ins of Kubernetes that score by requests, which works against scores by load."""
REMOVED = ("NodeResourcesLeastAllocated", "NodeResourcesMostAllocated", "RequestedToCapacityRatio")
"""Removed plug-ins that are now strategies of NodeResourcesFit."""
KNOWN = (
    *TRIMARAN,
    *RIVALS,
    *REMOVED,
    *FILTERING,
    *SCORING,
    *("DefaultBinder", "DefaultPreemption", "DynamicResources", "ImageLocality", "InterPodAffinity", "NodeAffinity"),
    *("NodeName", "NodePorts", "NodeUnschedulable", "NodeVolumeLimits", "PodTopologySpread", "PrioritySort"),
    *("SchedulingGates", "TaintToleration", "VolumeBinding", "VolumeRestrictions", "VolumeZone"),
    *("CapacityScheduling", "Coscheduling", "NetworkOverhead", "NodeMetadata", "NodeResourceTopologyMatch"),
    *("NodeResourcesAllocatable", "PodState", "PreemptionToleration", "QOSSort", "SySched", "TopologicalSort"),
)
PLUGINS_WITHOUT_METRICS = tuple(name for name in KNOWN if name not in (*TRIMARAN, *FILTERING))
"""Known plug-ins that do not use load-watcher's metrics."""
POINTS = (
    *("preEnqueue", "queueSort", "preFilter", "filter", "postFilter", "preScore", "score", "reserve", "permit"),
    *("preBind", "bind", "postBind", "multiPoint"),
)
TOP = (
    *("apiVersion", "kind", "parallelism", "leaderElection", "clientConnection", "enableProfiling"),
    *("enableContentionProfiling", "percentageOfNodesToScore", "podInitialBackoffSeconds", "podMaxBackoffSeconds"),
    *("profiles", "extenders", "delayCacheUntilActive"),
)
PROFILE = ("schedulerName", "percentageOfNodesToScore", "plugins", "pluginConfig")
COMMON_ARGS = ("apiVersion", "kind", "watcherAddress", "metricProvider")
ARGS = {
    "TargetLoadPacking": (*COMMON_ARGS, "targetUtilization", "defaultRequests", "defaultRequestsMultiplier"),
    "LoadVariationRiskBalancing": (*COMMON_ARGS, "safeVarianceMargin", "safeVarianceSensitivity"),
    "LowRiskOverCommitment": (*COMMON_ARGS, "smoothingWindowSize", "riskLimitWeights"),
    "Peaks": ("apiVersion", "kind", "WatcherAddress", "NodePowerModel"),
}
PROVIDER = ("type", "address", "token", "insecureSkipVerify")
PROVIDER_TYPES = ("KubernetesMetricsServer", "Prometheus", "SignalFx")
OLD_ARGS = {
    "metricProviderType": "metricProvider.type",
    "metricProviderAddress": "metricProvider.address",
    "metricProviderToken": "metricProvider.token",
}
OF_PLUGINS = ("watcherAddress", "WatcherAddress", "metricProvider", *OLD_ARGS)
"""Arguments that set the source of metrics; only plug-ins that score by load have them."""
ARGS_PLACEMENT_CURE = f"move it to args under pluginConfig of the plug-in that scores by load ({', '.join(TRIMARAN)})"
ADDRESS = "http://load-watcher.load-watcher.svc.cluster.local:2020"


def _is_number(value: Any, *, lowest: float, highest: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and lowest <= value <= highest


def _is_written_number(value: Any) -> bool:
    try:
        return isinstance(value, str) and 0 < float(value) < float("inf")
    except ValueError:
        return False


def _are_weights(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_number(each, lowest=0, highest=1) for each in value.values())


BIG = 1e9
# Valid values of each argument: a predicate, and its description.
VALUES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "targetUtilization": (
        lambda value: isinstance(value, int) and _is_number(value, lowest=1, highest=100),
        "a whole percentage from 1 to 100; scheduling fails above 100",
    ),
    "defaultRequestsMultiplier": (_is_written_number, 'a number above 0 in quotes, like "1.5"'),
    "safeVarianceMargin": (lambda value: _is_number(value, lowest=0, highest=BIG), "a number of at least 0"),
    "safeVarianceSensitivity": (lambda value: _is_number(value, lowest=0, highest=BIG), "a number of at least 0"),
    "smoothingWindowSize": (
        lambda value: isinstance(value, int) and _is_number(value, lowest=1, highest=BIG),
        "a whole number of at least 1",
    ),
    "riskLimitWeights": (_are_weights, "a mapping like {cpu: 0.5, memory: 0.5}, each from 0 to 1"),
}
