"""From the hints of every resource to one decision: the kubelet's Topology Manager, and Katalyst's `numeric` policy.

A hint names NUMA nodes on which a resource could come from, and whether that is as few as could be (`preferred`). Nodes
None is "anywhere". A provider that has no opinion about a resource says None in place of its hints; one that finds no
way at all gives an empty list. The rules are those of reference/qrm.md §4.

Hints are merged list by list, keeping only the distinct intermediate results: there are at most as many as sets of NUMA
nodes, where the product of all lists (upstream's way) has millions. The outcome is the same, since the comparison of
two results is a total order.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

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


def _rank(needed: int, hint: Hint) -> tuple[object, ...]:
    """Lower is better."""
    nodes = hint.nodes or frozenset()
    size, number = len(nodes), sum(1 << node for node in nodes)
    if hint.preferred:
        return (0, size, number)
    if size == needed:
        return (1, 0, number)
    return (2, -size, number) if size < needed else (3, size, number)


@dataclass(frozen=True, slots=True)
class _Partial:
    """A choice of one hint from each of some lists: what they have in common, and whether they are all preferred and
    all the same."""

    common: frozenset[int]
    preferred: bool
    named: frozenset[int] | None
    """What the first hint that names nodes names."""

    def and_(self, hint: Hint) -> _Partial:
        if hint.nodes is None:
            return _Partial(self.common, self.preferred and hint.preferred, self.named)
        same = self.named is None or hint.nodes == self.named
        preferred = self.preferred and hint.preferred and same
        # What the hints named matters no longer once they are not preferred.
        return _Partial(self.common & hint.nodes, preferred, (self.named or hint.nodes) if preferred else None)


def _best(lists: Sequence[Sequence[Hint]], everywhere: frozenset[int]) -> Hint:
    """The best of all choices of one hint from each list."""
    needed = most_of_narrowest(lists)
    partials = {_Partial(everywhere, preferred=True, named=None): None}
    for hints in lists:
        partials = {partial.and_(hint): None for partial in partials for hint in dict.fromkeys(hints)}
    best: Hint | None = None
    for partial in partials:
        best = compare(needed, best, Hint(partial.common, partial.preferred))
    return best or Hint(everywhere, preferred=False)


# --- numeric ---------------------------------------------------------------------------------------------------------


def _merge_numeric(collected: Sequence[tuple[str, Sequence[Hint]]], aligned: Sequence[str]) -> Merged:
    """Each resource keeps a hint of its own: those of `aligned` the same nodes, all of them one inside the other."""
    if not collected:
        return Merged({UNNAMED: ANYWHERE}, admit=True)
    if any(list(hints) == [IMPOSSIBLE] for _, hints in collected):
        return Merged({}, admit=False)
    together = [resource in aligned for resource, _ in collected]
    best: tuple[tuple[int, int], tuple[Hint, ...]] | None = None
    for chosen in _nested([hints for _, hints in collected], together):
        if not _agree([hint for hint, aligned_one in zip(chosen, together, strict=True) if aligned_one]):
            continue
        free = sum(hint.preferred for hint, aligned_one in zip(chosen, together, strict=True) if not aligned_one)
        widest = max(len(hint.nodes or ()) for hint in chosen)
        if best is None or (-free, widest) < best[0]:
            best = (-free, widest), chosen
    if best is None:
        return Merged({}, admit=False)
    return Merged({resource: hint for (resource, _), hint in zip(collected, best[1], strict=True)}, admit=True)


def _nested(lists: Sequence[Sequence[Hint]], together: Sequence[bool]) -> Iterator[tuple[Hint, ...]]:
    """Every choice of one hint from each list of which the nodes are one inside the other, in the lists' order; a
    choice that went wrong is not gone on with."""
    chosen: list[Hint] = []

    def choose() -> Iterator[tuple[Hint, ...]]:
        at = len(chosen)
        if at == len(lists):
            yield tuple(chosen)
            return
        for hint in lists[at]:
            if all(_fits(hint, other, both=together[at] and together[i]) for i, other in enumerate(chosen)):
                chosen.append(hint)
                yield from choose()
                chosen.pop()

    return choose()


def _fits(one: Hint, other: Hint, *, both: bool) -> bool:
    """Whether one names nodes inside those of the other; the very same if both are to be aligned."""
    if one.nodes is None or other.nodes is None:
        return True
    return one.nodes == other.nodes if both else one.nodes <= other.nodes or other.nodes <= one.nodes


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
