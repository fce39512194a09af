"""The container runtime as `load-watcher qrm restore` uses it in the mode nri: a plug-in that registers, reads the
runtime's lists, and requests updates."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from agent.qrm.manager.admission import ApplyFailed
from agent.qrm.manager.allocation import CPUSETS, FIELDS, Properties
from agent.qrm.nri.calls import CallFailed
from agent.qrm.nri.messages import properties_in, update
from agent.qrm.nri.protos import qrm_nri_v1alpha1_pb2 as pb
from agent.qrm.nri.session import NriSession
from agent.qrm.nri.table import EXISTING
from agent.qrm.runtime.found import FoundContainer
from agent.qrm.settings import QrmSettings

LIST_S = 10.0
"""Seconds to wait for the runtime's lists."""
NO_EVENTS = 1 << (pb.REMOVE_CONTAINER - 1)
"""Subscription to one event, because no events at all mean all events."""


class NriRestorer:
    """Connects on the first use. Updates are requested, and not returned in the answer to Synchronize, because the
    runtime then reports which of them failed."""

    def __init__(self, settings: QrmSettings) -> None:
        self._pods: list[pb.PodSandbox] = []
        self._containers: list[pb.Container] = []
        self._complete = asyncio.Event()
        self._failures: list[str] = []
        self._session = NriSession(
            settings.nri_socket,
            lambda: {"Configure": self._configure, "Synchronize": self._synchronize},
            name=settings.nri_name,
            index=settings.nri_index,
            failed=lambda _kind, message: self._failures.append(message),
        )
        self._running: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Close the connection to the runtime."""
        if self._running is not None:
            self._running.cancel()
            with suppress(asyncio.CancelledError):
                await self._running

    async def containers(self) -> list[FoundContainer]:
        """All containers of the runtime. Raises ApplyFailed."""
        self._running = asyncio.create_task(self._session.run(), name="nri-restore")
        try:
            async with asyncio.timeout(LIST_S):
                await self._complete.wait()
        except TimeoutError:
            raise ApplyFailed(self._failures[-1] if self._failures else f"no lists within {LIST_S:g} s") from None
        pods = {pod.id: pod for pod in self._pods}
        return [
            FoundContainer(
                each.id,
                each.name,
                f"{pods[each.pod_sandbox_id].namespace}/{pods[each.pod_sandbox_id].name}",
                pods[each.pod_sandbox_id].uid,
                properties_in(each.linux.resources, [*FIELDS, *CPUSETS]),
            )
            for each in self._containers
            if each.state in EXISTING and each.pod_sandbox_id in pods
        ]

    async def set(self, container: FoundContainer, properties: Properties) -> None:
        """Set properties on a container. Raises ApplyFailed."""
        try:
            failed = await self._session.update([update(container.id, properties)])
        except CallFailed as error:
            raise ApplyFailed(f"UpdateContainers: {error}") from None
        if failed:
            raise ApplyFailed("the runtime could not update the container; see its log")

    async def _configure(self, _payload: bytes) -> bytes:
        return pb.ConfigureResponse(events=NO_EVENTS).SerializeToString()

    async def _synchronize(self, payload: bytes) -> bytes:
        request = pb.SynchronizeRequest.FromString(payload)
        self._pods += request.pods
        self._containers += request.containers
        if not request.more:
            asyncio.get_running_loop().call_soon(self._complete.set)
        return pb.SynchronizeResponse(more=request.more).SerializeToString()
