"""Address and credentials of the InfluxDB server.

Another process may renew a token, so secret files are read for every request. Server messages are scrubbed of secrets,
because some error pages contain the request.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from urllib.parse import urlsplit

from watcher import __version__
from watcher.providers.http_client import read_secret, sendable
from watcher.providers.influxdb.queries import InfluxConfig


class InfluxEndpoint:
    """Server address, and the headers of every request. Raises ValueError for an invalid address."""

    def __init__(self, config: InfluxConfig) -> None:
        parts = urlsplit(config.address)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError("provider.address must have the form http://influxdb:8086, without a query")
        if "@" in parts.netloc:
            raise ValueError("provider.address must not contain credentials; use provider.username")
        self.address = config.address.rstrip("/")
        self.has_tls = parts.scheme == "https"
        self._config = config
        self._sent: Mapping[str, str] = {}
        self._private = [value for value in config.headers.values() if len(value) >= 8]

    def headers(self) -> dict[str, str]:
        """The headers of a request with the current credentials from their files. Raises ProviderRefused."""
        credentials = self._authorization()
        given = {"User-Agent": f"load-watcher/{__version__}", **self._config.headers}
        self._sent = sendable({**given, **({"Authorization": credentials} if credentials else {})})
        return dict(self._sent)

    def flux_headers(self) -> dict[str, str]:
        """Headers for Flux, which supports tokens only. InfluxDB 1.8 accepts `user:password` as a token."""
        headers = self.headers()
        if headers.get("Authorization", "").startswith("Basic "):
            headers["Authorization"] = f"Token {self._config.username}:{self._password()}"
        return headers

    def scrub(self, text: str) -> str:
        """Remove the last sent credentials and header values from a server message."""
        kind, _, credentials = self._sent.get("Authorization", "").partition(" ")
        pair = base64.b64decode(credentials).decode() if kind == "Basic" else credentials
        for secret in (credentials, pair.partition(":")[2], *self._private):
            text = text.replace(secret, "***") if secret else text
        return text

    def _authorization(self) -> str:
        config = self._config
        if token := config.token or read_secret("provider.token_file", config.token_file):
            return f"Token {token}"
        if config.username:
            pair = f"{config.username}:{self._password()}"
            return "Basic " + base64.b64encode(pair.encode()).decode()
        return ""

    def _password(self) -> str:
        return self._config.password or read_secret("provider.password_file", self._config.password_file)
