"""Evictions: requested so that budgets can refuse them, never of a protected pod, and never more than the limits."""

import asyncio
import logging
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from agent.audit.log import AuditOutcome
from agent.decision.eviction_limits import EvictionLimits, EvictionRecord
from agent.decision.plan import Plan
from agent.executor.enforcement_switch import (
    ControlData,
    EnforcementSwitch,
    EvictionToken,
    allowed_nodes,
    read_control,
    refusal,
)
from agent.executor.executor import Executor
from agent.executor.report import PlanReport, StepOutcome
from tests.agent.executor.node import CONTROL, NOW, FakeNode, always, events, evict, fates, generous, with_api
from tests.fakes.kube import BUDGETS, CONFIG_MAPS, PODS, Asked, FakeKube
from tests.fakes.kube_rules import status_object


def going(server: FakeKube) -> list[str]:
    """The pods with an accepted eviction."""
    pods = sorted(server.names(PODS))
    return [key for key in pods if "deletionTimestamp" in server.content(PODS, key)["metadata"]]


def asked_for(server: FakeKube) -> int:
    """The number of eviction requests to the API."""
    return sum(each.resource == "v1/pods/eviction" for each in server.asked)


def test_an_eviction_has_its_grace_period_and_events(node: FakeNode, server: FakeKube):
    node.add(0, 1)
    report = node.run(evict(0))
    assert [StepOutcome.DONE] == fates(report)
    assert ["shop/p0"] == going(server)
    assert 7 == server.content(PODS, "shop/p0")["metadata"]["deletionGracePeriodSeconds"]
    assert [("Pod", "p0", "Evicted"), ("Node", "node-1", "PodsEvicted")] == events(server)
    (deed,) = node.deeds()
    assert (AuditOutcome.DONE, "ReplicaSet/r0", {"memory": 1e9}) == (deed.outcome, deed.owner, deed.planned)
    assert {"cpu": 1000.0, "memory": 1e9} == deed.used


def test_an_eviction_is_recorded_before_the_request(node: FakeNode, server: FakeKube):
    node.add(0)
    asked: list[tuple[str, int]] = []
    node.listen = lambda deed: asked.append((deed.outcome.value, asked_for(server)))
    node.run(evict(0))
    assert [("begun", 0), ("done", 1)] == asked


def test_an_eviction_whose_outcome_cannot_be_recorded_counts(node: FakeNode, server: FakeKube):
    """The disk becomes full after the request: no further steps are carried out, and the pod ends."""
    node.add(0, 1)
    node.listen = lambda _: node.audit.close()
    report = node.run(evict(0), evict(1))
    assert (evict(0),) == report.booked
    assert report.trouble
    assert ["shop/p0"] == going(server)


def test_an_audit_file_that_cannot_be_written_is_reported_once(
    node: FakeNode, server: FakeKube, caplog: pytest.LogCaptureFixture
):
    """A full disk lasts for many cycles."""
    node.add(0)
    node.audit.close()
    other = sqlite3.connect(node.audit.path)
    other.execute("CREATE TRIGGER full BEFORE INSERT ON deeds BEGIN SELECT RAISE(FAIL, 'disk is full'); END")
    other.close()
    node.audit = node.open_audit()

    async def cycles(executor: Executor) -> list[PlanReport]:
        steps = Plan(node.now, (evict(0),))
        return [await executor.run(steps, state=node.state(), cycle=each, needed=always) for each in range(4)]

    with caplog.at_level(logging.ERROR):
        reports = node.acting(cycles)
    assert all("disk is full" in report.trouble for report in reports)
    assert [] == going(server)
    assert 1 == len(caplog.records)
    assert "no further steps while the audit file fails" in caplog.text


OF_NODE = {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "n", "controller": True}
MIRROR = {"annotations": {"kubernetes.io/config.mirror": "x"}, "ownerReferences": [OF_NODE]}


@pytest.mark.parametrize(
    ("content", "fate", "words"),
    [
        ({"spec": {"priority": 2_000_000_000}}, StepOutcome.NOT_ALLOWED, "critical"),
        (MIRROR, StepOutcome.NOT_ALLOWED, "static"),
        ({"deletionTimestamp": "2026-11-21T08:00:00Z"}, StepOutcome.GONE, "terminating"),
        ({"uid": "another"}, StepOutcome.GONE, "another pod"),
        ({"phase": "Succeeded"}, StepOutcome.GONE, "has finished"),
        (None, StepOutcome.GONE, "does not exist"),
    ],
    ids=["critical", "mirror", "terminating", "namesake", "finished", "deleted"],
)
def test_protected_and_ended_pods_are_not_evicted(
    node: FakeNode, server: FakeKube, content: dict[str, Any] | None, fate: StepOutcome, words: str
):
    """The API has newer data than the state of the plan."""
    node.add(0)
    if content is None:
        server.delete(PODS, "shop/p0")
    else:
        spec, phase = content.pop("spec", {}), content.pop("phase", "Running")
        server.pod("shop/p0", node="node-1", phase=phase, spec=spec, metadata=node.metadata(0, **content))
    report = node.run(evict(0))
    assert [fate] == fates(report)
    assert words in report.results[0].text
    assert (0, []) == (asked_for(server), node.deeds())


@pytest.mark.parametrize(
    "content",
    [
        {"annotations": MIRROR["annotations"]},
        {"annotations": {"kubernetes.io/config.source": "file", "kubernetes.io/config.hash": "x"}},
        {"ownerReferences": [OF_NODE]},
        {**MIRROR, "ownerReferences": [{**OF_NODE, "name": "node-2"}]},
        {**MIRROR, "ownerReferences": [{**OF_NODE, "controller": False}, {**OF_NODE, "kind": "ReplicaSet"}]},
    ],
    ids=["annotation", "source and hash", "owner", "another node", "not its controller"],
)
def test_a_pod_that_only_looks_like_a_mirror_pod_is_evicted(node: FakeNode, server: FakeKube, content: dict[str, Any]):
    """Any user with the right to create pods may write each of these."""
    node.add(0)
    server.pod("shop/p0", node="node-1", metadata=node.metadata(0, **content))
    assert [StepOutcome.DONE] == fates(node.run(evict(0)))


def budget(server: FakeKube, allowed: int) -> None:
    server.put(
        BUDGETS, "shop/b", spec={"selector": {"matchLabels": {"app": "x"}}}, status={"disruptionsAllowed": allowed}
    )


def test_a_pod_protected_by_its_budget_is_left_alone_for_a_while(node: FakeNode, server: FakeKube):
    node.add(0, 1)
    server.pod("shop/p0", node="node-1", metadata=node.metadata(0, labels={"app": "x"}))
    budget(server, 0)

    async def act(executor: Executor) -> list[PlanReport]:
        reports = []
        for seconds in (0.0, 20.0, 40.0):
            node.now = NOW + seconds
            plan = Plan(node.now, (evict(0), evict(1)) if not seconds else (evict(0),))
            reports.append(await executor.run(plan, state=node.state(), cycle=1, needed=always))
            if seconds == 20.0:
                budget(server, 1)
        return reports

    first, second, third = node.acting(act)
    assert [StepOutcome.PROTECTED, StepOutcome.DONE] == fates(first)
    assert (evict(1),) == first.booked
    assert {"uid-0"} == set(first.unavailable)
    assert "a disruption budget protects it; next attempt at 2023-11-14T22:13:50Z" == second.results[0].text
    assert [StepOutcome.DONE] == fates(third)
    assert 3 == asked_for(server)


def test_the_wait_for_a_protected_pod_is_that_of_the_api(node: FakeNode, server: FakeKube):
    node.add(0)
    cause = {"reason": "DisruptionBudget", "message": "The disruption budget b needs 3 healthy pods"}
    body = status_object(429, "Cannot evict pod", causes=[cause])

    def refuse(request: Asked) -> web.Response | None:
        evicts = request.resource == "v1/pods/eviction"
        return web.json_response(body, status=429, headers={"Retry-After": "90"}) if evicts else None

    server.fault = refuse

    async def act(executor: Executor) -> str:
        for _ in range(2):
            report = await executor.run(Plan(NOW, (evict(0),)), state=node.state(), cycle=1, needed=always)
        return report.results[0].text

    assert "next attempt at 2023-11-14T22:14:50Z" in node.acting(act)


@pytest.mark.parametrize(("code", "fate"), [(500, StepOutcome.UNANSWERED), (403, StepOutcome.FAILED)])
def test_each_response_of_the_api_has_its_own_outcome(node: FakeNode, server: FakeKube, code: int, fate: StepOutcome):
    """An eviction that may have been done counts: another one could be one too many."""
    node.add(0, 1)

    def refuse(request: Asked) -> web.Response | None:
        evicts = request.resource == "v1/pods/eviction"
        return web.json_response(status_object(code, "no"), status=code) if evicts else None

    server.fault = refuse
    report = node.run(evict(0))
    assert [fate] == fates(report)
    assert ((evict(0),) if fate is StepOutcome.UNANSWERED else ()) == report.booked
    (record,) = node.audit.evictions().values()
    assert (fate is StepOutcome.FAILED) is record.refused


# --- limits of this node ---------------------------------------------------------------------------------------------


def test_evictions_stay_within_the_limits_of_node_namespace_and_owner(node: FakeNode, server: FakeKube):
    node.add(*range(6))
    same_owner = [evict(number, owner="ReplicaSet/web") for number in range(2)]
    report = node.run(*same_owner, *(evict(number) for number in range(2, 6)), limits=EvictionLimits())
    assert [
        StepOutcome.DONE,
        StepOutcome.NOT_ALLOWED,
        StepOutcome.DONE,
        StepOutcome.DONE,
        StepOutcome.NOT_ALLOWED,
        StepOutcome.NOT_ALLOWED,
    ] == fates(report)
    assert "eviction limit of ReplicaSet/web in namespace shop reached (1 in 600 s)" in report.results[1].text
    assert "eviction limit of namespace shop reached (3 in 600 s)" in report.results[4].text
    node.audit.close()
    node.audit = node.open_audit()
    assert [StepOutcome.NOT_ALLOWED] == fates(
        node.run(evict(4), limits=EvictionLimits())
    )  # the evictions count after a restart
    node.now += 601.0
    assert [StepOutcome.DONE] == fates(node.run(evict(4), limits=EvictionLimits()))


@pytest.mark.parametrize("jump", [3_600.0, -3_600.0])
def test_a_clock_change_neither_drops_nor_prolongs_counted_evictions(node: FakeNode, server: FakeKube, jump: float):
    node.add(0, 1, 2)
    limits = EvictionLimits(evictions_per_node=1)

    async def act(executor: Executor) -> list[StepOutcome]:
        found: list[StepOutcome] = []
        for number, seconds in enumerate((0.0, 300.0, 610.0)):
            node.now, node.set_by = NOW + seconds, jump if seconds else 0.0
            plan = Plan(node.now, (evict(number),))
            assert len((await executor.budget()).past) == (seconds == 300.0)
            report = await executor.run(plan, state=node.state(), cycle=number, needed=always)
            found += fates(report)
        return found

    assert [StepOutcome.DONE, StepOutcome.NOT_ALLOWED, StepOutcome.DONE] == node.acting(act, limits=limits)


def test_evictions_before_a_clock_change_and_a_restart_count_for_one_window(node: FakeNode, server: FakeKube):
    node.add(0, 1, 2)
    limits = EvictionLimits(evictions_per_node=1)
    assert [StepOutcome.DONE] == fates(node.run(evict(0), limits=limits))
    node.set_by = -3_600.0

    async def act(executor: Executor) -> list[StepOutcome]:
        found: list[StepOutcome] = []
        for seconds in (20.0, 625.0):
            node.now = NOW + seconds
            plan = Plan(node.now, (evict(1),))
            found += fates(await executor.run(plan, state=node.state(), cycle=1, needed=always))
        return found

    assert [StepOutcome.NOT_ALLOWED, StepOutcome.DONE] == node.acting(act, limits=limits)


@pytest.mark.parametrize("jump", [3_600.0, -3_600.0])
def test_a_clock_change_does_not_change_the_wait_for_a_budget(node: FakeNode, server: FakeKube, jump: float):
    node.add(0)
    server.pod("shop/p0", node="node-1", metadata=node.metadata(0, labels={"app": "x"}))
    budget(server, 0)

    async def act(executor: Executor) -> list[StepOutcome]:
        found: list[StepOutcome] = []
        for seconds in (0.0, 20.0, 40.0):
            node.now, node.set_by = NOW + seconds, jump if seconds else 0.0
            plan = Plan(node.now, (evict(0),))
            found += fates(await executor.run(plan, state=node.state(), cycle=1, needed=always))
            if seconds == 20.0:
                budget(server, 1)
        return found

    assert [StepOutcome.PROTECTED, StepOutcome.PROTECTED, StepOutcome.DONE] == node.acting(act)


NAMES = st.sampled_from(["a", "b"])


@given(st.lists(st.tuples(NAMES, NAMES), max_size=30), st.integers(0, 4), st.integers(0, 3), st.integers(0, 2))
def test_evictions_never_exceed_the_limits(wanted: list[tuple[str, str]], most: int, of_namespace: int, of_owner: int):
    limits = EvictionLimits(evictions_per_node=most, evictions_per_namespace=of_namespace, evictions_per_owner=of_owner)
    done: list[EvictionRecord] = []
    for namespace, owner in wanted:
        if not limits.refusal(tuple(done), evict(pod=f"{namespace}/x", owner=owner)):
            done.append(EvictionRecord(NOW, namespace, owner))
    assert len(done) <= most
    for namespace in "ab":
        mine = [each for each in done if each.namespace == namespace]
        assert len(mine) <= of_namespace
        assert all(sum(each.owner == owner for each in mine) <= of_owner for owner in "ab")


def test_each_refusal_by_a_disruption_budget_doubles_the_wait_up_to_five_minutes(node: FakeNode, server: FakeKube):
    """Each attempt writes the shared ConfigMap twice."""
    node.add(0)
    server.pod("shop/p0", node="node-1", metadata=node.metadata(0, labels={"app": "x"}))
    budget(server, 0)
    moments = (0, 29, 31, 90, 92, 211, 213, 452, 454, 753, 755, 1054, 1056)

    async def act(executor: Executor) -> list[int]:
        attempts = []
        for second in moments:
            node.now = NOW + second
            before = len(server.asked)
            await executor.run(Plan(node.now, (evict(0),)), state=node.state(), cycle=1, needed=always)
            if any(each.resource == "v1/pods/eviction" for each in server.asked[before:]):
                attempts.append(second)
        return attempts

    assert [0, 31, 92, 213, 454, 755, 1056] == node.acting(act)


# --- the budget of the cluster ---------------------------------------------------------------------------------------


def control(server: FakeKube, **data: str) -> None:
    server.put(CONFIG_MAPS, CONTROL, data={key.replace("_", "-"): value for key, value in data.items()})


def test_evictions_in_a_minute_stay_within_the_budget_of_the_cluster(node: FakeNode, server: FakeKube):
    node.add(0, 1, 2)
    control(server, evictions_per_minute="2", nodes_at_once="1")
    report = node.run(evict(0), evict(1), evict(2), limits=generous())
    assert [StepOutcome.DONE, StepOutcome.DONE, StepOutcome.NOT_ALLOWED] == fates(report)
    assert "evictions-per-minute is 2" in report.results[2].text
    data = server.content(CONFIG_MAPS, CONTROL)["data"]
    assert "1700000000.000000 node-1\n1700000000.000001 node-1\n" == data["recent-evictions"]
    assert ("2", "1") == (data["evictions-per-minute"], data["nodes-at-once"])
    node.now += 61.0
    assert [StepOutcome.DONE] == fates(node.run(evict(2), limits=generous()))


def test_the_number_of_evicting_nodes_stays_within_the_budget(tmp_path: Path, server: FakeKube):
    """5 % of 40 nodes are two nodes."""
    node = with_api(tmp_path, server, nodes=40)
    node.add(0, 1)
    others = "1699999990 node-7\n1699999991 node-8\n"
    control(server, evictions_per_minute="100", nodes_at_once="5%", recent_evictions=others)
    report = node.run(evict(0), limits=generous())
    assert "2 other nodes evicted in the last minute, and nodes-at-once is 2" in report.results[0].text
    control(server, evictions_per_minute="100", nodes_at_once="5%", recent_evictions=others.partition("\n")[0])
    assert [StepOutcome.DONE, StepOutcome.DONE] == fates(node.run(evict(0), evict(1), limits=generous()))
    node.close()


def test_a_write_conflict_reads_the_budget_again(node: FakeNode, server: FakeKube):
    """Another node takes the last token between the read and the write of this node."""
    node.add(0)
    control(server, evictions_per_minute="1", nodes_at_once="100%")
    raced: list[bool] = []

    def race(request: Asked) -> None:
        if (request.verb, request.resource) == ("patch", CONFIG_MAPS) and not raced:
            raced.append(True)
            control(server, evictions_per_minute="1", nodes_at_once="100%", recent_evictions="1700000000 node-2\n")

    server.fault = race
    report = node.run(evict(0), limits=generous())
    assert [StepOutcome.NOT_ALLOWED] == fates(report)
    assert raced
    assert "the cluster had 1 evictions in the last minute" in report.results[0].text
    assert 0 == asked_for(server)


def test_a_brake_set_during_a_plan_takes_effect(node: FakeNode, server: FakeKube):
    node.add(0, 1)

    def pull(request: Asked) -> None:
        if request.resource == "v1/pods/eviction":
            control(server, enforcement="off", evictions_per_minute="9", nodes_at_once="9")

    server.fault = pull
    assert [StepOutcome.DONE, StepOutcome.NOT_ALLOWED] == fates(node.run(evict(0), evict(1), limits=generous()))


@pytest.mark.slow
async def test_concurrent_nodes_never_exceed_the_budget(tmp_path: Path, server: FakeKube):
    """All nodes write at the same time; some may get no token because of conflicts, but never too many."""
    nodes = [with_api(tmp_path / str(number), server) for number in range(6)]
    control(server, evictions_per_minute="4", nodes_at_once="100%")
    for number, node in enumerate(nodes):
        node.add(2 * number, 2 * number + 1)

    async def all_of_them() -> list[PlanReport]:
        threads = [
            asyncio.to_thread(node.run, evict(2 * number), evict(2 * number + 1), limits=generous())
            for number, node in enumerate(nodes)
        ]
        return await asyncio.gather(*threads)

    reports = await all_of_them()
    done = sum(fate is StepOutcome.DONE for report in reports for fate in fates(report))
    assert done == len(going(server)) == asked_for(server)
    assert 1 <= done <= 4
    for node in nodes:
        node.close()


# --- the ConfigMap ---------------------------------------------------------------------------------------------------


def test_the_config_map_is_read_as_documented():
    data = {
        "enforcement": " Restore ",
        "evictions-per-minute": "10",
        "nodes-at-once": "5%",
        "recent-evictions": "1700000000 node-1\ngarbage\n\n1700000001.5 node-2\n",
    }
    recent = (EvictionToken(1_700_000_000.0, "node-1"), EvictionToken(1_700_000_001.5, "node-2"))
    assert ControlData(EnforcementSwitch.RESTORE, 10, 0.05, recent) == read_control(data)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "evictions-per-minute must be a whole number; nodes-at-once must be"),
        ({"evictions-per-minute": "-1", "nodes-at-once": "1"}, "evictions-per-minute"),
        ({"evictions-per-minute": "1", "nodes-at-once": "half"}, "nodes-at-once"),
        ({"evictions-per-minute": "1", "nodes-at-once": "5.5%"}, "nodes-at-once"),
        ({"evictions-per-minute": "1", "nodes-at-once": "1", "enforcement": "maybe"}, "treated as off"),
    ],
)
def test_an_unreadable_config_map_allows_no_eviction(data: dict[str, str], words: str):
    found = read_control(data)
    assert words in found.problem
    assert refusal(found, node="n", nodes=10, now=NOW)


@pytest.mark.parametrize(
    ("at_once", "nodes", "expected"),
    [
        ("5%", 100, 5),
        ("5%", 19, 1),
        ("5%", 0, 1),
        ("1%", 250, 2),
        ("3", 1000, 3),
        ("1", 1, 1),
        ("100%", 7, 7),
        ("0", 9, 0),
        ("0%", 9, 0),
    ],
)
def test_a_share_of_the_nodes_is_at_least_one(at_once: str, nodes: int, expected: int):
    """Except for 0 %, which allows none."""
    control = read_control({"evictions-per-minute": "1", "nodes-at-once": at_once})
    assert expected == allowed_nodes(control.nodes_at_once, nodes)


MOMENTS = st.lists(st.tuples(st.integers(0, 200), st.sampled_from(["a", "b", "c", "d"])), max_size=40)


@given(MOMENTS, st.integers(0, 5), st.integers(0, 3))
def test_evictions_never_exceed_the_budget(moments: list[tuple[int, str]], per_minute: int, at_once: int):
    done: list[EvictionToken] = []
    for seconds, node in sorted(moments):
        control = ControlData(per_minute=per_minute, nodes_at_once=float(at_once), recent=tuple(done))
        if not refusal(control, node=node, nodes=4, now=NOW + seconds):
            done.append(EvictionToken(NOW + seconds, node))
    for token in done:
        minute = [each for each in done if token.time - 60.0 < each.time <= token.time]
        assert len(minute) <= per_minute
        assert len({each.node for each in minute}) <= at_once


def test_a_line_of_a_wrong_clock_blocks_no_node_for_long():
    recent = (EvictionToken(NOW + 3600.0, "node-2"),)
    assert not refusal(ControlData(per_minute=1, nodes_at_once=1.0, recent=recent), node="n", nodes=1, now=NOW)
