"""Exec plug-ins and OIDC for `plugin`, based on kubernetes-asyncio.

Of the library's OIDC support only the entry point is used. The library decodes tokens as standard base64 (they are
base64url), sends the client secret without verifying the server's certificate, and expects a new refresh token each
time, which providers need not return.
"""

from __future__ import annotations

import binascii
import ssl
import time
from base64 import b64decode, urlsafe_b64decode
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import aiohttp
import msgspec
from kubernetes_asyncio.config.config_exception import ConfigException
from kubernetes_asyncio.config.kube_config import KubeConfigLoader

REFRESH_WITHIN_S = 20.0
BEFORE_ITS_END_S = 60.0
"""Seconds before its expiry at which an OIDC token is renewed; for exec plug-ins the library uses five minutes."""


@dataclass
class _LoadedCredentials:
    """Credentials that the library found, under the library's attribute names."""

    api_key: dict[str, str] = field(default_factory=dict)
    cert_file: str | None = None
    key_file: str | None = None


class _Claims(msgspec.Struct):
    exp: float | None = None


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
        connector = aiohttp.TCPConnector(ssl=self._trust(config))
        timeout = aiohttp.ClientTimeout(total=REFRESH_WITHIN_S)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, raise_for_status=True) as session:
            issuer = config["idp-issuer-url"].rstrip("/")
            async with session.get(f"{issuer}/.well-known/openid-configuration", allow_redirects=False) as response:
                endpoint = (await response.json())["token_endpoint"]
            form = {"grant_type": "refresh_token", "refresh_token": config["refresh-token"]}
            headers = {}
            if secret := config.get("client-secret"):
                headers["Authorization"] = aiohttp.encode_basic_auth(config["client-id"], secret)
            else:
                form["client_id"] = config["client-id"]
            async with session.post(endpoint, data=form, headers=headers, allow_redirects=False) as response:
                answer = await response.json()
        config["id-token"] = answer["id_token"]
        config["refresh-token"] = answer.get("refresh_token") or config["refresh-token"]

    def _trust(self, config: Mapping[str, str]) -> ssl.SSLContext:
        if data := config.get("idp-certificate-authority-data"):
            return ssl.create_default_context(cadata=b64decode(data).decode("ascii"))
        file = config.get("idp-certificate-authority")
        return ssl.create_default_context(cafile=str(self._directory / file) if file else None)


def _end_of(token: str) -> float:
    """Expiry of an OIDC token (a JWT) in unix seconds; infinity if it has none."""
    try:
        _, payload, _ = token.split(".")
        claims = msgspec.json.decode(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)), type=_Claims)
    except (ValueError, binascii.Error, msgspec.DecodeError):
        raise ConfigException("the id-token is not an OIDC token") from None
    return float("inf") if claims.exp is None else claims.exp
