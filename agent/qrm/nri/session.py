"""Keeps the plug-in registered with the container runtime: connects to the socket of NRI, registers, and reconnects
with increasing delays."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from google.protobuf.message import DecodeError

from agent.qrm.nri.calls import CallFailed, Code
from agent.qrm.nri.connection import Method, RuntimeConnection
from agent.qrm.nri.frames import BadFrame
from agent.qrm.nri.protos import qrm_nri_v1alpha1_pb2 as pb

log = logging.getLogger(__name__)

NRI_VERSION = "v0.12.5"
"""Version of the messages, sent to the runtime."""
CONNECT_S = 5.0
REGISTER_S = 5.0
"""Timeout of RegisterPlugin; runtimes wait as long for it."""
UPDATE_S = 5.0
"""Timeout of UpdateContainers. The runtime handles it only between requests to plug-ins."""
FIRST_DELAY_S = 0.5
MAX_DELAY_S = 30.0


class NriSession:
    """The registration of one plug-in. `name` and `index` (two digits) order the plug-ins of a runtime. `methods`
    returns the methods for a new connection; `failed` records each lost or impossible connection."""

    def __init__(
        self,
        socket: Path,
        methods: Callable[[], Mapping[str, Method]],
        *,
        name: str,
        index: str,
        failed: Callable[[str, str], None],
        first_delay: float = FIRST_DELAY_S,
    ) -> None:
        self.socket = socket
        self.trouble = "not connected yet"
        """Why the plug-in is not registered; "" while it is registered."""
        self._methods = methods
        self._register = pb.RegisterPluginRequest(plugin_name=name, plugin_idx=index, NRI_version=NRI_VERSION)
        self._failed = failed
        self._first_delay = first_delay
        self._connection: RuntimeConnection | None = None

    async def run(self) -> None:
        """Connect, and reconnect, until cancelled."""
        delay = self._first_delay
        while True:
            kind, trouble = await self.once()
            works = not self.trouble and kind != "bad-frame"  # invalid data can come after each registration
            delay = self._first_delay if works else min(delay * 2, MAX_DELAY_S)
            self._failed(kind, trouble)
            self.trouble = trouble
            await asyncio.sleep(delay)

    async def once(self) -> tuple[str, str]:
        """One connection, from its start to its end. Returns the kind of failure, and the reason."""
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_unix_connection(str(self.socket))
        except (OSError, TimeoutError) as error:
            why = getattr(error, "strerror", None) or f"no connection within {CONNECT_S:g} s"
            return "unreachable", f"{self.socket}: {why}"
        connection = RuntimeConnection(reader, writer, self._methods())
        reading = asyncio.create_task(connection.run(), name="nri-connection")
        try:
            await connection.call("RegisterPlugin", self._register.SerializeToString(), timeout=REGISTER_S)
            self._connection, self.trouble = connection, ""
            log.info("registered with the container runtime at %s", self.socket)
            await reading
            return _closed(connection, f"{self.socket}: the container runtime closed the connection")
        except BadFrame as error:
            return "bad-frame", f"{self.socket}: the container runtime sent invalid data: {error}"
        except CallFailed as error:
            return await self._refused(reading, error)
        except OSError as error:
            return _closed(connection, f"{self.socket}: {error.strerror or error}")
        finally:
            self._connection = None
            connection.close()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _refused(self, reading: asyncio.Task[None], error: CallFailed) -> tuple[str, str]:
        """The reason why the registration failed: the runtime's, or that of the end of the connection."""
        if error.code == Code.UNAVAILABLE:
            try:
                await reading
            except (BadFrame, OSError) as cause:
                kind = "bad-frame" if isinstance(cause, BadFrame) else "disconnected"
                return kind, f"{self.socket}: {cause}"
        return "refused", f"{self.socket}: RegisterPlugin: {error}"

    async def update(self, updates: Sequence[pb.ContainerUpdate]) -> list[pb.ContainerUpdate]:
        """Request updates of containers. Returns those that failed. Raises CallFailed."""
        connection = self._connection
        if connection is None:
            raise CallFailed(Code.UNAVAILABLE, self.trouble or "not registered")
        request = pb.UpdateContainersRequest(update=updates)
        try:
            payload = await connection.call("UpdateContainers", request.SerializeToString(), timeout=UPDATE_S)
            return list(pb.UpdateContainersResponse.FromString(payload).failed)
        except DecodeError:
            raise CallFailed(Code.INTERNAL, "the response to UpdateContainers is invalid") from None
        except OSError as error:
            raise CallFailed(Code.UNAVAILABLE, error.strerror or str(error)) from None


def _closed(connection: RuntimeConnection, why: str) -> tuple[str, str]:
    """The kind and the reason of the end of a connection."""
    if connection.unanswered:
        return "dropped", f"{why} before it had an answer; it drops a plug-in that answers too slowly"
    return "disconnected", why
