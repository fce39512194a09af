"""A computed node: pods that want CPU and get it within their quotas, and the agent's decisions, which are carried out
cycle after cycle. Nothing is measured, so the result depends only on the decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from agent.decision.analysis import AnalyzerState
from agent.decision.analyzer import analyze
from agent.decision.ledger import Ledger, still_pending, with_steps
from agent.decision.plan import Plan
from agent.decision.plan_inputs import PlanInputs
from agent.decision.planner import plan
from agent.decision.restoring import LoweredValues
from agent.metrics.options import DecisionOptions
from agent.metrics.pod_actions import is_original
from agent.metrics.registry import Metrics
from agent.model import Eviction, MetricSample, Original, PodState, Policies, QuotaChange, State
from tests.agent.scenes import CPU, MEMORY, running

INTERVAL = 10.0
NODE_CORES = 16.0


@dataclass
class Pod:
    """`cpu` is the usage in cores without a quota; `ends` is the time of its end after an eviction."""

    name: str
    cpu: float
    memory: int = 0
    quota: int | None = None
    takes: float = 60.0
    """Seconds from the eviction to the end."""
    ends: float | None = None
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def uses(self) -> float:
        """Cores."""
        return self.cpu if self.quota is None else min(self.cpu, self.quota / 100_000)

    def state(self, uses: float) -> PodState:
        """The pod as the kernel and the API server report it."""
        throttled = self.quota is not None and self.cpu > self.quota / 100_000
        return running(
            self.name,
            uses,
            quota=self.quota,
            throttled=throttled,
            memory=self.memory,
            terminating=self.ends is not None,
            **self.values,
        )


@dataclass
class Node:
    """`lags`: the usage is that before the steps of the last cycle."""

    pods: list[Pod]
    policies: Policies
    options: DecisionOptions = field(default_factory=DecisionOptions)
    other_millicores: Callable[[float], float] = lambda _: 0.0
    lags: bool = False
    now: float = 1_000_000.0
    memory: AnalyzerState = field(default_factory=AnalyzerState)
    ledger: Ledger = ()
    originals: dict[str, Original] = field(default_factory=dict)
    plans: list[Plan] = field(default_factory=list)
    shown: dict[str, float] = field(default_factory=dict)
    metrics: Metrics = field(default_factory=Metrics)

    def cycle(self) -> Plan:
        """Run a cycle, and advance the clock by the interval."""
        self.pods = [pod for pod in self.pods if pod.ends is None or pod.ends > self.now]
        state = self.state()
        self.ledger = still_pending(self.ledger, state, self.options)
        analysis = analyze(state, self.policies, self.memory, lowered=LoweredValues(self.originals))
        self.memory = analysis.memory
        given = PlanInputs(state, self.metrics, self.options, lowered=LoweredValues(self.originals), ledger=self.ledger)
        made = plan(analysis, given)
        self.plans.append(made)
        self.apply(made)
        self.now += INTERVAL
        return made

    def state(self) -> State:
        now = {pod.name: pod.uses for pod in self.pods}
        uses = {name: self.shown.get(name, value) for name, value in now.items()} if self.lags else now
        self.shown = now
        metrics = {
            CPU: sum(uses.values()) * 1_000.0 + self.other_millicores(self.now),
            MEMORY: float(sum(pod.memory for pod in self.pods)),
            "cpu_core_numbers": NODE_CORES,
        }
        return State(
            self.now,
            {name: (MetricSample(value, self.now),) for name, value in metrics.items()},
            tuple(pod.state(uses[pod.name]) for pod in self.pods),
        )

    def apply(self, made: Plan) -> None:
        pods = {f"default/{pod.name}": pod for pod in self.pods}
        for step in made.steps:
            if isinstance(step.change, Eviction):
                pods[step.pod].ends = self.now + pods[step.pod].takes
            elif isinstance(step.change, QuotaChange):
                pod = pods[step.pod]
                assert pod.quota == step.change.before
                self.originals.setdefault(step.change.container_id, Original(step.change.before))
                pod.quota = step.change.after
        self.ledger = with_steps(self.ledger, made.steps, self.now, self.options)
        for pod in self.pods:
            container = pod.state(pod.uses).containers[0]
            if is_original(container, self.originals.get(container.id)):
                self.originals.pop(container.id, None)

    def run(self, cycles: int) -> None:
        for _ in range(cycles):
            self.cycle()

    def quota_changes(self) -> int:
        """Number of steps on quotas in all cycles."""
        return sum(isinstance(step.change, QuotaChange) for made in self.plans for step in made.steps)

    @property
    def usage(self) -> float:
        """Millicores of the node now."""
        return sum(pod.uses for pod in self.pods) * 1_000.0 + self.other_millicores(self.now)


def directions(plans: Iterable[Plan]) -> list[str]:
    """ "throttle" or "restore" for each cycle that changed a quota, without repetitions."""
    found: list[str] = []
    for made in plans:
        kinds = {step.kind for step in made.steps if isinstance(step.change, QuotaChange)}
        assert len(kinds) <= 1, "one cycle both throttles and restores"
        found += [kind for kind in kinds if not found or found[-1] != kind]
    return found
