"""Random cases for Crane's sorters, executors and analyzer, and their form for the original.

A case has pods in the form of tests/vectors/crane.json, with the extended limits in the containers. `objects` turns it
into Kubernetes objects and series, which the original decodes with its own types.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import UTC, datetime

from agent.model import ContainerState, CpuThrottle, Original, PodState
from agent.qos import QosClass
from tests.originals.frame import Case

NAMESPACE = "d"
GI = 1 << 30
CLASSES = ["Guaranteed", "Burstable", "Burstable", "BestEffort", "BestEffort", ""]
METRICS = ["cpu_total_usage", "cpu_total_utilization", "memory_total_usage", "memory_total_utilization"]
UNREGISTERED = "cpu_load_1_min"
MARKS = {
    "cpu_total_usage": ["1", "2500m", "4000", "6k"],
    "cpu_total_utilization": ["10", "50", "80"],
    "memory_total_usage": ["1Gi", "4Gi", "8G"],
    "memory_total_utilization": ["10", "50", "80"],
    UNREGISTERED: ["2"],
}

# --- generating -------------------------------------------------------------------------------------------------------


def pods(source: random.Random, number: int, *, with_containers: bool = False) -> list[Case]:
    """Pods with different names in random order. Pairs of usages are equal within Crane's tolerance."""
    usages = [0.0, 0.5, 1.0, 1.0 + 5e-10, 2.0, source.random() * 4, source.random() * 4]
    found = []
    for name in source.sample(range(100), number):
        pod: Case = {"name": f"p{name:02}", "qos": source.choice(CLASSES), "cpu": source.choice(usages)}
        pod["priority"] = source.choice([0, 0, 0, 100, -10, 1_000])
        pod["memory"] = source.choice([0, GI, 2 * GI, source.randint(1, 8 * GI)])
        if source.random() < 0.75:
            pod["start"] = source.choice([1_000, 2_000, source.randint(1, 100_000)])
        if source.random() < 0.5:
            pod["grace"] = source.choice([0, 5, 60])
        if source.random() < 0.04:
            pod["static"] = True
        elif source.random() < 0.04:
            pod["priority"] = 2_000_000_000
        pod["containers"] = containers(source, pod["name"]) if with_containers else [limits_only(source)]
        if with_containers:
            pod["ratio"] = [source.choice([0, 10, 20, 40]), source.choice([0, 5, 10, 25, 50])]
            pod["cpu"] = sum(each["usage"] for each in pod["containers"])
        found.append(pod)
    return found


def limits_only(source: random.Random) -> Case:
    container: Case = {"name": "main"}
    if source.random() < 0.3:
        container["extended"] = source.choice([500, 1_000, 4_000])
    if source.random() < 0.3:
        container["extended_memory"] = source.choice([GI, 4 * GI])
    return container


def containers(source: random.Random, pod: str) -> list[Case]:
    """Containers whose usage is not above their quota; CPU in millicores as in pods."""
    found: list[Case] = []
    for number in range(source.choice([1, 1, 2, 3])):
        each: Case = {
            "name": f"c{number}",
            "id": f"{pod}-{number}",
            "period": source.choice([100_000, 100_000, 50_000]),
        }
        usage = source.choice([0.0, 0.004, 0.1, 0.5, 1.25, 3.0, source.random() * 2])
        each["quota"] = -1 if source.random() < 0.4 else source.choice([0, 1_000, 10_000, 50_000, 125_000, 400_000])
        each["usage"] = min(usage, each["quota"] / each["period"]) if each["quota"] > 0 else usage
        limit = source.choice([None, None, 500, 1_000, 4_000])
        if limit is not None:
            each["limit"] = limit
        elif source.random() < 0.2:
            each["extended"] = source.choice([500, 2_000])
        if source.random() < 0.5:
            each["request"] = source.choice([100, 250, 500]) if limit is None else source.choice([100, limit // 2])
        found.append(each)
    if source.random() < 0.1:
        found.append({"name": "", "id": f"{pod}-sandbox", "usage": 0.0, "quota": -1, "period": 100_000})
    return found


def sort_case(source: random.Random) -> Case:
    found = pods(source, source.choice([2, 3, 5, 8, 12]))
    if source.random() < 0.3:
        found = equally_important(found)
    return {"kind": "sort", "sorter": source.choice(["cpu", "mem", "general"]), "pods": found}


def equally_important(found: list[Case]) -> list[Case]:
    """The pods with the same priority and class, so that the usage decides."""
    return [{**pod, "qos": "BestEffort", "priority": 0} for pod in found]


def plan_case(source: random.Random) -> Case:
    kind = source.choice(["evict", "throttle", "restore"])
    case: Case = {"kind": kind, "pods": pods(source, source.choice([1, 2, 4, 7]), with_containers=kind != "evict")}
    case["excess"] = source.choice([0.0, 0.1, 0.25])
    case["state"] = {
        "cpu_total_usage": source.choice([500.0, 4_000.0, source.random() * 12_000]),
        "cpu_total_utilization": source.random() * 100,
        "memory_total_usage": float(source.randrange(16 * GI)),
        "memory_total_utilization": source.random() * 100,
        "cpu_core_numbers": source.choice([4.0, 16.0]),
        "memory_total": float(source.choice([16, 64]) * GI),
        UNREGISTERED: 3.0,
    }
    if source.random() < 0.15:
        del case["state"][source.choice(sorted(case["state"]))]
    case["marks"] = {"evict": {}, "down": {}, "up": {}}
    if kind == "evict":
        for metric in source.sample(METRICS, source.choice([1, 1, 2])):
            case["marks"]["evict"][metric] = marks(source, metric)
        if source.random() < 0.3:
            _close_with_one_pod(source, case)
        if source.random() < 0.05:
            case["marks"]["evict"][UNREGISTERED] = MARKS[UNREGISTERED]
    else:
        _quota_marks(source, case)
    _failures(source, case)
    return case


def _close_with_one_pod(source: random.Random, case: Case) -> None:
    """Make the gaps of CPU and memory so small that one pod may close both."""
    case["pods"] = equally_important(case["pods"])
    case["marks"]["evict"] = {"cpu_total_usage": ["1"], "memory_total_usage": ["1Gi"]}
    case["state"]["cpu_total_usage"] = source.random() * 3_000
    case["state"]["memory_total_usage"] = GI + source.random() * 2 * GI


def _quota_marks(source: random.Random, case: Case) -> None:
    own, other = ("down", "up") if case["kind"] == "throttle" else ("up", "down")
    case["marks"][own]["cpu_total_usage"] = marks(source, "cpu_total_usage")
    if source.random() < 0.5:
        case["marks"][other]["cpu_total_usage"] = marks(source, "cpu_total_usage")
    if source.random() < 0.25:
        case["state"].pop("cpu_total_usage", None)
    if source.random() < 0.1:
        case["marks"][own]["memory_total_usage"] = marks(source, "memory_total_usage")
    if case["kind"] == "restore":
        names = [pod["name"] for pod in case["pods"]]
        case["down_pods"] = names if source.random() < 0.7 else names[: source.randrange(len(names))]


def _failures(source: random.Random, case: Case) -> None:
    case["absent"] = [pod["name"] for pod in case["pods"] if source.random() < 0.03]
    ids = [each["id"] for pod in case["pods"] for each in pod["containers"] if "id" in each]
    case["failing"] = [each for each in (ids or [pod["name"] for pod in case["pods"]]) if source.random() < 0.03]


def marks(source: random.Random, metric: str) -> list[str]:
    """One or two watermarks, ascending."""
    every = MARKS[metric]
    return [every[place] for place in sorted(source.sample(range(len(every)), source.choice([1, 1, 2])))]


def is_valid(case: Case) -> bool:
    """Whether a reduced case still has the parts that both programs need."""
    names = [pod.get("name") for pod in case.get("pods", [])]
    parts = [each for pod in case.get("pods", []) for each in pod.get("containers", [])]
    of_pods = None not in names and len(set(names)) == len(names) and all(_is_whole(each) for each in parts)
    marks_ = [texts for marks_of in case.get("marks", {}).values() for texts in marks_of.values()]
    return of_pods and all(marks_)


def _is_whole(container: Case) -> bool:
    return "name" in container and ("id" not in container or {"usage", "quota", "period"} <= set(container))


# --- values of the agent ----------------------------------------------------------------------------------------------


def pod_states(case: Case) -> list[PodState]:
    """The pods as values of the agent, which the emulator takes, too."""
    return [_pod_state(pod) for pod in case["pods"]]


def _pod_state(pod: Case) -> PodState:
    parts = pod.get("containers", [])
    extended = sum(each.get("extended", 0) for each in parts)
    return PodState(
        namespace=NAMESPACE,
        name=pod["name"],
        uid=pod["name"],
        qos=QosClass(pod.get("qos", "")),
        priority=pod.get("priority", 0),
        start_time=pod.get("start"),
        labels=pod.get("labels", {}),
        static=pod.get("static", False),
        grace_seconds=float(pod.get("grace", 30)),
        cpu=pod.get("cpu", 0.0),
        memory=pod.get("memory", 0),
        extended_cpu_limit=extended / 1_000 if extended else None,
        extended_memory_limit=sum(each.get("extended_memory", 0) for each in parts) or None,
        containers=tuple(_container_state(each) for each in parts if "id" in each),
    )


def _container_state(container: Case) -> ContainerState:
    def cores(name: str) -> float | None:
        return container[name] / 1_000 if name in container else None

    return ContainerState(
        name=container["name"],
        id=container["id"],
        cpu=container["usage"],
        quota=None if container["quota"] == -1 else container["quota"],
        period=container["period"],
        cpu_request=cores("request"),
        cpu_limit=cores("limit"),
        extended_cpu_limit=cores("extended"),
    )


def ratios(case: Case) -> dict[str, CpuThrottle]:
    """minCPURatio and stepCPURatio by pod key."""
    return {f"{NAMESPACE}/{pod['name']}": CpuThrottle(*pod.get("ratio", [0, 0])) for pod in case["pods"]}


def originals(case: Case) -> dict[str, Original]:
    """The quotas of the containers before they were lowered, by id: that of the limit, or none."""
    found = {}
    for each in (each for pod in case["pods"] for each in pod.get("containers", []) if "id" in each):
        quota = each["limit"] * each["period"] // 1_000 if "limit" in each else None
        found[each["id"]] = Original(quota, each["period"])
    return found


# --- objects for the original -----------------------------------------------------------------------------------------


def objects(case: Case) -> Case:
    """The case as the original reads it."""
    if case["kind"] == "cycles":
        return {**case, "pods": [pod_object(pod) for pod in case["pods"]]}
    series = {name: [{"value": value}] for name, value in case.get("state", {}).items()}
    for metric, pod, labels, value in _usages(case["pods"]):
        own = {"PodName": pod["name"], "PodNamespace": NAMESPACE, "PodUid": pod["name"]}
        series.setdefault(metric, []).append({"labels": {**own, **labels}, "value": value})
    return {
        **{key: value for key, value in case.items() if key != "state"},
        "pods": [pod_object(pod) for pod in case["pods"]],
        "ratios": {pod["name"]: pod.get("ratio", [0, 0]) for pod in case["pods"]},
        "series": series,
    }


def _usages(of: Iterable[Case]) -> Iterable[tuple[str, Case, dict[str, str], float]]:
    """Metric, pod, further labels and value of each series."""
    for pod in of:
        yield "container_cpu_total_usage", pod, {}, pod.get("cpu", 0.0)
        yield "container_mem_total_usage", pod, {}, pod.get("memory", 0)
        for each in (each for each in pod.get("containers", []) if "id" in each):
            labels = {"ContainerName": each["name"], "ContainerId": each["id"]}
            yield "container_cpu_total_usage", pod, labels, each["usage"]
            yield "container_cpu_quota", pod, labels, each["quota"]
            yield "container_cpu_period", pod, labels, each["period"]


def pod_object(pod: Case) -> Case:
    """The pod as a Kubernetes object."""
    metadata: Case = {"name": pod["name"], "namespace": NAMESPACE, "uid": pod["name"], "labels": pod.get("labels", {})}
    if pod.get("static"):
        metadata["annotations"] = {"kubernetes.io/config.source": "file"}
    spec: Case = {"priority": pod.get("priority", 0)}
    if "grace" in pod:
        spec["terminationGracePeriodSeconds"] = pod["grace"]
    spec["containers"] = [_container_object(each) for each in pod.get("containers", []) if each["name"]]
    status: Case = {"qosClass": pod.get("qos", "")}
    if "start" in pod:
        status["startTime"] = datetime.fromtimestamp(pod["start"], UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"metadata": metadata, "spec": spec, "status": status}


def _container_object(container: Case) -> Case:
    limits: dict[str, str] = {}
    if "limit" in container:
        limits["cpu"] = f"{container['limit']}m"
    if "extended" in container:
        limits["gocrane.io/cpu"] = f"{container['extended']}m"
    if "extended_memory" in container:
        limits["gocrane.io/memory"] = str(container["extended_memory"])
    requests = {"cpu": f"{container['request']}m"} if "request" in container else {}
    return {"name": container["name"], "resources": {"limits": limits, "requests": requests}}
