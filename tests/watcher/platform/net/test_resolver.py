"""Which lookup is the cause of a timeout."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from tests.waiting import wait_for
from watcher.platform.net import resolver
from watcher.platform.sources.http_client import provider_error_of


@pytest.fixture
def silent_name(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A name whose lookup lasts until the end of the test."""
    name, end = "influxdb.example", threading.Event()
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: end.wait() and [])
    thread = threading.Thread(target=lambda: asyncio.run(_look_up(name)), daemon=True)
    thread.start()
    wait_for(lambda: bool(resolver.unanswered(name)), what="a lookup that lasts too long")
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
