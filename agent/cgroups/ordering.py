"""In which order the quotas of several groups are to be changed.

Version 1 never lets a group have more than the one above it: the kernel answers EINVAL to a child that is raised over
its parent, and to a parent that is lowered below a child (crane.md §10.1). So what goes down goes from the leaves, and
what goes up from the root. Version 2 takes any order, this one too.

Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from agent.cgroups.base import Quota


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """What the group at `path` has, and what it is to have."""

    path: str
    before: Quota
    after: Quota

    @property
    def raises(self) -> bool:
        """Whether it may use more afterwards."""
        return self.after.cores > self.before.cores


def in_order(changes: Iterable[QuotaChange]) -> tuple[QuotaChange, ...]:
    """The changes as they are to be made: first what is lowered, from the leaves to the root, then what is raised, from
    the root to the leaves; groups side by side by name."""

    def place(change: QuotaChange) -> tuple[bool, int, str]:
        depth = change.path.count("/")
        return change.raises, depth if change.raises else -depth, change.path

    return tuple(sorted(changes, key=place))


def fits_below(quota: Quota, parent: Quota) -> bool:
    """Whether version 1 lets a group have this below a parent that has that."""
    return math.isinf(parent.cores) or quota.cores <= parent.cores
