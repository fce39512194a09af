"""The marks that nodes should have, from the load and from the marks that they have.

Pure: no I/O, no clock. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scorers.marks.annotation import ABSENT, ANNOTATION_KEY, ScoreRules, next_scores, read_score
from scorers.marks.degrees import DegreeRules, degree_of, next_degrees
from scorers.marks.fleet_load import mark_loads
from scorers.marks.pressure import Moves, NodePressures, PressureRules, PressureState, next_pressures
from watcher.arrays import F64
from watcher.core.kubernetes.objects import Node
from watcher.model import Snapshot
from watcher.platform.kube.settings import MarksSettings


@dataclass(frozen=True, slots=True)
class NodeMarks:
    """The marks of a node: `degree` is the number of its taints, `score` the value of its annotation, or ABSENT."""

    degree: int = 0
    score: int = ABSENT


NO_MARKS = NodeMarks()


@dataclass(frozen=True, slots=True)
class MarkPlan:
    """The marks that each node should have, by name in ascending order, and the pressures in the same order. `loads`
    [n] is the highest load in percent, NaN for unknown nodes. `is_fresh`: the load was known when the plan was made."""

    wanted: Mapping[str, NodeMarks]
    loads: F64
    pressures: NodePressures
    is_fresh: bool


def marks_of(node: Node) -> NodeMarks:
    """Return the marks that a node has."""
    return NodeMarks(degree_of(node.spec.taints), read_score(node.metadata.annotations.get(ANNOTATION_KEY)))


class MarkPlanner:
    """Makes the plans, with the memory that they need: what was written to nodes and when, and the state of their
    pressures. In preview, a plan counts as written.

    What was written stands for the marks of a node during the pause of the rules: the copy of the node may be older."""

    def __init__(self, settings: MarksSettings, pressure: PressureRules) -> None:
        self._settings = settings
        self._degrees = DegreeRules(share=settings.tainted_share)
        self._scores = ScoreRules()
        self._pressure = pressure
        self._pressures: dict[str, tuple[int, float, float]] = {}  # the columns of PressureState
        self._written: dict[str, tuple[float, NodeMarks]] = {}

    def changed(self, node: str, marks: NodeMarks, now: float) -> None:
        """Note that a node was given these marks."""
        self._written[node] = (now, marks)

    def is_paused(self, node: str, now: float) -> bool:
        """Return whether the marks of a node were changed so recently that they may not change again."""
        return node in self._written and 0 <= now - self._written[node][0] < self._degrees.pause_s

    def plan(self, snapshot: Snapshot | None, nodes: Mapping[str, Node], moves: Moves | None, now: float) -> MarkPlan:
        """Make the plan for the nodes of the cluster. `snapshot` is None while the load is not known, `moves` (of the
        nodes in ascending order of their names) while they are not. `now` is in seconds of the clock of `changed`."""
        names = sorted(nodes)
        loads = mark_loads(snapshot, names, forecast=self._settings.forecast)
        before = [self._marks_of(nodes[name], now) for name in names]
        changed_at = np.array([self._written.get(name, (-np.inf, NO_MARKS))[0] for name in names], dtype=np.float64)
        degrees, scores = np.zeros(len(names), dtype=np.int64), np.full(len(names), ABSENT)
        if self._settings.taints:
            had = np.array([each.degree for each in before], dtype=np.int64)
            degrees = next_degrees(loads.mean, had, changed_at, self._degrees, now)
        if self._settings.annotation:
            had = np.array([each.score for each in before], dtype=np.int64)
            scores = next_scores(loads.mean, had, changed_at, self._scores, now)
        found = next_pressures(
            loads.median, self._pressures_of(names), moves or Moves.none(len(names)), self._pressure, now
        )
        if moves is None:
            found = NodePressures(np.full(len(names), np.nan), found.state, found.cooling)
        columns = (found.state.ranges.tolist(), found.state.hot_since.tolist(), found.state.answered.tolist())
        self._pressures = dict(zip(names, zip(*columns, strict=True), strict=True))
        wanted = dict(zip(names, map(NodeMarks, degrees.tolist(), scores.tolist()), strict=True))
        self._remember(wanted, now)
        return MarkPlan(wanted, loads.mean.worst, found, is_fresh=snapshot is not None)

    def _pressures_of(self, names: Sequence[str]) -> PressureState:
        """Return the state of the pressures of nodes after the last plan."""
        state = PressureState.start(len(names))
        for i, name in enumerate(names):
            if name in self._pressures:
                state.ranges[i], state.hot_since[i], state.answered[i] = self._pressures[name]
        return state

    def _marks_of(self, node: Node, now: float) -> NodeMarks:
        name = node.metadata.name
        if self._settings.preview or self.is_paused(name, now):
            return self._written.get(name, (now, NO_MARKS))[1]
        return marks_of(node)

    def _remember(self, wanted: Mapping[str, NodeMarks], now: float) -> None:
        if self._settings.preview:
            for name, marks in wanted.items():
                if marks != self._written.get(name, (now, NO_MARKS))[1]:
                    self.changed(name, marks, now)
        self._written = {name: written for name, written in self._written.items() if name in wanted}
