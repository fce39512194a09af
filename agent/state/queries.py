"""Operator-defined metrics, each from a PromQL expression evaluated by a Prometheus server.

    [agent.queries.ingress_p99]  expression = 'max(ingress_latency_p99{node="$node"})'

`$node` in an expression is the name of this node. Every series of the response is a series of the metric, with its
labels, so that rules can select among them. A background task runs the queries: a cycle uses the last responses, and if
the server is unreachable, only these metrics are missing.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from agent.state.background_value import BackgroundValue
from agent.state.readings import MetricReadings
from watcher.decoding.json_text import decode_json
from watcher.sources.errors import ProviderError, ProviderMalformed

INTERVAL_S = 30.0
MAX_AGE_INTERVALS = 3.0
MAX_SERIES = 1000
"""Limit of series per response; more indicates that the expression lacks an aggregation."""

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Sample:
    """One series of a response: `time` is in unix seconds as Prometheus returned it."""

    labels: Labels
    time: float
    value: float


class QueryClient(Protocol):
    """Evaluates expressions. Both methods raise ProviderError."""

    async def ask(self, expression: str) -> tuple[Sample, ...]:
        """Evaluate an expression at the current time: one sample per series."""
        ...

    async def close(self) -> None: ...


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
        questions: QueryClient,
        expressions: Mapping[str, str],
        *,
        node: str,
        interval: float = INTERVAL_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._questions = questions
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
        await self._questions.close()

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
            *(self._questions.ask(text) for text in self._expressions.values()), return_exceptions=True
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
