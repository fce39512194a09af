"""What a watcher offers to clients, as GET /api/v1/overview describes it."""

from __future__ import annotations

import msgspec

from watcher.client.arrays import seconds_of
from watcher.core.koordinator.aggregates import KOORDLET
from watcher.core.publishing.wire import ForecastsOffer, PodsOffer
from watcher.model import Window


class ServiceDescription(msgspec.Struct, frozen=True):
    """The part of the overview that clients use. An older watcher describes neither `aggregates` nor `pods` nor
    `forecasts`."""

    version: str
    windows: tuple[str, ...]
    max_staleness_s: float
    aggregates: tuple[str, ...] = ()
    pods: PodsOffer | None = None
    forecasts: ForecastsOffer | None = None

    def served_windows(self) -> tuple[Window, ...]:
        """The windows in ascending order. Raises WatcherError for an invalid label."""
        return tuple(Window(label, int(seconds_of(label))) for label in self.windows)

    @property
    def has_usages(self) -> bool:
        """Whether the columns can contain koordlet's usages."""
        return KOORDLET in self.aggregates

    @property
    def has_minutes(self) -> bool:
        """Whether the pods can contain the readings of each minute."""
        return self.pods is not None and self.pods.minutes
