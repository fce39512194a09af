"""Policies of one API group in the Kubernetes API, whether or not its CustomResourceDefinitions are installed.

A group that is not installed must not cost a fleet of agents three rejected lists each, again and again, and must not
need a right: without one, the API answers 403 for a group that does not exist. Discovery, which every account may
read, shows which kinds are served; only these are watched.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator

from agent.policy import schema
from agent.policy.schema import AVOIDANCE_ACTION, NODE_QOS, POD_QOS
from watcher.core.kubernetes.errors import KubeError, KubeForbidden, KubeNoApi, KubeNotFound, KubeUnreachable
from watcher.core.kubernetes.objects import CustomObject
from watcher.core.kubernetes.wire import Resource
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.informer import Informer

log = logging.getLogger(__name__)

POLICY_RESOURCES = {
    group: {
        kind: Resource(group, schema.VERSION, plural, CustomObject)
        for kind, plural in {NODE_QOS: "nodeqoss", AVOIDANCE_ACTION: "avoidanceactions", POD_QOS: "podqoss"}.items()
    }
    for group in schema.GROUPS
}
"""Resources of the API by group and kind."""
DISCOVER_EVERY_S = 60.0
"""Seconds until the next look for definitions that are missing; up to twice as long, by chance."""
RETRY_S = 4.0
"""Upper limit in seconds of the random wait after a look that failed because the API was not reachable."""


class PolicyGroup:
    """The informers of one API group. `on_change` is called when an object or the set of served kinds may have
    changed. `every` as DISCOVER_EVERY_S."""

    def __init__(
        self, client: KubeClient, group: str, *, on_change: Callable[[], None], every: float = DISCOVER_EVERY_S
    ) -> None:
        self.group = group
        self.informers: dict[str, Informer[CustomObject]] = {}
        """By kind: the kinds that the API serves, or served once."""
        self.discovered = False
        """Whether discovery has shown which kinds are served. A kind that is not served has no objects."""
        self.error: KubeError | None = None
        """The reason why the last look failed."""
        self._client = client
        self._on_change = on_change
        self._every = every
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start in the background; does not fail without the API."""
        self._task = asyncio.create_task(self._discover(), name=f"policies-{self.group}")

    async def close(self) -> None:
        """Stop the background task and all informers."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await asyncio.gather(*(informer.close() for informer in self.informers.values()))

    def installed(self) -> bool:
        """Whether the API serves a kind of this group."""
        return any(not isinstance(each.error, KubeNoApi) for each in self.informers.values())

    def unlisted(self) -> Iterator[tuple[str, KubeError | None]]:
        """Yield the kinds whose objects are unknown, with the reason if there is one; "" for all kinds of the group.
        If the API fails later, the last known objects remain."""
        if not self.discovered:
            yield "", self.error
        for kind, informer in self.informers.items():
            if not informer.synced.is_set() and not isinstance(informer.error, KubeNoApi):
                yield kind, informer.error

    async def _discover(self) -> None:
        """Look for the kinds of the group until all are served. A kind that disappears later needs no look: its
        informer finds it again."""
        resources = POLICY_RESOURCES[self.group]
        while len(self.informers) < len(resources):
            wait = self._every * random.uniform(1.0, 2.0)
            try:
                served = await self._client.served(resources[NODE_QOS])
            except KubeNotFound:
                served = frozenset()
            except KubeForbidden:  # no discovery for this account: the lists show what is there
                served = frozenset(each.plural for each in resources.values())
            except KubeError as error:
                if self.error is None and not self.discovered:
                    log.warning("cannot discover the policies of %s: %s", self.group, error)
                self.error = error
                limit = RETRY_S if isinstance(error, KubeUnreachable) else self._every
                await asyncio.sleep(random.uniform(0.0, min(limit, self._every)))
                continue
            self.error = None
            for kind, resource in resources.items():
                if resource.plural in served and kind not in self.informers:
                    informer = Informer(self._client, resource, on_change=lambda *_: self._on_change())
                    self.informers[kind] = informer
                    await informer.start()
            self.discovered = True
            self._on_change()
            if len(self.informers) < len(resources):
                await asyncio.sleep(wait)
