"""GET /api/v1/pods: the listed pods, their encoded bodies, and the reasons for a missing list."""

import gzip
import json
from typing import Any
from urllib.parse import quote

import pytest
import zstandard

from tests.fakes.pods import many_pods, publish_pods, small_pods
from tests.fakes.service import FakeService, Live

PODS = "/api/v1/pods"


def with_pods(**options: Any) -> FakeService:
    return FakeService(pods=publish_pods(small_pods(), **options))


def names(document: dict[str, Any]) -> list[str]:
    return [f"{namespace}/{pod}" for namespace, pod in zip(document["namespace"], document["pod"], strict=True)]


def test_all_pods_as_columns():
    """In order, null for unknown values, with the covered windows."""
    with Live(with_pods()) as live:
        answer = live.ask(PODS)
    assert 200 == answer.status
    assert "application/json" == answer.headers["Content-Type"]
    document = answer.json()
    assert ["a/web-0", "a/web-1", "b/job"] == names(document)
    assert ["node-1", "node-2", "node-2"] == document["node"]
    assert [0.25, 1.5, 0.0] == document["cores"]
    assert [2**30, 2**31, None] == document["bytes"]
    assert [1_700_000_000.0] * 3 == document["time"]
    assert {"5m": [0.25, 1.5, 0.0], "10m": [None] * 3, "15m": [None] * 3} == {
        each["window"]: each["cores"] for each in document["averages"]
    }
    assert (120.0, "rss", 60.0) == (document["cores_span_s"], document["bytes_kind"], document["every_s"])


@pytest.mark.parametrize(("query", "known"), [("minutes=2", 2), ("minutes=15", 15), ("minutes=1440", 15)])
def test_minutes_are_added_on_request(query, known):
    """The newest ones, at most those of the longest window; with a selection, only of the selected pods."""
    with Live(with_pods()) as live:
        document = live.ask(f"{PODS}?{query}").json()
        selected = live.ask(f"{PODS}?{query}&namespace=b").json()
        without = live.ask(PODS).json()
        same_body = live.ask(f"{PODS}?minutes=15").headers["ETag"] == live.ask(f"{PODS}?minutes=99").headers["ETag"]
    minutes = document["minutes"]
    assert 1_700_000_000 // 60 * 60 == minutes["newest"]
    assert (known, known) == (len(minutes["cores"]), len(minutes["bytes"]))
    assert [[0.25, 1.5, 0.0]] * 2 == minutes["cores"][-2:]
    assert [2**30, 2**31, None] == minutes["bytes"][-1]
    assert [0.0] == selected["minutes"]["cores"][-1]
    assert "minutes" not in without
    assert same_body


@pytest.mark.parametrize("value", ["0", "-1", "1441", "1.5", "", "all", "9" * 5000, "\u0663"])
def test_an_invalid_number_of_minutes_is_refused(value):
    with Live(with_pods()) as live:
        answer = live.ask(f"{PODS}?minutes={quote(value)}")
    assert (400, "bad_request") == (answer.status, answer.error["code"])
    assert "1 to 1440" in answer.error["hint"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("host=node-2", ["a/web-1", "b/job"]),
        ("host=node-2&namespace=a", ["a/web-1"]),
        ("host=node-1&host=node-2&namespace=b&namespace=a", ["a/web-0", "a/web-1", "b/job"]),
        ("namespace=b", ["b/job"]),
        ("host=&namespace=b", ["b/job"]),
        ("host=", ["a/web-0", "a/web-1", "b/job"]),
    ],
)
def test_parameters_select_pods(query, expected):
    """By AND; several values of one parameter by OR; an empty value selects all."""
    with Live(with_pods()) as live:
        document = live.ask(f"{PODS}?{query}").json()
    assert expected == names(document)
    assert {len(expected)} == {len(document[name]) for name in ("node", "time", "cores", "bytes")}
    assert {len(expected)} == {len(each[name]) for each in document["averages"] for name in ("cores", "bytes")}


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("host=node-9", 404, "unknown_host"),
        ("host=node-9&host=node-1&namespace=none", 404, "unknown_host"),
        ("host=node-3", 404, "no_pods"),  # a node that has windows, but no pod
        ("namespace=none", 404, "no_pods"),
        ("pod=web-0", 400, "bad_request"),
        ("nodes=node-1", 400, "bad_request"),
        ("host=node-3&missing=none", 400, "bad_request"),
        ("host=node-3&missing=error", 404, "no_pods"),
    ],
)
def test_a_missing_list_of_pods_is_an_error(query, status, code):
    """Never an empty list, which looks like an idle node."""
    with Live(with_pods()) as live:
        answer = live.ask(f"{PODS}?{query}")
    assert (status, code) == (answer.status, answer.error["code"])


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("host=node-3", "no pods found on the requested nodes and in the requested namespaces"),
        ("namespace=none&minutes=2", "no pods found on the requested nodes and in the requested namespaces"),
        ("host=node-9", "no metrics for node 'node-9'"),
    ],
)
def test_an_empty_list_on_request_has_the_reason(query: str, reason: str) -> None:
    with Live(with_pods()) as live:
        answer = live.ask(f"{PODS}?{query}&missing=empty")
        found = live.ask(f"{PODS}?host=node-1&missing=empty").json()
    assert 200 == answer.status
    document = answer.json()
    assert ([], [], reason) == (document["pod"], document["averages"][0]["cores"], document["reason"])
    assert (["web-0"], False) == (found["pod"], "reason" in found)


def test_a_request_starts_the_collection_of_pods():
    """Before the first list, the error states when to retry."""
    with Live() as live:
        answer = live.ask(PODS)
        assert (404, "no_pods") == (answer.status, answer.error["code"])
        assert "60" == answer.headers["Retry-After"]
        assert 1 == live.service.wanted
        live.ask(f"{PODS}?host=node-1")
        assert 2 == live.service.wanted
        live.ask("/watcher")
        live.ask("/metrics")
        assert 2 == live.service.wanted


@pytest.mark.parametrize("pods", [None, publish_pods({})], ids=["none", "empty"])
def test_the_reason_of_the_source_is_in_the_hint(pods):
    with Live(FakeService(pods=pods, no_pods="InfluxDB has no usage of pods. Use another source")) as live:
        answer = live.ask(PODS)
    assert 404 == answer.status
    assert "InfluxDB has no usage of pods. Use another source" == answer.error["hint"]
    assert "Retry-After" not in answer.headers


def test_stale_pods_are_not_served():
    """Like stale nodes."""
    service = with_pods(age_s=10.0)
    with Live(service) as live:
        service.clock += 289.0
        answer = live.ask(PODS)
        assert (200, "299") == (answer.status, answer.headers["Age"])
        service.clock += 2.0
        answer = live.ask(PODS)
    assert (503, "stale") == (answer.status, answer.error["code"])


def test_bodies_are_encoded_once_and_identified_by_their_etag():
    """The same ETag while the pods are published, another one for another encoding, selection and table; 304 for a
    known one."""
    service = with_pods()
    with Live(service) as live:
        plain = live.ask(PODS)
        zipped = live.ask(PODS, headers={"Accept-Encoding": "gzip"})
        small = live.ask(PODS, headers={"Accept-Encoding": "zstd"})
        selected = live.ask(f"{PODS}?namespace=b&host=node-2")
        turned = live.ask(f"{PODS}?host=node-2&namespace=b&host=node-2")
        assert plain.body == gzip.decompress(zipped.body)
        assert plain.body == zstandard.ZstdDecompressor().decompressobj().decompress(small.body)
        assert selected.headers["ETag"] == turned.headers["ETag"]
        others = [live.ask(f"{PODS}?host={node}") for node in ("node-1", "node-2")]
        tags = {each.headers["ETag"] for each in (plain, zipped, small, selected, *others)}
        assert 6 == len(tags)
        for answer, path in ((plain, PODS), (selected, f"{PODS}?host=node-2&namespace=b")):
            again = live.ask(path, headers={"If-None-Match": answer.headers["ETag"]})
            assert (304, b"") == (again.status, again.body)
        service.pods = publish_pods(small_pods(), tag="p2")
        assert live.ask(PODS, headers={"If-None-Match": plain.headers["ETag"]}).status == 200
    assert "max-age=60, must-revalidate" == plain.headers["Cache-Control"]


def test_head_has_no_body():
    with Live(with_pods()) as live:
        answer = live.ask(PODS, method="HEAD")
        assert (200, b"") == (answer.status, answer.body)
        assert (
            "405 GET, HEAD"
            == f"{live.ask(PODS, method='POST').status} {live.ask(PODS, method='POST').headers['Allow']}"
        )


@pytest.mark.slow
def test_thousands_of_pods_arrive_complete():
    """They are sent in parts."""
    with Live(FakeService(pods=publish_pods(many_pods(20_000)))) as live:
        document = json.loads(gzip.decompress(live.ask(PODS, headers={"Accept-Encoding": "gzip"}).body))
        assert 20_000 == len(document["pod"])
        assert 30 == len(live.ask(f"{PODS}?host=node-00007").json()["pod"])
