"""The plug-ins in the process of the watcher and in a process of their own: the same data, equal answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from aiohttp import web

from scorers.cluster.informer import OnNode, OnNodeMetric, OnPod
from scorers.cluster.pods import PodInfo
from scorers.extender.hosting import InProcessLoad, LoadAccess, unmet_profiles
from scorers.extender.remote import DESCRIBE_EVERY_S, RemoteHost
from scorers.extender.service import SchedulingService
from scorers.profiles.registry import known_names
from tests.fakes.decisions import DecisionList
from tests.fakes.pods import publish_pods
from tests.fakes.service import FakeService, Live, Protection
from tests.fakes.snapshots import END, WINDOWS, publish, snapshot_of
from tests.scorers.simulated_cluster import info, node, pod
from tests.waiting import eventually
from watcher.client import WatcherError
from watcher.core.config.settings import Settings
from watcher.core.forecast.document import snapshot_forecasts
from watcher.core.forecast.fleet import METRICS, FleetForecast
from watcher.core.forecast.maxima import DAY_SLOTS, SLOT_S
from watcher.core.forecast.settings import ForecastSettings
from watcher.core.kubernetes.objects import Node, Pod
from watcher.core.pods.published import PublishedPods
from watcher.core.publishing.documents import Published
from watcher.model import SnapshotForecasts, Window
from watcher.service.settings import loading

NODES, PODS = 60, 400
FORECAST = ForecastSettings()
AGGREGATED = {
    "usageThresholds": {"cpu": 60, "memory": 70},
    "usageAggregationType": "p95",
    "scoreAggregationType": "p90",
}
MODEL = {"k0": 471.7, "k1": -91.5, "k2": -0.07}
HISTORY = {
    "nodeMetricSource": "windowsAndPods",
    "estimator": "ownerHistoryEstimator",
    "ownerHistory": {"minReadings": 3},
}
PROFILES: dict[str, list[dict[str, Any]]] = {
    "packing": [{"name": "TargetLoadPacking", "args": {"targetUtilization": 55}}],
    "variation": [{"name": "LoadVariationRiskBalancing", "args": {"formula": "kep"}}],
    "variation-upstream": [{"name": "LoadVariationRiskBalancing"}],
    "risk": [{"name": "LowRiskOverCommitment"}],
    "peaks": [{"name": "Peaks", "args": {"NodePowerModel": {f"n{i:02}": MODEL for i in range(NODES)}}}],
    "limits": [{"name": "NodeResourceLimits"}],
    "high": [{"name": "HighLoadFilter", "args": {"usageThresholds": {"cpu": 70, "memory": 75}}}],
    "aware": [{"name": "LoadAwareScheduling", "args": {"usageThresholds": {"cpu": 65}}}],
    "percentiles": [{"name": "LoadAwareScheduling", "args": {"aggregated": AGGREGATED}}],
    "pods": [
        {
            "name": "LoadAwareScheduling",
            "args": {
                "nodeMetricSource": "windowsAndPods",
                "prodUsageThresholds": {"cpu": 30},
                "prodUsageIncludeSys": True,
                "scoreAccordingProdUsage": True,
            },
        }
    ],
    "history": [{"name": "LoadAwareScheduling", "args": HISTORY}],
    "high-ahead": [{"name": "HighLoadFilter", "args": {"use": "forecast", "usageThresholds": {"cpu": 70}}}],
    "aware-ahead": [{"name": "LoadAwareScheduling", "args": {"use": "forecast", "aggregated": AGGREGATED}}],
    "all": [{"name": "TargetLoadPacking", "weight": 3}, {"name": "LoadAwareScheduling"}, {"name": "HighLoadFilter"}],
}
OWNER = {"ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db-3", "controller": True}]}
ASKING = {
    "small": info("small", containers=[{"requests": {"cpu": "250m", "memory": "1Gi"}}]),
    "large": info("large", containers=[{"requests": {"cpu": "7"}, "limits": {"cpu": "9", "memory": "20Gi"}}]),
    "without requests": info("plain", containers=[{}]),
    "of a workload": info("db-new", containers=[{"requests": {"cpu": "1"}}], metadata=OWNER),
}


class Cluster:
    """Nodes of three sizes, and their pods, which do not change."""

    def __init__(self) -> None:
        sizes = [{"cpu": str(cores), "memory": f"{4 * cores}Gi"} for cores in (4, 8, 32)]
        self.nodes: dict[str, Node] = {f"n{i:02}": node(f"n{i:02}", sizes[i % 3]) for i in range(NODES)}
        self.pods: list[Pod] = [self._pod(i) for i in range(PODS)]

    def _pod(self, i: int) -> Pod:
        owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": f"db-{i % 40}", "controller": True}
        labels = {"koordinator.sh/priority-class": "koord-prod"} if i % 3 == 0 else {}
        requests = {"cpu": f"{100 + i}m", "memory": f"{64 + i}Mi"}
        return pod(
            f"p{i}",
            node=f"n{i % NODES:02}",
            containers=[{"requests": requests, "limits": requests}],
            scheduled=END - 10.0 * (i % 60),
            metadata={"ownerReferences": [owner], "labels": labels},
        )

    async def start(self, *, on_node: OnNode, on_pod: OnPod, on_node_metric: OnNodeMetric | None) -> None:
        for name, each in self.nodes.items():
            on_node(name, None, each)
        for one in self.pods:
            on_pod(one.metadata.name, None, one)

    def pod(self, key: str) -> Pod | None:
        return None

    def is_synced(self) -> bool:
        return True

    def is_current(self) -> bool:
        return True

    async def bind(self, key: str, *, node: str, uid: str) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        pass


@dataclass
class Watcher(FakeService):
    """A service that also hosts plug-ins."""

    decisions: DecisionList = field(default_factory=lambda: DecisionList(kept=0.0))


def load(tag: str = "t1") -> Published:
    """Random load; one node has only five minutes, one only memory, two are unknown to the watcher."""
    chance = np.random.default_rng(11)

    def samples() -> list[float]:
        low, high = sorted(chance.uniform(0, 100, 2).tolist())
        found: list[float] = chance.uniform(low, high, 60).tolist()
        return found

    fleet = {f"n{i:02}": {key: samples() for key in ("CPU", "Memory")} for i in range(NODES - 2)}
    fleet["n05"] = {key: values[-21:] for key, values in fleet["n05"].items()}
    del fleet["n06"]["CPU"]
    snapshot = snapshot_of(fleet)
    return publish(replace(snapshot, forecasts=forecasts(snapshot.nodes)), tag=tag)


def forecasts(nodes: Sequence[str]) -> SnapshotForecasts:
    """The bounds from three days of random maxima; the last five nodes have only an hour of them."""
    chance, found = np.random.default_rng(13), FleetForecast(FORECAST)
    slots = END // SLOT_S - np.arange(3 * DAY_SLOTS)
    for name in METRICS:
        for i in range(len(nodes)):
            times = (slots[: 12 if i >= len(nodes) - 5 else None] * SLOT_S).astype(np.float64)
            high = chance.uniform(0, 100)
            values = chance.uniform(high / 2, high, len(times))
            found.maxima.add(name, nodes, np.full(len(times), i), times, values)
    for chunk in found.due_chunks(END):
        found.advance(chunk, END)
    return snapshot_forecasts(found.table(END), nodes)


def pod_load(monotonic: float = 1000.0) -> PublishedPods:
    use = np.random.default_rng(12).random((PODS, 2)).tolist()
    readings = {
        ("default", f"p{i}"): (f"n{i % NODES:02}", cores / 3, memory * 2**30) for i, (cores, memory) in enumerate(use)
    }
    return publish_pods(readings, minutes=12, tag=f"p{monotonic:g}", monotonic=monotonic)


def settings_of(live: Live, directory: Path, **more: str) -> Settings:
    flags = {"extender.watcher": f"http://127.0.0.1:{live.port}", **more}
    return loading.load(flags=flags, environ={}, file=None, cwd=directory)


def remote(live: Live, directory: Path, **more: str) -> RemoteHost:
    return RemoteHost(settings_of(live, directory, **more), DecisionList(kept=0.0), clock=Steady(live.service))


class Steady:
    """The clocks of a service, from any thread."""

    def __init__(self, service: FakeService) -> None:
        self._service = service

    def now(self) -> float:
        return self._service.time

    def monotonic(self) -> float:
        return self._service.clock


def tables(profiles: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    return {name: {"plugins": plugins} for name, plugins in profiles.items()}


@asynccontextmanager
async def running(
    profiles: dict[str, list[dict[str, Any]]], host: RemoteHost | Watcher
) -> AsyncIterator[SchedulingService]:
    """A scheduling service with its load."""
    access: LoadAccess = InProcessLoad(host) if isinstance(host, Watcher) else host
    service = SchedulingService(tables(profiles), host, access, cluster=Cluster())
    async with service.life(web.Application()):
        yield service


def has_load(service: SchedulingService) -> bool:
    return service.table.load.columns is not None and (not service.table.needs.pods or bool(service.table.pod_usage))


def answers(service: SchedulingService, profile: str, asked: PodInfo) -> dict[str, Any]:
    """Scores and verdicts of all nodes by a profile, with every step."""
    table, runner = service.table, service.extender.profiles[profile]
    rows = np.array([table.row[name] for name in sorted(table.row)], dtype=np.int64)
    ranked, filtered = runner.rank(asked, rows, now=END + 1.0), runner.filter(asked, rows, now=END + 1.0)
    return {
        "scores": ranked.values,
        **{f"score {plugin.name} {step}": each for plugin, part in ranked.parts for step, each in part.steps.items()},
        **{f"filter {plugin.name}": part.codes for plugin, part in filtered.parts},
        **{
            f"filter {plugin.name} {step}": each for plugin, part in filtered.parts for step, each in part.steps.items()
        },
    }


async def test_every_plug_in_returns_equal_results_in_both_processes(tmp_path: Path) -> None:
    """All plug-ins, and for LoadAwareScheduling each source of data: equal scores, verdicts and steps."""
    assert {each["name"] for plugins in PROFILES.values() for each in plugins} == set(known_names())
    watcher = Watcher(published=load(), pods=pod_load(), forecast=FORECAST)
    distinct: dict[str, int] = {}
    with Live(watcher) as live:

        async def story() -> None:
            in_process, over_http = running(PROFILES, watcher), running(PROFILES, remote(live, tmp_path))
            async with in_process as inside, over_http as outside:
                for each in (inside, outside):
                    await eventually(partial(has_load, each), what="the load")
                assert outside.unmet == {}
                for profile in PROFILES:
                    for name, asked in ASKING.items():
                        mine, yours = (answers(each, profile, asked) for each in (inside, outside))
                        assert list(mine) == list(yours)
                        for step in mine:
                            message = f"{profile}, pod {name}: {step}"
                            np.testing.assert_array_equal(mine[step], yours[step], err_msg=message)
                        distinct[profile] = max(distinct.get(profile, 0), *map(distinct_values, mine.values()))

        await story()
    assert min(distinct.values()) > 1, distinct  # no profile is compared by constants alone


def distinct_values(values: np.ndarray[Any, Any]) -> int:
    return len(np.unique(values))


# --- a watcher that stops and starts again ---------------------------------------------------------------------------


@pytest.mark.slow
async def test_load_is_used_until_it_is_stale_while_the_watcher_does_not_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One log line when it begins and one when it ends; the plug-ins use their fallback in between."""
    caplog.set_level(logging.INFO, logger="scorers.extender.service")
    watcher = Watcher(published=load(), pods=pod_load())

    first = Live(watcher).__enter__()
    host = remote(first, tmp_path)
    async with running({"default": PROFILES["packing"], "pods": PROFILES["pods"]}, host) as service:
        await eventually(partial(has_load, service), what="the load")
        with_load = answers(service, "default", ASKING["small"])["scores"]
        await asyncio.to_thread(first.__exit__, None, None, None)
        await eventually(lambda: service.load_error, what="the failure to be noticed")
        assert has_load(service)
        np.testing.assert_array_equal(with_load, answers(service, "default", ASKING["small"])["scores"])
        watcher.clock += watcher.max_staleness
        await eventually(lambda: not has_load(service), what="the load to be too old")
        assert service.extender.profiles["default"].fallbacks(now=END)["TargetLoadPacking"]
        assert service.table.pod_usage is None
        watcher.published, watcher.pods = (
            replace_age(load("t2"), watcher.clock),
            pod_load(watcher.clock),
        )
        with Live(watcher) as second:
            host.adopt(remote(second, tmp_path))
            await eventually(partial(has_load, service), what="the load again")
            assert not service.load_error
            np.testing.assert_array_equal(with_load, answers(service, "default", ASKING["small"])["scores"])
    said = [text for record in caplog.records if "available to the" in (text := record.getMessage())]
    assert len(said) == 2, said
    assert "no response from" in said[0]
    assert "the last load is used until it is 300 s old" in said[0]
    assert said[1] == "load is available to the scheduling plug-ins again"


def replace_age(published: Published, monotonic: float) -> Published:
    published.monotonic = monotonic
    return published


async def test_load_that_the_watcher_calls_stale_is_not_used(tmp_path: Path) -> None:
    """The answer of the watcher counts, not the age of the copy."""
    watcher = Watcher(published=load())
    with Live(watcher) as live:

        async def story() -> None:
            async with running({"default": PROFILES["packing"]}, remote(live, tmp_path)) as service:
                await eventually(partial(has_load, service), what="the load")
                watcher.published = publish(snapshot_of({"n00": {"CPU": [50.0] * 60}}, lost={"n01": 1.0}), tag="t2")
                await eventually(lambda: not has_load(service), what="the load to go")
                assert "known nodes" in service.load_error or "went missing" in service.load_error

        await story()


async def test_reservations_expire_while_the_watcher_does_not_answer(tmp_path: Path) -> None:
    watcher = Watcher(published=load())
    live = Live(watcher).__enter__()

    async with running({"default": PROFILES["packing"]}, remote(live, tmp_path)) as service:
        await asyncio.to_thread(live.__exit__, None, None, None)
        await eventually(lambda: service.load_error, what="the failure to be noticed")
        service.table.reserve(pod("waiting"), "n01", now=watcher.time, until=watcher.time + 5)
        watcher.time += 6
        await eventually(lambda: not service.table.reserved, what="the reservation to expire")


@pytest.mark.slow
async def test_other_windows_of_the_watcher_are_adopted(tmp_path: Path) -> None:
    """After a restart of the watcher with other settings; the plug-ins are created again for them."""
    watcher = Watcher(published=load())
    longer = (*WINDOWS, Window("30m", 1800))
    with Live(watcher) as live:

        async def story() -> None:
            async with running({"default": PROFILES["aware"]}, remote(live, tmp_path)) as service:
                await eventually(partial(has_load, service), what="the load")
                before = service.extender.profiles["default"].plugins[0][1]
                assert WINDOWS == service.table.windows
                fleet = {f"n{i:02}": {"CPU": [20.0, 60.0] * 60, "Memory": [30.0] * 120} for i in range(NODES)}
                columns = service.table.load.columns  # before the document: it may come with the windows
                watcher.windows = longer
                watcher.published = publish(snapshot_of(fleet, windows=longer), tag="t2")
                watcher.clock += DESCRIBE_EVERY_S
                await eventually(lambda: service.table.windows == longer, what="the windows")
                await eventually(
                    lambda: service.table.load.columns is not columns and has_load(service), what="the load"
                )
                assert before is not service.extender.profiles["default"].plugins[0][1]
                usages = service.table.load.columns.usages  # type: ignore[union-attr]
                assert usages is not None
                assert 1800 in usages.durations

        await story()


@pytest.mark.slow
async def test_a_token_that_changes_is_read_again(tmp_path: Path) -> None:
    """At once, also if the watcher was asked recently. Until then, the last load is used."""
    file = tmp_path / "token"
    file.write_text("old\n")
    watcher, protection = Watcher(published=load()), Protection("old", protect_reads=True)
    with Live(watcher, protection=protection) as live:

        async def story() -> None:
            host = remote(live, tmp_path, **{"extender.watcher_token_file": str(file)})
            async with running({"default": PROFILES["packing"]}, host) as service:
                await eventually(partial(has_load, service), what="the load")
                protection.token = "new"
                await eventually(lambda: service.load_error, what="the refusal")
                assert has_load(service)
                file.write_text("new\n")
                await eventually(lambda: not service.load_error, what="the new token")
                protection.token = "newer"
                watcher.clock += DESCRIBE_EVERY_S
                await eventually(lambda: "watcher_token_file" in service.load_error, what="the next refusal")

        await story()


# --- data that a watcher does not serve ------------------------------------------------------------------------------


def problems_with(host: RemoteHost, profiles: dict[str, list[dict[str, Any]]], cwd: Path) -> dict[str, str]:
    """The problem of each profile as text, once the watcher has described itself."""
    asyncio.run(host.renew())
    found = unmet_profiles(tables(profiles), host, windows=host.windows, cwd=cwd)
    return {name: f"{problem.key}: {problem.message}; {problem.cure}" for name, (problem,) in found.items()}


def test_pods_that_are_switched_off_are_a_problem_of_the_profiles_that_need_them(tmp_path: Path) -> None:
    off = 'pod usage is switched off (refresh.pods = "off")'
    with Live(Watcher(published=None, no_pods=off, forecast=FORECAST)) as live:
        found = problems_with(remote(live, tmp_path), PROFILES, tmp_path)
    assert {"pods", "history"} == set(found)
    assert "LoadAwareScheduling needs pod usage (/api/v1/pods)" in found["pods"]
    assert 'switched off (refresh.pods = "off"); use a source with pod usage' in found["pods"]


@pytest.mark.parametrize(
    ("forecast", "problem"),
    [
        (None, "needs forecasts, which are disabled in the watcher at http://127.0.0.1"),
        (ForecastSettings(horizons=(1, 24), horizon=1), "but forecast.horizons has 1h, 24h"),
    ],
)
def test_forecasts_that_the_watcher_does_not_serve_are_a_problem(
    tmp_path: Path, forecast: ForecastSettings | None, problem: str
) -> None:
    ahead = {name for name in PROFILES if name.endswith("-ahead")}
    watcher = Watcher(published=None, forecast=forecast)
    with Live(watcher) as live:
        found = problems_with(remote(live, tmp_path), PROFILES, tmp_path)
    assert ahead == set(found)
    assert all(problem in each for each in found.values()), found
    inside = unmet_profiles(tables(PROFILES), InProcessLoad(watcher), windows=watcher.windows, cwd=tmp_path)
    assert set(inside) == (ahead if forecast is None else set())


def test_a_window_that_the_watcher_does_not_serve_is_a_problem(tmp_path: Path) -> None:
    """The settings of this process have that window."""
    args = {"aggregated": {"scoreAggregationType": "p95", "scoreAggregatedDuration": "30m"}}
    profiles = {"default": [{"name": "LoadAwareScheduling", "args": args}], "packing": PROFILES["packing"]}
    with Live(Watcher(published=None)) as live:
        found = problems_with(remote(live, tmp_path), profiles, tmp_path)
    assert {"default"} == set(found)
    assert "scoreAggregatedDuration" in found["default"]
    assert "5m, 10m, 15m" in found["default"]


NOT_FOUND = b'{"error":{"code":"not_found","message":"unknown path","hint":""}}'


class OldWatcher:
    """A proxy that makes a watcher one of an earlier version, without the parameters `aggregate` and `minutes`. With
    `body`, it answers each request with that."""

    def __init__(self, live: Live, *, body: bytes | None = None) -> None:
        self.live = live
        self.knows = False
        self.body = body

    async def answer(self, request: web.Request) -> web.Response:
        if self.body is not None:
            status = 404 if self.body == NOT_FOUND else 200
            return web.Response(status=status, body=self.body, content_type="application/json")
        if not self.knows:
            known = ("window", "type", "operator")
            if any(name not in known for name in request.query):
                error = {"code": "bad_request", "message": "unknown parameter", "hint": "known: window, type, operator"}
                return web.json_response({"error": error}, status=400)
        sent = {name: request.headers[name] for name in ("If-None-Match",) if name in request.headers}
        given = await asyncio.to_thread(self.live.ask, str(request.rel_url), headers=sent)
        body = given.body
        if request.path == "/api/v1/overview" and not self.knows:
            kept = {
                name: part for name, part in given.json().items() if name not in ("aggregates", "pods", "forecasts")
            }
            body = msgspec.json.encode({**kept, "version": "0.0.9"})
        names = ("ETag", "Age", "Content-Encoding", "Content-Type")
        headers = {name: given.headers[name] for name in names if name in given.headers}
        return web.Response(status=given.status, body=body, headers=headers)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        runner = web.AppRunner(self._app())
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        await runner.cleanup()

    def _app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/{path:.*}", self.answer)
        return app


@pytest.mark.slow
async def test_an_older_watcher_serves_the_plugins_that_it_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The others are reported with the version of the watcher, also by explain, until it is upgraded."""
    profiles = {name: PROFILES[name] for name in ("packing", "aware", "history", "high-ahead")}
    watcher = Watcher(published=load(), pods=pod_load(), forecast=FORECAST)
    with Live(watcher) as live:

        async def story() -> None:
            old = OldWatcher(live)
            async with old.serving() as url:
                host = remote(live, tmp_path, **{"extender.watcher": url})
                async with running(profiles, host) as service:
                    await eventually(lambda: service.table.load.columns is not None, what="the load")
                    assert {"aware", "history", "high-ahead"} == set(service.unmet)
                    assert "operator=FORECAST" in service.unmet["high-ahead"][0]
                    explained = service.extender.profiles["high-ahead"].missing_forecasts()
                    assert explained == {"HighLoadFilter": "the watcher serves no forecasts"}
                    (problem,) = service.unmet["aware"]
                    assert "koordlet's usages (/api/v1/columns?aggregate=koordlet)" in problem
                    assert f"the watcher at {url} (version 0.0.9) does not offer; upgrade" in problem
                    assert await lacks(service, "aware") == [problem]
                    assert await lacks(service, "packing") is None
                    before = answers(service, "packing", ASKING["small"])["scores"]
                    by_windows = answers(service, "high-ahead", ASKING["small"])["filter HighLoadFilter"]
                    old.knows = True
                    watcher.clock += DESCRIBE_EVERY_S
                    await eventually(lambda: not service.unmet, what="the upgrade")
                    await eventually(lambda: usages_of(service) is not None, what="the usages")
                    np.testing.assert_array_equal(before, answers(service, "packing", ASKING["small"])["scores"])
                    by_forecasts = answers(service, "high-ahead", ASKING["small"])["filter HighLoadFilter"]
                    assert (by_forecasts != by_windows).any()

        await story()
    said = [record.getMessage() for record in caplog.records if "lacks data" in record.getMessage()]
    assert len(said) == 3


def usages_of(service: SchedulingService) -> object:
    columns = service.table.load.columns
    return None if columns is None else columns.usages


async def lacks(service: SchedulingService, profile: str) -> Any:
    """What the explanation of a profile says of missing data."""
    args = {"Pod": {"metadata": {"name": "web", "namespace": "default"}}, "NodeNames": ["n00"]}
    with Live(routes=service.extender.routes()) as live:
        path = f"/scheduler/{profile}/explain"
        given = await asyncio.to_thread(live.ask, path, method="POST", body=msgspec.json.encode(args))
    assert given.status == 200
    return given.json().get("lacks")


async def test_a_profile_with_a_window_that_is_not_served_keeps_answering(tmp_path: Path) -> None:
    """The watcher was down at the start, so that the window was not checked then."""
    args = {"aggregated": {"scoreAggregationType": "p95", "scoreAggregatedDuration": "30m"}}
    profiles = {"default": [{"name": "LoadAwareScheduling", "args": args}]}
    with Live(Watcher(published=load())) as live:

        async def story() -> None:
            async with running(profiles, remote(live, tmp_path)) as service:
                await eventually(partial(has_load, service), what="the load")
                assert "30m" in service.unmet["default"][0]
                found = answers(service, "default", ASKING["small"])
                assert np.isfinite(found["scores"]).all()
                service.prepare_reload(tables({"other": profiles["default"], "packing": PROFILES["packing"]}))()
                assert {"other"} == set(service.unmet)
                assert np.isfinite(answers(service, "other", ASKING["small"])["scores"]).all()

        await story()


@pytest.mark.parametrize(
    ("protection", "body", "code", "hint"),
    [
        (Protection("secret", protect_reads=True), None, "unauthorized", "extender.watcher_token_file"),
        (None, b"[]", "malformed", ""),
        (None, NOT_FOUND, "no_overview", "base URL of load-watcher serve"),
        (None, b'{"version":"1","windows":["soon"],"max_staleness_s":300}', "malformed", ""),
    ],
    ids=["token", "invalid overview", "no overview", "invalid window"],
)
async def test_a_watcher_that_does_not_describe_itself(
    tmp_path: Path, protection: Protection | None, body: bytes | None, code: str, hint: str
) -> None:
    """A named error, after which the host is as before."""
    with Live(Watcher(), protection=protection) as live:

        async def story() -> None:
            async with OldWatcher(live, body=body).serving() as url:
                host = remote(live, tmp_path, **{"extender.watcher": url})
                with pytest.raises(WatcherError) as failure:
                    await host.renew()
                assert code == failure.value.code
                assert hint in failure.value.hint
                assert ((), None) == (host.windows, host.description)

        await story()
