"""The client that uses the watcher's HTTP API."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from dataclasses import replace

import msgspec

from watcher.client.arrays import (
    Columns,
    NodeSilence,
    PodColumns,
    decode_columns,
    decode_pods,
    to_columns,
    to_pods,
    to_silence,
)
from watcher.client.connection import BACKOFF_S, RETRIES, TIMEOUT_S, ApiConnection, DocumentRequest, Received, malformed
from watcher.client.description import ServiceDescription
from watcher.client.polling import POLL_S, Client
from watcher.core.koordinator.aggregates import KOORDLET
from watcher.core.windows.silent_nodes import SilentDocument
from watcher.decoding.json_text import decode_json
from watcher.model import MetricType, Operator
from watcher.platform.http.parameters import MOST_MINUTES


class WatcherClient(Client):
    """The HTTP client: one conditional GET per renewal, with gzip.

    `address` is the watcher's base URL; `window`, `types`, `operators` and `horizon` select as in the API (None or "":
    the API's defaults); `usages` adds koordlet's usages. `pods` also stores a copy of pod usage, which makes the
    watcher collect it; `minutes` adds the readings of each minute to it. `token` is sent as bearer token; `tls` sets a
    private certificate authority or a client certificate for https. `interval`, `timeout` and `backoff` are in seconds.
    """

    def __init__(
        self,
        address: str,
        *,
        window: str | None = None,
        types: tuple[MetricType, ...] | None = None,
        operators: tuple[Operator, ...] | None = None,
        horizon: str = "",
        usages: bool = False,
        pods: bool = False,
        minutes: bool = False,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        interval: float = POLL_S,
        timeout: float = TIMEOUT_S,
        retries: int = RETRIES,
        backoff: float = BACKOFF_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(pods=pods, interval=interval, monotonic=monotonic)
        base = address.rstrip("/") + "/api/v1"
        self._columns = DocumentRequest(
            f"{base}/columns",
            [
                *([("window", window)] if window else []),
                *(("type", str(kind)) for kind in types or ()),
                *(("operator", str(operator)) for operator in operators or ()),
                *([("horizon", horizon)] if horizon else []),
                *([("aggregate", KOORDLET)] if usages else []),
            ],
        )
        self._pod_columns = DocumentRequest(f"{base}/pods", [("minutes", str(MOST_MINUTES))] if minutes else ())
        self._overview = DocumentRequest(f"{base}/overview")
        self._silent = DocumentRequest(f"{base}/silent")
        self._connection = ApiConnection(
            token=token, tls=tls, timeout=timeout, retries=retries, backoff=backoff, monotonic=monotonic
        )

    async def close(self) -> None:
        """Stop renewing and close the connection."""
        await super().close()
        await self._connection.close()

    async def refresh(self) -> Columns:
        """Request the columns. On failure, raises WatcherError and keeps the previous copy."""
        received = await self._connection.get(self._columns, known=self._nodes.copy)
        if received.unchanged and self._nodes.copy is not None:
            copy = replace(self._nodes.copy, received=received.requested_at, age_at_receipt=received.age)
        else:
            copy = await asyncio.to_thread(self._decode_columns, received)
        self._nodes.copy, self._columns.etag = copy, received.etag
        return copy

    async def refresh_silence(self) -> NodeSilence:
        """Request the silent nodes. Raises WatcherError."""
        received = await self._connection.get(self._silent, known=None)
        try:
            return to_silence(decode_json(received.body, type=SilentDocument))
        except msgspec.DecodeError as error:
            raise malformed("silent nodes", self._silent, error) from error

    async def refresh_pods(self) -> PodColumns:
        """Request the pods. On failure, raises WatcherError and keeps the previous copy."""
        received = await self._connection.get(self._pod_columns, known=self._pods.copy)
        if received.unchanged and self._pods.copy is not None:
            copy = replace(self._pods.copy, received=received.requested_at, age_at_receipt=received.age)
        else:
            copy = await asyncio.to_thread(self._decode_pods, received)
        self._pods.copy, self._pod_columns.etag = copy, received.etag
        return copy

    async def describe(self) -> ServiceDescription:
        """Request the description of the service, which is available in every state of it. Raises WatcherError."""
        received = await self._connection.get(self._overview, known=None)
        try:
            return decode_json(received.body, type=ServiceDescription)
        except msgspec.DecodeError as error:
            raise malformed("overview", self._overview, error) from error

    def _decode_columns(self, received: Received) -> Columns:
        try:
            document = decode_columns(received.body)
        except msgspec.DecodeError as error:
            raise malformed("columns", self._columns, error) from error
        return to_columns(document, received=received.requested_at, age_at_receipt=received.age)

    def _decode_pods(self, received: Received) -> PodColumns:
        try:
            document = decode_pods(received.body)
        except msgspec.DecodeError as error:
            raise malformed("pods", self._pod_columns, error) from error
        return to_pods(document, received=received.requested_at, age_at_receipt=received.age)
