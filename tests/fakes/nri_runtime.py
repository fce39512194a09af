"""A container runtime in the event loop of a test, with the NRI protocol on a unix socket: it has pods, containers and
their resources, calls a registered plug-in, and does what the plug-in asks for.

As in containerd, one lock is held during each request to the plug-in and during each update that it asks for; without
a plug-in, or if its connection ends during a request, the request proceeds.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from google.protobuf.message import Message as Protobuf

from agent.qrm.runtime.nri.protos import qrm_nri_v1alpha1_pb2 as pb
from agent.qrm.runtime.nri.ttrpc import (
    PLUGIN_CONNECTION,
    PLUGIN_SERVICE,
    REQUEST,
    RESPONSE,
    RUNTIME_CONNECTION,
    CallFailed,
    CallRequest,
    Code,
    FrameDecoder,
    Message,
    decode_request,
    decode_response,
    encode,
    encode_request,
    encode_response,
)

AnswerT = TypeVar("AnswerT", bound=Protobuf)


class LostPlugin(Exception):
    """The connection ended before the plug-in answered."""


@dataclass
class PluginLink:
    """The connection of one plug-in."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    waiting: dict[int, asyncio.Future[bytes]] = field(default_factory=dict)
    streams: itertools.count[int] = field(default_factory=lambda: itertools.count(1, 2))

    def send(self, message: Message) -> None:
        if not self.writer.is_closing():
            self.writer.write(encode(message))

    async def call(self, method: str, request: Protobuf, kind: type[AnswerT]) -> AnswerT:
        """Raises CallFailed with the error of the plug-in, and LostPlugin."""
        if self.writer.is_closing():
            raise LostPlugin
        stream = next(self.streams)
        self.waiting[stream] = asyncio.get_running_loop().create_future()
        data = encode_request(CallRequest(PLUGIN_SERVICE, method, request.SerializeToString()))
        self.send(Message(PLUGIN_CONNECTION, stream, REQUEST, data))
        return kind.FromString(await self.waiting[stream])

    def close(self) -> None:
        self.writer.transport.abort()
        for each in self.waiting.values():
            if not each.done():
                each.set_exception(LostPlugin())
                each.exception()  # retrieved, whether or not the caller still waits


class MemoryRuntime:
    """Listens for one plug-in at `path`. `timeout` is that of requests to the plug-in, in seconds; a plug-in that does
    not answer in time is dropped."""

    def __init__(self, path: Path, *, timeout: float = 60.0) -> None:
        self.socket = path
        self.updated: list[list[str]] = []
        """The containers of each message with updates, in its order."""
        self._timeout = timeout
        self.pods: dict[str, pb.PodSandbox] = {}
        self.containers: dict[str, pb.Container] = {}
        self.plugin: PluginLink | None = None
        """The plug-in, once it knows all containers."""
        self._links: set[PluginLinkTask] = set()
        self._lock = asyncio.Lock()
        self._listener: socket.socket | None = None

    async def start(self) -> None:
        self.socket.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.socket))
        self._listener.listen()
        asyncio.get_running_loop().add_reader(self._listener, self._accept, self._listener)

    async def stop(self) -> None:
        """End as with SIGKILL; containers keep running."""
        assert self._listener is not None
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        for each in list(self._links):
            each.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)
        self.plugin = None

    async def restart(self, *, lost: Collection[str] = ()) -> None:
        """Stop and start, without the containers `lost`, which ended in between."""
        await self.stop()
        self.containers = {id: each for id, each in self.containers.items() if id not in lost}
        self._lock = asyncio.Lock()
        await self.start()

    def cpus(self, id: str) -> str:
        return self.containers[id].linux.resources.cpu.cpus

    # --- requests to the plug-in -------------------------------------------------------------------------------------

    async def run_pod(self, pod: pb.PodSandbox) -> None:
        """Raises CallFailed."""
        async with self._lock:
            self.pods[pod.id] = pod
            await self._ask("RunPodSandbox", pb.RunPodSandboxRequest(pod=pod), pb.RunPodSandboxResponse)

    async def create(self, pod: pb.PodSandbox, container: pb.Container, *, start: bool = True) -> None:
        """Create and start a container. Raises CallFailed; the container then does not exist."""
        async with self._lock:
            container.state = pb.CONTAINER_CREATED
            request = pb.CreateContainerRequest(pod=pod, container=container)
            try:
                found = await self._ask("CreateContainer", request, pb.CreateContainerResponse)
            except CallFailed:
                await self._gone(pod, container)
                raise
            if found is not None:
                container.linux.resources.MergeFrom(found.adjust.linux.resources)
                container.linux.devices.extend(found.adjust.linux.devices)
                container.env.extend(f"{each.key}={each.value}" for each in found.adjust.env)
                failed = self._apply(found.update)
                # As NRI, which does not accept an update of the container that is being created.
                if failed := failed + [each for each in found.update if each.container_id == container.id]:
                    raise CallFailed(Code.INTERNAL, f"cannot update {failed[0].container_id}")
            self.containers[container.id] = container
            if start:
                await self._start(pod, container)

    async def start_container(self, id: str) -> None:
        """Start a container that was only created."""
        async with self._lock:
            container = self.containers[id]
            await self._start(self.pods[container.pod_sandbox_id], container)

    async def _start(self, pod: pb.PodSandbox, container: pb.Container) -> None:
        container.state = pb.CONTAINER_RUNNING
        after = pb.PostStartContainerRequest(pod=pod, container=container)
        await self._ask("PostStartContainer", after, pb.PostStartContainerResponse)

    async def update(self, id: str) -> None:
        """Update a container as the kubelet does for a resize: with the updates of the plug-in, its own last. Raises
        CallFailed."""
        async with self._lock:
            container = self.containers[id]
            request = pb.UpdateContainerRequest(pod=self.pods[container.pod_sandbox_id], container=container)
            found = await self._ask("UpdateContainer", request, pb.UpdateContainerResponse)
            if found is not None:
                self._apply(sorted(found.update, key=lambda each: each.container_id == id))

    async def end(self, id: str) -> None:
        """Stop and remove a container."""
        async with self._lock:
            container = self.containers[id]
            await self._gone(self.pods[container.pod_sandbox_id], container)
            del self.containers[id]

    async def end_pod(self, id: str) -> None:
        """Stop and remove a pod without containers."""
        async with self._lock:
            pod = self.pods.pop(id)
            await self._ask("StopPodSandbox", pb.StopPodSandboxRequest(pod=pod), pb.StopPodSandboxResponse)
            await self._ask("RemovePodSandbox", pb.RemovePodSandboxRequest(pod=pod), pb.RemovePodSandboxResponse)

    async def _gone(self, pod: pb.PodSandbox, container: pb.Container) -> None:
        container.state = pb.CONTAINER_STOPPED
        stop = pb.StopContainerRequest(pod=pod, container=container)
        await self._ask("StopContainer", stop, pb.StopContainerResponse)
        remove = pb.RemoveContainerRequest(pod=pod, container=container)
        await self._ask("RemoveContainer", remove, pb.RemoveContainerResponse)

    async def _ask(self, method: str, request: Protobuf, kind: type[AnswerT]) -> AnswerT | None:
        if self.plugin is None:
            return None
        try:
            async with asyncio.timeout(self._timeout):
                return await self.plugin.call(method, request, kind)
        except TimeoutError:
            self.plugin.close()
        except LostPlugin:
            pass
        self.plugin = None
        return None

    def _apply(self, updates: Collection[pb.ContainerUpdate]) -> list[pb.ContainerUpdate]:
        """Change resources; return the updates that failed."""
        failed = []
        if updates:
            self.updated.append([each.container_id for each in updates])
        for each in updates:
            if each.container_id in self.containers:
                self.containers[each.container_id].linux.resources.MergeFrom(each.linux.resources)
            elif not each.ignore_failure:
                failed.append(each)
        return failed

    # --- connections -------------------------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        """Not a server of asyncio: `stop` has to know each connection, also one whose task has not begun."""
        accepted, _ = listener.accept()
        task = asyncio.create_task(self._serve(accepted))
        self._links.add(task)
        task.add_done_callback(self._links.discard)
        task.add_done_callback(lambda _: accepted.close())

    async def _serve(self, accepted: socket.socket) -> None:
        link = PluginLink(*await asyncio.open_unix_connection(sock=accepted))
        working: set[PluginLinkTask] = set()
        try:
            decoder = FrameDecoder()
            while received := await link.reader.read(1 << 16):
                for message in decoder.feed(received):
                    if message.connection == RUNTIME_CONNECTION:
                        working.add(asyncio.create_task(self._answer(link, message)))
                    else:
                        waiting = link.waiting.pop(message.stream)
                        with suppress(asyncio.InvalidStateError):
                            _complete(waiting, message.data or b"")
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            link.close()
            for each in working:
                each.cancel()
            await asyncio.gather(*working, return_exceptions=True)
            if self.plugin is link:
                self.plugin = None
            with suppress(ConnectionError):
                await link.writer.wait_closed()

    async def _answer(self, link: PluginLink, message: Message) -> None:
        request = decode_request(message.data or b"")
        answer: Protobuf = pb.Empty()
        if request.method == "UpdateContainers":
            asked = pb.UpdateContainersRequest.FromString(request.payload)
            async with self._lock:
                answer = pb.UpdateContainersResponse(failed=self._apply(asked.update))
        payload = encode_response(answer.SerializeToString())
        link.send(Message(RUNTIME_CONNECTION, message.stream, RESPONSE, payload))
        if request.method == "RegisterPlugin":
            await self._synchronize(link)

    async def _synchronize(self, link: PluginLink) -> None:
        configure = pb.ConfigureRequest(
            runtime_name="memory", runtime_version="1", request_timeout=round(self._timeout * 1000)
        )
        with suppress(LostPlugin):
            await link.call("Configure", configure, pb.ConfigureResponse)
            async with self._lock:
                everything = pb.SynchronizeRequest(pods=self.pods.values(), containers=self.containers.values())
                self._apply((await link.call("Synchronize", everything, pb.SynchronizeResponse)).update)
                self.plugin = link


PluginLinkTask = asyncio.Task[None]


def _complete(waiting: asyncio.Future[bytes], data: bytes) -> None:
    try:
        waiting.set_result(decode_response(data))
    except CallFailed as error:
        waiting.set_exception(error)
