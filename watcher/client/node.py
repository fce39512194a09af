"""The client for the load of one node, used by the agent."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

import msgspec

from watcher.client.connection import BACKOFF_S, RETRIES, TIMEOUT_S, ApiConnection, DocumentRequest, malformed
from watcher.client.document_values import operator_of
from watcher.client.errors import WatcherError
from watcher.core.publishing.wire import WatcherDocument
from watcher.decoding.json_text import decode_json
from watcher.model import Operator
from watcher.platform.net.date_header import clock_offset


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """The load of one node as reported by the watcher, immutable. `values[(name, operator, window)]` is the value and
    the label of the window that it covers, which is shorter than the requested window if there are not enough samples.
    `sampled_at` is the latest possible time of the node's newest sample, in seconds of the monotonic clock. By the Date
    header of the response, the sample is `ahead_s` ahead of the watcher's clock (negative: behind), and the watcher's
    clock is `clock_offset_s` ahead of that of this machine (negative: behind), in seconds; 0 without the header."""

    node: str
    source: str
    values: Mapping[tuple[str, Operator, str], tuple[float, str]]
    sampled_at: float
    ahead_s: float = 0.0
    clock_offset_s: float = 0.0

    def age(self, monotonic: float) -> float:
        """Seconds between the node's newest sample and `monotonic` (seconds of the monotonic clock)."""
        return monotonic - self.sampled_at


class NodeClient:
    """The HTTP client for the windows of one node: one small response per window, independent of the cluster size. It
    stores no copy and sends requests only in `refresh`. The arguments are those of `WatcherClient`; `windows` are
    labels."""

    def __init__(
        self,
        address: str,
        node: str,
        *,
        windows: Sequence[str],
        operators: tuple[Operator, ...],
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        timeout: float = TIMEOUT_S,
        retries: int = RETRIES,
        backoff: float = BACKOFF_S,
        monotonic: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._node = node
        self._monotonic = monotonic
        self._clock = clock
        url = f"{address.rstrip('/')}/watcher/{quote(node, safe='')}"
        asked = [("operator", str(operator)) for operator in operators]
        self._documents = {label: DocumentRequest(url, [("window", label), *asked]) for label in windows}
        self._connection = ApiConnection(
            token=token, tls=tls, timeout=timeout, retries=retries, backoff=backoff, monotonic=monotonic
        )

    async def close(self) -> None:
        """Close the HTTP session, if it is open."""
        await self._connection.close()

    async def refresh(self) -> NodeLoad:
        """Request all windows, one after the other. Raises WatcherError."""
        values: dict[tuple[str, Operator, str], tuple[float, str]] = {}
        born, source, ahead, offset = self._monotonic(), "", 0.0, 0.0
        for label, document in self._documents.items():
            answer = await self._connection.get(document, known=None)
            try:
                read = decode_json(answer.body, type=WatcherDocument)
            except msgspec.DecodeError as error:
                raise malformed("node", document, error) from error
            if len(read.data.NodeMetricsMap) != 1:
                raise WatcherError("malformed", f"{document.url} returned {len(read.data.NodeMetricsMap)} nodes")
            (node,) = read.data.NodeMetricsMap.values()
            for metric in node.metrics:
                values[(metric.name, operator_of(metric.operator), label)] = (metric.value, metric.rollup)
            source = read.source
            # The age of the response is that of the newest sample of all nodes; this node's may be older.
            born = min(born, answer.requested_at - answer.age - max(0.0, float(read.window.end - node.sampled)))
            heard = self._clock()
            offset = clock_offset(answer.date, heard=heard) or 0.0
            if answer.date is not None:
                ahead = max(ahead, float(node.sampled) - heard - offset)
        return NodeLoad(self._node, source, values, born, ahead, offset)
