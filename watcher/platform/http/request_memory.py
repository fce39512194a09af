"""Limits the bytes of the request bodies and of the large responses that a server holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from watcher.platform.malloc import release_free_memory

TRIM_BYTES = 4 << 20  # after a larger body, free memory is returned to the system
TRIM_AFTER_S = 1.0


class RequestMemory:
    """The bytes of all bodies and large responses, and the readers of incomplete bodies, the oldest first. A reader is
    a function that ends the reading and releases its bytes."""

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop, *, make_room: Callable[[], bool]) -> None:
        """`make_room` releases memory of clients that do not read their response; it returns False if there are
        none."""
        self._limit = limit
        self._make_room = make_room
        self._loop = loop
        self._used = 0
        self._readers: dict[Callable[[], None], None] = {}
        self._trim: asyncio.TimerHandle | None = None

    def begin(self, refuse: Callable[[], None]) -> None:
        """Add a reader; above the limit, the oldest reader is called."""
        self._readers[refuse] = None

    def end(self, refuse: Callable[[], None]) -> None:
        """Remove a reader: its body is complete or was given up."""
        self._readers.pop(refuse, None)

    def take(self, size: int) -> None:
        self._used += size
        self.fits(0)

    def fits(self, size: int) -> bool:
        """Whether so many bytes more are below the limit: if need be without the responses of clients that do not read,
        and without the oldest of the incomplete bodies."""
        while self._used + size > self._limit:
            if self._make_room():
                continue
            if not self._readers:
                return False
            oldest = next(iter(self._readers))
            del self._readers[oldest]
            oldest()
        return True

    def release(self, size: int) -> None:
        """Count the bytes of a body that is no longer needed."""
        self._used -= size
        if size > TRIM_BYTES and self._trim is None:
            self._trim = self._loop.call_later(TRIM_AFTER_S, self._return_memory)

    def close(self) -> None:
        if self._trim is not None:
            self._trim.cancel()

    def _return_memory(self) -> None:
        self._trim = None
        release_free_memory()
