"""The Prometheus provider with failing servers over real sockets: failures of a metric and of a fetch, retries, and
secrets that are never shown."""

import asyncio
import base64
import contextlib
import gzip
import logging
import socket
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.prometheus import (
    Answer,
    Asked,
    FakePrometheus,
    Script,
    matrix,
    responded,
    result,
    until_hung_up,
    vector,
)
from tests.fetches import QUICK, Fetches, address_of, sections
from tests.waiting import eventually, wait_for
from watcher.sources.base import Fetch
from watcher.sources.config import ConnectionSettings
from watcher.sources.errors import ProviderError, ProviderMalformed, ProviderRefused, ProviderUnreachable
from watcher.sources.http import SourceConnection
from watcher.sources.prometheus.provider import PrometheusProvider
from watcher.sources.prometheus_api import error_of
from watcher.sources.settings import QuerySettings

NOW = 1_700_000_000.0
CPU = "instance:node_cpu:ratio"
MEMORY = "instance:node_memory_utilisation:ratio"
SECRET = "s3cret-pass-word"


def make(server: FakePrometheus | str, **settings: Any) -> PrometheusProvider:
    return PrometheusProvider(*sections(**{"address": address_of(server), **QUICK, **settings}))


FETCHES = Fetches(make, since=NOW - 60, until=NOW)
run, fetch, failure = FETCHES.run, FETCHES.fetch, FETCHES.failure


def healthy(asked: Asked) -> bytes:
    """CPU of two nodes by recording rule."""
    if asked.query.startswith("count"):
        return vector({"node": "a", "instance": "1:1"}, {"node": "b", "instance": "2:1"})
    return matrix(({"node": "a"}, [(NOW - 30, "0.5"), (NOW - 15, "0.25")]), ({"node": "b"}, [(NOW - 20, "1")]))


def only_samples(answer: Answer) -> Answer:
    """Fail on queries of samples, and respond to those of discovery."""
    return lambda asked: healthy(asked) if asked.query.startswith("count") else answer(asked)


# --- valid responses -------------------------------------------------------------------------------------------------


def test_samples_are_converted_and_keep_their_times():
    """One batch per metric under upstream's name, in percent, and the difference of the source's clock."""
    with FakePrometheus(healthy) as server:
        got = fetch(server)

    (batch,) = got.batches
    assert CPU == batch.metric.name
    assert ("a", "b") == batch.nodes
    assert [0, 0, 1] == batch.series.tolist()
    assert [NOW - 30, NOW - 15, NOW - 20] == batch.time.tolist()
    assert [50.0, 25.0, 100.0] == batch.value.tolist()
    assert (CPU, "ratio", "node", 300.0) == (
        got.plans[CPU].expression,
        got.plans[CPU].unit,
        got.plans[CPU].node_label,
        got.plans[CPU].smoothing_s,
    )
    assert () == got.failures == got.findings


def test_one_query_per_metric_and_fetch():
    """A range selector for plain series at the end of the span; discovery happens once."""
    with FakePrometheus(healthy) as server:

        async def twice(provider: PrometheusProvider) -> None:
            await provider.fetch(NOW - 60, NOW)
            await provider.fetch(NOW - 90.5, NOW + 29.5)

        run(server, twice)

    assert "/api/v1/query" == server.asked[0].path
    asked = [each for each in server.asked if not each.query.startswith("count")]
    assert [f"{CPU}[60s]", f"{CPU}[120s]"] == [each.query for each in asked]
    assert ["1700000000.000", "1700000029.500"] == [each.parameters["time"] for each in asked]
    assert "count" not in server.queries[-1]


def test_at_most_the_longest_window_is_queried():
    """For any earlier begin."""
    with FakePrometheus(healthy) as server:
        run(server, lambda provider: provider.fetch(NOW - 86400, NOW), max_seconds=900.0)

    assert f"{CPU}[900s]" == server.queries[-1]


def test_samples_outside_the_span_are_left_out():
    """A range has whole seconds, and a server may ignore the time."""
    with FakePrometheus(only_samples(lambda _: matrix(({"node": "a"}, [(NOW - 61, "1"), (NOW + 1, "2")])))) as server:
        got = fetch(server)

    assert () == got.batches


def test_only_the_named_metrics_are_queried():
    """Others keep their expressions."""
    with FakePrometheus(healthy) as server:
        got = run(server, lambda provider: provider.fetch(NOW - 60, NOW, only={MEMORY}), metrics=("CPU", "Memory"))

    assert [MEMORY] == [batch.metric.name for batch in got.batches]
    assert not any(CPU in query for query in server.queries)


@pytest.mark.parametrize(("header", "beyond"), [("X-Server-Hostname", 120.0), ("X-Other", 0.0)])
def test_only_a_victoria_metrics_is_queried_beyond_now(header: str, beyond: float):
    """By whole steps, here of a minute, and only for the present: its samples of the past are exact."""

    def answer(asked: Asked) -> bytes:
        content = healthy(asked).partition(b"\r\n\r\n")[2]
        return responded(content, headers={header: "vm"})

    minute = NOW // 60 * 60
    with FakePrometheus(answer, state_metrics=True) as server:

        async def now_and_the_past(provider: PrometheusProvider) -> None:
            await provider.fetch(minute - 60, minute)
            await provider.fetch(minute - 180, minute - 60)

        run(server, now_and_the_past, queries={"CPU": QuerySettings("my:cpu / 2", "ratio")})

    ends = [float(asked.parameters["end"]) for asked in server.asked if asked.path.endswith("query_range")]
    assert [minute + beyond, minute - 60] == ends


@pytest.mark.slow
@pytest.mark.parametrize("path", ["", "/", "/prometheus", "/prometheus/"])
def test_a_path_in_the_address_is_kept(path: str):
    """With or without a slash at its end."""
    with FakePrometheus(healthy) as server:
        fetch(server.url + path)

    assert {path.rstrip("/") + "/api/v1/query"} == {asked.path for asked in server.asked}


def test_a_compressed_response_is_read():
    """Also without a request for it."""

    def compressed(asked: Asked) -> bytes:
        head, _, content = healthy(asked).partition(b"\r\n\r\n")
        assert head
        return responded(gzip.compress(content), headers={"Content-Encoding": "gzip"})

    with FakePrometheus(compressed) as server:
        assert 1 == len(fetch(server).batches)


def test_a_chunked_response_is_read():
    """As Prometheus sends all but the smallest."""

    def chunked(asked: Asked) -> bytes:
        _, _, content = healthy(asked).partition(b"\r\n\r\n")
        pieces = [content[at : at + 7] for at in range(0, len(content), 7)]
        body = b"".join(f"{len(piece):x}\r\n".encode() + piece + b"\r\n" for piece in pieces) + b"0\r\n\r\n"
        return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body

    with FakePrometheus(chunked) as server:
        assert 1 == len(fetch(server).batches)


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0.0, 3600.0, -120.0])
def test_the_clock_of_the_source_is_compared_with_that_of_load_watcher(ahead: float):
    """By the Date header, whose whole seconds do not show a difference below 1.5 s."""

    def dated(asked: Asked) -> bytes:
        head, blank, content = healthy(asked).partition(b"\r\n\r\n")
        return head + f"\r\nDate: {formatdate(time.time() + ahead, usegmt=True)}".encode() + blank + content

    expected = 0.0 if ahead == 0.0 else pytest.approx(ahead, abs=5.0)
    with FakePrometheus(dated) as server:
        # Again if more than a second passed on a busy machine between the header and its receipt.
        wait_for(lambda: fetch(server).clock_offset_s == expected, what="the offset")


def test_without_a_date_the_difference_of_the_clocks_is_unknown():
    with FakePrometheus(healthy) as server:
        assert fetch(server).clock_offset_s is None


# --- failures --------------------------------------------------------------------------------------------------------


def once(*first: bytes) -> Answer:
    """These responses to the first queries of samples, then healthy ones."""
    left = list(first)
    return only_samples(lambda asked: left.pop(0) if left else healthy(asked))


BUSY = responded("try later", status=503)


def test_a_transient_failure_is_retried():
    """Up to two times."""
    with FakePrometheus(once(BUSY, responded("", status=502))) as server:
        got = fetch(server)

    assert 1 == len(got.batches)
    assert 3 == server.queries.count(f"{CPU}[60s]")


def test_a_query_is_tried_at_most_three_times():
    with FakePrometheus(only_samples(lambda _: BUSY)) as server:
        error = failure(server)

    assert isinstance(error, ProviderUnreachable)
    assert 3 == server.queries.count(f"{CPU}[60s]")


def test_a_refusal_is_not_retried():
    """A retry would not help, and could lock an account."""
    with FakePrometheus(lambda _: responded("no", status=401)) as server:
        error = failure(server)

    assert isinstance(error, ProviderRefused)
    assert 1 == len(server.asked)


def test_no_retry_begins_that_would_exceed_the_deadline():
    """The deadline of the fetch is earlier than the end of the pause."""
    with FakePrometheus(only_samples(lambda _: BUSY)) as server:
        error = failure(server, backoff=(60.0,), fetch_deadline=20.0)

    assert "503" in str(error)
    assert 1 == server.queries.count(f"{CPU}[60s]")


def test_a_failing_query_affects_only_its_metric():
    """The failure names the metric."""

    def answer(asked: Asked) -> bytes:
        return responded("broken", status=500) if MEMORY in asked.query else healthy(asked)

    with FakePrometheus(answer) as server:
        got = fetch(server, metrics=("CPU", "Memory"))

    assert [CPU] == [batch.metric.name for batch in got.batches]
    (failed,) = got.failures
    assert MEMORY == failed.metric
    assert isinstance(failed.error, ProviderRefused)


def test_if_all_queries_fail_the_error_is_unreachable_before_refused_and_malformed():
    kinds = {CPU: responded("no", status=403), MEMORY: responded("<html>"), "node_disk": responded("", status=503)}

    def answer(asked: Asked) -> bytes:
        return next(responded_ for name, responded_ in kinds.items() if name in asked.query)

    with FakePrometheus(answer) as server:
        assert isinstance(failure(server, metrics=("CPU", "Memory")), ProviderRefused)
        assert isinstance(failure(server, metrics=("Memory", "CPU", "Storage")), ProviderUnreachable)
        assert isinstance(failure(server, metrics=("Memory",)), ProviderMalformed)


def hang(_: Asked) -> Script:
    return until_hung_up


def trickle(head: bytes, piece: bytes) -> Answer:
    """A head, and then a part every 50 ms without end."""

    def script(connection: socket.socket) -> None:
        connection.sendall(head)
        connection.settimeout(0.05)
        while True:
            connection.sendall(piece)
            try:
                if connection.recv(1) == b"":
                    return
            except TimeoutError:
                continue

    return lambda _: script


OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(hang, id="silence"),
        pytest.param(trickle(OK + b"Content-Length: 1000000\r\n\r\n", b" "), id="body"),
        pytest.param(trickle(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"), id="chunks"),
        pytest.param(trickle(OK, b"X-More: y\r\n"), id="headers"),
        pytest.param(trickle(OK, b"x"), id="one header"),
        pytest.param(
            trickle(b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 1000000\r\n\r\n", b" "), id="redirect"
        ),
    ],
)
def test_no_response_takes_longer_than_the_timeout(answer: Answer):
    """Without any byte, or with single bytes: the timeout is for the whole response, and the connection is free
    afterwards."""
    with FakePrometheus(answer) as server:
        error = failure(server, timeout=0.3, backoff=())
        wait_for(server.ended.is_set, what="the connection to be hung up")

    assert isinstance(error, ProviderUnreachable)
    assert "in time" in str(error)


def body_only(content: bytes) -> Answer:
    return lambda _: responded(content)


def cut(asked: Asked) -> Script:
    """Half of the announced length, then the connection ends."""

    def script(connection: socket.socket) -> None:
        connection.sendall(OK + b'Content-Length: 1000\r\n\r\n{"status":"success","data":{')
        connection.shutdown(socket.SHUT_RDWR)

    return script


def slam(asked: Asked) -> Script:
    """The connection ends without a response."""
    return lambda connection: connection.shutdown(socket.SHUT_RDWR)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "kind", "part"),
    [
        pytest.param(body_only(b"<html>Sign in</html>"), ProviderMalformed, "web page", id="page"),
        pytest.param(
            body_only(b'{"status":"success","data":{"resultType":'), ProviderMalformed, "JSON", id="truncated"
        ),
        pytest.param(lambda _: result("matrix", []), ProviderMalformed, "not a vector", id="matrix for a vector"),
        pytest.param(
            lambda _: responded("", headers={"Content-Encoding": "gzip"}), ProviderMalformed, "JSON", id="empty"
        ),
        pytest.param(
            lambda _: responded("not gzip", headers={"Content-Encoding": "gzip"}),
            ProviderMalformed,
            "content encoding",
            id="gzip",
        ),
        pytest.param(lambda _: b"SSH-2.0-OpenSSH_9.2\r\n\r\n", ProviderMalformed, "not valid HTTP", id="not HTTP"),
        pytest.param(cut, ProviderUnreachable, "connection failed", id="cut"),
        pytest.param(slam, ProviderUnreachable, "connection failed", id="slammed"),
        pytest.param(
            only_samples(lambda _: vector({"node": "a"})), ProviderMalformed, "not a matrix", id="vector for a matrix"
        ),
        pytest.param(
            only_samples(lambda _: matrix(({"node": "a"}, [(NOW, "lots")]))), ProviderMalformed, "number", id="words"
        ),
        pytest.param(
            lambda _: responded("", status=308, headers={"Location": f"https://u:{SECRET}@sso.example/login?state=x"}),
            ProviderRefused,
            "redirect (308) to https://sso.example/login was",
            id="redirect",
        ),
    ],
)
def test_each_invalid_response_has_its_kind_of_error(answer: Answer, kind: type[ProviderError], part: str):
    """With the address; it ends the fetch."""
    with FakePrometheus(answer) as server:
        error = failure(server)

    assert type(error) is kind
    assert part in str(error)
    assert str(error).startswith(server.url)
    assert SECRET not in str(error)
    assert error.__cause__ is not None


@pytest.mark.slow
def test_the_size_of_a_response_is_limited():
    """For any announced and compressed size."""
    bomb = gzip.compress(b" " * 50_000_000)
    with FakePrometheus(lambda _: responded(bomb, headers={"Content-Encoding": "gzip"})) as server:
        error = failure(server, max_body_bytes=1 << 20)

    assert isinstance(error, ProviderMalformed)
    assert "larger than 1 MiB" in str(error)


def test_a_refused_connection_is_an_error():
    """With the message of the system."""
    with FakePrometheus(healthy) as server:
        url = server.url

    error = failure(url)

    assert isinstance(error, ProviderUnreachable)
    assert "Connection refused" in str(error)
    assert "provider.address" in error.hint


@pytest.mark.parametrize("host", ["a..b", "x" * 70, "a b", "%00", "."])
def test_an_impossible_host_is_an_error_at_the_start(host: str):
    """Each request would fail in the same way."""
    with pytest.raises(ValueError, match=r"provider\.address has a host name that is not valid"):
        PrometheusProvider(*sections(address=f"http://{host}:9090"))


def test_an_unknown_host_is_unreachable():
    """It may be resolved later."""
    error = failure("http://nowhere.invalid:9090")

    assert isinstance(error, ProviderUnreachable)
    assert "resolved" in str(error)
    assert "provider.address" in error.hint


def test_https_to_a_plain_port_is_refused_with_a_remedy():
    """Each request would fail in the same way."""

    def talk_plainly() -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.recv(1000)
            connection.sendall(responded("bad request", status=400))
            until_hung_up(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        talker = threading.Thread(target=talk_plainly)
        talker.start()
        error = failure(f"https://127.0.0.1:{listener.getsockname()[1]}")
        talker.join()

    assert isinstance(error, ProviderRefused)
    assert "http://" in error.hint


# --- cancelling and closing ------------------------------------------------------------------------------------------


def stop_in_the_body(connection: socket.socket) -> None:
    """A head that announces the end of the connection, and no body."""
    connection.sendall(OK + b"Connection: close\r\nContent-Length: 10\r\n\r\n")
    until_hung_up(connection)


@pytest.mark.slow
@pytest.mark.parametrize("hanging", [until_hung_up, stop_in_the_body])
def test_a_cancelled_fetch_frees_its_connections(hanging: Script):
    """The next fetch does not wait for the server that hangs."""
    hangs = threading.Event()
    hangs.set()
    metrics = ("CPU", "Memory", "Storage", "NetworkTransmit", "NetworkReceive", "NetworkTransmitDrop")

    def answer(asked: Asked) -> bytes | Script:
        return hanging if hangs.is_set() else healthy(asked)

    async def work(provider: PrometheusProvider) -> Fetch:
        for _ in range(3):
            server.asked.clear()
            task = asyncio.create_task(provider.fetch(NOW - 60, NOW))
            await eventually(lambda: len(server.asked) == 4, what="four questions at once")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        hangs.clear()
        return await provider.fetch(NOW - 60, NOW)

    with FakePrometheus(answer) as server:
        got = run(server, work, metrics=metrics, timeout=60.0, fetch_deadline=60.0)

    assert len(metrics) == len(got.batches)


def test_close_ends_a_query_that_hangs():
    """Its caller gets an error."""

    async def work(provider: PrometheusProvider) -> None:
        task = asyncio.create_task(provider.fetch(NOW - 60, NOW))
        await eventually(lambda: server.asked, what="the question")
        await provider.close()
        with pytest.raises(ProviderUnreachable):
            await task

    with FakePrometheus(hang) as server:
        run(server, work, timeout=60.0, fetch_deadline=60.0, backoff=())


def test_a_server_that_accepts_no_connection_is_unreachable():
    """Within the timeout of a query."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, contextlib.ExitStack() as full:
        for _ in range(2):  # as many as the kernel accepts by itself
            waiting = full.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        error = failure(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=0.3, backoff=())

    assert isinstance(error, ProviderUnreachable)


async def test_a_provider_that_was_not_started_can_be_closed():
    """Needed if another part fails to start."""
    await PrometheusProvider(*sections(address="http://127.0.0.1:1")).close()


# --- credentials -----------------------------------------------------------------------------------------------------


def headers_sent(**settings: Any) -> list[Mapping[str, str]]:
    with FakePrometheus(healthy) as server:
        fetch(server, **settings)
    return [asked.headers for asked in server.asked]


def test_the_headers_of_a_request():
    """A bearer token, configured headers, the user agent, and no compression on the local network."""
    for headers in headers_sent(token=SECRET, headers={"X-Scope-OrgID": "team-a"}):
        assert f"Bearer {SECRET}" == headers["authorization"]
        assert "team-a" == headers["x-scope-orgid"]
        assert headers["user-agent"].startswith("load-watcher/")
        assert "identity" == headers["accept-encoding"]


def test_the_tenant_is_sent_with_each_query_and_not_shown(caplog: pytest.LogCaptureFixture):
    """Discovery, names, intervals, samples by range and by selector, and the past; Mimir refuses requests without
    it."""
    caplog.set_level(logging.DEBUG)

    def answer(asked: Asked) -> bytes:
        tenant = asked.headers.get("x-scope-orgid")
        if tenant != SECRET:
            return responded(f"no org id in {tenant}", status=401)
        if asked.query.endswith("[10m]"):
            return matrix(({"instance": "1:1"}, [(NOW - 30, "1"), (NOW - 15, "2"), (NOW, "3")]))
        if asked.query.startswith("count") and "node_cpu_seconds" in asked.query:
            return vector({"instance": "1:1"})
        if asked.query.startswith("count") and "uname" in asked.query:
            return vector({"instance": "1:1", "nodename": "a"})
        if asked.query.startswith("count") and "instance:" in asked.query:
            return vector()
        if "timestamp(" in asked.query:
            return vector({"instance": "1:1"})
        return matrix(({"instance": "1:1"}, [(NOW - 15, "0.5")]))

    async def work(provider: PrometheusProvider) -> None:
        await provider.fetch(NOW - 60, NOW)
        await provider.fetch(NOW - 180, NOW - 60)

    with FakePrometheus(answer) as server:
        run(server, work, headers={"X-Scope-OrgID": SECRET})
        error = failure(server, headers={"X-Scope-OrgID": SECRET + "-not"})

    assert {"/api/v1/query", "/api/v1/query_range"} == {asked.path for asked in server.asked}
    assert {"uname", "[10m]", "rate("} == {
        part for part in ("uname", "[10m]", "rate(") if any(part in q for q in server.queries)
    }
    assert SECRET not in caplog.text + str(error) + error.hint
    assert all(SECRET not in asked.path + str(asked.parameters) for asked in server.asked)


def basic(username: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()


def test_basic_authentication_is_sent(tmp_path: Path):
    """With a password, a file with one, or both in the address."""
    file = tmp_path / "password"
    file.write_text("pässword\n")

    assert basic("me", SECRET) == headers_sent(username="me", password=SECRET)[0]["authorization"]
    assert basic("me", "pässword") == headers_sent(username="me", password_file=str(file))[0]["authorization"]
    with FakePrometheus(healthy) as server:
        fetch(f"http://m%40e:p%3Aw@127.0.0.1:{server.port}")
    assert basic("m@e", "p:w") == server.asked[0].headers["authorization"]


def test_a_changed_token_file_is_read_again(tmp_path: Path):
    """Tokens of service accounts are renewed every hour."""
    file = tmp_path / "token"
    file.write_text("first\n")

    async def work(provider: PrometheusProvider) -> None:
        await provider.fetch(NOW - 60, NOW)
        file.write_text("second one\n")
        await provider.fetch(NOW - 60, NOW)

    with FakePrometheus(healthy) as server:
        run(server, work, token_file=str(file))

    assert ["Bearer first", "Bearer second one"] == [
        asked.headers["authorization"] for asked in server.asked if not asked.query.startswith("count")
    ]


def test_the_error_names_an_unreadable_token_file(tmp_path: Path):
    """With its setting; no query is sent without the token."""
    with FakePrometheus(healthy) as server:
        error = failure(server, token_file=str(tmp_path / "absent"))

    assert isinstance(error, ProviderRefused)
    assert f"provider.token_file {tmp_path}/absent" in str(error)
    assert [] == server.asked


@pytest.mark.parametrize(
    "settings",
    [
        {"token": f"{SECRET}\nX-More: y"},
        {"token": f"{SECRET}…"},
        {"token": f"{SECRET}\0"},
        {"headers": {"X-Key": f" {SECRET}"}},
        {"headers": {"X Key": SECRET}},
        {"headers": {"X-Kéy": SECRET}},
    ],
    ids=str,
)
def test_an_invalid_header_is_refused_without_being_shown(settings: dict[str, Any]):
    """The errors of the libraries would show it."""
    with FakePrometheus(healthy) as server:
        error = failure(server, **settings)

    assert isinstance(error, ProviderRefused)
    assert "provider.headers" in error.hint
    assert SECRET not in "".join(traceback.format_exception(error))
    assert [] == server.asked


def test_proxies_and_passwords_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Otherwise a daemon would depend on the environment of its start."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login someone password else\n")
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")

    assert "authorization" not in headers_sent()[0]


def test_a_password_in_the_address_is_not_shown(caplog: pytest.LogCaptureFixture):
    """Neither errors nor logs nor the access log of the server show it."""
    caplog.set_level(logging.DEBUG)
    answers: Iterator[Answer] = iter([healthy, lambda _: responded("no", status=401)])
    current = next(answers)

    async def work(provider: PrometheusProvider) -> ProviderError:
        nonlocal current
        await provider.fetch(NOW - 60, NOW)
        current = next(answers)
        with pytest.raises(ProviderRefused) as caught:
            await provider.fetch(NOW - 60, NOW)
        return caught.value

    with FakePrometheus(lambda asked: current(asked)) as server:
        error = run(f"http://me:{SECRET}@127.0.0.1:{server.port}", work)

    cause: BaseException | None = error
    while cause is not None:
        assert SECRET not in str(cause) + repr(cause)
        cause = cause.__cause__ or cause.__context__
    assert SECRET not in error.hint + caplog.text
    assert str(error).startswith(f"http://127.0.0.1:{server.port}: ")


@pytest.mark.slow
@pytest.mark.parametrize("status", [400, 401, 403, 500, 503])
def test_an_error_page_with_the_request_is_shown_without_secrets(status: int):
    """Some proxies send such pages."""

    def mirror(asked: Asked) -> bytes:
        return responded(f"you sent {asked.headers['authorization']} and {asked.headers['x-key']}", status=status)

    with FakePrometheus(mirror) as server:
        error = failure(server, username="me", password=SECRET, headers={"X-Key": SECRET + "2"}, backoff=())

    assert SECRET not in str(error)
    assert base64.b64encode(f"me:{SECRET}".encode()).decode() not in str(error)
    assert "***" in str(error)


@pytest.mark.parametrize(
    "address",
    [
        f"prometheus:{SECRET}",
        f"ftp://me:{SECRET}@host",
        f"http://me:{SECRET}@host:port",
        f"http://host:{SECRET}",
        f"http://me:{SECRET}@",
        f"http://host/?{SECRET}",
        f"http://me:{SECRET}@host:0",
        f"http://[{SECRET}",
        "",
    ],
)
def test_an_invalid_address_is_refused_without_being_shown(address: str):
    """It may contain a password."""
    with pytest.raises(ValueError, match=r"provider\.address") as caught:
        PrometheusProvider(*sections(address=address))

    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_remote_server_may_compress():
    """On the local network it costs more than it saves."""

    def encoding(host: str) -> str:
        config = ConnectionSettings(address=f"http://{host}")
        return SourceConnection(config, credentials=dict, refusal=error_of).headers()["Accept-Encoding"]

    near = [encoding(host) for host in ("localhost:9090", "127.1.2.3", "[::1]:9090")]
    assert ["identity"] * 3 == near
    assert ["gzip"] * 2 == [encoding(host) for host in ("prometheus-k8s:9090", "10.0.0.1")]
