"""The agent's decisions, carried out on a computed node, cycle after cycle.

A single plan does not show that the usage settles just below the watermark and stays there, that all values are
restored when the load ends, and that no further pods are selected while evicted ones end."""

from __future__ import annotations

import pytest

from agent.metrics.options import DecisionOptions
from agent.model import AvoidanceAction, CpuThrottle, PodQos, PodScope, Policies, QuotaChange, Rule
from agent.qos import QosClass
from tests.agent.scenes import CPU, MEMORY
from tests.agent.simulated import INTERVAL, Node, Pod, directions

BEST_EFFORT = PodQos(
    "best-effort", frozenset({"throttle", "evict"}), scopes=(PodScope("QOSClass", "In", ("BestEffort",)),)
)
WATERMARK = 4_000.0


def policies(
    restore_watermark: float | None = None,
    restore_step: int | None = None,
    *,
    throttle: bool = True,
    evict: bool = False,
) -> Policies:
    rules = [
        Rule("nq", "throttle", CPU, WATERMARK, "throttle", restore_watermark=restore_watermark, restore_threshold=2)
    ] * throttle + [Rule("nq", "evict", CPU, WATERMARK, "evict")] * evict
    actions = {
        "throttle": AvoidanceAction("throttle", 60.0, CpuThrottle(5, 30), restore_step_ratio=restore_step),
        "evict": AvoidanceAction("evict", 60.0, evicts=True),
    }
    return Policies(tuple(rules), actions, (BEST_EFFORT,))


def three_pods() -> list[Pod]:
    return [Pod("a", 1.0), Pod("b", 0.8), Pod("c", 0.5)]


@pytest.mark.parametrize("lags", [False, True])
@pytest.mark.parametrize(("restore_watermark", "restore_step"), [(None, None), (3_600.0, None), (3_600.0, 10)])
def test_usage_settles_below_the_watermark_and_all_quotas_are_restored(lags, restore_watermark, restore_step):
    busy_until = 1_000_000.0 + 40 * INTERVAL
    node = Node(
        three_pods(),
        policies(restore_watermark, restore_step),
        other_millicores=lambda now: 3_000.0 if now < busy_until else 1_000.0,
        lags=lags,
    )
    node.run(5)
    assert WATERMARK >= node.usage >= WATERMARK - 300.0  # no further than the step of one pod
    throttled = node.quota_changes()
    assert throttled <= 9  # three pods, three cycles
    node.run(34)
    assert WATERMARK >= node.usage
    assert node.quota_changes() <= throttled + 2
    node.run(40)
    assert ([None] * 3, {}) == ([pod.quota for pod in node.pods], node.originals)
    changes = node.quota_changes()
    assert ["throttle", "restore"] == directions(node.plans)
    node.run(50)
    assert changes == node.quota_changes()
    assert not node.ledger


@pytest.mark.parametrize("wants", [0.02, 0.5, 1.9])
@pytest.mark.parametrize("pods", [1, 20])
def test_an_idle_node_is_restored_within_two_minutes_from_any_quota(pods: int, wants: float):
    """With steps of 5 percent from the minimum quota, it took half an hour."""
    end = 1_000_000.0 + 100 * INTERVAL
    node = Node(
        [Pod(f"p{number}", wants / pods) for number in range(pods)],
        policies(3_600.0, 5),
        other_millicores=lambda now: 5_000.0 if now < end else 100.0,
    )
    node.run(100)
    assert max(pod.quota or 0 for pod in node.pods) <= 1_000
    node.run(7)  # the restore threshold and the cool-down of a minute
    node.run(12)
    assert [None] * pods == [pod.quota for pod in node.pods]


def test_alternating_load_causes_no_oscillation():
    """The load alternates by half of the dead band: no quota changes once the usage has settled."""
    node = Node(
        three_pods(),
        policies(3_600.0),
        other_millicores=lambda now: 2_800.0 + (200.0 if int(now / INTERVAL) % 2 else 0.0),
    )
    node.run(10)
    changes = node.quota_changes()
    node.run(60)
    assert changes == node.quota_changes()
    assert WATERMARK >= node.usage


def test_original_quotas_are_restored_exactly():
    pods = [Pod("a", 1.0, quota=123_457), Pod("b", 0.8, quota=90_001)]
    node = Node(pods, policies(), other_millicores=lambda now: 3_000.0 if now < 1_000_100.0 else 0.0)
    node.run(60)
    assert [123_457, 90_001] == [pod.quota for pod in node.pods]
    quotas = [step.change.after for made in node.plans for step in made.steps if isinstance(step.change, QuotaChange)]
    assert all(quota is not None and quota <= 123_457 for quota in quotas)


def test_only_the_quota_of_a_pod_that_becomes_idle_is_restored():
    node = Node(three_pods(), policies(), other_millicores=lambda _: 3_000.0)
    node.run(10)
    node.pods[0].cpu = 0.0
    node.run(30)
    assert node.pods[0].quota is None
    assert WATERMARK >= node.usage


def test_a_restarted_agent_restores_from_the_audit_file():
    node = Node(three_pods(), policies(), other_millicores=lambda now: 3_000.0 if now < 1_000_100.0 else 0.0)
    node.run(8)
    assert node.originals
    fresh = Node(
        node.pods, node.policies, other_millicores=node.other_millicores, now=node.now + 100, originals=node.originals
    )
    fresh.run(30)
    assert ([None] * 3, {}) == ([pod.quota for pod in fresh.pods], fresh.originals)


def test_a_removed_policy_restores_at_once():
    node = Node(three_pods(), policies(), other_millicores=lambda _: 3_000.0)
    node.run(8)
    node.policies = Policies()
    node.run(1)
    assert ([None] * 3, {}) == ([pod.quota for pod in node.pods], node.originals)


@pytest.mark.parametrize("takes", [5.0, 55.0])
@pytest.mark.parametrize("lags", [False, True])
def test_evicted_pods_that_still_run_are_not_replaced(takes, lags):
    """Ten pods of half a core, 2.4 cores too many: with the excess of a tenth, six pods are evicted, for any time that
    they take to end."""
    pods = [Pod(f"p{number}", 0.5, takes=takes) for number in range(10)]
    node = Node(
        pods,
        policies(throttle=False, evict=True),
        other_millicores=lambda _: 1_400.0,
        lags=lags,
        options=DecisionOptions(),
    )
    node.run(30)
    gone = {step.pod for made in node.plans for step in made.steps if step.kind == "evict"}
    assert 6 == len(gone)
    assert 4 == len(node.pods)


def test_a_pod_that_does_not_end_is_replaced_after_its_deadline():
    pods = [Pod("stuck", 1.0, takes=10_000.0), Pod("other", 0.9)]
    node = Node(pods, policies(throttle=False, evict=True), other_millicores=lambda _: 2_500.0)
    node.run(6)
    assert 1 == sum(step.kind == "evict" for made in node.plans for step in made.steps)
    node.run(6)
    assert 2 == sum(step.kind == "evict" for made in node.plans for step in made.steps)


def test_throttling_avoids_the_eviction():
    node = Node(three_pods(), policies(evict=True), other_millicores=lambda _: 2_800.0)
    node.run(60)
    assert not [step for made in node.plans for step in made.steps if step.kind == "evict"]
    assert WATERMARK >= node.usage


def test_pods_are_evicted_for_the_rest_that_throttling_cannot_release():
    pods = [Pod("a", 1.0, values={"cpu_request": 0.95}), Pod("b", 0.8, values={"cpu_request": 0.75})]
    node = Node(pods, policies(evict=True), other_millicores=lambda _: 2_800.0)
    node.run(20)
    evicted = [step.pod for made in node.plans for step in made.steps if step.kind == "evict"]
    assert ["default/a"] == evicted
    assert WATERMARK >= node.usage


def test_no_pod_of_a_higher_class_is_changed_if_lower_ones_release_enough():
    pods = [*three_pods(), Pod("web", 2.0, values={"qos": QosClass.BURSTABLE})]
    everybody = PodQos("all", frozenset({"throttle"}), scopes=())
    held = policies()
    node = Node(pods, Policies(held.rules, held.actions, (everybody,)))
    node.run(20)
    assert pods[3].quota is None
    assert WATERMARK >= node.usage


def test_pods_are_evicted_for_memory_once():
    pods = [Pod(f"p{number}", 0.1, memory=1_000) for number in range(8)]
    held = Policies(
        (Rule("nq", "memory", MEMORY, 6_000.0, "evict"),),
        {"evict": AvoidanceAction("evict", evicts=True)},
        (BEST_EFFORT,),
    )
    node = Node(pods, held)
    node.run(20)
    assert 5 == len(node.pods)  # 2,000 too much, a tenth more makes three
