"""The watcher's windows as metrics: from the real API over a real socket, and without it."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agent.state.remote import WatcherWindows, metric_name
from tests.fakes.prometheus import FakePrometheus, responded
from tests.fakes.service import FakeService, Live, Protection
from tests.fakes.snapshots import publish, snapshot_of, steady
from tests.waiting import eventually
from watcher.client import NodeClient, NodeLoad
from watcher.model import METRICS, Operator

NOW = 1_700_000_000.0
WINDOWS = ("5m", "10m", "15m")
CPU = {f"window_cpu_{operator}_{window}" for operator in ("avg", "std") for window in WINDOWS}
USUAL = CPU | {name.replace("cpu", "memory") for name in CPU}
OPERATORS = (Operator.AVG, Operator.STD)


class Clock:
    """The monotonic clock; that of the service is at 1000 too, so ages are those of the documents."""

    time = 1000.0

    def __call__(self) -> float:
        return self.time


class Recorded(NodeClient):
    """A client that records the responses in `loads`."""

    def __init__(self, address: str, node: str, *, loads: list[NodeLoad], **more: Any) -> None:
        super().__init__(address, node, **more)
        self._loads = loads

    async def refresh(self) -> NodeLoad:
        self._loads.append(await super().refresh())
        return self._loads[-1]


def watching(
    live: Live,
    inside: Callable[[WatcherWindows], Awaitable[None]],
    *,
    node: str = "node-1",
    clock: Clock | None = None,
    wall: Callable[[], float] = time.time,
    loads: list[NodeLoad] | None = None,
    **options: Any,
) -> None:
    """Run `inside` with the metrics of a node, which are requested ten times per second."""

    async def run() -> None:
        address = f"http://127.0.0.1:{live.port}"
        client = Recorded(
            address,
            node,
            loads=[] if loads is None else loads,
            windows=WINDOWS,
            operators=OPERATORS,
            backoff=0.01,
            monotonic=clock or Clock(),
            clock=wall,
            **options,
        )
        source = WatcherWindows(client, interval=0.1)
        await source.start()
        try:
            await inside(source)
        finally:
            await source.close()

    asyncio.run(run())


def why_not(source: WatcherWindows, *, monotonic: float = 1000.0, metric: str = "window_cpu_avg_5m") -> str:
    return source.read(now=NOW, monotonic=monotonic).missing.get(metric, "")


def test_windows_have_the_age_of_the_node():
    service = FakeService(published=publish(snapshot_of({"node-1": {"CPU": steady(26), "Memory": steady(40)}})))
    with Live(service) as live:

        async def inside(source: WatcherWindows) -> None:
            await eventually(lambda: not why_not(source), what="an answer")
            readings = source.read(now=NOW, monotonic=1000.0)
            assert readings.series.keys() == USUAL
            assert not readings.missing
            assert readings.series["window_cpu_avg_5m"][0].value == pytest.approx(26.0)
            assert readings.series["window_memory_avg_15m"][0].value == pytest.approx(40.0)
            assert readings.series["window_cpu_std_15m"][0].value == pytest.approx(1.0)
            # The response has Age: 1, rounded down: the newest sample is at most two seconds old.
            assert readings.series["window_cpu_avg_5m"][0].time == NOW - 2.0
            assert readings.series["window_cpu_avg_5m"][0].labels == {}

        watching(live, inside)


def test_a_late_node_has_the_age_of_its_own_sample():
    published = publish(snapshot_of({"node-1": {"CPU": steady(26)}, "node-2": {"CPU": steady(60)}}))
    published.snapshot.sampled[0] -= 90.0
    with Live(FakeService(published=publish(published.snapshot))) as live:

        async def inside(source: WatcherWindows) -> None:
            await eventually(lambda: not why_not(source), what="an answer")
            assert source.read(now=NOW, monotonic=1000.0).series["window_cpu_avg_5m"][0].time == NOW - 92.0
            assert "193 s old, more than 180 s" in why_not(source, monotonic=1101.0)

        watching(live, inside)


def test_an_incomplete_window_is_missing_and_the_shorter_one_is_present():
    with Live() as live:

        async def inside(source: WatcherWindows) -> None:
            await eventually(lambda: not why_not(source), what="an answer")
            readings = source.read(now=NOW, monotonic=1000.0)
            assert "window_cpu_avg_5m" in readings.series
            assert readings.missing["window_cpu_avg_15m"] == "the watcher has enough samples only for 10m"

        watching(live, inside, node="node-3")


def test_other_metrics_have_the_names_of_the_watcher():
    with Live() as live:

        async def inside(source: WatcherWindows) -> None:
            await eventually(lambda: not why_not(source), what="an answer")
            found = source.read(now=NOW, monotonic=1000.0).series["window_network_receive_avg_10m"]
            assert found[0].value == pytest.approx(2e6)

        watching(live, inside, node="node-2")


def test_each_metric_of_the_watcher_has_its_own_name():
    names = {metric_name(metric.key, Operator.P95, "15m") for metric in METRICS}
    assert len(names) == len(METRICS)
    assert {"window_cpu_p95_15m", "window_pressure_io_p95_15m", "window_energy_gpu_p95_15m"} <= names
    assert all(name == name.lower() and name.isidentifier() for name in names)


def test_a_node_that_the_watcher_does_not_know_is_reported():
    with Live() as live:

        async def inside(source: WatcherWindows) -> None:
            await eventually(lambda: "no response yet" not in why_not(source), what="an answer")
            assert "the watcher returned no windows" in why_not(source)
            assert source.read(now=NOW, monotonic=1000.0).missing.keys() == USUAL

        watching(live, inside, node="no/such node?")


def test_a_watcher_that_protects_reads_needs_the_token():
    with Live(protection=Protection(token="s3cret-and-long", protect_reads=True)) as live:

        async def refused(source: WatcherWindows) -> None:
            await eventually(lambda: "token" in why_not(source), what="a refusal")

        async def admitted(source: WatcherWindows) -> None:
            await eventually(lambda: not why_not(source), what="an answer")

        watching(live, refused)
        watching(live, admitted, token="s3cret-and-long")


def test_an_unavailable_watcher_is_reported_once_and_its_windows_become_too_old(caplog):
    clock, service = Clock(), FakeService()
    with Live(service) as live:

        async def inside(source: WatcherWindows) -> None:
            await eventually(lambda: not why_not(source), what="an answer")
            published, service.published = service.published, None
            await eventually(lambda: "updates of the watcher's windows stopped" in caplog.text, what="a warning")
            assert not why_not(source, monotonic=1178.0)
            assert "181 s old, more than 180 s" in why_not(source, monotonic=1179.0)
            service.published = published
            with caplog.at_level(logging.INFO):
                await eventually(lambda: "updates of the watcher's windows resumed" in caplog.text, what="its end")

        watching(live, inside, clock=clock)
    assert len([each for each in caplog.records if each.levelno == logging.WARNING]) == 1


def test_an_unreachable_watcher_affects_only_its_metrics():
    with Live() as live:
        pass

    async def inside(source: WatcherWindows) -> None:
        assert "no response yet" in why_not(source)
        await eventually(lambda: "no response from" in why_not(source), what="the reason")
        assert source.read(now=NOW, monotonic=1000.0).missing.keys() == USUAL

    watching(live, inside)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"timestamp":1,"window":{"duration":"5m","start":1,"end":2},"source":"x","data":{"NodeMetricsMap":{}}}',
    ],
)
def test_an_invalid_document_of_a_node_is_reported(body: bytes):
    with FakePrometheus(lambda _: responded(body)) as server:

        class At:
            port = server.port

        async def inside(source: WatcherWindows) -> None:
            await eventually(
                lambda: "invalid node document" in why_not(source) or "0 nodes" in why_not(source), what="the reason"
            )

        watching(At(), inside)  # type: ignore[arg-type]


STEPS = [sign * step for step in (5.0, 60.0, 600.0, 3_600.0, 86_400.0) for sign in (1, -1)]


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_a_wrong_clock_of_the_node_does_not_change_the_age_of_windows(step: float, caplog) -> None:
    """The watcher states their age by its own clock. The difference is logged once."""
    loads: list[NodeLoad] = []
    published = publish(snapshot_of({"node-1": {"CPU": steady(26)}}, end=time.time() - 1.0))
    with Live(FakeService(published=published)) as live, caplog.at_level(logging.WARNING):

        async def inside(source: WatcherWindows) -> None:
            await eventually(lambda: not why_not(source), what="an answer")
            await eventually(lambda: 3 <= len(loads), what="more answers")
            readings = source.read(now=NOW, monotonic=1000.0)
            assert NOW - 3.0 <= readings.series["window_cpu_avg_5m"][0].time <= NOW

        watching(live, inside, wall=lambda: time.time() + step, loads=loads)
    said = [each for each in caplog.messages if "the clock of this node is" in each]
    assert len(said) == (abs(step) > 10.0)
    assert all(("ahead of" if step > 0 else "behind") in each for each in said)


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_windows_ahead_of_the_clock_of_the_watcher_are_not_used(step: float, caplog) -> None:
    """They would look fresh until that clock has caught up. It is logged once, whatever the clock of the node."""
    loads: list[NodeLoad] = []
    published = publish(snapshot_of({"node-1": {"CPU": steady(26)}}, end=time.time() + step))
    with Live(FakeService(published=published)) as live, caplog.at_level(logging.WARNING):

        async def inside(source: WatcherWindows) -> None:
            await eventually(lambda: "no response yet" not in why_not(source), what="an answer")
            await eventually(lambda: 3 <= len(loads), what="more answers")
            for _ in range(2):
                assert ("ahead of the clock of the watcher" in why_not(source)) is (step > 30.0)

        watching(live, inside, wall=lambda: time.time() - 120.0, loads=loads)
    assert len([each for each in caplog.messages if "ignoring the watcher's windows" in each]) == (step > 30.0)
