"""`load-watcher demo` as a user runs it: a process whose pods are placed by its own extender over HTTP."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from load_watcher.main import main
from tests.real.parts import REPOSITORY, Server, make_certificates
from tests.service import Service
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

BOUND = re.compile(r'^load_watcher_http_requests_total\{code="200",route="scheduler_bind"\} ([1-9]\S*)$', re.MULTILINE)


class Demo(Service):
    """A `load-watcher demo`, whose temporary files are in its own directory."""

    verb = "demo"

    def __init__(self, directory: Path, *arguments: str, secure: bool = False, **options: Any) -> None:
        self.temporary = directory / "tmp"
        self.temporary.mkdir(parents=True)
        super().__init__(directory, *arguments, env={"TMPDIR": str(self.temporary)}, **options)
        self.secure = secure

    @property
    def url(self) -> str:
        return super().url.replace("http:", "https:") if self.secure else super().url


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """One process for all tests that only read."""
    with Demo(tmp_path_factory.mktemp("demo")) as running:
        running.wait_for_status(200, "/readyz")
        yield running


def node_with(demo: Demo, fault: str) -> str:
    """The node of this fault in the output at the start."""
    found = re.search(rf"^  (\S+) {fault}", demo.log(), flags=re.MULTILINE)
    assert found is not None, demo.log()
    return found[1]


def wait_for_placements(demo: Demo) -> None:
    wait_for(lambda: BOUND.search(demo.get("/metrics").text), what="pods to be bound through the extender")


def test_windows_are_complete_at_once_and_marked_as_simulated(demo: Demo) -> None:
    """When the service is ready, all nodes without a fault have windows of 15 minutes."""
    document = demo.get("/watcher").json()
    assert document["source"] == "Demo"
    nodes = document["data"]["NodeMetricsMap"]
    faulty = {node_with(demo, "sends no samples"), node_with(demo, "has an exporter that repeats")}
    whole = {
        name
        for name, node in nodes.items()
        if {"15m"} == {each["rollup"] for each in node["metrics"] if each["type"] in ("CPU", "Memory")}
    }
    assert len(whole | faulty) == 24
    assert all(0.0 <= each["value"] <= 100.0 for node in nodes.values() for each in node["metrics"][:4])
    assert "all data is generated" in demo.log()
    assert 'id="simulated"' in demo.get("/").text


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/watcher", "/watcher/nobody", "/watcher/health", "/healthz", "/metrics", "/openapi.json"),
        *("/api/v1/history?host=nobody", "/api/v1/nodemetrics", "/scheduler/default/nodes", "/scheduler/cluster"),
    ],
)
def test_each_response_states_that_it_is_simulated(demo: Demo, path: str) -> None:
    """Errors too, and documents without a source."""
    assert "all data is generated" in demo.get(path).headers["X-Simulated"]


def test_faults_are_found_on_their_nodes(demo: Demo) -> None:
    """The named nodes, each with its kind of finding."""
    expected = {
        ("frozen", node_with(demo, "has an exporter that repeats")),
        ("stale", node_with(demo, "sends no samples")),
        ("out_of_range", node_with(demo, "sometimes reports")),
    }

    def found() -> bool:
        findings = demo.get("/api/v1/findings").json()["findings"]
        return expected <= {(each["kind"], each["node"]) for each in findings}

    wait_for(found, what=f"the findings {expected}")


def test_pods_are_placed_by_the_extender_and_listed(demo: Demo) -> None:
    """Some recent pods are on their nodes, and the profile has the name default."""
    wait_for_placements(demo)
    nodes = demo.get("/scheduler/default/nodes").json()["nodes"]
    assert len(nodes) == 24
    assert any(node["recent"] for node in nodes.values())
    assert all(node["pods"] > 0 and node["requested"]["cpu"] > 0 for node in nodes.values())
    assert demo.get("/scheduler/plugins").json()["profiles"] == ["default", "low-risk", "spreading"]
    pods = demo.wait_for_status(200, "/api/v1/pods").json()
    assert set(pods["node"]) == set(nodes)


@pytest.mark.parametrize(("reach", "step", "points"), [("-1h", "1m", 59), ("-24h", "10m", 143)])
def test_a_day_of_history_exists_at_once(demo: Demo, reach: str, step: str, points: int) -> None:
    """CPU and memory of a node without gaps, for each window; it continues into the windows of the service."""
    path = f"/api/v1/history?host=general-a-01&from={reach}&step={step}&window="

    def history(window: str) -> list[list[list[float]]]:
        series = demo.get(path + window).json()["series"]
        return [each["points"] for each in series if each["type"] in ("CPU", "Memory")]

    for window in ("5m", "10m", "15m"):
        found = wait_for(
            lambda window=window: [each for each in history(window) if len(each) >= points],  # type: ignore[misc]
            what=f"a history of {reach} in the window {window}",
        )
        assert len(found) == 4  # mean and deviation
        for series in found:
            times = [time for time, _ in series]
            assert max(after - before for before, after in itertools.pairwise(times)) <= 2 * (
                60 if step == "1m" else 600
            )
            assert all(0.0 <= value <= 100.0 for _, value in series)


def test_shadow_mode_compares_three_profiles(demo: Demo) -> None:
    """The profile that places the pods, and two alternatives."""

    def shadowed() -> dict[str, Any] | None:
        report = demo.get("/scheduler/shadow").json()
        return report if report["bindings"] else None

    report = wait_for(shadowed, what="a binding that shadow mode saw")
    assert report is not None
    assert report["source"] == "Demo"
    assert [each["profile"] for each in report["profiles"]] == ["default", "low-risk", "spreading"]


def test_the_decision_about_a_pod_is_explained(demo: Demo) -> None:
    """For a pod that the log names."""

    def placed() -> re.Match[str] | None:
        return re.search(r" pod (\S+/\S+) placed on node (\S+): extender score \d+ of 10", demo.log())

    found = wait_for(placed, what="a pod to be placed")
    assert found is not None
    pod, node = found.groups()

    def reported() -> str:
        result = CliRunner().invoke(main, ["why", pod, "--url", demo.url], prog_name="load-watcher")
        return result.stdout if f"bound to {node}" in result.stdout else ""

    assert "by the profile default" in wait_for(reported, what=f"why {pod} is on {node}")


def test_a_manifest_is_ranked_with_the_demo(demo: Demo) -> None:
    """One line per node with the reason; the hot node is rejected once the load has reached the scorers."""
    manifest = REPOSITORY / "docs" / "examples" / "pod.yaml"
    arguments = ["score", str(manifest), "--url", demo.url]
    hot = node_with(demo, "is hot: ")

    def ranked() -> dict[str, str]:
        result = CliRunner().invoke(main, arguments, prog_name="load-watcher", env={"COLUMNS": "200"})
        assert result.exit_code == 0, result.output
        lines = {line.split()[0]: line for line in result.stdout.splitlines()}
        assert demo.get("/scheduler/default/nodes").json()["nodes"].keys() <= lines.keys()
        return lines if "rejected" in lines[hot] else {}

    lines = wait_for(ranked, what=f"{hot} to be rejected")
    assert "would be at cpu" in lines["general-a-01"]


def test_the_demo_leaves_no_files(tmp_path: Path, running: Callable[[Server], Server]) -> None:
    """SIGTERM ends it with exit code 0."""
    demo = Demo(tmp_path / "demo", "--nodes", "1", "--speed", "1440")
    running(demo)
    demo.start()
    demo.wait_for_status(200, "/readyz")
    assert list(demo.temporary.iterdir())
    assert demo.stop() == 0
    assert not list(demo.temporary.iterdir())
    assert {each.name for each in demo.directory.iterdir()} == {"tmp", "load-watcher.log"}
    assert "Traceback" not in demo.log()


def test_settings_that_do_not_belong_to_a_real_cluster_are_used(
    tmp_path: Path, running: Callable[[Server], Server]
) -> None:
    """Certificates and profiles are; the source and the database of the file are not."""
    make_certificates(tmp_path)
    config = f"""
        [server]
        tls_cert = "{tmp_path}/server.pem"
        tls_key = "{tmp_path}/server.key"
        [provider]
        name = "prometheus"
        address = "http://127.0.0.1:1"
        [store]
        url = "sqlite:///{tmp_path}/real.db"
        [scheduler.mine]
        plugins = [{{ name = "LoadVariationRiskBalancing" }}]
        bind = true
    """
    demo = Demo(tmp_path / "demo", "--nodes", "5", config=config, secure=True)
    demo.session.verify = str(tmp_path / "ca.pem")
    running(demo)
    demo.start()
    wait_for_placements(demo)
    assert demo.get("/scheduler/plugins").json()["profiles"] == ["mine"]
    assert demo.stop() == 0
    assert not (tmp_path / "real.db").exists()
