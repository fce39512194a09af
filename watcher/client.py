"""The client of the watcher API: what the scorers, the agent and the tools use to read node load.

A scheduler asks for scores hundreds of times a second and must never wait for the network in between. So a client keeps
the last good copy of the columns, renews it in the background, and answers from memory. What it answers with carries
its age, and it refuses to answer with anything older than the caller can bear: old load is a reason to score without
metrics, not to pretend.

Two clients, one interface: `WatcherClient` over HTTP, `InProcessClient` beside the service in one process. Both make
their `Columns` and `Pods` from the same documents, so that nobody can tell them apart. Pods are a copy of their own:
their failures are not those of the nodes.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec
import numpy as np

from watcher.model import (
    F64,
    I64,
    ColumnsDocument,
    ErrorDocument,
    MetricType,
    Operator,
    PodsDocument,
    Snapshot,
    WatcherDocument,
    Window,
)
from watcher.node_metrics import NodeUsages
from watcher.pods import Pod, PublishedPods, by_node
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
    time of receipt and `age_at_receipt` how old the newest sample was then, both seconds. `usages` are those of the
    same snapshot by koordlet's rules; only the client beside the service has them, where it was told to."""

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
    usages: NodeUsages | None = None

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


@dataclass(frozen=True, slots=True)
class Pods:
    """What each of n pods uses, as arrays in the order of namespace and name; immutable, the arrays too.

    `sampled` [n] is the time of each pod's newest reading, unix seconds, as its source gave it: what lies after it is
    not in the numbers. `cores` and `memory` (bytes) [n] are NaN where the source does not say; it averages cores over
    `cores_span_s` seconds, and `memory_kind` is "rss" or "working_set". `average[window's label]` is the mean (cores,
    memory) over that window. `on_node` has the rows of each node. A new reading comes every `every_s` seconds.
    `recent` is one reading (cores, memory) a minute over the longest window, each [minutes, n], NaN where there is
    none; None from a client over HTTP, since the document does not have them.
    """

    timestamp: int
    source: str
    every_s: float
    cores_span_s: float
    memory_kind: str
    pods: tuple[Pod, ...]
    nodes: tuple[str, ...]
    row: Mapping[Pod, int]
    on_node: Mapping[str, I64]
    sampled: F64
    cores: F64
    memory: F64
    average: Mapping[str, tuple[F64, F64]]
    received: float
    age_at_receipt: float
    recent: tuple[F64, F64] | None = None

    def age(self, monotonic: float) -> float:
        """Seconds since the newest reading of all, at that moment of the monotonic clock."""
        return self.age_at_receipt + monotonic - self.received


def to_pods(document: PodsDocument, *, received: float, age_at_receipt: float) -> Pods:
    """Arrays from the document of GET /api/v1/pods. Raises WatcherError for a document that contradicts itself."""
    size = len(document.pod)
    if not size == len(document.namespace) == len(document.node):
        raise WatcherError("malformed", f"there are {size} pods, but not as many namespaces or nodes")
    shared: dict[str, str] = {}  # the decoder makes a text of its own for each pod
    namespaces = (shared.setdefault(name, name) for name in document.namespace)
    pods = tuple(zip(namespaces, document.pod, strict=True))
    nodes = tuple(shared.setdefault(name, name) for name in document.node)
    return Pods(
        timestamp=document.timestamp,
        source=document.source,
        every_s=document.every_s,
        cores_span_s=document.cores_span_s,
        memory_kind=document.bytes_kind,
        pods=pods,
        nodes=nodes,
        row={pod: row for row, pod in enumerate(pods)},
        on_node=by_node(nodes),
        sampled=_array(document.time, size),
        cores=_array(document.cores, size),
        memory=_array(document.bytes, size),
        average={each.window: (_array(each.cores, size), _array(each.bytes, size)) for each in document.averages},
        received=received,
        age_at_receipt=age_at_receipt,
    )


_POD_COLUMNS = {each.name: each.type for each in msgspec.structs.fields(PodsDocument)}


def _read_pods(body: bytes) -> PodsDocument:
    """The document, decoded a column at a time: a decoder does not let others run until it is done. Raises
    msgspec.DecodeError."""
    raw = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    missing = sorted(_POD_COLUMNS.keys() - raw.keys())
    if missing:
        raise msgspec.ValidationError(f"it lacks {', '.join(missing)}")
    return PodsDocument(**{name: msgspec.json.decode(raw[name], type=kind) for name, kind in _POD_COLUMNS.items()})


def _array(values: Sequence[float | None], size: int) -> F64:
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

    async def refresh_pods(self) -> Pods:
        """Renew the copy of pods now. Raises WatcherError, and then keeps the copy it had."""
        ...

    def latest_pods(self, *, max_age: float = MAX_AGE_S) -> Pods:
        """The last good copy of pods, likewise; there is one where the client was told to keep it (`pods`)."""
        ...

    async def close(self) -> None:
        """Stop renewing, release connections."""
        ...


CopyT = TypeVar("CopyT", Columns, Pods)


class _Copy(Generic[CopyT]):
    """The last good copy of something, and why there is no newer one."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.copy: CopyT | None = None
        self.failure: WatcherError | None = None

    async def renew(self, refresh: Callable[[], Awaitable[CopyT]]) -> None:
        """Try to; the log has the first failure in a row, and its end."""
        try:
            await refresh()
        except WatcherError as error:
            if self.failure is None:
                log.warning("the watcher does not answer for %s: %s. %s", self.what, error, error.hint)
            self.failure = error
        else:
            if self.failure is not None:
                log.info("the watcher answers for %s again", self.what)
            self.failure = None

    def latest(self, *, monotonic: float, max_age: float) -> CopyT:
        """The copy, if it is young enough."""
        if self.copy is None:
            raise self.failure or WatcherError("no_metrics", "the watcher has not answered yet")
        age = self.copy.age(monotonic)
        if age > max_age:
            why = f": {self.failure}" if self.failure else ""
            raise WatcherError("too_old", f"the newest sample is {age:.0f} s old, more than {max_age:g} s{why}")
        return self.copy


class _Renewing(ABC):
    """The common half: the copies, and the task that renews them."""

    def __init__(self, *, pods: bool, interval: float, monotonic: Callable[[], float]) -> None:
        self._interval = interval
        self._monotonic = monotonic
        self._nodes: _Copy[Columns] = _Copy("nodes")
        self._pods: _Copy[Pods] = _Copy("pods")
        self._keeps_pods = pods
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    async def refresh(self) -> Columns:
        """Renew the copy now."""

    @abstractmethod
    async def refresh_pods(self) -> Pods:
        """Renew the copy of pods now."""

    async def start(self) -> None:
        """Begin to renew the copies in the background; the first renewal is tried now, and may fail."""
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
        return self._nodes.latest(monotonic=self._monotonic(), max_age=max_age)

    def latest_pods(self, *, max_age: float = MAX_AGE_S) -> Pods:
        """The same of pods."""
        if self._pods.copy is None and not self._keeps_pods:
            raise _no_copy_of_pods()
        return self._pods.latest(monotonic=self._monotonic(), max_age=max_age)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            await self._try()

    async def _try(self) -> None:
        await self._nodes.renew(self.refresh)
        if self._keeps_pods:
            await self._pods.renew(self.refresh_pods)


def _no_copy_of_pods() -> WatcherError:
    return WatcherError("no_pods", "this client keeps no copy of pods", hint="give it `pods` when you make it")


@dataclass(slots=True)
class _Document:
    """One that is asked for again and again: where it is, and which one we have."""

    url: str
    params: Sequence[tuple[str, str]] = ()
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class _Received:
    """An answer with status 200 or 304. `asked` is the monotonic time of the question: it is as old as it was when it
    was made, which may be as early as that; `age` what it says of its age."""

    unchanged: bool
    body: bytes
    etag: str | None
    asked: float
    age: float


class _Connection:
    """Asks the watcher over HTTP: retries what passes, and translates every failure."""

    def __init__(
        self,
        *,
        token: str | None,
        tls: ssl.SSLContext | None,
        timeout: float,
        retries: int,
        backoff: float,
        monotonic: Callable[[], float],
    ) -> None:
        self._headers = {"Accept-Encoding": "gzip"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._tls: ssl.SSLContext | bool = tls if tls is not None else True
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._retries = retries
        self._backoff = backoff
        self._monotonic = monotonic
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Hang up."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def ask(self, document: _Document, *, known: object) -> _Received:
        """The answer for a document; `known` is the copy that is at hand, None without. Raises WatcherError."""
        for attempt in range(self._retries + 1):
            try:
                return await self._ask_once(document, known=known)
            except _Passing as passing:
                if attempt == self._retries:
                    raise passing.error from passing.__cause__
                await asyncio.sleep(self._backoff * 2**attempt)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _ask_once(self, document: _Document, *, known: object) -> _Received:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        headers = dict(self._headers)
        if document.etag is not None and known is not None:
            headers["If-None-Match"] = document.etag
        asked = self._monotonic()
        try:
            async with self._session.get(
                document.url, params=document.params, headers=headers, timeout=self._timeout, ssl=self._tls
            ) as response:
                body = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = str(error) or type(error).__name__
            hint = "check the address, and that the watcher runs"
            told = WatcherError("unreachable", f"no answer from {document.url}: {reason}", hint=hint)
            raise _Passing(told) from error
        unchanged = response.status == 304 and known is not None
        if response.status != 200 and not unchanged:
            refused = _error(response.status, body, document.url)
            raise _Passing(refused) if response.status in _PASSING else refused
        etag = document.etag if unchanged else response.headers.get("ETag")
        return _Received(unchanged, body, etag, asked, _age(response.headers))


class WatcherClient(_Renewing):
    """The client over HTTP: one GET per renewal, 304 where nothing is new, gzip on the way.

    `address` is the watcher's base address; `window`, `types` and `operators` select as in the API (None: its
    defaults). `pods` keeps a copy of what pods use too, which has the watcher ask its source for it. `token` is sent as
    bearer token; `tls` is for https with an authority or client certificate of one's own.
    """

    def __init__(
        self,
        address: str,
        *,
        window: str | None = None,
        types: tuple[MetricType, ...] | None = None,
        operators: tuple[Operator, ...] | None = None,
        pods: bool = False,
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
        self._columns = _Document(
            f"{base}/columns",
            [
                *([("window", window)] if window else []),
                *(("type", str(kind)) for kind in types or ()),
                *(("operator", str(operator)) for operator in operators or ()),
            ],
        )
        self._pod_columns = _Document(f"{base}/pods")
        self._connection = _Connection(
            token=token, tls=tls, timeout=timeout, retries=retries, backoff=backoff, monotonic=monotonic
        )

    async def close(self) -> None:
        """Stop renewing, and close the connection."""
        await super().close()
        await self._connection.close()

    async def refresh(self) -> Columns:
        """Ask the watcher. Raises WatcherError, and then keeps the copy it had."""
        received = await self._connection.ask(self._columns, known=self._nodes.copy)
        if received.unchanged and self._nodes.copy is not None:
            copy = replace(self._nodes.copy, received=received.asked, age_at_receipt=received.age)
        else:
            try:
                document = msgspec.json.decode(received.body, type=ColumnsDocument)
            except msgspec.DecodeError as error:
                raise _malformed("columns", self._columns, error) from error
            copy = to_columns(document, received=received.asked, age_at_receipt=received.age)
        self._nodes.copy, self._columns.etag = copy, received.etag
        return copy

    async def refresh_pods(self) -> Pods:
        """Ask the watcher for pods. Raises WatcherError, and then keeps the copy it had."""
        received = await self._connection.ask(self._pod_columns, known=self._pods.copy)
        if received.unchanged and self._pods.copy is not None:
            copy = replace(self._pods.copy, received=received.asked, age_at_receipt=received.age)
        else:
            copy = await asyncio.to_thread(self._understand_pods, received)
        self._pods.copy, self._pod_columns.etag = copy, received.etag
        return copy

    def _understand_pods(self, received: _Received) -> Pods:
        try:
            document = _read_pods(received.body)
        except msgspec.DecodeError as error:
            raise _malformed("pods", self._pod_columns, error) from error
        return to_pods(document, received=received.asked, age_at_receipt=received.age)


def _malformed(what: str, document: _Document, error: msgspec.DecodeError) -> WatcherError:
    return WatcherError("malformed", f"not a {what} document from {document.url}: {error}")


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


def _of_published(pods: PublishedPods) -> Pods:
    """What is published in this process: as the document has it, and the minutes besides."""
    found = to_pods(pods.document(), received=pods.monotonic, age_at_receipt=pods.age_s)
    minutes = pods.table.recent_cores.view(), pods.table.recent_memory.view()
    for each in minutes:
        each.setflags(write=False)
    return replace(found, recent=minutes)


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
        self._documents = {label: _Document(url, [("window", label), *asked]) for label in windows}
        self._connection = _Connection(
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
                raise _malformed("node", document, error) from error
            if len(read.data.NodeMetricsMap) != 1:
                raise WatcherError("malformed", f"{document.url} answered for {len(read.data.NodeMetricsMap)} nodes")
            (node,) = read.data.NodeMetricsMap.values()
            for metric in node.metrics:
                values[(metric.name, _operator(metric.operator), label)] = (metric.value, metric.rollup)
            source = read.source
            # The answer's age is that of the newest sample of all nodes; this node's own may be older.
            born = min(born, answer.asked - answer.age - max(0.0, float(read.window.end - node.sampled)))
        return NodeLoad(self._node, source, values, born)


class PodSupply(Protocol):
    """What the client beside the service needs of it for pods; `api.service.Service` has it."""

    @property
    def pods(self) -> PublishedPods | None: ...

    def want_pods(self) -> str: ...


class InProcessClient(_Renewing):
    """The client beside the service: reads what is published, makes no request. `published` returns the current one,
    `window` is the one served by default there, `max_staleness` (seconds) what it refuses to serve; `pods` is the
    service, where a copy of what pods use is to be kept too, and `measure` what makes the columns' usages."""

    def __init__(
        self,
        published: Callable[[], Published | None],
        *,
        window: Window,
        types: tuple[MetricType, ...] | None = None,
        operators: tuple[Operator, ...] | None = None,
        pods: PodSupply | None = None,
        measure: Callable[[Snapshot], NodeUsages] | None = None,
        max_staleness: float = MAX_AGE_S,
        interval: float = POLL_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(pods=pods is not None, interval=interval, monotonic=monotonic)
        self._max_staleness = max_staleness
        self._published = published
        self._supply = pods
        self._measure = measure
        self._selection = Selection(window, types, operators)
        self._tag: str | None = None
        self._pod_tag: str | None = None

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
        if self._nodes.copy is None or self._tag != published.tag:
            self._nodes.copy = await asyncio.to_thread(self._take, published)
            self._tag = published.tag
        return self._nodes.copy

    async def refresh_pods(self) -> Pods:
        """Take over what is published of pods, in a thread. Raises WatcherError where nothing is, or it is too old."""
        if self._supply is None:
            raise _no_copy_of_pods()
        why, pods = self._supply.want_pods(), self._supply.pods
        if pods is None or not pods.table.pods:
            hint = why or "the source is asked for it at the next refresh"
            raise WatcherError("no_pods", f"there is no pod usage{'' if why else ' yet'}", hint=hint)
        if (age := pods.age(self._monotonic())) > self._max_staleness:
            raise WatcherError("stale", f"the newest sample is {age:.0f} s old, more than {self._max_staleness:g} s")
        if self._pods.copy is None or self._pod_tag != pods.tag:
            self._pods.copy = await asyncio.to_thread(_of_published, pods)
            self._pod_tag = pods.tag
        return self._pods.copy

    def _take(self, published: Published) -> Columns:
        document = columns(published.snapshot, self._selection)
        if not any(value is not None for column in document.columns for value in column.values):
            raise WatcherError("no_metrics", "there are no metrics of the types and operators asked for")
        columns_of = to_columns(document, received=published.monotonic, age_at_receipt=published.age_s)
        if self._measure is None:
            return columns_of
        return replace(columns_of, usages=self._measure(published.snapshot))
