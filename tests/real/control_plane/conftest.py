"""One API server for all tests of this directory that leave it running; each test uses its own names."""

from collections.abc import Iterator

import pytest

from tests.real.kube import ApiServer, Etcd


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A real API server, shared by the session."""
    directory = tmp_path_factory.mktemp("control-plane")
    with Etcd(directory / "etcd") as etcd, ApiServer(directory / "api", etcd) as server:
        yield server
