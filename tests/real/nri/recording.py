"""Record what the runtime side of containerd/nri sends, for tests without Go.

    python -m tests.real.nri.recording            writes tests/agent/qrm/runtime/nri/recorded/*.json.gz

The plug-in of the recording sets fixed CPUs; only the bytes of the runtime are stored.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import struct
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from agent.qrm.runtime.nri.protos import qrm_nri_v1alpha1_pb2 as pb
from agent.qrm.runtime.nri.ttrpc import FrameDecoder, Method, NriSession
from tests.fakes.nri import RECORDED
from tests.real.nri.runtime import NriRuntime
from tests.waiting import eventually

UID = "bc9e28df-1b5c-4099-8866-6110277184e0"
"""The pod of example 2 of the proposal."""
CONTAINER = "0" * 64
LONG = {"example.org/long": "0123456789abcdef" * 5000}
"""Makes 64 containers too large for one message of 4 MiB."""


class Recorder:
    """Passes the bytes of one connection on, and keeps those of the runtime, one item per message."""

    def __init__(self, to: Path) -> None:
        self.steps: list[bytes] = []
        self._to = to
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(str(self._to))
        self._tasks |= {asyncio.create_task(each) for each in (self._pass(reader, back), self._record(there, writer))}

    @staticmethod
    async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while received := await reader.read(1 << 16):
            writer.write(received)
            await writer.drain()
        writer.close()

    async def _record(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder, step = FrameDecoder(), b""
        try:
            while True:
                header = await reader.readexactly(8)
                frame = header + await reader.readexactly(struct.unpack(">II", header)[1])
                writer.write(frame)
                step += frame
                if list(decoder.feed(frame)):
                    self.steps.append(step)
                    step = b""
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


def methods(cpus: str = "2-21") -> Mapping[str, Method]:
    """A plug-in that subscribes to all events and sets the CPUs of each new container."""

    async def configure(_: bytes) -> bytes:
        return pb.ConfigureResponse(events=0).SerializeToString()

    async def synchronize(payload: bytes) -> bytes:
        return pb.SynchronizeResponse(more=pb.SynchronizeRequest.FromString(payload).more).SerializeToString()

    async def create(_: bytes) -> bytes:
        answer = pb.CreateContainerResponse()
        answer.adjust.linux.resources.cpu.cpus = cpus
        return answer.SerializeToString()

    async def nothing(_: bytes) -> bytes:
        return b""

    others = {each.name: nothing for each in pb.DESCRIPTOR.services_by_name["Plugin"].methods}
    return {**others, "Configure": configure, "Synchronize": synchronize, "CreateContainer": create}


Scenario = Callable[[NriRuntime, NriSession], Awaitable[None]]


async def life(runtime: NriRuntime, session: NriSession) -> None:
    """A pod from its sandbox to its end, with an update by each side."""

    def first() -> None:
        runtime.run_pod(
            "default/pod1", UID, labels={"app": "x"}, annotations={"kubernetes.io/pod-role": "storage-service"}
        )
        runtime.create(UID, CONTAINER)
        runtime.update(CONTAINER, {"cpu": {"shares": 512}})

    await asyncio.to_thread(first)
    update = pb.ContainerUpdate(container_id=CONTAINER)
    update.linux.resources.cpu.cpus = "2-3"
    assert await session.update([update, pb.ContainerUpdate(container_id="unknown")])

    def last() -> None:
        runtime.end(CONTAINER)
        runtime.end_pod(UID)

    await asyncio.to_thread(last)


async def chunks(runtime: NriRuntime, session: NriSession) -> None:
    """Nothing after the connection: the runtime has too many containers for one message."""


SCENARIOS: Mapping[str, Scenario] = {"life": life, "chunks": chunks}


def prepare(runtime: NriRuntime, name: str) -> None:
    """Run what runs before the plug-in connects. The library sends messages without end if there are containers for
    several messages, but only one pod."""
    for number in range(64 if name == "chunks" else 1):
        uid = f"{number:08x}-0000-4000-8000-000000000000"
        runtime.run_pod(f"default/before{number}", uid)
        runtime.create(uid, f"{number:064x}"[::-1], labels=LONG if name == "chunks" else {})


async def record(name: str) -> list[bytes]:
    """Run a scenario; return the runtime's messages."""
    with tempfile.TemporaryDirectory(prefix="nri-") as directory, NriRuntime(Path(directory, "nri.sock")) as runtime:
        await asyncio.to_thread(prepare, runtime, name)
        recorder = Recorder(runtime.socket)
        between = Path(directory, "between.sock")
        async with await asyncio.start_unix_server(recorder.serve, str(between)):
            session = NriSession(between, methods, name="load-watcher", index="50", failed=lambda *_: None)
            running = asyncio.create_task(session.run())
            await eventually(lambda: runtime.plugins > 0, what="the plug-in")
            await SCENARIOS[name](runtime, session)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        return recorder.steps


def main() -> None:
    """Write all recordings."""
    RECORDED.mkdir(exist_ok=True)
    for name in SCENARIOS:
        steps = [base64.b64encode(step).decode() for step in asyncio.run(record(name))]
        data = gzip.compress(json.dumps(steps).encode(), mtime=0)
        (RECORDED / f"{name}.json.gz").write_bytes(data)
        print(f"{name}: {len(steps)} messages, {len(data)} bytes")


if __name__ == "__main__":
    main()
