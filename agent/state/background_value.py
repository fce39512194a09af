"""A copy of something far away that a task of its own renews, so that whoever needs it waits for nobody.

The log has the first failure in a row, and its end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")


class Kept(Generic[T]):
    """`what` is what `refresh` brings, for the log. It raises one of `failures` (with a `hint`, or without) where it
    cannot; what else it raises is a fault of ours, which is told and does not end the task."""

    def __init__(
        self,
        what: str,
        refresh: Callable[[], Awaitable[T]],
        *,
        interval: float,
        failures: tuple[type[Exception], ...],
    ) -> None:
        self.copy: T | None = None
        """The last one that came."""
        self.failure = ""
        """Why there is no newer one, with what to do about it; "" while all is well."""
        self._what = what
        self._refresh = refresh
        self._interval = interval
        self._failures = failures
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin. Does not wait for the first one."""
        self._task = asyncio.create_task(self._renew(), name=f"agent-{self._what.replace(' ', '-')}")

    async def close(self) -> None:
        """Stop."""
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
                log.exception("reading %s failed", self._what)
                self._failed(f"it could not be read: {type(error).__name__}")
            else:
                if self.failure:
                    log.info("there is news of %s again", self._what)
                self.failure = ""
            await asyncio.sleep(self._interval)

    def _failed(self, why: str) -> None:
        if not self.failure:
            log.warning("there is no news of %s: %s", self._what, why)
        self.failure = why
