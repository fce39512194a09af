"""Applies allocations to running containers, so that a CPU leaves the container that loses it before another container
gets it, and stays if the runtime or the kernel refuses.

In the mode nri, updates are only collected, and the runtime reports later which ones failed. A container gets the CPUs
of another one only after the update of that one is confirmed; `PropertyApplier.apply_rest` collects the next updates.

Two containers that only exchange all their CPUs have them together for a moment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from agent.cpuset import EMPTY, CpuSet, canonical_or_unchanged, parse, text
from agent.qrm.manager.admission import Apply, ApplyFailed, ContainerRef, Failures, Reconciled
from agent.qrm.manager.allocation import CPUSET_CPUS, Allocations, BadProperty, Properties, checked_properties
from agent.qrm.pods import PodContainer, QrmPod

REFRESH_S = 60.0
"""Seconds after which the properties of a container are applied again even if they have not changed, because another
process may have overwritten them."""


ALL_CPUS = 1 << 16


def cpus_in(properties: Properties) -> CpuSet | None:
    """The CPUs that properties set; None without a valid set."""
    try:
        return parse(str(properties[CPUSET_CPUS])) or None
    except (KeyError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class HeldCpus:
    """The CPUs that a container has, or may have (`cpus`; None: possibly all), except those of its own new set."""

    ref: ContainerRef
    cpus: CpuSet | None
    own: CpuSet = EMPTY

    def of(self, wanted: CpuSet) -> CpuSet:
        """Those of the wanted CPUs that the container holds."""
        return (wanted if self.cpus is None else wanted & self.cpus) - self.own


@dataclass(frozen=True, slots=True)
class AppliedState:
    """What a container has: the properties that were set last, empty if they have to be set again; the CPUs that it may
    have, None if unknown; and the monotonic time in seconds at which the properties were set."""

    properties: Properties = field(default_factory=dict)
    cpus: CpuSet | None = None
    at: float = -math.inf

    def or_with(self, cpus: CpuSet | None) -> CpuSet | None:
        """The CPUs that the container may have while it is unknown whether it got these."""
        return None if self.cpus is None else self.cpus | (cpus or EMPTY)


@dataclass(frozen=True, slots=True)
class PendingUpdate:
    """Properties that a container has to get, in addition to what it has."""

    pod: QrmPod
    container: PodContainer
    properties: Properties
    has: AppliedState

    @property
    def ref(self) -> ContainerRef:
        """The container as the results name it."""
        return ContainerRef.of(self.pod, self.container)

    @property
    def cpus(self) -> CpuSet | None:
        """The CPUs that the container will have; None if they do not change."""
        return cpus_in(self.properties)

    @property
    def gains(self) -> CpuSet:
        """The CPUs that the container gets in addition."""
        return EMPTY if self.cpus is None or self.has.cpus is None else self.cpus - self.has.cpus

    @property
    def growth(self) -> int:
        """The number of CPUs more than before; containers that may have all CPUs come first."""
        before = ALL_CPUS if self.has.cpus is None else len(self.has.cpus)
        return (before if self.cpus is None else len(self.cpus)) - before

    @property
    def held(self) -> HeldCpus:
        """The CPUs that the update removes from the container, which holds them until then."""
        return HeldCpus(self.ref, EMPTY) if self.cpus is None else HeldCpus(self.ref, self.has.cpus, self.cpus)

    def held_by(self, others: Iterable[HeldCpus]) -> CpuSet:
        """The gained CPUs that other containers hold."""
        gains = self.gains
        return frozenset().union(*(each.of(gains) for each in others if each.ref != self.ref))

    def without(self, cpus: CpuSet) -> PendingUpdate | None:
        """The update without these CPUs, and without a set of CPUs if none is left; None if it changes nothing."""
        properties = {name: value for name, value in self.properties.items() if name != CPUSET_CPUS}
        if left := (self.cpus or EMPTY) - cpus:
            properties = {**self.properties, CPUSET_CPUS: text(left)}
        changed = any(self.has.properties.get(name) != value for name, value in properties.items())
        return replace(self, properties=properties) if changed else None

    def applied(self, at: float, *, confirmed: bool = True) -> AppliedState:
        """What the container has after the update, which is confirmed or not."""
        properties = self.properties
        if self.cpus is None and CPUSET_CPUS in self.has.properties:
            properties = {**properties, CPUSET_CPUS: self.has.properties[CPUSET_CPUS]}
        exact = self.has.cpus if self.cpus is None else self.cpus
        return AppliedState(properties, exact if confirmed else self.has.or_with(self.cpus), at)


def next_update(
    pending: Sequence[PendingUpdate], unconfirmed: Sequence[HeldCpus] = ()
) -> tuple[PendingUpdate, PendingUpdate] | None:
    """One of the pending updates, and what is applied of it now: all of it if its CPUs are free. If containers wait for
    each other, the first one gets its set without the CPUs that it waits for; None if they wait for unconfirmed
    updates. `pending` is not empty. Pure."""
    ordered = sorted(pending, key=lambda each: (each.growth, each.pod.uid, each.container.name))
    holders = [*(each.held for each in pending), *unconfirmed]
    waits = [(each, each.held_by(holders)) for each in ordered]
    for each, held in waits:
        if not held:
            return each, each
    for each, held in waits:
        part = each.without(held)
        if part is not None:
            return each, part
    return None if any(each.held_by(unconfirmed) for each in ordered) else (ordered[0], ordered[0])


class PropertyApplier:
    """Applies the properties of `allocations`. `cpus` are the online CPUs; `monotonic` returns seconds. `collects`:
    updates are confirmed later, by `confirm`, or fail (`apply_again`)."""

    def __init__(
        self,
        allocations: Allocations,
        *,
        cpus: CpuSet | None,
        monotonic: Callable[[], float],
        collects: bool = False,
    ) -> None:
        self._allocations = allocations
        self._cpus = cpus
        self._monotonic = monotonic
        self._collects = collects
        self._applied: dict[str, AppliedState] = {}
        """What containers have, by id."""
        self._running: Sequence[tuple[QrmPod, PodContainer]] = ()
        self._loaded = {
            (pod, container): canonical_or_unchanged(info.allocation_result)
            for pod, container, _, info in allocations
            if info.oci_property_name == CPUSET_CPUS
        }
        """The CPUs that the containers of the last process had, by pod UID and name, until they are seen running."""

    def properties(self, pod_uid: str, container: str) -> Properties:
        """The properties that the stored allocations of a container set. Raises BadProperty."""
        return checked_properties(self._allocations.of(pod_uid, container), cpus=self._cpus)

    def set_applied(self, container_id: str, properties: Properties | None) -> None:
        """The container has these properties, set by another way than `apply`; None if they are unknown, so that the
        next round applies them."""
        if properties is None:
            self._applied.pop(container_id, None)
        else:
            self._applied[container_id] = AppliedState(properties, cpus_in(properties), self._monotonic())

    def confirm(self, container_id: str, properties: Properties) -> None:
        """The container has the collected properties, unless others were set in the meantime."""
        known = self._applied.get(container_id)
        if known is not None and known.properties.items() >= properties.items():
            self._applied[container_id] = replace(known, cpus=cpus_in(properties) or known.cpus)

    def apply_again(self, container_id: str) -> None:
        """It is unknown whether the container has the properties that were set last. The next round sets them again;
        until then the container may have its CPUs of before."""
        known = self._applied.get(container_id, AppliedState())
        self._applied[container_id] = AppliedState(cpus=known.cpus)

    async def apply(self, running: Sequence[tuple[QrmPod, PodContainer]], apply: Apply, failed: Failures) -> Reconciled:
        """Apply what has changed, or was not applied for REFRESH_S seconds. `failed` are the errors of this round so
        far, by container. A container does not get CPUs that another one keeps because its update failed."""
        ids = {container.id for _, container in running}
        self._applied = {id: known for id, known in self._applied.items() if id in ids}
        self._running = tuple(running)
        errors = dict(failed)
        for pod, container in running:
            loaded = self._loaded.pop((pod.uid, container.name), None)
            if loaded is not None:
                properties = {CPUSET_CPUS: loaded}
                self._applied.setdefault(container.id, AppliedState(properties, cpus_in(properties)))
        pending, kept = self._due(errors)
        return Reconciled(await self._apply(pending, kept, apply, errors), errors)

    async def apply_rest(self, apply: Apply, refused: Collection[str]) -> Failures:
        """Apply to the containers of the last call of `apply` what they had to wait for, or what has changed. `refused`
        are the ids of containers whose updates failed, which keep their CPUs until the next round. Returns errors by
        container."""
        errors = dict[ContainerRef, str]()
        pending, kept = self._due({})
        kept += [each.held for each in pending if each.container.id in refused]
        await self._apply([each for each in pending if each.container.id not in refused], kept, apply, errors)
        return errors

    async def _apply(
        self, pending: list[PendingUpdate], kept: list[HeldCpus], apply: Apply, errors: dict[ContainerRef, str]
    ) -> tuple[ContainerRef, ...]:
        """Apply the pending updates, and return the containers that have all of their properties."""
        applied = list[ContainerRef]()
        unconfirmed = self._unconfirmed(pending)
        while pending and (found := next_update(pending, unconfirmed)) is not None:
            whole, part = found
            pending.remove(whole)
            now_free = self._without_kept(part, kept, errors)
            if now_free is None:
                continue
            try:
                await apply(whole.pod, whole.container, now_free.properties)
            except ApplyFailed as error:
                errors[whole.ref] = str(error)
                kept.append(whole.held)
                self._applied[whole.container.id] = AppliedState(cpus=whole.has.or_with(now_free.cpus))
                continue
            has = now_free.applied(self._monotonic(), confirmed=not self._collects)
            self._applied[whole.container.id] = has
            if self._collects:
                unconfirmed.append(replace(whole, properties=now_free.properties).held)
            elif part is not whole:
                pending.append(replace(whole, has=has))
                continue
            if whole.ref not in applied:
                applied.append(whole.ref)
        return tuple(applied)

    def _unconfirmed(self, pending: Sequence[PendingUpdate]) -> list[HeldCpus]:
        """The CPUs of containers whose collected updates are not confirmed yet."""
        due = {each.container.id for each in pending}
        held = []
        for pod, container in self._running:
            known = self._applied.get(container.id)
            if known is not None and container.id not in due and (own := cpus_in(known.properties)) is not None:
                held.append(HeldCpus(ContainerRef.of(pod, container), known.cpus, own))
        return held

    def _due(self, errors: dict[ContainerRef, str]) -> tuple[list[PendingUpdate], list[HeldCpus]]:
        """The updates that are due, and the CPUs of containers with invalid properties, which keep them."""
        now, due, kept = self._monotonic(), list[PendingUpdate](), list[HeldCpus]()
        for pod, container in self._running:
            known = self._applied.get(container.id, AppliedState())
            try:
                properties = self.properties(pod.uid, container.name)
            except BadProperty as error:
                ref = ContainerRef.of(pod, container)
                errors[ref] = str(error)
                kept.append(HeldCpus(ref, known.cpus or EMPTY))
                continue
            if properties and (properties != known.properties or now - known.at >= REFRESH_S):
                due.append(PendingUpdate(pod, container, properties, known))
        return due, kept

    @staticmethod
    def _without_kept(
        update: PendingUpdate, kept: Sequence[HeldCpus], errors: dict[ContainerRef, str]
    ) -> PendingUpdate | None:
        """The update without the gained CPUs that other containers keep; None if the container has the rest."""
        waits = update.held_by(kept)
        if not waits:
            return update
        holder = next(each.ref for each in kept if min(waits) in each.of(waits))
        errors[update.ref] = f"does not get CPUs {text(waits)} yet: {holder} has them, and its update failed"
        return update.without(waits)
