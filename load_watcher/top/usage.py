"""Usage, forecasts and requests of nodes and pods, from the HTTP API of the service.

A value that is unknown is None in every document.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from load_watcher.cli.service_client import ServiceClientError, ask, reading

Order = Literal["cpu", "memory", "name"]
Document = dict[str, Any]
TYPES = {"cpu": "CPU", "memory": "Memory"}
"""The type of the metric of each resource, in the order of the tables."""
AMOUNTS = {"cpu": "cores", "memory": "bytes"}
"""The name of the amount of each resource in the documents of pods and of the cluster."""
NOT_LISTED = ("unknown_path", "not_ready")
"""Codes of errors of /scheduler/cluster: the service has no scheduler, or has not listed the cluster yet."""


async def nodes_document(
    address: str, *, window: str, horizon: str | None, order: Order, token: str | None = None
) -> Document:
    """Return CPU and memory of all nodes in percent, highest first: `mean` and its `window`, which is shorter if the
    node has too few samples, `forecast`, and `requested`, the share of the allocatable amount that the pods of the node
    request. `age_s` is the age of a silent node's sample. Raises ServiceClientError."""
    parameters = [("type", kind) for kind in TYPES.values()]
    parameters += [("window", window), ("operator", "AVG"), ("operator", "FORECAST")]
    parameters += [("horizon", horizon)] if horizon else []
    columns, (cluster, reason) = await asyncio.gather(
        ask(f"{address}/api/v1/columns", parameters=parameters, token=token), _cluster(address, token)
    )
    with reading(address):
        shares = {kind: _requested_shares(cluster, AMOUNTS[kind]) for kind in TYPES}
        nodes = [
            {
                "name": name,
                **{kind: _values(columns, kind, at) | {"requested": shares[kind].get(name)} for kind in TYPES},
                "age_s": columns["age_s"][at],
            }
            for at, name in enumerate(columns["nodes"])
        ]
        forecasts = columns.get("forecasts", {})
        return {
            "source": columns["source"],
            "source_ok": columns["source_ok"],
            "window": window,
            "horizon": forecasts.get("horizon") or None,
            "level": forecasts.get("level") or None,
            "requests_unknown": reason,
            "silent": sorted(columns["silent"]),
            "nodes": sorted(nodes, key=lambda each: (_descending(each, order, "mean"), each["name"])),
        }


async def pods_document(
    address: str,
    *,
    nodes: Sequence[str],
    namespaces: Sequence[str],
    order: Order,
    token: str | None = None,
) -> Document:
    """Return usage and requests of pods: cores, and bytes of memory. `usage` is the newest reading, `means` are by
    window. Raises ServiceClientError."""
    parameters = [("host", each) for each in nodes] + [("namespace", each) for each in namespaces]
    pods, (cluster, reason) = await asyncio.gather(
        ask(f"{address}/api/v1/pods", parameters=parameters, token=token), _cluster(address, token)
    )
    with reading(address):
        asked = {(each["namespace"], each["name"]): each for each in (cluster["pods"] if cluster else ())}
        rows = [
            _pod(pods, at, asked.get(key)) for at, key in enumerate(zip(pods["namespace"], pods["pod"], strict=True))
        ]
        return {
            "source": pods["source"],
            "windows": [each["window"] for each in pods["averages"]],
            "requests_unknown": reason,
            "unknown": pods["unknown"],
            "pods": sorted(rows, key=lambda each: (_descending(each, order, "usage"), each["namespace"], each["name"])),
        }


async def _cluster(address: str, token: str | None) -> tuple[Document | None, str | None]:
    """Nodes and pods with their requests; or None, and why they are unknown."""
    try:
        return await ask(f"{address}/scheduler/cluster", token=token), None
    except ServiceClientError as error:
        if error.code not in NOT_LISTED:
            raise
        has_scheduler = error.code != "unknown_path"
        return None, str(error) if has_scheduler else "the service has no [scheduler] in its settings"


def _requested_shares(cluster: Document | None, amount: str) -> Mapping[str, float]:
    """The percentage of the allocatable amount of each node that its pods request; empty for an unknown cluster."""
    if cluster is None:
        return {}
    requested: dict[str, float] = defaultdict(float)
    for pod in cluster["pods"]:
        requested[pod["node"]] += pod[amount]
    allocatable = {each["name"]: each[f"allocatable_{amount}"] for each in cluster["nodes"]}
    return {name: 100 * requested[name] / most for name, most in allocatable.items() if most}


def _values(columns: Document, kind: str, at: int) -> Document:
    """Mean and forecast of a node, and the window of the mean: a node has a mean in the column of one window only."""
    known = [each for each in columns["columns"] if each["type"] == TYPES[kind] and each["values"][at] is not None]
    mean = next((each for each in known if each["operator"] == "AVG"), None)
    forecast = next((each["values"][at] for each in known if each["operator"] == "FORECAST"), None)
    return {
        "mean": mean["values"][at] if mean else None,
        "window": mean["window"] if mean else None,
        "forecast": forecast,
    }


def _pod(pods: Document, at: int, requested: Document | None) -> Document:
    """The row of a pod. `requested` is the pod in /scheduler/cluster."""
    means = pods["averages"]
    return {
        "namespace": pods["namespace"][at],
        "name": pods["pod"][at],
        "node": pods["node"][at],
        **{
            kind: {
                "usage": pods[amount][at],
                "means": [each[amount][at] for each in means],
                "requested": requested[amount] if requested else None,
            }
            for kind, amount in AMOUNTS.items()
        },
    }


def _descending(row: Document, order: Order, value: str) -> tuple[bool, float]:
    """A sort key: the highest value first, unknown values last; the same for all rows in the order of names."""
    found = None if order == "name" else row[order][value]
    return found is None, -(found or 0.0)
