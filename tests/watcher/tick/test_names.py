"""The names of the cluster in the tick: known at once, later, never, or changed since the last run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.fakes.sources import CPU, MEMORY, FakeClock, MemorySource
from tests.watcher.tick.test_tick import Records, every, kinds, numbers, served, wave
from watcher.core.naming.evidence import KnownNode
from watcher.core.naming.name_resolver import NodeIndex
from watcher.core.windows.records import TickRecord
from watcher.tick.shared import NAMES_S, NAMES_WHEN_SERVING_S, RefreshConfig
from watcher.tick.tick import Refresher

T0 = 1_700_000_010.0
A, B = "10.0.0.1:9100", "10.0.0.2:9100"
NODES = {"a": "10.0.0.1", "b": "10.0.0.2"}


@dataclass
class Reported:
    """A cluster set by the test: addresses by node name, None while they are unknown."""

    nodes: dict[str, str] | None = None
    says: str = ""
    hangs: bool = False
    patience: list[float] = field(default_factory=list)

    async def start(self) -> None:
        """Does nothing."""

    async def close(self) -> None:
        """Does nothing."""

    async def wait_known(self, patience: float) -> None:
        self.patience.append(patience)
        if self.hangs:
            await asyncio.Event().wait()

    async def index(self) -> NodeIndex | None:
        if self.nodes is None:
            return None
        return NodeIndex(KnownNode(name, (("InternalIP", address),)) for name, address in self.nodes.items())

    def error_text(self) -> str:
        return self.says


class Tale:
    """A refresher with its source, cluster, clock and store, and its successor after a restart."""

    def __init__(self, directory: Reported | None, *, restored: TickRecord | None = None, **options: Any) -> None:
        self.directory = directory
        self.clock = options.get("clock") or FakeClock(T0)
        self.source = options.get("source") or MemorySource()
        self.records = Records()
        self.restored = restored
        self.refresher = Refresher(
            provider=self.source,
            config=options.get("config") or RefreshConfig(),
            store=self.records,
            directory=directory,
            clock=self.clock,
            tag="t",
        )

    def load(self, *names: str, seconds: float = 1200.0) -> None:
        """Add samples of the last minutes, until a second ago."""
        until = self.clock.wall - 1.0
        for name in names:
            for metric in (CPU, MEMORY):
                self.source.put(name, every(15, until - seconds, until), wave, metric=metric)

    async def tick(self, *names: str) -> dict[str, Any]:
        """Tick a minute later with new samples; return the served nodes."""
        self.clock.pass_time(60)
        self.load(*names, seconds=60.0)
        await self.refresher.tick()
        return served(self.refresher)

    def restart(self, directory: Reported | None) -> Tale:
        """A refresher that continues with the stored state of this one."""
        return Tale(directory, restored=self.records.restored(), clock=self.clock, source=self.source)

    def reasons(self, kind: str) -> dict[str, str]:
        """The reasons of the findings, by node."""
        return {entry.node: entry.reason for entry in self.refresher.findings.entries() if entry.kind == kind}


def play(tale: Tale, story: Callable[[Tale], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        try:
            if tale.restored is not None:
                await tale.refresher.restore(tale.restored)
            await story(tale)
        finally:
            await tale.refresher.close()

    asyncio.run(run())


def test_nodes_have_the_names_of_the_cluster_from_the_first_response_on() -> None:
    """Addresses become names; an unknown one stays; a node without series is reported."""

    async def story(tale: Tale) -> None:
        tale.load(A, "b", "10.0.0.99:9100")
        await tale.refresher.tick()
        assert ["10.0.0.99:9100", "a", "b"] == list(served(tale.refresher))
        assert {"10.0.0.99:9100"} == tale.reasons("unknown_node").keys()
        assert {"c"} == tale.reasons("missing").keys()
        windows = numbers(served(tale.refresher)["a"])
        assert ("AVG", "15m") in windows  # also the past that was fetched later

    play(Tale(Reported({**NODES, "c": "10.0.0.3"})), story)


def test_names_that_are_known_later_keep_the_history() -> None:
    """No node has two names, no window is lost, and no node is missing: the earlier samples are under the new name."""

    async def story(tale: Tale) -> None:
        tale.load(A, B, "elsewhere")
        await tale.refresher.tick()
        assert [A, B, "elsewhere"] == list(served(tale.refresher))
        before = numbers(served(tale.refresher)[A])
        assert tale.directory is not None
        tale.directory.nodes = NODES
        after = await tale.tick(A, B, "elsewhere")
        assert ["a", "b", "elsewhere"] == list(after)
        assert before.keys() == numbers(after["a"]).keys()
        assert {"a", "b"} == tale.reasons("node_names").keys()
        assert {"node_names", "unknown_node"} == kinds(tale.refresher)
        assert {} == tale.refresher.published.snapshot.lost  # type: ignore[union-attr]

    play(Tale(Reported(None), source=MemorySource(remembers=False)), story)


def test_if_no_name_matches_a_node_there_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """And one line when a name matches."""
    caplog.set_level(logging.INFO, logger="watcher.tick")

    async def story(tale: Tale) -> None:
        for _ in range(3):
            await tale.tick("stranger")
        await tale.tick("stranger", A)
        await tale.tick("stranger", A)

    play(Tale(Reported(NODES)), story)
    reported = [line for line in caplog.messages if "of the source" in line]
    assert ["no name of the source is a node of the cluster", "names of the source match nodes of the cluster now"] == [
        line.partition(",")[0] for line in reported
    ]
    assert "the source has stranger, the cluster a;" in reported[0]


def test_a_restart_continues_with_the_names_of_the_cluster() -> None:
    """Stored windows are served at once, and their samples count, also for a source without a past."""

    async def before(tale: Tale) -> None:
        tale.load(A, B)
        await tale.refresher.tick()

    async def after(tale: Tale) -> None:
        assert ["a", "b"] == list(served(tale.refresher))
        tale.source.samples.clear()
        nodes = await tale.tick(A, B)
        assert ["a", "b"] == list(nodes)
        assert ("AVG", "15m") in numbers(nodes["a"])

    first = Tale(Reported(NODES), source=MemorySource(remembers=False))
    play(first, before)
    play(first.restart(Reported(NODES)), after)


def test_after_a_restart_without_the_cluster_no_node_has_two_names() -> None:
    """Names are those of the source until the cluster is back; the history is fetched again, and then renamed."""

    async def before(tale: Tale) -> None:
        tale.load(A, B)
        await tale.refresher.tick()

    async def after(tale: Tale) -> None:
        assert ["a", "b"] == list(served(tale.refresher))
        assert tale.directory is not None
        nodes = await tale.tick(A, B)
        assert [A, B] == list(nodes)
        assert ("AVG", "15m") in numbers(nodes[A])
        for _ in range(8):
            nodes = await tale.tick(A, B)
        assert [A, B] == list(nodes)
        assert {} == tale.refresher.published.snapshot.lost  # type: ignore[union-attr]
        assert "partial_outage" not in kinds(tale.refresher)
        tale.directory.nodes = NODES
        nodes = await tale.tick(A, B)
        assert ["a", "b"] == list(nodes)
        assert ("AVG", "15m") in numbers(nodes["a"])

    first = Tale(Reported(NODES))
    play(first, before)
    play(first.restart(Reported(None)), after)


def test_names_that_the_source_has_too_need_no_cluster() -> None:
    """If the source has the names of nodes, a restart without the cluster loses nothing."""

    async def before(tale: Tale) -> None:
        tale.load("a", "b")
        await tale.refresher.tick()

    async def after(tale: Tale) -> None:
        tale.source.samples.clear()
        assert ("AVG", "15m") in numbers((await tale.tick("a", "b"))["a"])

    first = Tale(Reported(NODES), source=MemorySource(remembers=False))
    play(first, before)
    play(first.restart(Reported(None)), after)


def test_samples_that_were_stored_without_names_get_them() -> None:
    """As after an upgrade, or a start before the cluster responded."""

    async def before(tale: Tale) -> None:
        tale.load(A, B)
        await tale.refresher.tick()

    async def after(tale: Tale) -> None:
        assert [A, B] == list(served(tale.refresher))
        tale.source.samples.clear()
        nodes = await tale.tick(A, B)
        assert ["a", "b"] == list(nodes)
        assert ("AVG", "15m") in numbers(nodes["a"])

    first = Tale(Reported(None), source=MemorySource(remembers=False))
    play(first, before)
    play(first.restart(Reported(NODES)), after)


def test_without_the_cluster_the_source_has_its_own_names_again() -> None:
    """After a reload without the cluster, no earlier name remains, and no node is missing."""

    async def story(tale: Tale) -> None:
        tale.load(A, B)
        await tale.refresher.tick()
        other = Tale(None, clock=tale.clock, source=tale.source)
        await other.refresher.continue_from(tale.refresher)
        assert ["a", "b"] == list(served(other.refresher))
        assert [A, B] == list(await other.tick(A, B))
        await other.refresher.close()

    play(Tale(Reported(NODES)), story)


def test_a_node_that_was_replaced_at_its_address_has_no_earlier_load() -> None:
    """The earlier node is removed from the list at once."""

    async def story(tale: Tale) -> None:
        tale.load(A, B)
        await tale.refresher.tick()
        assert tale.directory is not None
        tale.directory.nodes = {"new": "10.0.0.1", "b": "10.0.0.2"}
        assert ["b"] == list(await tale.tick(A, B))
        nodes = await tale.tick(A, B)
        assert ["b", "new"] == list(nodes)
        assert {("Latest", "")} == numbers(nodes["new"]).keys()
        assert "was node a" in tale.reasons("node_names")["new"]
        assert "partial_outage" not in kinds(tale.refresher)

    play(Tale(Reported(NODES)), story)


def test_the_first_response_waits_shortly_for_names() -> None:
    """A later tick may wait longer, because the earlier windows are served meanwhile."""

    async def story(tale: Tale) -> None:
        assert isinstance(tale.directory, Reported)
        tale.load(A)
        await tale.refresher.tick()
        await tale.tick(A)
        assert [NAMES_S, NAMES_WHEN_SERVING_S] == tale.directory.patience

    play(Tale(Reported(None)), story)


@pytest.mark.slow
def test_no_tick_exceeds_its_deadline_because_of_names() -> None:
    """If the cluster hangs, the wait is cancelled, and the tick ends with the known names."""

    async def story(tale: Tale) -> None:
        tale.load(A)
        while tale.refresher.published is None:  # on a machine that is paused, the deadline may end the fetch
            await tale.refresher.tick()
        assert [A] == list(served(tale.refresher))

    play(Tale(Reported(None, hangs=True), config=RefreshConfig(interval=2.0)), story)


def test_a_failure_of_the_cluster_is_a_finding() -> None:
    """For any names."""

    async def story(tale: Tale) -> None:
        tale.load(A)
        await tale.refresher.tick()
        assert {"": "cannot list nodes"} == tale.reasons("node_names")

    play(Tale(Reported(None, says="cannot list nodes")), story)


@pytest.mark.parametrize("back", [120.0, 86400.0])
def test_a_clock_that_is_set_back_removes_the_times_of_names(back: float) -> None:
    """Otherwise samples would be refused until that time is reached again."""

    async def story(tale: Tale) -> None:
        tale.load(A)
        await tale.refresher.tick()
        assert tale.directory is not None
        tale.directory.nodes = {"new": "10.0.0.1"}
        await tale.tick(A)
        tale.clock.step(-back)
        tale.source.samples.clear()
        assert ["new"] == list(await tale.tick(A))

    play(Tale(Reported(NODES)), story)
