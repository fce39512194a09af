"""Removes the marks of all nodes, for `load-watcher marks remove`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from scorers.marks.planner import NO_MARKS, marks_of
from scorers.marks.writer import marks_election, write_marks
from watcher.core.kubernetes.objects import NODES
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import KubeAccess
from watcher.platform.kube.leases import LEASE_DURATION_S

RENEW_AFTER = 50
"""Number of changed nodes after which the Lease is renewed; they take a few seconds."""


async def remove_all(access: Callable[[], KubeAccess], *, wait_s: float = LEASE_DURATION_S) -> list[str]:
    """Remove the marks of all nodes; return the names of the nodes that had some. The Lease is taken first, so that the
    service does not write them again meanwhile; `wait_s` is the time after which its holder has noticed. The Lease is
    not released: it expires. Raises KubeError."""
    client = KubeClient(access)
    try:
        election = marks_election(client, now=time.time, monotonic=time.monotonic)
        if await election.take_over():
            await asyncio.sleep(wait_s)
        removed: list[str] = []
        for node in sorted((await client.list(NODES)).items, key=lambda node: node.metadata.name):
            if marks_of(node) != NO_MARKS and await write_marks(client, node.metadata.name, NO_MARKS):
                removed.append(node.metadata.name)
                if len(removed) % RENEW_AFTER == 0:
                    await election.acquire_or_renew()
        return removed
    finally:
        await client.close()
