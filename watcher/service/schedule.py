"""The trigger of the tick job: a fixed interval."""

from __future__ import annotations

from datetime import datetime, timedelta

from apscheduler.triggers.base import BaseTrigger


class Every(BaseTrigger):  # type: ignore[misc]  # the library has no types
    """Fires every `seconds`. What was missed is missed: the library's own interval goes through it run by run, and
    where the clock jumps from 1970 to today that is work for minutes, on the event loop."""

    def __init__(self, seconds: float) -> None:
        self._period = timedelta(seconds=seconds)

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime:
        """The first time after `now` that is whole periods away from the previous one."""
        if previous_fire_time is None:
            return now + self._period
        missed = max(0, (now - previous_fire_time) // self._period)
        return previous_fire_time + (missed + 1) * self._period
