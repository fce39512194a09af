"""The service on a source of several clusters: a Thanos or a Mimir with a part that may be unavailable."""

import json
import time

import pytest

from tests.conftest import RunService
from tests.fakes.prometheus import Asked, FakePrometheus, matrix, responded, vector
from tests.real.parts import new_secret
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

CPU = "instance:node_cpu:ratio"
CONFIG = """
[cluster]
name = "prod-1"
[provider]
name = "prometheus"
address = "{address}"
metrics = ["CPU", "Memory"]
matchers = {{ cluster = "prod-1" }}
headers = {{ "X-Scope-OrgID" = "{tenant}" }}
[refresh]
interval = "20s"   # ticks run every resolution until there are windows, and may take 0.8 of this
resolution = "1s"
[log]
format = "json"
"""


class Mimir:
    """A server for one tenant with the CPU of two nodes since a minute ago, which is not a window yet; `away` removes
    one of them, with a warning."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.away = False
        self.since = int(time.time()) - 60

    def answer(self, asked: Asked) -> bytes:
        if asked.headers.get("x-scope-orgid") != self.tenant:
            return responded("no org id", status=401)
        more = {"warnings": ["ingester-2 is away"]} if self.away else {}
        names = ["a"] if self.away else ["a", "b"]
        rows = [{"node": name, "cluster": "prod-1"} for name in names if CPU in asked.query]
        if asked.query.startswith(("count", "group")):
            return vector(*rows, **more)
        until = int(float(asked.parameters.get("time") or asked.parameters["end"]))
        points = [(float(at), str(at % 7 / 10)) for at in range(self.since, until + 1)]
        return matrix(*((row, points) for row in rows), **more)


def test_a_cluster_among_others_and_a_part_that_becomes_unavailable(run_service: RunService):
    """Only its own series are queried, as its tenant; nodes that a partial response lacks stay, and it is reported."""
    mimir = Mimir(new_secret())
    with FakePrometheus(mimir.answer) as server:
        service = run_service(config=CONFIG.format(address=server.url, tenant=mimir.tenant))

        def health() -> str:
            answer = service.get("/watcher/health")
            return str(answer.json()["status"]) if answer.status == 200 else ""

        def served() -> set[str]:
            answer = service.get("/watcher")
            return set(answer.json()["data"]["NodeMetricsMap"]) if answer.status == 200 else set()

        wait_for(lambda: served() == {"a", "b"}, what="both nodes", timeout=60)
        wait_for(lambda: health() == "ok", what="a whole answer")
        mimir.away = True
        wait_for(lambda: health() == "partial", what="a partial answer", timeout=60)
        assert "ingester-2 is away" == service.get("/watcher/health").json()["reason"]
        assert {"a", "b"} == served()
        metrics = service.get("/metrics").text
        findings = service.get("/api/v1/findings").json()["findings"]
        mimir.away = False
        wait_for(lambda: health() == "ok", what="a whole answer", timeout=60)
        assert 0 == service.stop()

    for line in (
        "load_watcher_provider_partial 1.0",
        "load_watcher_provider_up 1.0",
        'load_watcher_cluster_info{cluster="prod-1"} 1.0',
    ):
        assert line in metrics.splitlines()
    assert ["held"] == [
        each["remedy"] for each in findings if (each["kind"], each["metric"]) == ("partial_response", CPU)
    ]
    assert [query for query in server.queries if 'cluster="prod-1"' not in query] == []
    assert {mimir.tenant} == {asked.headers["x-scope-orgid"] for asked in server.asked}
    events = [json.loads(line) for line in service.log().splitlines() if line.startswith("{")]
    assert events
    assert {"prod-1"} == {event["cluster"] for event in events}
    assert any("returns partial data: ingester-2 is away" in event["message"] for event in events)
    assert mimir.tenant not in service.log() + metrics + json.dumps(findings)
