"""The lookup that is the cause of a timeout."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress

import aiohttp
import pytest

from tests.fakes.sources import FakeClock, MemorySource
from tests.waiting import wait_for
from watcher.platform.net import resolver
from watcher.platform.net.failures import failure_reason
from watcher.platform.net.session import client_session
from watcher.sources.base import Fetch
from watcher.sources.errors import provider_error_of
from watcher.tick.shared import RefreshConfig
from watcher.tick.tick import Refresher


@pytest.fixture
def silent_name(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A name whose lookup lasts until the end of the test."""
    name, end = "influxdb.example", threading.Event()
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: end.wait() and [])
    thread = threading.Thread(target=lambda: asyncio.run(_look_up(name)), daemon=True)
    thread.start()
    wait_for(lambda: bool(resolver.unanswered([name])), what="a lookup that lasts too long")
    try:
        yield name
    finally:
        end.set()
        thread.join()


async def _look_up(name: str) -> None:
    await resolver.lookup(name, 8086)


def test_the_lookup_of_another_name_is_not_the_cause_of_a_timeout(silent_name: str):
    error = provider_error_of(TimeoutError(), url="http://prometheus.example:9090")
    assert str(error) == "no response in time"
    assert silent_name in str(provider_error_of(TimeoutError(), url=f"http://{silent_name}:8086"))
    assert failure_reason(TimeoutError(), url="http://prometheus.example:9090") == "no response in time"
    assert silent_name in failure_reason(TimeoutError(), url=f"http://{silent_name}:8086")


def test_the_hosts_of_a_request_are_those_that_it_looks_up(silent_name: str):
    async def requested(host: str) -> set[str]:
        hosts = set[str]()
        with resolver.noting_hosts(hosts), suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(0.05), client_session() as session, session.get(f"http://{host}:8086"):
                pass
        return hosts

    async def both() -> None:
        own, other = await asyncio.gather(requested(silent_name), requested("127.0.0.1"))
        assert (own, other) == ({silent_name}, set())
        assert silent_name in resolver.unanswered(own)
        assert not resolver.unanswered(other)

    asyncio.run(both())


@pytest.mark.parametrize("looks_up", [False, True])
def test_the_source_is_down_for_a_lookup_of_its_own_only(silent_name: str, looks_up: bool):
    class Source(MemorySource):
        async def fetch(self, *_: object, **__: object) -> Fetch:
            if looks_up:
                await resolver.lookup(silent_name, 8086)
            await asyncio.Event().wait()
            raise AssertionError

    async def down() -> str:
        config = RefreshConfig(interval=0.2, max_staleness=300.0)
        refresher = Refresher(provider=Source(), config=config, store=None, clock=FakeClock(1_700_000_010.0), tag="t")
        await refresher.tick()
        assert refresher.provider_health.ok is False
        return refresher.provider_health.reason

    assert (silent_name in asyncio.run(down())) == looks_up
