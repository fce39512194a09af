"""Plans of the agent keep the rules of docs/concepts/agent.md, and the checker notices plans that break them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from agent.decision.plan import Plan, RuleVerdict
from agent.model import Change, Eviction, QuotaChange, SchedulingChange, Step
from tests.plan_checker.__main__ import main
from tests.plan_checker.loop import CheckedLoop


@pytest.mark.slow
def test_two_thousand_plans_keep_the_rules(capsys: pytest.CaptureFixture[str]):
    status = main(["--plans", "2000", "--seed", "test"])
    assert (status, capsys.readouterr().out.splitlines()[-1].rpartition(" s: ")[2]) == (0, "0 findings")


def without_first(kind: str) -> Callable[[Plan], Plan]:
    def change(made: Plan) -> Plan:
        first = next((each for each in made.steps if each.kind == kind), None)
        return replace(made, steps=tuple(each for each in made.steps if each is not first))

    return change


def with_each(kind: type[Change], **values: Any) -> Callable[[Plan], Plan]:
    """Set these fields of each step whose change is of this kind; a callable gets the change."""

    def changed(step: Step) -> Step:
        if not isinstance(step.change, kind):
            return step
        new = {name: value(step.change) if callable(value) else value for name, value in values.items()}
        of_step = {name: value for name, value in new.items() if name in ("metric", "released")}
        of_change = {name: value for name, value in new.items() if name not in of_step}
        return replace(step, change=replace(step.change, **of_change), **of_step)

    return lambda made: replace(made, steps=tuple(changed(each) for each in made.steps))


def eviction(pod: str, uid: str, metric: str) -> Step:
    return Step("evict", Eviction(30.0), pod, uid, metric)


def with_all_candidates(made: Plan) -> Plan:
    """Evict every pod that was considered, as for a metric that cannot be quantified."""
    evicted = {each.uid for each in made.steps if isinstance(each.change, Eviction)}
    more = {
        each.uid: eviction(each.pod, each.uid, stage.metric)
        for stage in made.stages
        for each in stage.candidates
        if stage.kind == "evict" and each.uid not in evicted
    }
    return replace(made, steps=(*made.steps, *more.values()))


def with_protected(made: Plan) -> Plan:
    more = [eviction(each.pod, each.uid, "cpu_total_usage") for each in made.left_alone]
    return replace(made, steps=(*made.steps, *more))


def twice(made: Plan) -> Plan:
    return replace(made, steps=(*made.steps, *(each for each in made.steps if isinstance(each.change, QuotaChange))))


def without_scheduling(made: Plan) -> Plan:
    return replace(made, steps=tuple(each for each in made.steps if not isinstance(each.change, SchedulingChange)))


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        pytest.param(without_first("evict"), "leaves a gap of", id="a victim too few"),
        pytest.param(without_first("throttle"), "throttle for cpu_total_usage", id="a throttled pod too few"),
        pytest.param(without_first("restore"), "stays lowered although", id="a pod is not restored"),
        pytest.param(with_all_candidates, "the gap is closed already", id="victims too many"),
        pytest.param(with_all_candidates, "exceeds the limits", id="more victims than the limits allow"),
        pytest.param(with_protected, ": critical", id="a critical pod"),
        pytest.param(with_protected, ": static", id="a static pod"),
        pytest.param(twice, "is changed 2 times", id="two steps on a container"),
        pytest.param(without_scheduling, "the taint is", id="the taint does not follow the rules"),
        pytest.param(
            with_each(QuotaChange, after=lambda change: change.after and max(1, change.after // 2)),
            "expected (",
            id="a quota below its floor",
        ),
        pytest.param(
            with_each(QuotaChange, after=None),
            "cores in one step, at most",
            id="the step size is not kept",
        ),
        pytest.param(with_each(QuotaChange, metric=""), "at once, original", id="restored at once"),
        pytest.param(with_each(QuotaChange, lag_seconds=1.0), "with a lag of 1.0 s", id="a wrong lag"),
        pytest.param(with_each(QuotaChange, released={}), "gives back {} after", id="a wrong release"),
        pytest.param(
            lambda made: replace(made, steps=made.steps[::-1]), "restore for cpu_total_usage takes", id="restore order"
        ),
        pytest.param(with_each(Eviction, grace_seconds=1.0), "s to end, expected", id="grace period"),
        pytest.param(
            lambda made: replace(made, rules=tuple(replace(each, verdict=RuleVerdict.QUIET) for each in made.rules)),
            "is quiet, expected",
            id="a verdict",
        ),
    ],
)
def test_a_plan_that_breaks_a_rule_is_found(change: Callable[[Plan], Plan], finding: str):
    results = CheckedLoop()
    for number in range(60):
        results.run(f"broken/{number}", change)
        if any(finding in each for each in results.findings):
            return
    pytest.fail(f"{len(results.findings)} findings, none with {finding!r}: {results.findings[:5]}")
