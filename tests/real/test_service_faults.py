"""A source that answers wrongly costs its answer and nothing else: what is served stays true, valid and explained."""

import math
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import RunService, StartPrometheus
from tests.real import proxy as faults
from tests.real.feed import Feed
from tests.real.parts import Prometheus
from tests.real.proxy import FaultyProxy
from tests.service import Answer, Service
from tests.waiting import PATIENCE_SECONDS, wait_for

pytestmark = pytest.mark.real

NODES = 6
SETTINGS = """
[refresh]
interval = "1s"
resolution = "1s"
max_staleness = "{max_staleness}"
"""


@pytest.fixture(scope="module")
def way(shared_prometheus: Prometheus) -> Iterator[FaultyProxy]:
    """The way to a Prometheus in which six nodes go on, which may be made to fail."""
    with Feed(shared_prometheus, NODES, history=400.0), FaultyProxy(shared_prometheus.url) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def shared_service(way: FaultyProxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service behind it, patient enough to outlast every fault here."""
    arguments = ("--provider", "prometheus", "--address", way.url)
    directory = tmp_path_factory.mktemp("service")
    with Service(directory, *arguments, config=SETTINGS.format(max_staleness="2m")) as service:
        yield service


@pytest.fixture
def service(shared_service: Service, way: FaultyProxy) -> Iterator[Service]:
    """The same with the way clear and its windows full, and left so."""
    way.fault = faults.passed_on
    wait_until_well(shared_service)
    yield shared_service
    way.fault = faults.passed_on


def wait_until_well(service: Service) -> None:
    """Until the source answers again and the newest sample is of now."""
    wait_for(
        lambda: (
            service.get("/watcher/health").status == 200
            and (answer := service.get("/watcher")).status == 200
            and int(answer.headers["Age"]) <= 3
            and rollups(answer) != {""}
        ),
        what="the source to be well",
    )


def rollups(answer: Answer) -> set[str]:
    """The windows that the nodes of a document stand with."""
    nodes = answer.json()["data"]["NodeMetricsMap"].values()
    return {metric["rollup"] for node in nodes for metric in node["metrics"]}


def check_document(answer: Answer, *, nodes: int = NODES) -> dict[str, Any]:
    """It is whole: strict JSON, every node, every number finite and in its bounds."""
    assert 200 == answer.status, answer.text
    document = answer.json()
    assert nodes == len(document["data"]["NodeMetricsMap"])
    for node in document["data"]["NodeMetricsMap"].values():
        assert node["metrics"]
        for metric in node["metrics"]:
            assert math.isfinite(metric["value"])
            if metric["type"] in ("CPU", "Memory"):
                assert 0 <= metric["value"] <= 100
    return dict(document)


def findings(service: Service, kind: str) -> list[dict[str, Any]]:
    return [one for one in service.get("/api/v1/findings").json()["findings"] if one["kind"] == kind]


def seen_since(service: Service, kind: str, moment: float) -> list[dict[str, Any]]:
    """Findings of a kind that were seen after a moment."""
    return [one for one in findings(service, kind) if one["last_seen"] >= int(moment)]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (faults.unavailable, "503"),
        (faults.login_page, "web page"),
        (faults.hang, "no response in time"),
        (faults.trickle, "not complete in time|no response in time"),
        (faults.cut_in_half, "connection"),
        (faults.half_json, "JSON"),
        (faults.values_become("many"), "value|number|float"),
        (faults.renamed_label("instance", "machine"), "label"),
    ],
    ids=["503", "login page", "hang", "trickle", "cut", "half JSON", "words", "label"],
)
def test_a_source_that_fails_as_a_whole_is_down_for_a_reason(
    service: Service, way: FaultyProxy, fault: faults.Fault, reason: str
):
    """Health says why, a finding too, and what was known is served with its age; then all is well again."""
    began = time.time()
    way.fault = fault

    def told() -> bool:
        answer = service.get("/watcher/health")
        if answer.status == 200:
            return False
        error = answer.json()["error"]
        assert (503, "provider_down") == (answer.status, error["code"])
        return any(word in error["message"] for word in reason.split("|"))

    # On a busy machine a tick may be over before the fault has come through: then it is the next one that says why.
    wait_for(told, what=f"the source to be down for {reason}")
    (finding, *_) = seen_since(service, "query_failed", began)
    assert "held" == finding["remedy"] or "left_out" == finding["remedy"]
    document = check_document(service.get("/watcher"))
    assert document["window"]["end"] <= time.time()
    assert 200 == service.get("/healthz").status
    way.fault = faults.passed_on
    wait_until_well(service)
    check_document(service.get("/watcher"))


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (faults.values_become("NaN", "+Inf", "-Inf"), "non_finite"),
        (faults.values_become(None, "NaN"), "non_finite"),
        (faults.values_become(None, "17.5"), "out_of_range"),
        (faults.values_become(None, None, "-9e99"), "out_of_range"),
    ],
    ids=["no numbers", "half numbers", "1750 percent", "huge"],
)
def test_bad_numbers_are_dropped_and_said(service: Service, way: FaultyProxy, fault: faults.Fault, kind: str):
    """The source is well and its samples are not: none of them is served, a finding says so."""
    began = time.time()
    way.fault = fault
    wait_for(lambda: seen_since(service, kind, began), what=f"a finding {kind}")
    for path in ("/watcher", "/watcher?operator=Latest", "/watcher?operator=MAX", "/watcher?window=5m"):
        check_document(service.get(path))
    service.wait_for_status(200, "/watcher/health")  # but for a tick that a busy machine did not let end in time
    columns = service.get("/api/v1/columns").json()
    assert all(value is None or math.isfinite(value) for column in columns["columns"] for value in column["values"])
    lines = [line for line in service.get("/metrics").text.splitlines() if line.startswith("load_watcher_node_")]
    assert lines
    assert not [line for line in lines if line.endswith(("NaN", "Inf"))]


def test_success_without_series_is_no_success(service: Service, way: FaultyProxy):
    """Empty vectors: the last windows stay with a growing age, and a finding says that nothing comes."""
    way.fault = faults.empty
    began = time.time()
    wait_for(lambda: seen_since(service, "no_series", began), what="a finding no_series")
    before, answer, after = time.time(), service.get("/watcher"), time.time()
    document = check_document(answer)
    # Both are whole seconds, and each may be of another one than the time that it stands for.
    assert before - 2 < document["window"]["end"] + int(answer.headers["Age"]) <= after
    assert int(answer.headers["Age"]) >= 2


def test_a_source_with_a_slow_answer_is_a_slow_source(service: Service, way: FaultyProxy):
    """Within its time-out it counts, and new samples keep coming."""
    way.fault = faults.slow(0.3)
    before = service.get("/watcher").json()["timestamp"]
    wait_for(lambda: service.get("/watcher").json()["timestamp"] > before + 2, what="ticks to go on")
    service.wait_for_status(200, "/watcher/health")


def test_ticks_cost_no_request_its_answer(service: Service, way: FaultyProxy):
    """Twenty requests a second in all shapes and codings, over several ticks: no error."""
    paths = (
        "/watcher",
        "/watcher?window=5m",
        "/watcher?shape=kep",
        "/watcher/node-0001",
        "/api/v1/columns",
        "/metrics",
    )
    codings = ("identity", "gzip", "zstd, gzip;q=0.5", "*")
    statuses = set()
    ends = time.monotonic() + 4.0
    number = 0
    while time.monotonic() < ends:
        path, coding = paths[number % len(paths)], codings[number % len(codings)]
        statuses.add(service.get(path, headers={"Accept-Encoding": coding}).status)
        number += 1
        time.sleep(0.05)
    assert {200} == statuses


# --- outages, each with a service of its own -------------------------------------------------------------------------


def start(run_service: RunService, address: str, *, max_staleness: str) -> Service:
    service = run_service(
        "--provider", "prometheus", "--address", address, config=SETTINGS.format(max_staleness=max_staleness)
    )
    wait_until_well(service)
    return service


def poll_until(
    service: Service, done: Callable[[Answer], bool], *, what: str, timeout: float = PATIENCE_SECONDS
) -> list[Answer]:
    """All answers to /watcher until one is as wanted, that one included; /healthz is 200 throughout."""
    answers: list[Answer] = []

    def look() -> bool:
        assert 200 == service.get("/healthz").status
        answers.append(service.get("/watcher"))
        return done(answers[-1])

    wait_for(look, what=what, timeout=timeout)
    return answers


def test_half_of_the_nodes_are_held_and_then_the_list_is_refused(prometheus: Prometheus, run_service: RunService):
    """A partial outage must not herd pods: everyone is in the list, with age_s, or there is no list."""
    with Feed(prometheus, NODES, history=400.0) as feed:
        service = start(run_service, prometheus.url, max_staleness="10s")
        gone = feed.fleet.nodes[: NODES // 2]
        feed.silence(*gone)
        answers = poll_until(service, lambda answer: answer.status == 503, what="the list to be refused")
        held: set[str] = set()
        for answer in answers[:-1]:
            nodes = check_document(answer)["data"]["NodeMetricsMap"]
            held |= {name for name, node in nodes.items() if "age_s" in node}
        # Not equal: on a machine without a free core the samples of the other nodes are late as well.
        assert set(gone) <= held
        assert "partial_outage" == answers[-1].json()["error"]["code"]
        assert findings(service, "partial_outage")
        assert 503 == service.get("/api/v1/columns").status
        assert 503 == service.get(f"/watcher/{gone[0]}").status
        assert 200 == service.get(f"/watcher/{feed.fleet.nodes[-1]}").status
        feed.silence()
        answers = poll_until(service, lambda answer: answer.status == 200, what="the list to be back")
        assert {"partial_outage"} == {answer.json()["error"]["code"] for answer in answers[:-1]}
        check_document(answers[-1])


def test_a_prometheus_that_dies_and_comes_back(start_prometheus: StartPrometheus, run_service: RunService):
    """Served with true Age, then 503 stale, then well again with the gap filled; one log line each way."""
    prometheus = start_prometheus()
    with Feed(prometheus, NODES, history=400.0):
        service = start(run_service, prometheus.url, max_staleness="5s")
        prometheus.kill()
        service.wait_for_status(503, "/watcher/health")
        answers = poll_until(service, lambda answer: answer.status == 503, what="the answer to be stale")
        for answer in answers[:-1]:
            check_document(answer)
            assert int(answer.headers["Age"]) <= 5
        ends = {answer.json()["window"]["end"] for answer in answers[-5:-1]}
        assert len(ends) <= 1
        assert "stale" == answers[-1].json()["error"]["code"]
        assert "stale" == service.get("/readyz").json()["error"]["code"]
        prometheus.start()
        poll_until(service, lambda answer: answer.status == 200, what="the answer to be back")
        service.wait_for_status(200, "/watcher/health")
        service.wait_for_status(200, "/readyz")
        wait_for(lambda: is_as_in_prometheus(service, prometheus), what="the gap to be filled")
    check_one_line_each_way(service)


def check_one_line_each_way(service: Service) -> None:
    """For all ticks that failed in a row. There may be more such rows: on a busy machine too a tick here has 0.8 s."""
    told = re.findall(r"cannot read from Prometheus|back after", service.log())
    assert told, service.log()
    assert {"cannot read from Prometheus"} == set(told[::2]), service.log()
    assert {"back after"} == set(told[1::2]), service.log()


def is_as_in_prometheus(service: Service, prometheus: Prometheus) -> bool:
    """Whether each node's 5-minute CPU covers what Prometheus has of it, which by then is everything."""
    document = service.get("/api/v1/columns?window=5m&type=CPU&operator=AVG").json()
    (column,) = document["columns"]
    begin = int(document["window_end"]) + 1 - 300
    for node, newest, value in zip(
        document["nodes"], document["sampled"][column["name"]], column["values"], strict=True
    ):
        series = f'{column["name"]}{{instance="{node}"}}[{round(1000 * (newest - begin))}ms]'
        (average,) = prometheus.query(f"avg_over_time({series})", time=newest)
        (count,) = prometheus.query(f"count_over_time({series})", time=newest)
        if float(count["value"][1]) < 298 or value != pytest.approx(100 * float(average["value"][1]), rel=1e-9):
            return False
    return True


def test_health_does_not_depend_on_a_frozen_prometheus(start_prometheus: StartPrometheus, run_service: RunService):
    """Stopped in its tracks for eight intervals: /healthz is 200 all the time, and each tick ends by itself."""
    prometheus = start_prometheus()
    with Feed(prometheus, NODES, history=400.0):
        service = start(run_service, prometheus.url, max_staleness="1m")
        prometheus.pause()
        ends = time.monotonic() + 8.0
        answers = poll_until(service, lambda answer: time.monotonic() > ends, what="eight intervals")
        assert {200} == {answer.status for answer in answers}
        assert 503 == service.get("/watcher/health").status
        prometheus.resume()
        wait_until_well(service)
    check_one_line_each_way(service)


def test_a_prometheus_that_comes_later_is_found(start_prometheus: StartPrometheus, run_service: RunService):
    """A service that starts first says that nothing is known, and why; then it serves."""
    prometheus = start_prometheus()
    prometheus.stop()
    service = run_service(
        "--provider", "prometheus", "--address", prometheus.url, config=SETTINGS.format(max_staleness="1m")
    )
    wait_for(lambda: "refused" in service.get("/watcher").json()["error"]["hint"], what="the first tick")
    answer = service.get("/watcher")
    assert (404, "no_metrics") == (answer.status, answer.json()["error"]["code"])
    assert "provider_down" == service.get("/watcher/health").json()["error"]["code"]
    assert 200 == service.get("/healthz").status
    assert 503 == service.get("/readyz").status
    prometheus.start()
    with Feed(prometheus, NODES, history=400.0):
        wait_until_well(service)
        check_document(service.get("/watcher"))
