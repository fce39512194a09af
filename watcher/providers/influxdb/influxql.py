"""InfluxQL, the query language of InfluxDB 1.x, over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from watcher.platform.net.redaction import without_credentials
from watcher.providers.base import ProviderError, ProviderUnreachable
from watcher.providers.fetching import wait_of
from watcher.providers.http_client import ERROR_BYTES, Answer, Exchange, tls_context
from watcher.providers.influxdb.cpu_load import Points
from watcher.providers.influxdb.endpoint import Endpoint
from watcher.providers.influxdb.queries import InfluxConfig, Source, Template
from watcher.providers.influxdb.responses import error_of, read_influxql


@dataclass(frozen=True, slots=True)
class Body:
    """An answer with status 200, whole; `clock_offset_s` is the far clock minus ours, None where it does not tell."""

    content: bytes
    content_type: str
    clock_offset_s: float | None = None


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
