"""Limits on the number of evictions of a node within a time window.

Both the planner and the executor check them: the planner, so that a plan or preview contains no eviction that would be
refused and selects other pods instead; the executor, immediately before it evicts.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.model import Eviction, Step


@dataclass(frozen=True, slots=True)
class EvictionRecord:
    """An eviction that was done, may have been done, is planned, or was refused by the API. `time` is in unix seconds,
    `owner` KIND/NAME."""

    time: float
    namespace: str
    owner: str
    refused: bool = False
    """It counts only for the node, to limit its attempts: no pod of the namespace or the owner is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionLimits:
    """Maximum number of evictions of this node within `window` seconds: in total (with attempts that the API refused),
    of pods of one namespace, and of pods of one controller (a service may fail if its ReplicaSet loses two replicas at
    once)."""

    window: float = 600.0
    node: int = 6
    namespace: int = 3
    owner: int = 1

    def refusal(self, past: tuple[EvictionRecord, ...], step: Step) -> str:
        """The reason why a limit forbids this eviction, given the evictions of the last `window` seconds; "" if
        allowed."""
        namespace, owner = _pod_of(step)
        of_namespace = [each for each in past if each.namespace == namespace and not each.refused]
        of_owner = [each for each in of_namespace if owner and each.owner == owner]
        counts = [
            (len(past), self.node, "this node"),
            (len(of_namespace), self.namespace, f"namespace {namespace}"),
            (len(of_owner), self.owner, f"{owner} in namespace {namespace}"),
        ]
        return next(
            (
                f"eviction limit of {whose} reached ({most} in {self.window:.0f} s)"
                for count, most, whose in counts
                if count >= most
            ),
            "",
        )


@dataclass(frozen=True, slots=True)
class Budget:
    """The eviction limits, and in `past` the evictions of the last `limits.window` seconds."""

    limits: EvictionLimits
    past: tuple[EvictionRecord, ...] = ()

    def refusal(self, planned: tuple[Step, ...], step: Step) -> str:
        """The reason why a limit forbids this eviction after the `planned` ones; "" if allowed."""
        more = tuple(EvictionRecord(0.0, *_pod_of(each)) for each in planned)
        return self.limits.refusal(self.past + more, step)


def _pod_of(step: Step) -> tuple[str, str]:
    """Namespace and owner of the pod that a step evicts."""
    assert isinstance(step.change, Eviction)
    return step.pod.partition("/")[0], step.change.owner
