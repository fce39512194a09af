"""What the manager does through the Kubernetes API: Events about pods that it could not admit, their eviction where
that is asked for, and resources in the node's status."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from agent.model import CRITICAL_PRIORITY
from agent.qrm.manager.admission import Admission
from agent.qrm.manager.manager import Manager
from agent.qrm.pods import QrmPod
from agent.state.pod_facts import is_static
from watcher.core.kubernetes.errors import KubeError, KubeNotFound
from watcher.core.kubernetes.objects import NODES, PODS
from watcher.platform.kube.client import KubeClient, PatchKind
from watcher.platform.kube.events import About, Reporter, report
from watcher.platform.kube.eviction import Evictor, Outcome

log = logging.getLogger(__name__)

COMPONENT = "load-watcher-qrm"
EVICT_WITHIN_S = 10.0
NATIVE = frozenset({"cpu", "memory"})
"""The kubelet's own; everything else in a node's status has a domain."""


class Cluster:
    """The API, as the manager on one node uses it. `evicts` pods that run and could not be admitted."""

    def __init__(self, client: KubeClient, *, node: str, evicts: bool, clock: Callable[[], float]) -> None:
        self._client = client
        self._node = node
        self._evictor = Evictor(client) if evicts else None
        self._clock = clock
        self._reporter = Reporter(component=COMPONENT, host=node)
        self._events_fail = False
        self._published: Mapping[str, Mapping[str, str]] = {}
        self._publishing_fails = ""

    async def inadmissible(self, pod: QrmPod, admission: Admission) -> None:
        """An Event, as the kubelet writes it, and the eviction."""
        try:
            about = About("Pod", pod.key, pod.uid)
            told = {"reason": admission.reason, "message": admission.message}
            await report(self._client, about, **told, warning=True, by=self._reporter, now=self._clock())
        except KubeError as error:
            if not self._events_fail:
                log.warning("no Events are written: %s. %s", error, error.hint)
            self._events_fail = True
        else:
            self._events_fail = False
        if self._evictor is not None:
            await self._evict(self._evictor, pod)

    async def _evict(self, evictor: Evictor, pod: QrmPod) -> None:
        try:
            objection = await self._objection(pod)
        except KubeError as error:
            objection = f"the API cannot say what it is now: {error}"
        if objection:
            log.warning("the inadmissible pod %s is not evicted: %s", pod.key, objection)
            return
        done = await evictor.evict(pod.key, within=EVICT_WITHIN_S, uid=pod.uid)
        if done.outcome is Outcome.EVICTED:
            log.warning("the inadmissible pod %s is evicted", pod.key)
        else:
            log.warning("the inadmissible pod %s is not evicted: %s %s", pod.key, done.outcome, done.message)

    async def _objection(self, pod: QrmPod) -> str:
        """Why it may not be evicted, "" if it may. Raises KubeError."""
        if is_static(pod.annotations):
            return "it is a static pod, which only its node can end"
        try:
            found = await self._client.get(PODS, pod.key)
        except KubeNotFound:
            return "there is no such pod any more"
        if (found.spec.priority or 0) >= CRITICAL_PRIORITY:
            return f"it is critical (priority {found.spec.priority})"
        return "" if found.metadata.uid == pod.uid else "there is another pod of that name now"

    async def publish(self, manager: Manager, offered: Callable[[], Mapping[str, float]] = dict) -> None:
        """What plug-ins have goes into the node's status, and what is `offered` besides, where it changed; what is gone
        becomes 0. Raises nothing."""
        capacity, allocatable, removed = await manager.capacity()
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
                log.warning("resources are not published in the node's status: %s. %s", error, error.hint)
            self._publishing_fails = str(error)
            return
        self._publishing_fails = ""
        self._published = status


def _texts(amounts: Mapping[str, float]) -> dict[str, str]:
    """As upstream writes quantities."""
    return {name: f"{amount:.3f}" for name, amount in sorted(amounts.items()) if name not in NATIVE}
