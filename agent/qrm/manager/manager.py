"""The manager: admits pods by calling the plug-ins, stores their allocations, and applies them to containers.

One lock protects all state. Allocations are written to the checkpoint before a pod counts as admitted. The behaviour
follows the QoS Resource Manager of Katalyst's kubelet, with its known faults fixed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

from agent.cpuset import CpuSet
from agent.qrm.grpc.plugin_api import PluginCallError, Quantity
from agent.qrm.manager.admission import (
    ADMISSION_GRACE_S,
    AFFINITY_ERROR,
    AFFINITY_MESSAGE,
    UNEXPECTED_ERROR,
    Admission,
    Apply,
    ContainerOptions,
    Failures,
    NotAllocated,
    Offered,
    Reconciled,
    ReleaseResult,
    error_text,
    options_of,
)
from agent.qrm.manager.allocation import Allocations, BadProperty, Properties
from agent.qrm.manager.allocator import Allocator
from agent.qrm.manager.applying import PropertyApplier
from agent.qrm.manager.hint_merger import HintMerger
from agent.qrm.manager.plugin_requests import PluginRequests
from agent.qrm.manager.registered_plugins import RegisteredPlugins
from agent.qrm.manager.request import ResourceRequest
from agent.qrm.manager.settings import POD, AllocationSettings
from agent.qrm.manager.topology import Hint, TopologyPolicy
from agent.qrm.pods import QrmPod

log = logging.getLogger(__name__)


class Manager:
    """Manages a store of allocations. `nodes` are the NUMA nodes that have CPUs; allocations with other CPUs than the
    online `cpus` are rejected (None: unknown). `collects`: an Apply only collects properties, and `confirm` and
    `apply_again` report later whether they are set. `recent` is a grace period like ADMISSION_GRACE_S; 0 s if one list
    reports both the admitted and the ended pods. `save` writes the store to disk and raises OSError; `monotonic`
    returns seconds."""

    def __init__(
        self,
        settings: AllocationSettings,
        allocations: Allocations,
        *,
        nodes: frozenset[int],
        cpus: CpuSet | None = None,
        collects: bool = False,
        recent: float = ADMISSION_GRACE_S,
        save: Callable[[], Awaitable[None]],
        monotonic: Callable[[], float],
    ) -> None:
        self.settings = settings
        self.allocations = allocations
        self.plugins = RegisteredPlugins(allocations, monotonic=monotonic)
        self._save = save
        self._monotonic = monotonic
        self._recent = recent
        self._lock = asyncio.Lock()
        self._requests = PluginRequests(settings, self.plugins)
        self._hints = HintMerger(settings, nodes, allocations, self.plugins, self._requests)
        self._allocator = Allocator(settings, allocations, self.plugins, self._requests, self._hints, cpus=cpus)
        self.applier = PropertyApplier(allocations, cpus=cpus, monotonic=monotonic, collects=collects)
        """What containers have; a runtime that sets properties by another way than `reconcile` notes them there."""
        self._admitted: dict[str, float] = {}
        self._admitting = ""  # a pod of which some containers may have allocations already
        self._owed: set[str] = set()  # rejected pods whose allocations a plug-in has not released yet

    # --- admission ---------------------------------------------------------------------------------------------------

    async def admit(self, pod: QrmPod, *, active: Collection[str] | None = None) -> Admission:
        """Get hints, merge them and allocate for every container, init containers first; all or nothing. A pod that was
        admitted before keeps what it has, even if it requests more now and does not get it. `active` are the UIDs of
        all running pods, None if unknown. Raises OSError if the checkpoint cannot be written; the pod then has what it
        had before."""
        async with self._lock:
            if pod.is_skipped(self.settings.skip_annotations, first=True):
                return Admission(admitted=True)
            await self._remove_ended(active)
            new = pod.uid not in self.admitted_pods
            self._admitting = pod.uid if new else ""
            try:
                return await self._admitted_or_rejected(pod, new=new)
            finally:
                self._admitting = ""

    async def _admitted_or_rejected(self, pod: QrmPod, *, new: bool) -> Admission:
        self._hints.unanswered.clear()
        self._admitted[pod.uid] = self._monotonic()
        decided: dict[str, Mapping[str, Hint]] = {}
        offered: dict[str, Offered] = {}
        try:
            aligns = self.settings.policy is not TopologyPolicy.NONE
            together = await self._hints.merge_pod(pod) if aligns and self.settings.scope == POD else None
            for container, kind, index in pod.typed():
                merged, hints = together or await self._hints.merge(pod, container, kind, index)
                decided[container.name], offered[container.name] = merged.hints, hints
                if merged.admit:
                    self._hints.decided[pod.uid, container.name] = dict(merged.hints)
                elif new:
                    back, silent = await self._undo(pod, new=new), bool(self._hints.unanswered)
                    return Admission(
                        False, AFFINITY_ERROR, AFFINITY_MESSAGE, decided, offered, released=back, unanswered=silent
                    )
                await self._allocator.allocate(pod, container, kind, index, again=False, new=new)
            self._owed.discard(pod.uid)
            await self._save()
        except OSError:
            await self._undo(pod, new=new)
            raise
        except NotAllocated as error:
            failed = {error.container: {error.resource: str(error)}}
            back = await self._undo(pod, new=new)
            message = f"Allocate failed due to {error}, which is unexpected"
            silent = error.unanswered
            return Admission(False, UNEXPECTED_ERROR, message, decided, offered, failed, back, unanswered=silent)
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
        lacking = self._allocator.lacking
        self._allocator.lacking = {key: lacks for key, lacks in lacking.items() if key[0] != pod.uid}
        removed = await self._remove(pod.uid)
        if not removed:
            self._owed.add(pod.uid)
        try:
            await self._save()
        except OSError as error:
            log.error("cannot write the checkpoint: %s", error_text(error))
        return ReleaseResult.ALL if removed else ReleaseResult.LATER

    # --- pods that ended ---------------------------------------------------------------------------------------------

    async def _remove_ended(self, active: Collection[str] | None) -> None:
        """Release the allocations of pods that no longer run, in every plug-in; retried in the next round if a plug-in
        fails."""
        if active is None:
            return
        now = self._monotonic()
        self._admitted = {uid: at for uid, at in self._admitted.items() if now - at < self._recent}
        for uid in sorted((self.allocations.pods - set(active) - self._admitted.keys()) | self._owed):
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
            if not await self.plugins.remove_pod(name, endpoint, uid):
                return False
        self.allocations.remove(uid)
        self._owed.discard(uid)
        self._hints.forget(uid)
        self._allocator.forget(uid)
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
            await self._allocator.allocate(pod, container, kind, index, again=True)
            await self._save()
            await self._pre_start(self._requests.of(pod, container, kind, index))
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
        to the containers. A CPU leaves one container before another one gets it. The allocations of all pods
        other than `pods` and `active` (UIDs) are released. Raises OSError if the checkpoint cannot be written."""
        async with self._lock:
            active = {pod.uid for pod in pods} | set(active)
            await self._remove_ended(active)
            message = await self.plugins.reported()
            await self._drop_orphans(message, active)
            lacking = self._allocator.lacking
            self._allocator.lacking = {key: lacks for key, lacks in lacking.items() if key[0] in active and lacks}
            running = self._allocator.running(pods)
            failed, changed = await self._allocator.renew_all(running, message, resize=True)
            if changed:  # pools have lost or gained CPUs
                later, _ = await self._allocator.renew_all(running, await self.plugins.reported(), resize=False)
                failed |= later
            await self._save()
            return await self.applier.apply([(pod, container) for pod, container, _, _ in running], apply, failed)

    async def _drop_orphans(self, reported: Mapping[str, Mapping[str, object]], active: Collection[str]) -> None:
        """Remove pods that only a plug-in still has, because it was not running when the pod ended."""
        for name, pods in reported.items():
            endpoint = self.plugins.endpoint(name)
            for uid in sorted(pods.keys() - set(active) - self._admitted.keys() - self.allocations.pods):
                if endpoint is None or not await self.plugins.remove_pod(name, endpoint, uid):
                    break

    def properties(self, pod_uid: str, container: str) -> Properties:
        """The properties that the stored allocations of a container set; empty if they are invalid."""
        try:
            return self.applier.properties(pod_uid, container)
        except BadProperty:
            return {}

    async def apply_rest(self, apply: Apply, refused: Collection[str]) -> Failures:
        """Apply what the containers of the last round had to wait for, or what has changed. `refused` are the ids of
        containers whose updates failed. Returns errors by container."""
        async with self._lock:
            return await self.applier.apply_rest(apply, refused)

    # --- queries -----------------------------------------------------------------------------------------------------

    @property
    def admitted_pods(self) -> frozenset[str]:
        """The UIDs of the pods that have allocations, without a pod whose admission is under way, and rejected pods
        whose release is still due."""
        return self.allocations.pods - self._owed - {self._admitting}

    def missing(self, pod_uid: str, container: str) -> dict[str, str]:
        """The resources of which a container has less than it requests, or nothing, with the reasons."""
        return self._allocator.missing(pod_uid, container)

    async def topology_aware(self, pod: QrmPod, container: str) -> dict[str, Quantity]:
        """The quantities that a container has, by resource, from every plug-in that responds."""
        if pod.is_skipped(self.settings.skip_annotations, first=True):
            return {}
        found: dict[str, Quantity] = {}
        for name, endpoint in self.plugins.live():
            method, call = "GetTopologyAwareResources", endpoint.aware(pod.uid, container)
            answer = await self.plugins.ask(name, method, call, otherwise="its part of the pod resources is missing")
            found |= self.plugins.own(name, answer or {})
        return found
