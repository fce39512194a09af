"""Address and credentials of the Prometheus server.

The address may contain a password, and another process may renew a token every hour. Only the address without
credentials is used for connections, logs and errors, and changed secret files are read again. Server messages are
scrubbed of secrets, because some error pages contain the request.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from watcher import __version__
from watcher.platform.net.loopback import is_loopback
from watcher.providers.base import ProviderRefused
from watcher.providers.prometheus.queries import PrometheusConfig

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"|[\x21-\x7e\xa0-\xff]([\t\x20-\x7e\xa0-\xff]*[\x21-\x7e\xa0-\xff])?")


class PrometheusEndpoint:
    """Server address without credentials, and the headers of every request. Raises ValueError for an invalid
    address."""

    def __init__(self, config: PrometheusConfig) -> None:
        parts = _split(config.address)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        port = f":{parts.port}" if parts.port else ""
        self.address = f"{parts.scheme}://{host}{port}{parts.path.rstrip('/')}"
        self._username = config.username or unquote(parts.username or "")
        self._password = config.password or unquote(parts.password or "")
        self._password_file = _SecretFile(f"{config.keys}password_file", config.password_file)
        self._token = config.token
        self._token_file = _SecretFile(f"{config.keys}token_file", config.token_file)
        # Compression to a local server costs more time than it saves (measured: 1.0 s with it, 0.31 s without).
        encoding = "identity" if is_loopback(parts.hostname or "") else "gzip"
        self._headers = {"User-Agent": f"load-watcher/{__version__}", "Accept-Encoding": encoding, **config.headers}
        self._sent: Mapping[str, str] = {}
        self._private = [value for value in config.headers.values() if len(value) >= 8]

    def headers(self) -> dict[str, str]:
        """All headers of a request, with the current credentials from their files. Raises ProviderRefused."""
        authorization = self._authorization()
        headers = {**self._headers, **({"Authorization": authorization} if authorization else {})}
        for name, value in headers.items():
            # Checked here, because the error of the HTTP library would contain the value.
            if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
                raise ProviderRefused(
                    f"the header {name!r} has characters that cannot be sent",
                    hint="Check provider.headers, and the token, for line breaks and characters outside Latin-1.",
                )
        self._sent = headers
        return headers

    def scrub(self, text: str) -> str:
        """Remove the last sent credentials and header values from a server message, because some error pages contain
        the request."""
        _, _, credentials = self._sent.get("Authorization", "").partition(" ")
        for secret in (credentials, self._token, self._password, *self._private):
            text = text.replace(secret, "***") if secret else text
        return text

    def _authorization(self) -> str:
        if token := self._token or self._token_file.read():
            return f"Bearer {token}"
        if self._username:
            pair = f"{self._username}:{self._password or self._password_file.read()}"
            return "Basic " + base64.b64encode(pair.encode()).decode()
        return ""


def _split(address: str) -> SplitResult:
    """Parts of a valid address. The error does not contain the address, because it may contain a password."""
    try:
        parts = urlsplit(address)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise ValueError(f"provider.address is not a URL: {type(error).__name__}") from None
    if not usable or parts.query or parts.fragment:
        raise ValueError(
            "provider.address must have the form http://prometheus:9090 or https://host/path, without a query"
        )
    return parts


class _SecretFile:
    """A file with one secret, read again after each change, because service account tokens are renewed every hour."""

    def __init__(self, setting: str, path: str) -> None:
        self._setting = setting
        self._path = Path(path) if path else None
        self._seen: tuple[tuple[int, int, int], str] | None = None

    def read(self) -> str:
        """The current secret, "" if no file is set. Raises ProviderRefused."""
        if self._path is None:
            return ""
        try:
            status = self._path.stat()
            version = (status.st_mtime_ns, status.st_ino, status.st_size)
            if self._seen is None or self._seen[0] != version:
                self._seen = (version, self._path.read_text(encoding="utf-8").strip())
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not valid UTF-8"
            raise ProviderRefused(f"{self._setting} {self._path} cannot be read: {reason}") from error
        return self._seen[1]
