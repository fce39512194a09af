"""The HTTP API: the responses of each path, and its errors."""

import asyncio
import gzip
import json
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import Distribution

import pytest
import zstandard
from aiohttp import web

from tests.fakes.pods import publish_pods, small_pods
from tests.fakes.service import HEALTHY, FakeService, Live, Protection
from tests.fakes.snapshots import END, WINDOWS, publish, small_fleet, snapshot_of, steady
from tests.waiting import eventually
from watcher.api.dashboard import documentation_url
from watcher.api.routes import make_app
from watcher.api.telemetry import Telemetry
from watcher.core.publishing.documents import Published
from watcher.core.publishing.selection import Selection
from watcher.model import ProviderHealth, Window


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """Three nodes, published a second ago. Tests that change them create their own service."""
    with Live() as running:
        yield running


def nodes(answer) -> set[str]:
    """The names of the nodes of a response in the format of /watcher."""
    assert 200 == answer.status, answer.body
    return set(answer.json()["data"]["NodeMetricsMap"])


# --- all nodes -------------------------------------------------------------------------------------------------------


def test_all_nodes_with_the_default_window(live):
    """15 minutes, AVG and STD, JSON."""
    answer = live.ask("/watcher")

    assert {"node-1", "node-2", "node-3"} == nodes(answer)
    assert "15m" == answer.json()["window"]["duration"]
    assert "application/json" == answer.headers["Content-Type"]
    assert str(len(answer.body)) == answer.headers["Content-Length"]


@pytest.mark.parametrize("path", ["//watcher", "/watcher/", "///watcher///", "/watcher//"])
def test_duplicate_and_trailing_slashes_are_ignored(live, path):
    """The Go client joins its address and the path. The response is not a redirect."""
    assert live.ask("/watcher").body == live.ask(path).body


@pytest.mark.parametrize("label", ["5m", "10m", "15m"])
def test_the_response_has_the_requested_window_and_the_covered_ones(live, label):
    """The root has the requested window, each metric its covered window."""
    body = live.ask(f"/watcher?window={label}").json()
    rollups = {metric["rollup"] for metric in body["data"]["NodeMetricsMap"]["node-3"]["metrics"]}

    assert label == body["window"]["duration"]
    assert {"5m" if label == "5m" else "10m"} == rollups


@pytest.mark.parametrize(
    ("served", "default"),
    [
        ((Window("5m", 300), Window("15m", 900), Window("30m", 1800)), "15m"),
        ((Window("5m", 300), Window("10m", 600)), "10m"),
        ((Window("30m", 1800), Window("60m", 3600)), "30m"),
    ],
)
def test_the_default_window_is_the_one_closest_to_15_minutes(served, default):
    """If 15 minutes are not served: the longest below, otherwise the shortest."""
    service = FakeService(published=publish(snapshot_of(small_fleet(), windows=served)), windows=served)
    with Live(service) as live:
        assert default == live.ask("/watcher").json()["window"]["duration"]


def test_types_and_operators_are_combined(live):
    """Different parameters by AND, several values of one by OR."""
    body = live.ask("/watcher?type=CPU&type=Bandwidth&operator=MAX&operator=AVG&window=5m").json()
    found = {(m["type"], m["operator"]) for m in body["data"]["NodeMetricsMap"]["node-1"]["metrics"]}

    assert {("CPU", "AVG"), ("CPU", "MAX"), ("Bandwidth", "AVG"), ("Bandwidth", "MAX")} == found


def test_the_format_of_the_kep(live):
    """The nodes are directly under data, with the same values."""
    kep = live.ask("/watcher?shape=kep").json()

    assert live.ask("/watcher").json()["data"]["NodeMetricsMap"] == kep["data"]


# --- some nodes ------------------------------------------------------------------------------------------------------


def test_a_node_is_selected_by_path_or_by_parameter(live):
    """Both give the same document."""
    assert {"node-2"} == nodes(live.ask("/watcher/node-2"))
    assert live.ask("/watcher/node-2").body == live.ask("/watcher?host=node-2").body


def test_several_nodes_are_selected_by_repeated_parameters(live):
    """The union, in the order of the list."""
    answer = live.ask("/watcher?host=node-3&host=node-1&host=node-3")

    assert ["node-1", "node-3"] == list(answer.json()["data"]["NodeMetricsMap"])


def test_an_empty_host_selects_all_nodes(live):
    """As in the original."""
    assert live.ask("/watcher").body == live.ask("/watcher?host=").body


def test_the_path_of_a_node_has_the_same_parameters(live):
    """Except host."""
    body = live.ask("/watcher/node-1?window=5m&type=CPU&operator=Latest&shape=kep").json()

    assert [["CPU", "Latest", ""]] == [
        [metric["type"], metric["operator"], metric["rollup"]] for metric in body["data"]["node-1"]["metrics"]
    ]
    assert 400 == live.ask("/watcher/node-1?host=node-2").status


def test_an_unknown_node_is_an_error_with_its_name(live):
    """By path, and among others by parameter."""
    for path in ("/watcher/nope", "/watcher?host=node-1&host=nope"):
        answer = live.ask(path)
        assert (404, "unknown_host") == (answer.status, answer.error["code"])
        assert "'nope'" in answer.error["message"]


def test_a_known_node_without_the_selected_type_is_an_error(live):
    """The error names the missing type, and does not report the node as unknown."""
    answer = live.ask("/watcher/node-3?type=GPU")

    assert (404, "no_metrics") == (answer.status, answer.error["code"])
    assert "GPU" in answer.error["message"]
    assert "'node-3'" in answer.error["message"]


def test_names_are_decoded_once():
    """Percent signs, slashes and quotes are part of the name, in any encoding."""
    names = {"a/b": "a%2Fb", "50%": "50%25", "ü": "%C3%BC", "a b": "a%20b", "a+b": "a+b", "%41": "%2541", "A": "%41"}
    fleet = {name: {"CPU": steady(5)} for name in names}
    with Live(FakeService(published=publish(snapshot_of(fleet)))) as live:
        for name, written in names.items():
            assert {name} == nodes(live.ask(f"/watcher/{written}"))


def test_a_node_with_the_name_health_is_found_by_parameter():
    """The path /watcher/health is that of the provider's health."""
    service = FakeService(published=publish(snapshot_of({"health": {"CPU": steady(5)}})))
    with Live(service) as live:
        assert {"status": "ok", "since": 1_699_999_000.0} == live.ask("/watcher/health").json()
        assert {"health"} == nodes(live.ask("/watcher?host=health"))


# --- missing, stale, or incomplete data ------------------------------------------------------------------------------

DOCUMENTS = ["/watcher", "/watcher?window=5m", "/watcher/node-1", "/watcher?host=node-1", "/api/v1/columns"]


@pytest.mark.parametrize("path", DOCUMENTS)
@pytest.mark.parametrize(
    ("health", "hint"),
    [
        (ProviderHealth(None, "", 0.0), "not been queried"),
        (ProviderHealth(False, "connection refused", 0.0), "connection refused"),
        (ProviderHealth(True, "", 0.0), "returns no samples"),
    ],
    ids=["not asked", "down", "up"],
)
def test_missing_metrics_are_a_404_with_a_reason(path, health, hint):
    """With an empty 200, each node would get the minimum score."""
    with Live(FakeService(published=None, provider_health=health)) as live:
        answer = live.ask(path)
        assert (404, "no_metrics") == (answer.status, answer.error["code"])
        assert hint in answer.error["hint"]


def test_a_snapshot_without_nodes_is_a_404():
    """The provider responded, but without nodes."""
    with Live(FakeService(published=publish(snapshot_of({})))) as live:
        assert "no_metrics" == live.ask("/watcher").error["code"]
        assert "no_metrics" == live.ask("/watcher/node-1").error["code"]


def test_a_selection_without_values_is_a_404(live):
    """An empty document would suggest an idle fleet."""
    for path in ("/watcher?type=Energy", "/api/v1/columns?type=Energy"):
        answer = live.ask(path)
        assert (404, "no_metrics") == (answer.status, answer.error["code"])
        assert "Energy" in answer.error["message"]


@pytest.mark.parametrize("path", DOCUMENTS)
def test_a_stale_snapshot_is_not_served(path):
    """The age is measured by the monotonic clock; the error has it and the limit."""
    service = FakeService(max_staleness=120.0)
    with Live(service) as live:
        service.clock = 1000.0 + 119.0
        assert 200 == live.ask(path).status
        service.clock = 1000.0 + 119.5
        answer = live.ask(path)

    assert (503, "stale") == (answer.status, answer.error["code"])
    assert "120 s old" in answer.error["message"]
    assert "more than 120 s" in answer.error["message"]
    assert "60" == answer.headers["Retry-After"]


def test_a_snapshot_whose_nodes_are_all_stale_is_stale():
    """The source responds without new samples: its nodes are removed one by one until none is left."""
    with Live(FakeService(published=publish(snapshot_of({}), age_s=400.0))) as live:
        assert "stale" == live.ask("/watcher").error["code"]


@pytest.fixture
def remnant() -> Iterator[Live]:
    """A fleet of which two nodes vanished at once."""
    snapshot = snapshot_of(small_fleet(), lost={"gone-1": END - 60, "gone-2": END - 60})
    with Live(FakeService(published=publish(snapshot))) as live:
        yield live


@pytest.mark.parametrize(
    "path", ["/watcher", "/watcher?window=5m", "/watcher?type=CPU", "/api/v1/columns", "/watcher?host="]
)
def test_an_incomplete_list_is_not_served(remnant, path):
    """The Go plug-ins score an absent node 0, which moves pods to the others."""
    answer = remnant.ask(path)

    assert (503, "partial_outage") == (answer.status, answer.error["code"])
    assert "2 of 5" in answer.error["message"]


def test_remaining_nodes_are_served_by_name(remnant):
    """Their values are right."""
    assert {"node-1"} == nodes(remnant.ask("/watcher/node-1"))
    assert {"node-1", "node-2"} == nodes(remnant.ask("/watcher?host=node-1&host=node-2"))


def test_lost_nodes_are_not_unknown(remnant):
    """404 would mean that the node does not exist."""
    for path in ("/watcher/gone-1", "/watcher?host=node-1&host=gone-1"):
        answer = remnant.ask(path)
        assert (503, "partial_outage") == (answer.status, answer.error["code"])
        assert "gone-1" in answer.error["message"]


def test_if_all_nodes_are_lost_the_error_states_it():
    """The error is not the one for a fleet without nodes."""
    snapshot = snapshot_of({}, lost={"gone-1": END - 60})
    with Live(FakeService(published=publish(snapshot))) as live:
        assert "partial_outage" == live.ask("/watcher").error["code"]


def test_a_quarantined_node_differs_from_an_unknown_one():
    """Both are 404 by name; the hint has the reason."""
    snapshot = snapshot_of(small_fleet(), quarantined={"frozen"})
    with Live(FakeService(published=publish(snapshot))) as live:
        assert (404, "unknown_host") == (live.ask("/watcher/frozen").status, live.ask("/watcher/frozen").error["code"])
        assert "implausible" in live.ask("/watcher/frozen").error["hint"]


# --- headers ---------------------------------------------------------------------------------------------------------


def test_the_age_is_that_of_the_newest_sample():
    """And so is the time that caches may keep it."""
    service = FakeService(published=publish(snapshot_of(small_fleet()), age_s=4.4), interval=30.0)
    with Live(service) as live:
        service.clock = 1007.9
        for path in ("/watcher", "/watcher/node-1", "/watcher?type=CPU", "/api/v1/columns"):
            headers = live.ask(path).headers
            assert "12" == headers["Age"]
            assert "max-age=30, must-revalidate" == headers["Cache-Control"]
            assert "Tue, 14 Nov 2023 22:13:21 GMT" == headers["Last-Modified"]
            assert "Accept-Encoding" == headers["Vary"]
        service.clock = 1008.0
        assert "12" == live.ask("/watcher").headers["Age"]
        service.clock = 1009.0
        assert "13" == live.ask("/watcher").headers["Age"]


def test_protected_answers_are_private():
    """A shared cache must not serve them to others."""
    with Live(protection=Protection("secret", protect_reads=True)) as live:
        headers = live.ask("/watcher", headers={"Authorization": "Bearer secret"}).headers
        assert headers["Cache-Control"].startswith("private, ")


VARIANTS = [
    "/watcher",
    "/watcher?window=5m",
    "/watcher?shape=kep",
    "/watcher?type=CPU",
    "/watcher?operator=P95",
    "/watcher?type=CPU&operator=P95",
    "/watcher/node-1",
    "/watcher/node-2",
    "/watcher/node-1?shape=kep",
    "/watcher?host=node-1&host=node-2",
    "/api/v1/columns",
    "/api/v1/columns?type=CPU",
]


def test_etags_differ_exactly_if_bodies_differ(live):
    """By selection, format, node and encoding."""
    found: dict[str, bytes] = {}
    for path in VARIANTS:
        for coding in ("identity", "gzip", "zstd"):
            answer = live.ask(path, headers={"Accept-Encoding": f"{coding}, identity;q=0.1"})
            etag = answer.headers["ETag"]
            assert etag.startswith('"')
            assert answer.body == found.setdefault(etag, answer.body)
    assert len(found) == len(set(found.values()))


@pytest.mark.parametrize("path", VARIANTS)
@pytest.mark.parametrize("coding", ["identity", "gzip", "zstd"])
def test_a_known_etag_gets_a_304(live, path, coding):
    """With the headers that a cache needs, and without a body."""
    headers = {"Accept-Encoding": coding}
    etag = live.ask(path, headers=headers).headers["ETag"]
    for wanted in (etag, f"W/{etag}", f'"other", {etag}', "*"):
        answer = live.ask(path, headers={**headers, "If-None-Match": wanted})
        assert (304, b"") == (answer.status, answer.body)
        assert etag == answer.headers["ETag"]
        assert {"Vary", "Cache-Control", "Last-Modified", "Age"} <= set(answer.headers)
        assert not {"Content-Type", "Content-Encoding"} & set(answer.headers)
    assert 200 == live.ask(path, headers={**headers, "If-None-Match": '"other"'}).status


def test_the_next_tick_has_other_etags():
    """A client that sends the old one gets the new document."""
    service = FakeService()
    with Live(service) as live:
        before = live.ask("/watcher").headers["ETag"]
        service.published = publish(snapshot_of({"node-9": {"CPU": steady(9)}}), tag="t2")
        answer = live.ask("/watcher", headers={"If-None-Match": before})
        assert {"node-9"} == nodes(answer)
        assert before != answer.headers["ETag"]


@pytest.mark.parametrize("path", ["/watcher", "/watcher?shape=kep&window=10m", "/watcher?type=CPU", "/api/v1/columns"])
def test_bodies_have_the_requested_encoding(live, path):
    """And decode to the plain body."""
    plain = live.ask(path)
    zipped = live.ask(path, headers={"Accept-Encoding": "gzip"})
    zstd = live.ask(path, headers={"Accept-Encoding": "zstd"})

    assert "Content-Encoding" not in plain.headers
    assert "gzip" == zipped.headers["Content-Encoding"]
    assert plain.body == gzip.decompress(zipped.body)
    assert "zstd" == zstd.headers["Content-Encoding"]
    assert plain.body == zstandard.ZstdDecompressor().decompress(zstd.body)


def test_small_bodies_are_not_compressed(live):
    """One node fits into a packet; compressing it would cost more than it saves. A client that refuses the plain body
    gets a compressed one."""
    plain = live.ask("/watcher/node-3").body

    assert plain == live.ask("/watcher/node-3", headers={"Accept-Encoding": "gzip, zstd"}).body
    insisting = live.ask("/watcher/node-3", headers={"Accept-Encoding": "gzip, identity;q=0"})
    assert plain == gzip.decompress(insisting.body)


def test_the_response_for_many_nodes_by_name_is_compressed():
    fleet = {f"n{row}": {"CPU": steady(row)} for row in range(20)}
    query = "&".join(f"host={name}" for name in fleet)
    with Live(FakeService(published=publish(snapshot_of(fleet)))) as live:
        answer = live.ask(f"/watcher?{query}", headers={"Accept-Encoding": "gzip"})
        assert live.ask("/watcher").body == gzip.decompress(answer.body)


def test_several_accept_encoding_headers_are_one_list(live):
    """As RFC 9110 defines for lists."""
    sent = (
        b"GET /watcher HTTP/1.1\r\nHost: x\r\nAccept-Encoding: br\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n"
    )

    assert b"Content-Encoding: gzip" in live.raw(sent)


def test_a_client_that_accepts_no_supported_encoding_gets_an_error(live):
    for path in ("/watcher", "/watcher/node-1", "/api/v1/columns", "/api/v1/findings", "/metrics"):
        answer = live.ask(path, headers={"Accept-Encoding": "br, identity;q=0"})
        assert (406, "not_acceptable") == (answer.status, answer.error["code"])


PATHS = [
    "/",
    "/watcher",
    "/watcher?type=CPU",
    "/watcher/node-1",
    "/watcher/nope",
    "/watcher/health",
    "/api/v1/columns",
    "/api/v1/history?host=node-1",
    "/api/v1/findings",
    "/api/v1/overview",
    "/web/app.js",
    "/healthz",
    "/readyz",
    "/metrics",
    "/openapi.json",
    "/nowhere",
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("coding", ["identity", "gzip"])
def test_head_has_the_status_and_headers_of_get(live, path, coding):
    """Without the body."""
    got, head = (live.ask(path, method=method, headers={"Accept-Encoding": coding}) for method in ("GET", "HEAD"))

    assert b"" == head.body
    assert got.status == head.status
    changing = {"Date", "Content-Length"} if path == "/metrics" else {"Date"}
    assert {k: v for k, v in got.headers.items() if k not in changing} == {
        k: v for k, v in head.headers.items() if k not in changing
    }


# --- columns ---------------------------------------------------------------------------------------------------------


def test_columns_of_two_nodes():
    """The whole response, as the scorers' client gets it."""
    fleet = {"a": {"CPU": [10.0, 30.0] * 30, "Memory": [50.0]}, "b": {"CPU": [20.0] * 20}}
    published = publish(snapshot_of(fleet, ages={"b": 100.5}))
    with Live(FakeService(published=published)) as live:
        body = live.ask("/api/v1/columns?type=CPU&type=Memory").json()

    cpu = {"name": "instance:node_cpu:ratio", "type": "CPU", "unit": "percent"}
    memory = {"name": "instance:node_memory_utilisation:ratio", "type": "Memory", "unit": "percent"}
    assert body == {
        "timestamp": 1_700_000_001,
        "window_end": 1_700_000_000,
        "source": "Prometheus",
        "nodes": ["a", "b"],
        "sampled": {cpu["name"]: [END, END], memory["name"]: [END, None]},
        "columns": [
            {**cpu, "operator": "AVG", "window": "15m", "values": [20.0, None]},
            {**cpu, "operator": "AVG", "window": "10m", "values": [None, 20.0]},
            {**cpu, "operator": "STD", "window": "15m", "values": [10.0, None]},
            {**cpu, "operator": "STD", "window": "10m", "values": [None, 0.0]},
            {**memory, "operator": "Latest", "window": "", "values": [50.0, None]},
        ],
        "smoothing_s": {cpu["name"]: 300.0, memory["name"]: 300.0},
        "age_s": [None, 100.5],
        "silent": {},
        "source_ok": True,
    }


def test_aggregates_are_added_on_request():
    """In each encoding, with their own ETag; computed once per snapshot."""
    service = FakeService()
    with Live(service) as live:
        plain, with_aggregates = live.ask("/api/v1/columns"), live.ask("/api/v1/columns?aggregate=koordlet")
        zipped = live.ask("/api/v1/columns?aggregate=koordlet", headers={"Accept-Encoding": "gzip"})
        known = live.ask(
            "/api/v1/columns?aggregate=koordlet", headers={"If-None-Match": with_aggregates.headers["ETag"]}
        )
        unknown = live.ask("/api/v1/columns?aggregate=kordlet")
    assert 3 == len({each.headers["ETag"] for each in (plain, with_aggregates, zipped)})
    assert with_aggregates.body == gzip.decompress(zipped.body)
    assert 304 == known.status
    assert 1 == service.measured
    document, aggregates = with_aggregates.json(), with_aggregates.json()["aggregates"]
    assert plain.json() == {name: part for name, part in document.items() if name != "aggregates"}
    of_nodes = aggregates["rules"], aggregates["interval_s"], aggregates["period_s"]
    assert ("koordlet", [60.0] * 3, [300] * 3) == of_nodes
    assert 2 * (1 + 5 * 3) == len(aggregates["columns"])
    assert {3} == {len(column["values"]) for column in aggregates["columns"]}
    assert 400 == unknown.status
    assert "did you mean koordlet?" in unknown.error["hint"]


def test_columns_have_no_format_and_host_parameters(live):
    """They always have the whole fleet."""
    assert 400 == live.ask("/api/v1/columns?shape=kep").status
    assert 400 == live.ask("/api/v1/columns?host=node-1").status


# --- shared work -----------------------------------------------------------------------------------------------------


class Counting(Published):
    """Counts how often a document is written; the first writer waits for the test."""

    def __init__(self, *arguments, **keywords) -> None:
        super().__init__(*arguments, **keywords)
        self.written = 0
        self.go_on = threading.Event()
        self.begun = threading.Event()

    def document(self, selection: Selection):
        self.written += 1
        self.begun.set()
        assert self.go_on.wait(10)
        return super().document(selection)


def test_equal_concurrent_requests_share_one_document():
    """A hundred dashboards that reload at once cost as much as one, for any notation of the parameters."""
    published = Counting(snapshot_of(small_fleet()), tag="t1", monotonic=1000.0, age_s=1.0)
    published.encode_default()
    paths = [
        "/watcher?type=CPU&type=Memory&operator=P95",
        "/watcher?operator=P95&type=Memory&type=CPU&type=CPU",
        "/watcher?window=15m&type=Memory&operator=P95&type=CPU",
    ]
    with Live(FakeService(published=published)) as live, ThreadPoolExecutor(9) as clients:
        asked = [clients.submit(live.ask, path) for path in paths * 3]
        assert published.begun.wait(10)
        # while the thread writes, the event loop serves prepared documents
        assert 200 == live.ask("/watcher").status
        published.go_on.set()
        bodies = {future.result().body for future in asked}
        assert 1 == len(bodies)
        assert 200 == live.ask(paths[0]).status

    assert 1 == published.written


async def test_a_client_that_disconnects_does_not_affect_others(caplog):
    """With a server that cancels handlers of disconnected clients, the others get the document that this client
    requested first. If all disconnect, nothing is logged."""
    published = Counting(snapshot_of(small_fleet()), tag="t1", monotonic=1000.0, age_s=1.0)
    published.encode_default()

    app = make_app(
        FakeService(published=published).view,
        settings=Protection(),
        telemetry=Telemetry(version="1"),
        version="1",
    )
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
    await runner.setup()
    listener = socket.create_server(("127.0.0.1", 0))
    await web.SockSite(runner, listener).start()
    request = b"GET /watcher?type=CPU HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    streams = [await asyncio.open_connection(*listener.getsockname()) for _ in range(2)]
    for _, writer in streams:
        writer.write(request)
    await eventually(published.begun.is_set, what="the document to be begun")
    server = runner.server
    assert server is not None
    await eventually(lambda: 2 == len(server.connections), what="both to be connected")
    streams[0][1].close()
    await eventually(lambda: 1 == len(server.connections), what="the first to be gone")
    published.go_on.set()
    answer = await streams[1][0].read()
    streams[1][1].close()
    await runner.cleanup()
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert 1 == published.written
    assert [] == caplog.records


def test_default_documents_are_served_without_writing_any():
    """Also if the defaults are stated as parameters."""
    published = Counting(snapshot_of(small_fleet()), tag="t1", monotonic=1000.0, age_s=1.0)
    published.encode_default()
    with Live(FakeService(published=published)) as live:
        for path in (
            "/watcher",
            "/watcher?window=5m&shape=kep",
            "/watcher?operator=STD&operator=AVG",
            "/watcher/node-1",
            "/watcher?host=node-1&window=10m",
        ):
            assert 200 == live.ask(path, headers={"Accept-Encoding": "gzip"}).status

    assert 0 == published.written


# --- health ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("health", "status", "code", "message"),
    [
        (ProviderHealth(True, "", 5.0), 200, None, None),
        (ProviderHealth(True, "store-2 is away", 5.0), 200, None, None),
        (ProviderHealth(False, "connection refused", 5.0), 503, "provider_down", "connection refused"),
        (ProviderHealth(None, "", 0.0), 503, "provider_not_asked", "the provider has not been queried yet"),
    ],
    ids=["up", "partial", "down", "not asked"],
)
def test_the_health_of_the_provider_is_that_of_the_last_tick(health, status, code, message):
    """The request makes no call to the source."""
    with Live(FakeService(provider_health=health)) as live:
        answer = live.ask("/watcher/health")

    assert status == answer.status
    if code is None:
        partial = {"status": "partial", "since": 5.0, "reason": health.reason}
        assert (partial if health.reason else {"status": "ok", "since": 5.0}) == answer.json()
    else:
        assert (code, message) == (answer.error["code"], answer.error["message"])


def test_liveness_is_that_of_the_tick_loop():
    """Not of the provider: an unreachable provider must not restart the service."""
    service = FakeService(provider_health=ProviderHealth(False, "no route", 5.0), published=None)
    with Live(service) as live:
        assert {"status": "alive"} == live.ask("/healthz").json()
        service.wrong = "no tick began for 100 s"
        answer = live.ask("/healthz")

    assert (503, "not_alive", service.wrong) == (answer.status, answer.error["code"], answer.error["message"])


def test_readiness_needs_a_window_that_is_not_stale():
    """The body has the details in both cases."""
    service = FakeService(status=replace(HEALTHY, ok=False, error="disk full"))
    with Live(service) as live:
        ready = live.ask("/readyz")
        service.clock += 1000.0
        stale = live.ask("/readyz")
        service.published = None
        nothing = live.ask("/readyz")

    assert (200, "ready") == (ready.status, ready.json()["status"])
    assert ready.json()["snapshot"] == {
        "source": "Prometheus",
        "timestamp": 1_700_000_001,
        "window_end": 1_700_000_000,
        "age_s": 1.0,
        "nodes": 3,
        "lost": 0,
        "quarantined": 0,
    }
    assert ["5m", "10m", "15m"] == ready.json()["windows"]
    assert (503, "stale", "not ready") == (stale.status, stale.error["code"], stale.json()["status"])
    assert 1001.0 == stale.json()["snapshot"]["age_s"]
    assert (503, "no_metrics") == (nothing.status, nothing.error["code"])
    assert nothing.json()["snapshot"] is None
    for answer in (ready, stale, nothing):
        detail = answer.json()["detail"]
        assert {"ok": False, "error": "disk full", "size_bytes": 4096, "dropped": 0} == detail["store"]
        assert "host" == detail["provider"]
    assert {"5m", "10m", "15m"} == set(ready.json()["detail"]["coverage"])
    assert {} == nothing.json()["detail"]["coverage"]


def test_readiness_waits_for_the_windows():
    """Until then, requests are served, but the Service sends none here."""
    with Live(FakeService(missing="no node has its 5m window yet")) as live:
        answer = live.ask("/readyz")
        document = live.ask("/watcher")

    assert (503, "warming_up", "not ready") == (answer.status, answer.error["code"], answer.json()["status"])
    assert "no node has its 5m window yet" == answer.error["message"]
    assert 3 == answer.json()["snapshot"]["nodes"]
    assert 200 == document.status


# --- the page --------------------------------------------------------------------------------------------------------


def test_the_dashboard_may_only_run_its_own_files(live):
    """No inline script or style is allowed, and all files that it names are served here."""
    answer = live.ask("/")
    policy = dict(part.split(" ", 1) for part in answer.headers["Content-Security-Policy"].split("; "))

    assert "text/html; charset=utf-8" == answer.headers["Content-Type"]
    assert ("'none'", "'self'", "'self'") == (policy["default-src"], policy["script-src"], policy["connect-src"])
    assert b"http://" not in answer.body.replace(b"http://www.w3.org/2000/svg", b"")
    assert b"https://" not in answer.body
    assert 304 == live.ask("/", headers={"If-None-Match": answer.headers["ETag"]}).status
    named = re.findall(rb'(?:href|src)="(web/[^"]+)"', answer.body)
    assert b"web/app.js" in named
    for file in named:
        found = live.ask(f"/{file.decode()}")
        assert 200 == found.status, file
        assert answer.headers["Content-Security-Policy"] == found.headers["Content-Security-Policy"]
        assert found.headers["Content-Type"].startswith("text/css" if file.endswith(b".css") else "text/javascript")


@pytest.mark.parametrize(
    ("urls", "found"),
    [
        ("Project-URL: Repository, https://x/y\nProject-URL: Documentation, https://x/docs", "https://x/docs/"),
        ("Project-URL: Documentation, https://x/docs/", "https://x/docs/"),
        ("Project-URL: Repository, https://x/y", ""),
        ("Summary: none", ""),
    ],
)
def test_links_of_the_installed_package_are_paths_of_the_repository(tmp_path, urls, found):
    """The documentation is not published yet."""
    information = tmp_path / "load_watcher-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: load-watcher\n{urls}\n")
    assert found == documentation_url([Distribution.at(information)])
    assert documentation_url([]) == ""


@pytest.mark.parametrize("file", ["app.jsx", "..%2F__init__.py", "vendor", "vendor/..%2Fapp.js", "vendor/uPlot.js"])
def test_no_other_file_is_served(live, file):
    """Files are looked up by name in a table; no path is read."""
    answer = live.ask(f"/web/{file}")
    assert (404, "not_found") == (answer.status, answer.json()["error"]["code"])


def test_the_files_of_the_dashboard_need_no_token():
    """They contain no data; their requests need the token."""
    with Live(protection=Protection("secret", protect_reads=True)) as live:
        assert [200, 200, 401] == [live.ask(path).status for path in ("/", "/web/app.js", "/api/v1/overview")]


# --- the overview ----------------------------------------------------------------------------------------------------


def test_the_overview_has_the_state_and_the_missing_nodes():
    """Quarantined nodes and lost ones, which are not in the list of nodes."""
    service = FakeService(
        published=publish(snapshot_of(small_fleet(), quarantined=["bad"], lost={"gone": END - 300.0}))
    )
    with Live(service) as live:
        body = live.ask("/api/v1/overview").json()

    assert ("partial_outage", ["bad"]) == (body["status"], body["quarantined"])
    assert [{"name": "gone", "sampled": END - 300.0}] == body["lost"]
    assert ["5m", "10m", "15m"] == body["windows"]
    assert ("15m", 60.0, 300.0, False, False) == tuple(
        body[key] for key in ("default_window", "interval_s", "max_staleness_s", "scheduler", "agents")
    )


def test_the_overview_states_whether_pod_usage_is_known_and_requests_it():
    """So that the page sends no request for pods that would fail."""
    service = FakeService()
    with Live(service) as live:
        assert {"reason": "", "minutes": True, "known": False} == live.ask("/api/v1/overview").json()["pods"]
        assert 0 == service.wanted
        assert 200 == live.ask("/api/v1/overview?want=pods").status
        assert 1 == service.wanted
        service.pods = publish_pods(small_pods())
        assert live.ask("/api/v1/overview").json()["pods"]["known"]
        assert "pods" in live.ask("/api/v1/overview?want=pod").error["hint"]


def test_the_overview_is_served_without_metrics():
    """With the reason."""
    with Live(FakeService(published=None, provider_health=ProviderHealth(False, "no route", 1.0))) as live:
        answer = live.ask("/api/v1/overview")

    assert (200, "no_metrics") == (answer.status, answer.json()["status"])
    assert "no route" in answer.json()["error"]["hint"]


def test_findings_are_those_of_the_service():
    service = FakeService()
    with Live(service) as live:
        assert {
            "timestamp": 1_700_000_001,
            "review_mode": "enforce",
            "findings": [],
            "sources": [],
        } == live.ask("/api/v1/findings").json()


def test_requests_are_counted_by_route_and_not_by_path():
    """A scan of random paths must not fill the memory of Prometheus."""
    telemetry = Telemetry(version="1")
    with Live(telemetry=telemetry) as live:
        for path in ("/watcher", "/watcher/node-1", "/watcher/nope", "/x/1", "/x/2", "//watcher"):
            live.ask(path)
        live.ask("/watcher", method="POST")
    count = telemetry.registry.get_sample_value
    name = "load_watcher_http_requests_total"

    assert 2 == count(name, {"route": "watcher", "code": "200"})
    assert 1 == count(name, {"route": "watcher", "code": "405"})
    assert 1 == count(name, {"route": "watcher_host", "code": "200"})
    assert 1 == count(name, {"route": "watcher_host", "code": "404"})
    assert 2 == count(name, {"route": "unmatched", "code": "404"})


def test_a_snapshot_may_be_replaced_during_a_request():
    """Each response is from one snapshot, and complete."""
    fleets = [publish(snapshot_of({f"n{k}": {"CPU": steady(5)}}), tag=f"t{k}") for k in range(2)]
    service = FakeService(published=fleets[0])
    with Live(service) as live, ThreadPoolExecutor(4) as clients:
        asked = [clients.submit(live.ask, path) for path in ("/watcher", "/watcher?type=CPU", "/api/v1/columns") * 20]
        for turn in range(200):
            service.published = fleets[turn % 2]
        for future in asked:
            answer = future.result()
            tag = answer.headers["ETag"][1:3]
            assert f"n{tag[1]}".encode() in answer.body


def test_windows_of_a_response_are_those_of_its_snapshot():
    """After a change of settings, the old windows are served until the first tick; a request for a new one gets an
    error that states this."""
    new = (*WINDOWS, Window("30m", 1800))
    with Live(FakeService(windows=new)) as live:
        answer = live.ask("/watcher?window=30m")

    assert 400 == answer.status
    assert "known: 5m, 10m, 15m" in answer.error["hint"]


def test_the_openapi_document_is_the_same_for_each_request(live):
    """It is written once, and has its version of OpenAPI."""
    first, second = live.ask("/openapi.json"), live.ask("/openapi.json")

    assert first.body == second.body
    assert "3.1.0" == json.loads(first.body)["openapi"]
