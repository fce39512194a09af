"""Koordinator's detector of nodes that stay overutilized (pkg/descheduler/utils/anomaly).

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class AnomalyCondition:
    """A node becomes anomalous after more than `abnormal` consecutive abnormal marks (1: at once), and normal again
    after more than `normal` consecutive normal marks or after `timeout_s` seconds. A detector without marks for
    `cache_s` seconds is removed."""

    abnormal: int = 5
    normal: int = 3
    timeout_s: float = 60.0
    cache_s: float = 300.0


@dataclass(slots=True)
class _Detector:
    marked: float
    abnormal: int = 0
    normal: int = 0
    until: float | None = None  # end of the anomaly

    def reset(self) -> None:
        self.abnormal, self.normal, self.until = 0, 0, None


@dataclass(slots=True)
class AnomalyDetectors:
    """The detectors of all nodes. `now` in unix seconds."""

    condition: AnomalyCondition
    _detectors: dict[str, _Detector] = field(default_factory=dict)

    def abnormal_nodes(self, sources: Sequence[str], now: float) -> list[str]:
        """Mark overutilized nodes as abnormal, and return those that are anomalous."""
        if self.condition.abnormal == 1:
            return list(sources)
        return [name for name in sources if self._mark_abnormal(name, now)]

    def _mark_abnormal(self, name: str, now: float) -> bool:
        found = self._find(name, now)
        if found is None:
            found = self._detectors[name] = _Detector(now)
        found.marked = now
        if found.until is None:
            found.abnormal, found.normal = found.abnormal + 1, 0
            if found.abnormal > self.condition.abnormal:
                found.abnormal, found.until = 0, now + self.condition.timeout_s
        return found.until is not None

    def mark_normal(self, names: Iterable[str], now: float) -> None:
        for name in names:
            if (found := self._find(name, now)) is not None:
                found.abnormal, found.normal = 0, found.normal + 1
                if found.until is not None and found.normal > self.condition.normal:
                    found.reset()

    def reset(self, names: Iterable[str], now: float) -> None:
        for name in names:
            if (found := self._find(name, now)) is not None:
                found.reset()

    def _find(self, name: str, now: float) -> _Detector | None:
        found = self._detectors.get(name)
        if found is None or now - found.marked > self.condition.cache_s:
            return None
        if found.until is not None and found.until < now:
            found.reset()
        return found
