"""One HTTP exchange with a source through aiohttp: bounded in time and size, its failures put into words.

Each exchange has a total time, which a server that sends a byte a second does not stretch, and an upper bound on what
is read. Redirects are not followed, since credentials are for one address, and the environment's proxies are not used.
"""

from __future__ import annotations

import errno
import os
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import aiohttp
from aiohttp import hdrs

from watcher.platform.net.redaction import shown
from watcher.providers.base import ProviderError, ProviderMalformed, ProviderRefused, ProviderUnreachable
from watcher.providers.fetching import clock_offset

LINES = 4
"""Connections at a time."""
ERROR_BYTES = 1 << 16


class Verified(Protocol):
    """What of a configuration concerns TLS: paths of PEM files, "" for none."""

    @property
    def ca_file(self) -> str: ...
    @property
    def client_cert(self) -> str: ...
    @property
    def client_key(self) -> str: ...
    @property
    def insecure_skip_verify(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer with any status, whole, of an error only its beginning; `clock_offset_s` is the far clock minus ours,
    None where it does not tell."""

    status: int
    body: bytes
    headers: Mapping[str, str]
    clock_offset_s: float | None

    @property
    def content_type(self) -> str:
        """As the far side has it, "" where it does not tell."""
        return self.headers.get("Content-Type", "")


class Exchange:
    """Connections to one server. `timeout` (seconds) is for one exchange, from the connection to the last byte."""

    def __init__(self, *, tls: ssl.SSLContext, timeout: float, max_body_bytes: int) -> None:
        self._limit = max_body_bytes
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=LINES, ssl=tls),
            timeout=aiohttp.ClientTimeout(total=timeout),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        """Hang up."""
        await self._session.close()

    async def get(self, url: str, *, query: Mapping[str, str], headers: Mapping[str, str]) -> Answer:
        """Errors may be of any kind; `translated` knows them."""
        return await self._exchange("GET", url, headers, params=query)

    async def post(self, url: str, *, body: bytes, headers: Mapping[str, str]) -> Answer:
        """The same with a JSON document."""
        return await self._exchange("POST", url, {"Content-Type": "application/json", **headers}, data=body)

    async def _exchange(self, method: str, url: str, headers: Mapping[str, str], **content: Any) -> Answer:
        async with self._session.request(method, url, headers=headers, allow_redirects=False, **content) as response:
            heard = time.time()
            body = await read_bounded(response, limit=self._limit)
            return Answer(
                response.status, body, response.headers, clock_offset(response.headers.get("Date"), heard=heard)
            )


async def read_bounded(response: aiohttp.ClientResponse, *, limit: int) -> bytes:
    """The whole body, decompressed; of an error only its beginning. Raises ProviderMalformed above `limit` bytes, and
    then hangs up, as after any other failure."""
    limit = limit if response.status == 200 else ERROR_BYTES
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in response.content.iter_any():
            chunks.append(chunk)
            size += len(chunk)
            if size > limit and response.status == 200:
                raise ProviderMalformed(
                    f"its answer is larger than {limit >> 20} MiB", hint="Ask for fewer metrics: provider.metrics."
                )
            if size > limit:
                response.close()
                break
    except BaseException:
        response.close()
        raise
    return b"".join(chunks)


# --- what is sent ----------------------------------------------------------------------------------------------------


def tls_context(config: Verified) -> ssl.SSLContext:
    """How the connection is verified. Raises ProviderRefused for files that do not work."""
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


def _no_passphrase() -> str:
    """Asked for where a key is encrypted; without this OpenSSL would ask on the terminal, and wait."""
    raise ValueError("the key is encrypted")


def read_secret(setting: str, path: str) -> str:
    """What the file holds now, "" without a file: another process may have renewed it. Raises ProviderRefused."""
    if not path:
        return ""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text"
        raise ProviderRefused(f"{setting} {path} cannot be read: {reason}", hint=f"Check {setting}.") from error


def sendable(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers, if they can be sent; else ProviderRefused, before a library sees them, whose error would show
    their values."""
    for name, value in headers.items():
        if not (name + value).isascii() or not (name + value).isprintable():
            raise ProviderRefused(
                f"the header {name!r} cannot be sent",
                hint="Check provider.headers, and the token, for line breaks and letters beyond ASCII.",
            )
    return dict(headers)


def bearer(setting: str, path: str) -> dict[str, str]:
    """The header with the token that the file holds now, none without a file. Raises ProviderRefused."""
    token = read_secret(setting, path)
    return sendable({hdrs.AUTHORIZATION: f"Bearer {token}"} if token else {})


# --- what goes wrong below HTTP --------------------------------------------------------------------------------------


def translated(error: BaseException, *, tls: bool) -> ProviderError:
    """What a failure below HTTP means for the operator. The message lacks the address; `tls` says whether it was
    https."""
    if isinstance(error, ProviderError):
        return error
    if isinstance(error, TimeoutError):
        return ProviderUnreachable(
            "it does not answer in time", hint="Is it overloaded, or is provider.timeout too short for it?"
        )
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        reason = getattr(error.certificate_error, "verify_message", "") or str(error.certificate_error)
        return ProviderRefused(
            f"its certificate is not trusted: {shown(reason)}",
            hint="Set provider.ca_file to the authority that signed it, and ask under a name that it has.",
        )
    if cause := _tls_error(error):
        return _of_tls(cause)
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return ProviderUnreachable("its name cannot be resolved", hint="Check the host in provider.address.")
    if isinstance(error, aiohttp.ClientPayloadError) and "content-encoding" in str(error):
        return ProviderMalformed("its answer is not compressed as it says", hint="Is there a proxy before it?")
    if isinstance(error, aiohttp.ClientResponseError):
        return ProviderMalformed(
            f"its answer is not HTTP as it should be: {shown(error.message)}",
            hint="Is another service on the port in provider.address, or does it speak https?",
        )
    return _of_connection(error, tls=tls)


def _of_connection(error: BaseException, *, tls: bool) -> ProviderUnreachable:
    hint = "Is it running, and are host and port of provider.address right?"
    if not isinstance(error, aiohttp.ClientConnectorError):
        hint = "It hung up: is there a proxy before it, or was it ended meanwhile?"
        if tls:
            hint = "A server that wants a client certificate may hang up like this: provider.client_cert."
    return ProviderUnreachable(f"the connection failed: {shown(_words(error))}", hint=hint)


def _words(error: BaseException) -> str:
    """The operating system's own: asyncio has "Connect call failed" and the address in their place."""
    if not isinstance(error, OSError):
        return type(error).__name__
    if error.errno is not None and error.errno in errno.errorcode:
        return os.strerror(error.errno)
    return error.strerror or type(error).__name__


def _tls_error(error: BaseException | None) -> ssl.SSLError | None:
    """The TLS failure behind it, if one is; a connection that merely ended is none."""
    while error is not None:
        inner = getattr(error, "os_error", None) or error
        if isinstance(inner, ssl.SSLError) and not isinstance(inner, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
            return inner
        error = error.__cause__
    return None


def _of_tls(error: ssl.SSLError) -> ProviderError:
    """TLS will fail the same way each time, so all of it is a refusal."""
    reason = (error.reason or str(error)).lower().replace("_", " ")
    if "alert" in reason or "certificate required" in reason:
        return ProviderRefused(
            f"it ended the TLS handshake: {shown(reason)}",
            hint="It may want a client certificate, or another one: provider.client_cert and provider.client_key.",
        )
    if "wrong version number" in reason or "record layer" in reason or "http request" in reason:
        return ProviderRefused("it does not speak TLS", hint="Use http:// in provider.address.")
    return ProviderRefused(f"TLS failed: {shown(reason)}", hint="Check provider.ca_file and provider.client_cert.")
