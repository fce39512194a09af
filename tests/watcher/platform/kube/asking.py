"""Requests to a fake server with all rights."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tests.fakes.kube import FakeKube
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import KubeAccess

Outcome = TypeVar("Outcome")


def asked(server: FakeKube, ask: Callable[[KubeClient], Awaitable[Outcome]], **options: Any) -> Outcome:
    """The result of `ask` with a client of this server, which is closed afterwards."""

    async def inside() -> Outcome:
        client = KubeClient(lambda: KubeAccess(server.url, "a test", token=server.token), **options)
        try:
            async with asyncio.timeout(60):
                return await ask(client)
        finally:
            await client.close()

    return asyncio.run(inside())
