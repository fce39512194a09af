"""Samples from a file that something else writes: a line for each node, with its name, CPU and memory in percent. They
are as old as the file is."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection
from pathlib import Path

import numpy as np

from watcher.core.config.settings import Settings
from watcher.model import METRIC_BY_KEY, Metric, SeriesBatch
from watcher.sources.base import Fetch, QueryPlan
from watcher.sources.errors import ProviderMalformed, ProviderUnreachable
from watcher.sources.settings import ProviderSettings

COLUMNS = (METRIC_BY_KEY["CPU"], METRIC_BY_KEY["Memory"])


class FileProvider:
    """A Provider (watcher.sources.base) that reads its file again at each fetch."""

    source = "File"
    remembers = False

    def __init__(self, path: Path) -> None:
        self._path = path

    async def start(self) -> None:
        """Reads nothing yet."""

    async def close(self) -> None:
        """Holds nothing."""

    async def fetch(self, since: float, until: float, *, only: Collection[str] | None = None) -> Fetch:
        """What the file says now. Raises ProviderError."""
        at, rows = await asyncio.to_thread(self._read)
        wanted = [metric for metric in COLUMNS if only is None or metric.name in only]
        batches = [_batch(metric, at, rows) for metric in wanted] if since <= at <= until else []
        return Fetch(tuple(batches), plans={metric.name: self._plan(metric) for metric in COLUMNS})

    def _read(self) -> tuple[float, list[tuple[str, float, float]]]:
        try:
            with self._path.open() as file:
                at = os.fstat(file.fileno()).st_mtime
                return at, [_row(line) for line in file if line.strip()]
        except OSError as error:
            raise ProviderUnreachable(
                f"{self._path} cannot be read: {error.strerror}", hint="Set LOADS_FILE."
            ) from error
        except ValueError as error:
            raise ProviderMalformed(f"{self._path} has an invalid line: {error}") from error

    def _plan(self, metric: Metric) -> QueryPlan:
        return QueryPlan(metric.name, f"{metric.key} in {self._path}", "percent", "node", 0.0, "it is the only one")


def _row(line: str) -> tuple[str, float, float]:
    node, cpu, memory = line.split()
    return node, float(cpu), float(memory)


def _batch(metric: Metric, at: float, rows: list[tuple[str, float, float]]) -> SeriesBatch:
    column = 1 + COLUMNS.index(metric)
    return SeriesBatch(
        metric,
        tuple(str(row[0]) for row in rows),
        np.arange(len(rows), dtype=np.int64),
        np.full(len(rows), at),
        np.array([row[column] for row in rows], dtype=np.float64),
    )


def from_settings(settings: Settings) -> FileProvider:
    """What load-watcher calls. This source needs no setting of load-watcher's."""
    if settings[ProviderSettings].address is not None:
        raise ValueError("provider.address: this source has none, its file is in LOADS_FILE")
    return FileProvider(Path(os.environ.get("LOADS_FILE", "/var/lib/loads")))
