"""The estimator by owners: the workload of a pod, the usage of its pods, and when there are too few readings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from scorers.plugin_api.arguments import ArgumentsError
from scorers.plugin_api.framework import create_plugin
from scorers.plugins.koordinator.load_aware_scheduling import LoadAwareScheduling
from scorers.plugins.koordinator.workload_usage import PodController, WorkloadUsage, workload_of
from tests.scorers.plugins.koordinator.test_load_aware_scheduling import ONE_CORE, SHAPE, busy, usage
from tests.scorers.simulated_cluster import NOW, info, load, node, pod, rows, table
from watcher.client import PodColumns
from watcher.core.kubernetes.objects import Pod

BY_OWNER = {"estimator": "ownerHistoryEstimator", "nodeMetricSource": "windowsAndPods"}
MI = 1 << 20


def owned(kind: str, name: str, *, controller: bool = True, template: str = "") -> dict[str, Any]:
    """The metadata of a pod of this owner."""
    labels = {"pod-template-hash": template} if template else {}
    return {"ownerReferences": [{"kind": kind, "name": name, "controller": controller}], "labels": labels}


def of_web(name: str, *, node: str = "a", **more: Any) -> Pod:
    """A pod of the Deployment web."""
    metadata = owned("ReplicaSet", "web-5d8f", template="5d8f")
    return pod(name, node=node, containers=[ONE_CORE], scheduled=NOW - 3600, metadata=metadata, **more)


def minutes(given: Mapping[str, tuple[list[float], list[float]]]) -> PodColumns:
    """The usage of pods of the namespace default on node a, minute by minute: cores and MiB, newest last."""
    newest = {("default", name): ("a", cores[-1], memory[-1] * MI) for name, (cores, memory) in given.items()}
    pods = usage(newest)
    rings = np.full((2, 15, len(newest)), np.nan)
    for name, (cores, memory) in given.items():
        row = pods.row["default", name]
        rings[0, 15 - len(cores) :, row], rings[1, 15 - len(memory) :, row] = cores, np.array(memory) * MI
    return replace(pods, recent=(rings[0], rings[1]))


def asked(pods: list[Pod], used: PodColumns | None, args: Mapping[str, Any] = {}, **kind: Any) -> tuple[Any, Any]:
    """The estimate of one more pod, and its basis as explain returns it."""
    cluster = table([node("a", SHAPE)], pods, load({"a": busy(10.0)}))
    plugin, _ = create_plugin(LoadAwareScheduling, {**BY_OWNER, **args}, cluster)
    cluster.set_pod_usage(used)
    kind = {"metadata": owned("ReplicaSet", "web-9cc4", template="9cc4"), "containers": [ONE_CORE], **kind}
    inputs = plugin.score(info("new", **kind), cluster, rows(cluster), now=NOW).inputs
    return inputs["podEstimate"], inputs["estimator"]


# --- workloads of pods -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, None),
        (owned("StatefulSet", "db"), PodController("default", "StatefulSet", "db")),
        (owned("StatefulSet", "db", controller=False), None),
        (owned("ReplicaSet", "web-5d8f", template="5d8f"), PodController("default", "Deployment", "web")),
        # a ReplicaSet without a Deployment: its pods lack the label, or its name does not end with the hash
        (owned("ReplicaSet", "web-5d8f"), PodController("default", "ReplicaSet", "web-5d8f")),
        (owned("ReplicaSet", "web-5d8f", template="7"), PodController("default", "ReplicaSet", "web-5d8f")),
        (owned("Job", "run-1", template="1"), PodController("default", "Job", "run-1")),
    ],
)
def test_the_workload_is_the_controller_or_its_deployment(
    metadata: Mapping[str, Any], expected: PodController | None
) -> None:
    """By the hash in the name of a ReplicaSet."""
    assert expected == workload_of(pod(metadata=metadata))


# --- usage of workloads ----------------------------------------------------------------------------------------------


def test_a_pod_is_estimated_by_pods_of_another_version() -> None:
    """The 19th of 20 sorted readings; per resource, over both pods."""
    used = minutes({"web-0": ([0.1] * 10, [100.0] * 10), "web-1": ([0.2] * 8 + [0.3, 0.9], [300.0] * 10)})
    estimate, reported = asked([of_web("web-0"), of_web("web-1")], used)
    assert {"cpu": 300, "memory": 300 * MI} == estimate
    assert "p95 of 20 readings of 2 pods of Deployment default/web" == reported["cpu"]


def test_pods_count_as_soon_as_they_have_readings() -> None:
    """Also those that are added after the estimate was computed."""
    used = minutes({"web-0": ([0.1] * 15, [100.0] * 15)})
    _, before = asked([of_web("web-0")], used)
    _, after = asked([of_web("web-0"), of_web("web-1"), of_web("web-2")], used)
    assert before["cpu"] == "p95 of 15 readings of 1 pod of Deployment default/web"
    assert after["cpu"] == "p95 of 15 readings of 1 pod (2 without readings) of Deployment default/web"


def test_limits_bound_the_estimate() -> None:
    """A pod cannot use more, whatever earlier pods used."""
    used = minutes({"web-0": ([2.0] * 10, [100.0] * 10)})
    small = [{"requests": {"cpu": "1"}, "limits": {"cpu": "1500m"}}]
    assert 1500 == asked([of_web("web-0")], used, containers=small)[0]["cpu"]


def test_the_percentile_is_an_argument() -> None:
    """The fifth of ten."""
    used = minutes({"web-0": ([each / 10 for each in range(1, 11)], [100.0] * 10)})
    assert 500 == asked([of_web("web-0")], used, {"ownerHistory": {"percentile": 50}})[0]["cpu"]


@pytest.mark.parametrize(
    ("used", "args", "kind", "why"),
    [
        (None, {}, {}, "default estimator: the usage of pods is unknown"),
        ({}, {}, {}, "default estimator: Deployment default/web has 0 readings of 0 pods, required: 10 of 1"),
        (
            {"web-0": 9},
            {},
            {},
            "default estimator: Deployment default/web has 9 readings of 1 pod, required: 10 of 1",
        ),
        (
            {"web-0": 15},
            {"minPods": 2},
            {},
            "default estimator: Deployment default/web has 15 readings of 1 pod, required: 10 of 2",
        ),
        ({"web-0": 15}, {}, {"metadata": {}}, "default estimator: the pod has no controller"),
        (
            {"other": 15},
            {},
            {},
            "default estimator: Deployment default/web has 0 readings of 0 pods, required: 10 of 1",
        ),
    ],
)
def test_with_too_few_readings_the_default_estimate_counts(
    used: Mapping[str, int] | None, args: Mapping[str, Any], kind: Mapping[str, Any], why: str
) -> None:
    """85 % of a core and 70 % of a GiB; explain gives the reason."""
    given = None if used is None else minutes({name: ([0.2] * n, [100.0] * n) for name, n in used.items()})
    pods = [of_web("web-0"), pod("other", node="a", scheduled=NOW - 3600)]
    estimate, reported = asked(pods, given, {"ownerHistory": args} if args else {}, **kind)
    assert {"cpu": 850, "memory": round(0.7 * 1024 * MI)} == estimate
    assert {"cpu": why, "memory": why} == reported


def test_each_resource_is_estimated_separately() -> None:
    """A source may lack the memory of pods."""
    used = minutes({"web-0": ([0.2] * 10, [float("nan")] * 10)})
    estimate, reported = asked([of_web("web-0")], used)
    assert {"cpu": 200, "memory": round(0.7 * 1024 * MI)} == estimate
    assert "Deployment default/web has 0 readings of 0 pods" in reported["memory"]


def test_placed_pods_count_by_the_estimate() -> None:
    """A pod that was scheduled just now is not in the usage of its node yet."""
    used = minutes({"web-0": ([0.2] * 10, [100.0] * 10)})
    cluster = table([node("a", SHAPE)], [of_web("web-0")], load({"a": busy(10.0)}))
    plugin, _ = create_plugin(LoadAwareScheduling, BY_OWNER, cluster)
    cluster.set_pod_usage(used)
    cluster.reserve(of_web("web-1", node=""), "a", now=NOW, until=NOW + 5)
    scores = plugin.score(info(containers=[ONE_CORE]), cluster, rows(cluster), now=NOW)
    assert [200] == scores.steps["cpu of pods not measured yet"].tolist()


def test_the_default_estimator_adds_no_explanation() -> None:
    """Users of Koordinator know its rules."""
    cluster = table([node("a", SHAPE)], loads=load({"a": busy(10.0)}))
    plugin, _ = create_plugin(LoadAwareScheduling, {"estimator": "defaultEstimator"}, cluster)
    assert "estimator" not in plugin.score(info(), cluster, rows(cluster), now=NOW).inputs


# --- invalid input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ({"estimator": "ownerHistoryEstimator"}, "estimator: ownerHistoryEstimator needs the usage of each pod"),
        ({"ownerHistory": {}}, "ownerHistory: defaultEstimator does not use it; set estimator to"),
        ({"estimator": "ownerHistoryEstimater"}, "did you mean ownerHistoryEstimator?"),
        ({"estimator": "none"}, "estimator: unknown estimator 'none'; known: defaultEstimator, ownerHistoryEstimator"),
        ({**BY_OWNER, "ownerHistory": {"percentile": 0}}, "percentile"),
        ({**BY_OWNER, "ownerHistory": {"minReading": 5}}, "minReading"),
    ],
)
def test_invalid_arguments_are_refused(args: Mapping[str, Any], problem: str) -> None:
    """With their names and a remedy."""
    with pytest.raises(ArgumentsError, match=problem):
        create_plugin(LoadAwareScheduling, args, table([]))


def test_pods_are_requested_in_addition_to_node_metrics() -> None:
    """NodeMetrics have one reading of each pod, and no history."""
    cluster = table([])
    create_plugin(LoadAwareScheduling, {**BY_OWNER, "nodeMetricSource": "cluster"}, cluster)
    assert cluster.needs.pods
    assert cluster.needs.node_metrics


# --- events in any order ---------------------------------------------------------------------------------------------

NAMES = ("p0", "p1", "p2", "p3")
OWNERS: tuple[dict[str, Any], ...] = (
    {},
    owned("ReplicaSet", "web-1", template="1"),
    owned("ReplicaSet", "web-2", template="2"),
    owned("StatefulSet", "db"),
)
WORKLOADS = (PodController("default", "Deployment", "web"), PodController("default", "StatefulSet", "db"))


class Events(RuleBasedStateMachine):
    """Pods that are added and removed, some with a name that was used before, and readings of some of them."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = WorkloadUsage(90)
        self.pods: dict[str, Pod] = {}
        self.used: PodColumns | None = None
        self.serial = 0

    @rule(name=st.sampled_from(NAMES), metadata=st.sampled_from(OWNERS))
    def pod_comes(self, name: str, metadata: dict[str, Any]) -> None:
        self.serial += 1
        key = f"{name}-{self.serial}"
        self.pods[key] = pod(name, uid=key, metadata=metadata)
        self.kept.add(key, self.pods[key])

    @rule(data=st.data())
    def pod_goes(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from([*self.pods, "nobody"]))
        self.pods.pop(key, None)
        self.kept.remove(key)

    @rule(count=st.dictionaries(st.sampled_from(NAMES), st.lists(st.sampled_from([0.1, 0.2, 0.5]), min_size=1)))
    def pods_are_measured(self, count: dict[str, list[float]]) -> None:
        self.used = minutes({name: (used[:15], used[:15]) for name, used in count.items()}) if count else None
        self.kept.take(self.used)

    @invariant()
    def equals_what_is_made_anew(self) -> None:
        rebuilt = WorkloadUsage(90)
        for key, each in self.pods.items():
            rebuilt.add(key, each)
        rebuilt.take(self.used)
        assert [self.kept.of(each) for each in WORKLOADS] == [rebuilt.of(each) for each in WORKLOADS]


def test_deleted_workloads_are_removed() -> None:
    """A cluster runs thousands of jobs, also if pods are not measured."""
    kept = WorkloadUsage(95)
    for number in range(3):
        job = pod(f"job-{number}", metadata=owned("Job", f"job-{number}"))
        kept.add(f"uid-{number}", job)
        kept.of(PodController("default", "Job", f"job-{number}"))
        kept.remove(f"uid-{number}")
        kept.of(PodController("default", "Job", "nobody's"))
    assert [0, 0, 0] == [len(each) for each in vars(kept).values() if isinstance(each, dict)]


TestEvents = Events.TestCase
TestEvents.settings = settings(max_examples=40, stateful_step_count=15, deadline=None)
