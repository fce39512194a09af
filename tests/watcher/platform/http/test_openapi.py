"""The OpenAPI document describes the service: it is valid, complete, and equal to real responses."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fakes.pods import publish_pods, small_pods
from tests.fakes.service import FakeService, Live, Protection, stored
from tests.fakes.snapshots import publish, small_fleet, snapshot_of
from tests.schemas import check_openapi, draft202012
from watcher.core.koordinator.report import Capacity
from watcher.core.publishing.wire import FindingEntry, FindingsDocument, QuerySource
from watcher.model import MetricType, Operator, ProviderHealth
from watcher.platform.http.openapi import Operation, Parameter, ResponseSpec
from watcher.platform.http.routing import Route

FINDINGS = FindingsDocument(
    timestamp=1_700_000_001,
    review_mode="enforce",
    findings=[FindingEntry("jump", "node-1", "instance:node_cpu:ratio", "it jumped", "reported", 1, 2, 3)],
    sources=[QuerySource("instance:node_cpu:ratio", "CPU", "up", "ratio", "node", 300.0, "the rule exists")],
)


def service() -> FakeService:
    fleet = publish(snapshot_of(small_fleet(), ages={"node-2": 120.5}))
    pods = publish_pods(small_pods())
    sizes = {"node-1": Capacity(4000, 16 << 30)}
    return FakeService(published=fleet, pods=pods, sizes=sizes, found=FINDINGS, series=[stored({1_699_999_800: 12.5})])


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with Live(service()) as running:
        yield running


@pytest.fixture(scope="module")
def document(live) -> dict[str, Any]:
    return live.ask("/openapi.json").json()


def errors(document: dict[str, Any], path: str, answer: Any) -> list[str]:
    """The differences between a response to GET and the description of its path and status."""
    responses = document["paths"][path]["get"]["responses"]
    described = responses.get(str(answer.status), responses["default"])
    ((media_type, content),) = described["content"].items()
    assert media_type == answer.headers["Content-Type"].partition(";")[0]
    schema = {**content["schema"], "components": document["components"]}  # references are #/components/schemas/...
    return [error.message for error in draft202012(schema).iter_errors(answer.json())]


@pytest.mark.parametrize(
    ("path", "name", "values"),
    [
        ("/watcher", "window", ["5m", "10m", "15m"]),
        ("/watcher", "shape", ["watcher", "kep"]),
        ("/api/v1/history", "window", ["5m", "10m", "15m"]),
        ("/api/v1/history", "shape", ["series", "rows"]),
        ("/api/v1/columns", "type", [kind.value for kind in MetricType]),
        ("/api/v1/columns", "operator", [operator.value for operator in Operator]),
    ],
)
def test_closed_sets_of_values_are_declared(document, path, name, values):
    """Generated clients and fuzzers send no other values."""
    (parameter,) = [each for each in document["paths"][path]["get"]["parameters"] if each["name"] == name]
    schema = parameter["schema"]
    assert values == schema.get("items", schema)["enum"]


def test_the_document_is_valid(document):
    """By the schema and rules of the standard."""
    check_openapi(document)


def test_each_path_is_described(document):
    """All paths of the API, except those of other packages."""
    assert {
        "/",
        "/watcher",
        "/watcher/{host}",
        "/watcher/health",
        "/api/v1/columns",
        "/api/v1/pods",
        "/api/v1/nodemetrics",
        "/api/v1/nodemetrics/{host}",
        "/api/v1/history",
        "/api/v1/findings",
        "/api/v1/overview",
        "/api/v1/silent",
        "/api/v1/problems",
        "/api/v1/trend",
        "/api/v1/forecasts",
        "/api/v1/labels",
        "/healthz",
        "/readyz",
        "/metrics",
        "/openapi.json",
    } == set(document["paths"])
    assert all({"get", "head"} == set(path) for path in document["paths"].values())
    assert "1.2.3" == document["info"]["version"]


def test_each_path_parameter_and_code_is_documented(document):
    """In docs/reference/api.md."""
    repository = Path(__file__).parents[4]
    text = (repository / "docs" / "reference" / "api.md").read_text()

    for path, operations in document["paths"].items():
        assert f"`{path}`" in text
        for parameter in operations["get"]["parameters"]:
            assert f"`{parameter['name']}`" in text or f"{{{parameter['name']}}}" in text
    folders = (repository / "watcher" / "api", repository / "watcher" / "platform" / "http")
    sources = [path.read_text() for folder in folders for path in folder.rglob("*.py")]
    codes = {code for source in sources for code in re.findall(r'ApiError\(\s*(?:\d+|status),\s*"(\w+)"', source)}
    assert {"stale", "partial_outage", "bad_request", "unauthorized"} <= codes
    assert [] == [code for code in sorted(codes) if f"`{code}`" not in text]


def test_operation_ids_are_unique(document):
    """Generators use them as names of functions."""
    ids = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]

    assert len(set(ids)) == len(ids)


def test_parameters_name_all_their_values(document):
    """Types and operators are closed sets; a repeatable parameter is described as one."""
    parameters = {one["name"]: one for one in document["paths"]["/watcher"]["get"]["parameters"]}

    assert {"window", "host", "type", "operator", "horizon", "shape"} == set(parameters)
    assert [kind.value for kind in MetricType] == parameters["type"]["schema"]["items"]["enum"]
    assert [operator.value for operator in Operator] == parameters["operator"]["schema"]["items"]["enum"]
    assert not any(one["required"] for one in parameters.values())
    (host,) = (one for one in document["paths"]["/watcher/{host}"]["get"]["parameters"] if one["in"] == "path")
    assert host["required"]


LIVE = [
    ("/watcher", "/watcher"),
    ("/watcher", "/watcher?window=5m&operator=Latest&operator=P99"),
    ("/watcher", "/watcher?shape=kep"),
    ("/watcher/{host}", "/watcher/node-2"),
    ("/watcher/health", "/watcher/health"),
    ("/api/v1/columns", "/api/v1/columns"),
    ("/api/v1/columns", "/api/v1/columns?operator=Latest&type=CPU"),
    ("/api/v1/columns", "/api/v1/columns?aggregate=koordlet"),
    ("/api/v1/pods", "/api/v1/pods"),
    ("/api/v1/pods", "/api/v1/pods?host=node-2&namespace=b"),
    ("/api/v1/pods", "/api/v1/pods?minutes=15"),
    ("/api/v1/pods", "/api/v1/pods?host=nope"),
    ("/api/v1/nodemetrics", "/api/v1/nodemetrics"),
    ("/api/v1/nodemetrics/{host}", "/api/v1/nodemetrics/node-1"),
    ("/api/v1/nodemetrics/{host}", "/api/v1/nodemetrics/node-2"),
    ("/api/v1/nodemetrics/{host}", "/api/v1/nodemetrics/nope"),
    ("/api/v1/nodemetrics", "/api/v1/nodemetrics?x"),
    ("/api/v1/history", "/api/v1/history?host=node-1"),
    ("/api/v1/history", "/api/v1/history?host=node-1&shape=rows"),
    ("/api/v1/findings", "/api/v1/findings"),
    ("/api/v1/overview", "/api/v1/overview"),
    ("/api/v1/silent", "/api/v1/silent"),
    ("/api/v1/problems", "/api/v1/problems"),
    ("/api/v1/problems", "/api/v1/problems?x"),
    ("/api/v1/labels", "/api/v1/labels"),
    ("/api/v1/trend", "/api/v1/trend"),
    ("/api/v1/forecasts", "/api/v1/forecasts"),
    ("/healthz", "/healthz"),
    ("/readyz", "/readyz"),
    ("/openapi.json", "/openapi.json"),
    ("/watcher", "/watcher?window=1s"),
    ("/watcher", "/watcher?type=Energy"),
    ("/watcher/{host}", "/watcher/nope"),
    ("/api/v1/columns", "/api/v1/columns?shape=kep"),
    ("/api/v1/history", "/api/v1/history?host=a&from=x"),
    ("/api/v1/findings", "/api/v1/findings?x"),
]


@pytest.mark.parametrize(("path", "asked"), LIVE)
def test_real_responses_match_the_description(live, document, path, asked):
    """Status, media type and body."""
    assert [] == errors(document, path, live.ask(asked))


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/watcher", "/watcher"),
        ("/watcher/{host}", "/watcher/node-1"),
        ("/api/v1/columns", "/api/v1/columns"),
        ("/watcher/health", "/watcher/health"),
        ("/healthz", "/healthz"),
        ("/readyz", "/readyz"),
    ],
)
def test_real_errors_match_the_description(document, path, asked):
    """For a service without any data."""
    troubled = replace(service(), clock=9999.0, wrong="stuck", provider_health=ProviderHealth(False, "down", 1.0))
    with Live(troubled) as live:
        answer = live.ask(asked)

    assert 503 == answer.status
    assert [] == errors(document, path, answer)


def test_errors_of_all_paths_are_described(document):
    """Without a token, or without a supported encoding: they are the default response of each operation."""
    with Live(service(), protection=Protection("secret", protect_reads=True)) as live:
        authorized = {"Authorization": "Bearer secret"}
        for path in ("/watcher", "/metrics", "/api/v1/overview", "/openapi.json"):
            assert [] == errors(document, path, live.ask(path))
        refused = live.ask("/watcher", headers={**authorized, "Accept-Encoding": "br, identity;q=0"})
        assert [406, []] == [refused.status, errors(document, "/watcher", refused)]


def test_pages_and_metrics_are_described_as_text(live, document):
    """With their media type, without a schema."""
    for path in ("/", "/metrics"):
        described = document["paths"][path]["get"]["responses"]["200"]["content"]
        assert list(described) == [live.ask(path).headers["Content-Type"].partition(";")[0]]


def test_a_wrong_response_is_detected(live, document):
    """The check of these tests can fail."""
    answer = live.ask("/watcher")
    body = answer.json()
    body["window"]["start"] = "then"
    body["data"]["NodeMetricsMap"]["node-1"]["metrics"][0]["value"] = None
    broken = replace(answer, body=msgspec.json.encode(body))

    assert errors(document, "/watcher", broken)


def test_protection_is_described():
    """With protected reads, each operation needs the token; otherwise it is optional."""
    with Live(protection=Protection("secret", protect_reads=True)) as live:
        document = live.ask("/openapi.json", headers={"Authorization": "Bearer secret"}).json()
    assert [{"token": []}] == document["security"]
    check_openapi(document)


class Question(msgspec.Struct):
    """The body of a route of another package."""

    pod: str
    nodes: list[str] = []


def test_routes_of_other_packages_are_described():
    """With their bodies, parameters and methods."""

    async def handler(request, captured):
        raise NotImplementedError

    operation = Operation(
        "Rank nodes",
        {200: ResponseSpec("the ranking", list[Question])},
        (Parameter("profile", "which one", place="path"),),
        "At length.",
        request=Question,
    )
    with Live(routes=[Route("/scheduler/{profile}/rank", "rank", handler, operation, method="POST")]) as live:
        document = live.ask("/openapi.json").json()
    described = document["paths"]["/scheduler/{profile}/rank"]

    check_openapi(document)
    assert ["post"] == list(described)
    assert described["post"]["requestBody"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/Question"
    }
    assert "At length." == described["post"]["description"]
    assert {"pod"} == set(document["components"]["schemas"]["Question"]["required"])
