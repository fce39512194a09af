"""The order in which to change the quotas of several groups.

On version 1 a group's quota cannot exceed that of its parent: the kernel returns EINVAL for raising a child above its
parent, and for lowering a parent below a child. Therefore quotas are lowered from the leaves to the root, and raised
from the root to the leaves. Version 2 accepts any order.

Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from agent.cgroups.base import Quota


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """The current and the new quota of the group at `path`."""

    path: str
    before: Quota
    after: Quota

    @property
    def raises(self) -> bool:
        """Whether the change allows the group more CPU."""
        return self.after.cores > self.before.cores


def in_order(changes: Iterable[QuotaChange]) -> tuple[QuotaChange, ...]:
    """Sort the changes: first the reductions, from the leaves to the root, then the increases, from the root to the
    leaves. Groups of equal depth are sorted by path."""

    def place(change: QuotaChange) -> tuple[bool, int, str]:
        depth = change.path.count("/")
        return change.raises, depth if change.raises else -depth, change.path

    return tuple(sorted(changes, key=place))


def fits_below(quota: Quota, parent: Quota) -> bool:
    """Whether version 1 accepts `quota` for a child of a group with the quota `parent`."""
    return math.isinf(parent.cores) or quota.cores <= parent.cores
