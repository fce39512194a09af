"""The container runtime as `load-watcher qrm restore` uses it in the mode nri: a plug-in that registers, reads the
runtime's lists, and requests updates."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from agent.qrm.manager.admission import ApplyFailed
from agent.qrm.manager.allocation import Properties
from agent.qrm.runtime.found import FoundContainer
from agent.qrm.runtime.nri.messages import properties_in, update
from agent.qrm.runtime.nri.protos import qrm_nri_v1alpha1_pb2 as pb
from agent.qrm.runtime.nri.table import EXISTING, SynchronizedParts
from agent.qrm.runtime.nri.ttrpc import CallFailed, NriSession
from agent.qrm.settings import QrmSettings

LIST_S = 10.0
"""Seconds to wait for the runtime's lists."""
ONE_EVENT = 1 << (pb.REMOVE_CONTAINER - 1)
"""Subscription to one event, because no events mean all events."""


class NriRestorer:
    """Connects on the first use. Updates are requested, and not returned in the answer to Synchronize, because the
    runtime then reports which of them failed."""

    def __init__(self, settings: QrmSettings) -> None:
        self._parts = SynchronizedParts()
        self._refusal: CallFailed | None = None
        self._complete = asyncio.Event()  # the lists, or their refusal
        self._containers: dict[str, pb.Container] = {}
        self._session = NriSession(
            settings.nri_socket,
            lambda: {
                "Configure": self._configure,
                "Synchronize": self._synchronize,
                "RemoveContainer": _ignore,
                "StateChange": _ignore,  # runtimes with an NRI before 0.12 send RemoveContainer in this form
                "Shutdown": _ignore,
            },
            name=settings.nri_name,
            index=settings.nri_index,
            failed=lambda _kind, _message: None,
        )
        self._connection: asyncio.Task[tuple[str, str]] | None = None

    async def close(self) -> None:
        """Close the connection to the runtime."""
        if self._connection is not None:
            self._connection.cancel()
            await asyncio.gather(self._connection, return_exceptions=True)

    async def containers(self) -> list[FoundContainer]:
        """The containers of all pods that are created or started. Raises ApplyFailed."""
        self._connection = asyncio.create_task(self._session.once(), name="nri-restore")
        listed = asyncio.create_task(self._complete.wait(), name="nri-lists")
        await asyncio.wait({self._connection, listed}, timeout=LIST_S, return_when=asyncio.FIRST_COMPLETED)
        listed.cancel()
        if not self._complete.is_set():
            lost = self._connection.done()
            raise ApplyFailed(self._connection.result()[1] if lost else f"no lists within {LIST_S:g} s")
        if self._refusal is not None:
            raise ApplyFailed(f"{self._session.socket}: Synchronize: {self._refusal}")
        pods = {each.id: each for each in self._parts.pods}
        self._containers = {each.id: each for each in self._parts.containers}
        return [
            FoundContainer(each.id, each.name, f"{pod.namespace}/{pod.name}", pod.uid)
            for each in self._containers.values()
            if each.state in EXISTING and (pod := pods.get(each.pod_sandbox_id)) is not None
        ]

    async def properties(self, container: FoundContainer, names: Iterable[str]) -> Properties | None:
        """Those of the properties that a container has."""
        return properties_in(self._containers[container.id].linux.resources, names)

    async def set(self, container: FoundContainer, properties: Properties) -> None:
        """Set properties on a container. Raises ApplyFailed."""
        try:
            failed = await self._session.update([update(container.id, properties)])
        except CallFailed as error:
            raise ApplyFailed(f"UpdateContainers: {error}") from None
        if failed:
            raise ApplyFailed("UpdateContainers: the runtime could not update the container; see its log")

    async def _configure(self, _payload: bytes) -> bytes:
        return pb.ConfigureResponse(events=ONE_EVENT).SerializeToString()

    async def _synchronize(self, payload: bytes) -> bytes:
        request = pb.SynchronizeRequest.FromString(payload)
        try:
            self._parts.add(request)
        except CallFailed as error:
            self._refusal = error
            self._complete.set()
            raise
        if not request.more:
            asyncio.get_running_loop().call_soon(self._complete.set)
        return pb.SynchronizeResponse(more=request.more).SerializeToString()


async def _ignore(_payload: bytes) -> bytes:
    return b""
