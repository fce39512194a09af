"""Credentials that another program or another server brings: exec plug-ins (`aws eks get-token`, `kubelogin`, …) and
OIDC, as kubeconfigs of the cloud providers have them.

kubernetes-asyncio reads them (the extra `kube`). It is large, so it is imported when such a kubeconfig is used and not
before, and in a thread, since that takes half a second.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from watcher.core.kubernetes.errors import KubeRefused, KubeUnreachable, shown

if TYPE_CHECKING:
    from watcher.platform.kube.credential_loader import Loader

ANSWERS_WITHIN_S = 30.0
MISSING = "Install the extra that reads such credentials: pip install 'load-watcher[kube]'"


class Plugin:
    """Brings a token, and if need be a client certificate, which it puts into `tls`. `user` is the kubeconfig's, and
    `path` the kubeconfig, from whose directory relative paths begin. It is waited for `seconds`."""

    def __init__(
        self,
        user: Mapping[str, Any],
        *,
        path: Path,
        tls: ssl.SSLContext | None = None,
        seconds: float = ANSWERS_WITHIN_S,
    ) -> None:
        self._user = _with_whole_command(user, path=path)
        self._path = path
        self._tls = tls
        self._seconds = seconds
        self._loader: Loader | None = None
        self._running: asyncio.Task[str] | None = None

    @property
    def name(self) -> str:
        """What it is, for people."""
        command = self._user["exec"].get("command") if "exec" in self._user else None
        return f"the exec plug-in {shown(str(command))}" if command else "the OIDC token"

    async def token(self) -> str:
        """The token as it is valid now, "" where it is a certificate that says who we are. Raises KubeRefused where
        there is none to be had, and KubeUnreachable while the program does not answer: it is then waited for by the
        next who asks, and never started twice."""
        if self._running is None:
            self._running = asyncio.create_task(self._bring(), name="kubernetes-credentials")
            self._running.add_done_callback(self._ended)
        try:
            async with asyncio.timeout(self._seconds):
                return await asyncio.shield(self._running)
        except TimeoutError:
            hint = "Does it wait for somebody at a terminal or in a browser? Run it once by hand."
            raise KubeUnreachable(f"{self.name} has not answered in {self._seconds:g} s", hint=hint) from None

    def _ended(self, task: asyncio.Task[str]) -> None:
        self._running = None
        if not task.cancelled():
            task.exception()  # whoever waited has it, and if nobody did any more the next one will meet it again

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
        except Exception as error:  # of a library that lets through whatever it meets
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
            hint = str(self._user["exec"].get("installHint") or "Is it installed, and on PATH?")
            return KubeRefused(f"{self._path}: {self.name} is not there", hint=shown(hint))
        why = shown(str(error)) or type(error).__name__
        return KubeRefused(f"{self._path}: {self.name} brings no credentials: {why}")


def _with_whole_command(user: Mapping[str, Any], *, path: Path) -> Mapping[str, Any]:
    """A command with a slash in it is relative to the kubeconfig, as with kubectl; others are looked for on PATH."""
    described = user.get("exec")
    if not isinstance(described, dict) or os.sep not in str(described.get("command", "")):
        return user
    return {**user, "exec": {**described, "command": str(path.parent / described["command"])}}
