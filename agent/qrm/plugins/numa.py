"""Which NUMA nodes could serve a request: sets of them, as few as possible first, and who may share one.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

from agent.qrm.manager.topology import Hint


def sets_that_hold(needed: int, free: Mapping[int, int], *, fewest: int, most: int) -> list[frozenset[int]]:
    """Sets of `fewest` to `most` nodes that have so much free together; smaller ones first, then ascending."""
    nodes = sorted(free)
    return [
        frozenset(chosen)
        for size in range(fewest, min(most, len(nodes)) + 1)
        for chosen in combinations(nodes, size)
        if sum(free[node] for node in chosen) >= needed
    ]


def smallest_preferred(sets: list[frozenset[int]]) -> tuple[Hint, ...]:
    """As hints; preferred are those that are as small as the smallest of them."""
    least = min(map(len, sets), default=0)
    return tuple(Hint(nodes, preferred=len(nodes) == least) for nodes in sets)


def open_to(role: str, taken: Mapping[int, frozenset[str]]) -> list[int]:
    """The nodes on which nobody, or nobody of another role, has anything of his own: `taken` are the roles by node."""
    return [node for node, roles in sorted(taken.items()) if roles <= {role}]
