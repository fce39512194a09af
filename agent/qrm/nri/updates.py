"""Applies allocations to running containers by requests to the runtime, in one message for each round."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from agent.qrm.manager.allocation import Properties
from agent.qrm.manager.manager import Manager
from agent.qrm.nri.calls import CallFailed
from agent.qrm.nri.failures import NriFindings
from agent.qrm.nri.messages import update
from agent.qrm.nri.protos import qrm_nri_v1alpha1_pb2 as pb
from agent.qrm.pods import PodContainer, QrmPod

Send = Callable[[Sequence[pb.ContainerUpdate]], Awaitable[list[pb.ContainerUpdate]]]
"""Requests updates, and returns those that failed. Raises CallFailed."""
REPEATS = 3
"""Attempts to send updates that became outdated while the runtime handled them."""


class RoundUpdates:
    """The updates of one round. `apply` is called under the manager's lock, so it only collects: the runtime may hold
    its own lock, in a call that waits for the manager."""

    def __init__(self, manager: Manager, send: Send, findings: NriFindings) -> None:
        self._manager = manager
        self._send = send
        self._findings = findings
        self._due: dict[str, tuple[QrmPod, PodContainer, Properties]] = {}

    async def apply(self, pod: QrmPod, container: PodContainer, properties: Properties) -> None:
        """Collect the properties of a container, in the order of the calls. Raises ApplyFailed."""
        update(container.id, properties)  # if this fails, the other containers are updated
        self._due[container.id] = pod, container, properties

    async def deliver(self) -> dict[str, str]:
        """Send what was collected; returns errors by container, which the next round tries again. What was decided
        differently in the meantime is sent at once, because the runtime may have handled the two decisions in either
        order."""
        due, failed = self._due, dict[str, str]()
        self._due = {}
        self._findings.applied({id: f"{pod.key}/{container.name}" for id, (pod, container, _) in due.items()})
        for _ in range(REPEATS):
            if not due:
                break
            try:
                refused = await self._send([update(id, properties) for id, (_, _, properties) in due.items()])
            except CallFailed as error:
                return failed | self._not_sent(due, due, f"UpdateContainers: {error}")
            ids = [each.container_id for each in refused if each.container_id in due]
            failed |= self._not_sent(ids, due, "the runtime could not update the container")
            due = {id: self._now(*was) for id, was in due.items() if id not in ids and self._now(*was) != was}
        return failed

    def _now(
        self, pod: QrmPod, container: PodContainer, properties: Properties
    ) -> tuple[QrmPod, PodContainer, Properties]:
        """The same container with the properties that it has to have now."""
        return pod, container, self._manager.properties(pod.uid, container.name) or properties

    def _not_sent(
        self, ids: Collection[str], due: Mapping[str, tuple[QrmPod, PodContainer, Properties]], why: str
    ) -> dict[str, str]:
        for id in ids:
            self._manager.set_applied(id, None)
        if ids:
            self._findings.add("update", f"containers keep their properties until the next round: {why}")
        return {f"{due[id][0].key}/{due[id][1].name}": why for id in ids}
