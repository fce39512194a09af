"""One score per node, for the plug-in NodeMetadata of scheduler-plugins (KEP-942).

The plug-in reads one annotation as a number, cuts off its fraction, and stretches the values of the feasible nodes to 1
to 100, so that the lowest of them scores 1 and the highest 100. A node without a readable value scores 0, below all
others. Because a difference of one would already be stretched to the full range, scores are multiples of a step: nodes
with about the same load have the same score.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from scorers.marks.excess import FleetLoad, paused
from watcher.arrays import F64, I64

ANNOTATION_KEY = "load-watcher.io/node-score"
ABSENT = -1
"""The score of a node without annotation."""
SWITCH = 0.75
"""Distance from the written score, in steps, from which another is written; half a step would have no hysteresis."""


@dataclass(frozen=True, slots=True)
class ScoreRules:
    """Scores are multiples of `step`, which divides 100. A node is changed once in `pause_s` seconds."""

    step: int = 10
    pause_s: float = 600.0


def next_scores(load: FleetLoad, before: I64, changed_at: F64, rules: ScoreRules, now: float) -> I64:
    """Return the score of each node, 0 to 100 [n], from those `before` [n]; `changed_at` [n] as in `paused`.

    A score is 100 minus the highest load or bound in percent. Unknown nodes are ABSENT at once: the plug-in then
    prefers all other nodes.
    """
    free = 100.0 - np.clip(load.worst, 0.0, 100.0)
    known = ~np.isnan(free)
    free = np.where(known, free, 0.0)
    rounded = (np.rint(free / rules.step) * rules.step).astype(np.int64)
    keeps = paused(changed_at, now, rules.pause_s) | ((before >= 0) & (np.abs(free - before) < SWITCH * rules.step))
    return np.where(known, np.where(keeps, before, rounded), ABSENT)


def score_text(score: int) -> str:
    """Return the value of the annotation."""
    return str(score)


def read_score(text: str | None) -> int:
    """Return the score in an annotation; ABSENT if there is none, or none that `score_text` writes."""
    found = re.fullmatch(r"\d{1,3}", text or "", re.ASCII)
    return min(int(found[0]), 100) if found else ABSENT
