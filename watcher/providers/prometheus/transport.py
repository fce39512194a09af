"""Asking a Prometheus over HTTP without ever waiting for it longer than was said.

The library, prometheus-api-client, is synchronous and without a timeout of its own, and a thread that waits for a
socket cannot be cancelled. So each of a few *lines* (one thread, one connection) takes one question at a time, and
whoever no longer wants the answer hangs up: the line's socket is shut down, and its thread is free at once, whatever
the server does, sends or withholds. A thread that cannot be reached even so (it resolves a name) is a daemon, so it
holds up no exit, and there are never more of them than lines.

Every error leaves here as one of providers/base.py (prometheus_failures.py, prometheus_answers.py), with neither
credentials nor more than a few words of what the far side said.
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

from watcher.platform.net.redaction import without_credentials
from watcher.providers.base import ProviderError, ProviderMalformed, ProviderUnreachable
from watcher.providers.fetching import clock_offset, placed, retried, wait_of
from watcher.providers.prometheus.endpoint import Endpoint
from watcher.providers.prometheus.errors import translate
from watcher.providers.prometheus.queries import Instant, PrometheusConfig, Range
from watcher.providers.prometheus.responses import error_of, missing_part, read_envelope, remarks, series_of

log = logging.getLogger(__name__)

T = TypeVar("T")

LINES = 4
CHUNK_BYTES = 1 << 16
ERROR_BYTES = 1 << 16
CLOSE_WITHIN_S = 0.5
SERIES_PER_BREATH = 64
BREATH_S = 50e-6
"""How often and how long decoding pauses. Measured at 5,000 nodes: the event loop's longest wait of a fetch falls from
22 ms to 8 ms (medians), and a fetch takes 90 ms longer."""
VICTORIA_METRICS_HEADER = "X-Server-Hostname"
"""Which all servers of VictoriaMetrics send, and no Prometheus, Thanos or Mimir."""
# Where the common distributions keep the authorities of the system.
SYSTEM_AUTHORITIES = (
    ssl.get_default_verify_paths().cafile,
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
)


# --- one line: a connection through the library ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Content:
    """An answer as it came, whole."""

    body: bytes
    content_type: str
    clock_offset_s: float | None
    victoria_metrics: bool


class _Answer(requests.Response):
    """What the library is given: its `data.result`, the one thing it hands on, is the whole answer, which still has
    the type, the warnings and the time that the library would have thrown away."""

    whole: _Content

    def json(self, **_: Any) -> Any:
        return {"data": {"result": self.whole}}


def _shut(sock: socket.socket) -> None:
    """Whoever reads from it gets an end of file at once."""
    # Not the method of SSLSocket, which also takes the TLS session away from the thread that reads.
    socket.socket.shutdown(sock, socket.SHUT_RDWR)


class _PlainConnection(HTTPConnection):
    """Is of no use from the beginning where the answer is no longer wanted by then."""

    unwanted: threading.Event

    def connect(self) -> None:
        super().connect()
        if self.unwanted.is_set():
            _shut(self.sock)


class _TlsConnection(HTTPSConnection):
    """The same over TLS."""

    unwanted: threading.Event

    def connect(self) -> None:
        super().connect()
        if self.unwanted.is_set():
            _shut(self.sock)


class _PlainPool(HTTPConnectionPool):
    """Remembers the connection in use, so that it can be hung up from outside."""

    ConnectionCls = _PlainConnection
    in_use: Any = None
    unwanted: threading.Event

    def _get_conn(self, timeout: float | None = None) -> Any:
        self.in_use = super()._get_conn(timeout)
        self.in_use.unwanted = self.unwanted
        return self.in_use


class _TlsPool(HTTPSConnectionPool):
    """The same over TLS."""

    ConnectionCls = _TlsConnection
    in_use: Any = None
    unwanted: threading.Event

    def _get_conn(self, timeout: float | None = None) -> Any:
        self.in_use = super()._get_conn(timeout)
        self.in_use.unwanted = self.unwanted
        return self.in_use


class _Adapter(HTTPAdapter):
    """One connection at a time, no retries, and a way to end what is going on from another thread."""

    _pool: Any = None

    answering: urllib3.BaseHTTPResponse | None = None
    """The answer whose body is being read. If the server is to close the connection after it, urllib3 has already let
    go of the connection's socket, and only the answer can reach it."""

    def __init__(self) -> None:
        super().__init__(pool_connections=1, pool_maxsize=1, max_retries=urllib3.Retry(total=0, redirect=0))
        self.poolmanager.pool_classes_by_scheme = {"http": _PlainPool, "https": _TlsPool}
        self.unwanted = threading.Event()
        """Set once the answer to the question at hand is no longer wanted. A socket that is there by then is shut down
        by who sets it, one that comes later by who looks here after making it."""

    def get_connection_with_tls_context(self, *arguments: Any, **options: Any) -> Any:
        self._pool = super().get_connection_with_tls_context(*arguments, **options)
        self._pool.unwanted = self.unwanted
        return self._pool

    def hang_up(self) -> None:
        """Shut the socket in use down, or the next one as soon as it is made."""
        self.unwanted.set()
        connection: HTTPConnection | None = getattr(self._pool, "in_use", None)
        sock, answering = connection.sock if connection is not None else None, self.answering
        # What they raise when the other thread was quicker and has just closed it.
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            if sock is not None:
                _shut(sock)
            elif answering is not None:
                answering.shutdown()


class _Line(requests.Session):
    """The library's session: bounded in time and size, and translating every error."""

    def __init__(self, config: PrometheusConfig, endpoint: Endpoint) -> None:
        super().__init__()
        # Else requests takes proxies and ~/.netrc from the environment of a daemon.
        self.trust_env = False
        self.verify = _verification(config)
        if config.client_cert:
            self.cert = (config.client_cert, config.client_key) if config.client_key else config.client_cert
        self._endpoint = endpoint
        self._limit = config.max_body_bytes
        self._line = _Adapter()
        self._library = PrometheusConnect(url=endpoint.address, session=self, retry=urllib3.Retry(total=0))
        # Over the library's own adapter, which it mounts under the same address.
        self.mount(endpoint.address, self._line)

    def converse(self, question: Instant | Range, *, timeout: float) -> _Content:
        """Ask, and wait at most about `timeout` seconds for the whole answer. Raises ProviderError."""
        if isinstance(question, Instant):
            # Else VictoriaMetrics answers for a time 30 s before now; the others do not know the parameter.
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
        content: _Content = answer
        return content

    def take_up(self) -> None:
        """A question comes, whose answer is wanted until `hang_up`."""
        self._line.unwanted.clear()

    def hang_up(self) -> None:
        """End what is going on, from another thread."""
        self._line.hang_up()

    def request(self, method: Any, url: Any, *_: Any, **options: Any) -> requests.Response:
        """What the library calls. Any status but 200 raises, so the library sees answers only."""
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
            heard = time.time()
            with response:
                self._line.answering = response.raw
                if self._line.unwanted.is_set():  # meanwhile, when neither socket nor answer could be reached
                    raise ProviderUnreachable("its answer is no longer wanted")
                limit = self._limit if response.status_code == 200 else ERROR_BYTES
                body = _read_body(response, deadline=deadline, limit=limit)
        except (requests.RequestException, urllib3.exceptions.HTTPError, http.client.HTTPException, OSError) as error:
            raise translate(error, tls=self._endpoint.address.startswith("https:")) from error
        finally:
            self._line.answering = None
        return self._understood(response, body=body, sent=sent, heard=heard)

    def _understood(
        self, response: requests.Response, *, body: bytes, sent: Mapping[str, str], heard: float
    ) -> _Answer:
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
                error.retry_after_s = wait_of(response.headers)
            raise error
        answer = _Answer()
        answer.status_code = response.status_code
        offset = clock_offset(response.headers.get("Date"), heard=heard)
        victoria_metrics = VICTORIA_METRICS_HEADER in response.headers
        answer.whole = _Content(body, content_type, offset, victoria_metrics)
        return answer


def _unhurried(series: Iterable[msgspec.Raw]) -> Iterator[msgspec.Raw]:
    """The series, with a pause now and then in which another thread may have the global lock: else the event loop,
    which wants it a thousand times a second, waits 5 ms for it each time."""
    for number, raw in enumerate(series, start=1):
        if number % SERIES_PER_BREATH == 0:
            time.sleep(BREATH_S)
        yield raw


def _verification(config: PrometheusConfig) -> bool | str:
    """What requests is to verify certificates against; True means the authorities that it brings itself."""
    if config.insecure_skip_verify:
        return False
    found = (path for path in SYSTEM_AUTHORITIES if path and os.path.exists(path))
    return config.ca_file or next(found, True)


def _read_body(response: requests.Response, *, deadline: float, limit: int) -> bytes:
    """The whole body, decompressed. The deadline is kept here too, because an event loop that is busy hangs up late."""
    chunks: list[bytes] = []
    size = 0
    while chunk := response.raw.read1(CHUNK_BYTES, decode_content=True):
        chunks.append(chunk)
        size += len(chunk)
        if size > limit:
            if response.status_code != 200:
                break
            raise ProviderMalformed(f"its answer is larger than {limit >> 20} MiB")
        if time.monotonic() > deadline:
            raise ProviderUnreachable("its answer came too slowly to end in time")
    return b"".join(chunks)


# --- the lines together ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reply(Generic[T]):
    """What was read from an answer, and what came with it: `missing` is what it says of a part that it lacks, "" where
    it is whole; `remarks` are on the query. `round_trip_s` is how long it took."""

    content: T
    missing: str
    remarks: tuple[str, ...]
    clock_offset_s: float | None
    round_trip_s: float


class _Call(Generic[T]):
    """One question on its way: waiting for a line, on one, or done."""

    def __init__(self, job: Callable[[_Line], T]) -> None:
        self.future: Future[T] = Future()
        self._job = job
        self._line: _Line | None = None
        self._lock = threading.Lock()

    def run(self, line: _Line) -> None:
        """On the line's thread."""
        with self._lock:
            if not self.future.set_running_or_notify_cancel():
                return
            line.take_up()
            self._line = line
        try:
            outcome = self._job(line)
        except BaseException as error:  # whatever it is belongs to who waits for the future
            self._leave()
            self.future.set_exception(error)
        else:
            self._leave()
            self.future.set_result(outcome)

    def _leave(self) -> None:
        with self._lock:
            self._line = None

    def hang_up(self) -> None:
        """From any thread: the answer is no longer wanted. Does nothing to a call that is over."""
        with self._lock:
            if not self.future.cancel() and self._line is not None:
                self._line.hang_up()


class Transport:
    """Questions in, replies out, at most LINES at a time."""

    def __init__(self, config: PrometheusConfig) -> None:
        self._config = config
        self._endpoint = Endpoint(config)
        self._calls: queue.SimpleQueue[_Call[Any] | None] = queue.SimpleQueue()
        self._on_line: set[_Call[Any]] = set()
        self._ended: list[Future[None]] = []
        self._free = asyncio.Semaphore(LINES)
        # Decoding needs the global lock anyway. Four threads at it would each make the event loop wait its turn.
        self._decoding = threading.Lock()
        self.victoria_metrics = False
        """Whether the last answer was a VictoriaMetrics'; known before `read` sees that answer."""

    @property
    def address(self) -> str:
        """Without credentials."""
        return self._endpoint.address

    def start(self) -> None:
        """Start the threads. Asks nothing."""
        if self._config.insecure_skip_verify:
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
            log.warning("the certificate of %s is not verified (provider.insecure_skip_verify)", self.address)
        for number in range(1, LINES + 1):
            ended: Future[None] = Future()
            self._ended.append(ended)
            threading.Thread(target=self._work, args=(ended,), name=f"prometheus-{number}", daemon=True).start()

    def _work(self, ended: Future[None]) -> None:
        """The life of one line's thread."""
        with _Line(self._config, self._endpoint) as line:
            while (call := self._calls.get()) is not None:
                call.run(line)
        ended.set_result(None)

    async def close(self) -> None:
        """Hang up everything and end the threads, without waiting for one that cannot be reached."""
        for call in tuple(self._on_line):
            call.hang_up()
        for _ in self._ended:
            self._calls.put(None)
        if self._ended:
            await asyncio.wait([asyncio.wrap_future(ended) for ended in self._ended], timeout=CLOSE_WITHIN_S)
        self._ended.clear()

    async def ask(
        self,
        question: Instant | Range,
        *,
        expects: str,
        read: Callable[[Iterable[msgspec.Raw]], T],
        deadline: float,
    ) -> Reply[T]:
        """The reply to a question, its series read by `read` in a thread.

        `expects` is the type of the result, "matrix" or "vector"; `deadline` is in the time of the event loop, and
        ends the retries of what a retry may help. Raises ProviderError; cancelling hangs up.
        """
        return await retried(
            lambda: self._attempt(question, expects=expects, read=read, deadline=deadline),
            pauses=self._config.backoff,
            deadline=deadline,
        )

    async def _attempt(
        self,
        question: Instant | Range,
        *,
        expects: str,
        read: Callable[[Iterable[msgspec.Raw]], T],
        deadline: float,
    ) -> Reply[T]:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(deadline), self._free:
                timeout = min(self._config.timeout, deadline - loop.time())
                call = _Call(lambda line: self._converse(line, question, expects=expects, read=read, timeout=timeout))
                return await self._result_of(call, timeout=timeout)
        except TimeoutError as error:
            raise ProviderUnreachable(f"{self.address}: it does not answer in time") from error
        except ProviderError as error:
            raise placed(error, self.address, scrub=self._endpoint.scrub) from error

    async def _result_of(self, call: _Call[T], *, timeout: float) -> T:
        self._on_line.add(call)
        self._calls.put(call)
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.wrap_future(call.future)
        finally:
            self._on_line.discard(call)
            call.hang_up()

    def _converse(
        self,
        line: _Line,
        question: Instant | Range,
        *,
        expects: str,
        read: Callable[[Iterable[msgspec.Raw]], T],
        timeout: float,
    ) -> Reply[T]:
        """On a line's thread: ask and understand."""
        began = time.monotonic()
        answer = line.converse(question, timeout=timeout)
        self.victoria_metrics = answer.victoria_metrics
        took = time.monotonic() - began
        with self._decoding:
            time.sleep(BREATH_S)  # between the envelope before, which is one long call, and this one
            envelope = read_envelope(answer.body, content_type=answer.content_type)
            content = read(_unhurried(series_of(envelope, expects=expects)))
        scrub = self._endpoint.scrub
        missing, remarked = scrub(missing_part(envelope)), tuple(map(scrub, remarks(envelope)))
        return Reply(content, missing, remarked, answer.clock_offset_s, took)
