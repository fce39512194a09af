"""What is to be done this cycle, in order, and why: what the planner hands to the executor and `/explain` shows.

    load-watcher agent ─▶ analyzer: which rules hold, on which pods ─▶ planner: `Plan` ─▶ executor carries out `steps`

Everything is plain data (str, float, None, tuples and dicts of them), so that msgspec writes it as JSON as it is. A gap
that cannot be known is None, never infinity.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from agent.model import Released, Step

StageKind = Literal["throttle", "reclaim", "hold", "evict", "restore"]


class Verdict(StrEnum):
    """What a rule says after this cycle's sample."""

    QUIET = "quiet"
    """Not above, and nothing to restore."""
    COUNTING = "counting"
    """Above, but not often enough yet."""
    TRIGGERED = "triggered"
    HOLDING = "holding"
    """Was triggered, is not above now, and may not restore yet."""
    RESTORED = "restored"
    """Below for long enough: what was throttled may come back."""
    MISSING = "missing"
    """There is no sample: nothing is counted and nothing done."""


@dataclass(frozen=True, slots=True)
class RuleFinding:
    """One rule, held against this cycle's sample. `rule` is policy.rule; `sample` the highest of the series that the
    rule selects, and `series` that one's labels. The counts are those after this sample."""

    rule: str
    metric: str
    action: str
    verdict: Verdict
    watermark: float
    restore_watermark: float
    sample: float | None = None
    series: Mapping[str, str] = field(default_factory=dict)
    above: int = 0
    avoidance_threshold: int = 1
    below: int = 0
    restore_threshold: int = 1
    preview: bool = False
    blind: bool = False
    """Triggered because its metric is missing and it says onMissing: all."""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One pod that a stage looked at, in its order. `keys` are its sort keys by name, first to last; `released` is what
    acting on it would take off the node (None where its usage is not known)."""

    pod: str
    uid: str
    keys: Mapping[str, float | str | None]
    released: Released | None
    chosen: bool
    why: str


class Mode(StrEnum):
    """How a stage chose its pods."""

    PRECISE = "precise"
    """In order until the gap is closed."""
    NOT_QUANTIFIED = "not quantified"
    """All of them: what a metric of the stage needs cannot be computed."""
    MISSED = "usage missed"
    """All of them: the usage that a rule names is missing, and the rule says onMissing: all."""
    ONE = "one at a time"
    """The first one: what it lets come back cannot be computed, and is awaited before the next."""
    NOTHING = "nothing"
    """None: no metric of the stage knows how."""
    WAITING = "waiting"
    """None yet: throttling comes first, or somebody was let go a moment ago, and the effect is awaited."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One action for one metric. `gap` and `gap_after` are in the unit of what is released (millicores, bytes), before
    and after the chosen pods; above 0 is what is still to be released (or, restoring, may still come back). None where
    it is not known. `in_flight` is what earlier steps will still release (or bring back), already taken off `gap`."""

    kind: StageKind
    metric: str
    mode: Mode
    watermark: float
    used: float | None = None
    in_flight: float = 0.0
    gap: float | None = None
    gap_after: float | None = None
    candidates: tuple[Candidate, ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """`steps` are carried out in order: scheduling, throttling, reclaiming, holding back,
    eviction, restoring. `preview` are those
    that the rules with strategy Preview would want on their own; nobody carries them out. `scheduling_disabled` is what
    was last decided about new pods (None before the first decision), for who finds that the last step did not get
    through. `left_alone` says of every pod that may not be touched why (namespace/name -> reason); `sentences` tell the
    whole to a person."""

    time: float
    steps: tuple[Step, ...] = ()
    preview: tuple[Step, ...] = ()
    rules: tuple[RuleFinding, ...] = ()
    stages: tuple[Stage, ...] = ()
    preview_stages: tuple[Stage, ...] = ()
    scheduling_disabled: bool | None = None
    left_alone: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    sentences: tuple[str, ...] = ()
