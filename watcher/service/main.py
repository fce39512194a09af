"""Running the service until a signal stops it."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import signal
import ssl
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from aiohttp import web

from watcher.core.config.settings import Settings
from watcher.platform.http.runner import Runner
from watcher.platform.http.settings import ServerSettings
from watcher.platform.http.tls import ServerTls
from watcher.platform.interpreter import limit_malloc_arenas, tune_for_serving
from watcher.platform.modules import ServiceModule
from watcher.platform.net.listening import host_port
from watcher.platform.net.tls import file_reason
from watcher.service.build import FROM_SETTINGS, Sources
from watcher.service.server import Watcher
from watcher.sources.errors import ProviderError
from watcher.store.errors import StoreError

log = logging.getLogger(__name__)


SHUTDOWN_S = 3.0  # seconds that running requests may take at shutdown


class ServerProcess(Protocol):
    """A process with an HTTP server; implemented by `Watcher`, and by the extender as a process of its own."""

    @property
    def app(self) -> web.Application: ...

    def listening(self, address: str) -> None:
        """Called with the first address once the process accepts requests."""
        ...

    @property
    def tls(self) -> ServerTls | None:
        """The certificates of the server, None for plain HTTP."""
        ...

    def request_reload(self, read: Callable[[], Settings]) -> None:
        """Called at SIGHUP; `read` reads the settings again and raises SettingsError if they are invalid."""
        ...


def run(
    settings: Settings,
    *,
    reload: Callable[[], Settings],
    parts: Sequence[ServiceModule] = (),
    sources: Sources = FROM_SETTINGS,
) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code. `reload` reads the settings again and raises SettingsError
    if they are invalid; `parts` are modules of other packages, each served if the settings have its table."""

    async def make() -> Watcher:
        return Watcher(settings, parts=parts, sources=sources)

    return run_process(make, settings, reload=reload)


def run_process(
    make: Callable[[], Awaitable[ServerProcess]], settings: Settings, *, reload: Callable[[], Settings]
) -> int:
    """Serve the process that `make` returns until SIGTERM or SIGINT; return the exit code."""
    limit_malloc_arenas()
    tune_for_serving()
    try:
        return asyncio.run(serve(make, settings, reload=reload))
    except (StoreError, ProviderError) as error:
        print(f"load-watcher: {error}" + (f"\n  {error.hint}" if error.hint else ""), file=sys.stderr)
    except ssl.SSLError as error:
        where = "[server], [agents] or [qrms]"
        print(f"load-watcher: cannot use the TLS files in {where}: {file_reason(error)}", file=sys.stderr)
    except OSError as error:
        print(f"load-watcher: cannot listen on {_why_not(error, settings)}", file=sys.stderr)
    return 1


async def serve(
    make: Callable[[], Awaitable[ServerProcess]], settings: Settings, *, reload: Callable[[], Settings]
) -> int:
    """Start the process, wait for SIGTERM or SIGINT, and stop it; return the exit code."""
    process = await make()
    runner = Runner(process.app, shutdown_timeout=SHUTDOWN_S)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, process.request_reload, reload)
    try:
        await runner.setup()
        tls = None if process.tls is None else process.tls.context
        await runner.listen(settings[ServerSettings].host, settings[ServerSettings].port, tls=tls)
        addresses = _addresses(runner, settings)
        print(f"load-watcher listens on {', '.join(addresses)}", flush=True)
        process.listening(addresses[0])
        gc.freeze()  # objects loaded so far are permanent: garbage collections need not traverse them
        await stop.wait()
        log.info("stopping")
    finally:
        await runner.cleanup()
    return 0


def _why_not(error: OSError, settings: Settings) -> str:
    """Describe why the service cannot listen on its address, with a hint. asyncio's message repeats the address, so the
    message of the errno is used."""
    reason = error.strerror or str(error)
    if error.errno is not None and error.errno in errno.errorcode:
        reason = os.strerror(error.errno)
    if error.errno == errno.EADDRINUSE:
        port = settings[ServerSettings].port
        cure = f"load-watcher doctor --only port --port {port} names its process; stop it, or set --port"
    else:
        cure = "set server.host to an address of this machine, and server.port to a port that this user may listen on"
    return f"{host_port(settings[ServerSettings].host, settings[ServerSettings].port)}: {reason}\n  {cure}"


def _addresses(runner: web.AppRunner, settings: Settings) -> list[str]:
    scheme = "https" if settings[ServerSettings].tls_cert else "http"
    return [f"{scheme}://{host_port(address[0], address[1])}" for address in runner.addresses]
