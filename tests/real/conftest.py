"""Real components that several modules of this directory share."""

from collections.abc import Iterator

import pytest

from tests.real.kube import ApiServer, Etcd


@pytest.fixture(scope="module")
def apiserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A real Kubernetes API on a real etcd, one for a whole module."""
    directory = tmp_path_factory.mktemp("kube")
    with Etcd(directory / "etcd") as etcd, ApiServer(directory / "api", etcd) as server:
        yield server
