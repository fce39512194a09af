"""A client that reaches the port can send any request; these tests show what it cannot change for other pods."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scorers.cluster.informer import KubernetesCluster, OnNode, OnNodeMetric, OnPod
from scorers.decisions.records import BEST_NODES
from scorers.extender.hosting import InProcessLoad
from scorers.extender.reservations import MOST_UNREPORTED, RESERVED_S, UNREPORTED_S
from scorers.extender.service import SchedulingService
from tests.fakes.decisions import DecisionList
from tests.fakes.kube import PODS, FakeKube
from tests.fakes.service import Live
from tests.scorers.extender.test_handlers import asking
from tests.scorers.extender.test_hosting import Watcher
from tests.scorers.simulated_cluster import info, node, pod
from tests.waiting import eventually
from watcher.core.config.settings import Settings
from watcher.core.kubernetes.objects import Pod
from watcher.platform.http.settings import ServerSettings
from watcher.service.settings.loading import load

NODES = ("a", "b", "c")
MORE_NODES = tuple(f"n{number:02}" for number in range(BEST_NODES))
TABLE = {"p": {"plugins": [{"name": "NodeResourceLimits"}, {"name": "TargetLoadPacking"}]}}


class Cluster:
    """Nodes of 4 cores, and the pods that a test reports."""

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.is_whole = self.is_watched = True

    async def start(self, *, on_node: OnNode, on_pod: OnPod, on_node_metric: OnNodeMetric | None) -> None:
        self._on_pod = on_pod
        for name in (*NODES, *MORE_NODES):
            on_node(name, None, node(name, {"cpu": "4", "memory": "8Gi"}))

    async def report(self, new: Pod) -> None:
        key = f"default/{new.metadata.name}"
        old, self.pods[key] = self.pods.get(key), new
        self._on_pod(key, old, new)

    def pod(self, key: str) -> Pod | None:
        return self.pods.get(key)

    def is_synced(self) -> bool:
        return self.is_whole

    def is_current(self) -> bool:
        return self.is_whole and self.is_watched

    async def bind(self, key: str, *, node: str, uid: str) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        pass


class ProtectedWatcher(Watcher):
    """A service with server.scheduler_clients."""

    def __init__(self, decisions: DecisionList, scheduler_clients: tuple[str, ...]) -> None:
        super().__init__(decisions=decisions)
        self._clients = scheduler_clients

    @property
    def settings(self) -> Settings:
        return super().settings.having(ServerSettings(scheduler_clients=self._clients))


class Served:
    """The extender of a service over a real socket."""

    def __init__(self, *, scheduler_clients: tuple[str, ...] = ()) -> None:
        self.cluster, self.watcher = Cluster(), ProtectedWatcher(DecisionList(), scheduler_clients)
        self.service = service = SchedulingService(
            TABLE, self.watcher, InProcessLoad(self.watcher), cluster=self.cluster
        )
        self.recorder = service.recorder
        built = service.build()
        self.live = Live(self.watcher, routes=built.routes, lives=built.lives)

    def report(self, name: str, *, milli: int = 100, **more: Any) -> None:
        self.live.run(self.cluster.report(pod(name, containers=[{"requests": {"cpu": f"{milli}m"}}], **more)))

    def ask(self, name: str, *, uid: str = "", milli: int = 100, nodes: tuple[str, ...] = NODES) -> list[Any]:
        """One prioritize request about a pod."""
        body = asking(*nodes, name=name, milli=milli)
        body["Pod"]["metadata"]["uid"] = uid or name
        answer = self.live.ask("/scheduler/p/prioritize", method="POST", body=json.dumps(body).encode())
        assert answer.status == 200, answer.body
        found: list[Any] = answer.json()
        return found

    def reserved(self) -> dict[str, int]:
        """The requested millicores of the nodes with reservations."""
        found = self.live.ask("/scheduler/p/nodes").json()["nodes"]
        return {name: each["requested"]["cpu"] for name, each in found.items() if each["reserved"]}

    def reserving(self) -> int:
        """The number of pods with a reservation."""
        found = self.live.ask("/scheduler/p/nodes").json()["nodes"]
        return sum(len(each["reserved"]) for each in found.values())

    def why(self, name: str) -> list[float]:
        """The times of the recorded decisions about a pod, newest first."""
        self.live.run(self.recorder.flush())  # as each second
        answer = self.live.ask(f"/scheduler/decisions?pod=default/{name}")
        if answer.status == 404:
            return []
        document = answer.json()
        return [document["decision"]["time"], *(each["time"] for each in document["others"])]


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    with made.live:
        yield made


# --- reservations ----------------------------------------------------------------------------------------------------


def test_requests_about_pods_that_do_not_exist_reserve_little(served: Served) -> None:
    """Each of them would make a node look full for five seconds; they reserve for one second, and only some at a
    time."""
    served.report("web")
    before = served.ask("web")
    served.live.run(served.cluster.report(pod("web", node="a")))
    for number in range(2 * MOST_UNREPORTED):
        served.ask(f"forged-{number}", milli=1)
    assert served.reserving() == MOST_UNREPORTED
    served.watcher.time += UNREPORTED_S
    served.report("other")
    assert [each["Host"] for each in served.ask("other")] == [each["Host"] for each in before]
    assert served.reserving() == 1


@pytest.mark.parametrize("known", [{}, {"uid": "another"}], ids=["no pod", "another uid"])
def test_a_pod_that_the_api_never_reports_is_reserved_for_a_second(served: Served, known: dict[str, Any]) -> None:
    if known:
        served.report("web", **known)
    served.ask("web", uid="forged")
    assert list(served.reserved().values()) == [100]
    served.watcher.time += UNREPORTED_S
    served.ask("other", nodes=())
    assert served.reserved() == {}


def test_pods_of_a_burst_do_not_get_one_node_while_their_reports_are_late(served: Served) -> None:
    """The copy of the pods is most behind when many pods are placed."""
    for number in range(3):
        served.ask(f"web-{number}", milli=3000)
    assert served.reserved() == dict.fromkeys(NODES, 3000)
    for number in range(3):
        served.report(f"web-{number}", milli=3000)
    served.watcher.time += RESERVED_S - 0.1
    served.ask("other", nodes=())
    assert served.reserved() == dict.fromkeys(NODES, 3000)


@pytest.mark.parametrize("reason", ["failing watch", "client certificate"])
def test_requests_are_trusted_without_other_sources_or_with_certificates(reason: str) -> None:
    """While the API reports no changes, or if only kube-scheduler can send requests."""
    made = Served(scheduler_clients=("system:kube-scheduler",) if reason == "client certificate" else ())
    made.cluster.is_watched = reason != "failing watch"
    with made.live:
        for number in range(2 * MOST_UNREPORTED):
            made.ask(f"web-{number}", milli=1)
        made.watcher.time += RESERVED_S - 0.1
        made.ask("other", nodes=())
        assert made.reserving() == 2 * MOST_UNREPORTED
        assert len(made.why("web-0")) == 1
        made.report("bound", node="a")
        made.ask("bound")
        assert made.reserving() == 2 * MOST_UNREPORTED


async def test_a_copy_whose_watch_fails_after_the_first_list_is_not_current(tmp_path: Path) -> None:
    with FakeKube() as kube:
        kube.node("a")
        flags = {"kubernetes.kubeconfig": str(kube.kubeconfig(tmp_path / "kubeconfig")), "provider.name": "host"}
        cluster = KubernetesCluster(load(flags=flags, environ={}, file=None, cwd=tmp_path))
        await cluster.start(on_node=lambda *_: None, on_pod=lambda *_: None, on_node_metric=None)
        try:
            await eventually(cluster.is_current, what="the first list")
            kube.forbidden = {("list", PODS), ("watch", PODS)}
            kube.drop_connections()
            await eventually(lambda: not cluster.is_current(), what="a failing watch")
            assert cluster.is_synced()
        finally:
            await cluster.close()


def test_a_reservation_has_the_resources_of_the_pod_in_the_api(served: Served) -> None:
    served.report("web", milli=300)
    served.ask("web", milli=4000)
    assert list(served.reserved().values()) == [300]


@pytest.mark.parametrize(
    "known",
    [{"node": "a"}, {"phase": "Succeeded"}],
    ids=["bound", "ended"],
)
def test_only_a_pod_that_waits_for_a_node_is_reserved(served: Served, known: dict[str, Any]) -> None:
    served.report("web", **known)
    served.ask("web")
    assert served.reserved() == {}


def test_a_pod_that_the_api_reports_after_the_request_is_reserved_then(served: Served) -> None:
    """The watch of the extender may be some milliseconds behind that of kube-scheduler."""
    served.ask("web", milli=4000)
    served.report("web", milli=200)
    assert list(served.reserved().values()) == [200]
    served.watcher.time += RESERVED_S - 0.1
    served.ask("other", nodes=())
    assert list(served.reserved().values()) == [200]


def test_a_pod_that_is_reported_much_later_is_not_reserved(served: Served) -> None:
    served.ask("web")
    served.watcher.time += RESERVED_S + 1
    served.report("web")
    served.ask("other", nodes=())
    assert served.reserved() == {}


def test_every_pod_is_reserved_until_pods_are_listed(served: Served) -> None:
    """Without access to pods, the extender cannot know which exist."""
    served.cluster.is_whole = False
    served.ask("web")
    assert list(served.reserved().values()) == [100]


# --- decisions -------------------------------------------------------------------------------------------------------


def test_forged_requests_are_not_the_latest_decision(served: Served) -> None:
    served.report("web")
    served.ask("web")
    true = served.why("web")
    assert len(true) == 1
    served.watcher.time += 2
    served.ask("web", uid="forged")
    assert served.why("web") == true


@pytest.mark.slow
def test_forged_requests_displace_no_decision(served: Served) -> None:
    """Neither before nor after it is stored, and not its outcome either."""
    served.report("web")
    served.ask("web")
    for number in range(1_100):
        served.ask(f"forged-{number}", nodes=("a",))
    assert len(served.why("web")) == 1
    assert served.why("forged-1") == []
    assert len(served.watcher.decisions.kept_decisions) == 1
    served.report("web", node="a")
    served.why("web")
    (kept,) = served.watcher.decisions.kept_decisions.values()
    assert kept.node == "a"


@pytest.mark.slow
def test_repeated_requests_about_a_pod_have_a_share(served: Served) -> None:
    """The first ten, and the newest of each second: kube-scheduler waits for a second between two attempts."""
    served.report("web")
    served.report("db")
    served.ask("db")
    for _ in range(300):
        served.watcher.time += 0.01
        served.ask("web", nodes=("a",))
    assert served.why("web")[0] == pytest.approx(served.watcher.time)
    assert len(served.why("db")) == 1
    assert len(served.watcher.decisions.kept_decisions) < 150


def test_a_decision_is_recorded_when_the_api_reports_its_pod(served: Served) -> None:
    served.ask("web")
    assert served.why("web") == []
    served.report("web")
    assert len(served.why("web")) == 1


def test_two_forged_requests_in_one_second_are_not_recorded(served: Served) -> None:
    """The second replaces the first before the first is written."""
    service = served.service

    async def meet() -> None:
        forged, profile = info("forged"), service.extender.profiles["p"]
        rows = service.table.row
        filtered = profile.filter(forged, np.array([rows[name] for name in NODES]), now=served.watcher.time)
        for _ in range(2):
            service.decisions.filtered("p", forged, NODES, filtered, asked=len(NODES))
        await asyncio.sleep(0)

    served.live.run(meet())
    assert served.why("forged") == []
    assert not served.watcher.decisions.kept_decisions


def test_a_decision_about_a_late_pod_has_the_scores_of_its_node(served: Served) -> None:
    """Also of a node that is not among the best, which are recorded."""
    names = (*NODES, *MORE_NODES)
    for name in NODES:
        served.report(f"on-{name}", milli=2000, node=name)
    answered = served.ask("web", nodes=names)
    worst = min(answered, key=lambda each: each["Score"])["Host"]
    served.report("web")
    served.report("web", node=worst)
    served.live.run(served.recorder.flush())
    decision = served.live.ask("/scheduler/decisions?pod=default/web").json()["decision"]
    assert f"of {len(names)} nodes (score" in decision["outcome"]["sentence"]


# --- nodes -----------------------------------------------------------------------------------------------------------


def test_a_repeated_node_has_one_score(served: Served) -> None:
    """kube-scheduler adds the scores of a name, so that a repeated node would win."""
    served.report("web")
    answered = served.ask("web", nodes=("a", "b", "a", "a"))
    assert [each["Host"] for each in answered] == ["a", "b"]
    body = json.dumps(asking("a", "b", "a", name="web")).encode()
    passed = served.live.ask("/scheduler/p/filter", method="POST", body=body).json()
    assert passed["NodeNames"] == ["a", "b"]
