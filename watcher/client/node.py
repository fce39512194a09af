"""The client for one node: what an agent asks for."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

import msgspec

from watcher.client.arrays import operator_of
from watcher.client.connection import BACKOFF_S, RETRIES, TIMEOUT_S, Connection, Document, malformed
from watcher.client.errors import WatcherError
from watcher.core.publishing.wire import WatcherDocument
from watcher.model import Operator


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """What the watcher tells of one node, immutable. `values[(name, operator, window)]` is a number and the label of
    the window that it really covers: a shorter one where there are not enough samples for the one asked for. The node's
    own newest sample is of `born`, in the time of the monotonic clock, and at the latest."""

    node: str
    source: str
    values: Mapping[tuple[str, Operator, str], tuple[float, str]]
    born: float

    def age(self, monotonic: float) -> float:
        """Seconds since the node's newest sample, at that moment of the monotonic clock."""
        return monotonic - self.born


class NodeClient:
    """The client over HTTP for one node's windows: a small answer for each window, however many nodes there are. It
    keeps no copy and asks when it is told to. The arguments are those of `WatcherClient`; `windows` are labels."""

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
    ) -> None:
        self._node = node
        self._monotonic = monotonic
        url = f"{address.rstrip('/')}/watcher/{quote(node, safe='')}"
        asked = [("operator", str(operator)) for operator in operators]
        self._documents = {label: Document(url, [("window", label), *asked]) for label in windows}
        self._connection = Connection(
            token=token, tls=tls, timeout=timeout, retries=retries, backoff=backoff, monotonic=monotonic
        )

    async def close(self) -> None:
        """Hang up."""
        await self._connection.close()

    async def refresh(self) -> NodeLoad:
        """Ask for all windows. Raises WatcherError."""
        values: dict[tuple[str, Operator, str], tuple[float, str]] = {}
        born, source = self._monotonic(), ""
        for label, document in self._documents.items():
            answer = await self._connection.ask(document, known=None)
            try:
                read = msgspec.json.decode(answer.body, type=WatcherDocument)
            except msgspec.DecodeError as error:
                raise malformed("node", document, error) from error
            if len(read.data.NodeMetricsMap) != 1:
                raise WatcherError("malformed", f"{document.url} answered for {len(read.data.NodeMetricsMap)} nodes")
            (node,) = read.data.NodeMetricsMap.values()
            for metric in node.metrics:
                values[(metric.name, operator_of(metric.operator), label)] = (metric.value, metric.rollup)
            source = read.source
            # The answer's age is that of the newest sample of all nodes; this node's own may be older.
            born = min(born, answer.asked - answer.age - max(0.0, float(read.window.end - node.sampled)))
        return NodeLoad(self._node, source, values, born)
