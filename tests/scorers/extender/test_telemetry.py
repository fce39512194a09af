"""The metrics of the extender, and its log when plug-ins begin or end to use fallbacks."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from aiohttp import web

from scorers.cluster.table import ClusterTable
from scorers.extender.hosting import InProcessLoad
from scorers.extender.reservations import Reservations
from scorers.extender.service import SchedulerModule, SchedulingService
from scorers.extender.telemetry import SchedulerTelemetry
from scorers.profiles.profiles import PluginSettings, ProfileSettings
from scorers.profiles.ranking import ProfileRunner
from tests.fakes.kube import FakeKube
from tests.scorers.extender.test_handlers import Served, a_cluster, a_profile, asking
from tests.scorers.plugins.koordinator.test_service import Service
from tests.scorers.simulated_cluster import NOW, load, node, pod, table
from tests.waiting import eventually
from tests.watcher.api.test_telemetry import samples_of
from watcher.api.telemetry import Telemetry
from watcher.model import MetricType

pytestmark = pytest.mark.slow

NAME = "load_watcher_scheduler_"
NODES = [node(name, {"cpu": "4", "memory": "8Gi"}) for name in ("a", "b")]


def reservations_of(table: ClusterTable) -> Reservations:
    return Reservations(table, now=lambda: NOW, find_pod=lambda pod: pod)


def telemetry_of(cluster: ClusterTable) -> SchedulerTelemetry:
    return SchedulerTelemetry(cluster, {"p": a_profile(cluster)}, reservations_of(cluster))


def reported(of: SchedulerTelemetry) -> dict[tuple[str, ...], float]:
    """The samples of the extender on the page, by name and values of labels."""
    telemetry = Telemetry(version="1")
    telemetry.add(of)
    found = samples_of(telemetry.exposition())
    return {
        (name.removeprefix(NAME), *(value for _, value in sorted(labels))): number
        for (name, labels), number in found.items()
        if name.startswith(NAME)
    }


def test_requests_are_counted_by_profile_and_verb() -> None:
    """Refused ones, too; unknown profiles are not counted, since a client may send any text."""
    made = Served(a_cluster())
    with made.live:
        made.post("prioritize", asking("cold", "warm", "nobody", "nowhere"))
        made.post("prioritize", b"nonsense")
        made.post("filter", asking("cold", "nobody"))
        made.post("filter", asking("cold"), profile="other")
        made.post("explain", asking("nobody"))
    found = reported(made.telemetry)
    assert 2 == found["request_duration_seconds_count", "p", "prioritize"]
    assert 1 == found["request_duration_seconds_count", "p", "filter"]
    assert {"p"} == {key[1] for key in found if key[0] == "request_duration_seconds_count"}
    assert 3 == found["unknown_nodes_total", "p"]
    assert not [key for key in found if key[0] == "requests_without_load_total"]


def test_requests_without_load_are_counted() -> None:
    made = Served(table(NODES))
    with made.live:
        made.post("prioritize", asking("a", "b"))
        made.table.set_load(load({"a": {("CPU", "AVG"): 5.0}}), now=NOW)
        made.post("prioritize", asking("a", "b"))
    assert 1 == reported(made.telemetry)["requests_without_load_total", "p", "prioritize"]


def test_the_metrics_have_the_table_of_the_last_update() -> None:
    """Nodes, nodes without load, and reserved pods."""
    cluster = table(NODES, loads=load({"a": {("CPU", "AVG"): 5.0}}))
    made = telemetry_of(cluster)
    made.update(now=NOW)
    cluster.reserve(pod("one"), "b", now=NOW, until=NOW + 5)
    found = reported(made)
    assert (2, 1, 0) == (found["nodes",], found["nodes_without_load",], found["reservations",])
    made.update(now=NOW)
    assert 1 == reported(made)["reservations",]


def test_a_fallback_is_logged_when_it_begins_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    """Once each, and on the page meanwhile; without nodes no plug-in lacks load."""
    cluster = table([])
    made = telemetry_of(cluster)
    with caplog.at_level(logging.INFO, logger="scorers.extender.telemetry"):
        made.update(now=NOW)
        assert (0, []) == (reported(made)["fallback", "TargetLoadPacking", "p"], caplog.messages)
        for each in NODES:
            cluster.set_node(each.metadata.name, each)
        for _ in range(3):
            made.update(now=NOW)
        both = ("TargetLoadPacking", "LoadVariationRiskBalancing")
        begin = "scheduler profile p: most nodes have no load data for plug-in {0}; fallback until they do: allocation"
        assert [begin.format(name) for name in both] == caplog.messages
        assert [1, 1] == [reported(made)["fallback", name, "p"] for name in both]
        caplog.clear()
        cluster.set_load(load({"a": {("Memory", "AVG"): 5.0}}), now=NOW)
        for _ in range(2):
            made.update(now=NOW)
        # packing needs the CPU, which is still not measured
        assert ["scheduler profile p: plug-in LoadVariationRiskBalancing uses load data again"] == caplog.messages
        assert [1, 0] == [reported(made)["fallback", name, "p"] for name in both]


def test_missing_forecasts_are_logged_when_they_begin_and_when_they_end(caplog: pytest.LogCaptureFixture) -> None:
    """Once each, and on the page; a plug-in with windows lacks no forecasts."""
    loads = {name: {("CPU", "AVG"): 5.0} for name in ("a", "b")}
    cluster = table(NODES, loads=load(loads, horizon="6h"))
    settings = tuple(
        PluginSettings(name, args=args, points=("filter", "score"))
        for name, args in (("HighLoadFilter", {"use": "forecast"}), ("LoadAwareScheduling", {}))
    )
    made = SchedulerTelemetry(
        cluster, {"p": ProfileRunner(ProfileSettings("p", settings), cluster)}, reservations_of(cluster)
    )
    with caplog.at_level(logging.INFO, logger="scorers.extender.telemetry"):
        for _ in range(3):
            made.update(now=NOW)
        begin = "scheduler profile p: no node has a forecast for plug-in HighLoadFilter, so it uses windows: "
        assert [f"{begin}less than a day of history"] == caplog.messages
        found = reported(made)
        assert (1, 0) == tuple(
            found["without_forecasts", name, "p"] for name in ("HighLoadFilter", "LoadAwareScheduling")
        )
        caplog.clear()
        cluster.set_load(load({**loads, "a": {("CPU", "AVG"): 5.0, ("CPU", "FORECAST"): 9.0}}, horizon="6h"), now=NOW)
        made.update(now=NOW)
        assert ["scheduler profile p: plug-in HighLoadFilter uses forecasts"] == caplog.messages
    assert 0 == reported(made)["without_forecasts", "HighLoadFilter", "p"]


def test_load_aware_scheduling_scores_equally_without_measurements() -> None:
    """Most nodes are not measured, or were measured too long ago."""
    cluster = table(NODES, loads=load({name: {("CPU", "AVG"): 5.0} for name in ("a", "b")}))
    plugins = (PluginSettings("LoadAwareScheduling", 1, {}, ("score", "filter")),)
    made = SchedulerTelemetry(cluster, {"p": a_profile(cluster, plugins)}, reservations_of(cluster))
    for now, expected in ((NOW, 0), (NOW + 179, 0), (NOW + 180, 1)):
        made.update(now=now)
        assert expected == reported(made)["fallback", "LoadAwareScheduling", "p"]
    cluster.set_load(None, now=NOW)
    made.update(now=NOW)
    assert 1 == reported(made)["fallback", "LoadAwareScheduling", "p"]


async def test_load_grows_old_while_nothing_new_is_published(tmp_path: Path) -> None:
    """The document is young enough by its newest node; a node that was silent before is not."""

    async def story(server: FakeKube) -> None:
        service = Service(server.kubeconfig(tmp_path / "config"))
        scheduling = SchedulingService(
            {"default": {"plugins": [{"name": "TargetLoadPacking"}]}}, service, InProcessLoad(service)
        )
        table = scheduling.table
        async with scheduling.life(web.Application()):
            await eventually(lambda: table.has_load(MetricType.CPU), what="load")
            service.later = service.max_staleness + 1.0
            await eventually(lambda: not table.has_load(MetricType.CPU), what="no load any more")
        assert table.load.columns is not None

    with FakeKube() as server:
        server.node("a", cpu="10", memory="100Gi")
        await story(server)


async def test_the_service_logs_a_fallback_without_a_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The loop that updates the table checks once a second."""

    async def story(server: FakeKube) -> None:
        service = Service(server.kubeconfig(tmp_path / "config"))
        made = SchedulerModule().build({"default": {"plugins": [{"name": "TargetLoadPacking"}]}}, service)
        telemetry = Telemetry(version="1")
        for each in made.collectors:
            telemetry.add(each)
        key = (f"{NAME}fallback", frozenset({("profile", "default"), ("plugin", "TargetLoadPacking")}))

        def is_reported(value: float) -> bool:
            found = samples_of(telemetry.exposition())
            return found.get((f"{NAME}nodes", frozenset())) == 1 and found.get(key) == value

        (life,) = made.lives
        async with life(web.Application()):
            await eventually(lambda: is_reported(0), what="a profile with load")
            service.published = None
            await eventually(lambda: is_reported(1), what="a profile without load")

    with FakeKube() as server, caplog.at_level(logging.INFO, logger="scorers.extender.telemetry"):
        server.node("a", cpu="10", memory="100Gi")
        await story(server)
    assert caplog.messages[-1].endswith("fallback until they do: allocation")
