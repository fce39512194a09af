"""The pending effects of earlier steps, computed again as the table in docs/concepts/agent.md describes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from agent.model import ContainerState, Eviction, PodState, QuotaChange, State, Step
from tests.plan_checker.arithmetic import usage

SLACK = 30.0
"""Seconds: an effect is pending for at most this long; an evicted pod, beyond its grace period."""


@dataclass(frozen=True, slots=True)
class PendingStep:
    """A step with a pending effect; `target` in cores (None: no quota), `planned` in millicores."""

    kind: str
    uid: str
    container: str
    at: float
    until: float
    shows: float
    target: float | None = None
    planned: float = 0.0


@dataclass(slots=True)
class PendingSteps:
    """The steps in flight of a node, by pod and container."""

    entries: dict[tuple[str, str], PendingStep] = field(default_factory=dict)

    def add(self, steps: Iterable[Step], now: float) -> None:
        for step in steps:
            if isinstance(step.change, Eviction):
                until = now + step.change.grace_seconds + SLACK
                self.entries[step.uid, ""] = PendingStep("evict", step.uid, "", now, until, now)
            elif isinstance(step.change, QuotaChange):
                change, shows = step.change, now + step.change.lag_seconds
                target = None if change.after is None else change.after / change.period
                planned = step.released.get("cpu", 0.0)
                self.entries[step.uid, change.container_id] = PendingStep(
                    step.kind, step.uid, change.container_id, now, max(now + SLACK, shows), shows, target, planned
                )

    def prune(self, state: State) -> None:
        """Forget what is visible by now, and add pods that others delete."""
        pods, now = {pod.uid: pod for pod in state.pods}, state.time
        self.entries = {
            key: each for key, each in self.entries.items() if each.uid in pods and _waits(each, pods[each.uid], now)
        }
        for pod in state.pods:
            if pod.terminating and (pod.uid, "") not in self.entries:
                until = now + pod.grace_seconds + SLACK
                self.entries[pod.uid, ""] = PendingStep("evict", pod.uid, "", now, until, now)

    def leaving(self, now: float) -> set[str]:
        return {each.uid for each in self.entries.values() if each.kind == "evict" and now <= each.until}

    def releases(self, state: State, resource: str) -> float:
        """Pending release in millicores or bytes."""
        leaving = self.leaving(state.time)
        total = sum(usage(pod, resource) for pod in state.pods if pod.uid in leaving)
        if resource == "cpu":
            total += sum(
                _above(each, container)
                for each, pod, container in self._quotas(state, "throttle")
                if pod.uid not in leaving
            )
        return total

    def increases(self, state: State, resource: str) -> float:
        """Pending increase in millicores."""
        return sum(_below(each, container) for each, _, container in self._quotas(state, "restore")) * (
            resource == "cpu"
        )

    def lowered(self, now: float) -> dict[str, float]:
        """Recently lowered quotas in cores, by container."""
        return {
            each.container: each.target or 0.0
            for each in self.entries.values()
            if each.kind == "throttle" and now <= each.until
        }

    def raised(self, now: float) -> set[str]:
        return {each.container for each in self.entries.values() if each.kind == "restore" and now <= each.until}

    def set_now(self, now: float) -> set[str]:
        """Containers whose quota was set in this cycle already."""
        return {each.container for each in self.entries.values() if each.container and each.at >= now - 1.0}

    def as_throttled(self, pod: PodState, now: float) -> PodState:
        """The pod with the usage that its recently lowered quotas allow."""
        caps = self.lowered(now)
        containers = tuple(
            replace(each, cpu=min(each.cpu or 0.0, caps[each.id])) if each.id in caps else each
            for each in pod.containers
        )
        less = sum((was.cpu or 0.0) - (now_.cpu or 0.0) for was, now_ in zip(pod.containers, containers, strict=True))
        return replace(pod, containers=containers, cpu=max(0.0, (pod.cpu or 0.0) - less)) if caps else pod

    def _quotas(self, state: State, kind: str) -> list[tuple[PendingStep, PodState, ContainerState]]:
        return [
            (each, pod, container)
            for pod in state.pods
            for container in pod.containers
            if (each := self.entries.get((pod.uid, container.id))) is not None
            and each.kind == kind
            and state.time <= each.until
        ]


def _above(entry: PendingStep, container: ContainerState) -> float:
    if entry.target is None:
        return 0.0
    return max(0.0, min(entry.planned, ((container.cpu or 0.0) - entry.target) * 1_000.0))


def _below(entry: PendingStep, container: ContainerState) -> float:
    if entry.target is None:
        return entry.planned
    return max(0.0, min(entry.planned, (entry.target - (container.cpu or 0.0)) * 1_000.0))


def _waits(entry: PendingStep, pod: PodState, now: float) -> bool:
    if entry.kind == "evict":
        return now <= entry.until or pod.terminating
    container = next((each for each in pod.containers if each.id == entry.container), None)
    if container is None or now > entry.until:
        return False
    return now < entry.shows or (_below if entry.kind == "restore" else _above)(entry, container) > 0.0
