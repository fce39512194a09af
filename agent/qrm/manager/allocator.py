"""Allocates resources to containers through the plug-ins, and checks what they allocate."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace

from agent.cpuset import CpuSet
from agent.qrm.grpc.plugin_api import PluginCallError
from agent.qrm.manager.admission import NotAllocated, suffices
from agent.qrm.manager.allocation import AllocationInfo, Allocations, BadProperty, checked_properties
from agent.qrm.manager.hint_merger import HintMerger
from agent.qrm.manager.plugin_requests import PluginRequests
from agent.qrm.manager.registered_plugins import RegisteredPlugins
from agent.qrm.manager.request import ContainerType, ResourceRequest
from agent.qrm.manager.topology import Hint
from agent.qrm.pods import PodContainer, QrmPod

log = logging.getLogger(__name__)


class Allocator:
    """Stores what the plug-ins allocate in `allocations`; those with other CPUs than `cpus` are rejected (None:
    unknown). `lacking` are the resources of which containers have less than they request, with the reasons, by pod UID
    and name."""

    def __init__(
        self,
        cpus: CpuSet | None,
        allocations: Allocations,
        plugins: RegisteredPlugins,
        requests: PluginRequests,
        hints: HintMerger,
    ) -> None:
        self.lacking: dict[tuple[str, str], dict[str, str]] = {}
        self._cpus = cpus
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


def _too_little(request: ResourceRequest, given: AllocationInfo) -> str:
    return f"requested {request.quantity:g}, but got {given.allocated_quantity:g}"
