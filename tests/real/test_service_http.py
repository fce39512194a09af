"""Hostile clients on the network: any bytes, slow requests, and requests without the token."""

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import OF_THE_TESTS, STEERING_NAMES, STEERING_PREFIXES, RunService
from tests.real.parts import Server, new_secret
from tests.service import Service, TlsService
from tests.waiting import PATIENCE_SECONDS, wait_for

pytestmark = pytest.mark.real

NODE = "worker-1"
FAST = '[refresh]\ninterval = "2s"\nresolution = "1s"\n'


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with this machine's load, under a name of the test."""
    with pytest.MonkeyPatch.context() as environment:
        for name in os.environ.keys() - OF_THE_TESTS:
            if name.upper() in STEERING_NAMES or name.startswith(STEERING_PREFIXES):
                environment.delenv(name)
        directory = tmp_path_factory.mktemp("service")
        with Service(directory, config=FAST, env={"NODE_NAME": NODE}) as service:
            service.wait_for_status(200)
            yield service


@pytest.fixture(autouse=True)
def unharmed(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test the service responds, and its log has no traceback."""
    yield
    if "service" in request.fixturenames:
        service: Service = request.getfixturevalue("service")
        assert 200 == service.get("/healthz").status
        assert NODE in service.get("/watcher").text
        assert "Traceback" not in service.log()


def exchange(service: Service, sent: bytes, *, timeout: float = PATIENCE_SECONDS) -> bytes:
    """Send bytes and read until the service closes the connection, or sends nothing for a while."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=timeout) as connection:
        with contextlib.suppress(OSError):  # the service may have closed it already
            connection.sendall(sent)
        received = b""
        with contextlib.suppress(OSError):
            while part := connection.recv(65536):
                received += part
        return received


def get(service: Service, target: bytes, *headers: bytes) -> tuple[int, Any]:
    """Status and JSON of a GET with an unchanged target."""
    head = [b"GET " + target + b" HTTP/1.1", b"Host: localhost", b"Connection: close", *headers]
    return parse(exchange(service, b"\r\n".join(head) + b"\r\n\r\n"))


def parse(answer: bytes) -> tuple[int, Any]:
    """The status of a response, and its body as JSON; errors have their common format."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1."), answer[:200]
    status = int(head.split()[1])
    document = json.loads(body)
    if status >= 400:
        assert {"code", "message", "hint"} == set(document["error"])
        assert len(body) < 2000
    return status, document


# --- hosts and paths -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "statuses"),
    [
        (b"/watcher/" + b"a" * 10_000, {404}),
        (b"/watcher?host=" + b"a" * 10_000, {404}),
        (b"/watcher/" + b"%61" * 10_000, {404}),
        (b"/watcher/" + b"a" * 100_000, {400, 414}),
        (b"/watcher?" + b"host=a&" * 9_000, {400, 404}),
        (b"/watcher/%00", {400, 404}),
        (b"/watcher/" + NODE.encode() + b"%00", {400, 404}),
        (b"/watcher/a%00b?window=5m", {400, 404}),
        (b"/watcher?host=%00", {400, 404}),
        (b"/watcher/../watcher", {404}),
        (b"/watcher/../../etc/passwd", {404}),
        (b"/watcher/..%2f..%2fetc%2fpasswd", {404}),
        (b"/..", {404}),
        ("/watcher/nœud-ü".encode(), {400, 404}),
        (b"/watcher/n%C5%93ud-%F0%9F%94%A5", {404}),
        (b"/watcher/%ff%fe", {400, 404}),
        (b"/watcher/\xff\xfe", {400, 404}),
        (b"/watcher/%ED%A0%80", {400, 404}),
        (b"/watcher/%", {400, 404}),
        (b"/watcher/%zz%1", {400, 404}),
        (b"/watcher?host=%zz&window=%", {400, 404}),
        (b"/watcher?window=15m&window=5m", {400}),
        (b"/watcher?window=", {400}),
        (b"/watcher?window=99999999999999999999m", {400}),
        (b"/watcher?operator=' OR 1=1 --", {400}),
        (b"/api/v1/history?host=x&from=1e400&to=-1e400", {400}),
        (b"/api/v1/history?host=x&from=0&to=99999999999999999999&step=0", {400}),
        (b"/api/v1/history?host=%00", {400, 404}),
        (b"/api/v1/columns?type=%F0%9F%94%A5", {400}),
        (b"http://[::1/watcher", {400, 404}),
        (b"*", {400, 404, 405}),
        (b"", {400}),
    ],
    ids=lambda value: value[:30].decode("ascii", "replace") if isinstance(value, bytes) else None,
)
def test_unusual_targets_are_refused_in_json(service: Service, target: bytes, statuses: set[int]):
    """Never a 5xx, never without a response, and the target is never repeated incompletely."""
    status, _ = get(service, target)
    assert status in statuses


@pytest.mark.parametrize("target", [b"//watcher", b"/watcher/", b"///watcher///", b"http://elsewhere/watcher"])
def test_equivalent_targets_have_the_same_response(service: Service, target: bytes):
    """Duplicate and trailing slashes are merged; a proxy may send the whole URL."""
    status, document = get(service, target)
    assert 200 == status
    assert {NODE} == set(document["data"]["NodeMetricsMap"])


@given(target=st.binary(min_size=1, max_size=60), query=st.binary(max_size=40))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_target_gets_a_response_below_500(service: Service, target: bytes, query: bytes):
    """Any bytes as a host and as a query: a response, or the connection is closed."""
    start = b"GET /watcher/" + target + b"?host=" + query + b" HTTP/1.1\r\n"
    answer = exchange(service, start + b"Host: localhost\r\nConnection: close\r\n\r\n")
    assert not answer or int(answer.split()[1]) < 500


# --- invalid HTTP ----------------------------------------------------------------------------------------------------

REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\x01\x02\x03\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200) + b"\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"GET /healthz\r\n\r\n",
        b"BREW /pot HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /healthz HTTP/9.9\r\n\r\n",
        b"GET  /healthz  HTTP/1.1\r\n\r\n",
        REQUEST.replace(b"Host: localhost", b"Host: localhost\r\nBad Header: y"),
        REQUEST.replace(b"Host: localhost", b"Host: localhost\r\nNul: \x00"),
        REQUEST.replace(b"Host: localhost", b"Host: localhost\r\nContent-Length: -1"),
        REQUEST.replace(b"Host: localhost", b"Host: localhost\r\nContent-Length: 4\r\nTransfer-Encoding: chunked"),
        REQUEST.replace(b"Host: localhost", b"Host: localhost\r\nTransfer-Encoding: chunked") + b"zz\r\n",
        REQUEST.replace(b"Host: localhost", b"Host: localhost\r\nBig: " + b"b" * 100_000),
        b"\r\n" * 1000 + b"\x00\r\n\r\n",
    ],
    ids=lambda sent: sent[:20].decode("ascii", "replace").split("\r")[0] + f" {len(sent)}",
)
def test_bytes_that_are_not_http_get_a_4xx_or_nothing(service: Service, sent: bytes):
    """At most one response: later bytes must not become a second request."""
    answer = exchange(service, sent, timeout=2.0)
    assert answer.count(b"HTTP/1.") <= 1
    if answer:
        assert 200 <= int(answer.split()[1]) < 500


def test_http_1_0_needs_no_host_and_http_1_1_does(service: Service):
    """Old probes use 1.0; 1.1 without Host is a 400 by RFC 9112, section 3.2."""
    assert 200 == parse(exchange(service, b"GET /healthz HTTP/1.0\r\n\r\n"))[0]
    assert 400 == parse(exchange(service, b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n"))[0]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_other_methods_are_refused_with_the_allowed_ones(service: Service, method: str):
    """405 with Allow, for any body."""
    answer = requests.request(method, f"{service.url}/watcher", data=b"x" * 100_000, timeout=PATIENCE_SECONDS)
    assert 405 == answer.status_code
    assert {"GET", "HEAD"} <= set(answer.headers["Allow"].replace(" ", "").split(","))
    assert "method_not_allowed" == answer.json()["error"]["code"]


def test_an_unneeded_body_is_not_kept_in_memory(service: Service):
    """Twenty megabytes with a GET: a response or a closed connection."""
    head = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 20000000\r\n\r\n"
    answer = exchange(service, head + bytes(20_000_000))
    assert not answer or int(answer.split()[1]) < 500


def test_pipelined_requests_are_answered_in_order(service: Service):
    """Five requests in one packet."""
    paths = [b"/healthz", b"/watcher", b"/nowhere", b"/watcher/" + NODE.encode(), b"/healthz"]
    sent = b"".join(b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n" for path in paths[:-1])
    answer = exchange(service, sent + REQUEST)
    statuses = [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert [200, 200, 404, 200, 200] == statuses


def test_slow_clients_do_not_delay_others(service: Service):
    """Two hundred incomplete requests, and some responses that are never read: others are served at once."""
    with contextlib.ExitStack() as stack:
        for number in range(200):
            connection = stack.enter_context(
                socket.create_connection(("127.0.0.1", service.port), timeout=PATIENCE_SECONDS)
            )
            connection.sendall(b"GET /watcher HTTP/1.1\r\nHo" if number % 10 else b"GET /metrics HTTP/1.1\r\n\r\n" * 50)
        for _ in range(20):
            assert 200 == service.get("/watcher").status


def test_connections_of_disconnected_clients_are_closed(service: Service):
    """A thousand requests without waiting for the response: no descriptor stays open."""
    descriptors = Path(f"/proc/{service.pid}/fd")
    before = len(list(descriptors.iterdir()))
    for _ in range(1000):
        with socket.create_connection(("127.0.0.1", service.port), timeout=PATIENCE_SECONDS) as connection:
            connection.sendall(b"GET /watcher?operator=P95 HTTP/1.1\r\nHost: localhost\r\n\r\n")
    wait_for(lambda: len(list(descriptors.iterdir())) <= before + 5, what="the connections to be closed")


# --- TLS and tokens --------------------------------------------------------------------------------------------------


def tls_settings(folder: Path, *, clients: bool) -> str:
    lines = [f'tls_cert = "{folder / "server.pem"}"', f'tls_key = "{folder / "server.key"}"']
    lines += [f'tls_client_ca = "{folder / "ca.pem"}"'] if clients else []
    return "[server]\n" + "\n".join(lines) + "\n" + FAST


@pytest.mark.parametrize("clients", [False, True], ids=["server certificate", "client certificates"])
def test_https_with_and_without_client_certificates(tmp_path: Path, certificates: Path, running: Any, clients: bool):
    """If client certificates are verified, probes still need none, and one of an unknown authority is refused."""
    service: Server = TlsService(
        tmp_path / "service", folder=certificates, config=tls_settings(certificates, clients=clients)
    )
    running(service)
    service.start()
    assert f"load-watcher listens on https://127.0.0.1:{service.port}" in service.log()
    with pytest.raises(requests.exceptions.SSLError):
        requests.get(f"{service.url}/healthz", timeout=PATIENCE_SECONDS)  # an unknown authority
    with pytest.raises(requests.ConnectionError):
        requests.get(f"http://127.0.0.1:{service.port}/healthz", timeout=PATIENCE_SECONDS)
    authority = str(certificates / "ca.pem")
    assert requests.get(f"{service.url}/healthz", verify=authority, timeout=PATIENCE_SECONDS).ok
    if clients:
        import trustme

        stranger = trustme.CA().issue_cert("stranger@example.org")
        stranger.private_key_and_cert_chain_pem.write_to_path(tmp_path / "stranger.pem")
        with pytest.raises(requests.ConnectionError):
            requests.get(
                f"{service.url}/healthz",
                verify=authority,
                cert=str(tmp_path / "stranger.pem"),
                timeout=PATIENCE_SECONDS,
            )
    assert service.is_ready()
    assert 0 == service.stop()
    assert "Traceback" not in service.log()


def test_unusable_tls_files_are_an_error_at_the_start(tmp_path: Path, certificates: Path, run_service: RunService):
    """A key of another certificate: exit code 1 and a sentence."""
    (certificates / "server.key").write_bytes((certificates / "client.key").read_bytes())
    service = run_service(config=tls_settings(certificates, clients=False), wait=False)
    assert service.process is not None
    assert 1 == service.process.wait(PATIENCE_SECONDS)
    assert "TLS" in service.log()
    assert "Traceback" not in service.log()


def test_protected_reads_need_the_token(tmp_path: Path, run_service: RunService):
    """All except the probes and the page, which contains no data; the token is shown nowhere."""
    token = new_secret()
    (tmp_path / "token").write_text(token + "\n")
    service = run_service(config=f'[server]\ntoken_file = "{tmp_path / "token"}"\nprotect_reads = true\n{FAST}')
    allowed = {"Authorization": f"Bearer {token}"}
    paths = ("/watcher", "/watcher/x", "/watcher/health", "/api/v1/columns", "/api/v1/findings", "/metrics")
    for path in paths:
        refused = service.get(path)
        assert (401, "unauthorized") == (refused.status, refused.json()["error"]["code"]), path
        assert refused.headers["WWW-Authenticate"].startswith("Bearer")
        assert 401 == service.get(path, headers={"Authorization": f"Bearer {token}x"}).status
        assert 401 == service.get(path, headers={"Authorization": f"Basic {token}"}).status
        answer = service.get(path, headers=allowed)
        assert answer.status != 401
        assert token not in answer.text
    for path in ("/healthz", "/readyz", "/"):
        assert 401 != service.get(path).status
    assert token not in service.log()
