"""Applies allocations to running containers by requests to the runtime. A container gets the CPUs of another one in a
later message, after the runtime has confirmed that the other one has lost them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from agent.qrm.manager.admission import ContainerRef, Failures
from agent.qrm.manager.allocation import Properties
from agent.qrm.manager.manager import Manager
from agent.qrm.pods import PodContainer, QrmPod
from agent.qrm.runtime.nri.failures import NriFindings
from agent.qrm.runtime.nri.messages import update
from agent.qrm.runtime.nri.protos import qrm_nri_v1alpha1_pb2 as pb
from agent.qrm.runtime.nri.ttrpc import CallFailed

Collected = tuple[QrmPod, PodContainer, Properties]
Send = Callable[[Sequence[pb.ContainerUpdate]], Awaitable[list[pb.ContainerUpdate]]]
"""Requests updates, and returns those that failed. Raises CallFailed."""
REPEATS = 3
"""Messages of one round. Updates that wait for others, or became outdated while the runtime handled a message, are sent
after its answer."""


class RoundUpdates:
    """The updates of one round. `apply` is called under the manager's lock, so it only collects: the runtime may hold
    its own lock, in a call that waits for the manager."""

    def __init__(self, manager: Manager, send: Send, findings: NriFindings) -> None:
        self._manager = manager
        self._send = send
        self._findings = findings
        self._due: dict[str, Collected] = {}
        self._sent: dict[str, Collected] = {}

    @property
    def undelivered(self) -> list[Collected]:
        """What was collected for containers that may not have it yet. A container that is created now must not get CPUs
        that one of them has lost: the answer updates them too."""
        return list({**self._sent, **self._due}.values())

    async def apply(self, pod: QrmPod, container: PodContainer, properties: Properties) -> None:
        """Collect the properties of a container, in the order of the calls. Raises ApplyFailed."""
        update(container.id, properties)  # if this fails, the other containers are updated
        self._due.pop(container.id, None)  # the last position counts
        self._due[container.id] = pod, container, properties

    async def deliver(self) -> Failures:
        """Send what was collected; returns errors by container, which the next round tries again. What waited for the
        answer of the runtime is sent next. So is what was decided differently in the meantime, because the runtime may
        have handled the two decisions in either order."""
        failed, refused = dict[ContainerRef, str](), set[str]()
        for left in reversed(range(REPEATS)):
            self._sent, self._due = self._due, {}
            if not self._sent:
                break
            try:
                failed |= await self._deliver(self._sent, refused)
            finally:
                self._sent = {}
            if left:
                failed |= await self._manager.apply_rest(self.apply, refused)
        return failed

    async def _deliver(self, due: dict[str, Collected], refused: set[str]) -> Failures:
        """Send one message, confirm the updates that succeeded, and add the ids of the others to `refused`."""
        self._findings.applied({id: str(ContainerRef.of(pod, container)) for id, (pod, container, _) in due.items()})
        try:
            answer = await self._send([update(id, properties) for id, (_, _, properties) in due.items()])
            failed = {each.container_id for each in answer if each.container_id in due}
            why = "the runtime could not update the container"
        except CallFailed as error:
            failed, why = set(due), f"UpdateContainers: {error}"
        for id, (_, _, properties) in due.items():
            if id in failed:
                self._manager.applier.apply_again(id)
            else:
                self._manager.applier.confirm(id, properties)
        refused |= failed
        if failed:
            self._findings.add("update", f"containers keep their properties until the next round: {why}")
        return {ContainerRef.of(*due[id][:2]): why for id in due if id in failed}
