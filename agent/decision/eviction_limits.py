"""Limits on the number of evictions of a node within a time window.

Both the planner and the executor check them: the planner, so that a plan or preview contains no eviction that would be
refused and selects other pods instead; the executor, immediately before it evicts.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from agent.model import Eviction, Step
from watcher.core.config import quantities, values
from watcher.core.config.fields import SettingsTable

_COUNT = values.integer(lowest=0, highest=1000)


@dataclass(frozen=True, slots=True)
class EvictionRecord:
    """An eviction that was done, may have been done, is planned, or was refused by the API. `time` is in unix seconds,
    `owner` KIND/NAME."""

    time: float
    namespace: str
    owner: str
    refused: bool = False
    """It counts only for the node, to limit its attempts: no pod of the namespace or the owner is missing."""


@dataclass(frozen=True, repr=False, kw_only=True)
class EvictionLimits(SettingsTable):
    """Part of [agent]: maximum number of evictions of this node within `eviction_window` seconds: in total (with
    attempts that the API refused), of pods of one namespace, and of pods of one controller (a service may fail if its
    ReplicaSet loses two replicas at once)."""

    eviction_window: Annotated[float, quantities.duration(lowest=1)] = 600.0
    """Time window of the limits evictions_per_node, evictions_per_namespace and evictions_per_owner."""
    evictions_per_node: Annotated[int, _COUNT] = 6
    """Maximum number of evictions on this node within eviction_window."""
    evictions_per_namespace: Annotated[int, _COUNT] = 3
    """Maximum number of evictions on this node per namespace within eviction_window."""
    evictions_per_owner: Annotated[int, _COUNT] = 1
    """Maximum number of evictions on this node per controller within eviction_window."""

    def refusal(self, past: tuple[EvictionRecord, ...], step: Step) -> str:
        """The reason why a limit forbids this eviction, given the evictions of the last `eviction_window` seconds; ""
        if allowed."""
        namespace, owner = _pod_of(step)
        of_namespace = [each for each in past if each.namespace == namespace and not each.refused]
        of_owner = [each for each in of_namespace if owner and each.owner == owner]
        counts = [
            (len(past), self.evictions_per_node, "this node"),
            (len(of_namespace), self.evictions_per_namespace, f"namespace {namespace}"),
            (len(of_owner), self.evictions_per_owner, f"{owner} in namespace {namespace}"),
        ]
        return next(
            (
                f"eviction limit of {whose} reached ({most} in {self.eviction_window:.0f} s)"
                for count, most, whose in counts
                if count >= most
            ),
            "",
        )


@dataclass(frozen=True, slots=True)
class Budget:
    """The eviction limits, and in `past` the evictions of the last `limits.eviction_window` seconds."""

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
