"""Whether the source of samples is well: up, whole, and with what scheduling needs. The log has each change once."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from watcher.model import METRIC_BY_KEY, Finding, FindingKind, ProviderHealth

if TYPE_CHECKING:
    from watcher.clock import Clock

log = logging.getLogger(__name__)

# What the Trimaran plug-ins score by, as a finding names it and as people do; "" is everything.
SCORED_BY = {"": "nodes", METRIC_BY_KEY["CPU"].name: "CPU", METRIC_BY_KEY["Memory"].name: "Memory"}


class SourceHealth:
    """`known` is replaced whole, by one assignment. `source` is its name on the wire."""

    def __init__(self, source: str, *, clock: Clock) -> None:
        self.known = ProviderHealth(None, "the source has not been asked yet", 0.0)
        self._source = source
        self._clock = clock
        self._absent: frozenset[str] = frozenset()  # of SCORED_BY; there was a log line

    def down(self, reason: str, *, hint: str) -> None:
        """It gave nothing."""
        now, before = self._clock.now(), self.known
        if before.ok is not False:
            log.warning("%s is down: %s", self._source, told(reason, hint))
        self.known = ProviderHealth(False, reason, now if before.ok is not False else before.since)

    def up(self) -> None:
        """It answered."""
        now, before = self._clock.now(), self.known
        if before.ok:
            return
        if before.ok is False:
            log.info("%s is back after %.0f s", self._source, now - before.since)
        self.known = ProviderHealth(True, "", now)

    def answered_in_part(self, missing: str) -> None:
        """It has answered; `missing` is what it said of a part that it lacks, "" if it is whole."""
        now, before = self._clock.now(), self.known
        if missing and not before.partial:
            log.warning("%s answers in part only: %s", self._source, missing)
        elif before.partial and not missing:
            log.info("%s answers whole again after %.0f s", self._source, now - before.since)
        since = before.since if before.partial == bool(missing) else now
        self.known = ProviderHealth(True, missing, since)

    def noticed(self, findings: Iterable[Finding]) -> None:
        """What it noticed itself: that it lacks what plug-ins score by, or everything, and that it has it again."""
        reasons = {finding.metric: finding.reason for finding in findings if finding.kind is FindingKind.NO_SERIES}
        absent = {name: reasons[name] for name in SCORED_BY if name in reasons}
        if absent and absent.keys() != self._absent:
            what = " and ".join(SCORED_BY[name] for name in absent)
            reason = next(iter(absent.values()))
            log.warning("%s knows nothing of %s: %s; load-watcher doctor says more", self._source, what, reason)
        elif self._absent and not absent:
            log.info("%s knows CPU and Memory now", self._source)
        self._absent = frozenset(absent)


def told(reason: str, hint: str) -> str:
    """What is wrong and what to do about it, as sentences."""
    return f"{reason}. {hint}" if hint else reason
