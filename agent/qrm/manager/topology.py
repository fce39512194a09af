"""From the hints of every resource to one decision: the kubelet's Topology Manager, and Katalyst's `numeric` policy.

A hint names NUMA nodes on which a resource could come from, and whether that is as few as could be (`preferred`). Nodes
None is "anywhere". A provider that has no opinion about a resource says None in place of its hints; one that finds no
way at all gives an empty list. The rules are those of reference/qrm.md §4.

Upstream tries the product of all lists, which on a large machine has millions of members and more. The outcome here is
the same by shorter ways: a preferred result is a set of nodes that every list names, of the others the choices are
counted by what they have in common, and `numeric` gives up a choice that cannot become the best.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

MOST_NODES = 8
"""NUMA nodes; beyond that the sets of nodes are too many, as upstream says too."""
UNNAMED = "*"
"""What a provider without hints is reported as."""
ALIGNED = ("cpu", "memory")


class Policy(StrEnum):
    """How much of the preference is a must."""

    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE_NUMA_NODE = "single-numa-node"
    NUMERIC = "numeric"


@dataclass(frozen=True, slots=True)
class Hint:
    """NUMA nodes (None: anywhere; empty: nowhere), and whether these are as few as could be."""

    nodes: frozenset[int] | None
    preferred: bool


ANYWHERE = Hint(None, preferred=True)
IMPOSSIBLE = Hint(None, preferred=False)

Hints = Mapping[str, Sequence[Hint] | None]
"""By resource: None is no preference, empty is no way."""


@dataclass(frozen=True, slots=True)
class Merged:
    """The hint of each resource, and whether the container may run."""

    hints: Mapping[str, Hint]
    admit: bool


def merge(
    policy: Policy, nodes: Iterable[int], providers: Sequence[Hints | None], *, aligned: Sequence[str] = ALIGNED
) -> Merged:
    """The decision over the hints of all providers, in their order, on a machine with these NUMA nodes. `aligned` are
    the resources that `numeric` keeps together.

    Raises ValueError for more NUMA nodes than MOST_NODES, which only `none` can do with.
    """
    if policy is Policy.NONE:
        return Merged({}, admit=True)
    everywhere = frozenset(nodes)
    check_nodes(policy, len(everywhere))
    collected = list(_collect(providers))
    if policy is Policy.NUMERIC:
        if any(hints is not None and not hints for each in providers for hints in (each or {}).values()):
            return Merged({}, admit=False)
        return _merge_numeric(collected, aligned)
    lists: Sequence[Sequence[Hint]] = [hints for _, hints in collected]
    if policy is Policy.SINGLE_NUMA_NODE:
        lists = single_numa_hints(lists)
    best = _best(lists, everywhere)
    if policy is Policy.SINGLE_NUMA_NODE and best.nodes == everywhere:
        best = Hint(None, best.preferred)
    admit = policy is Policy.BEST_EFFORT or best.preferred
    return Merged({resource: best for resource, _ in collected} or {UNNAMED: best}, admit)


def check_nodes(policy: Policy, count: int) -> None:
    """Raises ValueError where a policy cannot do with so many NUMA nodes."""
    if policy is not Policy.NONE and count > MOST_NODES:
        raise ValueError(
            f"the topology policy {policy} takes at most {MOST_NODES} NUMA nodes, this machine has {count}; "
            f"use the policy {Policy.NONE}"
        )


def _collect(providers: Sequence[Hints | None]) -> Iterator[tuple[str, Sequence[Hint]]]:
    """One list for each resource of each provider, none of them empty."""
    for provider in providers:
        if not provider:
            yield UNNAMED, (ANYWHERE,)
            continue
        for resource, hints in provider.items():
            yield resource, (ANYWHERE,) if hints is None else tuple(hints) or (IMPOSSIBLE,)


# --- best-effort, restricted, single-numa-node -----------------------------------------------------------------------


def single_numa_hints(lists: Iterable[Sequence[Hint]]) -> list[list[Hint]]:
    """Only the preferred hints that name one node or none in particular; a list may lose all of its own."""
    return [
        [hint for hint in hints if hint.preferred and (hint.nodes is None or len(hint.nodes) == 1)] for hints in lists
    ]


def most_of_narrowest(lists: Iterable[Sequence[Hint]]) -> int:
    """How many nodes the resource needs that needs most of them: the largest of the smallest hints."""
    return max(
        (min((len(hint.nodes) for hint in hints if hint.nodes is not None), default=0) for hints in lists), default=0
    )


def compare(needed: int, current: Hint | None, candidate: Hint) -> Hint | None:
    """The better of two merged hints, `current` where neither is. Preferred beats all else, then fewer nodes, then
    lower ones; of those not preferred the one that is nearest to `needed` nodes, from below before from above."""
    if not candidate.nodes:
        return current
    if current is None:
        return candidate
    return candidate if _rank(needed, candidate) < _rank(needed, current) else current


Rank = tuple[int, int, int]


def _rank(needed: int, hint: Hint) -> Rank:
    """Lower is better."""
    nodes = hint.nodes or frozenset()
    return _preferred_rank(nodes) if hint.preferred else _other_rank(needed, _mask(nodes))


def _preferred_rank(nodes: frozenset[int]) -> Rank:
    return (0, len(nodes), _mask(nodes))


def _other_rank(needed: int, mask: int) -> Rank:
    size = mask.bit_count()
    if size == needed:
        return (1, 0, mask)
    return (2, -size, mask) if size < needed else (3, size, mask)


def _mask(nodes: Iterable[int]) -> int:
    """One bit for each node."""
    return sum(1 << node for node in nodes)


def _best(lists: Sequence[Sequence[Hint]], everywhere: frozenset[int]) -> Hint:
    """The best of all choices of one hint from each list."""
    if preferred := [nodes for nodes in _preferred(lists, everywhere) if nodes]:
        return Hint(min(preferred, key=_preferred_rank), preferred=True)
    # Only choices that are not preferred are left, or such as have no node in common.
    order = sorted(everywhere)
    needed = most_of_narrowest(lists)
    common = [mask for mask, count in enumerate(_choices(lists, order)) if mask and count]
    # Bits here are places in `order`, which rank as the nodes themselves do.
    best = min(common, key=lambda mask: _other_rank(needed, mask), default=(1 << len(order)) - 1)
    return Hint(frozenset(node for place, node in enumerate(order) if best >> place & 1), preferred=False)


def _preferred(lists: Sequence[Sequence[Hint]], everywhere: frozenset[int]) -> Iterator[frozenset[int]]:
    """What preferred choices have in common: all of their hints are preferred, and those that name nodes the same."""
    named = [{hint.nodes for hint in hints if hint.preferred} for hints in lists]
    if all(None in each for each in named):
        yield everywhere
    for nodes in set().union(*named):
        if nodes is not None and all(nodes in each or None in each for each in named):
            yield nodes & everywhere


def _choices(lists: Sequence[Sequence[Hint]], order: Sequence[int]) -> list[int]:
    """How many choices of one hint from each list have exactly a set of nodes in common, by the set's bits in `order`.

    Those that have at least a set are the product of each list's hints that do; those that have more come off.
    """
    place = {node: 1 << at for at, node in enumerate(order)}
    size = 1 << len(order)
    at_least = [1] * size
    for hints in lists:
        counts = [0] * size
        for hint in hints:
            named = order if hint.nodes is None else hint.nodes
            counts[sum(place.get(node, 0) for node in named)] += 1
        _add_supersets(counts, sign=1)
        at_least = [one * other for one, other in zip(at_least, counts, strict=True)]
    _add_supersets(at_least, sign=-1)
    return at_least


def _add_supersets(counts: list[int], *, sign: int) -> None:
    """To each set's count those of its supersets, or, with the other sign, back again."""
    bit = 1
    while bit < len(counts):
        for mask in range(len(counts)):
            if not mask & bit:
                counts[mask] += sign * counts[mask | bit]
        bit <<= 1


# --- numeric ---------------------------------------------------------------------------------------------------------


def _merge_numeric(collected: Sequence[tuple[str, Sequence[Hint]]], aligned: Sequence[str]) -> Merged:
    """Each resource keeps a hint of its own: those of `aligned` the same nodes, all of them one inside the other."""
    if not collected:
        return Merged({UNNAMED: ANYWHERE}, admit=True)
    best = _nested([hints for _, hints in collected], [resource in aligned for resource, _ in collected])
    if best is None:
        return Merged({}, admit=False)
    return Merged({resource: hint for (resource, _), hint in zip(collected, best, strict=True)}, admit=True)


def _nested(lists: Sequence[Sequence[Hint]], together: Sequence[bool]) -> tuple[Hint, ...] | None:
    """The best choice of one hint from each list, of which the nodes are one inside the other, and those of the lists
    that are `together` agree: with most preferred hints of the other lists, then with fewest nodes in the
    widest, then the first in the lists' order. None where there is no such choice."""
    options = [[_Option.of(hint) for hint in dict.fromkeys(hints)] for hints in lists]
    alone = [each for each, both in zip(options, together, strict=True) if both]
    if len(alone) < len(options) and _Search([True] * len(alone)).best(alone) is None:
        return None  # whatever the others are: they need not be tried
    best = _Search(together).best(options)
    return None if best is None else tuple(option.hint for option in best)


class _Option(NamedTuple):
    """A hint, with a bit for each of its nodes: all there are for one that names none, for it fits with any other."""

    mask: int
    width: int
    preferred: bool
    hint: Hint

    @classmethod
    def of(cls, hint: Hint) -> _Option:
        mask = -1 if hint.nodes is None else _mask(hint.nodes)
        return cls(mask, len(hint.nodes or ()), hint.preferred, hint)


Cost = tuple[int, int]
"""Preferred hints of lists on their own, below zero, and nodes of the widest hint: lower is better."""


class _Search:
    """Choices are tried in the lists' order. After each step what no longer fits is struck from the lists to come, and
    a choice is given up when not even the best of each of them would make it better than one that was found."""

    def __init__(self, together: Sequence[bool]) -> None:
        self._together = together
        self._last = max((at for at, both in enumerate(together) if both), default=-1)
        self._found: tuple[_Option, ...] | None = None
        self._cost: Cost = (0, 0)

    def best(self, lists: Sequence[Sequence[_Option]]) -> tuple[_Option, ...] | None:
        """None where no choice will do."""
        self._choose((), (0, 0), lists)
        return self._found

    def _choose(self, chosen: tuple[_Option, ...], cost: Cost, left: Sequence[Sequence[_Option]]) -> None:
        """Try all that begin so. `left` are the options of the lists to come that fit."""
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
        """Those of a later list with nodes inside or around these; the same nodes in the next list of those that are
        together with this one."""
        mask = option.mask
        if mask == -1:
            return others
        if self._together[at] and self._together[later] and not any(self._together[at + 1 : later]):
            return [other for other in others if other.mask in (mask, -1)]
        return [other for other in others if (both := other.mask & mask) == mask or both == other.mask]

    def _at_least(self, first: int, left: Sequence[Sequence[_Option]]) -> Cost:
        """What lists from the place `first` on cost with the best option of each."""
        preferred = widest = 0
        for options, both in zip(left, self._together[first:], strict=True):
            preferred += not both and any(option.preferred for option in options)
            widest = max(widest, min(option.width for option in options))
        return -preferred, widest

    def _may_win(self, one: Cost, other: Cost) -> bool:
        """Whether both together are better than what was found."""
        return self._found is None or (one[0] + other[0], max(one[1], other[1])) < self._cost


def _agree(hints: Sequence[Hint]) -> bool:
    """Whether the hints that are to be aligned go together: two neighbours without nodes are both preferred or neither,
    next to one with nodes a hint without them must be preferred, and one of the last two is preferred."""
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
