"""One cluster for all tests of this directory, which `make cluster` runs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import programs
from tests.cluster.cluster import Cluster
from tests.cluster.deployed import applied


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this directory as slow; without LOAD_WATCHER_CLUSTER=1 they are skipped."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(600))
            if os.environ.get("LOAD_WATCHER_CLUSTER") != "1":
                item.add_marker(pytest.mark.skip(reason="a cluster with real kubelets: run make cluster"))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A running cluster with two nodes, in a directory of its own: pytest removes those of earlier sessions."""
    try:
        programs.check()
    except programs.MissingError as error:
        pytest.fail(str(error))
    with tempfile.TemporaryDirectory(prefix="cluster-") as directory, Cluster(Path(directory)) as running:
        yield running


@pytest.fixture(scope="session", autouse=True)
def serving(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The service with metrics-server and the extender, from the first test on, because it is ready after minutes; the
    directory with the copy of deploy/."""
    directory = tmp_path_factory.mktemp("serving")
    with applied(cluster, directory, "overlays/extender", ["pods"]):
        yield directory
