"""The manifests on a real API server: it accepts each of them, and the service account may do what it needs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.rendering import Manifest, charted, composed
from tests.deploy.test_manifests import SHOWING
from tests.real.kube import ApiServer
from tests.real.parts import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.real_apiserver]

ACCOUNT = {"Impersonate-User": "system:serviceaccount:load-watcher:load-watcher"}
PREFIXES = {
    "v1": "/api/v1",
    "apps/v1": "/apis/apps/v1",
    "networking.k8s.io/v1": "/apis/networking.k8s.io/v1",
    "policy/v1": "/apis/policy/v1",
    "rbac.authorization.k8s.io/v1": "/apis/rbac.authorization.k8s.io/v1",
}
PLURALS = {"NetworkPolicy": "networkpolicies"}


def collection(manifest: Manifest) -> str:
    """Where an object like this is created."""
    namespace = manifest["metadata"].get("namespace")
    plural = PLURALS.get(manifest["kind"], f"{manifest['kind'].lower()}s")
    inner = f"namespaces/{namespace}/{plural}" if namespace else plural
    return f"{PREFIXES[manifest['apiVersion']]}/{inner}"


@pytest.fixture(params=["kustomize", "helm"])
def installed(request: pytest.FixtureRequest, apiserver: ApiServer, tmp_path: Path) -> Iterator[list[Manifest]]:
    """What installs the service over metrics-server, with the right to find agents by label, created in this order of
    kinds, and removed again."""
    overlay = REPOSITORY / "deploy/overlays/metrics-server"
    rendered = charted(SHOWING["agents"]) if request.param == "helm" else composed(tmp_path, overlay, "agents")
    for name in ("load-watcher", "load-watcher-agent"):
        apiserver.ask("POST", "/api/v1/namespaces", {"metadata": {"name": name}})  # 409 where it is there already
    created = [each for each in rendered if each["kind"] != "Namespace"]
    for manifest in created:
        apiserver.make(collection(manifest), **manifest)
    yield created
    for manifest in created:
        path = f"{collection(manifest)}/{manifest['metadata']['name']}"
        assert apiserver.ask("DELETE", path).ok


def test_the_api_server_takes_the_manifests_and_grants_what_is_used(
    apiserver: ApiServer, installed: list[Manifest]
) -> None:
    """Nodes, the pods of the agents' namespace, and nothing else. metrics-server is not there, and is not found: who
    may not ask is refused before that."""
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
