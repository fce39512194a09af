"""The chart with service, agent and QoS Resource Manager: installed, used, restored and uninstalled with Helm."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.cluster import agents, programs
from tests.cluster.agents import policies_applied, quota, throttling, wait_throttled
from tests.cluster.cluster import Cluster
from tests.cluster.control_plane import NAMESPACE, inside
from tests.cluster.deployed import created, pod, wait_ready
from tests.cluster.images import AGENT, SERVICE
from tests.cluster.nodes.node import UNLIMITED
from tests.cluster.qrms import EXCLUSIVE, pinned, wait_pinned, with_role
from tests.cluster.sources import PROMETHEUS
from tests.real.parts import REPOSITORY

RELEASE = "charted"
CHART = str(REPOSITORY / "deploy" / "helm" / "load-watcher")


def image(name: str) -> dict[str, str]:
    """Return the values of an image."""
    repository, _, tag = name.rpartition(":")
    return {"repository": repository, "tag": tag}


def values(*, restore: bool) -> dict[str, Any]:
    """Return the values of all components, which act, or restore what they changed."""
    return {
        "image": image(SERVICE),
        "config": {"provider": {"name": "prometheus", "address": PROMETHEUS}},
        "agent": {
            "enabled": True,
            "image": image(AGENT),
            "apiPolicies": True,
            "kubeletCertificate": "/var/lib/kubelet/pki/kubelet.crt",
            "nodeRestriction": True,
            "config": {"agent": {"mode": "enforce"}},
            "restore": restore,
        },
        "qrm": {
            "enabled": True,
            "config": {"qrm": {"mode": "nri", "min_online": 0, "min_offline": 0}},
            "nodeRestriction": True,
            "restore": restore,
        },
    }


def helm(cluster: Cluster, *arguments: str) -> None:
    """Run helm as the administrator in the namespace of the release."""
    admin = str(cluster.directory / "pki" / "admin.conf")
    command = [str(programs.helm()), "--kubeconfig", admin, "--namespace", RELEASE, *arguments]
    done = subprocess.run(inside(NAMESPACE, *command), text=True, capture_output=True, check=False)
    assert done.returncode == 0, f"helm {' '.join(arguments)}: {done.stderr}"


def install(cluster: Cluster, directory: Path, *, restore: bool) -> None:
    """Install or upgrade the release, and wait until the pods of the DaemonSets are updated."""
    file = directory / "values.json"
    file.write_text(json.dumps(values(restore=restore)))
    helm(cluster, "upgrade", "--install", "--create-namespace", RELEASE, CHART, "--values", str(file))
    for part in ("agent", "qrm"):
        daemonset = f"daemonset/{RELEASE}-load-watcher-{part}"
        cluster.control_plane.kubectl("-n", RELEASE, "rollout", "status", daemonset, "--timeout=300s")


def test_the_chart_is_installed_restores_and_leaves_nothing(cluster: Cluster, tmp_path: Path):
    node = cluster.nodes[0]
    everything = node.online()
    hog = pod("hog", node.name, command=("sh", "-c", "while :; do :; done"))
    request = {"cpu": "500m", "memory": "16Mi"}
    solid = with_role(pod("solid", node.name, command=("sleep", "100000"), requests=request), EXCLUSIVE)
    kubectl = cluster.control_plane.kubectl
    install(cluster, tmp_path, restore=False)
    try:
        watermark = int(node.used_millicores(20)) + 600
        with created(cluster, hog, solid), policies_applied(cluster, throttling(watermark, node=node.name)):
            wait_ready(cluster, "default", "app=hog", 1)
            wait_pinned(cluster, "solid", 1)
            wait_throttled(cluster, "hog")
            wait_ready(cluster, RELEASE, "app.kubernetes.io/name=load-watcher", 2, timeout=420)
            install(cluster, tmp_path, restore=True)
            assert (quota(cluster, "hog"), pinned(cluster, "solid")) == (UNLIMITED, everything)
            assert not agents.kept_away(cluster, node)
    finally:
        helm(cluster, "uninstall", RELEASE, "--wait")
        kubectl("delete", "namespace", RELEASE, "--timeout=300s")
        kubectl("delete", "-f", str(REPOSITORY / "deploy" / "agent" / "crds.yaml"), "--timeout=300s")
    found = kubectl("get", "all,clusterroles,clusterrolebindings,validatingadmissionpolicies", "-A", "-o", "name")
    assert [each for each in found.splitlines() if RELEASE in each] == []
