"""NodeMetrics written to a real API server, with a definition that prunes and validates as Koordinator's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scorers.cluster.node_metrics import NodeMetricObject, read_node_metric
from tests.deploy.rendering import charted
from tests.fakes.kube import FakeKube
from tests.fakes.pods import publish_pods
from tests.fakes.snapshots import END, publish, snapshot_of
from tests.real.control_plane.manifests import apply_all, delete_all
from tests.real.control_plane.rights import RBAC, granted, refused, wait_until_used
from tests.real.kube import ApiServer
from tests.real.node_metric_definition import NODE_METRIC
from tests.real.test_kube_manifests import collection
from tests.waiting import eventually
from tests.watcher.koordinator.test_publisher import RESOURCE, RISING, STEADY, Cluster, service, stamp
from watcher.core.koordinator.report import PodClass
from watcher.core.koordinator.written_objects import MANAGER, WRITTEN
from watcher.koordinator.publisher import NodeMetricPublisher
from watcher.koordinator.publisher_source import LEASE
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import find_access
from watcher.platform.kube.leases import LEASES, RENEW_EVERY_S, Election

pytestmark = [pytest.mark.slow, pytest.mark.real_apiserver]

SECONDS = 90.0
ACCOUNT = "load-watcher/load-watcher"
STATUS = {"Content-Type": "application/merge-patch+json"}


@pytest.fixture(scope="module")
def defined(apiserver: ApiServer) -> ApiServer:
    """The API server with the definition."""
    apiserver.define(WRITTEN, "NodeMetric", schema=NODE_METRIC)
    return apiserver


def publishing(
    kubeconfig: Path, source: Cluster, story: Callable[[NodeMetricPublisher], Awaitable[None]], *, lease: str
) -> None:
    """Run a test while NodeMetrics are written."""

    async def reported() -> None:
        client = KubeClient(lambda: find_access(kubeconfig=kubeconfig, environ={}), timeout=30.0)
        election = Election(
            client,
            lease,
            identity="a",
            manager=MANAGER,
            now=source.now,
            monotonic=source.monotonic,
        )
        publisher = NodeMetricPublisher(client, source, election=election, writes_per_second=1000, step=0.05)
        await publisher.start()
        try:
            await story(publisher)
        finally:
            await publisher.close()

    asyncio.run(reported())


async def until(condition: Callable[[], object], *, what: str) -> None:
    """Wait until the condition holds, while nodes have their turns."""
    await eventually(condition, what=what, timeout=SECONDS)


def item(server: ApiServer, name: str) -> dict[str, Any]:
    answer = server.ask("GET", f"{WRITTEN.path}/{name}")
    found: dict[str, Any] = answer.json()
    return found if answer.ok else {}


def test_a_written_object_is_accepted_and_read_back(defined: ApiServer, tmp_path: Path) -> None:
    """No field is pruned; the Node owns it; a policy of load-watcher follows the settings; and managed fields equal
    those of the small server of the other tests."""
    source = service({"a": RISING}, pods=publish_pods({("default", "p"): ("a", 0.5, 2.0**30)}))
    source.classes = {("default", "p"): PodClass("koord-prod", "LS")}

    async def written(publisher: NodeMetricPublisher) -> None:
        await until(lambda: publisher.stats.outcomes["created"], what="the object")
        await until(lambda: publisher.stats.outcomes["unchanged"], what="another turn")

    publishing(defined.kubeconfig(tmp_path / "real"), source, written, lease="default/whole")
    found = item(defined, "a")
    (owner,) = found["metadata"]["ownerReferences"]
    assert ("Node", "a", "uid-of-a") == (owner["kind"], owner["name"], owner["uid"])
    with FakeKube() as fake:
        fake.define(RESOURCE, "NodeMetric")
        again = service({"a": RISING}, pods=source.pods, classes=source.classes)

        async def on_the_fake(publisher: NodeMetricPublisher) -> None:
            await until(lambda: publisher.stats.outcomes["created"], what="the object")

        publishing(fake.kubeconfig(tmp_path / "fake"), again, on_the_fake, lease="default/whole")
        expected = fake.content(RESOURCE, "a")
    assert expected["spec"] == found["spec"]
    assert expected["status"] == found["status"]
    read = [msgspec.json.decode(json.dumps(each), type=WRITTEN.item) for each in (expected, found)]
    assert {MANAGER} == {each.reporter for each in read}
    assert [True, True] == [each.has_own_pods for each in read]
    assert [None, None] == [each.policy_of_others() for each in read]
    metric = read_node_metric(msgspec.json.decode(json.dumps(found), type=NodeMetricObject))
    assert metric.usage == {"cpu": 4480, "memory": 13743895347}
    assert metric.pods[("default", "p")].prod
    assert len(metric.aggregated) == 15


def test_koordlet_and_koord_manager_take_precedence(defined: ApiServer, tmp_path: Path) -> None:
    """By the managed fields of the real server: for a report and for a policy, in objects that they or load-watcher
    created."""
    source = service({"theirs": STEADY, "ours": STEADY})
    usage = {"nodeUsage": {"resources": {"cpu": "1", "memory": "1Gi"}}}

    def report(name: str, at: float) -> None:
        answer = defined.ask(
            "PATCH",
            f"{WRITTEN.path}/{name}/status?fieldManager=koordlet",
            {"status": {"updateTime": stamp(at), "nodeMetric": usage}},
            headers=STATUS,
        )
        assert answer.ok, answer.text

    policy = {"metricCollectPolicy": {"aggregateDurationSeconds": 60, "reportIntervalSeconds": 60}}
    defined.make(
        f"{WRITTEN.path}?fieldManager=koord-manager",
        apiVersion=WRITTEN.group_version,
        kind="NodeMetric",
        metadata={"name": "theirs"},
        spec=policy,
    )
    report("theirs", END + 1e6)

    async def story(publisher: NodeMetricPublisher) -> None:
        await until(
            lambda: publisher.stats.reported_elsewhere == {"theirs"} and item(defined, "ours"), what="one of each"
        )
        await until(lambda: item(defined, "ours").get("status"), what="our status")
        specs = publisher.specs
        assert {"theirs"} == set(specs)
        assert 60 == specs["theirs"].aggregate_duration_s
        report("ours", END + 1e6)
        source.published = publish(snapshot_of({"theirs": RISING, "ours": RISING}, end=END + 60.0), tag="newer")
        await until(lambda: publisher.stats.reported_elsewhere == {"theirs", "ours"}, what="both to be left")

    publishing(defined.kubeconfig(tmp_path / "real"), source, story, lease="default/first")
    for name in ("theirs", "ours"):
        assert stamp(END + 1e6) == item(defined, name)["status"]["updateTime"]


def test_the_rights_of_the_chart_are_sufficient_and_necessary(defined: ApiServer, tmp_path: Path) -> None:
    """The ServiceAccount of the chart, first without the right to write a status, then with it; in the end each right
    to NodeMetrics and to the Lease was used. One node has an object of a load-watcher with other settings."""
    source = service({"granted": STEADY, "outdated": STEADY}, max_staleness=1e9)  # its clock advances during the wait
    rendered = charted({"config": {"koordinator": {"publish": True}}})
    defined.make(
        f"{WRITTEN.path}?fieldManager={MANAGER}",
        apiVersion=WRITTEN.group_version,
        kind="NodeMetric",
        metadata={"name": "outdated"},
        spec={"metricCollectPolicy": {"aggregateDurationSeconds": 300, "reportIntervalSeconds": 7}},
    )
    defined.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "load-watcher"}})  # 409 if it exists
    granting = [each for each in rendered if each["kind"] == "ServiceAccount" or each["apiVersion"] == RBAC]
    apply_all(defined, granting)
    (path,) = (f"{collection(each)}/{each['metadata']['name']}" for each in granting if each["kind"] == "ClusterRole")
    whole = defined.ask("GET", path).json()["rules"]
    without = [rule for rule in whole if "nodemetrics/status" not in rule["resources"]]
    assert len(without) == len(whole) - 1
    assert defined.ask("PATCH", path, {"rules": without}, headers=STATUS).ok

    async def story(publisher: NodeMetricPublisher) -> None:
        await until(lambda: publisher.stats.outcomes["forbidden"], what="a refusal")
        assert "status" not in item(defined, "granted")
        assert [{"nodemetrics/status"}] == [{each.resource for each in refused(defined, ACCOUNT)}]
        assert defined.ask("PATCH", path, {"rules": whole}, headers=STATUS).ok

        def granted_now() -> object:
            source.clock += 1.0  # a refused write is retried once a minute
            return item(defined, "granted").get("status") and item(defined, "outdated").get("status")

        await until(granted_now, what="the statuses")
        groups = (WRITTEN.group, LEASES.group)
        rights = [each for each in granted(rendered, ACCOUNT) if each.group in groups]
        source.clock += RENEW_EVERY_S  # the Lease was created; renewing it needs another right
        await asyncio.to_thread(wait_until_used, defined, rights, ACCOUNT)

    try:
        kubeconfig = defined.kubeconfig(tmp_path / "account", token=defined.account_token(ACCOUNT))
        publishing(kubeconfig, source, story, lease=f"load-watcher/{LEASE}")
    finally:
        delete_all(defined, granting)


async def test_one_of_two_replicas_holds_a_real_lease(defined: ApiServer, tmp_path: Path) -> None:
    """Both try at once; the one that stops releases it."""
    kubeconfig = defined.kubeconfig(tmp_path / "real")

    client = KubeClient(lambda: find_access(kubeconfig=kubeconfig, environ={}), timeout=30.0)
    source = service({"a": STEADY})
    candidates = [
        Election(client, "default/two", identity=name, manager=MANAGER, now=source.now, monotonic=source.monotonic)
        for name in "abcd"
    ]
    try:
        assert 1 == sum(await asyncio.gather(*(each.acquire_or_renew() for each in candidates)))
        (first,) = (each for each in candidates if each.held)
        await first.release()
        assert 1 == sum(await asyncio.gather(*(each.acquire_or_renew() for each in candidates)))
    finally:
        await client.close()
    spec = defined.ask("GET", "/apis/coordination.k8s.io/v1/namespaces/default/leases/two").json()["spec"]
    assert (30, 1) == (spec["leaseDurationSeconds"], spec["leaseTransitions"])
