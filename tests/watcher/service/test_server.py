"""Parts of the service without a process: when ticks are due, and which settings reach which part."""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.kube import LEASES, NODES, FakeKube
from tests.waiting import eventually
from watcher.client import InProcessClient, WatcherClient
from watcher.core.config.settings import Settings
from watcher.koordinator.publisher_source import LEASE
from watcher.platform.http.runner import Runner
from watcher.platform.http.settings import ServerSettings
from watcher.service.server import IntervalTrigger, Watcher
from watcher.service.settings.loading import load

pytestmark = pytest.mark.slow

START = datetime(2026, 1, 1, tzinfo=UTC)


def test_the_first_time_is_one_period_away() -> None:
    """Unless an earlier first time is given."""
    assert START + timedelta(seconds=60) == IntervalTrigger(60.0).get_next_fire_time(None, START)


def test_each_time_follows_the_previous_one_and_not_the_clock() -> None:
    """A late tick does not delay the following ones."""
    late = START + timedelta(seconds=2)
    assert START + timedelta(seconds=60) == IntervalTrigger(60.0).get_next_fire_time(START, late)


NODE_METRIC = "slo.koordinator.sh/v1alpha1/nodemetrics"


@given(
    period=st.floats(0.5, 600.0),
    passed=st.floats(-1e9, 2e9),
)
def test_missed_times_are_skipped(period: float, passed: float) -> None:
    """For any jump of the clock: the next time is in the future, by at most a period, in the same rhythm."""
    now = START + timedelta(seconds=passed)
    due = IntervalTrigger(period).get_next_fire_time(START, now)
    assert due > now
    assert due > START
    if passed >= 0:
        assert due - now <= timedelta(seconds=period)
    beats = (due - START) / timedelta(seconds=period)
    assert round(beats) == pytest.approx(beats, abs=1e-3)


# --- the whole service in one process --------------------------------------------------------------------------------


def settings_for(directory: Path, **flags: object) -> Settings:
    """This machine's load, at short intervals, with its own database."""
    given = {
        "provider.name": "host",
        "refresh.interval": "1s",
        "refresh.resolution": "1s",
        "store.url": f"sqlite:///{directory / 'load-watcher.db'}",
        **flags,
    }
    return load(flags=given, environ={}, cwd=directory)


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[tuple[Watcher, str]]:
    """The service with its parts started, behind a real socket; afterwards no task or file remains."""
    watcher = Watcher(settings)
    runner = Runner(watcher.app, shutdown_timeout=1.0)
    try:
        await runner.setup()
        listener = socket.create_server(("127.0.0.1", 0))
        await web.SockSite(runner, listener).start()
        yield watcher, f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        await runner.cleanup()
    assert {asyncio.current_task()} == asyncio.all_tasks()


async def test_both_clients_of_a_running_service_get_the_same(tmp_path: Path) -> None:
    """The data in the process equal those over HTTP; and the service ends without remaining tasks."""
    async with serving(settings_for(tmp_path)) as (watcher, address):
        await eventually(lambda: watcher.view.published, what="the first document")
        in_process = InProcessClient(lambda: watcher.view.published, window=watcher.view.windows[-1])
        async with WatcherClient(address) as over_http:
            # a tick may occur between the two
            for _ in range(10):
                one, other = await over_http.refresh(), await in_process.refresh()
                if one.timestamp == other.timestamp:
                    break
            assert (one.timestamp, one.nodes, one.source) == (other.timestamp, other.nodes, "Host")
            assert list(one.values) == list(other.values)
        await in_process.close()


def test_before_the_first_tick_there_are_no_data_and_liveness_is_ok(tmp_path: Path) -> None:
    """All parts respond from the start."""
    watcher = Watcher(settings_for(tmp_path))
    assert watcher.view.published is None
    assert watcher.view.refresher.provider_health.ok is None
    assert "" == watcher.view.refresher.stall_reason()
    assert watcher.view.store.status.ok
    assert [] == watcher.view.refresher.findings_document().findings
    assert ["5m", "10m", "15m"] == [window.label for window in watcher.view.windows]


async def test_settings_that_need_a_restart_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A reload applies the others, and the last request counts although a reload is running."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text("{}")

    async with serving(settings_for(tmp_path)) as (watcher, _):
        published = await eventually(lambda: watcher.view.published, what="the first document")
        with caplog.at_level(logging.INFO, logger="watcher.service.server"):
            for staleness in ("50s", "60s", "70s"):
                another = {"kubernetes.kubeconfig": str(kubeconfig), "kubernetes.node_names": "off"}
                changed = settings_for(tmp_path, **{"refresh.max_staleness": staleness, "server.port": 4711, **another})
                watcher.request_reload(lambda changed=changed: changed)  # type: ignore[misc]
            await eventually(lambda: watcher.view.max_staleness == 70.0, what="the last settings")
        assert watcher.view.settings[ServerSettings].port != 4711
        await eventually(lambda: watcher.view.published is not published, what="a tick with them")
    assert "changes in [server] take effect only after a restart" in caplog.text
    reported = [text for text in caplog.messages if "the scheduling plug-ins and all other Kubernetes clients" in text]
    assert 1 == len(reported), "once, and not for unchanged settings"


async def test_an_unexpected_failure_of_a_reload_is_logged_and_the_old_settings_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """For any exception, which would otherwise be lost in a task."""

    def unreadable() -> Settings:
        raise RuntimeError("the disk is gone")

    async with serving(settings_for(tmp_path)) as (watcher, _):
        watcher.request_reload(unreadable)
        await eventually(lambda: "the disk is gone" in caplog.text, what="the log line")
        watcher.request_reload(lambda: settings_for(tmp_path, **{"refresh.max_staleness": "55s"}))
        await eventually(lambda: watcher.view.max_staleness == 55.0, what="settings that are good again")


async def test_a_reload_starts_and_stops_using_the_names_of_the_cluster(tmp_path: Path) -> None:
    """With its API, and without: data are published under the current name, and no other name remains."""
    with FakeKube() as cluster:
        own = socket.gethostname()
        cluster.put(NODES, "the-node", status={"addresses": [{"type": "Hostname", "address": own}]})
        kubeconfig = str(cluster.kubeconfig(tmp_path / "config"))
        named = {"kubernetes.node_names": "on", "kubernetes.kubeconfig": kubeconfig}
        async with serving(settings_for(tmp_path)) as (watcher, _):
            for flags, expected in (({}, own), (named, "the-node"), ({}, own)):
                changed = settings_for(tmp_path, **flags)
                watcher.request_reload(lambda changed=changed: changed)  # type: ignore[misc]
                await eventually(partial(_serves, watcher, expected), what=f"the node {expected}")


async def test_node_metrics_are_written_if_configured(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By the holder of the Lease, with policies that objects of the cluster may have; /metrics has the counts. A reload
    changes the policies, but does not start or stop the writing."""
    policy = {"metricCollectPolicy": {"aggregateDurationSeconds": 60}}

    with FakeKube() as cluster:
        own = socket.gethostname()
        cluster.put(NODES, own, metadata={"labels": {"pool": "a"}}, status={"capacity": {"cpu": "4", "memory": "8Gi"}})
        cluster.define(NODE_METRIC, "NodeMetric")
        cluster.put_by("koord-manager", NODE_METRIC, "elsewhere", spec=policy)
        flags = {
            "kubernetes.node_names": "on",
            "kubernetes.kubeconfig": str(cluster.kubeconfig(tmp_path / "config")),
            "koordinator.publish": True,
            "koordinator.lease_namespace": "somewhere",
        }
        async with serving(settings_for(tmp_path, **flags)) as (watcher, _):
            assert watcher.view.publisher is not None
            publisher = watcher.view.publisher
            await eventually(lambda: publisher.holds_lease, what="the Lease")
            holder = cluster.content(LEASES, f"somewhere/{LEASE}")["spec"]["holderIdentity"]
            assert holder.startswith(f"{own}_")
            assert "load_watcher_node_metrics_lease_held 1.0" in watcher.telemetry.exposition().decode()
            policies = watcher.view.collect_policies
            assert policies is watcher.view.collect_policies
            assert [60, 300] == [policies.of(name, {}).aggregate_duration_s for name in ("elsewhere", own)]
            rule = {"labels": {"pool": "a"}, "aggregate_duration": "2m"}
            changed = {**flags, "koordinator.publish": False, "koordinator.nodes": json.dumps([rule])}
            watcher.request_reload(lambda: settings_for(tmp_path, **changed))

            def follows() -> bool:
                mine = watcher.view.collect_policies.of(own, watcher.view.node_labels(own))
                return mine.aggregate_duration_s == 120

            await eventually(follows, what="the new policy")
            assert 60 == watcher.view.collect_policies.of("elsewhere", {}).aggregate_duration_s
            assert watcher.view.publisher is publisher
    assert "changes of publish in [koordinator] take effect only after a restart" in caplog.text


def _serves(watcher: Watcher, node: str) -> bool:
    return watcher.view.published is not None and watcher.view.published.snapshot.nodes == (node,)
