"""What was done a moment ago and does not show yet: it counts as released until it is seen, or its time is up.

A pod that was asked to go burns CPU and holds memory until it has gone; a lowered quota shows in the usage a cycle
later. Without this, every cycle in between would take new victims. An entry is kept until its effect is seen:

    evicted     its whole usage will be released, until the pod is gone, or grace + slack are over
    throttled   what it still uses above the new quota will be, until it does not, or the effect's time is over;
                of a lowered weight, and of memory.high, what it still uses above what is hoped for
    restored    what it does not use yet of what came back will come, until it does, or the effect's time is over

Pods that somebody else ends count like evicted ones. A clock that is set back shortens nothing and prolongs nothing.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from agent.metrics.options import Options
from agent.metrics.pod_actions import usage_released
from agent.model import (
    CPU,
    MEMORY,
    MEMORY_HIGH,
    ContainerState,
    EvictStep,
    KnobStep,
    PodState,
    QuotaStep,
    Released,
    State,
    Step,
)


@dataclass(frozen=True, slots=True)
class InFlight:
    """One step whose effect is awaited. `target` is the new quota in cores, of throttled and restored; None is
    unlimited. With a `knob` it is about the pod's own group, and `target` what that is hoped to use, in cores or
    bytes."""

    kind: Literal["evict", "throttle", "hold", "restore"]
    pod: str
    uid: str
    since: float
    deadline: float
    container_id: str = ""
    target: float | None = None
    released: Released = field(default_factory=dict)
    shows: float = 0.0
    knob: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """A later entry of the same key takes its place."""
        return self.uid, self.container_id, self.knob

    @property
    def resource(self) -> str:
        """What its target is of."""
        return MEMORY if self.knob == MEMORY_HIGH else CPU


Ledger = tuple[InFlight, ...]

MOMENT = 1.0
"""Seconds within which two times are those of one cycle."""


def booked(ledger: Ledger, steps: Iterable[Step], now: float, options: Options) -> Ledger:
    """With the steps that were carried out now. A later one takes the place of an earlier one on the same container or
    pod; what failed is not booked."""
    entries = {each.key: each for each in ledger}
    for step in steps:
        if isinstance(step, EvictStep):
            deadline = now + step.grace_seconds + options.grace_slack_seconds
            entry = InFlight("evict", step.pod, step.uid, now, deadline, released=step.released)
            entries[entry.key] = entry
        elif isinstance(step, (QuotaStep, KnobStep)):
            entry = _in_flight(step, now, options)
            entries[entry.key] = entry
    return tuple(entries[key] for key in sorted(entries))


def _in_flight(step: QuotaStep | KnobStep, now: float, options: Options) -> InFlight:
    shows = now + step.lag_seconds
    deadline = max(now + options.effect_seconds, shows)
    if isinstance(step, KnobStep):
        released, aim, knob = step.released, step.aim, step.knob
        return InFlight(step.kind, step.pod, step.uid, now, deadline, "", aim, released, shows, knob)
    target = None if step.after is None else step.after / step.period
    return InFlight(step.kind, step.pod, step.uid, now, deadline, step.container_id, target, step.released, shows)


def settled(ledger: Ledger, state: State, options: Options) -> Ledger:
    """What is still awaited in this state. A pod that does not end in its time is remembered for as long as it is
    there, so that it is not waited for twice."""
    pods = {pod.uid: pod for pod in state.pods}
    kept = [
        current
        for entry in ledger
        if entry.uid in pods and _awaited(current := _in_time(entry, state.time), pods[entry.uid], state.time)
    ]
    known = {entry.uid for entry in kept if entry.kind == "evict"}
    going = (pod for pod in state.pods if pod.terminating and pod.uid not in known)
    kept += [
        InFlight(
            "evict",
            pod.key,
            pod.uid,
            state.time,
            state.time + pod.grace_seconds + options.grace_slack_seconds,
            released=usage_released(pod),
        )
        for pod in going
    ]
    return tuple(sorted(kept, key=lambda entry: entry.key))


def later(ledger: Ledger, seconds: float) -> Ledger:
    """The same for who counts time from elsewhere: every time in it is so much later (or earlier)."""
    return tuple(
        replace(each, since=each.since + seconds, deadline=each.deadline + seconds, shows=each.shows + seconds)
        for each in ledger
    )


def falling(ledger: Ledger, state: State) -> dict[str, float]:
    """What will be released without further doing, by resource, in millicores and bytes."""
    pods = {pod.uid: pod for pod in state.pods}
    leaving = going(ledger, state.time)
    total: dict[str, float] = {}
    for entry in _running(ledger, state.time):
        if entry.uid not in pods:
            continue
        if entry.kind == "evict":
            still = {**entry.released, **usage_released(pods[entry.uid])}
        elif entry.kind in ("throttle", "hold") and entry.uid not in leaving:  # who goes releases it all
            still = _share(entry, _still_above(entry, pods[entry.uid]))
        else:
            continue
        for resource, amount in still.items():
            total[resource] = total.get(resource, 0.0) + amount
    return total


def rising(ledger: Ledger, state: State) -> dict[str, float]:
    """What will come back without further doing, by resource, in millicores."""
    pods = {pod.uid: pod for pod in state.pods}
    total: dict[str, float] = {}
    for entry in _running(ledger, state.time):
        if entry.kind != "restore" or entry.uid not in pods:
            continue
        for resource, amount in _share(entry, _still_below(entry, pods[entry.uid])).items():
            total[resource] = total.get(resource, 0.0) + amount
    return total


def going(ledger: Ledger, now: float) -> frozenset[str]:
    """Uids of pods that were asked to go and have time left for it."""
    return frozenset(entry.uid for entry in _running(ledger, now) if entry.kind == "evict")


def lowered(ledger: Ledger, now: float) -> Mapping[str, float]:
    """By container id: the quota in cores that was set a moment ago, and that will hold whatever the usage says."""
    return {
        entry.container_id: entry.target
        for entry in _running(ledger, now)
        if entry.kind == "throttle" and entry.target is not None and not entry.knob
    }


def turned(ledger: Ledger, now: float, kind: str, knob: str) -> frozenset[str]:
    """Uids of pods whose knob was turned that way a moment ago, and may not show it yet."""
    return frozenset(entry.uid for entry in _running(ledger, now) if (entry.kind, entry.knob) == (kind, knob))


def set_since(ledger: Ledger, read: float) -> frozenset[str]:
    """Ids of containers whose quota, and uids of pods of which a knob, was set after, or in the moment in which, a
    state was read: what that says of it is past already (a second plan of the same cycle)."""
    return frozenset(
        entry.container_id or entry.uid
        for entry in ledger
        if (entry.container_id or entry.knob) and entry.since >= read - MOMENT
    )


def raised(ledger: Ledger, now: float) -> frozenset[str]:
    """Container ids whose quota was raised a moment ago."""
    return frozenset(
        entry.container_id for entry in _running(ledger, now) if entry.kind == "restore" and not entry.knob
    )


def _running(ledger: Ledger, now: float) -> Iterable[InFlight]:
    return (entry for entry in ledger if now <= entry.deadline)


def _in_time(entry: InFlight, now: float) -> InFlight:
    """With its time running from now, where it would begin in the future."""
    ahead = entry.since - now
    if ahead <= 0.0:
        return entry
    return replace(entry, since=now, deadline=entry.deadline - ahead, shows=entry.shows - ahead)


def _awaited(entry: InFlight, pod: PodState, now: float) -> bool:
    if entry.kind == "evict":
        return now <= entry.deadline or pod.terminating
    if now > entry.deadline or (entry.container_id and _container(entry, pod) is None):
        return False
    if now < entry.shows or (entry.knob and entry.kind == "restore"):  # nobody knows how much will come back
        return True
    return (_still_below(entry, pod) if entry.kind == "restore" else _still_above(entry, pod)) > 0.0


def _container(entry: InFlight, pod: PodState) -> ContainerState | None:
    return next((each for each in pod.containers if each.id == entry.container_id), None)


def _used(entry: InFlight, pod: PodState) -> float | None:
    """Millicores or bytes of what the entry is about, the container or the pod."""
    of = _container(entry, pod) if entry.container_id else pod
    if of is None:
        return 0.0
    if entry.resource == MEMORY:
        return None if of.memory is None else float(of.memory)
    return None if of.cpu is None else of.cpu * 1_000.0


def _aimed(entry: InFlight) -> float | None:
    """The target in the same unit."""
    if entry.target is None:
        return None
    return entry.target if entry.resource == MEMORY else entry.target * 1_000.0


def _still_above(entry: InFlight, pod: PodState) -> float:
    """How much is used above the target, no more than was to be released; all of that while the usage is not known."""
    planned, used, aimed = entry.released.get(entry.resource, 0.0), _used(entry, pod), _aimed(entry)
    if aimed is None:
        return planned if entry.knob else 0.0
    return planned if used is None else max(0.0, min(planned, used - aimed))


def _still_below(entry: InFlight, pod: PodState) -> float:
    """How much is not used yet of what came back."""
    planned, used, aimed = entry.released.get(entry.resource, 0.0), _used(entry, pod), _aimed(entry)
    if entry.container_id and _container(entry, pod) is None:
        return 0.0
    if used is None or aimed is None:
        return planned
    return max(0.0, min(planned, aimed - used))


def _share(entry: InFlight, still: float) -> dict[str, float]:
    """The same part of everything that the step was to release."""
    planned = entry.released.get(entry.resource, 0.0)
    part = still / planned if planned > 0.0 else 0.0
    return {resource: amount * part for resource, amount in entry.released.items()}
