"""Asks the plug-ins for topology hints, and merges them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial

from agent.qrm.grpc.plugin_api import PluginCallError
from agent.qrm.manager.admission import Offered, suffices
from agent.qrm.manager.allocation import Allocations
from agent.qrm.manager.plugin_requests import PluginRequests
from agent.qrm.manager.registered_plugins import RegisteredPlugins
from agent.qrm.manager.request import ContainerType, ResourceRequest
from agent.qrm.manager.settings import AllocationSettings
from agent.qrm.manager.topology import Hint, Merged, TopologyPolicy, merge
from agent.qrm.pods import PodContainer, QrmPod


class HintMerger:
    """Merges the hints for containers and pods. `decided` are the merged hints of admitted containers, by pod UID and
    name. `unanswered` are the resources whose plug-ins did not respond since it was cleared."""

    def __init__(
        self,
        settings: AllocationSettings,
        nodes: frozenset[int],
        allocations: Allocations,
        plugins: RegisteredPlugins,
        requests: PluginRequests,
    ) -> None:
        self.decided: dict[tuple[str, str], dict[str, Hint]] = {}
        self.unanswered: set[str] = set()
        self._policy, self._nodes = settings.policy, nodes
        self._allocations = allocations
        self._plugins = plugins
        self._requests = requests

    def forget(self, uid: str) -> None:
        """Remove the hints of a pod."""
        self.decided = {key: hints for key, hints in self.decided.items() if key[0] != uid}

    async def merge(
        self, pod: QrmPod, container: PodContainer, kind: ContainerType, index: int
    ) -> tuple[Merged, Offered]:
        hints: dict[str, tuple[Hint, ...] | None] = {}
        if self._policy is not TopologyPolicy.NONE:
            for request in self._requests.of(pod, container, kind, index):
                hints[request.resource_name] = await self._hints_for(request)
        return await self._merged(hints), hints

    async def merge_pod(self, pod: QrmPod) -> tuple[Merged, Offered]:
        """One merged hint for the whole pod: the plug-ins get requests for the sum of all containers."""
        hints: dict[str, tuple[Hint, ...] | None] = {}
        for own, request in self._requests.summed(pod):
            hints[request.resource_name] = await self._hints_for(request, own=own)
        return await self._merged(hints), hints

    async def _merged(self, hints: Offered) -> Merged:
        decide = partial(merge, self._policy, self._nodes, [hints])
        # On the largest machines this policy can take 100 ms, the other policies at most a few milliseconds.
        return await asyncio.to_thread(decide) if self._policy is TopologyPolicy.NUMERIC else decide()

    async def _hints_for(
        self, request: ResourceRequest, *, own: ResourceRequest | None = None
    ) -> tuple[Hint, ...] | None:
        """Stored hints have priority, so that a pod keeps its NUMA nodes after a restart, whether or not the plug-in is
        back. If `request` is for the whole pod, `own` is the container's part of it, which the stored allocation must
        satisfy."""
        stored = self._allocations.get(request.pod_uid, request.container_name, request.resource_name)
        enough = stored is not None and suffices(stored, own or request)
        if stored is not None and enough and stored.hints and not self._unknown_node_hints(stored.hints):
            return stored.hints
        # A sufficient allocation without NUMA hints, such as one from a pool, is kept while the plug-in is unavailable.
        unasked = None if stored is not None and enough and not stored.hints else ()
        endpoint = self._plugins.endpoint(request.resource_name)
        if endpoint is None:
            self.unanswered.add(request.resource_name)
            return unasked
        if not endpoint.options.aligned:
            return None
        try:
            hints = await endpoint.hints(request)
        except PluginCallError as error:
            if error.unanswered:
                self.unanswered.add(request.resource_name)
            self._plugins.failures.failed(error, f"no hints for {request.pod_namespace}/{request.pod_name}")
            return unasked
        invalid = self._unknown_node_hints(hints or ())
        if invalid:
            why = "it names NUMA nodes that this machine does not have"
            unknown = PluginCallError(request.resource_name, "GetTopologyHints", "NOT_OURS", why)
            self._plugins.failures.failed(unknown, "these hints are ignored")
        else:
            self._plugins.failures.succeeded(request.resource_name, "GetTopologyHints")
        return hints and tuple(hint for hint in hints if hint not in invalid)

    def _unknown_node_hints(self, hints: Iterable[Hint]) -> list[Hint]:
        """The hints that name NUMA nodes which this machine does not have."""
        return [hint for hint in hints if (hint.nodes or frozenset()) - self._nodes]
