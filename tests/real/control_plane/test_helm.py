"""The chart with the real Helm on a real API server: install, notes, test, upgrade, uninstall. No controller and no
kubelet run, so the tests write the status of the pod of `helm test`."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.rendering import CHART, documents, helm, with_images
from tests.deploy.test_manifests import CHARTS, PROMETHEUS
from tests.real.control_plane.manifests import apply
from tests.real.control_plane.test_manifests import prepared, problems, refusal
from tests.real.kube import DEFINITIONS, ApiServer
from tests.waiting import wait_for

__all__ = ["prepared"]  # a fixture

pytestmark = [pytest.mark.slow, pytest.mark.real_apiserver]

IGNORED = {"events", "leases", "componentstatuses", "customresourcedefinitions", "apiservices", "namespaces"}
"""Resources that the API server or the tests write, and the definitions, which Helm keeps."""
EVERYTHING = {**CHARTS["everything"], "fullnameOverride": "", "serviceAccount": {"create": True}, "extraObjects": []}
SEPARATE = {"scheduler": {"enabled": True, "separate": True}}
MODES: dict[str, dict[str, Any]] = {
    "metrics-server": {},
    "prometheus": {"config": {"provider": PROMETHEUS}},
    "extender": {"scheduler": {"enabled": True}},
    "separate extender": SEPARATE,
    "agent": {"agent": {"enabled": True, "config": {"agent": {"mode": "enforce"}}, "nodeRestriction": True}},
    "qrm": {"qrm": {"enabled": True, "nodeRestriction": True}},
    "dashboards": {"dashboards": {"enabled": True}},
}
Run = Callable[..., str]


@pytest.fixture
def run(prepared: ApiServer, tmp_path: Path) -> Run:
    """Helm as the administrator of the cluster."""
    file = prepared.kubeconfig(tmp_path / "kubeconfig")
    return lambda *arguments, values=None: helm(*arguments, "--kubeconfig", file, given=with_images(values))


@pytest.fixture(scope="module")
def namespaces(prepared: ApiServer) -> Mapping[str, str]:
    """A namespace for each level of Pod Security."""
    names = {level: f"helm-{level}" for level in ("restricted", "privileged")}
    for level, name in names.items():
        labels = {"pod-security.kubernetes.io/enforce": level}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        assert apply(prepared, namespace).ok
    return names


@pytest.fixture
def namespace(namespaces: Mapping[str, str]) -> str:
    return namespaces["restricted"]


def objects(api: ApiServer) -> set[str]:
    """All objects of the cluster: resource, namespace and name."""
    groups = api.ask("GET", "/apis").json()["groups"]
    found = set()
    for root in ("/api/v1", *(f"/apis/{each['preferredVersion']['groupVersion']}" for each in groups)):
        for resource in api.ask("GET", root).json()["resources"]:
            if "list" in resource["verbs"] and resource["name"] not in IGNORED:
                for each in api.ask("GET", f"{root}/{resource['name']}").json().get("items") or ():
                    place = each["metadata"]
                    found.add(f"{resource['name']} {place.get('namespace', '')}/{place['name']}")
    return found


@pytest.mark.parametrize("mode", MODES)
def test_a_release_is_accepted_and_leaves_nothing(
    prepared: ApiServer, run: Run, namespaces: Mapping[str, str], mode: str
) -> None:
    """Each object with strict validation, pods of Deployments with the level restricted, and those of DaemonSets only
    with the level privileged."""
    before = objects(prepared)
    level = "privileged" if mode in ("agent", "qrm") else "restricted"
    place = ("--namespace", namespaces[level])
    run("install", "lw", CHART, *place, "--values", "-", values=MODES[mode])
    assert before < objects(prepared)
    installed = documents(run("get", "manifest", "lw", *place))
    assert [] == problems(prepared, installed)
    for each in (each for each in installed if each["kind"] in ("Deployment", "DaemonSet")):
        template = each["spec"]["template"]
        pod = {"metadata": {**template["metadata"], "name": "pod"}, "spec": template["spec"]}
        assert "" == refusal(prepared, pod, namespace=namespaces[level])
        assert bool(refusal(prepared, pod, namespace="restricted")) is (each["kind"] == "DaemonSet")
    run("uninstall", "lw", *place)
    assert before == objects(prepared)


def test_two_releases_with_every_component_share_a_namespace(prepared: ApiServer, run: Run, namespace: str) -> None:
    """And a third one with the name of the first is in another namespace. The definitions of policies stay."""
    before, place, other = objects(prepared), ("--namespace", namespace), ("--namespace", "charts")
    run("install", "one", CHART, *place, "--values", "-", values=EVERYTHING)
    first = objects(prepared) - before
    run("install", "two", CHART, *place, "--values", "-", values={**EVERYTHING, **SEPARATE})
    run("install", "one", CHART, *other, "--values", "-", values=EVERYTHING)
    run("uninstall", "two", *place)
    run("uninstall", "one", *other)
    assert before | first == objects(prepared)
    run("uninstall", "one", *place)
    assert before == objects(prepared)
    assert prepared.ask("GET", f"{DEFINITIONS}/nodeqoss.load-watcher.io").ok


def test_an_upgrade_replaces_the_pods_and_keeps_the_brake(prepared: ApiServer, run: Run, namespace: str) -> None:
    """The operator's key of the ConfigMap is not in the chart."""
    place = ("--namespace", namespace)
    values = {"agent": {"enabled": True}}
    run("install", "lw", CHART, *place, "--values", "-", values=values)
    control = f"/api/v1/namespaces/{namespace}/configmaps/lw-load-watcher-agent-control"
    deployment = f"/apis/apps/v1/namespaces/{namespace}/deployments/lw-load-watcher"
    patched = prepared.session.patch(
        f"{prepared.url}{control}",
        data='{"data": {"enforcement": "off"}}',
        headers={"Content-Type": "application/merge-patch+json"},
        timeout=30,
    )
    assert patched.ok
    generation = prepared.ask("GET", deployment).json()["metadata"]["generation"]
    run("upgrade", "lw", CHART, *place, "--values", "-", values=values)
    assert generation == prepared.ask("GET", deployment).json()["metadata"]["generation"]
    changed = {"agent": {**values["agent"], "control": {"nodesAtOnce": 1}}, "config": {"refresh": {"interval": "30s"}}}
    run("upgrade", "lw", CHART, *place, "--values", "-", values=changed)
    data = prepared.ask("GET", control).json()["data"]
    assert {"enforcement": "off", "evictions-per-minute": "5", "nodes-at-once": "1"} == data
    assert generation < prepared.ask("GET", deployment).json()["metadata"]["generation"]
    run("uninstall", "lw", *place)


def test_helm_test_runs_the_doctor_and_removes_its_pod(prepared: ApiServer, run: Run, namespace: str) -> None:
    """Its pod complies with the level restricted."""
    place = ("--namespace", namespace)
    run("install", "lw", CHART, *place, "--values", "-")
    before = objects(prepared)
    printed: list[str] = []
    thread = threading.Thread(target=lambda: printed.append(run("test", "lw", *place, "--timeout", "60s")))
    thread.start()
    path = f"/api/v1/namespaces/{namespace}/pods/lw-load-watcher-test"
    wait_for(lambda: prepared.ask("GET", path).ok, what="the pod of the test")
    (container,) = prepared.ask("GET", path).json()["spec"]["containers"]
    url = "http://lw-load-watcher:2020"
    assert ["doctor", "--only", "service", "--url", url] == container["args"]
    prepared.session.patch(
        f"{prepared.url}{path}/status",
        data='{"status": {"phase": "Succeeded"}}',
        headers={"Content-Type": "application/merge-patch+json"},
        timeout=30,
    )
    thread.join(timeout=90)
    assert "Phase:          Succeeded" in printed[0]
    assert before == objects(prepared)
    run("uninstall", "lw", *place)


@pytest.mark.parametrize(
    ("values", "commands"),
    [
        ({}, ["watcherAddress: http://load-watcher.apps.svc:2020", "two and a half minutes"]),
        (
            {"config": {"provider": {**PROMETHEUS, "address": "http://u:secret@p.x.svc"}}},
            ["from prometheus at http://p.x.svc."],
        ),
        ({"scheduler": {"enabled": True}}, ["urlPrefix: http://load-watcher.apps.svc:2020/scheduler/default"]),
        (SEPARATE, ["urlPrefix: http://load-watcher-extender.apps.svc:2025/scheduler/default"]),
        ({"agent": {"enabled": True}}, ["what it would do", "logs daemonset/load-watcher-agent"]),
        ({"agent": {"enabled": True, "restore": True}}, ["logs daemonset/load-watcher-agent -c restore"]),
        ({"qrm": {"enabled": True}}, ["what it decides", "logs daemonset/load-watcher-qrm"]),
        (
            {"qrm": {"enabled": True, "restore": True}},
            ["what it restored", "logs daemonset/load-watcher-qrm -c restore"],
        ),
    ],
)
def test_the_notes_have_the_next_commands_of_the_mode(run: Run, values: dict[str, Any], commands: list[str]) -> None:
    arguments = ("load-watcher", CHART, "--namespace", "apps", "--dry-run=client", "--values", "-")
    notes = run("install", *arguments, values=values).partition("NOTES:")[2]
    assert "kubectl -n apps rollout status deployment/load-watcher" in notes
    for command in commands:
        assert command in notes
    assert "secret" not in notes
    assert not re.search(r"<no value>|%!", notes)


def test_the_documented_command_removes_the_definitions(run: Run) -> None:
    """All that Helm installs and keeps, and nothing else."""
    repository = CHART.parents[2]
    page = (repository / "docs/tasks/deploy.md").read_text()
    (file,) = set(re.findall(r"kubectl delete -f (\S+)", page))
    kept = [each["metadata"]["name"] for each in documents(run("show", "crds", CHART))]
    assert kept == [each["metadata"]["name"] for each in documents((repository / file).read_text())]
    assert 3 == len(kept)
