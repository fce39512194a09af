"""Values of the audit log: entries, outcomes, stored original values, filters, and their JSON lines."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from agent.cgroups import base
from agent.cgroups.base import Knob, Value
from agent.model import Released


class AuditOutcome(StrEnum):
    """Outcome of an audit entry."""

    BEGUN = "begun"
    """Unknown: the action is in progress, or the process ended before it finished."""
    DONE = "done"
    GONE = "gone"
    """The pod or container no longer existed, so its resources are released."""
    FAILED = "failed"
    PROTECTED = "protected"
    """A PodDisruptionBudget refused the eviction."""
    UNANSWERED = "unanswered"
    """The API did not respond; the action may have been carried out."""
    FOREIGN = "foreign"
    """Another program had changed the value; it was left unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """An audit entry: one action that is planned, in progress or finished.

    time, finished, measured_at  unix seconds
    planned, measured, used      by resource, in millicores and bytes: the planned release, the release measured in a
                                 later cycle (negative if usage grew), and the usage before the action
    before, after                the changed value ({"quota": 50000, "period": 100000} in microseconds; null: unlimited)
    """

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
    outcome: AuditOutcome = AuditOutcome.BEGUN
    message: str = ""
    finished: float | None = None
    measured: Released | None = None
    measured_at: float | None = None
    id: int = 0

    @property
    def namespace(self) -> str:
        """Namespace of the pod; "" for an entry without a pod."""
        return self.pod.partition("/")[0]

    def as_json(self) -> dict[str, Any]:
        """The entry in the format of GET /audit and of the lines on standard output."""
        return asdict(self)


_MAPS = ("planned", "used", "before", "after", "measured")


@dataclass(frozen=True, slots=True)
class StoredOriginal:
    """Original value of a control group, with the value that the agent last wrote (`written`) and the value that it was
    about to write (`intended`). `container` is "" for the pod's own group; `since` is in unix seconds."""

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
        """The knob of the value: cpu.max, cpu.weight or memory.high."""
        return base.knob_of(self.original)

    @property
    def container_id(self) -> str:
        """Id of the container; "" for the pod's own group."""
        return self.key if self.knob == base.CPU_MAX else ""

    def written_by_agent(self, found: Value) -> bool:
        """Whether the agent wrote, or may have written, the value `found`. The burst of a quota does not count: the
        agent may have been ended between writing the burst and the quota."""
        if base.same_quota(found, self.original) and found != self.original:
            return True
        return any(base.same_quota(found, each) for each in (self.written, self.intended))


def key_of(container_id: str, uid: str, knob: Knob) -> str:
    """Key of an original value: the container id for a quota, uid/knob for a value of the pod's own group."""
    return container_id or f"{uid}/{knob}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Selects the newest `limit` (at most 1000) audit entries that match all given fields; times in unix seconds."""

    since: float | None = None
    until: float | None = None
    kind: str | None = None
    outcome: str | None = None
    namespace: str | None = None
    pod: str | None = None
    before_id: int | None = None
    limit: int = 100


def json_lines(write: Callable[[str], object]) -> Callable[[AuditEntry], None]:
    """Return a `tell` callback that writes each entry as a line of JSON. Write errors are ignored: the entry is in the
    audit file."""

    def tell(deed: AuditEntry) -> None:
        with contextlib.suppress(OSError, ValueError):
            write(json.dumps({"audit": deed.as_json()}, separators=(",", ":")) + "\n")

    return tell
