"""The provider's queries in Flux with the real compiler, and their results compared with a real InfluxDB."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import RunService
from tests.fakes.influxdb import FakeInfluxDB
from tests.fetches import Fetches, sections
from tests.real.fleet import make_fleet
from tests.real.flux import FluxCompiler, FluxServer, calls_of
from tests.real.parts import InfluxDB, new_secret
from tests.real.telegraf import line, telegraf_lines
from tests.waiting import wait_for
from watcher.model import METRIC_BY_KEY
from watcher.sources.base import Fetch
from watcher.sources.errors import ProviderError, ProviderRefused
from watcher.sources.influxdb.provider import InfluxProvider
from watcher.sources.influxdb.queries import TELEGRAF, FieldQuery, QueryTemplate
from watcher.sources.settings import QuerySettings

pytestmark = pytest.mark.real

END = 1_700_000_000.0
MILLISECONDS = int(END * 1000)
TOKEN = new_secret()
NASTY = [
    "telegraf", "", " ", '"', "\\", '\\"', "${r}", "$", "$${", "\\${x}", "a\nb", "\r\t\0", "\x7f", "é", "節点", "😀",
    "'", "//", '") |> drop(columns: ["_value"]) //',
]  # fmt: skip


@pytest.fixture(scope="module")
def compiler() -> Iterator[FluxCompiler]:
    """One per module: it takes 70 ms to start."""
    with FluxCompiler() as running:
        yield running


def make(address: str, **settings: Any) -> InfluxProvider:
    return InfluxProvider(*sections(address=address, backoff=(), **settings))


fetch = Fetches(make, since=END - 300, until=END, limit_s=60.0).fetch


def test_the_compiler_refuses_invalid_queries(compiler: FluxCompiler):
    """Otherwise the tests below would prove nothing."""
    assert compiler.compile('from(bucket: "b") |> range(start: -5m)')
    assert compiler.compile('from(bucket: "b") |> ranges(start: -5m)') is None
    assert compiler.compile('from(bucket: "b") |> range(start: "x" + 5)') is None


@pytest.mark.parametrize("key", TELEGRAF)
def test_each_query_is_valid_flux(compiler: FluxCompiler, key: str):
    """It parses, and its types match."""
    source = TELEGRAF[key].source
    tree = compiler.compile(source.flux(MILLISECONDS - 60_000, MILLISECONDS, bucket="telegraf"))
    assert tree is not None
    names = [name for name, _ in calls_of(tree)]
    assert ["from", "range", "filter", "drop"] == names


@pytest.mark.parametrize("text", NASTY, ids=range(len(NASTY)))
def test_no_text_ends_its_quotes(compiler: FluxCompiler, text: str):
    """The compiler reads exactly the intended name, as one literal, at each place."""
    source = FieldQuery(text, (text,), only={"t" + text: text}, without={"u": (text,)})
    tree = compiler.compile(source.flux(0, 1, bucket=text))
    assert tree is not None
    calls = dict(calls_of(tree))
    assert ["from", "range", "filter", "drop"] == [name for name, _ in calls_of(tree)]
    assert ("StringLiteral", text) == (calls["from"]["bucket"]["type"], calls["from"]["bucket"]["value"])
    literals = [node["value"] for node in nodes_of(calls["filter"]["fn"]) if node["type"] == "StringLiteral"]
    assert sorted([text, "t" + text, text, "u", text, text]) == sorted(literals)


def nodes_of(tree: Any) -> Iterator[dict[str, Any]]:
    """All nodes of a syntax tree."""
    if isinstance(tree, list):
        for each in tree:
            yield from nodes_of(each)
    elif isinstance(tree, dict):
        if "type" in tree:
            yield tree
        for each in tree.values():
            yield from nodes_of(each)


def test_the_documented_query_is_valid_flux(compiler: FluxCompiler):
    """docs/tasks/influxdb.md, with its times inserted."""
    page = (Path(__file__).parents[2] / "docs" / "tasks" / "influxdb.md").read_text()
    query = page.partition("```flux\n")[2].partition("```")[0]
    assert compiler.compile(QueryTemplate(query).flux(0, 1, bucket="unused")) is not None


def test_both_languages_give_the_same_loads(compiler: FluxCompiler, tmp_path: Path):
    """The same points in a real 1.6, queried in InfluxQL, and with the real compiler and client, queried in Flux: the
    same nodes, times and values exactly, also with counters that decrease."""
    fleet = make_fleet(4, start=END - 600, end=END, step=10.0, seed=9)
    lines = list(telegraf_lines(fleet))
    for at, count in ((END - 30, 900), (END - 20, 950), (END - 10, 3), (END, 13)):
        lines.append(line("net", {"host": "reset", "interface": "eth0"}, {"bytes_recv": count}, at))
    flux = FluxServer(compiler, "telegraf", token=TOKEN)
    flux.write(lines)
    with InfluxDB(tmp_path / "influxdb") as real, FakeInfluxDB(flux) as emulated:
        real.write(lines)
        one = fetch(real.url)
        other = fetch(emulated.url, bucket="telegraf", org="example", token=TOKEN)

    assert 7 == len(one.batches) == len(other.batches)
    assert loads(one) == loads(other)
    assert {finding.kind for finding in one.findings} == {finding.kind for finding in other.findings}
    reset = METRIC_BY_KEY["NetworkReceive"].name
    assert [(END - 20, 5.0), (END, 1.0)] == loads(one)[reset, "reset"][0]


def loads(got: Fetch) -> dict[tuple[str, str], list[list[tuple[float, float]]]]:
    """(metric, node) -> its series, sorted, each as (time, value)."""
    found: dict[tuple[str, str], list[list[tuple[float, float]]]] = {}
    for batch in got.batches:
        for number, node in enumerate(batch.nodes):
            of = batch.series == number
            samples = list(zip(batch.time[of].tolist(), batch.value[of].tolist(), strict=True))
            found.setdefault((batch.metric.name, node), []).append(samples)
    return {key: sorted(series) for key, series in found.items()}


@pytest.mark.parametrize(
    ("settings", "says", "hint"),
    [
        ({"token": "wrong"}, "unauthorized access", "provider.token"),
        ({"bucket": "other"}, 'could not find bucket "other"', "provider.bucket"),
        (
            {"queries": {"CPU": QuerySettings("from(bucket: 1) |> range(start: <since>, stop: <until>)", "percent")}},
            "compilation failed",
            "provider.queries",
        ),
    ],
    ids=["token", "bucket", "query"],
)
def test_an_error_names_the_setting(compiler: FluxCompiler, settings: dict[str, Any], says: str, hint: str):
    usual = {"bucket": "telegraf", "org": "example", "token": TOKEN, "metrics": ("CPU",)}
    with FakeInfluxDB(FluxServer(compiler, "telegraf", token=TOKEN)) as server, pytest.raises(ProviderError) as caught:
        fetch(server.url, **{**usual, **settings})
    assert isinstance(caught.value, ProviderRefused)
    assert says in str(caught.value)
    assert hint in caught.value.hint


def test_the_service_serves_windows_from_flux(compiler: FluxCompiler, tmp_path: Path, run_service: RunService):
    """`serve --provider influxdb` with bucket, organisation and a token file: averages and population deviations."""
    secret = new_secret()
    (tmp_path / "token").write_text(secret)
    end = (time.time() - 7) // 15 * 15 - 7.5
    fleet = make_fleet(2, start=end - 960, end=end, step=15.0, seed=4)
    flux = FluxServer(compiler, "metrics", token=secret)
    flux.write(telegraf_lines(fleet))
    config = f"""
        [provider]
        name = "influxdb"
        bucket = "metrics"
        org = "example"
        token_file = "{tmp_path}/token"
    """
    with FakeInfluxDB(flux) as server:
        service = run_service("--address", server.url, config=config)

        def windows() -> dict[str, dict[str, float]]:
            nodes = service.get("/watcher?type=CPU").json()["data"]["NodeMetricsMap"]
            return {
                name: {metric["operator"]: metric["value"] for metric in node["metrics"] if metric["rollup"] == "15m"}
                for name, node in nodes.items()
            }

        wait_for(lambda: all(windows().values()), what="15-minute windows", ignoring=(KeyError,))
        served = windows()
    assert fleet.nodes == list(served)
    for row, node in enumerate(fleet.nodes):
        last = 100 * fleet.cpu[row, -60:]
        assert served[node]["AVG"] == pytest.approx(float(np.mean(last)), rel=1e-9)
        assert served[node]["STD"] == pytest.approx(float(np.std(last)), rel=1e-7)
    assert secret not in service.log()
