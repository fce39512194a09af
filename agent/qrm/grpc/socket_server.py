"""A gRPC server on a unix socket that other processes find by its path.

gRPC silently takes over the socket of a running process, and on stop removes the path even if another process owns it
by then. Therefore a path is locked and checked first, and gRPC binds a hidden file beside it, which is then renamed.

A manager may empty the directory of its plug-ins when it starts, as Katalyst's does. A server whose socket file is gone
cannot be reached any more, although it still listens. Therefore the server checks its socket file periodically and, if
necessary, creates it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import socket as sockets
from collections.abc import Callable, Iterable
from pathlib import Path

import grpc.aio

log = logging.getLogger(__name__)

LONGEST_PATH = 106  # bytes: the size of sun_path in sockaddr_un without the null byte and the dot of the hidden file
SOCKET_MODE = 0o660
CHECK_INTERVAL_S = 1.0
STOP_GRACE_S = 1.0


class CannotServe(RuntimeError):
    """A socket cannot be bound; the message names the socket, the reason and the solution."""


class SocketInUse(CannotServe):
    """Another process has the socket."""


class SocketClaim:
    """The exclusive right to serve the socket at `path`, from `take` to `release` or the end of the process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = -1

    def take(self) -> None:
        """Lock the path, and remove the stale socket of a process that ended. Raises CannotServe."""
        try:
            self.path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._lock = os.open(self.path.with_name(f".{self.path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise SocketInUse(f"another load-watcher serves {self.path}: stop it or use another path") from None
        except OSError as error:
            self.release()
            raise CannotServe(f"cannot write to the directory of {self.path}: {error.strerror}") from None
        try:
            if _is_live(self.path):
                raise SocketInUse(f"another process listens on {self.path}: stop it or use another path")
            self.path.unlink(missing_ok=True)
        except OSError as error:
            self.release()
            raise CannotServe(f"cannot remove {self.path}: {error.strerror}") from None
        except CannotServe:
            self.release()
            raise

    def release(self) -> None:
        """Give up the lock. Idempotent."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _nothing() -> None:
    """The default for `lost`: does nothing."""


class SocketServer:
    """A gRPC server on one unix socket, which it owns from `start` to `stop`. `lost` is called after another process
    has removed or replaced the socket file, before the server creates it again; `every` is the interval of the checks
    in seconds."""

    def __init__(
        self,
        path: Path,
        services: Iterable[Callable[[grpc.aio.Server], None]],
        *,
        lost: Callable[[], None] = _nothing,
        every: float = CHECK_INTERVAL_S,
    ) -> None:
        self.path = path
        self._services = tuple(services)
        self._lost = lost
        self._every = every
        self._server: grpc.aio.Server | None = None
        self._file: tuple[int, int, int] | None = None
        self._claim = SocketClaim(path)
        self._stopping = asyncio.Event()
        self._watcher: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Bind the socket and start the server. Raises CannotServe."""
        if len(os.fsencode(self.path)) > LONGEST_PATH:
            raise CannotServe(
                f"the path {self.path} has {len(os.fsencode(self.path))} bytes, but the path of this socket can have "
                f"at most {LONGEST_PATH}: use a shorter directory"
            )
        await self._serve()
        self._stopping.clear()
        self._watcher = asyncio.create_task(self._watch(), name=f"qrm-socket-{self.path.name}")

    async def stop(self, *, grace: float = STOP_GRACE_S) -> None:
        """Stop the server; running calls have `grace` seconds to complete. Idempotent."""
        self._stopping.set()
        if self._watcher is not None:
            await self._watcher  # not cancelled, because it may be creating the socket
            self._watcher = None
        await self._end(grace)

    # --- the socket file ---------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Create the socket file again whenever it is gone or replaced, until the server is stopped."""
        refused = ""
        while not await self._is_stopped_within(self._every):
            if self._server is not None and self._identity() == self._file:
                continue
            try:
                if self._server is not None:
                    log.warning("another process has removed or replaced %s; creating the socket again", self.path)
                    self._lost()
                    await self._end(STOP_GRACE_S)
                await self._serve()
            except CannotServe as error:
                if str(error) != refused:  # logged once, retried at each check
                    log.error("%s; trying again every %.0f s", error, self._every)
                refused = str(error)
            else:
                log.info("serving %s again", self.path)
                refused = ""

    async def _is_stopped_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)
        return self._stopping.is_set()

    def _identity(self) -> tuple[int, int, int] | None:
        """Device, inode and time of creation of the socket file, None if it does not exist. A new file can have the
        inode of a removed one."""
        try:
            status = os.lstat(self.path)
        except OSError:
            return None
        return status.st_dev, status.st_ino, status.st_mtime_ns

    async def _serve(self) -> None:
        """Bind the socket and start a new server. Raises CannotServe."""
        self._claim.take()
        hidden = self.path.with_name(f".{self.path.name}")
        server = grpc.aio.server()
        try:
            for add in self._services:
                add(server)
            server.add_insecure_port(f"unix:{hidden}")
            hidden.chmod(SOCKET_MODE)
            await server.start()
            hidden.rename(self.path)
        except (OSError, RuntimeError) as error:
            await server.stop(None)
            self._claim.release()
            raise CannotServe(f"cannot bind the socket {self.path}: {error}") from None
        self._server, self._file = server, self._identity()

    async def _end(self, grace: float) -> None:
        if self._server is None:
            return
        server, self._server = self._server, None
        if self._identity() == self._file:
            self.path.unlink(missing_ok=True)
        try:
            await server.stop(grace)
        finally:
            self._claim.release()


def _is_live(path: Path) -> bool:
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True
