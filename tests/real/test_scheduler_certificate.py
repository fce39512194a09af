"""filter, prioritize and bind only for the client certificate of kube-scheduler, over real TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import requests

from tests.certificates import Authority
from tests.service import TlsService
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.slow

SCHEDULER = "system:kube-scheduler"
SETTINGS = """
[server]
tls_cert = "{folder}/server.crt"
tls_key = "{folder}/server.key"
tls_client_ca = "{folder}/ca.pem"
scheduler_clients = ["system:kube-scheduler", "scheduler.example.org"]

[kubernetes]
node_names = "off"

[scheduler.default]
plugins = [{{ name = "TargetLoadPacking" }}]
bind = true
"""
POD = {"metadata": {"name": "web", "namespace": "default", "uid": "u1"}}
BODIES: dict[str, dict[str, Any]] = {
    "filter": {"Pod": POD, "NodeNames": ["a"]},
    "prioritize": {"Pod": POD, "NodeNames": ["a"]},
    "bind": {"PodName": "web", "PodNamespace": "default", "PodUID": "u1", "Node": "a"},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An authority, a server's certificate, and those of clients."""
    authority = Authority("clients")
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    authority.issue("127.0.0.1").write(tmp_path, "server")
    certificate, key = authority.issue(subject=SCHEDULER).write(tmp_path, "scheduler")
    for source, name in ((certificate, "client.pem"), (key, "client.key")):  # with the names of TlsService
        (tmp_path / name).write_bytes(source.read_bytes())
    authority.issue("scheduler.example.org", subject="").write(tmp_path, "dns")
    authority.issue("system:kube-scheduler.example.org", subject="system:node:a").write(tmp_path, "kubelet")
    Authority("others").issue(subject=SCHEDULER).write(tmp_path, "stranger")
    return tmp_path


class TlsExtender(TlsService):
    """A `load-watcher extender` over https."""

    name = "extender"
    verb = "extender"


@pytest.fixture(params=[TlsService, TlsExtender], ids=["serve", "extender"])
def service(request: pytest.FixtureRequest, folder: Path, running: Any) -> TlsService:
    """The service, or the extender as a process of its own."""
    env = {"LOAD_WATCHER_URL": "http://127.0.0.1:9", "KUBECONFIG": str(folder / "none")}
    made: TlsService = request.param(folder / "service", folder=folder, config=SETTINGS.format(folder=folder), env=env)
    running(made)
    made.start()
    return made


def ask(service: TlsService, path: str, *, client: str = "", body: Any = None) -> requests.Response:
    """A request with the certificate of a client, "" for none."""
    folder = Path(str(service.session.verify)).parent
    return requests.request(
        "GET" if body is None else "POST",
        service.url + path,
        json=body,
        verify=str(service.session.verify),
        cert=(str(folder / f"{client}.crt"), str(folder / f"{client}.key")) if client else None,
        timeout=PATIENCE_SECONDS,
    )


def test_only_the_scheduler_filters_prioritizes_and_binds(service: TlsService) -> None:
    """Requests from loopback are refused too; requests of users and probes are not affected."""
    for verb, body in BODIES.items():
        path = f"/scheduler/default/{verb}"
        for client, given in (("", "none was sent"), ("kubelet", "system:node:a")):
            refused = ask(service, path, client=client, body=body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "certificate_required"), verb
            assert given in refused.json()["error"]["message"]
            assert "tlsConfig" in refused.json()["error"]["hint"]
        for client in ("scheduler", "dns"):
            assert ask(service, path, client=client, body=body).status_code == 200, verb
        with pytest.raises(requests.ConnectionError):
            ask(service, path, client="stranger", body=body)
    assert ask(service, "/scheduler/default/explain", body=BODIES["filter"]).status_code == 200
    for path in ("/healthz", "/readyz", "/metrics", "/scheduler/plugins"):
        assert ask(service, path).status_code in (200, 503), path
