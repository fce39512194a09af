"""The order of merged hints as the kubelet compares them, one by one. The manager finds the best one without that."""

from __future__ import annotations

from agent.qrm.manager.topology import Hint


def compare(needed: int, current: Hint | None, candidate: Hint) -> Hint | None:
    """The better of two merged hints; `current` if they are equal. A preferred hint is better than any other, then
    fewer nodes are better, then lower node numbers. Hints that are not preferred are ordered by size: first exactly
    `needed` nodes, then fewer nodes, then more nodes, each with the closest size first."""
    if not candidate.nodes:
        return current
    return candidate if current is None or rank(needed, candidate) < rank(needed, current) else current


def rank(needed: int, hint: Hint) -> tuple[bool, int, int, int]:
    """Sort key of a merged hint; lower is better."""
    nodes = hint.nodes or frozenset()
    size, mask = len(nodes), sum(1 << node for node in nodes)
    if hint.preferred:
        return (False, 0, size, mask)
    side = 0 if size == needed else 1 if size < needed else 2
    return (True, side, -size if size < needed else size, mask)
