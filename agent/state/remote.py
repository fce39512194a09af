"""Metrics of other servers: the watcher's windows of this node, and operator-defined PromQL expressions.

A background task requests them (`BackgroundValue`): a cycle uses the last response, and if a server is unreachable,
slow or stale, only its metrics are missing, with the reason.

The windows (window_cpu_avg_5m, window_memory_std_15m, …) are for rules on load over minutes. Gaps are not computed from
them: they describe another place and time than the local readings, and protection must not depend on the watcher.

Each expression is a metric:

    [agent.queries.ingress_p99]  expression = 'max(ingress_latency_p99{node="$node"})'

`$node` in an expression is the name of this node. Every series of the response is a series of the metric, with its
labels, so that rules can select among them.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from agent.state.background_value import BackgroundValue
from agent.state.readings import MetricReadings
from agent.state.watcher_clock import WatcherClock
from watcher.client import NodeClient, WatcherError
from watcher.decoding.json_text import decode_json
from watcher.model import METRIC_BY_NAME, Operator
from watcher.sources.config import ConnectionSettings, InstantQuery
from watcher.sources.errors import ProviderError, ProviderMalformed
from watcher.sources.prometheus_api import PrometheusClient

INTERVAL_S = 30.0
"""Seconds between requests."""
WINDOWS = ("5m", "10m", "15m")
OPERATORS = (Operator.AVG, Operator.STD)
MAX_AGE_S = 180.0
"""Seconds; three of the watcher's default intervals of one minute."""
EXPECTED_METRICS = ("cpu", "memory")
"""Metrics that every source has; other metrics count as missing only after they were present once."""
MAX_AGE_INTERVALS = 3.0
MAX_SERIES = 1000
"""Limit of series per response; more indicates that the expression lacks an aggregation."""

PROMETHEUS_HINT = "Check agent.prometheus and agent.prometheus_token_file."
"""Replaces hints that name settings of the watcher's source, which the agent does not read."""


# --- the watcher's windows -------------------------------------------------------------------------------------------


def metric_name(key: str, operator: Operator, window: str) -> str:
    """The metric name, such as window_network_transmit_avg_5m for the watcher's NetworkTransmit."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", key).lower()
    return f"window_{words}_{operator.value.lower()}_{window}"


class WatcherWindows:
    """Requests the windows every `interval` seconds. `windows` and `operators` must be the client's. Values older than
    `max_age` seconds, by the node's newest sample, are missing."""

    def __init__(
        self,
        client: NodeClient,
        *,
        windows: Sequence[str] = WINDOWS,
        operators: Sequence[Operator] = OPERATORS,
        interval: float = INTERVAL_S,
        max_age: float = MAX_AGE_S,
    ) -> None:
        self._client = client
        self._max_age = max_age
        self._clock = WatcherClock()
        self._load = BackgroundValue(
            "the watcher's windows", client.refresh, interval=interval, failures=(WatcherError,)
        )
        self._usual = [
            metric_name(key, operator, window)
            for key in EXPECTED_METRICS
            for operator in operators
            for window in windows
        ]

    async def start(self) -> None:
        """Start requesting the windows. Does not wait."""
        await self._load.start()

    async def close(self) -> None:
        """Stop requesting and close the client."""
        await self._load.close()
        await self._client.close()

    def read(self, *, now: float, monotonic: float) -> MetricReadings:
        """The last received windows, with their age."""
        readings, load = MetricReadings(), self._load.copy
        if load is None:
            readings.mark_missing(
                f"the watcher returned no windows: {self._load.failure or 'no response yet'}", *self._usual
            )
            return readings
        names = _names(load.values)
        if why := self._clock.problem(load):
            readings.mark_missing(why, *self._usual, *names.values())
            return readings
        age = load.age(monotonic)
        if age > self._max_age:
            why = self._load.failure or "its source has no newer sample"
            message = (
                f"the watcher's newest sample of {load.node} is {age:.0f} s old, more than {self._max_age:g} s: {why}"
            )
            readings.mark_missing(message, *self._usual, *names.values())
            return readings
        for key, name in names.items():
            value, rollup = load.values[key]
            if rollup == key[2]:
                readings.add(name, value, now - age)
            else:
                readings.mark_missing(f"the watcher has enough samples only for {rollup or 'no window'}", name)
        readings.mark_missing(
            "the watcher does not have this window of this node", *(n for n in self._usual if n not in readings.series)
        )
        return readings


def _names(keys: Iterable[tuple[str, Operator, str]]) -> Mapping[tuple[str, Operator, str], str]:
    """The metric names by the watcher's keys, without unknown metrics and without latest samples."""
    return {
        key: metric_name(METRIC_BY_NAME[key[0]].key, key[1], key[2])
        for key in keys
        if key[0] in METRIC_BY_NAME and key[1] is not Operator.LATEST
    }


# --- PromQL expressions ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sample:
    """One series of a response: `time` is in unix seconds as Prometheus returned it."""

    labels: Mapping[str, str]
    time: float
    value: float


class _VectorSample(msgspec.Struct, frozen=True):
    metric: dict[str, str]
    value: tuple[float, str]


def read_samples(rows: Iterable[msgspec.Raw]) -> tuple[Sample, ...]:
    """The series of an instant vector; values that are not finite are omitted. Raises ProviderMalformed."""
    samples = []
    for raw in rows:
        try:
            row = decode_json(raw, type=_VectorSample)
            moment, value = row.value[0], float(row.value[1])
        except ValueError as error:
            raise ProviderMalformed(f"the response has an invalid series: {error}") from error
        if math.isfinite(value):
            samples.append(Sample(row.metric, moment, value))
        if len(samples) > MAX_SERIES:
            raise ProviderMalformed(
                f"the response has more than {MAX_SERIES} series", hint="Aggregate the expression: max by (…) (…)."
            )
    return tuple(samples)


@dataclass(frozen=True, slots=True)
class _QueryResults:
    """The samples of each expression at the monotonic time `asked`, or why the query failed."""

    asked: float
    samples: Mapping[str, tuple[Sample, ...]]
    failures: Mapping[str, str]


class QueryMetrics:
    """Evaluates `expressions`, by metric name, every `interval` seconds. Samples older than three intervals are
    missing."""

    def __init__(
        self,
        client: PrometheusQueryClient,
        expressions: Mapping[str, str],
        *,
        node: str,
        interval: float = INTERVAL_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._expressions = {name: text.replace("$node", node) for name, text in expressions.items()}
        self._max_age = MAX_AGE_INTERVALS * interval
        self._monotonic = monotonic
        self._answers = BackgroundValue(
            "the agent's own queries", self._ask, interval=interval, failures=(ProviderError,)
        )

    async def start(self) -> None:
        """Start running the queries. Does not wait for responses."""
        await self._answers.start()

    async def close(self) -> None:
        """Stop running the queries and close the client."""
        await self._answers.close()
        await self._client.close()

    def read(self, *, now: float, monotonic: float) -> MetricReadings:
        """The last samples with their age."""
        readings, answers = MetricReadings(), self._answers.copy
        if answers is None:
            readings.mark_missing(
                f"the query has no result: {self._answers.failure or 'no response yet'}", *self._expressions
            )
            return readings
        age = monotonic - answers.asked
        for name in self._expressions:
            samples = answers.samples.get(name, ())
            if age > self._max_age:
                why = self._answers.failure or "it responds slowly"
                readings.mark_missing(f"the last result of its query is {age:.0f} s old: {why}", name)
            elif not samples:
                readings.mark_missing(answers.failures.get(name, "its query returned no series"), name)
            for sample in samples if age <= self._max_age else ():
                readings.add(name, sample.value, now - age, sample.labels)
        return readings

    async def _ask(self) -> _QueryResults:
        """Run all queries concurrently. Raises ProviderError if all of them fail."""
        asked = self._monotonic()
        outcomes = await asyncio.gather(
            *(self._client.ask(text) for text in self._expressions.values()), return_exceptions=True
        )
        samples: dict[str, tuple[Sample, ...]] = {}
        failures: dict[str, ProviderError] = {}
        for name, outcome in zip(self._expressions, outcomes, strict=True):
            if isinstance(outcome, ProviderError):
                failures[name] = outcome
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                samples[name] = outcome
        if failures and not samples:
            raise next(iter(failures.values()))
        message = {name: f"its query failed: {error}. {error.hint}".rstrip() for name, error in failures.items()}
        return _QueryResults(asked, samples, message)


def prometheus_connection(address: str, token_file: Path | None) -> ConnectionSettings:
    """The connection from the agent's settings."""
    return ConnectionSettings(address=address, token_file=token_file, keys="agent.prometheus_")


class PrometheusQueryClient:
    """Queries the server of `settings`, with its credentials, certificates and timeout."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._timeout = settings.timeout
        self._client = PrometheusClient(settings)
        self._started = False

    async def ask(self, expression: str) -> tuple[Sample, ...]:
        """Evaluate an expression at the current time: one sample per series. Raises ProviderError."""
        if not self._started:
            self._client.start()
            self._started = True
        deadline = asyncio.get_running_loop().time() + self._timeout
        question = InstantQuery(expression, time.time())
        try:
            reply = await self._client.ask(question, expects="vector", read=read_samples, deadline=deadline)
        except ProviderError as error:
            if "provider." in error.hint:
                error.hint = PROMETHEUS_HINT
            raise
        return reply.content

    async def close(self) -> None:
        """Close the connections to the server."""
        await self._client.close()
