"""`load-watcher report` with a real Prometheus, and its page in a real browser."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from load_watcher import main
from tests.real.browser import chromium, tab
from tests.real.cluster_history import (
    OUT_OF_ORDER,
    HistoryCluster,
    cadvisor_series,
    make_cluster,
    rule_series,
    state_series,
)
from tests.real.parts import Prometheus, free_port, new_secret

pytestmark = [pytest.mark.real, pytest.mark.slow]

EVIL = "<script>alert(1)</script>"
DAYS = 3


@pytest.fixture(scope="module")
def cluster() -> HistoryCluster:
    """Four nodes, of which the first is hot in the morning, and a pod with a hostile name."""
    made = make_cluster(4, 5, end=time.time() - 5.0, days=DAYS + 0.1)
    odd = replace(made.pods[-1], name=EVIL, owner=("StatefulSet", EVIL))
    return replace(made, pods=(*made.pods[:-1], odd))


@pytest.fixture(scope="module")
def full(cluster: HistoryCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus with all series that the report uses."""
    with Prometheus(tmp_path_factory.mktemp("full"), config=OUT_OF_ORDER) as server:
        server.write([*rule_series(cluster), *cadvisor_series(cluster), *state_series(cluster)])
        yield server


@pytest.fixture(scope="module")
def rules(cluster: HistoryCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus with the recording rules only."""
    with Prometheus(tmp_path_factory.mktemp("rules"), config=OUT_OF_ORDER) as server:
        server.write(rule_series(cluster))
        yield server


def run(url: str, folder: Path, *arguments: str, **more: Any) -> Result:
    page = ("--file", str(folder / "report.html"), "--days", str(DAYS))
    return CliRunner().invoke(main.main, ["report", "--prometheus", url, *page, *arguments], **more)


def written(folder: Path) -> tuple[str, dict[str, Any]]:
    document: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return (folder / "report.html").read_text(), document


@pytest.fixture(scope="module")
def folder(full: Prometheus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of one complete report."""
    found = tmp_path_factory.mktemp("report")
    result = run(full.url, found)
    assert result.exit_code == 0, result.output
    return found


def test_the_report_is_complete(folder: Path):
    page, document = written(folder)
    assert document["missing"] == []
    assert "1 of 4 nodes was above 80 % CPU for " in document["findings"]["hot"]
    cpu = document["peaks"][0]
    assert cpu["nodes"][0]["node"] == "node-0001"
    assert cpu["cluster"]["allocatable"] == pytest.approx(4 * 0.95 * 8)
    assert cpu["cluster"]["requested"] == pytest.approx(1.5 * 8 * (0.6 + 3 * 0.3), abs=0.01)
    assert 0.0 < cpu["record"]["coverage"] <= 1.0
    assert document["workloads"]["workloads"][0]["namespace"] == "shop"
    policies = document["policies"]
    assert policies["policies"][0]["policy"] == "DefaultScheduler"
    assert (policies["nodes"], policies["pods"], policies["replays"]) == (4, 20, 5)
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_the_same_end_gives_the_same_bytes(full: Prometheus, cluster: HistoryCluster, tmp_path: Path):
    pages = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        result = run(full.url, tmp_path / name, "--no-simulation", "--end", str(float(cluster.times[-1]) - 1800.0))
        assert result.exit_code == 0, result.output
        pages.append((tmp_path / name / "report.html").read_bytes())
    assert pages[0] == pages[1]


def test_nodes_whose_cadvisor_is_not_scraped_are_named(cluster: HistoryCluster, tmp_path: Path):
    """Their pods are in no workload, and the report states this with the cause."""
    of_pods = [one for one in cadvisor_series(cluster) if one.labels["node"] != "node-0004"]
    with Prometheus(tmp_path / "prometheus", config=OUT_OF_ORDER) as server:
        server.write([*rule_series(cluster), *of_pods, *state_series(cluster)])
        result = run(server.url, tmp_path, "--no-simulation")
    assert result.exit_code == 0, result.output
    remark = "no pod usage for 1 of 4 nodes; node-0004: cAdvisor of the kubelet is not scraped"
    assert any(remark in each for each in written(tmp_path)[1]["remarks"])


def test_missing_data_are_named(rules: Prometheus, tmp_path: Path):
    """With rules only: the load in percent, and for other data how to get them."""
    result = run(rules.url, tmp_path)
    assert result.exit_code == 0, result.output
    _, document = written(tmp_path)
    missing = {each["what"].split()[0]: each for each in document["missing"]}
    assert set(missing) == {
        "kube_node_status_allocatable",
        "kube_pod_container_resource_requests",
        "container_cpu_usage_seconds_total",
    }
    assert all(each["cure"] and each["shows"] for each in document["missing"])
    assert document["peaks"][0]["cluster"] is None
    assert document["peaks"][0]["nodes"][0]["peak_percent"] > 80.0
    assert "fix: scrape kube-state-metrics" in result.stdout


def test_a_small_budget_is_kept_and_stated(full: Prometheus, tmp_path: Path):
    result = run(full.url, tmp_path, "--no-simulation", "--max-samples", "10000")
    assert result.exit_code == 0, result.output
    _, document = written(tmp_path)
    assert sum(each["values"] for each in document["queries"]) <= 10_000
    assert any("--max-samples" in each["what"] for each in document["missing"]), document["missing"]


def test_an_unreachable_server_is_an_error(tmp_path: Path):
    result = run(f"http://127.0.0.1:{free_port()}", tmp_path)
    assert result.exit_code == 2
    assert "kubectl -n monitoring port-forward" in result.stderr
    assert not (tmp_path / "report.html").exists()


def test_a_time_without_data_is_an_error(full: Prometheus, tmp_path: Path):
    """Ten days ago the server had no data, but it has some now."""
    result = run(full.url, tmp_path, "--end", str(time.time() - 10 * 86400))
    assert result.exit_code == 2
    assert "no CPU utilization of nodes at " in result.stderr
    assert "check --days and --end" in result.stderr


def test_a_server_without_nodes_is_an_error(tmp_path: Path):
    (tmp_path / "server").mkdir()
    with Prometheus(tmp_path / "server") as server:
        result = run(server.url, tmp_path)
    assert result.exit_code == 2
    assert "no CPU utilization of nodes" in result.stderr
    assert "provider.queries.CPU.expression" in result.stderr


def test_credentials_are_read_from_files_and_the_environment(cluster: HistoryCluster, tmp_path: Path):
    """The password is neither in errors nor in files."""
    secret = new_secret()
    (tmp_path / "password").write_text(secret)
    (tmp_path / "server").mkdir()
    with Prometheus(tmp_path / "server", config=OUT_OF_ORDER, basic_auth=("reader", secret)) as server:
        server.write(rule_series(cluster))
        refused = run(server.url, tmp_path, "--no-simulation")
        assert refused.exit_code == 2
        assert "credentials are required" in refused.stderr
        named = run(
            server.url,
            tmp_path,
            "--no-simulation",
            "--username",
            "reader",
            "--password-file",
            str(tmp_path / "password"),
        )
        assert named.exit_code == 0, named.output
        environment = {"LOAD_WATCHER_PROVIDER_USERNAME": "reader", "LOAD_WATCHER_PROVIDER_PASSWORD": secret}
        taken = run(server.url, tmp_path, "--no-simulation", "-o", "json", env=environment)
    assert taken.exit_code == 0, taken.output
    assert json.loads(taken.stdout)["nodes"] == 4
    page, _ = written(tmp_path)
    assert secret not in page + named.output + refused.output + taken.output


@pytest.mark.parametrize(("dark", "width"), [(False, 1280), (True, 1280), (False, 390)])
def test_the_page_has_no_errors_in_a_browser(folder: Path, dark: bool, width: int):
    """No findings of axe, nothing wider than the window, in light, dark and on a phone."""
    with chromium() as browser, tab(browser, dark=dark, width=width) as page:
        page.open((folder / "report.html").as_uri(), shows="Hot hours")
        assert page.errors() == []
        wide, inner = page.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert wide <= inner
        assert page.unfit() == []
