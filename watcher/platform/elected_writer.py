"""Base of the loops that write to the cluster: a Lease elects the writing replica, errors pause the writes.

An error is logged when it begins and when it ends. After an error of the API (unreachable, busy or forbidden), writing
pauses for a while.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar

from watcher.core.kubernetes.errors import (
    KubeError,
    KubeForbidden,
    KubeNoApi,
    KubeUnauthorized,
    KubeUnreachable,
)
from watcher.core.publishing.documents import Published
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.leases import Election
from watcher.platform.repeated_errors import RepeatedErrors

DELAYS_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
"""Pause in seconds after the first, second, … consecutive failure of one kind; the last value applies to all further
failures."""
RETURN_S = 8.0
"""Longest pause in seconds while the API cannot be reached: NodeMetrics expire soon after an outage."""
RELEASE_TIMEOUT_S = 2.0
"""Timeout in seconds for releasing the Lease at shutdown; a Lease that is not released expires."""
Outcome = str
"""The outcome for an object that was due: written, unchanged, left (it belongs to another program), refused, forbidden,
unreachable, conflict; the writers add their own."""


class LoadSource(Protocol):
    """The service as every writer reads it: the load and its age."""

    @property
    def published(self) -> Published | None: ...

    @property
    def max_staleness(self) -> float: ...

    def monotonic(self) -> float: ...


SourceT = TypeVar("SourceT", bound=LoadSource)


class ElectedWriter(ABC, Generic[SourceT]):
    """Writes in the background from `start` to `close`, in steps of `step` seconds, while this replica holds the Lease
    of `election`, which is renewed every `renew_every` seconds. `close` also closes `client`. `what` names the objects
    in log messages, such as "NodeMetrics"."""

    def __init__(
        self,
        client: KubeClient,
        source: SourceT,
        *,
        election: Election,
        what: str,
        step: float,
        renew_every: float,
    ) -> None:
        self.holds_lease = False
        self._client = client
        self._election = election
        self._source = source
        self._what = what
        self._log = logging.getLogger(type(self).__module__)
        self._step_s = step
        self._renew_every = renew_every
        self._stand_at = float("-inf")
        self._trouble = ""
        self._failures = 0
        self._quiet_until = float("-inf")
        self._refused: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []

    def _ready(self) -> Published | None:
        """Return the published snapshot if it is fresh, otherwise None: then the Lease is released, so that another
        replica writes."""
        published = self._source.published
        fresh = published is not None and published.age(self._source.monotonic()) <= self._source.max_staleness
        return published if fresh else None

    def _wants_lease(self) -> bool:
        """Whether there is something to write; otherwise the Lease is released."""
        return self._ready() is not None

    @abstractmethod
    async def _step(self) -> None:
        """Write what is due now, if this replica holds the Lease and nothing pauses it."""

    async def start(self) -> None:
        """Start writing in the background; raises nothing, errors are retried."""
        self._tasks = [
            asyncio.create_task(self._forever(self._renew_lease), name=f"{self._what}s-lease"),
            asyncio.create_task(self._forever(self._step), name=f"{self._what}s"),
        ]

    async def close(self) -> None:
        """Stop, and release the Lease so that another replica can take over immediately."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._close_sources()
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                await self._election.release()
        except TimeoutError:
            self._log.debug("Lease %s was not released in time; it expires automatically", self._election.key)
        await self._client.close()

    async def _close_sources(self) -> None:
        return

    async def _forever(self, do: Callable[[], Awaitable[Any]]) -> None:
        errors = RepeatedErrors(self._log)
        while True:
            try:
                await do()
                errors.succeeded()
            except Exception as error:  # a bug must not end the task, and must be logged
                errors.failed(error, "unexpected error while writing %ss; writing continues", self._what)
            await asyncio.sleep(self._step_s)

    async def _renew_lease(self) -> None:
        """Acquire or renew the Lease while there is data to write; otherwise release it."""
        if not self._wants_lease():
            await self._election.release()
        elif (now := self._source.monotonic()) >= self._stand_at:
            self._stand_at = now + self._renew_every
            try:
                await self._election.acquire_or_renew()
            except KubeError as error:
                self._failed(error, doing=f"cannot acquire the Lease {self._election.key}")
        self.holds_lease = self._election.held

    def _pauses(self) -> bool:
        return self._source.monotonic() < self._quiet_until

    def _may_write(self) -> bool:
        """Whether this replica holds the Lease, and no error pauses the writes."""
        return self._election.held and not self._pauses()

    def _failed(self, error: KubeError, *, node: str = "", doing: str = "") -> Outcome:
        """Log a new kind of failure once, and pause writing if it affects more than one node; return the outcome."""
        kind = _kind_of(error)
        if kind == "refused" and node:
            if node not in self._refused:
                self._refused.add(node)
                self._log.warning("cannot write the %s of %s: %s. %s", self._what, node, error, error.hint)
            return kind
        if self._trouble != kind:
            self._trouble, self._failures = kind, 0
            self._log.warning("%s: %s. %s", doing or f"cannot write {self._what}s", error, error.hint)
        wait = DELAYS_S[min(self._failures, len(DELAYS_S) - 1)]
        if kind == "unreachable":
            wait = min(wait, RETURN_S)
        self._failures += 1
        wait = max(wait, min(error.retry_after or 0.0, DELAYS_S[-1]))
        self._quiet_until = self._source.monotonic() + wait
        return kind

    def _succeeded(self, node: str) -> None:
        self._refused.discard(node)
        if self._trouble:
            self._log.info("%ss are written again", self._what)
        self._trouble, self._failures = "", 0


def _kind_of(error: KubeError) -> Outcome:
    if isinstance(error, KubeForbidden | KubeUnauthorized | KubeNoApi):
        return "forbidden"
    return "unreachable" if isinstance(error, KubeUnreachable) else "refused"


class WriteBudget:
    """Limit of the write requests per second, so that a large cluster does not load its API server in proportion: a
    token bucket with the tokens of one second. Writes that were begun together may overdraw it; later ones then wait
    for longer. The caller passes the time."""

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
