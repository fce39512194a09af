"""FewestPods: prefer nodes with few pods, independent of their usage.

    score = 100 * (1 - pods / fullAt)

and 0 for more pods than fullAt. It needs no metrics.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt

from scorers.cluster.pods import PodInfo
from scorers.cluster.table import ClusterTable
from scorers.plugin_api.arguments import Arguments
from scorers.plugin_api.framework import MAX_SCORE, Scores


class FewestPodsArgs(Arguments, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """`fullAt`: the number of pods from which a node scores 0."""

    full_at: Annotated[int, msgspec.Meta(gt=0)] = 110


class FewestPods:
    """A ScorePlugin (scorers.plugin_api.framework)."""

    name = "FewestPods"
    arguments = FewestPodsArgs

    def __init__(self, arguments: FewestPodsArgs, table: ClusterTable, *, profile: str = "default") -> None:
        self._full_at = arguments.full_at

    def score(self, pod: PodInfo, table: ClusterTable, rows: npt.NDArray[np.int64], *, now: float) -> Scores:
        """Score all nodes in one call; pods with only a reservation are counted too."""
        pods = table.pods[rows]
        values = MAX_SCORE * np.clip(1.0 - pods / self._full_at, 0.0, 1.0)
        return Scores(
            values,
            steps={"pods": pods},
            inputs={"fullAt": self._full_at},
            reason=lambda i: f"{pods[i]} pods; nodes with {self._full_at} or more score 0",
        )
