"""A value from a remote source that a background task refreshes, so that readers never wait for it.

Only the first failure in a row, and its end, are logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")


class BackgroundValue(Generic[T]):
    """A background task that calls `refresh` every `interval` seconds. `what` names the value in the log. `failures`
    are the expected exceptions of `refresh` (with or without a `hint`); any other exception is a bug, which is logged
    and does not end the task."""

    def __init__(
        self,
        what: str,
        refresh: Callable[[], Awaitable[T]],
        *,
        interval: float,
        failures: tuple[type[Exception], ...],
    ) -> None:
        self.copy: T | None = None
        """The last value received; None before the first."""
        self.failure = ""
        """The reason why the value is not being updated, with the hint; "" while refreshing works."""
        self._what = what
        self._refresh = refresh
        self._interval = interval
        self._failures = failures
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
        while True:
            try:
                self.copy = await self._refresh()
            except self._failures as error:
                self._failed(f"{error}. {getattr(error, 'hint', '')}".rstrip())
            except Exception as error:
                log.exception("unexpected error while reading %s", self._what)
                self._failed(f"unexpected error: {type(error).__name__}")
            else:
                if self.failure:
                    log.info("updates of %s resumed", self._what)
                self.failure = ""
            await asyncio.sleep(self._interval)

    def _failed(self, why: str) -> None:
        if not self.failure:
            log.warning("updates of %s stopped: %s", self._what, why)
        self.failure = why
