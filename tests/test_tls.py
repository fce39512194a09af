"""Certificates of servers for each connection as a client: accepted ones, and the reported causes of refusals."""

import ast
import asyncio
import base64
import json
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest
from aiohttp.web import Application
from yarl import URL

from agent.state.kubelet import KubeletError, KubeletPods, kubelet_access
from agent.state.remote import PrometheusQueryClient
from lab.demo.scheduler import _trusting
from load_watcher.doctor.listening import _session
from scorers.extender.remote import WatcherAccess
from tests.certificates import (
    BY_HAND,
    DAY,
    EKS,
    KUBEADM,
    MICROK8S,
    NOW,
    Authority,
    Pair,
    Style,
    TlsServer,
    tls_server,
)
from tests.hostile import TOKEN
from tests.hostile.clients import CLIENTS, settings
from watcher.agent_clients.pages import AgentError, AgentProxy, EndpointKind, clients_by_kind
from watcher.client import WatcherClient, WatcherError
from watcher.core.kubernetes.errors import KubeError
from watcher.core.kubernetes.objects import NODES
from watcher.platform.http.tls import ServerTls
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credential_plugin import CredentialPlugin
from watcher.platform.kube.credentials import find_access
from watcher.platform.net.failures import failure_reason
from watcher.platform.net.session import client_session
from watcher.platform.net.tls import client_context
from watcher.sources.config import ConnectionSettings
from watcher.sources.errors import ProviderError
from watcher.sources.prometheus.metric_names import similar_names
from watcher.sources.registry import build

REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Connection:
    """A client in an empty directory: the server's address, the file of the authorities, and a client certificate with
    its key."""

    url: str
    ca: Path
    directory: Path
    client: tuple[Path, Path] | None = None


Connect = Callable[[Connection], Awaitable[str]]
"""Sends a request; returns the message of its failure, if it has one."""


async def fetch(given: Connection, **named: Any) -> str:
    """Fetch once, as the service does."""
    configured = build(settings(given.directory, provider__timeout="5s", **named))
    try:
        await configured.start()
        fetched = await configured.fetch(NOW.timestamp() - 300, NOW.timestamp())
        return " ".join(finding.reason for finding in fetched.findings)
    except ProviderError as error:
        return f"{error} {error.hint}"
    finally:
        await configured.close()


def source(name: str, **more: Any) -> Connect:
    async def connect(given: Connection) -> str:
        files: dict[str, Any] = {"provider__ca_file": str(given.ca)}
        if given.client is not None:
            files |= {"provider__client_cert": str(given.client[0]), "provider__client_key": str(given.client[1])}
        return await fetch(given, provider__name=name, provider__address=given.url, **files, **more)

    return connect


class Closable(Protocol):
    async def close(self) -> None: ...


async def failure_of(request: Awaitable[object], client: Closable) -> str:
    """Send a request, and close the client."""
    try:
        await request
    except (ProviderError, KubeError, KubeletError, WatcherError) as error:
        return f"{error} {error.hint}"
    finally:
        await client.close()
    return ""


def connection_settings(given: Connection) -> ConnectionSettings:
    certificate, key = given.client or (None, None)
    return ConnectionSettings(
        address=given.url, ca_file=given.ca, client_cert=certificate, client_key=key, timeout=5.0, backoff=()
    )


async def agent_query(given: Connection) -> str:
    client = PrometheusQueryClient(connection_settings(given))
    return await failure_of(client.ask("up"), client)


async def names(given: Connection) -> str:
    await asyncio.to_thread(similar_names, connection_settings(given), ["cpu"])
    return ""


def kubeconfig(given: Connection, *, inline: bool = False) -> Path:
    """Authority and client certificate in the kubeconfig itself, or in files beside it."""

    def entry(name: str, path: Path) -> dict[str, str]:
        return {f"{name}-data": base64.b64encode(path.read_bytes()).decode()} if inline else {name: str(path)}

    user = {"token": TOKEN}
    if given.client is not None:
        user = entry("client-certificate", given.client[0]) | entry("client-key", given.client[1])
    config = {
        "clusters": [{"name": "c", "cluster": {"server": given.url} | entry("certificate-authority", given.ca)}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path = given.directory / "kubeconfig"
    path.write_text(json.dumps(config))
    return path


def api(*, inline: bool) -> Connect:
    async def connect(given: Connection) -> str:
        path = kubeconfig(given, inline=inline)
        client = KubeClient(lambda: find_access(kubeconfig=path, environ={}), timeout=5.0)
        return await failure_of(client.list(NODES), client)

    return connect


async def in_cluster(given: Connection) -> str:
    (given.directory / "token").write_text(TOKEN)
    (given.directory / "ca.crt").write_bytes(given.ca.read_bytes())
    address = URL(given.url)
    environ = {"KUBERNETES_SERVICE_HOST": str(address.host), "KUBERNETES_SERVICE_PORT": str(address.port)}
    find = lambda: find_access(kubeconfig=None, environ=environ, service_account=given.directory)  # noqa: E731
    client = KubeClient(find, timeout=5.0)
    return await failure_of(client.list(NODES), client)


async def metrics_server(given: Connection) -> str:
    return await fetch(given, provider__name="metrics-server", provider__kubeconfig=str(kubeconfig(given)))


async def kubelet(given: Connection) -> str:
    client = KubeletPods(kubelet_access(given.url, authority=given.ca), timeout=5.0)
    return await failure_of(client.request(), client)


async def agent_pages(given: Connection) -> str:
    named = settings(given.directory, agents__urls=[given.url], agents__ca_file=str(given.ca))
    client = AgentProxy(clients_by_kind(named))
    async with client.life(Application()):
        (place,) = (await client.known())[EndpointKind.AGENT].places
        try:
            await client.page(place.name, "plan")
        except AgentError as error:
            return str(error)
    return ""


async def watcher(given: Connection) -> str:
    access = WatcherAccess(given.url, None, given.ca.read_text())
    client = WatcherClient(given.url, tls=access.tls(), timeout=5.0, retries=0)
    return await failure_of(client.describe(), client)


async def issuer(given: Connection) -> str:
    config = {"idp-issuer-url": given.url, "idp-certificate-authority": str(given.ca), "refresh-token": "r"}
    user = {"auth-provider": {"name": "oidc", "config": config | {"client-id": "c"}}}
    try:
        await CredentialPlugin(user, path=given.directory / "kubeconfig", seconds=20).token()
    except KubeError as error:
        return str(error)
    return ""


async def doctor(given: Connection) -> str:
    tls = settings(given.directory, server__tls_cert=str(given.ca), server__tls_key=str(given.ca))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SSL_CERT_FILE", str(given.ca))  # it also trusts the authorities of the system
        try:
            async with _session(tls, url=given.url) as session, session.get(given.url):
                return ""
        except OSError as error:
            return failure_reason(error, url=given.url)


async def demo(given: Connection) -> str:
    try:
        async with client_session(tls=_trusting(given.ca)) as session, session.get(given.url):
            return ""
    except OSError as error:
        return failure_reason(error, url=given.url)


def program(name: str) -> Connect:
    """A command with the authorities of the system: those of SSL_CERT_FILE."""

    async def connect(given: Connection) -> str:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("SSL_CERT_FILE", str(given.ca))
            try:
                return await CLIENTS[name](given.url, given.directory)()
            except KeyError:  # the response of this server is empty
                return ""

    return connect


CONNECTIONS: dict[str, Connect] = {
    "prometheus": source("prometheus"),
    "influxql": source("influxdb", provider__dialect="influxql", provider__database="telegraf"),
    "flux": source("influxdb", provider__dialect="flux", provider__bucket="b", provider__org="o"),
    "metrics-server": metrics_server,
    "names of series": names,
    "agent query": agent_query,
    "kubernetes": api(inline=False),
    "kubernetes, data": api(inline=True),
    "in cluster": in_cluster,
    "kubelet": kubelet,
    "agent pages": agent_pages,
    "watcher": watcher,
    "issuer": issuer,
    "doctor": doctor,
    "demo": demo,
    "shadow": program("shadow"),
    "compare": program("compare"),
    "record": program("record"),
}
SILENT = {"names of series"}
"""Their callers do not show failures."""
ANY_NAME = {"demo"}
"""They do not check host names: they trust one certificate, that of this process."""
CLIENT_CERTIFICATES = (
    *("prometheus", "influxql", "flux", "names of series", "agent query"),
    *("metrics-server", "kubernetes", "kubernetes, data"),
)


@dataclass(frozen=True)
class Case:
    """The certificates of a server, and the authorities of its client."""

    server: Pair
    trusted: bytes
    cause: tuple[str, ...] = ()


ADDRESS = "127.0.0.1"


def issued(name: str, style: Style) -> Case:
    authority = Authority(name, style)
    return Case(authority.issue(ADDRESS, "kubernetes.default.svc"), authority.pem)


ROOT = Authority("root")
INTERMEDIATE = Authority("intermediate", parent=ROOT)
OWN = Authority("worker-1@1700000000", MICROK8S)
KUBERNETES, OTHER, SAME_NAME = Authority("kubernetes"), Authority("etcd-ca"), Authority("kubernetes")
PLAIN, PLAIN_SAME_NAME = Authority("kubernetes", BY_HAND), Authority("kubernetes", BY_HAND)
EXPIRED = Authority("expired-ca", end=NOW - 2 * DAY)
WRITTEN = "%Y-%m-%d %H:%M:%S"

ACCEPTED = {
    "kubeadm": issued("kubernetes", KUBEADM),
    "EKS": issued("kubernetes", EKS),
    "MicroK8s": issued("10.152.183.1", MICROK8S),
    "by hand": issued("my own CA", BY_HAND),
    "no subject": Case(KUBERNETES.issue(ADDRESS, subject=""), KUBERNETES.pem),
    "intermediate sent": Case(INTERMEDIATE.issue(ADDRESS, sent=INTERMEDIATE.pem), ROOT.pem),
    "intermediate as anchor": Case(INTERMEDIATE.issue(ADDRESS), INTERMEDIATE.pem),
    "server as anchor": (lambda pair: Case(pair, pair.pem))(KUBERNETES.issue(ADDRESS)),
    "text in the file": (lambda case: Case(case.server, "# Autorité de Montréal\n".encode() + case.trusted))(
        issued("ca", KUBEADM)
    ),
}
REFUSED = {
    "expired": Case(
        KUBERNETES.issue(ADDRESS, end=NOW - DAY), KUBERNETES.pem, ("it expired on", f"{NOW - DAY:{WRITTEN}}")
    ),
    "not yet valid": Case(
        KUBERNETES.issue(ADDRESS, begin=NOW + DAY, end=NOW + 2 * DAY),
        KUBERNETES.pem,
        (f"{NOW + DAY:{WRITTEN}}", "clock"),
    ),
    "authority expired": Case(EXPIRED.issue(ADDRESS), EXPIRED.pem, ("expired-ca", f"{NOW - 2 * DAY:{WRITTEN}}")),
    "other host": Case(
        KUBERNETES.issue("kubernetes.default.svc", "10.96.0.1"),
        KUBERNETES.pem,
        ("kubernetes.default.svc, 10.96.0.1", f"not for {ADDRESS}"),
    ),
    "name without SAN": Case(KUBERNETES.issue(subject="api"), KUBERNETES.pem, ("valid for api", f"not for {ADDRESS}")),
    "unknown issuer": Case(KUBERNETES.issue(ADDRESS), OTHER.pem, ("issued by kubernetes", "trusted: etcd-ca")),
    "same name": Case(KUBERNETES.issue(ADDRESS), SAME_NAME.pem, ("issued by kubernetes", "another key")),
    "same name, no ids": Case(PLAIN.issue(ADDRESS), PLAIN_SAME_NAME.pem, ("issued by kubernetes", "another key")),
    "self-signed": Case(OWN.pair, KUBERNETES.pem, ("self-signed", "worker-1@1700000000")),
    "intermediate missing": Case(INTERMEDIATE.issue(ADDRESS), ROOT.pem, ("intermediate", "trusted: root", "sent no")),
    "root sent": Case(KUBERNETES.issue(ADDRESS, sent=KUBERNETES.pem), OTHER.pem, ("kubernetes", "trusted: etcd-ca")),
}


@dataclass
class Answer:
    """The error of a client, and the requests that reached the server."""

    said: str
    server: TlsServer


async def attempt(
    connect: Connect,
    case: Case,
    directory: Path,
    caplog: pytest.LogCaptureFixture,
    *,
    clients: Authority | None = None,
    certificate: tuple[Path, Path] | None = None,
) -> Answer:
    (directory / "client").mkdir()
    ca = directory / "trusted.crt"
    ca.write_bytes(case.trusted)
    with tls_server(case.server, directory, clients=clients) as server, caplog.at_level(logging.INFO):
        said = await connect(Connection(server.url, ca, directory / "client", certificate))
        return Answer(" ".join([said, *(record.getMessage() for record in caplog.records)]), server)


def tried(cases: Mapping[str, Case], core: Sequence[str]) -> list[tuple[str, str]]:
    """Each connection with some certificates, two with all: all connections create their contexts in one place."""
    return [(name, case) for name in CONNECTIONS for case in (cases if name in ("prometheus", "in cluster") else core)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "case"), tried(ACCEPTED, ["EKS", "by hand", "intermediate as anchor"]))
async def test_a_certificate_that_kubectl_accepts_is_accepted(
    name: str, case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await attempt(CONNECTIONS[name], ACCEPTED[case], tmp_path, caplog)
    assert answer.server.requests, answer.said


@pytest.mark.slow
@pytest.mark.parametrize(("name", "case"), tried(REFUSED, ["expired", "other host", "unknown issuer", "self-signed"]))
async def test_a_refusal_states_its_cause(
    name: str, case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No request reaches the server, and the error has no line of OpenSSL's source."""
    if name in ANY_NAME and case in ("other host", "name without SAN"):
        return
    answer = await attempt(CONNECTIONS[name], REFUSED[case], tmp_path, caplog)
    assert answer.server.requests == []
    if name not in SILENT:
        said = " ".join(answer.said.split())
        assert [] == [part for part in REFUSED[case].cause if part not in said], said
        assert "_ssl.c" not in said


@pytest.mark.slow
@pytest.mark.parametrize("name", CLIENT_CERTIFICATES)
async def test_a_client_certificate_is_sent(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clients = Authority("clients", MICROK8S)
    certificate = clients.issue(subject="load-watcher").write(tmp_path, "me")
    answer = await attempt(
        CONNECTIONS[name], ACCEPTED["EKS"], tmp_path, caplog, clients=clients, certificate=certificate
    )
    assert [((("commonName", "load-watcher"),),)] == list({subject for _, subject in answer.server.requests}), answer


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CLIENT_CERTIFICATES if name not in SILENT])
async def test_a_missing_client_certificate_is_the_cause(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await attempt(CONNECTIONS[name], ACCEPTED["kubeadm"], tmp_path, caplog, clients=Authority("clients"))
    assert answer.server.requests == []
    assert "certificate required" in answer.said


def calls_outside(source: str) -> list[str]:
    """Calls that create a TLS context or an HTTP session without the project's functions."""
    made = {"ssl.create_default_context", "ssl.SSLContext", "ssl._create_unverified_context", "ssl.wrap_socket"}
    made |= {"aiohttp.TCPConnector", "aiohttp.ClientSession", "aiohttp.request", "urllib.request.urlopen"}
    called = [ast.unparse(each.func) for each in ast.walk(ast.parse(source)) if isinstance(each, ast.Call)]
    return sorted(made.intersection(called))


@pytest.mark.slow
def test_contexts_and_sessions_are_created_in_one_place() -> None:
    """Except those of servers."""
    homes = {"watcher/platform/net/tls.py", "watcher/platform/net/session.py", "watcher/platform/http/tls.py"}
    roots = ("watcher", "scorers", "agent", "lab", "load_watcher")
    files = [path for root in roots for path in (REPOSITORY / root).rglob("*.py")]
    found = {str(path.relative_to(REPOSITORY)): calls_outside(path.read_text()) for path in files}
    assert {} == {path: calls for path, calls in found.items() if calls and path not in homes}
    assert ["aiohttp.ClientSession"] == calls_outside("aiohttp.ClientSession(timeout=5)")


@pytest.mark.parametrize("case", ["kubeadm", "EKS", "MicroK8s", "by hand"])
def test_a_client_certificate_is_verified_in_the_same_way(case: str, tmp_path: Path) -> None:
    """By this program as a server, server.tls_client_ca."""
    (tmp_path / "clients.crt").write_bytes(ACCEPTED[case].trusted)
    pair = ACCEPTED[case].server.write(tmp_path, "server")
    server = ServerTls(*pair, tmp_path / "clients.crt").context
    client = client_context(ca_file=tmp_path / "clients.crt")
    client.load_cert_chain(*pair)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=ADDRESS),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for end in (*ends, *ends):
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
    assert ends[1].getpeercert()
