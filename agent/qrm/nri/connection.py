"""One connection to the container runtime: reads and writes frames, answers the runtime's requests, and sends the
plug-in's requests."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping

from google.protobuf.message import DecodeError

from agent.qrm.nri.calls import (
    PLUGIN_SERVICE,
    RUNTIME_SERVICE,
    CallFailed,
    CallRequest,
    Code,
    decode_request,
    decode_response,
    encode_failure,
    encode_request,
    encode_response,
)
from agent.qrm.nri.frames import (
    MAX_DATA,
    PLUGIN_CONNECTION,
    REQUEST,
    RESPONSE,
    RUNTIME_CONNECTION,
    BadFrame,
    FrameDecoder,
    Message,
    encode,
)

log = logging.getLogger(__name__)

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
