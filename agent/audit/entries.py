"""Values of the audit log: entries, outcomes, stored original values, filters, and their JSON lines."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from agent.cgroups import knobs
from agent.cgroups.knobs import Knob, Value
from agent.model import Released


class Outcome(StrEnum):
    """What became of a deed."""

    BEGUN = "begun"
    """Not known: it was about to be done when the process ended, or it is being done now."""
    DONE = "done"
    GONE = "gone"
    """There was nothing left to do it to; what was to be released is released."""
    FAILED = "failed"
    PROTECTED = "protected"
    """A PodDisruptionBudget did not allow it."""
    UNANSWERED = "unanswered"
    """The API did not answer: it may have been done."""
    FOREIGN = "foreign"
    """Somebody else had changed it meanwhile: left alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """One thing done, or about to be. `planned` is what it was to release and `used` what was used before, by resource;
    `before` and `after` are what it changes ({"quota": 50000, "period": 100000}; quota null is unlimited). `measured`
    is what was released as far as a cycle later tells, negative if more is used than before."""

    time: float
    kind: str
    cycle: int = 0
    pod: str = ""
    uid: str = ""
    container: str = ""
    container_id: str = ""
    owner: str = ""
    metric: str = ""
    reason: str = ""
    planned: Released = field(default_factory=dict)
    used: Released = field(default_factory=dict)
    before: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)
    outcome: Outcome = Outcome.BEGUN
    message: str = ""
    finished: float | None = None
    measured: Released | None = None
    measured_at: float | None = None
    id: int = 0

    @property
    def namespace(self) -> str:
        """Of the pod, "" where it is about none."""
        return self.pod.partition("/")[0]

    def as_json(self) -> dict[str, Any]:
        """As GET /audit and the lines on standard output have it."""
        return asdict(self)


_MAPS = ("planned", "used", "before", "after", "measured")


@dataclass(frozen=True, slots=True)
class Remembered:
    """What a control group had, and which values are the agent's own: what it wrote last, and what it was about to
    write. `container` is "" for a pod's own group."""

    key: str
    pod: str
    uid: str
    container: str
    path: str
    since: float
    original: Value
    written: Value | None = None
    intended: Value | None = None

    @property
    def knob(self) -> Knob:
        """What it is."""
        return knobs.knob_of(self.original)

    @property
    def container_id(self) -> str:
        """Of the container, "" for a pod's own group."""
        return self.key if self.knob == knobs.CPU_MAX else ""

    def is_ours(self, found: Value) -> bool:
        """Whether the agent itself made it so."""
        return found in (self.written, self.intended)


def key_of(container_id: str, uid: str, knob: Knob) -> str:
    """Under which what a group had is remembered: a container's quota by its id, what is of a pod by its uid."""
    return container_id or f"{uid}/{knob}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which deeds: the newest `limit` (1000 at most) of those that are so."""

    since: float | None = None
    until: float | None = None
    kind: str | None = None
    outcome: str | None = None
    namespace: str | None = None
    pod: str | None = None
    before_id: int | None = None
    limit: int = 100


def json_lines(write: Callable[[str], object]) -> Callable[[Deed], None]:
    """A `tell` that writes a line of JSON for each event. One that cannot be written is no reason not to act: the file
    has it."""

    def tell(deed: Deed) -> None:
        with contextlib.suppress(OSError, ValueError):
            write(json.dumps({"audit": deed.as_json()}, separators=(",", ":")) + "\n")

    return tell
