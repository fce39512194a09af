"""Handler of GET /scheduler/cluster: the nodes and pods known to the scorers. `load-watcher record` reads it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

import msgspec
from aiohttp import hdrs, web

from scorers.cluster.pods import PodInfo
from scorers.cluster.table import ClusterTable
from watcher.core.kubernetes.pod_resources import CPU, MEMORY
from watcher.core.pods.observed import ClusterSnapshot, SnapshotNode, SnapshotPod
from watcher.platform.http.openapi import Operation, ResponseSpec, failure
from watcher.platform.http.routing import JSON, Access, ApiError, Route

AT_ONCE = 500
"""Pods encoded before the event loop runs other tasks; takes about a millisecond."""


class ClusterHandler:
    """`now` returns unix seconds; `is_whole` returns whether all nodes and pods were reported."""

    def __init__(self, table: ClusterTable, *, now: Callable[[], float], is_whole: Callable[[], bool]) -> None:
        self._table = table
        self._now = now
        self._is_whole = is_whole

    def routes(self) -> list[Route]:
        """Return the routes for the watcher's application."""
        answers = {
            200: ResponseSpec("the nodes and the bound pods", ClusterSnapshot),
            503: failure("not_ready: the nodes and pods are not fully listed yet"),
        }
        operation = Operation("the nodes and pods of the cluster", answers)
        return [Route("/scheduler/cluster", "scheduler_cluster", self.cluster, operation, access=Access.DETAIL)]

    async def cluster(self, _request: web.Request, _captured: Sequence[str]) -> web.Response:
        """Return a ClusterSnapshot with the state at the time of the request."""
        if not self._is_whole():
            hint = "after a start this takes some seconds; otherwise check the log for errors of the Kubernetes API"
            raise ApiError(503, "not_ready", "the nodes and pods of the cluster are not fully listed yet", hint)
        time, nodes, placed = self._now(), list(self._nodes()), self._table.placed()
        encoded = [await _encoded(nodes), await _encoded(_pod(*each) for each in placed)]
        body = b'{"time":%s,"nodes":[%s],"pods":[%s]}' % (msgspec.json.encode(time), *encoded)
        return web.Response(body=body, headers={hdrs.CONTENT_TYPE: JSON, hdrs.CACHE_CONTROL: "no-store"})

    def _nodes(self) -> Iterator[SnapshotNode]:
        table = self._table
        for name, row in sorted(table.row.items()):
            capacity, allocatable = table.capacity.of(row), table.allocatable.of(row)
            if table.known[row] and min(capacity.get(CPU, 0), capacity.get(MEMORY, 0)) > 0:
                yield SnapshotNode(
                    name,
                    capacity[CPU] / 1000,
                    capacity[MEMORY],
                    allocatable.get(CPU, 0) / 1000,
                    allocatable.get(MEMORY, 0),
                    allocatable.get("pods"),
                )


def _pod(info: PodInfo, node: str, at: float) -> SnapshotPod:
    metadata, limits = info.pod.metadata, info.limits
    owners = metadata.owner_references
    owner = next((each for each in owners if each.controller), owners[0] if owners else None)
    created = metadata.creation_timestamp
    return SnapshotPod(
        info.key,
        metadata.namespace or "default",
        metadata.name,
        node,
        at,
        None if created is None else created.timestamp(),
        info.requests.get(CPU, 0) / 1000,
        info.requests.get(MEMORY, 0),
        limits[CPU] / 1000 if CPU in limits else None,
        limits.get(MEMORY),
        info.pod.spec.priority or 0,
        "" if owner is None else f"{owner.kind}/{owner.name}",
    )


async def _encoded(items: Iterable[msgspec.Struct]) -> bytes:
    """Encode items separated by commas, yielding to other tasks after each chunk."""
    parts, rest = [], iter(items)
    while some := list(islice(rest, AT_ONCE)):
        parts.append(msgspec.json.encode(some)[1:-1])
        await asyncio.sleep(0)
    return b",".join(parts)
