"""A value from a remote source that a background task refreshes, so that readers never wait for it.

Only the first failure in a row, and its end, are logged.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from watcher.platform.repeated_errors import RepeatedErrors

log = logging.getLogger(__name__)

T = TypeVar("T")


class BackgroundValue(Generic[T]):
    """A background task that calls `refresh` every `interval` seconds. `what` names the value in the log. `failures`
    are the expected exceptions of `refresh` (with or without a `hint` and a `retry_after` in seconds); any other
    exception is a bug, which is logged and does not end the task. See `pause_s` for `retries` and `jitter`."""

    def __init__(
        self,
        what: str,
        refresh: Callable[[], Awaitable[T]],
        *,
        interval: float,
        failures: tuple[type[Exception], ...],
        retries: Sequence[float] = (),
        jitter: float = 0.0,
    ) -> None:
        self.copy: T | None = None
        """The last value received; None before the first."""
        self.failure = ""
        """The reason why the value is not being updated, with the hint; "" while refreshing works."""
        self._what = what
        self._refresh = refresh
        self._interval = interval
        self._failures = failures
        self._retries = retries
        self._jitter = jitter
        self._failed_times = 0
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start refreshing. Does not wait for the first value."""
        self._task = asyncio.create_task(self._renew(), name=f"agent-{self._what.replace(' ', '-')}")

    async def close(self) -> None:
        """Stop the background task; the last value stays available."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _renew(self) -> None:
        errors = RepeatedErrors(log)
        while True:
            asked = 0.0
            try:
                self.copy = await self._refresh()
            except self._failures as error:
                asked = getattr(error, "retry_after", None) or 0.0
                self._failed(f"{error}. {getattr(error, 'hint', '')}".rstrip())
            except Exception as error:
                errors.failed(error, "unexpected error while reading %s", self._what)
                self._failed(f"unexpected error: {type(error).__name__}")
            else:
                if self.failure:
                    log.info("updates of %s resumed", self._what)
                self.failure, self._failed_times = "", 0
                errors.succeeded()
            pause = pause_s(self._interval, self._retries, self._failed_times) * self._spread()
            await asyncio.sleep(max(pause, asked))

    def _spread(self) -> float:
        return random.uniform(1.0 - self._jitter, 1.0 + self._jitter)

    def _failed(self, why: str) -> None:
        if not self.failure:
            log.warning("updates of %s stopped: %s", self._what, why)
        self.failure = why
        self._failed_times += 1


def pause_s(interval: float, retries: Sequence[float], failed: int) -> float:
    """Seconds until the next refresh after `failed` failures in a row: `interval`, or the failure's entry of `retries`,
    whose last one applies to all further failures. The task varies it by the fraction `jitter`, so that the agents of a
    cluster do not send their requests at the same time. Pure."""
    return retries[min(failed, len(retries)) - 1] if failed and retries else interval
