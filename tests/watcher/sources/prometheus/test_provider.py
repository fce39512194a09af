"""The Prometheus provider against servers that misbehave, over real sockets: what costs a metric, what costs a fetch,
what is retried, and what never gets out."""

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

from tests.fakes.prometheus import Answer, Asked, FakePrometheus, Script, matrix, result, told, until_hung_up, vector
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
    """Misbehave on the samples, behave while finding out what to ask."""
    return lambda asked: healthy(asked) if asked.query.startswith("count") else answer(asked)


# --- the usual -------------------------------------------------------------------------------------------------------


def test_samples_come_converted_with_their_own_times():
    """One batch per metric under upstream's name, percent, and how the source's clock stands."""
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
    """Plain series by a range selector at the end of the span; finding out happens once."""
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


def test_no_more_than_the_longest_window_is_asked_for():
    """However far back a caller wants to look."""
    with FakePrometheus(healthy) as server:
        run(server, lambda provider: provider.fetch(NOW - 86400, NOW), max_seconds=900.0)

    assert f"{CPU}[900s]" == server.queries[-1]


def test_samples_outside_the_span_are_left_out():
    """A range is whole seconds long, and a server may ignore the time."""
    with FakePrometheus(only_samples(lambda _: matrix(({"node": "a"}, [(NOW - 61, "1"), (NOW + 1, "2")])))) as server:
        got = fetch(server)

    assert () == got.batches


def test_only_the_named_metrics_are_asked_for():
    """The others keep their plans."""
    with FakePrometheus(healthy) as server:
        got = run(server, lambda provider: provider.fetch(NOW - 60, NOW, only={MEMORY}), metrics=("CPU", "Memory"))

    assert [MEMORY] == [batch.metric.name for batch in got.batches]
    assert not any(CPU in query for query in server.queries)


@pytest.mark.parametrize(("header", "beyond"), [("X-Server-Hostname", 120.0), ("X-Other", 0.0)])
def test_only_a_victoria_metrics_is_asked_beyond_now(header: str, beyond: float):
    """By whole steps of a minute here, and of the present alone: what it says of the past is true anyway."""

    def answer(asked: Asked) -> bytes:
        content = healthy(asked).partition(b"\r\n\r\n")[2]
        return told(content, headers={header: "vm"})

    minute = NOW // 60 * 60
    with FakePrometheus(answer, state_metrics=True) as server:

        async def now_and_the_past(provider: PrometheusProvider) -> None:
            await provider.fetch(minute - 60, minute)
            await provider.fetch(minute - 180, minute - 60)

        run(server, now_and_the_past, queries={"CPU": QuerySettings("my:cpu / 2", "ratio")})

    ends = [float(asked.parameters["end"]) for asked in server.asked if asked.path.endswith("query_range")]
    assert [minute + beyond, minute - 60] == ends


@pytest.mark.parametrize("path", ["", "/", "/prometheus", "/prometheus/"])
def test_a_path_in_the_address_is_kept(path: str):
    """With or without a slash at its end."""
    with FakePrometheus(healthy) as server:
        fetch(server.url + path)

    assert {path.rstrip("/") + "/api/v1/query"} == {asked.path for asked in server.asked}


def test_a_compressed_answer_is_read():
    """Even where none was asked for."""

    def compressed(asked: Asked) -> bytes:
        head, _, content = healthy(asked).partition(b"\r\n\r\n")
        assert head
        return told(gzip.compress(content), headers={"Content-Encoding": "gzip"})

    with FakePrometheus(compressed) as server:
        assert 1 == len(fetch(server).batches)


def test_an_answer_in_chunks_is_read():
    """As Prometheus sends all but the smallest."""

    def chunked(asked: Asked) -> bytes:
        _, _, content = healthy(asked).partition(b"\r\n\r\n")
        pieces = [content[at : at + 7] for at in range(0, len(content), 7)]
        body = b"".join(f"{len(piece):x}\r\n".encode() + piece + b"\r\n" for piece in pieces) + b"0\r\n\r\n"
        return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body

    with FakePrometheus(chunked) as server:
        assert 1 == len(fetch(server).batches)


@pytest.mark.parametrize("ahead", [0.0, 3600.0, -120.0])
def test_the_clock_of_the_source_is_compared_with_ours(ahead: float):
    """From the Date header, whose whole seconds say nothing about less than 1.5 of them."""

    def dated(asked: Asked) -> bytes:
        head, blank, content = healthy(asked).partition(b"\r\n\r\n")
        return head + f"\r\nDate: {formatdate(time.time() + ahead, usegmt=True)}".encode() + blank + content

    expected = 0.0 if ahead == 0.0 else pytest.approx(ahead, abs=5.0)
    with FakePrometheus(dated) as server:
        # Again where a busy machine let more than a second pass between the header and the hearing of it.
        wait_for(lambda: fetch(server).clock_offset_s == expected, what="the offset")


def test_without_a_date_the_clock_says_nothing():
    """Absence is an answer."""
    with FakePrometheus(healthy) as server:
        assert fetch(server).clock_offset_s is None


# --- what goes wrong -------------------------------------------------------------------------------------------------


def once(*first: bytes) -> Answer:
    """These answers to the first questions for samples, then healthy ones."""
    left = list(first)
    return only_samples(lambda asked: left.pop(0) if left else healthy(asked))


BUSY = told("try later", status=503)


def test_what_passes_is_tried_again():
    """Twice, and then it may have passed."""
    with FakePrometheus(once(BUSY, told("", status=502))) as server:
        got = fetch(server)

    assert 1 == len(got.batches)
    assert 3 == server.queries.count(f"{CPU}[60s]")


def test_it_is_tried_three_times_and_no_more():
    """Retries are bounded."""
    with FakePrometheus(only_samples(lambda _: BUSY)) as server:
        error = failure(server)

    assert isinstance(error, ProviderUnreachable)
    assert 3 == server.queries.count(f"{CPU}[60s]")


def test_what_is_refused_is_not_tried_again():
    """A retry would not help, and could lock an account."""
    with FakePrometheus(lambda _: told("no", status=401)) as server:
        error = failure(server)

    assert isinstance(error, ProviderRefused)
    assert 1 == len(server.asked)


def test_no_retry_begins_that_the_deadline_would_cut():
    """The fetch's own deadline is shorter than the pause."""
    with FakePrometheus(only_samples(lambda _: BUSY)) as server:
        error = failure(server, backoff=(60.0,), fetch_deadline=20.0)

    assert "503" in str(error)
    assert 1 == server.queries.count(f"{CPU}[60s]")


def test_one_failing_query_costs_its_metric():
    """The others are there, and the failure names its metric."""

    def answer(asked: Asked) -> bytes:
        return told("broken", status=500) if MEMORY in asked.query else healthy(asked)

    with FakePrometheus(answer) as server:
        got = fetch(server, metrics=("CPU", "Memory"))

    assert [CPU] == [batch.metric.name for batch in got.batches]
    (failed,) = got.failures
    assert MEMORY == failed.metric
    assert isinstance(failed.error, ProviderRefused)


def test_if_all_fail_unreachable_is_the_most_telling():
    """Then refused, then malformed."""
    kinds = {CPU: told("no", status=403), MEMORY: told("<html>"), "node_disk": told("", status=503)}

    def answer(asked: Asked) -> bytes:
        return next(told_ for name, told_ in kinds.items() if name in asked.query)

    with FakePrometheus(answer) as server:
        assert isinstance(failure(server, metrics=("CPU", "Memory")), ProviderRefused)
        assert isinstance(failure(server, metrics=("Memory", "CPU", "Storage")), ProviderUnreachable)
        assert isinstance(failure(server, metrics=("Memory",)), ProviderMalformed)


def hang(_: Asked) -> Script:
    return until_hung_up


def trickle(head: bytes, piece: bytes) -> Answer:
    """A head, and then a piece every 50 ms for ever."""

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
def test_no_answer_takes_longer_than_the_timeout(answer: Answer):
    """Nothing at all, or one byte after the other: the whole answer counts, and the line is free again after it."""
    with FakePrometheus(answer) as server:
        error = failure(server, timeout=0.3, backoff=())
        wait_for(server.ended.is_set, what="the connection to be hung up")

    assert isinstance(error, ProviderUnreachable)
    assert "in time" in str(error)


def body_only(content: bytes) -> Answer:
    return lambda _: told(content)


def cut(asked: Asked) -> Script:
    """Half of what was promised, then the connection ends."""

    def script(connection: socket.socket) -> None:
        connection.sendall(OK + b'Content-Length: 1000\r\n\r\n{"status":"success","data":{')
        connection.shutdown(socket.SHUT_RDWR)

    return script


def slam(asked: Asked) -> Script:
    """The connection ends instead of an answer."""
    return lambda connection: connection.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("answer", "kind", "part"),
    [
        pytest.param(body_only(b"<html>Sign in</html>"), ProviderMalformed, "web page", id="page"),
        pytest.param(
            body_only(b'{"status":"success","data":{"resultType":'), ProviderMalformed, "JSON", id="truncated"
        ),
        pytest.param(lambda _: result("matrix", []), ProviderMalformed, "not a vector", id="matrix for a vector"),
        pytest.param(lambda _: told("", headers={"Content-Encoding": "gzip"}), ProviderMalformed, "JSON", id="empty"),
        pytest.param(
            lambda _: told("not gzip", headers={"Content-Encoding": "gzip"}),
            ProviderMalformed,
            "content encoding",
            id="gzip",
        ),
        pytest.param(lambda _: b"SSH-2.0-OpenSSH_9.2\r\n\r\n", ProviderMalformed, "not valid HTTP", id="no HTTP"),
        pytest.param(cut, ProviderUnreachable, "connection failed", id="cut"),
        pytest.param(slam, ProviderUnreachable, "connection failed", id="slammed"),
        pytest.param(
            only_samples(lambda _: vector({"node": "a"})), ProviderMalformed, "not a matrix", id="vector for a matrix"
        ),
        pytest.param(
            only_samples(lambda _: matrix(({"node": "a"}, [(NOW, "lots")]))), ProviderMalformed, "number", id="words"
        ),
        pytest.param(
            lambda _: told("", status=308, headers={"Location": f"https://u:{SECRET}@sso.example/login?state=x"}),
            ProviderRefused,
            "redirect (308) to https://sso.example/login was",
            id="redirect",
        ),
    ],
)
def test_odd_answers_are_told_apart(answer: Answer, kind: type[ProviderError], part: str):
    """Each is the right kind of error, names the address, and ends the fetch."""
    with FakePrometheus(answer) as server:
        error = failure(server)

    assert type(error) is kind
    assert part in str(error)
    assert str(error).startswith(server.url)
    assert SECRET not in str(error)
    assert error.__cause__ is not None


def test_an_answer_is_only_so_large():
    """Whatever is announced or compressed."""
    bomb = gzip.compress(b" " * 50_000_000)
    with FakePrometheus(lambda _: told(bomb, headers={"Content-Encoding": "gzip"})) as server:
        error = failure(server, max_body_bytes=1 << 20)

    assert isinstance(error, ProviderMalformed)
    assert "larger than 1 MiB" in str(error)


def test_nobody_listens():
    """A refused connection, with the system's words."""
    with FakePrometheus(healthy) as server:
        url = server.url

    error = failure(url)

    assert isinstance(error, ProviderUnreachable)
    assert "Connection refused" in str(error)
    assert "provider.address" in error.hint


@pytest.mark.parametrize("host", ["a..b", "x" * 70, "a b", "%00", "."])
def test_an_impossible_host_is_refused_at_start(host: str):
    """A request would fail in the same way each time."""
    with pytest.raises(ValueError, match=r"provider\.address has a host name that is not valid"):
        PrometheusProvider(*sections(address=f"http://{host}:9090"))


def test_a_name_that_does_not_resolve():
    """Is unreachable, since names come and go with services."""
    error = failure("http://nowhere.invalid:9090")

    assert isinstance(error, ProviderUnreachable)
    assert "resolved" in str(error)
    assert "provider.address" in error.hint


def test_https_to_a_plain_port_is_refused_with_the_cure():
    """It would fail the same way every time."""

    def talk_plainly() -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.recv(1000)
            connection.sendall(told("bad request", status=400))
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
    """A head that announces the end of the connection, and nothing after it."""
    connection.sendall(OK + b"Connection: close\r\nContent-Length: 10\r\n\r\n")
    until_hung_up(connection)


@pytest.mark.parametrize("hanging", [until_hung_up, stop_in_the_body])
def test_a_cancelled_fetch_frees_its_lines(hanging: Script):
    """The next fetch does not have to wait for the hung server."""
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


def test_closing_ends_a_query_that_hangs():
    """And whoever still waits for an answer gets an error."""

    async def work(provider: PrometheusProvider) -> None:
        task = asyncio.create_task(provider.fetch(NOW - 60, NOW))
        await eventually(lambda: server.asked, what="the question")
        await provider.close()
        with pytest.raises(ProviderUnreachable):
            await task

    with FakePrometheus(hang) as server:
        run(server, work, timeout=60.0, fetch_deadline=60.0, backoff=())


def test_a_server_that_takes_no_connection_is_unreachable():
    """Within the timeout of a query."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, contextlib.ExitStack() as full:
        for _ in range(2):  # as many as the kernel takes on its own
            waiting = full.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        error = failure(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=0.3, backoff=())

    assert isinstance(error, ProviderUnreachable)


async def test_a_provider_that_was_never_started_can_be_closed():
    """As happens when another part fails to start."""
    await PrometheusProvider(*sections(address="http://127.0.0.1:1")).close()


# --- credentials -----------------------------------------------------------------------------------------------------


def headers_sent(**settings: Any) -> list[Mapping[str, str]]:
    with FakePrometheus(healthy) as server:
        fetch(server, **settings)
    return [asked.headers for asked in server.asked]


def test_what_is_sent_along():
    """A bearer token, headers of the operator's, who we are, and no compression next door."""
    for headers in headers_sent(token=SECRET, headers={"X-Scope-OrgID": "team-a"}):
        assert f"Bearer {SECRET}" == headers["authorization"]
        assert "team-a" == headers["x-scope-orgid"]
        assert headers["user-agent"].startswith("load-watcher/")
        assert "identity" == headers["accept-encoding"]


def test_the_tenant_goes_with_every_question_and_nowhere_else(caplog: pytest.LogCaptureFixture):
    """Finding out, names, intervals, samples by range and by selector, and the past; Mimir refuses whoever lacks it."""
    caplog.set_level(logging.DEBUG)

    def answer(asked: Asked) -> bytes:
        tenant = asked.headers.get("x-scope-orgid")
        if tenant != SECRET:
            return told(f"no org id in {tenant}", status=401)
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


def test_basic_authentication(tmp_path: Path):
    """With a password, a file with one, or both in the address."""
    file = tmp_path / "password"
    file.write_text("pässword\n")

    assert basic("me", SECRET) == headers_sent(username="me", password=SECRET)[0]["authorization"]
    assert basic("me", "pässword") == headers_sent(username="me", password_file=str(file))[0]["authorization"]
    with FakePrometheus(healthy) as server:
        fetch(f"http://m%40e:p%3Aw@127.0.0.1:{server.port}")
    assert basic("m@e", "p:w") == server.asked[0].headers["authorization"]


def test_a_token_file_is_read_again_when_it_changed(tmp_path: Path):
    """Service account tokens are renewed every hour."""
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


def test_a_token_file_that_cannot_be_read_is_named(tmp_path: Path):
    """With its setting, and nothing is asked without it."""
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
def test_a_header_that_cannot_be_sent_is_refused_without_showing_it(settings: dict[str, Any]):
    """The libraries' own errors show it."""
    with FakePrometheus(healthy) as server:
        error = failure(server, **settings)

    assert isinstance(error, ProviderRefused)
    assert "provider.headers" in error.hint
    assert SECRET not in "".join(traceback.format_exception(error))
    assert [] == server.asked


def test_proxies_and_passwords_of_the_environment_are_not_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Else a daemon would depend on who started it."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login someone password else\n")
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")

    assert "authorization" not in headers_sent()[0]


def test_a_password_in_the_address_stays_there(caplog: pytest.LogCaptureFixture):
    """Neither errors nor logs nor the far side's log of addresses show it."""
    caplog.set_level(logging.DEBUG)
    answers: Iterator[Answer] = iter([healthy, lambda _: told("no", status=401)])
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


@pytest.mark.parametrize("status", [400, 401, 403, 500, 503])
def test_an_error_page_that_shows_our_request_is_scrubbed(status: int):
    """Some proxies help debugging like that."""

    def mirror(asked: Asked) -> bytes:
        return told(f"you sent {asked.headers['authorization']} and {asked.headers['x-key']}", status=status)

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
def test_an_address_that_is_none_is_refused_without_showing_it(address: str):
    """It may hold a password."""
    with pytest.raises(ValueError, match=r"provider\.address") as caught:
        PrometheusProvider(*sections(address=address))

    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_far_server_may_compress():
    """Next door it costs more than it saves; over a network it saves."""

    def encoding(host: str) -> str:
        config = ConnectionSettings(address=f"http://{host}")
        return SourceConnection(config, credentials=dict, refusal=error_of).headers()["Accept-Encoding"]

    near = [encoding(host) for host in ("localhost:9090", "127.1.2.3", "[::1]:9090")]
    assert ["identity"] * 3 == near
    assert ["gzip"] * 2 == [encoding(host) for host in ("prometheus-k8s:9090", "10.0.0.1")]
