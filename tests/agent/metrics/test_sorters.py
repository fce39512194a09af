"""The order in which pods are selected."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from agent.metrics.sorters import (
    CHAINS,
    ascending,
    class_and_priority,
    cpu_usage,
    descending,
    ext_cpu_usage,
    mem_usage,
    ordered_by,
    running_time,
)
from agent.model import PodState
from agent.qos import QosClass
from tests.agent.crane import CRANE_CHAINS
from tests.agent.scenes import pod


def order(*pods: PodState, chain=CHAINS.cpu) -> list[str]:
    return [each.name for each in chain.sort(pods)]


def test_a_lower_class_comes_before_a_lower_priority():
    pods = (
        pod("guaranteed", 9.0, qos=QosClass.GUARANTEED, priority=-10),
        pod("burstable", 9.0, qos=QosClass.BURSTABLE, priority=-5),
        pod("best-effort-high", 1.0, priority=100),
        pod("best-effort-low", 0.1, priority=-100),
        pod("unknown", 0.1, qos=QosClass.UNKNOWN, priority=1000),
    )
    assert order(*pods) == ["unknown", "best-effort-low", "best-effort-high", "burstable", "guaranteed"]


def test_the_larger_consumer_comes_first_and_an_unknown_usage_last():
    pods = pod("little", 0.1), pod("unknown"), pod("much", 2.0), pod("idle", 0.0)
    assert order(*pods) == ["much", "little", "idle", "unknown"]
    memory = pod("m1", memory=1 << 20), pod("m0"), pod("m2", memory=2 << 20)
    assert order(*memory, chain=CHAINS.memory) == ["m2", "m1", "m0"]


def test_with_equal_usage_pods_with_extended_cpu_come_first():
    pods = (
        pod("without", 1.0),
        pod("all-of-it", 1.0, extended_cpu_limit=1.0),
        pod("half", 1.0, extended_cpu_limit=2.0),
    )
    assert order(*pods) == ["half", "all-of-it", "without"]


def test_the_youngest_pod_comes_first_after_pods_without_a_start_time():
    pods = pod("old", start_time=1.0), pod("young", start_time=9.0), pod("not-started"), pod("older", start_time=0.0)
    assert order(*pods, chain=CHAINS.general) == ["not-started", "young", "old", "older"]


def test_the_name_decides_between_equal_pods():
    pods = pod("b", 1.0), pod("a", 1.0), pod("c", 1.0, namespace="a-namespace")
    assert order(*pods) == ["c", "a", "b"]


@pytest.mark.parametrize("chain", [CHAINS.cpu, CRANE_CHAINS.cpu, CHAINS.general])
def test_the_order_does_not_depend_on_the_input_order(chain):
    # Each is within the tolerance of its neighbour, and not of the next: equality that is not transitive.
    pods = [pod(name, 1.0 + place * 0.7e-9) for place, name in enumerate("cabd")]
    assert 1 == len({tuple(order(*each, chain=chain)) for each in permutations(pods)})


def test_a_custom_chain():
    by_restarts = descending("restarts", lambda each: float(each.labels.get("restarts", "0")))
    by_age = ascending("age", lambda each: each.start_time)
    chain = ordered_by(class_and_priority, by_restarts, by_age)
    pods = (
        pod("calm", start_time=1.0),
        pod("calm-later", start_time=2.0),
        pod("restless", labels={"restarts": "7"}),
        pod("high", labels={"restarts": "70"}, priority=1),
    )
    assert order(*pods, chain=chain) == ["restless", "calm", "calm-later", "high"]


def test_each_sort_key_of_a_pod_has_a_value():
    chain = ordered_by(class_and_priority, cpu_usage, mem_usage, ext_cpu_usage, running_time)
    one = pod("one", 0.5, memory=7, extended_cpu_limit=2.0, start_time=3.0, priority=-4)
    assert chain.values(one) == {
        "classAndPriority": "BestEffort/-4",
        "cpuUsage": 0.5,
        "memUsage": 7,
        "extCpuUsage": 0.25,
        "runningTime": 3.0,
        "name": "default/one",
    }


def test_the_rank_is_only_the_importance_of_a_pod():
    one = pod("one", 0.5, start_time=1.0)
    assert 0 == CHAINS.cpu.rank(one, pod("two", 9.0, start_time=9.0))
    assert CHAINS.cpu.rank(one, replace(one, priority=1)) < 0 < CHAINS.cpu.rank(replace(one, priority=1), one)
