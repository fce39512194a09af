"""Bounds of the history: the width of its slots, and the nodes of which samples are kept.

The resolution is fixed by the settings, or follows the cadence of the source as far as the memory allows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np

from watcher.core.naming.renames import NamedBatch
from watcher.core.review import known_nodes
from watcher.core.windows.history import History
from watcher.core.windows.records import SampleBlock, TickRecord
from watcher.core.windows.resolution import (
    ALMOST_NONE,
    SourceCadence,
    choose_resolution,
    history_bytes,
    resample,
    source_cadence,
)
from watcher.core.windows.slot_widths import FINEST_S, usable_widths
from watcher.model import Finding, FindingKind, Remedy, SeriesBatch
from watcher.platform.memory import BUDGET
from watcher.tick.shared import RefreshConfig

log = logging.getLogger(__name__)

NODES = "nodes of the source"
"""Name of new nodes in the memory budget."""
REFINE_SHARE = 0.8  # of the memory bound: a fleet whose size varies around the bound must not change it at each tick


class ResolutionChooser:
    """The resolution of the history. `adapts`: it follows the source; otherwise it is that of `config`. `remembers`:
    the source has history, so it may have more samples than the history has slots."""

    def __init__(self, config: RefreshConfig, *, adapts: bool, remembers: bool) -> None:
        self.width = config.point_resolution
        self._config = config
        self._adapts = adapts
        self._remembers = remembers
        self._widths = usable_widths(config.windows) if adapts else (config.point_resolution,)
        self._reported: tuple[int, str] | None = None

    def resume(self, width: int) -> None:
        """Continue with the resolution of stored samples."""
        if self._adapts and width in self._widths:
            self.width = width

    def follow(
        self, batches: Sequence[SeriesBatch], history: History, restored: TickRecord | None, *, now: float
    ) -> list[Finding]:
        """Set `width` for newly fetched samples; return a finding if samples are dropped, once for each reason.

        A narrower slot is used as soon as the source has finer samples. A wider one is used if the memory requires it,
        or if all known samples fit into it."""
        cadence = source_cadence(batches, {*self._widths, self.width}) if self._remembers else None
        nodes = max(len(history.names), *(len(set(batch.nodes)) for batch in batches), 0)
        metrics = max(len(history.metrics), len(batches))
        if self._adapts:
            allowed = self._allowed(nodes, metrics, history.seconds)
            self._set(self._wanted(cadence, allowed, lambda width: _fits(history, restored, width)))
        if cadence is None:
            return []
        return self._dropped(cadence, now)

    def _allowed(self, nodes: int, metrics: int, seconds: float) -> int:
        """Return how many widths the memory bound allows, from the widest; hysteresis as in REFINE_SHARE."""
        bound = self._config.history_bytes
        return sum(
            history_bytes(width, nodes=nodes, metrics=metrics, seconds=seconds)
            <= (bound if width >= self.width else REFINE_SHARE * bound)
            for width in self._widths
        )

    def _wanted(self, cadence: SourceCadence | None, allowed: int, fits: Callable[[int], bool]) -> int:
        widest_allowed = self._widths[: max(1, allowed)]
        least = self.width if self.width in widest_allowed else widest_allowed[-1]
        if cadence is None:
            return least
        wanted = choose_resolution(cadence, widths=self._widths, most=allowed)
        return wanted if wanted <= least or fits(wanted) else least

    def _set(self, width: int) -> None:
        if width != self.width:
            log.info("the resolution of the history is %s s now (before: %s s)", width, self.width)
            self.width = width

    def _dropped(self, cadence: SourceCadence, now: float) -> list[Finding]:
        share = cadence.dropped[self.width]
        if share <= ALMOST_NONE:
            if share <= ALMOST_NONE / 2:  # a share that varies around the limit is reported once
                self._reported = None
            return []
        cure = self._cure(cadence)
        if self._reported == (self.width, cure):
            return []
        self._reported = (self.width, cure)
        reason = (
            f"{100 * share:.0f} % of the samples are dropped: the source has a sample every {cadence.seconds:g} s, and "
            f"the history stores one in {self.width} s. {cure}"
        )
        log.warning("%s", reason)
        return [Finding(FindingKind.RESOLUTION, "", "", now, reason, Remedy.DROPPED)]

    def _cure(self, cadence: SourceCadence) -> str:
        if not self._adapts:
            return 'Set refresh.resolution = "auto", or the interval of the samples'
        if self.width > self._widths[-1]:
            return "Finer slots need more memory than allowed: raise the memory limit of the container"
        if cadence.seconds < FINEST_S:
            return (
                "Set refresh.resolution to the interval of the samples, if the memory suffices (docs/concepts/scale.md)"
            )
        return "Set refresh.resolution to a shorter interval than that of the samples, which are not regular"


def _fits(history: History, restored: TickRecord | None, width: int) -> bool:
    """Whether wider slots would drop almost none of the known samples."""
    if history.names or restored is None:
        blocks, before = history.blocks(), history.resolution
    else:
        blocks, before = restored.blocks, restored.resolution
    return _cells(resample(blocks, before=before, after=width)) >= (1.0 - ALMOST_NONE) * _cells(blocks)


def _cells(blocks: Sequence[SampleBlock]) -> int:
    return sum(int(np.count_nonzero(np.isfinite(block.values))) for block in blocks)


# --- nodes -----------------------------------------------------------------------------------------------------------


class NodeBound:
    """Leaves out new nodes beyond `most`."""

    def __init__(self, most: int) -> None:
        self._most = most

    def within(
        self, named: Sequence[NamedBatch], *, known: Collection[str], cluster: Collection[str], most: int | None = None
    ) -> tuple[list[NamedBatch], str]:
        """Return the batches without new nodes beyond the bound, and the reason if there are any. `known` have samples,
        `cluster` are the nodes of the cluster as far as they are known: while the memory is full, only these are
        added."""
        most = self._most if most is None else most
        names = {node for each in named for node in each.batch.nodes}
        refused = known_nodes.refused_names(
            names, known=known, cluster=cluster, most=min(most, len(known)) if BUDGET.is_full() else most
        )
        if not refused:
            return list(named), ""
        kept = [replace(each, batch=known_nodes.without_nodes(each.batch, refused)) for each in named]
        return kept, known_nodes.refusal(len(names - set(known)), refused, most=most)

    def state(self, reason: str) -> None:
        """State in the budget and in the log why nodes are left out, "" if none are."""
        before = BUDGET.refused.get(NODES)
        if reason:
            BUDGET.refuse(NODES, reason)
            if not before:
                log.warning("%s", reason)
        elif before:
            BUDGET.accept(NODES)
            log.info("all nodes of the source are kept again")
