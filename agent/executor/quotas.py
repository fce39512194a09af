"""Changing CPU quotas so that each can be put back: what was there is remembered before anything is written, and a
quota that is not the agent's own any more is left to whom it belongs.

Restoring compares before it sets: what the agent wrote last (or was about to write when it ended) is its own; anything
else was written by somebody else (an in-place resize, an operator), and stays. Between the comparison and the writing
there is no lock that would keep others out: the kernel has none. It is microseconds.

Everything here blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from agent.audit import Audit, Deed, Outcome, Remembered
from agent.cgroups import CgroupError, CgroupGone, Quota
from agent.executor.groups import Groups
from agent.executor.report import Fate, Result
from agent.model import QuotaStep


@dataclass(frozen=True, slots=True)
class PutBack:
    """What became of one remembered quota: `fate` is DONE, GONE, FOREIGN or FAILED."""

    remembered: Remembered
    fate: Fate
    text: str = ""


@dataclass(frozen=True, slots=True)
class Changed:
    """What became of a step; whether it was the `first` to take something from the container, or the `last`, after
    which it has its original quota again."""

    result: Result
    first: bool = False
    last: bool = False


class Quotas:
    """Writes quotas. Raises AuditError, and then has written nothing that is not in the audit."""

    def __init__(self, audit: Audit, groups: Groups, *, clock: Callable[[], float]) -> None:
        self._audit = audit
        self._groups = groups
        self._clock = clock

    def carry_out(self, step: QuotaStep, deed: Deed) -> Changed:
        """One step of a plan. `deed` is what the audit is to say of it."""
        known = self._audit.remembered(step.container_id).get(step.container_id)
        try:
            path = self._groups.find(step.uid, step.container_id)
            result = self._gone(step, known) if path is None else self._change(step, deed, path, known)
        except CgroupGone:
            result = self._gone(step, known)
        except CgroupError as error:
            result = Result(step, Fate.FAILED, _told(error))
        if result.fate is not Fate.DONE:
            return Changed(result)
        left = bool(self._audit.remembered(step.container_id))
        return Changed(result, first=known is None and left, last=not left)

    def _gone(self, step: QuotaStep, known: Remembered | None) -> Result:
        if known is not None:
            self._audit.forget(step.container_id)
        return Result(step, Fate.GONE, "the container is gone")

    def _change(self, step: QuotaStep, deed: Deed, path: str, known: Remembered | None) -> Result:
        found, wanted = self._read(path), Quota(step.after, step.period)
        foreign = known is not None and not known.is_ours(found) and found != known.original
        if foreign and step.kind == "restore":
            return self._leave(step, deed, found)
        if found != Quota(step.before, step.period):
            text = f"its quota is {in_words(found)} now, not {in_words(Quota(step.before, step.period))}"
            return Result(step, Fate.FOREIGN, text)
        if found == wanted:
            if known is not None and found == known.original:
                self._audit.forget(step.container_id)
            return Result(step, Fate.NOT_NEEDED, f"its quota is {in_words(found)} already")
        original = found if known is None or foreign else known.original
        begun = self._audit.begin_quota(deed, path=path, found=found, intended=wanted, afresh=foreign)
        return self._write(step, begun, path, wanted, original=original)

    def _write(self, step: QuotaStep, begun: Deed, path: str, wanted: Quota, *, original: Quota) -> Result:
        try:
            with self._groups.open(path) as group:
                group.set_quota(wanted)
        except CgroupError as error:
            gone = isinstance(error, CgroupGone)
            outcome, fate = (Outcome.GONE, Fate.GONE) if gone else (Outcome.FAILED, Fate.FAILED)
            self._audit.finish(begun, outcome, now=self._clock(), message=_told(error))
            if gone or self._read_or_none(path) == original:
                self._audit.forget(step.container_id)
            return Result(step, fate, _told(error), begun.id)
        left = None if wanted == original else wanted
        self._audit.finish_quota(begun, Outcome.DONE, now=self._clock(), written=left)
        text = f"its quota is {in_words(wanted)}" + (", as it was at first" if left is None else "")
        return Result(step, Fate.DONE, text, begun.id)

    def _leave(self, step: QuotaStep, deed: Deed, found: Quota) -> Result:
        """Restoring what somebody else changed: it is theirs now."""
        text = f"somebody else made its quota {in_words(found)}: left alone"
        begun = self._audit.begin(deed)
        self._audit.finish_quota(begun, Outcome.FOREIGN, now=self._clock(), written=None, message=text)
        return Result(step, Fate.FOREIGN, text, begun.id)

    def _read(self, path: str) -> Quota:
        """Raises CgroupGone only where other groups of the kubelet are to be seen."""
        try:
            with self._groups.open(path) as group:
                return group.quota()
        except CgroupGone:
            self._groups.look()
            raise

    def _read_or_none(self, path: str) -> Quota | None:
        try:
            return self._read(path)
        except CgroupError:
            return None

    def forget_ended(self, present: Collection[str]) -> None:
        """There is nothing to be given back to a container that is neither among those that are `present` nor has a
        control group."""
        for each in self._audit.remembered().values():
            if each.container_id not in present and self._is_gone(each.path):
                self._audit.forget(each.container_id)

    def _is_gone(self, path: str) -> bool:
        try:
            self._read(path)
        except CgroupGone:
            return True
        except CgroupError:
            return False
        return False

    def let_go(self, seen: Mapping[str, Quota]) -> None:
        """Nothing is owed to a container that has what it had, or that somebody else gave more (an in-place resize):
        no plan will restore it. `seen` are quotas by container id; who seems to be one of them is looked at again."""
        for each in self._audit.remembered().values():
            if each.container_id not in seen or not _at_least(seen[each.container_id], each.original):
                continue
            found = self._look(each)
            if found == each.original:
                self._audit.forget(each.container_id)
            elif isinstance(found, Quota) and not each.is_ours(found) and _at_least(found, each.original):
                text = f"somebody else made its quota {in_words(found)}: left alone"
                deed = _restoring(each, found, now=self._clock(), reason="it has more than it had", cycle=0)
                begun = self._audit.begin(deed)
                self._audit.finish_quota(begun, Outcome.FOREIGN, now=self._clock(), written=None, message=text)

    # --- all of them -------------------------------------------------------------------------------------------------

    def put_all_back(self, *, reason: str, cycle: int = 0) -> tuple[PutBack, ...]:
        """Every quota that the agent changed, back to what it was; after a crash too, for which nothing but the audit
        is needed. One that fails stays remembered, and costs no other.

        All are looked at, then written down together, then changed, then written down together: hundreds of them must
        not wait for the disk one by one while the process is about to be killed."""
        owing = tuple(self._audit.remembered().values())
        found = {each.container_id: self._look(each) for each in owing}
        begun: dict[str, Deed] = {}
        with self._audit.together():
            for each in owing:
                quota = found[each.container_id]
                if isinstance(quota, Quota) and quota != each.original:
                    deed = _restoring(each, quota, now=self._clock(), reason=reason, cycle=cycle)
                    ours = each.is_ours(quota)
                    begun[each.container_id] = (
                        self._audit.begin_quota(deed, path=each.path, found=quota, intended=each.original)
                        if ours
                        else self._audit.begin(deed)
                    )
        results = tuple(self._put_back(each, found[each.container_id]) for each in owing)
        with self._audit.together():
            for result in results:
                self._conclude(result, begun.get(result.remembered.container_id))
        return results

    def _look(self, remembered: Remembered) -> Quota | CgroupError:
        try:
            return self._read(remembered.path)
        except CgroupError as error:
            return error

    def _put_back(self, remembered: Remembered, found: Quota | CgroupError) -> PutBack:
        if isinstance(found, CgroupGone):
            return PutBack(remembered, Fate.GONE, "the container is gone")
        if isinstance(found, CgroupError):
            return PutBack(remembered, Fate.FAILED, _told(found))
        if found == remembered.original:
            return PutBack(remembered, Fate.DONE, f"its quota is {in_words(found)} already, as it was at first")
        if not remembered.is_ours(found):
            return PutBack(remembered, Fate.FOREIGN, f"somebody else made its quota {in_words(found)}: left alone")
        try:
            with self._groups.open(remembered.path) as group:
                group.set_quota(remembered.original)
        except CgroupGone:
            return PutBack(remembered, Fate.GONE, "the container is gone")
        except CgroupError as error:
            return PutBack(remembered, Fate.FAILED, _told(error))
        return PutBack(remembered, Fate.DONE, f"its quota is {in_words(remembered.original)}, as it was at first")

    def _conclude(self, result: PutBack, begun: Deed | None) -> None:
        if begun is not None:
            outcome, text = Outcome(result.fate.value), "" if result.fate is Fate.DONE else result.text
            self._audit.finish(begun, outcome, now=self._clock(), message=text)
        if result.fate is not Fate.FAILED:
            self._audit.forget(result.remembered.container_id)


def _restoring(remembered: Remembered, found: Quota, *, now: float, reason: str, cycle: int) -> Deed:
    """Giving a container its original quota, as the audit has it."""
    return Deed(
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


def _at_least(quota: Quota, other: Quota) -> bool:
    if quota.quota is None or other.quota is None:
        return quota.quota is None
    return quota.quota * other.period >= other.quota * quota.period


def as_json(quota: Quota) -> Mapping[str, Any]:
    """As the audit has it."""
    return {"quota": quota.quota, "period": quota.period}


def in_words(quota: Quota) -> str:
    """For messages."""
    return "unlimited" if quota.quota is None else f"{quota.quota} of {quota.period} µs"


def _told(error: CgroupError) -> str:
    return f"{error}. {error.hint}" if error.hint else str(error)
