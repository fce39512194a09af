"""A started informer with the small API server, for tests."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from tests.fakes.kube import NODES, FakeKube
from watcher.core.kubernetes.objects import NODES as NODE_RESOURCE
from watcher.core.kubernetes.objects import Node
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import KubeAccess
from watcher.platform.kube.informer import Informer
from watcher.platform.kube.shared_informer import SharedInformer

QUICK = (0.01, 0.02, 0.04)


class NoJitter(random.Random):
    """Each wait is as long as its upper limit."""

    def random(self) -> float:
        return 1.0


def watched(server: FakeKube, check: Callable[[Informer[Any]], Awaitable[Any]], **options: Any) -> Any:
    """Run `check` with a started informer of the server's nodes, or of `resource`; it is closed afterwards."""

    async def inside() -> Any:
        client = KubeClient(lambda: KubeAccess(server.url, "a test", token=server.token), timeout=5.0)
        informer = Informer(client, **{"resource": NODE_RESOURCE, "delays": QUICK, "chance": NoJitter(), **options})
        await informer.start()
        try:
            async with asyncio.timeout(30):
                return await check(informer)
        finally:
            await informer.close()
            await client.close()

    return asyncio.run(inside())


def same(informer: Informer[Node] | SharedInformer[Node], server: FakeKube) -> Callable[[], bool]:
    """Whether the copy equals the server's objects, with their versions."""
    return lambda: (
        informer.synced.is_set()
        and server.versions(NODES) == {name: node.metadata.resource_version for name, node in informer.objects.items()}
    )


def count(server: FakeKube, verb: str) -> int:
    """The number of requests of this kind."""
    return sum(asked.verb == verb for asked in server.asked)
