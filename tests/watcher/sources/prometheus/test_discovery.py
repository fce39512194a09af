"""Discovery of the Prometheus provider: which expressions and labels it chooses, when it repeats the discovery, and its
findings. Over real sockets, with a server that has only the series of the test."""

import logging
import threading
from pathlib import Path

import pytest

from tests.fakes.prometheus import Asked, FakePrometheus, matrix, values, vector
from tests.watcher.sources.prometheus.test_provider import BUSY, CPU, MEMORY, NOW, SECRET, failure, fetch, run
from watcher.model import METRIC_BY_KEY, Finding, FindingKind, Remedy
from watcher.service.settings.loading import load
from watcher.sources.base import Fetch
from watcher.sources.errors import ProviderRefused, ProviderUnreachable
from watcher.sources.prometheus.provider import PrometheusProvider, from_settings
from watcher.sources.prometheus.queries import CANDIDATES
from watcher.sources.settings import QuerySettings

# --- discovery of expressions ----------------------------------------------------------------------------------------


class Cluster:
    """A Prometheus with these series: name -> label sets. Each has a sample at any requested time."""

    def __init__(self, **series: list[dict[str, str]]) -> None:
        self.series = dict(series)
        self.duplicates: dict[str, list[dict[str, str]]] = {}

    def __call__(self, asked: Asked) -> bytes:
        name = next((name for name in self.series if name in asked.query), None)
        labels = self.series[name] if name else []
        if asked.query.endswith(" > 1)"):
            return values(*((one, "1") for one in self.duplicates.get(asked.query, [])))
        if "time" not in asked.parameters:
            return matrix(*((one, [(float(asked.parameters["end"]), "0.5")]) for one in labels))
        if asked.query.endswith("]"):
            now = float(asked.parameters["time"])
            times = [now - 45, now - 30, now - 15] if "=~" in asked.query else [now]
            return matrix(*((one, [(at, "0.5") for at in times]) for one in labels))
        if "timestamp(" in asked.query:
            return values(*((one, asked.parameters["time"]) for one in labels))
        return vector(*labels)


NODES = [{"node": "a", "instance": "10.0.0.1:9100"}, {"node": "b", "instance": "10.0.0.2:9100"}]
ADDRESSES = [{"instance": "10.0.0.1:9100"}, {"instance": "10.0.0.2:9100"}]
RAW_CPU = {"node_cpu_seconds_total": NODES}


async def ticks(provider: PrometheusProvider, count: int, *, first: int = 0) -> list[Fetch]:
    """This number of fetches, a minute apart."""
    return [await provider.fetch(NOW + 60 * k - 120, NOW + 60 * k) for k in range(first, first + count)]


def test_candidates_are_tried_in_order_until_one_exists():
    """Recording rule, mixin, raw series; then the scrape interval, and whether other nodes have another exporter,
    once."""
    with FakePrometheus(Cluster(**RAW_CPU)) as server:
        got = run(server, lambda provider: ticks(provider, 2))[1]

    by = "count without (cpu, core, mode, device, gpu, UUID, nic)"
    assert [
        f"{by} (instance:node_cpu:ratio)",
        f"{by} (instance:node_cpu_utilisation:rate5m)",
        f'{by} (node_cpu_seconds_total{{mode="idle",cpu=~"0|1"}})',
        'node_cpu_seconds_total{mode="idle",cpu=~"0|1", '
        'instance=~"10\\\\.0\\\\.0\\\\.1:9100|10\\\\.0\\\\.0\\\\.2:9100"}[10m]',
        'count by (node) (count by (node, mode) (node_cpu_seconds_total{mode=~"idle|iowait|steal",cpu="0"}) == 1'
        ' and on (node) node_cpu_seconds_total{mode="user",cpu="0"})'
        ' or 0 * count by (node) (node_cpu_seconds_total{mode="idle",cpu="0"})',
        f'{by} (windows_cpu_time_total{{mode="idle"}})',
        'max by (node) (timestamp(node_cpu_seconds_total{mode="idle",cpu=~"0|1"}))',
    ] == server.queries[:7]
    assert (
        'count by (node) (count by (node, cpu) (node_cpu_seconds_total{mode="idle",cpu=~"0|1"}) > 1)'
        == (server.queries[8])
    )
    assert 11 == len(server.queries)
    ranged = server.asked[7]
    assert "/api/v1/query_range" == ranged.path
    assert "[30s]) > 0)" in ranged.query
    assert ("1699999890", "1699999980", "30") == tuple(ranged.parameters[name] for name in ("start", "end", "step"))
    second = server.asked[10]
    assert got.plans[CPU].expression == second.query
    assert ("1700000010", "1700000040", "30") == tuple(second.parameters[name] for name in ("start", "end", "step"))
    assert "raw series (no series of instance:node_cpu:ratio, " in got.plans[CPU].reason
    assert got.plans[CPU].expression.startswith("1 - 1 * avg by (node)")


def test_a_metric_without_series_is_a_finding_and_not_a_failure():
    """The finding has the candidates, and they are tried again at every fifth fetch."""
    with FakePrometheus(Cluster()) as server:
        got = run(server, lambda provider: ticks(provider, 11), metrics=("Memory",))

    assert all(() == each.batches == each.failures for each in got)
    assert {} == got[0].plans
    (finding,) = got[0].findings
    assert (FindingKind.NO_SERIES, Remedy.LEFT_OUT, MEMORY) == (finding.kind, finding.remedy, finding.metric)
    assert MEMORY in finding.reason
    assert "node_memory_MemTotal_bytes" in finding.reason
    assert [1] * 11 == [len(each.findings) for each in got]
    assert 3 * 3 == len(server.queries)


def test_pressure_without_series_is_a_finding_with_the_candidates():
    """As for each metric: all have a built-in query."""
    with FakePrometheus(Cluster()) as server:
        got = fetch(server, metrics=("PressureCPU",))

    assert "no series of node_pressure_cpu_waiting_seconds_total" == got.findings[0].reason
    assert set(METRIC_BY_KEY) == set(CANDIDATES)


@pytest.mark.slow
def test_two_jobs_behind_an_expression_are_a_finding():
    """One query in many fetches, for all metrics of a collector; the finding stays while both jobs exist."""
    series = {"node_network_receive_bytes_total": NODES, "node_network_transmit_bytes_total": NODES}
    cluster = Cluster(**series)
    asked = 'count by (node) (count by (node, device) (node_network_transmit_bytes_total{device!="lo"}) > 1)'
    cluster.duplicates = {asked: NODES[:1]}
    with FakePrometheus(cluster) as server:
        got = run(server, lambda provider: ticks(provider, 21), metrics=("NetworkTransmit", "NetworkReceive"))

    for each in got:
        found = [finding for finding in each.findings if finding.kind is FindingKind.DUPLICATE_SERIES]
        assert [("a", Remedy.COMBINED)] == [(finding.node, finding.remedy) for finding in found]
        assert "node_network_transmit_bytes_total" in found[0].reason
    assert 2 == sum("> 1)" in query for query in server.queries)


def silent_fetches(findings: list[Finding]) -> list[str]:
    return [finding.reason for finding in findings if finding.kind is FindingKind.NO_SERIES]


def test_a_metric_that_falls_silent_is_discovered_again():
    """After three fetches without samples and not before the fifth: the recording rule may be gone while the raw series
    exist."""
    cluster = Cluster(**{CPU: NODES})

    async def work(provider: PrometheusProvider) -> list[Fetch]:
        got = await ticks(provider, 2)
        cluster.series = {"node_cpu_seconds_total": NODES}
        return got + await ticks(provider, 4, first=2)

    with FakePrometheus(cluster) as server:
        got = run(server, work)

    assert [1, 1, 0, 0, 0, 1] == [len(each.batches) for each in got]
    assert [CPU] * 5 == [each.plans[CPU].expression for each in got[:5]]
    assert got[5].plans[CPU].expression.startswith("1 - 1 * avg by (node)")
    assert [0, 0, 0, 0, 1, 0] == [len(silent_fetches(list(each.findings))) for each in got]


def test_an_expression_is_kept_while_none_is_found():
    """So series that return are used at once."""
    cluster = Cluster(**{CPU: NODES})

    async def work(provider: PrometheusProvider) -> list[Fetch]:
        got = await ticks(provider, 1)
        cluster.series = {}
        got += await ticks(provider, 6, first=1)
        cluster.series = {CPU: NODES}
        return got + await ticks(provider, 1, first=7)

    with FakePrometheus(cluster) as server:
        got = run(server, work)

    assert [1, 0, 0, 0, 0, 0, 0, 1] == [len(each.batches) for each in got]


def test_after_an_outage_the_source_is_discovered_again():
    """It may be another one. Once, because discovery costs queries."""
    cluster = Cluster(**{CPU: NODES})
    down = threading.Event()

    def answer(asked: Asked) -> bytes:
        return BUSY if down.is_set() else cluster(asked)

    async def work(provider: PrometheusProvider) -> list[str]:
        await ticks(provider, 1)
        down.set()
        with pytest.raises(ProviderUnreachable):
            await ticks(provider, 1, first=1)
        down.clear()
        server.asked.clear()
        await ticks(provider, 12, first=2)
        return [query for query in server.queries if query.startswith("count without")]

    with FakePrometheus(answer) as server:
        assert 1 == len(run(server, work))


def test_a_fetch_of_the_past_does_not_count_as_silence():
    """A Prometheus that has just started has no past."""

    async def work(provider: PrometheusProvider) -> list[Fetch]:
        got = await ticks(provider, 1)
        return got + [await provider.fetch(NOW - 120 * k, NOW - 120 * (k - 1)) for k in range(2, 9)]

    def young(asked: Asked) -> bytes:
        if asked.query.endswith("]") and float(asked.parameters["time"]) < NOW:
            return matrix()
        return Cluster(**{CPU: NODES})(asked)

    with FakePrometheus(young) as server:
        got = run(server, work)

    assert [()] * 8 == [each.findings for each in got]
    assert len(CANDIDATES["CPU"]) == sum(query.startswith("count without") for query in server.queries)


def test_a_configured_query_is_the_only_one():
    """With its unit and label, and converted values."""
    cluster = Cluster(**{"my:cpu": [{"host": "a"}, {"host": "b"}], CPU: NODES})
    with FakePrometheus(cluster) as server:
        got = fetch(server, queries={"CPU": QuerySettings("my:cpu", "percent", node_label="host", smoothing=60.0)})

    assert ("a", "b") == got.batches[0].nodes
    assert [0.5, 0.5] == got.batches[0].value.tolist()
    plan = got.plans[CPU]
    assert ("my:cpu", "percent", "host", 60.0) == (plan.expression, plan.unit, plan.node_label, plan.smoothing_s)
    assert "configured" in plan.reason
    assert not any(CPU in query for query in server.queries)


# --- names of nodes --------------------------------------------------------------------------------------------------

UNAME = "node_uname_info"


def test_nodes_are_named_through_node_uname_info():
    """If the series only have an instance."""
    names = [{"instance": "10.0.0.1:9100", "nodename": "a"}, {"instance": "10.0.0.2:9100", "nodename": "b"}]
    with FakePrometheus(Cluster(**{CPU: ADDRESSES, UNAME: names})) as server:
        got = fetch(server)

    assert ("a", "b") == got.batches[0].nodes
    assert "nodename" in got.plans[CPU].node_label


def test_without_names_the_instance_is_the_name():
    """Without its port."""
    with FakePrometheus(Cluster(**{CPU: ADDRESSES})) as server:
        got = fetch(server)

    assert ("10.0.0.1", "10.0.0.2") == got.batches[0].nodes
    assert "instance without its port" == got.plans[CPU].node_label


def test_a_new_instance_causes_a_query_of_the_names():
    """Once; if it stays unknown, its address is the name."""
    names = [{"instance": "10.0.0.1:9100", "nodename": "a"}, {"instance": "10.0.0.2:9100", "nodename": "b"}]
    cluster = Cluster(**{CPU: ADDRESSES, UNAME: names})

    def times_read() -> int:
        return sum(UNAME in query for query in server.queries)

    async def work(provider: PrometheusProvider) -> tuple[Fetch, Fetch, list[int]]:
        await ticks(provider, 1)
        cluster.series = {
            CPU: [*ADDRESSES, {"instance": "10.0.0.3:9100"}, {"instance": "10.0.0.4:9100"}],
            UNAME: [*names, {"instance": "10.0.0.3:9100", "nodename": "c"}],
        }
        counts = [times_read()]
        (second,) = await ticks(provider, 1, first=1)
        counts.append(times_read())
        (third,) = await ticks(provider, 1, first=2)
        counts.append(times_read())
        return second, third, counts

    with FakePrometheus(cluster) as server:
        second, third, counts = run(server, work)

    assert [1, 2, 2] == counts
    assert ("a", "b", "c", "10.0.0.4") == second.batches[0].nodes == third.batches[0].nodes
    assert 4 == len(second.batches[0].time)
    assert () == second.findings


def test_an_address_that_moves_to_another_node_gets_its_name():
    """The names are read again every few fetches."""
    cluster = Cluster(**{CPU: ADDRESSES[:1], UNAME: [{"instance": "10.0.0.1:9100", "nodename": "old"}]})

    async def work(provider: PrometheusProvider) -> list[Fetch]:
        got = await ticks(provider, 1)
        cluster.series[UNAME] = [{"instance": "10.0.0.1:9100", "nodename": "new"}]
        return got + await ticks(provider, 7, first=1)

    with FakePrometheus(cluster) as server:
        got = run(server, work)

    assert ("old",) == got[0].batches[0].nodes
    assert ("new",) == got[-1].batches[0].nodes


def test_series_without_the_label_are_dropped_and_counted():
    """One finding for all of them, with the existing labels."""
    some = [*NODES, {"instance": "10.0.0.3:9100", "job": "x"}]
    with FakePrometheus(Cluster(**{CPU: some})) as server:
        got = fetch(server, node_label="node")

    assert ("a", "b") == got.batches[0].nodes
    assert [0, 1] == got.batches[0].series.tolist()
    (finding,) = got.findings
    assert FindingKind.UNKNOWN_NODE is finding.kind
    assert "1 of 3 series" in finding.reason
    assert "instance, job" in finding.reason


@pytest.mark.parametrize("settings", [{"node_label": "host"}, {"node_label": "nodename"}])
def test_a_label_that_no_series_has_is_an_error_with_the_existing_ones(settings: dict[str, str]):
    """A failure of the metric, or of the fetch if it is the only metric."""
    with FakePrometheus(Cluster(**{CPU: [{"node": "a", "zone": "z", "__name__": CPU}]})) as server:
        error = failure(server, **settings)

    assert isinstance(error, ProviderRefused)
    assert settings["node_label"] in str(error)
    assert "node, zone" in str(error)
    assert "provider.node_label" in error.hint


def test_series_that_lost_their_label_get_the_name_of_another():
    """After a relabelling; the discovery is repeated, because the names differ."""
    cluster = Cluster(**{CPU: NODES})

    async def work(provider: PrometheusProvider) -> list[Fetch]:
        got = await ticks(provider, 1)
        cluster.series[CPU] = ADDRESSES
        return got + await ticks(provider, 5, first=1)

    with FakePrometheus(cluster) as server:
        got = run(server, work)

    assert [("a", "b"), *[("10.0.0.1", "10.0.0.2")] * 5] == [each.batches[0].nodes for each in got]
    assert ["node", "instance without its port"] == [got[k].plans[CPU].node_label for k in (0, 5)]


# --- logs ------------------------------------------------------------------------------------------------------------


def test_a_changed_expression_is_logged_once(caplog: pytest.LogCaptureFixture):
    """With expression, label and reason; and one line for the metrics without series."""
    caplog.set_level(logging.INFO, logger="watcher")
    with FakePrometheus(Cluster(**{CPU: NODES})) as server:
        run(server, lambda provider: ticks(provider, 7), metrics=("CPU", "Memory"))

    lacks, using = [record.getMessage() for record in caplog.records]
    assert lacks == f"metrics without series at {server.url}, left out: Memory"
    assert f"CPU: {CPU} by node (recording rule" in using


# --- settings --------------------------------------------------------------------------------------------------------


def from_toml(directory: Path, text: str) -> PrometheusProvider:
    (directory / "load-watcher.toml").write_text(text)
    return from_settings(load(flags={}, environ={}, cwd=directory))


async def test_each_setting_reaches_the_provider(tmp_path: Path):
    """Expressions, credentials, timeouts and intervals."""
    token = tmp_path / "token"
    token.write_text(SECRET)

    async def work(provider: PrometheusProvider) -> Fetch:
        await provider.start()
        try:
            return await provider.fetch(NOW - 86400, NOW)
        finally:
            await provider.close()

    raw = {"my_cpu": [{"host": "a"}], "my_raw": [{"host": "a"}], MEMORY: [{"host": "b"}]}
    with FakePrometheus(Cluster(**raw)) as server:
        provider = from_toml(
            tmp_path,
            f"""
            [provider]
            name = "prometheus"
            address = "{server.url}/"
            token_file = "{token}"
            headers = {{ X-Scope-OrgID = "team" }}
            node_label = "host"
            metrics = ["CPU", "Memory"]
            queries.CPU = {{ expression = "my_cpu / 2", unit = "percent", smoothing = "1m", guard = "my_raw" }}
            [refresh]
            resolution = "20s"
            windows = ["5m", "15m", "30m"]
            """,
        )
        got = await work(provider)

    assert {f"Bearer {SECRET}"} == {asked.headers["authorization"] for asked in server.asked}
    assert {"team"} == {asked.headers["x-scope-orgid"] for asked in server.asked}
    assert f"{MEMORY}[1800s]" in server.queries
    (ranged,) = [asked for asked in server.asked if "step" in asked.parameters]
    assert "(my_cpu / 2) and on (host) (count_over_time(my_raw[120s]) > 0)" == ranged.query
    assert "60" == ranged.parameters["step"]
    plan = got.plans[CPU]
    assert ("my_cpu / 2", "percent", "host", 60.0) == (plan.expression, plan.unit, plan.node_label, plan.smoothing_s)


async def test_openshift_uses_the_authorities_of_the_service_account(tmp_path: Path):
    """Outside of a pod they do not exist, and the error names their file."""
    provider = from_toml(
        tmp_path,
        """
        [provider]
        name = "prometheus"
        address = "https://127.0.0.1:1"
        openshift_auth = true
        """,
    )

    await provider.start()
    try:
        with pytest.raises(ProviderRefused, match="serviceaccount/ca"):
            await provider.fetch(NOW - 60, NOW)
    finally:
        await provider.close()
