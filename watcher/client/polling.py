"""The last good copies of the watcher's documents, and the background task that renews them."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Generic, Self, TypeVar

from watcher.client.arrays import Columns, NodeSilence, PodColumns
from watcher.client.errors import WatcherError

log = logging.getLogger(__name__)

POLL_S = 30.0  # same interval as the Trimaran plug-ins
MAX_AGE_S = 300.0
CopyT = TypeVar("CopyT", Columns, PodColumns)


class CachedCopy(Generic[CopyT]):
    """The last good copy of a document, and the error of the last renewal if it failed."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.copy: CopyT | None = None
        self.failure: WatcherError | None = None

    async def renew(self, refresh: Callable[[], Awaitable[CopyT]]) -> None:
        """Call `refresh` and record a failure. Logs the first of several failures and the recovery."""
        try:
            await refresh()
        except WatcherError as error:
            if self.failure is None:
                log.warning("cannot get %s from the watcher: %s. %s", self.what, error, error.hint)
            self.failure = error
        else:
            if self.failure is not None:
                log.info("getting %s from the watcher works again", self.what)
            self.failure = None

    def latest(self, *, monotonic: float, max_age: float) -> CopyT:
        """The copy. Raises WatcherError if there is none or it is older than `max_age` seconds."""
        if self.copy is None:
            raise self.failure or WatcherError("no_metrics", "no response from the watcher yet")
        age = self.copy.age(monotonic)
        if age > max_age:
            why = f": {self.failure}" if self.failure else ""
            raise WatcherError("too_old", f"the newest sample is {age:.0f} s old, more than {max_age:g} s{why}")
        return self.copy


class Client(ABC):
    """A client for all nodes: the copies, and the task that renews them. `interval` is in seconds."""

    def __init__(self, *, pods: bool, interval: float, monotonic: Callable[[], float]) -> None:
        self._interval = interval
        self._monotonic = monotonic
        self._nodes: CachedCopy[Columns] = CachedCopy("nodes")
        self._pods: CachedCopy[PodColumns] = CachedCopy("pods")
        self._keeps_pods = pods
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    async def refresh(self) -> Columns:
        """Renew the copy of nodes now. On failure, raises WatcherError and keeps the previous copy."""

    @abstractmethod
    async def refresh_silence(self) -> NodeSilence:
        """The silent nodes, also during a partial outage, in which `refresh` fails. Raises WatcherError."""

    @abstractmethod
    async def refresh_pods(self) -> PodColumns:
        """Renew the copy of pods now. On failure, raises WatcherError and keeps the previous copy."""

    async def start(self) -> None:
        """Start renewing the copies in the background. The first renewal is attempted immediately and may fail."""
        await self._renew_all()
        self._task = asyncio.create_task(self._renew(), name="watcher-client")

    async def close(self) -> None:
        """Stop renewing and close connections."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def latest(self, *, max_age: float = MAX_AGE_S) -> Columns:
        """The last good copy, from memory. Raises WatcherError if there is none or it is older than `max_age` s."""
        return self._nodes.latest(monotonic=self._monotonic(), max_age=max_age)

    def latest_pods(self, *, max_age: float = MAX_AGE_S) -> PodColumns:
        """Like `latest`, for pods. Requires a client created with `pods`."""
        if self._pods.copy is None and not self._keeps_pods:
            raise no_copy_of_pods()
        return self._pods.latest(monotonic=self._monotonic(), max_age=max_age)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            await self._renew_all()

    async def _renew_all(self) -> None:
        await self._nodes.renew(self.refresh)
        if self._keeps_pods:
            await self._pods.renew(self.refresh_pods)


def no_copy_of_pods() -> WatcherError:
    return WatcherError("no_pods", "this client stores no copy of pods", hint="create it with `pods`")
