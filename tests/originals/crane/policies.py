"""Random policies with cycles of samples, as Kubernetes objects, and their values for the emulator."""

from __future__ import annotations

import random
from typing import Any

from agent.model import AvoidanceAction, CpuThrottle, LabelSelector, Rule
from agent.policy.objects import whole_number
from tests.originals.crane.cases import METRICS, pods
from tests.originals.frame import Case
from tests.reference.crane.analyzer import CranePolicies
from tests.reference.crane.pod_qos import CranePodQos, CraneScope

API = "ensurance.crane.io/v1alpha1"
WATERMARK = {"cpu_total_usage": "4000", "cpu_total_utilization": "50", "memory_total_usage": "4Gi"}
CYCLE_SECONDS = 10.0
COOL_DOWNS = [1, 100_000]
"""Seconds: a cool-down that ends before the next cycle, and one that outlasts all cycles. The program runs the cycles
without a pause, so that it gets 0 instead of 1."""
SCOPES = [
    {"scopeName": "QOSClass", "operator": "In", "values": ["BestEffort", "Burstable"]},
    {"scopeName": "QOSClass", "operator": "NotIn", "values": ["Guaranteed"]},
    {"scopeName": "Namespace", "operator": "In", "values": ["d", "e"]},
    {"scopeName": "Priority", "operator": "In", "values": ["0-100"]},
    {"scopeName": "Priority", "operator": "In", "values": ["-10", "1000"]},
    {"scopeName": "Priority", "operator": "NotIn", "values": ["0", "100"]},
    {"scopeName": "Priority", "operator": "NotIn", "values": ["1000"]},
]


def cycles_case(source: random.Random) -> Case:
    found = pods(source, source.choice([2, 4]))
    for pod in found:
        pod["labels"] = source.choice([{}, {"app": "x"}, {"app": "y", "tier": "be"}])
    cycles = []
    for _ in range(source.randint(3, 8)):
        state = {metric: _sample(source, metric) for metric in METRICS if metric in WATERMARK}
        if source.random() < 0.1:
            del state[source.choice(sorted(state))]
        cycles.append(state)
    return {
        "kind": "cycles",
        "pods": found,
        "node_qos": [_node_qos(source, f"nq{number}") for number in range(source.choice([1, 1, 2]))],
        "pod_qos": [_pod_qos(source, f"pq{number}") for number in range(source.choice([1, 2]))],
        "actions": _actions(source),
        "cycles": cycles,
    }


def _sample(source: random.Random, metric: str) -> float:
    return whole_number(WATERMARK[metric]) * source.choice([0.5, 1.0, 1.25])


def _object(kind: str, name: str, spec: Case) -> Case:
    return {"apiVersion": API, "kind": kind, "metadata": {"name": name}, "spec": spec}


def _node_qos(source: random.Random, name: str) -> Case:
    rules = []
    for number in range(source.choice([1, 1, 2])):
        metric = source.choice(["cpu_total_usage", "cpu_total_usage", *sorted(WATERMARK)])
        rules.append(
            {
                "name": f"r{number}",
                "metricRule": {"name": metric, "value": WATERMARK[metric]},
                "avoidanceThreshold": source.choice([1, 2, 3]),
                "restoreThreshold": source.choice([1, 2, 3]),
                "actionName": source.choice(["throttle", "evict", "both", "keep-away", *["unknown"] * (number == 1)]),
                "strategy": source.choice(["None"] * 5 + ["Preview"]),
            }
        )
    return _object("NodeQOS", name, {"nodeQualityProbe": {"nodeLocalGet": {}}, "rules": rules})


def _actions(source: random.Random) -> list[Case]:
    def cpu() -> Case:
        return {"cpuThrottle": {"minCPURatio": source.choice([10, 20]), "stepCPURatio": source.choice([10, 30])}}

    def grace() -> Case:
        return source.choice([{}, {"terminationGracePeriodSeconds": source.choice([5, 60])}])

    specs: dict[str, Case] = {
        "throttle": {"throttle": cpu()},
        "evict": {"eviction": grace()},
        "both": {"throttle": cpu(), "eviction": grace()},
        "keep-away": {},
    }
    return [
        _object("AvoidanceAction", name, {**spec, "coolDownSeconds": source.choice(COOL_DOWNS)})
        for name, spec in specs.items()
    ]


def _pod_qos(source: random.Random, name: str) -> Case:
    spec: Case = {"allowedActions": source.sample(["throttle", "evict", "both"], source.choice([1, 2, 3]))}
    if source.random() < 0.8:
        spec["scopeSelector"] = {"matchExpressions": source.sample(SCOPES, source.choice([1, 1, 2]))}
    if source.random() < 0.4 or "scopeSelector" not in spec:
        spec["labelSelector"] = source.choice(
            [
                {"matchLabels": {"app": "x"}},
                {"matchLabels": {}},
                {"matchExpressions": [{"key": "tier", "operator": "Exists"}]},
                {"matchExpressions": [{"key": "app", "operator": "In", "values": ["x", "y"]}]},
                {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["x"]}]},
            ]
        )
    return _object("PodQOS", name, spec)


def for_original(case: Case) -> Case:
    """The actions with the cool-downs of the original."""
    actions = []
    for each in case["actions"]:
        seconds = each["spec"]["coolDownSeconds"]
        actions.append(
            {**each, "spec": {**each["spec"], "coolDownSeconds": 0 if seconds == COOL_DOWNS[0] else seconds}}
        )
    return {**case, "actions": actions}


def for_emulator(case: Case) -> CranePolicies:
    """The policies as the emulator takes them."""
    return CranePolicies(
        rules=[_rule(policy, each) for policy in case["node_qos"] for each in policy["spec"]["rules"]],
        actions={each["metadata"]["name"]: _action(each) for each in case["actions"]},
        pod_qos=[_emulated_pod_qos(each) for each in case["pod_qos"]],
    )


def _rule(policy: Case, rule: Case) -> Rule:
    return Rule(
        policy=policy["metadata"]["name"],
        name=rule["name"],
        metric=rule["metricRule"]["name"],
        watermark=float(whole_number(rule["metricRule"]["value"])),
        action=rule["actionName"],
        avoidance_threshold=rule["avoidanceThreshold"],
        restore_threshold=rule["restoreThreshold"],
        preview=rule["strategy"] == "Preview",
    )


def _action(action: Case) -> AvoidanceAction:
    spec = action["spec"]
    ratio = spec.get("throttle", {}).get("cpuThrottle", {})
    grace = spec.get("eviction", {}).get("terminationGracePeriodSeconds")
    return AvoidanceAction(
        action["metadata"]["name"],
        spec["coolDownSeconds"],
        throttle=CpuThrottle(ratio.get("minCPURatio", 0), ratio.get("stepCPURatio", 0)) if "throttle" in spec else None,
        evicts="eviction" in spec,
        grace_seconds=None if grace is None else float(grace),
    )


def _emulated_pod_qos(policy: Case) -> CranePodQos:
    spec = policy["spec"]
    selector = spec.get("labelSelector", {})
    requirements: list[Any] = [(key, "In", (value,)) for key, value in selector.get("matchLabels", {}).items()]
    requirements += [
        (each["key"], each["operator"], tuple(each.get("values", []))) for each in selector.get("matchExpressions", [])
    ]
    scopes = [
        CraneScope(each["scopeName"], each["operator"], each["values"])
        for each in spec.get("scopeSelector", {}).get("matchExpressions", [])
    ]
    return CranePodQos(
        policy["metadata"]["name"],
        frozenset(spec["allowedActions"]),
        LabelSelector(tuple(requirements)) if selector else None,
        tuple(scopes) if "scopeSelector" in spec else None,
    )


def is_valid(case: Case) -> bool:
    """Whether a reduced case still has the keys that the emulator reads."""
    try:
        for_emulator(case)
    except (KeyError, ValueError, TypeError):
        return False
    return bool(case["cycles"])
