"""HTTP requests to the server of a source, with credentials, retries, limits on time and size, and readable errors.

Each request has a total timeout, which a slow server cannot extend, and a maximum response size. Redirects are not
followed, because credentials are valid for one address only. Proxy settings of the environment are ignored.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import math
import os
import re
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

import aiohttp
import msgspec
from aiohttp import hdrs

from watcher import __version__
from watcher.core.config.values import Secret
from watcher.core.messages import hide_secrets
from watcher.decoding.text import read_text
from watcher.platform.net.date_header import clock_offset
from watcher.platform.net.http_body import answer_bound, read_bounded
from watcher.platform.net.loopback import is_loopback
from watcher.platform.net.redaction import release_frames, without_credentials
from watcher.platform.net.session import client_session
from watcher.platform.net.tls import client_context, file_reason
from watcher.sources.config import ConnectionSettings
from watcher.sources.errors import ProviderError, ProviderRefused, ProviderUnreachable, provider_error_of, with_address

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

MAX_CONNECTIONS = 4
"""Maximum number of concurrent connections."""
MAX_RETRY_AFTER_S = 900.0
"""Upper bound of a delay requested by a source, in seconds. The longest window would be empty by then."""
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"|[!-~]([ -~]*[!-~])?")
MIN_SECRET = 8
"""Shortest value of a configured header that is treated as a secret. Shorter values, such as a tenant's number, would
remove words from messages."""


# --- credentials -----------------------------------------------------------------------------------------------------


def read_secret(setting: str, path: Path | None, given: Secret | None = None) -> str:
    """The secret `given` in the settings, otherwise the current content of the file without surrounding whitespace, ""
    if neither is set. Read on every call, because secrets are rotated. Raises ProviderRefused."""
    if given is not None or path is None:
        return "" if given is None else given.reveal()
    try:
        return read_text(path).strip()
    except (OSError, msgspec.DecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not valid UTF-8"
        raise ProviderRefused(f"{setting} {path} cannot be read: {reason}", hint=f"Check {setting}.") from error


def sendable(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers, if all can be sent. Raises ProviderRefused otherwise: the library's own error would contain the
    values."""
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise ProviderRefused(
                f"the header {name!r} cannot be sent",
                hint="Check provider.headers, and the token, for spaces, line breaks and non-ASCII characters.",
            )
    return dict(headers)


def bearer(setting: str, path: Path | None) -> dict[str, str]:
    """Authorization header with the current token of the file; empty if no file is set. Raises ProviderRefused."""
    token = read_secret(setting, path)
    return sendable({hdrs.AUTHORIZATION: f"Bearer {token}"} if token else {})


class Credentials:
    """Authorization header from the current token, or from user name and password: `scheme` is that of the token.
    Credentials in the address are used if none are configured."""

    def __init__(self, settings: ConnectionSettings, *, scheme: str = "Bearer") -> None:
        parts = _split(settings.address or "", f"{settings.keys}address")
        self._settings, self._scheme = settings, scheme
        self._username = settings.username or unquote(parts.username or "")
        self._password = settings.password or (Secret(unquote(parts.password)) if parts.password else None)

    def headers(self) -> dict[str, str]:
        """The header; empty without credentials. Raises ProviderRefused for a file that cannot be read."""
        settings = self._settings
        if token := read_secret(f"{settings.keys}token_file", settings.token_file, settings.token):
            return {hdrs.AUTHORIZATION: f"{self._scheme} {token}"}
        if self._username:
            pair = f"{self._username}:{self.password()}"
            return {hdrs.AUTHORIZATION: "Basic " + base64.b64encode(pair.encode()).decode()}
        return {}

    def password(self) -> str:
        """The current password. Raises ProviderRefused for a file that cannot be read."""
        return read_secret(f"{self._settings.keys}password_file", self._settings.password_file, self._password)


def _secrets_in(headers: Mapping[str, str]) -> Iterator[str]:
    """The secrets in headers with credentials: values, tokens, and the password of basic authentication."""
    for value in headers.values():
        scheme, _, credentials = value.rpartition(" ")
        yield credentials
        if scheme == "Basic":
            yield base64.b64decode(credentials).decode(errors="replace").partition(":")[2]


# --- retries ---------------------------------------------------------------------------------------------------------


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Delay in seconds requested by a rate-limiting source, at most MAX_RETRY_AFTER_S; None if not stated.
    Retry-After has seconds or a date (RFC 9110, 10.2.3), X-RateLimit-Reset seconds (Datadog)."""
    for name in ("Retry-After", "X-RateLimit-Reset"):
        seconds = _seconds(headers.get(name, ""), date=headers.get("Date", ""))
        if seconds is not None:
            return min(max(seconds, 0.0), MAX_RETRY_AFTER_S)
    return None


def _seconds(text: str, *, date: str) -> float | None:
    """Seconds from a header value that is a number or a date relative to `date`; None if it is neither."""
    with contextlib.suppress(ValueError):
        seconds = float(text)
        return seconds if math.isfinite(seconds) else None
    with contextlib.suppress(ValueError, TypeError):  # TypeError: only one of the two has a time zone
        return (parsedate_to_datetime(text) - parsedate_to_datetime(date)).total_seconds()
    return None


async def _with_retries(attempt: Callable[[], Awaitable[T]], *, pauses: Sequence[float], deadline: float) -> T:
    """Result of `attempt`, retried after each pause (seconds) while it raises ProviderUnreachable; a longer pause
    requested by the source takes precedence.

    `deadline` is in event loop time. A retry that would start after it is not made.
    """
    loop = asyncio.get_running_loop()
    for pause in (*pauses, None):
        try:
            return await attempt()
        except ProviderError as error:
            release_frames(error)
            if pause is None or not isinstance(error, ProviderUnreachable):
                raise
            pause = max(pause, error.retry_after_s or 0.0)
            if loop.time() + pause >= deadline:
                raise
        await asyncio.sleep(pause)
    raise AssertionError("the last attempt returns or raises")


class SerialWorker:
    """Runs slow functions in a worker thread, one at a time. The functions hold Python's global lock; several
    threads at once would delay the event loop further."""

    def __init__(self) -> None:
        self._free = asyncio.Lock()

    async def run(self, work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Call `work` in a worker thread and return its result."""
        async with self._free:
            return await asyncio.to_thread(work, *arguments, **options)


# --- TLS -------------------------------------------------------------------------------------------------------------


class TlsContext:
    """TLS context of the settings, created again after its files changed, because certificates are rotated."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings
        self._created: tuple[object, ssl.SSLContext] | None = None

    def current(self) -> ssl.SSLContext:
        """The context for the next connection. Raises ProviderRefused for unusable files."""
        settings = self._settings
        files = (settings.authorities, settings.client_cert, settings.client_key)
        versions = [_file_version(path) for path in files if path]
        if self._created is None or self._created[0] != versions:
            self._created = (versions, self._create())
        return self._created[1]

    def _create(self) -> ssl.SSLContext:
        settings = self._settings
        files = str(settings.authorities or "")
        try:
            context = client_context(ca_file=settings.authorities, insecure=settings.insecure_skip_verify)
            if settings.client_cert:
                files = ", ".join(str(each) for each in (settings.client_cert, settings.client_key) if each)
                context.load_cert_chain(settings.client_cert, settings.client_key, password=_no_passphrase)
        except (OSError, ValueError) as error:
            keys = settings.keys
            raise ProviderRefused(
                f"the TLS files cannot be used: {files}: {file_reason(error)}",
                hint=f"{keys}ca_file, {keys}client_cert and {keys}client_key must be PEM files; the key must match the"
                " certificate.",
            ) from error
        return context


def _file_version(path: Path) -> object:
    """Changes whenever the file changes; None if it cannot be read."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def _no_passphrase() -> str:
    """Called for an encrypted key. Without it, OpenSSL would prompt on the terminal and block."""
    raise ValueError("the key is encrypted")


# --- connection ------------------------------------------------------------------------------------------------------


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


class SourceConnection:
    """Requests to one server, at most MAX_CONNECTIONS at a time.

    `credentials` returns the authentication headers and is called for every request. `refusal` converts a response
    with another status than 200 or 204; its second argument is the redirect target without credentials, its third
    states whether credentials were sent. Raises ValueError, naming the setting, for an invalid address.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        *,
        credentials: Callable[[], Mapping[str, str]],
        refusal: Callable[[HttpResponse, str, bool], ProviderError],
    ) -> None:
        parts = _split(settings.address or "", f"{settings.keys}address")
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        port = f":{parts.port}" if parts.port else ""
        self.address = f"{parts.scheme}://{host}{port}{parts.path.rstrip('/')}"
        """The address without credentials."""
        self._settings, self._credentials, self._refusal = settings, credentials, refusal
        # Compression to a local server costs more time than it saves (measured: 1.0 s with it, 0.31 s without).
        encoding = "identity" if is_loopback(parts.hostname or "") else "gzip"
        more = {name: value.reveal() for name, value in settings.headers.items()}
        self._own = {"User-Agent": f"load-watcher/{__version__}", "Accept-Encoding": encoding, **more}
        self._secrets = [each.reveal() for each in (settings.token, settings.password) if each]
        self._secrets += [value for value in more.values() if len(value) >= MIN_SECRET]
        self._sent: Mapping[str, str] = {}
        self._tls, self._bound = TlsContext(settings), answer_bound(settings.max_body_bytes)
        self._session: aiohttp.ClientSession | None = None
        self._free = asyncio.Semaphore(MAX_CONNECTIONS)
        self.worker = SerialWorker()
        """Parses responses beside the event loop."""

    def start(self) -> None:
        """Log if TLS verification is disabled. Sends no request."""
        if self._settings.insecure_skip_verify:
            log.warning(
                "the certificate of %s is not verified (%sinsecure_skip_verify)", self.address, self._settings.keys
            )

    async def close(self) -> None:
        """Close the connections, if any; requests in progress fail."""
        if self._session is not None:
            await self._session.close()
        self._session = None

    async def retried(self, attempt: Callable[[], Awaitable[T]], *, deadline: float) -> T:
        """Result of `attempt`, which sends requests and parses the responses, with retries of transient failures until
        `deadline` (event loop time). Raises ProviderError with the address and without secrets. Cancelling aborts the
        requests."""

        async def converted() -> T:
            try:
                async with asyncio.timeout_at(deadline), self._free:
                    return await attempt()
            except (ProviderError, TimeoutError, OSError, ValueError, aiohttp.ClientError) as error:
                message = provider_error_of(error, url=self.address)
                raise with_address(message, self.address, scrub=self.scrub) from error

        return await _with_retries(converted, pauses=self._settings.backoff, deadline=deadline)

    async def get(self, path: str, query: Mapping[str, str]) -> HttpResponse:
        """Send a GET request. Raises ProviderError for a refusal, and any aiohttp error: call it within `retried`."""
        return await self._exchange("GET", path, self.headers(), params=query)

    async def post(self, path: str, body: bytes) -> HttpResponse:
        """Send a POST request with a JSON body; otherwise like `get`."""
        return await self._exchange("POST", path, {"Content-Type": "application/json", **self.headers()}, data=body)

    async def _exchange(self, method: str, path: str, headers: Mapping[str, str], **content: Any) -> HttpResponse:
        if self._session is None:
            self._session = client_session(
                connector={"limit": MAX_CONNECTIONS},
                timeout=aiohttp.ClientTimeout(total=self._settings.timeout),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        tls, url = self._tls.current(), self.address + path
        async with self._session.request(
            method, url, headers=headers, allow_redirects=False, ssl=tls, **content
        ) as response:
            received = time.time()
            body = await read_bounded(response, self._bound)
        offset = clock_offset(response.headers.get("Date"), heard=received)
        answer = HttpResponse(response.status, body, response.headers, offset)
        if answer.status not in (200, 204):
            raise self.refused(answer)
        return answer

    def headers(self) -> dict[str, str]:
        """All headers of a request, with the current credentials. Raises ProviderRefused."""
        self._sent = self._credentials()
        return sendable({**self._own, **self._sent})

    def refused(self, answer: HttpResponse) -> ProviderError:
        """Convert a response with an error status, without secrets."""
        body = self.scrub(answer.body.decode(errors="replace")).encode()
        clean = HttpResponse(answer.status, body, answer.headers, answer.clock_offset_s)
        location = without_credentials(answer.headers.get("Location", ""))
        error = self._refusal(clean, location, bool(self._sent))
        if isinstance(error, ProviderUnreachable):
            error.retry_after_s = retry_after(answer.headers)
        return error

    def scrub(self, text: str) -> str:
        """Remove the last sent credentials and the values of configured headers from a remote text, because some error
        pages contain the request."""
        return hide_secrets(text, (*_secrets_in(self._sent), *self._secrets))


def _split(address: str, setting: str) -> SplitResult:
    """Parts of a valid address. The error does not contain the address, because it may contain a password."""
    try:
        parts = urlsplit(address)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise ValueError(f"{setting} is not a URL: {type(error).__name__}") from None
    if not usable or parts.query or parts.fragment:
        raise ValueError(f"{setting} must have the form http://prometheus:9090 or https://host/path, without a query")
    if not _is_host(parts.hostname or ""):
        raise ValueError(f"{setting} has a host name that is not valid")
    return parts


def _is_host(name: str) -> bool:
    """Whether the name can be that of a host, or is an address of IP version 6 with or without a zone."""
    if ":" in name:
        return True
    with contextlib.suppress(UnicodeError):
        return bool(name.encode("idna")) and not any(each.isspace() or each == "%" for each in name)
    return False
