"""What went wrong between the plug-in and the container runtime: counted for metrics, listed on /qrm, and logged when
it begins."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

log = logging.getLogger(__name__)

REMEMBERED = 100


class Unanswered(RuntimeError):
    """The plug-in cannot decide about a container; `kind` as in NriFindings."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class NriFindings:
    """The last failures, and the number of failures of each kind: bad-frame, checkpoint, device, disconnected, dropped,
    internal, kubelet, late, missed, plugin, refused, slow, unknown-pod, unreachable, update. `clock` returns unix
    seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.counts: Counter[str] = Counter()
        self.unpinned = 0
        """Containers that were created without their allocations."""
        self.refused = 0
        """Containers that were not created because of a failure."""
        self.without: frozenset[str] = frozenset()
        """Containers that had none of their properties at the last synchronization, or of which the properties are not
        known yet."""
        self._clock = clock
        self._last: deque[tuple[float, str, str, int]] = deque(maxlen=REMEMBERED)

    def add(self, kind: str, message: str) -> None:
        """Record a failure. A failure like the last one is counted and not logged again."""
        self.counts[kind] += 1
        times = 1
        if self._last and self._last[-1][1:3] == (kind, message):
            times += self._last.pop()[3]
        else:
            log.warning("%s", message)
        self._last.append((self._clock(), kind, message, times))

    def applied(self, names: Mapping[str, str]) -> None:
        """Containers, by id, get properties: record those that started while the runtime did not call the plug-in."""
        missed = [name for id, name in names.items() if id in self.without]
        self.without -= names.keys()
        if missed:
            self.unpinned += len(missed)
            text = f"{len(missed)} containers started while the runtime did not call the plug-in, such as {missed[0]}"
            self.add("missed", f"{text}; their allocations are applied now")

    def as_json(self) -> list[dict[str, Any]]:
        """The last failures, newest first; `time` is that of the last of `times` equal failures."""
        return [
            {"time": round(time, 3), "kind": kind, "message": message, "times": times}
            for time, kind, message, times in reversed(self._last)
        ]
