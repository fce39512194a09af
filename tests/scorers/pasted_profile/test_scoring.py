"""POST /scheduler/try: scores by a pasted profile from windows alone, and what is left out without a Kubernetes API."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from scorers.pasted_profile.module import PastedProfileModule
from tests.fakes.kube import FakeKube
from tests.fakes.service import Answer, Live, Protection
from tests.fakes.snapshots import publish, snapshot_of, steady
from tests.scorers.plugins.koordinator.test_service import Service
from watcher.core.koordinator.report import Capacity

POD = """
kind: Pod
metadata: {name: web}
spec: {containers: [{name: web, resources: {requests: {cpu: "2", memory: 8Gi}, limits: {cpu: "2", memory: 8Gi}}}]}
"""
PACKING = "plugins: [{name: TargetLoadPacking, args: {targetUtilization: 50}}]"
CONFIGURATION = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
- schedulerName: trimaran
  plugins: {score: {enabled: [{name: TargetLoadPacking}, {name: NodeResourcesFit}]}}
  pluginConfig: [{name: TargetLoadPacking, args: {targetUtilization: 50, watcherAddress: "http://x"}}]
"""
LOADS = {"hot": 60.0, "warm": 20.0, "cold": 5.0}
PEAKS = "{name: Peaks, args: {NodePowerModel: {hot: {k0: 470, k1: -91, k2: -0.07}}}}"
SIZE = {"cpu": "8", "memory": "32Gi"}


class Sized(Service):
    """A service whose source knows the capacity of some nodes."""

    sizes: Mapping[str, Capacity] = {}

    async def capacities(self) -> Mapping[str, Capacity]:
        return self.sizes


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Sized]:
    with FakeKube() as kube:
        made = Sized(kube.kubeconfig(tmp_path / "kubeconfig"))
        loads = {"hot": 60.0, "warm": 20.0, "cold": 5.0}
        made.published = publish(
            snapshot_of({name: {"CPU": steady(cpu), "Memory": steady(30)} for name, cpu in loads.items()})
        )
        yield made


def ask(service: Sized, profile: str, *, protection: Protection | None = None, **given: Any) -> Answer:
    body = json.dumps({"pod": POD, "profile": profile, **given}).encode()
    with Live(routes=PastedProfileModule().build({}, service).routes, protection=protection) as live:
        return live.ask("/scheduler/try", method="POST", body=body)


def trial(service: Sized, profile: str, **given: Any) -> dict[str, Any]:
    answer = ask(service, profile, **given)
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json()
    return found


def scores(document: Mapping[str, Any]) -> dict[str, float]:
    return {node["name"]: node["score"] for node in document["nodes"]}


@pytest.mark.parametrize("profile", [PACKING, CONFIGURATION], ids=["plugins", "KubeSchedulerConfiguration"])
def test_a_pod_is_scored_on_nodes_of_a_known_size(service: Sized, profile: str) -> None:
    """2 of 8 cores are 25 %: 20 % becomes 45 %, which is 50 * 45 / 50 + 50 = 95."""
    service.sizes = dict.fromkeys(("hot", "warm", "cold"), Capacity(8000, 32 << 30))
    document = trial(service, profile)
    assert scores(document) == {"warm": 95.0, "cold": 80.0, "hot": 15.0}
    assert (document["with_pod"], document["of"], document["left_out"]) == (True, 3, [])
    assert document["nodes"][0]["plugins"][0]["reason"] == "cpu would be at 45.0 %, 5.0 below the target: 95"


def test_an_entered_size_counts_only_for_nodes_of_unknown_capacity(service: Sized) -> None:
    service.sizes = {"warm": Capacity(4000, 32 << 30)}
    document = trial(service, PACKING, node=SIZE)
    assert scores(document) == {"warm": 30.0, "cold": 80.0, "hot": 15.0}
    assert "Assumed for 2 nodes: 8 cores and 32 GiB, as entered." in document["notes"]


def test_without_any_capacity_the_nodes_are_scored_without_the_pod(service: Sized) -> None:
    """No number that depends on a capacity is shown."""
    document = trial(service, PACKING)
    assert scores(document) == {"warm": 70.0, "cold": 55.0, "hot": 40.0}
    assert document["with_pod"] is False
    assert document["notes"][0].startswith(
        "The capacity of the nodes is unknown, so the nodes are scored at their current load"
    )
    (plugin,) = document["nodes"][0]["plugins"]
    assert plugin["steps"] == {"cpu load %": 20.0, "cpu predicted %": 20.0, "cpu score": 70.0}
    assert plugin["inputs"] == {"targetUtilization": 50.0}


def test_nodes_without_capacity_among_others_are_left_out_and_named(service: Sized) -> None:
    service.sizes = {"cold": Capacity(8000, 32 << 30)}
    document = trial(service, PACKING)
    assert (scores(document), document["unknown"]) == ({"cold": 80.0}, ["hot", "warm"])


def test_plug_ins_that_need_pods_or_capacity_are_left_out_with_the_reason(service: Sized) -> None:
    profile = f"plugins: [{{name: LowRiskOverCommitment}}, {{name: LoadVariationRiskBalancing}}, {PEAKS}]"
    document = trial(service, profile)
    reasons = {each["name"]: each["reason"] for each in document["left_out"]}
    assert reasons["LowRiskOverCommitment"].startswith("needs requests and limits of the pods on each node")
    assert reasons["Peaks"].startswith("needs the CPU capacity of the nodes")
    assert ["LoadVariationRiskBalancing"] == [each["name"] for each in document["nodes"][0]["plugins"]]
    assert ([], 0) == (
        trial(service, f"plugins: [{PEAKS}]")["nodes"],
        trial(service, f"plugins: [{PEAKS}]")["of"],
    )


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"profile": "plugins: [{name: TargetLoadPackin}]"}, "did you mean TargetLoadPacking?"),
        ({"profile": "from: /etc/passwd"}, "start with plugins:"),
        ({"profile": "plugins: [{name: Peaks}]\nfrom: /etc/passwd"}, "start with plugins:"),
        ({"profile": CONFIGURATION.replace("trimaran", "a").replace("TargetLoadPacking", "X")}, "keep one profile"),
        ({"profile": "plugins: &a [*a]"}, "plugins: [{name: TargetLoadPacking}]"),
        ({"profile": PACKING, "pod": "kind: Service"}, "send one of Pod"),
        ({"profile": PACKING, "node": {"cpu": "8"}}, '"memory": "32Gi"'),
        ({"profile": PACKING, "node": {"cpu": "0", "memory": "1"}}, '"memory": "32Gi"'),
        ({"profile": PACKING, "limit": 0}, "1 to 10000"),
        ({"profile": PACKING, "limits": 1}, '{"pod": "MANIFEST"'),
    ],
)
def test_a_wrong_request_is_an_error_with_a_remedy(service: Sized, given: dict[str, Any], says: str) -> None:
    answer = ask(service, **given)
    assert answer.status == 400, answer.body
    assert says in answer.json()["error"]["hint"]


def test_without_load_the_error_is_that_of_the_watcher(service: Sized) -> None:
    service.published = None
    answer = ask(service, PACKING)
    assert (answer.status, answer.json()["error"]["code"]) == (503, "no_metrics")


def test_the_token_protects_try_as_explain(service: Sized) -> None:
    assert ask(service, PACKING, protection=Protection(token="x")).status == 401
