"""Flux, the query language of InfluxDB 2.x, through InfluxData's client library.

The library sends the requests. Its parsers are not used: they create an object for each row in the event loop, and do
not limit the size of a response. The library is configured with a response class that limits the size, returns the raw
text, and responses.py parses the text in a worker thread.
"""

from __future__ import annotations

from typing import Any

import aiohttp
from influxdb_client.client.influxdb_client_async import InfluxDBClientAsync
from influxdb_client.rest import ApiException

from watcher.platform.net.http_body import answer_bound, read_bounded
from watcher.platform.net.session import client_session
from watcher.sources.errors import ProviderMalformed, ProviderRefused
from watcher.sources.http import MAX_CONNECTIONS, Credentials, HttpResponse, SourceConnection, TlsContext
from watcher.sources.influxdb.cpu_load import Points
from watcher.sources.influxdb.influxql import RawResponse
from watcher.sources.influxdb.queries import FieldQuery, QueryTemplate
from watcher.sources.influxdb.responses import read_flux
from watcher.sources.settings import ProviderSettings


class Flux:
    """Sends Flux queries to /api/v2/query."""

    def __init__(self, settings: ProviderSettings, connection: SourceConnection, credentials: Credentials) -> None:
        if not settings.bucket or not settings.org:
            lacking = "provider.org" if settings.bucket else "provider.bucket"
            raise ProviderRefused(
                f"{lacking} is not set, but Flux requires it",
                hint='Set provider.bucket and provider.org, or provider.dialect = "influxql" and provider.database.',
            )
        self._bucket, self._username = settings.bucket, settings.username or ""
        self._connection, self._credentials = connection, credentials
        bound = answer_bound(settings.max_body_bytes)

        class Response(aiohttp.ClientResponse):
            """Response with a limit on the body size."""

            async def read(self) -> bytes:
                return await read_bounded(self, bound)

        def session(connector: aiohttp.TCPConnector, **options: Any) -> aiohttp.ClientSession:
            """A session with our resolver; `connector` has that of the library."""
            return client_session(tls=tls, connector={"limit": MAX_CONNECTIONS}, **options)

        tls = TlsContext(settings).current()
        # Any, because the package is marked as typed, but only half of it is.
        self._client: Any = InfluxDBClientAsync(
            connection.address,
            org=settings.org,
            timeout=aiohttp.ClientTimeout(total=settings.timeout),
            allow_redirects=False,
            client_session_type=session,
            client_session_kwargs={"response_class": Response},
        )

    async def close(self) -> None:
        """Close the library's HTTP session."""
        await self._client.close()

    async def ask(self, source: FieldQuery | QueryTemplate, since: int, until: int) -> RawResponse:
        """Send a query and return the annotated CSV."""
        for name, value in self._headers().items():
            self._client.api_client.set_default_header(name, value)
        query = source.flux(since, until, bucket=self._bucket)
        try:
            text = await self._client.query_api().query_raw(query)
        except UnicodeDecodeError as error:
            raise ProviderMalformed("the response is not CSV: it is not valid UTF-8") from error
        except ApiException as error:
            raise self._connection.refused(_response_of(error)) from error
        return RawResponse(text.encode(), "text/csv")

    def _headers(self) -> dict[str, str]:
        """Headers for Flux, which supports tokens only. InfluxDB 1.8 accepts `user:password` as a token."""
        headers = self._connection.headers()
        if headers.get("Authorization", "").startswith("Basic "):
            headers["Authorization"] = f"Token {self._username}:{self._credentials.password()}"
        return headers

    def read(self, body: RawResponse) -> list[Points]:
        """Parse the CSV, which has one table per series and field."""
        return read_flux(body.content, content_type=body.content_type)


def _response_of(error: Any) -> HttpResponse:
    """The response behind the library's error."""
    body = error.body or b""
    return HttpResponse(
        error.status or 0, body if isinstance(body, bytes) else str(body).encode(), error.headers or {}, None
    )
