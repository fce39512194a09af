"""NRI's protocol over one unix socket: two logical connections, each a stream of ttrpc messages.

A multiplex frame has a header of 8 bytes (connection, payload length) and a payload of at most 4 MiB + 10 bytes. The
payloads of one connection are a stream of ttrpc messages: 10 bytes (data length, stream, type, flags) and at most 4 MiB
of data. All numbers are big-endian. Sources: pkg/net/multiplex of github.com/containerd/nri v0.12.5, and channel.go and
PROTOCOL.md of github.com/containerd/ttrpc v1.2.7.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import struct
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from google.protobuf.message import DecodeError

from agent.qrm.runtime.nri.protos import qrm_nri_v1alpha1_pb2 as pb
from agent.qrm.runtime.nri.protos import qrm_ttrpc_pb2 as ttrpc

log = logging.getLogger(__name__)

# --- frames -----------------------------------------------------------------------------------------------------------

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


# --- requests and responses -------------------------------------------------------------------------------------------

PLUGIN_SERVICE = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE = "nri.pkg.api.v1alpha1.Runtime"
MAX_MESSAGE = 4096
"""Characters of an error message that is sent to the runtime."""


class Code(IntEnum):
    """The status codes of gRPC that are used here."""

    OK = 0
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class CallFailed(RuntimeError):
    """A call ended with a status other than OK. `code` may be a number that Code does not have."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A request: `timeout` is in seconds, 0 if the caller has no timeout."""

    service: str
    method: str
    payload: bytes
    timeout: float = 0.0


def encode_request(request: CallRequest) -> bytes:
    """The data of a ttrpc message of type request."""
    message = ttrpc.Request(
        service=request.service,
        method=request.method,
        payload=request.payload,
        timeout_nano=round(request.timeout * 1e9),
    )
    return message.SerializeToString()


def decode_request(data: bytes) -> CallRequest:
    """Parse the data of a request. Raises CallFailed with INVALID_ARGUMENT."""
    try:
        message = ttrpc.Request.FromString(data)
    except DecodeError:
        raise CallFailed(Code.INVALID_ARGUMENT, "the request is not a ttrpc request") from None
    return CallRequest(message.service, message.method, message.payload, message.timeout_nano / 1e9)


def encode_response(payload: bytes) -> bytes:
    """The data of a ttrpc message of type response."""
    data = ttrpc.Response(status=ttrpc.Status(), payload=payload).SerializeToString()
    if len(data) > MAX_DATA:
        return encode_failure(CallFailed(Code.RESOURCE_EXHAUSTED, f"the response has {len(data)} bytes"))
    return data


def encode_failure(error: CallFailed) -> bytes:
    """The data of a response with an error status."""
    text = str(error)[:MAX_MESSAGE]
    return ttrpc.Response(status=ttrpc.Status(code=error.code, message=text)).SerializeToString()


def decode_response(data: bytes) -> bytes:
    """The payload of a response. Raises CallFailed with the status of the response, or INTERNAL."""
    try:
        message = ttrpc.Response.FromString(data)
    except DecodeError:
        raise CallFailed(Code.INTERNAL, "the response is not a ttrpc response") from None
    if message.status.code:
        raise CallFailed(message.status.code, message.status.message)
    return message.payload


# --- one connection ---------------------------------------------------------------------------------------------------

READ_BYTES = 1 << 16
MAX_REQUESTS = 64
"""Requests of the runtime that are answered at the same time. Runtimes send one at a time."""
WRITE_S = 10.0
"""Seconds after which a runtime that does not read is disconnected."""
Method = Callable[[bytes], Awaitable[bytes]]
"""Answers a request with the bytes of a protobuf message. Raises CallFailed, and DecodeError for invalid bytes."""


class RuntimeConnection:
    """A connection over an open unix socket. `methods` are those of the service Plugin, by name."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, methods: Mapping[str, Method]
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._methods = methods
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._unread = False
        self._streams = itertools.count(1, 2)

    async def run(self) -> None:
        """Read until the runtime closes the connection. Raises BadFrame and OSError. Requests that are still being
        answered then continue, because a half-made allocation would remain; their answers are discarded."""
        decoder = FrameDecoder()
        try:
            while received := await self._reader.read(READ_BYTES):
                for message in decoder.feed(received):
                    await self._receive(message)
            if decoder.incomplete:
                raise BadFrame("the runtime closed the connection within a frame")
        finally:
            self.close()

    @property
    def unanswered(self) -> bool:
        """Whether the runtime closed the connection before it had the answers to all its requests."""
        return self._unread or bool(self._answering)

    def close(self) -> None:
        """Close the socket, and fail the calls that wait for a response."""
        self._writer.close()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(CallFailed(Code.UNAVAILABLE, "the connection to the runtime was closed"))
        self._waiting.clear()

    async def call(self, method: str, payload: bytes, *, timeout: float) -> bytes:
        """Call a method of the service Runtime, and return the bytes of its response. `timeout` is in seconds. Raises
        CallFailed and OSError."""
        if self._writer.is_closing():
            raise CallFailed(Code.UNAVAILABLE, "the connection to the runtime was closed")
        data = encode_request(CallRequest(RUNTIME_SERVICE, method, payload, timeout))
        if len(data) > MAX_DATA:
            raise CallFailed(Code.RESOURCE_EXHAUSTED, f"the request has {len(data)} bytes")
        stream = next(self._streams)
        waiting: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[stream] = waiting
        try:
            async with asyncio.timeout(timeout):
                await self._send(Message(RUNTIME_CONNECTION, stream, REQUEST, data))
                return await waiting
        except TimeoutError:
            raise CallFailed(Code.DEADLINE_EXCEEDED, f"no response to {method} within {timeout:g} s") from None
        finally:
            self._waiting.pop(stream, None)
            if waiting.done() and not waiting.cancelled():
                waiting.exception()  # retrieved, so that asyncio does not log it

    async def _receive(self, message: Message) -> None:
        if message.connection == RUNTIME_CONNECTION:
            self._respond(message)
            return
        error = _objection(message, len(self._answering))
        if error is not None:
            await self._send(Message(PLUGIN_CONNECTION, message.stream, RESPONSE, encode_failure(error)))
            return
        task = asyncio.create_task(self._answer(message.stream, message.data or b""), name="nri-request")
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    def _respond(self, message: Message) -> None:
        """Give a response to the call that waits for it. A response to a call that timed out is ignored."""
        waiting = self._waiting.get(message.stream)
        if waiting is None or waiting.done():
            return
        try:
            if message.data is None:
                raise CallFailed(Code.RESOURCE_EXHAUSTED, f"the response exceeds {MAX_DATA} bytes")
            if message.type != RESPONSE:
                raise CallFailed(Code.INTERNAL, f"the runtime sent a message of type {message.type}, not a response")
            waiting.set_result(decode_response(message.data))
        except CallFailed as error:
            waiting.set_exception(error)

    async def _answer(self, stream: int, data: bytes) -> None:
        answer = await self._called(data)
        try:
            if not self._writer.is_closing():
                await self._send(Message(PLUGIN_CONNECTION, stream, RESPONSE, answer))
        except OSError:
            self._unread = True  # the read loop reports that the connection is closed

    async def _called(self, data: bytes) -> bytes:
        """Call the method that a request names, and return the data of the response."""
        name = "the request"
        try:
            request = decode_request(data)
            name = request.method[:64]
            method = self._methods.get(request.method) if request.service == PLUGIN_SERVICE else None
            if method is None:
                raise CallFailed(Code.UNIMPLEMENTED, f"{request.service[:64]} has no method {name}")
            return encode_response(await method(request.payload))
        except CallFailed as error:
            return encode_failure(error)
        except DecodeError:
            return encode_failure(CallFailed(Code.INVALID_ARGUMENT, f"the message of {name} is invalid"))
        except Exception:
            log.exception("cannot answer %s of the container runtime", name)
            return encode_failure(CallFailed(Code.INTERNAL, f"{name} failed; see the log of load-watcher qrm"))

    async def _send(self, message: Message) -> None:
        """Write a message. Raises OSError; a runtime that does not read is disconnected."""
        self._writer.write(encode(message))  # in one piece, so that messages do not mix
        try:
            async with asyncio.timeout(WRITE_S):
                await self._writer.drain()
        except TimeoutError:
            self._writer.transport.abort()
            raise ConnectionAbortedError(f"the container runtime did not read for {WRITE_S:g} s") from None


def _objection(message: Message, answering: int) -> CallFailed | None:
    """Why a message of the runtime cannot be answered; None for a valid request."""
    if message.type != REQUEST:
        return CallFailed(Code.UNIMPLEMENTED, f"messages of type {message.type} are not supported")
    if message.stream % 2 == 0:
        return CallFailed(Code.INVALID_ARGUMENT, "the stream of a request must be odd")
    if message.data is None:
        return CallFailed(Code.RESOURCE_EXHAUSTED, f"the request exceeds {MAX_DATA} bytes")
    if answering >= MAX_REQUESTS:
        return CallFailed(Code.RESOURCE_EXHAUSTED, f"{answering} requests are being answered")
    return None


# --- the registration of the plug-in ----------------------------------------------------------------------------------

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
