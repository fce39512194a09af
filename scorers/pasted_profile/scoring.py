"""Scores of a pod by a pasted profile, from the load of nodes and their capacity.

Requests, limits and assignments of pods are unknown. Plug-ins that need them are left out. Allocatable is taken as
capacity. If the capacity of no node is known, the nodes are scored without the pod, because its share of a node is
unknown.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from scorers.cluster.pods import PodInfo, pod_info
from scorers.cluster.table import ClusterTable
from scorers.extender.handlers import MAX_LIMIT, pasted_info
from scorers.extender.hosting import InProcessLoad
from scorers.extender.score_documents import ranked_nodes
from scorers.pasted_profile.module import TrialRequest
from scorers.profiles.profiles import PluginSettings, ProfileSettings, read_pasted_profile
from scorers.profiles.ranking import FilterResult, ProfileRunner
from watcher.client import Columns, WatcherError
from watcher.core.koordinator.report import Capacity
from watcher.core.kubernetes.objects import Node, NodeStatus, Pod
from watcher.core.kubernetes.pod_resources import CPU, MEMORY, amounts
from watcher.decoding.json_text import decode_json
from watcher.model import Window
from watcher.platform.http.routing import ApiError
from watcher.platform.modules import ModuleHost

NEEDS_PODS = "needs requests and limits of the pods on each node, which only the Kubernetes API has ([scheduler.NAME])"
NEEDS_CAPACITY = "needs the CPU capacity of the nodes, which the source does not know: enter the size of a node"
OF_PODS = frozenset({"LowRiskOverCommitment", "NodeResourceLimits"})
OF_CAPACITY = frozenset({"Peaks"})
EMPTY_POD = pod_info(Pod())
UNIT = Capacity(1000, 1 << 30)
"""Stands for an unknown capacity, with a pod that uses nothing."""
_AMOUNTS = re.compile(r" (capacity|allocatable|measured|of recent pods|of pods not measured yet|with the pod)$")


@dataclass(frozen=True, slots=True)
class _KnownCluster:
    """The cluster as far as it is known: `is_sized` is false if no capacity is known, `unsized` are the nodes without
    a capacity if others have one, and `assumed` is the number of nodes with the size of the request."""

    table: ClusterTable
    is_sized: bool
    unsized: tuple[str, ...]
    assumed: int


async def score_pasted(body: bytes, serving: ModuleHost) -> bytes:
    """Return the response to a TrialRequest. Raises ApiError."""
    try:
        asked = decode_json(body, type=TrialRequest)
    except msgspec.DecodeError as error:
        hint = '{"pod": "MANIFEST", "profile": "plugins: [{name: TargetLoadPacking}]"}'
        raise ApiError(400, "bad_request", f"the body is not a request: {error}", hint) from None
    if not 1 <= asked.limit <= MAX_LIMIT:
        raise ApiError(400, "bad_request", "limit must be a number of nodes", f"1 to {MAX_LIMIT}")
    size = _size_of(asked.node)
    info = await asyncio.to_thread(pasted_info, asked.pod.encode())
    profile, notes = await asyncio.to_thread(_profile_of, asked.profile, serving)
    columns = await _load(profile, serving)
    capacities = await serving.capacities()
    now = serving.now()
    return await asyncio.to_thread(
        _answer,
        info,
        profile,
        columns,
        capacities,
        size=size,
        limit=asked.limit,
        now=now,
        notes=notes,
        windows=serving.windows,
    )


def _size_of(given: Mapping[str, str]) -> Capacity | None:
    if not given:
        return None
    hint = '"node": {"cpu": "8", "memory": "32Gi"}'
    if set(given) != {CPU, MEMORY}:
        raise ApiError(400, "bad_request", "the size of a node needs cpu and memory, and nothing else", hint)
    try:
        size = amounts(given)
    except ValueError as error:
        raise ApiError(400, "bad_request", f"node: {error}", hint) from None
    if min(size.values()) <= 0:
        raise ApiError(400, "bad_request", "node: cpu and memory must be greater than 0", hint)
    return Capacity(size[CPU], size[MEMORY])


def _profile_of(text: str, serving: ModuleHost) -> tuple[ProfileSettings, list[str]]:
    profile, problems, notices = read_pasted_profile(text, served=serving.windows)
    if profile is None or problems:
        message = "; ".join(f"{each.key}: {each.message}" for each in problems)
        raise ApiError(400, "bad_request", f"invalid profile: {message}", "; ".join(each.cure for each in problems))
    return profile, list(notices)


async def _load(profile: ProfileSettings, serving: ModuleHost) -> Columns:
    table = ClusterTable(windows=serving.windows)
    try:
        ProfileRunner(profile, table)
    except ValueError as error:
        raise ApiError(400, "bad_request", f"invalid profile: {error}", "see docs/concepts/scheduling.md") from None
    client = InProcessLoad(serving).client(replace(table.needs, pods=False, minutes=False, node_metrics=False))
    try:
        return await client.refresh()
    except WatcherError as error:
        raise ApiError(503, error.code or "no_metrics", str(error), error.hint) from error
    finally:
        await client.close()


def _cluster(
    columns: Columns,
    capacities: Mapping[str, Capacity],
    *,
    size: Capacity | None,
    now: float,
    windows: tuple[Window, ...],
) -> _KnownCluster:
    known = {name: each for name in columns.row if (each := capacities.get(name, size)) is not None}
    table = ClusterTable(windows=windows)
    for name in sorted(known or columns.row):
        capacity = known.get(name, UNIT)
        resources = {CPU: f"{capacity.milli_cores}m", MEMORY: str(capacity.memory)}
        table.set_node(name, Node(status=NodeStatus(capacity=resources, allocatable=resources)))
    table.set_load(columns, now=now)
    unsized = tuple(sorted(columns.row.keys() - known.keys())) if known else ()
    assumed = sum(name not in capacities for name in known)
    return _KnownCluster(table, bool(known), unsized, assumed)


def _answer(
    info: PodInfo,
    profile: ProfileSettings,
    columns: Columns,
    capacities: Mapping[str, Capacity],
    *,
    size: Capacity | None,
    limit: int,
    now: float,
    notes: list[str],
    windows: tuple[Window, ...],
) -> bytes:
    cluster = _cluster(columns, capacities, size=size, now=now, windows=windows)
    left_out = {each.name: why for each in profile.plugins if (why := _lack(each, is_sized=cluster.is_sized))}
    computed = replace(profile, plugins=tuple(each for each in profile.plugins if each.name not in left_out))
    scored = info if cluster.is_sized else EMPTY_POD
    nodes = list(islice(_nodes(scored, computed, cluster, now=now), limit)) if computed.plugins else []
    document = {
        "profile": "the pasted profile",
        "pod": {"key": info.key, "requests": dict(info.requests), "limits": dict(info.limits)},
        "time": now,
        "load": {"source": columns.source, "window_end": columns.window_end, "age_s": now - columns.window_end},
        "with_pod": cluster.is_sized,
        "left_out": [{"name": name, "reason": why} for name, why in sorted(left_out.items())],
        "notes": [*_notes(cluster, size), *notes],
        "unknown": list(cluster.unsized),
        "of": len(cluster.table.row) if computed.plugins else 0,
        "nodes": nodes,
    }
    return msgspec.json.encode(document)


def _lack(plugin: PluginSettings, *, is_sized: bool) -> str:
    if plugin.name in OF_PODS:
        return NEEDS_PODS
    return NEEDS_CAPACITY if plugin.name in OF_CAPACITY and not is_sized else ""


def _notes(cluster: _KnownCluster, size: Capacity | None) -> list[str]:
    notes = []
    if not cluster.is_sized:
        notes.append(
            "The capacity of the nodes is unknown, so the nodes are scored at their current load, without the pod. "
            "Enter the size of a node to add the pod."
        )
    elif cluster.assumed and size is not None:
        cores, gib = size.milli_cores / 1000, size.memory / (1 << 30)
        notes.append(f"Assumed for {cluster.assumed:,} nodes: {cores:g} cores and {gib:.4g} GiB, as entered.")
    if cluster.unsized:
        notes.append(f"{len(cluster.unsized):,} nodes are left out, because their capacity is unknown.")
    if cluster.is_sized:
        notes.append("Allocatable is taken as the capacity, because only the Kubernetes API has it.")
    notes.append("Pods that were assigned after the newest sample are unknown and not counted.")
    return notes


def _nodes(info: PodInfo, profile: ProfileSettings, cluster: _KnownCluster, *, now: float) -> Iterator[dict[str, Any]]:
    table = cluster.table
    runner = ProfileRunner(profile, table)
    for _ in runner.prepare():
        pass
    names = sorted(table.row)
    rows = np.array([table.row[name] for name in names], dtype=np.int64)
    ranked, filtered = runner.rank(info, rows, now=now), runner.filter(info, rows, now=now)
    for node in ranked_nodes(table.load, names, rows, ranked, (FilterResult(()), filtered), now=now):
        yield node if cluster.is_sized else {**node, "plugins": list(map(_without_amounts, node["plugins"]))}


def _without_amounts(plugin: Mapping[str, Any]) -> dict[str, Any]:
    """Remove what is computed from the placeholders for the capacity and the pod."""
    steps = {name: value for name, value in plugin["steps"].items() if not _AMOUNTS.search(name)}
    inputs = {name: value for name, value in plugin["inputs"].items() if not name.startswith("pod")}
    return {**plugin, "steps": steps, "inputs": inputs}
