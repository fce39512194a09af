"""The suite for each provider that queries a server: the same faults, each over a real socket and in the protocol of
the provider.

For any fault, a fetch must raise a known ProviderError with a hint and without a secret, or leave out the invalid part
with a finding. Its reviewed values are finite, and the valid node is still present. Tests of a single provider are in
its own test file.

A test module that imports these functions and has a parameter `kind` for all its tests (`pytestmark`) is the suite for
its providers: tests/watcher/sources/test_faults.py, and test_faults.py of examples/cloud for a separate package.
"""

import contextlib
import gzip
import math
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
import trustme

from tests.fakes.prometheus import Asked, FakePrometheus, Script, responded, until_hung_up
from tests.fetches import failure_of, use
from tests.waiting import eventually
from watcher.core.review import samples as review_samples
from watcher.core.review.settings import ReviewSettings
from watcher.model import Cells, Finding, FindingKind
from watcher.sources.base import Fetch, Provider
from watcher.sources.errors import (
    ProviderError,
    ProviderMalformed,
    ProviderRefused,
    ProviderTimeout,
    ProviderUnreachable,
)

NOW = 1_700_000_040.0  # a multiple of 60
AT = NOW - 60.0  # a multiple of every bucket
SECRET = "s3cret-pass-word"
LIMITS = ReviewSettings()

Sample = tuple[str, float, Any]
"""Node, unix seconds, percent of CPU; the last two may be anything that JSON can say."""


# --- a provider -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """A provider: how to create one for CPU, and the response of a server with these samples."""

    make: Callable[..., Provider]
    answer: Callable[[Asked, Sequence[Sample]], bytes | Script]
    empty_body_is_valid: bool = False
    bounded: bool = True
    """Whether `options` limit the size of an answer."""


def options(address: str, timeout: float, backoff: tuple[float, ...]) -> dict[str, Any]:
    return {
        "address": address,
        "token": SECRET,
        "metrics": ("CPU",),
        "timeout": timeout,
        "backoff": backoff,
        "max_body_bytes": 1 << 20,
    }


def idle(value: Any) -> Any:
    return 100 - value if type(value) in (int, float) else value


def milliseconds(at: float) -> Any:
    return round(1000 * at) if math.isfinite(at) else at


def rfc3339(at: float) -> str:
    """A value that is not a date is written as the number."""
    with contextlib.suppress(ValueError, OverflowError):
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return str(at)


GOOD: Sample = ("b", AT, 12.5)


# --- fetching --------------------------------------------------------------------------------------------------------


def fetch(kind: Kind, address: str, *, timeout: float = 30.0, backoff: tuple[float, ...] = (0.01, 0.01)) -> Fetch:
    """The first fetch of three minutes, with fast retries and long timeouts for a busy machine."""

    return use(
        lambda: kind.make(address, timeout, backoff), lambda provider: provider.fetch(NOW - 180, NOW), limit_s=60.0
    )


def outcome(kind: Kind, answer: Callable[[Asked], bytes | Script], *, placed: bool = True) -> Fetch | ProviderError:
    """The result or the error of a fetch with this response. An error in the response itself (not of the connection)
    names the query or the series and not the address: then `placed` is False."""
    with FakePrometheus(answer) as server:
        try:
            return fetch(kind, server.url)
        except ProviderError as error:
            check_error(error, address=server.url if placed else "")
            return error


def failure(kind: Kind, address: str, **given: Any) -> ProviderError:
    """The error of a fetch that fails completely."""
    error = failure_of(lambda: fetch(kind, address, **given))
    check_error(error, address=address)
    return error


def check_error(error: ProviderError, *, address: str) -> None:
    """Its type is known, it has the place and a hint, and no secret."""
    assert type(error) in (ProviderTimeout, ProviderUnreachable, ProviderRefused, ProviderMalformed)
    assert str(error).startswith(address)
    assert error.hint
    assert SECRET not in f"{error} {error.hint}"


def reviewed(got: Fetch) -> tuple[dict[str, list[float]], list[Finding]]:
    """The values that enter the history by node, and the findings of the provider and of the review. Asserts that all
    values are usable."""
    findings = list(got.findings)
    values: dict[str, list[float]] = {}
    for batch in got.batches:
        cells, more = review_samples.combine(batch, resolution=15, limits=LIMITS)
        clean = review_samples.clean(batch.metric, cells, now=NOW, limits=LIMITS)
        findings += [*more, *clean.findings]
        check_cells(clean.cells)
        for node, value in zip(clean.cells.node, clean.cells.value.tolist(), strict=True):
            values.setdefault(clean.cells.names[node], []).append(value)
    for failed in got.failures:
        assert isinstance(failed.error, ProviderError)
    return values, findings


def check_cells(cells: Cells) -> None:
    for name, at, value in zip((cells.names[node] for node in cells.node), cells.time, cells.value, strict=True):
        assert name
        assert NOW - 180 <= at <= NOW
        assert 0.0 <= value <= 100.0


def beside_the_good(kind: Kind, *samples: Sample) -> tuple[dict[str, list[float]], list[Finding]] | None:
    """The result of invalid samples beside a valid one; None if the fetch failed with a known error."""
    got = outcome(kind, lambda asked: kind.answer(asked, [*samples, GOOD]), placed=False)
    return None if isinstance(got, ProviderError) else reviewed(got)


# --- valid responses -------------------------------------------------------------------------------------------------


def test_a_valid_response_has_its_samples(kind: Kind):
    """Otherwise the rest of this file would prove nothing."""
    made = beside_the_good(kind, ("a", AT, 50.0))
    assert ({"a": [50.0], "b": [12.5]}, []) == made


def test_an_empty_response_is_reported(kind: Kind):
    """By a finding or an error."""
    got = outcome(kind, lambda asked: kind.answer(asked, []))
    assert isinstance(got, Fetch)
    assert () == got.batches
    assert FindingKind.NO_SERIES in {finding.kind for finding in got.findings}


# --- connections -----------------------------------------------------------------------------------------------------


def test_a_refused_connection_is_an_error(kind: Kind):
    """The port was just closed."""
    with FakePrometheus(lambda _: b"") as server:
        address = server.url
    assert isinstance(failure(kind, address, backoff=()), ProviderUnreachable)


def test_an_unknown_host_is_an_error_that_may_pass(kind: Kind):
    """The DNS names of services may appear later."""
    assert isinstance(failure(kind, "http://nowhere.invalid:9090", backoff=()), ProviderUnreachable)


def test_tls_to_a_plain_port_is_an_error_that_does_not_pass(kind: Kind):
    def talk_plainly() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(1000)
                    connection.sendall(responded("bad request", status=400))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        talker = threading.Thread(target=talk_plainly)
        talker.start()
        error = failure(kind, f"https://127.0.0.1:{listener.getsockname()[1]}", backoff=())
        listener.shutdown(socket.SHUT_RDWR)
        talker.join()
    assert isinstance(error, ProviderRefused)


@pytest.fixture(scope="module")
def server_tls() -> ssl.SSLContext:
    """The TLS context of a server with an unknown authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    return context


def test_plain_http_to_a_tls_port_is_an_error(kind: Kind, server_tls: ssl.SSLContext):
    """Many servers close the connection, or respond in TLS."""
    with FakePrometheus(lambda _: b"", tls=server_tls) as server:
        address = server.url.replace("https:", "http:")
        assert isinstance(failure(kind, address, backoff=()), (ProviderUnreachable, ProviderMalformed))


def test_a_certificate_of_an_unknown_authority_is_not_trusted(kind: Kind, server_tls: ssl.SSLContext):
    with FakePrometheus(lambda _: b"", tls=server_tls) as server:
        assert isinstance(failure(kind, server.url, backoff=()), ProviderRefused)
        assert [] == server.asked


def test_a_server_that_never_responds_times_out(kind: Kind):
    """And its connection is closed."""
    with FakePrometheus(lambda _: until_hung_up) as server:
        error = failure(kind, server.url, timeout=0.3, backoff=())
        assert server.ended.wait(30)
    assert isinstance(error, ProviderUnreachable)
    assert "in time" in str(error)


def cut(connection: socket.socket) -> None:
    """Half of the announced length."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n" + b'{"a":')
    connection.shutdown(socket.SHUT_RDWR)


def test_a_connection_that_is_cut_within_the_body_is_an_error(kind: Kind):
    assert isinstance(outcome(kind, lambda _: cut), ProviderUnreachable)


# --- statuses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, ProviderRefused),
        (401, ProviderRefused),
        (403, ProviderRefused),
        (404, ProviderRefused),
        (429, ProviderUnreachable),
        (500, (ProviderUnreachable, ProviderRefused)),
        (502, ProviderUnreachable),
        (503, ProviderUnreachable),
        (504, ProviderUnreachable),
    ],
)
def test_an_error_status_is_reported(kind: Kind, status: int, expected: Any):
    """The request, which some error pages contain, is not shown."""

    def mirror(asked: Asked) -> bytes:
        return responded(f"you sent {asked.headers}", status=status)

    error = outcome(kind, mirror)
    assert isinstance(error, expected)
    assert str(status) in str(error)


@pytest.mark.parametrize("page", ["<pre>{}</pre>", "{}", '{{"request": "{}"}}'], ids=["page", "text", "JSON"])
def test_a_page_with_the_request_and_a_good_status_is_an_error_without_secrets(kind: Kind, page: str):
    """Echo servers and debugging proxies respond in this way."""

    def mirror(asked: Asked) -> bytes:
        return responded(page.format(str(asked.headers).replace('"', "'")))

    assert isinstance(outcome(kind, mirror), (ProviderMalformed, ProviderRefused))


async def test_after_an_outage_the_next_fetch_succeeds(kind: Kind):
    answers = iter([responded("try later", status=503)])

    async def inside(address: str) -> Fetch:
        provider = kind.make(address, 30.0, (0.01, 0.01))
        fetches: list[Fetch] = []

        async def well():
            fetches.append(await provider.fetch(NOW - 180, NOW))
            return bool(fetches[-1].batches)

        await provider.start()
        try:
            await eventually(well, what="samples", ignoring=(ProviderUnreachable,))
        finally:
            await provider.close()
        return fetches[-1]

    with FakePrometheus(lambda asked: next(answers, None) or kind.answer(asked, [GOOD])) as server:
        values, _ = reviewed(await inside(server.url))
    assert {"b": [12.5]} == values


def test_a_redirect_is_not_followed(kind: Kind):
    """Credentials belong to one address."""
    elsewhere = responded("", status=307, headers={"Location": f"https://sso.example/login?state={SECRET}"})
    assert isinstance(outcome(kind, lambda _: elsewhere), ProviderRefused)


# --- bodies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        *("{", '{"status":"success","data":{"resultType":', '{"data":{"attributes":{"times":[17', '{"kind":"NodeM'),
        *("{}", "[]", "null", '"text"', "7", '{"data": 5}', '{"results": 5}', '{"status":"success","data":[]}'),
        *('{"kind":"List"}x', '{"data":{"a":[[1,{}]]},"errors":7}', "\x00\x01\x02", "[" * 50_000),
        '{"data":{"attributes":{"series":[{"group_tags":["host:a"]}],"times":[],"values":[]}}}',
    ],
    ids=lambda body: ascii(body[:60]),
)
def test_json_that_is_cut_or_has_another_type_is_an_error(kind: Kind, body: str):
    """Never a silent empty response."""
    got = outcome(kind, lambda _: responded(body))
    if isinstance(got, Fetch):  # read up to the cut
        assert () == got.batches
        assert FindingKind.NON_FINITE in {finding.kind for finding in got.findings}
    else:
        assert isinstance(got, (ProviderMalformed, ProviderRefused))


def test_a_web_page_of_a_proxy_is_an_error(kind: Kind):
    """With a good status."""
    got = outcome(
        kind, lambda _: responded("<!DOCTYPE html><title>Sign in</title>", headers={"Content-Type": "text/html"})
    )
    assert isinstance(got, ProviderMalformed)
    assert "web page" in str(got)


def test_an_empty_body_is_an_error(kind: Kind):
    """Only Flux takes it as a response without rows."""
    got = outcome(kind, lambda _: responded(b""))
    if kind.empty_body_is_valid:
        assert isinstance(got, Fetch)
        assert [FindingKind.NO_SERIES] == [finding.kind for finding in got.findings]
    else:
        assert isinstance(got, ProviderMalformed)


def test_bytes_that_are_not_text_are_an_error(kind: Kind):
    """Nor compressed data, as the header states."""
    assert isinstance(outcome(kind, lambda _: responded(b"\xff\xfe\xfd")), ProviderMalformed)
    packed = responded(b"plain", headers={"Content-Encoding": "gzip"})
    assert isinstance(outcome(kind, lambda _: packed), (ProviderMalformed, ProviderUnreachable))


def test_a_huge_body_is_not_read_to_its_end(kind: Kind):
    """Compressed or not."""
    if not kind.bounded:
        pytest.skip("its limit is a fixed one of 256 MiB, too much for a test")
    bomb = responded(gzip.compress(b" " * (3 << 20)), headers={"Content-Encoding": "gzip"})
    got = outcome(kind, lambda _: bomb)
    assert isinstance(got, ProviderMalformed)
    assert "larger than 1 MiB" in str(got)


# --- values and times ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    ["NaN", "+Inf", "-Inf", "Infinity", "lots", "0x1F", 1e300, -1e300, 1.7e308, -1.7e308, -50.0, 250.0, [1], {}, True],
    ids=repr,
)
def test_an_invalid_value_is_never_served(kind: Kind, value: Any):
    """Its node has no value, or all nodes are missing with an error."""
    made = beside_the_good(kind, ("a", AT, value))
    if made is not None:
        values, findings = made
        assert {"b": [12.5]} == values
        assert findings


@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=repr)
def test_a_bare_nan_is_never_served(kind: Kind, value: float):
    """Some encoders write it, although JSON has no NaN."""
    made = beside_the_good(kind, ("a", AT, value))
    if made is not None:
        values, findings = made
        assert {"b": [12.5]} == values
        assert findings


@pytest.mark.parametrize("value", [None, ""], ids=repr)
def test_a_missing_value_is_not_a_sample(kind: Kind, value: Any):
    """Null and an empty text are not zero."""
    made = beside_the_good(kind, ("a", AT, value))
    assert made is None or {"b": [12.5]} == made[0]


@pytest.mark.parametrize(
    "at",
    [NOW + 3600, NOW * 1e3, NOW * 1e6, 0.0, -1.0, NOW / 1e3],
    ids=["an hour ahead", "milliseconds", "microseconds", "1970", "1969", "kiloseconds"],
)
def test_an_impossible_time_is_reported(kind: Kind, at: float):
    """It neither empties windows nor is silently ignored."""
    made = beside_the_good(kind, ("a", at, 50.0))
    if made is not None:
        values, findings = made
        assert {"b": [12.5]} == values
        assert findings


# --- nodes -----------------------------------------------------------------------------------------------------------


def test_a_duplicate_node_has_one_value_and_a_finding(kind: Kind):
    made = beside_the_good(kind, ("a", AT, 50.0), ("a", AT, 70.0))
    if made is not None:
        values, findings = made
        assert {"a", "b"} == values.keys()
        assert values["a"] in ([50.0], [70.0])
        assert FindingKind.DUPLICATE_SERIES in {finding.kind for finding in findings}


@pytest.mark.parametrize("name", ["", " \n", "x" * 300], ids=["empty", "blank", "long"])
def test_an_invalid_node_name_loses_its_series(kind: Kind, name: str):
    """With a finding."""
    made = beside_the_good(kind, (name, AT, 50.0))
    if made is not None:
        values, findings = made
        assert {"b": [12.5]} == values
        assert {FindingKind.UNKNOWN_NODE} <= {finding.kind for finding in findings}


def test_series_without_node_names_are_reported(kind: Kind):
    """And not an empty list of nodes."""
    got = outcome(kind, lambda asked: kind.answer(asked, [("", AT, 50.0)]), placed=False)
    if isinstance(got, Fetch):
        values, findings = reviewed(got)
        assert {} == values
        assert findings
