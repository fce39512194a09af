"""HTTP requests to a source through aiohttp, with limits on time and size, and readable errors.

Each request has a total timeout, which a slow server cannot extend, and a maximum response size. Redirects are not
followed, because credentials are valid for one address only. Proxy settings of the environment are ignored.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

import aiohttp

from watcher.core.messages import printable
from watcher.platform.net.date_header import clock_offset
from watcher.platform.net.failures import name_problem, system_reason
from watcher.platform.net.http_body import (
    TOO_LARGE_HINT,
    AnswerBound,
    AnswerTooLarge,
    answer_bound,
    read_body,
    read_start,
)
from watcher.platform.net.resolver import HINT as NAMES_HINT
from watcher.platform.net.resolver import NameServerSilent, unanswered
from watcher.platform.net.session import client_session
from watcher.platform.net.tls import client_context, file_reason, tls_cure, tls_error, tls_reason
from watcher.platform.sources.errors import (
    ProviderError,
    ProviderMalformed,
    ProviderRefused,
    ProviderTimeout,
    ProviderUnreachable,
)

MAX_CONNECTIONS = 4
"""Maximum number of concurrent connections."""


class TlsSettings(Protocol):
    """TLS settings of a configuration: paths of PEM files, "" for none."""

    @property
    def ca_file(self) -> str: ...
    @property
    def client_cert(self) -> str: ...
    @property
    def client_key(self) -> str: ...
    @property
    def insecure_skip_verify(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A response with any status; the body of an error response may be truncated. `clock_offset_s` is the remote
    clock minus the local clock in seconds, None if unknown."""

    status: int
    body: bytes
    headers: Mapping[str, str]
    clock_offset_s: float | None

    @property
    def content_type(self) -> str:
        """Value of the Content-Type header, "" if missing."""
        return self.headers.get("Content-Type", "")


class HttpClient:
    """HTTP client for one server. `timeout` (seconds) covers one request, from the connection to the last byte. `keys`
    is the prefix of the setting keys in error messages."""

    def __init__(self, *, tls: TlsSettings, keys: str, timeout: float, max_body_bytes: int | None) -> None:
        self._tls = TlsContext(tls, keys=keys)
        self._bound = answer_bound(max_body_bytes)
        self._session = client_session(
            connector={"limit": MAX_CONNECTIONS},
            timeout=aiohttp.ClientTimeout(total=timeout),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        """Close the HTTP session and its connections."""
        await self._session.close()

    async def get(self, url: str, *, query: Mapping[str, str], headers: Mapping[str, str]) -> HttpResponse:
        """Send a GET request. May raise any aiohttp error; `provider_error_of` converts them."""
        return await self._exchange("GET", url, headers, params=query)

    async def post(self, url: str, *, body: bytes, headers: Mapping[str, str]) -> HttpResponse:
        """Send a POST request with a JSON body. May raise any aiohttp error."""
        return await self._exchange("POST", url, {"Content-Type": "application/json", **headers}, data=body)

    async def _exchange(self, method: str, url: str, headers: Mapping[str, str], **content: Any) -> HttpResponse:
        tls = self._tls.current()
        async with self._session.request(
            method, url, headers=headers, allow_redirects=False, ssl=tls, **content
        ) as response:
            received = time.time()
            body = await read_bounded(response, self._bound)
            return HttpResponse(
                response.status, body, response.headers, clock_offset(response.headers.get("Date"), heard=received)
            )


async def read_bounded(response: aiohttp.ClientResponse, bound: AnswerBound) -> bytes:
    """The decompressed body; the body of an error response is truncated. Raises AnswerTooLarge."""
    return await (read_body(response, bound) if response.status == 200 else read_start(response))


# --- TLS -------------------------------------------------------------------------------------------------------------


class TlsContext:
    """TLS context of the settings, created again after its files changed, because certificates are rotated."""

    def __init__(self, config: TlsSettings, *, keys: str) -> None:
        self._config, self._keys = config, keys
        self._created: tuple[object, ssl.SSLContext] | None = None

    def current(self) -> ssl.SSLContext:
        """The context for the next connection. Raises ProviderRefused for unusable files."""
        config = self._config
        versions = [_file_version(path) for path in (config.ca_file, config.client_cert, config.client_key) if path]
        if self._created is None or self._created[0] != versions:
            self._created = (versions, self._create())
        return self._created[1]

    def _create(self) -> ssl.SSLContext:
        config = self._config
        files = config.ca_file
        try:
            context = client_context(ca_file=config.ca_file or None, insecure=config.insecure_skip_verify)
            if config.client_cert:
                files = f"{config.client_cert}, {config.client_key}".rstrip(", ")
                context.load_cert_chain(config.client_cert, config.client_key or None, password=_no_passphrase)
        except (OSError, ValueError) as error:
            keys = self._keys
            raise ProviderRefused(
                f"the TLS files cannot be used: {files}: {file_reason(error)}",
                hint=f"{keys}ca_file, {keys}client_cert and {keys}client_key must be PEM files; the key must match the"
                " certificate.",
            ) from error
        return context


def _file_version(path: str) -> object:
    """Changes whenever the file changes; None if it cannot be read."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def _no_passphrase() -> str:
    """Called for an encrypted key. Without it, OpenSSL would prompt on the terminal and block."""
    raise ValueError("the key is encrypted")


# --- errors below HTTP -----------------------------------------------------------------------------------------------


def provider_error_of(error: BaseException, *, url: str) -> ProviderError:
    """Convert a failure below HTTP of a request to this URL to a ProviderError. The message does not contain the
    address."""
    tls = url.startswith("https:")
    if isinstance(error, ProviderError):
        return error
    if isinstance(error, AnswerTooLarge):
        return ProviderMalformed(str(error), hint=TOO_LARGE_HINT)
    if isinstance(error, TimeoutError):
        if silent := unanswered([urlsplit(url).hostname or ""]):
            return ProviderTimeout(silent, hint=NAMES_HINT)
        return ProviderTimeout(
            "no response in time", hint="Check whether the server is overloaded, or increase provider.timeout."
        )
    if refused := tls_error(error):  # a retry fails in the same way
        names = {
            "authority": "provider.ca_file",
            "client": "provider.client_cert and provider.client_key",
            "address": "provider.address",
        }
        return ProviderRefused(tls_reason(refused), hint=tls_cure(refused, **names))
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        silent_lookup = isinstance(error.os_error, NameServerSilent)
        return ProviderUnreachable(
            name_problem(error), hint=NAMES_HINT if silent_lookup else "Check the host in provider.address."
        )
    if isinstance(error, aiohttp.ClientPayloadError) and "content-encoding" in str(error):
        return ProviderMalformed(
            "the response does not match its content encoding", hint="Check for a proxy in front of the server."
        )
    if isinstance(error, aiohttp.ClientResponseError):
        return ProviderMalformed(
            f"the response is not valid HTTP: {printable(error.message)}",
            hint="Check the port in provider.address, and whether the server requires https.",
        )
    return _of_connection(error, tls=tls)


def _of_connection(error: BaseException, *, tls: bool) -> ProviderUnreachable:
    hint = "Check that the server is running and that host and port of provider.address are correct."
    if not isinstance(error, aiohttp.ClientConnectorError):
        hint = "The connection was closed: check for a proxy in front of the server, or a restart."
        if tls:
            hint = "The server may require a client certificate: provider.client_cert."
    return ProviderUnreachable(f"the connection failed: {printable(_words(error))}", hint=hint)


def _words(error: BaseException) -> str:
    return system_reason(error) if isinstance(error, OSError) else type(error).__name__
