"""The maxima and bounds of the pipeline: fed from accepted samples, in the worker thread of the tick."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from watcher.core.forecast.document import snapshot_forecasts
from watcher.core.forecast.fleet import METRICS, FleetForecast, ForecastTable
from watcher.core.forecast.maxima import HOUR_SLOTS, SLOT_S
from watcher.core.forecast.settings import ForecastSettings
from watcher.core.windows.records import CARRIED, MaximaHour, SampleBlock, StoredMaxima, TickRecord
from watcher.model import Cells, Metric, Provenance, SnapshotForecasts

log = logging.getLogger(__name__)

HOURLY_SHARE = 30
"""An hourly step is spread over ticks: at least 4 chunks per tick, or this fraction of all."""
HOURS_PER_TICK = 24
"""Changed hours, other than the newest, that one tick gives to the store: a backfill changes hundreds."""
ADDED_SLOTS = 8
"""Slots of stored samples that are added at once: all of 5,000 nodes would briefly take 25 MB."""


class ForecastHistory:
    """The maxima and bounds as the pipeline uses them, in the worker thread; does nothing if `config` is None.
    `fitting`: by metric name, the provenances whose maxima may be mixed with new ones."""

    def __init__(self, config: ForecastSettings | None) -> None:
        self.fleet = None if config is None else FleetForecast(config)
        self.fitting: dict[str, Collection[Provenance]] = {}
        self.restored: TickRecord | None = None
        """Samples of the same source from before the start, until the stored hours are loaded."""
        self.holds = False
        """Whether stored hours are still to be loaded: until then, an hour that is stored would replace them."""
        self._stored_slot = -1
        self._dropped_hour = -1

    def continue_from(self, other: ForecastHistory) -> None:
        """Take over the maxima of a pipeline of the same source, if the settings are the same."""
        if self.fleet is not None and other.fleet is not None and self.fleet.config == other.fleet.config:
            self.fleet, self.holds = other.fleet, other.holds

    # --- samples in --------------------------------------------------------------------------------------------------

    def add(self, metric: Metric, cells: Cells) -> None:
        """Raise the maxima by reviewed samples."""
        if self.fleet is not None and metric.name in METRICS:
            self.fleet.maxima.add(metric.name, cells.names, cells.node, cells.time, cells.value)

    def add_blocks(self, blocks: Sequence[SampleBlock], *, resolution: int) -> None:
        """Raise the maxima by stored samples: those since the maxima were stored last are in no stored hour."""
        for block in blocks:
            if self.fleet is not None and block.metric in METRICS:
                present = ~np.isnan(block.values) & (block.offset_ms != CARRIED)
                for first in range(0, len(present), ADDED_SLOTS):
                    row, node = np.nonzero(present[first : first + ADDED_SLOTS])
                    row += first
                    time = (block.first_slot + row) * float(resolution) + block.offset_ms[row, node] / 1000.0
                    self.fleet.maxima.add(block.metric, block.nodes, node, time, block.values[row, node])

    def load(self, stored: Sequence[StoredMaxima], now: float) -> bool:
        """Add stored hours whose origin fits; return whether all of them fit. Others may fit later, when the names of
        the cluster's nodes are known. The restored samples are added, too: no hour has the newest of them, and the
        source may not respond."""
        if self.fleet is None:
            return True
        if self.restored is not None:
            known, of = self.restored.provenance, self.restored.blocks
            blocks = [each for each in of if known.get(each.metric) in self.fitting.get(each.metric, ())]
            self.add_blocks(blocks, resolution=self.restored.resolution)
            self.restored = None
        fits = [each for each in stored if each.provenance in self.fitting.get(each.hour.metric, ())]
        for own in (True, False):
            hours = [each.hour for each in fits if each.own is own]
            self.fleet.maxima.load(hours, newest=int(now // SLOT_S), changed=not own)
        if fits:
            self.fleet.restart()
            log.debug("restored %s hours of maxima of %s nodes", len(fits), len(self.fleet.maxima.nodes))
        return len(fits) == len(stored)

    def hours(self, now: float, most: int) -> list[range]:
        """Return the hours of the history, the newest first, in ranges of `most` hours."""
        if self.fleet is None:
            return []
        newest = int(now // 3600)
        oldest = newest - self.fleet.config.slots // HOUR_SLOTS
        return [range(stop - most, stop) for stop in range(newest + 1, oldest, -most)]

    # --- changes -----------------------------------------------------------------------------------------------------

    def rename(self, metric: str, names: Mapping[str, str | None]) -> None:
        """Move the maxima of one metric to other nodes; None removes them."""
        if self.fleet is not None and metric in METRICS and names:
            self.fleet.rename(metric, names)

    def keep_within(self, most: int, nodes: Collection[str]) -> None:
        """Of more than `most` nodes, keep only the maxima of `nodes`, which have samples now."""
        if self.fleet is None or len(self.fleet.maxima.nodes) <= most:
            return
        kept = set(nodes)
        gone = dict.fromkeys(name for name in self.fleet.maxima.nodes if name not in kept)
        for metric in METRICS:
            self.fleet.rename(metric, gone)
        self.fleet.drop_empty_nodes()

    def drop(self, metric: str) -> None:
        """Remove the maxima of one metric: its source changed."""
        if self.fleet is not None and metric in METRICS:
            self.fleet.drop(metric)

    def step_back(self, now: float) -> None:
        """Remove the maxima after `now` (unix seconds): the clock was set back."""
        if self.fleet is not None:
            self.fleet.step_back(now)
            self._stored_slot = -1

    # --- out ---------------------------------------------------------------------------------------------------------

    def take_changed(self) -> tuple[MaximaHour, ...]:
        """Return changed hours for the store. The newest hour is among them once per five minutes: a restart computes
        the maxima since then from the stored samples."""
        if self.fleet is None or self.holds or (head := self.fleet.maxima.head) is None:
            return ()
        if head == self._stored_slot:
            return tuple(self.fleet.maxima.take_changed(most=HOURS_PER_TICK, before=head - head % HOUR_SLOTS))
        self._stored_slot = head
        return tuple(self.fleet.maxima.take_changed(most=HOURS_PER_TICK, before=head + 1))

    def due_chunks(self, now: float) -> list[int]:
        """Return the chunks whose bounds are due: all new ones, and the share of the others that one tick computes."""
        if self.fleet is None:
            return []
        hour = int(now // 3600)
        if hour != self._dropped_hour:
            self._dropped_hour = hour
            self.fleet.drop_empty_nodes()
        due = self.fleet.due_chunks(now)
        new = [chunk for chunk in due if self.fleet.is_new(chunk)]
        return [*new, *due[len(new) :][: max(4, -(-len(self.fleet.maxima.chunks) // HOURLY_SHARE))]]

    def advance(self, chunk: int, now: float) -> None:
        """Compute the bounds of a chunk."""
        assert self.fleet is not None
        self.fleet.advance(chunk, now)

    def of_nodes(self, nodes: Sequence[str], now: float) -> SnapshotForecasts | None:
        """Return the bounds of the nodes of a snapshot, None if forecasts are disabled."""
        table = self.table(now)
        return None if table is None else snapshot_forecasts(table, nodes)

    def table(self, now: float) -> ForecastTable | None:
        """Return the forecasts of all nodes, None if they are disabled."""
        return None if self.fleet is None else self.fleet.table(now)
