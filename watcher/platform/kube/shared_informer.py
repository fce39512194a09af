"""One informer per cluster and resource, shared by all its users in this process.

The node names, the scheduling plug-ins and a source all watch the nodes, independently of each other. Three lists of
5,000 nodes and three watches would triple the load on the API server and the memory use. Users therefore share one
copy: the first user starts it, and the last to leave stops it.

A user that joins late sees the same as with a separate informer: all existing objects as additions, then the changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Generic

from watcher.core.kubernetes.errors import KubeError
from watcher.core.kubernetes.wire import ItemT, Resource
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import KubeAccess
from watcher.platform.kube.informer import CLOSE_WITHIN_S, NOTIFY_BATCH, Informer, OnChange, notify_listener


class SharedInformer(Generic[ItemT]):
    """An `Informer` of all objects of `resource`, shared with users that gave an equal `access` on the same event loop.
    Can be started only once."""

    def __init__(
        self, access: Callable[[], KubeAccess], resource: Resource[ItemT], *, on_change: OnChange[ItemT] | None = None
    ) -> None:
        self.resource = resource
        self.synced = asyncio.Event()
        """Set once the first list is complete and `on_change` was called for all existing objects."""
        self._access = access
        self._on_change = on_change
        self._copy: _SharedState[ItemT] | None = None
        self._unreported: dict[str, ItemT] = {}
        self._joining: asyncio.Task[None] | None = None

    @property
    def objects(self) -> Mapping[str, ItemT]:
        """The current objects by name; a live view."""
        return MappingProxyType({}) if self._copy is None else self._copy.informer.objects

    @property
    def unread(self) -> Mapping[str, str]:
        """The reason why objects do not fit their type, by name; these objects are not in `objects`."""
        return {} if self._copy is None else self._copy.informer.undecodable

    @property
    def error(self) -> KubeError | None:
        """The reason why the copy is currently not being updated; None while it is."""
        return None if self._copy is None else self._copy.informer.error

    async def start(self) -> None:
        """Start in the background. Does not wait, and does not fail if the API is unreachable."""
        key = (asyncio.get_running_loop(), self._access, self.resource)
        copy = _copies.setdefault(key, _SharedState(key, self._access, self.resource))
        self._copy = copy
        copy.users += 1
        if self._on_change is not None:
            self._unreported = dict(copy.informer.objects)
            copy.informer.add_listener(self._hear)
        name = f"shared-informer-{self.resource.full_name}"
        self._joining = asyncio.create_task(self._join(copy.informer), name=name)
        if copy.users == 1:
            await copy.informer.start()
        else:
            copy.informer.retry_now()

    async def close(self) -> None:
        """Stop, within half a second. Afterwards `objects` may still be updated or remain unchanged."""
        joining, self._joining = self._joining, None
        copy = self._copy
        if joining is None or copy is None:
            return
        if self._on_change is not None:
            copy.informer.remove_listener(self._hear)
        joining.cancel()
        copy.users -= 1
        if not copy.users:
            del _copies[copy.key]  # a user that starts during this close creates a new copy
        try:
            await asyncio.wait([joining], timeout=CLOSE_WITHIN_S)
        finally:  # also on cancellation: no other user would close the copy
            if not copy.users:
                await copy.informer.close()
                await copy.client.close()

    async def wait(self) -> None:
        """Wait for the first list. Raises the KubeError of a failed attempt, made since this informer was started, as
        soon as there is one. The informer continues to retry and completes the list once possible."""
        if self._copy is not None:
            await self._copy.informer.wait()
        await self.synced.wait()

    # --- reporting changes -------------------------------------------------------------------------------------------

    async def _join(self, informer: Informer[ItemT]) -> None:
        """Report the objects that existed before, in portions."""
        for number, name in enumerate(tuple(self._unreported), start=1):
            if self._on_change is not None and name in self._unreported:
                notify_listener(self._on_change, self.resource, name, None, self._unreported.pop(name))
            if number % NOTIFY_BATCH == 0:
                await asyncio.sleep(0)
        await informer.synced.wait()
        self.synced.set()

    def _hear(self, name: str, old: ItemT | None, new: ItemT | None) -> None:
        """Forward a change. An object that has not been reported yet is reported once, with its newest state."""
        if self._on_change is None:
            return
        if self._unreported.pop(name, None) is None:
            self._on_change(name, old, new)
        elif new is not None:
            self._on_change(name, None, new)


_Key = tuple[asyncio.AbstractEventLoop, Callable[[], KubeAccess], Resource[Any]]


class _SharedState(Generic[ItemT]):
    """The shared informer with its client and the number of its users."""

    def __init__(self, key: _Key, access: Callable[[], KubeAccess], resource: Resource[ItemT]) -> None:
        self.key = key
        self.client = KubeClient(access)
        self.informer = Informer(self.client, resource)
        self.users = 0


_copies: dict[_Key, _SharedState[Any]] = {}
"""The running informers. Each belongs to one event loop: its events cannot be awaited on another one."""
