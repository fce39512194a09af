"""The trigger of the tick job: a fixed interval."""

from __future__ import annotations

from datetime import datetime, timedelta

from apscheduler.triggers.base import BaseTrigger


class IntervalTrigger(BaseTrigger):  # type: ignore[misc]  # the library has no types
    """Trigger that fires every `seconds` and skips missed runs. APScheduler's IntervalTrigger iterates over missed
    runs, which takes minutes on the event loop after a clock jump from 1970 to today."""

    def __init__(self, seconds: float) -> None:
        self._period = timedelta(seconds=seconds)

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime:
        """Return the first time after `now` that is a whole number of periods after the previous fire time."""
        if previous_fire_time is None:
            return now + self._period
        missed = max(0, (now - previous_fire_time) // self._period)
        return previous_fire_time + (missed + 1) * self._period
