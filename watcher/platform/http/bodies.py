"""Reads the bodies of requests into a limited amount of memory.

Every body counts, until its response is sent, towards one limit per server (`ConnectionLimits.bodies`) and, above a
few MiB, towards the memory of the process. When a body does not fit, the request whose body has been arriving longest
is refused with 503 and Retry-After: a client that sends slowly cannot keep others out, and a complete request is never
refused. A body is not larger in memory than on the wire, because content codings are refused (routing.py).
"""

from __future__ import annotations

import asyncio

from aiohttp import hdrs, web
from multidict import CIMultiDict

from watcher.platform.http.connections import Connection
from watcher.platform.http.request_memory import OTHERS
from watcher.platform.http.responses import body_response
from watcher.platform.http.routing import ApiError

RETRY_AFTER_S = 1
WRONG_RUNNER = "the server does not use watcher.platform.http.runner"


async def read_body(request: web.Request, most: int, *, hint: str) -> bytearray:
    """Return the body. Raises ApiError: 413 with `hint` for more than `most` bytes, 408 if it does not arrive in time,
    503 if there is no memory for it, 400 if it is malformed or incomplete."""
    connection = request.protocol
    assert isinstance(connection, Connection), WRONG_RUNNER
    if (request.content_length or 0) > most:
        raise _too_large(most, hint)
    reading = _Reading(connection)
    try:
        body = await reading.read(request, most)
    except TimeoutError:
        raise reading.late() from None
    except (web.RequestPayloadError, ConnectionError) as error:
        raise ApiError(400, "bad_request", f"the body is incomplete or malformed: {error}") from None
    if body is None:
        raise _too_large(most, hint)
    return body


class _Reading:
    """The reading of one body."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._refused = ""
        self._deadline = asyncio.timeout(connection.pool.limits.body_s)

    async def read(self, request: web.Request, most: int) -> bytearray | None:
        memory = self._connection.pool.memory
        body = bytearray()
        async with self._deadline:
            memory.begin(self._refuse)
            try:
                async for chunk in request.content.iter_any():
                    if len(body) + len(chunk) > most:
                        return None
                    body += chunk
                    self._connection.take(len(chunk))
                    self._connection.charge(len(chunk))
            finally:
                memory.end(self._refuse)
            if self._refused:  # with the last bytes, so that the deadline did not end the loop
                raise TimeoutError
        return body

    def _refuse(self, reason: str) -> None:
        self._refused = reason
        self._connection.uncharge()
        self._deadline.reschedule(0.0)

    def late(self) -> ApiError:
        """The error after the deadline."""
        if self._refused:
            return _busy(self._refused)
        seconds = self._connection.pool.limits.body_s
        end: dict[str, str] = {hdrs.CONNECTION: "close"}
        return ApiError(408, "timeout", f"the body did not arrive within {seconds:g} s", headers=end)


def large_response(request: web.Request, body: bytes, headers: CIMultiDict[str]) -> web.Response:
    """A 200 response that was made for this request. Its bytes count instead of those of the request's body, until the
    client has read them. Raises ApiError (503) if they do not fit."""
    connection = request.protocol
    assert isinstance(connection, Connection), WRONG_RUNNER
    connection.uncharge()
    if not connection.pool.memory.fits(len(body)):
        raise _busy(OTHERS)
    connection.charge(len(body))
    return body_response(body, headers)


def _busy(reason: str) -> ApiError:
    return ApiError(
        503,
        "busy",
        reason,
        "send it again; with nodeCacheCapable: true, the requests of kube-scheduler are small",
        headers={hdrs.RETRY_AFTER: str(RETRY_AFTER_S), hdrs.CONNECTION: "close"},
    )


def _too_large(most: int, hint: str) -> ApiError:
    size = f"{most >> 20} MiB" if most >= 1 << 20 else f"{most >> 10} KiB"
    return ApiError(413, "too_large", f"the body is larger than {size}", hint)
