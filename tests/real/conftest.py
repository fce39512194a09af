"""Real components for several modules of this directory."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.real.kube import ApiServer, Etcd


@pytest.fixture(scope="module")
def apiserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A real Kubernetes API on a real etcd, one per module."""
    directory = tmp_path_factory.mktemp("kube")
    with Etcd(directory / "etcd") as etcd, ApiServer(directory / "api", etcd) as server:
        yield server


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """A directory with an authority, and its certificates for a server and a client."""
    folder = tmp_path / "tls"
    folder.mkdir()
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    for name, certificate in (
        ("server", authority.issue_cert("127.0.0.1")),
        ("client", authority.issue_cert("scheduler@example.org")),
    ):
        certificate.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
        certificate.private_key_pem.write_to_path(folder / f"{name}.key")
    return folder
