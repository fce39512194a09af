"""The manifests on a real API server: it accepts each of them, and the service accounts have the rights that they
need."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.deploy.rendering import Manifest, charted, composed
from tests.deploy.test_manifests import SHOWING
from tests.real.kube import ApiServer
from tests.real.parts import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.real_apiserver]

ACCOUNT = {"Impersonate-User": "system:serviceaccount:load-watcher:load-watcher"}
MANAGER = "load-watcher-qrm"
PREFIXES = {
    "v1": "/api/v1",
    "apps/v1": "/apis/apps/v1",
    "networking.k8s.io/v1": "/apis/networking.k8s.io/v1",
    "policy/v1": "/apis/policy/v1",
    "rbac.authorization.k8s.io/v1": "/apis/rbac.authorization.k8s.io/v1",
}
PLURALS = {"NetworkPolicy": "networkpolicies"}


def collection(manifest: Manifest) -> str:
    """The collection in which an object of this kind is created."""
    namespace = manifest["metadata"].get("namespace")
    plural = PLURALS.get(manifest["kind"], f"{manifest['kind'].lower()}s")
    inner = f"namespaces/{namespace}/{plural}" if namespace else plural
    return f"{PREFIXES[manifest['apiVersion']]}/{inner}"


@contextmanager
def made(apiserver: ApiServer, rendered: list[Manifest], *namespaces: str) -> Iterator[list[Manifest]]:
    """Manifests, created in this order of kinds, and deleted afterwards."""
    for name in namespaces:
        apiserver.ask("POST", "/api/v1/namespaces", {"metadata": {"name": name}})  # 409 if it exists
    created = [each for each in rendered if each["kind"] != "Namespace"]
    for manifest in created:
        apiserver.make(collection(manifest), **manifest)
    yield created
    for manifest in created:
        path = f"{collection(manifest)}/{manifest['metadata']['name']}"
        assert apiserver.ask("DELETE", path).ok


@pytest.fixture
def installed(apiserver: ApiServer) -> Iterator[list[Manifest]]:
    """The objects that install the service with metrics-server, with the right to find agents by label."""
    with made(apiserver, charted(SHOWING["agents"]), "load-watcher", "load-watcher-agent") as created:
        yield created


@pytest.fixture(params=["kustomize", "helm"])
def managing(request: pytest.FixtureRequest, apiserver: ApiServer, tmp_path: Path) -> Iterator[list[Manifest]]:
    """The objects that install the QoS Resource Manager in mode nri."""
    if request.param == "helm":
        values = {"qrm": {"enabled": True, "config": {"qrm": {"mode": "nri"}}}}
        everything = charted(values, namespace=MANAGER)
        rendered = [each for each in everything if each["metadata"]["labels"]["app.kubernetes.io/name"] == MANAGER]
    else:
        rendered = composed(tmp_path, REPOSITORY / "deploy/qrm", "qrm-nri")
    with made(apiserver, rendered, MANAGER) as created:
        yield created


def test_the_manifests_are_accepted_and_grant_the_used_rights(apiserver: ApiServer, installed: list[Manifest]) -> None:
    """Nodes and the pods of the agents' namespace, and no more. metrics-server does not exist, so it is not found;
    without the right, the request would be refused first."""
    assert {"Deployment", "Service", "NetworkPolicy", "ClusterRole", "ConfigMap"} <= {
        each["kind"] for each in installed
    }

    def status(path: str) -> int:
        return apiserver.ask("GET", path, headers=ACCOUNT).status_code

    assert 200 == status("/api/v1/nodes")
    assert 200 == status("/api/v1/nodes?watch=1&timeoutSeconds=1")
    assert 200 == status("/api/v1/namespaces/load-watcher-agent/pods?labelSelector=app.kubernetes.io/name=x")
    assert 200 == status("/api/v1/namespaces/load-watcher-agent/pods?watch=1&timeoutSeconds=1")
    assert 404 == status("/apis/metrics.k8s.io/v1beta1/nodes")
    for refused in (
        "/api/v1/pods",
        "/api/v1/namespaces/load-watcher/pods",
        "/api/v1/secrets",
        "/apis/metrics.k8s.io/v1beta1/pods",
        "/api/v1/nodes/a",
    ):
        assert 403 == status(refused), refused
    for path in ("/api/v1/nodes", "/api/v1/namespaces/load-watcher/configmaps"):
        assert 403 == apiserver.ask("POST", path, {"metadata": {"name": "x"}}, headers=ACCOUNT).status_code


def test_the_manager_in_mode_nri_may_only_read_pods_and_write_events(
    apiserver: ApiServer, managing: list[Manifest]
) -> None:
    """The container runtime sets the resources, so no right to change pods or nodes is needed."""
    account = {"Impersonate-User": f"system:serviceaccount:{MANAGER}:{MANAGER}"}
    assert {"DaemonSet", "ClusterRole", "ConfigMap"} <= {each["kind"] for each in managing}

    def status(method: str, path: str, body: object = None) -> int:
        return apiserver.ask(method, path, body, headers=account).status_code

    assert 200 == status("GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-1")
    assert 200 == status("GET", "/api/v1/pods?watch=1&timeoutSeconds=1&fieldSelector=spec.nodeName%3Dnode-1")
    about = {"kind": "Pod", "namespace": "default", "name": "refused", "uid": "1"}
    event = {"metadata": {"generateName": "refused."}, "involvedObject": about, "reason": "TopologyAffinityError"}
    assert 201 == status("POST", "/api/v1/namespaces/default/events", event)
    for method, refused in (
        ("GET", "/api/v1/namespaces/default/pods/refused"),
        ("DELETE", "/api/v1/namespaces/default/pods/refused"),
        ("POST", "/api/v1/namespaces/default/pods/refused/eviction"),
        ("PATCH", "/api/v1/nodes/node-1/status"),
        ("GET", "/api/v1/nodes"),
        ("GET", "/api/v1/secrets"),
        ("GET", "/api/v1/events"),
    ):
        assert 403 == status(method, refused, {} if method in ("POST", "PATCH") else None), (method, refused)
