"""NodeMetrics in the cluster: what is written, when, by which replica, and what is not changed."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
import pytest
from aiohttp import web

from scorers.cluster.node_metrics import NODE_METRIC_OBJECTS, NodeMetricObject, read_node_metric
from scorers.cluster.table import ClusterTable
from scorers.plugin_api.framework import create_plugin
from scorers.plugins.koordinator.load_aware_scheduling import LoadAwareScheduling
from tests.fakes.kube import LEASES, FakeKube
from tests.fakes.kube_rules import status_object
from tests.fakes.pods import publish_pods
from tests.fakes.service import FakeService
from tests.fakes.snapshots import END, WINDOWS, publish, snapshot_of
from tests.scorers.simulated_cluster import info, node, pod, rows
from tests.waiting import eventually
from watcher.client import InProcessClient
from watcher.core.koordinator.collect_policy import CollectPolicies, CollectPolicy, PolicyOverride, PolicyRule
from watcher.core.koordinator.report import Capacity, PodClass, make_report, measure, node_statuses
from watcher.core.koordinator.written_objects import MANAGER
from watcher.core.kubernetes.objects import ObjectMetadata
from watcher.koordinator.publisher import NodeMetricPublisher, Schedule
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import KubeAccess
from watcher.platform.kube.leases import Election

pytestmark = pytest.mark.slow

RESOURCE = f"{NODE_METRIC_OBJECTS.group_version}/{NODE_METRIC_OBJECTS.plural}"
RISING = {"CPU": [20.0] * 48 + [80.0] * 12, "Memory": [10.0] * 30 + [40.0] * 30}
STEADY = {"CPU": [25.0] * 60, "Memory": [50.0] * 60}
SIZE = Capacity(8000, 32 << 30)


@dataclass
class Cluster(FakeService):
    """A service with the nodes of a cluster. Each read of its wall clock advances it, so that the turns of nodes come
    as fast as the machine allows, and a slow machine causes no additional ones."""

    strangers: frozenset[str] = frozenset()
    looks: int = 0

    def now(self) -> float:
        self.time += 3.0
        return self.time

    def monotonic(self) -> float:
        self.looks += 1
        return self.clock

    def node_metadata(self, node: str) -> ObjectMetadata | None:
        return None if node in self.strangers else ObjectMetadata(name=node, uid=f"uid-of-{node}")


def service(samples: Mapping[str, Any], **options: Any) -> Cluster:
    snapshot = snapshot_of(samples)
    sizes = dict.fromkeys(snapshot.nodes, SIZE)
    return Cluster(**{"published": publish(snapshot), "sizes": sizes, "time": END + 1.0, **options})


@dataclass
class Run:
    """A publisher with a fake API server."""

    server: FakeKube
    source: Cluster
    publisher: NodeMetricPublisher

    async def until(self, condition: Callable[[], object], *, what: str) -> None:
        """Wait until the condition holds, while the nodes have their turns."""
        await eventually(condition, what=what)

    async def turns(self, count: int = 2) -> None:
        """Wait for this number of turns of each node, by the counted outcomes."""
        wanted = self.publisher.stats.outcomes.total() + count * len(self.source.sizes)
        await self.until(lambda: self.publisher.stats.outcomes.total() >= wanted, what="turns")

    async def settled(self) -> None:
        """Wait until nothing more is written; the watch may report a write some turns later."""
        for _ in range(100):
            written = len(self.writes())
            await self.turns(3)
            if written == len(self.writes()):
                return
        pytest.fail(f"writing does not end: {self.writes()[-6:]}")

    def status(self, name: str) -> dict[str, Any]:
        status: dict[str, Any] = self.server.content(RESOURCE, name).get("status", {})
        return status

    def writes(self) -> list[tuple[str, str, str]]:
        return [
            (each.verb, each.resource.removeprefix(RESOURCE), each.key or each.body["metadata"]["name"])
            for each in list(self.server.asked)
            if each.verb in ("create", "patch") and each.resource.startswith(RESOURCE)
        ]


def publishing(
    server: FakeKube, source: Cluster, *, identity: str = "a", writes_per_second: int = 1000
) -> NodeMetricPublisher:
    client = KubeClient(lambda: KubeAccess(server.url, "the test", token=server.token))
    election = Election(
        client,
        "default/lease",
        identity=identity,
        manager=MANAGER,
        now=source.now,
        monotonic=source.monotonic,
    )
    return NodeMetricPublisher(client, source, election=election, writes_per_second=writes_per_second, step=0.01)


def run(
    source: Cluster,
    story: Callable[[Run], Awaitable[None]],
    *,
    prepare: Callable[[FakeKube], None] = lambda _: None,
    writes_per_second: int = 1000,
) -> None:
    async def reported() -> None:
        with FakeKube() as server:
            server.define(RESOURCE, "NodeMetric")
            prepare(server)
            publisher = publishing(server, source, writes_per_second=writes_per_second)
            await publisher.start()
            try:
                await story(Run(server, source, publisher))
            finally:
                await publisher.close()

    asyncio.run(reported())


def stamp(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


async def looked_at(source: Cluster, times: int) -> None:
    """Wait until the publisher has read its clock this number of times; then its due work is done."""
    until = source.looks + times
    await eventually(lambda: source.looks >= until, what="further reads of the clock")


def koordlet(server: FakeKube, name: str, *, updated: float, **status: Any) -> None:
    usage = {"nodeUsage": {"resources": {"cpu": "1", "memory": "1Gi"}}}
    content = {"updateTime": stamp(updated), "nodeMetric": usage, **status}
    server.put_by("koordlet", RESOURCE, name, spec={}, status=content)


# --- writes ----------------------------------------------------------------------------------------------------------


def test_missing_objects_are_created_with_a_status():
    """With the policy in the spec and the node as owner; the status is that of GET /api/v1/nodemetrics."""
    source = service({"a": RISING, "b": STEADY}, pods=publish_pods({("default", "p"): ("a", 0.5, 2.0**30)}))
    source.classes = {("default", "p"): PodClass("koord-prod", "LS")}

    async def story(go: Run) -> None:
        await go.until(lambda: go.server.names(RESOURCE) == {"a", "b"}, what="both nodes")
        await go.until(lambda: go.status("a") and go.status("b"), what="both statuses")
        found = {name: go.server.content(RESOURCE, name) for name in ("a", "b")}
        assert source.published is not None
        statuses = node_statuses(
            source.published.snapshot,
            capacities=source.sizes,
            pods=source.pods,
            policies=[CollectPolicy()] * 2,
            classes=source.classes,
        )
        for name, body in make_report(statuses).objects.items():
            expected = json.loads(body)
            assert found[name]["status"] == expected["status"]
            assert found[name]["spec"] == expected["spec"]
            (owner,) = found[name]["metadata"]["ownerReferences"]
            assert owner == {"apiVersion": "v1", "kind": "Node", "name": name, "uid": f"uid-of-{name}"}
        assert found["a"]["status"]["podsMetric"][0]["priority"] == "koord-prod"
        await go.settled()
        assert set(go.writes()) == {
            (verb, part, name) for name in "ab" for verb, part in (("create", ""), ("patch", "/status"))
        }
        assert go.publisher.stats.outcomes["created"] == 2
        assert go.publisher.holds_lease

    run(source, story)


def test_each_new_snapshot_is_written_once():
    """updateTime is that of the newest sample, and never decreases."""
    source = service({"a": STEADY})

    async def story(go: Run) -> None:
        await go.until(lambda: go.server.names(RESOURCE) and go.status("a"), what="a first status")
        newer = snapshot_of({"a": RISING}, end=END + 60.0)
        source.published = publish(newer, tag="newer")
        await go.until(lambda: go.status("a")["updateTime"] == stamp(END + 60.0), what="the newer status")
        await go.settled()
        source.published = publish(snapshot_of({"a": STEADY}), tag="older")
        await go.settled()
        assert go.status("a")["updateTime"] == stamp(END + 60.0)

    run(source, story)


def test_unknown_nodes_have_no_object():
    """Not in the cluster, without capacity, or not in the snapshot any more."""
    source = service({"a": STEADY, "stranger": STEADY, "sizeless": STEADY}, strangers=frozenset({"stranger"}))
    source.sizes = dict.fromkeys(("a", "stranger", "gone"), SIZE)

    async def story(go: Run) -> None:
        await go.until(lambda: go.publisher.stats.outcomes["strange"] > 1, what="turns of the stranger")
        await go.until(lambda: go.server.names(RESOURCE) and go.status("a"), what="the node that is there")
        assert go.server.names(RESOURCE) == {"a"}

    run(source, story)


def test_turns_of_nodes_are_spread_over_the_interval():
    """One turn each, and in each second only a small share of the nodes; nodes that join later wait for their turn."""
    names = [f"node-{number:04d}" for number in range(1200)]
    samples = dict.fromkeys(names[:1000], STEADY)
    policies = CollectPolicies(windows=WINDOWS)

    def statuses(of: Mapping[str, Any]) -> Any:
        snapshot = snapshot_of(of)
        mine = policies.of_all(snapshot.nodes, lambda _: {})
        return node_statuses(snapshot, capacities=dict.fromkeys(of, SIZE), pods=None, policies=mine)

    schedule = Schedule(statuses(samples), made_of=(), policies=policies, before=None, now=END)
    assert schedule.due(END) == []
    seen: Counter[int] = Counter()
    for second in range(1, 61):
        due = schedule.due(END + second)
        assert len(due) <= 40
        seen.update(due)
        for row in due:
            schedule.done(row)
    assert set(seen.values()) == {1}
    assert len(seen) == 1000
    more = dict.fromkeys(names, STEADY)
    after = Schedule(statuses(more), made_of=(), policies=policies, before=schedule, now=END + 60)
    assert len(after.due(END + 60)) == 0


def test_writes_per_second_are_limited_and_each_node_is_written(caplog):
    """If more nodes are due than writes are allowed, each node is written a second time before any is written a third
    time."""
    names = [f"node-{number:02d}" for number in range(40)]
    limit, together = 5, 8  # concurrent requests may exceed the limit once
    source = service(dict.fromkeys(names, STEADY))

    async def story(go: Run) -> None:
        seconds, written = 0, Counter[str]()
        while not written or min(written[name] for name in names) < 2:
            seconds += 1
            assert seconds < 40
            source.published = publish(
                snapshot_of(dict.fromkeys(names, STEADY), end=END + 60.0 * seconds), tag=f"{seconds}"
            )
            source.clock += 1.0
            await looked_at(source, 20)
            assert len(go.writes()) <= limit * (seconds + 1) + together
            written = Counter(name for verb, part, name in go.writes() if part == "/status")
        assert max(written.values()) <= 3
        assert len(go.writes()) >= limit * (seconds - 2) - together  # requests that are still running

    run(source, story, writes_per_second=limit)
    assert "raise koordinator.writes_per_second" not in caplog.text


def test_a_limit_that_makes_the_data_too_old_is_logged_once(caplog):
    """500 nodes at two writes per second take 250 s; koord-scheduler ignores objects after 180 s."""
    source = service(dict.fromkeys((f"node-{number:03d}" for number in range(500)), STEADY))

    async def story(go: Run) -> None:
        await go.until(lambda: "nodeMetricExpirationSeconds" in caplog.text, what="the warning")
        await looked_at(source, 20)

    run(source, story, writes_per_second=2)
    assert 1 == caplog.text.count("with 2 writes per second, NodeMetrics become 310 s old")


# --- other writers ---------------------------------------------------------------------------------------------------


def test_objects_that_koordlet_writes_are_left_alone_until_it_stops(caplog):
    """Until two report intervals without a report, by the time in the object."""
    source = service({"a": STEADY, "b": STEADY})

    async def story(go: Run) -> None:
        before = go.status("a")
        await go.until(lambda: go.server.names(RESOURCE) == {"a", "b"} and go.status("b"), what="the other node")
        await eventually(lambda: "not publishing NodeMetrics for" in caplog.text, what="a line in the log")
        assert go.status("a") == before
        assert go.publisher.stats.reported_elsewhere == {"a"}
        source.published = publish(snapshot_of({"a": STEADY, "b": STEADY}, end=END + 900.0), tag="later")
        await go.until(lambda: go.status("a") != before, what="the status of the abandoned node")
        assert source.time > END + 500.0 + 120.0
        assert go.publisher.stats.reported_elsewhere == set()

    run(source, story, prepare=lambda server: koordlet(server, "a", updated=END + 500.0))
    assert "not publishing NodeMetrics for a: already reported by koordlet" in caplog.text


def test_koordlet_may_write_an_object_again():
    """The status of load-watcher does not prevent it, and is not written over that of koordlet."""
    source = service({"a": STEADY})

    async def story(go: Run) -> None:
        await go.until(lambda: go.server.names(RESOURCE) and go.status("a"), what="our status")
        item = go.server.content(RESOURCE, "a")
        later = stamp(source.time + 1e6)
        item["status"]["updateTime"] = later
        go.server.put_by("koordlet", RESOURCE, "a", **item)
        source.published = publish(snapshot_of({"a": RISING}, end=END + 60.0), tag="newer")
        await go.until(lambda: go.publisher.stats.reported_elsewhere == {"a"}, what="it to be left")
        await go.turns()
        assert go.status("a")["updateTime"] == later

    run(source, story)


def test_fields_of_other_writers_stay():
    """Unknown fields, and pods while load-watcher has none."""
    source = service({"a": STEADY})
    others = {
        "podsMetric": [{"namespace": "x", "name": "y", "podUsage": {"resources": {"cpu": "1"}}}],
        "prodReclaimableMetric": {"resource": {"resources": {"cpu": "2"}}},
        "nodeMetric": {
            "nodeUsage": {"resources": {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}},
            "systemUsage": {"resources": {"cpu": "1"}},
            "numaUsages": [{"numaNodeID": 0}],
        },
    }

    async def story(go: Run) -> None:
        await go.until(lambda: go.status("a")["updateTime"] == stamp(END), what="our status")
        status = go.status("a")
        assert status["podsMetric"] == others["podsMetric"]
        assert status["prodReclaimableMetric"] == others["prodReclaimableMetric"]
        assert status["nodeMetric"]["systemUsage"] == {"resources": {"cpu": "1"}}
        assert status["nodeMetric"]["numaUsages"] == [{"numaNodeID": 0}]
        resources = status["nodeMetric"]["nodeUsage"]["resources"]
        assert resources == {"cpu": "2000m", "memory": str(16 << 30), "nvidia.com/gpu": "1"}

    run(source, story, prepare=lambda server: koordlet(server, "a", updated=END - 500.0, **others))


def test_pods_of_the_status_are_removed_if_pods_become_unknown():
    """Otherwise their usage would look as new as that of the node."""
    source = service({"a": STEADY}, pods=publish_pods({("default", "p"): ("a", 0.5, 2.0**30)}))

    async def story(go: Run) -> None:
        await go.until(lambda: go.server.names(RESOURCE) and go.status("a"), what="our status")
        assert go.status("a")["podsMetric"]
        assert go.status("a")["nodeMetric"]["systemUsage"]["resources"]["cpu"] == "1500m"
        await go.settled()
        source.pods, source.published = None, publish(snapshot_of({"a": STEADY}, end=END + 60.0), tag="newer")
        await go.until(lambda: go.status("a")["updateTime"] == stamp(END + 60.0), what="the newer status")
        assert "podsMetric" not in go.status("a")
        assert "systemUsage" not in go.status("a")["nodeMetric"]

    run(source, story)


def test_a_policy_that_others_wrote_counts(caplog):
    """koord-manager passes its settings to koordlet in this way; a duration beyond the kept history is logged once."""
    spec = {
        "metricCollectPolicy": {
            "aggregateDurationSeconds": 60,
            "nodeAggregatePolicy": {"durations": ["5m", "30m0s"]},
        }
    }
    source = service({"a": RISING, "b": RISING})

    async def story(go: Run) -> None:
        await eventually(lambda: go.publisher.specs, what="the policy to be known")
        source.collect_policies = replace(source.collect_policies, specs=go.publisher.specs)
        await go.until(
            lambda: all(go.server.names(RESOURCE) == {"a", "b"} and go.status(name) for name in "ab"), what="statuses"
        )
        usage = {name: go.status(name)["nodeMetric"] for name in "ab"}
        assert [usage[name]["nodeUsage"]["resources"]["cpu"] for name in "ab"] == ["6400m", "4480m"]
        assert [len(usage[name]["aggregatedNodeUsages"]) for name in "ab"] == [1, 3]
        assert go.server.content(RESOURCE, "a")["spec"] == spec

    run(source, story, prepare=lambda server: server.put_by("koord-manager", RESOURCE, "a", spec=spec))
    assert "requests usage over 30m0s, which is not served; served windows are 5m, 10m, 15m" in caplog.text


def test_a_policy_of_load_watcher_follows_the_settings():
    """It was written when the object was created."""
    source = service({"a": RISING})

    async def story(go: Run) -> None:
        await go.until(lambda: go.server.names(RESOURCE) and go.status("a"), what="our status")
        assert go.publisher.specs == {}
        rule = PolicyRule(PolicyOverride(report_interval_s=30), names=("a",))
        source.collect_policies = CollectPolicies(rules=(rule,), windows=WINDOWS)
        policy = lambda: go.server.content(RESOURCE, "a")["spec"]["metricCollectPolicy"]  # noqa: E731
        await go.until(lambda: policy()["reportIntervalSeconds"] == 30, what="the new policy")
        await go.settled()
        assert ("patch", "", "a") in go.writes()
        assert go.publisher.specs == {}

    run(source, story)


# --- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["create", "patch"])
def test_a_missing_right_is_logged_once_with_its_rule(verb, caplog):
    """No restart is needed once it is granted."""
    caplog.set_level(logging.INFO)
    source = service({"a": STEADY, "b": STEADY, "c": STEADY})
    what = RESOURCE if verb == "create" else f"{RESOURCE}/status"

    async def story(go: Run) -> None:
        await go.until(lambda: go.publisher.stats.outcomes["forbidden"], what="a refusal")
        await go.turns(0)
        go.server.forbidden = set()
        source.clock += 61.0
        await go.until(lambda: go.server.names(RESOURCE) == {"a", "b", "c"}, what="all objects")
        await go.until(lambda: all(go.status(name) for name in "abc"), what="all statuses")
        await eventually(lambda: "NodeMetrics are written again" in caplog.text, what="a line in the log")

    run(source, story, prepare=lambda server: setattr(server, "forbidden", {(verb, what)}))
    reported = [record.getMessage() for record in caplog.records if "NodeMetrics" in record.getMessage()]
    assert [text.partition(":")[0] for text in reported] == [
        "cannot write NodeMetrics",
        "NodeMetrics are written again",
    ]
    part = "nodemetrics" if verb == "create" else "nodemetrics/status"
    assert f'{{apiGroups: ["slo.koordinator.sh"], resources: ["{part}"], verbs: ["{verb}"]}}' in reported[0]


def test_writing_resumes_soon_after_an_outage_of_the_api(caplog):
    """After an outage of any length, and although a restarted API server first refuses requests."""
    caplog.set_level(logging.INFO)
    source = service({"a": STEADY})

    async def story(go: Run) -> None:
        async def failures(count: int) -> None:
            await go.until(lambda: go.publisher.stats.outcomes["unreachable"] >= count, what="failures")

        for count in range(1, 12):
            await failures(count)
            source.clock += 8.0
        go.server.fault = lambda _: None
        go.server.forbidden = {("create", RESOURCE)}
        await go.until(lambda: go.publisher.stats.outcomes["forbidden"], what="a refusal")
        go.server.forbidden = set()
        source.clock += 1.0
        await go.until(lambda: go.server.names(RESOURCE) == {"a"}, what="the object")

    def away(asked: Any) -> web.Response | None:
        return web.Response(status=503) if asked.verb == "create" and asked.resource.startswith(RESOURCE) else None

    run(source, story, prepare=lambda server: setattr(server, "fault", away))


def test_a_busy_api_is_left_alone_for_the_requested_time(caplog):
    caplog.set_level(logging.INFO)
    source = service({"a": STEADY})
    refused: list[float] = []

    def busy(asked: Any) -> web.Response | None:
        if asked.verb != "create" or not asked.resource.startswith(RESOURCE) or len(refused) >= 1:
            return None
        refused.append(source.clock)
        return web.json_response(status_object(429, "later"), status=429, headers={"Retry-After": "20"})

    async def story(go: Run) -> None:
        await go.until(lambda: go.publisher.stats.outcomes["unreachable"], what="a refusal")
        source.clock += 19.0
        await looked_at(source, 200)
        assert go.server.names(RESOURCE) == set()
        source.clock += 2.0
        await go.until(lambda: go.server.names(RESOURCE) and go.status("a"), what="the object")
        await eventually(lambda: "NodeMetrics are written again" in caplog.text, what="a line in the log")

    run(source, story, prepare=lambda server: setattr(server, "fault", busy))


def test_without_the_definition_nothing_is_written(caplog):
    """If Koordinator is installed later, writing begins."""
    source = service({"a": STEADY})

    async def story(go: Run) -> None:
        await eventually(lambda: "cannot list nodemetrics" in caplog.text, what="a line in the log")
        await asyncio.sleep(0.1)  # several steps
        assert go.writes() == []
        assert not go.publisher.holds_lease
        assert go.server.names(LEASES) == set()

    run(source, story, prepare=lambda server: server.undefine(RESOURCE))


def test_a_refused_object_does_not_affect_others(caplog):
    """For example, an admission webhook refuses it."""
    source = service({"a": STEADY, "b": STEADY})

    def refuse(asked: Any) -> web.Response | None:
        if asked.key == "a" and asked.resource == f"{RESOURCE}/status":
            return web.json_response(status_object(422, "no"), status=422)
        return None

    async def story(go: Run) -> None:
        await go.until(lambda: go.server.names(RESOURCE) == {"a", "b"} and go.status("b"), what="the other")
        await go.until(lambda: go.publisher.stats.outcomes["refused"] > 2, what="refusals")

    run(source, story, prepare=lambda server: setattr(server, "fault", refuse))
    assert caplog.text.count("cannot write the NodeMetric of a") == 1


# --- replicas --------------------------------------------------------------------------------------------------------


def test_one_of_two_replicas_writes_and_the_other_takes_over():
    """At once if the first one shuts down; a replica with stale data does not hold the Lease."""
    first = service({"a": STEADY})
    second = service({"a": STEADY})

    async def story(go: Run) -> None:
        await go.until(lambda: go.publisher.holds_lease, what="the Lease")
        other = publishing(go.server, second, identity="b")
        await other.start()
        try:
            await go.until(lambda: go.server.names(RESOURCE) and go.status("a"), what="the first one's status")
            assert other.stats.outcomes.total() == 0
            first.clock += 301.0  # its newest sample is too old by then
            holder = lambda: go.server.content(LEASES, "default/lease")["spec"]["holderIdentity"]  # noqa: E731
            await eventually(lambda: holder() == "", what="the first one to release the Lease")
            await eventually(lambda: not go.publisher.holds_lease, what="the state without the Lease")
            second.published = publish(snapshot_of({"a": RISING}, end=END + 60.0), tag="x", monotonic=second.clock)
            second.clock += 11.0  # when it checks the Lease again
            await eventually(lambda: other.holds_lease, what="the second one to hold it")
            await eventually(lambda: go.status("a")["updateTime"] == stamp(END + 60.0), what="the second one's status")
            assert holder() == "b"
            assert (
                go.publisher.stats.reported_elsewhere == other.stats.reported_elsewhere == set()
            )  # both replicas are one writer
        finally:
            await other.close()

    run(first, story)


# --- read back -------------------------------------------------------------------------------------------------------

ARGUMENTS: Sequence[dict[str, Any]] = (
    {},
    {"aggregated": {"scoreAggregationType": "p95", "scoreAggregatedDuration": "5m"}},
    {"aggregated": {"usageThresholds": {"cpu": 60, "memory": 90}, "usageAggregationType": "p50"}},
    {"aggregated": {"scoreAggregationType": "p99", "scoreAggregatedDuration": "15m"}, "dominantResourceWeight": 3},
    {"prodUsageThresholds": {"cpu": 20}, "scoreAccordingProdUsage": True},
    {"prodUsageIncludeSys": True, "scoreAccordingProdUsage": True},
)


def test_written_objects_are_read_back_to_the_same_scores():
    """LoadAwareScheduling with the cluster's objects, and with the windows from which they were made."""
    samples = {
        "calm": STEADY,
        "rising": RISING,
        "new": {key: values[-22:] for key, values in RISING.items()},
    }
    pods = {
        ("default", "web"): ("calm", 0.7, 3.0 * 2**30),
        ("default", "batch"): ("calm", 0.2, 2.0**30),
        ("default", "db"): ("rising", 1.25, 2.0**31),
        ("default", "seen"): ("new", 0.1, 2.0**20),
    }
    source = service(samples, pods=publish_pods(pods))
    known = [
        pod(name, node=where, containers=[{"requests": {"cpu": "1"}}], priority=priority, scheduled=END - 3600.0)
        for (name, where), priority in {
            ("web", "calm"): 9500,
            ("batch", "calm"): 5500,
            ("db", "rising"): 9500,
            ("unseen", "new"): 9500,
        }.items()
    ]
    classes = {"web": "koord-prod", "batch": "koord-batch", "db": "koord-prod"}
    source.classes = {("default", name): PodClass(kind, "LS") for name, kind in classes.items()}

    async def story(go: Run) -> None:
        await go.until(lambda: go.server.names(RESOURCE) == set(samples), what="all objects")
        await go.until(lambda: all(go.status(name) for name in samples), what="all statuses")
        written = {name: go.server.content(RESOURCE, name) for name in samples}
        client = InProcessClient(
            lambda: source.published,
            window=WINDOWS[-1],
            pods=source,
            measure=lambda snapshot: measure(snapshot, policies=[CollectPolicy()] * len(snapshot.nodes)),
            monotonic=source.monotonic,
        )
        columns, usages = await client.refresh(), await client.refresh_pods()
        for args in ARGUMENTS:
            found = []
            for kind in ("windowsAndPods", "cluster"):
                cluster = ClusterTable(windows=WINDOWS)
                for name in sorted(samples):
                    cluster.set_node(name, node(name, {"cpu": "8", "memory": "32Gi"}))
                for each in known:
                    cluster.set_pod(None, each, now=END)
                plugin, _ = create_plugin(LoadAwareScheduling, {**args, "nodeMetricSource": kind}, cluster)
                cluster.set_load(columns, now=END)
                cluster.set_pod_usage(usages)
                for name, item in written.items():
                    metric = read_node_metric(msgspec.json.decode(json.dumps(item), type=NodeMetricObject))
                    cluster.set_node_metric(name, metric)
                asking = info(containers=[{"requests": {"cpu": "1", "memory": "1Gi"}}], priority=9500)
                at = rows(cluster, *sorted(samples))
                verdicts = plugin.filter(asking, cluster, at, now=END + 30.0)
                scores = plugin.score(asking, cluster, at, now=END + 30.0)
                found.append((verdicts.codes.tolist(), scores.values.tolist(), verdicts.steps, scores.steps))
            for windows, cluster_read in zip(*found, strict=True):
                np.testing.assert_equal(cluster_read, windows, err_msg=str(args))

    run(source, story)
