"""Samples from a monitoring service in the cloud: what Datadog and SignalFx have in common.

Both are asked for one metric at a time, answer with points in buckets of time, limit how often they may be asked, and
know hosts rather than nodes: a host may stand there with its domain, a node without. How a service is asked, and what
it answers, is its own file's (datadog.py, signalfx.py).

One failing question costs its metric, not the fetch.
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
from watcher.platform.net.redaction import shown, without_credentials
from watcher.providers.base import Fetch, ProviderError, ProviderRefused, ProviderUnreachable, QueryFailure, QueryPlan
from watcher.providers.fetching import (
    SILENT_FETCHES,
    Aside,
    Fetches,
    Fetching,
    Outcome,
    Silence,
    answered,
    fetched,
    placed,
    retried,
    unexpected,
    untimely,
    wait_of,
)
from watcher.providers.http_client import LINES, Answer, Exchange, read_secret, sendable, tls_context, translated
from watcher.providers.queries import QueryConfig, check_keys, wanted

log = logging.getLogger(__name__)

T = TypeVar("T")

HOST = "host"
"""What both services call the tag, or dimension, with the name of the host."""
SHOWN_LABELS = 5


# --- what was configured ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CloudConfig:
    """Everything a provider is told. Raises ValueError, naming the setting, for what cannot work."""

    address: str
    token: str = field(default="", repr=False)
    token_file: str = ""
    ca_file: str = ""
    client_cert: str = ""
    client_key: str = ""
    insecure_skip_verify: bool = False
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout: float = 10.0
    """Seconds for one attempt of one question, from the connection to the last byte."""
    fetch_deadline: float = 40.0
    """Seconds for one fetch with all its questions and retries."""
    backoff: tuple[float, ...] = (0.25, 0.5)
    """Pauses in seconds before each retry of a question."""
    max_body_bytes: int = 256 << 20
    node_label: str = HOST
    host_name_suffix: str = ""
    cluster_name: str = ""
    metrics: tuple[str, ...] = ("CPU", "Memory")
    """Keys of the wanted metrics."""
    queries: Mapping[str, QueryConfig] = field(default_factory=dict)
    """Queries of the operator's own by key; a metric that has one is wanted."""
    max_seconds: float = 900.0
    """The longest window: nothing older is ever asked for."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.address)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError("provider.address must look like https://api.example.com, without a query")
        if "@" in parts.netloc:
            raise ValueError("provider.address must not hold credentials; there is provider.token")
        check_keys((*self.metrics, *self.queries))
        for key, query in self.queries.items():
            if SOURCE_UNITS.get(query.unit, ("",))[0] is not METRIC_BY_KEY[key].unit:
                raise ValueError(f"provider.queries.{key}.unit: {query.unit} cannot become {METRIC_BY_KEY[key].unit}")

    def wanted(self) -> tuple[Metric, ...]:
        """The metrics to bring, in the order of model.METRICS."""
        return wanted(self.metrics, self.queries)


def node_of(host: str, *, suffix: str) -> str:
    """The node that a host is: its name without the labels of a domain that lie wholly in the configured suffix.

    With the suffix ".dev.example" the host "a.dev.example" is the node "a", and "a.b.dev.example" is "a.b". Without a
    suffix the name is whole: nodes may be named by their full domain names. (The Go load-watcher cuts every name at its
    first dot.)
    """
    if not suffix or not host.endswith(suffix):
        return host
    at = len(host) - len(suffix)
    dot = at - 1 if host[at - 1 : at] == "." else host.find(".", at)
    return host[:dot] if dot > 0 else host


# --- what is asked and answered --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to have a metric. `asks` are what the service calls its parts, and the value is
    `start` + the first part, and + the others where there are any, each times its weight; `unit` is a key of
    model.SOURCE_UNITS. `own` marks a query of the operator's. `shown` and `reason` are for people."""

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
class Series:
    """The points of one series in ascending times (unix seconds), NaN where there is no value; `host` is "" where the
    series says none."""

    host: str
    time: F64
    value: F64


@dataclass(frozen=True, slots=True)
class Reply:
    """What a service said. `labels` are the tags or dimensions of series without a host, `odd` the number of series
    that cannot be read."""

    series: Sequence[Series]
    labels: frozenset[str] = frozenset()
    odd: int = 0
    warnings: tuple[str, ...] = ()
    clock_offset_s: float | None = None


class Service(Protocol):
    """One of the services."""

    source: str
    """The name on the wire."""
    line: Line

    def plans(self, metric: Metric) -> Sequence[Plan]:
        """How the metric may be had, the best first; the first that has series is taken."""
        ...

    async def ask(self, plan: Plan, since: float, until: float, *, deadline: float) -> Reply:
        """The points between the two (unix seconds), or a few more. Raises ProviderError."""
        ...


# --- the line to a service -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Heard(Generic[T]):
    """What was read from an answer, and the far clock minus ours in seconds."""

    content: T
    clock_offset_s: float | None


class _Said(msgspec.Struct, frozen=True):
    """An error's own words: Datadog has `errors`, SignalFx `message`."""

    errors: list[str] | str | None = None
    message: str = ""
    error: str = ""


_SAID = msgspec.json.Decoder(_Said)


class Line:
    """Questions to one service, at most LINES at a time, and none while it has said that there were too many.

    `credentials` gives the headers that say who asks, read anew for each question; `hint` says what to do where they
    are refused; `api` names the service's API for people.
    """

    def __init__(
        self, config: CloudConfig, *, credentials: Callable[[], Mapping[str, str]], hint: str, api: str
    ) -> None:
        self.address = config.address.rstrip("/")
        self._config, self._credentials, self._hint, self._api = config, credentials, hint, api
        self._exchange: Exchange | None = None
        self._free = asyncio.Semaphore(LINES)
        self._aside = Aside()
        self._paused_until = float("-inf")
        self._private: Sequence[str] = ()

    def start(self) -> None:
        """Asks nothing."""
        if self._config.insecure_skip_verify:
            log.warning("the certificate of %s is not verified (provider.insecure_skip_verify)", self.address)

    async def close(self) -> None:
        """Hang up."""
        if self._exchange is not None:
            await self._exchange.close()
        self._exchange = None

    async def get(
        self, path: str, query: Mapping[str, str], *, read: Callable[[Answer], T], deadline: float
    ) -> Heard[T]:
        """The answer as `read` understands it, in a thread. `deadline` is in the time of the event loop. Raises
        ProviderError; cancelling hangs up."""
        url = self.address + path
        return await self._retried(lambda on, sent: on.get(url, query=query, headers=sent), read, deadline=deadline)

    async def post(self, path: str, body: bytes, *, read: Callable[[Answer], T], deadline: float) -> Heard[T]:
        """The same for a JSON document."""
        url = self.address + path
        return await self._retried(lambda on, sent: on.post(url, body=body, headers=sent), read, deadline=deadline)

    async def _retried(
        self,
        send: Callable[[Exchange, Mapping[str, str]], Awaitable[Answer]],
        read: Callable[[Answer], T],
        *,
        deadline: float,
    ) -> Heard[T]:
        async def attempt() -> Heard[T]:
            with self._placed():
                async with asyncio.timeout_at(deadline), self._free:
                    self._heed_pause()
                    answer = await send(self._connected(), self._headers())
                    if answer.status != 200:
                        raise self._refusal(answer)
                    return Heard(await self._aside.do(read, answer), answer.clock_offset_s)

        return await retried(attempt, pauses=self._config.backoff, deadline=deadline)

    @contextlib.contextmanager
    def _placed(self) -> Iterator[None]:
        """Whatever fails inside is a ProviderError with the address."""
        try:
            yield
        except (ProviderError, TimeoutError, OSError, aiohttp.ClientError) as error:
            told = translated(error, tls=self.address.startswith("https:"))
            raise placed(told, self.address, scrub=self.scrub) from error

    def _connected(self) -> Exchange:
        if self._exchange is None:
            config = self._config
            self._exchange = Exchange(
                tls=tls_context(config), timeout=config.timeout, max_body_bytes=config.max_body_bytes
            )
        return self._exchange

    def _headers(self) -> dict[str, str]:
        credentials = self._credentials()
        self._private = [*credentials.values(), *(each for each in self._config.headers.values() if len(each) >= 8)]
        own = {"User-Agent": f"load-watcher/{__version__}", "Accept": "application/json"}
        return sendable({**own, **self._config.headers, **credentials})

    def scrub(self, text: str) -> str:
        """A text of the far side without what we last sent it in confidence."""
        for secret in self._private:
            text = text.replace(secret, "***")
        return text

    def _heed_pause(self) -> None:
        left = self._paused_until - asyncio.get_running_loop().time()
        if left > 0:
            raise _too_many(f"it wants no question for another {left:.0f} s", left)

    # --- refusals ----------------------------------------------------------------------------------------------------

    def _refusal(self, answer: Answer) -> ProviderError:
        """What an answer with another status than 200 means."""
        status, said = answer.status, self._said(answer)
        if status in (401, 403):
            words = "wants credentials" if status == 401 else "forbids the query"
            return ProviderRefused(f"it {words} ({status}): {said}", hint=self._hint)
        if 300 <= status < 400:
            location = shown(without_credentials(answer.headers.get("Location", "")))
            return ProviderRefused(
                f"it redirects ({status}) to {location or 'nowhere'}, which is not followed",
                hint=f"Set provider.address to where {self._api} itself is.",
            )
        if status == 404:
            return ProviderRefused(
                f"it does not know the path (404): {said}", hint=f"Is provider.address that of {self._api}?"
            )
        if status == 429:
            return self._pause(answer, said)
        if status == 408 or status >= 500:
            return ProviderUnreachable(
                f"it is not able to answer ({status}): {said}", hint="It is at fault itself, or a proxy before it."
            )
        if answer.body.lstrip()[:1] == b"<":
            return unexpected(
                answer.body, expected="JSON", api=self._api, content_type=answer.content_type, problem=str(status)
            )
        return ProviderRefused(
            f"it does not run the query ({status}): {said}",
            hint="Check provider.queries, provider.cluster_name and provider.host_name_suffix.",
        )

    def _said(self, answer: Answer) -> str:
        """Its own words."""
        try:
            said = _SAID.decode(answer.body)
            words = "; ".join(said.errors) if isinstance(said.errors, list) else said.errors
            text = words or said.message or said.error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            text = ""
        # before it is cut, for a half of a secret would not be found
        return shown(self.scrub(text or answer.body[:4096].decode(errors="replace")))

    def _pause(self, answer: Answer, said: str) -> ProviderUnreachable:
        """It was asked too often: nobody asks it again before it wants to be."""
        seconds = wait_of(answer.headers)
        if seconds is not None:
            until = asyncio.get_running_loop().time() + seconds
            self._paused_until = max(self._paused_until, until)
        return _too_many(f"it was asked too often (429): {said}", seconds)


def _too_many(message: str, seconds: float | None) -> ProviderUnreachable:
    hint = "Raise refresh.interval, or ask for fewer metrics (provider.metrics), or have the limit raised."
    return ProviderUnreachable(message, hint=hint, retry_after_s=seconds)


# --- the provider ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Watch:
    """What is known of one wanted metric: `plan` is the one of `plans` that had series."""

    metric: Metric
    plans: Sequence[Plan]
    plan: Plan | None = None
    silence: Silence = field(default_factory=Silence)

    def to_ask(self) -> Sequence[Plan]:
        """What to ask now: all ways, the last good one first, until one has series, and again when that falls
        silent."""
        if self.plan is not None and self.silence.fetches < SILENT_FETCHES:
            return (self.plan,)
        return sorted(self.plans, key=lambda plan: plan is not self.plan)


class CloudProvider:
    """A Provider (providers/base.py) over one of the services."""

    remembers = True

    def __init__(self, config: CloudConfig, service: Service) -> None:
        self._config, self._service = config, service
        self._watches = {metric.name: _Watch(metric, service.plans(metric)) for metric in config.wanted()}
        self._fetches = Fetches(max_seconds=config.max_seconds, fetch_deadline=config.fetch_deadline)

    @property
    def source(self) -> str:
        """The name on the wire."""
        return self._service.source

    async def start(self) -> None:
        """Asks nothing."""
        self._service.line.start()

    async def close(self) -> None:
        """Hang up everything."""
        await self._service.line.close()

    async def fetch(self, since: float, until: float, *, only: Collection[str] | None = None) -> Fetch:
        """Samples with since <= time <= until (unix seconds) of the wanted metrics, or of those that `only` names.

        Raises ProviderError if every question failed: unreachable before refused before malformed.
        """
        fetching = self._fetches.begin(since, until)
        asked = []
        for name, watch in self._watches.items():
            if only is not None and name not in only:
                continue
            if watch.plans:
                asked.append(watch)
            elif fetching.present:
                reason = f"{self.source} has no usual metric for it: set provider.queries.{watch.metric.key}"
                fetching.find(FindingKind.NO_SERIES, watch.metric, reason, Remedy.LEFT_OUT)
        outcomes = await answered(self._fetch_metric(watch, fetching) for watch in asked)
        plans = {name: _shown(watch.plan) for name, watch in self._watches.items() if watch.plan is not None}
        self._fetches.announce(plans, address=self._service.line.address)
        return fetched(outcomes, fetching, plans=plans)

    async def _fetch_metric(self, watch: _Watch, fetching: Fetching) -> Sequence[Outcome]:
        """The metric's samples, its failure, or None where it has none in this span."""
        try:
            batch = await self._first_that_has_some(watch, fetching)
        except ProviderError as error:
            watch.silence.note(False, present=fetching.present)
            return [QueryFailure(watch.metric.name, error)]
        watch.silence.note(batch is not None, present=fetching.present)
        if fetching.present and watch.silence.worth_telling:
            sought = " nor of ".join(plan.shown for plan in watch.plans)
            reason = f"there is no sample of {sought} in the last {fetching.until - fetching.since:.0f} s"
            fetching.find(FindingKind.NO_SERIES, watch.metric, reason, Remedy.LEFT_OUT)
        return [batch]

    async def _first_that_has_some(self, watch: _Watch, fetching: Fetching) -> SeriesBatch | None:
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

    def _batch(self, plan: Plan, reply: Reply, fetching: Fetching) -> SeriesBatch | None:
        """The samples of the span, converted; None if there are none. Raises ProviderRefused where no series says its
        host."""
        for warning in reply.warnings:
            reason = f"the source warns: {shown(self._service.line.scrub(warning))}"
            fetching.find(FindingKind.QUERY_FAILED, plan.metric, reason, Remedy.REPORTED)
        if reply.odd:
            reason = f"{reply.odd} series cannot be read: a value is no number, or they do not fit their times"
            fetching.find(FindingKind.NON_FINITE, plan.metric, reason, Remedy.DROPPED)
        named = [series for series in reply.series if series.host]
        self._report_nameless(plan, reply, len(reply.series) - len(named), fetching)
        if not named:
            return None
        time = np.concatenate([series.time for series in named])
        value = np.concatenate([series.value for series in named])
        index = np.repeat(np.arange(len(named), dtype=np.int64), [len(series.time) for series in named])
        fetching.findings += untimely(plan.metric, time, since=fetching.since, until=fetching.until)
        keep = (time >= fetching.since) & (time <= fetching.until) & ~np.isnan(value)
        if not keep.any():
            return None
        suffix = "" if plan.own else self._config.host_name_suffix
        nodes = tuple(node_of(series.host, suffix=suffix) for series in named)
        factor = SOURCE_UNITS[plan.unit][1]
        return SeriesBatch(plan.metric, nodes, index[keep], time[keep], value[keep] * factor)

    def _report_nameless(self, plan: Plan, reply: Reply, nameless: int, fetching: Fetching) -> None:
        if not nameless:
            return
        there = sorted(reply.labels)
        listed = ", ".join(map(shown, there[:SHOWN_LABELS])) or "none"
        more = f" and {len(there) - SHOWN_LABELS} more" if len(there) > SHOWN_LABELS else ""
        if nameless == len(reply.series):
            raise ProviderRefused(
                f"no series of {plan.shown} says its {plan.label}; what they say is {listed}{more}",
                hint="Set provider.node_label to what names the Kubernetes node, and group a query of your own by it.",
            )
        reason = f"{nameless} of {len(reply.series)} series do not say their {plan.label}"
        fetching.find(FindingKind.UNKNOWN_NODE, plan.metric, reason, Remedy.DROPPED)


def _shown(plan: Plan) -> QueryPlan:
    return QueryPlan(plan.metric.name, plan.shown, plan.unit, plan.label, plan.smoothing_s, plan.reason)


def token_of(config: CloudConfig) -> str:
    """The token as it is now. Raises ProviderRefused where there is none."""
    token = config.token or read_secret("provider.token_file", config.token_file)
    if not token:
        raise ProviderRefused("there is no token to ask with", hint="Set provider.token or provider.token_file.")
    return token
