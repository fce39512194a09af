"""Code shared by the agent and the QoS Resource Manager: tokens, HTTP listeners and responses, signals, and startup
errors."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
from aiohttp import hdrs, web

from watcher.platform.http.routing import JSON, Route, Router
from watcher.platform.http.runner import application, make_runner
from watcher.platform.telemetry.instruments import Instruments

log = logging.getLogger(__name__)

SHUTDOWN_S = 5.0


class CannotRun(RuntimeError):
    """The process cannot start. The message has the reason and, on the next line, a remedy."""


@dataclass(frozen=True, slots=True)
class TokenProtection:
    """Access protection of the HTTP API by a bearer token (None: no token)."""

    token: str | None
    protect_reads: bool = False


class Listening(Protocol):
    """The listen settings of a process. `metrics_host` None means no second listener."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def token_file(self) -> Path | None: ...
    @property
    def metrics_host(self) -> str | None: ...
    @property
    def metrics_port(self) -> int: ...


class PageRoutes(Protocol):
    """The HTTP routes of a process."""

    def public(self) -> list[Route]:
        """Routes that need no token: health check and metrics."""
        ...

    def all(self) -> list[Route]:
        """All routes, including routes with pod data."""
        ...


def read_token(path: Path | None) -> str | None:
    """Read the token from a file; None if `path` is None. Raises CannotRun."""
    if path is None:
        return None
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise CannotRun(f"the token file {path} cannot be read: {why}") from None
    if not token:
        raise CannotRun(f"the token file {path} is empty: write a random secret into it")
    return token


def json_response(body: object) -> web.Response:
    """A JSON response that must not be cached."""
    headers = {hdrs.CONTENT_TYPE: JSON, hdrs.CACHE_CONTROL: "no-store"}
    return web.Response(body=msgspec.json.encode(body), headers=headers)


@asynccontextmanager
async def listening(settings: Listening, pages: PageRoutes, telemetry: Instruments) -> AsyncIterator[str]:
    """Serve all routes, and a second listener if configured; without a token, the second one serves only the public
    routes. Yields the URL of the first listener. Raises CannotRun."""
    token = read_token(settings.token_file)
    async with AsyncExitStack() as stack:
        address = await _listen(stack, pages.all(), token, telemetry, host=settings.host, port=settings.port)
        if settings.metrics_host is not None:
            where, port = settings.metrics_host, settings.metrics_port
            routes = pages.public() if token is None else pages.all()
            await _listen(stack, routes, token, telemetry, host=where, port=port)
        yield address


async def _listen(
    stack: AsyncExitStack, routes: Iterable[Route], token: str | None, telemetry: Instruments, *, host: str, port: int
) -> str:
    """Serve `routes` until the stack unwinds; returns the URL. Raises CannotRun."""
    runner = make_runner(application(Router(routes, protection=TokenProtection(token), meter=telemetry)))
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    try:
        await web.TCPSite(runner, host, port, shutdown_timeout=SHUTDOWN_S).start()
    except OSError as error:
        raise CannotRun(f"cannot listen on {host}:{port}: {_listen_error(error)}") from None
    found = runner.addresses[0]
    name = f"[{found[0]}]" if ":" in found[0] else found[0]
    return f"http://{name}:{found[1]}"


def _listen_error(error: OSError) -> str:
    """Reason and remedy for a failed bind. It does not use asyncio's message, which repeats the address."""
    reason = error.strerror or str(error)
    if error.errno is not None and error.errno in errno.errorcode:
        reason = os.strerror(error.errno)
    if error.errno == errno.EADDRINUSE:
        cure = "stop the program that uses the port (find it with ss -ltnp), or choose another port"
    else:
        cure = "choose an address of this host, and a port that this user may listen on"
    return f"{reason}\n  {cure}"


def run(process: Coroutine[None, None, int], *, name: str) -> int:
    """Run the process until it ends; returns the exit code. Startup errors are printed to standard error."""
    try:
        return asyncio.run(process)
    except (CannotRun, OSError) as error:
        print(f"load-watcher {name}: {error}", file=sys.stderr)
    return 1


def stop_signal(*, renewing: str) -> asyncio.Event:
    """Return an event that is set at SIGTERM and SIGINT; at SIGHUP, the text `renewing` is logged."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, log.info, renewing)
    return stop
