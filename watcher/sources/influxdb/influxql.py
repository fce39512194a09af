"""InfluxQL, the query language of InfluxDB 1.x, over HTTP."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from watcher.decoding.json_text import decode_json
from watcher.sources.http import SourceConnection
from watcher.sources.influxdb.cpu_load import Points
from watcher.sources.influxdb.queries import FieldQuery, QueryTemplate, database_of
from watcher.sources.influxdb.responses import read_influxql
from watcher.sources.settings import ProviderSettings


@dataclass(frozen=True, slots=True)
class RawResponse:
    """Complete response with status 200; `clock_offset_s` is the server's clock minus the local clock in seconds,
    None if unknown."""

    content: bytes
    content_type: str
    clock_offset_s: float | None = None


class InfluxQL:
    """The query language of InfluxDB 1.x at /query, which 2.x and 3.x also support."""

    def __init__(self, settings: ProviderSettings, connection: SourceConnection) -> None:
        self._settings, self._connection = settings, connection

    async def version(self) -> str:
        """Version reported by the server, "" if it reports none. Raises the same errors as `ask`."""
        if version := (await self._connection.get("/ping", {})).headers.get("X-Influxdb-Version", ""):
            return version
        answer = await self._connection.get("/health", {})
        try:
            return decode_json(answer.body, type=_Health).version
        except msgspec.DecodeError:
            return ""

    async def ask(self, source: FieldQuery | QueryTemplate, since: int, until: int) -> RawResponse:
        """The response with the points between two times (unix milliseconds), with chunking, because a server may
        truncate an unchunked response at 10,000 rows. May raise any aiohttp error."""
        database = database_of(self._settings)
        query = {"db": database, "q": source.influxql(since, until), "epoch": "ms", "chunked": "true"}
        answer = await self._connection.get("/query", query)
        return RawResponse(answer.body, answer.content_type, answer.clock_offset_s)

    def read(self, body: RawResponse) -> list[Points]:
        """Parse a body with one JSON document per series. Slow, so it must not run in the event loop. Raises
        ProviderError."""
        return read_influxql(body.content, content_type=body.content_type)


class _Health(msgspec.Struct, frozen=True):
    version: str = ""
