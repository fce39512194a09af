"""Real components that several modules of this directory share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.kube import ApiServer, Etcd


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What starts real programs is no part of the fast suite."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="module")
def apiserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A real Kubernetes API on a real etcd, one for a whole module."""
    directory = tmp_path_factory.mktemp("kube")
    with Etcd(directory / "etcd") as etcd, ApiServer(directory / "api", etcd) as server:
        yield server
