"""The Datadog provider with a small server that responds in the documented format: requests, use of the responses, and
rate limits. test_faults.py tests the faults that all providers share."""

import time
from pathlib import Path
from typing import Any

import pytest

from cloud_tests.fake_datadog import API_KEY, APP_KEY, FakeDatadog, answered, attributes, refused
from load_watcher_cloud.datadog import provider
from load_watcher_cloud.provider import CloudProvider, node_of
from tests.fakes.prometheus import responded
from tests.fetches import QUICK, Fetches, sections
from watcher.model import METRIC_BY_KEY, FindingKind
from watcher.sources.base import Fetch
from watcher.sources.errors import ProviderError, ProviderMalformed, ProviderRefused, ProviderUnreachable
from watcher.sources.http import retry_after
from watcher.sources.settings import QuerySettings

NOW = 1_700_000_010.0  # a multiple of 15
CPU, MEMORY = METRIC_BY_KEY["CPU"].name, METRIC_BY_KEY["Memory"].name
TIMES = [NOW - 45, NOW - 30, NOW - 15]


def make(server: FakeDatadog, **settings: Any) -> CloudProvider:
    keys = {"address": server.url, "token": API_KEY, "app_key": APP_KEY}
    return provider(*sections(**{**keys, **QUICK, "timeout": 20.0, **settings}))


FETCHES = Fetches(make, since=NOW - 60, until=NOW, limit_s=60.0)
run, fetch, failure = FETCHES.run, FETCHES.fetch, FETCHES.failure


def samples(got: Fetch, metric: str = CPU) -> dict[str, list[tuple[float, float]]]:
    """node -> (time, value); several series of a node one after the other."""
    (batch,) = (batch for batch in got.batches if batch.metric.name == metric)
    found: dict[str, list[tuple[float, float]]] = {node: [] for node in batch.nodes}
    for number, at, value in zip(batch.series, batch.time.tolist(), batch.value.tolist(), strict=True):
        found[batch.nodes[number]].append((at, value))
    return found


def agent(server: FakeDatadog, host: str, *, cluster: str = "blue") -> None:
    """The metrics that an Agent sends for its host."""
    tags = {"host": host, "cluster_name": cluster}
    server.put("system.cpu.idle", tags, TIMES, 60.0)
    server.put("system.cpu.iowait", tags, TIMES, 10.0)
    server.put("system.cpu.stolen", tags, TIMES[:2], 5.0)
    server.put("system.mem.pct_usable", tags, TIMES, 0.25)
    for device, sent in (("eth0", 1000.0), ("eth1", 500.0)):
        server.put("system.net.bytes_sent", {**tags, "device": device}, TIMES, sent)


# --- values ----------------------------------------------------------------------------------------------------------


def test_metrics_of_the_agent_become_percent_at_their_own_times():
    """Idle, iowait and steal are not use; missing values of them are not subtracted."""
    with FakeDatadog() as server:
        agent(server, "a")
        got = fetch(server, metrics=("CPU", "Memory", "NetworkTransmit"))
    assert {"a": [(NOW - 45, 25.0), (NOW - 30, 25.0), (NOW - 15, 30.0)]} == samples(got)
    assert {"a": [(at, 75.0) for at in TIMES]} == samples(got, MEMORY)
    sent = samples(got, METRIC_BY_KEY["NetworkTransmit"].name)
    assert {(at, value) for at in TIMES for value in (1000.0, 500.0)} == set(sent["a"])
    assert () == got.failures == got.findings
    assert "Datadog" == provider(*sections(address="http://x")).source


def test_metrics_that_the_go_service_queries_are_used_without_an_agent():
    """And only these from then on, because the source of the history must not change at each fetch."""
    with FakeDatadog() as server:
        server.put("cpu.utilization", {"host": "a"}, TIMES, 42.0)

        async def twice(made: CloudProvider) -> Fetch:
            await made.fetch(NOW - 60, NOW)
            server.asked.clear()
            return await made.fetch(NOW - 60, NOW)

        got = run(server, twice)
    assert {"a": [(at, 42.0) for at in TIMES]} == samples(got)
    assert ["avg:cpu.utilization{*} by {host}.rollup(avg, 15)"] == server.queries
    assert "cpu.utilization of {*}" == got.plans[CPU].expression


def test_a_metric_that_falls_silent_is_queried_in_another_way():
    """After three fetches, with a finding."""
    with FakeDatadog() as server:
        agent(server, "a")

        async def move(made: CloudProvider) -> list[Fetch]:
            await made.fetch(NOW - 60, NOW)
            later = [NOW + 60 * k for k in range(1, 5)]
            server.put("cpu.utilization", {"host": "a"}, [at - 15 for at in later], 42.0)
            return [await made.fetch(at - 60, at) for at in later]

        got = run(server, move)
    assert [0, 0, 0, 1] == [len(each.batches) for each in got]
    assert [[], [], [FindingKind.NO_SERIES], []] == [[finding.kind for finding in each.findings] for each in got]


def test_a_fetch_of_one_metric_queries_only_that():
    """By its name in the API."""
    with FakeDatadog() as server:
        agent(server, "a")
        got = run(server, lambda made: made.fetch(NOW - 60, NOW, only={MEMORY}), metrics=("CPU", "Memory"))
    assert [MEMORY] == [batch.metric.name for batch in got.batches]
    assert ["avg:system.mem.pct_usable{*} by {host}.rollup(avg, 15)"] == server.queries


def test_a_query_begins_at_the_start_of_a_bucket():
    """So that the first bucket is complete; in milliseconds, and at most the longest window."""
    with FakeDatadog() as server:
        agent(server, "a")
        run(server, lambda made: made.fetch(NOW - 86400.5, NOW - 0.5), max_seconds=900.0)
    wanted = attributes(server.asked[0])
    assert (1000 * (NOW - 915), 1000 * NOW - 500, 15000) == (wanted["from"], wanted["to"], wanted["interval"])


def test_samples_beyond_the_span_are_left_out():
    """The previous bucket belongs to the previous fetch."""
    with FakeDatadog() as server:
        agent(server, "a")
        got = run(server, lambda made: made.fetch(NOW - 31, NOW - 16))
    assert {"a": [(NOW - 30, 25.0)]} == samples(got)


def test_a_coarser_history_queries_coarser_buckets():
    """A slot has one sample."""
    with FakeDatadog() as server:
        agent(server, "a")
        fetch(server, resolution=60)
    assert ["rollup(avg, 60)"] * 3 == [query.rpartition(".")[2] for query in server.queries]


def test_a_configured_query_is_sent_unchanged():
    """With its own unit and tag; names are not changed."""
    own = QuerySettings("max:my.load{env:x} by {kube_node}.rollup(avg, 15)", "ratio", node_label="kube_node")
    with FakeDatadog() as server:
        server.put("my.load", {"kube_node": "n.dev.example", "env": "x"}, TIMES, 0.5)
        got = fetch(server, queries={"CPU": own}, host_name_suffix=".dev.example")
    assert {"n.dev.example": [(at, 50.0) for at in TIMES]} == samples(got)
    assert [own.expression] == server.queries


def test_metrics_that_datadog_lacks_are_reported():
    """With the setting in the hint."""
    with FakeDatadog() as server:
        agent(server, "a")
        got = fetch(server, metrics=("CPU", "EnergyHost"))
    (finding,) = got.findings
    assert (FindingKind.NO_SERIES, METRIC_BY_KEY["EnergyHost"].name) == (finding.kind, finding.metric)
    assert "provider.queries.EnergyHost" in finding.reason


# --- hosts and nodes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "suffix", "node"),
    [
        ("test1.dev.com", "", "test1.dev.com"),
        ("test1.dev.com", ".dev.com", "test1"),
        ("test1.dev.com", "dev.com", "test1"),
        ("a.b.dev.com", ".dev.com", "a.b"),
        ("n1-prod.dev.com", "-prod.dev.com", "n1-prod"),
        ("n1-prod", "-prod", "n1-prod"),
        ("other.example", ".dev.com", "other.example"),
        (".dev.com", ".dev.com", ".dev.com"),
        ("dev.com", "dev.com", "dev"),
        ("", ".dev.com", ""),
    ],
)
def test_a_node_is_its_host_without_the_configured_domain(host: str, suffix: str, node: str):
    """The Go load-watcher cuts at the first dot, for any name."""
    assert node == node_of(host, suffix=suffix)


def test_hosts_are_restricted_by_suffix_and_cluster():
    """Both must match; a name outside of the cluster is left out."""
    with FakeDatadog() as server:
        agent(server, "a.dev.com")
        agent(server, "b.dev.com", cluster="green")
        agent(server, "c.org")
        got = fetch(server, host_name_suffix=".dev.com", cluster_name="blue")
    assert {"a"} == samples(got).keys()
    assert "avg:system.cpu.idle{host:*.dev.com,cluster_name:blue} by {host}.rollup(avg, 15)" == server.queries[0]


def test_series_without_the_tag_are_left_out_with_a_finding():
    """If no series has it, the error lists the existing tags."""
    with FakeDatadog() as server:
        agent(server, "a")
        server.put("system.cpu.idle", {"device": "x"}, TIMES, 10.0)
        got = fetch(server)
        error = failure(server, node_label="kube_node")
    assert {"a"} == samples(got).keys()
    assert [FindingKind.UNKNOWN_NODE] == [finding.kind for finding in got.findings]
    assert isinstance(error, ProviderRefused)
    assert "has the tag kube_node; existing tags: " in str(error)
    assert "provider.node_label" in error.hint


# --- answers ---------------------------------------------------------------------------------------------------------

HEAD = {"group_tags": ["host:a"], "query_index": 0, "unit": None}
AT = [int(1000 * at) for at in TIMES]


def answer_of(answer: bytes, **settings: Any) -> Fetch:
    """The result of a fetch with this response to each request."""
    with FakeDatadog() as server:
        server.fault = lambda _: answer
        return fetch(server, **settings)


def test_null_points_are_not_samples():
    """Nor is a series of only null points."""
    got = answer_of(answered([HEAD, {**HEAD, "group_tags": ["host:b"]}], AT, [[40, None, 30], [None] * 3]))
    assert {"a": [(NOW - 45, 60.0), (NOW - 15, 70.0)], "b": []} == samples(got)


def test_a_series_with_invalid_values_is_left_out():
    """Others are kept. A short row, and a part that was not requested, are left out, too."""
    rows: list[list[Any]] = [[40, 40, 40], [1, "much", 3], [1, 2], [1, 2, 3]]
    heads = [HEAD, {**HEAD, "group_tags": ["host:b"]}, {**HEAD, "group_tags": ["host:c"]}, {**HEAD, "query_index": 7}]
    got = answer_of(answered(heads, AT, rows))
    assert {"a"} == samples(got).keys()
    (finding,) = got.findings
    assert (
        FindingKind.NON_FINITE,
        "3 unreadable series: a value is not a number, or values and times differ in length",
    ) == (finding.kind, finding.reason)


def test_a_duplicate_group_loses_nothing():
    """The review decides which one counts, as for each source."""
    got = answer_of(answered([HEAD, HEAD], AT, [[40] * 3, [20] * 3]))
    assert [60.0] * 3 + [80.0] * 3 == [value for _, value in samples(got)["a"]]


def test_descending_times_are_sorted():
    """With their values."""
    got = answer_of(answered([HEAD], AT[::-1], [[10, 20, 30]]))
    assert {"a": [(NOW - 45, 70.0), (NOW - 30, 80.0), (NOW - 15, 90.0)]} == samples(got)


def test_a_partial_response_is_used_with_its_warning():
    """Datadog sends `errors` beside data. Secrets of the request in them are hidden."""
    warning = f'"errors": "some shards timed out for {API_KEY}", "data"'.encode()
    body = answered([HEAD], AT, [[40] * 3]).replace(b'"data"', warning)
    got = answer_of(responded(body.partition(b"\r\n\r\n")[2]))
    assert {"a"} == samples(got).keys()
    assert ["warning of the source: some shards timed out for ***"] == [finding.reason for finding in got.findings]


@pytest.mark.parametrize(
    ("body", "kind", "says"),
    [
        (b'{"errors": "could not parse"}', ProviderRefused, "could not parse"),
        (b'{"data": null}', ProviderMalformed, "not a response of Datadog"),
        (b'{"data": {"attributes": {"times": [], "series": [{}], "values": []}}}', ProviderMalformed, "1 series"),
        (b'{"data": {"attributes": {"times": ["x"]}}}', ProviderMalformed, "is not the JSON of the Datadog API"),
    ],
)
def test_an_invalid_answer_is_an_error(body: bytes, kind: type[ProviderError], says: str):
    """With its kind and a hint."""
    with FakeDatadog() as server:
        server.fault = lambda _: responded(body)
        error = failure(server)
    assert type(error) is kind
    assert says in str(error)
    assert error.hint


# --- keys ------------------------------------------------------------------------------------------------------------


def test_keys_from_files_are_read_for_each_query(tmp_path: Path):
    """A missing one is reported before the first request."""
    token, app = tmp_path / "token", tmp_path / "app"
    token.write_text("old\n")
    app.write_text(APP_KEY + "\n")
    settings = {"token": "", "app_key": "", "token_file": str(token), "app_key_file": str(app)}
    with FakeDatadog() as server:
        agent(server, "a")

        async def renew(made: CloudProvider) -> None:
            with pytest.raises(ProviderRefused) as caught:
                await made.fetch(NOW - 60, NOW)
            assert "timeseries_query" in caught.value.hint
            token.write_text(API_KEY)
            assert {"a"} == samples(await made.fetch(NOW - 60, NOW)).keys()

        run(server, renew, **settings)
        before = len(server.asked)
        assert "no application key" in str(failure(server, app_key=""))
        assert "no API token" in str(failure(server, token=""))
        assert before == len(server.asked)


@pytest.mark.parametrize("status", [400, 401, 403, 503])
def test_no_key_is_in_an_error(status: int):
    """Also if the server repeats the request."""
    with FakeDatadog() as server:
        server.fault = lambda asked: refused(f"you sent {asked.headers}", status=status)
        error = failure(server, headers={"X-Proxy": "a-secret-of-the-proxy"})
    text = f"{error} {error.hint} {error.__cause__!r}"
    assert not {API_KEY, APP_KEY, "a-secret-of-the-proxy"} & set(text.replace("'", " ").split())
    assert "***" in text


# --- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["Retry-After", "X-RateLimit-Reset"])
def test_a_rate_limit_is_awaited_if_there_is_time(header: str):
    """For the time that the service states, not only for the default pause."""
    with FakeDatadog() as server:
        agent(server, "a")
        answers = iter([refused("Too many requests", status=429, headers={header: "0.3"})])
        server.fault = lambda _: next(answers, None)
        began = time.monotonic()
        assert {"a"} == samples(fetch(server)).keys()
        assert time.monotonic() - began >= 0.3
    assert 2 == len(server.asked)


def test_a_rate_limit_longer_than_a_fetch_applies_to_the_next():
    """It sends no request, and states the reason."""
    with FakeDatadog() as server:
        server.fault = lambda _: refused("Too many requests", status=429, headers={"X-RateLimit-Reset": "600"})

        async def twice(made: CloudProvider) -> list[ProviderError]:
            errors: list[ProviderError] = []
            for _ in range(2):
                with pytest.raises(ProviderUnreachable) as caught:
                    await made.fetch(NOW - 60, NOW)
                errors.append(caught.value)
            return errors

        first, second = run(server, twice)
    assert 1 == len(server.asked)
    assert "rate limit exceeded (429): Too many requests" in str(first)
    assert "requests are paused for another" in str(second)
    assert "refresh.interval" in first.hint == second.hint


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "12"}, 12.0),
        ({"X-RateLimit-Reset": "7"}, 7.0),
        ({"Retry-After": "3", "X-RateLimit-Reset": "7"}, 3.0),
        ({"Retry-After": "Tue, 14 Nov 2023 22:13:30 GMT", "Date": "Tue, 14 Nov 2023 22:13:20 GMT"}, 10.0),
        ({"Retry-After": "Tue, 14 Nov 2023 22:13:30 GMT"}, None),
        ({"Retry-After": "14 Nov 2023 22:13:30 -0000", "Date": "Tue, 14 Nov 2023 22:13:20 GMT"}, None),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "-5"}, 0.0),
        ({"Retry-After": "1e9"}, 900.0),
    ],
)
def test_the_pause_that_a_service_requests(headers: dict[str, str], seconds: float | None):
    """In any form, within bounds; without one, there is no pause."""
    assert seconds == retry_after(headers)
