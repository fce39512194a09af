"""What the processes on a node have alike, the agent and the QoS Resource Manager: tokens, listeners, answers, and why
one of them cannot run."""

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
    """The process cannot start; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Protection:
    """What keeps strangers from reading what is known of pods."""

    token: str | None
    protect_reads: bool = False


class Listening(Protocol):
    """Where a process listens: its settings. `metrics_host` None is no second listener."""

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


class Pages(Protocol):
    """What a process answers."""

    def public(self) -> list[Route]:
        """For anyone: probes and Prometheus."""
        ...

    def all(self) -> list[Route]:
        """With what tells of pods."""
        ...


def read_token(path: Path | None) -> str | None:
    """The token in a file; None where none is named. Raises CannotRun."""
    if path is None:
        return None
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise CannotRun(f"the token file {path} cannot be read: {why}") from None
    if not token:
        raise CannotRun(f"the token file {path} is empty: put a line in it that nobody can guess")
    return token


def answer(body: object) -> web.Response:
    """As JSON, not to be kept by anybody."""
    headers = {hdrs.CONTENT_TYPE: JSON, hdrs.CACHE_CONTROL: "no-store"}
    return web.Response(body=msgspec.json.encode(body), headers=headers)


@asynccontextmanager
async def listening(settings: Listening, pages: Pages, telemetry: Instruments) -> AsyncIterator[str]:
    """The pages, and a second listener if there is one, where who has no token gets no more than metrics; yields the
    address of the first. Raises CannotRun."""
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
    """Serve these until the stack unwinds; the address. Raises CannotRun."""
    runner = make_runner(application(Router(routes, protection=Protection(token), meter=telemetry)))
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    try:
        await web.TCPSite(runner, host, port, shutdown_timeout=SHUTDOWN_S).start()
    except OSError as error:
        raise CannotRun(f"cannot listen on {host}:{port}: {_why_not(error)}") from None
    found = runner.addresses[0]
    name = f"[{found[0]}]" if ":" in found[0] else found[0]
    return f"http://{name}:{found[1]}"


def _why_not(error: OSError) -> str:
    """Why an address cannot be listened on, and the cure. asyncio's own words have the address once more."""
    reason = error.strerror or str(error)
    if error.errno is not None and error.errno in errno.errorcode:
        reason = os.strerror(error.errno)
    if error.errno == errno.EADDRINUSE:
        cure = "end who listens there (ss -ltnp names it), or choose another port"
    else:
        cure = "choose an address of this machine, and a port that this user may listen on"
    return f"{reason}\n  {cure}"


def run(process: Coroutine[None, None, int], *, name: str) -> int:
    """Until it is told to stop; the exit code. What keeps it from running is said on standard error."""
    try:
        return asyncio.run(process)
    except (CannotRun, OSError) as error:
        print(f"load-watcher {name}: {error}", file=sys.stderr)
    return 1


def stop_signal(*, renewing: str) -> asyncio.Event:
    """Set at SIGTERM and SIGINT; SIGHUP is answered in the log with what `renewing` says."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, log.info, renewing)
    return stop
