"""Nodes without samples: their names, their last values, how long they are reported, and the token for reading them."""

from __future__ import annotations

import gzip
import json
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.kube import NODES as KUBE_NODES
from tests.fakes.kube import FakeKube
from tests.fakes.service import FakeService, Live, Protection, stored
from tests.fakes.snapshots import END, publish, small_fleet, snapshot_of
from tests.waiting import eventually
from tests.watcher.service.test_server import serving, settings_for
from tests.watcher.store.ticks import CPU, FIFTEEN, FIVE, MEMORY, minute, opened, save, tick
from tests.watcher.tick.test_names import A, B, Reported, Tale, play
from tests.watcher.tick.test_tick import served, wave
from watcher.core.publishing.compression import Encoding
from watcher.core.publishing.documents import SilentBody
from watcher.core.windows.silent_nodes import FORGET_S, MAX_NODES, SilentDocument, SilentNode, SilentNodes
from watcher.core.windows.stored_series import StoredSeries
from watcher.model import LastSample, Operator
from watcher.platform.logs import ClusterSettings
from watcher.service.last_seen import LastSeenLookup
from watcher.store.errors import StoreError
from watcher.store.settings import StoreSettings
from watcher.tick.shared import RefreshConfig

IDENTITY = Encoding.IDENTITY
pytestmark = pytest.mark.slow


def reported(tale: Tale) -> dict[str, Any]:
    """The silent nodes in the response of the API, by name."""
    assert tale.refresher.published is not None
    body = json.loads(tale.refresher.published.silent.bodies[IDENTITY])
    return {node["name"]: node for node in body["nodes"]}


class Listing(Reported):
    """A cluster with a list of its nodes."""

    def node_names(self) -> list[str] | None:
        return None if self.nodes is None else list(self.nodes)


# --- over ticks ------------------------------------------------------------------------------------------------------


def test_a_node_that_falls_silent_is_reported_until_it_has_samples_again() -> None:
    """From the first tick without it, with its last values, long after the history has removed it."""
    tale = Tale(None)
    names = [f"node-{i}" for i in range(10)]

    async def story(tale: Tale) -> None:
        tale.load(*names)
        await tale.refresher.tick()
        last = tale.clock.wall - 1.0
        for _ in range(4):
            await tale.tick(*names[1:])
        assert {} == reported(tale)
        assert "node-0" in served(tale.refresher)
        for _ in range(25):
            assert "node-0" not in await tale.tick(*names[1:])
        assert ["node-0"] == list(reported(tale))
        found = reported(tale)["node-0"]
        assert (last, wave(last), wave(last)) == pytest.approx((found["sampled"], found["cpu"], found["memory"]))
        await tale.tick(*names)
        assert {} == reported(tale)
        assert "node-0" in served(tale.refresher)

    play(tale, story)


def test_without_a_list_of_nodes_a_silent_node_is_reported_for_a_day() -> None:
    """Then it counts as removed."""
    tale = Tale(None, config=RefreshConfig(interval=3600.0))
    names = [f"node-{i}" for i in range(10)]

    async def story(tale: Tale) -> None:
        tale.load(*names)
        await tale.refresher.tick()
        for hour in range(1, int(FORGET_S // 3600) + 2):
            tale.clock.pass_time(3600)
            tale.load(*names[1:], seconds=60.0)
            await tale.refresher.tick()
            assert (hour * 3600 < FORGET_S) == ("node-0" in reported(tale)), hour

    play(tale, story)


def test_the_list_of_nodes_decides_which_silent_nodes_were_removed() -> None:
    """A listed node is reported for any time, also one that never had samples. A node that is not listed any more is
    not reported from the next tick on."""
    cluster = Listing({"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.3"})
    tale = Tale(cluster, config=RefreshConfig(interval=3600.0))

    async def story(tale: Tale) -> None:
        began = tale.clock.wall
        tale.load(A, B)
        await tale.refresher.tick()
        assert {"c": None} == {name: node["sampled"] for name, node in reported(tale).items()}
        for _ in range(30):
            tale.clock.pass_time(3600)
            tale.load(A, seconds=60.0)
            await tale.refresher.tick()
        assert ["b", "c"] == sorted(reported(tale))
        assert reported(tale)["b"]["sampled"] == pytest.approx(began - 1.0)
        cluster.nodes = {"a": "10.0.0.1", "c": "10.0.0.3"}
        tale.clock.pass_time(3600)
        tale.load(A, seconds=60.0)
        await tale.refresher.tick()
        assert ["c"] == sorted(reported(tale))

    play(tale, story)


def test_a_node_that_falls_silent_during_a_restart_is_reported() -> None:
    """Between the last tick before the stop and the first one after the start, an hour later."""
    tale = Tale(None)
    names = [f"node-{i}" for i in range(10)]

    async def before(tale: Tale) -> None:
        tale.load(*names)
        await tale.refresher.tick()

    async def after(tale: Tale) -> None:
        tale.load(*names[1:], seconds=60.0)
        await tale.refresher.tick()
        assert {"node-0"} == reported(tale).keys()

    play(tale, before)
    tale.clock.pass_time(3600)
    play(tale.restart(None), after)


def test_after_a_change_of_the_label_no_node_is_silent() -> None:
    """The earlier names are not those of nodes that fell silent."""
    tale = Tale(None)

    async def story(tale: Tale) -> None:
        tale.load("a", "b")
        await tale.refresher.tick()
        tale.source.label = "instance"
        tale.source.expressions = {name: f"another {name}" for name in tale.source.samples}
        tale.source.samples = {name: {} for name in tale.source.samples}
        await tale.tick("x", "y")
        assert ({}, {"x", "y"}) == (reported(tale), served(tale.refresher).keys())

    play(tale, story)


# --- SilentNodes alone -----------------------------------------------------------------------------------------------


def test_lost_and_quarantined_nodes_are_not_silent() -> None:
    """The overview reports them; they become silent when that ends."""
    silent = SilentNodes()
    last = LastSample(END - 400.0, 12.3456, None)
    away = {"lost": last, "stuck": last, "gone": last}
    names = {*away, *small_fleet()}

    def step(**reasons: Any) -> list[SilentNode]:
        snapshot = replace(snapshot_of(small_fleet(), **reasons), left_out=away)
        return silent.update(snapshot, before=None, now=END, listed=names).nodes

    gone = SilentNode("gone", END - 400.0, 12.346, None)
    assert [gone] == step(lost={"lost": END - 400.0}, quarantined=["stuck"])
    assert ["gone", "lost", "stuck"] == [node.name for node in step()]


def test_the_number_of_silent_nodes_is_bounded() -> None:
    """The newest ones stay."""
    silent = SilentNodes()
    away = {f"pod-{i}": LastSample(END - i / 10, None, None) for i in range(MAX_NODES + 2)}
    snapshot = replace(snapshot_of(small_fleet()), left_out=away)
    found = {node.name for node in silent.update(snapshot, before=None, now=END, listed=None).nodes}
    assert away.keys() - {f"pod-{MAX_NODES}", f"pod-{MAX_NODES + 1}"} == found


async def test_last_samples_that_were_found_survive_a_later_failure_of_the_store() -> None:
    """A node without stored samples is looked up once, another one until its sample was returned."""
    asked: list[str] = []
    away = True

    async def ask(name: str) -> list[StoredSeries]:
        asked.append(name)
        if name == "c" and away:
            raise StoreError("the disk is full")
        return [stored({int(END) - 60: 20.0})] if name == "a" else []

    recall = LastSeenLookup()
    with pytest.raises(StoreError):
        await recall.find(["a", "b", "c"], ask)
    away = False
    assert {"a": LastSample(END - 60, 20.0, None)} == await recall.find(["a", "b", "c"], ask)
    assert {} == await recall.find(["b", "c"], ask)
    assert ["a", "b", "c", "a", "c"] == asked


# --- over HTTP -------------------------------------------------------------------------------------------------------


def with_silent(*nodes: SilentNode) -> FakeService:
    published = publish(snapshot_of(small_fleet(), lost={"gone": END - 300.0}))
    published.silent = SilentBody.of(SilentDocument(listed=True, nodes=list(nodes)))
    return FakeService(published=published)


def test_silent_nodes_are_served_while_the_list_of_the_others_is_refused() -> None:
    """As encoded, with an ETag that changes with the content, not with each tick."""
    service = with_silent(SilentNode("node-9", END - 900.0, 12.5, 40.0), SilentNode("new"))
    with Live(service) as live:
        answer = live.ask("/api/v1/silent")
        headers = {"If-None-Match": answer.headers["ETag"]}
        assert 503 == live.ask("/watcher").status
        assert answer.json() == {
            "listed": True,
            "nodes": [
                {"name": "node-9", "sampled": END - 900.0, "cpu": 12.5, "memory": 40.0},
                {"name": "new", "sampled": None, "cpu": None, "memory": None},
            ],
            "lost": {},
            "served": 0,
            "source_ok": True,
        }
        assert "no-cache" == answer.headers["Cache-Control"]
        again = live.ask("/api/v1/silent", headers=headers)
        assert (304, b"") == (again.status, again.body)
        service.published = with_silent(SilentNode("new")).published
        assert 200 == live.ask("/api/v1/silent", headers=headers).status
        assert 200 == live.ask("/api/v1/history?host=new").status  # a node without a history is not an unknown node
        service.published = None
        assert "no_metrics" == live.ask("/api/v1/silent").error["code"]


def test_long_lists_are_compressed_and_need_the_token_of_reads() -> None:
    """Short ones are not compressed."""
    service = with_silent(*(SilentNode(f"node-{i:04d}") for i in range(1000)))
    with Live(service, protection=Protection("secret", protect_reads=True)) as live:
        assert 401 == live.ask("/api/v1/silent").status
        headers = {"Authorization": "Bearer secret", "Accept-Encoding": "gzip"}
        answer = live.ask("/api/v1/silent", headers=headers)
        assert ("gzip", "private, no-cache") == (answer.headers["Content-Encoding"], answer.headers["Cache-Control"])
        assert 1000 == len(json.loads(gzip.decompress(answer.body))["nodes"])
        service.published = with_silent(SilentNode("new")).published
        assert "Content-Encoding" not in live.ask("/api/v1/silent", headers=headers).headers


# --- the whole service, with a cluster and a store -------------------------------------------------------------------


async def test_the_last_sample_of_a_node_that_was_silent_before_the_start_is_read_from_the_store(
    tmp_path: Path,
) -> None:
    """Its last minute. A node without any stored sample stays one that never had samples."""
    settings = settings_for(tmp_path)
    when = int(time.time()) // 60 * 60 - 7200
    columns = ((CPU, Operator.AVG), (MEMORY, Operator.AVG))
    records = [minute(20.0, when=when, window=window, nodes=("old",), columns=columns) for window in (FIVE, FIFTEEN)]

    async with opened(
        tmp_path / "load-watcher.db", watcher=settings[StoreSettings].watcher_name(settings[ClusterSettings].name)
    ) as store:
        await save(store, tick(when, records=records))
    with FakeKube() as cluster:
        own = socket.gethostname()
        for name in (own, "old", "new"):
            cluster.put(KUBE_NODES, name)
        named = {
            "kubernetes.node_names": "on",
            "kubernetes.kubeconfig": str(cluster.kubeconfig(tmp_path / "config")),
        }
        async with serving(settings_for(tmp_path, **named)) as (watcher, _):

            def silent() -> dict[str, Any]:
                published = watcher.view.published
                body = {} if published is None else json.loads(published.silent.bodies[IDENTITY])
                return {node["name"]: node for node in body.get("nodes", [])}

            await eventually(lambda: (silent().get("old") or {}).get("sampled"), what="the store to be looked into")
            assert {"old", "new"} == silent().keys()
            assert {"name": "old", "sampled": float(when), "cpu": 20.0, "memory": 20.125} == silent()["old"]
            assert silent()["new"]["sampled"] is None
