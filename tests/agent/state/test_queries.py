"""Operator-defined metrics from a Prometheus: a fake one and a real one."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.state.remote import PrometheusQueryClient, QueryMetrics, prometheus_connection
from tests.fakes.prometheus import FakePrometheus, responded, result
from tests.real.parts import Prometheus
from tests.real.remote_write import Series as Written
from tests.waiting import eventually

NOW = 1_700_000_000.0


def row(value: str, **labels: str) -> dict[str, Any]:
    return {"metric": labels, "value": [NOW, value]}


def watching(
    url: str,
    expressions: dict[str, str],
    inside: Callable[[QueryMetrics], Awaitable[None]],
    *,
    token_file: Path | None = None,
    **config: Any,
) -> None:
    async def run() -> None:
        questions = PrometheusQueryClient(replace(prometheus_connection(url, token_file), backoff=(), **config))
        source = QueryMetrics(questions, expressions, node="node-1", interval=0.1, monotonic=lambda: 1000.0)
        await source.start()
        try:
            await inside(source)
        finally:
            await source.close()

    asyncio.run(run())


def why_not(source: QueryMetrics, name: str = "mine", *, monotonic: float = 1000.0) -> str:
    return source.read(now=NOW, monotonic=monotonic).missing.get(name, "")


def test_each_series_of_a_response_is_a_series_of_the_metric():
    rows = [row("12.5", disk="sda"), row("7", disk="sdb"), row("NaN", disk="sdc"), row("+Inf", disk="sdd")]
    with FakePrometheus(lambda _: result("vector", rows)) as server:

        async def inside(source: QueryMetrics) -> None:
            assert "no response yet" in why_not(source)
            await eventually(lambda: not why_not(source), what="an answer")
            found = source.read(now=NOW, monotonic=1000.1).series["mine"]
            assert [(each.value, dict(each.labels)) for each in found] == [
                (12.5, {"disk": "sda"}),
                (7.0, {"disk": "sdb"}),
            ]
            assert found[0].time == pytest.approx(NOW - 0.1)

        watching(server.url, {"mine": 'max by (disk) (io{node="$node"})'}, inside)
        assert set(server.queries) == {'max by (disk) (io{node="node-1"})'}


def test_a_response_becomes_too_old_without_prometheus(caplog):
    down = False
    with FakePrometheus(lambda _: responded("{}", status=503) if down else result("vector", [row("1")])) as server:

        async def inside(source: QueryMetrics) -> None:
            nonlocal down
            await eventually(lambda: not why_not(source), what="an answer")
            down = True
            await eventually(lambda: "updates of the agent's own queries stopped" in caplog.text, what="a warning")
            assert not why_not(source, monotonic=1000.25)
            assert "the last result of its query is" in why_not(source, monotonic=1000.5)
            down = False
            await eventually(lambda: not why_not(source), what="another answer")

        watching(server.url, {"mine": "up"}, inside)


def test_a_failed_query_does_not_affect_others():
    bad = json.dumps({"status": "error", "errorType": "bad_data", "error": "parse error: unexpected end of input"})

    def answer(asked: Any) -> bytes:
        if asked.query == "good":
            return result("vector", [row("1")])
        return result("vector", []) if asked.query == "empty" else responded(bad, status=400)

    with FakePrometheus(answer) as server:

        async def inside(source: QueryMetrics) -> None:
            await eventually(lambda: not why_not(source, "one"), what="an answer")
            assert "parse error" in why_not(source, "two")
            assert why_not(source, "three") == "its query returned no series"

        watching(server.url, {"one": "good", "two": "bad(", "three": "empty"}, inside)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (responded("<html>login</html>"), "web page"),
        (result("matrix", []), "matrix"),
        (result("vector", [{"metric": {}, "value": [1]}]), "the response has an invalid series"),
        (result("vector", [{"metric": {}, "value": [1, "much"]}]), "the response has an invalid series"),
        (result("vector", [row("1", number=str(each)) for each in range(1001)]), "more than 1000 series"),
        (responded("Unauthorized", status=401), "401"),
    ],
    ids=["web page", "matrix", "half a sample", "no number", "too many", "no token"],
)
def test_an_invalid_response_is_reported(answer: bytes, reason: str):
    with FakePrometheus(lambda _: answer) as server:

        async def inside(source: QueryMetrics) -> None:
            await eventually(lambda: reason in why_not(source), what=reason)

        watching(server.url, {"mine": "up"}, inside)


@pytest.mark.parametrize("missing", [True, False], ids=["no file", "a wrong token"])
def test_hints_name_settings_of_the_agent(tmp_path: Path, missing: bool):
    token = tmp_path / "token"
    if not missing:
        token.write_text("wrong")

    async def inside(source: QueryMetrics) -> None:
        await eventually(lambda: "agent.prometheus_token_file" in why_not(source), what="the agent's key")
        assert "provider." not in why_not(source)

    with FakePrometheus(lambda _: responded("Unauthorized", status=401)) as server:
        watching(server.url, {"mine": "up"}, inside, token_file=token)


@pytest.mark.real
def test_a_real_prometheus_responds(shared_prometheus: Prometheus):
    now = time.time()
    shared_prometheus.write([Written({"__name__": "latency", "node": "node-1"}, [now - 1], [0.25])])

    async def inside(source: QueryMetrics) -> None:
        await eventually(lambda: not why_not(source, "mine"), what="an answer")
        (found,) = source.read(now=now, monotonic=1000.0).series["mine"]
        assert (found.value, found.labels) == (250.0, {})
        assert "parse error" in why_not(source, "wrong")
        assert why_not(source, "absent") == "its query returned no series"

    expressions = {"mine": '1000 * max(latency{node="$node"})', "wrong": "max(", "absent": "nothing"}
    watching(shared_prometheus.url, expressions, inside)
