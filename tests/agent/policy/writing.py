"""Policies as users write them."""

from pathlib import Path
from typing import Any

import yaml

from agent.metrics.action_metric import ActionMetric
from agent.metrics.registry import Metrics
from agent.policy.policy_set import PolicyReadResult, read_texts

METRICS: dict[str, ActionMetric] = {
    **{name: Metrics()[name] for name in ("cpu_total_usage", "cpu_total_utilization", "memory_total_utilization")},
    "container_sched_run_queue_time": ActionMetric(name="container_sched_run_queue_time"),
}
API = "load-watcher.io/v1alpha1"
CRANE_API = "ensurance.crane.io/v1alpha1"


def an_object(kind: str, name: str = "a", *, annotations: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """A policy of this kind; of Crane's group if only that has the kind."""
    metadata = {"name": name, **({"annotations": annotations} if annotations else {})}
    group = API if kind in ("NodeQOS", "AvoidanceAction", "PodQOS") else CRANE_API
    return {"apiVersion": group, "kind": kind, "metadata": metadata, "spec": spec}


def a_rule(name: Any = "high", **changes: Any) -> dict[str, Any]:
    """A valid rule; a field that is None is left out."""
    rule = {"name": name, "metricRule": {"name": "cpu_total_usage", "value": "4000"}, "actionName": "throttle"}
    return {key: value for key, value in {**rule, **changes}.items() if value is not None}


def node_qos(*rules: dict[str, Any], name: str = "cpu", **others: Any) -> dict[str, Any]:
    """A NodeQOS with these rules, by default with a valid one."""
    return an_object("NodeQOS", name, rules=list(rules or [a_rule()]), **others)


def throttling(**changes: Any) -> dict[str, Any]:
    """The action of `a_rule`."""
    return an_object("AvoidanceAction", "throttle", throttle={"cpuThrottle": {"stepCPURatio": 10}}, **changes)


def text_of(*objects: dict[str, Any]) -> str:
    """A file of these objects."""
    return yaml.safe_dump_all(objects, sort_keys=False)


def reading(*objects: dict[str, Any]) -> PolicyReadResult:
    """The result of reading a file of these objects."""
    return read_texts({"a.yaml": text_of(*objects)}, metrics=METRICS)


def problems(*objects: dict[str, Any]) -> dict[str, str]:
    """The problems by path, in the only or the last object that has problems."""
    return {each.place.path: f"{each.message} {each.cure}".strip() for each in reading(*objects).problems}


def write(directory: Path, **files: str) -> None:
    """Write these files (NAME to NAME.yaml), each by renaming, as editors and ConfigMaps do."""
    for name, text in files.items():
        half = directory / f".{name}.half"
        half.write_text(text)
        half.replace(directory / f"{name}.yaml")
