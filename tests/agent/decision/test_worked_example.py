"""The example of docs/concepts/agent.md is computed again."""

from __future__ import annotations

import re

from agent.decision.analysis import AnalyzerState
from agent.decision.analyzer import analyze
from agent.decision.ledger import Ledger, still_pending, with_steps
from agent.decision.plan import Plan
from agent.decision.plan_inputs import PlanInputs
from agent.decision.planner import plan
from agent.decision.restoring import LoweredValues
from agent.metrics.options import DecisionOptions
from agent.metrics.registry import Metrics
from agent.model import AvoidanceAction, CpuThrottle, Original, PodQos, PodScope, PodState, Policies, Rule, State
from agent.qos import QosClass
from tests.agent.scenes import CPU, running, state
from tests.real.parts import REPOSITORY

POLICIES = Policies(
    (
        Rule(
            "cpu",
            "cpu-high",
            CPU,
            6_400.0,
            "throttle",
            restore_watermark=6_000.0,
            avoidance_threshold=2,
            restore_threshold=3,
        ),
    ),
    {"throttle": AvoidanceAction("throttle", 60.0, CpuThrottle(min_ratio=10, step_ratio=30))},
    (PodQos("best-effort", frozenset({"throttle"}), scopes=(PodScope("QOSClass", "In", ("BestEffort",)),)),),
)
OPTIONS = DecisionOptions()


def pods(*quotas: int | None, busy: bool = True) -> list[PodState]:
    a, b = quotas
    return [
        running("batch-a", 2.0 if a is None else a / 100_000, quota=a, throttled=a is not None, start_time=100.0),
        running("batch-b", 1.2 if b is None else b / 100_000, quota=b, throttled=b is not None, start_time=300.0),
        running("report", 0.9, priority=100, start_time=500.0),
        running("web", 2.8 if busy else 1.2, qos=QosClass.BURSTABLE, start_time=50.0),
    ]


def node(running_pods: list[PodState], time: float) -> State:
    used = sum(pod.cpu or 0.0 for pod in running_pods) * 1_000.0 + 300.0
    return state(running_pods, time, **{CPU: used, "cpu_core_numbers": 8.0})


def decided() -> list[Plan]:
    """Two samples above, one a cycle after throttling, and three after the cool-down with little load."""
    memory, found = AnalyzerState(), []
    ledger: Ledger = ()
    originals: dict[str, Original] = {}
    quiet = node(pods(140_000, 84_000, busy=False), 100.0)
    states = [
        node(pods(None, None), 0.0),
        node(pods(None, None), 10.0),
        node(pods(140_000, 84_000), 20.0),
        quiet,
        State(110.0, quiet.metrics, quiet.pods),
        State(120.0, quiet.metrics, quiet.pods),
    ]
    for seen in states:
        ledger = still_pending(ledger, seen, OPTIONS)
        analysis = analyze(seen, POLICIES, memory, lowered=LoweredValues(originals))
        made = plan(analysis, PlanInputs(seen, Metrics(), OPTIONS, lowered=LoweredValues(originals), ledger=ledger))
        found.append(made)
        memory, ledger = analysis.memory, with_steps(ledger, made.steps, seen.time, OPTIONS)
        if any(step.kind == "throttle" for step in made.steps):
            originals = {"batch-a-main": Original(None), "batch-b-main": Original(None)}
    return found


def test_the_page_has_the_decisions():
    page = (REPOSITORY / "docs" / "concepts" / "agent.md").read_text()
    shown = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    plans = decided()
    reported = ["".join(f"{line}\n" for line in plans[place].sentences) for place in (1, 2, 5)]
    assert reported == shown[: len(reported)]


def test_the_page_names_each_metric():
    page = (REPOSITORY / "docs" / "concepts" / "agent.md").read_text()
    short = {re.sub(r"_(some|full)_avg\d+$", "", name) for name in Metrics()}
    families = {"psi_cpu": "psi_cpu_", "psi_memory": "psi_memory_", "psi_io": "psi_io_"}
    missing = [name for name in sorted(short) if families.get(name, f"`{name}`") not in page]
    assert missing == []
