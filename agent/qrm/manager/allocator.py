"""Allocates resources to containers through the plug-ins, and checks what they allocate. Each round stores what the
plug-ins report, and resizes containers."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from agent.cpuset import CpuSet
from agent.qrm.grpc.plugin_api import PluginCallError
from agent.qrm.manager.admission import AFFINITY_MESSAGE, ContainerRef, NotAllocated, suffices
from agent.qrm.manager.allocation import AllocationInfo, Allocations, BadProperty, checked_properties
from agent.qrm.manager.hint_merger import HintMerger
from agent.qrm.manager.plugin_requests import PluginRequests
from agent.qrm.manager.registered_plugins import RegisteredPlugins
from agent.qrm.manager.request import ContainerType, ResourceRequest
from agent.qrm.manager.settings import AllocationSettings
from agent.qrm.manager.topology import Hint, TopologyPolicy
from agent.qrm.pods import PodContainer, QrmPod

log = logging.getLogger(__name__)

RunningContainer = tuple[QrmPod, PodContainer, ContainerType, int]
"""A running container with its type and index."""
Reported = Mapping[str, Mapping[str, Mapping[str, Mapping[str, AllocationInfo]]]]
"""What the plug-ins report, by resource of the plug-in, pod UID, container and resource."""


class Allocator:
    """Stores what the plug-ins allocate in `allocations`; those with other CPUs than `cpus` are rejected (None:
    unknown). `lacking` are the resources of which containers have less than they request, with the reasons, by pod UID
    and name."""

    def __init__(
        self,
        settings: AllocationSettings,
        allocations: Allocations,
        plugins: RegisteredPlugins,
        requests: PluginRequests,
        hints: HintMerger,
        *,
        cpus: CpuSet | None,
    ) -> None:
        self.lacking: dict[tuple[str, str], dict[str, str]] = {}
        self._settings, self._cpus = settings, cpus
        self._allocations = allocations
        self._plugins = plugins
        self._requests = requests
        self._hints = hints
        self._asked: dict[tuple[str, str, str], float] = {}
        """Quantities of the last Allocate, by pod UID, container and resource."""

    def forget(self, uid: str) -> None:
        """Remove the quantities that a pod has requested."""
        self._asked = {key: asked for key, asked in self._asked.items() if key[0] != uid}

    def missing(self, pod_uid: str, container: str) -> dict[str, str]:
        """The resources of which a container has less than it requests, or nothing, with the reasons."""
        return dict(self.lacking.get((pod_uid, container), {}))

    async def allocate(
        self,
        pod: QrmPod,
        container: PodContainer,
        kind: ContainerType,
        index: int,
        *,
        again: bool,
        new: bool = True,
        due: Collection[str] = (),
        refused: Collection[str] = (),
    ) -> None:
        """Allocate every resource of a container that is not stored, or stored with less than the request, and the
        resources `due`, without those `refused`. What is stored stays until the plug-in has allocated. Raises
        NotAllocated for a resource that is not stored, unless the pod was admitted before (`new` is false)."""
        if again and kind is ContainerType.INIT:
            return
        hints = self._hints.decided.get((pod.uid, container.name), {})
        for request in self._requests.of(pod, container, kind, index):
            name = request.resource_name
            stored = self._allocations.get(pod.uid, container.name, name)
            if name in refused or (name not in due and stored is not None and suffices(stored, request)):
                continue
            try:
                given = await self._given(request, stored, hints.get(name), again=again)
            except PluginCallError as error:
                if stored is None and new:
                    why, silent = str(error), error.unanswered
                    raise NotAllocated(why, container=container.name, resource=name, unanswered=silent) from None
                self.lack(pod, container, name, str(error), kept=stored is not None)
                continue
            self.check_applicable(pod, container, name, given)
            for resource, info in given.items():
                self._allocations.set(pod.uid, container.name, resource, info)
            self._asked[pod.uid, container.name, name] = request.quantity
            own = given.get(name)
            if own is not None and own.is_scalar_resource and own.allocated_quantity and not suffices(own, request):
                self.lack(pod, container, name, _too_little(request, own), kept=True)
            else:
                self.lacking.get((pod.uid, container.name), {}).pop(name, None)

    async def _given(
        self, request: ResourceRequest, stored: AllocationInfo | None, hint: Hint | None, *, again: bool
    ) -> Mapping[str, AllocationInfo]:
        """What the plug-in allocates for a request. Raises PluginCallError."""
        name = request.resource_name
        endpoint = self._plugins.endpoint(name)
        if endpoint is None:
            raise PluginCallError(name, "Allocate", "UNAVAILABLE", "it is not registered")
        if not again and stored is None and not await self._plugins.remembers(name, endpoint):
            raise PluginCallError(name, "Allocate", "UNAVAILABLE", "it has not loaded its earlier allocations yet")
        answer = await endpoint.allocate(replace(request, hint=hint))
        return self._checked(request, self._plugins.own(name, answer or {}), stored=stored)

    def lack(self, pod: QrmPod, container: PodContainer, resource: str, why: str, *, kept: bool) -> None:
        """Note that a container does not have what it requests; logged once, tried again in every round."""
        lacks = self.lacking.setdefault((pod.uid, container.name), {})
        if lacks.get(resource) != why:
            how = "keeps its earlier" if kept else "runs without its"
            log.warning("%s, container %s, %s %s: %s", pod.key, container.name, how, resource, why)
        lacks[resource] = why

    def _checked(
        self, request: ResourceRequest, given: Mapping[str, AllocationInfo], *, stored: AllocationInfo | None
    ) -> Mapping[str, AllocationInfo]:
        """Check an allocation before it is stored: its values must be valid for their properties, and the quantity of
        the requested resource must satisfy the request. Exceptions: a quantity of 0, which means a part of another
        container's allocation (Katalyst's sidecars), and a container with an earlier allocation, which runs with less
        than it requests in any case. Raises PluginCallError."""
        try:
            checked_properties(given, cpus=self._cpus)
        except BadProperty as error:
            raise PluginCallError(request.resource_name, "Allocate", "NOT_OURS", str(error)) from None
        own = given.get(request.resource_name)
        if stored is not None or own is None or not own.is_scalar_resource or own.allocated_quantity == 0:
            return given
        if suffices(own, request):
            return given
        raise PluginCallError(request.resource_name, "Allocate", "NOT_OURS", _too_little(request, own))

    def check_applicable(
        self, pod: QrmPod, container: PodContainer, resource: str, more: Mapping[str, AllocationInfo]
    ) -> None:
        """Check that all allocations of the container, with the values `more` that the plug-in for `resource` reports
        now, can be set together; called before `more` is stored. Raises NotAllocated."""
        try:
            checked_properties({**self._allocations.of(pod.uid, container.name), **more}, cpus=self._cpus)
        except BadProperty as error:
            message = f"container {container.name}: {error}"
            raise NotAllocated(message, container=container.name, resource=resource) from None

    def has_changed(self, request: ResourceRequest) -> bool:
        """Whether a container requests another quantity than the plug-in was last asked for; true also after a restart,
        because the request may have changed in the meantime."""
        key = request.pod_uid, request.container_name, request.resource_name
        return self._asked.get(key) != request.quantity

    # --- rounds ------------------------------------------------------------------------------------------------------

    def running(self, pods: Iterable[QrmPod]) -> list[RunningContainer]:
        """The running containers of managed pods, with type and index. Containers that lack a resource come last."""
        running = [
            (pod, container, kind, index)
            for pod in pods
            if not pod.is_skipped(self._settings.skip_annotations, first=False)
            for container, kind, index in pod.typed()
            if container.id and kind is not ContainerType.INIT
        ]
        return sorted(running, key=lambda each: bool(self.missing(each[0].uid, each[1].name)))

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
                self.lacking.setdefault((pod.uid, container.name), {})[error.resource] = str(error)
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
                self.check_applicable(pod, container, name, infos)
                for resource, info in infos.items():
                    self._allocations.set(pod.uid, container.name, resource, info)
            if not infos:
                self._allocations.remove(pod.uid, container.name, name)
                lost.add(name)
            elif self.has_changed(request) or name in self.missing(pod.uid, container.name):
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
                    self.lack(pod, container, name, AFFINITY_MESSAGE, kept=True)
        await self.allocate(pod, container, kind, index, again=True, due=due, refused=refused)


def _too_little(request: ResourceRequest, given: AllocationInfo) -> str:
    return f"requested {request.quantity:g}, but got {given.allocated_quantity:g}"
