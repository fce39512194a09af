"""InfluxQL, the query language of InfluxDB 1.x, over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from watcher.platform.net.decoding import decode_json
from watcher.platform.net.http_body import ERROR_BYTES
from watcher.platform.net.redaction import without_credentials
from watcher.providers.base import ProviderError, ProviderUnreachable
from watcher.providers.fetching import retry_after
from watcher.providers.http_client import HttpClient, HttpResponse, tls_context
from watcher.providers.influxdb.cpu_load import Points
from watcher.providers.influxdb.endpoint import InfluxEndpoint
from watcher.providers.influxdb.queries import FieldQuery, InfluxConfig, QueryTemplate
from watcher.providers.influxdb.responses import error_of, read_influxql


@dataclass(frozen=True, slots=True)
class RawResponse:
    """Complete response with status 200; `clock_offset_s` is the server's clock minus the local clock in seconds,
    None if unknown."""

    content: bytes
    content_type: str
    clock_offset_s: float | None = None


class QueryLanguage(Protocol):
    """Protocol of the two query languages. Each has its own connections."""

    name: str

    async def ask(self, source: FieldQuery | QueryTemplate, since: int, until: int) -> RawResponse:
        """Response with the points between the two times (unix milliseconds). May raise any aiohttp error;
        `translated` converts them."""
        ...

    def read(self, body: RawResponse) -> list[Points]:
        """Parse the series. Slow, so it must not run in the event loop. Raises ProviderError."""
        ...

    async def close(self) -> None: ...


class InfluxQL:
    """The query language of InfluxDB 1.x at /query, which 2.x and 3.x also support."""

    name = "influxql"

    def __init__(self, config: InfluxConfig, endpoint: InfluxEndpoint) -> None:
        self._config, self._endpoint = config, endpoint
        self._exchange = HttpClient(
            tls=tls_context(config), timeout=config.timeout, max_body_bytes=config.max_body_bytes
        )

    async def close(self) -> None:
        """Close the HTTP session and its connections."""
        await self._exchange.close()

    async def version(self) -> str:
        """Version reported by the server, "" if it reports none. Raises the same errors as `ask`."""
        if version := (await self._get("/ping", {})).headers.get("X-Influxdb-Version", ""):
            return version
        answer = await self._get("/health", {})
        try:
            return decode_json(answer.body, type=_Health).version
        except msgspec.DecodeError:
            return ""

    async def ask(self, source: FieldQuery | QueryTemplate, since: int, until: int) -> RawResponse:
        """Send a query with chunking, because a server may truncate an unchunked response at 10,000 rows."""
        query = {"db": self._config.read_from, "q": source.influxql(since, until), "epoch": "ms", "chunked": "true"}
        answer = await self._get("/query", query)
        return RawResponse(answer.body, answer.content_type, answer.clock_offset_s)

    def read(self, body: RawResponse) -> list[Points]:
        """Parse a body with one JSON document per series."""
        return read_influxql(body.content, content_type=body.content_type)

    async def _get(self, path: str, query: Mapping[str, str]) -> HttpResponse:
        sent = self._endpoint.headers()
        answer = await self._exchange.get(self._endpoint.address + path, query=query, headers=sent)
        if answer.status not in (200, 204):
            raise refusal(self._endpoint, answer.status, answer.body, answer.headers, sent=sent)
        return answer


class _Health(msgspec.Struct, frozen=True):
    version: str = ""


def refusal(
    endpoint: InfluxEndpoint, status: int, body: bytes, headers: Mapping[str, str], *, sent: Mapping[str, str]
) -> ProviderError:
    """Convert a response with an error status, without secrets."""
    error = error_of(
        status,
        body=endpoint.scrub(body[:ERROR_BYTES].decode(errors="replace")).encode(),
        content_type=headers.get("Content-Type", ""),
        location=without_credentials(headers.get("Location", "")),
        authorised="Authorization" in sent,
    )
    if isinstance(error, ProviderUnreachable):
        error.retry_after_s = retry_after(headers)
    return error
