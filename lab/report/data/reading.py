"""Range queries that a server can bear: divided by time, two at a time, one at a time after a slow response, within a
budget of values."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np

from lab.report.collected import QueryUse
from watcher.arrays import F64
from watcher.platform.net.http_body import TOO_LARGE_HINT
from watcher.sources.config import RangeQuery
from watcher.sources.errors import ProviderError, ProviderTimeout
from watcher.sources.prometheus.responses import read_series
from watcher.sources.prometheus_api import PrometheusClient

T = TypeVar("T")

VALUES_PER_REQUEST = 500_000
"""Most values that the server computes for one request, before it aggregates them. Prometheus aborts a query at 50
million samples (--query.max-samples)."""
AT_A_TIME = 2
DIVISIONS = 4
"""A question that the server cannot answer is divided down to 1/16 before it counts as failed."""
SLOW_S = 15.0
"""After a response that took longer, requests are sent one at a time."""
LIMITS = ("too many samples", "-search.max", "exceeded the limit", "exceeds the limit")
"""In the messages of servers that abort a query because it is too large."""
STEPS = (60, 150, 300, 600, 900, 1800, 3600, 7200, 10800, 14400, 21600)
_COUNTED = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\{[^}]*\}(?=\[)")

ProgressCallback = Callable[[float], None]
"""Called with the share that is done, 0 to 1."""


class BudgetExceeded(Exception):
    """A question needs more values than the budget has left."""


@dataclass(frozen=True, slots=True)
class SeriesGrid:
    """Values [steps, series] of the series with these label values."""

    keys: tuple[tuple[str, ...], ...]
    values: F64


class HistoryReader:
    """Sends range queries; `left` is the number of values that the server may still compute for them."""

    def __init__(self, client: PrometheusClient, *, most_values: int, timeout: float) -> None:
        self.left = most_values
        self.uses: list[QueryUse] = []
        self.remarks: list[str] = []
        self._client, self._timeout = client, timeout
        self._largest = VALUES_PER_REQUEST
        self._slots = asyncio.Semaphore(AT_A_TIME)
        self._slowed = False

    def step_for(self, series: int, seconds: float, *, smallest: int, share: float = 1.0) -> int | None:
        """The shortest step with which `series` over `seconds` fit into this share of the budget; None if none does."""
        most = share * self.left
        return next((each for each in STEPS if each >= smallest and series * seconds / each <= most), None)

    async def count(self, selector: str, at: int) -> int:
        """The number of series of an expression at a time; 0 if the server has none or rejects the expression."""
        grid = await self.grid(f"count({selector})", (), at, at, 60, series=1, purpose="")
        return int(grid.values[0, 0]) if grid.values.size and np.isfinite(grid.values[0, 0]) else 0

    async def cost_of(self, expression: str, at: int, *, nodes: int) -> int:
        """The number of series that the server evaluates for an expression: those under range selectors, at least one
        per node."""
        ranges = sorted(set(_COUNTED.findall(expression)))
        return max([nodes, *[await self.count(each, at) for each in ranges]])

    async def grid(
        self,
        query: str,
        labels: Sequence[str],
        start: int,
        end: int,
        step: int,
        *,
        series: int,
        purpose: str,
        progress: ProgressCallback = lambda share: None,
    ) -> SeriesGrid:
        """Values at `start`, `start + step`, ... `end` of each combination of these labels, of which the server
        evaluates `series` per step; the highest, if several series have the same labels. Raises ProviderError, and
        BudgetExceeded before the first request."""
        steps = (end - start) // step + 1
        if series * steps > self.left:
            raise BudgetExceeded(f"{purpose}: {series * steps:,} values, {self.left:,} left")
        self.left -= series * steps
        done = 0

        async def part(first: int, count: int) -> list[Part]:
            nonlocal done
            question = RangeQuery(query, start + first * step, start + (first + count - 1) * step, step)
            found = await self._read(question, labels, count, max(series, 1))
            done += count
            progress(done / steps)
            return [(first + offset, grid) for offset, grid in found]

        requests = min(steps, -(-steps * max(series, 1) // self._largest))
        size = -(-steps // requests)
        jobs = [part(first, min(size, steps - first)) for first in range(0, steps, size)]
        parts = [each for found in await all_of(jobs) for each in found]
        grid = _joined(parts, steps)
        if purpose:
            self.uses.append(QueryUse(purpose, query, step, len(parts), int(np.isfinite(grid.values).sum())))
        return grid

    async def _read(
        self, question: RangeQuery, labels: Sequence[str], count: int, series: int, *, divisions: int = DIVISIONS
    ) -> list[Part]:
        """The grids of a question with `count` steps, and the step with which each begins. A question that is too large
        for the server is divided, at most `divisions` times."""
        try:
            return [(0, await self._ask(question, labels, count))]
        except ProviderError as error:
            if count == 1 or not divisions or not _is_too_large(error):
                raise
        half = count // 2
        self._largest = max(1, min(self._largest, half * series))
        middle = question.start + half * question.step
        halves = (
            (0, RangeQuery(question.query, question.start, middle - question.step, question.step), half),
            (half, RangeQuery(question.query, middle, question.end, question.step), count - half),
        )
        parts: list[Part] = []
        for begin, each, steps in halves:
            found = await self._read(each, labels, steps, series, divisions=divisions - 1)
            parts += [(begin + first, grid) for first, grid in found]
        return parts

    async def _ask(self, question: RangeQuery, labels: Sequence[str], count: int) -> SeriesGrid:
        loop = asyncio.get_running_loop()
        await self._slots.acquire()
        try:
            reply = await self._client.ask(
                question,
                expects="matrix",
                read=lambda rows: read_grid(rows, labels, start=question.start, step=question.step, count=count),
                deadline=loop.time() + self._timeout,
            )
        except BaseException:
            self._slots.release()
            raise
        if reply.round_trip_s > SLOW_S and not self._slowed:
            self._slowed = True  # and keep the slot
        else:
            self._slots.release()
        if reply.missing:
            self.remark(f"the source marked a response as incomplete: {reply.missing}")
        for each in reply.remarks:
            self.remark(each)
        return reply.content

    def remark(self, text: str) -> None:
        """Add a remark about the responses, once."""
        if text not in self.remarks:
            self.remarks.append(text)


Part = tuple[int, SeriesGrid]
"""Some steps of a grid, and the step with which they begin."""


async def all_of(jobs: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of jobs that run at the same time. Raises the first error, after the others have ended."""
    tasks = [asyncio.ensure_future(each) for each in jobs]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _is_too_large(error: ProviderError) -> bool:
    """Whether the server may answer half of the question."""
    return (
        isinstance(error, ProviderTimeout) or error.hint == TOO_LARGE_HINT or any(each in str(error) for each in LIMITS)
    )


def read_grid(rows: Iterable[msgspec.Raw], labels: Sequence[str], *, start: int, step: int, count: int) -> SeriesGrid:
    """Values [count, series] of the rows of a matrix, by the values of these labels. Values that are not finite count
    as absent. Raises ProviderMalformed."""
    index: dict[tuple[str, ...], int] = {}
    columns: list[F64] = []
    for raw in rows:
        series = read_series(raw)
        key = tuple(series.metric.get(label, "") for label in labels)
        column = np.full(count, np.nan)
        if series.values:
            pairs = np.array(series.values, dtype=np.float64)
            at = np.rint((pairs[:, 0] - start) / step).astype(np.int64)
            good = (at >= 0) & (at < count) & np.isfinite(pairs[:, 1])
            column[at[good]] = pairs[good, 1]
        if key in index:
            columns[index[key]] = np.fmax(columns[index[key]], column)
        else:
            index[key] = len(columns)
            columns.append(column)
    values = np.stack(columns, axis=1) if columns else np.empty((count, 0))
    return SeriesGrid(tuple(index), values)


def _joined(parts: Sequence[tuple[int, SeriesGrid]], steps: int) -> SeriesGrid:
    """One grid of consecutive parts, with the keys sorted."""
    keys = tuple(sorted({key for _, grid in parts for key in grid.keys}))
    place = {key: i for i, key in enumerate(keys)}
    values = np.full((steps, len(keys)), np.nan)
    for first, grid in parts:
        columns = [place[key] for key in grid.keys]
        values[first : first + len(grid.values), columns] = grid.values
    return SeriesGrid(keys, values)
