"""The source of pods for given settings and environments."""

from pathlib import Path

import pytest

from agent.service.dependencies import NoPodSource, access_to_kubelet, pod_source
from agent.service.node_server import CannotRun
from agent.service.settings import AgentSettings
from agent.state.api_pods import InformerPods
from agent.state.kubelet import KubeletPods
from tests.real.parts import make_certificates
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import KubeAccess

IN_A_POD = {"HOST_IP": "10.0.0.7"}


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """The directory of a service account."""
    make_certificates(tmp_path)
    (tmp_path / "ca.pem").rename(tmp_path / "ca.crt")
    (tmp_path / "token").write_text("a-token")
    return tmp_path


def client() -> KubeClient:
    return KubeClient(lambda: KubeAccess("http://127.0.0.1:1", "a test"))


@pytest.mark.parametrize(
    ("settings", "environ", "address"),
    [
        (AgentSettings(), {}, None),
        (AgentSettings(), IN_A_POD, "https://10.0.0.7:10250"),
        (AgentSettings(), {"HOST_IP": "fd00::7"}, "https://[fd00::7]:10250"),
        (AgentSettings(kubelet="http://10.0.0.8:10255"), IN_A_POD, "http://10.0.0.8:10255"),
        (AgentSettings(pods="api"), IN_A_POD, None),
        (AgentSettings(pods="api", kubelet="http://10.0.0.8:10255"), {}, None),
        (AgentSettings(pods="kubelet"), IN_A_POD, "https://10.0.0.7:10250"),
        (AgentSettings(pods="kubelet"), {}, None),
    ],
)
def test_the_address_of_the_kubelet(settings: AgentSettings, environ: dict[str, str], address: str | None):
    assert address == settings.kubelet_address(environ)


def test_the_service_account_of_the_pod_is_used(account: Path):
    access = access_to_kubelet(AgentSettings(), environ=IN_A_POD, service_account=account)
    assert access is not None
    assert ("https://10.0.0.7:10250", account / "token", None) == (
        access.server,
        access.token_file,
        access.tls_server_name,
    )
    assert access.tls is not None
    assert 1 == len(access.tls.get_ca_certs())


def test_the_token_of_the_account_is_never_sent_over_plain_http(account: Path):
    settings = AgentSettings(kubelet="http://10.0.0.7:10255")
    access = access_to_kubelet(settings, environ={}, service_account=account)
    assert access is not None
    assert (None, None) == (access.token_file, access.tls)


def test_settings_have_precedence_over_the_account(account: Path, tmp_path: Path):
    own = tmp_path / "own-token"
    settings = AgentSettings(kubelet_token_file=own, kubelet_name="node-1", kubelet_ca_file=tmp_path / "nowhere")
    with pytest.raises(CannotRun, match="nowhere cannot be read"):
        access_to_kubelet(settings, environ=IN_A_POD, service_account=account)
    settings = AgentSettings(kubelet_token_file=own, kubelet_name="node-1")
    access = access_to_kubelet(settings, environ=IN_A_POD, service_account=account)
    assert access is not None
    assert (own, "node-1") == (access.token_file, access.tls_server_name)


def test_the_source_of_pods(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("HOST_IP", raising=False)
    assert isinstance(pod_source(AgentSettings(), None), NoPodSource)
    assert isinstance(pod_source(AgentSettings(), client()), InformerPods)
    with pytest.raises(CannotRun, match="the kubelet's address is unknown"):
        pod_source(AgentSettings(pods="kubelet"), client())
    monkeypatch.setenv("HOST_IP", "10.0.0.7")
    assert isinstance(pod_source(AgentSettings(), client()), KubeletPods)
    assert isinstance(pod_source(AgentSettings(pods="api"), client()), InformerPods)
