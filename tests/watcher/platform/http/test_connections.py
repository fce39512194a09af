"""Clients that are slow, idle, many or malformed do not keep others out."""

import json
import logging
import resource
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.conftest import RunService
from tests.fakes.service import FakeService, Live
from tests.fakes.snapshots import large_fleet, publish, snapshot_of
from tests.waiting import PATIENCE_SECONDS, wait_for
from watcher.platform.http.bodies import large_response, read_body
from watcher.platform.http.connections import KEPT_DESCRIPTORS, MAX_CONNECTIONS, ConnectionLimits, connections_for
from watcher.platform.http.openapi import Operation
from watcher.platform.http.routing import Access, Route
from watcher.platform.memory import MemoryBudget

SHORT = ConnectionLimits(header_s=0.2, body_s=0.2, idle_s=0.2, send_s=0.2, check_s=0.02)
LONG = ConnectionLimits(header_s=60, body_s=60, idle_s=60, send_s=60, check_s=0.02)
MOST = 1000


async def _take(request: web.Request, _captured: Sequence[str]) -> web.StreamResponse:
    body = await read_body(request, MOST, hint="send less")
    return web.Response(text=str(len(body)))


async def _echo(request: web.Request, _captured: Sequence[str]) -> web.StreamResponse:
    body = await read_body(request, 64 << 20, hint="send less")
    return large_response(request, bytes(body), web.Response().headers)


async def _zeros(request: web.Request, _captured: Sequence[str]) -> web.StreamResponse:
    size = int(await read_body(request, MOST, hint="send less"))
    return large_response(request, bytes(size), web.Response().headers)


ROUTES = (
    Route("/take", "take", _take, Operation("take", {}), method="POST", access=Access.OPEN),
    Route("/echo", "echo", _echo, Operation("echo", {}), method="POST", access=Access.OPEN),
    Route("/zeros", "zeros", _zeros, Operation("zeros", {}), method="POST", access=Access.OPEN),
)


@contextmanager
def connected(live: Live, sent: bytes = b"") -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", live.port), timeout=PATIENCE_SECONDS) as connection:
        connection.sendall(sent)
        yield connection


def everything(connection: socket.socket) -> bytes:
    """The received bytes until the server closes the connection."""
    try:
        return b"".join(iter(lambda: connection.recv(65536), b""))
    except ConnectionResetError:
        return b""


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has closed the connection."""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def answer(received: bytes) -> tuple[int, Mapping[str, str], Any]:
    """Status, headers in lower case, and JSON of a response."""
    head, _, body = received.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:])
    return int(lines[0].split()[1]), headers, json.loads(body)


# --- times -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /healthz HT",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: b\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /he",
    ],
    ids=["nothing", "half a line", "half a head", "idle after an answer", "half a second request"],
)
def test_a_connection_that_waits_for_its_client_is_closed(sent: bytes) -> None:
    """In any state of a request."""
    with Live(limits=SHORT) as live, connected(live, sent) as connection:
        received = everything(connection)
    assert received.startswith(b"HTTP/1.1 200") == (b"\r\n\r\n" in sent)


def test_a_missing_body_is_an_error() -> None:
    """In the format of all errors."""
    sent = b"POST /take HTTP/1.1\r\nContent-Type: application/json\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc"
    with Live(limits=SHORT, routes=ROUTES) as live, connected(live, sent) as connection:
        status, _, error = answer(everything(connection))
    assert (408, "timeout") == (status, error["error"]["code"])


def test_a_response_that_is_not_read_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise its connection and its memory would be kept forever."""
    caplog.set_level(logging.DEBUG)
    fleet = publish(snapshot_of(large_fleet(2000)))
    with Live(FakeService(published=fleet), limits=SHORT) as live, connected(live) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(b"GET /watcher HTTP/1.1\r\nHost: x\r\n\r\n" * 20)
        wait_for(lambda: "the response was not read in time" in caplog.text, what="the connection to be closed")


def test_a_connection_in_use_stays_open() -> None:
    """Each request starts the time again."""
    with Live(limits=replace(LONG, idle_s=0.5)) as live, connected(live) as connection:
        for _ in range(30):
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")


# --- number ----------------------------------------------------------------------------------------------------------


def test_the_connection_that_waited_longest_is_closed_for_a_new_one() -> None:
    """A probe is answered although idle connections use the whole limit."""
    with Live(limits=replace(LONG, connections=20)) as live, ExitStack() as stack:
        idle = [stack.enter_context(connected(live)) for _ in range(20)]
        used = idle[0]
        used.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert used.recv(65536).startswith(b"HTTP/1.1 200")
        for _ in range(10):
            assert 200 == live.ask("/healthz").status
        assert is_closed(idle[1])
        assert not is_closed(used)
        assert not is_closed(idle[19])


@pytest.mark.slow
def test_2000_idle_connections_do_not_keep_a_probe_out(caplog: pytest.LogCaptureFixture) -> None:
    """The log has one line about them."""
    with Live(limits=replace(LONG, connections=1000)) as live, ExitStack() as stack:
        for _ in range(2000):
            stack.enter_context(connected(live))
        assert 200 == live.ask("/healthz").status
    assert 1 == sum("more than 1000 connections" in record.message for record in caplog.records)


@pytest.mark.slow
def test_a_probe_is_answered_when_descriptors_run_out(run_service: RunService) -> None:
    """The limit of the process is lowered below the number of connections, and the log has one line without a
    traceback."""
    service = run_service("--provider", "host")
    in_use = len(list(Path(f"/proc/{service.pid}/fd").iterdir()))
    resource.prlimit(service.pid, resource.RLIMIT_NOFILE, (in_use + 8, in_use + 8))
    with ExitStack() as stack:
        for _ in range(30):  # less than the backlog, so the kernel accepts all of them
            stack.enter_context(socket.create_connection(("127.0.0.1", service.port), timeout=PATIENCE_SECONDS))
        wait_for(lambda: "no connection can be accepted" in service.log(), what="descriptors to run out")
        for _ in range(3):
            service.session.close()  # a probe does not use the connection of an earlier one
            assert 200 == service.get("/healthz").status
    assert 1 == service.log().count("no connection can be accepted: Too many open files")
    assert "Traceback" not in service.log()
    assert service.is_running()


@pytest.mark.parametrize(
    ("descriptors", "connections"),
    [(-1, MAX_CONNECTIONS), (1 << 20, MAX_CONNECTIONS), (1024, 1024 - KEPT_DESCRIPTORS), (64, 32), (1, 1)],
)
def test_descriptors_are_kept_for_other_uses(descriptors: int, connections: int) -> None:
    """For the database, and for sockets that are accepted and not counted yet."""
    assert connections == connections_for(descriptors)
    assert 8 <= ConnectionLimits(connections=connections).backlog <= 128


# --- memory ----------------------------------------------------------------------------------------------------------


def test_an_endless_head_is_not_kept() -> None:
    """Thousands of headers, none of which is too long."""
    header = b"X-A: " + b"a" * 60_000 + b"\r\n"
    with Live(limits=LONG) as live, connected(live, b"GET /healthz HTTP/1.1\r\n") as connection:
        with suppress(ConnectionError):
            connection.sendall(header * 200)
        assert b"" == everything(connection)


def test_incomplete_requests_share_a_limit() -> None:
    """The one with the most bytes makes room; small requests are answered."""
    with Live(limits=replace(LONG, buffered=1 << 20)) as live, ExitStack() as stack:
        head = b"GET /healthz HTTP/1.1\r\nX-A: " + b"a" * 60_000 + b"\r\n"
        many = [stack.enter_context(connected(live, head)) for _ in range(40)]
        wait_for(lambda: any(map(is_closed, many)), what="a connection to be closed")
        assert 200 == live.ask("/healthz").status
        assert not all(map(is_closed, many))


def test_the_slowest_body_is_dropped_for_a_complete_request() -> None:
    """The request is served although slow ones have the whole memory."""
    slow = (
        b"POST /echo HTTP/1.1\r\nContent-Type: application/json\r\nHost: x\r\nContent-Length: 600000\r\n\r\n"
        + b"a" * 500_000
    )
    with Live(limits=replace(LONG, bodies=1 << 20), routes=ROUTES) as live, ExitStack() as stack:
        first, _ = (stack.enter_context(connected(live, slow)) for _ in range(2))
        assert 200 == live.ask("/take", method="POST", body=b"a" * MOST).status
        assert 200 == live.ask("/echo", method="POST", body=b"a" * 300_000).status
        status, headers, error = answer(first.recv(65536))
    assert (503, "busy", "1") == (status, error["error"]["code"], headers["retry-after"])


def test_a_complete_body_above_the_limit_is_refused() -> None:
    """Also if it arrives at once. Its bytes do not count after the refusal."""
    with Live(limits=replace(LONG, bodies=500), routes=ROUTES) as live:
        refused = live.ask("/take", method="POST", body=b"a" * 600)
        assert (503, "busy") == (refused.status, refused.error["code"])
        assert 200 == live.ask("/take", method="POST", body=b"a" * 400).status


def test_bodies_fit_into_the_memory_of_the_process() -> None:
    """Together with their decoded values. Small bodies always fit. A refusal is a finding for a minute, or until the
    server ends. A response above the limit on all bodies has the other reason."""
    used = 700 << 20
    budget = MemoryBudget(limit=lambda: 1000 << 20, private=lambda: used)
    with Live(limits=replace(LONG, budget=budget), routes=ROUTES) as live:

        def echo(mib: int) -> Any:
            return live.ask("/echo", method="POST", body=b"a" * (mib << 20))

        assert 200 == echo(48).status
        assert {} == budget.refused
        used = 930 << 20
        assert 200 == echo(15).status
        refused = echo(30)
        assert (503, "busy") == (refused.status, refused.error["code"])
        assert refused.error["message"] == "the memory of the process is full"
        assert "95% of its memory limit" in budget.refused["requests"]
        used = 999 << 20
        assert 200 == echo(3).status
        assert 503 == echo(5).status
        response = live.ask("/zeros", method="POST", body=b"%d" % (64 << 20))
        assert (503, "other requests need the memory") == (response.status, response.error["message"])
        assert {"requests"} == budget.refused.keys()
    assert {} == budget.refused


@pytest.mark.slow
def test_a_response_counts_until_it_is_read() -> None:
    """After a while, a client that does not read it is disconnected for others."""
    with Live(limits=replace(LONG, bodies=12 << 20), routes=ROUTES) as live, connected(live) as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        size = 9 << 20
        silent.sendall(
            b"POST /echo HTTP/1.1\r\nContent-Type: application/json\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size
            + b"a" * size
        )
        silent.recv(1)
        assert 503 == live.ask("/echo", method="POST", body=b"a" * size).status
        wait_for(
            lambda: live.ask("/echo", method="POST", body=b"a" * size).status == 200, what="the memory of the other"
        )


@pytest.mark.parametrize("head", [b"Content-Length: 1001", b"Transfer-Encoding: chunked"])
def test_a_body_above_its_limit_is_refused(head: bytes) -> None:
    """With a known length and without."""
    body = b"a" * 1001 if b"Length" in head else b"3e9\r\n" + b"a" * 1001 + b"\r\n0\r\n\r\n"
    with Live(routes=ROUTES) as live:
        received = live.raw(
            b"POST /take HTTP/1.1\r\nContent-Type: application/json\r\nHost: x\r\nConnection: close\r\n"
            + head
            + b"\r\n\r\n"
            + body
        )
    status, _, error = answer(received)
    assert (413, "too_large", "send less") == (status, error["error"]["code"], error["error"]["hint"])


# --- errors and headers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [
        b"POST /take HTTP/1.1\r\nContent-Type: application/json\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\nzz\r\n",
        b"GET /watcher HTTP/1.0\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
        b"POST /take HTTP/1.0\r\nContent-Type: application/json\r\nContent-Encoding: br\r\nContent-Length: 1\r\n\r\na",
        b"GET /watcher\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"CONNECT /readyz HTTP/1.1\r\nHost: x\r\nExpect: 100-contin\xffue\r\nConnection: close\r\n\r\n",
        b"CONNECT localhost:443 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"nonsense\r\n\r\n",
    ],
)
def test_malformed_requests_cost_no_traceback(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """They get a response in an existing version of HTTP, with the headers of all responses."""
    caplog.set_level(logging.INFO)
    with Live(routes=ROUTES) as live, connected(live, sent) as connection:
        connection.shutdown(socket.SHUT_WR)
        received = everything(connection)
        assert 200 == live.ask("/healthz").status
    assert [] == [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]
    if received:
        assert received.startswith((b"HTTP/1.0 ", b"HTTP/1.1 ")), received[:100]
        status, headers, _ = answer(received)
        assert 200 <= status < 500
        check_headers(headers)


def check_headers(headers: Mapping[str, str]) -> None:
    """The headers of each response; `headers` in lower case."""
    assert "nosniff" == headers["x-content-type-options"]
    assert "deny" == headers["x-frame-options"]
    assert "no-referrer" == headers["referrer-policy"]
    assert "same-origin" == headers["cross-origin-resource-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "load-watcher" == headers["server"]


@pytest.mark.parametrize("path", ["/", "/watcher", "/healthz", "/nowhere", "/watcher?window=1h", "/metrics", "/readyz"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
def test_each_response_has_the_security_headers(path: str, method: str) -> None:
    """Once, on pages, documents, errors and files."""
    with Live() as live:
        answered = live.ask(path, method=method)
    pairs = [(name.lower(), value.lower()) for name, value in answered.headers.items()]
    check_headers(dict(pairs))
    assert len(pairs) == len({name for name, _ in pairs})
