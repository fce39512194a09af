"""Exec plug-ins and OIDC for `plugin`, based on kubernetes-asyncio.

Of the library's OIDC support only the entry point is used. The library decodes tokens as standard base64 (they are
base64url), sends the client secret without verifying the server's certificate, and expects a new refresh token each
time, which providers need not return.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
import time
from base64 import b64decode, urlsafe_b64decode
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import aiohttp
import msgspec
from kubernetes_asyncio.config.config_exception import ConfigException
from kubernetes_asyncio.config.exec_provider import ExecProvider
from kubernetes_asyncio.config.kube_config import FileOrData, KubeConfigLoader

from watcher.core.messages import printable
from watcher.decoding.json_text import decode_json
from watcher.decoding.text import decode_text
from watcher.platform.net.http_body import answer_bound, read_body
from watcher.platform.net.session import client_session
from watcher.platform.net.tls import client_context

REFRESH_WITHIN_S = 20.0
BEFORE_ITS_END_S = 60.0
"""Seconds before its expiry at which an OIDC token is renewed."""
BEFORE_PLUGIN_END_S = 300.0
MAX_OUTPUT = 1 << 20
"""Bytes of an exec plug-in's output, and of a response of an OIDC issuer."""


@dataclass
class _LoadedCredentials:
    """Credentials that the library found, under the library's attribute names."""

    api_key: dict[str, str] = field(default_factory=dict)
    cert_file: str | None = None
    key_file: str | None = None


class _Claims(msgspec.Struct):
    exp: float | None = None


class _ExecStatus(msgspec.Struct, rename="camel"):
    token: str | None = None
    expiration_timestamp: datetime | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None


class _ExecCredential(msgspec.Struct, rename="camel"):
    api_version: str
    kind: str
    status: _ExecStatus


class _ExecPlugin(ExecProvider):
    """Runs an exec plug-in like the library, with a limit on its output."""

    async def credential(self) -> _ExecStatus:
        """The credentials that the program returns. Raises ConfigException and OSError."""
        about = {"apiVersion": self.api_version, "kind": "ExecCredential", "spec": {"interactive": sys.stdout.isatty()}}
        self.env["KUBERNETES_EXEC_INFO"] = msgspec.json.encode(about).decode()
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*self.args, env=self.env, stdout=pipe, stderr=pipe)
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            written, said = await asyncio.gather(_output(process.stdout, process), _output(process.stderr, process))
            code = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
        if max(len(written), len(said)) > MAX_OUTPUT:
            raise ConfigException(f"exec: the output is larger than {MAX_OUTPUT >> 20} MiB")
        if code != 0:
            text = printable(said.decode(errors="replace"))
            raise ConfigException(f"exec: process returned {code}" + (f". {text}" if text else ""))
        try:
            credential = decode_json(written, type=_ExecCredential)
        except msgspec.DecodeError as error:
            raise ConfigException(f"exec: the output is not an ExecCredential: {error}") from None
        if credential.api_version != self.api_version:
            version = printable(credential.api_version)
            raise ConfigException(f"exec: plugin api version {version} does not match {self.api_version}")
        return credential.status


async def _output(stream: asyncio.StreamReader, process: asyncio.subprocess.Process) -> bytes:
    """The output. Ends the process when the output exceeds MAX_OUTPUT, and discards what follows."""
    output = bytearray()
    while chunk := await stream.read(1 << 16):
        if len(output) <= MAX_OUTPUT:
            output += chunk
            if len(output) > MAX_OUTPUT and process.returncode is None:
                process.kill()
    return bytes(output)


class Loader(KubeConfigLoader):
    """Loads the credentials of one user of a kubeconfig, and renews them when they expire."""

    bearer = ""
    certificate: tuple[str, str] | None = None
    """Paths of the client certificate and its key."""
    _named: Set[str] = frozenset()
    _directory = Path()
    _clock: Callable[[], float] = staticmethod(time.time)
    _lasts = False

    @classmethod
    def of_user(cls, user: Mapping[str, Any], *, directory: Path, clock: Callable[[], float] = time.time) -> Self:
        """Create a loader for the `exec` or `auth-provider` of a user; its paths are relative to `directory`. Raises
        ConfigException."""
        named = {"exec", "auth-provider"} & user.keys()
        config = {
            "current-context": "it",
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "clusters": [{"name": "it", "cluster": {"extensions": []}}],  # KubeClient opens the connection
            "users": [{"name": "it", "user": {key: user[key] for key in named}}],
        }
        loader = cls(config, config_base_path=str(directory))
        loader._named, loader._directory, loader._clock = named, directory, clock
        return loader

    async def renew(self) -> None:
        """Set `bearer` and `certificate`. A plug-in that returns credentials without expiry is run only once. Raises
        exceptions of any type."""
        if self._lasts:
            return
        taken = _LoadedCredentials()
        await self.load_and_set(taken)
        self.bearer = taken.api_key.get("BearerToken", "").removeprefix("Bearer ")
        if taken.cert_file and taken.key_file:
            self.certificate = (taken.cert_file, taken.key_file)
        if not self.bearer and self.certificate is None:
            raise ConfigException("neither a token nor a client certificate was returned")
        self._lasts = "exec" in self._named and not hasattr(self, "exec_plugin_expiry")

    async def load_from_exec_plugin(self) -> bool:
        """Replaces the library's function, which reads without limit and logs each failure."""
        expiry: datetime | None = getattr(self, "exec_plugin_expiry", None)
        if expiry is not None and expiry.timestamp() - BEFORE_PLUGIN_END_S > self._clock():
            return True
        assert self._user is not None
        status = await _ExecPlugin(self._user["exec"]).credential()
        if status.token is not None:
            self.token = f"Bearer {status.token}"
            if status.expiration_timestamp is not None:
                self.exec_plugin_expiry = status.expiration_timestamp
        elif status.client_certificate_data is not None and status.client_key_data is not None:
            self.cert_file: str = self._as_file("clientCertificateData", status.client_certificate_data)
            self.key_file: str = self._as_file("clientKeyData", status.client_key_data)
        return True

    def _as_file(self, key: str, content: str) -> str:
        file = FileOrData(
            {key: content}, None, data_key_name=key, base64_file_content=False, temp_file_path=self._temp_file_path
        )
        return str(file.as_file())

    # --- OIDC --------------------------------------------------------------------------------------------------------

    async def _load_oid_token(self) -> str:
        config = self._user["auth-provider"]["config"].value if self._user else {}
        if not config.get("id-token") or _end_of(config["id-token"]) <= self._clock() + BEFORE_ITS_END_S:
            await self._refresh(config)
        self.token = f"Bearer {config['id-token']}"
        return self.token

    async def _refresh(self, config: dict[str, str]) -> None:
        """Request another token. The kubeconfig file is not modified: it does not belong to load-watcher."""
        if not config.get("refresh-token"):
            raise ConfigException("the token has expired and a refresh-token is missing: log in again with kubectl")
        timeout = aiohttp.ClientTimeout(total=REFRESH_WITHIN_S)
        async with client_session(tls=self._trust(config), timeout=timeout, raise_for_status=True) as session:
            issuer = config["idp-issuer-url"].rstrip("/")
            async with session.get(f"{issuer}/.well-known/openid-configuration", allow_redirects=False) as response:
                endpoint = (await _mapping(response))["token_endpoint"]
            form = {"grant_type": "refresh_token", "refresh_token": config["refresh-token"]}
            headers = {}
            if secret := config.get("client-secret"):
                headers["Authorization"] = aiohttp.encode_basic_auth(config["client-id"], secret)
            else:
                form["client_id"] = config["client-id"]
            async with session.post(endpoint, data=form, headers=headers, allow_redirects=False) as response:
                answer = await _mapping(response)
        config["id-token"] = answer["id_token"]
        config["refresh-token"] = answer.get("refresh_token") or config["refresh-token"]

    def _trust(self, config: Mapping[str, str]) -> ssl.SSLContext:
        if data := config.get("idp-certificate-authority-data"):
            return client_context(ca_data=decode_text(b64decode(data)))
        file = config.get("idp-certificate-authority")
        return client_context(ca_file=self._directory / file if file else None)


async def _mapping(response: aiohttp.ClientResponse) -> dict[str, Any]:
    return decode_json(await read_body(response, answer_bound(MAX_OUTPUT)), type=dict[str, Any])


def _end_of(token: str) -> float:
    """Expiry of an OIDC token (a JWT) in unix seconds; infinity if it has none."""
    try:
        _, payload, _ = token.split(".")
        claims = decode_json(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)), type=_Claims)
    except ValueError:
        raise ConfigException("the id-token is not an OIDC token") from None
    return float("inf") if claims.exp is None else claims.exp
