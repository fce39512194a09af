"""Golden cases of Koordinator's load-aware scheduling, tests/vectors/koordinator.json, as Kubernetes objects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scorers.cluster.node_metrics import NodeMetric, NodeMetricObject, read_node_metric
from tests.scorers.simulated_cluster import NOW, node, pod, stamp
from watcher.core.koordinator.usage_thresholds import ANNOTATION
from watcher.core.kubernetes.objects import Node, Pod

GROUPS = json.loads((Path(__file__).parents[3] / "vectors" / "koordinator.json").read_text())["groups"]


def cases(group: str, *without: str) -> pytest.MarkDecorator:
    """Parametrize a test by the cases of a group, except some."""
    found = [each for each in GROUPS[group]["cases"] if each["id"] not in without]
    assert found, group
    assert len(found) + len(without) == len(GROUPS[group]["cases"]), without
    return pytest.mark.parametrize("case", found, ids=lambda case: case["id"])


def quantities(amounts: Mapping[str, int] | None) -> dict[str, str]:
    return {name: f"{size}m" if name == "cpu" else str(size) for name, size in (amounts or {}).items()}


def resources_of(container: Mapping[str, Any]) -> dict[str, Any]:
    return {part: quantities(container.get(part)) for part in ("requests", "limits")}


def pod_of(given: Mapping[str, Any], **more: Any) -> Pod:
    conditions = [
        {"type": each["type"], "status": each["status"], "lastTransitionTime": stamp(NOW + each["last_transition_s"])}
        for each in given.get("conditions", ())
    ]
    metadata = {key: given[key] for key in ("labels", "annotations", "namespace") if key in given}
    owners = [
        {"apiVersion": "apps/v1", "kind": kind, "name": "owner", "controller": True}
        for kind in given.get("owner_kinds", ())
    ]
    spec = {"priority": given["priority"]} if "priority" in given else {}
    return pod(
        given.get("name", "pod"),
        uid=given.get("uid"),
        node=more.get("node", given.get("node_name", "")),
        phase=given.get("phase", "Running"),
        containers=[resources_of(each) for each in given.get("containers", ())],
        initContainers=[resources_of(each) for each in given.get("init_containers", ())],
        metadata={**metadata, "ownerReferences": owners},
        status={"conditions": conditions},
        **spec,
    )


def node_of(given: Mapping[str, Any]) -> Node:
    annotations = dict(given.get("annotations", {}))
    if "custom_thresholds" in given:
        annotations[ANNOTATION] = json.dumps(given["custom_thresholds"])
    return node(given.get("name", "n"), quantities(given["allocatable"]), annotations=annotations)


def arguments_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as in the case, with the cluster's NodeMetrics as source."""
    args = {**given, "nodeMetricSource": "cluster"}
    if "aggregated" in given:
        args["aggregated"] = {
            key.removesuffix("_s"): f"{value}s" if key.endswith("_s") else value
            for key, value in given["aggregated"].items()
        }
    return args


def metric_of(given: Mapping[str, Any] | None) -> NodeMetric | None:
    """Read from the JSON of a NodeMetric in a cluster."""
    if given is None:
        return None
    usage, updated = given.get("node_metric"), given.get("update_time_s")
    status = {
        "updateTime": None if updated is None else stamp(NOW + updated),
        "nodeMetric": usage and _usage_of(usage),
        "podsMetric": [each and _pod_metric(each) for each in given.get("pods_metric", ())],
    }
    policy = {"reportIntervalSeconds": given.get("report_interval_s")}
    written = {"metadata": {"name": "n"}, "spec": {"metricCollectPolicy": policy}, "status": status}
    return read_node_metric(msgspec.json.decode(json.dumps(written), type=NodeMetricObject))


def _usage_of(usage: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "nodeUsage": _resources(usage.get("node_usage")),
        "systemUsage": _resources(usage.get("system_usage")),
        "aggregatedNodeUsages": [
            {"duration": f"{each['duration_s']}s", "usage": {key: _resources(of) for key, of in each["usage"].items()}}
            for each in usage.get("aggregated", ())
        ],
    }


def _pod_metric(given: Mapping[str, Any]) -> dict[str, Any]:
    named = {key: given[key] for key in ("namespace", "name", "priority") if key in given}
    return {**named, **({"podUsage": _resources(given["usage"])} if "usage" in given else {})}


def _resources(amounts: Mapping[str, int] | None) -> dict[str, Any]:
    return {"resources": quantities(amounts)}
