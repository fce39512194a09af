"""Shared code of the cloud monitoring services Datadog and SignalFx.

Both are queried for one metric at a time, return points in time buckets, limit the request rate and identify hosts
rather than nodes: a host name may include a domain that the node name lacks. Requests and responses are defined in
datadog.py and signalfx.py.

A failed query affects its metric, not the fetch.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec
import numpy as np

from watcher import __version__
from watcher.arrays import F64
from watcher.model import METRIC_BY_KEY, SOURCE_UNITS, FindingKind, Metric, Remedy, SeriesBatch
from watcher.platform.net.redaction import printable, without_credentials
from watcher.providers.base import Fetch, ProviderError, ProviderRefused, ProviderUnreachable, QueryFailure, QueryPlan
from watcher.providers.fetching import (
    SILENT_FETCHES,
    FetchContext,
    FetchTracker,
    MetricGap,
    Outcome,
    SerialWorker,
    fetch_of,
    gather_outcomes,
    malformed_response,
    out_of_range_findings,
    retry_after,
    with_address,
    with_retries,
)
from watcher.providers.http_client import (
    MAX_CONNECTIONS,
    HttpClient,
    HttpResponse,
    provider_error_of,
    read_secret,
    sendable,
    tls_context,
)
from watcher.providers.queries import QueryConfig, check_keys, wanted

log = logging.getLogger(__name__)

T = TypeVar("T")

HOST = "host"
"""Name of the tag (Datadog) or dimension (SignalFx) that contains the host name."""
SHOWN_LABELS = 5


# --- configuration ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CloudConfig:
    """Configuration of a provider. Raises ValueError, naming the setting, for invalid values."""

    address: str
    token: str = field(default="", repr=False)
    token_file: str = ""
    ca_file: str = ""
    client_cert: str = ""
    client_key: str = ""
    insecure_skip_verify: bool = False
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout: float = 10.0
    """Timeout in seconds for one attempt of one query, from the connection to the last byte."""
    fetch_deadline: float = 40.0
    """Timeout in seconds for one fetch with all its queries and retries."""
    backoff: tuple[float, ...] = (0.25, 0.5)
    """Pauses in seconds before each retry of a query."""
    max_body_bytes: int = 256 << 20
    node_label: str = HOST
    host_name_suffix: str = ""
    cluster_name: str = ""
    metrics: tuple[str, ...] = ("CPU", "Memory")
    """Keys of the metrics to fetch."""
    queries: Mapping[str, QueryConfig] = field(default_factory=dict)
    """Configured queries by metric key. A metric with a query is fetched."""
    max_seconds: float = 900.0
    """Length of the longest window in seconds. Older samples are not requested."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.address)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError("provider.address must have the form https://api.example.com, without a query")
        if "@" in parts.netloc:
            raise ValueError("provider.address must not contain credentials; use provider.token")
        check_keys((*self.metrics, *self.queries))
        for key, query in self.queries.items():
            if SOURCE_UNITS.get(query.unit, ("",))[0] is not METRIC_BY_KEY[key].unit:
                raise ValueError(
                    f"provider.queries.{key}.unit: {query.unit} cannot be converted to {METRIC_BY_KEY[key].unit}"
                )

    def wanted(self) -> tuple[Metric, ...]:
        """Metrics to fetch, in the order of model.METRICS."""
        return wanted(self.metrics, self.queries)


def node_of(host: str, *, suffix: str) -> str:
    """Node name of a host: the host name without the domain labels that are covered by the configured suffix.

    With the suffix ".dev.example", the host "a.dev.example" is the node "a", and "a.b.dev.example" is "a.b". Without a
    suffix, the name is unchanged, because nodes may be named by their fully qualified domain names. (The Go
    load-watcher truncates every name at its first dot.)
    """
    if not suffix or not host.endswith(suffix):
        return host
    at = len(host) - len(suffix)
    dot = at - 1 if host[at - 1 : at] == "." else host.find(".", at)
    return host[:dot] if dot > 0 else host


# --- queries and responses -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CloudQueryPlan:
    """One query for a metric. `asks` are the service's expressions and their weights; the value is `start` + the
    weighted sum of the expressions. A missing first expression means no value, other missing expressions count as 0.
    `unit` is a key of model.SOURCE_UNITS, `smoothing_s` the averaging time in seconds. `own` marks a configured
    query. `printable` and `reason` are for display."""

    metric: Metric
    asks: tuple[tuple[str, float], ...]
    unit: str
    shown: str
    reason: str
    start: float = 0.0
    label: str = HOST
    smoothing_s: float = 0.0
    own: bool = False


@dataclass(frozen=True, slots=True)
class HostSeries:
    """Points of one series in ascending times (unix seconds), NaN for a missing value. `host` is "" if the series
    has no host."""

    host: str
    time: F64
    value: F64


@dataclass(frozen=True, slots=True)
class CloudResponse:
    """Parsed response of a service. `labels` are the tags or dimensions of series without a host, `odd` is the
    number of unreadable series, `clock_offset_s` the remote clock minus the local clock in seconds."""

    series: Sequence[HostSeries]
    labels: frozenset[str] = frozenset()
    odd: int = 0
    warnings: tuple[str, ...] = ()
    clock_offset_s: float | None = None


class CloudService(Protocol):
    """Protocol of a cloud monitoring service."""

    source: str
    """Source name as published in GET /watcher."""
    line: CloudConnection

    def plans(self, metric: Metric) -> Sequence[CloudQueryPlan]:
        """Candidate queries for the metric, best first. The first one with series is used."""
        ...

    async def ask(self, plan: CloudQueryPlan, since: float, until: float, *, deadline: float) -> CloudResponse:
        """Points between the two times (unix seconds), possibly some outside. `deadline` is in event loop time.
        Raises ProviderError."""
        ...


# --- connection to a service -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ParsedResponse(Generic[T]):
    """Parsed content of a response, and the remote clock minus the local clock in seconds (None if unknown)."""

    content: T
    clock_offset_s: float | None


class _ErrorBody(msgspec.Struct, frozen=True):
    """Error text of a response: Datadog sends `errors`, SignalFx `message`."""

    errors: list[str] | str | None = None
    message: str = ""
    error: str = ""


_SAID = msgspec.json.Decoder(_ErrorBody)


class CloudConnection:
    """Connection to one service: at most MAX_CONNECTIONS concurrent requests, none during a pause that the service
    requested.

    `credentials` returns the authentication headers and is called for every request; `hint` is the hint for rejected
    credentials; `api` is the display name of the service's API.
    """

    def __init__(
        self, config: CloudConfig, *, credentials: Callable[[], Mapping[str, str]], hint: str, api: str
    ) -> None:
        self.address = config.address.rstrip("/")
        self._config, self._credentials, self._hint, self._api = config, credentials, hint, api
        self._exchange: HttpClient | None = None
        self._free = asyncio.Semaphore(MAX_CONNECTIONS)
        self._aside = SerialWorker()
        self._paused_until = float("-inf")
        self._private: Sequence[str] = ()

    def start(self) -> None:
        """Log if TLS verification is disabled. Sends no request."""
        if self._config.insecure_skip_verify:
            log.warning("the certificate of %s is not verified (provider.insecure_skip_verify)", self.address)

    async def close(self) -> None:
        """Close the connections, if any."""
        if self._exchange is not None:
            await self._exchange.close()
        self._exchange = None

    async def get(
        self, path: str, query: Mapping[str, str], *, read: Callable[[HttpResponse], T], deadline: float
    ) -> ParsedResponse[T]:
        """Send a GET request and parse the response with `read` in a worker thread. `deadline` is in event loop
        time. Raises ProviderError. Cancelling aborts the request."""
        url = self.address + path
        return await self._retried(lambda on, sent: on.get(url, query=query, headers=sent), read, deadline=deadline)

    async def post(
        self, path: str, body: bytes, *, read: Callable[[HttpResponse], T], deadline: float
    ) -> ParsedResponse[T]:
        """Send a POST request with a JSON body; otherwise like `get`."""
        url = self.address + path
        return await self._retried(lambda on, sent: on.post(url, body=body, headers=sent), read, deadline=deadline)

    async def _retried(
        self,
        send: Callable[[HttpClient, Mapping[str, str]], Awaitable[HttpResponse]],
        read: Callable[[HttpResponse], T],
        *,
        deadline: float,
    ) -> ParsedResponse[T]:
        async def attempt() -> ParsedResponse[T]:
            with self._placed():
                async with asyncio.timeout_at(deadline), self._free:
                    self._heed_pause()
                    answer = await send(self._connected(), self._headers())
                    if answer.status != 200:
                        raise self._refusal(answer)
                    return ParsedResponse(await self._aside.do(read, answer), answer.clock_offset_s)

        return await with_retries(attempt, pauses=self._config.backoff, deadline=deadline)

    @contextlib.contextmanager
    def _placed(self) -> Iterator[None]:
        """Convert any failure to a ProviderError with the address."""
        try:
            yield
        except (ProviderError, TimeoutError, OSError, aiohttp.ClientError) as error:
            told = provider_error_of(error, tls=self.address.startswith("https:"))
            raise with_address(told, self.address, scrub=self.scrub) from error

    def _connected(self) -> HttpClient:
        if self._exchange is None:
            config = self._config
            self._exchange = HttpClient(
                tls=tls_context(config), timeout=config.timeout, max_body_bytes=config.max_body_bytes
            )
        return self._exchange

    def _headers(self) -> dict[str, str]:
        credentials = self._credentials()
        self._private = [*credentials.values(), *(each for each in self._config.headers.values() if len(each) >= 8)]
        own = {"User-Agent": f"load-watcher/{__version__}", "Accept": "application/json"}
        return sendable({**own, **self._config.headers, **credentials})

    def scrub(self, text: str) -> str:
        """Remove the last sent credentials and header values from a remote text."""
        for secret in self._private:
            text = text.replace(secret, "***")
        return text

    def _heed_pause(self) -> None:
        left = self._paused_until - asyncio.get_running_loop().time()
        if left > 0:
            raise _too_many(f"requests are paused for another {left:.0f} s", left)

    # --- refusals ----------------------------------------------------------------------------------------------------

    def _refusal(self, answer: HttpResponse) -> ProviderError:
        """Convert a response with a status other than 200 to an error."""
        status, said = answer.status, self._said(answer)
        if status in (401, 403):
            words = "credentials are required" if status == 401 else "the query is forbidden"
            return ProviderRefused(f"{words} ({status}): {said}", hint=self._hint)
        if 300 <= status < 400:
            location = printable(without_credentials(answer.headers.get("Location", "")))
            return ProviderRefused(
                f"redirect ({status}) to {location or 'no location'} was not followed",
                hint=f"Set provider.address to the address of {self._api}.",
            )
        if status == 404:
            return ProviderRefused(
                f"path not found (404): {said}", hint=f"Check that provider.address points to {self._api}."
            )
        if status == 429:
            return self._pause(answer, said)
        if status == 408 or status >= 500:
            return ProviderUnreachable(
                f"the service is unavailable ({status}): {said}", hint="The service, or a proxy in front of it, failed."
            )
        if answer.body.lstrip()[:1] == b"<":
            return malformed_response(
                answer.body, expected="JSON", api=self._api, content_type=answer.content_type, problem=str(status)
            )
        return ProviderRefused(
            f"the query was rejected ({status}): {said}",
            hint="Check provider.queries, provider.cluster_name and provider.host_name_suffix.",
        )

    def _said(self, answer: HttpResponse) -> str:
        """Error text of a response, without secrets and truncated."""
        try:
            said = _SAID.decode(answer.body)
            words = "; ".join(said.errors) if isinstance(said.errors, list) else said.errors
            text = words or said.message or said.error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            text = ""
        # scrub before truncating: a truncated secret would not be found
        return printable(self.scrub(text or answer.body[:4096].decode(errors="replace")))

    def _pause(self, answer: HttpResponse, said: str) -> ProviderUnreachable:
        """Rate limit exceeded (429): pause all requests for the requested time."""
        seconds = retry_after(answer.headers)
        if seconds is not None:
            until = asyncio.get_running_loop().time() + seconds
            self._paused_until = max(self._paused_until, until)
        return _too_many(f"rate limit exceeded (429): {said}", seconds)


def _too_many(message: str, seconds: float | None) -> ProviderUnreachable:
    hint = "Increase refresh.interval, request fewer metrics (provider.metrics), or raise the service's rate limit."
    return ProviderUnreachable(message, hint=hint, retry_after_s=seconds)


# --- the provider ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _CloudMetricState:
    """State of one metric: `plan` is the query of `plans` that last returned series."""

    metric: Metric
    plans: Sequence[CloudQueryPlan]
    plan: CloudQueryPlan | None = None
    silence: MetricGap = field(default_factory=MetricGap)

    def to_ask(self) -> Sequence[CloudQueryPlan]:
        """Queries to send now: the current one, or all (the current one first) until one returns series. All are
        tried again after SILENT_FETCHES fetches without samples."""
        if self.plan is not None and self.silence.fetches < SILENT_FETCHES:
            return (self.plan,)
        return sorted(self.plans, key=lambda plan: plan is not self.plan)


class CloudProvider:
    """Provider (providers/base.py) for a cloud monitoring service."""

    remembers = True

    def __init__(self, config: CloudConfig, service: CloudService) -> None:
        self._config, self._service = config, service
        self._watches = {metric.name: _CloudMetricState(metric, service.plans(metric)) for metric in config.wanted()}
        self._fetches = FetchTracker(max_seconds=config.max_seconds, fetch_deadline=config.fetch_deadline)

    @property
    def source(self) -> str:
        """Source name as published in GET /watcher."""
        return self._service.source

    async def start(self) -> None:
        """Prepare the connection. Sends no request."""
        self._service.line.start()

    async def close(self) -> None:
        """Close the connections to the service."""
        await self._service.line.close()

    async def fetch(self, since: float, until: float, *, only: Collection[str] | None = None) -> Fetch:
        """Samples with since <= time <= until (unix seconds), of all wanted metrics or the metrics in `only`.

        Raises ProviderError if every query failed: unreachable before refused before malformed.
        """
        fetching = self._fetches.begin(since, until)
        asked = []
        for name, watch in self._watches.items():
            if only is not None and name not in only:
                continue
            if watch.plans:
                asked.append(watch)
            elif fetching.present:
                reason = f"no default query for {self.source}: set provider.queries.{watch.metric.key}"
                fetching.find(FindingKind.NO_SERIES, watch.metric, reason, Remedy.LEFT_OUT)
        outcomes = await gather_outcomes(self._fetch_metric(watch, fetching) for watch in asked)
        plans = {name: _shown(watch.plan) for name, watch in self._watches.items() if watch.plan is not None}
        self._fetches.announce(plans, address=self._service.line.address)
        return fetch_of(outcomes, fetching, plans=plans)

    async def _fetch_metric(self, watch: _CloudMetricState, fetching: FetchContext) -> Sequence[Outcome]:
        """Outcome of one metric: samples, failure, or None without samples in the range."""
        try:
            batch = await self._first_that_has_some(watch, fetching)
        except ProviderError as error:
            watch.silence.note(False, present=fetching.present)
            return [QueryFailure(watch.metric.name, error)]
        watch.silence.note(batch is not None, present=fetching.present)
        if fetching.present and watch.silence.worth_telling:
            sought = " or ".join(plan.shown for plan in watch.plans)
            reason = f"no samples of {sought} in the last {fetching.until - fetching.since:.0f} s"
            fetching.find(FindingKind.NO_SERIES, watch.metric, reason, Remedy.LEFT_OUT)
        return [batch]

    async def _first_that_has_some(self, watch: _CloudMetricState, fetching: FetchContext) -> SeriesBatch | None:
        for plan in watch.to_ask():
            reply = await self._service.ask(plan, fetching.since, fetching.until, deadline=fetching.deadline)
            if reply.clock_offset_s is not None:
                fetching.clock.append(reply.clock_offset_s)
            batch = self._batch(plan, reply, fetching)
            if batch is not None:
                watch.plan = plan
                return batch
        return None

    # --- from an answer to samples -----------------------------------------------------------------------------------

    def _batch(self, plan: CloudQueryPlan, reply: CloudResponse, fetching: FetchContext) -> SeriesBatch | None:
        """Samples in the requested range, converted to the metric's unit; None if there are none. Raises
        ProviderRefused if no series has a host."""
        for warning in reply.warnings:
            reason = f"warning of the source: {printable(self._service.line.scrub(warning))}"
            fetching.find(FindingKind.QUERY_FAILED, plan.metric, reason, Remedy.REPORTED)
        if reply.odd:
            reason = f"{reply.odd} unreadable series: a value is not a number, or values and times differ in length"
            fetching.find(FindingKind.NON_FINITE, plan.metric, reason, Remedy.DROPPED)
        named = [series for series in reply.series if series.host]
        self._report_nameless(plan, reply, len(reply.series) - len(named), fetching)
        if not named:
            return None
        time = np.concatenate([series.time for series in named])
        value = np.concatenate([series.value for series in named])
        index = np.repeat(np.arange(len(named), dtype=np.int64), [len(series.time) for series in named])
        fetching.findings += out_of_range_findings(plan.metric, time, since=fetching.since, until=fetching.until)
        keep = (time >= fetching.since) & (time <= fetching.until) & ~np.isnan(value)
        if not keep.any():
            return None
        suffix = "" if plan.own else self._config.host_name_suffix
        nodes = tuple(node_of(series.host, suffix=suffix) for series in named)
        factor = SOURCE_UNITS[plan.unit][1]
        return SeriesBatch(plan.metric, nodes, index[keep], time[keep], value[keep] * factor)

    def _report_nameless(
        self, plan: CloudQueryPlan, reply: CloudResponse, nameless: int, fetching: FetchContext
    ) -> None:
        if not nameless:
            return
        there = sorted(reply.labels)
        listed = ", ".join(map(printable, there[:SHOWN_LABELS])) or "none"
        more = f" and {len(there) - SHOWN_LABELS} more" if len(there) > SHOWN_LABELS else ""
        if nameless == len(reply.series):
            raise ProviderRefused(
                f"no series of {plan.shown} has the tag {plan.label}; existing tags: {listed}{more}",
                hint="Set provider.node_label to the tag with the Kubernetes node name; group your queries by it.",
            )
        reason = f"{nameless} of {len(reply.series)} series have no tag {plan.label}"
        fetching.find(FindingKind.UNKNOWN_NODE, plan.metric, reason, Remedy.DROPPED)


def _shown(plan: CloudQueryPlan) -> QueryPlan:
    return QueryPlan(plan.metric.name, plan.shown, plan.unit, plan.label, plan.smoothing_s, plan.reason)


def token_of(config: CloudConfig) -> str:
    """Current API token. Raises ProviderRefused if none is set."""
    token = config.token or read_secret("provider.token_file", config.token_file)
    if not token:
        raise ProviderRefused("no API token is set", hint="Set provider.token or provider.token_file.")
    return token
