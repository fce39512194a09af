"""The agent's cycle: collect the node's state, analyze it, plan, act, save, and explain the decisions.

    collect ─▶ measure effects ─▶ analyze ─▶ plan ─▶ execute ─▶ update ledger ─▶ explanation

Cycles run one at a time, every `interval` seconds of the monotonic clock. The state that one cycle passes to the next
(rule counts, steps in flight) is also saved in the audit file, so a restarted agent continues from it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import msgspec

from agent.audit.database import AuditError
from agent.audit.log import Audit
from agent.clocks import Clocks, SavedClock
from agent.decision.analysis import Analysis, AnalyzerState, NodeEvent
from agent.decision.analyzer import analyze
from agent.decision.ledger import InFlight, Ledger, shifted, still_pending, with_steps
from agent.decision.plan import Plan
from agent.decision.plan_inputs import PlanInputs
from agent.decision.planner import plan, still_needed
from agent.decision.restoring import LoweredValues
from agent.executor.executor import Executor
from agent.executor.report import PlanReport
from agent.metrics.options import DecisionOptions
from agent.metrics.registry import Metrics
from agent.model import Policies, State, Step
from agent.policy.source import ActivePolicies, PolicySource
from watcher.core.review.clocks import AHEAD_S
from watcher.platform.repeated_errors import RepeatedErrors

log = logging.getLogger(__name__)

ANALYZER_STATE_KEY = "memory"
LEDGER_KEY = "ledger"
TIME_KEY = "time"
CLOCK_KEY = "clock"
INTERRUPTED_INTERVALS = 3.0
"""After this many intervals without a cycle, samples before and after the gap are not consecutive."""
JUMP_S = 5.0
"""Seconds: a larger difference between wall and monotonic clock means a clock change or a suspend."""
REFUSED_FOR_S = 600.0
"""Seconds before a knob that the kernel refused to lower is tried again."""
FRESH_S = 1.0
"""Seconds: before a step, a state younger than this is not read again; a rate over less time is inaccurate."""


class StateCollector(Protocol):
    """Reads the state of the node; `now` is in unix seconds."""

    async def collect(self, now: float) -> State: ...


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """The agent's node and own pod. `labels()` returns the node's labels, None while they are unknown; `own` has the
    uid of the agent's pod, or its namespace/name if the uid is unknown."""

    node: str
    labels: Callable[[], Mapping[str, str] | None] = dict
    own: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Cycle:
    """Result of one cycle: `time` in unix seconds, `seconds` its duration. `plan` is None until valid policies have
    been read."""

    number: int = 0
    time: float = 0.0
    seconds: float = 0.0
    state: State = field(default_factory=lambda: State(0.0))
    in_force: ActivePolicies = field(default_factory=ActivePolicies)
    policies: Policies = field(default_factory=Policies)
    plan: Plan | None = None
    reports: tuple[PlanReport, ...] = ()
    trouble: str = ""


class Agent:
    """Runs the cycles of one node. `interval` is in seconds; `emit_event(event)` writes an Event about the node."""

    def __init__(
        self,
        *,
        collector: StateCollector,
        policies: PolicySource,
        executor: Executor,
        audit: Audit,
        metrics: Metrics,
        options: DecisionOptions,
        surroundings: NodeIdentity,
        clocks: Clocks,
        interval: float,
        emit_event: Callable[[NodeEvent], Awaitable[None]] | None = None,
    ) -> None:
        self.surroundings = surroundings
        self.interval = interval
        self.last = Cycle()
        self.failures = 0
        self.skipped = 0
        self.seconds_of: Callable[[float], None] = lambda _: None
        self._collector = collector
        self._policies = policies
        self._executor = executor
        self._audit = audit
        self._metrics = metrics
        self._options = options
        self._clocks = clocks
        self._tell = emit_event
        self._ended = clocks.monotonic()
        self._last_times: tuple[float, float] | None = None
        self._verdicts: dict[str, str] = {}
        self._saved: dict[str, object] = {}
        self._memory = AnalyzerState()
        self._ledger: Ledger = ()
        self._refused: dict[tuple[str, str], float] = {}

    # --- life --------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run cycles until cancelled. A failed cycle is logged, and the next one runs at its time."""
        due = self._clocks.monotonic()
        errors = RepeatedErrors(log)
        while True:
            try:
                await self.cycle()
                errors.succeeded()
            except Exception as error:
                self.failures += 1
                errors.failed(error, "agent cycle failed; no further steps until the next cycle")
            due += self.interval
            late = self._clocks.monotonic() - due
            if late > 0:
                missed = int(late // self.interval) + 1
                self.skipped += missed
                due += missed * self.interval
            await asyncio.sleep(max(0.0, due - self._clocks.monotonic()))

    @property
    def age(self) -> float:
        """Seconds since the last successful cycle, or since the start."""
        return self._clocks.monotonic() - self._ended

    async def load_state(self) -> None:
        """Load the state that the previous process saved. Raises AuditError."""
        memory, older, ledger, time, clock = await asyncio.to_thread(
            lambda: (
                self._audit.load_value(ANALYZER_STATE_KEY, AnalyzerState),
                self._audit.load_value(ANALYZER_STATE_KEY, _OneCoolDown),
                self._audit.load_value(LEDGER_KEY, tuple[InFlight, ...]),
                self._audit.load_value(TIME_KEY, float),
                self._audit.load_value(CLOCK_KEY, SavedClock),
            )
        )
        self._memory = AnalyzerState() if memory is None else memory
        if older is not None and older.last_triggered is not None:
            self._memory = self._memory.cooling_since(older.last_triggered)
        self._ledger = () if ledger is None else ledger
        jump = None if clock is None else clock.jump(self._clocks.state())
        if jump is not None and abs(jump) > JUMP_S:
            self._shift(jump)
            time = None if time is None else time + jump
        now = self._clocks.wall()
        if (ahead := _latest(self._memory, self._ledger, time) - now) > AHEAD_S:
            log.warning(
                "the saved state is %.0f s ahead of the clock of this node: counts of samples start again, cool-downs "
                "and steps in flight count from now; check time synchronization",
                ahead,
            )
            time = None
        if time is None or now - time > INTERRUPTED_INTERVALS * self.interval:
            self._memory = _interrupted(self._memory)

    # --- one cycle ---------------------------------------------------------------------------------------------------

    async def cycle(self) -> Cycle:
        """Run one cycle and return its result. An AuditError ends up in `trouble`; other errors are raised."""
        began, now = self._clocks.monotonic(), self._clocks.wall()
        self._adjust_for_clock_jump(now, began)
        number = self.last.number + 1
        in_force = await self._policies.refresh()
        state = await self._collector.collect(now)
        cycle = Cycle(number, now, 0.0, state, in_force)
        try:
            await self._executor.measure_effects(state)
            if in_force.policies is not None:
                labels = self.surroundings.labels()
                cycle = replace(cycle, policies=in_force.policies.for_node(labels))
                cycle = await self._decide(cycle, unsure=not in_force.policies.all_known(labels))
        except AuditError as error:
            cycle = replace(cycle, trouble=f"{error}. {error.hint}".rstrip())
            if cycle.trouble != self.last.trouble:
                log.error("audit file error; no steps while it remains: %s", cycle.trouble)
        self._ended = self._clocks.monotonic()
        self.last = replace(cycle, seconds=self._ended - began)
        self.seconds_of(self.last.seconds)
        return self.last

    def _adjust_for_clock_jump(self, now: float, monotonic: float) -> None:
        """Shift pending deadlines if the wall clock jumped since the last cycle, so that they neither expire early nor
        last longer. `now` is in unix seconds, `monotonic` in seconds."""
        if self._last_times is not None:
            jump = now - self._last_times[0] - (monotonic - self._last_times[1])
            if abs(jump) > JUMP_S:
                self._shift(jump)
        self._last_times = now, monotonic

    def _shift(self, jump: float) -> None:
        log.warning(
            "wall clock jumped by %+.0f s (clock change or suspend); pending deadlines shifted accordingly", jump
        )
        self._ledger, self._memory = shifted(self._ledger, jump), self._memory.shifted(jump)

    async def _decide(self, cycle: Cycle, *, unsure: bool) -> Cycle:
        """Analyze, plan and carry out. `unsure`: the node's labels are unknown, so more policies may apply to the node.
        Raises AuditError."""
        originals = await asyncio.to_thread(self._audit.original_quotas)
        gentle = any(action.soft_limits for action in cycle.policies.actions.values())
        lowered = LoweredValues(originals, await self._executor.knobs(cycle.state, wanted=gentle))
        analysis = analyze(
            cycle.state,
            cycle.policies,
            self._memory,
            lowered=lowered,
            metrics=self._metrics,
        )
        if unsure:
            analysis = _with_nothing_undone(analysis, self._memory)
        self._ledger = still_pending(self._ledger, cycle.state, self._options)
        given = PlanInputs(
            state=cycle.state,
            metrics=self._metrics,
            options=self._options,
            lowered=lowered,
            ledger=self._ledger,
            own=self.surroundings.own,
            budget=await self._executor.budget(),
            refused_evictions=self._executor.refused_evictions(),
            refused_knobs=self._unturned(),
        )
        first = plan(analysis, given)
        report = await self._carry_out(first, given, cycle)
        reports = [report]
        if report.unavailable or report.refused_knobs:
            # The API refused a pod, or it was gone: select others in this cycle already. If the kernel refused a soft
            # limit, a step on another pod or a harder step replaces it.
            instead = replace(
                given,
                ledger=self._ledger,
                unavailable=report.unavailable,
                budget=await self._executor.budget(),
                refused_evictions=self._executor.refused_evictions(),
                refused_knobs=self._unturned(),
            )
            second = _without_scheduling(plan(analysis, instead))
            if second.steps:
                reports.append(await self._carry_out(second, instead, cycle))
        self._memory = analysis.memory
        await self._save_state(cycle.time)
        await self._emit_rule_events(analysis)
        return replace(cycle, plan=first, reports=tuple(reports))

    async def _carry_out(self, made: Plan, given: PlanInputs, cycle: Cycle) -> PlanReport:
        """Carry out a plan and add its steps to the ledger immediately, so that a later failure in this cycle cannot
        lead to a second eviction for the same load."""
        fresh, read_at = given, self._clocks.monotonic()

        async def needed(step: Step, done: Sequence[Step]) -> str:
            nonlocal fresh, read_at
            if self._clocks.monotonic() - read_at >= FRESH_S:
                fresh = replace(fresh, state=await self._collector.collect(self._clocks.wall()))
                read_at = self._clocks.monotonic()
            return still_needed(step, made, fresh, done)

        report = await self._executor.run(made, state=given.state, cycle=cycle.number, needed=needed)
        self._ledger = with_steps(self._ledger, report.booked, cycle.time, self._options)
        self._refused |= dict.fromkeys(report.refused_knobs, self._clocks.monotonic())
        self.failures += report.fault
        return report

    def _unturned(self) -> frozenset[tuple[str, str]]:
        """(uid, knob) pairs that the kernel recently refused to lower. Retrying them in every cycle would keep harder
        steps away from these pods."""
        now = self._clocks.monotonic()
        self._refused = {each: at for each, at in self._refused.items() if now - at < REFUSED_FOR_S}
        return frozenset(self._refused)

    async def _save_state(self, now: float) -> None:
        """Save changed state to the audit file; `now` in unix seconds. Raises AuditError."""
        kept: list[tuple[str, object]] = [
            (ANALYZER_STATE_KEY, self._memory),
            (LEDGER_KEY, self._ledger),
            (CLOCK_KEY, self._clocks.state()),
        ]
        if any(each.above or each.below for each in self._memory.rules.values()):
            kept.append((TIME_KEY, now))  # counts of consecutive samples are valid only without a gap
        changed = {name: value for name, value in kept if self._saved.get(name) != value}
        if changed:
            await asyncio.to_thread(self._write, changed)
            self._saved |= changed

    def _write(self, changed: Mapping[str, object]) -> None:
        with self._audit.batch():
            for name, value in changed.items():
                self._audit.save_value(name, value)

    async def _emit_rule_events(self, analysis: Analysis) -> None:
        """Write an Event for each rule that was newly triggered or restored; Crane repeats it in every cycle."""
        for event in analysis.events:
            if self._tell is not None and self._verdicts.get(event.rule) != event.reason:
                await self._tell(event)
        self._verdicts = {event.rule: event.reason for event in analysis.events}

    # --- explanation -------------------------------------------------------------------------------------------------

    def explanation(self) -> dict[str, Any]:
        """The last cycle as JSON values: findings of the rules, steps with reasons, and pods left unchanged."""
        cycle = self.last
        return {
            "node": self.surroundings.node,
            "cycle": cycle.number,
            "time": cycle.time,
            "age_s": round(self.age, 3),
            "stance": cycle.reports[0].level if cycle.reports else None,
            "why": cycle.reports[0].why if cycle.reports else "",
            "trouble": cycle.trouble or next((each.trouble for each in cycle.reports if each.trouble), ""),
            "policies": {
                "rules": [rule.key for rule in cycle.policies.rules],
                "known": cycle.in_force.policies is not None,
                "problems": [str(problem) for problem in cycle.in_force.problems],
                "notices": [str(notice) for notice in cycle.in_force.notices],
            },
            "sentences": list(cycle.plan.sentences) if cycle.plan else ["no policies were read yet: no action taken"],
            "plan": None if cycle.plan is None else cycle.plan.as_json(),
            "results": [result.as_json() for report in cycle.reports for result in report.results],
            "in_flight": msgspec.to_builtins(self._ledger),
            "missing": dict(sorted(cycle.state.missing.items())),
            "pods": len(cycle.state.pods),
        }


@dataclass(frozen=True, slots=True)
class _OneCoolDown:
    """The part of the saved analyzer state that older versions have in place of a time for each rule."""

    last_triggered: float | None = None


def _latest(memory: AnalyzerState, ledger: Ledger, saved_at: float | None) -> float:
    """The latest time in the saved state, in unix seconds; 0 without one."""
    times: Iterable[float | None] = (
        saved_at,
        *(time for rule in memory.rules.values() for time in (rule.since, rule.last_triggered)),
        *(each.since for each in ledger),
    )
    return max((time for time in times if time is not None), default=0.0)


def _interrupted(memory: AnalyzerState) -> AnalyzerState:
    """The analyzer state after a pause: counts of consecutive samples are reset, triggered rules stay triggered."""
    return replace(memory, rules={key: replace(each, above=0, below=0) for key, each in memory.rules.items()})


def _with_nothing_undone(analysis: Analysis, before: AnalyzerState) -> Analysis:
    """While the node's labels are unknown (at the start, or without the API), no policy counts as removed: lowered
    values stay lowered, and the taint stays."""
    rules = {**before.rules, **analysis.memory.rules}
    keeps_away = True if analysis.keep_away else before.keeps_away
    memory = replace(analysis.memory, rules=rules, keeps_away=keeps_away)
    return replace(analysis, released=(), unheld=(), keep_away=analysis.keep_away or None, memory=memory)


def _without_scheduling(made: Plan) -> Plan:
    return replace(made, steps=tuple(step for step in made.steps if step.kind != "scheduling"))
