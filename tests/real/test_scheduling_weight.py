"""The real kube-scheduler with the extender: the weight of the extender's scores in the shipped configuration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import RunService
from tests.real.kube import ApiServer, Scheduler
from tests.real.parts import REPOSITORY
from tests.real.scheduled_cluster import clear
from tests.service import Service
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.real_apiserver]

PODS = "/api/v1/namespaces/default/pods"
NODES = ("favoured", "other")
# The other node has no metrics.
TRACE = """time,record,node,cpu,memory
1700000000,node,favoured,64,68719476736
1700000000,load,favoured,6.4,6871947673
1700086400,end,,,
"""
CONTAINER = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "10m"}}}
CONFIG = """
[refresh]
interval = "1s"
resolution = "1s"

[kubernetes]
kubeconfig = "{kubeconfig}"

[scheduler.default]
plugins = [ {{ name = "TargetLoadPacking", args = {{ targetUtilization = 90 }} }} ]
"""


@pytest.fixture
def cluster(apiserver: ApiServer) -> Iterator[ApiServer]:
    status = {"capacity": {"cpu": "64", "memory": "64Gi", "pods": "110"}}
    for name in NODES:
        apiserver.make("/api/v1/nodes", metadata={"name": name, "labels": {"name": name}}, status=status)
    yield apiserver
    clear(apiserver)


def started(cluster: ApiServer, run_service: RunService, tmp_path: Path, *, more: str = "") -> Service:
    config = CONFIG.format(kubeconfig=cluster.kubeconfig(tmp_path / "kubeconfig")) + more
    trace = tmp_path / "trace.csv"
    trace.write_text(TRACE)
    service = run_service("--provider", "replay", "--trace", str(trace), config=config)
    wait_for(lambda: set(known(service)) == set(NODES) and known(service)["favoured"]["load"], what="nodes and load")
    return service


def test_with_the_shipped_weight_precise_scores_count_tenfold(
    cluster: ApiServer, run_service: RunService, tmp_path: Path
):
    """The extender prefers one node with about 91 of 100 points. A plug-in of kube-scheduler prefers the other node
    with 100 points times its weight: with 9 it loses, with 10 it wins. So one point of the extender counts 10, and 100
    points count 1,000."""
    service = started(cluster, run_service, tmp_path, more="precise_scores = true\n")
    (shipped,) = yaml.safe_load((REPOSITORY / "deploy/scheduler/extender.yaml").read_text())["extenders"]
    extender = {**shipped, "urlPrefix": f"{service.url}/scheduler/default", "httpTimeout": "10s"}
    profiles = [
        {
            "schedulerName": f"weight-{weight}",
            "plugins": {
                "score": {"disabled": [{"name": "*"}], "enabled": [{"name": "NodeAffinity", "weight": weight}]}
            },
        }
        for weight in (9, 10)
    ]
    term = {"matchExpressions": [{"key": "name", "operator": "In", "values": ["other"]}]}
    preferred = [{"weight": 100, "preference": term}]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    with Scheduler(tmp_path / "scheduler", cluster, extenders=[extender], profiles=profiles):
        for weight in (9, 10):
            spec = {"schedulerName": f"weight-{weight}", "containers": [CONTAINER], "affinity": affinity}
            cluster.make(PODS, metadata={"name": f"pod-{weight}"}, spec=spec)
        wait_for(lambda: len(placed(cluster)) == 2 and all(placed(cluster).values()), what="both pods to be bound")
    assert {"pod-9": "favoured", "pod-10": "other"} == placed(cluster)


def known(service: Any) -> dict[str, Any]:
    nodes: dict[str, Any] = service.get("/scheduler/default/nodes").json()["nodes"]
    return nodes


def placed(apiserver: ApiServer) -> dict[str, str]:
    items = apiserver.ask("GET", PODS).json()["items"]
    return {each["metadata"]["name"]: each["spec"].get("nodeName", "") for each in items}
