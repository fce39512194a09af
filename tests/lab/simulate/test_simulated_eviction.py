"""The pods that the planner of the node agent would evict from a simulated node."""

from importlib.util import find_spec

import pytest

from lab.simulate.engine import OverloadedNode, PodUsageView

pytestmark = pytest.mark.skipif(find_spec("agent") is None, reason="an installation without the agent evicts nothing")

GIB = 2**30


def a_pod(
    uid: str, cores: float, size: int = GIB, *, qos: str = "Burstable", priority: int = 0, owner: str = "ReplicaSet/x"
) -> PodUsageView:
    return PodUsageView(uid, "shop", uid, qos, priority, owner, 100.0, cores, size)


def of(*pods: PodUsageView, used: float, used_bytes: float = 4.0 * GIB) -> tuple[str, ...]:
    from load_watcher.commands.lab.simulated_eviction import evicted

    return evicted(OverloadedNode(1000.0, 8.0, 32 * GIB, used, used_bytes, pods), watermark=90.0)


def test_no_pod_is_evicted_below_the_watermark():
    assert () == of(a_pod("a", 4.0), used=7.0)


def test_the_least_important_pods_that_close_the_gap_are_evicted():
    """8 cores are used and 7.2 allowed; with the excess of 10 percent, 0.88 have to be released."""
    pods = a_pod("a", 3.0), a_pod("b", 0.5, qos="BestEffort"), a_pod("c", 1.0, priority=-1), a_pod("d", 2.0)
    assert ("b", "c") == of(*pods, used=8.0)


def test_memory_above_the_watermark_evicts():
    assert ("b",) == of(a_pod("a", 1.0), a_pod("b", 0.1, 6 * GIB, priority=-1), used=1.0, used_bytes=30.0 * GIB)


@pytest.mark.parametrize(
    "protected", [a_pod("a", 4.0, priority=2_000_000_000), a_pod("a", 4.0, owner="DaemonSet/agent")]
)
def test_protected_pods_stay(protected: PodUsageView):
    assert () == of(protected, used=8.0)
