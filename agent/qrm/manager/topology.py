"""Merges the hints of all resources into one decision: the kubelet's Topology Manager, and Katalyst's `numeric` policy.

A hint names NUMA nodes that can provide a resource, and whether their number is the minimum (`preferred`). Nodes None
means any node. A provider returns None instead of a list of hints if it has no preference, and an empty list if no
nodes fit.

The kubelet and Katalyst evaluate the Cartesian product of all lists, which on a large machine has millions of elements
or more. This module computes the same result faster: a preferred result is a set of nodes that every list contains; the
other combinations count by the distinct sets of nodes that they have in common; and `numeric` abandons a combination as
soon as it cannot become the best.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

EXACT_NODES = 8
"""NUMA nodes up to which all sets of nodes count."""
MOST_SETS = 512
"""Sets of nodes of a list that count with more nodes."""
MOST_NODES = 8
"""Maximum number of NUMA nodes for `numeric`; with more, the number of combinations is too large."""
UNNAMED = "*"
"""Resource name under which a provider without hints is reported."""
ALIGNED = ("cpu", "memory")


class TopologyPolicy(StrEnum):
    """The topology policy: whether a preferred hint is required for admission."""

    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE_NUMA_NODE = "single-numa-node"
    NUMERIC = "numeric"


@dataclass(frozen=True, slots=True)
class Hint:
    """NUMA nodes (None: any node; empty: no node), and whether their number is the minimum."""

    nodes: frozenset[int] | None
    preferred: bool


ANYWHERE = Hint(None, preferred=True)
IMPOSSIBLE = Hint(None, preferred=False)

Hints = Mapping[str, Sequence[Hint] | None]
"""Hints by resource: None means no preference, an empty list means that no nodes fit."""


@dataclass(frozen=True, slots=True)
class Merged:
    """The merged hint of each resource, and whether the container is admitted."""

    hints: Mapping[str, Hint]
    admit: bool


def merge(
    policy: TopologyPolicy, nodes: Iterable[int], providers: Sequence[Hints | None], *, aligned: Sequence[str] = ALIGNED
) -> Merged:
    """Merge the hints of all providers, in their order, on a machine with the NUMA nodes `nodes`. `aligned` are the
    resources that `numeric` places on the same nodes.

    Raises ValueError for `numeric` with more than MOST_NODES NUMA nodes.
    """
    if policy is TopologyPolicy.NONE:
        return Merged({}, admit=True)
    everywhere = frozenset(nodes)
    check_nodes(policy, len(everywhere))
    collected = list(_collect(providers))
    if policy is TopologyPolicy.NUMERIC:
        if any(hints is not None and not hints for each in providers for hints in (each or {}).values()):
            return Merged({}, admit=False)
        return _merge_numeric(collected, aligned)
    lists: Sequence[Sequence[Hint]] = [hints for _, hints in collected]
    if policy is TopologyPolicy.SINGLE_NUMA_NODE:
        lists = single_numa_hints(lists)
    best = _best(lists, everywhere)
    if policy is TopologyPolicy.SINGLE_NUMA_NODE and best.nodes == everywhere:
        best = Hint(None, best.preferred)
    admit = policy is TopologyPolicy.BEST_EFFORT or best.preferred
    return Merged({resource: best for resource, _ in collected} or {UNNAMED: best}, admit)


def check_nodes(policy: TopologyPolicy, count: int) -> None:
    """Raises ValueError if the policy does not support this number of NUMA nodes."""
    if policy is TopologyPolicy.NUMERIC and count > MOST_NODES:
        raise ValueError(
            f"the topology policy {policy} supports at most {MOST_NODES} NUMA nodes, but this machine has {count}; "
            f"use the policy {TopologyPolicy.BEST_EFFORT} or {TopologyPolicy.RESTRICTED}"
        )


def _collect(providers: Sequence[Hints | None]) -> Iterator[tuple[str, Sequence[Hint]]]:
    """One list of hints for each resource of each provider; none of the lists is empty."""
    for provider in providers:
        if not provider:
            yield UNNAMED, (ANYWHERE,)
            continue
        for resource, hints in provider.items():
            yield resource, (ANYWHERE,) if hints is None else tuple(hints) or (IMPOSSIBLE,)


# --- best-effort, restricted, single-numa-node -----------------------------------------------------------------------


def single_numa_hints(lists: Iterable[Sequence[Hint]]) -> list[list[Hint]]:
    """Only the preferred hints with a single node or without nodes. A list can become empty."""
    return [
        [hint for hint in hints if hint.preferred and (hint.nodes is None or len(hint.nodes) == 1)] for hints in lists
    ]


def most_of_narrowest(lists: Iterable[Sequence[Hint]]) -> int:
    """The number of nodes that the most demanding resource needs: the maximum over all lists of the smallest hint."""
    return max(
        (min((len(hint.nodes) for hint in hints if hint.nodes is not None), default=0) for hints in lists), default=0
    )


Rank = tuple[int, int, int]


def _preferred_rank(nodes: frozenset[int]) -> Rank:
    return (0, len(nodes), _mask(nodes))


def _other_rank(needed: int, mask: int) -> Rank:
    size = mask.bit_count()
    if size == needed:
        return (1, 0, mask)
    return (2, -size, mask) if size < needed else (3, size, mask)


def _mask(nodes: Iterable[int]) -> int:
    """Bit mask with one bit for each node."""
    return sum(1 << node for node in nodes)


def _best(lists: Sequence[Sequence[Hint]], everywhere: frozenset[int]) -> Hint:
    """The best of all combinations of one hint from each list."""
    if preferred := [nodes for nodes in _preferred(lists, everywhere) if nodes]:
        return Hint(min(preferred, key=_preferred_rank), preferred=True)
    # Only combinations remain that are not preferred or have no node in common.
    needed = most_of_narrowest(lists)
    common = [mask for mask in _common(lists, _mask(everywhere)) if mask]
    best = min(common, key=lambda mask: _other_rank(needed, mask), default=_mask(everywhere))
    return Hint(frozenset(node for node in everywhere if best >> node & 1), preferred=False)


def _preferred(lists: Sequence[Sequence[Hint]], everywhere: frozenset[int]) -> Iterator[frozenset[int]]:
    """The common nodes of preferred combinations: all hints are preferred, and all hints with nodes name the same
    nodes."""
    named = [{hint.nodes for hint in hints if hint.preferred} for hints in lists]
    if all(None in each for each in named):
        yield everywhere
    for nodes in set().union(*named):
        if nodes is not None and all(nodes in each or None in each for each in named):
            yield nodes & everywhere


def _common(lists: Sequence[Sequence[Hint]], everywhere: int) -> set[int]:
    """The sets of nodes, as bit masks, that the combinations of one hint from each list have in common. With up to
    EXACT_NODES nodes there are at most 256. With more nodes, only the MOST_SETS narrowest of each list and of each
    result count, so that the time is bounded whatever a plug-in offers."""
    exact = everywhere.bit_count() <= EXACT_NODES
    found = {everywhere}
    for hints in lists:
        named = {everywhere if hint.nodes is None else _mask(hint.nodes) & everywhere for hint in hints}
        found = {one & other for one in found for other in _bounded(named, exact)}
        found = set(_bounded(found, exact))
    return found


def _bounded(masks: set[int], exact: bool) -> Iterable[int]:
    if exact or len(masks) <= MOST_SETS:
        return masks
    return sorted(masks, key=lambda mask: (not mask, mask.bit_count(), mask))[:MOST_SETS]


# --- numeric ---------------------------------------------------------------------------------------------------------


def _merge_numeric(collected: Sequence[tuple[str, Sequence[Hint]]], aligned: Sequence[str]) -> Merged:
    """Each resource gets one of its hints: the `aligned` resources get the same nodes, and the node sets of all
    resources are nested."""
    if not collected:
        return Merged({UNNAMED: ANYWHERE}, admit=True)
    best = _nested([hints for _, hints in collected], [resource in aligned for resource, _ in collected])
    if best is None:
        return Merged({}, admit=False)
    return Merged({resource: hint for (resource, _), hint in zip(collected, best, strict=True)}, admit=True)


def _nested(lists: Sequence[Sequence[Hint]], together: Sequence[bool]) -> tuple[Hint, ...] | None:
    """The best combination of one hint from each list such that all node sets are nested and the lists marked in
    `together` agree. Best means: most preferred hints in the other lists, then fewest nodes in the widest hint, then
    first in the order of the lists. None if no combination fits."""
    options = [[_Option.of(hint) for hint in dict.fromkeys(hints)] for hints in lists]
    alone = [each for each, both in zip(options, together, strict=True) if both]
    if len(alone) < len(options) and _Search([True] * len(alone)).best(alone) is None:
        return None  # the aligned lists do not agree, so the other lists do not matter
    best = _Search(together).best(options)
    return None if best is None else tuple(option.hint for option in best)


class _Option(NamedTuple):
    """A hint with the bit mask of its nodes. A hint without nodes has all bits set, because it is compatible with every
    other hint."""

    mask: int
    width: int
    preferred: bool
    hint: Hint

    @classmethod
    def of(cls, hint: Hint) -> _Option:
        mask = -1 if hint.nodes is None else _mask(hint.nodes)
        return cls(mask, len(hint.nodes or ()), hint.preferred, hint)


Cost = tuple[int, int]
"""The negated number of preferred hints in the lists that are not aligned, and the number of nodes of the widest hint;
lower is better."""


class _Search:
    """Depth-first search in the order of the lists. After each choice, incompatible options are removed from the
    remaining lists, and a branch is abandoned if even the best remaining options cannot improve on the best result so
    far."""

    def __init__(self, together: Sequence[bool]) -> None:
        self._together = together
        self._last = max((at for at, both in enumerate(together) if both), default=-1)
        self._found: tuple[_Option, ...] | None = None
        self._cost: Cost = (0, 0)

    def best(self, lists: Sequence[Sequence[_Option]]) -> tuple[_Option, ...] | None:
        """The best combination; None if there is none."""
        self._choose((), (0, 0), lists)
        return self._found

    def _choose(self, chosen: tuple[_Option, ...], cost: Cost, left: Sequence[Sequence[_Option]]) -> None:
        """Try all combinations that begin with `chosen`. `left` are the compatible options of the remaining lists."""
        at = len(chosen)
        if not left:
            self._found, self._cost = chosen, cost
            return
        ahead = self._at_least(at + 1, left[1:])
        for option in left[0]:
            alone = option.preferred and not self._together[at]
            so_far = cost[0] - alone, max(cost[1], option.width)
            if not self._may_win(so_far, ahead):
                continue
            longer = (*chosen, option)
            if at == self._last and not _agree([longer[i].hint for i in range(at + 1) if self._together[i]]):
                continue
            rest = [self._fitting(option, at, later, options) for later, options in enumerate(left[1:], start=at + 1)]
            if all(rest) and self._may_win(so_far, self._at_least(at + 1, rest)):
                self._choose(longer, so_far, rest)

    def _fitting(self, option: _Option, at: int, later: int, others: Sequence[_Option]) -> Sequence[_Option]:
        """The options of a later list with a subset or a superset of this option's nodes; with the same nodes if both
        lists are aligned and no other aligned list is between them."""
        mask = option.mask
        if mask == -1:
            return others
        if self._together[at] and self._together[later] and not any(self._together[at + 1 : later]):
            return [other for other in others if other.mask in (mask, -1)]
        return [other for other in others if (both := other.mask & mask) == mask or both == other.mask]

    def _at_least(self, first: int, left: Sequence[Sequence[_Option]]) -> Cost:
        """Lower bound of the cost of the lists from index `first` on: the best option of each."""
        preferred = widest = 0
        for options, both in zip(left, self._together[first:], strict=True):
            preferred += not both and any(option.preferred for option in options)
            widest = max(widest, min(option.width for option in options))
        return -preferred, widest

    def _may_win(self, one: Cost, other: Cost) -> bool:
        """Whether the combined cost is lower than that of the best result found."""
        return self._found is None or (one[0] + other[0], max(one[1], other[1])) < self._cost


def _agree(hints: Sequence[Hint]) -> bool:
    """Whether the hints of the aligned resources are compatible: of two adjacent hints without nodes, both or neither
    are preferred; a hint without nodes next to a hint with nodes must be preferred; and at least one of the last two
    hints is preferred."""
    for one, other in itertools.pairwise(hints):
        if one.nodes is None and other.nodes is None:
            if one.preferred != other.preferred:
                return False
        elif one.nodes is None or other.nodes is None:
            if not (one if one.nodes is None else other).preferred:
                return False
        elif one.nodes != other.nodes:
            return False
    return not hints or any(hint.preferred for hint in hints[-2:])
