"""The executor's use of the Kubernetes API: evictions under budgets, taint and condition of a node, and Events."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from agent.executor.enforcement_switch import ControlMap
from agent.executor.report import StepOutcome
from agent.model import (
    CRITICAL_PRIORITY,
    FINAL_PHASES,
    SCHEDULING_CONDITION,
    SCHEDULING_TAINT,
    Eviction,
    SchedulingChange,
    Step,
)
from watcher.core.kubernetes.errors import KubeError, KubeNotFound, KubeUnreachable
from watcher.core.kubernetes.objects import NODES, PODS, Pod, Taint
from watcher.core.kubernetes.pod_origin import mirrored_uid
from watcher.core.messages import with_hint
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.events import EventSource, EventSubject, report
from watcher.platform.kube.eviction import EvictionOutcome, Evictor
from watcher.platform.kube.node_changes import add_taint, remove_taint, set_condition

log = logging.getLogger(__name__)

COMPONENT = "load-watcher-agent"
TAINT_EFFECT = "PreferNoSchedule"
PATIENCE_S = 3.0
"""Timeout in seconds of API calls that delay quota changes."""
EVENT_PAUSE_S = 60.0
"""Seconds without Events after one could not be written, so that not all Events of a plan wait for the server."""
EVENT_INTERVAL_S = 600.0
"""Minimum interval in seconds between Events of the same reason about a pod, for actions that repeat in every cycle."""
BUDGET_RETRY_S = 30.0
"""Seconds before an eviction that a PodDisruptionBudget refused is retried, if the API returns no delay. Each further
refusal doubles the time, up to REFUSED_RETRY_S, because every attempt writes the shared budget of evictions twice."""
REFUSED_RETRY_S = 300.0
"""Seconds before an eviction is retried that the API refused for another reason (two budgets for one pod, a missing
right), or whose pod it does not show. Another attempt would have the same result until the cluster changes."""

FATES = {
    EvictionOutcome.EVICTED: StepOutcome.DONE,
    EvictionOutcome.GONE: StepOutcome.GONE,
    EvictionOutcome.PROTECTED: StepOutcome.PROTECTED,
    EvictionOutcome.FORBIDDEN: StepOutcome.FAILED,
    EvictionOutcome.REFUSED: StepOutcome.FAILED,
    EvictionOutcome.UNANSWERED: StepOutcome.UNANSWERED,
}


@dataclass(frozen=True, slots=True)
class _Refusal:
    """An eviction that the API refused: no attempt before `until` (seconds of the monotonic clock), `pause` seconds
    after the refusal."""

    until: float
    pause: float
    outcome: StepOutcome
    text: str


class ClusterActions:
    """Kubernetes API operations of the executor on one node."""

    def __init__(
        self,
        client: KubeClient,
        *,
        node: str,
        control: str,
        within: float = 5.0,
        patience: float = PATIENCE_S,
        clock: Callable[[], float],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`control` is NAMESPACE/NAME of the ConfigMap (see `enforcement_switch`). `within` is the timeout in seconds
        of one eviction with its retries, `patience` that of all other calls, so that an unresponsive server does not
        delay quota changes. Retry delays of budgets use `monotonic`, which wall clock changes do not affect."""
        self.node = node
        self.controls = ControlMap(client, control, node=node, patience=patience, monotonic=monotonic)
        self._client = client
        self._evictor = Evictor(client)
        self._within = within
        self._patience = patience
        self._clock = clock
        self._monotonic = monotonic
        self._refused: dict[str, _Refusal] = {}
        """Pods by uid that are left alone, and for REFUSED_RETRY_S longer, so that a repeated refusal is not reported
        again."""
        self._reporter = EventSource(component=COMPONENT, host=node)
        self._silent_since: float | None = None
        self._reported_at: dict[tuple[str, str], float] = {}

    # --- evictions ---------------------------------------------------------------------------------------------------

    def left_alone(self) -> dict[str, str]:
        """Pods (uid) whose eviction the API refused recently, with the reason and the time of the next attempt."""
        now = self._monotonic()
        self._refused = {uid: each for uid, each in self._refused.items() if each.until + REFUSED_RETRY_S > now}
        return {uid: self._waiting(each, now) for uid, each in self._refused.items() if each.until > now}

    def _waiting(self, refusal: _Refusal, now: float) -> str:
        next_attempt = datetime.fromtimestamp(self._clock() + refusal.until - now, UTC)
        return f"{refusal.text.rstrip('.')}; next attempt at {next_attempt:%Y-%m-%dT%H:%M:%SZ}"

    async def objection(self, step: Step) -> tuple[StepOutcome, str] | None:
        """The reason why this pod must not be evicted, with the step's result; None if it may be. It reads the pod from
        the API, because the node's data may be outdated, and a critical pod must never be evicted. Raises
        KubeUnreachable."""
        if (why := self.left_alone().get(step.uid)) is not None:
            return self._refused[step.uid].outcome, why
        try:
            pod = await self._client.get(PODS, step.pod)
        except KubeNotFound:
            return StepOutcome.GONE, "the pod does not exist"
        except KubeUnreachable:
            raise
        except KubeError as error:
            text = f"the pod cannot be read from the API: {error}"
            await self._leave_alone(step, StepOutcome.FAILED, text, hint=error.hint, seconds=REFUSED_RETRY_S)
            return StepOutcome.FAILED, self.left_alone()[step.uid]
        return _objection(pod, step)

    async def evict(self, step: Step) -> tuple[StepOutcome, str]:
        """Evict the pod through the eviction API. Transient errors (a busy server) are retried for `within` seconds. A
        pod whose eviction is refused is left alone for a while, which is logged and reported by an Event once. Raises
        nothing."""
        assert isinstance(step.change, Eviction)
        seconds = int(step.change.grace_seconds)
        done = await self._evictor.evict(step.pod, within=self._within, uid=step.uid, grace_seconds=seconds)
        fate = FATES[done.outcome]
        if done.outcome is EvictionOutcome.PROTECTED:
            pause = max(done.retry_after or BUDGET_RETRY_S, self._doubled_pause(step.uid))
            text = "a disruption budget protects it"
            self._refused[step.uid] = _Refusal(self._monotonic() + pause, pause, fate, text)
        elif fate is StepOutcome.FAILED:
            text = f"the API refused to evict it: {done.message}"
            pause = max(REFUSED_RETRY_S, done.retry_after or 0.0)
            await self._leave_alone(step, fate, text, hint=done.hint, seconds=pause)
            return fate, self.left_alone()[step.uid]
        else:
            self._refused.pop(step.uid, None)
        return fate, ". ".join(filter(None, (done.message, done.hint)))

    def _doubled_pause(self, uid: str) -> float:
        """Twice the pause after the last attempt if a disruption budget refused that too, at most REFUSED_RETRY_S; 0
        otherwise."""
        before = self._refused.get(uid)
        if before is None or before.outcome is not StepOutcome.PROTECTED:
            return 0.0
        return min(2.0 * before.pause, REFUSED_RETRY_S)

    async def _leave_alone(self, step: Step, fate: StepOutcome, text: str, *, hint: str, seconds: float) -> None:
        """Leave the pod alone for `seconds`. Logs it and writes an Event, unless the last attempt had the same
        result."""
        before = self._refused.get(step.uid)
        self._refused[step.uid] = _Refusal(self._monotonic() + seconds, seconds, fate, text)
        if before is not None and before.text == text:
            return
        why = self.left_alone()[step.uid]
        log.warning("%s is not evicted: %s%s", step.pod, why, f". {hint}" if hint else "")
        about = EventSubject("Pod", step.pod, step.uid)
        await self.emit_event(about, reason="EvictionRefused", message=f"{why} ({step.reason})")

    # --- the node ----------------------------------------------------------------------------------------------------

    async def scheduling_is(self, wanted: SchedulingChange) -> bool:
        """Whether taint and condition of the node are as wanted; False if the API does not answer."""
        try:
            async with asyncio.timeout(self._patience):
                node = await self._client.get(NODES, self.node)
        except (KubeError, TimeoutError):
            return False
        tainted = any((each.key, each.effect) == (SCHEDULING_TAINT, TAINT_EFFECT) for each in node.spec.taints)
        status = next((each.status for each in node.status.conditions if each.type == SCHEDULING_CONDITION), "False")
        return tainted == wanted.disable and (status == "True") == wanted.disable

    async def set_scheduling(self, wanted: SchedulingChange, reason: str) -> tuple[bool, str]:
        """Set or remove taint and condition of the node. Returns whether the taint changed, and an error message ("" if
        it succeeded). Raises nothing."""
        changed = False
        try:
            async with asyncio.timeout(self._patience):
                if wanted.disable:
                    changed = await add_taint(self._client, self.node, Taint(SCHEDULING_TAINT, TAINT_EFFECT))
                else:
                    changed = await remove_taint(self._client, self.node, key=SCHEDULING_TAINT, effect=TAINT_EFFECT)
                await set_condition(
                    self._client,
                    self.node,
                    SCHEDULING_CONDITION,
                    status=wanted.disable,
                    now=self._clock(),
                    reason="AvoidanceTriggered" if wanted.disable else "RestoreTriggered",
                    message=reason,
                )
        except TimeoutError:
            return changed, f"the API did not respond within {self._patience:.0f} s"
        except KubeError as error:
            return changed, with_hint(error)
        return changed, ""

    # --- Events ------------------------------------------------------------------------------------------------------

    async def emit_event(self, about: EventSubject | None, *, reason: str, message: str, warning: bool = True) -> None:
        """Write an Event about a pod, or about this node (None). A failure does not stop the plan: it is logged once,
        and no Events are written for EVENT_PAUSE_S."""
        now = self._clock()
        if self._silent_since is not None and 0.0 <= now - self._silent_since < EVENT_PAUSE_S:
            return
        try:
            async with asyncio.timeout(self._patience):
                subject = about or EventSubject("Node", self.node)
                await report(
                    self._client, subject, reason=reason, message=message, warning=warning, by=self._reporter, now=now
                )
        except (KubeError, TimeoutError) as error:
            if self._silent_since is None:
                log.warning("Events cannot be written, none for a minute: %s", str(error) or "the API does not respond")
            self._silent_since = now
        else:
            self._silent_since = None

    async def emit_event_rate_limited(
        self, about: EventSubject, *, reason: str, message: str, warning: bool = True
    ) -> None:
        """Write an Event about a repeated action on a pod: at most one per reason in EVENT_INTERVAL_S."""
        now = self._clock()
        lately = {each: at for each, at in self._reported_at.items() if 0.0 <= now - at < EVENT_INTERVAL_S}
        if (about.uid, reason) not in lately:
            lately[about.uid, reason] = now
            await self.emit_event(about, reason=reason, message=message, warning=warning)
        self._reported_at = lately


def _objection(pod: Pod, step: Step) -> tuple[StepOutcome, str] | None:
    assert isinstance(step.change, Eviction)
    metadata = pod.metadata
    if metadata.uid != step.uid:
        return StepOutcome.GONE, "another pod has that name now"
    if metadata.deletion_timestamp is not None:
        return StepOutcome.GONE, "it is terminating already"
    if pod.status.phase in FINAL_PHASES:
        return StepOutcome.GONE, f"it has finished ({pod.status.phase})"
    if (pod.spec.priority or 0) >= CRITICAL_PRIORITY:
        return StepOutcome.NOT_ALLOWED, f"it is system-critical (priority {pod.spec.priority})"
    if mirrored_uid(metadata, pod.spec.node_name):
        return StepOutcome.NOT_ALLOWED, "it is a static pod: the kubelet would start it again"
    if step.change.owner and not any(owner.controller for owner in metadata.owner_references):
        return StepOutcome.NOT_ALLOWED, "it has no controller any more: nothing would recreate it"
    return None
