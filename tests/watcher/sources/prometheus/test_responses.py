"""Decoding of responses: envelopes, errors, samples, and unusual ones."""

import json
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watcher.core.messages import SHOWN_CHARACTERS, printable
from watcher.sources.errors import ProviderMalformed, ProviderRefused, ProviderTimeout, ProviderUnreachable
from watcher.sources.http import HttpResponse
from watcher.sources.prometheus.plans import NodeLabel
from watcher.sources.prometheus.responses import read_labels, read_samples, scrape_interval
from watcher.sources.prometheus_api import error_of, read_envelope, series_of

NODE = NodeLabel("node")


def raws(*rows: Any) -> list[msgspec.Raw]:
    return [msgspec.Raw(json.dumps(row).encode()) for row in rows]


def body(**parts: Any) -> bytes:
    return json.dumps(parts).encode()


def answered(kind: str, rows: Sequence[Any] | None, **more: Any) -> bytes:
    return body(status="success", data={"resultType": kind, "result": rows}, **more)


# --- envelopes -------------------------------------------------------------------------------------------------------


def test_a_response_has_its_series_and_warnings():
    """The series stay encoded."""
    envelope = read_envelope(
        answered("matrix", [{"metric": {}}], warnings=["partial response"], infos=["x"], stats={"y": 1}),
        content_type="",
    )

    assert [b'{"metric": {}}'] == [bytes(raw) for raw in series_of(envelope, expects="matrix")]
    assert ["partial response"] == envelope.warnings


@pytest.mark.parametrize(
    ("given_body", "part"),
    [
        (b"", "is not the JSON"),
        (b"<!doctype html><html><title>Sign in</title>", "web page"),
        (b"404 page not found", "is not the JSON"),
        (answered("matrix", [{"metric": {"a": "b"}, "values": [[1, "2"]]}])[:-7], "is not the JSON"),
        (b"[]", "is not the JSON"),
        (b"null", "is not the JSON"),
        (b'{"status":"success"}', "not a response of the Prometheus API"),
        (b'{"status":"success","data":null}', "not a response of the Prometheus API"),
        (answered("matrix", None), "not a response of the Prometheus API"),
        (b'{"status":"success","data":{"resultType":"matrix"}}', "not a response of the Prometheus API"),
        (b'{"status":"maybe","data":{"result":[]}}', "not a response of the Prometheus API"),
        (b'{"hello":"world"}', "not a response of the Prometheus API"),
        (b'{"status":1}', "is not the JSON"),
        (b'{"status":"success","data":{"resultType":"matrix","result":{}}}', "is not the JSON"),
        (b"\xff\xfe{}", "is not the JSON"),
        (b"[" * 100_000, "is not the JSON"),
    ],
)
def test_an_invalid_response_is_malformed(given_body: bytes, part: str):
    """The error shows its begin."""
    with pytest.raises(ProviderMalformed, match=part):
        read_envelope(given_body, content_type="text/plain")


def test_a_web_page_has_a_hint():
    """The most frequent mistake is the address of a login page or a user interface."""
    with pytest.raises(ProviderMalformed) as caught:
        read_envelope(b"  <html>Log in</html>", content_type="text/html")

    assert "login page" in caught.value.hint
    assert "Log in" in str(caught.value)


def test_an_error_with_status_200_is_an_error():
    """Some proxies respond in this way."""
    with pytest.raises(ProviderRefused, match="bad_data: parse error"):
        read_envelope(body(status="error", errorType="bad_data", error="parse error"), content_type="")


@pytest.mark.parametrize("kind", ["vector", "scalar", "string", "streams", ""])
def test_another_type_of_result_is_malformed(kind: str):
    """The result of a scalar is an array too: a time and a value."""
    envelope = read_envelope(answered(kind, [1700000000, "1"]), content_type="")

    with pytest.raises(ProviderMalformed, match="not a matrix"):
        series_of(envelope, expects="matrix")


# --- errors by status ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "text", "kind", "part", "hint"),
    [
        (401, "Unauthorized", ProviderRefused, "credentials are required", "provider.token_file"),
        (403, "Forbidden", ProviderRefused, "is forbidden", "permission to query"),
        (302, "", ProviderRefused, "https://login.example/x", "provider.address"),
        (404, "404 page not found", ProviderRefused, "query API", "/prometheus"),
        (400, "Client sent an HTTP request to an HTTPS server.", ProviderRefused, "plain HTTP", "https://"),
        (
            400,
            '{"status":"error","errorType":"bad_data","error":"1:5: parse error"}',
            ProviderRefused,
            "1:5",
            "queries",
        ),
        (
            422,
            '{"status":"error","errorType":"execution","error":"too many samples"}',
            ProviderRefused,
            "more samples",
            "max-samples",
        ),
        (422, '{"status":"error","errorType":"422","error":"cannot parse"}', ProviderRefused, "cannot parse", "quer"),
        (
            422,
            '{"status":"error","errorType":"execution","error":"expanding series: context deadline exceeded"}',
            ProviderTimeout,
            "timed out on the server",
            "Recording rules",
        ),
        (
            503,
            '{"status":"error","errorType":"timeout","error":"query timed out"}',
            ProviderUnreachable,
            "timed out",
            "",
        ),
        (
            500,
            '{"status":"error","errorType":"timeout","error":"slow"}',
            ProviderTimeout,
            "timed out on the server",
            "Recording",
        ),
        (503, "Service Unavailable", ProviderUnreachable, "503", ""),
        (502, "<html>Bad Gateway</html>", ProviderUnreachable, "502", ""),
        (504, "", ProviderUnreachable, "504", ""),
        (429, "slow down", ProviderUnreachable, "429", ""),
        (500, '{"status":"error","errorType":"internal","error":"corrupt block"}', ProviderRefused, "corrupt", ""),
        (418, "teapot", ProviderRefused, "teapot", ""),
    ],
)
def test_each_status_has_its_kind_of_error_and_its_remedy(status: int, text: str, kind: type, part: str, hint: str):
    """Transient failures are retried, refusals are not; the hint names the setting."""
    error = error_of(HttpResponse(status, text.encode(), {}, None), "https://login.example/x", False)

    assert type(error) is kind
    assert part in str(error)
    assert hint in error.hint


def test_the_hint_distinguishes_wrong_credentials_from_missing_ones():
    with_token, without = (error_of(HttpResponse(401, b"", {}, None), "", sent).hint for sent in (True, False))

    assert "rejected" in with_token
    assert "Set provider.token" in without


@given(st.binary(max_size=2000), st.sampled_from([200, 400, 401, 403, 404, 422, 500, 503]))
@settings(max_examples=100, deadline=None)
def test_an_error_shows_a_short_printable_text(garbage: bytes, status: int):
    """For any response: one line, shortened, without control characters."""
    error = error_of(HttpResponse(status, garbage, {}, None), "", True)

    assert str(error).isprintable()
    assert len(str(error)) < 2 * SHOWN_CHARACTERS + 100


def test_a_long_text_is_shortened():
    """To 256 characters, including the mark."""
    assert "a b" == printable("a\n\x1b\tb")
    assert "x" * 255 + "…" == printable("x" * 257)
    assert "x" * 256 == printable("x" * 256)


# --- samples ---------------------------------------------------------------------------------------------------------


def test_samples_of_several_series():
    """Times and values in the order of the series; a node may have several."""
    reading = read_samples(
        raws(
            {"metric": {"node": "a", "device": "x"}, "values": [[100.5, "1"], [115.5, "2.5"]]},
            {"metric": {"node": "a", "device": "y"}, "values": [[100.5, "3e-05"]]},
            {"metric": {"node": "b"}, "values": []},
            {"metric": {"node": "c"}, "values": [[1, "4"]]},
        ),
        label=NODE,
    )

    assert ("a", "a", "b", "c") == reading.keys
    assert [0, 0, 1, 3] == reading.series.tolist()
    assert [100.5, 115.5, 100.5, 1.0] == reading.time.tolist()
    assert [1.0, 2.5, 3e-05, 4.0] == reading.value.tolist()


def test_special_values_are_passed_on():
    """They are strings in the response; the review handles them."""
    values = ["NaN", "+Inf", "-Inf", "1"]
    reading = read_samples(
        raws({"metric": {"node": "a"}, "values": [[t, v] for t, v in enumerate(values)]}), label=NODE
    )

    assert np.array_equal([math.nan, math.inf, -math.inf, 1.0], reading.value, equal_nan=True)


def test_staleness_markers_are_not_samples():
    """VictoriaMetrics shows them as NaN; a series with no other values keeps its place."""
    ended = {"metric": {"node": "a"}, "values": [[1, "NaN"]]}
    goes_on = {"metric": {"node": "b"}, "values": [[1, "5"], [2, "NaN"], [3, "+Inf"]]}
    reading = read_samples(raws(ended, goes_on), label=NODE, stale_markers=True)

    assert ("a", "b") == reading.keys
    assert ([1, 1], [1.0, 3.0], [5.0, math.inf]) == tuple(
        one.tolist() for one in (reading.series, reading.time, reading.value)
    )


def test_an_empty_response_has_no_samples():
    """It is valid."""
    reading = read_samples([], label=NODE)

    assert ((), 0, 0, 0) == (reading.keys, len(reading.series), len(reading.time), len(reading.value))


def test_samples_are_sorted_by_time():
    """Within each series."""
    reading = read_samples(
        raws(
            {"metric": {"node": "a"}, "values": [[30, "3"], [10, "1"], [20, "2"]]},
            {"metric": {"node": "b"}, "values": [[5, "5"]]},
        ),
        label=NODE,
    )

    assert [0, 0, 0, 1] == reading.series.tolist()
    assert [10, 20, 30, 5] == reading.time.tolist()
    assert [1, 2, 3, 5] == reading.value.tolist()


def test_a_series_without_the_label_has_no_name_and_shows_its_labels():
    """The finding lists them."""
    reading = read_samples(
        raws(
            {"metric": {"instance": "i:1", "job": "x"}, "values": [[1, "1"]]},
            {"metric": {"node": ""}, "values": [[1, "1"]]},
            {"values": [[1, "1"]]},
            {"metric": {"node": "a", "zone": "z"}, "values": [[1, "1"]]},
        ),
        label=NODE,
    )

    assert (None, None, None, "a") == reading.keys
    assert {"instance", "job", "node"} == reading.labels


def test_native_histograms_have_no_samples():
    """They have no `values`."""
    reading = read_samples(raws({"metric": {"node": "a"}, "histograms": [[1, {"count": "1"}]]}), label=NODE)

    assert ("a",) == reading.keys
    assert 0 == len(reading.value)


@pytest.mark.parametrize(
    "row",
    [
        {"metric": {"node": "a"}, "values": [[1, "one"]]},
        {"metric": {"node": "a"}, "values": [[1, ""]]},
        {"metric": {"node": "a"}, "values": [[1, None]]},
        {"metric": {"node": "a"}, "values": [[1, {}]]},
        {"metric": {"node": "a"}, "values": [["now", "1"]]},
        {"metric": {"node": "a"}, "values": [[1]]},
        {"metric": {"node": "a"}, "values": [[1, "1", "2"]]},
        {"metric": {"node": "a"}, "values": [1, "1"]},
        {"metric": {"node": "a"}, "values": "1"},
        {"metric": {"node": 7}, "values": []},
        {"metric": ["node"], "values": []},
        [],
        "x",
        None,
    ],
)
def test_a_value_that_is_not_a_number_is_malformed(row: Any):
    """So is each other invalid series."""
    with pytest.raises(ProviderMalformed):
        read_samples(raws({"metric": {"node": "b"}, "values": [[1, "1"]]}, row), label=NODE)


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", None]),
            st.lists(st.tuples(st.floats(1e9, 2e9), st.floats(allow_nan=True, allow_infinity=True)), max_size=4),
        ),
        max_size=5,
    )
)
@settings(max_examples=100, deadline=None)
def test_samples_are_decoded_exactly(series: list[tuple[str | None, list[tuple[float, float]]]]):
    """Each value in Go's notation is decoded bit by bit, under its own series."""

    def as_go(value: float) -> str:
        return {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}.get(repr(value), repr(value))

    ordered = [(key, sorted(pairs)) for key, pairs in series]
    reading = read_samples(
        raws(
            *(
                {"metric": {"node": key} if key else {"x": "y"}, "values": [[t, as_go(v)] for t, v in pairs]}
                for key, pairs in ordered
            )
        ),
        label=NODE,
    )

    assert tuple(key for key, _ in ordered) == reading.keys
    for row, (_, pairs) in enumerate(ordered):
        mine = reading.series == row
        assert [time for time, _ in pairs] == reading.time[mine].tolist()
        assert np.array_equal(np.array([value for _, value in pairs]), reading.value[mine], equal_nan=True)


def test_labels_of_a_vector():
    """For any values."""
    assert [{"node": "a"}, {}] == read_labels(
        raws({"metric": {"node": "a"}, "value": [1, "5000"]}, {"metric": {}, "value": [1, "1"]})
    )
    with pytest.raises(ProviderMalformed):
        read_labels(raws({"metric": {"node": None}}))


@pytest.mark.parametrize(
    ("times", "interval"),
    [
        ([[0, 15, 30, 45]], 15.0),
        ([[0, 15.004, 29.998, 45.1]], 15.0),
        ([[0, 60, 120], [5, 65, 125, 400]], 60.0),
        ([[0, 1, 2]], 1.0),
        ([[0, 0.2, 0.4]], 1.0),
        ([[0, 15]], None),
        ([[0], [15], [30]], None),
        ([], None),
    ],
)
def test_the_scrape_interval_is_the_median_distance_of_samples(times: list[list[float]], interval: float | None):
    """In whole seconds, within series and not between them; at least two distances are needed."""
    series = raws(*({"metric": {}, "values": [[t, "1"] for t in each]} for each in times))

    assert interval == scrape_interval(series)
