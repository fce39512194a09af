"""InfluxQL with a real InfluxDB 1.6: each metric of Telegraf's schema; a server that refuses, hangs and dies; and
complete windows through `load-watcher serve`."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import RunService
from tests.fetches import Fetches, address_of, sections
from tests.real.fleet import DISKS, Fleet, make_fleet
from tests.real.parts import InfluxDB, Server, new_secret
from tests.real.telegraf import cpu_fields, line, telegraf_lines
from tests.service import Service
from tests.waiting import eventually, wait_for
from watcher.core.review.samples import combine
from watcher.core.review.settings import ReviewSettings
from watcher.model import METRIC_BY_KEY, FindingKind, Remedy
from watcher.sources.base import Fetch
from watcher.sources.errors import ProviderRefused, ProviderUnreachable
from watcher.sources.influxdb.provider import InfluxProvider
from watcher.sources.influxdb.queries import FieldQuery
from watcher.sources.settings import QuerySettings

pytestmark = pytest.mark.real

END = 1_700_000_000.0
SPAN = 300.0
Run = Callable[..., InfluxDB]


@pytest.fixture(scope="module")
def influxdb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InfluxDB]:
    """One server for the tests that only write their own series."""
    with InfluxDB(tmp_path_factory.mktemp("influxdb")) as server:
        yield server


@pytest.fixture
def start_influxdb(tmp_path: Path, running: Callable[[Server], Server]) -> Run:
    """Servers of a single test, which end with it."""

    def start(**options: Any) -> InfluxDB:
        server = InfluxDB(tmp_path / "influxdb", **options)
        running(server)
        return server.start()

    return start


@pytest.fixture(scope="module")
def fleet(influxdb: InfluxDB) -> Fleet:
    """Ten minutes of three nodes, written by Telegraf every ten seconds."""
    fleet = make_fleet(3, start=END - 600, end=END, step=10.0, seed=5)
    influxdb.write(telegraf_lines(fleet))
    return fleet


def make(server: InfluxDB | str, **settings: Any) -> InfluxProvider:
    return InfluxProvider(*sections(**{"address": address_of(server), "backoff": (0.01,), **settings}))


FETCHES = Fetches(make, since=END - SPAN, until=END, limit_s=60.0)
run, fetch, failure = FETCHES.run, FETCHES.fetch, FETCHES.failure


def samples(got: Fetch, key: str) -> dict[str, list[dict[float, float]]]:
    """node -> its series, each time -> value."""
    (batch,) = (batch for batch in got.batches if batch.metric.key == key)
    found: dict[str, list[dict[float, float]]] = {}
    for number, node in enumerate(batch.nodes):
        of = batch.series == number
        series = dict(zip(batch.time[of].tolist(), batch.value[of].tolist(), strict=True))
        found.setdefault(node, []).append(series)
    return found


# --- metrics ---------------------------------------------------------------------------------------------------------


def test_each_metric_of_telegraf_is_read_as_written(influxdb: InfluxDB, fleet: Fleet):
    """Percent and per second, at the real times, with both ends of the span. Unused CPU time is not use, and neither
    single CPUs nor the loopback are added to the totals."""
    got = fetch(influxdb)

    assert () == got.failures == got.findings
    assert 7 == len(got.batches)
    inside = (fleet.times >= END - SPAN) & (fleet.times <= END)
    for key, values, tolerance in [
        ("CPU", 100 * fleet.cpu, 1e-9),
        ("Memory", 100 * fleet.memory, 1e-9),
        ("NetworkReceive", fleet.receive, 0.1),  # counters are whole numbers: up to a byte more or less in ten seconds
        ("NetworkTransmit", fleet.transmit, 0.1),
        ("NetworkReceiveDrop", fleet.receive_drop, 0.1),
        ("NetworkTransmitDrop", fleet.transmit_drop, 0.1),
    ]:
        for row, node in enumerate(fleet.nodes):
            (one,) = samples(got, key)[node]
            assert fleet.times[inside].tolist() == list(one), key
            np.testing.assert_allclose(list(one.values()), values[row, inside], rtol=0, atol=tolerance, err_msg=key)


def test_two_agents_on_a_node_count_each_interface_once(influxdb: InfluxDB):
    """The points differ in a tag only. The sum is over interfaces, and the finding names the node."""
    rates = {"eth0": 4000, "eth1": 1000}
    influxdb.write(
        line(
            "net",
            {"host": "twice", "interface": interface, "agent": agent},
            {"bytes_sent": rate * second, "bytes_recv": 0},
            END - 300 + second,
        )
        for agent in ("a", "b")
        for interface, rate in rates.items()
        for second in range(0, 300, 10)
    )
    (batch,) = fetch(influxdb, metrics=("NetworkTransmit",)).batches
    cells, findings = combine(batch, resolution=15, limits=ReviewSettings())
    values = [
        value for node, value in zip(cells.node, cells.value.tolist(), strict=True) if cells.names[node] == "twice"
    ]
    assert values
    assert {5000.0} == set(values)
    found = {(each.kind, each.node) for each in findings if each.kind is FindingKind.DUPLICATE_SERIES}
    assert {(FindingKind.DUPLICATE_SERIES, "twice")} == found


def test_each_disk_of_a_node_is_a_series(influxdb: InfluxDB, fleet: Fleet):
    """Percent of the time in which it was busy."""
    of_nodes = samples(fetch(influxdb), "Storage")
    inside = (fleet.times >= END - SPAN) & (fleet.times <= END)
    for row, node in enumerate(fleet.nodes):
        assert len(DISKS) == len(of_nodes[node])
        got = sorted(list(one.values()) for one in of_nodes[node])
        expected = sorted((100 * fleet.disk[row, number, inside]).tolist() for number in range(len(DISKS)))
        np.testing.assert_allclose(got, expected, rtol=0, atol=0.011)


def test_the_begin_of_a_query_does_not_change_values(influxdb: InfluxDB, fleet: Fleet):
    """Fetches overlap and write the same values."""
    short, long = fetch(influxdb, since=END - 60), fetch(influxdb, since=END - 500)
    for key in ("CPU", "NetworkReceive", "Storage"):
        for node in fleet.nodes:
            for few, many in zip(samples(short, key)[node], samples(long, key)[node], strict=True):
                assert few == {at: value for at, value in many.items() if at >= END - 60}


def test_the_plans_have_the_names_of_the_schema(influxdb: InfluxDB, fleet: Fleet):
    """Telegraf's measurements and fields, with the database and the tag."""
    plan = fetch(influxdb).plans[METRIC_BY_KEY["CPU"].name]
    assert (plan.unit, plan.node_label, plan.smoothing_s) == ("percent", "host", 0.0)
    assert "usage_idle - usage_iowait - usage_steal of cpu where cpu = cpu-total in telegraf" in plan.expression


NASTY = [" ", "a", "'", '"', "a\\b", "\\'", "'; DROP DATABASE telegraf; --", '" OR 1=1 --', "é", "${x}", "$x"]


@pytest.mark.parametrize("name", NASTY)
def test_no_name_ends_its_quotes(influxdb: InfluxDB, name: str):
    """Measurements, fields, tags and their values are found under exactly their names."""
    tags = {f"t{name}x": f"v{name}x", "host": "a"}
    influxdb.write([line(f"m{name}x", tags, {f"f{name}x": 1.5}, END)])
    source = FieldQuery(f"m{name}x", (f"f{name}x",), only={f"t{name}x": f"v{name}x"}, without={"host": (f"b{name}",)})
    milliseconds = int(END * 1000)
    (series,) = influxdb.query(source.influxql(milliseconds, milliseconds))
    assert (series["tags"], series["values"]) == (tags, [[milliseconds, 1.5]])


# --- unusual data ----------------------------------------------------------------------------------------------------


def only(got: Fetch, key: str) -> dict[float, float]:
    """The samples of the only series of the only node."""
    ((series,),) = samples(got, key).values()
    return series


def test_a_decreasing_counter_gives_no_sample_and_a_finding(influxdb: InfluxDB):
    """Nor does the other interface at that time, whose growth would look like the total."""
    for seconds, (one, other) in enumerate([(1000, 50), (2000, 60), (5, 70), (1005, 80)]):
        at = END + 10 * seconds
        influxdb.write(
            line("net", {"node": "reset", "interface": name}, {"bytes_recv": value}, at)
            for name, value in (("eth0", one), ("eth1", other))
        )
    got = fetch(influxdb, since=END, until=END + 30, node_label="node", metrics=("NetworkReceive",))

    times = [END + 10, END + 30]
    assert {"reset": [dict(zip(times, [100.0] * 2, strict=True)), dict(zip(times, [1.0] * 2, strict=True))]} == samples(
        got, "NetworkReceive"
    )
    (finding,) = (finding for finding in got.findings if finding.kind is FindingKind.COUNTER_RESET)
    assert (finding.node, finding.time, finding.remedy) == ("reset", END + 20, Remedy.DROPPED)


def test_memory_without_available_is_computed_from_used(influxdb: InfluxDB):
    """Some systems do not report `available`; `used` is close enough."""
    influxdb.write([line("mem", {"box": "old"}, {"used_percent": 42.5}, END)])
    assert {END: 42.5} == only(fetch(influxdb, node_label="box", metrics=("Memory",)), "Memory")


def test_without_iowait_all_but_idle_is_use(influxdb: InfluxDB):
    """An unknown share is not subtracted."""
    influxdb.write([line("cpu", {"box": "mac", "cpu": "cpu-total"}, {"usage_idle": 90.0}, END)])
    assert {END: 10.0} == only(fetch(influxdb, node_label="box", metrics=("CPU",)), "CPU")


def test_series_without_the_tag_are_reported_with_their_tags(influxdb: InfluxDB, fleet: Fleet):
    """A wrong node_label is the most frequent mistake."""
    error = failure(influxdb, node_label="hostname", metrics=("CPU",))
    assert isinstance(error, ProviderRefused)
    assert "has the tag hostname; their tags are " in str(error)
    assert "cpu, host" in str(error)
    assert "provider.node_label" in error.hint


def test_a_metric_without_points_is_a_finding(influxdb: InfluxDB, fleet: Fleet):
    """And one that is not in Telegraf's schema another; neither fails the fetch."""
    got = fetch(influxdb, since=END + 5000, until=END + 5060, metrics=("CPU", "GPU"))
    assert () == got.batches == got.failures
    reasons = {finding.metric: finding.reason for finding in got.findings}
    assert {FindingKind.NO_SERIES} == {finding.kind for finding in got.findings}
    assert "no points for 100 - usage_idle" in reasons[METRIC_BY_KEY["CPU"].name]
    assert "set provider.queries.GPU" in reasons[METRIC_BY_KEY["GPU"].name]


# --- configured queries ----------------------------------------------------------------------------------------------

OWN = (
    'SELECT 100 - "usage_idle" AS used FROM "cpu" WHERE "cpu" = \'cpu-total\' AND time >= <since> AND time <= <until>'
    " GROUP BY host"
)


def test_a_configured_query_replaces_the_schema(influxdb: InfluxDB, fleet: Fleet):
    """Its only value is the metric, converted from its unit."""
    got = fetch(influxdb, metrics=("CPU",), queries={"CPU": QuerySettings(OWN, "percent", smoothing=10.0)})
    (one,) = samples(got, "CPU")[fleet.nodes[0]]
    expected = 100.0 - cpu_fields(100 * float(fleet.cpu[0, -1]))["usage_idle"]
    assert one[END] == pytest.approx(expected, abs=1e-9)
    assert 31 == len(one)
    assert 10.0 == got.plans[METRIC_BY_KEY["CPU"].name].smoothing_s


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        (OWN.replace("AS used", "AS used, usage_user"), "returns 2 values per time"),
        (OWN.replace("SELECT", "SELEKT"), "error parsing query"),
        (OWN.replace(" GROUP BY host", ""), "has the tag host; their tags are none"),
        ("SHOW DATABASES -- <since> <until>", "is not a number"),
    ],
    ids=["two values", "syntax", "not grouped", "no points"],
)
def test_an_unusable_query_affects_only_its_metric(influxdb: InfluxDB, fleet: Fleet, expression: str, says: str):
    """With the reason, and the setting in the hint."""
    got = fetch(influxdb, metrics=("CPU", "Memory"), queries={"CPU": QuerySettings(expression, "percent")})
    assert ["Memory"] == [batch.metric.key for batch in got.batches]
    (failed,) = got.failures
    assert says in str(failed.error)
    assert failed.error.hint


# --- refusals and outages ---------------------------------------------------------------------------------------------


def test_a_missing_database_is_reported(influxdb: InfluxDB):
    """InfluxDB responds with 200."""
    error = failure(influxdb, database="nope")
    assert isinstance(error, ProviderRefused)
    assert "database not found: nope" in str(error)
    assert "provider.database" in error.hint


def test_flux_for_a_server_without_it_is_an_error(influxdb: InfluxDB):
    """A 1.6 has no /api/v2/query."""
    error = failure(influxdb, dialect="flux", bucket="telegraf", org="example")
    assert isinstance(error, ProviderRefused)
    assert "404" in str(error)
    assert "provider.dialect" in error.hint


def test_credentials_are_required_and_used(start_influxdb: Run):
    """None, wrong ones, an account without the right to read, and the right ones; no text contains them."""
    secret, other = new_secret(), new_secret()
    server = start_influxdb(auth=("admin", secret))
    server.query(f"CREATE USER \"guest\" WITH PASSWORD '{other}'")
    server.write([line("cpu", {"host": "a", "cpu": "cpu-total"}, cpu_fields(30.0), END)])

    missing, wrong = failure(server), failure(server, username="admin", password=other)
    forbidden = failure(server, username="guest", password=other)
    got = fetch(server, username="admin", password=secret, metrics=("CPU",))

    assert [pytest.approx(30.0)] == list(only(got, "CPU").values())
    for error, status, says in [
        (missing, "401", "Set provider.token"),
        (wrong, "401", "rejected"),
        (forbidden, "403", "GRANT READ ON"),
    ]:
        assert isinstance(error, ProviderRefused)
        assert status in str(error)
        assert says in error.hint
        assert not any(word in f"{error!r} {error.hint} {error.__cause__!r}" for word in (secret, other))


def test_tls_is_verified_with_the_configured_authority(start_influxdb: Run, tmp_path: Path):
    """An unknown one is an error, unless verification is disabled."""
    server = start_influxdb(tls=True)
    server.write([line("mem", {"host": "a"}, {"used_percent": 1.0}, END)])
    error = failure(server)
    assert isinstance(error, ProviderRefused)
    assert "certificate is not trusted" in str(error)
    assert "provider.ca_file" in error.hint
    assert {END: 1.0} == only(fetch(server, ca_file=str(server.ca_file), metrics=("Memory",)), "Memory")
    assert {END: 1.0} == only(fetch(server, insecure_skip_verify=True, metrics=("Memory",)), "Memory")
    plain = failure(server.url.replace("https:", "http:"))
    assert "TLS" in str(plain) or "HTTP" in str(plain)


def test_a_server_that_was_killed_and_restarted(start_influxdb: Run):
    """Killed: unreachable. Restarted with its data: the samples."""
    server = start_influxdb()
    server.write([line("mem", {"host": "a"}, {"used_percent": 1.0}, END)])

    async def through_it(provider: InfluxProvider) -> None:
        assert 1 == len((await provider.fetch(END - SPAN, END)).batches)
        server.kill()
        with pytest.raises(ProviderUnreachable, match="connection failed"):
            await provider.fetch(END - SPAN, END)
        await asyncio.to_thread(server.start)
        assert 1 == len((await provider.fetch(END - SPAN, END)).batches)

    run(server, through_it, metrics=("Memory",))


def test_a_server_that_hangs_times_out(start_influxdb: Run):
    """SIGSTOP: connections are accepted and nothing is sent. After SIGCONT it responds as before."""
    server = start_influxdb()
    server.write([line("mem", {"host": "a"}, {"used_percent": 1.0}, END)])

    async def through_it(provider: InfluxProvider) -> None:
        assert 1 == len((await provider.fetch(END - SPAN, END)).batches)
        server.pause()
        error: ProviderUnreachable | None = await eventually(
            lambda: failed(provider), what="the process to have stopped"
        )
        assert "no response in time" in str(error)
        server.resume()
        got: Fetch = await eventually(
            lambda: provider.fetch(END - SPAN, END), what="samples", ignoring=(ProviderUnreachable,)
        )
        assert 1 == len(got.batches)

    async def failed(provider: InfluxProvider) -> ProviderUnreachable | None:
        try:
            await provider.fetch(END - SPAN, END)
        except ProviderUnreachable as error:
            return error
        return None

    run(server, through_it, metrics=("Memory",), timeout=1.5, backoff=())


# --- the whole service -----------------------------------------------------------------------------------------------


def numbers_of(service: Service, window: str) -> dict[str, dict[tuple[str, str, str], float]]:
    nodes = service.get(f"/watcher?window={window}").json()["data"]["NodeMetricsMap"]
    return {
        name: {(metric["name"], metric["operator"], metric["rollup"]): metric["value"] for metric in node["metrics"]}
        for name, node in nodes.items()
    }


@pytest.mark.parametrize("step", [15, 10, 5])
def test_the_service_serves_the_windows_of_the_written_points(start_influxdb: Run, run_service: RunService, step: int):
    """`serve --provider influxdb`, with a password: averages and population deviations of all samples, for every
    window. Telegraf writes every 10 s by default."""
    secret = new_secret()
    server = start_influxdb(auth=("admin", secret))
    end = (time.time() - 7) // step * step - step / 2
    fleet = make_fleet(3, start=end - 960, end=end, step=float(step), seed=3)
    server.write(telegraf_lines(fleet))
    service = run_service(
        "--provider",
        "influxdb",
        "--address",
        server.url,
        env={"LOAD_WATCHER_PROVIDER_USERNAME": "admin", "LOAD_WATCHER_PROVIDER_PASSWORD": secret},
    )
    cpu = METRIC_BY_KEY["CPU"].name
    wait_for(
        lambda: all((cpu, "AVG", "15m") in node for node in numbers_of(service, "15m").values()),
        what="the 15-minute window",
        ignoring=(KeyError,),
    )

    assert "InfluxDB" == service.get("/watcher").json()["source"]
    for window, slots in (("5m", 300 // step), ("10m", 600 // step), ("15m", 900 // step)):
        served = numbers_of(service, window)
        assert fleet.nodes == list(served)
        for row, node in enumerate(fleet.nodes):
            for key, values in (("CPU", 100 * fleet.cpu[row]), ("Memory", 100 * fleet.memory[row])):
                name = METRIC_BY_KEY[key].name
                last = values[-slots:]
                assert served[node][name, "AVG", window] == pytest.approx(float(np.mean(last)), rel=1e-9)
                assert served[node][name, "STD", window] == pytest.approx(float(np.std(last)), rel=1e-7)
            received = float(np.mean(fleet.receive[row, -slots:]))
            name = METRIC_BY_KEY["NetworkReceive"].name
            assert served[node][name, "AVG", window] == pytest.approx(received, abs=0.1)
    assert secret not in service.log()
