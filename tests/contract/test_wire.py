"""The responses are decoded by the Go client of the Trimaran plug-ins, with the same meaning.

The model of that client is compared with recorded results of the real one; then it decodes real responses.
"""

import json
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.go_client import Rejected, decode
from tests.fakes.service import FakeService, Live
from tests.fakes.snapshots import END, publish, small_fleet, snapshot_of, steady
from watcher.core.publishing.documents import number_texts, to_wire
from watcher.core.publishing.wire import WatcherDocument

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "trimaran_wire.json").read_text())
ONE_VALUE = '{"data":{"NodeMetricsMap":{"n1":{"metrics":[{"type":"CPU","operator":"AVG","value":%s}],"tags":{}}}}}'
AWKWARD = 'no"de\\ ü☃\u2028 </script>'


# --- the model of the client -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", VECTORS["rows"], ids=lambda row: row["id"])
def test_the_model_decodes_as_the_real_client_did(row):
    """For each payload that the real decoder has decoded."""
    if not row["accepted"]:
        with pytest.raises(Rejected):
            decode(row["payload"].encode())
        return
    found = decode(row["payload"].encode())
    nodes = {
        name: [[metric.name, metric.type, metric.operator, metric.rollup, metric.value] for metric in metrics]
        for name, metrics in found.nodes.items()
    }

    assert row["result"] == {"timestamp": found.timestamp, "nodes": nodes}


@pytest.mark.parametrize(("literal", "value"), VECTORS["numbers"], ids=lambda value: str(value)[:24])
def test_the_model_reads_numbers_as_the_real_client_did(literal, value):
    """Also for numbers that it decodes wrongly, and for those for which it discards the response."""
    body = (ONE_VALUE % literal).encode()
    if value is None:
        with pytest.raises(Rejected):
            decode(body)
    else:
        assert value == decode(body).nodes["n1"][0].value


# --- responses -------------------------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(st.floats(allow_nan=True, allow_infinity=True))
def test_any_number_is_left_out_or_decoded_right_by_the_client(value):
    """No finite value is decoded wrongly; 15 significant digits and 10 decimals remain."""
    wire = to_wire(np.array([value]))
    if np.isnan(wire[0]):
        assert not abs(value) < 1e15
        return
    (text,) = number_texts(wire)

    assert abs(decode((ONE_VALUE % text.decode()).encode()).nodes["n1"][0].value - value) <= max(
        1e-10, abs(value) * 1e-14
    )


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    fleet = {**small_fleet(), AWKWARD: {"CPU": steady(12.3456789), "Memory": [7.0]}}
    service = FakeService(published=publish(snapshot_of(fleet, ages={"node-2": 120.25}, source='Prom"\\é')))
    with Live(service) as running:
        yield running


def test_the_client_sees_each_node_with_each_metric(live):
    """The Go client decodes the same as a decoder with load-watcher's types."""
    body = live.ask("/watcher").body
    ours = msgspec.json.decode(body, type=WatcherDocument)
    theirs = decode(body)

    assert ours.timestamp == theirs.timestamp
    assert (ours.window.duration, ours.window.start, ours.window.end) == (theirs.duration, theirs.start, theirs.end)
    assert ours.source == theirs.source
    assert {"node-1", "node-2", "node-3", AWKWARD} == set(theirs.nodes)
    for name, node in ours.data.NodeMetricsMap.items():
        expected = [(metric.name, metric.type, metric.operator, metric.rollup) for metric in node.metrics]
        found = [(metric.name, metric.type, metric.operator, metric.rollup) for metric in theirs.nodes[name]]
        assert expected == found
        assert np.allclose(
            [metric.value for metric in node.metrics], [metric.value for metric in theirs.nodes[name]], rtol=1e-14
        )


@pytest.mark.parametrize("query", ["", "?window=5m", "?window=10m", "?operator=Latest", "?operator=P95&type=CPU"])
def test_the_client_accepts_each_selection(live, query):
    """For any selection, it never discards the response."""
    assert decode(live.ask(f"/watcher{query}").body).nodes


def test_the_keys_are_in_the_order_of_the_original(live):
    """The Go client does not need it, but people who compare responses do."""
    body = json.loads(live.ask("/watcher/node-1").body)

    assert ["timestamp", "window", "source", "data"] == list(body)
    assert ["duration", "start", "end"] == list(body["window"])
    assert ["NodeMetricsMap"] == list(body["data"])
    node = body["data"]["NodeMetricsMap"]["node-1"]
    assert ["metrics", "tags", "metadata", "sampled"] == list(node)
    assert all(["name", "type", "operator", "rollup", "value"] == list(metric) for metric in node["metrics"])
    assert {} == node["tags"]
    assert {"dataCenter": ""} == node["metadata"]


def test_the_window_ends_with_the_newest_sample(live):
    """The timestamp is when the fetch finished; the window is what the samples cover."""
    window = live.ask("/watcher?window=10m").json()["window"]

    assert {"duration": "10m", "start": END - 600, "end": END} == window


def test_compressed_bodies_are_as_the_transport_of_go_expects(live):
    """Go requests gzip and decodes it before the client: one member, without bytes after it."""
    answer = live.ask("/watcher", headers={"Accept-Encoding": "gzip"})
    member = zlib.decompressobj(wbits=31)
    body = member.decompress(answer.body)

    assert member.eof
    assert b"" == member.unused_data
    assert live.ask("/watcher").body == body


def test_zstd_bodies_state_their_length(live):
    """One frame; decoders that do not stream need its length."""
    body = live.ask("/watcher", headers={"Accept-Encoding": "zstd"}).body

    assert live.ask("/watcher").body == zstandard.ZstdDecompressor().decompress(body)


def test_missing_metrics_are_an_error_for_the_client_and_not_an_empty_map():
    """With an empty 200, each node would get the minimum score; after an error, the client keeps its last copy."""
    with Live(FakeService(published=None)) as live:
        assert 404 == live.ask("/watcher").status
    with Live(FakeService(published=publish(snapshot_of({})))) as live:
        assert 404 == live.ask("/watcher").status
