"""metrics-server, kube-state-metrics and Prometheus beside the control plane: the sources of usage, which read the real
kubelets and objects."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tests.cluster import programs
from tests.cluster.control_plane import ADDRESS, ControlPlane
from tests.cluster.nodes.namespaced import NODE_EXPORTER_PORT
from tests.cluster.nodes.node import Node
from tests.real.parts import find_program

METRICS_SERVER_PORT = 4443
PROMETHEUS = f"http://{ADDRESS}:9090"
KUBELET_PORT = 10250
STATE_PORT = 8080
RESOLUTION = "15s"
"""The interval of metrics-server's own manifests, and of the scrapes."""


def start_metrics_server(control_plane: ControlPlane, pki: Path) -> None:
    """Start metrics-server with the rights of an administrator, and its APIService."""
    kubeconfig = f"{pki}/admin.conf"
    control_plane.run(
        programs.metrics_server(),
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        f"--secure-port={METRICS_SERVER_PORT}",
        f"--cert-dir={control_plane.directory}/metrics-server",
        "--kubelet-preferred-address-types=InternalIP",
        "--kubelet-insecure-tls",
        f"--metric-resolution={RESOLUTION}",
    )
    name = "metrics-server"
    port = {"name": "https", "port": 443, "protocol": "TCP"}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": {"ports": [port]}}
    slice_of_addresses = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "ports": [{**port, "port": METRICS_SERVER_PORT}],
        "endpoints": [{"addresses": [ADDRESS], "conditions": {"ready": True}}],
    }
    registration = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": "v1beta1.metrics.k8s.io"},
        "spec": {
            "group": "metrics.k8s.io",
            "version": "v1beta1",
            "service": {"name": name, "namespace": "kube-system"},
            "insecureSkipTLSVerify": True,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
        },
    }
    items = [service, slice_of_addresses, registration]
    given = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    control_plane.kubectl("-n", "kube-system", "apply", "-f", "-", given=given)


def start_kube_state_metrics(control_plane: ControlPlane, pki: Path) -> None:
    """Start kube-state-metrics with the rights of an administrator."""
    control_plane.run(
        programs.kube_state_metrics(),
        f"--kubeconfig={pki}/admin.conf",
        "--resources=nodes,pods",
        f"--port={STATE_PORT}",
        f"--telemetry-port={STATE_PORT + 1}",
    )


def start_prometheus(control_plane: ControlPlane, pki: Path, nodes: Sequence[Node]) -> None:
    """Start a Prometheus that scrapes the node exporters, cAdvisor in the kubelets, and kube-state-metrics."""
    own = control_plane.directory / "prometheus"
    own.mkdir(exist_ok=True)
    exporters = [{"targets": [f"{node.address}:{NODE_EXPORTER_PORT}"], "labels": {"node": node.name}} for node in nodes]
    kubelets = [{"targets": [f"{node.address}:{KUBELET_PORT}"], "labels": {"node": node.name}} for node in nodes]
    client = {
        "cert_file": f"{pki}/kubelet-client.crt",
        "key_file": f"{pki}/kubelet-client.key",
        "insecure_skip_verify": True,
    }
    cadvisor = {
        "job_name": "cadvisor",
        "scheme": "https",
        "metrics_path": "/metrics/cadvisor",
        "tls_config": client,
        "static_configs": kubelets,
    }
    state = {
        "job_name": "kube-state-metrics",
        "honor_labels": True,
        "static_configs": [{"targets": [f"{ADDRESS}:{STATE_PORT}"]}],
    }
    configuration = {
        "global": {"scrape_interval": RESOLUTION},
        "scrape_configs": [{"job_name": "node-exporter", "static_configs": exporters}, cadvisor, state],
    }
    (own / "prometheus.yml").write_text(json.dumps(configuration))
    control_plane.run(
        find_program("prometheus"),
        f"--config.file={own / 'prometheus.yml'}",
        f"--storage.tsdb.path={own / 'data'}",
        "--web.listen-address=0.0.0.0:9090",
    )
