"""Ledger of steps in flight: steps whose effect is not visible in the usage yet. Their release counts until it is
visible or a deadline passes.

An evicted pod uses CPU and memory until it has ended, and a lowered quota shows in the usage one cycle later. Without
the ledger, every cycle in between would select more pods. An entry counts as follows:

    evicted     the pod's whole usage, until the pod is gone, or its grace period and the slack are over
    throttled   the usage above the new quota, until there is none, or `effect` has passed; for cpu.weight and
                memory.high, the usage above the expected usage
    restored    the part of the restored amount that is not used yet, until it is used, or `effect` has passed

Pods that another client deletes count like evicted ones. Setting the wall clock back neither shortens nor extends a
deadline.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from agent.metrics.options import DecisionOptions
from agent.metrics.pod_actions import usage_released
from agent.model import (
    CPU,
    MEMORY,
    MEMORY_HIGH,
    ContainerState,
    Eviction,
    KnobChange,
    PodState,
    QuotaChange,
    Released,
    State,
    Step,
    StepKind,
)


@dataclass(frozen=True, slots=True)
class InFlight:
    """One step whose effect is pending. `since`, `deadline` and `shows` (when the metric can show the effect) are in
    unix seconds. `target` is the new quota in cores of a throttled or restored container, None for unlimited. With a
    `knob`, the step concerns the pod's own group, and `target` is the expected usage in cores or bytes."""

    kind: StepKind
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
        """A later entry with the same key replaces this one."""
        return self.uid, self.container_id, self.knob

    @property
    def resource(self) -> str:
        """Resource of the target (`MEMORY` or `CPU`)."""
        return MEMORY if self.knob == MEMORY_HIGH else CPU


Ledger = tuple[InFlight, ...]

MOMENT = 1.0
"""Seconds: times that differ by at most this much belong to the same cycle."""


def with_steps(ledger: Ledger, steps: Iterable[Step], now: float, options: DecisionOptions) -> Ledger:
    """Return the ledger with the steps carried out at `now` (unix seconds). A later step replaces an earlier one on the
    same container or pod. The caller passes no failed steps."""
    entries = {each.key: each for each in ledger}
    for step in steps:
        entry = _in_flight(step, now, options)
        if entry is not None:
            entries[entry.key] = entry
    return tuple(entries[key] for key in sorted(entries))


def _in_flight(step: Step, now: float, options: DecisionOptions) -> InFlight | None:
    """The entry of a step; None if the step changes no usage, or by an amount that is known only afterwards."""
    change = step.change
    if isinstance(change, Eviction):
        deadline = now + change.grace_seconds + options.grace_slack
        return InFlight("evict", step.pod, step.uid, now, deadline, released=step.released)
    if not isinstance(change, QuotaChange | KnobChange):
        return None
    shows = now + change.lag_seconds
    deadline = max(now + options.effect, shows)
    if isinstance(change, KnobChange):
        knob = change.knob
        return InFlight(step.kind, step.pod, step.uid, now, deadline, "", change.aim, step.released, shows, knob)
    target = None if change.after is None else change.after / change.period
    container = change.container_id
    return InFlight(step.kind, step.pod, step.uid, now, deadline, container, target, step.released, shows)


def still_pending(ledger: Ledger, state: State, options: DecisionOptions) -> Ledger:
    """Return the entries whose effect is still pending in this state, including pods that are terminating. The entry of
    a pod that outlives its deadline stays until the pod is gone, so that it does not get a second deadline."""
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
            state.time + pod.grace_seconds + options.grace_slack,
            released=usage_released(pod),
        )
        for pod in going
    ]
    return tuple(sorted(kept, key=lambda entry: entry.key))


def shifted(ledger: Ledger, seconds: float) -> Ledger:
    """Return a copy with all times shifted by `seconds` (negative: earlier), for a wall clock that jumped."""
    return tuple(
        replace(each, since=each.since + seconds, deadline=each.deadline + seconds, shows=each.shows + seconds)
        for each in ledger
    )


def falling(ledger: Ledger, state: State) -> dict[str, float]:
    """Pending release of earlier steps by resource, in millicores and bytes."""
    pods = {pod.uid: pod for pod in state.pods}
    leaving = pods_being_evicted(ledger, state.time)
    total: dict[str, float] = {}
    for entry in _running(ledger, state.time):
        if entry.uid not in pods:
            continue
        if entry.kind == "evict":
            still = {**entry.released, **usage_released(pods[entry.uid])}
        elif entry.kind in ("throttle", "hold") and entry.uid not in leaving:  # the eviction counts in full
            still = _share(entry, _still_above(entry, pods[entry.uid]))
        else:
            continue
        for resource, amount in still.items():
            total[resource] = total.get(resource, 0.0) + amount
    return total


def rising(ledger: Ledger, state: State) -> dict[str, float]:
    """Pending usage increase from earlier restores by resource, in millicores."""
    pods = {pod.uid: pod for pod in state.pods}
    total: dict[str, float] = {}
    for entry in _running(ledger, state.time):
        if entry.kind != "restore" or entry.uid not in pods:
            continue
        for resource, amount in _share(entry, _still_below(entry, pods[entry.uid])).items():
            total[resource] = total.get(resource, 0.0) + amount
    return total


def pods_being_evicted(ledger: Ledger, now: float) -> frozenset[str]:
    """Uids of evicted pods whose deadline has not passed; `now` in unix seconds."""
    return frozenset(entry.uid for entry in _running(ledger, now) if entry.kind == "evict")


def lowered(ledger: Ledger, now: float) -> Mapping[str, float]:
    """Recently lowered quotas in cores, by container id. They take effect even if the usage does not show it yet."""
    return {
        entry.container_id: entry.target
        for entry in _running(ledger, now)
        if entry.kind == "throttle" and entry.target is not None and not entry.knob
    }


def recently_set(ledger: Ledger, now: float, kind: str, knob: str) -> frozenset[str]:
    """Uids of pods whose `knob` was recently changed by a step of this `kind`, and whose effect may be pending."""
    return frozenset(entry.uid for entry in _running(ledger, now) if (entry.kind, entry.knob) == (kind, knob))


def set_since(ledger: Ledger, read: float) -> frozenset[str]:
    """Ids of containers and uids of pods whose quota or knob was set at or after `read` (unix seconds), the time when a
    state was read. The state is outdated for them (in a second plan of the same cycle)."""
    return frozenset(
        entry.container_id or entry.uid
        for entry in ledger
        if (entry.container_id or entry.knob) and entry.since >= read - MOMENT
    )


def raised(ledger: Ledger, now: float) -> frozenset[str]:
    """Ids of containers whose quota was recently raised."""
    return frozenset(
        entry.container_id for entry in _running(ledger, now) if entry.kind == "restore" and not entry.knob
    )


def _running(ledger: Ledger, now: float) -> Iterable[InFlight]:
    return (entry for entry in ledger if now <= entry.deadline)


def _in_time(entry: InFlight, now: float) -> InFlight:
    """Return the entry with its times shifted to start at `now` if it starts in the future."""
    ahead = entry.since - now
    if ahead <= 0.0:
        return entry
    return replace(entry, since=now, deadline=entry.deadline - ahead, shows=entry.shows - ahead)


def _awaited(entry: InFlight, pod: PodState, now: float) -> bool:
    if entry.kind == "evict":
        return now <= entry.deadline or pod.terminating
    if now > entry.deadline or (entry.container_id and _container(entry, pod) is None):
        return False
    if now < entry.shows or (entry.knob and entry.kind == "restore"):  # the increase cannot be computed
        return True
    return (_still_below(entry, pod) if entry.kind == "restore" else _still_above(entry, pod)) > 0.0


def _container(entry: InFlight, pod: PodState) -> ContainerState | None:
    return next((each for each in pod.containers if each.id == entry.container_id), None)


def _used(entry: InFlight, pod: PodState) -> float | None:
    """Usage of the entry's container or pod in millicores or bytes; None if unknown."""
    of = _container(entry, pod) if entry.container_id else pod
    if of is None:
        return 0.0
    if entry.resource == MEMORY:
        return None if of.memory is None else float(of.memory)
    return None if of.cpu is None else of.cpu * 1_000.0


def _aimed(entry: InFlight) -> float | None:
    """The target in millicores or bytes; None if there is none."""
    if entry.target is None:
        return None
    return entry.target if entry.resource == MEMORY else entry.target * 1_000.0


def _still_above(entry: InFlight, pod: PodState) -> float:
    """Usage above the target, at most the planned release, in millicores or bytes; the whole planned release if the
    usage is unknown."""
    planned, used, aimed = entry.released.get(entry.resource, 0.0), _used(entry, pod), _aimed(entry)
    if aimed is None:
        return planned if entry.knob else 0.0
    return planned if used is None else max(0.0, min(planned, used - aimed))


def _still_below(entry: InFlight, pod: PodState) -> float:
    """The part of the restored amount that is not used yet, in millicores or bytes."""
    planned, used, aimed = entry.released.get(entry.resource, 0.0), _used(entry, pod), _aimed(entry)
    if entry.container_id and _container(entry, pod) is None:
        return 0.0
    if used is None or aimed is None:
        return planned
    return max(0.0, min(planned, aimed - used))


def _share(entry: InFlight, still: float) -> dict[str, float]:
    """Scale the planned release of all resources by the fraction `still` of the entry's own resource."""
    planned = entry.released.get(entry.resource, 0.0)
    part = still / planned if planned > 0.0 else 0.0
    return {resource: amount * part for resource, amount in entry.released.items()}
