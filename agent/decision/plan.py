"""The plan of a cycle: its steps in order with their reasons. The planner passes it to the executor, and GET /explain
returns it.

    analyzer: rules and their pods ─▶ planner: `Plan` ─▶ executor: carries out `steps`

All fields are plain data (str, float, None, and tuples and dicts of them). An unknown gap is None, never infinity.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import msgspec

from agent.model import Released, StageKind, Step


class RuleVerdict(StrEnum):
    """Verdict on a rule after this cycle's sample."""

    QUIET = "quiet"
    """The sample is not above the watermark, and nothing has to be restored."""
    COUNTING = "counting"
    """The sample is above the watermark, but too few consecutive ones are yet."""
    TRIGGERED = "triggered"
    HOLDING = "holding"
    """The rule was triggered, the sample is not above the watermark, and restoring is not allowed yet."""
    RESTORED = "restored"
    """Enough samples are at or below the restore watermark: throttled pods may be restored."""
    MISSING = "missing"
    """There is no sample: the counts are unchanged and no action is taken."""


@dataclass(frozen=True, slots=True)
class RuleFinding:
    """One rule evaluated against this cycle's sample. `rule` is policy.rule. `sample` is the highest of the series that
    the rule selects, in the metric's unit, and `series` its labels. `above` and `below` are the counts after this
    sample."""

    rule: str
    metric: str
    action: str
    verdict: RuleVerdict
    watermark: float
    restore_watermark: float
    sample: float | None
    series: Mapping[str, str]
    above: int
    avoidance_threshold: int
    below: int
    restore_threshold: int
    preview: bool
    blind: bool
    """The metric is missing and counts as above, because the rule has onMissing: all."""
    text: str = ""


@dataclass(frozen=True, slots=True)
class StageCandidate:
    """One pod that a stage considered, in order. `keys` are its sort keys by name, first to last; `released` is what
    acting on it releases, in millicores and bytes (None if its usage is unknown)."""

    pod: str
    uid: str
    keys: Mapping[str, float | str | None]
    released: Released | None
    chosen: bool
    why: str


class Mode(StrEnum):
    """Method by which a stage chooses its pods."""

    PRECISE = "precise"
    """Pods in order until the gap is closed."""
    NOT_QUANTIFIED = "not quantified"
    """All pods that rules select for the metric: its gap cannot be computed."""
    MISSED = "usage missed"
    """All pods that rules select for the metric: it is missing, and a rule has onMissing: all."""
    ASSUMED = "growth assumed"
    """The pods that fit into the gap if each doubles its memory, at least one: the effect of restoring them cannot be
    computed, and is observed before the next pods."""
    NOTHING = "nothing"
    """No pod: the action cannot reduce the metric, or a value needed to compute the gap is missing."""
    WAITING = "waiting"
    """No pod yet: throttling has to take effect first, or a memory.high was restored recently."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One action for one metric.

    watermark, used  in the metric's unit
    in_flight        pending release of earlier steps (for restore: increase), already subtracted from `gap`
    gap, gap_after   before and after the chosen pods, in millicores or bytes; above 0, the amount still to be released
                     (for restore: that may still be given back). None if unknown
    """

    kind: StageKind
    metric: str
    mode: Mode
    watermark: float
    used: float | None = None
    in_flight: float = 0.0
    gap: float | None = None
    gap_after: float | None = None
    candidates: tuple[StageCandidate, ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True)
class PodLeftAlone:
    """A pod that must not be changed; `pod` is namespace/name."""

    pod: str
    uid: str
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of one cycle; `time` in unix seconds.

    steps                in the order of execution: scheduling, throttle, reclaim, memory.high, evict, restore
    preview              steps that the rules with strategy Preview alone would cause; never carried out
    scheduling_disabled  last decision about new pods (None before the first), to retry a failed scheduling step
    left_alone           pods that must not be changed
    sentences            the plan as text for operators
    """

    time: float
    steps: tuple[Step, ...] = ()
    preview: tuple[Step, ...] = ()
    rules: tuple[RuleFinding, ...] = ()
    stages: tuple[Stage, ...] = ()
    preview_stages: tuple[Stage, ...] = ()
    scheduling_disabled: bool | None = None
    left_alone: tuple[PodLeftAlone, ...] = ()
    warnings: tuple[str, ...] = ()
    sentences: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The plan in the format of GET /explain."""
        steps = {name: [step.as_json() for step in getattr(self, name)] for name in ("steps", "preview")}
        rest: dict[str, Any] = msgspec.to_builtins(replace(self, steps=(), preview=()))
        return rest | steps
