"""Changes to nodes and pods other than eviction: taints, conditions, and binding a pod to a node.

The API treats a node's taints as one list, which a patch replaces as a whole. The list is therefore read, changed, and
written back on the condition that the node did not change in between; on a conflict (409) the change is retried from
the read. Conditions are merged by their type, so that conditions of other writers (the kubelet) are preserved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from watcher.core.kubernetes.errors import KubeConflict
from watcher.core.kubernetes.objects import PODS, Taint
from watcher.core.kubernetes.wire import MinimalMetadata, Resource
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.parameters import PatchKind

RETRY_AFTER_S = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Delays between attempts, in seconds. Kubelets write their node's status every ten seconds at most, so a second
conflict is rare."""

MARK_MANAGER = "load-watcher-marks"
"""Field manager of the taints and annotations that `set_marks` writes."""

T = TypeVar("T")


class _AllAnnotations(MinimalMetadata, frozen=True, rename="camel"):
    annotations: Mapping[str, str] = MappingProxyType({})


class _TaintsSpec(msgspec.Struct, frozen=True):
    taints: list[dict[str, Any]] = []


class _ConditionsStatus(msgspec.Struct, frozen=True):
    conditions: list[dict[str, Any]] = []


class _WholeNode(msgspec.Struct, frozen=True):
    """A node with its taints and conditions as untyped mappings, so that fields not declared in `objects` are
    preserved."""

    metadata: _AllAnnotations = _AllAnnotations()
    spec: _TaintsSpec = _TaintsSpec()
    status: _ConditionsStatus = _ConditionsStatus()


_NODES: Resource[_WholeNode] = Resource("", "v1", "nodes", _WholeNode)


async def add_taint(client: KubeClient, node: str, taint: Taint) -> bool:
    """Add a taint to a node, replacing a taint with the same key and effect. Returns whether the node was changed.
    Raises KubeError: KubeNotFound if the node does not exist, KubeConflict if every attempt conflicted with another
    writer."""
    wanted = {name: value for name, value in msgspec.to_builtins(taint).items() if value}

    def with_it(taints: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if any(_is(each, taint) and each.get("value", "") == taint.value for each in taints):
            return taints
        return [*(each for each in taints if not _is(each, taint)), wanted]

    return await _change_taints(client, node, with_it)


async def remove_taint(client: KubeClient, node: str, *, key: str, effect: str) -> bool:
    """Remove the taint with this key and effect from a node. Returns whether the node had it. Raises KubeError."""
    gone = Taint(key, effect)
    return await _change_taints(client, node, lambda taints: [each for each in taints if not _is(each, gone)])


def _is(described: dict[str, Any], taint: Taint) -> bool:
    return (described.get("key"), described.get("effect")) == (taint.key, taint.effect)


async def set_marks(
    client: KubeClient,
    node: str,
    *,
    taints: Sequence[Taint],
    keys: Collection[str],
    annotations: Mapping[str, str | None],
) -> bool:
    """Replace the taints of a node that have one of `keys` and the effect PreferNoSchedule by `taints`, and set
    annotations, or remove those that are None, in one patch. Returns whether the node was changed. Raises KubeError
    like `add_taint`.

    Not server-side apply: spec.taints is an atomic list, so an apply would own, and replace, the taints of others.
    """
    wanted = [{"key": each.key, "effect": each.effect} for each in taints]

    def with_them(present: list[dict[str, Any]]) -> list[dict[str, Any]]:
        kept = [each for each in present if (each.get("key"), each.get("effect")) not in replaced]
        unchanged = [each for each in present if each not in kept] == wanted
        return present if unchanged else [*kept, *wanted]

    replaced = {(key, "PreferNoSchedule") for key in keys}
    return await _change_taints(client, node, with_them, annotations=annotations, manager=MARK_MANAGER)


async def _change_taints(
    client: KubeClient,
    node: str,
    change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]],
    *,
    annotations: Mapping[str, str | None] = MappingProxyType({}),
    manager: str = "",
) -> bool:
    async def try_once() -> bool:
        read = await client.get(_NODES, node)
        taints = change(read.spec.taints)
        present = read.metadata.annotations
        others = {key: text for key, text in annotations.items() if present.get(key) != text}
        metadata: dict[str, Any] = {"resourceVersion": read.metadata.resource_version}
        patch = {"metadata": metadata | ({"annotations": others} if others else {})}
        if taints != read.spec.taints:
            patch["spec"] = {"taints": taints}
        elif not others:
            return False
        await client.patch(_NODES, node, patch, kind=PatchKind.MERGE, manager=manager)
        return True

    return await _until_no_conflict(try_once)


async def set_condition(
    client: KubeClient, node: str, kind: str, *, status: bool, now: float, reason: str = "", message: str = ""
) -> bool:
    """Set the condition of type `kind` on a node to `status`. `now` (unix seconds) becomes the transition time if the
    status changes. Returns whether the status, reason or message changed. Raises KubeError."""
    said = {"type": kind, "status": str(status), "reason": reason, "message": message}
    moment = f"{datetime.fromtimestamp(int(now), UTC):%Y-%m-%dT%H:%M:%SZ}"

    async def try_once() -> bool:
        conditions = (await client.get(_NODES, node)).status.conditions
        old = next((each for each in conditions if each.get("type") == kind), {})
        if {name: old.get(name, "") for name in said} == said:
            return False
        since = old.get("lastTransitionTime") if old.get("status") == said["status"] else None
        times = {"lastTransitionTime": since or moment, "lastHeartbeatTime": moment}
        patch = {"status": {"conditions": [{**said, **times}]}}
        await client.patch(_NODES, node, patch, kind=PatchKind.STRATEGIC, subresource="status")
        return True

    return await _until_no_conflict(try_once)


async def _until_no_conflict(try_once: Callable[[], Awaitable[T]]) -> T:
    for delay in RETRY_AFTER_S:
        try:
            return await try_once()
        except KubeConflict:
            await asyncio.sleep(delay)
    return await try_once()


async def bind(client: KubeClient, pod: str, *, node: str, uid: str = "") -> None:
    """Bind the pod NAMESPACE/NAME to a node if the pod still has this `uid`.

    Raises KubeError: KubeConflict if the pod is already bound or has another uid, KubeNotFound if the pod does not
    exist. The API does not check that the node exists. After KubeUnreachable the pod may be bound nevertheless.
    """
    namespace, _, name = pod.rpartition("/")
    metadata = {"name": name, "namespace": namespace, **({"uid": uid} if uid else {})}
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
    await client.create_subresource(PODS, pod, body, subresource="binding")
