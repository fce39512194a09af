"""Credentials from another program or server: exec plug-ins (`aws eks get-token`, `kubelogin`, …) and OIDC, as used by
the kubeconfigs of cloud providers.

kubernetes-asyncio (the extra `kube`) reads them. It is large, so it is imported only when such a kubeconfig is used,
and in a thread, because the import takes half a second.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp

from watcher.core.kubernetes.errors import KubeRefused, KubeUnreachable
from watcher.core.messages import install_extra, printable
from watcher.platform.net.failures import failure_reason

if TYPE_CHECKING:
    from watcher.platform.kube.credential_loader import Loader

TIMEOUT_S = 30.0
MISSING = f"For such credentials, {install_extra('kube')}"


class CredentialPlugin:
    """Provides a token and, if the program returns one, a client certificate, which is loaded into `tls`. `user` is the
    user entry of the kubeconfig and `path` its file; relative paths start in its directory. `seconds` is the
    timeout."""

    def __init__(
        self,
        user: Mapping[str, Any],
        *,
        path: Path,
        tls: ssl.SSLContext | None = None,
        seconds: float = TIMEOUT_S,
    ) -> None:
        self._user = _with_whole_command(user, path=path)
        self._path = path
        self._tls = tls
        self._seconds = seconds
        self._loader: Loader | None = None
        self._running: asyncio.Task[str] | None = None

    @property
    def name(self) -> str:
        """Description of the credentials for messages."""
        command = self._user["exec"].get("command") if "exec" in self._user else None
        return f"the exec plug-in {printable(str(command))}" if command else "the OIDC token"

    async def token(self) -> str:
        """The currently valid token; "" if a client certificate is used instead. Raises KubeRefused if no credentials
        can be obtained, and KubeUnreachable if the program does not respond in time: the next call then waits for the
        same run, and the program is never started twice."""
        if self._running is None:
            self._running = asyncio.create_task(self._bring(), name="kubernetes-credentials")
            self._running.add_done_callback(self._ended)
        try:
            async with asyncio.timeout(self._seconds):
                return await asyncio.shield(self._running)
        except TimeoutError:
            hint = "It may be waiting for input in a terminal or browser: run it once manually."
            raise KubeUnreachable(f"{self.name} did not respond within {self._seconds:g} s", hint=hint) from None

    def _ended(self, task: asyncio.Task[str]) -> None:
        self._running = None
        if not task.cancelled():
            task.exception()  # mark it as retrieved: waiting callers have it, the next run raises it again

    async def _bring(self) -> str:
        try:
            loader = self._loader = self._loader or (await self._library()).of_user(
                self._user, directory=self._path.parent
            )
            await loader.renew()
            if self._tls is not None and loader.certificate is not None:
                self._tls.load_cert_chain(*loader.certificate)
            return loader.bearer
        except KubeRefused:
            raise
        except Exception as error:  # the library passes on exceptions of any type
            raise self._refused(error) from error

    async def _library(self) -> type[Loader]:
        try:
            module = await asyncio.to_thread(importlib.import_module, "watcher.platform.kube.credential_loader")
        except ModuleNotFoundError as error:
            if error.name is None or not error.name.startswith("kubernetes_asyncio"):
                raise
            raise KubeRefused(f"{self._path}: {self.name} needs kubernetes-asyncio", hint=MISSING) from error
        loader: type[Loader] = module.Loader
        return loader

    def _refused(self, error: Exception) -> KubeRefused:
        if "exec" in self._user and isinstance(error, FileNotFoundError):
            hint = str(self._user["exec"].get("installHint") or "Check that it is installed and on PATH.")
            return KubeRefused(f"{self._path}: {self.name} was not found", hint=printable(hint))
        why = (
            failure_reason(error, url="") if isinstance(error, aiohttp.ClientConnectionError) else printable(str(error))
        )
        why = why or type(error).__name__
        return KubeRefused(f"{self._path}: {self.name} returned no credentials: {why}")


def _with_whole_command(user: Mapping[str, Any], *, path: Path) -> Mapping[str, Any]:
    """Resolve a command that contains a slash relative to the kubeconfig, as kubectl does; others are searched on
    PATH."""
    described = user.get("exec")
    if not isinstance(described, dict) or os.sep not in str(described.get("command", "")):
        return user
    return {**user, "exec": {**described, "command": str(path.parent / described["command"])}}
