"""A local copy of all objects of a resource, kept up to date by a list and a watch, so that lookups need no request.

Watches end every few minutes, and also when a server fails or no longer has the version that the copy has reached.
Objects deleted in the meantime must not remain in the copy, and a server in trouble must not receive requests in a
tight loop. The rules:

* a watch that ended after at least one event continues from the last version seen;
* a watch that ended without any event, even a bookmark, may wait for a version that a restored etcd reaches only much
  later: list again;
* after 410 Gone, and after any other failure than a broken connection: list again, and delete objects that are not in
  the list;
* after every failure wait, longer each time, without random jitter, and at least as long as the server asks; an event
  or a watch that lasted resets the delay;
* a kind of object that the cluster no longer has (KubeNoApi) has no objects;
* an object that does not fit its type is treated as deleted and logged once; it does not affect other objects.
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
"""Seconds to wait after the first consecutive failure, the second, and so on; the last value applies to all further
ones."""
LONGEST_ASKED_S = 60.0
"""Upper limit in seconds for the wait that a server requests with Retry-After."""
LASTED_S = 5.0
CLOSE_WITHIN_S = 0.5
NOTIFY_BATCH = 200
"""Number of objects of a list that are reported to listeners before other tasks run; takes some milliseconds."""

OnChange = Callable[[str, ItemT | None, ItemT | None], None]
"""Called in the event loop with the name of an object (`key_of`), its old value and its new value; None means
absent."""


def notify_listener(
    listener: OnChange[ItemT], resource: Resource[ItemT], name: str, old: ItemT | None, new: ItemT | None
) -> None:
    """Call a listener with a change. An exception of the listener is logged and has no other effect."""
    try:
        listener(name, old, new)
    except Exception:
        log.exception("a listener failed on a change of %s %s", resource.full_name, name)


class Informer(Generic[ItemT]):
    """All selected objects of `resource` by name (`shapes.key_of`), kept up to date by a background task.

    `on_change(name, old, new)` is called in the event loop for each change; None means that the object was or is
    absent. An exception of `on_change` is logged and has no other effect.
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
        """Set once the first list is complete."""
        self.error: KubeError | None = None
        """The reason why the copy is currently not being updated; None while it is."""
        self.undecodable: dict[str, str] = {}
        """The reason why objects do not fit their type, by name; these objects are not in `objects`."""
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
        """The current objects by name; a live view."""
        return MappingProxyType(self._objects)

    async def start(self) -> None:
        """Start in the background. Does not wait, and does not fail if the API is unreachable."""
        self._task = asyncio.create_task(self._keep_up(), name=f"informer-{self.resource.full_name}")

    async def close(self) -> None:
        """Stop the background task, within CLOSE_WITHIN_S."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=CLOSE_WITHIN_S)
            self._task = None

    async def wait(self) -> None:
        """Wait for the first list. Raises the KubeError of a failed attempt as soon as there is one: KubeNoApi if the
        cluster does not have such objects. The informer continues to retry and completes the list once possible."""
        await self._tried.wait()
        if not self.synced.is_set() and self.error is not None:
            raise self.error.with_traceback(None)  # raised in every waiting task; must not accumulate their frames

    def add_listener(self, on_change: OnChange[ItemT]) -> None:
        """Call `on_change` for each change from now on, not for the objects already in the copy."""
        self._listeners.append(on_change)

    def remove_listener(self, on_change: OnChange[ItemT]) -> None:
        """Stop calling `on_change`, which `add_listener` added."""
        self._listeners.remove(on_change)

    def retry_now(self) -> None:
        """Retry a failed attempt now instead of after its delay. Until the first list is complete, `wait` then reports
        the result of the new attempt and not of the previous one."""
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
                log.debug("the watch of %s expired, listing again: %s", self.resource.full_name, error)
                self._version = ""
                await self._pause()
            except KubeError as error:
                if isinstance(error, KubeNoApi):
                    await self._replace({}, {})
                if not isinstance(error, KubeUnreachable) or error.status is not None:
                    self._version = ""
                self._failed(error)
                await self._pause(error.retry_after or 0.0)
            except Exception as error:  # a bug must neither stop the informer forever nor go unnoticed
                log.exception("unexpected error while watching %s; listing again", self.resource.full_name)
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
        """Apply a list in portions: it can have tens of thousands of pods, and the listeners take some microseconds for
        each."""
        gone = (self._objects.keys() | self.undecodable.keys()) - found.keys() - unread.keys()
        changes = chain(((name, None) for name in gone), found.items())
        for number, (name, item) in enumerate(changes, start=1):
            self._put(name, item)
            if number % NOTIFY_BATCH == 0:
                await asyncio.sleep(0)
        for name, problem in unread.items():
            self._leave_out(name, problem)

    async def _watch(self) -> None:
        """Watch until the server ends the watch."""
        loop = asyncio.get_running_loop()
        began, received = loop.time(), False
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
                self._failures, received = 0, True
        finally:
            await events.aclose()
        if not received:
            self._version = ""
        if received or loop.time() - began >= min(LASTED_S, self._watch_seconds / 2):
            self._failures = 0
        else:
            await self._pause()

    def _leave_out(self, name: str, problem: str) -> None:
        if name not in self.undecodable:
            log.warning("ignoring %s %s, which cannot be decoded: %s", self.resource.full_name, name, problem)
        self._put(name, None)
        self.undecodable[name] = problem

    def _put(self, name: str, new: ItemT | None) -> None:
        old = self._objects.get(name)
        self.undecodable.pop(name, None)
        if new is None:
            self._objects.pop(name, None)
        else:
            self._objects[name] = new
        if self._listeners and old != new:
            for listener in self._listeners:
                notify_listener(listener, self.resource, name, old, new)

    def _agreed(self) -> None:
        if self.error is not None:
            log.info("watching %s again; the local copy is up to date", self.resource.full_name)
        self.error = None

    def _failed(self, error: KubeError) -> None:
        if self.error is None:
            message = f"{error}. {error.hint}" if error.hint else str(error)
            log.warning("cannot watch %s; the local copy may be out of date: %s", self.resource.full_name, message)
        self.error = error
        self._tried.set()

    async def _pause(self, asked_for: float = 0.0) -> None:
        delay = self._delays[min(self._failures, len(self._delays) - 1)]
        delay = max(delay, min(asked_for, LONGEST_ASKED_S))
        self._failures += 1
        self._hurried.clear()  # a request made during an attempt is covered by that attempt
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._hurried.wait()
