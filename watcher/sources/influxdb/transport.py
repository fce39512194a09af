"""Queries to InfluxDB in the query language that the server supports.

watcher/sources/http.py limits time and size for both query languages, and converts errors.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from watcher.core.messages import install_extra, printable
from watcher.sources.errors import ProviderRefused
from watcher.sources.http import Credentials, SourceConnection
from watcher.sources.influxdb.cpu_load import Points
from watcher.sources.influxdb.influxql import InfluxQL
from watcher.sources.influxdb.queries import FieldQuery, QueryTemplate
from watcher.sources.influxdb.responses import error_of
from watcher.sources.settings import ProviderSettings

if TYPE_CHECKING:
    from watcher.sources.influxdb.flux import Flux

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class InfluxResponse:
    """The parsed series of a response; `clock_offset_s` is the server's clock minus the local clock in seconds."""

    series: Sequence[Points]
    clock_offset_s: float | None


# --- transport -------------------------------------------------------------------------------------------------------


class InfluxTransport(SourceConnection):
    """Sends queries with at most MAX_CONNECTIONS at a time and returns parsed responses. The first query determines the
    query language."""

    def __init__(self, settings: ProviderSettings) -> None:
        self._login = Credentials(settings, scheme="Token")
        super().__init__(settings, credentials=self._login.headers, refusal=error_of)
        self._influx = settings
        self._influxql = InfluxQL(settings, self)
        self._flux: Flux | None = None
        self._chosen: InfluxQL | Flux | None = None
        self._choosing = asyncio.Lock()

    async def close(self) -> None:
        """Close the connections of both languages."""
        if self._flux is not None:
            await self._flux.close()
        await super().close()
        self._flux = self._chosen = None

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

        return await self.retried(attempt, deadline=deadline)

    # --- choice of the query language --------------------------------------------------------------------------------

    async def _language(self) -> InfluxQL | Flux:
        """The configured or detected query language. Raises ProviderRefused if it cannot be determined."""
        async with self._choosing:
            if self._chosen is None:
                dialect, why = (self._influx.dialect, "provider.dialect is set")
                if dialect is None:
                    dialect, why = await self._found_out()
                self._chosen = self._flux_client() if dialect == "flux" else self._influxql
                log.info("querying %s in %s: %s", self.address, dialect, why)
            return self._chosen

    async def _found_out(self) -> tuple[str, str]:
        version = await self._influxql.version()
        number = version.removeprefix("v")
        why = f"the server is InfluxDB {printable(version)}"
        if number.startswith(("1.", "3.")):
            return "influxql", why
        if number.startswith("2.") or "cloud" in version.lower():
            if self._influx.bucket is None:
                return "influxql", f"{why} and provider.bucket is not set"
            return "flux", f"{why} and provider.bucket is set"
        raise ProviderRefused(
            f"the server is not recognised as InfluxDB (version {printable(version) or 'unknown'})",
            hint='Check provider.address, or set provider.dialect to "influxql" (1.x, 3.x) or "flux" (2.x).',
        )

    def _flux_client(self) -> Flux:
        if self._flux is None:
            try:
                # Imported on demand: an optional dependency, whose import takes a third of a second.
                from watcher.sources.influxdb.flux import Flux
            except ImportError as error:
                raise ProviderRefused(
                    f"dialect flux needs a library that is not installed ({error.name})",
                    hint=f"Set provider.dialect = 'influxql' and provider.database, or {install_extra('influxdb')}.",
                ) from error
            self._flux = Flux(self._influx, self, self._login)
        return self._flux
