"""How many evictions a node may do within a time, and which one would be too many.

Asked twice: by the planner, so that a plan (and a preview) has no eviction that will not be done and finds others in
its place, and by the executor just before it acts.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.model import EvictStep


@dataclass(frozen=True, slots=True)
class Eviction:
    """One that was done, or may have been; or one that is planned."""

    time: float
    namespace: str
    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How many evictions this node may do within `window` seconds: in all, of one namespace's pods, and of pods that
    one controller owns (a ReplicaSet that loses two replicas at once may lose its service)."""

    window: float = 600.0
    node: int = 6
    namespace: int = 3
    owner: int = 1

    def refusal(self, past: tuple[Eviction, ...], step: EvictStep) -> str:
        """Why this pod may not be evicted now, after those of the last `window` seconds; "" if it may."""
        namespace = step.pod.partition("/")[0]
        of_namespace = [each for each in past if each.namespace == namespace]
        of_owner = [each for each in of_namespace if step.owner and each.owner == step.owner]
        counts = [
            (len(past), self.node, "this node"),
            (len(of_namespace), self.namespace, f"the namespace {namespace}"),
            (len(of_owner), self.owner, f"{step.owner} in {namespace}"),
        ]
        return next(
            (
                f"{whose} may have {most} evictions in {self.window:.0f} s, and has them"
                for count, most, whose in counts
                if count >= most
            ),
            "",
        )


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits, and the evictions of the last `window` seconds."""

    limits: Limits
    past: tuple[Eviction, ...] = ()

    def refusal(self, planned: tuple[EvictStep, ...], step: EvictStep) -> str:
        """Why this one would be too many after those `planned`; "" if it would not."""
        more = tuple(Eviction(0.0, each.pod.partition("/")[0], each.owner) for each in planned)
        return self.limits.refusal(self.past + more, step)
