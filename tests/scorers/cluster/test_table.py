"""The cluster as columns: a table after any events equals a new table with the same objects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec import structs

from scorers.cluster.pods import PodInfo, identity
from scorers.cluster.table import ClusterTable
from tests.scorers.simulated_cluster import NOW, load, node, pod, rows, stamp, table
from watcher.core.kubernetes.objects import Node, Pod
from watcher.model import MetricType

NODES = ("n0", "n1", "n2")
CONTAINERS: list[dict[str, Any]] = [
    {},
    {"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"cpu": "200m"}},
    {"requests": {"cpu": "2"}, "limits": {"memory": "512Mi", "nvidia.com/gpu": "1"}},
]


@dataclass
class Sums:
    """The sums of a listener."""

    cpu: dict[int, int] = field(default_factory=dict)
    weight: dict[int, int] = field(default_factory=dict)
    nodes: set[int] = field(default_factory=set)

    def assigned(self, row: int, info: PodInfo, at: float) -> None:
        self.cpu[row] = self.cpu.get(row, 0) + info.requests.get("cpu", 0)
        self.weight[row] = self.weight.get(row, 0) + weight_of(info)

    def unassigned(self, row: int, info: PodInfo) -> None:
        self.cpu[row] -= info.requests.get("cpu", 0)
        self.weight[row] -= weight_of(info)

    def node_changed(self, row: int, node: Node | None) -> None:
        (self.nodes.discard if node is None else self.nodes.add)(row)


def weight_of(info: PodInfo) -> int:
    return int(info.pod.metadata.labels.get("weight", 0))


def shown(of: ClusterTable) -> dict[str, Any]:
    """The contents of a table, by names."""
    missing = of.recent.unmeasured("cpu", measured=of.load.sampled())
    found = {}
    for name, row in of.row.items():
        found[name] = {
            "known": bool(of.known[row]),
            "pods": [(info.key, info.pod.metadata.labels) for info in of.assigned(row)],
            "labels of recent": [pod.metadata.labels for _, pod, _ in of.recent.of(row)],
            "count": int(of.pods[row]),
            "capacity": of.capacity.of(row),
            "allocatable": of.allocatable.of(row),
            "requested": of.requested.of(row),
            "counted": of.counted.of(row),
            "limited": of.limited.of(row),
            "recent": [(key, at) for key, _, at in of.recent.of(row)],
            "unmeasured": float(missing[row]),
            "measured": of.has_load(MetricType.CPU),
            "load": of.load.average(MetricType.CPU)[row],
        }
    return found


class Events(RuleBasedStateMachine):
    """Nodes and pods that are added, changed and removed in any order, and reservations between these events."""

    def __init__(self) -> None:
        super().__init__()
        self.begin()
        self.columns = load({name: {("CPU", "AVG"): float(i)} for i, name in enumerate(NODES[:2])})
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}
        self.serial = 0

    def begin(self) -> None:
        """Start with an empty table."""
        self.table = ClusterTable()
        self.table.recent.register("cpu", lambda info: float(len(info.pod.spec.containers)))
        self.sums = Sums()
        self.table.listen(self.sums)

    @rule(name=st.sampled_from(NODES), cpu=st.integers(0, 4), gpu=st.booleans())
    def node_comes_or_changes(self, name: str, cpu: int, gpu: bool) -> None:
        self.nodes[name] = node(name, {"cpu": str(cpu), **({"nvidia.com/gpu": "2"} if gpu else {})})
        self.table.set_node(name, self.nodes[name])

    @rule(name=st.sampled_from(NODES))
    def node_goes(self, name: str) -> None:
        self.nodes.pop(name, None)
        self.table.set_node(name, None)

    @rule(
        name=st.sampled_from(["p0", "p1", "p2"]),
        where=st.sampled_from(["", *NODES]),
        containers=st.lists(st.sampled_from(CONTAINERS), max_size=2),
        phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
        again=st.booleans(),
    )
    def pod_comes_or_changes(self, name: str, where: str, containers: list[Any], phase: str, again: bool) -> None:
        old = self.pods.get(name)
        self.serial += again or old is None
        uid = f"{name}-{self.serial}" if old is None or again else identity(old)
        new = pod(name, uid=uid, node=where, containers=containers, phase=phase, scheduled=NOW - self.serial)
        self.table.set_pod(old, new, now=NOW)
        self.pods[name] = new

    @rule(name=st.sampled_from(["p0", "p1", "p2"]), seconds=st.sampled_from([0, 10, 100]))
    def pod_status_changes(self, name: str, seconds: int) -> None:
        """Often the change is not relevant; then the table must not change."""
        if old := self.pods.get(name):
            conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(NOW - seconds)}]
            again = msgspec.to_builtins(old, str_keys=True)
            again["status"] = {**again["status"], "conditions": conditions}
            self.pods[name] = msgspec.convert(again, Pod)
            self.table.set_pod(old, self.pods[name], now=NOW)

    @rule(
        name=st.sampled_from(["p0", "p1", "p2"]),
        cpu=st.sampled_from([None, "50m", "3"]),
        reason=st.sampled_from(["", "Infeasible"]),
    )
    def pod_is_resized(self, name: str, cpu: str | None, reason: str) -> None:
        """The kubelet reports the progress in the status; the spec stays."""
        if old := self.pods.get(name):
            again = msgspec.to_builtins(old, str_keys=True)
            pending = [{"type": "PodResizePending", "status": "True", "reason": reason}]
            reported = [{"name": "c0", "resources": {"requests": {"cpu": cpu}}}] if cpu else []
            kept = [each for each in again["status"]["conditions"] if each["type"] != "PodResizePending"]
            again["status"] |= {"conditions": kept + pending, "containerStatuses": reported}
            self.pods[name] = msgspec.convert(again, Pod)
            self.table.set_pod(old, self.pods[name], now=NOW)

    @rule(name=st.sampled_from(["p0", "p1", "p2"]), weight=st.sampled_from(["1", "2", "3"]))
    def pod_is_labelled(self, name: str, weight: str) -> None:
        """Plug-ins with sums of their own may depend on the labels."""
        if old := self.pods.get(name):
            metadata = structs.replace(old.metadata, labels={"weight": weight})
            self.pods[name] = structs.replace(old, metadata=metadata)
            self.table.set_pod(old, self.pods[name], now=NOW)

    @rule(name=st.sampled_from(["p0", "p1", "p2"]))
    def pod_goes(self, name: str) -> None:
        if old := self.pods.pop(name, None):
            self.table.set_pod(old, None, now=NOW)

    @rule(name=st.sampled_from(["p0", "p1", "p2"]), where=st.sampled_from(NODES), seconds=st.integers(1, 9))
    def pod_is_reserved(self, name: str, where: str, seconds: int) -> None:
        if name in self.pods:
            self.table.reserve(self.pods[name], where, now=NOW, until=NOW + seconds)

    @rule(name=st.sampled_from(["p0", "p1", "p2"]))
    def a_reservation_is_left_out_for_a_moment(self, name: str) -> None:
        """The pod is not counted meanwhile; afterwards, the table is as before."""
        if old := self.pods.get(name):
            before, reserved = repr(sorted(shown(self.table).items())), self.table.reserved
            with self.table.without_reservation(identity(old)):
                assert identity(old) not in self.table.reserved
            assert (before, reserved) == (repr(sorted(shown(self.table).items())), self.table.reserved)

    @rule(name=st.sampled_from(["p0", "p1", "p2"]), where=st.sampled_from(NODES), again=st.sampled_from(NODES))
    def a_reservation_is_left_out_and_moves(self, name: str, where: str, again: str) -> None:
        """The invariant after each rule lets reservations expire, so this rule contains both steps."""
        self.pod_is_reserved(name, where, 5)
        self.a_reservation_is_left_out_for_a_moment(name)
        self.pod_is_reserved(name, again, 5)

    @rule(
        changes=st.dictionaries(
            st.sampled_from(["p0", "p1", "p2"]),
            st.none() | st.tuples(st.sampled_from(["", *NODES]), st.sampled_from(CONTAINERS), st.booleans()),
            min_size=1,
        ),
        nodes=st.dictionaries(st.sampled_from(NODES), st.none() | st.integers(0, 4)),
    )
    def watches_break_and_all_is_listed_again(
        self, changes: dict[str, tuple[str, Any, bool] | None], nodes: dict[str, int | None]
    ) -> None:
        """Each object has one change since the break, possibly to another object of the same name."""
        before = dict(self.pods)
        for name, change in changes.items():
            old = self.pods.pop(name, None)
            if change is not None:
                where, container, again = change
                self.serial += again or old is None
                uid = f"{name}-{self.serial}" if old is None or again else identity(old)
                self.pods[name] = pod(name, uid=uid, node=where, containers=[container], scheduled=NOW - self.serial)
        for name in sorted({*before, *self.pods}):
            if before.get(name) != self.pods.get(name):
                self.table.set_pod(before.get(name), self.pods.get(name), now=NOW)
        for name, cpu in nodes.items():
            self.nodes.pop(name, None)
            if cpu is not None:
                self.nodes[name] = node(name, {"cpu": str(cpu)})
            self.table.set_node(name, self.nodes.get(name))

    @rule(pods_first=st.booleans(), backwards=st.booleans())
    def it_starts_again(self, pods_first: bool, backwards: bool) -> None:
        """Nodes and pods come over two watches, in any order."""
        columns = self.table.load.columns
        self.begin()
        self.table.set_load(columns, now=NOW)
        reported = [lambda each=each: self.table.set_node(each.metadata.name, each) for each in self.nodes.values()]
        of_pods = [lambda one=one: self.table.set_pod(None, one, now=NOW) for one in self.pods.values()]
        reported = of_pods + reported if pods_first else reported + of_pods
        for tell in reversed(reported) if backwards else reported:
            tell()

    @rule()
    def a_listener_is_replaced(self) -> None:
        """As after a reload of the settings."""
        self.table.unsubscribe(self.sums)
        self.sums = Sums()
        self.table.listen(self.sums)

    @rule()
    def load_comes(self) -> None:
        self.table.set_load(self.columns, now=NOW)

    @invariant()
    def equals_a_rebuild(self) -> None:
        """Expired reservations leave nothing in the table."""
        self.table.expire(NOW + 100)
        rebuilt = table(self.nodes.values(), self.pods.values(), self.table.load.columns)
        rebuilt.recent.register("cpu", lambda info: float(len(info.pod.spec.containers)))
        assert repr(dict(sorted(shown(self.table).items()))) == repr(dict(sorted(shown(rebuilt).items())))
        cpu = self.table.requested.column("cpu")
        assert {row: sum_ for row, sum_ in self.sums.cpu.items() if sum_} == {
            int(row): int(cpu[row]) for row in np.flatnonzero(cpu)
        }
        weights = {row: sum(map(weight_of, self.table.assigned(row))) for row in self.table.row.values()}
        assert {row: each for row, each in self.sums.weight.items() if each} == {
            row: each for row, each in weights.items() if each
        }
        assert self.sums.nodes == set(np.flatnonzero(self.table.known).tolist())


TestEvents = Events.TestCase
TestEvents.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_a_pod_that_is_listed_before_its_node_counts_on_it() -> None:
    """Nodes and pods come from two watches."""
    made = table([], [pod("p", node="late", containers=[{"requests": {"cpu": "1"}}])])
    assert not made.known[made.row["late"]]
    made.set_node("late", node("late", {"cpu": "4"}))
    assert made.requested.column("cpu")[made.row["late"]] == 1000
    made.set_node("late", None)
    assert made.requested.column("cpu")[made.row["late"]] == 1000


def test_a_free_row_is_empty_when_the_next_node_gets_it() -> None:
    """It has no data of the node before."""
    made = table([node("a", {"cpu": "4"})], loads=load({"a": {("CPU", "AVG"): 50.0}}))
    row = made.row["a"]
    made.set_node("a", None)
    assert "a" not in made.row
    made.set_node("b", node("b", {"memory": "1Gi"}))
    assert made.row["b"] == row
    assert made.capacity.of(row) == {"memory": 1 << 30}
    assert np.isnan(made.load.average(MetricType.CPU)[row])


def test_a_reservation_moves_ends_with_the_binding_and_expires() -> None:
    """Each of two pods in quick succession sees the other."""
    made = table([node("a", {"cpu": "4"}), node("b", {"cpu": "4"})])
    waiting = pod("p", containers=[{"requests": {"cpu": "1"}}])
    made.reserve(waiting, "a", now=NOW, until=NOW + 5)
    assert made.reserved == {"p": "a"}
    made.reserve(waiting, "b", now=NOW, until=NOW + 5)
    assert made.requested.column("cpu")[rows(made, "a", "b")].tolist() == [0, 1000]
    made.set_pod(None, waiting, now=NOW)  # an update of the pending pod does not end it
    assert made.reserved == {"p": "b"}
    assert made.expire(NOW + 4.9) == ()
    made.set_pod(waiting, pod("p", node="a", containers=[{"requests": {"cpu": "1"}}]), now=NOW)
    assert made.reserved == {}
    assert made.expire(NOW + 100) == ()
    assert made.requested.column("cpu")[rows(made, "a", "b")].tolist() == [1000, 0]
    made.reserve(waiting, "b", now=NOW, until=NOW + 5)  # it is bound: too late
    assert made.requested.column("cpu")[rows(made, "a", "b")].tolist() == [1000, 0]


def test_an_expired_reservation_leaves_nothing() -> None:
    """The scheduler chose another node, or none."""
    made = table([node("a", {"cpu": "4"})])
    made.reserve(pod("p", containers=[{"requests": {"cpu": "1"}}]), "a", now=NOW, until=NOW + 5)
    assert made.expire(NOW + 5) == ("p",)
    assert made.requested.of(made.row["a"]) == {}
    made.release("p")
    made.reserve(pod("q"), "a", now=NOW, until=NOW + 5)
    made.release("q")
    assert made.reserved == {}


def test_a_pod_with_invalid_quantities_is_not_counted_and_logged() -> None:
    """The API server refuses such pods, but a client may send them to an extender."""
    made = table([node("a", {"cpu": "4"})], [pod("p", node="a", containers=[{"requests": {"cpu": "1"}}])])
    bad = pod("p", node="a", containers=[{"requests": {"cpu": "one"}}])
    with pytest.raises(ValueError, match="cpu: 'one' is not a Kubernetes quantity"):
        made.set_pod(None, bad, now=NOW)
    assert made.requested.of(made.row["a"]) == {}
    with pytest.raises(ValueError, match="memory"):
        made.set_node("a", node("a", {"memory": "1Q"}))
    assert made.capacity.of(made.row["a"]) == {"cpu": 4000}


def test_unused_names_of_resources_are_removed() -> None:
    """Clients may send any names to an extender."""
    made = table([node("a", {"cpu": "4"})])
    for i in range(20):
        made.reserve(pod("p", containers=[{"requests": {f"example.com/{i}": "1"}}]), "a", now=NOW, until=NOW + 5)
        made.reserve(pod("q", containers=[{"requests": {f"example.com/{i}": "2"}}]), "a", now=NOW, until=NOW + 5)
    assert made.requested.resources == ("example.com/19",)
    assert made.requested.of(made.row["a"]) == {"example.com/19": 3}
    made.expire(NOW + 5)
    assert (made.requested.resources, made.limited.resources) == ((), ())
    made.set_node("a", node("a", {"memory": "1Gi"}))
    assert made.capacity.resources == ("memory",)


def test_load_is_aligned_to_the_rows() -> None:
    """The watcher may have another order. Nodes that the table does not know are ignored; nodes without load are
    NaN."""
    loads = load(
        {"x": {("CPU", "AVG"): 1.0}, "b": {("CPU", "AVG"): 2.0, ("CPU", "STD"): 0.5}, "a": {("CPU", "Latest"): 3.0}}
    )
    made = table([node(name, {"cpu": "1"}) for name in "abc"], loads=loads)
    assert made.load.average(MetricType.CPU)[rows(made, "a", "b")].tolist() == [3.0, 2.0]
    assert np.isnan(made.load.average(MetricType.CPU)[made.row["c"]])
    assert made.load.sampled()[rows(made, "a", "b")].tolist() == [NOW, NOW]
    made.set_node("x", node("x", {"cpu": "1"}))  # a node that the load knew before the table did
    assert made.load.average(MetricType.CPU)[made.row["x"]] == 1.0
    made.set_load(None, now=NOW)
    assert np.isnan(made.load.average(MetricType.CPU)).all()


def test_recent_pods_are_kept_for_five_minutes_or_until_measured() -> None:
    """The original keeps all of them if all are old."""
    nodes = [node("a", {"cpu": "1"}), node("b", {"cpu": "1"})]
    pods = [pod(f"{age}", node="a", scheduled=NOW - age) for age in (299, 300, 301, 1000)]
    assert {key for key, _, _ in table(nodes, pods, load({"a": {("CPU", "AVG"): 1.0}})).recent.of(0)} == {"299"}
    lagging = table(nodes, pods, load({"a": {("CPU", "AVG"): 1.0}}, sampled=NOW - 800))
    assert {key for key, _, _ in lagging.recent.of(0)} == {"299", "300", "301"}
    assert len(table(nodes, pods, load({"a": {("CPU", "AVG"): 1.0}}, sampled=NOW - 2000)).recent) == 4
