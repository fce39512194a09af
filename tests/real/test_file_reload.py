"""Rotated tokens and certificates take effect without a restart, in the service and on the nodes."""

from __future__ import annotations

import os
import shutil
import signal
import ssl
from pathlib import Path

import pytest
import requests
import trustme

from tests.service import Service, TlsService
from tests.waiting import wait_for

pytestmark = pytest.mark.slow


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def certificate_of(service: Service) -> str:
    return ssl.get_server_certificate(("127.0.0.1", service.port))


def test_a_rotated_token_and_certificate_count_after_a_signal(tmp_path: Path, certificates: Path) -> None:
    """And the log names both files. A client certificate opens what protect_reads protects."""
    token = tmp_path / "token"
    token.write_text("first")
    for name in ("server.pem", "server.key"):
        shutil.copy(certificates / name, tmp_path / name)
    config = f"""
        [server]
        token_file = "{token}"
        protect_reads = true
        tls_cert = "{tmp_path}/server.pem"
        tls_key = "{tmp_path}/server.key"
        tls_client_ca = "{certificates}/ca.pem"
        [provider]
        name = "host"
    """
    with TlsService(tmp_path / "service", folder=certificates, config=config) as service:
        assert 200 == service.get("/openapi.json").status  # with the client certificate
        service.session.cert = None
        service.session.close()
        assert 401 == service.get("/openapi.json").status
        assert 200 == service.get("/openapi.json", headers=bearer("first")).status
        before = certificate_of(service)

        token.write_text("second")
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1")
        issued.cert_chain_pems[0].write_to_path(tmp_path / "server.pem")
        issued.private_key_pem.write_to_path(tmp_path / "server.key")
        authority.cert_pem.write_to_path(tmp_path / "new-ca.pem")
        os.kill(service.pid, signal.SIGHUP)
        wait_for(lambda: certificate_of(service) != before, what="the new certificate")
        service.session.close()
        service.session.verify = str(tmp_path / "new-ca.pem")
        wait_for(
            lambda: service.get("/openapi.json", headers=bearer("second")).status == 200, what="the new token to count"
        )
        assert 401 == service.get("/openapi.json", headers=bearer("first")).status
        assert f"server.token_file ({token}) changed and was read again" in service.log()
        assert f"({tmp_path}/server.pem, {tmp_path}/server.key, {certificates}/ca.pem) changed" in service.log()

        token.write_text("")
        os.kill(service.pid, signal.SIGHUP)
        wait_for(lambda: "the file is empty; the former value stays in use" in service.log(), what="the refusal")
        assert 200 == service.get("/openapi.json", headers=bearer("second")).status


class Node(Service):
    """The agent or the QoS Resource Manager, on a machine without a kubelet."""

    def is_ready(self) -> bool:
        return self.get("/healthz").status in (200, 503)


@pytest.mark.parametrize(("verb", "page"), [("agent", "/explain"), ("qrm", "/qrm/explain")])
def test_a_rotated_token_of_a_node_counts_without_a_signal(tmp_path: Path, verb: str, page: str) -> None:
    """And its pages refuse names of other sites."""
    token = tmp_path / "token"
    token.write_text("first")
    settings = {
        "agent": ["--set", f"agent.token_file={token}", "--set", f"agent.state_file={tmp_path}/agent.db"],
        "qrm": [
            *("--set", f"qrm.token_file={token}", "--set", f"qrm.state_dir={tmp_path}/qrm"),
            *("--set", f"qrm.pod_resources_socket={tmp_path}/pods.sock"),
            *("--set", f"qrm.registration_dir={tmp_path}/plugins", "--set", "qrm.mode=server"),
        ],
    }[verb]
    policies = tmp_path / "policies"
    policies.mkdir()
    extra = ["--set", f"agent.policies={policies}"] if verb == "agent" else []
    node = Node(tmp_path / verb, *settings, *extra, env={"NODE_NAME": "node-1"})
    node.verb = verb
    with node:
        assert 200 == node.get(page, headers=bearer("first")).status
        assert 421 == node.get("/healthz", headers={"Host": "evil.test"}).status
        assert 415 == requests.get(f"{node.url}/healthz", headers={"Content-Encoding": "gzip"}, timeout=60).status_code
        token.write_text("second")
        wait_for(lambda: node.get(page, headers=bearer("second")).status == 200, what="the new token to count")
        assert 401 == node.get(page, headers=bearer("first")).status
        token.write_text("third")
        os.kill(node.pid, signal.SIGHUP)
        wait_for(lambda: node.get(page, headers=bearer("third")).status == 200, what="the third token to count")
