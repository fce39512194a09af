"""The InfluxDB provider with failing servers, in both query languages over real sockets, and its results for Flux's
annotated CSV, read with InfluxData's own client."""

import asyncio
import base64
import gzip
import socket
import threading
import time
from email.utils import formatdate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.influxdb import NOTHING, FakeInfluxDB, answered, csv, error_table, ping, question, series, table
from tests.fakes.prometheus import Asked, responded, until_hung_up
from tests.fetches import QUICK, Fetches, address_of, sections
from tests.waiting import eventually, wait_for
from watcher.model import METRIC_BY_KEY, FindingKind
from watcher.sources.base import Fetch
from watcher.sources.errors import ProviderError, ProviderMalformed, ProviderRefused, ProviderUnreachable
from watcher.sources.influxdb.cpu_load import Points, load_of
from watcher.sources.influxdb.provider import InfluxProvider
from watcher.sources.influxdb.queries import LOOK_BACK_S, TELEGRAF
from watcher.sources.settings import ProviderSettings, QuerySettings

NOW = 1_700_000_000.0
AT = "2023-11-14T22:13:10Z"  # NOW - 10
SECRET = "s3cret-pass-word"
FLUX = {"dialect": "flux", "bucket": "telegraf", "org": "example", "token": SECRET}
INFLUXQL = {"dialect": "influxql"}
both = pytest.mark.parametrize("dialect", [INFLUXQL, FLUX], ids=["influxql", "flux"])

IDLE = ("usage_idle", "usage_iowait", "usage_steal")
HEALTHY_INFLUXQL = series({"host": "a", "cpu": "cpu-total"}, IDLE, [(NOW - 10) * 1000, 60, 10, 5]) + series(
    {"host": "b", "cpu": "cpu-total"}, IDLE, [(NOW - 10) * 1000, 90, None, None], [NOW * 1000, 80, 0, 0]
)
HEALTHY_FLUX = csv(
    ("cpu", "host"),
    table(0, {"cpu": "cpu-total", "host": "a"}, "usage_idle", (AT, 60)),
    table(1, {"cpu": "cpu-total", "host": "a"}, "usage_iowait", (AT, 10)),
    table(2, {"cpu": "cpu-total", "host": "a"}, "usage_steal", (AT, 5)),
    table(3, {"cpu": "cpu-total", "host": "b"}, "usage_idle", (AT, 90), ("2023-11-14T22:13:20Z", 80)),
    table(4, {"cpu": "cpu-total", "host": "b"}, "usage_iowait", ("2023-11-14T22:13:20Z", 0)),
    table(5, {"cpu": "cpu-total", "host": "b"}, "usage_steal", ("2023-11-14T22:13:20Z", 0)),
)


def healthy(asked: Asked) -> bytes:
    """The CPU of two nodes, in the language of the query."""
    return answered(HEALTHY_FLUX if asked.path.endswith("/api/v2/query") else HEALTHY_INFLUXQL)


def make(server: FakeInfluxDB | str, **settings: Any) -> InfluxProvider:
    return InfluxProvider(*sections(**{"address": address_of(server), **QUICK, **settings}))


FETCHES = Fetches(make, since=NOW - 60, until=NOW)
run, fetch, failure = FETCHES.run, FETCHES.fetch, FETCHES.failure


def refusal_of(answer: bytes, **settings: Any) -> ProviderError:
    """The error if each request gets this response."""
    with FakeInfluxDB(lambda _: answer) as server:
        return failure(server, **settings)


def samples(got: Fetch) -> dict[str, list[tuple[float, float]]]:
    """node -> (time, value) of the one batch."""
    (batch,) = got.batches
    found: dict[str, list[tuple[float, float]]] = {node: [] for node in batch.nodes}
    for number, at, value in zip(batch.series, batch.time.tolist(), batch.value.tolist(), strict=True):
        found[batch.nodes[number]].append((at, value))
    return found


# --- valid responses -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@both
def test_both_languages_give_the_same_samples(dialect: dict[str, str]):
    """Idle, iowait and steal are not use; fields that are missing in a point are not subtracted."""
    with FakeInfluxDB(healthy) as server:
        got = fetch(server, **dialect)
    assert {"a": [(NOW - 10, 25.0)], "b": [(NOW - 10, 10.0), (NOW, 20.0)]} == samples(got)
    assert () == got.failures == got.findings


@both
def test_seven_metrics_need_four_queries(dialect: dict[str, str]):
    """Metrics of one measurement of Telegraf share a query."""
    with FakeInfluxDB(lambda asked: answered(b"\r\n" if asked.body else NOTHING)) as server:
        got = fetch(server, **dialect, metrics=ProviderSettings().metrics)
    assert 4 == len(server.asked)
    assert 7 == len([finding for finding in got.findings if finding.kind is FindingKind.NO_SERIES])


def test_an_influxql_query_has_database_times_and_format():
    """Milliseconds, in chunks, so that no row limit cuts the response."""
    with FakeInfluxDB(healthy) as server:
        fetch(server, **INFLUXQL, database="tele graf")
    (asked,) = server.asked
    assert {"db": "tele graf", "epoch": "ms", "chunked": "true"}.items() <= asked.parameters.items()
    assert (
        'SELECT "usage_idle", "usage_iowait", "usage_steal" FROM "cpu" WHERE "cpu" = \'cpu-total\''
        " AND time >= 1699999940000ms AND time <= 1700000000000ms GROUP BY *" == server.queries[0]
    )


@pytest.mark.parametrize(
    ("settings", "database", "shown"),
    [
        ({}, "telegraf", "telegraf"),
        ({"bucket": "b"}, "b", "b"),
        ({"database": "d"}, "d", "d"),
        ({"bucket": "b", "database": "d"}, "d", "d or b"),
    ],
    ids=["neither", "bucket", "database", "both"],
)
def test_a_bucket_is_a_database_in_influxql(settings: dict[str, str], database: str, shown: str):
    """Without one, Telegraf's default. The shown expression does not depend on the language, because the server may be
    upgraded."""
    with FakeInfluxDB(healthy) as server:
        got = fetch(server, **INFLUXQL, **settings)
    assert database == server.asked[0].parameters["db"]
    assert got.plans[METRIC_BY_KEY["CPU"].name].expression.endswith(f" in {shown}")


def test_a_flux_query_has_bucket_org_and_times():
    """The end of a range is exclusive, so one millisecond is added."""
    with FakeInfluxDB(healthy) as server:
        fetch(server, **{**FLUX, "bucket": 'b"${x}\\'})
    (asked,) = server.asked
    assert ("POST", "/api/v2/query", "example") == (asked.method, asked.path, asked.parameters["org"])
    assert (
        'from(bucket: "b\\"\\x24{x}\\\\") |> range(start: 2023-11-14T22:12:20.000Z, stop: 2023-11-14T22:13:20.001Z)'
        ' |> filter(fn: (r) => r._measurement == "cpu" and r["cpu"] == "cpu-total" and (r._field == "usage_idle"'
        ' or r._field == "usage_iowait" or r._field == "usage_steal")) |> drop(columns: ["_start", "_stop"])'
        == server.queries[0]
    )


def test_a_counter_is_queried_from_before_the_span():
    """Its first sample needs the previous point."""
    with FakeInfluxDB(lambda _: answered(NOTHING)) as server:
        fetch(server, **INFLUXQL, metrics=("Storage",))
    assert f"time >= {(NOW - 60 - LOOK_BACK_S) * 1000:.0f}ms" in server.queries[0]


def test_at_most_the_longest_window_is_queried():
    """For any earlier begin."""
    with FakeInfluxDB(healthy) as server:
        run(server, lambda provider: provider.fetch(NOW - 86400, NOW), **INFLUXQL, max_seconds=900.0)
    assert f"time >= {(NOW - 900) * 1000:.0f}ms" in server.queries[0]


def test_a_metric_that_falls_silent_is_reported_at_the_third_fetch():
    """Points may be late, and an empty past does not show that the present is empty."""
    answers = iter([HEALTHY_INFLUXQL, *[NOTHING] * 4])
    with FakeInfluxDB(lambda _: answered(next(answers))) as server:

        async def fall_silent(provider: InfluxProvider) -> list[int]:
            await provider.fetch(NOW - 60, NOW)
            await provider.fetch(NOW - 900, NOW - 780)
            return [len((await provider.fetch(NOW, NOW + 60 * k)).findings) for k in (1, 2, 3)]

        assert [0, 0, 1] == run(server, fall_silent, **INFLUXQL)


def test_the_times_are_inserted_into_a_configured_query():
    """In Flux and in InfluxQL."""
    own = 'from(bucket: "x") |> range(start: <since>, stop: <until>)'
    content = csv(("node",), table(0, {"node": "n"}, "used", (AT, 0.5)))
    with FakeInfluxDB(lambda _: answered(content)) as server:
        got = fetch(server, **FLUX, queries={"CPU": QuerySettings(own, "ratio", node_label="node")})
    assert {"n": [(NOW - 10, 50.0)]} == samples(got)
    assert [
        'from(bucket: "x") |> range(start: 2023-11-14T22:12:20.000Z, stop: 2023-11-14T22:13:20.001Z)'
    ] == server.queries


@pytest.mark.slow
@both
@pytest.mark.parametrize("path", ["/", "/influx", "/influx/"])
def test_a_path_in_the_address_is_kept(dialect: dict[str, str], path: str):
    """With or without a slash at its end."""
    with FakeInfluxDB(healthy) as server:
        fetch(server.url + path, **dialect)
    assert {path.rstrip("/") + ("/api/v2/query" if dialect is FLUX else "/query")} == {a.path for a in server.asked}


@pytest.mark.parametrize("ahead", [0.0, 3600.0])
def test_the_clock_of_the_source_is_compared_with_that_of_load_watcher(ahead: float):
    """By the Date header of an InfluxQL response."""

    def dated(_: Asked) -> bytes:
        return responded(NOTHING, headers={"Date": formatdate(time.time() + ahead, usegmt=True)})

    expected = 0.0 if not ahead else pytest.approx(ahead, abs=5.0)
    with FakeInfluxDB(dated) as server:
        # Again if more than a second passed on a busy machine between the header and its receipt.
        wait_for(lambda: fetch(server, **INFLUXQL).clock_offset_s == expected, what="the offset")


# --- the query language ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "settings", "path"),
    [
        ("1.6.7~rc0", {}, "/query"),
        ("1.8.10", {"bucket": "telegraf", "org": "o"}, "/query"),
        ("v2.7.1", {"bucket": "telegraf", "org": "o"}, "/api/v2/query"),
        ("2.7.1", {"database": "telegraf"}, "/query"),
        ("3.0.1", {"bucket": "telegraf", "org": "o"}, "/query"),
    ],
)
def test_the_language_follows_from_the_version(version: str, settings: dict[str, str], path: str):
    """Determined once, at the first fetch."""
    with FakeInfluxDB(lambda asked: ping(version) if asked.path == "/ping" else healthy(asked)) as server:

        async def twice(provider: InfluxProvider) -> None:
            await provider.fetch(NOW - 60, NOW)
            await provider.fetch(NOW - 60, NOW)

        run(server, twice, **settings)
    assert ["/ping", path, path] == [asked.path for asked in server.asked]


def test_the_version_may_be_in_health_only():
    """A proxy may remove headers."""

    def answer(asked: Asked) -> bytes:
        if asked.path == "/ping":
            return responded(b"")
        return responded('{"name":"influxdb","version":"v2.7.1"}') if asked.path == "/health" else healthy(asked)

    with FakeInfluxDB(answer) as server:
        assert 2 == len(samples(fetch(server, bucket="b", org="o")))
    assert ["/ping", "/health", "/api/v2/query"] == [asked.path for asked in server.asked]


def test_a_server_that_is_not_influxdb_is_an_error():
    """With the setting of the language."""
    error = refusal_of(responded('{"status":"ok"}'))
    assert isinstance(error, ProviderRefused)
    assert "is not recognised as InfluxDB" in str(error)
    assert "provider.dialect" in error.hint


@pytest.mark.slow
def test_after_an_outage_the_version_is_determined_again():
    """It may have been upgraded meanwhile."""
    version = "1.8.0"

    def answer(asked: Asked) -> bytes:
        return (
            ping(version)
            if asked.path == "/ping"
            else healthy(asked)
            if version != "gone"
            else responded("", status=503)
        )

    with FakeInfluxDB(answer) as server:

        async def upgrade(provider: InfluxProvider) -> None:
            nonlocal version
            await provider.fetch(NOW - 60, NOW)
            version = "gone"
            with pytest.raises(ProviderUnreachable):
                await provider.fetch(NOW - 60, NOW)
            version = "v2.7.1"
            assert 2 == len(samples(await provider.fetch(NOW - 60, NOW)))

        run(server, upgrade, bucket="b", org="o")
    assert "/api/v2/query" == server.asked[-1].path


@pytest.mark.parametrize("lacking", ["bucket", "org"])
def test_flux_needs_a_bucket_and_an_organisation(lacking: str):
    """Reported before a query is sent."""
    settings = {key: value for key, value in FLUX.items() if key != lacking}
    error = failure("http://127.0.0.1:1", **settings)
    assert isinstance(error, ProviderRefused)
    assert f"provider.{lacking} is not set" in str(error)


# --- credentials -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({**INFLUXQL, "token": SECRET}, f"Token {SECRET}"),
        (
            {**INFLUXQL, "username": "u", "password": SECRET},
            "Basic " + base64.b64encode(f"u:{SECRET}".encode()).decode(),
        ),
        (FLUX, f"Token {SECRET}"),
        ({**FLUX, "token": "", "username": "u", "password": SECRET}, f"Token u:{SECRET}"),
    ],
    ids=["influxql token", "influxql password", "flux token", "flux password"],
)
def test_credentials_have_the_form_of_the_language(settings: dict[str, str], expected: str):
    """Configured headers are sent, too."""
    with FakeInfluxDB(healthy) as server:
        fetch(server, **settings, headers={"X-Tenant": "blue"})
    assert (expected, "blue") == (server.asked[0].headers["authorization"], server.asked[0].headers["x-tenant"])


@both
def test_a_renewed_token_is_sent(dialect: dict[str, str], tmp_path: Path):
    """The file is read again for each query."""
    file = tmp_path / "token"
    file.write_text("first\n")
    with FakeInfluxDB(healthy) as server:

        async def renew(provider: InfluxProvider) -> None:
            await provider.fetch(NOW - 60, NOW)
            file.write_text("second\n")
            await provider.fetch(NOW - 60, NOW)

        run(server, renew, **{**dialect, "token": "", "token_file": str(file)})
    assert ["Token first", "Token second"] == [asked.headers["authorization"] for asked in server.asked]


@pytest.mark.slow
@both
def test_no_secret_is_in_an_error(dialect: dict[str, str], tmp_path: Path):
    """Also if the server repeats the request."""

    def repeat(asked: Asked) -> bytes:
        return responded(f"it is {SECRET}: you sent {asked.headers}", status=401)

    (tmp_path / "password").write_text(SECRET)
    coded = base64.b64encode(f"u:{SECRET}".encode()).decode()
    account = {"token": "", "username": "u", "password_file": str(tmp_path / "password")}
    with FakeInfluxDB(repeat) as server:
        for credentials in ({"token": SECRET}, account):
            error = failure(server, **{**dialect, **credentials}, headers={"X-Key": "also-secret-9"})
            assert isinstance(error, ProviderRefused)
            assert "rejected provider.token" in error.hint
            assert "it is ***" in str(error)
            assert not any(word in f"{error} {error.hint}" for word in (SECRET, coded, "also-secret-9"))


@both
def test_an_invalid_header_is_refused_without_being_shown(dialect: dict[str, str]):
    """For example a token with a line break."""
    error = failure("http://127.0.0.1:1", **{**dialect, "token": "x\ny-secret"})
    assert isinstance(error, ProviderRefused)
    assert "'Authorization' cannot be sent" in str(error)
    assert "y-secret" not in str(error)


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@both
@pytest.mark.parametrize(
    ("status", "body", "kind", "says", "hint"),
    [
        (
            400,
            '{"code":"invalid","message":"undefined identifier meaan"}',
            ProviderRefused,
            "meaan",
            "provider.queries",
        ),
        (
            401,
            '{"code":"unauthorized","message":"no"}',
            ProviderRefused,
            " (401): no",
            "provider.token",
        ),
        (403, '{"error":"no read"}', ProviderRefused, "the query is forbidden (403): no read", "GRANT READ"),
        (
            404,
            '{"code":"not found","message":"could not find bucket \\"x\\""}',
            ProviderRefused,
            "bucket",
            "provider.bucket",
        ),
        (404, '{"message":"organization name \\"x\\" not found"}', ProviderRefused, "organization", "provider.org"),
        (404, "404 page not found\n", ProviderRefused, "path of the query API was not found", "provider.dialect"),
        (404, '{"message":"no dbrp mapping"}', ProviderRefused, "no dbrp mapping", "provider.database"),
        (404, '{"message":"database not found: x"}', ProviderRefused, "database not found", "provider.database"),
        (302, "", ProviderRefused, "redirect (302) to no location", "provider.address"),
        (429, '{"message":"rate limit"}', ProviderUnreachable, "(429): rate limit", ""),
        (500, '{"error":"query-timeout limit exceeded: timeout"}', ProviderUnreachable, "timed out on the server", ""),
        (502, "<html>bad gateway", ProviderUnreachable, "(502)", ""),
        (503, "", ProviderUnreachable, "(503)", ""),
        (500, "<html>", ProviderMalformed, "web page", "provider.address"),
    ],
)
def test_the_error_of_a_refusal_has_a_remedy(
    dialect: dict[str, str], status: int, body: str, kind: type[ProviderError], says: str, hint: str
):
    """By status and message of the server, in both formats."""
    error = refusal_of(responded(body, status=status), **dialect)
    assert isinstance(error, kind)
    assert says in str(error)
    assert hint in error.hint
    assert "http://127.0.0.1:" in str(error)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "kind", "says"),
    [
        (error_table("could not find bucket x"), ProviderRefused, "could not find bucket x"),
        (HEALTHY_FLUX + error_table("runtime error, half-way"), ProviderRefused, "runtime error, half-way"),
        (HEALTHY_FLUX + error_table("context deadline exceeded"), ProviderUnreachable, "timed out on the server"),
        (HEALTHY_FLUX[:-30], ProviderMalformed, "in the middle"),
        (HEALTHY_FLUX[:-30] + b"\r\n", ProviderMalformed, "a row has "),
        (b"<html>login</html>", ProviderMalformed, "web page"),
        (b'{"results":[]}', ProviderMalformed, "not CSV"),
        (b"\xff\xfe\n", ProviderMalformed, "not valid UTF-8"),
        (HEALTHY_FLUX.replace(b"_value", b"_wert"), ProviderMalformed, "not _time and _value"),
        (csv(("host",), table(0, {"host": "a"}, "f", (AT, "much")), kind="string"), ProviderMalformed, "type string"),
        (csv(("host",), table(0, {"host": "a"}, "f", (AT, "much"))), ProviderMalformed, "cannot be read"),
        (csv(("host",), table(0, {"host": "a"}, "f", ("noon", 1))), ProviderMalformed, "cannot be read"),
        (csv(("host",), table(0, {"host": "a"}, "f", ("noonZ", 1))), ProviderMalformed, "cannot be read"),
    ],
    ids=lambda value: None,
)
def test_an_error_after_status_200_of_flux_is_an_error(content: bytes, kind: type[ProviderError], says: str):
    """An error table among the tables, a body that ends early, and a body that is not CSV."""
    error = refusal_of(answered(content), **FLUX)
    assert isinstance(error, kind)
    assert says in str(error)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "kind", "says"),
    [
        (b'{"results":[{"statement_id":0,"error":"database not found: x"}]}', ProviderRefused, "database not found: x"),
        (HEALTHY_INFLUXQL + b'{"error":"engine: query timeout"}\n', ProviderUnreachable, "timed out on the server"),
        (HEALTHY_INFLUXQL[:-30], ProviderMalformed, "is not JSON"),
        (b"", ProviderMalformed, "is empty"),
        (b"<html>login</html>", ProviderMalformed, "web page"),
        (b"{}", ProviderMalformed, "not a response to InfluxQL"),
        (b'{"status":"success","data":{}}', ProviderMalformed, "not a response to InfluxQL"),
        (series({"host": "a"}, ["usage_idle"], [NOW * 1000, 5.0], partial=True), ProviderMalformed, "is truncated"),
        (series({"host": "a"}, ["usage_idle"], [NOW * 1000]), ProviderMalformed, "differs from the columns"),
        (series({"host": "a"}, ["usage_idle"], [None, 1]), ProviderMalformed, "has no time"),
        (HEALTHY_INFLUXQL.replace(b"60", b'"x"'), ProviderMalformed, "not a number"),
    ],
    ids=lambda value: None,
)
def test_an_error_after_status_200_of_influxql_is_an_error(content: bytes, kind: type[ProviderError], says: str):
    """An error among the lines, a body that ends early, and a body without a result."""
    error = refusal_of(answered(content), **INFLUXQL)
    assert isinstance(error, kind)
    assert says in str(error)


@pytest.mark.slow
def test_a_series_that_continues_in_the_next_chunk_is_one_series():
    """The server splits after a number of rows."""
    tags, columns = {"host": "a"}, ["usage_idle"]
    content = series(tags, columns, [(NOW - 20) * 1000, 90], partial=True) + series(tags, columns, [NOW * 1000, 80])
    with FakeInfluxDB(lambda _: answered(content)) as server:
        got = fetch(server, **INFLUXQL)
    assert {"a": [(NOW - 20, 10.0), (NOW, 20.0)]} == samples(got)
    assert 1 == len(got.batches[0].nodes)


def test_rows_in_descending_order_are_sorted():
    """A configured query may return them so."""
    content = series({"host": "a"}, ["usage_idle"], [NOW * 1000, 80], [(NOW - 20) * 1000, 90])
    with FakeInfluxDB(lambda _: answered(content)) as server:
        assert {"a": [(NOW - 20, 10.0), (NOW, 20.0)]} == samples(fetch(server, **INFLUXQL))


def test_an_empty_response_of_flux_has_no_series():
    """Only a line break."""
    with FakeInfluxDB(lambda _: answered(b"\r\n")) as server:
        got = fetch(server, **FLUX)
    assert () == got.batches == got.failures
    assert {} == got.plans
    assert [FindingKind.NO_SERIES] == [finding.kind for finding in got.findings]


def test_flux_with_several_schemas_and_unusual_texts_is_read():
    """Two schemas in one body, a quoted name, a default for an empty cell, times to the nanosecond, no value."""
    first = csv(("host",), table(0, {"host": 'a "1", b'}, "usage_idle", ("2023-11-14T22:13:10.123456789Z", 40)))
    second = csv(("dc", "host"), table(0, {"dc": "x", "host": ""}, "usage_idle", (AT, 90), (AT, "")))
    second = second.replace(b"#default,_result,,,,,,", b"#default,_result,,,,,,,fallback", 1)
    assert b"fallback" in second
    with FakeInfluxDB(lambda _: answered(first + second)) as server:
        got = fetch(server, **FLUX)
    assert {'a "1", b': [(NOW - 10 + 0.123, 60.0)], "fallback": [(NOW - 10, 10.0)]} == samples(got)


def test_series_without_the_tag_are_left_out_with_a_finding():
    """Others are served."""
    content = HEALTHY_INFLUXQL + series({"cpu": "cpu-total"}, IDLE, [NOW * 1000, 1, 1, 1])
    with FakeInfluxDB(lambda _: answered(content)) as server:
        got = fetch(server, **INFLUXQL)
    assert {"a", "b"} == samples(got).keys()
    assert ["1 of 3 series do not have the node tag host"] == [found.reason for found in got.findings]


def test_machines_of_two_clusters_with_one_name_are_left_out():
    """Neither is served under a name that may be that of the other; a foreign tag changes no other name."""
    more = [
        series({"host": name, "cpu": "cpu-total", "cluster": cluster}, IDLE, [NOW * 1000, 50, 0, 0])
        for name, cluster in (("c", "east"), ("c", "west"), ("d", "east"), ("e", ""))
    ]
    with FakeInfluxDB(lambda _: answered(HEALTHY_INFLUXQL + b"".join(more))) as server:
        got = fetch(server, **INFLUXQL)
    assert {"a", "b", "d", "e"} == samples(got).keys()
    (found,) = got.findings
    assert FindingKind.AMBIGUOUS_NODE == found.kind
    assert "label cluster is east and west for the nodes c" in found.reason
    assert 'select the series with "cluster" = "east" with provider.queries' in found.reason


# --- faults of all providers ------------------------------------------------------------------------------------------


@pytest.mark.slow
@both
def test_a_server_that_sends_nothing_times_out(dialect: dict[str, str]):
    """And its connection is closed."""
    with FakeInfluxDB(lambda _: until_hung_up) as server:
        error = failure(server, **dialect, timeout=0.2, backoff=())
        assert server.ended.wait(5)
    assert isinstance(error, ProviderUnreachable)
    assert "no response in time" in str(error)


@pytest.mark.slow
@both
def test_a_server_that_sends_single_bytes_times_out(dialect: dict[str, str]):
    """The timeout is for the whole response."""

    def trickle(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while True:
            connection.sendall(b" ")
            time.sleep(0.02)

    with FakeInfluxDB(lambda _: trickle) as server:
        error = failure(server, **dialect, timeout=0.3, backoff=())
    assert isinstance(error, ProviderUnreachable)
    assert "no response in time" in str(error)


@pytest.mark.slow
@both
def test_a_transient_failure_is_retried(dialect: dict[str, str]):
    """Twice; other errors in between count as a result."""
    answers = iter([responded("", status=503), responded("", status=502)])
    with FakeInfluxDB(lambda asked: next(answers, None) or healthy(asked)) as server:
        assert 2 == len(samples(fetch(server, **dialect)))
        assert 3 == len(server.asked)
    with FakeInfluxDB(lambda _: responded("", status=503)) as server:
        assert isinstance(failure(server, **dialect), ProviderUnreachable)
        assert 3 == len(server.asked)


@both
def test_a_refusal_is_not_retried(dialect: dict[str, str]):
    with FakeInfluxDB(lambda _: responded("", status=401)) as server:
        failure(server, **dialect)
        assert 1 == len(server.asked)


@both
def test_a_redirect_is_not_followed(dialect: dict[str, str]):
    """Credentials belong to one address; the error names the target without secrets."""
    answer = responded("", status=307, headers={"Location": "/login?state=abc"})
    with FakeInfluxDB(lambda _: answer) as server:
        error = failure(server, **dialect)
        assert 1 == len(server.asked)
    assert isinstance(error, ProviderRefused)
    assert "redirect (307) to /login was not followed" in str(error)


@pytest.mark.slow
@both
def test_the_deadline_of_a_fetch_ends_its_retries(dialect: dict[str, str]):
    """For any timeout of an attempt."""
    with FakeInfluxDB(lambda _: until_hung_up) as server:
        error = failure(server, **dialect, timeout=20.0, fetch_deadline=0.2)
        assert len(server.asked) <= 1
    assert isinstance(error, ProviderUnreachable)


@both
def test_a_shortened_response_is_a_broken_connection(dialect: dict[str, str]):
    """Fewer bytes than announced."""

    def cut(connection: socket.socket) -> None:
        connection.sendall(answered(HEALTHY_FLUX)[:-50])
        connection.shutdown(socket.SHUT_RDWR)

    with FakeInfluxDB(lambda _: cut) as server:
        error = failure(server, **dialect)
    assert isinstance(error, ProviderUnreachable)
    assert "the connection failed" in str(error)


@pytest.mark.slow
@both
def test_an_endless_response_is_not_read_to_its_end(dialect: dict[str, str]):
    """The decompressed size counts."""
    content = gzip.compress(b" " * (3 << 20))
    answer = responded(content, headers={"Content-Encoding": "gzip"})
    error = refusal_of(answer, **dialect, max_body_bytes=1 << 20)
    assert isinstance(error, ProviderMalformed)
    assert "larger than 1 MiB" in str(error)


@both
def test_a_response_with_a_wrong_content_encoding_is_an_error(dialect: dict[str, str]):
    """A proxy's fault."""
    error = refusal_of(responded("plain", headers={"Content-Encoding": "gzip"}), **dialect)
    assert isinstance(error, ProviderMalformed)


@both
def test_a_server_without_http_is_an_error(dialect: dict[str, str]):
    """The port of another service."""
    error = refusal_of(b"SSH-2.0-OpenSSH_9.2\r\n", **dialect)
    assert isinstance(error, (ProviderMalformed, ProviderUnreachable))


@pytest.mark.slow
@both
def test_an_unreachable_server_is_an_error(dialect: dict[str, str]):
    """Connection refused, and an unknown host."""
    refused, nameless = failure("http://127.0.0.1:1", **dialect), failure("http://nowhere.invalid:8086", **dialect)
    assert isinstance(refused, ProviderUnreachable)
    assert isinstance(nameless, ProviderUnreachable)
    assert "Check the host in provider.address" in nameless.hint


@both
def test_plain_http_to_an_https_port_is_an_error(dialect: dict[str, str]):
    """In the other direction, the server reports it itself."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        error = failure(f"https://127.0.0.1:{listener.getsockname()[1]}", **dialect, backoff=())
        thread.join()
    assert isinstance(error, ProviderRefused)
    assert "does not support TLS" in str(error)


@both
def test_unusable_tls_files_are_errors_with_their_settings(dialect: dict[str, str], tmp_path: Path):
    (tmp_path / "ca").write_text("no certificate")
    error = failure("https://127.0.0.1:1", **dialect, ca_file=str(tmp_path / "ca"))
    assert isinstance(error, ProviderRefused)
    assert "provider.ca_file" in error.hint


@both
def test_a_cancelled_fetch_closes_its_connection(dialect: dict[str, str]):
    """At once, and the next fetch works."""
    silent = True
    with FakeInfluxDB(lambda asked: until_hung_up if silent else healthy(asked)) as server:

        async def cancel(provider: InfluxProvider) -> None:
            nonlocal silent
            task = asyncio.create_task(provider.fetch(NOW - 60, NOW))
            await eventually(lambda: bool(server.asked), what="the question")
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            await eventually(server.ended.is_set, what="the end of the connection")
            silent = False
            assert 2 == len(samples(await provider.fetch(NOW - 60, NOW)))

        run(server, cancel, **dialect)


def test_a_failing_query_affects_only_its_metrics():
    def answer(asked: Asked) -> bytes:
        return responded("", status=400) if '"net"' in question(asked) else answered(HEALTHY_INFLUXQL)

    with FakeInfluxDB(answer) as server:
        got = fetch(server, **INFLUXQL, metrics=("CPU", "NetworkReceive", "NetworkTransmit"))
    assert {"a", "b"} == samples(got).keys()
    names = {METRIC_BY_KEY[key].name for key in ("NetworkReceive", "NetworkTransmit")}
    assert names == {failed.metric for failed in got.failures}


# --- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("idle", "used"), [(100.0, 0.0), (100.004, 0.0), (104.0, -4.0), (0.0, 100.0)])
def test_a_cpu_slightly_below_zero_is_zero(idle: float, used: float):
    """Lower values are left to the review."""
    points = Points({"host": "a"}, np.array([NOW]), {"usage_idle": np.array([idle])})
    load = load_of(TELEGRAF["CPU"], [points], since=NOW, until=NOW)
    assert load.batch is not None
    assert [used] == load.batch.value.tolist()


def test_a_disk_is_busy_for_at_most_the_whole_time():
    """Some kernels count a long request only when it ends."""
    points = Points({"host": "a"}, NOW + np.array([0.0, 10.0, 20.0]), {"io_time": np.array([0.0, 12_000.0, 17_000.0])})
    load = load_of(TELEGRAF["Storage"], [points], since=NOW, until=NOW + 20)
    assert load.batch is not None
    assert [100.0, 50.0] == load.batch.value.tolist()


def test_a_reset_before_the_span_is_reported_once():
    """By the earlier fetch; this one only reads that point."""
    points = Points({"host": "a"}, NOW + np.array([-60.0, -30.0, 0.0]), {"bytes_recv": np.array([900.0, 1.0, 31.0])})
    before = load_of(TELEGRAF["NetworkReceive"], [points], since=NOW - 60, until=NOW)
    after = load_of(TELEGRAF["NetworkReceive"], [points], since=NOW - 20, until=NOW)
    assert [FindingKind.COUNTER_RESET] == [finding.kind for finding in before.findings]
    assert () == after.findings
    assert after.batch is not None
    assert [1.0] == after.batch.value.tolist()


# --- counters --------------------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(st.integers(1, 150), st.integers(-1000, 100_000)), min_size=1, max_size=30
)  # seconds since the previous point, and the growth of the counter


@given(STEPS, st.integers(0, 1500))
def test_the_growth_is_never_negative_and_adds_up(steps: list[tuple[int, int]], reach: int):
    """Rates times durations equal the growth of the counter between resets, and an earlier begin changes no value."""
    plan = TELEGRAF["NetworkReceive"]
    seconds, grown = np.array([0, *(s for s, _ in steps)]), np.array([10**6, *(g for _, g in steps)])
    points = Points({"host": "a"}, NOW + np.cumsum(seconds), {"bytes_recv": np.cumsum(grown).astype(float)})
    load = load_of(plan, [points], since=NOW, until=points.time[-1])
    expected = {
        float(at): growth / took
        for at, took, growth in zip(points.time[1:], seconds[1:], grown[1:], strict=True)
        if growth >= 0 and took <= LOOK_BACK_S
    }
    got = {} if load.batch is None else dict(zip(load.batch.time.tolist(), load.batch.value.tolist(), strict=True))
    assert expected.keys() == got.keys()
    np.testing.assert_allclose(list(got.values()), list(expected.values()), rtol=1e-9)
    went_back = any(g < 0 and s <= LOOK_BACK_S for s, g in steps)
    assert went_back == bool(load.findings)

    since = float(points.time[-1]) - reach
    kept = points.time >= since - LOOK_BACK_S
    later = Points({"host": "a"}, points.time[kept], {"bytes_recv": points.fields["bytes_recv"][kept]})
    again = load_of(plan, [later], since=since, until=points.time[-1])
    found = {} if again.batch is None else dict(zip(again.batch.time.tolist(), again.batch.value.tolist(), strict=True))
    assert {at: value for at, value in got.items() if at >= since} == found
