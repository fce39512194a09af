"""Each figure of `load-watcher report` against clusters with a known load, within 2 %."""

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from load_watcher import main
from tests.real import report_truth as truth

pytestmark = [pytest.mark.real, pytest.mark.slow]

WITHIN = 0.02
OF_HOT = 0.08
"""Tolerance of a share of the hot hours: usage of pods is known as means of five minutes, of ten with a scrape interval
of two minutes, and bursts begin and end within them."""


def report(folder: Path, url: str, known: truth.TrueCluster, *arguments: str) -> dict[str, Any]:
    given = ["--days", str(known.days), "--end", str(known.ends), "--file", str(folder / "report.html")]
    result = CliRunner().invoke(main.main, ["report", "--prometheus", url, *given, *arguments])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return found


def compare_nodes(document: Mapping[str, Any], known: truth.TrueCluster, interval: float) -> list[str]:
    """The figures of nodes that are further from the truth than WITHIN. The begin of a burst is known within the scrape
    interval, if that is longer than a minute."""
    late = max(0.0, interval - 60.0) / 3600.0
    rows = {each["node"]: each for each in document["hot"]["nodes"]}
    wrong = []
    for node in known.nodes:
        row, used = rows[node.name], known.utilization(node)
        expected = {
            "cpu_hot_hours": (known.hot_hours(node), 2 / 60.0 + late * known.bursts(node)),
            "cpu_mean": (100.0 * float(np.nanmean(known.used(node))) / truth.CORES, 0.0),
            "cpu_peak": (float(np.nanmax(used)), 0.0),
            "memory_mean": (100.0 * float(known.memory[node.name][node.up].mean()), 0.0),
            "known_hours": (float(np.count_nonzero(node.up)) * truth.GRID_S / 3600.0, 0.0),
        }
        wrong += _differences(node.name, row, expected)
    total = sum(known.hot_hours(node) for node in known.nodes)
    return wrong + _differences("all", document["hot"], {"node_hours": (total, 0.0)})


def compare_cluster(document: Mapping[str, Any], known: truth.TrueCluster, scrape_s: float) -> list[str]:
    cluster = document["peaks"][0]["cluster"]
    used = np.nansum([known.used(node) for node in known.nodes], axis=0)
    slots = used.reshape(-1, truth.MEAN_S // truth.GRID_S).mean(axis=1)
    live = [node for node in known.nodes if node.up[-1]]
    requested = sum(pod.requested for pod in known.pods if pod.lives[-1])
    expected = {
        "mean": (float(used.mean()), 0.0),
        "peak": (float(slots.max()), 0.01 * float(slots.max()) * (scrape_s > 60.0) + WITHIN * float(slots.max())),
        "requested": (requested, 0.0),
    }
    wrong = _differences("cluster", cluster, expected)
    rows = {each["node"]: each for each in document["peaks"][0]["nodes"]}
    for node in live:
        own = sum(pod.requested for pod in known.pods if pod.lives[-1] and pod.node == node.name)
        figures = {"requested": (own, 0.0), "allocatable": (truth.ALLOCATABLE * truth.CORES, 0.0)}
        wrong += _differences(node.name, rows[node.name], figures)
    return wrong


def compare_workloads(document: Mapping[str, Any], known: truth.TrueCluster) -> list[str]:
    rows = {each["workload"]: each for each in document["workloads"]["workloads"]}
    wrong = []
    for name, (mean, share, hot_share) in known.workloads().items():
        expected = {"mean_cores": (mean, 0.002), "share": (share, 0.0005), "hot_share": (hot_share, OF_HOT)}
        wrong += _differences(name, rows[name], expected)
    return wrong


def _differences(name: str, row: Mapping[str, Any], expected: Mapping[str, tuple[float, float]]) -> list[str]:
    return [
        f"{name} {key}: {row[key]} for {value:.4f}"
        for key, (value, least) in expected.items()
        if row[key] is None or abs(row[key] - value) > max(WITHIN * abs(value), least)
    ]


CASES = {
    "rules-30s": (truth.Scraping(30.0), 0.0),
    "rules-60s-shifted": (truth.Scraping(60.0), 137.0),
    "counters-10s": (truth.Scraping(10.0, rules=False, counters=True), 60.0),
    "counters-15s-shifted": (truth.Scraping(15.0, rules=False, counters=True), 411.0),
    "counters-60s": (truth.Scraping(60.0, rules=False, counters=True), 0.0),
    "counters-2min-shifted": (truth.Scraping(120.0, rules=False, counters=True), 250.0),
}


@pytest.mark.parametrize(("scraping", "offset"), CASES.values(), ids=CASES)
def test_the_figures_are_those_of_the_load(scraping: truth.Scraping, offset: float, tmp_path: Path):
    known = truth.hard_cluster(offset=offset)
    with truth.prometheus_of(tmp_path / "server", truth.series(known, scraping), known.days) as server:
        found = report(tmp_path, server.url, known, "--no-simulation")
    wrong = compare_nodes(found, known, scraping.interval)
    wrong += compare_cluster(found, known, scraping.interval) + compare_workloads(found, known)
    assert not wrong, "\n".join(wrong)


def test_a_matcher_selects_one_of_two_clusters(tmp_path: Path):
    """Both have nodes and pods of the same names, with other loads."""
    scraping = truth.Scraping(30.0, rules=False, counters=True)
    one, other = truth.hard_cluster(cluster="one"), truth.hard_cluster(cluster="other", offset=300.0, scale=0.5)
    lines = itertools.chain(truth.series(one, scraping), truth.series(other, scraping, seed=2))
    with truth.prometheus_of(tmp_path / "server", lines, one.days) as server:
        for known in (one, other):
            chosen = f'provider.matchers=cluster="{known.cluster}"'
            found = report(tmp_path, server.url, known, "--no-simulation", "--set", chosen)
            wrong = compare_nodes(found, known, 30.0) + compare_cluster(found, known, 30.0)
            wrong += compare_workloads(found, known)
            assert not wrong, "\n".join(wrong)
