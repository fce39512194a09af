"""The pods that the planner would evict from a node given as numbers."""

from dataclasses import dataclass

import pytest

from agent.decision.simulated_eviction import evicted

GIB = 2**30


@dataclass(frozen=True)
class APod:
    uid: str
    cores: float
    bytes: int = GIB
    qos: str = "Burstable"
    priority: int = 0
    owner: str = "ReplicaSet/x"
    namespace: str = "shop"
    started: float = 100.0

    @property
    def name(self) -> str:
        return self.uid


@dataclass(frozen=True)
class ANode:
    pods: tuple[APod, ...]
    used_cores: float
    used_bytes: float = 4.0 * GIB
    time: float = 1000.0
    cores: float = 8.0
    bytes: int = 32 * GIB


def of(*pods: APod, used: float, used_bytes: float = 4.0 * GIB) -> tuple[str, ...]:
    return evicted(ANode(pods, used, used_bytes), watermark=90.0)


def test_no_pod_is_evicted_below_the_watermark():
    assert () == of(APod("a", 4.0), used=7.0)


def test_the_least_important_pods_that_close_the_gap_are_evicted():
    """8 cores are used and 7.2 allowed; with the excess of 10 percent, 0.88 have to be released."""
    pods = APod("a", 3.0), APod("b", 0.5, qos="BestEffort"), APod("c", 1.0, priority=-1), APod("d", 2.0)
    assert ("b", "c") == of(*pods, used=8.0)


def test_memory_above_the_watermark_evicts():
    assert ("b",) == of(APod("a", 1.0), APod("b", 0.1, 6 * GIB, priority=-1), used=1.0, used_bytes=30.0 * GIB)


@pytest.mark.parametrize("protected", [APod("a", 4.0, priority=2_000_000_000), APod("a", 4.0, owner="DaemonSet/agent")])
def test_protected_pods_stay(protected: APod):
    assert () == of(protected, used=8.0)
