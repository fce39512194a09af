"""Of which nodes pod usage is known.

A source may measure the pods of some nodes and not of others: a kubelet is not scraped, or its metrics stopped. Pod
usage is therefore known of a node at a time. A node without readings is not a node without usage.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from watcher.core.review.findings import some_of

VALID_S = 300.0


@dataclass(frozen=True, slots=True)
class PodGaps:
    """Why a source has no readings of pods for some nodes: `causes` by node, and `otherwise` for all other nodes.
    `hosting` are the nodes on which pods run, None if the source does not know: other nodes have no usage."""

    otherwise: str
    causes: Mapping[str, str] = field(default_factory=dict)
    hosting: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class PodCoverage:
    """`measured` is the time (unix seconds) of the newest reading by node, of a node without pods that of the source's
    response; `unknown` is the cause by node whose pod usage is unknown. A reading is valid for `valid_s` seconds."""

    measured: Mapping[str, float]
    unknown: Mapping[str, str] = field(default_factory=dict)
    valid_s: float = VALID_S

    def known(self, node: str, at: float) -> bool:
        """Return whether the pod usage of a node is known at `at` (unix seconds)."""
        return self.measured.get(node, -math.inf) >= at - self.valid_s

    def on(self, nodes: Collection[str] | None) -> PodCoverage:
        """Return the coverage of these nodes; None means all."""
        if nodes is None:
            return self
        return PodCoverage(
            {node: time for node, time in self.measured.items() if node in nodes},
            {node: cause for node, cause in self.unknown.items() if node in nodes},
            self.valid_s,
        )

    def completed(self, missing: Collection[str], gaps: PodGaps, *, now: float) -> PodCoverage:
        """Return the coverage with the nodes that lack readings at `now` (unix seconds); a cause that is known already
        is kept."""
        idle = {node for node in missing if gaps.hosting is not None and node not in gaps.hosting}
        causes = {**gaps.causes, **self.unknown}
        unknown = {node: causes.get(node, gaps.otherwise) for node in sorted(set(missing) - idle)}
        return PodCoverage({**self.measured, **dict.fromkeys(idle, now)}, unknown, self.valid_s)

    def message(self, total: int | None = None) -> str:
        """Return how many nodes lack pod usage, and each cause with some of its nodes; "" if none does. `total` is the
        number of all nodes, if these are not only those of the coverage."""
        of_cause: dict[str, list[str]] = {}
        for node, cause in sorted(self.unknown.items()):
            of_cause.setdefault(cause, []).append(node)
        total = len(self.unknown.keys() | self.measured.keys()) if total is None else total
        causes = "; ".join(f"{some_of(nodes)}: {cause}" for cause, nodes in of_cause.items())
        return f"no pod usage for {len(self.unknown)} of {total} nodes; {causes}" if self.unknown else ""
