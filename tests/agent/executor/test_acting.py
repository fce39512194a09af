"""From policies to control groups: the steps that the planner plans for policies of users are carried out."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from agent.decision.analysis import AnalyzerState
from agent.decision.analyzer import analyze
from agent.decision.ledger import Ledger, still_pending, with_steps
from agent.decision.plan import Plan
from agent.decision.plan_inputs import PlanInputs
from agent.decision.planner import plan, still_needed
from agent.decision.restoring import LoweredValues
from agent.executor.report import PlanReport, StepOutcome
from agent.metrics.options import DecisionOptions
from agent.metrics.registry import Metrics
from agent.model import MetricSample, Policies, State, Step
from agent.policy.policy_set import read_texts
from agent.qos import QosClass
from tests.agent.executor.node import FakeNode
from tests.agent.policy.writing import a_rule, an_object, node_qos, text_of, throttling

METRICS, OPTIONS = Metrics(), DecisionOptions(settle=0.0)
BEST_EFFORT = {"matchExpressions": [{"scopeName": "QOSClass", "operator": "In", "values": ["BestEffort"]}]}


def policies(rule: dict[str, object] | None = None) -> Policies:
    """Policies that throttle BestEffort pods while the node uses more than 4 cores."""
    allowed = an_object("PodQOS", "be", allowedActions=["throttle"], scopeSelector=BEST_EFFORT)
    found = read_texts({"a.yaml": text_of(node_qos(rule or a_rule()), throttling(), allowed)}, metrics=METRICS)
    assert not found.problems
    return found.policies.for_node({})


@pytest.fixture
def node(local_node: FakeNode) -> FakeNode:
    local_node.add(0, 1, 2, qos=QosClass.BEST_EFFORT, cpu=1.0)
    local_node.add(3, qos=QosClass.GUARANTEED, cpu=3.0)
    return local_node


class Agent:
    """The cycle of an agent without its clock."""

    def __init__(self, node: FakeNode) -> None:
        self.node = node
        self.memory = AnalyzerState()
        self.ledger: Ledger = ()

    def state(self, used: float) -> State:
        """The state of a node with this usage in millicores; quotas are those of its control groups."""
        pods = []
        for number, pod in sorted(self.node.pods.items()):
            quota = self.node.quota(number).split()[0]
            container = replace(pod.containers[0], quota=None if quota == "max" else int(quota))
            pods.append(replace(pod, containers=(container,)))
        series = (MetricSample(used, self.node.now),)
        return State(self.node.now, {"cpu_total_usage": series}, tuple(pods))

    def cycle(self, policies: Policies, *, used: float, then: float | None = None) -> tuple[Plan, PlanReport]:
        """One cycle and its report. `then` is the usage in millicores when it is read again before each step."""
        state = self.state(used)
        self.ledger = still_pending(self.ledger, state, OPTIONS)
        lowered = LoweredValues(self.node.audit.original_quotas())
        analysis = analyze(state, policies, self.memory, lowered=lowered)
        self.memory = analysis.memory
        given = PlanInputs(state, METRICS, OPTIONS, lowered, self.ledger)
        made = plan(analysis, given)
        again = replace(given, state=self.state(used if then is None else then))

        async def needed(step: Step, done: Sequence[Step]) -> str:
            return still_needed(step, made, again, done)

        report = self.node.acting(lambda executor: executor.run(made, state=state, cycle=1, needed=needed))
        self.ledger = with_steps(self.ledger, report.booked, self.node.now, OPTIONS)
        self.node.now += 10.0
        return made, report


def quotas(node: FakeNode) -> list[str]:
    return [node.quota(number).split()[0] for number in range(4)]


def test_above_the_watermark_no_more_pods_than_needed_are_throttled_in_order(node: FakeNode):
    """4.15 cores of 4: 165 millicores have to be released with the excess, 100 from each of two of three pods."""
    made, report = Agent(node).cycle(policies(), used=4150.0)
    assert [StepOutcome.DONE, StepOutcome.DONE] == [
        each.fate for each in report.results if each.step.kind == "throttle"
    ]
    assert 2 == sum(quota == "90000" for quota in quotas(node))
    assert "max" == quotas(node)[3]
    assert 2 == len(node.audit.original_quotas())
    assert made.sentences


def test_a_usage_that_fell_before_the_step_needs_no_step(node: FakeNode):
    _, report = Agent(node).cycle(policies(), used=4150.0, then=3990.0)
    assert {StepOutcome.NOT_NEEDED} == {each.fate for each in report.results if each.step.kind == "throttle"}
    assert ["max"] * 4 == quotas(node)


def test_a_removed_policy_restores_all_values(node: FakeNode):
    agent = Agent(node)
    agent.cycle(policies(), used=4500.0)
    assert "90000" in quotas(node)
    for _ in range(3):
        agent.cycle(Policies(), used=4500.0)
    assert ["max"] * 4 == quotas(node)
    assert not node.audit.original_quotas()


def test_a_rule_with_strategy_preview_changes_nothing(node: FakeNode):
    made, report = Agent(node).cycle(policies(a_rule(strategy="Preview")), used=4500.0)
    assert [step.kind for step in made.preview if step.kind == "throttle"]
    assert not report.booked
    assert ["max"] * 4 == quotas(node)
