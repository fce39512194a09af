"""The informer while the API server restarts: it reports that it is up to date only if it is, soon, and thousands of
informers do not send requests at the same moment."""

import asyncio
import contextlib
import random
from pathlib import Path

import pytest
from aiohttp import web

from tests.fakes.kube import NODES, Asked, FakeKube, line
from tests.fakes.kube_rules import status_object
from tests.waiting import eventually
from tests.watcher.platform.kube.watching import count, same, watched
from watcher.core.kubernetes.errors import KubeGone, KubeUnreachable
from watcher.core.kubernetes.objects import Node
from watcher.platform.kube.client import UNPAGED_BODY, WATCH_S
from watcher.platform.kube.informer import DELAYS, RECONNECT_S, Informer


class NoWait(random.Random):
    """Every wait is zero; `limits` records the upper limits of waits."""

    def __init__(self) -> None:
        super().__init__()
        self.limits: list[float] = []

    def uniform(self, a: float, b: float) -> float:
        if b < WATCH_S:
            self.limits.append(b)
        return a


def parameters(server: FakeKube, verb: str) -> list[dict[str, str]]:
    """Version parameters of the requests of a verb, in order."""
    requests = [asked.parameters for asked in server.asked if asked.verb == verb]
    return [{name: each[name] for name in each if name.startswith("resourceVersion")} for each in requests]


def levels(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The levels of the informer's records; the small server logs cut connections."""
    return [record.levelname for record in caplog.records if record.name == "watcher.platform.kube.informer"]


async def fail(server: FakeKube, informer: Informer[Node], *, code: int = 503) -> None:
    """Fail every request of the synchronised informer until `server.fault` is set again."""
    await informer.wait()
    await eventually(lambda: count(server, "watch"), what="the watch")
    server.fault = lambda _: web.Response(status=code)
    server.drop_connections()
    await eventually(lambda: informer.error, what="the failure")


async def agreed(informer: Informer[Node]) -> None:
    """Wait until the informer reports that it is up to date, and return in the same turn of the event loop."""
    async with asyncio.timeout(20):
        while informer.error is not None:  # noqa: ASYNC110  # the state in the turn of the change
            await asyncio.sleep(0)


def test_an_expired_version_after_an_outage_is_listed_at_once(caplog: pytest.LogCaptureFixture):
    """The restarted server accepts the watch and then sends 410 as an event. The waits have grown to a minute, but the
    list does not wait, and nothing claims before the list that the copy is up to date."""
    caplog.set_level("INFO", "watcher.platform.kube.informer")
    with FakeKube() as server:
        server.node("stays")
        server.node("goes")

        async def check(informer: Informer[Node]) -> None:
            await fail(server, informer)
            server.delete(NODES, "goes")
            server.node("new")
            server.compact()
            server.fault = lambda _: None
            informer.retry_now()
            await agreed(informer)
            assert same(informer, server)()
            assert {"stays", "new"} == set(informer.objects)

        watched(server, check, delays=(60.0,))
        versions = parameters(server, "watch")

    assert [{"resourceVersion": "0"}, {**versions[0], "resourceVersionMatch": "NotOlderThan"}] == parameters(
        server, "list"
    )
    assert ["WARNING", "INFO"] == levels(caplog)


def test_a_watch_that_expires_in_normal_operation_is_not_logged(caplog: pytest.LogCaptureFixture):
    """etcd compacts its history every five minutes; until the new list the copy counts as out of date."""
    caplog.set_level("INFO", "watcher.platform.kube.informer")
    expired = [line("ERROR", status_object(410, "too old resource version"))]
    errors = []

    with FakeKube() as server:

        def fault(asked: Asked) -> web.Response | None:
            if asked.verb == "list" and not expired:
                errors.append(running[0].error)
            return web.Response(body=expired.pop()) if asked.verb == "watch" and expired else None

        server.fault = fault
        running: list[Informer[Node]] = []

        async def check(informer: Informer[Node]) -> None:
            running.append(informer)
            await eventually(lambda: count(server, "watch") == 2, what="the second watch")
            await agreed(informer)

        watched(server, check, delays=(60.0,))

    assert [KubeGone] == [type(error) for error in errors]
    assert [] == levels(caplog)


@pytest.mark.slow
def test_a_quiet_watch_is_confirmed_by_a_list():
    """After an outage without changes, the server may send no event for a minute; a list replaces it."""
    with FakeKube() as server:
        server.node("a")

        async def check(informer: Informer[Node]) -> None:
            await fail(server, informer)
            server.fault = lambda _: None
            await agreed(informer)
            assert 2 == count(server, "list")

        watched(server, check)

    assert {"resourceVersion": "1001", "resourceVersionMatch": "NotOlderThan"} == parameters(server, "list")[-1]


@pytest.mark.slow
@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
def test_a_server_in_trouble_does_not_cost_the_version(code: int):
    """The watch continues with the event that was missed, without a list."""
    with FakeKube() as server:
        server.node("a")

        async def check(informer: Informer[Node]) -> None:
            await fail(server, informer, code=code)
            server.node("b")
            server.fault = lambda _: None
            await agreed(informer)
            assert same(informer, server)()

        watched(server, check)

    assert 1 == count(server, "list")
    assert {"1001"} == {each["resourceVersion"] for each in parameters(server, "watch")}


@pytest.mark.slow
def test_a_list_that_fails_keeps_its_version():
    """The next attempt of the list asks for the same version."""
    with FakeKube() as server:
        server.node("a")
        failing = [503, 429, 403]

        def fault(asked: Asked) -> web.Response | None:
            return web.Response(status=failing.pop()) if asked.verb == "list" and failing else None

        async def check(informer: Informer[Node]) -> None:
            await fail(server, informer)
            server.compact()
            server.node("b")
            server.compact()
            server.fault = fault
            await agreed(informer)
            assert same(informer, server)()

        watched(server, check)

    wanted = {"resourceVersion": "1001", "resourceVersionMatch": "NotOlderThan"}
    assert [wanted] * 4 == parameters(server, "list")[1:]


@pytest.mark.slow
def test_a_version_that_a_restored_server_never_had_is_given_up():
    """etcd was restored from a backup: 504, then a consistent list, and no object of the future remains."""
    with contextlib.suppress(RuntimeError), FakeKube() as first:  # the first server has ended by then
        first.node("kept")
        first.node("future")

        async def check(informer: Informer[Node]) -> None:
            await informer.wait()
            first.__exit__()
            await eventually(lambda: isinstance(informer.error, KubeUnreachable), what="the failure")
            restored = FakeKube()
            restored.port = first.port
            with restored:
                restored.node("kept")
                await agreed(informer)
                assert same(informer, restored)()
            assert [{"resourceVersion": "1002", "resourceVersionMatch": "NotOlderThan"}, {}] == parameters(
                restored, "list"
            )

        watched(first, check)


def test_a_list_whose_version_is_refused_is_requested_without_it():
    """410, or a server that does not understand the version."""
    with FakeKube() as server:
        server.node("a")

        def fault(asked: Asked) -> web.Response | None:
            return web.Response(status=410) if "resourceVersionMatch" in asked.parameters else None

        async def check(informer: Informer[Node]) -> None:
            await fail(server, informer)
            server.compact()
            server.node("b")
            server.compact()
            server.fault = fault
            await agreed(informer)
            assert same(informer, server)()

        watched(server, check)

    assert {} == parameters(server, "list")[-1]


@pytest.mark.parametrize(("code", "longest"), [(503, RECONNECT_S), (429, RECONNECT_S), (403, 60.0), (400, 60.0)])
def test_the_waits_grow_to_a_limit(code: int, longest: float):
    """Seconds for a server that restarts, a minute for a refusal that an operator must correct."""
    chance = NoWait()
    with FakeKube(fault=lambda _: web.Response(status=code)) as server:

        async def check(informer: Informer[Node]) -> None:
            await eventually(lambda: len(server.asked) > 12, what="a dozen attempts")

        watched(server, check, delays=DELAYS, chance=chance)

    assert [min(delay, longest) for delay in DELAYS] == chance.limits[: len(DELAYS)]
    assert {longest} == set(chance.limits[len(DELAYS) :])
    assert longest <= 4 or code in (400, 403)


def test_a_server_that_returns_with_a_refusal_is_asked_soon():
    """Roles are not loaded yet in the first second of an API server: the wait of a refusal starts small, although the
    server could not be reached for long."""
    chance = NoWait()
    with FakeKube() as server:

        async def check(informer: Informer[Node]) -> None:
            await fail(server, informer)
            await eventually(lambda: chance.limits[-1] == RECONNECT_S, what="the longest wait")
            server.fault = lambda _: web.Response(status=403)
            before = len(server.asked)
            await eventually(lambda: len(server.asked) > before + 3, what="refusals")

        watched(server, check, delays=DELAYS, chance=chance)

    after = [limit for limit in chance.limits[chance.limits.index(RECONNECT_S) :] if limit != RECONNECT_S]
    assert DELAYS[0] == after[0]


@pytest.mark.slow
def test_a_watch_that_lasted_without_an_event_ends_a_series_of_failures():
    """The next failure waits as long as the first one did."""
    chance, delays = NoWait(), (0.3, 0.6, 1.2)
    with FakeKube(bookmarks=False) as server:

        async def check(informer: Informer[Node]) -> None:
            await fail(server, informer, code=403)
            await eventually(lambda: chance.limits[-1] == delays[-1], what="the longest wait")
            server.fault = lambda _: None
            lists = count(server, "list")
            await eventually(lambda: count(server, "list") >= lists + 2, what="a list after a watch without events")
            before = len(chance.limits)
            server.fault = lambda _: web.Response(status=403)
            server.drop_connections()
            await eventually(lambda: set(delays) & set(chance.limits[before:]), what="the next failure")
            assert delays[0] == next(limit for limit in chance.limits[before:] if limit in delays)

        watched(server, check, delays=delays, chance=chance, watch_seconds=1)


@pytest.mark.slow
def test_watches_of_many_clients_end_at_different_times():
    """Each watch lasts a random time between the shortest and twice that; the same seed gives the same times."""

    def requested(seed: int) -> int:
        with FakeKube() as server:

            async def check(informer: Informer[Node]) -> None:
                await eventually(lambda: count(server, "watch"), what="the watch")

            watched(server, check, chance=random.Random(seed), watch_seconds=WATCH_S)
            return int(next(a.parameters["timeoutSeconds"] for a in server.asked if a.verb == "watch"))

    seconds = [requested(seed) for seed in (1, 2, 3, 1)]
    assert all(WATCH_S <= each <= 2 * WATCH_S for each in seconds)
    assert 3 == len(set(seconds))
    assert seconds[0] == seconds[-1]


@pytest.mark.slow
def test_a_large_list_is_read_in_pages():
    """One response of a large cluster would need its size in memory: it is abandoned, and pages follow, from then on at
    once."""
    with FakeKube() as server:
        for number in range(UNPAGED_BODY // (3 << 19) + 1):
            server.put(NODES, f"n{number}", metadata={"annotations": {"x": "y" * (3 << 19)}})

        async def check(informer: Informer[Node]) -> None:
            await informer.wait()
            assert same(informer, server)()
            server.compact()
            server.drop_connections()
            server.node("new")
            server.compact()
            await eventually(same(informer, server), what="the next list")

        watched(server, check)

    assert [{"resourceVersion": "0"}, {}, {}] == parameters(server, "list")
    assert "500" == [a for a in server.asked if a.verb == "list"][-1].parameters["limit"]


def test_a_silent_connection_is_probed():
    """A machine that failed sends nothing, not even the end of the connection: TCP keepalive is on."""
    with FakeKube() as server:

        def timers() -> list[str]:
            lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
            remote = f"0100007F:{server.port:04X}"
            return [fields[5] for each in lines if (fields := each.split())[2] == remote and fields[3] == "01"]

        async def check(informer: Informer[Node]) -> None:
            await eventually(lambda: count(server, "watch"), what="the watch")
            # timer 2 is keepalive; the time to the next probe is in hundredths of a second
            await eventually(
                lambda: any(t.startswith("02:") and int(t[3:], 16) <= 500 for t in timers()), what="the probe's timer"
            )

        watched(server, check)
