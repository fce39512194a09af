"""The published pod usage: the table that is served, and its document.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec
import numpy as np

from watcher.arrays import F64, I64
from watcher.core.pods.coverage import PodCoverage
from watcher.core.pods.table import SLOT_S, PodOrigin, PodTable, averages, pressure_averages, rows_of
from watcher.core.publishing.documents import nullable, to_wire
from watcher.core.publishing.wire import PodAverages, PodMinutes, PodPressure, PodsDocument
from watcher.model import Window


class PublishedPods:
    """A table as it is served, replaced as a whole by the next table. `tag` makes its ETags unique; `age_s` is the age
    of the newest reading in seconds when it was published at `monotonic` seconds. `cadence_s` is the refresh interval
    in seconds. `coverage` is that of the readings if not given.
    """

    def __init__(
        self,
        table: PodTable,
        *,
        origin: PodOrigin,
        windows: Sequence[Window],
        cadence_s: float,
        timestamp: float,
        tag: str,
        monotonic: float,
        age_s: float,
        coverage: PodCoverage | None = None,
    ) -> None:
        self.table = table
        self.coverage = PodCoverage(table.measured()) if coverage is None else coverage
        self.origin = origin
        self.windows = tuple(windows)
        self.cadence_s = cadence_s
        self.timestamp = timestamp
        self.tag = tag
        self.monotonic = monotonic
        self.age_s = age_s
        self.nodes = frozenset(table.nodes)
        self.namespaces = frozenset(namespace for namespace, _ in table.pods)

    def age(self, monotonic: float) -> float:
        """Return the age of the newest reading in seconds at `monotonic` (seconds of the monotonic clock)."""
        return max(0.0, self.age_s + monotonic - self.monotonic)

    def rows(self, nodes: Collection[str] | None = None, namespaces: Collection[str] | None = None) -> I64:
        """Return the rows of the pods on these nodes and in these namespaces; None means all."""
        table = self.table
        wanted = (
            (nodes is None or node in nodes) and (namespaces is None or namespace in namespaces)
            for node, (namespace, _) in zip(table.nodes, table.pods, strict=True)
        )
        return np.flatnonzero(np.fromiter(wanted, dtype=bool, count=len(table.pods)))

    def minutes(self) -> tuple[F64, F64]:
        """Return the readings of each minute (cores, bytes), each [k, n] and read-only, rounded as in the document."""
        minutes = _rounded_cores(self.table.recent_cores), np.rint(self.table.recent_memory)
        for each in minutes:
            each.flags.writeable = False
        return minutes

    def document(
        self,
        rows: I64 | None = None,
        *,
        nodes: Collection[str] | None = None,
        minutes: int = 0,
        reason: str = "",
    ) -> PodsDocument:
        """Return the document with all pods, or only with the pods in `rows` and the coverage of `nodes`, and the
        readings of the last `minutes`. `reason` says why there are no pods."""
        table, coverage = self.table if rows is None else rows_of(self.table, rows), self.coverage.on(nodes)
        return PodsDocument(
            timestamp=int(self.timestamp),
            source=self.origin.source,
            every_s=self.cadence_s,
            cores_from=self.origin.cores,
            cores_span_s=self.origin.span_s,
            bytes_from=self.origin.memory,
            bytes_kind=self.origin.memory_kind,
            namespace=[namespace for namespace, _ in table.pods],
            pod=[name for _, name in table.pods],
            node=list(table.nodes),
            time=np.round(table.sampled, 3).tolist(),
            cores=_cores(table.cores),
            bytes=_bytes(table.memory),
            averages=[self._averages(table, window) for window in self.windows],
            measured={node: round(time, 3) for node, time in sorted(coverage.measured.items())},
            unknown=dict(coverage.unknown),
            valid_s=coverage.valid_s,
            pressure=_pressure(table.pressure),
            minutes=_minutes(table, minutes) if minutes else msgspec.UNSET,
            reason=reason or msgspec.UNSET,
        )

    def _averages(self, table: PodTable, window: Window) -> PodAverages:
        cores, memory = averages(table, window, cadence_s=self.cadence_s)
        pressure = pressure_averages(table, window, cadence_s=self.cadence_s)
        return PodAverages(
            window=window.label,
            cores=_cores(cores),
            bytes=_bytes(memory),
            pressure=msgspec.UNSET if pressure is None else _pressure(pressure),
        )

    def body(
        self,
        rows: I64 | None = None,
        *,
        nodes: Collection[str] | None = None,
        minutes: int = 0,
        reason: str = "",
    ) -> bytes:
        """Return `document` as JSON, encoded one column at a time, because a single call of the encoder would hold the
        GIL until it is done."""
        document = self.document(rows, nodes=nodes, minutes=minutes, reason=reason)
        if document.minutes:
            lists: list[list[Any]] = [document.minutes.cores, document.minutes.bytes]
            for each in lists:
                each[:] = [msgspec.Raw(msgspec.json.encode(minute)) for minute in each]
        pressures = (document.pressure, *(each.pressure for each in document.averages))
        for part in (*(each for each in pressures if each), *document.averages, document):
            for name in part.__struct_fields__:
                value = getattr(part, name)
                if isinstance(value, list) and name != "averages":
                    setattr(part, name, msgspec.Raw(msgspec.json.encode(value)))
        return msgspec.json.encode(document)


def _pressure(pressure: F64) -> PodPressure | msgspec.UnsetType:
    if np.isnan(pressure).all():
        return msgspec.UNSET
    return PodPressure(*(nullable(to_wire(np.round(row, 3))) for row in pressure))


def _minutes(table: PodTable, minutes: int) -> PodMinutes:
    cores, memory = table.recent_cores[-minutes:], table.recent_memory[-minutes:]
    return PodMinutes(table.head * SLOT_S, [_cores(each) for each in cores], [_bytes(each) for each in memory])


def _rounded_cores(values: F64) -> F64:
    """Round cores to nanocores, the resolution of Kubernetes quantities, and for the wire."""
    return to_wire(np.round(values, 9))


def _cores(values: F64) -> list[float | None]:
    return nullable(_rounded_cores(values))


def _bytes(values: F64) -> list[int | None]:
    return [None if value != value else int(value) for value in np.rint(values).tolist()]
