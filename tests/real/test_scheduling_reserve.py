"""Pods for which the real kube-scheduler requests no scores, and pods with an in-place resize."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunService
from tests.real.kube import ApiServer
from tests.real.scheduled_cluster import (
    NODES,
    PODS,
    SETTINGS,
    ExtendedScheduler,
    NodeLoad,
    add_nodes,
    add_pods,
    bindings,
    clear,
    decision_about,
    known_nodes,
    wait_until_bound,
    wait_until_loaded,
    write_trace,
)
from tests.service import Service
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.real_apiserver]

PROFILE = """
[scheduler.default]
plugins = [ { name = "TargetLoadPacking" }, { name = "HighLoadFilter", args = { usageThresholds = { cpu = 90 } } } ]
"""
LOADS = {"idle": NodeLoad(4, 16, 10.0, 20.0), "warm": NodeLoad(4, 16, 14.0, 20.0), "hot": NodeLoad(4, 16, 98.0, 20.0)}


@pytest.fixture
def service(apiserver: ApiServer, run_service: RunService, tmp_path: Path) -> Iterator[Service]:
    add_nodes(apiserver, LOADS)
    trace = write_trace(tmp_path / "trace.csv", LOADS)
    config = SETTINGS.format(kubeconfig=apiserver.kubeconfig(tmp_path / "kubeconfig")) + PROFILE
    made = run_service("--provider", "replay", "--trace", str(trace), config=config)
    wait_until_loaded(made, LOADS, profile="default")
    yield made
    clear(apiserver)


def label(api: ApiServer, node: str, **labels: str) -> None:
    patch(api, f"{NODES}/{node}", {"metadata": {"labels": labels}})


def patch(api: ApiServer, path: str, change: dict[str, Any]) -> None:
    """Apply a strategic merge patch."""
    header = {"Content-Type": "application/strategic-merge-patch+json"}
    answer = api.ask("PATCH", path, change, headers=header)
    assert answer.ok, answer.text


def test_a_pod_with_one_feasible_node_is_reserved_by_filter(apiserver: ApiServer, service: Service, tmp_path: Path):
    """kube-scheduler's own filters leave one node, or those of the extender do. With two nodes, prioritize reserves."""
    for node in ("idle", "hot"):
        label(apiserver, node, pool="a")
    label(apiserver, "warm", pool="b")
    with ExtendedScheduler(tmp_path / "scheduler", apiserver, service, filterVerb="filter", httpTimeout="10s"):
        add_pods(apiserver, ["selected"], nodeSelector={"pool": "b"})
        add_pods(apiserver, ["filtered"], nodeSelector={"pool": "a"})
        add_pods(apiserver, ["ranked"])
        placed = wait_until_bound(apiserver, ["selected", "filtered", "ranked"])
        found = {name: decision_about(service, name) for name in placed}
    assert (placed["selected"], placed["filtered"]) == ("warm", "idle")
    for name, asked in (("selected", 1), ("filtered", 2)):
        assert found[name]["ranking"] is None
        assert (found[name]["filter"]["asked"], found[name]["filter"]["reserved"]) == (asked, placed[name])
    assert found["ranked"]["filter"]["reserved"] is None
    assert found["ranked"]["ranking"]["reserved"]
    known = known_nodes(service, "default")
    assert [known[name]["reserved"] for name in LOADS] == [[], [], []]
    assert known["warm"]["pods"] + known["idle"]["pods"] == 3


def test_a_nominated_node_is_filtered_alone_and_reserved(apiserver: ApiServer, service: Service, tmp_path: Path):
    """The status may name a node from the start. If the extender rejects this node, all nodes follow."""
    add_pods(apiserver, ["accepted", "rejected"])
    for name, node in (("accepted", "warm"), ("rejected", "hot")):
        patch(apiserver, f"{PODS}/{name}/status", {"status": {"nominatedNodeName": node}})
    with ExtendedScheduler(tmp_path / "scheduler", apiserver, service, filterVerb="filter", httpTimeout="10s"):
        placed = wait_until_bound(apiserver, ["accepted", "rejected"])
        accepted, rejected = (decision_about(service, name) for name in ("accepted", "rejected"))
    assert placed["accepted"] == "warm"
    assert (accepted["filter"]["asked"], accepted["filter"]["reserved"], accepted["ranking"]) == (1, "warm", None)
    assert placed["rejected"] in ("warm", "idle")
    assert (rejected["filter"]["asked"], rejected["filter"]["reserved"]) == (3, None)
    assert rejected["ranking"]["reserved"]
    known = known_nodes(service, "default")
    assert [known[name]["reserved"] for name in LOADS] == [[], [], []]


def test_a_pod_that_preempts_others_is_reserved_on_its_node(apiserver: ApiServer, service: Service, tmp_path: Path):
    """The first attempt finds no node and nominates one; after the deletion of its pods, this node is tried alone."""
    apiserver.make("/apis/scheduling.k8s.io/v1/priorityclasses", metadata={"name": "high"}, value=1000)
    full, pool = ["full-0", "full-1"], {"nodeSelector": {"pool": "a"}}
    for node in ("idle", "warm"):
        label(apiserver, node, pool="a")
    with ExtendedScheduler(tmp_path / "scheduler", apiserver, service, filterVerb="filter", httpTimeout="10s"):
        add_pods(apiserver, full, cpu="3", **pool)
        wait_until_bound(apiserver, full)
        add_pods(apiserver, ["high"], cpu="3", priorityClassName="high", **pool)
        nominated = wait_for(lambda: status_of(apiserver, "high").get("nominatedNodeName"), what="the nomination")
        victim = next(name for name, node in bindings(apiserver).items() if node == nominated)
        apiserver.ask("DELETE", f"{PODS}/{victim}", {"gracePeriodSeconds": 0})
        placed = wait_until_bound(apiserver, ["high"])
        decision = decision_about(service, "high")
    assert placed["high"] == nominated
    assert (decision["filter"]["asked"], decision["filter"]["reserved"], decision["ranking"]) == (1, nominated, None)


def status_of(api: ApiServer, pod: str) -> dict[str, Any]:
    status: dict[str, Any] = api.ask("GET", f"{PODS}/{pod}").json()["status"]
    return status


def requested(service: Service, node: str) -> int:
    cpu: int = known_nodes(service, "default")[node]["requested"].get("cpu", 0)
    return cpu


def test_a_resize_counts_when_the_status_has_it(apiserver: ApiServer, service: Service, tmp_path: Path):
    """The old request counts until the kubelet has set the new one; kube-scheduler refuses a pod meanwhile."""
    apiserver.make(PODS, metadata={"name": "db"}, spec={"nodeName": "idle", "containers": [container("3")]})
    report(apiserver, "db", "3")
    wait_for(lambda: requested(service, "idle") == 3000, what="the pod to count")
    patch(apiserver, f"{PODS}/db/resize", {"spec": {"containers": [container("500m")]}})
    apiserver.make(PODS, metadata={"name": "marker"}, spec={"nodeName": "idle", "containers": [container("1m")]})
    wait_for(lambda: requested(service, "idle") == 3001, what="a pod that was created after the resize")
    assert rejected(service, "idle", "2") == ["no room: cpu"]
    with ExtendedScheduler(tmp_path / "scheduler", apiserver, service, httpTimeout="10s"):
        add_pods(apiserver, ["next"], cpu="2", nodeSelector={"kubernetes.io/hostname": "idle"})
        label(apiserver, "idle", **{"kubernetes.io/hostname": "idle"})
        conditions = wait_for(
            lambda: [each for each in status_of(apiserver, "next").get("conditions", []) if "cpu" in each["message"]],
            what="kube-scheduler to refuse the pod",
        )
        assert "1 Insufficient cpu" in conditions[0]["message"]
        report(apiserver, "db", "500m")
        assert wait_until_bound(apiserver, ["next"])["next"] == "idle"
    wait_for(lambda: requested(service, "idle") == 2501, what="the resize to count")
    assert rejected(service, "idle", "1") == []


def test_an_infeasible_resize_does_not_count(apiserver: ApiServer, service: Service):
    apiserver.make(PODS, metadata={"name": "db"}, spec={"nodeName": "idle", "containers": [container("1")]})
    report(apiserver, "db", "1")
    patch(apiserver, f"{PODS}/db/resize", {"spec": {"containers": [container("3")]}})
    wait_for(lambda: requested(service, "idle") == 3000, what="the resize to count")
    pending = {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}
    patch(apiserver, f"{PODS}/db/status", {"status": {"conditions": [pending]}})
    wait_for(lambda: requested(service, "idle") == 1000, what="the infeasible resize not to count")


def container(cpu: str) -> dict[str, Any]:
    return {"name": "main", "image": "x", "resources": {"requests": {"cpu": cpu}}}


def report(api: ApiServer, pod: str, cpu: str) -> None:
    """Report the resources of a running container, as the kubelet does."""
    resources = {"requests": {"cpu": cpu}}
    state = {"state": {"running": {}}, "image": "x", "imageID": "x", "ready": True, "restartCount": 0}
    status = {"name": "main", **state, "resources": resources, "allocatedResources": resources["requests"]}
    patch(api, f"{PODS}/{pod}/status", {"status": {"phase": "Running", "containerStatuses": [status]}})


def rejected(service: Service, node: str, cpu: str) -> list[str]:
    """Return why kube-scheduler would reject a pod on a node, according to the service."""
    spec = {"containers": [container(cpu)]}
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "next"}, "spec": spec}
    url = f"{service.url}/scheduler/default/score?node={node}"
    (found,) = service.session.post(url, json=manifest, timeout=60).json()["nodes"]
    return [each["reason"] for each in found["plugins"] if "of" in each]
