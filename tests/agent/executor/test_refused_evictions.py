"""Evictions that the API refuses: the pod is left alone, other pods and other nodes are not affected."""

import logging
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agent.decision.eviction_limits import EvictionLimits
from agent.decision.plan import Plan
from agent.executor.executor import Executor
from agent.executor.report import PlanReport, StepOutcome
from tests.agent.executor.node import CONTROL, NOW, FakeNode, always, events, evict, fates, generous
from tests.fakes.kube import BUDGETS, CONFIG_MAPS, EVENTS, PODS, Asked, FakeKube
from tests.fakes.kube_rules import status_object

TWO_BUDGETS = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support"
UNTIL = "2023-11-14T22:18:20Z"  # five minutes after NOW


@pytest.fixture
def node(node: FakeNode, server: FakeKube) -> FakeNode:
    """Its pod p0 has two PodDisruptionBudgets."""
    node.add(0, 1, 2)
    give_two_budgets(server, node, 0)
    return node


def give_two_budgets(server: FakeKube, node: FakeNode, number: int) -> None:
    server.pod(f"shop/p{number}", node="node-1", metadata=node.metadata(number, labels={"app": "x"}))
    for name in ("a", "b"):
        server.put(
            BUDGETS,
            f"shop/{name}",
            spec={"selector": {"matchLabels": {"app": "x"}}},
            status={"disruptionsAllowed": 1},
        )


def posts(server: FakeKube) -> list[str]:
    """The pods whose eviction was requested, in order."""
    return [each.key for each in server.asked if each.resource == "v1/pods/eviction"]


def recent(server: FakeKube) -> list[str]:
    """The nodes of the tokens that are spent."""
    text = server.content(CONFIG_MAPS, CONTROL)["data"].get("recent-evictions", "")
    return [line.partition(" ")[2] for line in text.splitlines()]


def over(node: FakeNode, *seconds: float, limits: EvictionLimits | None = None) -> list[PlanReport]:
    """Reports of one executor that evicts p0 at each of these times."""

    async def act(executor: Executor) -> list[PlanReport]:
        reports = []
        for number, each in enumerate(seconds):
            node.now = NOW + each
            plan = Plan(node.now, (evict(0),))
            reports.append(await executor.run(plan, state=node.state(), cycle=number, needed=always))
        return reports

    return node.acting(act, limits=limits or generous())


def test_a_pod_with_two_budgets_is_left_alone_for_five_minutes(node: FakeNode, server: FakeKube):
    first, second, third, fourth = over(node, 0.0, 10.0, 299.0, 301.0)
    text = first.results[0].text
    assert TWO_BUDGETS in text
    assert f"next attempt at {UNTIL}" in text
    assert [text, text] == [second.results[0].text, third.results[0].text]
    assert {"uid-0"} == set(third.unavailable)
    assert [StepOutcome.FAILED] * 4 == [each.results[0].fate for each in (first, second, third, fourth)]
    assert 2 == len(posts(server))


def test_a_refusal_is_reported_once(node: FakeNode, server: FakeKube, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING)
    over(node, 0.0, 10.0, 301.0, 602.0, 903.0)
    assert 4 == len(posts(server))
    (message,) = caplog.messages
    assert message.startswith("shop/p0 is not evicted: the API refused to evict it")
    assert UNTIL in message
    (event,) = [server.content(EVENTS, name) for name in server.names(EVENTS)]
    assert ("Pod", "EvictionRefused", "Warning") == (event["involvedObject"]["kind"], event["reason"], event["type"])
    assert TWO_BUDGETS in event["message"]


def test_a_refusal_that_ended_and_returns_is_reported_again(
    node: FakeNode, server: FakeKube, caplog: pytest.LogCaptureFixture
):
    over(node, 0.0, 601.0)
    assert 2 == len([each for each in caplog.messages if "is not evicted" in each])


def test_the_next_pods_of_the_node_are_evicted(node: FakeNode, server: FakeKube):
    report = node.run(evict(0), evict(1), evict(2), limits=generous())
    assert [StepOutcome.FAILED, StepOutcome.DONE, StepOutcome.DONE] == fates(report)
    assert (evict(1), evict(2)) == report.booked


def test_a_refused_eviction_counts_only_in_the_limit_of_the_node(node: FakeNode, server: FakeKube):
    """The attempts of a node are limited, but no pod of the namespace or the owner is missing."""
    limits = EvictionLimits(evictions_per_node=2, evictions_per_namespace=1, evictions_per_owner=1)
    report = node.run(evict(0, owner="ReplicaSet/web"), evict(1, owner="ReplicaSet/web"), evict(2), limits=limits)
    assert [StepOutcome.FAILED, StepOutcome.DONE, StepOutcome.NOT_ALLOWED] == fates(report)
    assert "eviction limit of this node reached (2 in 600 s)" == report.results[2].text
    assert ["shop/p0", "shop/p1"] == posts(server)


def test_the_token_is_returned_so_that_no_other_node_waits(tmp_path: Path, node: FakeNode, server: FakeKube):
    """The whole cluster has one eviction in a minute, on one node."""
    server.put(CONFIG_MAPS, CONTROL, data={"evictions-per-minute": "1", "nodes-at-once": "1"})
    (refused,) = over(node, 0.0)
    assert StepOutcome.FAILED is refused.results[0].fate
    assert [] == recent(server)
    report = node.run(evict(1), limits=generous())
    assert [StepOutcome.DONE] == fates(report)
    assert ["node-1"] == recent(server)
    assert "evictions-per-minute is 1" in node.run(evict(2), limits=generous()).results[0].text


def test_a_token_has_the_time_after_the_read_of_the_pod(node: FakeNode, server: FakeKube):
    """The API is slow: otherwise the token would expire before its minute is over."""

    def respond_slowly(request: Asked) -> None:
        if (request.verb, request.resource) == ("get", PODS):
            node.now += 20.0

    server.fault = respond_slowly
    assert [StepOutcome.DONE] == fates(node.run(evict(1), limits=generous()))
    assert f"{NOW + 20.0:.6f} node-1\n" == server.content(CONFIG_MAPS, CONTROL)["data"]["recent-evictions"]


@pytest.mark.parametrize("answer", ["forbidden", "protected", "gone", "denied"])
def test_a_request_that_evicts_no_pod_costs_no_token(node: FakeNode, server: FakeKube, answer: str):
    """The token of another eviction of this node in the same second stays."""
    assert [StepOutcome.DONE] == fates(node.run(evict(1), limits=generous()))
    cause = {"reason": "DisruptionBudget", "message": "The disruption budget b needs 3 healthy pods"}
    answers: dict[str, tuple[int, dict[str, Any]]] = {
        "forbidden": (403, {}),
        "protected": (429, {"causes": [cause]}),
        "gone": (404, {"name": "p2", "kind": "pods"}),
        "denied": (422, {}),
    }
    code, details = answers[answer]

    def refuse(request: Asked) -> web.Response | None:
        evicts = request.resource == "v1/pods/eviction"
        return web.json_response(status_object(code, "no", **details), status=code) if evicts else None

    server.fault = refuse
    expected = {"protected": StepOutcome.PROTECTED, "gone": StepOutcome.GONE}.get(answer, StepOutcome.FAILED)
    assert [expected] == fates(node.run(evict(2), limits=generous()))
    assert ["node-1"] == recent(server)


def test_an_eviction_that_may_have_been_done_keeps_its_token(node: FakeNode, server: FakeKube):
    def refuse(request: Asked) -> web.Response | None:
        evicts = request.resource == "v1/pods/eviction"
        return web.json_response(status_object(500, "etcd is slow"), status=500) if evicts else None

    server.fault = refuse
    assert [StepOutcome.UNANSWERED] == fates(node.run(evict(1), limits=generous()))
    assert ["node-1"] == recent(server)


def test_an_audit_that_cannot_be_written_costs_no_token(node: FakeNode, server: FakeKube):
    """A full disk stops every cycle before its eviction; the other nodes must not pay for it."""

    def fill_disk(request: Asked) -> None:
        if (request.verb, request.resource) == ("patch", CONFIG_MAPS):
            node.audit.close()

    server.fault = fill_disk
    report = node.run(evict(1), limits=generous())
    assert report.trouble
    assert [] == posts(server)
    assert [] == recent(server)
    node.audit = node.open_audit()


def test_a_pod_that_the_account_may_not_read_is_left_alone(node: FakeNode, server: FakeKube):
    server.forbidden = {("get", PODS)}
    first, second, third = over(node, 0.0, 10.0, 301.0)
    assert "the pod cannot be read from the API" in first.results[0].text
    assert UNTIL in second.results[0].text
    assert 2 == sum(each.verb == "get" and each.resource == PODS for each in server.asked)
    assert StepOutcome.FAILED is third.results[0].fate
    assert [("Pod", "p0", "EvictionRefused")] == events(server)


def test_a_pod_without_its_controller_since_the_plan_is_not_evicted(node: FakeNode, server: FakeKube):
    """`kubectl delete --cascade=orphan` leaves pods that nothing would recreate."""
    server.pod("shop/p1", node="node-1", metadata={"uid": "uid-1"})
    report = node.run(evict(1), limits=generous())
    assert [StepOutcome.NOT_ALLOWED] == fates(report)
    assert "it has no controller any more" in report.results[0].text
    assert [StepOutcome.DONE] == fates(node.run(evict(1, owner=""), limits=generous()))
