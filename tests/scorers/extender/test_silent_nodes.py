"""A node falls silent: from the samples of a source through ticks, the store and the API on a socket to both clients of
the plug-ins, and to the filter of LoadAwareScheduling."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from scorers.cluster.table import ClusterTable
from scorers.extender.service import PARTIAL_OUTAGE, SchedulingService
from scorers.plugin_api.framework import create_plugin
from scorers.plugins.koordinator.load_aware_scheduling import LoadAwareScheduling
from tests.fakes.service import FakeService, Live
from tests.fakes.snapshots import END, publish, snapshot_of
from tests.fakes.sources import CPU, MEMORY, FakeClock, MemorySource
from tests.scorers.extender.test_hosting import PROFILES, Watcher, has_load, remote, running
from tests.scorers.simulated_cluster import info, node, rows
from tests.waiting import eventually
from tests.watcher.store.ticks import store_at
from watcher.client import Client, Columns, InProcessClient, NodeSilence, WatcherClient, WatcherError
from watcher.core.publishing.documents import SilentBody
from watcher.core.windows.silent_nodes import SilentDocument, SilentNode
from watcher.sources.errors import ProviderUnreachable
from watcher.store.store import Store
from watcher.tick.shared import RefreshConfig
from watcher.tick.tick import Refresher

T0 = 1_700_000_010.0
EXPIRED = "node(s) nodeMetric expired"
MAX_STALENESS = 300.0
pytestmark = pytest.mark.slow


class Cluster:
    """The nodes of a cluster, as the Kubernetes API lists them; None before the first list."""

    def __init__(self, *names: str) -> None:
        self.names: list[str] | None = list(names)

    def node_names(self) -> list[str] | None:
        return self.names

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def wait_known(self, patience: float) -> None: ...

    async def index(self) -> None:
        return None

    def error_text(self) -> str:
        return ""


class Deployment:
    """A watcher with its source and store, and an extender behind each of the two clients."""

    def __init__(self, path: Path, cluster: Cluster) -> None:
        self.path, self.cluster = path, cluster
        self.clock = FakeClock(T0)
        self.source = MemorySource()
        self.refresher: Refresher
        self.store: Store
        self.service = FakeService(max_staleness=MAX_STALENESS)
        self.clients: list[Client] = []

    def load(self, *names: str, seconds: float = 1200.0) -> None:
        """Samples of the last seconds, every 15 s, until a second ago."""
        until = self.clock.wall - 1.0
        for name in names:
            for metric in (CPU, MEMORY):
                times = [until - 15.0 * i for i in range(int(seconds // 15) + 1)]
                self.source.put(name, times, lambda time: 20.0 + time % 7, metric=metric)

    @asynccontextmanager
    async def running(self, live: Live) -> AsyncIterator[None]:
        """One life of the watcher and the extenders."""
        self.store = store_at(self.path)
        restored = await self.store.open()
        self.refresher = Refresher(
            provider=self.source,
            config=RefreshConfig(max_staleness=MAX_STALENESS),
            store=self.store,
            directory=self.cluster,
            clock=self.clock,
        )
        if restored is not None:
            await self.refresher.restore(restored)
        over_http = WatcherClient(f"http://127.0.0.1:{live.port}", interval=3600.0, backoff=0.01)
        in_process = InProcessClient(
            lambda: self.refresher.published,
            window=RefreshConfig().windows[-1],
            max_staleness=MAX_STALENESS,
            monotonic=self.clock.monotonic,
        )
        self.clients = [over_http, in_process]
        try:
            yield
        finally:
            await over_http.close()
            await in_process.close()
            saved = self.refresher.published
            if saved is not None and restored is None:
                await eventually(lambda: self.store.status.last_saved, what="a tick to be stored")
            await self.store.close()
            await self.refresher.close()

    async def tick(self, *names: str, seconds: float = 60.0) -> None:
        """Let time pass, with samples of these nodes, and run the tick of the watcher."""
        self.clock.pass_time(seconds)
        self.load(*names, seconds=min(seconds, 1200.0))
        await self.refresher.tick()

    async def rejected(self, *, later: float = 0.0) -> set[str]:
        """The nodes that the filter rejects for a pod `later` seconds after the tick; equal for both clients."""
        self.service.published, self.service.clock = self.refresher.published, self.clock.steady
        found = [self._rejected(*await _load(client), self.clock.wall + later) for client in self.clients]
        assert found[0] == found[1]
        return found[0]

    def _rejected(self, columns: Columns | None, silence: NodeSilence | None, now: float) -> set[str]:
        table = ClusterTable()
        for name in self.cluster.names or ("a", "b", "c", "x", "never"):
            table.set_node(name, node(name, {"cpu": "10", "memory": "100Gi"}))
        table.set_load(columns, now=now, silence=silence)
        table.expire_load(before=now - MAX_STALENESS)
        plugin, _ = create_plugin(LoadAwareScheduling, {}, table)
        verdicts = plugin.filter(info(), table, rows(table), now=now)
        assert {verdicts.reasons[int(code)] for code in verdicts.codes} <= {"", EXPIRED}
        return {name for name, passes in zip(table.row, verdicts.passed, strict=True) if not passes}


async def _load(client: Client) -> tuple[Columns | None, NodeSilence | None]:
    """The load as the extender reads it (SchedulingService)."""
    try:
        return await client.refresh(), None
    except WatcherError as error:
        return None, await client.refresh_silence() if error.code == PARTIAL_OUTAGE else None


def play(path: Path, *lives: Callable[[Deployment], Awaitable[None]], pause: float = 0.0) -> None:
    """Run the lives of one deployment one after the other, with `pause` seconds between them."""
    deployment = Deployment(path / "load-watcher.db", Cluster("a", "b", "c", "x", "never"))

    async def whole(live: Live) -> None:
        for life in lives:
            async with deployment.running(live):
                await life(deployment)
            deployment.clock.pass_time(pause)

    with Live(deployment.service) as live:
        asyncio.run(whole(live))


async def fall_silent(d: Deployment) -> None:
    """x stops reporting and is silent for six minutes."""
    d.load("a", "b", "c", "x")
    await d.refresher.tick()
    for _ in range(6):
        await d.tick("a", "b", "c")


def test_a_silent_node_is_rejected_until_it_has_samples_again(tmp_path: Path) -> None:
    """After the expiration, at each age, also between two ticks; a node that never had samples passes."""

    async def life(d: Deployment) -> None:
        d.load("a", "b", "c", "x")
        await d.refresher.tick()
        for minute in range(1, 40):
            await d.tick("a", "b", "c")
            age = 60.0 * minute + 1.0
            for later in (0.0, 24.0, 59.0):
                assert await d.rejected(later=later) == ({"x"} if age + later >= 180.0 else set()), age + later
        await d.tick("a", "b", "c", "x")
        assert await d.rejected() == set()

    play(tmp_path, life)


@pytest.mark.parametrize("pause", [30.0, 400.0, 3 * 86400.0])
def test_after_a_restart_it_is_still_rejected(tmp_path: Path, pause: float) -> None:
    """From the first tick on at the latest, however long the watcher was not running, until the Node object is gone.
    The node list of the cluster arrives only after the first tick."""

    async def restarted(d: Deployment) -> None:
        names, d.cluster.names = d.cluster.names, None
        await d.tick("a", "b", "c")
        assert await d.rejected() == {"x"}
        d.cluster.names = names
        await d.tick("a", "b", "c")
        assert await d.rejected() == {"x"}

    async def deleted(d: Deployment) -> None:
        await d.tick("a", "b", "c")
        assert await d.rejected() == {"x"}
        d.cluster.names = ["a", "b", "c", "never"]
        await d.tick("a", "b", "c")
        d.cluster.names = ["a", "b", "c", "never", "x"]  # another node of that name
        await d.tick("a", "b", "c")
        assert await d.rejected() == set()

    play(tmp_path, fall_silent, restarted, deleted, pause=pause)


def test_if_the_source_is_down_no_node_is_rejected(tmp_path: Path) -> None:
    """From the failed tick on until it responds again, also across a restart during the outage."""

    async def outage(d: Deployment) -> None:
        await fall_silent(d)
        assert await d.rejected() == {"x"}
        d.source.down = ProviderUnreachable("no response")
        for _ in range(8):
            await d.tick()
            for later in (0.0, 59.0):
                assert await d.rejected(later=later) == set()

    async def restarted(d: Deployment) -> None:
        await d.tick()
        assert await d.rejected() == set()
        d.source.down = None
        await d.tick("a", "b", "c")
        assert await d.rejected() == {"x"}

    play(tmp_path, outage, restarted)


def test_if_the_source_responds_with_incomplete_data_no_node_is_rejected(tmp_path: Path) -> None:
    async def life(d: Deployment) -> None:
        await fall_silent(d)
        d.source.partial = {CPU.name: "1 of 2 stores did not respond"}
        await d.tick("a", "b", "c")
        assert await d.rejected() == set()
        d.source.partial = {}
        await d.tick("a", "b", "c")
        assert await d.rejected() == {"x"}

    play(tmp_path, life)


def test_if_more_than_half_of_the_nodes_are_silent_none_is_rejected(tmp_path: Path) -> None:
    """a and b follow x one by one, so that the list of the nodes is not refused as a partial outage."""

    async def life(d: Deployment) -> None:
        await fall_silent(d)
        for _ in range(15):
            await d.tick("b", "c")
        assert await d.rejected() == {"a", "x"}
        for _ in range(15):
            await d.tick("c")
        assert await d.rejected() == set()
        await d.tick("b", "c")
        assert await d.rejected() == {"a", "x"}

    play(tmp_path, life)


async def test_while_the_watcher_does_not_answer_no_other_node_is_rejected(tmp_path: Path) -> None:
    """The separate extender keeps its copy. The samples of n01 are a minute older than those of the other nodes, so n01
    reaches the expiration first; n02 fell silent before."""
    samples = {f"n{i:02}": {key: [20.0] * 60 for key in ("CPU", "Memory")} for i in range(5) if i != 2}
    samples["n01"] = {key: [*values[:-4], *[np.nan] * 4] for key, values in samples["n01"].items()}
    published = publish(snapshot_of(samples))
    published.silent = SilentBody.of(SilentDocument(listed=True, nodes=[SilentNode("n02", END - 900.0)]))
    watcher = Watcher(published=published)

    def expired(service: SchedulingService, now: float) -> set[str]:
        table = service.table
        found = service.extender.profiles["aware"].filter(info(), rows(table), now=now)
        return {name for name, reason in found.failures(list(table.row)).items() if reason == EXPIRED}

    first = Live(watcher).__enter__()
    host = remote(first, tmp_path)
    async with running({"aware": PROFILES["aware"]}, host) as service:
        await eventually(lambda: has_load(service), what="the load")
        assert expired(service, END + 119.0) == {"n02"}
        assert expired(service, END + 121.0) == {"n01", "n02"}
        watcher.time = END + 100.0
        await asyncio.to_thread(first.__exit__, None, None, None)
        await eventually(lambda: service.load_error, what="the failure to be noticed")
        assert expired(service, END + 121.0) == {"n02"}
        with Live(watcher) as second:
            host.adopt(remote(second, tmp_path))
            await eventually(lambda: not service.load_error, what="the watcher to answer")
            assert expired(service, END + 121.0) == {"n01", "n02"}
