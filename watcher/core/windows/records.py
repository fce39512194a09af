"""Records that the store keeps: blocks of samples, minutes of windows, hours of maxima, and the tick with all of them.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from watcher.arrays import F32, F64, U8, U16
from watcher.model import LastSample, Operator, Provenance, Window


@dataclass(frozen=True, slots=True)
class SampleBlock:
    """k consecutive slots of one metric for all n nodes: `values` [k, n] (NaN: no sample) and `offset_ms` [k, n], the
    sample time in milliseconds after the slot's start (CARRIED: a carried value, not a sample)."""

    metric: str
    first_slot: int
    nodes: tuple[str, ...]
    values: F64
    offset_ms: U16


CARRIED = 65535  # offset_ms of a cell that was filled with the value of an earlier slot; never counts as coverage


@dataclass(frozen=True, slots=True)
class WindowRecord:
    """The values of one window that are recorded for one minute: `values` [columns, n], `time` in unix seconds; columns
    are (metric name, operator)."""

    window: Window
    time: int
    nodes: tuple[str, ...]
    columns: tuple[tuple[str, Operator], ...]
    values: F32


@dataclass(frozen=True, slots=True)
class MaximaHour:
    """The maxima of one metric in one hour (number since the Unix epoch): `codes` [12, n] of `nodes`, one per five
    minutes (core.forecast.maxima)."""

    metric: str
    hour: int
    nodes: tuple[str, ...]
    codes: U8


@dataclass(frozen=True, slots=True)
class StoredMaxima:
    """A stored hour of maxima and the origin of its samples. `own`: it is stored for this watcher, and not only for
    another one of the cluster."""

    hour: MaximaHour
    provenance: Provenance
    own: bool = True


@dataclass(frozen=True, slots=True)
class TickRecord:
    """Samples with their origin, as of one tick. The store saves those that changed in one transaction, with `records`
    and `maxima`, and returns all of them at the next start, without these two."""

    timestamp: float
    end: float
    source: str
    resolution: int
    windows: tuple[Window, ...]
    provenance: Mapping[str, Provenance]
    blocks: tuple[SampleBlock, ...]
    records: tuple[WindowRecord, ...] = ()
    lost: Mapping[str, float] = field(default_factory=dict)
    """As in Snapshot: after a restart, a list of nodes that was refused is still refused."""
    silent: Mapping[str, LastSample] = field(default_factory=dict)
    """Node without recent samples -> its last known values, however old (silent_nodes.SilentNodes)."""
    maxima: tuple[MaximaHour, ...] = ()
