"""The ratio of the requests of pods to the measured usage of their nodes."""

from __future__ import annotations

import pytest

from scorers.cluster.request_ratio import requests_to_usage
from tests.scorers.simulated_cluster import load, node, pod, table

SIZE = {"cpu": "10", "memory": "10Gi"}


def test_only_nodes_with_known_load_count() -> None:
    """Node a uses 4 of 10 cores and its pod requests 2; node b has no CPU load, node c no load at all."""
    pods = [pod(name, node=name, containers=[{"requests": {"cpu": "2", "memory": "3Gi"}}]) for name in "abc"]
    loads = load({"a": {("CPU", "AVG"): 40.0, ("Memory", "AVG"): 20.0}, "b": {("Memory", "AVG"): 40.0}})
    cluster = table([node(name, SIZE) for name in "abc"], pods, loads)
    assert {"cpu": pytest.approx(0.5), "memory": pytest.approx(1.0)} == requests_to_usage(cluster)


def test_without_load_there_is_no_ratio() -> None:
    assert {} == requests_to_usage(table([node("a", SIZE)], [pod("a", node="a")]))
