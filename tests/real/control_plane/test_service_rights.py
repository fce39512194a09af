"""`load-watcher serve` with the settings and the ServiceAccount of deploy/: no request is forbidden, and each granted
right is used. tests/real/test_node_metrics_kube.py has the same for writing NodeMetrics."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.conftest import RunService
from tests.deploy.rendering import Manifest, charted, settings_in
from tests.fakes.kube import FakeKube
from tests.real.control_plane.manifests import apply_all, delete_all, overlay
from tests.real.control_plane.rights import granted, refused, wait_until_used
from tests.real.feed import Feed
from tests.real.kube import ApiServer
from tests.real.node_metric_definition import NODE_METRIC
from tests.real.parts import Prometheus
from tests.real.test_kube_apiserver import aggregated, make_pod
from tests.service import Service
from watcher.core.koordinator.written_objects import WRITTEN

pytestmark = [pytest.mark.slow, pytest.mark.real_apiserver]

ACCOUNT = "load-watcher/load-watcher"
NODE = "rights-1"
COMMON = """
[refresh]
interval = "1s"
resolution = "1s"
pods = "{pods}"
"""
PAGES = {
    table: {"pods": {"selector": f"app.kubernetes.io/name={name}", "namespace": name}}
    for table, name in (("agents", "load-watcher-agent"), ("qrms", "load-watcher-qrm"))
}
PODS = {"rbac": {"pods": True}, "config": {**PAGES, "agents": {**PAGES["agents"], "pod_usage": False}}}
BIND = {
    "scheduler": {
        "enabled": True,
        "profiles": {
            "binding": {
                "bind": True,
                "plugins": [{"name": "LoadAwareScheduling", "args": {"nodeMetricSource": "cluster"}}],
            }
        },
    },
    "rbac": {"nodeMetrics": True},
}


@dataclass(frozen=True)
class Function:
    """An overlay, or values of the chart, and what makes the service use all its rights."""

    overlay: str = ""
    values: Mapping[str, Any] | None = None
    pods: str = "off"
    use: Callable[[ApiServer, Service], None] = lambda api, service: None


def bind_a_pod(api: ApiServer, service: Service) -> None:
    """Let the extender bind a pod, as kube-scheduler does."""
    uid = make_pod(api, "rights-bound")
    body = {"PodName": "rights-bound", "PodNamespace": "default", "PodUID": uid, "Node": NODE}
    answer = service.session.post(f"{service.url}/scheduler/binding/bind", json=body, timeout=60)
    assert answer.json() == {"Error": ""}, answer.text


def list_agents(_: ApiServer, service: Service) -> None:
    """Let the dashboard find the agents by labels."""
    assert service.get("/api/v1/agents").status == 200


FUNCTIONS = {
    "metrics-server": Function("metrics-server"),
    "metrics-server-pods-and-pages": Function(values=PODS, pods="on", use=list_agents),
    "prometheus": Function("prometheus"),
    "extender": Function("extender"),
    "extender-that-binds": Function(values=BIND, use=bind_a_pod),
}


@pytest.fixture(scope="module")
def sources(cluster: ApiServer, shared_prometheus: Prometheus) -> Iterator[Prometheus]:
    """The cluster has a node, its load in metrics-server's API and in Prometheus, and Koordinator's definition."""
    addresses = [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": NODE}]
    capacity = {"cpu": "4", "memory": "8Gi", "pods": "110"}
    cluster.make("/api/v1/nodes", metadata={"name": NODE}, status={"capacity": capacity, "addresses": addresses})
    for name in ("load-watcher-agent", "load-watcher-qrm"):
        cluster.ask("POST", "/api/v1/namespaces", {"metadata": {"name": name}})  # 409 if it exists
    cluster.define(WRITTEN, "NodeMetric", schema=NODE_METRIC)
    with ExitStack() as stack:
        stack.enter_context(Feed(shared_prometheus, ["10.0.0.1:9100"]))
        stack.enter_context(metrics_server(cluster))
        yield shared_prometheus


@contextmanager
def metrics_server(cluster: ApiServer) -> Iterator[None]:
    """Serve metrics.k8s.io behind the aggregation layer, where the API server checks the rights."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("localhost").configure_cert(tls)
    with FakeKube(token="", tls=tls) as metrics:
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        metrics.usage(NODE, time=at, cpu="1", memory="4Gi")
        metrics.pod_usage("default/some", ("100m", "1Mi"), time=at)
        with aggregated(cluster, metrics.port):
            yield


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_uses_exactly_its_rights(
    cluster: ApiServer, sources: Prometheus, run_service: RunService, tmp_path: Path, name: str
) -> None:
    """By the audit log of the API server."""
    function = FUNCTIONS[name]
    rendered = rendered_for(function)
    rights = granted(rendered, ACCOUNT)
    assert rights
    apply_all(cluster, rendered)
    before = len(cluster.audited(ACCOUNT))
    try:
        config = settings_in(rendered) + COMMON.format(pods=function.pods)
        access = cluster.kubeconfig(tmp_path / "kubeconfig", token=cluster.account_token(ACCOUNT))
        overridden = {
            "kubernetes.kubeconfig": access,
            "store.url": "sqlite:///rights.db",
        }
        if function.overlay == "prometheus":
            overridden["provider.address"] = sources.url
        flags = [text for key, value in overridden.items() for text in ("--set", f"{key}={value}")]
        service = run_service(*flags, config=config)
        function.use(cluster, service)
        wait_until_used(cluster, rights, ACCOUNT, since=before)
        service.stop()
        assert [] == refused(cluster, ACCOUNT, since=before)
    finally:
        delete_all(cluster, rendered)


def rendered_for(function: Function) -> list[Manifest]:
    """Render the overlay, or the chart and the namespace."""
    plain = overlay(f"overlays/{function.overlay or 'metrics-server'}")
    if function.values is None:
        return plain
    return [*(each for each in plain if each["kind"] == "Namespace"), *charted(function.values)]
