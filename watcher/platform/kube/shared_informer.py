"""One copy of the objects of a resource for all in this process who want them of the same cluster.

The names of nodes, the scheduling plug-ins and a source each follow the nodes, and know nothing of one another. Three
lists of 5,000 nodes and three watches would cost the API server and our memory three times what one does. So each joins
the copy that is there: the first begins it, and the last to leave ends it.

Who joins late sees what an informer of his own would show: all that is there as additions, then the changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Generic

from watcher.core.kubernetes.errors import KubeError
from watcher.core.kubernetes.wire import ItemT, Resource
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import Access
from watcher.platform.kube.informer import AT_ONCE, CLOSE_WITHIN_S, Informer, OnChange, tell


class SharedInformer(Generic[ItemT]):
    """An `Informer` of all objects of `resource`, shared with those who gave an equal `access` on the same event loop.
    It is started once."""

    def __init__(
        self, access: Callable[[], Access], resource: Resource[ItemT], *, on_change: OnChange[ItemT] | None = None
    ) -> None:
        self.resource = resource
        self.synced = asyncio.Event()
        """Set once the first list has come, and `on_change` was told of all that is there."""
        self._access = access
        self._on_change = on_change
        self._copy: _Copy[ItemT] | None = None
        self._untold: dict[str, ItemT] = {}
        self._joining: asyncio.Task[None] | None = None

    @property
    def objects(self) -> Mapping[str, ItemT]:
        """What there is, by name; a view that follows."""
        return MappingProxyType({}) if self._copy is None else self._copy.informer.objects

    @property
    def unread(self) -> Mapping[str, str]:
        """What is wrong with the objects that do not fit their type, by name; they are not among `objects`."""
        return {} if self._copy is None else self._copy.informer.unread

    @property
    def error(self) -> KubeError | None:
        """Why the copy is not being kept up at the moment; None while it is."""
        return None if self._copy is None else self._copy.informer.error

    async def start(self) -> None:
        """Begin in the background. Does not wait, and does not fail because the API is away."""
        key = (asyncio.get_running_loop(), self._access, self.resource)
        copy = _copies.setdefault(key, _Copy(key, self._access, self.resource))
        self._copy = copy
        copy.users += 1
        if self._on_change is not None:
            self._untold = dict(copy.informer.objects)
            copy.informer.listen(self._hear)
        name = f"shared-informer-{self.resource.full_name}"
        self._joining = asyncio.create_task(self._join(copy.informer), name=name)
        if copy.users == 1:
            await copy.informer.start()
        else:
            copy.informer.hurry()

    async def close(self) -> None:
        """Stop, within half a second; `objects` may go on to follow, or stay as they are."""
        joining, self._joining = self._joining, None
        copy = self._copy
        if joining is None or copy is None:
            return
        if self._on_change is not None:
            copy.informer.forget(self._hear)
        joining.cancel()
        copy.users -= 1
        if not copy.users:
            del _copies[copy.key]  # who comes while this one ends begins another
        try:
            await asyncio.wait([joining], timeout=CLOSE_WITHIN_S)
        finally:  # also for who is stopped in the middle of this: nobody else would end the copy
            if not copy.users:
                await copy.informer.close()
                await copy.client.close()

    async def wait(self) -> None:
        """Wait for the first list. Raises the KubeError that keeps it from coming, as soon as there is one (of an
        attempt since the start of this). It is tried on all the same, and comes once it can."""
        if self._copy is not None:
            await self._copy.informer.wait()
        await self.synced.wait()

    # --- what is told ------------------------------------------------------------------------------------------------

    async def _join(self, informer: Informer[ItemT]) -> None:
        """Tell of what was there already, some at a time."""
        for number, name in enumerate(tuple(self._untold), start=1):
            if self._on_change is not None and name in self._untold:
                tell(self._on_change, self.resource, name, None, self._untold.pop(name))
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        await informer.synced.wait()
        self.synced.set()

    def _hear(self, name: str, old: ItemT | None, new: ItemT | None) -> None:
        """A change; of what was not told of yet, its newest state is all that there is to tell."""
        if self._on_change is None:
            return
        if self._untold.pop(name, None) is None:
            self._on_change(name, old, new)
        elif new is not None:
            self._on_change(name, None, new)


_Key = tuple[asyncio.AbstractEventLoop, Callable[[], Access], Resource[Any]]


class _Copy(Generic[ItemT]):
    """What is shared, and how many do."""

    def __init__(self, key: _Key, access: Callable[[], Access], resource: Resource[ItemT]) -> None:
        self.key = key
        self.client = KubeClient(access)
        self.informer = Informer(self.client, resource)
        self.users = 0


_copies: dict[_Key, _Copy[Any]] = {}
"""Those that run. Each is of one event loop: what belongs to one cannot be waited for on another."""
