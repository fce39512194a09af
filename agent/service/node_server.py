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
from functools import partial
from pathlib import Path
from typing import Protocol, Self

import msgspec
from aiohttp import hdrs, web

from agent.service.node_settings import NodeTable
from watcher.platform import reloaded_files
from watcher.platform.http.routing import JSON, Route, Router
from watcher.platform.http.runner import Runner, application
from watcher.platform.http.sites import local_hosts
from watcher.platform.net.listening import host_port
from watcher.platform.reloaded_files import FileReloader, ReloadedToken
from watcher.platform.telemetry.instruments import CONTENT_TYPE, Instruments

log = logging.getLogger(__name__)

SHUTDOWN_S = 5.0


class CannotRun(RuntimeError):
    """The process cannot start. The message has the reason and, on the next lines, each after two spaces, a remedy."""

    @classmethod
    def of(cls, error: Exception) -> Self:
        """The message of another error, with its `hint` as the remedy."""
        return cls(f"{error}\n  {getattr(error, 'hint', '')}".rstrip())

    @property
    def reason(self) -> str:
        return str(self).partition("\n")[0]

    @property
    def hint(self) -> str:
        """The remedy; empty if the message has none."""
        return "\n".join(line.strip() for line in str(self).splitlines()[1:])


class TokenProtection:
    """Access protection of the HTTP API by a bearer token, whose file is read again when it changes. Raises
    CannotRun."""

    protect_reads = False
    scheduler_clients = ()

    def __init__(self, path: Path | None) -> None:
        read_token(path)  # raises CannotRun at the start; later, a file that cannot be used is refused
        self._token = ReloadedToken("token_file", path, partial(_optional_token, path))
        self.files = FileReloader(self._token.files)

    @property
    def token(self) -> str | None:
        """The current token, None if none is configured."""
        return self._token.value


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
    try:
        return None if path is None else reloaded_files.read_token(path)
    except OSError as error:
        raise CannotRun(f"the token file {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise CannotRun(f"the token file {path} cannot be used: {error}; write a random secret into it") from None


def _optional_token(path: Path | None) -> str | None:
    return None if path is None else reloaded_files.read_token(path)


async def metrics_response(telemetry: Instruments) -> web.Response:
    """The metrics in the Prometheus exposition format."""
    body = await asyncio.to_thread(telemetry.exposition)
    return web.Response(body=body, headers={hdrs.CONTENT_TYPE: CONTENT_TYPE, hdrs.CACHE_CONTROL: "no-store"})


def json_response(body: object) -> web.Response:
    """A JSON response that must not be cached."""
    headers = {hdrs.CONTENT_TYPE: JSON, hdrs.CACHE_CONTROL: "no-store"}
    return web.Response(body=msgspec.json.encode(body), headers=headers)


@asynccontextmanager
async def listening(
    settings: NodeTable, pages: PageRoutes, telemetry: Instruments, *, renewing: str
) -> AsyncIterator[str]:
    """Serve all routes, and a second listener if configured; without a token, the second one serves only the public
    routes. At SIGHUP, read the token again and log the text `renewing`. Yields the URL of the first listener. Raises
    CannotRun."""
    protection = TokenProtection(settings.token_file)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(protection.files.life())
        address = await _listen(stack, pages.all(), protection, telemetry, host=settings.host, port=settings.port)
        if settings.metrics_host is not None:
            where, port = settings.metrics_host, settings.metrics_port
            routes = pages.public() if protection.token is None else pages.all()
            await _listen(stack, routes, protection, telemetry, host=where, port=port)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _renew, protection.files, renewing)
        yield address


async def _listen(
    stack: AsyncExitStack,
    routes: Iterable[Route],
    protection: TokenProtection,
    telemetry: Instruments,
    *,
    host: str,
    port: int,
) -> str:
    """Serve `routes` until the stack unwinds; returns the URL. Raises CannotRun."""
    router = Router(routes, protection=protection, meter=telemetry, hosts=local_hosts(host))
    runner = Runner(application(router), shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    try:
        await runner.listen(host, port)
    except OSError as error:
        raise CannotRun(f"cannot listen on {host_port(host, port)}: {_listen_error(error)}") from None
    found = runner.addresses[0]
    return f"http://{host_port(found[0], found[1])}"


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


def stop_signal() -> asyncio.Event:
    """Return an event that is set at SIGTERM and SIGINT. SIGHUP is ignored until the process listens."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, log.info, "SIGHUP ignored during the start")
    return stop


def _renew(files: FileReloader, text: str) -> None:
    log.info("SIGHUP: %s", text)
    files.request_check()
