"""Small clusters for the tests of the scorers: nodes, pods, and load as from the watcher."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np

from scorers.cluster.pods import PodInfo, pod_info
from scorers.cluster.table import ClusterTable
from watcher.arrays import F64
from watcher.client import Columns, NodeForecasts
from watcher.core.kubernetes.objects import Node, Pod
from watcher.model import Operator

NOW = 1_700_000_000.0

TYPES = {"CPU": "instance:node_cpu:ratio", "Memory": "instance:node_memory_utilisation:ratio", "GPU": "gpu"}


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def node(name: str, capacity: Mapping[str, Any], allocatable: Mapping[str, Any] | None = None, **metadata: Any) -> Node:
    status = {"capacity": dict(capacity), "allocatable": dict(capacity if allocatable is None else allocatable)}
    return msgspec.convert({"metadata": {"name": name, **metadata}, "status": status}, Node)


def pod(
    name: str = "pod",
    *,
    node: str = "",
    containers: Iterable[Mapping[str, Any]] = (),
    uid: str | None = None,
    scheduled: float | None = None,
    phase: str = "Running",
    metadata: Mapping[str, Any] = {},
    status: Mapping[str, Any] = {},
    **spec: Any,
) -> Pod:
    """`containers` and `initContainers` are their `resources`, {"requests": …, "limits": …}."""
    as_spec: dict[str, Any] = {
        "containers": [{"name": f"c{i}", "resources": each} for i, each in enumerate(containers)]
    }
    if "initContainers" in spec:
        spec["initContainers"] = [
            {
                "name": f"i{i}",
                "restartPolicy": each.get("restartPolicy", ""),
                "resources": {**each, "restartPolicy": ""},
            }
            for i, each in enumerate(spec["initContainers"])
        ]
    conditions = []
    if scheduled is not None:
        conditions.append({"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(scheduled)})
    return msgspec.convert(
        {
            "metadata": {"name": name, "namespace": "default", "uid": name if uid is None else uid, **metadata},
            "spec": {"nodeName": node, **as_spec, **spec},
            "status": {"phase": phase, "conditions": conditions, **status},
        },
        Pod,
    )


def info(*arguments: Any, **more: Any) -> PodInfo:
    return pod_info(pod(*arguments, **more))


def load(
    values: Mapping[str, Mapping[tuple[str, str], float]],
    *,
    sampled: float = NOW,
    horizon: str = "",
    coverage: float = 0.946,
    missing: str = "short_history",
) -> Columns:
    """The watcher's columns from node -> (type, operator) -> value; with a horizon, those of the operator FORECAST are
    its bounds, and nodes without one have the state `missing`."""
    nodes = tuple(values)
    keys = dict.fromkeys(key for each in values.values() for key in each)
    columns = {
        (TYPES[kind], Operator(operator)): np.array([each.get((kind, operator), np.nan) for each in values.values()])
        for kind, operator in keys
    }
    names = dict.fromkeys(name for name, _ in columns)
    return Columns(
        timestamp=int(sampled) + 1,
        window_end=int(sampled),
        source="Test",
        nodes=nodes,
        row={name: row for row, name in enumerate(nodes)},
        values=columns,
        rollup={key: np.full(len(nodes), 900.0) for key in columns},
        types={TYPES[kind]: kind for kind, _ in keys},
        units=dict.fromkeys(names, "percent"),
        sampled={name: np.full(len(nodes), sampled) for name in names},
        smoothing_s=dict.fromkeys(names, 0.0),
        age_s=np.zeros(len(nodes)),
        received=0.0,
        age_at_receipt=0.0,
        forecasts=_forecasts(columns, horizon, coverage, missing, len(nodes)) if horizon else None,
    )


def _forecasts(
    columns: Mapping[tuple[str, Operator], F64], horizon: str, coverage: float, missing: str, size: int
) -> NodeForecasts:
    kinds = ("CPU", "Memory")
    bounds = {kind: columns.get((TYPES[kind], Operator.FORECAST), np.full(size, np.nan)) for kind in kinds}
    return NodeForecasts(
        horizon,
        0.95,
        bounds,
        {kind: np.where(np.isnan(each), np.nan, coverage) for kind, each in bounds.items()},
        {kind: [missing if np.isnan(value) else "bound" for value in each] for kind, each in bounds.items()},
    )


def table(
    nodes: Iterable[Node], pods: Iterable[Pod] = (), loads: Columns | None = None, *, now: float = NOW
) -> ClusterTable:
    made = ClusterTable()
    for each in nodes:
        made.set_node(each.metadata.name, each)
    for one in pods:
        made.set_pod(None, one, now=now)
    made.set_load(loads, now=now)
    return made


def rows(of: ClusterTable, *names: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array([of.row[name] for name in names or of.row], dtype=np.int64)


def cpu_container(request: int, limit: int) -> dict[str, Any]:
    """Return the resources of a container in millicores."""
    return {"requests": {"cpu": f"{request}m"}, "limits": {"cpu": f"{limit}m"}}


def milli(quantity: str | None) -> int | None:
    """Return a quantity of CPU in millicores."""
    return None if quantity is None else int(quantity[:-1]) if quantity.endswith("m") else 1000 * int(quantity)
