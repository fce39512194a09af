"""The SignalFx provider against a small server of ours in the documented form: what it searches for, how time series
get their hosts, and what is made of half answers. The faults that all providers share are in test_faults.py."""

from typing import Any

import pytest

from cloud_tests.fake_signalfx import TOKEN, FakeSignalFx, names, points, refused
from load_watcher_cloud import signalfx
from load_watcher_cloud.config import CloudConfig
from load_watcher_cloud.provider import CloudProvider
from tests.fakes.prometheus import Asked, told
from tests.fetches import QUICK, Fetches
from watcher.model import METRIC_BY_KEY, FindingKind
from watcher.sources.base import Fetch
from watcher.sources.errors import ProviderError, ProviderMalformed, ProviderRefused, ProviderUnreachable
from watcher.sources.queries import QueryConfig

NOW = 1_700_000_040.0  # a multiple of 60
CPU, MEMORY = METRIC_BY_KEY["CPU"].name, METRIC_BY_KEY["Memory"].name
POINTS, NAMES = "/v1/timeserieswindow", "/v2/metrictimeseries"


def make(server: FakeSignalFx, **settings: Any) -> CloudProvider:
    keys = {"address": server.url, "token": TOKEN}
    return signalfx.provider(CloudConfig(**{**keys, **QUICK, "timeout": 20.0, **settings}))


FETCHES = Fetches(make, since=NOW - 180, until=NOW, limit_s=60.0)
run, fetch, failure = FETCHES.run, FETCHES.fetch, FETCHES.failure


def samples(got: Fetch, metric: str = CPU) -> dict[str, list[tuple[float, float]]]:
    """node -> (time, value); several series of a node one after the other."""
    (batch,) = (batch for batch in got.batches if batch.metric.name == metric)
    found: dict[str, list[tuple[float, float]]] = {node: [] for node in batch.nodes}
    for number, at, value in zip(batch.series, batch.time.tolist(), batch.value.tolist(), strict=True):
        found[batch.nodes[number]].append((at, value))
    return found


def paths(server: FakeSignalFx) -> list[str]:
    """What was asked so far."""
    return [asked.path for asked in server.asked]


# --- values ----------------------------------------------------------------------------------------------------------


def test_points_get_the_hosts_of_their_time_series():
    """At their own times, percent as they come; the mean of a minute is what the service averages over."""
    with FakeSignalFx() as server:
        server.put("cpu.utilization", {"host": "a"}, [NOW - 170, NOW - 130], 20.0)
        server.put("cpu.utilization", {"host": "a"}, [NOW - 70], 84.64246793530153)
        server.put("memory.utilization", {"host": "b.dev.com"}, [NOW - 100], 5.5)
        got = fetch(server, metrics=("CPU", "Memory"))
    assert {"a": [(NOW - 180, 20.0), (NOW - 120, 84.64246793530153)]} == samples(got)
    assert {"b.dev.com": [(NOW - 120, 5.5)]} == samples(got, MEMORY)
    assert () == got.failures == got.findings
    assert 'host:* AND sf_metric:"cpu.utilization"' == got.plans[CPU].expression
    assert (60.0, "percent", "host") == (got.plans[CPU].smoothing_s, got.plans[CPU].unit, got.plans[CPU].node_label)


def test_a_question_names_whole_minutes():
    """From the beginning of one on, so that the first bucket is whole."""
    with FakeSignalFx() as server:
        run(server, lambda made: made.fetch(NOW - 170.5, NOW - 0.5))
    asked = server.asked[0]
    assert {
        "query": 'host:* AND sf_metric:"cpu.utilization"',
        "startMs": f"{1000 * (NOW - 180):.0f}",
        "endMs": f"{1000 * NOW - 500:.0f}",
        "resolution": "60000",
    } == asked.parameters
    assert TOKEN == asked.headers["x-sf-token"]


def test_hosts_are_narrowed_down_by_suffix_and_cluster():
    """Both must hold; the domain of the suffix is not part of a node's name."""
    with FakeSignalFx() as server:
        server.put("cpu.utilization", {"host": "a.dev.com", "cluster": "my blue"}, [NOW - 60], 1.0)
        server.put("cpu.utilization", {"host": "b.dev.com", "cluster": "green"}, [NOW - 60], 2.0)
        server.put("cpu.utilization", {"host": "c.org", "cluster": "my blue"}, [NOW - 60], 3.0)
        got = fetch(server, host_name_suffix=".dev.com", cluster_name="my blue")
    assert {"a": [(NOW - 60, 1.0)]} == samples(got)
    assert 'host:*.dev.com AND cluster:"my blue" AND sf_metric:"cpu.utilization"' == server.asked[0].query


def test_several_time_series_of_a_host_all_come():
    """Which of them counts is for the review, as with every source."""
    with FakeSignalFx() as server:
        server.put("cpu.utilization", {"host": "a", "cpu": "0"}, [NOW - 60], 1.0)
        server.put("cpu.utilization", {"host": "a", "cpu": "1"}, [NOW - 60], 2.0)
        got = fetch(server)
    assert ("a", "a") == got.batches[0].nodes
    assert [1.0, 2.0] == got.batches[0].value.tolist()


def test_a_search_of_ones_own():
    """With its own dimension; names are not touched."""
    own = QueryConfig('sf_metric:"load" AND env:"x"', "ratio", node_label="kubernetes_node")
    with FakeSignalFx() as server:
        server.put("load", {"kubernetes_node": "n.dev.com", "env": "x"}, [NOW - 60], 0.5)
        got = fetch(server, queries={"CPU": own}, host_name_suffix=".dev.com")
    assert {"n.dev.com": [(NOW - 60, 50.0)]} == samples(got)


def test_what_signalfx_has_no_metric_for_is_told():
    """With the setting that helps; and a metric without points is, too."""
    with FakeSignalFx() as server:
        got = fetch(server, metrics=("CPU", "Storage"))
    reasons = {finding.metric: finding.reason for finding in got.findings if finding.kind is FindingKind.NO_SERIES}
    assert "provider.queries.Storage" in reasons[METRIC_BY_KEY["Storage"].name]
    assert 'no samples of host:* AND sf_metric:"cpu.utilization" in the last 180 s' in reasons[CPU]
    assert [POINTS] == paths(server)


# --- names -----------------------------------------------------------------------------------------------------------


def test_names_are_asked_for_only_when_a_new_time_series_comes():
    """An id stays what it is."""
    with FakeSignalFx() as server:
        server.put("cpu.utilization", {"host": "a"}, [NOW - 60], 1.0)

        async def thrice(made: CloudProvider) -> None:
            await made.fetch(NOW - 180, NOW)
            await made.fetch(NOW - 180, NOW)
            assert [POINTS, NAMES, POINTS] == paths(server)
            server.put("cpu.utilization", {"host": "b"}, [NOW - 60], 2.0)
            assert {"a", "b"} == samples(await made.fetch(NOW - 180, NOW)).keys()
            assert [POINTS, NAMES] == paths(server)[3:]

        run(server, thrice)


@pytest.mark.parametrize("largest_page", [1000, 300])
def test_names_come_in_pages(largest_page: int):
    """However few the service gives at a time."""
    with FakeSignalFx(largest_page=largest_page) as server:
        for number in range(1200):
            server.put("cpu.utilization", {"host": f"node-{number:04}"}, [NOW - 60], 1.0)
        got = fetch(server)
    assert 1200 == len(samples(got))
    assert [str(offset) for offset in range(0, 1200, largest_page)] == [
        asked.parameters["offset"] for asked in server.asked if asked.path == NAMES
    ]


def test_a_page_that_fails_costs_the_metric_and_is_asked_again_at_the_next_fetch():
    """Half of the names would be half of the nodes."""
    broken = True

    def fault(asked: Asked) -> bytes | None:
        return refused("down", status=500) if broken and asked.parameters.get("offset") == "2" else None

    with FakeSignalFx(largest_page=2) as server:
        for host in "abc":
            server.put("cpu.utilization", {"host": host}, [NOW - 60], 1.0)
            server.put("memory.utilization", {"host": host}, [NOW - 60], 1.0)
        server.fault = fault

        async def twice(made: CloudProvider) -> Fetch:
            nonlocal broken
            with pytest.raises(ProviderUnreachable):
                await made.fetch(NOW - 180, NOW)
            broken = False
            got: Fetch = await made.fetch(NOW - 180, NOW)
            return got

        assert {"a", "b", "c"} == samples(run(server, twice)).keys()


def test_pages_without_end_are_not_read_to_it():
    """The service tells of 10,000 time series at most; that there are more is a finding."""
    with FakeSignalFx() as server:
        server.put("cpu.utilization", {"host": "a"}, [NOW - 60], 1.0)
        page = names(((f"X{number}", {"host": "x"}) for number in range(999)), count=50_000)
        first = names([("E000A", {"host": "a"})], count=50_000)
        server.fault = lambda asked: (
            None if asked.path == POINTS else first if asked.parameters["offset"] == "0" else page
        )
        got = fetch(server)
    assert {"a"} == samples(got).keys()
    assert len(server.asked) <= 13
    (finding,) = got.findings
    assert "returns at most 10000 time series" in finding.reason


def test_a_count_that_is_only_partial_is_not_believed():
    """Pages are read until one is empty."""

    def fault(asked: Asked) -> bytes | None:
        if asked.path == POINTS:
            return None
        left = {"0": [("E000A", {"host": "a"})], "1": [("E001A", {"host": "b"})]}.get(asked.parameters["offset"], [])
        return names(left, count=1, partial=True)

    with FakeSignalFx() as server:
        server.put("cpu.utilization", {"host": "a"}, [NOW - 60], 1.0)
        server.put("cpu.utilization", {"host": "b"}, [NOW - 60], 1.0)
        server.fault = fault
        assert {"a", "b"} == samples(fetch(server)).keys()


def test_a_time_series_that_nobody_knows_is_left_out_and_not_looked_for_again():
    """With a finding; a dimension that is no text is none."""
    with FakeSignalFx() as server:
        server.put("cpu.utilization", {"host": "a"}, [NOW - 60], 1.0)
        server.put("cpu.utilization", {"host": "b"}, [NOW - 60], 1.0)
        extra = points({number: [[1000 * (NOW - 60), 1.0]] for number in ("E000A", "E001A", "GHOST")})
        known = names([("E000A", {"host": "a"}), ("E001A", {"host": 7})], count=2)
        server.fault = lambda asked: extra if asked.path == POINTS else known

        async def twice(made: CloudProvider) -> Fetch:
            await made.fetch(NOW - 180, NOW)
            got: Fetch = await made.fetch(NOW - 180, NOW)
            return got

        got = run(server, twice)
    assert {"a"} == samples(got).keys()
    assert [POINTS, NAMES, POINTS] == paths(server)
    assert ["2 of 3 series have no tag host"] == [finding.reason for finding in got.findings]


def test_time_series_of_which_none_says_its_host_are_an_error():
    """Which names the dimensions that there are."""
    with FakeSignalFx() as server:
        server.put("cpu.utilization", {"host.name": "a", "host": "a"}, [NOW - 60], 1.0)
        server.fault = lambda asked: names([("E000A", {"host.name": "a"})], count=1) if asked.path == NAMES else None
        error = failure(server)
    assert isinstance(error, ProviderRefused)
    assert "has the tag host; existing tags: host.name" in str(error)
    assert "provider.node_label" in error.hint


# --- answers ---------------------------------------------------------------------------------------------------------


def fetched(body: bytes | str) -> Fetch:
    """A fetch where points are answered so, of the hosts a and b."""
    with FakeSignalFx() as server:
        for host in "ab":
            server.put("cpu.utilization", {"host": host}, [NOW - 60], 1.0)
        server.fault = lambda asked: told(body) if asked.path == POINTS else None
        return fetch(server)


AT = int(1000 * (NOW - 60))


def test_null_and_unreadable_points():
    """The first are no samples; the second cost their series, with a finding."""
    got = fetched(f'{{"data": {{"E000A": [[{AT}, null], [{AT - 60000}, 3]], "E001A": [[{AT}, "NaN"]]}}}}')
    assert {"a": [(NOW - 120, 3.0)]} == samples(got)
    assert [
        (FindingKind.NON_FINITE, "1 unreadable series: a value is not a number, or values and times differ in length")
    ] == [(finding.kind, finding.reason) for finding in got.findings]


def test_a_half_answer_is_taken_with_its_warnings():
    """Errors beside data, whatever their form."""
    got = fetched(f'{{"data": {{"E000A": [[{AT}, 3]]}}, "errors": ["slow shard", {{"code": 7}}]}}')
    assert {"a": [(NOW - 60, 3.0)]} == samples(got)
    assert ["warning of the source: slow shard", "warning of the source: {'code': 7}"] == [
        finding.reason for finding in got.findings
    ]


@pytest.mark.parametrize(
    ("body", "kind", "says"),
    [
        ('{"errors": ["unknown field"]}', ProviderRefused, "unknown field"),
        ('{"data": {}, "errors": ["unknown field"]}', ProviderRefused, "unknown field"),
        ("{}", ProviderMalformed, "not a response of SignalFx"),
        ('{"data": []}', ProviderMalformed, "is not the JSON of the SignalFx API"),
    ],
)
def test_what_is_no_answer_is_an_error(body: str, kind: type[ProviderError], says: str):
    """Named, and with a hint."""
    with pytest.raises(ProviderError) as caught:
        fetched(body)
    assert type(caught.value) is kind
    assert says in str(caught.value)
    assert caught.value.hint


def test_a_page_of_names_that_is_none_is_an_error():
    """Not an empty fleet."""
    with FakeSignalFx() as server:
        server.put("cpu.utilization", {"host": "a"}, [NOW - 60], 1.0)
        server.fault = lambda asked: told("{}") if asked.path == NAMES else None
        assert isinstance(failure(server), ProviderMalformed)


def test_a_refused_token_is_told_with_what_it_must_be():
    """And is not in the error."""
    with FakeSignalFx() as server:
        error = failure(server, token="another-token-of-mine")
    assert isinstance(error, ProviderRefused)
    assert "credentials are required (401): Unauthorized" in str(error)
    assert "API scope" in error.hint
    assert "another-token" not in f"{error} {error.hint}"
