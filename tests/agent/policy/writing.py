"""Policies as users write them."""

from pathlib import Path
from typing import Any

import yaml

from agent.metrics.registry import Metrics
from agent.policy.policy_set import MetricCapabilities, PolicyReadResult, TriggerOnly, read_texts

METRICS: dict[str, MetricCapabilities] = {
    **{name: Metrics()[name] for name in ("cpu_total_usage", "cpu_total_utilization", "memory_total_utilization")},
    "container_sched_run_queue_time": TriggerOnly(),
}
API = "ensurance.crane.io/v1alpha1"


def an_object(kind: str, name: str = "a", *, annotations: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """A policy of this kind."""
    metadata = {"name": name, **({"annotations": annotations} if annotations else {})}
    return {"apiVersion": API, "kind": kind, "metadata": metadata, "spec": spec}


def a_rule(name: Any = "high", **changes: Any) -> dict[str, Any]:
    """A rule that is right; a field that is changed to None is left out."""
    rule = {"name": name, "metricRule": {"name": "cpu_total_usage", "value": "4000"}, "actionName": "throttle"}
    return {key: value for key, value in {**rule, **changes}.items() if value is not None}


def node_qos(*rules: dict[str, Any], name: str = "cpu", **others: Any) -> dict[str, Any]:
    """A NodeQOS with these rules, by default with one that is right."""
    return an_object("NodeQOS", name, rules=list(rules or [a_rule()]), **others)


def throttling(**changes: Any) -> dict[str, Any]:
    """The action of `a_rule`."""
    return an_object("AvoidanceAction", "throttle", throttle={"cpuThrottle": {"stepCPURatio": 10}}, **changes)


def text_of(*objects: dict[str, Any]) -> str:
    """A file of these objects."""
    return yaml.safe_dump_all(objects, sort_keys=False)


def reading(*objects: dict[str, Any]) -> PolicyReadResult:
    """What comes of a file of these objects."""
    return read_texts({"a.yaml": text_of(*objects)}, metrics=METRICS)


def problems(*objects: dict[str, Any]) -> dict[str, str]:
    """What is wrong, by its path, in the only or the last object that it is about."""
    return {each.place.path: f"{each.message} {each.cure}".strip() for each in reading(*objects).problems}


def write(directory: Path, **files: str) -> None:
    """Write these files (NAME to NAME.yaml), each by renaming, as editors and ConfigMaps do."""
    for name, text in files.items():
        half = directory / f".{name}.half"
        half.write_text(text)
        half.replace(directory / f"{name}.yaml")
