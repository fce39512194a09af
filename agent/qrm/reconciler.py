"""The reconcile loop: admits new pods, applies the plug-ins' allocations to containers, and removes pods that ended.

In the mode nri, the runtime asks the manager before it creates a container, and the containers of a pod that cannot be
admitted are not created. In other modes, such a pod is already running, and left unchanged. In all modes, it is
reported (Event, metric, /qrm), and evicted if that is configured; its admission is retried when another pod ends, when
a plug-in registers, and every minute, in the mode nri also when the kubelet creates a container again.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from agent.qrm.manager.admission import Admission, Apply, Failures, Reconciled
from agent.qrm.manager.manager import Manager
from agent.qrm.manager.topology import Hint
from agent.qrm.pods import QrmPod
from agent.state.readings import PodsUnknown
from watcher.platform.repeated_errors import RepeatedErrors

log = logging.getLogger(__name__)

RETRY_S = 60.0
"""Seconds after which the admission of a rejected pod is retried even if nothing has changed."""
REMEMBERED = 200
"""Number of admissions in the history."""


@dataclass(frozen=True, slots=True)
class AdmissionRecord:
    """One admission. `time` is in unix seconds, `at` is in seconds of the monotonic clock."""

    time: float
    at: float
    pod: QrmPod
    admission: Admission

    def admits(self, pod: QrmPod) -> bool:
        """Whether the pod needs no other admission. A pod whose DaemonSet turned out not to exist was not admitted."""
        return self.admission.admitted and self.pod.daemon == pod.daemon

    def as_json(self) -> dict[str, Any]:
        """The admission with all hints that were offered, the merged hints, and the allocations that failed."""
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
            "given_back": admission.released,
            "containers": containers,
        }


def _without(failed: Mapping[str, Mapping[str, str]]) -> str:
    """The resources that an admitted pod runs without, and the reasons; "" if it has all of them."""
    return "; ".join(
        f"container {container} runs without its {resource}: {why}"
        for container, lacks in failed.items()
        for resource, why in lacks.items()
    )


def _hints(hints: Collection[Hint] | None) -> list[dict[str, Any] | None] | None:
    """None means no preference, an empty list means that no NUMA node fits."""
    return None if hints is None else [_hint(hint) for hint in hints]


def _hint(hint: Hint | None) -> dict[str, Any] | None:
    if hint is None:
        return None
    return {"nodes": None if hint.nodes is None else sorted(hint.nodes), "preferred": hint.preferred}


@dataclass(frozen=True, slots=True)
class ReconcileRound:
    """The result of the last round. `time` is in unix seconds; `trouble` is the reason why the round failed, "" if it
    succeeded."""

    time: float = 0.0
    seconds: float = 0.0
    result: Reconciled = field(default_factory=Reconciled)
    trouble: str = ""


Report = Callable[[QrmPod, Admission], Awaitable[None]]
"""Reports an inadmissible pod (Event) and evicts it if configured."""
Deliver = Callable[[], Awaitable[Failures]]
"""Sends the properties that an Apply has only collected; returns errors by container."""


class PodListing(Protocol):
    """A source of the node's pods that have not ended."""

    def listing(self, *, monotonic: float) -> tuple[QrmPod, ...]:
        """The pods, sorted by namespace and name. Raises PodsUnknown."""
        ...


class Reconciler:
    """Processes all pods of the node every `period` seconds, one round at a time; rounds that are late are skipped.

    `report` is called for each inadmissible pod, once for each message. `publish` is called after each round. `active`
    returns the UIDs of further pods that have not ended. `deliver` is called outside the manager's lock. `objection`
    returns the reason why no properties may be set now, "" if there is none.
    """

    def __init__(
        self,
        manager: Manager,
        pods: PodListing,
        apply: Apply,
        *,
        period: float,
        report: Report | None = None,
        publish: Callable[[], Awaitable[None]] | None = None,
        active: Callable[[], Collection[str]] = tuple,
        deliver: Deliver | None = None,
        objection: Callable[[], str] = str,
        monotonic: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.manager = manager
        self.period = period
        self.known: tuple[QrmPod, ...] = ()
        """The pods of the last round."""
        self.settled = False
        """Whether at least one round has admitted the pods."""
        self.records: dict[str, AdmissionRecord] = {}
        """The last admission of each existing pod, by UID."""
        self.history: deque[AdmissionRecord] = deque(maxlen=REMEMBERED)
        self.last = ReconcileRound()
        self.admissions: Counter[tuple[str, str]] = Counter()
        self.updates: Counter[str] = Counter()
        self.skipped = 0
        self.observe: Callable[[float], None] = lambda _: None
        """Called with the duration of each round in seconds."""
        self._pods = pods
        self._apply = apply
        self._report = report
        self._publish = publish
        self._active = active
        self._deliver = deliver
        self._objection = objection
        self.held = ""
        """Why no properties are set, as of the last round; "" if they are."""
        self._monotonic = monotonic
        self._clock = clock
        self._began = monotonic()
        self._ended = monotonic()
        self._registrations = manager.plugins.registrations
        self._refused: dict[tuple[str, str], AdmissionRecord] = {}  # of admitted pods, by UID and container
        self._released: set[str] = set()  # since the list of the current round
        self._reported: dict[str, str] = {}
        self._report_tasks: set[asyncio.Task[None]] = set()

    @property
    def age(self) -> float:
        """Seconds since the end of the last round, successful or not."""
        return self._monotonic() - self._ended

    @property
    def inadmissible(self) -> list[AdmissionRecord]:
        """The pods that were rejected, or of which a container could not be created, by UID."""
        found = {uid: record for (uid, _), record in sorted(self._refused.items(), reverse=True)}
        found |= {uid: record for uid, record in self.records.items() if not record.admission.admitted}
        return [record for _, record in sorted(found.items())]

    async def run(self) -> None:
        """Run a round every `period` seconds until cancelled."""
        due = self._monotonic()
        errors = RepeatedErrors(log)
        while True:
            try:
                await self.round()
                errors.succeeded()
            except Exception as error:
                errors.failed(error, "reconcile round failed; trying again in the next round")
            due += self.period
            late = self._monotonic() - due
            if late > 0:
                missed = math.floor(late / self.period) + 1
                self.skipped += missed
                due += missed * self.period
            await asyncio.sleep(due - self._monotonic())

    async def close(self) -> None:
        """Cancel the reports that are still running."""
        for task in self._report_tasks:
            task.cancel()
        await asyncio.gather(*self._report_tasks, return_exceptions=True)

    async def round(self) -> ReconcileRound:
        """Run one round: admit new pods, remove pods that ended, and apply the plug-ins' allocations to containers."""
        began = self._monotonic()
        result, trouble = Reconciled(), ""
        self._released.clear()
        try:
            self.known = self._pods.listing(monotonic=began)
            await self._admit(self.known)
            self.held = trouble = self._objection()
            if not self.held:
                result = await self.apply(self.known, self._count)
            if self._deliver is not None and not self.held:
                late = await self._deliver()
                self.updates["failed"] += len(late)
                result = replace(result, failed={**result.failed, **late})
            self.settled = True
            if self._publish is not None:
                await self._publish()
        except PodsUnknown as error:
            trouble = f"{error}. {error.hint}".rstrip(". ")
        except OSError as error:
            trouble = f"cannot write the checkpoint: {error.strerror or error}"
        if trouble and trouble != self.last.trouble:
            log.warning("allocations are not applied to containers: %s", trouble)
        if self.last.trouble and not trouble:
            log.info("allocations are applied to containers again")
        for container, why in result.failed.items():
            if self.last.result.failed.get(container) != why:
                log.warning("%s: %s", container, why)
        self._ended = self._monotonic()
        seconds = self._ended - began
        self.observe(seconds)
        self.last = ReconcileRound(self._clock(), seconds, result, trouble)
        return self.last

    async def apply(self, pods: Collection[QrmPod], apply: Apply) -> Reconciled:
        """Apply the plug-ins' allocations to the containers of the admitted pods among `pods`, which are all pods of
        the node. Raises OSError if the checkpoint cannot be written."""
        active = {pod.uid for pod in pods} | set(self._active())
        return await self.manager.reconcile(self._admitted(pods), apply, active=active)

    async def admit(self, pod: QrmPod) -> Admission:
        """Admit a pod now, unless it was admitted before; a rejected pod is tried again. Raises OSError."""
        self._released.discard(pod.uid)
        known = self.records.get(pod.uid)
        if known is not None and known.admits(pod):
            return known.admission
        return await self._admit_now(pod)

    def reject(self, pod: QrmPod, container: str, admission: Admission) -> None:
        """Report an admitted pod of which this container cannot be created."""
        again = (pod.uid, container) in self._refused
        self._refused[pod.uid, container] = self._record(pod, admission, again=again)

    def accept(self, pod: QrmPod, container: str) -> None:
        """This container of an admitted pod can be created."""
        self._refused.pop((pod.uid, container), None)

    async def release(self, uid: str) -> None:
        """Release the allocations of a pod that has ended, and forget its admission. Raises OSError."""
        self._released.add(uid)
        self.records.pop(uid, None)
        self._refused = {key: record for key, record in self._refused.items() if key[0] != uid}
        self._reported.pop(uid, None)
        await self.manager.release(uid)

    async def _count(self, *what: Any) -> None:
        try:
            await self._apply(*what)
        except Exception:
            self.updates["failed"] += 1
            raise
        self.updates["applied"] += 1

    def _admitted(self, pods: Collection[QrmPod]) -> list[QrmPod]:
        """The pods that were admitted, now or before the last restart. Other pods get nothing, not even a part of their
        resources."""
        kept = self.manager.admitted_pods
        admitted = {uid for uid, record in self.records.items() if record.admission.admitted}
        return [pod for pod in pods if pod.uid in (kept | admitted) - self._released]

    async def _admit(self, pods: tuple[QrmPod, ...]) -> None:
        active = {pod.uid for pod in pods} | set(self._active())
        stirred = self.records.keys() - active or self.manager.plugins.registrations != self._registrations
        self._registrations = self.manager.plugins.registrations
        self.records = {uid: record for uid, record in self.records.items() if uid in active}
        self._refused = {key: record for key, record in self._refused.items() if key[0] in active}
        self._reported = {uid: text for uid, text in self._reported.items() if uid in active}
        for pod in pods:
            if pod.uid in self._released:
                continue
            known = self.records.get(pod.uid)
            if known is not None and known.admits(pod):
                continue
            rejected = known is not None and not known.admission.admitted
            if known is not None and rejected and not stirred and self._monotonic() - known.at < RETRY_S:
                continue
            await self._admit_now(pod, active=active)

    async def _admit_now(self, pod: QrmPod, *, active: Collection[str] | None = None) -> Admission:
        again = pod.uid in self.records
        admission = await self.manager.admit(pod, active=active)
        self.records[pod.uid] = self._record(pod, admission, again=again)
        return admission

    def _record(self, pod: QrmPod, admission: Admission, *, again: bool) -> AdmissionRecord:
        """Record an admission, and report a rejected pod, once for each message."""
        record = AdmissionRecord(self._clock(), self._monotonic(), pod, admission)
        if not again or admission.admitted:
            self.admissions["admitted" if admission.admitted else "rejected", admission.reason] += 1
            self.history.append(record)
        if admission.admitted or self._reported.get(pod.uid) == admission.message:
            return record
        self._reported[pod.uid] = admission.message
        log.warning("pod %s was not admitted: %s: %s", pod.key, admission.reason, admission.message)
        if self._report is not None:
            task = asyncio.create_task(self._run_report(self._report, record))
            self._report_tasks.add(task)
            task.add_done_callback(self._report_tasks.discard)
        return record

    @staticmethod
    async def _run_report(report: Report, record: AdmissionRecord) -> None:
        """Runs as a separate task, because the Kubernetes API may be slow."""
        try:
            await report(record.pod, record.admission)
        except Exception:
            log.exception("cannot report the inadmissible pod %s", record.pod.key)

    # --- queries -----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Pods, the allocations of their containers, and the last round, as JSON."""
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
                        if (lacks := self.manager.missing(pod.uid, container.name))
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
                "applied": [str(each) for each in self.last.result.applied],
                "failed": _labelled(self.last.result.failed),
                "trouble": self.last.trouble,
                "skipped_rounds": self.skipped,
            },
        }


def _labelled(failed: Failures) -> dict[str, str]:
    """Errors by namespace, pod and container, with the uid of a pod whose name is not unique."""
    names = Counter(map(str, failed))
    return {f"{each} ({each.pod_uid})" if names[str(each)] > 1 else str(each): why for each, why in failed.items()}


def _named(pod: QrmPod) -> dict[str, Any]:
    return {"pod": pod.key, "uid": pod.uid, "role": pod.role}


def _infos(infos: Mapping[str, Any]) -> dict[str, Any]:
    """Allocations by resource, in the format of the checkpoint but without hints."""
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
