"""Frames of NRI connections: logical connections multiplexed over one unix socket, each a stream of ttrpc messages.

A multiplex frame has a header of 8 bytes (connection, payload length) and a payload of at most 4 MiB + 10 bytes. The
payloads of one connection are a stream of ttrpc messages: 10 bytes (data length, stream, type, flags) and at most 4 MiB
of data. All numbers are big-endian. Sources: pkg/net/multiplex of github.com/containerd/nri v0.12.5, and channel.go and
PROTOCOL.md of github.com/containerd/ttrpc v1.2.7.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

PLUGIN_CONNECTION = 1
"""Requests of the runtime, and the plug-in's responses."""
RUNTIME_CONNECTION = 2
"""Requests of the plug-in, and the runtime's responses."""
CONNECTIONS = frozenset({PLUGIN_CONNECTION, RUNTIME_CONNECTION})
REQUEST, RESPONSE, DATA = 1, 2, 3
MAX_DATA = 4 << 20
"""Bytes of data in a ttrpc message."""
MAX_LENGTH = (1 << 24) - 1
"""Largest length that can be a ttrpc message at all: the first byte of a message is zero."""
FIRST_PAYLOAD = 4096
"""Size of the first multiplex frame of a message. The Go side reads message headers into a buffer of this size and
fails with ENOMEM if a frame is larger; it reads the rest of a message into a buffer of the message's size."""
_FRAME = struct.Struct(">II")
_MESSAGE = struct.Struct(">IIBB")
MAX_PAYLOAD = MAX_DATA + _MESSAGE.size


class BadFrame(ValueError):
    """The bytes are not frames of NRI. The stream cannot be read further, because it has no marks to find the next
    frame."""


@dataclass(frozen=True, slots=True)
class Message:
    """One ttrpc message. `data` is None if the message was longer than MAX_DATA; its data was skipped."""

    connection: int
    stream: int
    type: int
    data: bytes | None
    flags: int = 0


def encode(message: Message) -> bytes:
    """The message as one or two multiplex frames. Raises BadFrame if its data exceeds MAX_DATA."""
    data = message.data or b""
    if len(data) > MAX_DATA:
        raise BadFrame(f"a message of {len(data)} bytes exceeds the maximum of {MAX_DATA} bytes")
    whole = _MESSAGE.pack(len(data), message.stream, message.type, message.flags) + data
    first, rest = whole[:FIRST_PAYLOAD], whole[FIRST_PAYLOAD:]
    frames = _FRAME.pack(message.connection, len(first)) + first
    return frames + _FRAME.pack(message.connection, len(rest)) + rest if rest else frames


class FrameDecoder:
    """Decodes the bytes of one unix socket, in pieces of any size. Holds at most one incomplete message for each
    connection; payloads of other connections are skipped."""

    def __init__(self) -> None:
        self._header = bytearray()
        self._connection = 0
        self._left = 0  # bytes of the current payload that are still to come
        self._streams = {connection: _MessageDecoder(connection) for connection in sorted(CONNECTIONS)}

    def feed(self, received: bytes) -> Iterator[Message]:
        """The messages that are complete with these bytes. Raises BadFrame."""
        view = memoryview(received)
        while view:
            if not self._left:
                view = self._read_header(view)
                continue
            piece, view = view[: self._left], view[self._left :]
            self._left -= len(piece)
            if self._connection in CONNECTIONS:
                yield from self._streams[self._connection].feed(piece)

    def _read_header(self, view: memoryview) -> memoryview:
        missing = _FRAME.size - len(self._header)
        self._header += view[:missing]
        if len(self._header) == _FRAME.size:
            self._connection, self._left = _FRAME.unpack(self._header)
            self._header.clear()
            if self._left > MAX_PAYLOAD:
                raise BadFrame(f"a frame of {self._left} bytes exceeds the maximum of {MAX_PAYLOAD} bytes")
        return view[missing:]

    @property
    def incomplete(self) -> bool:
        """Whether the bytes so far end within a frame or a message."""
        return bool(self._header or self._left or any(each.incomplete for each in self._streams.values()))


class _MessageDecoder:
    """Decodes the ttrpc messages of one connection."""

    def __init__(self, connection: int) -> None:
        self._connection = connection
        self._header = bytearray()
        self._data = bytearray()
        self._left = 0  # bytes of data that are still to come
        self._head: tuple[int, int, int, int] | None = None

    @property
    def incomplete(self) -> bool:
        return bool(self._header) or self._head is not None

    def feed(self, view: memoryview) -> Iterator[Message]:
        while view:
            if self._head is None:
                missing = _MESSAGE.size - len(self._header)
                self._header += view[:missing]
                view = view[missing:]
                if len(self._header) < _MESSAGE.size:
                    return
                self._head = _MESSAGE.unpack(self._header)
                self._header.clear()
                self._left = self._head[0]
                if self._left > MAX_LENGTH:
                    raise BadFrame(f"the length {self._left} is not that of a ttrpc message")
            piece, view = view[: self._left], view[self._left :]
            self._left -= len(piece)
            if self._head[0] <= MAX_DATA:
                self._data += piece
            if not self._left:
                yield self._complete(*self._head)

    def _complete(self, length: int, stream: int, kind: int, flags: int) -> Message:
        data = bytes(self._data) if length <= MAX_DATA else None
        self._head, self._data = None, bytearray()
        return Message(self._connection, stream, kind, data, flags)
