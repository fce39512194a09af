"""One cluster for all tests of this directory, which `make cluster` runs; `make cluster-v2` runs most of them on a
virtual node."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import programs
from tests.cluster.cluster import Cluster, left_behind
from tests.cluster.deployed import applied

SELECTED = os.environ.get("LOAD_WATCHER_CLUSTER")
"""1 or v2: which cluster the tests run on."""
VIRTUAL = SELECTED == "v2"
POD_USAGE = [
    {"apiGroups": ["metrics.k8s.io"], "resources": ["pods"], "verbs": ["list"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
]
"""The rules of docs/tasks/metrics-server.md#permissions that are not in the overlay."""
collect_ignore = ["test_chart.py", "test_service.py"] if VIRTUAL else []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this directory as slow; without LOAD_WATCHER_CLUSTER they are skipped."""
    here = f"{Path(__file__).parent}{os.sep}"
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(1200 if VIRTUAL else 600))
            if SELECTED not in ("1", "v2"):
                item.add_marker(pytest.mark.skip(reason="a cluster with real kubelets: run make cluster"))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A running cluster, in a directory of its own, because pytest removes those of earlier sessions only."""
    try:
        programs.check(virtual=VIRTUAL)
    except programs.MissingError as error:
        pytest.fail(str(error))
    with tempfile.TemporaryDirectory(prefix="cluster-") as directory:
        with Cluster(Path(directory), virtual=VIRTUAL) as running:
            yield running
        assert left_behind(Path(directory)) == []


@pytest.fixture(scope="session", autouse=not VIRTUAL)
def serving(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The service with metrics-server and the extender, from the first test on, because it is ready after minutes; the
    directory with the copy of deploy/."""
    directory = tmp_path_factory.mktemp("serving")
    with applied(cluster, directory, "overlays/extender", rules=POD_USAGE):
        yield directory
