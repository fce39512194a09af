"""Random cases of LoadAwareScheduling: arguments, a node with its NodeMetric and pods, and a pod to schedule.

Texts like "@-90" are times relative to now in seconds. The plug-in of Koordinator reads the clock: the age of a
NodeMetric keeps 10 s away from the expiry periods.
"""

from __future__ import annotations

import random
from typing import Any

from tests.originals.frame import Case
from tests.originals.random_pods import COMPUTE, GIB, GPU, chance, cpu, memory, pod, set_by_chance

NODE = "node"
PERCENTILES = ("avg", "p50", "p90", "p95", "p99")
RESERVE_POD = "scheduling.koordinator.sh/reserve-pod"
THRESHOLDS = "scheduling.koordinator.sh/usage-thresholds"
FACTORS = "scheduling.koordinator.sh/load-estimated-scaling-factors"
SECONDS_AFTER = "scheduling.koordinator.sh/load-estimated-seconds-after-"
RAW_ALLOCATABLE = "node.koordinator.sh/raw-allocatable"
NODE_SIZES = ((4, 8), (16, 32), (96, 512), (64, 256))  # cores, GiB
AGES = (0, 1, 5, 10, 20, 45, 70, 90, 120, 170, 190, 200, 290, 310, 400, 3500, 3700)
EXPIRY = (30, 60, 180, 300, 3600)

RAW_ALLOCATABLES = (
    '{"cpu":"28","memory":"32Gi"}',
    '{"cpu":28}',
    '{"memory":"16Gi"}',
    '{"example.com/gpu":"4"}',
    "{}",
    "",
    "nonsense",
    '{"cpu":"x"}',
)
NODE_THRESHOLDS = (
    '{"usageThresholds":{"cpu":30}}',
    '{"usageThresholds":{"memory":60},"prodUsageThresholds":{"cpu":20}}',
    '{"usageThresholds":{"cpu":0,"memory":0}}',
    '{"usageThresholds":{"unknown/x":1}}',
    '{"usageThresholds":{"cpu":-5}}',
    '{"usageThresholds":{"memory":150}}',
    '{"aggregatedUsage":{"usageThresholds":{"cpu":40},"usageAggregationType":"p42"}}',
    '{"aggregatedUsage":{"usageThresholds":{"cpu":30},"usageAggregationType":"avg","usageAggregatedDuration":"-5m"}}',
    '{"aggregatedUsage":{"usageThresholds":{"cpu":30},"usageAggregationType":"avg","usageAggregatedDuration":"x"}}',
    '{"usageThresholds":{"cpu":"30"}}',
    '{"aggregatedUsage":{"usageThresholds":{"cpu":40},"usageAggregationType":"p95","usageAggregatedDuration":"5m"}}',
    '{"aggregatedUsage":{"usageThresholds":{"cpu":25},"usageAggregationType":"p90"}}',
    '{"aggregatedUsage":{"usageThresholds":{"cpu":40}}}',
    "{}",
    "nonsense",
)
POD_FACTORS = (
    '{"cpu":80}',
    '{"cpu":150,"memory":10}',
    '{"cpu":0}',
    '{"memory":33,"example.com/gpu":50}',
    '{"cpu":-10}',
    '{"memory":2000}',
    "{}",
    '{"cpu":"80"}',
    "nonsense",
)
POD_SECONDS = ("60", "600", "0", "-5", "+60", "x", "1.5", "")
PRIORITIES = (
    *(9500, 9000, 9999, 7500, 7000, 7999, 5500, 5000, 5999, 3500, 3000, 3999),
    *(8500, 6000, 0, -10, 10_000, 2_000_000_000),
)
INVALID_ARGUMENTS: tuple[tuple[str, Any], ...] = (
    ("nodeMetricExpirationSeconds", 0),
    ("resourceWeights", {"cpu": 0}),
    ("resourceWeights", {"memory": 101}),
    ("resourceWeights", {"example.com/fpga": 1}),
    ("dominantResourceWeight", -1),
    ("dominantResourceWeight", 101),
    ("usageThresholds", {"cpu": -1}),
    ("usageThresholds", {"memory": 101}),
    ("prodUsageThresholds", {"cpu": 101}),
    ("estimatedScalingFactors", {"cpu": 0}),
    ("estimatedScalingFactors", {"memory": 101}),
    ("estimatedSecondsAfterPodScheduled", -1),
    ("aggregated", {"usageAggregationType": "p42", "usageThresholds": {"cpu": 50}}),
    ("aggregated", {"scoreAggregationType": "max"}),
    ("aggregated", {"scoreAggregatedDuration": "-5m"}),
    ("estimator", "unknownEstimator"),
    ("unknownArgument", 1),
    ("usageThresholds", {"cpu": "50"}),
)


def random_case(source: random.Random) -> Case:
    """A case: any part may be missing, unusual, or at a limit."""
    cores, gib = source.choice(NODE_SIZES)
    size = (cores * 1000, gib * GIB)
    pods = [_assigned_pod(source, i) for i in range(source.choice([0, 1, 2, 4, 7]))]
    return {
        "args": _arguments(source),
        "node": _node(source, size),
        "nodeMetric": _node_metric(source, pods, size) if chance(source, 0.96) else None,
        "pods": pods,
        "reserved": [_koordinator_pod(source, "reserved")] if chance(source, 0.25) else [],
        "pod": _incoming_pod(source),
    }


# --- arguments -------------------------------------------------------------------------------------------------------


def _arguments(source: random.Random) -> dict[str, Any]:
    args: dict[str, Any] = {}
    for name in ("filterExpiredNodeMetrics", "enableScheduleWhenNodeMetricsExpired"):
        set_by_chance(source, args, name, 0.4, lambda: chance(source, 0.5))
    for name in ("prodUsageIncludeSys", "scoreAccordingProdUsage", "allowCustomizeEstimation"):
        set_by_chance(source, args, name, 0.4, lambda: chance(source, 0.75))
    for name in ("estimatedSecondsAfterPodScheduled", "estimatedSecondsAfterInitialized"):
        set_by_chance(source, args, name, 0.35, lambda: source.choice([0, 60, 180, 600]))
    set_by_chance(source, args, "nodeMetricExpirationSeconds", 0.5, lambda: source.choice(EXPIRY))
    set_by_chance(source, args, "resourceWeights", 0.4, lambda: _percentages(source))
    set_by_chance(source, args, "dominantResourceWeight", 0.4, lambda: source.choice([0, 1, 2, 10, 100]))
    set_by_chance(source, args, "usageThresholds", 0.6, lambda: _thresholds(source))
    set_by_chance(source, args, "prodUsageThresholds", 0.35, lambda: _thresholds(source))
    set_by_chance(source, args, "estimatedScalingFactors", 0.5, lambda: _percentages(source))
    set_by_chance(source, args, "estimator", 0.1, lambda: source.choice(["", "defaultEstimator"]))
    set_by_chance(source, args, "aggregated", 0.45, lambda: _aggregated(source))
    if chance(source, 0.1):
        args["estimatedScalingFactors"] = {**args.get("estimatedScalingFactors", {}), GPU: source.randint(1, 100)}
        if chance(source, 0.5):
            args["resourceWeights"] = {**args.get("resourceWeights", {"cpu": 1}), GPU: source.randint(1, 10)}
        else:
            args["supportedResources"] = [GPU]
    if chance(source, 0.02):
        name, value = source.choice(INVALID_ARGUMENTS)
        args[name] = value
    return args


def _percentages(source: random.Random) -> dict[str, int]:
    return {name: source.randint(1, 100) for name in _some_compute(source)}


def _thresholds(source: random.Random) -> dict[str, int]:
    return {name: source.choice([0, 1, 20, 40, 50, 65, 80, 95, 100]) for name in _some_compute(source)}


def _some_compute(source: random.Random) -> list[str]:
    return source.sample(COMPUTE, source.randint(1, 2))


def _aggregated(source: random.Random) -> dict[str, Any]:
    found: dict[str, Any] = {}
    set_by_chance(source, found, "usageThresholds", 0.6, lambda: _thresholds(source))
    durations = ["5m", "10m", "30m", "7m", "0s", "5m0s", "1h"]
    for kind in ("usage", "score"):
        set_by_chance(source, found, f"{kind}AggregationType", 0.7, lambda: source.choice(PERCENTILES))
        set_by_chance(source, found, f"{kind}AggregatedDuration", 0.6, lambda: source.choice(durations))
    return found


# --- pods ------------------------------------------------------------------------------------------------------------


def _koordinator_pod(source: random.Random, name: str, *, node: str = "") -> dict[str, Any]:
    priority_class = source.choice([None, None, "koord-prod", "koord-mid", "koord-batch", "koord-free", "odd"])
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    if priority_class:
        labels["koordinator.sh/priority-class"] = priority_class
    qos_classes = ("LSE", "LSR", "LS", "BE", "SYSTEM", "odd")
    set_by_chance(source, labels, "koordinator.sh/qosClass", 0.3, lambda: source.choice(qos_classes))
    set_by_chance(source, annotations, FACTORS, 0.3, lambda: source.choice(POD_FACTORS))
    for event in ("pod-scheduled", "initialized"):
        set_by_chance(source, annotations, f"{SECONDS_AFTER}{event}", 0.25, lambda: source.choice(POD_SECONDS))
    found = pod(source, name, node=node, names=_resource_names(source, priority_class))
    found["metadata"] |= {"labels": labels, "annotations": annotations}
    found["metadata"]["namespace"] = source.choice(["default", "kube-system"])
    set_by_chance(source, found["spec"], "priority", 0.4, lambda: source.choice(PRIORITIES))
    of_kubernetes = ("Guaranteed", "Burstable", "BestEffort")
    set_by_chance(source, found["status"], "qosClass", 0.5, lambda: source.choice(of_kubernetes))
    return found


def _resource_names(source: random.Random, priority_class: str | None) -> list[str]:
    names = list(COMPUTE)
    if priority_class in ("koord-batch", "koord-mid") and chance(source, 0.8):
        names = [f"kubernetes.io/{priority_class.removeprefix('koord-')}-{name}" for name in COMPUTE]
    return [*names, GPU] if chance(source, 0.1) else names


def _incoming_pod(source: random.Random) -> dict[str, Any]:
    found = _koordinator_pod(source, "incoming")
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "owner", "uid": "owner"}
    set_by_chance(source, found["metadata"], "ownerReferences", 0.06, lambda: [owner])
    return found


def _assigned_pod(source: random.Random, number: int) -> dict[str, Any]:
    found = _koordinator_pod(source, f"p{number}", node=NODE)
    if chance(source, 0.04):
        found["metadata"]["annotations"][RESERVE_POD] = source.choice(["true", "false"])
    at = source.choice([-1, -10, -30, -59, -60, -61, -90, -119, -120, -121, -180, -600, -3600])
    conditions = found["status"].setdefault("conditions", [])
    if chance(source, 0.85):
        status = "True" if chance(source, 0.95) else "False"
        scheduled = {"type": "PodScheduled", "status": status}
        set_by_chance(source, scheduled, "lastTransitionTime", 0.97, lambda: f"@{at}")
        conditions.append(scheduled)
    if chance(source, 0.7):
        condition = {"type": "Initialized", "status": "True" if chance(source, 0.85) else "False"}
        later = min(-1, at + source.choice([0, 1, 5, 60]))
        set_by_chance(source, condition, "lastTransitionTime", 0.95, lambda: f"@{later}")
        conditions.append(condition)
    found["status"]["phase"] = source.choice(["Running"] * 8 + ["Pending", "Succeeded", "Failed", "Unknown"])
    return found


# --- the node and its measurement ------------------------------------------------------------------------------------


def _node(source: random.Random, size: tuple[int, int]) -> dict[str, Any]:
    annotations: dict[str, str] = {}
    set_by_chance(source, annotations, RAW_ALLOCATABLE, 0.15, lambda: source.choice(RAW_ALLOCATABLES))
    set_by_chance(source, annotations, THRESHOLDS, 0.2, lambda: source.choice(NODE_THRESHOLDS))
    allocatable = {"cpu": cpu(source, size[0]), "memory": memory(source, size[1]), "pods": "110"}
    if chance(source, 0.03):
        del allocatable[source.choice(COMPUTE)]
    set_by_chance(source, allocatable, GPU, 0.2, lambda: "8")
    set_by_chance(source, allocatable, "cpu", 0.03, lambda: "0")
    metadata = {"name": NODE, "annotations": annotations}
    return {"metadata": metadata, "status": {"allocatable": allocatable, "capacity": allocatable}}


def _node_metric(source: random.Random, pods: list[dict[str, Any]], size: tuple[int, int]) -> dict[str, Any]:
    spec: dict[str, Any] = {}
    if chance(source, 0.7):
        policy = {"aggregateDurationSeconds": 300}
        intervals = (10, 30, 60, 60, 60, 120, 300)
        set_by_chance(source, policy, "reportIntervalSeconds", 0.85, lambda: source.choice(intervals))
        spec["metricCollectPolicy"] = policy
    status: dict[str, Any] = {}
    set_by_chance(source, status, "updateTime", 0.96, lambda: f"@-{source.choice(AGES)}")
    set_by_chance(source, status, "nodeMetric", 0.95, lambda: _node_usage(source, size))
    set_by_chance(source, status, "podsMetric", 0.9, lambda: _pods_usage(source, pods, size))
    kind = {"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric"}
    return {**kind, "metadata": {"name": NODE}, "spec": spec, "status": status}


def _node_usage(source: random.Random, size: tuple[int, int]) -> dict[str, Any]:
    found: dict[str, Any] = {"nodeUsage": _usage(source, 0.8, size) if chance(source, 0.97) else {}}
    set_by_chance(source, found, "systemUsage", 0.6, lambda: _usage(source, 0.1, size))
    if chance(source, 0.6):
        durations = source.sample(["5m0s", "10m0s", "15m0s", "30m0s"], source.randint(1, 4))
        found["aggregatedNodeUsages"] = [
            {"duration": duration, "usage": {kind: _window_usage(source, size) for kind in _some_kinds(source)}}
            for duration in durations
        ]
    return found


def _some_kinds(source: random.Random) -> list[str]:
    return source.sample(PERCENTILES, source.randint(1, 5))


def _window_usage(source: random.Random, size: tuple[int, int]) -> dict[str, Any]:
    return _usage(source, 0.9, size) if chance(source, 0.85) else {}


def _usage(source: random.Random, share: float, size: tuple[int, int]) -> dict[str, Any]:
    """Usage of up to a share of the node."""
    found: dict[str, Any] = {}
    set_by_chance(source, found, "cpu", 0.97, lambda: cpu(source, int(size[0] * source.random() * share)))
    set_by_chance(source, found, "memory", 0.97, lambda: memory(source, size[1] * source.random() * share))
    set_by_chance(source, found, GPU, 0.05, lambda: "2")
    return {"resources": found}


def _pods_usage(source: random.Random, pods: list[dict[str, Any]], size: tuple[int, int]) -> list[dict[str, Any]]:
    names = [(each["metadata"]["namespace"], each["metadata"]["name"]) for each in pods if chance(source, 0.7)]
    if chance(source, 0.2):
        names.append(("default", "deleted"))
    return [_pod_usage(source, *each, size) for each in names]


def _pod_usage(source: random.Random, namespace: str, name: str, size: tuple[int, int]) -> dict[str, Any]:
    usage = _usage(source, 0.15, size) if chance(source, 0.95) else {}
    found: dict[str, Any] = {"namespace": namespace, "name": name, "podUsage": usage}
    classes = ("koord-prod", "koord-prod", "koord-batch", "koord-mid", "")
    set_by_chance(source, found, "priority", 0.8, lambda: source.choice(classes))
    return found
