"""Rounds over pods: late admission, reports, and one round at a time."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from agent.qrm.cluster.client import QrmClusterClient
from agent.qrm.cluster.pod_source import NodePodSources
from agent.qrm.manager.admission import Admission, ApplyFailed
from agent.qrm.manager.allocation import AllocationInfo, Properties
from agent.qrm.manager.request import ResourceRequest
from agent.qrm.pods import PodContainer, QrmPod
from agent.qrm.reconciler import RETRY_S, Reconciler
from agent.qrm.settings import QrmSettings
from agent.qrm.telemetry import QrmComponents, QrmMetrics
from tests.agent.qrm.cluster.test_pod_source import Known
from tests.agent.qrm.manager.test_manager import Fake, World, pod
from tests.fakes.kube import EVENTS, NODES, PODS, FakeKube
from tests.waiting import eventually
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import find_access


class Node:
    """A manager with a plug-in, pods that a test names, and what was set and reported."""

    def __init__(self, plugin: Fake | None = None, **settings: Any) -> None:
        self.world = World(recent=0.0, **settings)
        self.plugin = plugin or Fake()
        self.source = Known()
        self.set: list[str] = []
        self.refuses = ""
        self.reported: list[tuple[str, str]] = []
        self.rounds = Reconciler(
            self.world.manager,
            NodePodSources([self.source]),
            self.apply,
            period=3.0,
            report=self.report,
            monotonic=lambda: self.world.now,
            clock=lambda: 1.7e9,
        )

    async def apply(self, pod: QrmPod, container: PodContainer, properties: Properties) -> None:
        if self.refuses:
            raise ApplyFailed(self.refuses)
        self.set.append(f"{pod.name} {properties['CpusetCpus']}")

    async def report(self, pod: QrmPod, admission: Admission) -> None:
        self.reported.append((pod.name, admission.reason))

    async def round(self, *names: str, after: float = 3.0, **values: Any) -> None:
        """A round with these pods."""
        self.world.now += after
        self.source.pods = [pod(name, qos="dedicated_cores", **values) for name in names]
        await self.world.with_(*([] if "cpu" in self.world.manager.plugins.states else [self.plugin]))
        await self.rounds.round()
        await asyncio.sleep(0)  # reports between rounds

    def state(self) -> dict[str, Any]:
        return self.rounds.state()


async def test_a_pod_is_admitted_once_and_released_when_it_is_deleted():
    node = Node()
    for _ in range(3):
        await node.round("p")
    assert len(node.plugin.asked) == 1
    assert node.set == ["p 0-1"]
    assert node.rounds.admissions == {("admitted", ""): 1}
    assert node.state()["pods"][0]["containers"]["c"]["cpu"]["allocation_result"] == "0-1"
    await node.round()
    assert node.plugin.removed == ["p"]
    assert node.state()["pods"] == []


async def test_a_pod_of_a_missing_daemonset_is_admitted_when_the_api_has_responded():
    """Pods of DaemonSets are ignored; this one counts as one until the API has responded."""
    node = Node()
    node.plugin.offers = ()
    await node.round("p", daemon=True)
    assert (node.reported, node.plugin.asked) == ([], [])
    await node.round("p")
    assert node.reported == [("p", "TopologyAffinityError")]
    node.plugin.offers = Fake().offers
    await node.round("p", after=RETRY_S)
    assert node.set == ["p 0-1"]


async def test_an_inadmissible_pod_gets_nothing_and_is_reported_once_and_retried():
    node = Node()
    node.plugin.offers = ()
    for _ in range(3):
        await node.round("p")
    assert node.reported == [("p", "TopologyAffinityError")]
    assert (node.set, node.plugin.asked) == ([], []), "no resource is allocated"
    assert node.state()["inadmissible"][0]["message"] == "Resources cannot be allocated with Topology locality"
    node.plugin.offers = Fake().offers
    await node.round("p")
    assert node.state()["inadmissible"], "without a change, it is not retried yet"
    await node.round("p", after=RETRY_S)
    assert (node.state()["inadmissible"], node.set) == ([], ["p 0-1"])
    assert node.rounds.admissions == {("rejected", "TopologyAffinityError"): 1, ("admitted", ""): 1}


@pytest.mark.parametrize("what", ["a pod goes", "a plug-in comes"])
async def test_a_change_that_may_help_causes_a_retry_at_once(what: str):
    node = Node()
    await node.round("other")
    node.plugin.offers = ()
    await node.round("other", "p")
    node.plugin.offers = Fake().offers
    if what == "a plug-in comes":
        await node.world.manager.plugins.register("cpu", node.plugin)
    await node.round(*(["p"] if what == "a pod goes" else ["other", "p"]))
    assert node.state()["inadmissible"] == []


async def test_with_unknown_pods_nothing_is_admitted_or_released():
    node = Node()
    node.source.why = "no pods from the Kubernetes API: no response yet"
    await node.round()
    assert "no response yet" in node.state()["last_reconcile"]["trouble"]
    settled = [node.rounds.settled]
    node.source.why = ""
    await node.round("p")
    assert [*settled, node.rounds.settled] == [False, True]
    node.source.why = "it is away"
    await node.round()
    assert node.plugin.removed == []
    assert node.state()["pods"]


async def test_a_full_disk_is_reported_and_the_next_round_runs():
    node = Node()
    await node.round("p")
    node.world.full = True
    await node.round("p")
    assert "cannot write the checkpoint: No space left" in node.state()["last_reconcile"]["trouble"]
    node.world.full = False
    await node.round("p")
    assert node.state()["last_reconcile"]["trouble"] == ""


async def test_a_full_disk_makes_no_pod_inadmissible():
    """Such a pod would get an Event, and may be evicted."""
    node = Node()
    node.world.full = True
    await node.round("p")
    assert "cannot write the checkpoint: No space left" in node.state()["last_reconcile"]["trouble"]
    assert (node.reported, node.state()["inadmissible"], node.rounds.admissions) == ([], [], {})
    node.world.full = False
    await node.round("p")
    assert (node.set, node.rounds.admissions) == (["p 0-1"], {("admitted", ""): 1})


async def test_a_pod_that_is_released_during_a_round_is_not_admitted_from_the_list_of_the_round():
    """In the mode nri, the runtime reports its end while the round admits another pod."""

    class Ending(Fake):
        async def allocate(self, request: ResourceRequest) -> Mapping[str, AllocationInfo] | None:
            ending.append(asyncio.create_task(node.rounds.release("b")))
            await asyncio.sleep(0)
            return await super().allocate(request)

    ending: list[asyncio.Task[None]] = []
    node = Node(Ending())
    await node.round("a", "b")
    assert [request.pod_uid for request in node.plugin.asked] == ["a"]
    assert (node.set, node.rounds.records.keys()) == (["a 0-1"], {"a"})
    await ending.pop()
    await node.rounds.admit(pod("b", qos="dedicated_cores"))
    assert node.rounds.records.keys() == {"a", "b"}, "the runtime has another sandbox of the pod"
    await ending.pop()


async def test_updates_that_the_runtime_refuses_are_counted_and_reported():
    node = Node()
    node.refuses = "the runtime is away"
    await node.round("p")
    assert node.state()["last_reconcile"]["failed"] == {"ns/p/c": "the runtime is away"}
    node.refuses = ""
    await node.round("p")
    assert node.rounds.updates == {"failed": 1, "applied": 1}


async def test_late_rounds_are_skipped_and_never_overlap():
    """Real time: a round of three periods, in which others are due."""
    world = World()
    at_once, most = 0, 0

    class Slow(Known):
        def listing(self, *, monotonic: float, max_age: float) -> list[QrmPod | None]:
            return [pod("p")]

    async def apply(*_: Any) -> None: ...

    async def publish() -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.03)
        at_once -= 1

    rounds = Reconciler(world.manager, NodePodSources([Slow()]), apply, period=0.01, publish=publish)
    running = asyncio.create_task(rounds.run())
    try:
        await eventually(lambda: rounds.skipped >= 4, what="rounds to be skipped")
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await rounds.close()
    assert most == 1


async def test_all_metrics_of_the_reference_are_exported():
    node = Node()
    metrics = QrmMetrics()
    node.rounds.observe = metrics.observe_round
    for method in ("Allocate", "GetTopologyHints"):
        metrics.observe_call("cpu", method, 0.001, method == "Allocate")
    metrics.checkpoints["written"] += 1
    await node.round("p")
    registry = CollectorRegistry(auto_describe=False)
    registry.register(metrics)
    metrics.gather(QrmComponents(QrmSettings(), {}, rounds=node.rounds))
    text = generate_latest(registry).decode()
    for line in (
        'qrm_allocate_seconds_count{resource="cpu"} 1.0',
        'qrm_hints_seconds_count{resource="cpu"} 1.0',
        "qrm_reconcile_seconds_count 1.0",
        'qrm_admissions_total{reason="",result="admitted"} 1.0',
        'qrm_plugin_errors_total{method="Allocate",resource="cpu"} 1.0',
        'qrm_plugins{resource="cpu",state="live"} 1.0',
        'qrm_reconcile_updates_total{result="applied"} 1.0',
        'qrm_checkpoint_writes_total{result="written"} 1.0',
        "qrm_inadmissible_pods 0.0",
    ):
        assert f"load_watcher_{line}" in text


# --- the cluster -----------------------------------------------------------------------------------------------------


async def test_events_evictions_and_the_status_of_the_node(tmp_path: Path):
    reason = Admission(False, "TopologyAffinityError", "Resources cannot be allocated with Topology locality")

    with FakeKube() as kube:
        kube.node("node-1")
        config = kube.kubeconfig(tmp_path / "config")
        client = KubeClient(lambda: find_access(kubeconfig=config, context=None, environ={}))
        try:
            cluster = QrmClusterClient(client, node="node-1", evicts=True, clock=lambda: 1.7e9)
            kube.pod("ns/critical", node="node-1", metadata={"uid": "c"}, spec={"priority": 2_000_000_000})
            kube.pod("ns/static", node="node-1", metadata={"uid": "s"})
            kube.pod("ns/other", node="node-1", metadata={"uid": "another"})
            kube.pod("ns/plain", node="node-1", metadata={"uid": "p"})
            mirror = {"kubernetes.io/config.mirror": "x"}
            for name, uid, annotations in (
                ("critical", "c", {}),
                ("static", "s", mirror),
                ("other", "o", {}),
                ("gone", "g", {}),
                ("plain", "p", {}),
            ):
                static = name == "static"
                await cluster.inadmissible(QrmPod(uid, "ns", name, annotations=annotations, static=static), reason)
            kube.pod("ns/unheard", node="node-1", metadata={"uid": "u"})
            await cluster.inadmissible(QrmPod("u", "ns", "unheard"), replace(reason, unanswered=True))
            left = {
                name for name in kube.names(PODS) if "deletionTimestamp" not in kube.content(PODS, name)["metadata"]
            }
            assert left == {"ns/critical", "ns/static", "ns/other", "ns/unheard"}
            events = [kube.content(EVENTS, name) for name in kube.names(EVENTS)]
            assert {event["message"] for event in events} == {reason.message}
            plugin = Fake("example.org/card", gives=3.0, node=True)
            world = await World().with_(plugin, Fake())
            await cluster.publish(world.manager, lambda: {"example.org/idle": 62.0})
            status = kube.content(NODES, "node-1")["status"]
            assert {status[part]["example.org/card"] for part in ("capacity", "allocatable")} == {"3"}
            assert {status[part]["example.org/idle"] for part in ("capacity", "allocatable")} == {"62"}
            assert status["capacity"]["cpu"] == "4", "resources of the kubelet stay"
        finally:
            await client.close()
