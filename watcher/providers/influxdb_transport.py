"""Asking an InfluxDB over HTTP without ever waiting for it longer than was said, or reading more than was said.

Both query languages have a total time for each attempt, which a server that sends a byte a second does not stretch, and
an upper bound on what they read. Errors are translated here, once, into those of providers/base.py, and carry neither
credentials nor more than a few words of what the far side said.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import ParamSpec, Protocol, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from watcher.providers.base import ProviderError, ProviderMalformed, ProviderRefused, ProviderUnreachable
from watcher.providers.influxdb_answers import error_of, read_influxql
from watcher.providers.influxdb_endpoint import Endpoint
from watcher.providers.influxdb_loads import Points
from watcher.providers.influxdb_plans import InfluxConfig, Source, Template
from watcher.providers.prometheus_answers import shown

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

LINES = 4
ERROR_BYTES = 1 << 16
CLOCK_RESOLUTION_S = 1.5
"""A Date header has whole seconds, and an answer some way to go: smaller offsets mean nothing."""


@dataclass(frozen=True, slots=True)
class Body:
    """An answer with status 200, whole; `clock_offset_s` is the far clock minus ours, None where it does not tell."""

    content: bytes
    content_type: str
    clock_offset_s: float | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """The series of an answer."""

    series: Sequence[Points]
    clock_offset_s: float | None


class Language(Protocol):
    """One of the two query languages, with a connection of its own."""

    name: str

    async def ask(self, source: Source | Template, since: int, until: int) -> Body:
        """The answer for points between the two, unix milliseconds. Errors may be of any kind; `translated` knows."""
        ...

    def read(self, body: Body) -> list[Points]:
        """The series in it; slow, so not in the event loop. Raises ProviderError."""
        ...

    async def close(self) -> None: ...


# --- reading with a bound --------------------------------------------------------------------------------------------


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
                raise ProviderMalformed(f"its answer is larger than {limit >> 20} MiB")
            if size > limit:
                response.close()
                break
    except BaseException:
        response.close()
        raise
    return b"".join(chunks)


# --- InfluxQL --------------------------------------------------------------------------------------------------------


class InfluxQL:
    """The query language of 1.x, which 2.x and 3.x answer too, at /query."""

    name = "influxql"

    def __init__(self, config: InfluxConfig, endpoint: Endpoint) -> None:
        self._config, self._endpoint = config, endpoint
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=LINES, ssl=endpoint.tls()),
            timeout=aiohttp.ClientTimeout(total=config.timeout),
        )

    async def close(self) -> None:
        """Hang up."""
        await self._session.close()

    async def version(self) -> str:
        """What the server says it is, "" where it does not. Raises what `ask` raises."""
        _, headers = await self._get("/ping", {})
        if version := headers.get("X-Influxdb-Version", ""):
            return version
        body, _ = await self._get("/health", {})
        try:
            return msgspec.json.decode(body.content, type=_Health).version
        except (msgspec.DecodeError, UnicodeDecodeError):
            return ""

    async def ask(self, source: Source | Template, since: int, until: int) -> Body:
        """In chunks, since a server may cut at 10,000 rows what it is to send at once."""
        query = {"db": self._config.read_from, "q": source.influxql(since, until), "epoch": "ms", "chunked": "true"}
        body, _ = await self._get("/query", query)
        return body

    def read(self, body: Body) -> list[Points]:
        """One JSON document per series."""
        return read_influxql(body.content, content_type=body.content_type)

    async def _get(self, path: str, query: Mapping[str, str]) -> tuple[Body, Mapping[str, str]]:
        sent = self._endpoint.headers()
        async with self._session.get(
            self._endpoint.address + path, params=query, headers=sent, allow_redirects=False
        ) as response:
            heard = time.time()
            content = await read_bounded(response, limit=self._config.max_body_bytes)
            kind = response.headers.get("Content-Type", "")
            if response.status not in (200, 204):
                raise refusal(self._endpoint, response.status, content, response.headers, sent=sent)
            return Body(content, kind, clock_offset(response.headers.get("Date"), heard=heard)), response.headers


class _Health(msgspec.Struct, frozen=True):
    version: str = ""


def refusal(
    endpoint: Endpoint, status: int, body: bytes, headers: Mapping[str, str], *, sent: Mapping[str, str]
) -> ProviderError:
    """What an answer with this status means, without secrets."""
    return error_of(
        status,
        body=endpoint.scrub(body[:ERROR_BYTES].decode(errors="replace"), sent=sent).encode(),
        content_type=headers.get("Content-Type", ""),
        location=_without_credentials(headers.get("Location", "")),
        authorised="Authorization" in sent,
    )


def clock_offset(date: str | None, *, heard: float) -> float | None:
    """The far clock minus ours in seconds, 0 within what a Date header can tell, None without one."""
    if not date:
        return None
    try:
        offset = parsedate_to_datetime(date).timestamp() + 0.5 - heard
    except ValueError:
        return None
    return 0.0 if abs(offset) < CLOCK_RESOLUTION_S else offset


def _without_credentials(location: str) -> str:
    """Where a redirect leads: scheme, host and path."""
    try:
        parts = urlsplit(location)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return ""
    return f"{parts.scheme}://{host}{parts.path}" if host else parts.path


# --- translation of errors -------------------------------------------------------------------------------------------


def translated(error: BaseException, *, tls: bool) -> ProviderError:
    """What a failure below HTTP means for the operator. The message lacks the address."""
    if isinstance(error, ProviderError):
        return error
    if isinstance(error, TimeoutError):
        return ProviderUnreachable("it does not answer in time")
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
        return ProviderMalformed("its answer is not compressed as it says")
    if isinstance(error, aiohttp.ClientResponseError):
        return ProviderMalformed(f"its answer is not HTTP as it should be: {shown(error.message)}")
    hint = "A server that wants a client certificate may hang up like this: provider.client_cert." if tls else ""
    words = error.strerror if isinstance(error, OSError) and error.strerror else ""
    return ProviderUnreachable(f"the connection failed: {shown(words or type(error).__name__)}", hint=hint)


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


# --- asking ----------------------------------------------------------------------------------------------------------


class Transport:
    """Questions in, replies out, at most LINES at a time; the language is settled by the first."""

    def __init__(self, config: InfluxConfig) -> None:
        self._config = config
        self._endpoint = Endpoint(config)
        self._languages: list[Language] = []
        self._influxql: InfluxQL | None = None
        self._chosen: Language | None = None
        self._choosing = asyncio.Lock()
        self._free = asyncio.Semaphore(LINES)
        self._working = asyncio.Lock()

    @property
    def address(self) -> str:
        """Without credentials."""
        return self._endpoint.address

    def start(self) -> None:
        """Asks nothing."""
        if self._config.insecure_skip_verify:
            log.warning("the certificate of %s is not verified (provider.insecure_skip_verify)", self.address)

    async def close(self) -> None:
        """Hang up."""
        for language in self._languages:
            await language.close()
        self._languages, self._influxql, self._chosen = [], None, None

    def doubt(self) -> None:
        """After an outage the server may be of another version; found out again unless the settings say."""
        self._chosen = None

    async def aside(self, work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Do something slow in a thread, one such thing at a time: it needs Python's global lock anyway, and four
        threads at it would each make the event loop wait its turn."""
        async with self._working:
            return await asyncio.to_thread(work, *arguments, **options)

    async def ask(self, source: Source | Template, since: int, until: int, *, deadline: float) -> Reply:
        """The points between two times (unix milliseconds), inclusive.

        `deadline` is in the time of the event loop, and ends the retries of what a retry may help. Raises
        ProviderError; cancelling hangs up.
        """

        async def attempt() -> Reply:
            language = await self._language()
            async with self._free:
                body = await language.ask(source, since, until)
            return Reply(await self.aside(language.read, body), body.clock_offset_s)

        loop = asyncio.get_running_loop()
        for pause in (*self._config.backoff, None):
            try:
                return await self._attempt(attempt, deadline=deadline)
            except ProviderUnreachable:
                if pause is None or loop.time() + pause >= deadline:
                    raise
            await asyncio.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    async def _attempt(self, attempt: Callable[[], Awaitable[T]], *, deadline: float) -> T:
        try:
            async with asyncio.timeout_at(deadline):
                return await attempt()
        except (ProviderError, TimeoutError, OSError, aiohttp.ClientError) as error:
            told = translated(error, tls=self._endpoint.has_tls)
            raise type(told)(f"{self.address}: {told}", hint=told.hint) from error

    # --- which language ----------------------------------------------------------------------------------------------

    async def _language(self) -> Language:
        """The language to ask in. Raises ProviderRefused where it cannot be told."""
        async with self._choosing:
            if self._chosen is None:
                dialect, why = (self._config.dialect, "provider.dialect says so")
                if dialect is None:
                    dialect, why = await self._found_out()
                self._chosen = self._flux() if dialect == "flux" else self._plain()
                log.info("asking %s in %s, because %s", self.address, dialect, why)
            return self._chosen

    async def _found_out(self) -> tuple[str, str]:
        version = await self._plain().version()
        number = version.removeprefix("v")
        why = f"it is InfluxDB {shown(version)}"
        if number.startswith(("1.", "3.")):
            return "influxql", why
        if number.startswith("2.") or "cloud" in version.lower():
            if self._config.bucket is None:
                return "influxql", f"{why} and provider.bucket is not set"
            return "flux", f"{why} and provider.bucket is set"
        raise ProviderRefused(
            f"it does not say that it is an InfluxDB (version {shown(version) or 'unknown'})",
            hint='Check provider.address, or set provider.dialect to "influxql" (1.x, 3.x) or "flux" (2.x).',
        )

    def _plain(self) -> InfluxQL:
        if self._influxql is None:
            self._influxql = InfluxQL(self._config, self._endpoint)
            self._languages.append(self._influxql)
        return self._influxql

    def _flux(self) -> Language:
        for language in self._languages:
            if language.name == "flux":
                return language
        try:
            # Only where it is needed: it is an extra, and takes a third of a second to import.
            from watcher.providers.influxdb_flux import Flux
        except ImportError as error:
            raise ProviderRefused(
                f"the dialect flux needs a library that is not installed ({error.name})",
                hint='Install load-watcher[influxdb], or set provider.dialect to "influxql" and provider.database.',
            ) from error
        language = Flux(self._config, self._endpoint)
        self._languages.append(language)
        return language
