"""Changes CPU quotas, cpu.weight and memory.high so that each can be restored, and reads the last two for the planner.
The original value is stored before the first write, and values that another program has set are left unchanged.

Restoring compares before it writes. If the current value is the one that the agent last wrote, or was about to write,
the original value is restored; any other value was set by another program or an operator (for example an in-place
resize) and stays. The kernel offers no lock for the few microseconds between comparison and write.

All functions block.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from agent.audit.log import Audit, AuditEntry, AuditOutcome, StoredOriginal, key_of
from agent.cgroups import base
from agent.cgroups.detection import KubeletGroups
from agent.cgroups.errors import CgroupError, CgroupGone
from agent.cgroups.values import (
    CPU_WEIGHT,
    NOUNS,
    CpuWeight,
    Knob,
    MemoryHigh,
    Quota,
    Value,
    as_json,
    at_least,
    in_words,
    knob_of,
)
from agent.executor.report import StepOutcome, StepResult
from agent.model import KnobChange, Knobs, PodKnobs, PodState, QuotaChange, Step
from watcher.core.messages import with_hint

T = TypeVar("T")

UNLIMITED = float("inf")


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """Result of restoring one stored original value: `fate` is DONE, GONE, FOREIGN or FAILED."""

    remembered: StoredOriginal
    fate: StepOutcome
    text: str = ""


@dataclass(frozen=True, slots=True)
class Changed:
    """Result of a step. `first`: it was the first to lower the group's value; `last`: the group has its original value
    again."""

    result: StepResult
    first: bool = False
    last: bool = False


@dataclass(frozen=True, slots=True)
class _ValueChange:
    """The change of a group's value by a step; `container_id` is "" for the pod's own group."""

    step: Step
    before: Value
    after: Value
    container_id: str = ""

    @property
    def knob(self) -> Knob:
        return knob_of(self.after)

    @property
    def key(self) -> str:
        return key_of(self.container_id, self.step.uid, self.knob)

    @property
    def noun(self) -> str:
        return NOUNS[self.knob]


def _change(step: Step) -> _ValueChange:
    change = step.change
    if isinstance(change, QuotaChange):
        before, after = (Quota(quota, change.period) for quota in (change.before, change.after))
        return _ValueChange(step, before, after, change.container_id)
    assert isinstance(change, KnobChange)
    if change.knob == CPU_WEIGHT:
        return _ValueChange(step, CpuWeight(change.before or 0), CpuWeight(change.after or 0))
    return _ValueChange(step, MemoryHigh(change.before), MemoryHigh(change.after))


def with_change(step: Step, deed: AuditEntry) -> AuditEntry:
    """Return the audit entry with the values before and after the step."""
    change = _change(step)
    name = step.change.container if isinstance(step.change, QuotaChange) else ""
    before, after = as_json(change.before), as_json(change.after)
    return replace(deed, container=name, container_id=change.container_id, before=before, after=after)


def _with_burst(change: _ValueChange, found: Value, original: Value) -> _ValueChange:
    """The change of a quota with its bursts: the current one before, and after it the original one, at most the new
    quota, because the kernel refuses a burst above the quota."""
    if not (isinstance(change.before, Quota) and isinstance(change.after, Quota)):
        return change
    assert isinstance(found, Quota)
    assert isinstance(original, Quota)
    most = original.burst if change.after.quota is None else min(original.burst, change.after.quota)
    before = replace(change.before, burst=found.burst)
    return replace(change, before=before, after=replace(change.after, burst=most))


class KnobWriter:
    """Writes quotas, cpu.weight and memory.high. Methods may raise AuditError; every write to a group is recorded in
    the audit file first."""

    def __init__(self, audit: Audit, groups: KubeletGroups, *, clock: Callable[[], float]) -> None:
        self._audit = audit
        self._groups = groups
        self._clock = clock

    def apply(self, step: Step, deed: AuditEntry) -> Changed:
        """Carry out one step of a plan; `deed` is its audit entry."""
        change = _change(step)
        known = self._audit.originals_by_key(change.key).get(change.key)
        try:
            path = self._groups.find(step.uid, change.container_id)
            if path is None and known is not None and not self._is_gone(known):
                path = known.path  # the kubelet has other groups now; this one is of before
            result = self._gone(change, known) if path is None else self._made(change, deed, path, known)
        except CgroupGone:
            result = self._gone(change, known)
        except CgroupError as error:
            result = StepResult(step, StepOutcome.FAILED, with_hint(error))
        if result.fate is not StepOutcome.DONE:
            return Changed(result)
        left = bool(self._audit.originals_by_key(change.key))
        return Changed(result, first=known is None and left, last=not left)

    def _gone(self, change: _ValueChange, known: StoredOriginal | None) -> StepResult:
        if known is not None:
            self._audit.forget(change.key)
        return StepResult(change.step, StepOutcome.GONE, _gone(change.container_id))

    def _made(self, change: _ValueChange, deed: AuditEntry, path: str, known: StoredOriginal | None) -> StepResult:
        step, found = change.step, self._read(path, change.knob)
        foreign = known is not None and not known.written_by_agent(found) and found != known.original
        change = _with_burst(change, found, found if known is None or foreign else known.original)
        wanted = change.after
        if foreign and step.kind == "restore":
            return self._leave(change, deed, found)
        if found != change.before:
            text = f"its {change.noun} is {in_words(found)} now, not {in_words(change.before)}"
            return StepResult(step, StepOutcome.FOREIGN, text)
        if found == wanted:
            if known is not None and found == known.original:
                self._audit.forget(change.key)
            return StepResult(step, StepOutcome.NOT_NEEDED, f"its {change.noun} is {in_words(found)} already")
        original = found if known is None or foreign else known.original
        begun = self._audit.begin_change(deed, path=path, found=found, intended=wanted, replace_original=foreign)
        return self._write(change, begun, path, original=original)

    def _write(self, change: _ValueChange, begun: AuditEntry, path: str, *, original: Value) -> StepResult:
        step, wanted = change.step, change.after
        try:
            with self._groups.open(path) as group:
                base.write(group, wanted)
        except CgroupError as error:
            gone = isinstance(error, CgroupGone)
            outcome, fate = (AuditOutcome.GONE, StepOutcome.GONE) if gone else (AuditOutcome.FAILED, StepOutcome.FAILED)
            self._audit.finish(begun, outcome, now=self._clock(), message=with_hint(error))
            if gone or self._read_or_none(path, change.knob) == original:
                self._audit.forget(change.key)
            return StepResult(step, fate, with_hint(error), begun.id)
        left = None if wanted == original else wanted
        self._audit.finish_change(begun, AuditOutcome.DONE, now=self._clock(), written=left, knob=change.knob)
        text = f"its {change.noun} is {in_words(wanted)}" + (", the original value" if left is None else "")
        return StepResult(step, StepOutcome.DONE, text, begun.id)

    def _leave(self, change: _ValueChange, deed: AuditEntry, found: Value) -> StepResult:
        """Record that a value to be restored was changed by another program and is left unchanged."""
        begun = self._record_foreign(deed, change.knob, found)
        return StepResult(change.step, StepOutcome.FOREIGN, begun.message, begun.id)

    def _record_foreign(self, deed: AuditEntry, knob: Knob, found: Value) -> AuditEntry:
        begun, now, text = self._audit.begin(deed), self._clock(), _foreign(knob, found)
        return self._audit.finish_change(begun, AuditOutcome.FOREIGN, now=now, written=None, knob=knob, message=text)

    def _read(self, path: str, knob: Knob) -> Value:
        """Read the value of a knob. Raises CgroupGone only if other groups of the kubelet exist, CgroupError
        otherwise."""
        try:
            with self._groups.open(path) as group:
                return base.read(group, knob)
        except CgroupGone:
            self._groups.check()
            raise

    def _read_or_none(self, path: str, knob: Knob) -> Value | None:
        try:
            return self._read(path, knob)
        except CgroupError:
            return None

    def forget_ended(self, present: Collection[str]) -> None:
        """Delete the stored original values of containers and pods that are not `present` (container ids, pod uids) and
        have no control group."""
        for each in self._audit.originals_by_key().values():
            if (each.container_id or each.uid) not in present and self._is_gone(each):
                self._audit.forget(each.key)

    def _is_gone(self, remembered: StoredOriginal) -> bool:
        try:
            self._read(remembered.path, remembered.knob)
        except CgroupGone:
            return True
        except CgroupError:
            return False
        return False

    def forget_restored(self, seen: Mapping[str, Quota]) -> None:
        """Delete the stored original values of groups that have their original value, or to which another program gave
        more (an in-place resize), because no plan will restore them. `seen` are the quotas by container id; candidates
        among them are read again, as are all values of pods."""
        for each in self._audit.originals_by_key().values():
            if each.container_id and not (each.key in seen and at_least(seen[each.key], each.original)):
                continue
            found = self._look(each)
            if found == each.original:
                self._audit.forget(each.key)
            elif (
                not isinstance(found, CgroupError)
                and not each.written_by_agent(found)
                and at_least(found, each.original)
            ):
                deed = _restoring(each, found, now=self._clock(), reason="its value is above the original", cycle=0)
                self._record_foreign(deed, each.knob, found)

    # --- all values --------------------------------------------------------------------------------------------------

    def restore_all(self, *, reason: str, cycle: int = 0) -> tuple[RestoreResult, ...]:
        """Restore all original values, also after a crash; only the audit file is needed. A value that fails stays
        stored and does not affect the others.

        All values are read, recorded in one transaction, written, and their results recorded in one transaction, so
        that hundreds of values need only two disk syncs while the process may be about to be killed."""
        return self._restore(tuple(self._audit.originals_by_key().values()), reason=reason, cycle=cycle)

    def restore(self, keys: Collection[str], *, reason: str) -> tuple[RestoreResult, ...]:
        """Restore the original values with these keys, as `restore_all`."""
        owing = tuple(each for key, each in self._audit.originals_by_key().items() if key in keys)
        return self._restore(owing, reason=reason, cycle=0)

    def unseen(self, present: Collection[str]) -> frozenset[str]:
        """The keys of the stored original values of containers and pods that are not `present` (container ids, pod
        uids)."""
        owing = self._audit.originals_by_key().items()
        return frozenset(key for key, each in owing if (each.container_id or each.uid) not in present)

    def _restore(self, owing: tuple[StoredOriginal, ...], *, reason: str, cycle: int) -> tuple[RestoreResult, ...]:
        found = {each.key: self._look(each) for each in owing}
        begun: dict[str, AuditEntry] = {}
        with self._audit.batch():
            for each in owing:
                value = found[each.key]
                if not isinstance(value, CgroupError) and value != each.original:
                    deed = _restoring(each, value, now=self._clock(), reason=reason, cycle=cycle)
                    begun[each.key] = (
                        self._audit.begin_change(deed, path=each.path, found=value, intended=each.original)
                        if each.written_by_agent(value)
                        else self._audit.begin(deed)
                    )
        results = tuple(RestoreResult(each, *self._put_back(each, found[each.key])) for each in owing)
        with self._audit.batch():
            for result in results:
                self._conclude(result, begun.get(result.remembered.key))
        return results

    def _look(self, remembered: StoredOriginal) -> Value | CgroupError:
        try:
            return self._read(remembered.path, remembered.knob)
        except CgroupError as error:
            return error

    def _put_back(self, remembered: StoredOriginal, found: Value | CgroupError) -> tuple[StepOutcome, str]:
        noun = NOUNS[remembered.knob]
        if not isinstance(found, CgroupError):
            if found == remembered.original:
                return StepOutcome.DONE, f"its {noun} is already {in_words(found)}, the original value"
            if not remembered.written_by_agent(found):
                return StepOutcome.FOREIGN, _foreign(remembered.knob, found)
            try:
                with self._groups.open(remembered.path) as group:
                    base.write(group, remembered.original)
                return StepOutcome.DONE, f"its {noun} is {in_words(remembered.original)}, the original value"
            except CgroupError as error:
                found = error
        if isinstance(found, CgroupGone):
            return StepOutcome.GONE, _gone(remembered.container_id)
        return StepOutcome.FAILED, with_hint(found)

    def _conclude(self, result: RestoreResult, begun: AuditEntry | None) -> None:
        if begun is not None:
            outcome, text = AuditOutcome(result.fate.value), "" if result.fate is StepOutcome.DONE else result.text
            self._audit.finish(begun, outcome, now=self._clock(), message=text)
        if result.fate is not StepOutcome.FAILED:
            self._audit.forget(result.remembered.key)


def _restoring(remembered: StoredOriginal, found: Value, *, now: float, reason: str, cycle: int) -> AuditEntry:
    """The audit entry of restoring a group's original value."""
    return AuditEntry(
        time=now,
        kind="restore",
        cycle=cycle,
        pod=remembered.pod,
        uid=remembered.uid,
        container=remembered.container,
        container_id=remembered.container_id,
        reason=reason,
        before=as_json(found),
        after=as_json(remembered.original),
    )


def _foreign(knob: Knob, found: Value) -> str:
    return f"another program set its {NOUNS[knob]} to {in_words(found)}: left unchanged"


def _gone(container_id: str) -> str:
    return "the container is gone" if container_id else "the pod is gone"


# --- reading ---------------------------------------------------------------------------------------------------------


def read_knobs(pods: Iterable[PodState], groups: KubeletGroups, remembered: Iterable[StoredOriginal]) -> Knobs:
    """Read the knobs of pods, by uid. Values that cannot be read are None; raises nothing."""
    weights: dict[str, int] = {}
    highs: dict[str, float] = {}
    for each in remembered:
        if isinstance(each.original, CpuWeight):
            weights[each.uid] = each.original.weight
        elif isinstance(each.original, MemoryHigh):
            highs[each.uid] = _bytes(each.original.limit)
    return {
        pod.uid: replace(_now(pod.uid, groups), original_weight=weights.get(pod.uid), original_high=highs.get(pod.uid))
        for pod in pods
    }


def _now(uid: str, groups: KubeletGroups) -> PodKnobs:
    try:
        path = groups.find(uid)
    except CgroupError:
        return PodKnobs()
    if path is None:
        return PodKnobs()
    try:
        with groups.open(path) as group:
            weight, high = _unless_failing(group.weight), _unless_failing(lambda: _bytes(group.memory_high()))
            return PodKnobs(weight, group.least_weight, high)
    except CgroupError:
        return PodKnobs()


def _unless_failing(reading: Callable[[], T]) -> T | None:
    try:
        return reading()
    except CgroupError:
        return None


def _bytes(limit: int | None) -> float:
    return UNLIMITED if limit is None else float(limit)
