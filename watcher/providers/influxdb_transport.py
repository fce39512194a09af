"""Asking an InfluxDB over HTTP without ever waiting for it longer than was said, or reading more than was said.

Both query languages are bounded as exchange.py has it. Errors leave here as those of providers/base.py, and carry
neither credentials nor more than a few words of what the far side said.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import aiohttp
import msgspec

from watcher.providers.asking import Aside, placed, retried, shown, wait_of, without_credentials
from watcher.providers.base import ProviderError, ProviderRefused, ProviderUnreachable
from watcher.providers.exchange import ERROR_BYTES, LINES, Answer, Exchange, tls_context, translated
from watcher.providers.influxdb_answers import error_of, read_influxql
from watcher.providers.influxdb_endpoint import Endpoint
from watcher.providers.influxdb_loads import Points
from watcher.providers.influxdb_plans import InfluxConfig, Source, Template

log = logging.getLogger(__name__)

T = TypeVar("T")


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


# --- InfluxQL --------------------------------------------------------------------------------------------------------


class InfluxQL:
    """The query language of 1.x, which 2.x and 3.x answer too, at /query."""

    name = "influxql"

    def __init__(self, config: InfluxConfig, endpoint: Endpoint) -> None:
        self._config, self._endpoint = config, endpoint
        self._exchange = Exchange(tls=tls_context(config), timeout=config.timeout, max_body_bytes=config.max_body_bytes)

    async def close(self) -> None:
        """Hang up."""
        await self._exchange.close()

    async def version(self) -> str:
        """What the server says it is, "" where it does not. Raises what `ask` raises."""
        if version := (await self._get("/ping", {})).headers.get("X-Influxdb-Version", ""):
            return version
        answer = await self._get("/health", {})
        try:
            return msgspec.json.decode(answer.body, type=_Health).version
        except (msgspec.DecodeError, UnicodeDecodeError):
            return ""

    async def ask(self, source: Source | Template, since: int, until: int) -> Body:
        """In chunks, since a server may cut at 10,000 rows what it is to send at once."""
        query = {"db": self._config.read_from, "q": source.influxql(since, until), "epoch": "ms", "chunked": "true"}
        answer = await self._get("/query", query)
        return Body(answer.body, answer.content_type, answer.clock_offset_s)

    def read(self, body: Body) -> list[Points]:
        """One JSON document per series."""
        return read_influxql(body.content, content_type=body.content_type)

    async def _get(self, path: str, query: Mapping[str, str]) -> Answer:
        sent = self._endpoint.headers()
        answer = await self._exchange.get(self._endpoint.address + path, query=query, headers=sent)
        if answer.status not in (200, 204):
            raise refusal(self._endpoint, answer.status, answer.body, answer.headers, sent=sent)
        return answer


class _Health(msgspec.Struct, frozen=True):
    version: str = ""


def refusal(
    endpoint: Endpoint, status: int, body: bytes, headers: Mapping[str, str], *, sent: Mapping[str, str]
) -> ProviderError:
    """What an answer with this status means, without secrets."""
    error = error_of(
        status,
        body=endpoint.scrub(body[:ERROR_BYTES].decode(errors="replace")).encode(),
        content_type=headers.get("Content-Type", ""),
        location=without_credentials(headers.get("Location", "")),
        authorised="Authorization" in sent,
    )
    if isinstance(error, ProviderUnreachable):
        error.retry_after_s = wait_of(headers)
    return error


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
        self.aside = Aside()

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

    async def ask(self, source: Source | Template, since: int, until: int, *, deadline: float) -> Reply:
        """The points between two times (unix milliseconds), inclusive.

        `deadline` is in the time of the event loop, and ends the retries of what a retry may help. Raises
        ProviderError; cancelling hangs up.
        """

        async def attempt() -> Reply:
            language = await self._language()
            async with self._free:
                body = await language.ask(source, since, until)
            return Reply(await self.aside.do(language.read, body), body.clock_offset_s)

        return await retried(
            lambda: self._attempt(attempt, deadline=deadline), pauses=self._config.backoff, deadline=deadline
        )

    async def _attempt(self, attempt: Callable[[], Awaitable[T]], *, deadline: float) -> T:
        try:
            async with asyncio.timeout_at(deadline):
                return await attempt()
        except (ProviderError, TimeoutError, OSError, aiohttp.ClientError) as error:
            told = translated(error, tls=self._endpoint.has_tls)
            raise placed(told, self.address, scrub=self._endpoint.scrub) from error

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
