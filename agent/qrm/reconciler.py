"""The running manager: pods come and go, are admitted after the fact, and get what plug-ins decided, round by round.

Nobody but a patched kubelet can ask before a container starts. Everywhere else a pod that could not be admitted runs
already: it is told of (Event, metric, /qrm), left as it is, tried again when a pod has gone or a plug-in has come (and
every minute), and evicted where that was asked for.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.qrm.manager.admission import Admission, Apply, Reconciled
from agent.qrm.manager.manager import Manager
from agent.qrm.manager.topology import Hint
from agent.qrm.pod_source import Pods
from agent.qrm.pods import QrmPod
from agent.state.readings import NoPods

log = logging.getLogger(__name__)

RETRY_S = 60.0
"""After so long a pod that was not admitted is tried again, whatever happened."""
REMEMBERED = 200
"""Admissions that can be looked up."""


@dataclass(frozen=True, slots=True)
class Record:
    """One admission; `time` is the wall clock's, `at` the monotonic clock's."""

    time: float
    at: float
    pod: QrmPod
    admission: Admission

    def as_json(self) -> dict[str, Any]:
        """With every hint that went into it, what came of them, and what was not allocated all the same."""
        admission = self.admission
        containers: dict[str, dict[str, dict[str, Any]]] = {
            container: {
                resource: {"offered": _hints(hints), "decided": _hint(admission.decided[container].get(resource))}
                for resource, hints in offered.items()
            }
            for container, offered in admission.offered.items()
        }
        for container, failed in admission.failed.items():
            for resource, why in failed.items():
                containers.setdefault(container, {}).setdefault(resource, {})["failed"] = why
        return {
            "time": round(self.time, 3),
            "pod": self.pod.key,
            "uid": self.pod.uid,
            "role": self.pod.role,
            "admitted": admission.admitted,
            "reason": admission.reason,
            "message": _without(admission.failed) if admission.admitted else admission.message,
            "given_back": admission.given_back,
            "containers": containers,
        }


def _without(failed: Mapping[str, Mapping[str, str]]) -> str:
    """What an admitted pod runs without, and why; "" where it has everything."""
    return "; ".join(
        f"container {container} runs without its {resource}: {why}"
        for container, lacks in failed.items()
        for resource, why in lacks.items()
    )


def _hints(hints: Collection[Hint] | None) -> list[dict[str, Any] | None] | None:
    """null: no preference; []: no way."""
    return None if hints is None else [_hint(hint) for hint in hints]


def _hint(hint: Hint | None) -> dict[str, Any] | None:
    if hint is None:
        return None
    return {"nodes": None if hint.nodes is None else sorted(hint.nodes), "preferred": hint.preferred}


@dataclass(frozen=True, slots=True)
class Round:
    """What the last round did: `trouble` is why it could not do its work, "" if it could."""

    time: float = 0.0
    seconds: float = 0.0
    result: Reconciled = field(default_factory=Reconciled)
    trouble: str = ""


Report = Callable[[QrmPod, Admission], Awaitable[None]]
"""Tells the cluster of a pod that could not be admitted, and does what else is to be done about it."""


class Rounds:
    """One round at a time over all pods of the node, every `period` seconds; one that is late is skipped.

    `report` is told of each pod that could not be admitted, once for each reason. `publish` is called after a round.
    """

    def __init__(
        self,
        manager: Manager,
        pods: Pods,
        apply: Apply,
        *,
        period: float,
        report: Report | None = None,
        publish: Callable[[], Awaitable[None]] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.manager = manager
        self.period = period
        self.known: tuple[QrmPod, ...] = ()
        """The pods as the last round saw them."""
        self.settled = False
        """Whether a round has admitted them."""
        self.records: dict[str, Record] = {}
        """The last admission of each pod that is there, by UID."""
        self.history: deque[Record] = deque(maxlen=REMEMBERED)
        self.last = Round()
        self.admissions: Counter[tuple[str, str]] = Counter()
        self.updates: Counter[str] = Counter()
        self.skipped = 0
        self.observe: Callable[[float], None] = lambda _: None
        """Is told how long a round took."""
        self._pods = pods
        self._apply = apply
        self._report = report
        self._publish = publish
        self._monotonic = monotonic
        self._clock = clock
        self._began = monotonic()
        self._ended = monotonic()
        self._registrations = manager.registrations
        self._told: dict[str, str] = {}
        self._aside: set[asyncio.Task[None]] = set()

    @property
    def age(self) -> float:
        """Seconds since a round ended, whatever it found."""
        return self._monotonic() - self._ended

    @property
    def inadmissible(self) -> list[Record]:
        """Pods that run and were not admitted."""
        return [record for _, record in sorted(self.records.items()) if not record.admission.admitted]

    async def run(self) -> None:
        """Until cancelled."""
        due = self._monotonic()
        while True:
            try:
                await self.round()
            except Exception:
                log.exception("the round failed, and the next one comes")
            due += self.period
            late = self._monotonic() - due
            if late > 0:
                missed = math.floor(late / self.period) + 1
                self.skipped += missed
                due += missed * self.period
            await asyncio.sleep(due - self._monotonic())

    async def close(self) -> None:
        """Let go of what is still being told."""
        for task in self._aside:
            task.cancel()
        await asyncio.gather(*self._aside, return_exceptions=True)

    async def round(self) -> Round:
        """New pods are admitted, those that went are forgotten, and what plug-ins say is brought to containers."""
        began = self._monotonic()
        result, trouble = Reconciled(), ""
        try:
            self.known = self._pods.listing(monotonic=began)
            await self._admit(self.known)
            result = await self.manager.reconcile(self._admitted(self.known), self._count)
            self.settled = True
            if self._publish is not None:
                await self._publish()
        except NoPods as error:
            trouble = f"{error}. {error.hint}".rstrip(". ")
        except OSError as error:
            trouble = f"the checkpoint cannot be written: {error.strerror or error}"
        if trouble and trouble != self.last.trouble:
            log.warning("nothing is brought to containers: %s", trouble)
        for container, why in result.failed.items():
            if self.last.result.failed.get(container) != why:
                log.warning("%s: %s", container, why)
        self._ended = self._monotonic()
        seconds = self._ended - began
        self.observe(seconds)
        self.last = Round(self._clock(), seconds, result, trouble)
        return self.last

    async def _count(self, *what: Any) -> None:
        try:
            await self._apply(*what)
        except Exception:
            self.updates["failed"] += 1
            raise
        self.updates["applied"] += 1

    def _admitted(self, pods: tuple[QrmPod, ...]) -> list[QrmPod]:
        """Those that were admitted, now or before the last restart; the others get nothing, not piece by piece
        either."""
        kept = self.manager.allocations.pods
        return [pod for pod in pods if pod.uid in kept or self.records[pod.uid].admission.admitted]

    async def _admit(self, pods: tuple[QrmPod, ...]) -> None:
        active = {pod.uid for pod in pods}
        stirred = self.records.keys() - active or self.manager.registrations != self._registrations
        self._registrations = self.manager.registrations
        self.records = {uid: record for uid, record in self.records.items() if uid in active}
        self._told = {uid: text for uid, text in self._told.items() if uid in active}
        for pod in pods:
            known = self.records.get(pod.uid)
            if known is not None and known.admission.admitted:
                continue
            if known is not None and not stirred and self._monotonic() - known.at < RETRY_S:
                continue
            admission = await self.manager.admit(pod, active=active)
            record = Record(self._clock(), self._monotonic(), pod, admission)
            self.records[pod.uid] = record
            self._tell(record, again=known is not None)

    def _tell(self, record: Record, *, again: bool) -> None:
        admission = record.admission
        if not again or admission.admitted:
            self.admissions["admitted" if admission.admitted else "rejected", admission.reason] += 1
            self.history.append(record)
        if admission.admitted or self._told.get(record.pod.uid) == admission.message:
            return
        self._told[record.pod.uid] = admission.message
        log.warning("pod %s is not admitted: %s: %s", record.pod.key, admission.reason, admission.message)
        if self._report is not None:
            task = asyncio.create_task(self._aside_report(self._report, record))
            self._aside.add(task)
            task.add_done_callback(self._aside.discard)

    @staticmethod
    async def _aside_report(report: Report, record: Record) -> None:
        """Beside the round: the API may take its time."""
        try:
            await report(record.pod, record.admission)
        except Exception:
            log.exception("the cluster could not be told of pod %s", record.pod.key)

    # --- for readers -------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Pods and what their containers have, and the last round."""
        allocations = self.manager.allocations
        return {
            "pods": [
                {
                    **_named(pod),
                    "admitted": record.admission.admitted,
                    "reason": record.admission.reason,
                    "containers": {
                        container.name: _infos(allocations.of(pod.uid, container.name)) for container in pod.containers
                    },
                    "without": {
                        container.name: lacks
                        for container in pod.containers
                        if (lacks := self.manager.lacking(pod.uid, container.name))
                    },
                }
                for pod in self.known
                if (record := self.records.get(pod.uid)) is not None
            ],
            "inadmissible": [
                {**_named(record.pod), "reason": record.admission.reason, "message": record.admission.message}
                for record in self.inadmissible
            ],
            "last_reconcile": {
                "time": round(self.last.time, 3),
                "seconds": round(self.last.seconds, 6),
                "applied": list(self.last.result.applied),
                "failed": dict(self.last.result.failed),
                "trouble": self.last.trouble,
                "skipped_rounds": self.skipped,
            },
        }


def _named(pod: QrmPod) -> dict[str, Any]:
    return {"pod": pod.key, "uid": pod.uid, "role": pod.role}


def _infos(infos: Mapping[str, Any]) -> dict[str, Any]:
    """As the checkpoint has them, without the hints."""
    found = {}
    for resource, info in infos.items():
        found[resource] = {
            "oci_property_name": info.oci_property_name,
            "allocated_quantity": info.allocated_quantity,
            "allocation_result": info.allocation_result,
            "envs": dict(info.envs),
            "annotations": dict(info.annotations),
        }
    return found
