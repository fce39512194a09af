"""The Node object of this node: its labels, which select policies, and its allocatable extended CPU.

It is read once a minute from the API server's cache, not watched: labels change rarely, and thousands of agents would
have to renew their watches at the same time after a restart of the API server.
"""

from __future__ import annotations

from collections.abc import Mapping

from agent.state.background_value import BackgroundValue
from agent.state.pod_facts import EXTENDED_CPU
from watcher.core.kubernetes.errors import KubeError, KubeNotFound
from watcher.core.kubernetes.objects import NODES, Node
from watcher.core.kubernetes.quantity import nano
from watcher.platform.kube.client import KubeClient

REFRESH_S = 60.0
"""Seconds between two requests: a changed label applies after this time at the latest."""
RETRIES_S = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
JITTER = 0.2


class OwnNode:
    """The Node object `name`. Does not close the client."""

    def __init__(self, client: KubeClient, name: str, *, interval: float = REFRESH_S) -> None:
        self._client = client
        self._name = name
        self._node = BackgroundValue(
            f"the Node object {name}",
            self._read,
            interval=interval,
            failures=(KubeError,),
            retries=RETRIES_S,
            jitter=JITTER,
        )

    async def start(self) -> None:
        """Start reading the Node object in the background."""
        await self._node.start()

    async def close(self) -> None:
        """Stop reading the Node object; the last values stay available."""
        await self._node.close()

    def labels(self) -> Mapping[str, str] | None:
        """The node's labels; None while they are unknown."""
        return None if self._node.copy is None else self._node.copy.metadata.labels

    def extended_cpu(self) -> float | None:
        """Allocatable cores of gocrane.io/cpu; None if unknown."""
        given = None if self._node.copy is None else self._node.copy.status.allocatable.get(EXTENDED_CPU)
        try:
            return None if given is None else nano(given) / 1e9
        except ValueError:
            return None

    async def _read(self) -> Node:
        return await read_node(self._client, self._name)


async def read_node(client: KubeClient, name: str) -> Node:
    """The Node object `name` from the cache of the API server. Raises KubeNotFound with a hint, and other
    KubeErrors."""
    try:
        return await client.get(NODES, name, cached=True)
    except KubeNotFound as error:
        hint = error.hint or "Set agent.node, or the environment variable NODE_NAME, to the name of this node."
        raise KubeNotFound(str(error), hint=hint, status=error.status) from None
