"""The manager: admits pods by calling the plug-ins, stores their allocations, and applies them to containers.

One lock protects all state. Allocations are written to the checkpoint before a pod counts as admitted. The behaviour
follows the QoS Resource Manager of Katalyst's kubelet, with its known faults fixed.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from agent.qrm.kubelet.plugin_api import PluginCallError, Quantity
from agent.qrm.manager.admission import (
    AFFINITY_ERROR,
    AFFINITY_MESSAGE,
    UNEXPECTED_ERROR,
    Admission,
    Apply,
    ApplyFailed,
    ContainerOptions,
    ManagerSettings,
    NotAllocated,
    Offered,
    Reconciled,
    ReleaseResult,
    error_text,
    growth,
    options_of,
    suffices,
)
from agent.qrm.manager.allocation import (
    AllocationInfo,
    Allocations,
    BadProperty,
    Properties,
    checked_properties,
)
from agent.qrm.manager.registered_plugins import RegisteredPlugins
from agent.qrm.manager.request import NIC, RECLAIMED_MILLICPU, ContainerType, ResourceRequest
from agent.qrm.manager.topology import Hint, Merged, TopologyPolicy, merge
from agent.qrm.pods import PodContainer, QrmPod

log = logging.getLogger(__name__)

REFRESH_S = 60.0
"""Seconds after which the properties of a container are applied again even if they have not changed, because another
process may have overwritten them."""


class Manager:
    """Manages a store of allocations. `save` writes it to disk and raises OSError; `monotonic` returns seconds."""

    def __init__(
        self,
        settings: ManagerSettings,
        allocations: Allocations,
        *,
        save: Callable[[], Awaitable[None]],
        monotonic: Callable[[], float],
    ) -> None:
        self.settings = settings
        self.allocations = allocations
        self.plugins = RegisteredPlugins(allocations, monotonic=monotonic)
        self._save = save
        self._monotonic = monotonic
        self._lock = asyncio.Lock()
        self._applied: dict[str, tuple[Properties, float]] = {}
        self._hints: dict[tuple[str, str], dict[str, Hint]] = {}
        self._lacking: dict[tuple[str, str], dict[str, str]] = {}
        self._admitted: dict[str, float] = {}

    # --- admission ---------------------------------------------------------------------------------------------------

    async def admit(self, pod: QrmPod, *, active: Collection[str] | None = None) -> Admission:
        """Get hints, merge them and allocate for every container, init containers first; all or nothing. `active` are
        the UIDs of all running pods, None if unknown. Raises OSError if the checkpoint cannot be written; the pod then
        has what it had before."""
        async with self._lock:
            if pod.is_skipped(self.settings.skip_annotations, first=True):
                return Admission(admitted=True)
            await self._remove_ended(active)
            new = pod.uid not in self.allocations.pods
            self._admitted[pod.uid] = self._monotonic()
            decided: dict[str, Mapping[str, Hint]] = {}
            offered: dict[str, Offered] = {}
            try:
                aligns = self.settings.policy is not TopologyPolicy.NONE
                together = await self._merge_pod(pod) if aligns and self.settings.pod_scope else None
                for container, kind, index in pod.typed():
                    merged, hints = together or await self._merge(pod, container, kind, index)
                    decided[container.name], offered[container.name] = merged.hints, hints
                    if not merged.admit:
                        back = await self._undo(pod, new=new)
                        return Admission(False, AFFINITY_ERROR, AFFINITY_MESSAGE, decided, offered, released=back)
                    self._hints[pod.uid, container.name] = dict(merged.hints)
                    await self._allocate(pod, container, kind, index, again=False)
                await self._save()
            except OSError:
                await self._undo(pod, new=new)
                raise
            except NotAllocated as error:
                failed = {error.container: {error.resource: str(error)}}
                back = await self._undo(pod, new=new)
                message = f"Allocate failed due to {error}, which is unexpected"
                return Admission(False, UNEXPECTED_ERROR, message, decided, offered, failed, back)
            lacks = {each.name: self.missing(pod.uid, each.name) for each in pod.containers}
            return Admission(
                admitted=True,
                decided=decided,
                offered=offered,
                failed={name: lacking for name, lacking in lacks.items() if lacking},
            )

    async def _undo(self, pod: QrmPod, *, new: bool) -> ReleaseResult:
        """Release the allocations of a rejected pod, unless it had allocations before this admission."""
        self._admitted.pop(pod.uid, None)
        if not new:
            return ReleaseResult.NONE
        # The pod runs without any resources now because it was rejected, not because of these failures.
        self._lacking = {key: lacks for key, lacks in self._lacking.items() if key[0] != pod.uid}
        removed = await self._remove(pod.uid)
        try:
            await self._save()
        except OSError as error:
            log.error("cannot write the checkpoint: %s", error_text(error))
        return ReleaseResult.ALL if removed else ReleaseResult.LATER

    async def _merge(
        self, pod: QrmPod, container: PodContainer, kind: ContainerType, index: int
    ) -> tuple[Merged, Offered]:
        hints: dict[str, tuple[Hint, ...] | None] = {}
        if self.settings.policy is not TopologyPolicy.NONE:
            for request in self._requests(pod, container, kind, index):
                hints[request.resource_name] = await self._hints_for(request)
        return await self._merged(hints), hints

    async def _merge_pod(self, pod: QrmPod) -> tuple[Merged, Offered]:
        """One merged hint for the whole pod: the plug-ins get requests for the sum of all containers."""
        hints: dict[str, tuple[Hint, ...] | None] = {}
        for own, request in self._summed(pod):
            hints[request.resource_name] = await self._hints_for(request, own=own)
        return await self._merged(hints), hints

    async def _merged(self, hints: Offered) -> Merged:
        decide = partial(merge, self.settings.policy, self.settings.nodes, [hints])
        # On the largest machines this policy can take 100 ms, the other policies at most a few milliseconds.
        return await asyncio.to_thread(decide) if self.settings.policy is TopologyPolicy.NUMERIC else decide()

    def _summed(self, pod: QrmPod) -> Iterable[tuple[ResourceRequest, ResourceRequest]]:
        """For each resource, the request of the main container, and the request of the pod as Kubernetes computes it:
        containers and sidecars added together, or the largest init container."""
        main: dict[str, ResourceRequest] = {}
        sums: dict[str, float] = {}
        most: dict[str, float] = {}
        for container, kind, index in pod.typed():
            for request in self._requests(pod, container, kind, index):
                name = request.resource_name
                if kind is ContainerType.INIT:
                    most[name] = max(most.get(name, 0.0), request.quantity)
                    continue
                sums[name] = sums.get(name, 0.0) + request.quantity
                if name not in main or kind is ContainerType.MAIN:
                    main[name] = request
        for name, request in main.items():
            yield request, replace(request, resource_requests={name: max(sums[name], most.get(name, 0.0))})

    async def _hints_for(
        self, request: ResourceRequest, *, own: ResourceRequest | None = None
    ) -> tuple[Hint, ...] | None:
        """Stored hints have priority, so that a pod keeps its NUMA nodes after a restart, whether or not the plug-in is
        back. If `request` is for the whole pod, `own` is the container's part of it, which the stored allocation must
        satisfy."""
        stored = self.allocations.get(request.pod_uid, request.container_name, request.resource_name)
        enough = stored is not None and suffices(stored, own or request)
        if stored is not None and enough and stored.hints and not self._unknown_node_hints(stored.hints):
            return stored.hints
        # A sufficient allocation without NUMA hints, such as one from a pool, is kept while the plug-in is unavailable.
        unasked = None if stored is not None and enough and not stored.hints else ()
        endpoint = self.plugins.endpoint(request.resource_name)
        if endpoint is None:
            return unasked
        if not endpoint.options.aligned:
            return None
        try:
            hints = await endpoint.hints(request)
        except PluginCallError as error:
            self.plugins.failures.failed(error, f"no hints for {request.pod_namespace}/{request.pod_name}")
            return unasked
        strange = self._unknown_node_hints(hints or ())
        if strange:
            why = "it names NUMA nodes that this machine does not have"
            unknown = PluginCallError(request.resource_name, "GetTopologyHints", "NOT_OURS", why)
            self.plugins.failures.failed(unknown, "these hints are ignored")
        else:
            self.plugins.failures.succeeded(request.resource_name, "GetTopologyHints")
        return hints and tuple(hint for hint in hints if hint not in strange)

    def _unknown_node_hints(self, hints: Iterable[Hint]) -> list[Hint]:
        """The hints that name NUMA nodes which this machine does not have."""
        return [hint for hint in hints if (hint.nodes or frozenset()) - self.settings.nodes]

    async def _allocate(
        self, pod: QrmPod, container: PodContainer, kind: ContainerType, index: int, *, again: bool
    ) -> None:
        """Allocate every resource of a container that is not stored, or stored with less than the request. Raises
        NotAllocated."""
        if again and kind is ContainerType.INIT:
            return
        hints = self._hints.get((pod.uid, container.name), {})
        for request in self._requests(pod, container, kind, index):
            name = request.resource_name
            stored = self.allocations.get(pod.uid, container.name, name)
            if stored is not None and stored.is_scalar_resource and suffices(stored, request):
                continue
            endpoint = self.plugins.endpoint(name)
            try:
                if endpoint is None:
                    raise PluginCallError(name, "Allocate", "UNAVAILABLE", "it is not registered")
                if not again and stored is None and not await self.plugins.remembers(name, endpoint):
                    raise PluginCallError(
                        name, "Allocate", "UNAVAILABLE", "it has not loaded its earlier allocations yet"
                    )
                answer = await endpoint.allocate(replace(request, hint=hints.get(name)))
                given = self._checked(request, self.plugins.own(name, answer or {}), new=stored is None)
            except PluginCallError as error:
                if not pod.may_skip_errors:
                    raise NotAllocated(str(error), container=container.name, resource=name) from None
                lacks = self._lacking.setdefault((pod.uid, container.name), {})
                if lacks.get(name) != str(error):  # logged once, retried in every round
                    log.warning("%s, container %s, runs without its %s: %s", pod.key, container.name, name, error)
                lacks[name] = str(error)
                continue
            self._lacking.get((pod.uid, container.name), {}).pop(name, None)
            for resource, info in given.items():
                self.allocations.set(pod.uid, container.name, resource, info)
            self._check_applicable(pod, container, name, {})

    def _checked(
        self, request: ResourceRequest, given: Mapping[str, AllocationInfo], *, new: bool
    ) -> Mapping[str, AllocationInfo]:
        """Check an allocation before it is stored: its values must be valid for their properties, and the quantity of
        the requested resource must satisfy the request. Exceptions: a quantity of 0, which means a part of another
        container's allocation, and containers with an earlier allocation, because a pool may have shrunk. Raises
        PluginCallError."""
        try:
            checked_properties(given, cpus=self.settings.cpus)
        except BadProperty as error:
            raise PluginCallError(request.resource_name, "Allocate", "NOT_OURS", str(error)) from None
        own = given.get(request.resource_name)
        if not new or own is None or not own.is_scalar_resource or own.allocated_quantity == 0:
            return given
        if suffices(own, request):
            return given
        message = f"requested {request.quantity:g}, but got {own.allocated_quantity:g}"
        raise PluginCallError(request.resource_name, "Allocate", "NOT_OURS", message)

    def _check_applicable(
        self, pod: QrmPod, container: PodContainer, resource: str, more: Mapping[str, AllocationInfo]
    ) -> None:
        """Check that all allocations of the container, with the values `more` that the plug-in for `resource` reports
        now, can be set together; called before `more` is stored. Raises NotAllocated."""
        try:
            checked_properties({**self.allocations.of(pod.uid, container.name), **more}, cpus=self.settings.cpus)
        except BadProperty as error:
            message = f"container {container.name}: {error}"
            raise NotAllocated(message, container=container.name, resource=resource) from None

    def _requests(
        self, pod: QrmPod, container: PodContainer, kind: ContainerType, index: int
    ) -> Iterable[ResourceRequest]:
        """One request for each resource of a container that has a plug-in. Raises NotAllocated if a container requests
        one resource under two names."""
        found: dict[str, ResourceRequest] = {}
        wanted = dict(container.requests)
        names = self.settings.names
        if pod.role in self.settings.nic_roles and NIC not in {names.get(asked, asked) for asked in wanted}:
            wanted[NIC] = 1.0
        for asked, quantity in sorted(wanted.items()):
            name = names.get(asked, asked)
            if name not in self.plugins or quantity <= 0 or not math.isfinite(quantity):
                continue
            if name in found:
                message = f"container {container.name} requests {name} under two names; one of them is {asked}"
                raise NotAllocated(message, container=container.name, resource=name)
            own = quantity / 1000 if asked == RECLAIMED_MILLICPU != name else quantity
            found[name] = ResourceRequest(
                pod_uid=pod.uid,
                pod_namespace=pod.namespace,
                pod_name=pod.name,
                container_name=container.name,
                container_type=kind,
                container_index=index,
                pod_role=pod.role,
                pod_type=pod.type,
                resource_name=name,
                # Under the plug-in's name only: Katalyst's plug-ins refuse a request with more than one quantity.
                resource_requests={name: own},
                labels=pod.labels,
                annotations=pod.annotations,
                native_qos_class=pod.qos_class,
            )
        return found.values()

    # --- pods that ended ---------------------------------------------------------------------------------------------

    async def _remove_ended(self, active: Collection[str] | None) -> None:
        """Release the allocations of pods that no longer run, in every plug-in; retried in the next round if a plug-in
        fails."""
        if active is None:
            return
        now = self._monotonic()
        self._admitted = {uid: at for uid, at in self._admitted.items() if now - at < self.settings.recent}
        for uid in sorted(self.allocations.pods - set(active) - self._admitted.keys()):
            await self._remove(uid)

    async def release(self, uid: str) -> None:
        """Release the allocations of a pod that has ended. If a plug-in fails, the next round tries again. Raises
        OSError if the checkpoint cannot be written."""
        async with self._lock:
            self._admitted.pop(uid, None)
            if uid in self.allocations.pods:
                await self._remove(uid)
                await self._save()

    async def _remove(self, uid: str) -> bool:
        """Release the allocations of a pod in every plug-in. Returns False if a plug-in failed; the allocations then
        remain, and the next round tries again."""
        for name, endpoint in self.plugins.live():
            try:
                await endpoint.remove_pod(uid)
                self.plugins.failures.succeeded(name, "RemovePod")
            except PluginCallError as error:
                self.plugins.failures.failed(error, f"it still has the ended pod {uid}; trying again later")
                return False
        self.allocations.remove(uid)
        self._hints = {key: hints for key, hints in self._hints.items() if key[0] != uid}
        return True

    # --- starting and running containers -----------------------------------------------------------------------------

    async def container_options(self, pod: QrmPod, container_name: str) -> ContainerOptions | None:
        """The options for a container that is about to be created; None for a pod that is ignored. Allocates missing
        resources and calls PreStartContainer of the plug-ins that require it.

        Raises NotAllocated, BadProperty, OSError if the checkpoint cannot be written, and KeyError if the pod has no
        such container.
        """
        async with self._lock:
            if pod.is_skipped(self.settings.skip_annotations, first=True):
                return None
            typed = {container.name: (container, kind, index) for container, kind, index in pod.typed()}
            container, kind, index = typed[container_name]
            await self._allocate(pod, container, kind, index, again=True)
            await self._save()
            await self._pre_start(self._requests(pod, container, kind, index))
            return options_of(self.allocations.of(pod.uid, container_name))

    async def _pre_start(self, requests: Iterable[ResourceRequest]) -> None:
        """Raises NotAllocated if a plug-in that requires PreStartContainer fails."""
        for request in requests:
            endpoint = self.plugins.endpoint(request.resource_name)
            if endpoint is None or not endpoint.options.pre_start:
                continue
            try:
                await endpoint.pre_start(request)
            except PluginCallError as error:
                message, resource = str(error), request.resource_name
                raise NotAllocated(message, container=request.container_name, resource=resource) from None

    async def reconcile(
        self, pods: Sequence[QrmPod], apply: Apply, *, active: Collection[str] = frozenset()
    ) -> Reconciled:
        """Run one round: replace the stored allocations with the allocations that the plug-ins report, and apply them
        to the containers. Containers that lose CPUs come before containers that gain CPUs. The allocations of all pods
        other than `pods` and `active` (UIDs) are released. Raises OSError if the checkpoint cannot be written."""
        async with self._lock:
            active = {pod.uid for pod in pods} | set(active)
            await self._remove_ended(active)
            message = await self.plugins.reported()
            await self._drop_orphans(message, active)
            self._lacking = {key: lacks for key, lacks in self._lacking.items() if key[0] in active and lacks}
            failed: dict[str, str] = {}
            running = self._running(pods)
            for pod, container, kind, index in running:
                try:
                    await self._renew(pod, container, kind, index, message)
                except NotAllocated as error:
                    failed[f"{pod.key}/{container.name}"] = str(error)
            await self._save()
            return await self._apply([(pod, container) for pod, container, _, _ in running], apply, failed)

    def _running(self, pods: Iterable[QrmPod]) -> list[tuple[QrmPod, PodContainer, ContainerType, int]]:
        """The running containers of managed pods, with type and index. Containers that lack a resource come last."""
        running = [
            (pod, container, kind, index)
            for pod in pods
            if not pod.is_skipped(self.settings.skip_annotations, first=False)
            for container, kind, index in pod.typed()
            if container.id and kind is not ContainerType.INIT
        ]
        return sorted(running, key=lambda each: bool(self.missing(each[0].uid, each[1].name)))

    async def _drop_orphans(self, told: Mapping[str, Mapping[str, object]], active: Collection[str]) -> None:
        """Remove pods that only a plug-in still has, because it was not running when the pod ended."""
        for name, pods in told.items():
            endpoint = self.plugins.endpoint(name)
            for uid in sorted(pods.keys() - set(active) - self._admitted.keys() - self.allocations.pods):
                try:
                    if endpoint is not None:
                        await endpoint.remove_pod(uid)
                        self.plugins.failures.succeeded(name, "RemovePod")
                except PluginCallError as error:
                    self.plugins.failures.failed(error, f"it still has the ended pod {uid}; trying again later")
                    break

    async def _renew(
        self,
        pod: QrmPod,
        container: PodContainer,
        kind: ContainerType,
        index: int,
        told: Mapping[str, Mapping[str, Mapping[str, Mapping[str, AllocationInfo]]]],
    ) -> None:
        missing = False
        for request in self._requests(pod, container, kind, index):
            name = request.resource_name
            if name not in told:
                continue
            infos = told[name].get(pod.uid, {}).get(container.name, {})
            stored = self.allocations.of(pod.uid, container.name)
            if any(stored.get(resource) != info for resource, info in infos.items()):
                self._check_applicable(pod, container, name, infos)
                for resource, info in infos.items():
                    self.allocations.set(pod.uid, container.name, resource, info)
            if infos:
                self._lacking.get((pod.uid, container.name), {}).pop(name, None)
            else:
                self.allocations.remove(pod.uid, container.name, name)
                missing = True
        if missing:
            await self._allocate(pod, container, kind, index, again=True)

    async def _apply(
        self, running: Sequence[tuple[QrmPod, PodContainer]], apply: Apply, failed: dict[str, str]
    ) -> Reconciled:
        now, due = self._monotonic(), []
        ids = {each.id for _, each in running}
        self._applied = {id: kept for id, kept in self._applied.items() if id in ids}
        for pod, container in running:
            try:
                properties = checked_properties(self.allocations.of(pod.uid, container.name), cpus=self.settings.cpus)
            except BadProperty as error:
                failed[f"{pod.key}/{container.name}"] = str(error)
                continue
            before, at = self._applied.get(container.id, ({}, -math.inf))
            if properties and (properties != before or now - at >= REFRESH_S):
                due.append((growth(before, properties), pod.uid, container.name, pod, container, properties))
        applied = []
        for *_, pod, container, properties in sorted(due, key=lambda each: each[:3]):
            try:
                await apply(pod, container, properties)
            except ApplyFailed as error:
                failed[f"{pod.key}/{container.name}"] = str(error)
                continue
            self._applied[container.id] = properties, now
            applied.append(f"{pod.key}/{container.name}")
        return Reconciled(tuple(applied), failed)

    def properties(self, pod_uid: str, container: str) -> Properties:
        """The properties that the stored allocations of a container set; empty if they are invalid."""
        try:
            return checked_properties(self.allocations.of(pod_uid, container), cpus=self.settings.cpus)
        except BadProperty:
            return {}

    def set_applied(self, container_id: str, properties: Properties | None) -> None:
        """The container has these properties, set by another way than `apply`; None if they are unknown, so that the
        next round applies them."""
        if properties is None:
            self._applied.pop(container_id, None)
        else:
            self._applied[container_id] = properties, self._monotonic()

    # --- queries -----------------------------------------------------------------------------------------------------

    def missing(self, pod_uid: str, container: str) -> dict[str, str]:
        """The resources that a container requested and runs without, with the reasons."""
        return dict(self._lacking.get((pod_uid, container), {}))

    async def topology_aware(self, pod: QrmPod, container: str) -> dict[str, Quantity]:
        """The quantities that a container has, by resource, from every plug-in that responds."""
        if pod.is_skipped(self.settings.skip_annotations, first=True):
            return {}
        found: dict[str, Quantity] = {}
        for name, endpoint in self.plugins.live():
            try:
                found.update(self.plugins.own(name, await endpoint.aware(pod.uid, container)))
                self.plugins.failures.succeeded(name, "GetTopologyAwareResources")
            except PluginCallError as error:
                self.plugins.failures.failed(error, "its part of the pod resources is missing")
        return found
