"""Selection of NUMA nodes for a request: the sets of nodes that fit, smallest sets first, and the nodes open to a role.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

from agent.qrm.manager.topology import Hint


def sets_that_hold(needed: int, free: Mapping[int, int], *, fewest: int, most: int) -> list[frozenset[int]]:
    """The sets of `fewest` to `most` nodes with at least `needed` free in total; smaller sets first, then ascending.
    `free` is by node, in the unit of `needed`."""
    nodes = sorted(free)
    return [
        frozenset(chosen)
        for size in range(fewest, min(most, len(nodes)) + 1)
        for chosen in combinations(nodes, size)
        if sum(free[node] for node in chosen) >= needed
    ]


def smallest_preferred(sets: list[frozenset[int]]) -> tuple[Hint, ...]:
    """The sets as hints; the smallest sets are preferred."""
    least = min(map(len, sets), default=0)
    return tuple(Hint(nodes, preferred=len(nodes) == least) for nodes in sets)


def nodes_open_to(role: str, taken: Mapping[int, frozenset[str]]) -> list[int]:
    """The nodes on which no other role has exclusive resources. `taken` are the roles with exclusive resources by
    node."""
    return [node for node, roles in sorted(taken.items()) if roles <= {role}]
