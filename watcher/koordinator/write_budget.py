"""Limit of the write requests per second, so that a large cluster does not load its API server in proportion.

The caller passes the time.
"""

from __future__ import annotations

EXPIRES_S = 180.0
"""koord-scheduler ignores older NodeMetrics by default (nodeMetricExpirationSeconds of LoadAwareScheduling)."""


class WriteBudget:
    """A token bucket with the tokens of one second. Writes that were begun together may overdraw it; later ones then
    wait for longer."""

    def __init__(self, per_second: float) -> None:
        self.per_second = per_second
        self._left = per_second
        self._filled_at: float | None = None

    def refill(self, monotonic: float) -> None:
        """Add the tokens of the time since the last call."""
        if self._filled_at is not None:
            self._left = min(self.per_second, self._left + (monotonic - self._filled_at) * self.per_second)
        self._filled_at = monotonic

    @property
    def spent(self) -> bool:
        """Whether no write may begin now."""
        return self._left < 1.0

    def spend(self) -> None:
        """Take the token of one write request."""
        self._left -= 1.0

    def age_s(self, nodes: int, *, interval: float) -> float:
        """The age in seconds that the data of a node can reach: writes of all nodes take longer than the report
        interval in a large cluster, and a sample is up to `interval` old when it is written."""
        return max(interval, nodes / self.per_second) + interval
