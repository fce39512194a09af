"""HTTP queries to Prometheus with strict time limits.

The library prometheus-api-client is synchronous and has no timeout, and a thread that waits for a socket cannot be
cancelled. The transport therefore has a few threads with one connection each, and each handles one query at a time. A
caller that no longer needs the response aborts the query: the socket is shut down, which releases the thread
immediately, regardless of the server. A thread that cannot be interrupted in this way (during name resolution) is a
daemon thread, so it does not delay process exit. The number of threads is constant.

All errors are converted to the error classes of watcher/providers/base.py (errors.py, responses.py), without
credentials and with at most a few words of the server's message.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import logging
import os
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

import msgspec
import requests
import urllib3
from prometheus_api_client import PrometheusConnect
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from watcher.platform.net.http_body import (
    ERROR_BYTES,
    TOO_LARGE_HINT,
    AnswerBound,
    AnswerTooLarge,
    BoundedBody,
    answer_bound,
)
from watcher.platform.net.redaction import without_credentials
from watcher.providers.base import ProviderError, ProviderMalformed, ProviderUnreachable
from watcher.providers.fetching import clock_offset, retry_after, with_address, with_retries
from watcher.providers.prometheus.endpoint import PrometheusEndpoint
from watcher.providers.prometheus.errors import translate
from watcher.providers.prometheus.queries import InstantQuery, PrometheusConfig, RangeQuery
from watcher.providers.prometheus.responses import error_of, missing_part, read_envelope, remarks, series_of

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_CONNECTIONS = 4
CHUNK_BYTES = 1 << 16
CLOSE_WITHIN_S = 0.5
SERIES_PER_BREATH = 64
BREATH_S = 50e-6
"""Decoding sleeps BREATH_S seconds after every SERIES_PER_BREATH series to release Python's global lock. Measured
with 5,000 nodes: the event loop's longest delay during a fetch decreases from 22 ms to 8 ms (medians), and a fetch
takes 90 ms longer."""
VICTORIA_METRICS_HEADER = "X-Server-Hostname"
"""Response header of all VictoriaMetrics servers; Prometheus, Thanos and Mimir do not send it."""
# CA bundles of the system, as located in common distributions.
SYSTEM_AUTHORITIES = (
    ssl.get_default_verify_paths().cafile,
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
)


# --- one connection through the library ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _RawResponse:
    """Complete undecoded response; `clock_offset_s` is the server's clock minus the local clock in seconds."""

    body: bytes
    content_type: str
    clock_offset_s: float | None
    victoria_metrics: bool


class _LibraryResponse(requests.Response):
    """Response passed to the library. The library returns only `data.result`, so this field contains the complete
    response, including type, warnings and headers."""

    whole: _RawResponse

    def json(self, **_: Any) -> Any:
        return {"data": {"result": self.whole}}


def _shut(sock: socket.socket) -> None:
    """Shut the socket down, so that a reading thread gets an end of file immediately."""
    # SSLSocket.shutdown would also remove the TLS session that the reading thread uses.
    socket.socket.shutdown(sock, socket.SHUT_RDWR)


class _PlainConnection(HTTPConnection):
    """HTTP connection that is shut down right after it is opened if the query was aborted meanwhile."""

    unwanted: threading.Event

    def connect(self) -> None:
        super().connect()
        if self.unwanted.is_set():
            _shut(self.sock)


class _TlsConnection(HTTPSConnection):
    """HTTPS connection that is shut down right after it is opened if the query was aborted meanwhile."""

    unwanted: threading.Event

    def connect(self) -> None:
        super().connect()
        if self.unwanted.is_set():
            _shut(self.sock)


class _PlainPool(HTTPConnectionPool):
    """HTTP connection pool that exposes the connection in use, so that another thread can abort it."""

    ConnectionCls = _PlainConnection
    in_use: Any = None
    unwanted: threading.Event

    def _get_conn(self, timeout: float | None = None) -> Any:
        self.in_use = super()._get_conn(timeout)
        self.in_use.unwanted = self.unwanted
        return self.in_use


class _TlsPool(HTTPSConnectionPool):
    """HTTPS connection pool that exposes the connection in use, so that another thread can abort it."""

    ConnectionCls = _TlsConnection
    in_use: Any = None
    unwanted: threading.Event

    def _get_conn(self, timeout: float | None = None) -> Any:
        self.in_use = super()._get_conn(timeout)
        self.in_use.unwanted = self.unwanted
        return self.in_use


class _Adapter(HTTPAdapter):
    """Adapter with one connection, without retries, whose running request another thread can abort."""

    _pool: Any = None

    answering: urllib3.BaseHTTPResponse | None = None
    """Response whose body is being read. If the server closes the connection after the response, urllib3 has already
    detached the socket from the connection, and only the response can shut it down."""

    def __init__(self) -> None:
        super().__init__(pool_connections=1, pool_maxsize=1, max_retries=urllib3.Retry(total=0, redirect=0))
        self.poolmanager.pool_classes_by_scheme = {"http": _PlainPool, "https": _TlsPool}
        self.unwanted = threading.Event()
        """Set once the current query is aborted. The aborting thread shuts down an existing socket; a socket that is
        created later is shut down by the thread that created it."""

    def get_connection_with_tls_context(self, *arguments: Any, **options: Any) -> Any:
        self._pool = super().get_connection_with_tls_context(*arguments, **options)
        self._pool.unwanted = self.unwanted
        return self._pool

    def abort(self) -> None:
        """Shut down the socket in use, or the next socket when it is created."""
        self.unwanted.set()
        connection: HTTPConnection | None = getattr(self._pool, "in_use", None)
        sock, answering = connection.sock if connection is not None else None, self.answering
        # Raised if the other thread has just closed the socket.
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            if sock is not None:
                _shut(sock)
            elif answering is not None:
                answering.shutdown()


class _PrometheusSession(requests.Session):
    """The library's HTTP session with limits on time and size; converts all errors."""

    def __init__(self, config: PrometheusConfig, endpoint: PrometheusEndpoint) -> None:
        super().__init__()
        # Otherwise requests uses proxies of the environment and ~/.netrc.
        self.trust_env = False
        self.verify = _verification(config)
        if config.client_cert:
            self.cert = (config.client_cert, config.client_key) if config.client_key else config.client_cert
        self._endpoint = endpoint
        self._bound = answer_bound(config.max_body_bytes)
        self._line = _Adapter()
        self._library = PrometheusConnect(url=endpoint.address, session=self, retry=urllib3.Retry(total=0))
        # Replaces the library's adapter, which is mounted for the same address.
        self.mount(endpoint.address, self._line)

    def query(self, question: InstantQuery | RangeQuery, *, timeout: float) -> _RawResponse:
        """Send the query and wait up to about `timeout` seconds for the complete response. Raises ProviderError."""
        if isinstance(question, InstantQuery):
            # Without nocache, VictoriaMetrics evaluates 30 s before now; other servers ignore the parameter.
            parameters = {"time": f"{question.time:.3f}", "nocache": "1"}
            answer = self._library.custom_query(question.query, parameters, timeout=timeout)
        else:
            answer = self._library.custom_query_range(
                question.query,
                datetime.fromtimestamp(question.start, UTC),
                datetime.fromtimestamp(question.end, UTC),
                str(question.step),
                timeout=timeout,
            )
        content: _RawResponse = answer
        return content

    def open(self) -> None:
        """Prepare for a query, which `abort` may abort."""
        self._line.unwanted.clear()

    def abort(self) -> None:
        """Abort the current query, from another thread."""
        self._line.abort()

    def request(self, method: Any, url: Any, *_: Any, **options: Any) -> requests.Response:
        """Called by the library. Raises ProviderError for any status but 200, so the library sees successful
        responses only."""
        timeout: float = options["timeout"]
        deadline = time.monotonic() + timeout
        sent = self._endpoint.headers()
        try:
            response = super().request(
                method,
                url,
                params=options["params"],
                headers=sent,
                timeout=timeout,
                allow_redirects=False,
                stream=True,
            )
            received = time.time()
            with response:
                self._line.answering = response.raw
                if self._line.unwanted.is_set():  # aborted while neither socket nor response was accessible
                    raise ProviderUnreachable("the query was aborted")
                body = _read_body(response, deadline=deadline, bound=self._bound)
        except AnswerTooLarge as error:
            raise ProviderMalformed(str(error), hint=TOO_LARGE_HINT) from error
        except (requests.RequestException, urllib3.exceptions.HTTPError, http.client.HTTPException, OSError) as error:
            raise translate(error, tls=self._endpoint.address.startswith("https:")) from error
        finally:
            self._line.answering = None
        return self._understood(response, body=body, sent=sent, heard=received)

    def _understood(
        self, response: requests.Response, *, body: bytes, sent: Mapping[str, str], heard: float
    ) -> _LibraryResponse:
        content_type = response.headers.get("Content-Type", "")
        if response.status_code != 200:
            error = error_of(
                response.status_code,
                body=self._endpoint.scrub(body.decode(errors="replace")).encode(),
                content_type=content_type,
                location=without_credentials(response.headers.get("Location", "")),
                authorised="Authorization" in sent,
            )
            if isinstance(error, ProviderUnreachable):
                error.retry_after_s = retry_after(response.headers)
            raise error
        answer = _LibraryResponse()
        answer.status_code = response.status_code
        offset = clock_offset(response.headers.get("Date"), heard=heard)
        victoria_metrics = VICTORIA_METRICS_HEADER in response.headers
        answer.whole = _RawResponse(body, content_type, offset, victoria_metrics)
        return answer


def _unhurried(series: Iterable[msgspec.Raw]) -> Iterator[msgspec.Raw]:
    """The series, with short pauses that release Python's global lock. Without them the event loop, which needs the
    lock about a thousand times per second, waits 5 ms for it each time."""
    for number, raw in enumerate(series, start=1):
        if number % SERIES_PER_BREATH == 0:
            time.sleep(BREATH_S)
        yield raw


def _verification(config: PrometheusConfig) -> bool | str:
    """Value of requests' `verify`: False, the path of a CA bundle, or True for the CA bundle of requests."""
    if config.insecure_skip_verify:
        return False
    found = (path for path in SYSTEM_AUTHORITIES if path and os.path.exists(path))
    return config.ca_file or next(found, True)


def _read_body(response: requests.Response, *, deadline: float, bound: AnswerBound) -> bytes:
    """The complete decompressed body; the body of an error response is truncated. Also checks the deadline (monotonic
    seconds), because a busy event loop aborts late. Raises AnswerTooLarge."""
    body, failed = BoundedBody(bound), response.status_code != 200
    while chunk := response.raw.read1(CHUNK_BYTES, decode_content=True):
        body.add(chunk)
        if failed and body.size >= ERROR_BYTES:
            break
        if time.monotonic() > deadline:
            raise ProviderUnreachable("the response was not complete in time")
    return body.content()


# --- transport -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PrometheusResponse(Generic[T]):
    """Parsed response: `missing` is the server's message about an incomplete response, "" if complete; `remarks` are
    its warnings about the query. `clock_offset_s` is the server's clock minus the local clock in seconds,
    `round_trip_s` the duration in seconds."""

    content: T
    missing: str
    remarks: tuple[str, ...]
    clock_offset_s: float | None
    round_trip_s: float


class _PendingQuery(Generic[T]):
    """A query that is queued, running or finished."""

    def __init__(self, job: Callable[[_PrometheusSession], T]) -> None:
        self.future: Future[T] = Future()
        self._job = job
        self._line: _PrometheusSession | None = None
        self._lock = threading.Lock()

    def run(self, line: _PrometheusSession) -> None:
        """Run the query on the connection's thread."""
        with self._lock:
            if not self.future.set_running_or_notify_cancel():
                return
            line.open()
            self._line = line
        try:
            outcome = self._job(line)
        except BaseException as error:  # any exception is passed to the waiter of the future
            self._leave()
            self.future.set_exception(error)
        else:
            self._leave()
            self.future.set_result(outcome)

    def _leave(self) -> None:
        with self._lock:
            self._line = None

    def abort(self) -> None:
        """Abort the query, from any thread. No effect if it is finished."""
        with self._lock:
            if not self.future.cancel() and self._line is not None:
                self._line.abort()


class PrometheusTransport:
    """Sends queries with at most MAX_CONNECTIONS at a time and returns parsed responses."""

    def __init__(self, config: PrometheusConfig) -> None:
        self._config = config
        self._endpoint = PrometheusEndpoint(config)
        self._calls: queue.SimpleQueue[_PendingQuery[Any] | None] = queue.SimpleQueue()
        self._running: set[_PendingQuery[Any]] = set()
        self._ended: list[Future[None]] = []
        self._free = asyncio.Semaphore(MAX_CONNECTIONS)
        # Decoding holds the global lock. Several decoding threads at once would delay the event loop further.
        self._decoding = threading.Lock()
        self.victoria_metrics = False
        """Whether the last response came from VictoriaMetrics; set before `read` is called with that response."""

    @property
    def address(self) -> str:
        """Address of the server, without credentials."""
        return self._endpoint.address

    def start(self) -> None:
        """Start the threads. Sends no request."""
        if self._config.insecure_skip_verify:
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
            log.warning("the certificate of %s is not verified (provider.insecure_skip_verify)", self.address)
        for number in range(1, MAX_CONNECTIONS + 1):
            ended: Future[None] = Future()
            self._ended.append(ended)
            threading.Thread(target=self._work, args=(ended,), name=f"prometheus-{number}", daemon=True).start()

    def _work(self, ended: Future[None]) -> None:
        """Main loop of a connection's thread."""
        with _PrometheusSession(self._config, self._endpoint) as line:
            while (call := self._calls.get()) is not None:
                call.run(line)
        ended.set_result(None)

    async def close(self) -> None:
        """Abort all queries and end the threads, without waiting for a thread that cannot be interrupted."""
        for call in tuple(self._running):
            call.abort()
        for _ in self._ended:
            self._calls.put(None)
        if self._ended:
            await asyncio.wait([asyncio.wrap_future(ended) for ended in self._ended], timeout=CLOSE_WITHIN_S)
        self._ended.clear()

    async def ask(
        self,
        question: InstantQuery | RangeQuery,
        *,
        expects: str,
        read: Callable[[Iterable[msgspec.Raw]], T],
        deadline: float,
    ) -> PrometheusResponse[T]:
        """Send a query and parse the series of the response with `read`, in a thread.

        `expects` is the result type, "matrix" or "vector". `deadline` is in event loop time and limits the retries of
        transient failures. Raises ProviderError; cancelling aborts the query.
        """
        return await with_retries(
            lambda: self._attempt(question, expects=expects, read=read, deadline=deadline),
            pauses=self._config.backoff,
            deadline=deadline,
        )

    async def _attempt(
        self,
        question: InstantQuery | RangeQuery,
        *,
        expects: str,
        read: Callable[[Iterable[msgspec.Raw]], T],
        deadline: float,
    ) -> PrometheusResponse[T]:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(deadline), self._free:
                timeout = min(self._config.timeout, deadline - loop.time())
                call = _PendingQuery(
                    lambda line: self._converse(line, question, expects=expects, read=read, timeout=timeout)
                )
                return await self._result_of(call, timeout=timeout)
        except TimeoutError as error:
            raise ProviderUnreachable(f"{self.address}: no response in time") from error
        except ProviderError as error:
            raise with_address(error, self.address, scrub=self._endpoint.scrub) from error

    async def _result_of(self, call: _PendingQuery[T], *, timeout: float) -> T:
        self._running.add(call)
        self._calls.put(call)
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.wrap_future(call.future)
        finally:
            self._running.discard(call)
            call.abort()

    def _converse(
        self,
        line: _PrometheusSession,
        question: InstantQuery | RangeQuery,
        *,
        expects: str,
        read: Callable[[Iterable[msgspec.Raw]], T],
        timeout: float,
    ) -> PrometheusResponse[T]:
        """On a connection's thread: send the query and parse the response."""
        began = time.monotonic()
        answer = line.query(question, timeout=timeout)
        self.victoria_metrics = answer.victoria_metrics
        took = time.monotonic() - began
        with self._decoding:
            time.sleep(BREATH_S)  # release the lock between two envelopes: decoding one is a single long call
            envelope = read_envelope(answer.body, content_type=answer.content_type)
            content = read(_unhurried(series_of(envelope, expects=expects)))
        scrub = self._endpoint.scrub
        missing, remarked = scrub(missing_part(envelope)), tuple(map(scrub, remarks(envelope)))
        return PrometheusResponse(content, missing, remarked, answer.clock_offset_s, took)
