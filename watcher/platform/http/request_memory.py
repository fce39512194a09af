"""Limits the bytes of the request bodies and of the large responses that a server holds: to a number of its own, and to
what the memory of the process leaves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from watcher.platform.interpreter import release_free_memory
from watcher.platform.memory import BUDGET, REQUEST_SHARE, REQUESTS, MemoryBudget

log = logging.getLogger(__name__)

LEAST = 4 << 20
"""Bytes of bodies that are accepted whatever memory the process uses: more than kube-scheduler and agents send with the
names of nodes."""
FULL = (
    f"bodies of requests are refused with 503: the process uses more than {REQUEST_SHARE:.0%} of its memory limit, or "
    "would with them; set a higher limit (docs/tasks/deploy.md), or nodeCacheCapable: true in kube-scheduler, so that "
    "its requests have the names of nodes only"
)
OTHERS = "other requests need the memory"
PROCESS = "the memory of the process is full"
STATED_S = 60.0
"""Seconds for which a refusal stays a finding."""
TRIM_BYTES = 4 << 20  # after a larger body, free memory is returned to the system
TRIM_AFTER_S = 1.0


class RequestMemory:
    """The bytes of all bodies and large responses, and the readers of incomplete bodies, the oldest first. A reader is
    a function that ends the reading and releases its bytes; its argument is the reason."""

    def __init__(
        self,
        limit: int,
        loop: asyncio.AbstractEventLoop,
        *,
        make_room: Callable[[], bool],
        budget: MemoryBudget = BUDGET,
    ) -> None:
        """`make_room` releases memory of clients that do not read their response; it returns False if there are
        none."""
        self._limit = limit
        self._budget = budget
        self._make_room = make_room
        self._loop = loop
        self._used = 0
        self._readers: dict[Callable[[str], None], None] = {}
        self._trim: asyncio.TimerHandle | None = None
        self._stated: asyncio.TimerHandle | None = None

    def begin(self, refuse: Callable[[str], None]) -> None:
        """Add a reader; above the limit, the oldest reader is called."""
        self._readers[refuse] = None

    def end(self, refuse: Callable[[str], None]) -> None:
        """Remove a reader: its body is complete or was given up."""
        self._readers.pop(refuse, None)

    def take(self, size: int) -> None:
        """Count bytes of a body."""
        self._used += size
        self._shrink(*self._bound())

    def fits(self, size: int) -> bool:
        """Whether the bytes of a response, which exists, are below the limit: if need be without the responses of
        clients that do not read, and without the oldest of the incomplete bodies."""
        return self._shrink(self._limit - size, OTHERS)

    def _shrink(self, bound: int, reason: str) -> bool:
        while self._used > bound:
            if self._make_room():
                continue
            if not self._readers:
                return False
            oldest = next(iter(self._readers))
            del self._readers[oldest]
            oldest(reason)
        return True

    def _bound(self) -> tuple[int, str]:
        """The bytes that bodies may have, and why not more: what is decoded from them must fit into the memory of the
        process, too."""
        if self._used <= min(LEAST, self._limit):
            return self._limit, OTHERS
        bound = max(LEAST, self._budget.for_requests())
        if self._used > bound:
            self._state()
        return (bound, PROCESS) if bound < self._limit else (self._limit, OTHERS)

    def _state(self) -> None:
        """State in the findings that the memory of the process is full."""
        self._budget.refuse(REQUESTS, FULL)
        if self._stated is None:
            log.warning("%s", FULL)
        else:
            self._stated.cancel()
        self._stated = self._loop.call_later(STATED_S, self._forget)

    def _forget(self) -> None:
        self._stated = None
        self._budget.accept(REQUESTS)

    def release(self, size: int) -> None:
        """Count the bytes of a body that is no longer needed."""
        self._used -= size
        if size > TRIM_BYTES and self._trim is None:
            self._trim = self._loop.call_later(TRIM_AFTER_S, self._return_memory)

    def close(self) -> None:
        if self._trim is not None:
            self._trim.cancel()
        if self._stated is not None:
            self._stated.cancel()
            self._forget()

    def _return_memory(self) -> None:
        self._trim = None
        release_free_memory()
