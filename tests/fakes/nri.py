"""A container runtime at the other end of an NRI socket that sends recorded or hostile bytes."""

from __future__ import annotations

import base64
import gzip
import json
import socket
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from agent.qrm.runtime.nri.ttrpc import (
    PLUGIN_CONNECTION,
    REQUEST,
    RESPONSE,
    RUNTIME_CONNECTION,
    FrameDecoder,
    Message,
    decode_request,
)
from tests.waiting import PATIENCE_SECONDS

RECORDED = Path(__file__).parents[1] / "agent" / "qrm" / "runtime" / "nri" / "recorded"


def recorded(name: str) -> list[bytes]:
    """The messages of containerd/nri's runtime side; tests/real/nri/recording.py writes them."""
    steps = json.loads(gzip.decompress((RECORDED / f"{name}.json.gz").read_bytes()))
    return [base64.b64decode(step) for step in steps]


def decoded(data: bytes) -> list[Message]:
    """The messages in these bytes."""
    return list(FrameDecoder().feed(data))


def raw(connection: int, stream: int, kind: int, data: bytes, *, flags: int = 0) -> bytes:
    """One frame with one message, without any check."""
    message = struct.pack(">IIBB", len(data), stream, kind, flags) + data
    return struct.pack(">II", connection, len(message)) + message


class PluginSeen:
    """An accepted connection of a plug-in."""

    def __init__(self, accepted: socket.socket) -> None:
        self.socket = accepted
        self.answers: dict[int, bytes] = {}
        """Responses of the plug-in by stream."""
        self.calls: dict[int, str] = {}
        """Methods that the plug-in called, by stream."""
        self._decoder = FrameDecoder()

    def send(self, data: bytes) -> None:
        """Send bytes. Raises OSError if the plug-in has closed the connection."""
        self.socket.sendall(data)

    def read_until(self, condition: Callable[[], bool], what: str) -> None:
        """Read what the plug-in sends until a condition holds. Raises AssertionError if the plug-in closes first."""
        while not condition():
            received = self.socket.recv(1 << 16)
            assert received, f"the plug-in closed the connection before {what}"
            for message in self._decoder.feed(received):
                self._take(message)

    def _take(self, message: Message) -> None:
        data = message.data or b""
        if message.connection == PLUGIN_CONNECTION:
            assert message.type == RESPONSE
            self.answers[message.stream] = data
        else:
            assert (message.connection, message.type) == (RUNTIME_CONNECTION, REQUEST)
            self.calls[message.stream] = decode_request(data).method

    def is_closed(self) -> bool:
        """Read to the end: whether the plug-in closes the connection."""
        try:
            while received := self.socket.recv(1 << 16):
                for message in self._decoder.feed(received):
                    self._take(message)
        except TimeoutError:
            return False
        except ConnectionError:
            pass
        return True

    def replay(self, steps: Sequence[bytes]) -> None:
        """Send recorded messages, each after the message that it depends on: a response after the request, a request
        after the responses to all earlier requests."""
        for step in steps:
            (message,) = decoded(step)
            stream = message.stream
            if message.connection == RUNTIME_CONNECTION:
                self.read_until(lambda stream=stream: stream in self.calls, f"call {stream}")  # type: ignore[misc]
                self.send(step)
            else:
                self.send(step)
                self.read_until(lambda stream=stream: stream in self.answers, f"answer {stream}")  # type: ignore[misc]


class RuntimeSocket:
    """Listens for plug-ins at a path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._accepted: list[socket.socket] = []

    def __enter__(self) -> Self:
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._listener.settimeout(PATIENCE_SECONDS)
        return self

    def accept(self) -> PluginSeen:
        """The next connection."""
        accepted, _ = self._listener.accept()
        accepted.settimeout(PATIENCE_SECONDS)
        self._accepted.append(accepted)
        return PluginSeen(accepted)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in (*self._accepted, self._listener):
            each.close()
        self.path.unlink(missing_ok=True)
