"""Invalid responses of a source: they are dropped, and served data stay true, valid and explained."""

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
    """A proxy for a Prometheus with continuous samples of six nodes, whose faults a test sets."""
    with Feed(shared_prometheus, NODES, history=400.0), FaultyProxy(shared_prometheus.url) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def shared_service(way: FaultyProxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with this proxy as its source, with timeouts longer than each fault here."""
    arguments = ("--provider", "prometheus", "--address", way.url)
    directory = tmp_path_factory.mktemp("service")
    with Service(directory, *arguments, config=SETTINGS.format(max_staleness="2m")) as service:
        yield service


@pytest.fixture
def service(shared_service: Service, way: FaultyProxy) -> Iterator[Service]:
    """The same without a fault and with full windows, before and after the test."""
    way.fault = faults.passed_on
    wait_until_well(shared_service)
    yield shared_service
    way.fault = faults.passed_on


def wait_until_well(service: Service) -> None:
    """Wait until the source responds again and the newest sample is current."""
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
    """The windows of the nodes in a document."""
    nodes = answer.json()["data"]["NodeMetricsMap"].values()
    return {metric["rollup"] for node in nodes for metric in node["metrics"]}


def check_document(answer: Answer, *, nodes: int = NODES) -> dict[str, Any]:
    """It is complete: strict JSON, all nodes, all numbers finite and within their bounds."""
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
    """Findings of a kind that were seen after a time."""
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
def test_a_failed_source_is_down_with_a_reason(service: Service, way: FaultyProxy, fault: faults.Fault, reason: str):
    """The health and a finding have the reason, and known values are served with their age; afterwards the source is up
    again."""
    began = time.time()
    way.fault = fault

    def reported() -> bool:
        answer = service.get("/watcher/health")
        if answer.status == 200:
            return False
        error = answer.json()["error"]
        assert (503, "provider_down") == (answer.status, error["code"])
        return any(word in error["message"] for word in reason.split("|"))

    # On a busy machine, a tick may end before the fault is set: then the next tick has the reason.
    wait_for(reported, what=f"the source to be down for {reason}")
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
def test_invalid_numbers_are_dropped_with_a_finding(service: Service, way: FaultyProxy, fault: faults.Fault, kind: str):
    """The source is up, but none of its samples is served."""
    began = time.time()
    way.fault = fault
    wait_for(lambda: seen_since(service, kind, began), what=f"a finding {kind}")
    for path in ("/watcher", "/watcher?operator=Latest", "/watcher?operator=MAX", "/watcher?window=5m"):
        check_document(service.get(path))
    service.wait_for_status(200, "/watcher/health")  # unless a busy machine did not let a tick end in time
    columns = service.get("/api/v1/columns").json()
    assert all(value is None or math.isfinite(value) for column in columns["columns"] for value in column["values"])
    lines = [line for line in service.get("/metrics").text.splitlines() if line.startswith("load_watcher_node_")]
    assert lines
    assert not [line for line in lines if line.endswith(("NaN", "Inf"))]


def test_a_success_without_series_is_not_an_update(service: Service, way: FaultyProxy):
    """Empty vectors: the last windows stay with a growing age, and a finding reports that no samples arrive."""
    way.fault = faults.empty
    began = time.time()
    wait_for(lambda: seen_since(service, "no_series", began), what="a finding no_series")
    before, answer, after = time.time(), service.get("/watcher"), time.time()
    document = check_document(answer)
    # Both are whole seconds, and may belong to different seconds.
    assert before - 2 < document["window"]["end"] + int(answer.headers["Age"]) <= after
    assert int(answer.headers["Age"]) >= 2


def test_a_slow_response_within_the_timeout_is_used(service: Service, way: FaultyProxy):
    """New samples still arrive."""
    way.fault = faults.slow(0.3)
    before = service.get("/watcher").json()["timestamp"]
    wait_for(lambda: service.get("/watcher").json()["timestamp"] > before + 2, what="a later tick")
    service.wait_for_status(200, "/watcher/health")


def test_ticks_do_not_delay_responses(service: Service, way: FaultyProxy):
    """Twenty requests a second in all formats and encodings, over several ticks: no error."""
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


# --- outages, each with its own service ------------------------------------------------------------------------------


def start(run_service: RunService, address: str, *, max_staleness: str) -> Service:
    service = run_service(
        "--provider", "prometheus", "--address", address, config=SETTINGS.format(max_staleness=max_staleness)
    )
    wait_until_well(service)
    return service


def poll_until(
    service: Service, done: Callable[[Answer], bool], *, what: str, timeout: float = PATIENCE_SECONDS
) -> list[Answer]:
    """All responses of /watcher until one matches, including it; /healthz is 200 all the time."""
    answers: list[Answer] = []

    def look() -> bool:
        assert 200 == service.get("/healthz").status
        answers.append(service.get("/watcher"))
        return done(answers[-1])

    wait_for(look, what=what, timeout=timeout)
    return answers


def test_half_of_the_nodes_are_held_and_then_the_list_is_refused(prometheus: Prometheus, run_service: RunService):
    """A partial outage must not move pods: all nodes are in the list with age_s, or there is no list."""
    with Feed(prometheus, NODES, history=400.0) as feed:
        service = start(run_service, prometheus.url, max_staleness="10s")
        gone = feed.fleet.nodes[: NODES // 2]
        feed.silence(*gone)
        answers = poll_until(service, lambda answer: answer.status == 503, what="the list to be refused")
        held: set[str] = set()
        for answer in answers[:-1]:
            nodes = check_document(answer)["data"]["NodeMetricsMap"]
            held |= {name for name, node in nodes.items() if "age_s" in node}
        # Not equal: without a free core, the samples of the other nodes are late as well.
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


def test_an_outage_of_prometheus_ends_with_a_filled_gap(start_prometheus: StartPrometheus, run_service: RunService):
    """Data are served with their real age, then 503 stale, then fresh again with the gap filled; one log line for the
    begin and one for the end."""
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
    """For all successive ticks that failed. There may be several such sequences: on a busy machine, too, a tick has
    only 0.8 s."""
    reported = re.findall(r"cannot read from Prometheus|back after", service.log())
    assert reported, service.log()
    assert {"cannot read from Prometheus"} == set(reported[::2]), service.log()
    assert {"back after"} == set(reported[1::2]), service.log()


def is_as_in_prometheus(service: Service, prometheus: Prometheus) -> bool:
    """Whether the 5-minute CPU of each node covers all samples in Prometheus."""
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


def test_the_health_does_not_depend_on_a_paused_prometheus(start_prometheus: StartPrometheus, run_service: RunService):
    """Paused for eight intervals: /healthz is 200 all the time, and each tick ends."""
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


def test_a_prometheus_that_starts_later_is_used(start_prometheus: StartPrometheus, run_service: RunService):
    """Before that, the service reports that there are no data, with the reason."""
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
