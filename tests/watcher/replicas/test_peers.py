"""Replicas that start beside others: real services over sockets, one seeded by another, or by nobody."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trustme
from aiohttp import ClientSession, web

from tests.fakes.kube import FakeKube
from tests.waiting import eventually
from tests.watcher.store.ticks import block, store_at
from watcher.model import METRIC_BY_KEY, Provenance, RestoredSamples, SampleBlock, TickRecord, Window
from watcher.platform.http.runner import Runner
from watcher.platform.modules import ServiceModule
from watcher.platform.settings.loading import load
from watcher.platform.settings.tables import Settings
from watcher.replicas import transfer
from watcher.replicas.peers import Peers
from watcher.replicas.transfer import TransferOrigin
from watcher.service.build import source_identity
from watcher.service.server import Watcher
from watcher.sources.base import provenance
from watcher.sources.metrics_server.provider import MetricsServerProvider, plan_of

pytestmark = pytest.mark.slow

RESOLUTION = 15
SOURCE = MetricsServerProvider.source
WINDOWS = (Window("5m", 300), Window("10m", 600), Window("15m", 900))
KEYS = ("CPU", "Memory")
CPU = METRIC_BY_KEY["CPU"].name
PEER_VALUE = 40.0


@pytest.fixture
def kube() -> Iterator[FakeKube]:
    """A cluster of two nodes whose load is 25 percent, sampled now."""
    with FakeKube() as server:
        for name in ("a", "b"):
            server.node(name)
            server.usage(name, time=datetime.now(UTC).isoformat(), cpu="1", memory="2Gi")
        yield server


def listening() -> tuple[socket.socket, str]:
    """A socket that takes connections from now on, and its address: a replica may be known before it answers."""
    listener = socket.create_server(("127.0.0.1", 0))
    return listener, f"http://127.0.0.1:{listener.getsockname()[1]}"


def settings_for(directory: Path, kube: FakeKube, *, peers: list[str] | None = None, **flags: object) -> Settings:
    """A replica in a directory of its own."""
    directory.mkdir(exist_ok=True)
    given = {
        "provider.name": "metrics-server",
        "provider.kubeconfig": str(kube.kubeconfig(directory.parent / "kubeconfig")),
        "store.url": f"sqlite:///{directory / 'load-watcher.db'}",
        "peers.urls": peers,
        "peers.timeout": "40s",  # for what must be there in the end: a busy machine may take its time
        **flags,
    }
    return load(flags=given, environ={}, cwd=directory)


@asynccontextmanager
async def serving(
    settings: Settings, listener: socket.socket, *, parts: Sequence[ServiceModule] = ()
) -> AsyncIterator[Watcher]:
    """A replica behind its socket."""
    watcher = Watcher(settings, parts=parts)
    runner = Runner(watcher.app, shutdown_timeout=1.0)
    try:
        await runner.setup()
        await web.SockSite(runner, listener).start()
        yield watcher
    finally:
        await runner.cleanup()


@asynccontextmanager
async def answering(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]], *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """Something else that listens where a replica should, and its address."""
    listener, url = listening()
    app = web.Application()
    app.router.add_get("/api/v1/samples", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.SockSite(runner, listener, ssl_context=tls).start()
    try:
        yield url
    finally:
        await runner.cleanup()


def samples(*, until: float, minutes: int = 15, value: float = PEER_VALUE) -> RestoredSamples:
    """What a replica has that has run for `minutes`: a load that moves around `value`."""
    last = int(until // RESOLUTION)
    slots = minutes * 60 // RESOLUTION
    wave = value + np.arange(slots)[:, np.newaxis] % 2
    blocks: list[SampleBlock] = []
    for key in KEYS:
        one = block(0.0, slot=last - slots + 1, metric=METRIC_BY_KEY[key].name, nodes=("a", "b"), slots=slots)
        blocks.append(replace(one, values=one.values + wave, offset_ms=np.zeros_like(one.offset_ms)))
    known = {METRIC_BY_KEY[key].name: provenance(plan_of(key), SOURCE) for key in KEYS}
    end = float(last * RESOLUTION)
    return RestoredSamples(end + 0.5, end, SOURCE, RESOLUTION, WINDOWS, known, tuple(blocks))


async def stored(directory: Path, known: RestoredSamples) -> None:
    """Leave samples in a replica's database."""
    directory.mkdir(exist_ok=True)
    store = store_at(directory / "load-watcher.db")
    await store.open()
    try:
        store.save(
            TickRecord(
                known.timestamp, known.end, known.source, RESOLUTION, WINDOWS, known.provenance, known.blocks, ()
            )
        )
        await eventually(lambda: store.status.last_saved == known.end, what="the samples to be stored")
    finally:
        await store.close()


def windows_of(watcher: Watcher) -> set[str]:
    """The windows that node a has an average of CPU in, as published."""
    assert watcher.view.published is not None
    snapshot = watcher.view.published.snapshot
    (cpu,) = (metric for metric in snapshot.metrics if metric.metric.name == CPU)
    row = snapshot.nodes.index("a")
    return {window.label for window, value in zip(snapshot.windows, cpu.average[:, row], strict=True) if value == value}


async def ticked(watcher: Watcher) -> None:
    """Wait for the first tick that had an answer of the source, to its end."""
    view = watcher.view
    await eventually(
        lambda: view.refresher.stats.ticks > view.refresher.stats.failed and view.published, what="the first tick"
    )


ALL = {"5m", "10m", "15m"}


async def test_a_cold_replica_has_all_windows_at_its_first_tick(kube: FakeKube, tmp_path: Path) -> None:
    """It takes them from one that is ready; what it measures itself goes on from there, and it is ready at once."""
    await stored(tmp_path / "old", samples(until=time.time()))
    old_listener, old = listening()
    new_listener, new = listening()
    async with (
        serving(settings_for(tmp_path / "old", kube), old_listener) as first,
        ClientSession() as session,
    ):
        await ticked(first)
        async with serving(settings_for(tmp_path / "new", kube, peers=[old, new]), new_listener) as second:
            await ticked(second)
            assert ALL == windows_of(second)
            assert second.view.refresher.not_ready_reason() == ""
            assert SOURCE == second.view.published.snapshot.source  # type: ignore[union-attr]
            async with session.get(f"{new}/watcher/a?type=CPU") as answer:
                metrics = (await answer.json())["data"]["NodeMetricsMap"]["a"]["metrics"]
            average, deviation = (metric["value"] for metric in metrics)
            # sixty samples of the other, of 40 and 41 in turn, and one or two of our own, of 25
            assert ["AVG", "STD"] == [metric["operator"] for metric in metrics]
            assert 39.0 < average < 40.6
            assert deviation > 0.4
            async with session.get(f"{new}/readyz") as answer:
                assert 200 == answer.status


async def test_two_cold_replicas_do_not_wait_for_each_other(kube: FakeKube, tmp_path: Path) -> None:
    """Both answer with what they measure; neither is ready before it has a window."""
    pairs = [listening(), listening()]
    urls = [url for _, url in pairs]
    async with AsyncExitStack() as stack:
        both = [
            await stack.enter_async_context(
                serving(settings_for(tmp_path / f"replica-{k}", kube, peers=urls), listener)
            )
            for k, (listener, _) in enumerate(pairs)
        ]
        session = await stack.enter_async_context(ClientSession())
        for watcher, url in zip(both, urls, strict=True):
            await ticked(watcher)
            assert set() == windows_of(watcher)
            for path in ("/readyz", "/api/v1/samples"):
                async with session.get(f"{url}{path}") as answer:
                    assert (503, "warming_up") == (answer.status, (await answer.json())["error"]["code"])
            async with session.get(f"{url}/watcher/a") as answer:
                assert 200 == answer.status


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def hang(request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError("nobody sets it")


async def trickle(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"\xff")
        await asyncio.sleep(0.05)


async def garbage(request: web.Request) -> web.StreamResponse:
    return web.Response(body=b"\x92\x01" + b"garbage " * 1000)


async def cut_off(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b"\x92")
    assert request.transport is not None
    request.transport.abort()
    return response


@pytest.mark.parametrize("answer", [hang, trickle, garbage, cut_off])
async def test_a_peer_that_is_out_of_order_costs_nothing_but_a_line(
    kube: FakeKube, tmp_path: Path, caplog: pytest.LogCaptureFixture, answer: Answer
) -> None:
    """The first tick waits for its timeout at the longest, and the service answers meanwhile."""
    with caplog.at_level(logging.INFO, logger="watcher.replicas.peers"):
        async with answering(answer) as peer:
            listener, _ = listening()
            settings = settings_for(tmp_path / "new", kube, peers=[peer], **{"peers.timeout": "200ms"})
            async with serving(settings, listener) as watcher:
                await ticked(watcher)
                assert set() == windows_of(watcher)
                assert watcher.view.published is not None
                assert ("a", "b") == watcher.view.published.snapshot.nodes
    assert [record for record in caplog.records if record.name == "watcher.replicas.peers"]


def giving(known: Callable[[], RestoredSamples], settings: Settings) -> Answer:
    """A peer that answers with these samples, as of the source of these settings."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(
            body=transfer.encode(known(), TransferOrigin.of(instance="peer", asked=source_identity(settings)))
        )

    return answer


FOREIGN = {CPU: Provenance("SignalFx", "cpu.utilization", "percent", 0.0)}


@pytest.mark.parametrize(
    ("known", "flags", "expected"),
    [
        (lambda: samples(until=time.time()), {}, ALL),
        (lambda: samples(until=time.time() - 400), {}, set()),
        (lambda: samples(until=time.time() + 100), {}, set()),
        (lambda: replace(samples(until=time.time()), resolution=30), {}, set()),
        (lambda: replace(samples(until=time.time()), provenance=FOREIGN), {}, set()),
        (lambda: samples(until=time.time()), {"provider.cluster_name": "another"}, set()),
        (lambda: samples(until=time.time()), {"cluster.name": "another"}, set()),
    ],
    ids=[
        "fitting",
        "stale",
        "ahead of our clock",
        "a resolution that is not that of its slots",
        "another query",
        "another cluster",
        "its name",
    ],
)
async def test_only_samples_that_could_be_ours_are_taken(
    kube: FakeKube, tmp_path: Path, known: Callable[[], RestoredSamples], flags: dict[str, Any], expected: set[str]
) -> None:
    """The rule of our own database, and that of clocks."""
    settings = settings_for(tmp_path / "new", kube)
    async with answering(giving(known, settings)) as peer:
        listener, _ = listening()
        async with serving(settings_for(tmp_path / "new", kube, peers=[peer], **flags), listener) as watcher:
            await ticked(watcher)
            assert expected == windows_of(watcher)


async def test_a_redirect_is_not_followed(kube: FakeKube, tmp_path: Path) -> None:
    """It would carry the token to wherever it leads."""
    settings = settings_for(tmp_path / "new", kube)
    async with answering(giving(lambda: samples(until=time.time()), settings)) as other:

        async def elsewhere(request: web.Request) -> web.StreamResponse:
            raise web.HTTPFound(f"{other}{request.path}")

        async with answering(elsewhere) as peer:
            listener, _ = listening()
            async with serving(settings_for(tmp_path / "new", kube, peers=[peer]), listener) as watcher:
                await ticked(watcher)
                assert set() == windows_of(watcher)


async def test_their_samples_lie_over_our_own_file(kube: FakeKube, tmp_path: Path) -> None:
    """After a crash the file has the time before, the peer the time since: together they are all of it."""
    now = time.time()
    await stored(tmp_path / "new", samples(until=now - 240, value=30.0))
    settings = settings_for(tmp_path / "new", kube)
    async with answering(giving(lambda: samples(until=now, minutes=4), settings)) as peer:
        listener, _ = listening()
        async with serving(settings_for(tmp_path / "new", kube, peers=[peer]), listener) as watcher:
            await ticked(watcher)
            assert ALL == windows_of(watcher)
            assert watcher.view.published is not None
            (cpu,) = (each for each in watcher.view.published.snapshot.metrics if each.metric.name == CPU)
            five, _, fifteen = cpu.average[:, 0]
            assert fifteen < 36.0 < five  # eleven minutes of 30 and four of 40; four of 40 and one of 30


async def test_a_replica_that_finds_itself_takes_nothing(
    kube: FakeKube, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its own address is among those of a headless Service."""
    with caplog.at_level(logging.INFO, logger="watcher.replicas.peers"):
        await stored(tmp_path / "new", samples(until=time.time()))
        listener, url = listening()
        async with serving(settings_for(tmp_path / "new", kube, peers=[url]), listener) as watcher:
            await ticked(watcher)
            assert ALL == windows_of(watcher)
    assert "they are from this process" in caplog.text


@pytest.mark.parametrize("trusted", [True, False])
async def test_a_certificate_is_verified_for_the_name_that_was_looked_up(
    kube: FakeKube, tmp_path: Path, caplog: pytest.LogCaptureFixture, trusted: bool
) -> None:
    """Not for the address that is behind it; and one that nobody vouches for is refused."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)

    with caplog.at_level(logging.INFO, logger="watcher.replicas.peers"):
        give = giving(lambda: samples(until=time.time()), settings_for(tmp_path / "new", kube))
        async with answering(give, tls=context) as peer:
            named = peer.replace("http://127.0.0.1", "https://localhost")
            ca = {"peers.ca_file": str(tmp_path / "ca.crt")} if trusted else {}
            listener, _ = listening()
            async with serving(settings_for(tmp_path / "new", kube, peers=[named], **ca), listener) as watcher:
                await ticked(watcher)
                assert (ALL if trusted else set()) == windows_of(watcher)
    assert ("certificate" in caplog.text) != trusted


async def test_a_fault_of_ours_keeps_no_replica_from_starting(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, with its traceback, and there is nothing to take over."""

    async def nonsense(request: web.Request) -> web.StreamResponse:
        return web.Response(body=b"anything")

    def read(body: bytes) -> RestoredSamples:
        raise RuntimeError("nobody thought of this")

    async def story() -> list[RestoredSamples]:
        async with answering(nonsense) as peer:
            return await Peers([peer], token=None, tls=ssl.create_default_context()).ask(read, timeout=40.0)

    assert [] == await story()
    assert "nobody thought of this" in caplog.text


async def test_a_name_stands_for_all_its_addresses_and_the_token_goes_with_the_question(
    kube: FakeKube, tmp_path: Path
) -> None:
    """As that of a headless Service does; and where reads are protected, replicas know each other by their token."""
    token = tmp_path / "token"
    token.write_text("of-all-replicas")
    asked: list[tuple[str, str]] = []

    settings = settings_for(tmp_path / "new", kube)
    give = giving(lambda: samples(until=time.time()), settings)

    async def checking(request: web.Request) -> web.StreamResponse:
        asked.append((request.headers["Host"], request.headers.get("Authorization", "")))
        return await give(request)

    async with answering(checking) as peer:
        named = peer.replace("127.0.0.1", "localhost")
        protected = {"server.protect_reads": True, "server.token_file": str(token)}
        listener, _ = listening()
        async with serving(
            settings_for(tmp_path / "new", kube, peers=[named, "http://no..name:2020"], **protected),
            listener,
        ) as watcher:
            await ticked(watcher)
            assert ALL == windows_of(watcher)
    assert {(named.removeprefix("http://"), "Bearer of-all-replicas")} == set(asked)


@pytest.mark.parametrize("fault", [RecursionError("too deep"), MemoryError(), KeyError("a fault of ours")], ids=repr)
async def test_one_hostile_replica_costs_its_own_samples_only(fault: Exception, caplog: pytest.LogCaptureFixture):
    """The others answer later, so that an error would cancel their requests; it is one line without a traceback."""
    caplog.set_level(logging.INFO)
    good = samples(until=time.time())
    read_hostile = threading.Event()

    async def hostile(_request: web.Request) -> web.Response:
        return web.Response(body=b"hostile")

    async def patient(_request: web.Request) -> web.Response:
        await asyncio.to_thread(read_hostile.wait, 60.0)
        return web.Response(body=b"good")

    def read(body: bytes) -> RestoredSamples:
        if body == b"hostile":
            read_hostile.set()
            raise fault
        return good

    async def run() -> list[RestoredSamples]:
        async with answering(hostile) as bad, answering(patient) as fine:
            return await Peers([bad, fine], token=None, tls=ssl.create_default_context()).ask(read, timeout=60.0)

    assert await run() == [good]
    (line,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "request to the replica at" in line.getMessage()
    assert line.exc_info is None
