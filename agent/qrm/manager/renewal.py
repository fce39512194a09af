"""Follows the plug-ins in each round: stores the allocations that they report, and resizes containers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from agent.qrm.manager.admission import AFFINITY_MESSAGE, ContainerRef, NotAllocated, suffices
from agent.qrm.manager.allocation import AllocationInfo, Allocations
from agent.qrm.manager.allocator import Allocator
from agent.qrm.manager.hint_merger import HintMerger
from agent.qrm.manager.plugin_requests import PluginRequests
from agent.qrm.manager.request import ContainerType
from agent.qrm.manager.settings import AllocationSettings
from agent.qrm.manager.topology import TopologyPolicy
from agent.qrm.pods import PodContainer, QrmPod

RunningContainer = tuple[QrmPod, PodContainer, ContainerType, int]
"""A running container with its type and index."""
Reported = Mapping[str, Mapping[str, Mapping[str, Mapping[str, AllocationInfo]]]]
"""What the plug-ins report, by resource of the plug-in, pod UID, container and resource."""


class AllocationRenewal:
    """Keeps `allocations` as the plug-ins report them."""

    def __init__(
        self,
        settings: AllocationSettings,
        allocations: Allocations,
        requests: PluginRequests,
        hints: HintMerger,
        allocator: Allocator,
    ) -> None:
        self._settings = settings
        self._allocations = allocations
        self._requests = requests
        self._hints = hints
        self._allocator = allocator

    def running(self, pods: Iterable[QrmPod]) -> list[RunningContainer]:
        """The running containers of managed pods, with type and index. Containers that lack a resource come last."""
        running = [
            (pod, container, kind, index)
            for pod in pods
            if not pod.is_skipped(self._settings.skip_annotations, first=False)
            for container, kind, index in pod.typed()
            if container.id and kind is not ContainerType.INIT
        ]
        return sorted(running, key=lambda each: bool(self._allocator.missing(each[0].uid, each[1].name)))

    async def renew_all(
        self,
        running: Sequence[RunningContainer],
        message: Reported,
        *,
        resize: bool,
    ) -> tuple[dict[ContainerRef, str], bool]:
        """Store what the plug-ins report; with `resize`, allocate what is missing and what is requested differently.
        Returns errors by container, and whether plug-ins were asked to allocate."""
        failed: dict[ContainerRef, str] = {}
        changed = False
        for pod, container, kind, index in running:
            try:
                due, lost = self._renew(pod, container, kind, index, message)
                if resize and (due or lost):
                    changed = True
                    await self._resize(pod, container, kind, index, due)
            except NotAllocated as error:
                failed[ContainerRef.of(pod, container)] = str(error)
                self._allocator.lacking.setdefault((pod.uid, container.name), {})[error.resource] = str(error)
        return failed, changed

    def _renew(
        self,
        pod: QrmPod,
        container: PodContainer,
        kind: ContainerType,
        index: int,
        reported: Reported,
    ) -> tuple[set[str], set[str]]:
        """Store what the plug-ins report for a container. Returns the resources that it requests differently now, and
        those that the plug-ins do not report. Raises NotAllocated if the values cannot be set together."""
        due, lost = set[str](), set[str]()
        for request in self._requests.of(pod, container, kind, index):
            name = request.resource_name
            if name not in reported:
                continue
            infos = reported[name].get(pod.uid, {}).get(container.name, {})
            stored = self._allocations.of(pod.uid, container.name)
            if any(stored.get(resource) != info for resource, info in infos.items()):
                self._allocator.check_applicable(pod, container, name, infos)
                for resource, info in infos.items():
                    self._allocations.set(pod.uid, container.name, resource, info)
            if not infos:
                self._allocations.remove(pod.uid, container.name, name)
                lost.add(name)
            elif self._allocator.has_changed(request) or name in self._allocator.missing(pod.uid, container.name):
                due.add(name)
        return due, lost

    async def _resize(
        self, pod: QrmPod, container: PodContainer, kind: ContainerType, index: int, due: set[str]
    ) -> None:
        """Allocate for the changed requests of a container, with new hints for what it has too little of. Raises
        NotAllocated."""
        grows = {
            each.resource_name
            for each in self._requests.of(pod, container, kind, index)
            if (stored := self._allocations.get(pod.uid, container.name, each.resource_name)) is not None
            and stored.hints
            and not suffices(stored, each)
        }
        refused = set[str]()
        if grows & due and self._settings.policy is not TopologyPolicy.NONE:
            merged, _ = await self._hints.merge(pod, container, kind, index)
            if merged.admit:
                self._hints.decided[pod.uid, container.name] = dict(merged.hints)
            else:
                refused = grows & due
                for name in sorted(refused):
                    self._allocator.lack(pod, container, name, AFFINITY_MESSAGE, kept=True)
        await self._allocator.allocate(pod, container, kind, index, again=True, due=due, refused=refused)
