"""The real kube-scheduler with the extender: pods are bound to the node that the extender ranks first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunService
from tests.real.kube import ApiServer, Scheduler
from tests.service import ExtenderService
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
CONFIG = """
[refresh]
interval = "1s"
resolution = "1s"

[kubernetes]
kubeconfig = "{kubeconfig}"
"""
PROFILE = """
[scheduler.default]
plugins = [ { name = "TargetLoadPacking", args = { targetUtilization = 90 } } ]
"""


@pytest.mark.parametrize("separate", [False, True], ids=["in the watcher", "as a process of its own"])
def test_pods_are_placed_on_the_node_that_the_extender_prefers(
    apiserver: ApiServer, run_service: RunService, running: Any, tmp_path: Path, separate: bool
):
    """One node of two has metrics: TargetLoadPacking fills it. The default scheduler would spread twenty pods."""
    status = {"capacity": {"cpu": "64", "memory": "64Gi", "pods": "110"}}
    for name in NODES:
        apiserver.make("/api/v1/nodes", metadata={"name": name}, status=status)
    config = CONFIG.format(kubeconfig=apiserver.kubeconfig(tmp_path / "kubeconfig"))
    trace = tmp_path / "trace.csv"
    trace.write_text(TRACE)
    replay = ("--provider", "replay", "--trace", str(trace))
    service = run_service(*replay, config=config + ("" if separate else PROFILE))
    if separate:
        watcher = service
        service = ExtenderService(tmp_path / "extender", "--watcher", watcher.url, config=config + PROFILE)
        running(service)
        service.start()
    wait_for(lambda: set(known(service)) == set(NODES) and known(service)["favoured"]["load"], what="nodes and load")
    extender = {
        "urlPrefix": f"{service.url}/scheduler/default",
        "prioritizeVerb": "prioritize",
        "weight": 100,
        "enableHTTPS": False,
        "nodeCacheCapable": True,
        "httpTimeout": "10s",
        "ignorable": True,
    }
    with Scheduler(tmp_path / "scheduler", apiserver, extenders=[extender]):
        container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "10m"}}}
        for i in range(20):
            apiserver.make(PODS, metadata={"name": f"p{i}"}, spec={"containers": [container]})
        wait_for(lambda: all(placed(apiserver).values()) and len(placed(apiserver)) == 20, what="all pods to be bound")
    assert set(placed(apiserver).values()) == {"favoured"}
    wait_for(lambda: known(service)["favoured"]["pods"] == 20, what="the table to have them")
    assert known(service)["favoured"]["requested"] == {"cpu": 200}
    asked = next(line for line in service.get("/metrics").text.splitlines() if "scheduler_prioritize" in line)
    assert asked
    for pod in placed(apiserver):
        apiserver.ask("DELETE", f"{PODS}/{pod}", {"gracePeriodSeconds": 0})
    apiserver.ask("DELETE", "/api/v1/nodes")


def known(service: Any) -> dict[str, Any]:
    nodes: dict[str, Any] = service.get("/scheduler/default/nodes").json()["nodes"]
    return nodes


def placed(apiserver: ApiServer) -> dict[str, str]:
    items = apiserver.ask("GET", PODS).json()["items"]
    return {each["metadata"]["name"]: each["spec"].get("nodeName", "") for each in items}
