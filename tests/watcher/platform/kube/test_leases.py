"""Leader election among replicas by a Lease."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from tests.fakes.kube import LEASES, FakeKube
from watcher.core.kubernetes.errors import KubeForbidden
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import KubeAccess
from watcher.platform.kube.leases import Election

KEY = "default/writers"


class Time:
    """Two clocks that only a test advances."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def elect(server: FakeKube, story: Callable[[Callable[..., Election]], Awaitable[None]]) -> None:
    async def run() -> None:
        client = KubeClient(lambda: KubeAccess(server.url, "the test", token=server.token))

        def candidate(identity: str, monotonic: Callable[[], float]) -> Election:
            return Election(
                client, KEY, identity=identity, manager="t", now=lambda: 1.7e9 + monotonic(), monotonic=monotonic
            )

        try:
            await story(candidate)
        finally:
            await client.close()

    asyncio.run(run())


def test_a_lease_that_is_not_renewed_for_its_duration_is_taken_over(caplog):
    """By the clock of the waiting replica; that of the holder does not matter. The holder stops before that time."""
    caplog.set_level(logging.INFO)
    with FakeKube() as server:

        async def story(candidate: Callable[..., Election]) -> None:
            time, later = Time(), Time()
            later.seconds = 5e6
            first, second = candidate("a", time), candidate("b", later)
            assert [await first.acquire_or_renew(), await second.acquire_or_renew(), first.held, second.held] == [
                True,
                False,
                True,
                False,
            ]
            time.seconds += 24.9
            held = [first.held]
            time.seconds += 0.2
            assert [*held, first.held] == [True, False]
            later.seconds += 29.9
            assert not await second.acquire_or_renew()
            later.seconds += 0.2
            assert await second.acquire_or_renew()
            assert not await first.acquire_or_renew()  # another replica has it now

        elect(server, story)
        spec = server.content(LEASES, KEY)["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("b", 30, 1)
    assert spec["renewTime"] == "2024-01-11T19:07:10.100000Z"
    reported = [record.getMessage() for record in caplog.records if "Lease" in record.getMessage()]
    assert reported == ["this replica holds the Lease default/writers"] * 2


def test_a_renewed_lease_stays_and_a_released_one_is_free_at_once():
    with FakeKube() as server:

        async def story(candidate: Callable[..., Election]) -> None:
            time = Time()
            first, second = candidate("a", time), candidate("b", time)
            for _ in range(4):
                assert await first.acquire_or_renew()
                assert not await second.acquire_or_renew()
                time.seconds += 20.0
            await first.release()
            assert not first.held
            assert await second.acquire_or_renew()
            await first.release()  # it does not hold it
            assert server.content(LEASES, KEY)["spec"]["holderIdentity"] == "b"

        elect(server, story)


@pytest.mark.parametrize("there", [False, True])
def test_of_two_replicas_that_acquire_at_once_one_succeeds(there):
    """Both saw the same version, or both saw no Lease."""
    with FakeKube() as server:
        if there:
            server.put(LEASES, KEY, spec={"holderIdentity": "", "leaseDurationSeconds": 1})

        async def story(candidate: Callable[..., Election]) -> None:
            candidates = [candidate(name, Time()) for name in "abcdef"]
            held = await asyncio.gather(*(each.acquire_or_renew() for each in candidates))
            assert sum(held) == 1

        server.delay = 0.02
        elect(server, story)


def test_a_refused_renewal_is_an_error_and_the_lease_is_held_until_it_expires():
    with FakeKube() as server:

        async def story(candidate: Callable[..., Election]) -> None:
            time = Time()
            election = candidate("a", time)
            await election.acquire_or_renew()
            server.forbidden = {("patch", LEASES)}
            with pytest.raises(KubeForbidden, match="patch leases"):
                await election.acquire_or_renew()
            held = [election.held]
            time.seconds += 25.0
            assert [*held, election.held] == [True, False]

        elect(server, story)
