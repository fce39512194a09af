"""What every provider that asks a server is put to: the same faults, each over a real socket and in its own protocol.

Whatever the server does, a fetch must end in a ProviderError of a kind, with a hint and without a secret, or leave the
bad part out and say so in a finding; what it brings is finite once it is reviewed, and the good node is still there.
What is one provider's alone is in its own test file.

A test module that imports these functions and has a parameter `kind` for all its tests (`pytestmark`) is the suite for
its providers: tests/watcher/sources/test_faults.py, and test_faults.py of examples/cloud for a package of its own.
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

from tests.fakes.prometheus import Asked, FakePrometheus, Script, told, until_hung_up
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
    """A provider: how one of CPU alone is made, and what a server answers where these are its samples."""

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
    """What cannot be a date is written as the number that it is."""
    with contextlib.suppress(ValueError, OverflowError):
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return str(at)


GOOD: Sample = ("b", AT, 12.5)


# --- asking ----------------------------------------------------------------------------------------------------------


def fetch(kind: Kind, address: str, *, timeout: float = 30.0, backoff: tuple[float, ...] = (0.01, 0.01)) -> Fetch:
    """The first fetch of three minutes. Quick to try again, patient with a busy machine."""

    return use(
        lambda: kind.make(address, timeout, backoff), lambda provider: provider.fetch(NOW - 180, NOW), limit_s=60.0
    )


def outcome(kind: Kind, answer: Callable[[Asked], bytes | Script], *, placed: bool = True) -> Fetch | ProviderError:
    """What a fetch brings or raises where the server answers so. What an answer says, rather than what became of the
    question, is an error that is not `placed`: it says what of the query, or the series, is wrong."""
    with FakePrometheus(answer) as server:
        try:
            return fetch(kind, server.url)
        except ProviderError as error:
            check_error(error, address=server.url if placed else "")
            return error


def failure(kind: Kind, address: str, **given: Any) -> ProviderError:
    """The error of a fetch that fails as a whole."""
    error = failure_of(lambda: fetch(kind, address, **given))
    check_error(error, address=address)
    return error


def check_error(error: ProviderError, *, address: str) -> None:
    """It is named, says where and what to do, and tells no secret."""
    assert type(error) in (ProviderTimeout, ProviderUnreachable, ProviderRefused, ProviderMalformed)
    assert str(error).startswith(address)
    assert error.hint
    assert SECRET not in f"{error} {error.hint}"


def reviewed(got: Fetch) -> tuple[dict[str, list[float]], list[Finding]]:
    """What enters the history, by node, and what was found by the provider and by the review. Holds that all of it is
    usable."""
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
    """What is made of bad samples and the good one, None if the fetch failed: then as a named error."""
    got = outcome(kind, lambda asked: kind.answer(asked, [*samples, GOOD]), placed=False)
    return None if isinstance(got, ProviderError) else reviewed(got)


# --- the usual -------------------------------------------------------------------------------------------------------


def test_a_good_answer_brings_its_samples(kind: Kind):
    """Else the rest of this file would say nothing."""
    made = beside_the_good(kind, ("a", AT, 50.0))
    assert ({"a": [50.0], "b": [12.5]}, []) == made


def test_an_empty_answer_is_told(kind: Kind):
    """Nothing is known, and a finding or an error says so."""
    got = outcome(kind, lambda asked: kind.answer(asked, []))
    assert isinstance(got, Fetch)
    assert () == got.batches
    assert FindingKind.NO_SERIES in {finding.kind for finding in got.findings}


# --- connections -----------------------------------------------------------------------------------------------------


def test_a_refused_connection(kind: Kind):
    """Nobody listens on a port that a server has just left."""
    with FakePrometheus(lambda _: b"") as server:
        address = server.url
    assert isinstance(failure(kind, address, backoff=()), ProviderUnreachable)


def test_a_name_that_does_not_exist(kind: Kind):
    """Names come and go with services."""
    assert isinstance(failure(kind, "http://nowhere.invalid:9090", backoff=()), ProviderUnreachable)


def test_tls_to_a_plain_port(kind: Kind):
    """Would fail the same way every time."""

    def talk_plainly() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(1000)
                    connection.sendall(told("bad request", status=400))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        talker = threading.Thread(target=talk_plainly)
        talker.start()
        error = failure(kind, f"https://127.0.0.1:{listener.getsockname()[1]}", backoff=())
        listener.shutdown(socket.SHUT_RDWR)
        talker.join()
    assert isinstance(error, ProviderRefused)


@pytest.fixture(scope="module")
def server_tls() -> ssl.SSLContext:
    """Of a server whose authority nobody knows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    return context


def test_plain_http_to_a_tls_port(kind: Kind, server_tls: ssl.SSLContext):
    """Many servers just hang up, or answer in TLS."""
    with FakePrometheus(lambda _: b"", tls=server_tls) as server:
        address = server.url.replace("https:", "http:")
        assert isinstance(failure(kind, address, backoff=()), (ProviderUnreachable, ProviderMalformed))


def test_a_certificate_of_an_unknown_authority(kind: Kind, server_tls: ssl.SSLContext):
    """Is no reason to trust it."""
    with FakePrometheus(lambda _: b"", tls=server_tls) as server:
        assert isinstance(failure(kind, server.url, backoff=()), ProviderRefused)
        assert [] == server.asked


def test_a_server_that_never_answers(kind: Kind):
    """Is given up, and hung up on."""
    with FakePrometheus(lambda _: until_hung_up) as server:
        error = failure(kind, server.url, timeout=0.3, backoff=())
        assert server.ended.wait(30)
    assert isinstance(error, ProviderUnreachable)
    assert "in time" in str(error)


def cut(connection: socket.socket) -> None:
    """Half of what was promised."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n" + b'{"a":')
    connection.shutdown(socket.SHUT_RDWR)


def test_a_connection_cut_in_the_middle_of_the_body(kind: Kind):
    """Half an answer is none."""
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
def test_a_status_that_is_an_error(kind: Kind, status: int, expected: Any):
    """Said as it is; the request that some pages show is not passed on."""

    def mirror(asked: Asked) -> bytes:
        return told(f"you sent {asked.headers}", status=status)

    error = outcome(kind, mirror)
    assert isinstance(error, expected)
    assert str(status) in str(error)


@pytest.mark.parametrize("page", ["<pre>{}</pre>", "{}", '{{"request": "{}"}}'], ids=["page", "text", "JSON"])
def test_a_good_status_over_our_own_request(kind: Kind, page: str):
    """As echo servers and debugging proxies answer: what we sent in confidence is not passed on."""

    def mirror(asked: Asked) -> bytes:
        return told(page.format(str(asked.headers).replace('"', "'")))

    assert isinstance(outcome(kind, mirror), (ProviderMalformed, ProviderRefused))


async def test_unavailable_and_then_well_again(kind: Kind):
    """At the latest at the next fetch."""
    answers = iter([told("try later", status=503)])

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
    """Credentials are for one address."""
    elsewhere = told("", status=307, headers={"Location": f"https://sso.example/login?state={SECRET}"})
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
def test_json_that_is_cut_or_of_another_shape(kind: Kind, body: str):
    """An error that names it, never an empty answer in silence."""
    got = outcome(kind, lambda _: told(body))
    if isinstance(got, Fetch):  # read as far as it can be
        assert () == got.batches
        assert FindingKind.NON_FINITE in {finding.kind for finding in got.findings}
    else:
        assert isinstance(got, (ProviderMalformed, ProviderRefused))


def test_a_web_page_of_a_proxy(kind: Kind):
    """With the status of a good answer."""
    got = outcome(kind, lambda _: told("<!DOCTYPE html><title>Sign in</title>", headers={"Content-Type": "text/html"}))
    assert isinstance(got, ProviderMalformed)
    assert "web page" in str(got)


def test_nothing_at_all(kind: Kind):
    """A body of no bytes is no answer; to Flux alone it is one without rows."""
    got = outcome(kind, lambda _: told(b""))
    if kind.empty_body_is_valid:
        assert isinstance(got, Fetch)
        assert [FindingKind.NO_SERIES] == [finding.kind for finding in got.findings]
    else:
        assert isinstance(got, ProviderMalformed)


def test_bytes_that_are_no_text(kind: Kind):
    """Nor compressed, as they say they are."""
    assert isinstance(outcome(kind, lambda _: told(b"\xff\xfe\xfd")), ProviderMalformed)
    packed = told(b"plain", headers={"Content-Encoding": "gzip"})
    assert isinstance(outcome(kind, lambda _: packed), (ProviderMalformed, ProviderUnreachable))


def test_an_enormous_body(kind: Kind):
    """Is not read to its end, compressed or not."""
    if not kind.bounded:
        pytest.skip("its limit is a fixed one of 256 MiB, too much for a test")
    bomb = told(gzip.compress(b" " * (3 << 20)), headers={"Content-Encoding": "gzip"})
    got = outcome(kind, lambda _: bomb)
    assert isinstance(got, ProviderMalformed)
    assert "larger than 1 MiB" in str(got)


# --- values and times ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    ["NaN", "+Inf", "-Inf", "Infinity", "lots", "0x1F", 1e300, -1e300, 1.7e308, -1.7e308, -50.0, 250.0, [1], {}, True],
    ids=repr,
)
def test_a_value_that_is_none(kind: Kind, value: Any):
    """Its node is without it, or all are with an error: never is it served."""
    made = beside_the_good(kind, ("a", AT, value))
    if made is not None:
        values, findings = made
        assert {"b": [12.5]} == values
        assert findings


@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=repr)
def test_a_bare_nan(kind: Kind, value: float):
    """As some encoders write it, although JSON knows no such word."""
    made = beside_the_good(kind, ("a", AT, value))
    if made is not None:
        values, findings = made
        assert {"b": [12.5]} == values
        assert findings


@pytest.mark.parametrize("value", [None, ""], ids=repr)
def test_no_value(kind: Kind, value: Any):
    """Null is no sample, and no zero; nor is an empty text."""
    made = beside_the_good(kind, ("a", AT, value))
    assert made is None or {"b": [12.5]} == made[0]


@pytest.mark.parametrize(
    "at",
    [NOW + 3600, NOW * 1e3, NOW * 1e6, 0.0, -1.0, NOW / 1e3],
    ids=["an hour ahead", "milliseconds", "microseconds", "1970", "1969", "kiloseconds"],
)
def test_a_time_that_cannot_be(kind: Kind, at: float):
    """It must neither empty every window nor be passed over in silence."""
    made = beside_the_good(kind, ("a", at, 50.0))
    if made is not None:
        values, findings = made
        assert {"b": [12.5]} == values
        assert findings


# --- nodes -----------------------------------------------------------------------------------------------------------


def test_a_node_that_comes_twice(kind: Kind):
    """Is one node, with one of the two values, and said to be so."""
    made = beside_the_good(kind, ("a", AT, 50.0), ("a", AT, 70.0))
    if made is not None:
        values, findings = made
        assert {"a", "b"} == values.keys()
        assert values["a"] in ([50.0], [70.0])
        assert FindingKind.DUPLICATE_SERIES in {finding.kind for finding in findings}


@pytest.mark.parametrize("name", ["", " \n", "x" * 300], ids=["empty", "blank", "long"])
def test_a_name_that_cannot_be_a_nodes(kind: Kind, name: str):
    """Costs itself, with a finding."""
    made = beside_the_good(kind, (name, AT, 50.0))
    if made is not None:
        values, findings = made
        assert {"b": [12.5]} == values
        assert {FindingKind.UNKNOWN_NODE} <= {finding.kind for finding in findings}


def test_no_node_says_its_name(kind: Kind):
    """An empty list of nodes would be a lie."""
    got = outcome(kind, lambda asked: kind.answer(asked, [("", AT, 50.0)]), placed=False)
    if isinstance(got, Fetch):
        values, findings = reviewed(got)
        assert {} == values
        assert findings
