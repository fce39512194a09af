"""A local copy of all objects of a resource, kept up to date by a list and a watch, so that lookups need no request.

Watches end every few minutes, and also when a server fails or no longer has the version that the copy has reached.
Objects deleted in the meantime must not remain in the copy, and a server in trouble must not receive requests in a
tight loop. Thousands of agents watch, and all of them lose their watches at the same moment. The rules:

* the first list may come from the server's watch cache (resourceVersion=0); later lists are at least as new as the last
  version seen. If the server does not have that version (410, or 504 ResourceVersionTooLarge: etcd was restored), the
  next list is consistent;
* a watch that ended after at least one event continues from the last version seen, also after a broken connection, 429
  or 5xx;
* a restarted server accepts a watch with status 200 and then reports 410 as an event. After a failure, an accepted
  watch therefore proves nothing: the copy counts as up to date after a list, or after an event or a bookmark. A watch
  that sends neither within CONFIRM_S leads to a list;
* a watch that ended without any event, even a bookmark, may wait for a version that a restored etcd reaches only much
  later: list again;
* after 410 Gone: list at once, and delete objects that are not in the list;
* after a failure wait for a random time, with an upper limit that grows, and at least as long as the server asks; an
  event or a watch that lasted resets the limit. While the server cannot be reached, the limit stays below
  RECONNECT_S, so that the copy is up to date within seconds of the server's return;
* watches end after a random time, so that the watches of many clients do not end together;
* a kind of object that the cluster no longer has (KubeNoApi) has no objects;
* an object that does not fit its type is treated as deleted and logged once; it does not affect other objects;
* while the memory of the process is full (platform/memory.py), new objects are left out, and known ones are kept up to
  date. Once there is room again: list.

client-go's reflector (tools/cache/reflector.go) has the same rules for versions, watch timeouts and jitter.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import chain
from types import MappingProxyType
from typing import Generic

from watcher.core.kubernetes.errors import (
    KubeError,
    KubeForbidden,
    KubeGone,
    KubeMalformed,
    KubeNoApi,
    KubeUnauthorized,
    KubeUnreachable,
)
from watcher.core.kubernetes.wire import ItemT, Resource, key_of
from watcher.core.messages import with_hint
from watcher.platform.kube.client import ANY_VERSION, NEWEST, WATCH_S, KubeClient
from watcher.platform.kube.parameters import EVERYTHING, Selector
from watcher.platform.kube.responses import WatchEvent
from watcher.platform.memory import BUDGET, FULL_SHARE, ROOM_SHARE
from watcher.platform.repeated_errors import RepeatedErrors

log = logging.getLogger(__name__)

DELAYS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
"""Upper limits in seconds of the random wait after the first consecutive failure, the second, and so on; the last value
applies to all further ones."""
RECONNECT_S = 4.0
"""Upper limit in seconds of the random wait while the server cannot be reached or is in trouble (KubeUnreachable)."""
CONFIRM_S = 1.0
"""After a failure, the time in seconds within which an accepted watch must send an event or a bookmark."""
TOO_LARGE = "ResourceVersionTooLarge"
LONGEST_ASKED_S = 60.0
"""Upper limit in seconds for the wait that a server requests with Retry-After."""
LASTED_S = 5.0
CLOSE_WITHIN_S = 0.5
CHECK_EVERY = 50
"""Number of new objects of a watch after which the memory of the process is compared with its limit."""
NOTIFY_BATCH = 200
"""Number of objects of a list, or of events, that are reported to listeners before other tasks run; takes some
milliseconds."""

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
        chance: random.Random | None = None,
    ) -> None:
        """`watch_seconds` is the shortest requested duration of a watch (the longest is twice as long), `delays` as
        DELAYS; `chance` is the source of
        randomness for both."""
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
        self._chance = chance or random.Random()
        self._version = ""
        self._list_at_least = ANY_VERSION
        self._listed = False
        """Whether the copy was listed and a watch from `_version` continues it."""
        self._fresh = False
        """Whether the copy was listed since the last failure."""
        self._failures = Counter[bool]()
        """The number of consecutive failures, by whether the server could not be reached."""
        self._warned = False
        self._added = self._refused = 0
        """The number of new objects of watches, and of those that were left out since the last list."""
        self._refused_at = 0
        """The number of objects in the copy when one was left out."""
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
        errors = RepeatedErrors(log)
        while True:
            try:
                if not self._listed:
                    await self._list()
                await self._watch()
                errors.succeeded()
            except KubeError as error:
                if isinstance(error, KubeNoApi):
                    await self._replace({}, {})
                await self._recover(error)
            except Exception as error:  # a bug must neither stop the informer forever nor go unnoticed
                errors.failed(error, "unexpected error while watching %s; listing again", self.resource.full_name)
                await self._recover(
                    KubeMalformed(f"{self.resource.full_name} could not be read: {type(error).__name__}")
                )

    async def _recover(self, error: KubeError) -> None:
        """Report a failure, choose between watch and list, and wait. The first list after an expired version does not
        wait, however often the server could not be reached before."""
        at_once = isinstance(error, KubeGone) and not self._failures[False]
        self._choose_next(error)
        self._failed(error)
        await self._pause(error, at_once=at_once)

    def _choose_next(self, error: KubeError) -> None:
        """Choose how to continue after a failure of the list, or of the watch if `_listed`."""
        too_large = TOO_LARGE in error.causes
        self._fresh = False
        if isinstance(error, KubeNoApi):
            self._list_again(at_least=ANY_VERSION)
        elif self._listed:
            if too_large or not isinstance(error, KubeUnreachable):
                self._list_again(at_least=NEWEST if too_large else self._version)
        elif too_large or not isinstance(error, KubeUnreachable | KubeUnauthorized | KubeForbidden):
            self._list_again(at_least=NEWEST)  # the version may be the reason for the failure

    def _list_again(self, *, at_least: str) -> None:
        self._listed, self._list_at_least = False, at_least

    async def _list(self) -> None:
        listing = await self._client.list(self.resource, selector=self._selector, at_least=self._list_at_least)
        await self._replace({key_of(item): item for item in listing.items}, listing.unread)
        if self._refused:
            self._refused = 0
            BUDGET.accept(f"watch of {self.resource.full_name}")
            self._agreed()
        self._version = listing.version
        self._listed = self._fresh = True
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
        """Watch until the server ends the watch, or does not confirm in time that the watch works."""
        loop = asyncio.get_running_loop()
        began, received, taken = loop.time(), False, 0
        seconds = round(self._chance.uniform(self._watch_seconds, 2 * self._watch_seconds))
        events = self._client.watch(self.resource, since=self._version, selector=self._selector, seconds=seconds)
        try:
            async with asyncio.timeout(None) as confirmation:
                async for event in events:
                    if event.type != "OPENED":
                        confirmation.reschedule(None)
                        self._take(event)
                        received = True
                        taken += 1
                        if taken % NOTIFY_BATCH == 0:  # events that have arrived already are read without a pause
                            await asyncio.sleep(0)
                        if self._refused and self._may_list_again():
                            return self._list_again(at_least=self._version)
                    elif self._fresh:
                        self._agreed()
                    elif self.error is not None:
                        confirmation.reschedule(loop.time() + CONFIRM_S)
        except TimeoutError:
            if not confirmation.expired():
                raise
            return self._list_again(at_least=self._version)
        finally:
            self._fresh = False
            await events.aclose()
        if not received:
            self._list_again(at_least=self._version)
        if received or loop.time() - began >= min(LASTED_S, seconds / 2):
            self._failures.clear()
        else:
            await self._pause(None)
        return None

    def _take(self, event: WatchEvent[ItemT]) -> None:
        if event.type == "DELETED":
            self._put(event.key, None)
        elif event.item is not None:
            if event.key in self._objects or self._has_room():
                self._put(event.key, event.item)
        elif event.problem:
            self._leave_out(event.key, event.problem)
        self._version = event.version or self._version
        self._failures.clear()
        if not self._refused:
            self._agreed()

    def _may_list_again(self) -> bool:
        """Whether there may be room for the objects that were left out: also once a part of the copy is gone."""
        return len(self._objects) < self._refused_at * ROOM_SHARE / FULL_SHARE or BUDGET.has_room()

    def _has_room(self) -> bool:
        """Whether a new object of a watch is kept. Once one is left out, all are until the next list."""
        self._added += 1
        if not self._refused and (self._added % CHECK_EVERY or not BUDGET.is_full()):
            return True
        self._refused += 1
        if self._refused == 1:
            self._refused_at = len(self._objects)
            kept = f"{len(self._objects):,} {self.resource.full_name}"
            reason = f"the memory limit is reached with {kept} in the local copy; new ones are left out"
            BUDGET.refuse(f"watch of {self.resource.full_name}", reason)
            self._failed(KubeMalformed(reason, hint="Check the API server, or raise the memory limit of this process."))
        return False

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
        if self._warned:
            log.info("watching %s again; the local copy is up to date", self.resource.full_name)
        self.error, self._warned = None, False

    def _failed(self, error: KubeError) -> None:
        """Report that the copy may be out of date. An expired version is part of normal operation and not logged."""
        if isinstance(error, KubeGone):
            log.debug("the watch of %s expired, listing again: %s", self.resource.full_name, error)
        elif not self._warned:
            message = with_hint(error)
            log.warning("cannot watch %s; the local copy may be out of date: %s", self.resource.full_name, message)
            self._warned = True
        self.error = error
        self._tried.set()

    async def _pause(self, error: KubeError | None, *, at_once: bool = False) -> None:
        """Wait after a failure; the waits of unreachable servers and of other failures grow separately, so that a
        server that has returned is asked soon even if its first responses are refusals."""
        unreachable = isinstance(error, KubeUnreachable)
        limit = self._delays[min(self._failures[unreachable], len(self._delays) - 1)]
        self._failures[unreachable] += 1
        self._hurried.clear()  # a request made during an attempt is covered by that attempt
        asked_for = min((error and error.retry_after) or 0.0, LONGEST_ASKED_S)
        delay = asked_for + self._chance.uniform(0.0, min(limit, RECONNECT_S) if unreachable else limit)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.0 if at_once else delay):
                await self._hurried.wait()
