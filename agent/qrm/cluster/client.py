"""The manager's access to the Kubernetes API: Events about inadmissible pods, their eviction if configured, and
resources in the node's status."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from agent.model import CRITICAL_PRIORITY
from agent.qrm.manager.admission import Admission
from agent.qrm.manager.manager import Manager
from agent.qrm.pods import QrmPod
from watcher.core.kubernetes.errors import KubeError, KubeNotFound
from watcher.core.kubernetes.objects import NODES, PODS
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.events import EventSource, EventSubject, report
from watcher.platform.kube.eviction import EvictionOutcome, Evictor
from watcher.platform.kube.parameters import PatchKind

log = logging.getLogger(__name__)

COMPONENT = "load-watcher-qrm"
EVICT_WITHIN_S = 10.0
NATIVE = frozenset({"cpu", "memory"})
"""Resources that the kubelet publishes itself; all other resources in a node's status have a domain prefix."""


class QrmClusterClient:
    """The Kubernetes API as used by the manager of one node. `evicts`: whether running pods that cannot be admitted are
    evicted."""

    def __init__(self, client: KubeClient, *, node: str, evicts: bool, clock: Callable[[], float]) -> None:
        self._client = client
        self._node = node
        self._evictor = Evictor(client) if evicts else None
        self._clock = clock
        self._reporter = EventSource(component=COMPONENT, host=node)
        self._events_fail = False
        self._published: Mapping[str, Mapping[str, str]] = {}
        self._publishing_fails = ""

    async def inadmissible(self, pod: QrmPod, admission: Admission) -> None:
        """Write an Event with the kubelet's reason and message, and evict the pod if configured and a plug-in refused
        it."""
        try:
            about = EventSubject("Pod", pod.key, pod.uid)
            message = {"reason": admission.reason, "message": admission.message}
            await report(self._client, about, **message, warning=True, by=self._reporter, now=self._clock())
        except KubeError as error:
            if not self._events_fail:
                log.warning("cannot write Events: %s. %s", error, error.hint)
            self._events_fail = True
        else:
            self._events_fail = False
        if self._evictor is not None and not admission.unanswered:
            await self._evict(self._evictor, pod)

    async def _evict(self, evictor: Evictor, pod: QrmPod) -> None:
        try:
            objection = await self._objection(pod)
        except KubeError as error:
            objection = f"cannot read the pod: {error}"
        if objection:
            log.warning("not evicting the inadmissible pod %s: %s", pod.key, objection)
            return
        done = await evictor.evict(pod.key, within=EVICT_WITHIN_S, uid=pod.uid)
        if done.outcome is EvictionOutcome.EVICTED:
            log.warning("evicted the inadmissible pod %s", pod.key)
        else:
            log.warning("cannot evict the inadmissible pod %s: %s %s", pod.key, done.outcome, done.message)

    async def _objection(self, pod: QrmPod) -> str:
        """The reason why the pod must not be evicted, "" if there is none. Raises KubeError."""
        if pod.static:
            return "it is a static pod, which the API cannot evict"
        try:
            found = await self._client.get(PODS, pod.key)
        except KubeNotFound:
            return "it no longer exists"
        if (found.spec.priority or 0) >= CRITICAL_PRIORITY:
            return f"it is a critical pod (priority {found.spec.priority})"
        return "" if found.metadata.uid == pod.uid else "it was replaced by another pod with the same name"

    async def publish(self, manager: Manager, offered: Callable[[], Mapping[str, float]] = dict) -> None:
        """Write the resources of the plug-ins, and the `offered` resources, to the node's status if they changed.
        Removed resources are set to 0. API errors are logged, not raised."""
        capacity, allocatable, removed = await manager.plugins.capacity()
        more = {**dict.fromkeys(removed, 0.0), **offered()}
        status = {
            "capacity": _texts({**capacity, **more}),
            "allocatable": _texts({**allocatable, **more}),
        }
        if not any(status.values()) or status == self._published:
            return
        try:
            await self._client.patch(NODES, self._node, {"status": status}, kind=PatchKind.MERGE, subresource="status")
        except KubeError as error:
            if not self._publishing_fails:
                log.warning("cannot publish resources in the node's status: %s. %s", error, error.hint)
            self._publishing_fails = str(error)
            return
        self._publishing_fails = ""
        self._published = status


def _texts(amounts: Mapping[str, float]) -> dict[str, str]:
    """Quantities as text with three decimals, as Katalyst writes them."""
    return {name: f"{amount:.3f}" for name, amount in sorted(amounts.items()) if name not in NATIVE}
