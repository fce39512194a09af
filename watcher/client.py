"""The client of the watcher API: what the scorers, the agent and the tools use to read node load.

A scheduler asks for scores hundreds of times a second and must never wait for the network in between. So a client keeps
the last good copy of the columns, renews it in the background, and answers from memory. What it answers with carries
its age, and it refuses to answer with anything older than the caller can bear: old load is a reason to score without
metrics, not to pretend.

Two clients, one interface: `WatcherClient` over HTTP, `InProcessClient` beside the service in one process. Both make
their `Columns` from the same document, so that nobody can tell them apart.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Protocol, Self

import aiohttp
import msgspec
import numpy as np

from watcher.model import F64, ColumnsDocument, ErrorDocument, MetricType, Operator, Window
from watcher.publish import Published, Selection, columns

log = logging.getLogger(__name__)

POLL_S = 30.0  # as often as the Trimaran plug-ins poll
TIMEOUT_S = 10.0
RETRIES = 2
BACKOFF_S = 0.5
MAX_AGE_S = 300.0
_PASSING = frozenset({408, 429, 500, 502, 504})  # worth another try; 503 is an answer (stale, partial outage)


class WatcherError(Exception):
    """The watcher could not answer. `code` is the API's ("stale", "no_metrics", ...), "unreachable" where no answer
    came at all, "too_old" where the last good copy is older than asked for; `hint` says what to do."""

    def __init__(self, code: str, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Columns:
    """One snapshot as arrays over n nodes, immutable, the arrays too. Times are unix seconds.

    `values[(name, operator)]` [n] is NaN where absent; `rollup` the seconds of the window that each value covers (0 for
    Latest). `sampled[name]` [n] is the time of each node's newest sample of that metric. `received` is the monotonic
    time of receipt and `age_at_receipt` how old the newest sample was then, both seconds.
    """

    timestamp: int
    window_end: int
    source: str
    nodes: tuple[str, ...]
    row: Mapping[str, int]
    values: Mapping[tuple[str, Operator], F64]
    rollup: Mapping[tuple[str, Operator], F64]
    types: Mapping[str, str]
    units: Mapping[str, str]
    sampled: Mapping[str, F64]
    smoothing_s: Mapping[str, float]
    age_s: F64
    received: float
    age_at_receipt: float

    def of_type(self, metric_type: str, operator: Operator) -> F64:
        """The first metric of a type (CPU and Memory have one), NaN where absent; [n]."""
        for (name, known), values in self.values.items():
            if known is operator and self.types[name] == metric_type:
                return values
        return np.full(len(self.nodes), np.nan)

    def age(self, monotonic: float) -> float:
        """Seconds since the newest sample of all, at that moment of the monotonic clock."""
        return self.age_at_receipt + monotonic - self.received


def to_columns(document: ColumnsDocument, *, received: float, age_at_receipt: float) -> Columns:
    """Arrays from the document of GET /api/v1/columns. A metric that some nodes have from a shorter window becomes one
    array, with the window of each value in `rollup`. Raises WatcherError for a document that contradicts itself."""
    size = len(document.nodes)
    values: dict[tuple[str, Operator], F64] = {}
    rollup: dict[tuple[str, Operator], F64] = {}
    for column in document.columns:
        key = (column.name, _operator(column.operator))
        part = _array(column.values, size)
        known = ~np.isnan(part)
        whole = values.setdefault(key, np.full(size, np.nan))
        covered = rollup.setdefault(key, np.full(size, np.nan))
        whole[known] = part[known]
        covered[known] = _seconds(column.window)
    for array in (*values.values(), *rollup.values()):
        array.flags.writeable = False
    return Columns(
        timestamp=document.timestamp,
        window_end=document.window_end,
        source=document.source,
        nodes=tuple(document.nodes),
        row={name: row for row, name in enumerate(document.nodes)},
        values=values,
        rollup=rollup,
        types={column.name: column.type for column in document.columns},
        units={column.name: column.unit for column in document.columns},
        sampled={name: _array(times, size) for name, times in document.sampled.items()},
        smoothing_s=document.smoothing_s,
        age_s=_array(document.age_s, size),
        received=received,
        age_at_receipt=age_at_receipt,
    )


def _array(values: list[float | None], size: int) -> F64:
    if len(values) != size:
        raise WatcherError("malformed", f"a column has {len(values)} values for {size} nodes")
    array = np.array(values, dtype=np.float64) if size else np.empty(0)  # None becomes NaN
    array.flags.writeable = False
    return array


def _operator(name: str) -> Operator:
    try:
        return Operator(name)
    except ValueError:
        raise WatcherError("malformed", f"not an operator: {name[:40]!r}", hint="is the watcher a newer one?") from None


def _seconds(label: str) -> float:
    """Seconds of a window's label ("15m", "90s", "1h"); 0 for "", the label of Latest."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    if not label:
        return 0.0
    try:
        return float(label[:-1]) * units[label[-1]]
    except (KeyError, ValueError):
        raise WatcherError("malformed", f"not the label of a window: {label[:40]!r}") from None


class Client(Protocol):
    """What users of the watcher code against; both clients below satisfy it."""

    async def start(self) -> None:
        """Begin to renew the copy in the background; the first renewal is tried now, and may fail."""
        ...

    async def refresh(self) -> Columns:
        """Renew the copy now. Raises WatcherError, and then keeps the copy it had."""
        ...

    def latest(self, *, max_age: float = MAX_AGE_S) -> Columns:
        """The last good copy, from memory. Raises WatcherError if there is none or it is older than `max_age` s."""
        ...

    async def close(self) -> None:
        """Stop renewing, release connections."""
        ...


class _Renewing(ABC):
    """The common half: a copy, its age, and the task that renews it."""

    def __init__(self, *, interval: float, monotonic: Callable[[], float]) -> None:
        self._interval = interval
        self._monotonic = monotonic
        self._copy: Columns | None = None
        self._failure: WatcherError | None = None
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    async def refresh(self) -> Columns:
        """Renew the copy now."""

    async def start(self) -> None:
        """Begin to renew the copy in the background; the first renewal is tried now, and may fail."""
        await self._try()
        self._task = asyncio.create_task(self._renew(), name="watcher-client")

    async def close(self) -> None:
        """Stop renewing."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def latest(self, *, max_age: float = MAX_AGE_S) -> Columns:
        """The last good copy, from memory. Raises WatcherError if there is none or it is older than `max_age` s."""
        if self._copy is None:
            raise self._failure or WatcherError("no_metrics", "the watcher has not answered yet")
        age = self._copy.age(self._monotonic())
        if age > max_age:
            why = f": {self._failure}" if self._failure else ""
            raise WatcherError("too_old", f"the newest sample is {age:.0f} s old, more than {max_age:g} s{why}")
        return self._copy

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            await self._try()

    async def _try(self) -> None:
        try:
            await self.refresh()
        except WatcherError as error:
            if self._failure is None:
                log.warning("the watcher does not answer: %s. %s", error, error.hint)
            self._failure = error
        else:
            if self._failure is not None:
                log.info("the watcher answers again")
            self._failure = None


class WatcherClient(_Renewing):
    """The client over HTTP: one GET per renewal, 304 where nothing is new, gzip on the way.

    `address` is the watcher's base address; `window`, `types` and `operators` select as in the API (None: its
    defaults). `token` is sent as bearer token; `tls` is for https with an authority or client certificate of one's own.
    """

    def __init__(
        self,
        address: str,
        *,
        window: str | None = None,
        types: tuple[MetricType, ...] | None = None,
        operators: tuple[Operator, ...] | None = None,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        interval: float = POLL_S,
        timeout: float = TIMEOUT_S,
        retries: int = RETRIES,
        backoff: float = BACKOFF_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(interval=interval, monotonic=monotonic)
        self._url = address.rstrip("/") + "/api/v1/columns"
        self._params = [
            *([("window", window)] if window else []),
            *(("type", str(kind)) for kind in types or ()),
            *(("operator", str(operator)) for operator in operators or ()),
        ]
        self._headers = {"Accept-Encoding": "gzip"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._tls: ssl.SSLContext | bool = tls if tls is not None else True
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._retries = retries
        self._backoff = backoff
        self._session: aiohttp.ClientSession | None = None
        self._etag: str | None = None

    async def close(self) -> None:
        """Stop renewing, and close the connection."""
        await super().close()
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def refresh(self) -> Columns:
        """Ask the watcher. Raises WatcherError, and then keeps the copy it had."""
        for attempt in range(self._retries + 1):
            try:
                return await self._ask()
            except _Passing as passing:
                if attempt == self._retries:
                    raise passing.error from passing.__cause__
                await asyncio.sleep(self._backoff * 2**attempt)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _ask(self) -> Columns:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        headers = dict(self._headers)
        if self._etag is not None and self._copy is not None:
            headers["If-None-Match"] = self._etag
        asked = self._monotonic()  # the answer is as old as it was when it was made, which may be as early as this
        try:
            async with self._session.get(
                self._url, params=self._params, headers=headers, timeout=self._timeout, ssl=self._tls
            ) as response:
                body = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = str(error) or type(error).__name__
            hint = "check the address, and that the watcher runs"
            raise _Passing(WatcherError("unreachable", f"no answer from {self._url}: {reason}", hint=hint)) from error
        return self._understand(response.status, response.headers, body, asked=asked)

    def _understand(self, status: int, headers: Mapping[str, str], body: bytes, *, asked: float) -> Columns:
        age = _age(headers)
        if status == 304 and self._copy is not None:
            self._copy = replace(self._copy, received=asked, age_at_receipt=age)
            return self._copy
        if status != 200:
            error = _error(status, body, self._url)
            raise _Passing(error) if status in _PASSING else error
        try:
            document = msgspec.json.decode(body, type=ColumnsDocument)
        except msgspec.DecodeError as error:
            raise WatcherError("malformed", f"not a columns document from {self._url}: {error}") from error
        self._copy = to_columns(document, received=asked, age_at_receipt=age)
        self._etag = headers.get("ETag")
        return self._copy


class _Passing(Exception):
    """A failure that may be gone in a moment."""

    def __init__(self, error: WatcherError) -> None:
        super().__init__(str(error))
        self.error = error


def _age(headers: Mapping[str, str]) -> float:
    """How old the answer says it is, at most: Age counts whole seconds, rounded down."""
    text = headers.get("Age", "")
    return int(text) + 1.0 if text.isascii() and text.isdigit() else 0.0


def _error(status: int, body: bytes, url: str) -> WatcherError:
    try:
        detail = msgspec.json.decode(body, type=ErrorDocument).error
    except msgspec.DecodeError:
        hint = "is this the address of a load-watcher?"
        return WatcherError("malformed", f"status {status} from {url} without an error document", hint=hint)
    return WatcherError(detail.code, detail.message, hint=detail.hint)


class InProcessClient(_Renewing):
    """The client beside the service: reads what is published, makes no request. `published` returns the current one,
    `window` is the one served by default there, `max_staleness` (seconds) what it refuses to serve."""

    def __init__(
        self,
        published: Callable[[], Published | None],
        *,
        window: Window,
        types: tuple[MetricType, ...] | None = None,
        operators: tuple[Operator, ...] | None = None,
        max_staleness: float = MAX_AGE_S,
        interval: float = POLL_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(interval=interval, monotonic=monotonic)
        self._max_staleness = max_staleness
        self._published = published
        self._selection = Selection(window, types, operators)
        self._tag: str | None = None

    async def refresh(self) -> Columns:
        """Take over what is published now, in a thread. Raises WatcherError where nothing is, or only a remnant."""
        published = self._published()
        if published is None:
            raise WatcherError("no_metrics", "no metrics yet", hint="the first tick has not finished")
        if (age := published.age(self._monotonic())) > self._max_staleness:
            raise WatcherError("stale", f"the newest sample is {age:.0f} s old, more than {self._max_staleness:g} s")
        if published.snapshot.lost:
            lost = len(published.snapshot.lost)
            raise WatcherError("partial_outage", f"{lost} known nodes went silent together; the rest is a remnant")
        if not published.snapshot.nodes:
            raise WatcherError("no_metrics", "there are no metrics of any node", hint="/api/v1/findings may say why")
        if self._copy is None or self._tag != published.tag:
            self._copy = await asyncio.to_thread(self._take, published)
            self._tag = published.tag
        return self._copy

    def _take(self, published: Published) -> Columns:
        document = columns(published.snapshot, self._selection)
        if not any(value is not None for column in document.columns for value in column.values):
            raise WatcherError("no_metrics", "there are no metrics of the types and operators asked for")
        return to_columns(document, received=published.monotonic, age_at_receipt=published.age_s)
