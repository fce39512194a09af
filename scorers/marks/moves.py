"""Moves of pods: an eviction from a node, and the placement of its replacement on another one.

The replacement of an evicted pod is the next pod of the same controller that is bound. Pods of the controller that are
created for another reason (a rollout) are only counted while a replacement is awaited.

Pure: no I/O, no clock. Not thread-safe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import TypeVar

import numpy as np

from scorers.marks.pressure import Moves, PressureRules
from watcher.core.kubernetes.objects import Pod

Key = TypeVar("Key", bound=Hashable)

AWAIT_S = 600.0
"""Seconds for which the replacement of an evicted pod is awaited."""


class MoveTracker:
    """The moves from and to each node in the memory of the rules. `version` changes with each move. Times are in
    seconds of one clock."""

    def __init__(self, rules: PressureRules) -> None:
        self.version = 0
        self._memory_s = rules.memory_s
        self._moves: dict[str, deque[float]] = {}
        self._awaited: dict[tuple[str, str, str], deque[float]] = {}

    def pod_changed(self, old: Pod | None, new: Pod | None, now: float) -> None:
        """Count the change of a pod if it is a move."""
        if new is None or not new.spec.node_name:
            return
        if _is_evicted(new):
            if old is None or not _is_evicted(old):
                self._count(new.spec.node_name, now)
                if controller := _controller(new):
                    self._awaited.setdefault(controller, deque()).append(now)
        elif (old is None or not old.spec.node_name) and self._is_awaited(new, now):
            self._count(new.spec.node_name, now)

    def moves(self, names: Sequence[str], now: float, *, since: float) -> Moves:
        """Return the moves of nodes. No last move is before `since`, the time from which moves are known."""
        self._forget(now)
        none: deque[float] = deque()
        found = [self._moves.get(name, none) for name in names]
        last = np.array([max(times[-1] if times else since, since) for times in found], dtype=np.float64)
        return Moves(last, np.array([len(times) for times in found], dtype=np.int64))

    def _count(self, node: str, now: float) -> None:
        self.version += 1
        self._moves.setdefault(node, deque()).append(now)

    def _is_awaited(self, pod: Pod, now: float) -> bool:
        """Whether this pod replaces an evicted one, which is then no longer awaited."""
        times = self._awaited.get(_controller(pod) or ("", "", ""))
        while times:
            if now - times.popleft() <= AWAIT_S:
                return True
        return False

    def _forget(self, now: float) -> None:
        _drop_before(self._moves, now - self._memory_s)
        _drop_before(self._awaited, now - AWAIT_S)


def _drop_before(times: dict[Key, deque[float]], first: float) -> None:
    """Remove the times before `first`, and the keys without times."""
    for key, found in list(times.items()):
        while found and found[0] < first:
            found.popleft()
        if not found:
            del times[key]


def _is_evicted(pod: Pod) -> bool:
    return any(each.type == "DisruptionTarget" and each.status == "True" for each in pod.status.conditions)


def _controller(pod: Pod) -> tuple[str, str, str] | None:
    """Return namespace, kind and name of the controller of a pod."""
    owner = next((each for each in pod.metadata.owner_references if each.controller), None)
    return None if owner is None else (pod.metadata.namespace, owner.kind, owner.name)
