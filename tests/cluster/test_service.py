"""The service with the real kubelets as its sources, against the counters of the kernel, and pods that the extender
places."""

from __future__ import annotations

import json
import re
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from tests.cluster import programs
from tests.cluster.cluster import Cluster
from tests.cluster.deployed import PROGRAM, created, doctor, is_ready, pod, prepared, wait_ready
from tests.cluster.nodes.namespaced import NamespacedNode
from tests.cluster.nodes.node import Node
from tests.cluster.nodes.proc import NodeProc
from tests.cluster.sources import PROMETHEUS
from tests.real.parts import REPOSITORY
from tests.waiting import wait_for

SELECTOR = "app.kubernetes.io/name=load-watcher"
NAMESPACE = "load-watcher"
PORT = 2020
CPU_POINTS = 3.0
"""Tolerance in percentage points."""
LATE_S = (0.0, 15.0, 30.0, 45.0)
"""A sample is a mean over the interval before it, or over two, so the edges of a window are as uncertain."""
MEMORY_POINTS = 5.0
"""Tolerance of a mean of memory, because the sources count page cache differently."""


WINDOW_S = 300.0
EVERY_S = 15.0
"""Seconds between samples of the sources."""
FIRST_SAMPLE_S = 60.0
"""Seconds from the start of the service to its first samples."""
READY_S = 240.0


def wait_service(cluster: Cluster) -> list[Any]:
    """Wait for the pods of the service, which are ready when they have a window of five minutes."""
    return wait_ready(cluster, NAMESPACE, SELECTOR, 2, READY_S)


def address_of(found: Any) -> str:
    return f"http://{found['status']['podIP']}:{PORT}"


def get(cluster: Cluster, url: str) -> str:
    """Return a page, as a client on the pod network gets it; "" if it does not answer."""
    return cluster.nodes[0].run("busybox", "wget", "-qO-", url, check=False)


def values(answer: Any, operator: str) -> dict[str, dict[str, float]]:
    """Return the values of an answer of /watcher with one operator in percent, by node and type."""
    return {
        node: {each["type"]: each["value"] for each in of_node["metrics"] or () if each["operator"] == operator}
        for node, of_node in (answer or {}).get("data", {}).get("NodeMetricsMap", {}).items()
    }


def complete(cluster: Cluster, service: Any, operator: str, since: float = 0.0) -> Any:
    """Return an answer of /watcher with CPU and memory of all nodes from a window after `since`, or None."""
    text = get(cluster, f"{address_of(service)}/watcher?window=5m&operator={operator}")
    answer: Any = json.loads(text) if text else None
    found = values(answer, operator)
    whole = found.keys() == {each.name for each in cluster.nodes} and answer["window"]["start"] >= since
    return answer if whole and all({"CPU", "Memory"} <= of_node.keys() for of_node in found.values()) else None


def complete_with_all_samples(cluster: Cluster, service: Any, since: float) -> Any:
    """Return an answer with means of all samples that a window can have, or None: while the machine is overloaded,
    metrics-server has no usage of a node, and the mean is that of the remaining time."""
    text = get(cluster, f"{address_of(service)}/metrics")
    (coverage,) = re.findall(r'^load_watcher_window_coverage_ratio\{window="5m"\} (\S+)', text, re.MULTILINE) or ["0"]
    return complete(cluster, service, "AVG", since) if float(coverage) > 0.99 else None


def proc_of(node: Node) -> NodeProc:
    """Return the history of the counters of a node."""
    assert isinstance(node, NamespacedNode)
    return node.proc


def check_against_kernel(cluster: Cluster, answer: Any, operator: str) -> None:
    """Compare CPU in the five minutes before the newest sample, and memory, with what the kernel counted."""
    for node in cluster.nodes:
        reported = values(answer, operator)[node.name]
        end = answer["data"]["NodeMetricsMap"][node.name]["sampled"]
        used = [
            proc_of(node).used_millicores(end - late - WINDOW_S, end - late) / (10 * proc_of(node).cpus)
            for late in LATE_S
        ]
        assert min(used) - CPU_POINTS < reported["CPU"] < max(used) + CPU_POINTS, (node.name, reported, used)
        memory = proc_of(node).used_memory(end - (WINDOW_S if operator == "AVG" else EVERY_S), end)
        assert abs(reported["Memory"] - memory) < MEMORY_POINTS, (node.name, reported, memory)


def test_windows_of_metrics_server_agree_with_the_kernel(cluster: Cluster, serving: Path):
    """metrics-server has no history: the windows are those of the samples since the start of the service."""
    for each in wait_service(cluster):
        started = each["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
        since = datetime.fromisoformat(started).timestamp() + FIRST_SAMPLE_S
        answer = wait_for(
            partial(complete_with_all_samples, cluster, each, since), what="windows of all nodes", timeout=420
        )
        check_against_kernel(cluster, answer, "AVG")


def test_doctor_and_config_check_find_nothing_wrong(cluster: Cluster, serving: Path):
    (found, *_) = wait_service(cluster)
    name = found["metadata"]["name"]
    wrong, checked = doctor(cluster, NAMESPACE, name)
    # What the review found in the last five minutes is true: metrics-server begins without usage, and other tests fill
    # the memory of a node.
    assert [each for each in wrong if not each["what"].startswith(("no_series: ", "missing: ", "jump: "))] == []
    assert {"source", "permissions", "nodes", "service"} <= {each["name"] for each in checked}
    command = ("exec", "-n", NAMESPACE, name, "--", PROGRAM, "config", "check")
    assert cluster.control_plane.kubectl(*command).strip() == "ok"


def test_pods_that_the_extender_places_start_on_the_node_that_it_prefers(
    cluster: Cluster, serving: Path, tmp_path: Path
):
    """With deploy/scheduler/extender.yaml, at the address of a pod, because the cluster has no kube-proxy."""
    (service, *_) = wait_service(cluster)
    url = f"{address_of(service)}/scheduler/default"
    document = yaml.safe_load((REPOSITORY / "deploy" / "scheduler" / "extender.yaml").read_text())
    document["extenders"][0] |= {"urlPrefix": url, "httpTimeout": "5s"}
    document["clientConnection"] = {"kubeconfig": str(cluster.directory / "pki" / "admin.conf")}
    configuration = tmp_path / "scheduler.yaml"
    configuration.write_text(yaml.safe_dump(document))
    quarter = {"cpu": "500m", "memory": "16Mi"}
    busy = pod("busy", cluster.nodes[0].name, command=("sh", "-c", "while :; do :; done"), requests=quarter)
    # Without a controller: kube-scheduler spreads the pods of one over nodes.
    placed = [unbound(f"placed-{number}") for number in range(4)]
    with created(cluster, busy):
        preferred = wait_for(partial(preference, cluster, url), what="nodes with different scores", timeout=500)
        with (
            cluster.control_plane.running(
                programs.kubernetes("kube-scheduler"), f"--config={configuration}", "--secure-port=0", name="extended"
            ),
            created(cluster, *placed),
        ):
            started = wait_ready(cluster, "default", "app in (placed-0, placed-1, placed-2, placed-3)", 4)
    assert {each["spec"]["nodeName"] for each in started} == {preferred}


def preference(cluster: Cluster, url: str) -> str:
    """Return the node that the extender prefers, "" if the difference is below 15 of 100 points.

    kube-scheduler multiplies the scores by ten; those of its own plug-ins differ by less than 80. The rest is for the
    loads of earlier tests, which leave the window before the pods are placed.
    """
    given = json.dumps({"Pod": unbound("asked"), "NodeNames": [node.name for node in cluster.nodes]})
    command = ("busybox", "wget", "-qO-", "--header=Content-Type: application/json", f"--post-data={given}")
    answer = json.loads(cluster.nodes[0].run(*command, f"{url}/prioritize"))
    (second, _), (first, name) = sorted((each["Score"], each["Host"]) for each in answer)
    return name if first - second >= 15 else ""


def unbound(name: str) -> dict[str, Any]:
    """Return a pod for the scheduler load-watcher, with a demand that changes no score much."""
    found = pod(name, "", command=("sleep", "100000"), requests={"cpu": "10m", "memory": "16Mi"})
    del found["spec"]["nodeName"]
    found["spec"]["schedulerName"] = "load-watcher"
    return found


def all_ready(cluster: Cluster) -> list[Any]:
    """Return the ready pods of the service."""
    return list(filter(is_ready, cluster.control_plane.get("pods", "-n", NAMESPACE, "-l", SELECTOR)["items"]))


def test_a_rolling_update_to_prometheus_serves_windows_all_the_time(cluster: Cluster, serving: Path):
    """Prometheus has a history, so windows are complete at once; until then the pods with the old source answer.

    The newest value of CPU is a mean over five minutes, for which the counters must be as old.
    """
    before = {each["metadata"]["uid"] for each in wait_service(cluster)}
    path = prepared(serving, "overlays/prometheus")
    settings = path / "load-watcher.toml"
    text = settings.read_text()
    assert "http://prometheus-k8s.monitoring.svc:9090" in text
    settings.write_text(text.replace("http://prometheus-k8s.monitoring.svc:9090", PROMETHEUS))
    cluster.control_plane.kubectl("apply", "-k", str(path))
    rollout = ("-n", NAMESPACE, "rollout", "status", "deployment/load-watcher", "--timeout=1s")
    while cluster.control_plane.kubectl_process(*rollout).returncode:
        ready = all_ready(cluster)
        assert any(complete(cluster, each, "AVG") for each in ready), "no pod serves windows"
    since = proc_of(cluster.nodes[-1]).since + FIRST_SAMPLE_S
    for each in wait_service(cluster):
        assert each["metadata"]["uid"] not in before
        answer = wait_for(partial(complete, cluster, each, "Latest", since), what="values of all nodes", timeout=420)
        check_against_kernel(cluster, answer, "Latest")
