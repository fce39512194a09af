"""Which changes of pods are moves."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from scorers.marks.moves import AWAIT_S, MoveTracker
from scorers.marks.pressure import PressureRules
from watcher.core.kubernetes.objects import Pod

RULES = PressureRules()


def pod(node="", *, owner="web", evicted=False, namespace="shop"):
    owners = [{"kind": "ReplicaSet", "name": owner, "controller": True}] if owner else []
    conditions = [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}] if evicted else []
    metadata = {"name": "web-1", "namespace": namespace, "ownerReferences": owners}
    return msgspec.convert(
        {"metadata": metadata, "spec": {"nodeName": node}, "status": {"conditions": conditions}}, Pod
    )


@pytest.fixture
def tracker():
    return MoveTracker(RULES)


def counts(tracker, *names, now=1000.0):
    found = tracker.moves(names, now, since=-np.inf)
    return [0 if last == -np.inf else count for last, count in zip(found.last, found.count.tolist(), strict=True)]


def test_an_eviction_counts_for_its_node_once(tracker):
    tracker.pod_changed(pod("a"), pod("a", evicted=True), 900.0)
    tracker.pod_changed(pod("a", evicted=True), pod("a", evicted=True), 901.0)
    tracker.pod_changed(pod("a", evicted=True), None, 902.0)
    assert counts(tracker, "a", "b") == [1, 0]
    assert tracker.moves(["a"], 1000.0, since=-np.inf).last.tolist() == [900.0]


def test_the_replacement_counts_for_its_node(tracker):
    tracker.pod_changed(pod("a"), pod("a", evicted=True), 900.0)
    tracker.pod_changed(None, pod(), 901.0)
    tracker.pod_changed(pod(), pod("b"), 902.0)
    tracker.pod_changed(None, pod("c"), 903.0)
    assert counts(tracker, "a", "b", "c") == [1, 1, 0]


@pytest.mark.parametrize("other", [pod("b", owner="api"), pod("b", owner=""), pod("b", namespace="other")])
def test_another_pod_is_not_a_replacement(tracker, other):
    tracker.pod_changed(pod("a"), pod("a", evicted=True), 900.0)
    tracker.pod_changed(None, other, 901.0)
    assert counts(tracker, "b") == [0]


def test_a_placement_without_an_eviction_is_not_a_move(tracker):
    version = tracker.version
    tracker.pod_changed(None, pod("b"), 900.0)
    assert counts(tracker, "b") == [0]
    assert tracker.version == version


def test_a_late_replacement_does_not_count(tracker):
    tracker.pod_changed(pod("a"), pod("a", evicted=True), 900.0)
    tracker.pod_changed(None, pod("b"), 900.0 + AWAIT_S + 1.0)
    assert counts(tracker, "b", now=900.0 + AWAIT_S + 1.0) == [0]


def test_moves_are_forgotten_after_the_memory_of_the_rules(tracker):
    for now in (0.0, 100.0, 200.0):
        tracker.pod_changed(pod("a"), pod("a", evicted=True), now)
    assert counts(tracker, "a", now=200.0) == [3]
    assert counts(tracker, "a", now=RULES.memory_s + 150.0) == [1]
    assert counts(tracker, "a", now=RULES.memory_s + 201.0) == [0]


def test_all_nodes_rest_when_moves_become_known(tracker):
    found = tracker.moves(["a"], 1000.0, since=990.0)
    assert (found.last.tolist(), found.count.tolist()) == ([990.0], [0])
