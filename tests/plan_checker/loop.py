"""A closed loop: the agent decides, the steps change a simulated node, and the checker examines each plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from agent.decision.analysis import AnalyzerState
from agent.decision.analyzer import analyze
from agent.decision.eviction_limits import Budget, EvictionLimits, EvictionRecord
from agent.decision.ledger import Ledger, still_pending, with_steps
from agent.decision.plan import Plan
from agent.decision.plan_inputs import PlanInputs
from agent.decision.planner import plan
from agent.decision.restoring import LoweredValues
from agent.metrics.options import DecisionOptions
from agent.metrics.registry import Metrics
from agent.metrics.trigger_only import triggering
from agent.model import Eviction, Original, PageCacheReclaim, QuotaChange, SchedulingChange, Step
from tests.plan_checker.arithmetic import QUEUE
from tests.plan_checker.checker import Circumstances, PlanChecker
from tests.plan_checker.scenarios import LOADED, UNLOADED, Scenario, scenario

OPTIONS = DecisionOptions()
METRICS = Metrics([triggering(QUEUE, throttleable=True, lag_seconds=60.0)])
REFUSED = "refused by the API"
REFUSED_SECONDS = 60.0


@dataclass(slots=True)
class CheckedLoop:
    """The results of scenarios: numbers of plans and steps, and the findings."""

    plans: int = 0
    steps: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    def run(self, seed: str, seen_as: Callable[[Plan], Plan] = lambda made: made) -> None:
        """Run one scenario. `seen_as` changes a plan for the checker only, to test the checker."""
        _Run(scenario(seed), self, seed, seen_as).run()


@dataclass(slots=True)
class _Run:
    scenario: Scenario
    results: CheckedLoop
    seed: str
    seen_as: Callable[[Plan], Plan]
    checker: PlanChecker = field(init=False)
    now: float = 1_000_000.0
    memory: AnalyzerState = field(default_factory=AnalyzerState)
    ledger: Ledger = ()
    originals: dict[str, Original] = field(default_factory=dict)
    past: list[EvictionRecord] = field(default_factory=list)
    refused: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.checker = PlanChecker(self.scenario.policies)

    def run(self) -> None:
        for cycle in range(LOADED + UNLOADED):
            self._cycle(cycle)
            self.now += self.scenario.interval if cycle < LOADED + UNLOADED // 2 else 100.0
        state = self.scenario.state(self.now, LOADED + UNLOADED)
        self._report("end", self.checker.at_the_end(state, self.originals))

    def _cycle(self, cycle: int) -> None:
        state = self.scenario.state(self.now, cycle)
        self.ledger = still_pending(self.ledger, state, OPTIONS)
        analysis = analyze(
            state, self.scenario.policies, self.memory, lowered=LoweredValues(self.originals), metrics=METRICS
        )
        self.memory = analysis.memory
        self.refused = {uid: at for uid, at in self.refused.items() if self.now - at < REFUSED_SECONDS}
        self.past = [each for each in self.past if self.now - each.time < 600.0]
        given = PlanInputs(
            state,
            METRICS,
            OPTIONS,
            lowered=LoweredValues(dict(self.originals)),
            ledger=self.ledger,
            budget=Budget(EvictionLimits(), tuple(self.past)),
            refused_evictions=dict.fromkeys(self.refused, REFUSED),
        )
        self.checker.begin(state, given.lowered.originals)
        made = plan(analysis, given)
        self._examine(cycle, made, given)
        unavailable = self._carry_out(made.steps)
        if unavailable:
            again = replace(
                given,
                ledger=self.ledger,
                unavailable=unavailable,
                budget=Budget(EvictionLimits(), tuple(self.past)),
                refused_evictions=dict.fromkeys(self.refused, REFUSED),
            )
            second = plan(analysis, again)
            second = replace(
                second, steps=tuple(each for each in second.steps if not isinstance(each.change, SchedulingChange))
            )
            self._examine(cycle, second, again, is_second=True)
            self._carry_out(second.steps)
        self.checker.end()

    def _examine(self, cycle: int, made: Plan, given: PlanInputs, *, is_second: bool = False) -> None:
        self.results.plans += 1
        self.results.steps.update(step.kind for step in made.steps)
        around = Circumstances(
            frozenset(given.unavailable), frozenset(given.refused_evictions), tuple(self.past), is_second
        )
        self._report(f"cycle {cycle}{' again' if is_second else ''}", self.checker.check(self.seen_as(made), around))

    def _report(self, where: str, findings: Iterable[str]) -> None:
        self.results.findings += [f"{self.seed}, {where}: {finding}" for finding in findings]

    def _carry_out(self, steps: Iterable[Step]) -> dict[str, str]:
        """Change the node; returns the pods whose eviction the API refused."""
        pods = {pod.facts.uid: pod for pod in self.scenario.pods}
        done: list[Step] = []
        unavailable: dict[str, str] = {}
        for step in steps:
            if isinstance(step.change, Eviction):
                is_refused = self.scenario.source.random() < self.scenario.refuses
                self.past.append(EvictionRecord(self.now, step.pod.partition("/")[0], step.change.owner, is_refused))
                if is_refused:
                    unavailable[step.uid], self.refused[step.uid] = REFUSED, self.now
                    continue
                pods[step.uid].gone = self.now + pods[step.uid].takes
            elif isinstance(step.change, QuotaChange):
                container = next(each for each in pods[step.uid].containers if each.id == step.change.container_id)
                self.originals.setdefault(container.id, Original(container.quota))
                container.quota = step.change.after
                if step.change.after == self.originals[container.id].quota:
                    del self.originals[container.id]
            elif isinstance(step.change, PageCacheReclaim):
                pods[step.uid].memory -= min(step.change.bytes, pods[step.uid].memory // 4)
            done.append(step)
        self.ledger = with_steps(self.ledger, done, self.now, OPTIONS)
        self.checker.carried_out(done)
        return unavailable
