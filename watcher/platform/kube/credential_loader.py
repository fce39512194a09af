"""The part of `plugin` that stands on kubernetes-asyncio.

Of its OIDC only the way there is used: it decodes tokens as if they were in ordinary base 64, sends the client's secret
without looking at the server's certificate, and expects a new refresh token each time, which providers need not send.
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
"""How long before its end an OIDC token is renewed; the library takes five minutes for those of plug-ins."""


@dataclass
class _Taken:
    """What the library has found, under its names."""

    api_key: dict[str, str] = field(default_factory=dict)
    cert_file: str | None = None
    key_file: str | None = None


class _Claims(msgspec.Struct):
    exp: float | None = None


class Loader(KubeConfigLoader):
    """Loads one user of a kubeconfig, and renews what has expired."""

    bearer = ""
    certificate: tuple[str, str] | None = None
    """Files with the client certificate and its key."""
    _named: Set[str] = frozenset()
    _directory = Path()
    _clock: Callable[[], float] = staticmethod(time.time)
    _lasts = False

    @classmethod
    def of_user(cls, user: Mapping[str, Any], *, directory: Path, clock: Callable[[], float] = time.time) -> Self:
        """For the `exec` or `auth-provider` of a user; its paths begin in `directory`. Raises ConfigException."""
        named = {"exec", "auth-provider"} & user.keys()
        config = {
            "current-context": "it",
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "clusters": [{"name": "it", "cluster": {"extensions": []}}],  # the connection is ours
            "users": [{"name": "it", "user": {key: user[key] for key in named}}],
        }
        loader = cls(config, config_base_path=str(directory))
        loader._named, loader._directory, loader._clock = named, directory, clock
        return loader

    async def renew(self) -> None:
        """Set `bearer` and `certificate`. A plug-in that names no end of them is run once. Raises what it likes."""
        if self._lasts:
            return
        taken = _Taken()
        await self.load_and_set(taken)
        self.bearer = taken.api_key.get("BearerToken", "").removeprefix("Bearer ")
        if taken.cert_file and taken.key_file:
            self.certificate = (taken.cert_file, taken.key_file)
        if not self.bearer and self.certificate is None:
            raise ConfigException("it has neither a token nor a client certificate")
        self._lasts = "exec" in self._named and not hasattr(self, "exec_plugin_expiry")

    # --- OIDC --------------------------------------------------------------------------------------------------------

    async def _load_oid_token(self) -> str:
        config = self._user["auth-provider"]["config"].value if self._user else {}
        if not config.get("id-token") or _end_of(config["id-token"]) <= self._clock() + BEFORE_ITS_END_S:
            await self._refresh(config)
        self.token = f"Bearer {config['id-token']}"
        return self.token

    async def _refresh(self, config: dict[str, str]) -> None:
        """Get another token. What comes is not written into the kubeconfig, which is not ours."""
        if not config.get("refresh-token"):
            raise ConfigException("the token has expired, and there is no refresh-token: log in again with kubectl")
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
    """When a token of OIDC (a JWT) ends, in unix seconds; infinity where it does not say."""
    try:
        _, payload, _ = token.split(".")
        claims = msgspec.json.decode(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)), type=_Claims)
    except (ValueError, binascii.Error, msgspec.DecodeError):
        raise ConfigException("the id-token is no token of OIDC") from None
    return float("inf") if claims.exp is None else claims.exp
