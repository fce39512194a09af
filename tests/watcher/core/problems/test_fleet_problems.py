"""Problems of the fleet: their sentences for published data; each node has one, in a stable order."""

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.service import FakeService, Live
from tests.fakes.snapshots import END, publish, snapshot_of, steady
from watcher.core.koordinator.report import Capacity
from watcher.core.pods.table import PodTable, PodUsage, empty_table, merge_readings
from watcher.core.problems.document import FleetProblem, ProblemsDocument, Severity
from watcher.core.problems.finding_causes import ACTIONS, CAUSES
from watcher.core.problems.fleet_problems import NAMED, ProblemInputs, problems_document
from watcher.core.publishing.wire import ErrorDetail, FindingEntry
from watcher.core.windows.hot_loads import HotLoads, LoadStart
from watcher.core.windows.silent_nodes import SilentDocument, SilentNode
from watcher.model import FindingKind, ProviderHealth, Remedy

NOW = END + 1
HEALTHY = ProviderHealth(True, "", END - 3600)
EIGHT_CORES = Capacity(8000, 32 << 30)
STATES = {"hot", "silent", "stale", "lost", "quarantined", "unheard"}


def problems(**given: Any) -> list[FleetProblem]:
    return problems_document(ProblemInputs(**{"now": NOW, "interval_s": 60.0, "health": HEALTHY, **given})).problems


def texts(**given: Any) -> list[str]:
    return [each.text for each in problems(**given)]


def loads(**percent: float) -> dict[str, dict[str, Sequence[float]]]:
    return {name.replace("_", "-"): {"CPU": steady(value), "Memory": steady(30)} for name, value in percent.items()}


def pods_on(node: str, **cores: float) -> PodTable:
    names = tuple(("ci", name) for name in cores)
    usage = PodUsage(
        names, (node,) * len(names), np.full(len(names), NOW), np.array([*cores.values()]), np.full(len(names), 1e9)
    )
    return merge_readings(empty_table(15), usage, now=NOW, silent_s=90, stale_s=300)


def finding(kind: str, node: str = "a", metric: str = "instance:node_cpu:ratio", **other: Any) -> FindingEntry:
    made = {
        "reason": "6553.5 is outside 0 to 100", "remedy": "dropped", "first_seen": int(END) - 60,
        "last_seen": int(END), "count": 1, **other,
    }  # fmt: skip
    return FindingEntry(kind=kind, node=node, metric=metric, **made)


def test_a_fleet_without_problems_has_an_empty_document():
    """There is no worst problem either."""
    document = problems_document(ProblemInputs(NOW, 60.0, HEALTHY, snapshot_of(loads(a=40, b=60))))
    assert ProblemsDocument(int(NOW), None, {"critical": 0, "warning": 0, "info": 0}, []) == document


@pytest.mark.parametrize(
    ("cores", "said"),
    [
        ({"lint": 6.0, "web": 0.5}, "ci/lint uses 6 of 8 cores"),
        ({"lint": 4.0, "test": 3.04, "web": 0.5}, "ci/lint uses 4 and ci/test uses 3 of 8 cores"),
        (dict.fromkeys("abcdefghij", 0.7), "its 10 pods use 7 of 8 cores together"),
        ({"web": 0.5}, "its pod uses only 0.5 of 8 cores, so processes outside of pods make the load"),
    ],
)
def test_a_hot_node_is_reported_with_the_pods_of_its_load(cores, said):
    """With the duration, the cores of the pods, and a command about the pod."""
    history = {"hot": {"CPU": [*steady(20, slots=12), *steady(95, slots=48)], "Memory": steady(30)}}
    (found,) = problems(
        snapshot=snapshot_of(history), pods=pods_on("hot", **cores), capacities={"hot": EIGHT_CORES}
    )  # fmt: skip
    assert f"hot: CPU at 95 % (mean of 5m) for 12 min; {said}" == found.text
    assert (Severity.CRITICAL, ("hot",)) == (found.severity, found.nodes)
    assert ("describe pod lint" in found.command) == ("lint" in cores)


def test_the_size_of_a_large_hot_node_is_in_cores():
    history = {"hot": {"CPU": steady(95), "Memory": steady(30)}}
    sizes = {"hot": Capacity(256_000, 1 << 40)}
    (found,) = problems(snapshot=snapshot_of(history), pods=pods_on("hot", lint=200.0), capacities=sizes)
    assert found.text.endswith("; ci/lint uses 200 of 256 cores")


def test_a_load_that_began_before_the_samples_is_reported_as_longer():
    """Without pods, the sentence ends there. A short dip does not restart the time."""
    history = steady(90)
    history[30] = 80.0
    assert ["a: CPU at 90 % (mean of 5m) for 15 min or longer"] == texts(snapshot=snapshot_of({"a": {"CPU": history}}))


def test_a_load_that_stays_high_has_its_whole_duration():
    """An hour, although the snapshot has the samples of 15 minutes; over HTTP, too."""
    snapshot = snapshot_of({"a": {"CPU": steady(97)}})
    hot = HotLoads(END, {("a", "instance:node_cpu:ratio"): LoadStart(END - 3600, False)})
    (found,) = problems(snapshot=snapshot, hot=hot)
    assert ("a: CPU at 97 % (mean of 5m) for 60 min", int(END) - 3600) == (found.text, found.since)
    published = publish(snapshot)
    published.hot = hot
    with Live(FakeService(published=published)) as live:
        assert int(END) - 3600 == live.ask("/api/v1/problems").json()["problems"][0]["since"]


@pytest.mark.parametrize(("slots", "severity"), [(1, "warning"), (4, "warning"), (20, "critical")])
def test_a_load_is_critical_only_if_a_window_shows_it(slots, severity):
    """Before, it may be a single sample; a group of such nodes is described in the same way."""
    (found,) = problems(snapshot=snapshot_of({"a": {"CPU": steady(98, slots=slots)}}), host=True)
    assert severity == found.severity
    early = "(newest sample; the 5m window is not complete yet)"
    assert (severity == "warning") == found.text.endswith(early)
    many = problems(snapshot=snapshot_of({f"n{number}": {"CPU": steady(98, slots=slots)} for number in range(40)}))
    assert {severity} == {each.severity for each in many}
    assert (severity == "warning") == ("5m windows are not complete yet" in many[NAMED].text)


def test_cpu_and_memory_of_one_node_are_one_problem():
    """CPU first."""
    both = snapshot_of({"a": {"CPU": steady(88), "Memory": steady(97)}})
    (found,) = problems(snapshot=both)
    assert found.text.startswith("a: CPU at 88 % (mean of 5m) for 15 min or longer and memory at 97 % (mean of 5m)")
    assert found.severity is Severity.CRITICAL


def test_on_a_single_machine_the_remedy_contains_no_kubectl():
    """The provider host has no cluster."""
    (found,) = problems(snapshot=snapshot_of(loads(a=96)), host=True)
    assert "top" == found.command
    assert "kubectl" not in found.cure


def test_one_silent_node_is_one_problem():
    """For any number of findings of its metrics, and with its last known load."""
    silent = SilentDocument(listed=True, nodes=[SilentNode("b", END - 420, 41.2, 0.0)])
    stale = [finding("stale", "b", f"metric-{number}") for number in range(8)] + [finding("stale", "b", "")]
    (found,) = problems(snapshot=snapshot_of(loads(a=40)), silent=silent, findings=stale)
    assert "b: silent for 7 min; its last load was CPU 41 % and memory 0 %" == found.text
    assert (Severity.CRITICAL, int(END) - 420) == (found.severity, found.since)
    assert "kubectl describe node b" == found.command


def test_a_silent_node_may_have_been_removed_if_the_cluster_is_unknown():
    """Then it is a warning."""
    (found,) = problems(silent=SilentDocument(listed=False, nodes=[SilentNode("b", END - 420)]))
    assert Severity.WARNING is found.severity
    assert "removed" in found.cure


@pytest.mark.parametrize(
    ("given", "severity", "text"),
    [
        ({"health": ProviderHealth(False, "refused", END - 119)}, "critical", "does not respond since 2 min: refused"),
        ({"health": ProviderHealth(True, "1 of 2 stores", END)}, "warning", "incomplete data: 1 of 2 stores"),
        ({"error": ErrorDetail("stale", "too old", "see")}, "critical", "Not ready: too old"),
        ({"error": ErrorDetail("warming_up", "2 of 5 min")}, "info", "Not ready: 2 of 5 min"),
        ({"snapshot": snapshot_of(loads(a=1), quarantined={"q"})}, "warning", "q: quarantined"),
        ({"snapshot": snapshot_of(loads(a=1), ages={"a": 200})}, "warning", "a: the newest sample is 3 min old"),
        ({"snapshot": snapshot_of(loads(a=1), lost={"l": END})}, "critical", "l went missing at once"),
        ({"silent": SilentDocument(listed=True, nodes=[SilentNode("u")])}, "warning", "u: never reported"),
        ({"findings": [finding("out_of_range")]}, "warning", "a: impossible values: 6553.5 is outside 0 to 100; the"),
        ({"findings": [finding("out_of_range", remedy="clamped")]}, "info", "limited to 0 to 100 %"),
        ({"findings": [finding("jump", remedy="reported")]}, "info", "a: unusual load"),
        ({"findings": [finding("out_of_range", last_seen=int(END) - 400)]}, "info", "; last seen 7 min ago"),
        ({"findings": [finding("stale", reason="no new")]}, "warning", "a: some metrics are stale: no new"),
        ({"findings": [finding("stale", last_seen=int(END) - 150)]}, "info", "; last seen 3 min ago"),
        ({"findings": [finding("frozen", metric="")]}, "info", "a: the exporter repeats the same values"),
        ({"findings": [finding("no_series", "")]}, "warning", "The source has no series for a metric"),
        ({"findings": [finding("no_series", "", "instance:node_gpu:ratio")]}, "info", "The source has no series"),
        ({"findings": [finding("store", "", "")]}, "critical", "The database cannot be written or read"),
    ],
)  # fmt: skip
def test_each_problem_has_a_severity_and_a_sentence(given, severity, text):
    """One row for each kind; each has a remedy."""
    (found,) = problems(**given)
    assert severity == found.severity
    assert text in found.text
    assert found.cure or given.get("error")


def test_a_failed_source_explains_its_failed_queries():
    """The failures of its queries are not problems of their own."""
    down = ProviderHealth(False, "refused", END)
    assert ["source"] == [each.kind for each in problems(health=down, findings=[finding("query_failed", "")])]


def test_findings_of_a_node_with_one_cause_are_one_problem():
    """Several metrics, and the carried slots of the values that were dropped."""
    found = [
        finding("out_of_range", count=7),
        finding("out_of_range", metric="instance:node_memory_utilisation:ratio", last_seen=int(END) - 9),
        finding("missing", remedy="carried", count=7),
    ]
    (problem,) = problems(findings=found)
    assert (15, 2) == (problem.findings, len(problem.metrics))
    assert "6553.5 is outside 0 to 100 (and 1 more metric); the values were dropped" in problem.text


def test_the_remedy_of_a_group_of_hot_nodes_names_no_single_pod():
    """The problems of single nodes name one."""
    fleet = {f"n{number:02d}": {"CPU": steady(90), "Memory": steady(30)} for number in range(40)}
    table = merge_readings(
        empty_table(15),
        PodUsage(
            tuple(("ci", f"lint-{name}") for name in fleet), tuple(fleet), np.full(40, NOW), np.full(40, 6.0),
            np.full(40, 1e9),
        ),
        now=NOW, silent_s=90, stale_s=300,
    )  # fmt: skip
    found = problems(snapshot=snapshot_of(fleet), pods=table, capacities=dict.fromkeys(fleet, EIGHT_CORES))
    assert found[0].cure.startswith("Limit or move ci/lint-n00;")
    assert "30 more nodes (n10, n11, n12, …) are between 85 % and 95 % (mean of 5m)" == found[NAMED].text
    assert "Keep new pods away, and move or limit the pods that make the load." == found[NAMED].cure


def test_silent_nodes_are_in_the_order_of_their_last_samples():
    """A node that never reported is the first."""
    silent = [SilentNode("a", END - 60), SilentNode("b", END - 420), SilentNode("d", END - 60), SilentNode("e")]
    found = problems(silent=SilentDocument(listed=True, nodes=silent), snapshot=snapshot_of(loads(x=1)))
    assert {"a", "b", "d", "e"} == {each.nodes[0] for each in found}
    assert ["b", "a", "d"] == [each.nodes[0] for each in found if each.nodes != ("e",)]


def test_only_a_missing_value_is_explained_by_the_dropped_one():
    found = problems(findings=[finding("out_of_range"), finding("jump", remedy="reported")])
    assert ["impossible values", "unusual load"] == sorted(each.cause for each in found)


def test_many_nodes_with_one_cause_share_a_problem():
    """The newest findings have problems of their own; no node is lost."""
    jumps = [finding("jump", f"n{number:02d}", remedy="reported", last_seen=int(END) - number) for number in range(40)]
    found = problems(findings=jumps)
    assert [f"n{number:02d}" for number in range(NAMED)] == [each.nodes[0] for each in found[:NAMED]]
    assert "30 more nodes (n10, n11, n12, …): unusual load" == found[NAMED].text
    assert (30, int(END) - NAMED) == (found[NAMED].findings, found[NAMED].last_seen)
    assert {entry.node for entry in jumps} == {node for each in found for node in each.nodes}


def test_each_kind_and_each_remedy_has_a_text():
    """A new kind needs one."""
    assert set(FindingKind) == set(CAUSES)
    assert set(Remedy) == set(ACTIONS)


NODES = st.dictionaries(
    st.integers(0, 60).map(lambda number: f"n{number:02d}"),
    st.sampled_from(["cold", "hot", "hotter", "stale", "hot-stale", "silent", "unheard", "quarantined", "lost"]),
    min_size=1,
    max_size=60,
)


def inputs(fleet: Mapping[str, str], findings: Iterable[FindingEntry] = ()) -> ProblemInputs:
    percent = {"cold": 40, "hot": 90, "hotter": 97, "stale": 40, "hot-stale": 90}
    served = {name: {"CPU": steady(percent[state])} for name, state in fleet.items() if state in percent}

    def of(*states: str) -> list[str]:
        return [name for name, state in fleet.items() if state in states]

    snapshot = snapshot_of(
        served,
        ages=dict.fromkeys(of("stale", "hot-stale"), 120.0),
        lost=dict.fromkeys(of("lost"), END - 100),
        quarantined=of("quarantined"),
    )
    silent = [SilentNode(name, END - 500) for name in of("silent")] + [SilentNode(name) for name in of("unheard")]
    return ProblemInputs(
        NOW, 60.0, HEALTHY, snapshot, SilentDocument(True, sorted(silent, key=lambda each: each.name)),
        findings=[*findings],
    )  # fmt: skip


@given(NODES)
def test_each_node_with_a_problem_is_in_exactly_one(fleet):
    """No other node is in one; the number of sentences is small for any number of nodes."""
    found = problems_document(inputs(fleet)).problems
    named = Counter(node for each in found if each.kind in STATES for node in each.nodes)
    assert Counter(name for name, state in fleet.items() if state != "cold") == named
    assert len(found) <= 8 * (NAMED + 1)


@given(NODES, st.randoms(use_true_random=False))
def test_the_order_does_not_depend_on_that_of_the_data(fleet, shuffling: random.Random):
    """Equal data give an equal document, ordered by severity."""
    findings = [finding(kind, node) for node in fleet for kind in ("jump", "out_of_range")]
    first = problems_document(inputs(fleet, findings))
    names = list(fleet)
    shuffling.shuffle(names)
    shuffling.shuffle(findings)
    again = problems_document(inputs({name: fleet[name] for name in names}, findings))
    assert msgspec.json.encode(first) == msgspec.json.encode(again)
    ranks = [list(Severity).index(each.severity) for each in first.problems]
    assert sorted(ranks) == ranks
    assert first.worst == (first.problems[0].severity if first.problems else None)


def test_problems_of_modules_are_among_those_of_their_severity():
    """After those of a node of equal severity, and they change the ETag."""
    profile = FleetProblem(Severity.WARNING, "profile", "a profile overloads nodes", "Profile a: 0.41 times", "Use b.")
    service = FakeService(published=publish(snapshot_of(loads(a=96, b=86))), of_modules=[profile])
    with Live(service) as live:
        answer = live.ask("/api/v1/problems")
        assert ["hot", "hot", "profile"] == [each["kind"] for each in answer.json()["problems"]]
        assert {"critical": 1, "warning": 2, "info": 0} == answer.json()["counts"]
        service.of_modules = [msgspec.structs.replace(profile, text="Profile a: 0.42 times")]
        again = live.ask("/api/v1/problems", headers={"If-None-Match": answer.headers["ETag"]})
    assert "Profile a: 0.42 times" == again.json()["problems"][-1]["text"]


def test_the_api_serves_problems_in_each_state():
    """With an ETag that changes with them, also before the first tick."""
    service = FakeService(published=publish(snapshot_of(loads(a=96, b=10))))
    with Live(service) as live:
        answer = live.ask("/api/v1/problems")
        (found,) = answer.json()["problems"]
        assert found["text"].startswith("a: CPU at 96 %")
        assert {"critical": 1, "warning": 0, "info": 0} == answer.json()["counts"]
        headers = {"If-None-Match": answer.headers["ETag"]}
        assert 304 == live.ask("/api/v1/problems", headers=headers).status
        service.published = publish(snapshot_of(loads(a=16, b=10)), tag="t2")
        assert [] == live.ask("/api/v1/problems", headers=headers).json()["problems"]
        service.published = None
        assert "service" == live.ask("/api/v1/problems").json()["problems"][0]["kind"]
        assert "bad_request" == live.ask("/api/v1/problems?x=1").json()["error"]["code"]
