"""Control groups that stay open between readings, as far as the limit of open files allows."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from agent.cgroups.base import Group
from agent.cgroups.errors import CgroupGone

T = TypeVar("T")

WANTED_DESCRIPTORS = 1 << 16
SHARE = 0.75  # of the descriptors of the process


def usable_descriptors() -> int:
    """Raise the limit of open files of this process as far as allowed, at most to WANTED_DESCRIPTORS. Returns how many
    of them groups may take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, WANTED_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return int(SHARE * (WANTED_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft))


class KeptGroups:
    """Groups by path. `descriptors` is the number of file descriptors that they may take; further groups are opened for
    each reading, and closed after it."""

    def __init__(self, descriptors: int) -> None:
        self._left = descriptors
        self._kept: dict[str, Group] = {}
        self._used: set[str] = set()

    @contextmanager
    def cycle(self) -> Iterator[None]:
        """One reading of all groups; afterwards, groups that were not read are closed."""
        self._used.clear()
        try:
            yield
        finally:
            for path in self._kept.keys() - self._used:
                self._drop(path)

    def parent(self, path: str, make: Callable[[], Group]) -> Group:
        """The open group at this path, which groups to read are below. There are few parents: they are always kept."""
        return self._find(path) or self._keep(path, make())

    def read(self, path: str, make: Callable[[], Group], reading: Callable[[Group], T]) -> T:
        """The result of `reading` for the group at this path, which `make` opens unless it is open. If a group that was
        open is gone, it is opened again, because a new group can have its path. Raises CgroupGone."""
        if (group := self._find(path)) is not None:
            try:
                return reading(group)
            except CgroupGone:
                self._drop(path)
        group = make()
        if group.most_descriptors <= self._left:
            self._keep(path, group)
            try:
                return reading(group)
            except CgroupGone:
                self._drop(path)
                raise
        with group:
            return reading(group)

    def close(self) -> None:
        """Close all groups; a later reading opens its groups again."""
        for path in list(self._kept):
            self._drop(path)

    def _find(self, path: str) -> Group | None:
        self._used.add(path)
        group = self._kept.get(path)
        if group is not None and group.is_removed():
            self._drop(path)
            return None
        return group

    def _keep(self, path: str, group: Group) -> Group:
        group.keep_open()
        self._left -= group.most_descriptors
        self._kept[path] = group
        return group

    def _drop(self, path: str) -> None:
        group = self._kept.pop(path, None)
        if group is not None:
            self._left += group.most_descriptors
            group.close()
