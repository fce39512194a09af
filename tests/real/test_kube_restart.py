"""An API server that restarts: an informer is up to date at most 10 s after the server is ready again, and does not
report so earlier."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.real.kube import ApiServer, Etcd
from tests.waiting import eventually, wait_for
from watcher.core.kubernetes.objects import NODES
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import find_access
from watcher.platform.kube.informer import Informer

pytestmark = [pytest.mark.real_apiserver, pytest.mark.slow]

WITHIN_S = 10.0
OUTAGE_S = 12.0
"""Long enough for the waits between two attempts to grow to their limit."""


class Claims:
    """Records each moment at which the informer begins to report that it is up to date, with the names in its copy."""

    def __init__(self, informer: Informer[Any]) -> None:
        self._informer = informer
        self.names: list[set[str]] = []

    async def record(self) -> None:
        claimed = True
        while True:
            now = self._informer.error is None
            if now and not claimed:
                self.names.append(set(self._informer.objects))
            claimed = now
            await asyncio.sleep(0.001)


def make_node(api: ApiServer, name: str) -> None:
    api.make("/api/v1/nodes", metadata={"name": name})


async def ready(api: ApiServer) -> None:
    """Launch the API server and wait for /readyz only, as a load balancer does."""
    await asyncio.to_thread(api.launch)

    def wait() -> None:
        wait_for(
            lambda: api.session.get(f"{api.url}/readyz", timeout=5).ok,
            what="/readyz",
            timeout=90,
            ignoring=(requests.RequestException,),
        )

    await asyncio.to_thread(wait)


def survives(api: ApiServer, tmp_path: Path, outage: Callable[[], None]) -> None:
    """Let `outage` stop the API server, and change nodes in etcd until it is ready again."""
    path = api.kubeconfig(tmp_path / "kubeconfig")
    make_node(api, "stays")
    make_node(api, "ghost")

    async def inside() -> None:
        client = KubeClient(lambda: find_access(kubeconfig=path, environ={}))
        informer = Informer(client, NODES)
        await informer.start()
        await informer.wait()
        claims = Claims(informer)
        recording = asyncio.create_task(claims.record())
        try:
            assert {"stays", "ghost"} == set(informer.objects)
            await asyncio.to_thread(outage)
            await eventually(lambda: informer.error, what="the outage to be noticed")
            api.etcd.remove("/registry/minions/ghost")
            await asyncio.sleep(OUTAGE_S)
            await ready(api)
            await asyncio.to_thread(make_node, api, "new")
            await eventually(
                lambda: informer.error is None and {"stays", "new"} == set(informer.objects),
                what="the copy to be up to date",
                timeout=WITHIN_S,
            )
            assert claims.names, "the informer did not report the outage"
            assert all("ghost" not in names for names in claims.names)
        finally:
            recording.cancel()
            await informer.close()
            await client.close()

    asyncio.run(inside())


@pytest.fixture
def api(tmp_path: Path):
    """A separate API server for each test."""
    with Etcd(tmp_path / "etcd") as etcd, ApiServer(tmp_path / "api", etcd) as server:
        yield server


def test_the_informer_is_up_to_date_after_a_crash(api: ApiServer, tmp_path: Path):
    """The server accepts the watch with status 200 and then sends 410 as an event."""
    survives(api, tmp_path, api.kill)


def test_the_informer_is_up_to_date_after_a_crash_and_a_compaction(api: ApiServer, tmp_path: Path):
    """The last version that was seen does not exist any more."""

    def outage() -> None:
        api.kill()
        api.etcd.compact()

    survives(api, tmp_path, outage)
