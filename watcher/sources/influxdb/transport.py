"""Queries to InfluxDB in the query language that the server supports.

watcher/sources/http.py limits time and size for both query languages, and converts errors.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from watcher.core.messages import install_extra, printable
from watcher.sources.errors import ProviderRefused
from watcher.sources.http import Credentials, SourceConnection
from watcher.sources.influxdb.cpu_load import Points
from watcher.sources.influxdb.influxql import InfluxQL, QueryLanguage
from watcher.sources.influxdb.queries import FieldQuery, QueryTemplate
from watcher.sources.influxdb.responses import error_of
from watcher.sources.settings import ProviderSettings

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class InfluxResponse:
    """The parsed series of a response; `clock_offset_s` is the server's clock minus the local clock in seconds."""

    series: Sequence[Points]
    clock_offset_s: float | None


# --- transport -------------------------------------------------------------------------------------------------------


class InfluxTransport:
    """Sends queries with at most MAX_CONNECTIONS at a time and returns parsed responses. The first query determines the
    query language."""

    def __init__(self, settings: ProviderSettings) -> None:
        self._settings = settings
        self._credentials = Credentials(settings, scheme="Token")
        self._connection = SourceConnection(settings, credentials=self._credentials.headers, refusal=error_of)
        self._languages: list[QueryLanguage] = []
        self._influxql: InfluxQL | None = None
        self._chosen: QueryLanguage | None = None
        self._choosing = asyncio.Lock()
        self.worker = self._connection.worker

    @property
    def address(self) -> str:
        """Address of the server; it contains no credentials."""
        return self._connection.address

    def start(self) -> None:
        """Log if TLS verification is disabled. Sends no request."""
        self._connection.start()

    async def close(self) -> None:
        """Close the connections of both languages."""
        for language in self._languages:
            await language.close()
        await self._connection.close()
        self._languages, self._influxql, self._chosen = [], None, None

    def doubt(self) -> None:
        """Determine the query language again, unless it is configured: after an outage the server may have another
        version."""
        self._chosen = None

    async def ask(
        self, source: FieldQuery | QueryTemplate, since: int, until: int, *, deadline: float
    ) -> InfluxResponse:
        """The points between two times (unix milliseconds), inclusive.

        `deadline` is in event loop time and limits the retries of transient failures. Raises ProviderError; cancelling
        aborts the request.
        """

        async def attempt() -> InfluxResponse:
            language = await self._language()
            body = await language.ask(source, since, until)
            return InfluxResponse(await self.worker.run(language.read, body), body.clock_offset_s)

        return await self._connection.retried(attempt, deadline=deadline)

    # --- choice of the query language --------------------------------------------------------------------------------

    async def _language(self) -> QueryLanguage:
        """The configured or detected query language. Raises ProviderRefused if it cannot be determined."""
        async with self._choosing:
            if self._chosen is None:
                dialect, why = (self._settings.dialect, "provider.dialect is set")
                if dialect is None:
                    dialect, why = await self._found_out()
                self._chosen = self._flux() if dialect == "flux" else self._plain()
                log.info("querying %s in %s: %s", self.address, dialect, why)
            return self._chosen

    async def _found_out(self) -> tuple[str, str]:
        version = await self._plain().version()
        number = version.removeprefix("v")
        why = f"the server is InfluxDB {printable(version)}"
        if number.startswith(("1.", "3.")):
            return "influxql", why
        if number.startswith("2.") or "cloud" in version.lower():
            if self._settings.bucket is None:
                return "influxql", f"{why} and provider.bucket is not set"
            return "flux", f"{why} and provider.bucket is set"
        raise ProviderRefused(
            f"the server is not recognised as InfluxDB (version {printable(version) or 'unknown'})",
            hint='Check provider.address, or set provider.dialect to "influxql" (1.x, 3.x) or "flux" (2.x).',
        )

    def _plain(self) -> InfluxQL:
        if self._influxql is None:
            self._influxql = InfluxQL(self._settings, self._connection)
            self._languages.append(self._influxql)
        return self._influxql

    def _flux(self) -> QueryLanguage:
        for language in self._languages:
            if language.name == "flux":
                return language
        try:
            # Imported on demand: an optional dependency, whose import takes a third of a second.
            from watcher.sources.influxdb.flux import Flux
        except ImportError as error:
            raise ProviderRefused(
                f"dialect flux needs a library that is not installed ({error.name})",
                hint=f"Set provider.dialect = 'influxql' and provider.database, or {install_extra('influxdb')}.",
            ) from error
        language = Flux(self._settings, self._connection, self._credentials)
        self._languages.append(language)
        return language
