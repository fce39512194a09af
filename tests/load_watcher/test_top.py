"""`load-watcher top` against a running service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from load_watcher.main import main
from scorers.cluster.pages import ClusterHandler
from tests.fakes.pods import publish_pods, small_pods
from tests.fakes.service import FakeService, Live, Protection
from tests.scorers.simulated_cluster import NOW, node, pod, table

REQUESTED = {"requests": {"cpu": "1500m", "memory": "1Gi"}}


def served(*, scheduler: bool = True, listed: bool = True, protection: Protection | None = None) -> Live:
    """A service with three nodes, of which two have Node objects, and with three pods, of which one is bound."""
    cluster = table(
        [node(name, {"cpu": "3", "memory": "8Gi"}) for name in ("node-1", "node-2")],
        [pod("web-1", node="node-2", containers=[REQUESTED], metadata={"namespace": "a"})],
    )
    routes = ClusterHandler(cluster, now=lambda: NOW, is_whole=lambda: listed).routes() if scheduler else ()
    return Live(FakeService(pods=publish_pods(small_pods())), routes=routes, protection=protection)


@pytest.fixture
def live() -> Iterator[Live]:
    with served() as running:
        yield running


def top(live: Live, *arguments: str) -> Result:
    command = ["top", *arguments, "--url", f"http://127.0.0.1:{live.port}/"]
    return CliRunner().invoke(main, command, prog_name="load-watcher")


def document(live: Live, *arguments: str) -> Any:
    result = top(live, *arguments, "-o", "json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def rows(result: Result) -> list[list[str]]:
    assert result.exit_code == 0, result.stderr
    return [line.split() for line in result.stdout.splitlines()]


def test_nodes_have_their_mean_and_their_requests_highest_first(live: Live) -> None:
    head, *nodes = rows(top(live, "nodes"))
    assert head == ["node", "cpu", "15m", "cpu", "requested", "memory", "15m", "memory", "requested", "age"]
    assert nodes[:3] == [
        ["node-2", "60%", "50%", "70%", "12%"],
        ["node-3", "50%*", "-", "20%*", "-"],
        ["node-1", "26%", "0%", "40%", "0%"],
    ]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("cpu", ["node-2", "node-3", "node-1"]),
        ("memory", ["node-2", "node-1", "node-3"]),
        ("name", ["node-1", "node-2", "node-3"]),
    ],
)
def test_nodes_are_sorted_by_usage_or_name(live: Live, order: str, expected: list[str]) -> None:
    assert [each["name"] for each in document(live, "nodes", "--sort", order)["nodes"]] == expected


def test_the_mean_of_a_shorter_window_is_marked(live: Live) -> None:
    assert "*: too few samples for 15m, mean of a shorter window (10m)" in top(live, "nodes").stdout
    assert "*" not in top(live, "nodes", "--window", "5m").stdout
    found = {each["name"]: each["cpu"]["window"] for each in document(live, "nodes")["nodes"]}
    assert found == {"node-1": "15m", "node-2": "15m", "node-3": "10m"}


def test_pods_have_readings_means_and_requests(live: Live) -> None:
    pods = {f"{each['namespace']}/{each['name']}": each for each in document(live, "pods")["pods"]}
    assert list(pods) == ["a/web-1", "a/web-0", "b/job"]
    assert pods["a/web-1"]["cpu"] == {"usage": 1.5, "means": [1.5, None, None], "requested": 1.5}
    assert pods["a/web-0"]["cpu"]["requested"] is None
    assert pods["b/job"]["memory"] == {"usage": None, "means": [None] * 3, "requested": None}
    shown = rows(top(live, "pods", "--node", "node-2", "-n", "a"))
    assert shown[1] == [
        "a",
        "web-1",
        "node-2",
        *("1500m", "1500m", "-", "-", "1500m"),
        *("2048Mi", "2048Mi", "-", "-", "1024Mi"),
    ]
    assert len(shown) == 2


@pytest.mark.parametrize(
    ("without", "reason"),
    [
        ({"scheduler": False}, "the service has no [scheduler] in its settings"),
        ({"listed": False}, "not fully listed yet"),
    ],
)
@pytest.mark.parametrize("command", ["nodes", "pods"])
def test_unknown_requests_have_their_reason(command: str, without: dict[str, Any], reason: str) -> None:
    with served(**without) as live:
        result = top(live, command)
    assert result.exit_code == 0, result.stderr
    assert "requests are unknown: " in result.stdout
    assert reason in result.stdout


def test_a_refused_request_is_an_error() -> None:
    """Unknown requests are not the reason of a wrong token."""
    with served(protection=Protection(token="secret", protect_reads=True)) as live:
        result = top(live, "nodes")
    assert result.exit_code == 2
    assert "token" in result.stderr


def test_a_wrong_window_lists_those_of_the_service(live: Live) -> None:
    result = top(live, "nodes", "--window", "7m")
    assert (result.exit_code, result.stderr) == (2, "load-watcher: unknown window '7m'\n  known: 5m, 10m, 15m\n")


def test_watching_requires_text(live: Live) -> None:
    result = top(live, "nodes", "--watch", "-o", "json")
    assert result.exit_code == 2
    assert "--watch requires -o text" in result.stderr


@pytest.mark.parametrize(("name", "meant"), [("nodes", "top nodes"), ("pods", "top pods"), ("explain", "why")])
def test_the_names_of_kubectl_suggest_the_command(name: str, meant: str) -> None:
    result = CliRunner().invoke(main, [name])
    assert result.exit_code == 2
    assert f"Did you mean '{meant}'?" in result.stderr
