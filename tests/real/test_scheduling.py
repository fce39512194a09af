"""The extender in a running service: nodes and pods from a Kubernetes API, and the load of this machine."""

from __future__ import annotations

import random
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from load_watcher.main import main
from tests.conftest import RunService
from tests.fakes.kube import NODES, PODS, FakeKube
from tests.service import Answer, Service
from tests.waiting import wait_for

CONFIG = """
[refresh]
interval = "1s"
resolution = "1s"

[kubernetes]
kubeconfig = "{kubeconfig}"

[scheduler.default]
plugins = [
  {{ name = "TargetLoadPacking", weight = 1, args = {{ targetUtilization = 50 }} }},
  {{ name = "NodeResourceLimits", weight = 1 }},
]
bind = true
"""
SCHEDULED = "2023-11-14T22:13:20Z"  # long ago, so that current measurements contain it
STATUS = {"capacity": {"cpu": "8", "memory": "16Gi"}, "allocatable": {"cpu": "8", "memory": "16Gi"}}


@pytest.fixture
def kube() -> Iterator[FakeKube]:
    with FakeKube() as server:
        yield server


def add_node(kube: FakeKube, name: str) -> None:
    kube.put(NODES, name, metadata={"name": name}, status=STATUS)


def add_pod(
    kube: FakeKube,
    name: str,
    *,
    node: str = "",
    milli: int = 1000,
    phase: str = "Running",
    uid: str = "",
    scheduled: str = SCHEDULED,
) -> None:
    container = {"name": "c", "resources": {"requests": {"cpu": f"{milli}m"}, "limits": {"cpu": f"{milli}m"}}}
    spec: dict[str, Any] = {"containers": [container], **({"nodeName": node} if node else {})}
    metadata = {"name": name, "namespace": "default", "uid": uid or f"uid-{name}"}
    condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": scheduled}
    status = {"phase": phase, **({"conditions": [condition]} if node else {})}
    kube.put(PODS, f"default/{name}", metadata=metadata, spec=spec, status=status)


def extending(run_service: RunService, kube: FakeKube, tmp_path: Path, *, more: str = "") -> Service:
    config = CONFIG.format(kubeconfig=kube.kubeconfig(tmp_path / "kubeconfig")) + more
    return run_service("--provider", "host", config=config, env={"NODE_NAME": "worker-1"})


def post(service: Service, verb: str, body: object) -> Answer:
    answer = service.session.post(f"{service.url}/scheduler/default/{verb}", json=body, timeout=60)
    return Answer(answer.status_code, answer.headers, answer.content)


def asking(*names: str, pod: str = "web") -> dict[str, Any]:
    container = {"name": "c", "resources": {"requests": {"cpu": "1"}}}
    metadata = {"name": pod, "namespace": "default", "uid": f"uid-{pod}"}
    return {"Pod": {"metadata": metadata, "spec": {"containers": [container]}}, "Nodes": None, "NodeNames": list(names)}


def nodes_of(service: Service) -> dict[str, Any]:
    nodes: dict[str, Any] = service.get("/scheduler/default/nodes").json()["nodes"]
    return nodes


def requested(service: Service) -> dict[str, int]:
    return {name: node["requested"].get("cpu", 0) for name, node in nodes_of(service).items()}


def test_a_pod_is_ranked_bound_and_counted(run_service: RunService, kube: FakeKube, tmp_path: Path):
    """By name, with the load of this machine and the nodes and pods of the API."""
    for name in ("worker-1", "worker-2"):
        add_node(kube, name)
    add_pod(kube, "db", node="worker-2", milli=6000)
    add_pod(kube, "done", node="worker-1", milli=4000, phase="Succeeded")
    add_pod(kube, "web")
    service = extending(run_service, kube, tmp_path)
    wait_for(lambda: requested(service) == {"worker-1": 0, "worker-2": 6000}, what="nodes and pods")
    wait_for(lambda: nodes_of(service)["worker-1"]["load"], what="load")

    answer = post(service, "prioritize", asking("worker-1", "worker-2"))
    assert answer.status == 200
    scores = {each["Host"]: each["Score"] for each in answer.json()}
    assert scores["worker-1"] > scores["worker-2"]  # it has no metrics, and most of its limits are promised
    assert nodes_of(service)["worker-1"]["reserved"] == ["uid-web"]

    reported = post(service, "explain", {"Pod": asking()["Pod"]}).json()
    assert [node["name"] for node in reported["nodes"]] == ["worker-1", "worker-2"]
    assert "no metrics of this node: 0" in {each["reason"] for each in reported["nodes"][1]["plugins"]}

    binding = {"PodName": "web", "PodNamespace": "default", "PodUID": "uid-web", "Node": "worker-2"}
    assert post(service, "bind", binding).json() == {"Error": ""}
    wait_for(
        lambda: requested(service) == {"worker-1": 0, "worker-2": 7000}, what="the pod on the node it was bound to"
    )
    again = post(service, "bind", binding).json()["Error"]
    assert "web" in again
    assert "/scheduler/{profile}/prioritize" in service.get("/openapi.json").json()["paths"]
    assert 0 == service.stop()
    assert "Traceback" not in service.log()


def decision(service: Service, pod: str) -> dict[str, Any]:
    """The newest decision about a pod of the namespace default."""
    answer = service.get(f"/scheduler/decisions?pod=default/{pod}")
    assert answer.status == 200, answer.text
    found: dict[str, Any] = answer.json()["decision"]
    return found


def bound_in_file(service: Service) -> dict[str, str]:
    """Pod -> the node that it was bound to ("" if unknown), of all decisions in the database file."""
    with closing(sqlite3.connect(service.directory / "load-watcher.db")) as database:
        return dict(database.execute("SELECT pod, node FROM decision").fetchall())


def test_decisions_from_before_a_kill_are_available_after_it(run_service: RunService, kube: FakeKube, tmp_path: Path):
    """Bindings from before the kill are known from the watch, bindings during the outage from the pod itself."""
    for name in ("worker-1", "worker-2"):
        add_node(kube, name)
    for pod in ("seen", "missed"):
        add_pod(kube, pod)
    service = extending(run_service, kube, tmp_path)
    wait_for(lambda: set(nodes_of(service)) == {"worker-1", "worker-2"}, what="nodes")
    for pod in ("seen", "missed"):
        assert post(service, "filter", asking("worker-1", "worker-2", pod=pod)).status == 200
        assert post(service, "prioritize", asking("worker-1", "worker-2", pod=pod)).status == 200
    add_pod(kube, "seen", node="worker-2")
    wait_for(lambda: decision(service, "seen")["outcome"]["kind"] == "bound", what="the event of the watch")
    before = decision(service, "seen")
    assert ("worker-2", True) == (before["outcome"]["node"], before["outcome"]["rank"] in (1, 2))
    wait_for(lambda: bound_in_file(service) == {"seen": "worker-2", "missed": ""}, what="both in the file")

    service.kill()
    add_pod(kube, "missed", node="worker-1")
    service.start()
    after = decision(service, "seen")
    assert before | {"ago_s": 0} == after | {"ago_s": 0}
    wait_for(lambda: decision(service, "missed")["outcome"]["kind"] == "bound", what="the pod to be seen")
    reported = CliRunner().invoke(main, ["why", "missed", "--url", service.url])
    assert (0, True) == (reported.exit_code, "bound to worker-1" in reported.stdout), reported.output
    assert 0 == service.stop()
    assert "Traceback" not in service.log()


def now_stamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_the_choices_of_shadow_profiles_are_available_after_a_kill(
    run_service: RunService, kube: FakeKube, tmp_path: Path
):
    """For a pod without a request to the extender, and for one with a request."""
    for name in ("worker-1", "worker-2"):
        add_node(kube, name)
    for pod in ("old", "other", "ours"):
        add_pod(kube, pod)
    add_pod(kube, "old", node="worker-1")
    more = (
        '[scheduler]\nshadow = ["default", "limits"]\n[scheduler.limits]\nplugins = [{name = "NodeResourceLimits"}]\n'
    )
    service = extending(run_service, kube, tmp_path, more=more)
    wait_for(lambda: requested(service) == {"worker-1": 1000, "worker-2": 0}, what="nodes and pods")
    wait_for(lambda: nodes_of(service)["worker-1"]["load"], what="load")
    post(service, "prioritize", asking("worker-1", "worker-2", pod="ours"))
    for pod in ("other", "ours"):
        add_pod(kube, pod, node="worker-1", scheduled=now_stamp())

    def seen() -> dict[str, Any] | None:
        report: dict[str, Any] = service.get("/scheduler/shadow").json()
        return report if report["bindings"] + len(report["left_out"]) >= 2 else None

    found = wait_for(seen, what="both in the report")
    assert found is not None
    assert (2, [], {"asked": 1, "estimated": 1}) == (found["bindings"], found["left_out"], found["candidates"])
    of_profiles = {each["profile"]: each for each in found["profiles"]}
    assert (2, 2) == (of_profiles["limits"]["other"], of_profiles["default"]["bindings"])
    assert 2 == of_profiles["limits"]["difference"]["CPU"]["now"]["unknown"]  # worker-2 has no load
    with closing(sqlite3.connect(service.directory / "load-watcher.db")) as database:
        wait_for(
            lambda: database.execute("SELECT count(*) FROM decision WHERE kind = 'shadow'").fetchone() == (2,),
            what="it on disk",
        )
    service.kill()
    service.start()
    reported = CliRunner().invoke(main, ["shadow", "--url", service.url])
    assert (0, True) == (reported.exit_code, "2 pods bound" in reported.stdout), reported.output
    assert 0 == service.stop()
    assert "Traceback" not in service.log()


def known_of(service: Service) -> dict[str, Any]:
    """All data of nodes in the table except the load, which two services measure at different times."""
    return {
        name: {key: value for key, value in node.items() if key not in ("load", "sampled")}
        for name, node in nodes_of(service).items()
    }


def test_after_two_thousand_pods_the_table_equals_that_of_a_new_service(
    run_service: RunService, kube: FakeKube, tmp_path: Path
):
    """Pods are created, scored, bound, moved, ended and deleted on 500 nodes, some of which are removed and added
    again; watches break meanwhile, so that all objects are listed again."""
    chance = random.Random(7)
    names = [f"node-{i:03d}" for i in range(500)]
    for name in names:
        add_node(kube, name)
    service = extending(run_service, kube, tmp_path)
    left: dict[str, tuple[str, int]] = {}
    for i in range(2000):
        pod, node, milli = f"pod-{i}", chance.choice(names), chance.randrange(1, 4000)
        add_pod(kube, pod, milli=milli)
        if i % 100 == 50:
            post(service, "prioritize", asking(*chance.sample(names, 3), pod=pod))
        add_pod(kube, pod, node=node, milli=milli)
        left[pod] = (node, milli)
        if chance.random() < 0.5:
            changed = chance.choice(sorted(left))
            node, milli = left.pop(changed)
            what = chance.choice(["deleted", "ended", "moved"])
            if what == "deleted":
                kube.delete(PODS, f"default/{changed}")
            elif what == "ended":
                add_pod(kube, changed, node=node, milli=milli, phase="Failed")
            else:  # as by an owner: another pod with the same name
                left[changed] = chance.choice(names), milli
                kube.delete(PODS, f"default/{changed}")
                add_pod(kube, changed, node=left[changed][0], milli=milli, uid=f"uid-{changed}-{i}")
        if i % 200 == 150:
            gone = chance.choice(names)
            kube.delete(NODES, gone)
            add_node(kube, gone)
        if i % 500 == 250:
            kube.drop_connections()
        if i == 1400:
            kube.compact()
    expected = dict.fromkeys(names, 0)
    for node, milli in left.values():
        expected[node] += milli
    wait_for(lambda: requested(service) == expected, what="the table to be as the API has it")
    assert len(left) == sum(node["pods"] for node in nodes_of(service).values())
    (tmp_path / "again").mkdir()
    fresh = extending(run_service, kube, tmp_path / "again")
    wait_for(lambda: len(known_of(fresh)) == len(names), what="the nodes of the other service")
    wait_for(lambda: known_of(service) == known_of(fresh), what="both to know the same")


def test_sighup_loads_other_profiles_and_refuses_invalid_ones(run_service: RunService, kube: FakeKube, tmp_path: Path):
    """Without a restart; the known cluster stays."""
    add_node(kube, "worker-1")
    service = extending(run_service, kube, tmp_path)
    wait_for(lambda: requested(service) == {"worker-1": 0}, what="the node")
    good = service.config_file.read_text()

    def profiles() -> list[str]:
        reported: list[str] = service.get("/scheduler/plugins").json()["profiles"]
        return reported

    def reload(config: str) -> None:
        service.config_file.write_text(config)
        assert service.process is not None
        service.process.send_signal(signal.SIGHUP)

    other = '[scheduler.other]\nplugins = [ {name = "LoadVariationRiskBalancing"} ]\n'
    reload(good + other)
    wait_for(lambda: profiles() == ["default", "other"], what="the second profile")
    answer = service.session.post(f"{service.url}/scheduler/other/prioritize", json=asking("worker-1"), timeout=60)
    assert [{"Host": "worker-1", "Score": answer.json()[0]["Score"]}] == answer.json()
    reload(good + other.replace("Risk", "Risc"))
    wait_for(lambda: "did you mean LoadVariationRiskBalancing?" in service.log(), what="the problem in the log")
    assert ["default", "other"] == profiles()
    reload(good)
    wait_for(lambda: profiles() == ["default"], what="the second profile to go")
    assert "take effect only after a restart" not in service.log()
    assert {"worker-1"} == set(nodes_of(service))


def test_without_a_kubernetes_api_all_scores_are_0(run_service: RunService, tmp_path: Path):
    """No nodes are known, so the other plug-ins of the scheduler decide."""
    with FakeKube() as kube:
        config = CONFIG.format(kubeconfig=kube.kubeconfig(tmp_path / "kubeconfig"))
    service = run_service("--provider", "host", config=config, env={"NODE_NAME": "worker-1"})
    assert post(service, "prioritize", asking("worker-1")).json() == [{"Host": "worker-1", "Score": 0}]
    assert post(service, "filter", asking("worker-1")).json()["NodeNames"] == ["worker-1"]
    service.wait_for_status(200)
    assert 0 == service.stop()


def test_an_invalid_profile_prevents_the_start_with_all_problems(run_service: RunService, tmp_path: Path):
    """Exit code 2, each with its key and its remedy."""
    config = '[scheduler.default]\nplugins = [ { name = "TargetLoadPaking" } ]\nreserve = "x"\n'
    service = run_service("--provider", "host", config=config, wait=False)
    assert service.process is not None
    assert 2 == service.process.wait(60)
    assert "did you mean TargetLoadPacking?" in service.log()
    assert "scheduler.default.reserve" in service.log()
