"""A Prometheus with the addresses and ports of machines, and a Kubernetes API with their names, while both change."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web

from tests.conftest import RunService
from tests.fakes.kube import NODES, FakeKube
from tests.fakes.kube_rules import status_object
from tests.real.feed import Feed
from tests.real.parts import Prometheus
from tests.service import Service
from tests.waiting import wait_for

pytestmark = pytest.mark.real

INSTANCES = ("10.0.0.1:9100", "10.0.0.2:9100", "[fd00::3]:9100", "10.0.0.4:9100", "db.example.com:9100")
FAST = """
[refresh]
interval = "1s"
resolution = "1s"
"""


@pytest.fixture(scope="module")
def machines(shared_prometheus: Prometheus) -> Iterator[Prometheus]:
    """The load of the machines, second by second."""
    with Feed(shared_prometheus, INSTANCES):
        yield shared_prometheus


def put(server: FakeKube, name: str, address: str) -> None:
    addresses = [{"type": "InternalIP", "address": address}]
    server.put(NODES, name, metadata={"creationTimestamp": "2020-01-01T00:00:00Z"}, status={"addresses": addresses})


def nodes_of(service: Service) -> list[str]:
    answer = service.get("/watcher")
    return list(answer.json()["data"]["NodeMetricsMap"]) if answer.status == 200 else []


def wait_for_nodes(service: Service, *expected: str) -> None:
    wait_for(lambda: sorted(expected) == nodes_of(service), what=f"the nodes {expected}")


def found(service: Service, kind: str) -> dict[str, str]:
    """The reasons of findings by node."""
    entries = service.get("/api/v1/findings").json()["findings"]
    return {entry["node"]: entry["reason"] for entry in entries if entry["kind"] == kind}


def test_nodes_have_the_names_of_the_cluster_while_it_changes(
    machines: Prometheus, run_service: RunService, tmp_path: Path
):
    """From the first response on; with a node that joins, an address that moves to another node, and an unavailable
    API."""
    with FakeKube() as server:
        put(server, "node-1", "10.0.0.1")
        put(server, "node-2", "10.0.0.2")
        put(server, "node-3", "fd00:0:0::3")
        put(server, "idle", "10.0.0.9")
        environ = {"KUBE_CONFIG": str(server.kubeconfig(tmp_path / "config"))}
        service = run_service("--provider", "prometheus", "--address", machines.url, config=FAST, env=environ)
        wait_for_nodes(service, "node-1", "node-2", "node-3")
        assert 200 == service.get("/watcher/node-3").status
        assert 404 == service.get("/watcher/fd00::3").status
        assert "10.0.0.4, db.example.com" in found(service, "unknown_node")[""]
        assert {"idle"} == found(service, "missing").keys()

        put(server, "node-4", "10.0.0.4")
        wait_for_nodes(service, "node-1", "node-2", "node-3", "node-4")

        server.fault = lambda _: web.json_response(status_object(503, "the server is starting"), status=503)
        server.drop_connections()
        wait_for(lambda: "" in found(service, "node_names"), what="the finding that the API is away")
        assert "the last list of nodes is used" in found(service, "node_names")[""]
        assert "node-4" in nodes_of(service)
        server.delete(NODES, "node-2")
        put(server, "node-5", "10.0.0.2")
        server.fault = lambda _: None
        wait_for_nodes(service, "node-1", "node-3", "node-4", "node-5")
        assert "was node node-2" in found(service, "node_names")["node-5"]


def test_without_the_right_names_stay_and_the_missing_verb_is_reported(
    machines: Prometheus, run_service: RunService, tmp_path: Path
):
    """Once in the log with the rule, and in the findings; once granted, the names are used without a restart."""
    with FakeKube(forbidden={("list", NODES)}) as server:
        put(server, "node-1", "10.0.0.1")
        settings = f'{FAST}\n[kubernetes]\nkubeconfig = "{server.kubeconfig(tmp_path / "config")}"\n'
        service = run_service("--provider", "prometheus", "--address", machines.url, config=settings)
        wait_for_nodes(service, "10.0.0.1", "10.0.0.2", "fd00::3", "10.0.0.4", "db.example.com")
        reason = wait_for(lambda: found(service, "node_names").get("", ""), what="the finding")
        assert "cannot list nodes (403 Forbidden)" in reason
        assert "the source's names are used unchanged" in reason
        assert 'resources: ["nodes"], verbs: ["list"]' in reason
        (line,) = (line for line in service.log().splitlines() if "cannot watch nodes" in line)
        assert 'resources: ["nodes"], verbs: ["list"]' in line
        server.forbidden.clear()
        wait_for(lambda: "node-1" in nodes_of(service), what="the node's name")
        assert 404 == service.get("/watcher/10.0.0.1").status
