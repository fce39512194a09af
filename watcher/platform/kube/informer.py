"""A copy of all objects of a resource that keeps itself true, so that looking something up asks nobody.

List, then watch from where the list ended: so far it is easy. Then the watch ends, every few minutes by itself, and
sometimes because a server dies or has forgotten the version we are at. What went in between must not stay here as a
ghost, and a server that has trouble must not be asked in a tight loop. The rules:

* a watch that ended after it brought something goes on from the last version seen;
* a watch that brought nothing at all, not even a bookmark, may be one that waits for a version which a restored etcd
  will reach next year: list anew;
* 410 Gone, and anything else that is not a broken connection: list anew, and what the list lacks is gone;
* after every failure wait, each time longer, without chance in it, and no less than the server asks for; an event, or
  a watch that lasted, ends that;
* a kind of object that the cluster does not know any more (KubeNoApi) has no objects;
* an object that does not fit its type is as good as gone, and said once: it must cost no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from itertools import chain
from types import MappingProxyType
from typing import Generic

from watcher.core.kubernetes.errors import KubeError, KubeGone, KubeMalformed, KubeNoApi, KubeUnreachable
from watcher.core.kubernetes.wire import ItemT, Resource, key_of
from watcher.platform.kube.client import EVERYTHING, WATCH_S, KubeClient, Selector

log = logging.getLogger(__name__)

DELAYS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
"""Seconds to wait after the first failure in a row, the second, …; the last for all that follow."""
LONGEST_ASKED_S = 60.0
"""Of what the server asks for in Retry-After, this much is granted."""
LASTED_S = 5.0
CLOSE_WITHIN_S = 0.5
AT_ONCE = 200
"""Objects of a list that are told of before others have a turn; some milliseconds."""

OnChange = Callable[[str, ItemT | None, ItemT | None], None]
"""Called in the event loop with the name of an object (`key_of`), what was there, and what is; None is nothing."""


def tell(listener: OnChange[ItemT], resource: Resource[ItemT], name: str, old: ItemT | None, new: ItemT | None) -> None:
    """Tell of a change. What the listener raises is logged and costs nothing else."""
    try:
        listener(name, old, new)
    except Exception:
        log.exception("what was to be done about a change of %s %s failed", resource.full_name, name)


class Informer(Generic[ItemT]):
    """All objects of `resource` that are selected, by name (`shapes.key_of`), as a background task keeps them.

    `on_change(name, old, new)` is called in the event loop for each change, with None for an object that was not there
    before or is not any more; what it raises is logged and costs nothing else.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: Resource[ItemT],
        *,
        selector: Selector = EVERYTHING,
        on_change: OnChange[ItemT] | None = None,
        watch_seconds: int = WATCH_S,
        delays: tuple[float, ...] = DELAYS,
    ) -> None:
        self.resource = resource
        self.synced = asyncio.Event()
        """Set once the first list has come."""
        self.error: KubeError | None = None
        """Why the copy is not being kept up at the moment; None while it is."""
        self.unread: dict[str, str] = {}
        """What is wrong with the objects that do not fit their type, by name; they are not among `objects`."""
        self._client = client
        self._selector = selector
        self._listeners = [] if on_change is None else [on_change]
        self._watch_seconds = watch_seconds
        self._delays = delays
        self._objects: dict[str, ItemT] = {}
        self._version = ""
        self._failures = 0
        self._tried = asyncio.Event()
        self._hurried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def objects(self) -> Mapping[str, ItemT]:
        """What there is, by name; a view that follows."""
        return MappingProxyType(self._objects)

    async def start(self) -> None:
        """Begin in the background. Does not wait, and does not fail because the API is away."""
        self._task = asyncio.create_task(self._keep_up(), name=f"informer-{self.resource.full_name}")

    async def close(self) -> None:
        """Stop, within half a second."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=CLOSE_WITHIN_S)
            self._task = None

    async def wait(self) -> None:
        """Wait for the first list. Raises the KubeError that keeps it from coming, as soon as there is one: KubeNoApi
        where the cluster does not know such objects. It is tried on all the same, and comes once it can."""
        await self._tried.wait()
        if not self.synced.is_set() and self.error is not None:
            raise self.error.with_traceback(None)  # to each who waits, and must not collect their frames

    def listen(self, on_change: OnChange[ItemT]) -> None:
        """Tell of each change from now on; not of what is there already."""
        self._listeners.append(on_change)

    def forget(self, on_change: OnChange[ItemT]) -> None:
        """Tell of nothing any more."""
        self._listeners.remove(on_change)

    def hurry(self) -> None:
        """Try again now where the last attempt failed, rather than after its delay. As long as no list has come, those
        who wait are told of that attempt and not of the one before."""
        if self.error is None:
            return
        if not self.synced.is_set():
            self._tried.clear()
        self._hurried.set()

    # --- in the background -------------------------------------------------------------------------------------------

    async def _keep_up(self) -> None:
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except KubeGone as error:
                log.debug("the watch of %s must begin anew: %s", self.resource.full_name, error)
                self._version = ""
                await self._pause()
            except KubeError as error:
                if isinstance(error, KubeNoApi):
                    await self._replace({}, {})
                if not isinstance(error, KubeUnreachable) or error.status is not None:
                    self._version = ""
                self._failed(error)
                await self._pause(error.retry_after or 0.0)
            except Exception as error:  # a fault of ours must not end the copy for good, nor go unseen
                log.exception("keeping %s of Kubernetes up to date failed", self.resource.full_name)
                self._version = ""
                self._failed(KubeMalformed(f"{self.resource.full_name} could not be read: {type(error).__name__}"))
                await self._pause()

    async def _list(self) -> None:
        listing = await self._client.list(self.resource, selector=self._selector)
        await self._replace({key_of(item): item for item in listing.items}, listing.unread)
        self._version = listing.version
        self.synced.set()
        self._tried.set()

    async def _replace(self, found: Mapping[str, ItemT], unread: Mapping[str, str]) -> None:
        """Some at a time: tens of thousands of pods are told of, and what is done about each takes its microseconds."""
        gone = (self._objects.keys() | self.unread.keys()) - found.keys() - unread.keys()
        changes = chain(((name, None) for name in gone), found.items())
        for number, (name, item) in enumerate(changes, start=1):
            self._put(name, item)
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        for name, problem in unread.items():
            self._leave_out(name, problem)

    async def _watch(self) -> None:
        """Watch until the server ends it."""
        loop = asyncio.get_running_loop()
        began, heard = loop.time(), False
        events = self._client.watch(
            self.resource, since=self._version, selector=self._selector, seconds=self._watch_seconds
        )
        try:
            async for event in events:
                if event.type == "OPENED":
                    self._agreed()
                    continue
                if event.type == "DELETED":
                    self._put(event.key, None)
                elif event.item is not None:
                    self._put(event.key, event.item)
                elif event.problem:
                    self._leave_out(event.key, event.problem)
                self._version = event.version or self._version
                self._failures, heard = 0, True
        finally:
            await events.aclose()
        if not heard:
            self._version = ""
        if heard or loop.time() - began >= min(LASTED_S, self._watch_seconds / 2):
            self._failures = 0
        else:
            await self._pause()

    def _leave_out(self, name: str, problem: str) -> None:
        if name not in self.unread:
            log.warning("%s %s of Kubernetes is left out: %s", self.resource.full_name, name, problem)
        self._put(name, None)
        self.unread[name] = problem

    def _put(self, name: str, new: ItemT | None) -> None:
        old = self._objects.get(name)
        self.unread.pop(name, None)
        if new is None:
            self._objects.pop(name, None)
        else:
            self._objects[name] = new
        if self._listeners and old != new:
            for listener in self._listeners:
                tell(listener, self.resource, name, old, new)

    def _agreed(self) -> None:
        if self.error is not None:
            log.info("%s of Kubernetes are kept up to date again", self.resource.full_name)
        self.error = None

    def _failed(self, error: KubeError) -> None:
        if self.error is None:
            told = f"{error}. {error.hint}" if error.hint else str(error)
            log.warning("%s of Kubernetes cannot be kept up to date: %s", self.resource.full_name, told)
        self.error = error
        self._tried.set()

    async def _pause(self, asked_for: float = 0.0) -> None:
        delay = self._delays[min(self._failures, len(self._delays) - 1)]
        delay = max(delay, min(asked_for, LONGEST_ASKED_S))
        self._failures += 1
        self._hurried.clear()  # what came during an attempt is answered by its outcome
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._hurried.wait()
