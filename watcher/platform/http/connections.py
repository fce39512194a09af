"""Connections of the HTTP server: limits of time, number and memory, JSON errors, and headers of every response.

aiohttp limits the size of a line, but not how long a client may take, how many connections there are, or how many bytes
of incomplete requests are in memory. One timer per server, not one per request, enforces these limits here. A
connection that waits for its client is closed when its time is over, or earlier if others need its place: those that
have waited longest first, so that a probe is answered while thousands of idle connections are open.

A request that aiohttp's parser rejects never reaches a handler: the protocol answers it in plain text and logs a
traceback. `Connection.handle_error` answers in JSON, closes the connection, and logs one line at debug level, because
any client can send garbage at any rate.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from aiohttp import hdrs, web
from aiohttp.http import HttpVersion10, RawRequestMessage
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler, RequestPayloadError
from multidict import CIMultiDict

from watcher.platform.http.parameters import truncated
from watcher.platform.http.request_memory import RequestMemory
from watcher.platform.http.routing import ApiError
from watcher.platform.memory import BUDGET, MemoryBudget

log = logging.getLogger(__name__)

HANDLER_ARGS: Mapping[str, Any] = {
    "max_line_size": 65536,
    "max_field_size": 65536,
    "access_log": None,
    "auto_decompress": False,
}
"""Arguments of each connection: a long request line for many ?host= parameters, no access log, and no decompression of
request bodies (17 kB of gzip can be 17 MB)."""

SECURITY_HEADERS = CIMultiDict(
    {
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
    }
)
POLICY_HEADER = "Content-Security-Policy"
NO_CONTENT_POLICY = "default-src 'none'; frame-ancestors 'none'"
SERVER = "load-watcher"  # without a version; aiohttp otherwise sends its own and Python's

MAX_CONNECTIONS = 4096  # some 20 kB each; agents of 5,000 nodes reconnect when their idle connection is closed
KEPT_DESCRIPTORS = 512  # for the database, outbound connections, and sockets that are accepted but not counted yet
MAX_HEAD = 512 << 10  # bytes; one read of a socket returns up to 256 KiB
MAX_BACKLOG = 128
LINGER_S = 10.0  # for this time, the rest of a body is read and dropped, so that the client sees the response
LOG_EVERY_S = 60.0
SLOW_READER_S = 2.0  # after this and the time for its bytes, a response may be given up for other requests
SLOW_READER_BYTES_PER_S = 4 << 20  # less than a client on a busy machine reads
FREED_AT_ONCE = 32  # connections closed when the descriptors run out


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of a server. A client has `header_s` seconds for the head of a request, `body_s` for the body, and
    `send_s` to read the response; a connection without a request is closed after `idle_s`, which is longer than the
    90 s of Go's clients, so that these close first. `buffered` limits the bytes of incomplete requests and of unread
    bodies, `bodies` those of the bodies and large responses in memory, as far as `budget` has room."""

    connections: int = MAX_CONNECTIONS
    header_s: float = 10.0
    body_s: float = 30.0
    idle_s: float = 120.0
    send_s: float = 60.0
    check_s: float = 1.0
    buffered: int = 32 << 20
    bodies: int = 52 << 20
    budget: MemoryBudget = BUDGET

    @property
    def backlog(self) -> int:
        """The number of connections that the kernel holds, and that asyncio accepts at once."""
        return max(8, min(MAX_BACKLOG, self.connections // 8))


def limits_of_process() -> ConnectionLimits:
    """The default limits, with as many connections as the descriptors of the process (`ulimit -n`) allow."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ConnectionLimits(connections=connections_for(descriptors))


def connections_for(descriptors: int) -> int:
    """The number of connections with this limit of descriptors; -1 (RLIM_INFINITY) is unlimited."""
    if descriptors < 0:
        return MAX_CONNECTIONS
    return max(1, min(MAX_CONNECTIONS, descriptors - min(KEPT_DESCRIPTORS, descriptors // 2)))


class Connection(RequestHandler):
    """One connection of the server, counted by its `pool`."""

    __slots__ = ("_head_since", "_lingering", "_payload", "_sending_since", "buffered", "charged", "idle_since", "pool")

    def __init__(self, pool: ConnectionPool, manager: web.Server) -> None:
        super().__init__(manager, loop=pool.loop, lingering_time=min(LINGER_S, pool.limits.body_s), **HANDLER_ARGS)
        self.pool = pool
        self.buffered = 0
        """Bytes that were received for the current request and not taken by its handler."""
        self.idle_since = self._head_since = pool.loop.time()  # the first request has to come soon
        self._payload: StreamReader | None = None  # the body of the request that is being handled
        self._lingering = False  # the response is sent, and the rest of the body is read and dropped
        self._sending_since = 0.0
        self.charged = 0
        """Bytes of the body, or of a large response, that count in `RequestMemory` until the response is sent."""

    # --- life of a request -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.pool.opened(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self.pool.closed(self)
        self._end_request()

    def data_received(self, data: bytes) -> None:
        if data and not self._lingering:
            if self._payload is None:
                self._head_since = self._head_since or self.pool.loop.time()
                if self.buffered + len(data) > MAX_HEAD:
                    log.debug("connection closed: the head of a request is longer than %d bytes", MAX_HEAD)
                    self.pool.abort(self)
                    return
            self.buffered += len(data)
            self.pool.count_bytes(len(data))
        super().data_received(data)

    def begin_request(self, payload: StreamReader) -> None:
        """Called when the head of a request is complete."""
        self._payload = payload
        self._head_since = 0.0

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send the response with the headers that every response has."""
        if isinstance(resp, web.StreamResponse):
            resp.headers.extend(SECURITY_HEADERS)
            resp.headers.setdefault(POLICY_HEADER, NO_CONTENT_POLICY)
            resp.headers[hdrs.SERVER] = SERVER
        self._sending_since = self.pool.loop.time()
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            if not request.content.is_eof():
                self._lingering = True
                request.content.on_eof(self._body_complete)
            self._end_request()
            self.pool.touched(self)

    def _body_complete(self) -> None:
        self._lingering = False
        self.idle_since = self.pool.loop.time()

    def _end_request(self) -> None:
        self.take(self.buffered)
        self._payload = None
        self.idle_since, self._head_since, self._sending_since = self.pool.loop.time(), 0.0, 0.0
        if self.charged:
            self.uncharge()

    def charge(self, size: int) -> None:
        """Count bytes in `RequestMemory` until the response is sent or the connection is lost."""
        self.charged += size
        self.pool.memory.take(size)

    def uncharge(self) -> None:
        """Stop counting bytes that are not needed any longer."""
        size, self.charged = self.charged, 0
        self.pool.memory.release(size)

    def take(self, size: int) -> None:
        """Count bytes of the body as taken by the handler."""
        size = min(size, self.buffered)
        self.buffered -= size
        self.pool.count_bytes(-size)

    # --- limits ------------------------------------------------------------------------------------------------------

    @property
    def waits_for_client(self) -> bool:
        """Whether the next step is the client's: to send a request or its body, or to read the response."""
        return self._payload is None or not self._payload.is_eof() or self.writing_paused

    def sending_for(self, now: float) -> float:
        """For how long the client has not read the whole response, in seconds; 0 if it has."""
        return now - self._sending_since if self._sending_since and self.writing_paused else 0.0

    def reads_slowly(self, now: float) -> bool:
        """Whether the client could have read the response by now."""
        return self.sending_for(now) > SLOW_READER_S + self.charged / SLOW_READER_BYTES_PER_S

    def overdue(self, now: float, limits: ConnectionLimits) -> str:
        """What the client failed to do in time, "" if it is in time. The body has its own limit in bodies.py, the rest
        of a body that no handler reads one of aiohttp."""
        if self._payload is not None:
            return "the response was not read" if self.sending_for(now) > limits.send_s else ""
        if self._lingering:
            return ""
        if self._head_since:
            return "the head of a request was not sent" if now - self._head_since > limits.header_s else ""
        return "no request was sent" if now - self.idle_since > limits.idle_s else ""

    # --- errors ------------------------------------------------------------------------------------------------------

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Return a JSON error for a failure outside of the handlers."""
        if isinstance(exc, ConnectionError):
            raise exc  # the client is gone; aiohttp closes the connection
        if status >= 500:
            log.error("request from %s failed", request.remote, exc_info=exc)
            error = ApiError(status, "internal", "internal error in load-watcher", "see the log of load-watcher")
        else:
            log.debug("malformed HTTP request from %s: %s", request.remote, message)
            error = ApiError(status, "bad_request", "malformed HTTP request", _hint(exc, message))
        if request.writer.output_size > 0:
            raise ConnectionError("the response has already begun; cannot send an error")
        response = error.response()
        response.headers[hdrs.CONNECTION] = "close"
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log an exception outside of the handlers; a malformed rest of a body is the client's fault."""
        if isinstance(kw.get("exc_info"), (RequestPayloadError, HttpProcessingError, ConnectionError)):
            log.debug("connection closed: %s", kw["exc_info"])
        else:
            super().log_exception(*args, **kw)


def _hint(exc: BaseException | None, message: str | None) -> str:
    if isinstance(exc, LineTooLong):
        return f"a line of the request is longer than {HANDLER_ARGS['max_line_size']} bytes"
    return truncated((message or "").strip().partition("\n")[0].rstrip(":"))


class ConnectionPool:
    """All connections of a server, and the memory of their requests."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.loop = asyncio.get_running_loop()
        self._accepting: dict[Connection, asyncio.Task[Any] | None] = {}  # in the TLS handshake; with asyncio's task
        self._open: dict[Connection, None] = {}  # the longest without a finished request first
        self.memory = RequestMemory(limits.bodies, self.loop, make_room=self._close_slow_reader, budget=limits.budget)
        self._buffered = 0
        self._closed_for_others = _RareLog()
        self._without_descriptors = _RareLog()
        self._timer = self.loop.call_later(limits.check_s, self._check)

    def close(self) -> None:
        self._timer.cancel()
        self.memory.close()

    def accept(self, manager: web.Server) -> Connection:
        """Create the protocol of an accepted socket."""
        connection = Connection(self, manager)
        self._accepting[connection] = asyncio.current_task()
        self._make_room(self.limits.connections)
        return connection

    def opened(self, connection: Connection) -> None:
        self._accepting.pop(connection, None)
        self._open[connection] = None

    def closed(self, connection: Connection) -> None:
        self._accepting.pop(connection, None)
        self._open.pop(connection, None)

    def touched(self, connection: Connection) -> None:
        """Move a connection to the end of the order, after a finished request."""
        if connection in self._open:
            del self._open[connection]
            self._open[connection] = None

    def count_bytes(self, size: int) -> None:
        """Add to the bytes of incomplete requests; above the limit, close the connection that has the most."""
        self._buffered += size
        if self._buffered > self.limits.buffered:
            most = max(self._open, key=lambda each: each.buffered, default=None)
            if most is not None:
                log.debug("connection closed: %d bytes of incomplete requests in memory", self._buffered)
                self.abort(most)
                most.take(most.buffered)

    def abort(self, connection: Connection) -> None:
        """Close a connection at once."""
        task = self._accepting.get(connection)
        self.closed(connection)
        if connection.transport is not None:
            connection.transport.abort()
        elif task is not None:
            task.cancel()  # ends the TLS handshake and closes the socket

    def out_of_descriptors(self, error: OSError) -> None:
        """Close the connections that have waited longest, and report once per minute that descriptors are missing."""
        if (count := self._without_descriptors.add(self.loop.time())) is not None:
            log.error(
                "no connection can be accepted: %s (%d times since the last message); %d connections are open; raise "
                "the limit of open files (ulimit -n)",
                error.strerror,
                count,
                len(self._open),
            )
        self._make_room(max(0, len(self._open) + len(self._accepting) - FREED_AT_ONCE))

    def _close_slow_reader(self) -> bool:
        """Close the connection whose client takes longest to read a large response; return False if there is none."""
        now = self.loop.time()
        slow = [each for each in self._open if each.charged and each.reads_slowly(now)]
        if not slow:
            return False
        slowest = max(slow, key=lambda each: each.sending_for(now))
        log.debug("connection closed: the memory of its response is needed")
        self.abort(slowest)
        slowest.uncharge()
        return True

    def _make_room(self, most: int) -> None:
        """Close those connections that have waited longest for their clients until there are at most `most`."""
        if len(self._open) + len(self._accepting) <= most:
            return
        while len(self._open) + len(self._accepting) > most and (each := self._waiting_longest()) is not None:
            self.abort(each)
        if (count := self._closed_for_others.add(self.loop.time())) is not None:
            log.warning(
                "more than %d connections: those that wait longest for their clients are closed (%d times since the "
                "last message)",
                self.limits.connections,
                count,
            )

    def _waiting_longest(self) -> Connection | None:
        first = (next(iter(self._accepting), None), next((each for each in self._open if each.waits_for_client), None))
        return min((each for each in first if each is not None), key=lambda each: each.idle_since, default=None)

    def _check(self) -> None:
        now = self.loop.time()
        for connection in (*self._open, *self._accepting):
            if reason := connection.overdue(now, self.limits):
                log.debug("connection closed: %s in time", reason)
                self.abort(connection)
        self._timer = self.loop.call_later(self.limits.check_s, self._check)


class _RareLog:
    """Counts events, to report them once per LOG_EVERY_S."""

    def __init__(self) -> None:
        self._count = 0
        self._next = 0.0

    def add(self, now: float) -> int | None:
        """Count an event; return the events since the last report if one is due, otherwise None."""
        self._count += 1
        if now < self._next:
            return None
        count, self._count, self._next = self._count, 0, now + LOG_EVERY_S
        return count


def is_out_of_descriptors(error: object) -> TypeGuard[OSError]:
    """Whether an error means that a limit of the system prevents new sockets."""
    codes = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
    return isinstance(error, OSError) and error.errno in codes


def as_http_1(message: RawRequestMessage) -> RawRequestMessage:
    """The message with at least HTTP/1.0, in which the response is written. The parser accepts a start line without a
    version as HTTP/0.9."""
    return message if message.version >= HttpVersion10 else message._replace(version=HttpVersion10, should_close=True)
