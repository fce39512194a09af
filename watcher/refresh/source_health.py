"""Health of the sample source: whether it is up, responds completely, has CPU and Memory, and names cluster nodes.

Each change is logged once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from watcher.model import METRIC_BY_KEY, Finding, FindingKind, ProviderHealth

if TYPE_CHECKING:
    from watcher.clock import Clock
    from watcher.core.naming.name_resolver import NodeIndex

log = logging.getLogger(__name__)

# Metric name in a finding -> name for people, for the metrics that the Trimaran plug-ins score by; "" is all metrics.
SCORED_BY = {"": "nodes", METRIC_BY_KEY["CPU"].name: "CPU", METRIC_BY_KEY["Memory"].name: "Memory"}


class SourceHealth:
    """Tracks the state of the source; `state` is replaced as a whole, by one assignment. `source` is the source's name
    on the wire."""

    def __init__(self, source: str, *, clock: Clock) -> None:
        self.state = ProviderHealth(None, "the source has not been queried yet", 0.0)
        self._source = source
        self._clock = clock
        self._absent: frozenset[str] = frozenset()  # keys of SCORED_BY whose absence was logged
        self._missing = ""
        self._clocks_differ = False
        self._strange = False  # the log states that no served name is the name of a cluster node

    def down(self, reason: str, *, hint: str) -> None:
        """Record that the source returned nothing, and log the change."""
        now, before = self._clock.now(), self.state
        self._missing = ""
        if before.ok is not False:
            log.warning("cannot read from %s: %s", self._source, with_hint(reason, hint))
        self.state = ProviderHealth(False, reason, now if before.ok is not False else before.since)

    def up(self) -> None:
        """Record that the source responded, and log the change."""
        now, before = self._clock.now(), self.state
        if before.ok:
            return
        if before.ok is False:
            log.info("%s is back after %.0f s", self._source, now - before.since)
        self.state = ProviderHealth(True, "", now)

    def answered_in_part(self, missing: str, *, unlogged: str = "") -> None:
        """Record that the source responded; `missing` describes the missing part, "" if the response is complete, and
        `unlogged` what is not kept or absent, which is logged elsewhere."""
        now, before = self._clock.now(), self.state
        if missing and not self._missing:
            log.warning("%s returns partial data: %s", self._source, missing)
        elif self._missing and not missing:
            log.info("%s returns complete data again after %.0f s", self._source, now - before.since)
        self._missing, lacking = missing, missing or unlogged
        since = before.since if before.partial == bool(lacking) else now
        self.state = ProviderHealth(True, lacking, since)

    def note_findings(self, findings: Iterable[Finding]) -> None:
        """Log from the source's findings when it has no data for CPU, Memory or all metrics, and when that ends."""
        reasons = {finding.metric: finding.reason for finding in findings if finding.kind is FindingKind.NO_SERIES}
        absent = {name: reasons[name] for name in SCORED_BY if name in reasons}
        if absent and absent.keys() != self._absent:
            what = " and ".join(SCORED_BY[name] for name in absent)
            reason = next(iter(absent.values()))
            log.warning("%s has no data for %s: %s; run load-watcher doctor for details", self._source, what, reason)
        elif self._absent and not absent:
            log.info("%s has CPU and Memory now", self._source)
        self._absent = frozenset(absent)

    def note_clock(self, findings: Iterable[Finding]) -> None:
        """Log from the findings of a tick when the clocks begin to differ, and when that ends."""
        reason = next((finding.reason for finding in findings if finding.kind is FindingKind.CLOCK_SKEW), "")
        if reason and not self._clocks_differ:
            log.warning("%s", reason)
        elif self._clocks_differ and not reason:
            log.info("the clocks of load-watcher and of %s agree again", self._source)
        self._clocks_differ = bool(reason)

    def names_compared(self, served: Sequence[str], index: NodeIndex | None) -> None:
        """Log when none of the served names is a cluster node, so that schedulers find no load, and when that ends."""
        if index is None or not (index.nodes and served):
            return
        strange = set(served).isdisjoint(index.nodes)
        if strange and not self._strange:
            log.warning(
                "no name of the source is a node of the cluster, so schedulers find no load: the source has %s, "
                "the cluster %s; run load-watcher doctor for details",
                served[0],
                next(iter(index.nodes)),
            )
        elif self._strange and not strange:
            log.info("names of the source match nodes of the cluster now")
        self._strange = strange


def with_hint(reason: str, hint: str) -> str:
    """Join a reason and its hint, which may be "", to one text."""
    return f"{reason}. {hint}" if hint else reason
