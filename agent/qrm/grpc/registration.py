"""Registration of plug-ins that create a socket in a directory: calls GetInfo, registers the plug-in, and reports the
result. Other plug-ins register themselves.

The protocol is that of the kubelet's plugin watcher. The directory is scanned once a second instead of watched with
inotify: the kubelet reconciles at the same interval, and a scan works on every file system.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from agent.qrm.grpc.messages import PLUGIN_TYPE, VERSION
from agent.qrm.grpc.plugin_api import PluginCallError
from agent.qrm.grpc.plugin_client import PluginEndpoint, PluginInfo, ask_info, notify
from agent.qrm.grpc.protos import qrm_resourceplugin_v1alpha1_pb2 as pb
from agent.qrm.grpc.protos import qrm_resourceplugin_v1alpha1_pb2_grpc as pb_grpc
from agent.qrm.grpc.resource_names import is_resource_name, shown
from agent.qrm.manager.manager import Manager
from watcher.core.messages import printable
from watcher.platform.repeated_errors import RepeatedErrors

log = logging.getLogger(__name__)

SCAN_INTERVAL_S = 1.0
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 122.0
DEEPEST = 8  # levels of subdirectories; the kubelet has no limit, and does not follow links either


Gone = Callable[[], Awaitable[None]]


class ResourcePlugins:
    """Registers resource plug-ins as endpoints of the manager."""

    def __init__(
        self, manager: Manager, *, open_endpoint: Callable[[str, Path], PluginEndpoint] = PluginEndpoint
    ) -> None:
        self._manager = manager
        self._open_endpoint = open_endpoint

    def validate(self, info: PluginInfo) -> None:
        """Check the protocol version and the resource name. Raises ValueError."""
        if VERSION not in info.versions:
            spoken = printable(", ".join(info.versions)) or "none"
            raise ValueError(f"manager version, {VERSION}, is not among plugin supported versions {spoken}")
        if not info.name:
            raise ValueError("the plug-in does not name its resource")
        if not is_resource_name(info.name):
            raise ValueError(f"{shown(info.name)} is not a resource name, such as cpu or example.com/gpu")

    async def register(self, resource: str, endpoint: Path) -> Gone:
        """Get the options of the plug-in and register its endpoint with the manager. Returns a function that
        deregisters it. Raises PluginCallError."""
        opened = self._open_endpoint(resource, endpoint)
        try:
            await opened.open()
        except PluginCallError:
            await opened.close()
            raise
        await self._manager.plugins.register(resource, opened)
        return lambda: self._manager.plugins.deregister(resource, opened)


class LegacyRegistration(pb_grpc.RegistrationServicer):
    """The registration of plug-ins that do not use the plugin watcher: they call Register and name a socket in
    `directory`."""

    def __init__(self, plugins: ResourcePlugins, directory: Path) -> None:
        self._plugins = plugins
        self._directory = directory

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register this service with a gRPC server."""
        pb_grpc.add_RegistrationServicer_to_server(self, server)

    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.Empty:  # noqa: N802
        """Get the options of the plug-in and register its endpoint with the manager."""
        if request.version != VERSION:
            asked = f"requested API version {printable(request.version)} is not supported by kubelet"
            message = f"{asked}. Supported version is {VERSION}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)
        if not request.resource_name or not request.endpoint or Path(request.endpoint).name != request.endpoint:
            message = "resource_name and endpoint are required; endpoint must be the name of a socket in this directory"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)
        if not is_resource_name(request.resource_name):
            message = f"{shown(request.resource_name)} is not a resource name, such as cpu or example.com/gpu"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)
        socket = self._directory / request.endpoint
        try:
            await self._plugins.register(request.resource_name, socket)
        except PluginCallError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        log.info("the plug-in for %s at %s registered itself", request.resource_name, socket)
        return pb.Empty()


@dataclass(frozen=True, slots=True)
class _SocketIdentity:
    """Identity of a socket file: it changes if the socket is created again, but not if its mode or owner changes."""

    inode: int
    made: int


@dataclass(slots=True)
class _Attempt:
    """A failed registration: when to retry, and the pause before the retry in seconds."""

    seen: _SocketIdentity
    due: float
    pause: float


class Registry:
    """Registers the plug-ins in a directory with `plugins`."""

    def __init__(
        self,
        directory: Path,
        plugins: ResourcePlugins,
        *,
        monotonic: Callable[[], float],
        every: float = SCAN_INTERVAL_S,
    ) -> None:
        self.directory = directory
        self._plugins = plugins
        self._monotonic = monotonic
        self._every = every
        self._registered: dict[Path, tuple[_SocketIdentity, Gone]] = {}
        self._attempts: dict[Path, _Attempt] = {}

    async def run(self) -> None:
        """Scan the directory at each interval until cancelled."""
        errors, unread = RepeatedErrors(log), ""
        while True:
            try:
                await self.reconcile()
                unread = ""
                errors.succeeded()
            except OSError as error:
                why = error.strerror or str(error)
                if why != unread:
                    log.warning("cannot read the registration directory %s: %s", self.directory, why)
                unread = why
            except Exception as error:
                errors.failed(error, "scanning the registration directory %s failed; trying again", self.directory)
            await asyncio.sleep(self._every)

    async def close(self) -> None:
        """Deregister all plug-ins of this directory."""
        for path in list(self._registered):
            await self._drop(path)

    async def reconcile(self) -> None:
        """Deregister plug-ins with removed or replaced sockets, then register new ones. Raises OSError."""
        there = await asyncio.to_thread(_sockets, self.directory)
        for path, (seen, _) in list(self._registered.items()):
            if there.get(path) != seen:
                await self._drop(path)
        self._attempts = {path: each for path, each in self._attempts.items() if there.get(path) == each.seen}
        new = [path for path in sorted(there) if path not in self._registered and self._is_due(path)]
        await asyncio.gather(*(self._add(path, there[path]) for path in new))

    def _is_due(self, path: Path) -> bool:
        attempt = self._attempts.get(path)
        return attempt is None or self._monotonic() >= attempt.due

    async def _add(self, path: Path, seen: _SocketIdentity) -> None:
        try:
            info = await ask_info(path)
        except PluginCallError as error:
            self._failed(path, seen, str(error))
            return
        again = path in self._attempts
        refused, going = await self._register(info, path)
        if going is not None:
            self._registered[path] = seen, going
            self._attempts.pop(path, None)
            log.info("registered the plug-in for %s at %s", info.name, path)
        else:
            self._failed(path, seen, refused)
        try:
            await notify(path, refused)
        except PluginCallError as error:
            level = logging.DEBUG if again else logging.WARNING  # once per socket
            log.log(level, "cannot send the registration status to %s: %s", path, error)

    async def _register(self, info: PluginInfo, path: Path) -> tuple[str, Gone | None]:
        """Returns the error message in the kubelet's wording, or the function that deregisters the plug-in."""
        if info.type != PLUGIN_TYPE:
            known = f"no handler registered for plugin type: {printable(info.type)} at socket {path}"
            return f"RegisterPlugin error -- {known}", None
        try:
            self._plugins.validate(info)
        except ValueError as error:
            return f"RegisterPlugin error -- plugin validation failed with err: {error}", None
        try:
            return "", await self._plugins.register(info.name, Path(info.endpoint or path))
        except (PluginCallError, ValueError) as error:  # ValueError: the endpoint is not a path
            return f"RegisterPlugin error -- plugin registration failed with err: {error}", None

    def _failed(self, path: Path, seen: _SocketIdentity, why: str) -> None:
        before = self._attempts.get(path)
        pause = min(before.pause * 2, LONGEST_PAUSE_S) if before else FIRST_PAUSE_S
        self._attempts[path] = _Attempt(seen, self._monotonic() + pause, pause)
        if before is None:
            log.warning("cannot register %s, trying again: %s", path, why)

    async def _drop(self, path: Path) -> None:
        _, going = self._registered.pop(path)
        await going()
        log.info("deregistered the plug-in at %s", path)


def _sockets(directory: Path, *, depth: int = 0) -> dict[Path, _SocketIdentity]:
    """The unix sockets in a directory and below; names that begin with a dot are ignored."""
    found: dict[Path, _SocketIdentity] = {}
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except FileNotFoundError:
        return found
    for entry in entries:
        if entry.name.startswith("."):
            continue
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        if stat.S_ISSOCK(status.st_mode):
            found[Path(entry.path)] = _SocketIdentity(status.st_ino, status.st_mtime_ns)
        elif stat.S_ISDIR(status.st_mode) and depth < DEEPEST:
            found |= _sockets(Path(entry.path), depth=depth + 1)
    return found
