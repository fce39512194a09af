"""Where the InfluxDB is, and as whom it is asked.

A token may be renewed by another process, so files with secrets are read for every question. Whatever the far side says
is scrubbed of what we told it, because some error pages show the request.
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from watcher import __version__
from watcher.providers.base import ProviderRefused
from watcher.providers.influxdb_plans import InfluxConfig


class Endpoint:
    """The address, and the headers that go with every question. Raises ValueError for an address that is none."""

    def __init__(self, config: InfluxConfig) -> None:
        parts = urlsplit(config.address)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError("provider.address must look like http://influxdb:8086, without a query")
        if "@" in parts.netloc:
            raise ValueError("provider.address must not hold credentials; there is provider.username")
        self.address = config.address.rstrip("/")
        self.has_tls = parts.scheme == "https"
        self._config = config
        self._private = [value for value in config.headers.values() if len(value) >= 8]

    def tls(self) -> ssl.SSLContext:
        """How the connection is verified. Raises ProviderRefused for files that do not work."""
        config = self._config
        try:
            context = ssl.create_default_context(cafile=config.ca_file or None)
            if config.client_cert:
                context.load_cert_chain(config.client_cert, config.client_key or None, password=_no_passphrase)
        except (OSError, ValueError) as error:
            raise ProviderRefused(
                f"the TLS files cannot be used: {error.strerror if isinstance(error, OSError) else error}",
                hint="provider.ca_file, client_cert and client_key must be PEM files, and the key the certificate's.",
            ) from error
        if config.insecure_skip_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def headers(self) -> dict[str, str]:
        """The headers of a question with the credentials as their files have them now. Raises ProviderRefused."""
        credentials = self._authorization()
        given = {"User-Agent": f"load-watcher/{__version__}", **self._config.headers}
        headers = {**given, **({"Authorization": credentials} if credentials else {})}
        for name, value in headers.items():
            if not (name + value).isascii() or not (name + value).isprintable():
                # before a library sees it, whose error would show it
                raise ProviderRefused(
                    f"the header {name!r} cannot be sent",
                    hint="Check provider.headers, and the token, for line breaks and letters beyond ASCII.",
                )
        return headers

    def flux_headers(self) -> dict[str, str]:
        """The same for Flux, which knows tokens only: 1.8 takes `user:password` for one."""
        headers = self.headers()
        if headers.get("Authorization", "").startswith("Basic "):
            headers["Authorization"] = f"Token {self._config.username}:{self._password()}"
        return headers

    def scrub(self, text: str, *, sent: Mapping[str, str]) -> str:
        """A text of the far side without what we sent it in confidence."""
        kind, _, credentials = sent.get("Authorization", "").partition(" ")
        pair = base64.b64decode(credentials).decode() if kind == "Basic" else credentials
        for secret in (credentials, pair.partition(":")[2], *self._private):
            text = text.replace(secret, "***") if secret else text
        return text

    def _authorization(self) -> str:
        config = self._config
        if token := config.token or _secret("provider.token_file", config.token_file):
            return f"Token {token}"
        if config.username:
            pair = f"{config.username}:{self._password()}"
            return "Basic " + base64.b64encode(pair.encode()).decode()
        return ""

    def _password(self) -> str:
        return self._config.password or _secret("provider.password_file", self._config.password_file)


def _no_passphrase() -> str:
    """Asked for where a key is encrypted; without this OpenSSL would ask on the terminal, and wait."""
    raise ValueError("the key is encrypted")


def _secret(setting: str, path: str) -> str:
    """What the file holds now, "" without a file."""
    if not path:
        return ""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text"
        raise ProviderRefused(f"{setting} {path} cannot be read: {reason}") from error
