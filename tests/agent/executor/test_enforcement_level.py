"""Enforcement levels, and the behavior if a part of the node or the API fails."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from agent.audit.log import AuditEntry, AuditOutcome
from agent.decision.plan import Plan
from agent.executor.executor import Executor, OnExit
from agent.executor.other_agents import CgroupLock
from agent.executor.report import EnforcementLevel, PlanReport, StepOutcome
from agent.model import (
    SCHEDULING_CONDITION,
    SCHEDULING_TAINT,
    PageCacheReclaim,
    PodState,
    SchedulingChange,
    State,
    Step,
)
from tests.agent.executor.node import (
    CONTROL,
    NOW,
    FakeNode,
    always,
    events,
    evict,
    fates,
    generous,
    restore,
    step_on,
    throttle,
)
from tests.fakes.kube import CONFIG_MAPS, EVENTS, NODES, PODS, Asked, FakeKube
from tests.fakes.kube_rules import status_object

AWAY = Step("scheduling", SchedulingChange(disable=True), reason="cpu is short")
WELCOME = Step("scheduling", SchedulingChange(disable=False), reason="cpu is enough")


def tainted(server: FakeKube) -> bool:
    content = server.content(NODES, "node-1")
    taints = [each["key"] for each in content.get("spec", {}).get("taints", [])]
    conditions = {each["type"]: each["status"] for each in content["status"]["conditions"]}
    assert (SCHEDULING_TAINT in taints) == (conditions.get(SCHEDULING_CONDITION) == "True")
    return SCHEDULING_TAINT in taints


def changes(server: FakeKube) -> list[str]:
    """The requests to the API that change something."""
    return [f"{each.verb} {each.resource}" for each in server.asked if each.verb not in ("get", "list", "watch")]


# --- preview ---------------------------------------------------------------------------------------------------------


def test_preview_is_the_default_and_changes_nothing(node: FakeNode, server: FakeKube):
    node.add(0)
    plan = Plan(NOW, (AWAY, throttle(), evict()))

    async def act(executor: Executor) -> PlanReport:
        return await executor.run(plan, state=node.state(), cycle=1, needed=always)

    report = node.acting(act, enforce=False)
    assert [StepOutcome.WOULD] * 3 == fates(report)
    assert [each.text for each in report.results] == [
        "would keep new pods away",
        "would set the CPU quota of shop/p0 (main) to 50000 µs per 100000 µs",
        "would evict shop/p0 with a grace period of 7 s",
    ]
    assert ("max 100000", [], []) == (node.quota(), node.deeds(), changes(server))
    assert EnforcementLevel.PREVIEW is node.run(throttle(), enforce=False).level


@pytest.mark.parametrize(
    "rival",
    [
        PodState("koordinator-system", "koordlet-x", "k", labels={"koord-app": "koordlet"}, host_paths=True),
        PodState("crane-system", "crane-agent-x", "k", labels={"app": "crane-agent"}, host_paths=True),
        PodState("ops", "renamed", "k", owner="DaemonSet/koordlet", host_paths=True),
    ],
    ids=lambda pod: pod.name,
)
def test_nothing_is_enforced_beside_another_agent(node: FakeNode, rival: PodState):
    node.add(0)
    node.pods[9] = rival
    report = node.run(throttle())
    assert EnforcementLevel.PREVIEW is report.level
    assert f"(pod {rival.key})" in report.why
    assert "max 100000" == node.quota()
    assert [StepOutcome.DONE] == fates(node.run(throttle(), beside_others=True))
    node.pods[9] = replace(rival, phase="Succeeded")
    assert [StepOutcome.DONE] == fates(node.run(throttle(before=50_000, after=40_000)))
    node.pods[9] = replace(rival, host_paths=False)  # any user may write the labels, and name any owner
    assert [StepOutcome.DONE] == fates(node.run(throttle(before=40_000, after=30_000)))


def test_only_one_of_two_load_watcher_agents_enforces(node: FakeNode):
    """Also with separate audit files, because both use the same groups."""
    node.add(0)
    top = node.cgroups.root / "kubepods.slice"
    first, second = CgroupLock(lambda: str(top)), CgroupLock(lambda: str(top))
    assert () == first.acquire() == first.acquire()
    report = node.run(throttle(), claim=second)
    assert (EnforcementLevel.PREVIEW, True) == (report.level, "by another enforcing load-watcher agent" in report.why)
    assert "max 100000" == node.quota()
    first.release()
    assert [StepOutcome.DONE] == fates(node.run(throttle(), claim=second))
    assert first.acquire()
    top.rename(top.with_name("old"))
    top.mkdir()  # the kubelet created it again: the first agent gets the lock
    assert () == first.acquire()
    assert second.acquire()
    first.release()
    second.release()
    assert () == CgroupLock(lambda: str(top / "not there")).acquire()


def test_all_values_are_restored_when_another_agent_appears(node: FakeNode, server: FakeKube):
    node.add(0)
    node.run(throttle(0), AWAY)
    node.pods[9] = PodState("koordinator-system", "koordlet-x", "k", labels={"koord-app": "koordlet"}, host_paths=True)
    report = node.run(throttle(0, before=50_000, after=40_000))
    assert EnforcementLevel.RESTORE_ALL is report.level
    assert ("max 100000", False) == (node.quota(), tainted(server))
    assert EnforcementLevel.PREVIEW is node.run(throttle(0)).level


def test_preview_after_enforcing_reports_the_remaining_changes(node: FakeNode):
    node.add(0)
    node.run(throttle(0))
    report = node.run(enforce=False)
    assert "1 changes of an earlier run stay until load-watcher agent restore is run" in report.why
    assert "50000 100000" == node.quota()


def test_an_agent_without_a_pod_is_found_by_its_process(node: FakeNode):
    node.add(0)
    comm = node.directory / "proc" / "77" / "comm"
    comm.parent.mkdir(parents=True)
    comm.write_text("koordlet\n")
    report = node.run(throttle())
    assert (EnforcementLevel.PREVIEW, True) == (report.level, "koordlet (process)" in report.why)


@pytest.mark.parametrize(
    "line", ["0::/../../kubepods-burstable-poduid_9.slice/cri-containerd-c.scope", "4:cpu:/kubepods/poduid-9/c"]
)
def test_a_process_of_a_pod_without_access_to_the_host_is_not_an_agent(node: FakeNode, line: str):
    """Any container may use this process name."""
    node.add(0)
    node.pods[9] = PodState("shop", "p9", "uid-9")
    process = node.directory / "proc" / "77"
    process.mkdir(parents=True)
    (process / "comm").write_text("koordlet\n")
    (process / "cgroup").write_text(f"{line}\n")
    assert [StepOutcome.DONE] == fates(node.run(throttle()))
    node.pods[9] = replace(node.pods[9], host_paths=True)
    assert EnforcementLevel.RESTORE_ALL is node.run(throttle(before=50_000, after=40_000)).level


# --- one step after the other ----------------------------------------------------------------------------------------


def test_a_step_that_is_not_needed_any_more_is_dropped(node: FakeNode):
    """Usage is read again before each step, with the steps carried out so far."""
    node.add(0, 1, 2)
    asked: list[list[str]] = []

    async def needed(step: Step, done: Sequence[Step]) -> str:
        asked.append([each.uid for each in done if not isinstance(each.change, SchedulingChange)])
        return "" if len(done) < 1 else "the gap of cpu_total_usage is closed already"

    report = node.run(throttle(0), throttle(1), throttle(2), needed=needed)
    assert [StepOutcome.DONE, StepOutcome.NOT_NEEDED, StepOutcome.NOT_NEEDED] == fates(report)
    assert [[], ["uid-0"], ["uid-0"]] == asked
    assert ("50000 100000", "max 100000") == (node.quota(0), node.quota(1))
    assert (throttle(0),) == report.booked


def test_one_failure_does_not_stop_the_rest(node: FakeNode, server: FakeKube):
    node.add(0, 1, 2)
    node.cgroups.write(node.path(0), "cpu.max", "garbage")
    server.delete(PODS, "shop/p1")
    server.forbidden = {("patch", "v1/nodes")}
    report = node.run(AWAY, throttle(0), evict(1), throttle(2), limits=generous())
    assert [StepOutcome.FAILED, StepOutcome.FAILED, StepOutcome.GONE, StepOutcome.DONE] == fates(report)
    assert (evict(1), throttle(2)) == report.booked  # the removed pod counts as a release


def test_nothing_is_done_if_the_audit_cannot_be_written(node: FakeNode, server: FakeKube):
    node.add(0)
    node.run(throttle(0))

    async def act(executor: Executor) -> PlanReport:
        node.audit.close()
        plan = Plan(NOW, (throttle(0, before=50_000, after=20_000), evict(0), AWAY))
        return await executor.run(plan, state=node.state(), cycle=2, needed=always)

    report = node.acting(act, limits=generous())
    assert not report.results
    assert "Cannot operate on a closed database" in report.trouble
    assert ("50000 100000", {"shop/p0"}, False) == (node.quota(), server.names(PODS), tainted(server))


# --- scheduling ------------------------------------------------------------------------------------------------------


def test_new_pods_are_kept_away_and_allowed_again(node: FakeNode, server: FakeKube):
    assert [StepOutcome.DONE] == fates(node.run(AWAY))
    assert [StepOutcome.NOT_NEEDED] == fates(
        node.run(AWAY)
    )  # again, as after a restart: nothing changes, and nothing is recorded
    assert tainted(server)
    condition = server.content(NODES, "node-1")["status"]["conditions"][0]
    assert ("AvoidanceTriggered", "cpu is short") == (condition["reason"], condition["message"])
    assert [StepOutcome.DONE] == fates(node.run(WELCOME))
    assert not tainted(server)
    assert [StepOutcome.NOT_NEEDED] == fates(node.run(WELCOME))
    assert ["scheduling"] * 2 == [each.kind for each in node.deeds()]
    assert [("Node", "node-1", "SchedulingDisabled"), ("Node", "node-1", "SchedulingEnabled")] == events(server)


def test_a_failed_removal_of_the_taint_is_retried(node: FakeNode, server: FakeKube):
    """In the next cycles, until it succeeds or the opposite is decided."""
    node.run(AWAY)

    async def act(executor: Executor) -> list[list[StepOutcome]]:
        server.forbidden = {("patch", "v1/nodes")}
        found = []
        for steps, wanted in (((WELCOME,), False), ((), False), ((), False)):
            plan = Plan(NOW, steps, scheduling_disabled=wanted)
            found.append(fates(await executor.run(plan, state=node.state(), cycle=1, needed=always)))
            if len(found) == 2:
                server.forbidden = set()
        return found

    assert [[StepOutcome.FAILED], [StepOutcome.FAILED], [StepOutcome.DONE]] == node.acting(act)
    assert not tainted(server)


def test_a_triggered_rule_sets_the_taint_once_and_checks_it_later(node: FakeNode, server: FakeKube):
    """Otherwise each cycle would have an entry, and the audit would have no other entries after two days."""

    async def act(executor: Executor) -> list[StepOutcome]:
        found = []
        for seconds in (0.0, 10.0, 20.0, 330.0):
            node.now = NOW + seconds
            plan = Plan(node.now, (AWAY,), scheduling_disabled=True)
            found += fates(await executor.run(plan, state=node.state(), cycle=1, needed=always))
            if seconds == 20.0:
                server.node("node-1")  # another client removed it
        return found

    assert [StepOutcome.DONE, StepOutcome.NOT_NEEDED, StepOutcome.NOT_NEEDED, StepOutcome.DONE] == node.acting(act)
    assert tainted(server)


def test_a_taint_left_by_an_earlier_run_is_removed_by_the_next(node: FakeNode, server: FakeKube):
    node.run(AWAY)
    server.forbidden = {("patch", "v1/nodes")}
    node.run(WELCOME)
    server.forbidden = set()
    plan = Plan(NOW, scheduling_disabled=False)
    report = node.acting(lambda executor: executor.run(plan, state=node.state(), cycle=1, needed=always))
    assert [StepOutcome.DONE] == fates(report)
    assert not tainted(server)


# --- the brake -------------------------------------------------------------------------------------------------------


def control(server: FakeKube, **data: str) -> None:
    allowed = {"evictions-per-minute": "100", "nodes-at-once": "100%"}
    server.put(CONFIG_MAPS, CONTROL, data={**allowed, **data})


@pytest.mark.parametrize("word", ["off", "OFF", "stop", "false"])
def test_off_prevents_all_new_steps(node: FakeNode, server: FakeKube, word: str):
    """So does an unknown value, because the operator wanted to stop something."""
    node.add(0, 1)
    node.run(throttle(0), AWAY)
    control(server, enforcement=word)
    report = node.run(AWAY, throttle(1), evict(1), restore(0), WELCOME, limits=generous())
    assert EnforcementLevel.RESTORE_ONLY is report.level
    assert [StepOutcome.NOT_ALLOWED] * 3 + [StepOutcome.DONE] * 2 == fates(report)
    assert ("max 100000", "max 100000", False) == (node.quota(0), node.quota(1), tainted(server))


def test_restore_restores_all_values_in_a_cycle_without_steps(node: FakeNode, server: FakeKube):
    node.add(0, 1)
    node.run(throttle(0), AWAY)
    control(server, enforcement="restore")
    report = node.run()
    assert EnforcementLevel.RESTORE_ALL is report.level
    assert ("max 100000", False) == (node.quota(0), tainted(server))
    assert [StepOutcome.NOT_ALLOWED] == fates(node.run(throttle(1)))


def test_a_set_brake_stays_set_while_the_api_is_unavailable_and_after_a_restart(node: FakeNode, server: FakeKube):
    node.add(0, 1)
    control(server, enforcement="off")
    assert EnforcementLevel.RESTORE_ONLY is node.run(throttle(0)).level
    server.forbidden = {("get", "v1/configmaps")}
    node.audit.close()
    node.audit = node.open_audit()
    assert EnforcementLevel.RESTORE_ONLY is node.run(throttle(0)).level
    server.forbidden = set()
    control(server)
    assert [StepOutcome.DONE] == fates(node.run(throttle(0)))
    server.forbidden = {("get", "v1/configmaps")}
    assert [StepOutcome.DONE] == fates(node.run(throttle(1)))


@pytest.mark.parametrize("trouble", ["forbidden", "none", "nonsense"])
def test_only_quotas_are_changed_without_a_budget(node: FakeNode, server: FakeKube, trouble: str):
    node.add(0, 1)
    if trouble == "forbidden":
        server.forbidden = {("get", "v1/configmaps")}
    elif trouble == "none":
        server.delete(CONFIG_MAPS, CONTROL)
    else:
        control(server, **{"evictions-per-minute": "many"})
    report = node.run(throttle(0), evict(1), limits=generous())
    assert EnforcementLevel.THROTTLE_ONLY is report.level
    assert [StepOutcome.DONE, StepOutcome.NOT_ALLOWED] == fates(report)
    assert report.why == report.results[1].text
    assert {"shop/p0", "shop/p1"} == server.names(PODS)


def test_a_restricted_enforcement_level_is_logged_once(
    node: FakeNode, server: FakeKube, caplog: pytest.LogCaptureFixture
):
    """So is the return to full enforcement: otherwise the log would suggest that the agent acts."""
    caplog.set_level("INFO", logger="agent.executor.executor")
    node.add(0, 1)

    async def act(executor: Executor) -> None:
        server.delete(CONFIG_MAPS, CONTROL)
        for number in range(1, 5):
            if number == 3:
                control(server)
            await executor.run(Plan(NOW, (throttle(0),)), state=node.state(), cycle=number, needed=always)

    node.acting(act)
    reported = [each.getMessage() for each in caplog.records if "enforcement res" in each.getMessage()]
    assert len(reported) == 2, reported
    assert reported[0].startswith("enforcement restricted to 'throttle only': the ConfigMap ")
    assert reported[1] == "full enforcement resumed"


def test_an_unavailable_api_gets_one_request_in_a_cycle(node: FakeNode, server: FakeKube):
    """Quotas must not wait for Events or a taint, which is retried when the API responds."""
    node.add(0, 1, 2)
    asked: list[Asked] = []

    def busy(request: Asked) -> web.Response:
        asked.append(request)
        return web.json_response(status_object(503, "the server is starting"), status=503)

    async def act(executor: Executor) -> list[PlanReport]:
        server.fault = busy
        plan = Plan(NOW, (AWAY, throttle(0), throttle(1), evict(2)), scheduling_disabled=True)
        first = await executor.run(plan, state=node.state(), cycle=1, needed=always)
        server.fault = lambda _: None
        plan = Plan(NOW, scheduling_disabled=True)
        return [first, await executor.run(plan, state=node.state(), cycle=2, needed=always)]

    first, second = node.acting(act, limits=generous())
    assert [StepOutcome.FAILED, StepOutcome.DONE, StepOutcome.DONE, StepOutcome.NOT_ALLOWED] == fates(first)
    assert ["v1/configmaps"] == [each.resource for each in asked]
    assert [StepOutcome.DONE] == fates(second)
    assert tainted(server)


def test_an_api_that_fails_during_a_plan_delays_it_once(node: FakeNode, server: FakeKube):
    node.add(0, 1, 2, 3)

    def busy(request: Asked) -> web.Response | None:
        away = request.resource == "v1/pods"
        return web.json_response(status_object(503, "the server is ending"), status=503) if away else None

    server.fault = busy
    report = node.run(evict(0), evict(1), evict(2), throttle(3), limits=generous())
    assert [StepOutcome.NOT_ALLOWED] * 3 + [StepOutcome.DONE] == fates(report)
    assert (EnforcementLevel.THROTTLE_ONLY, {}) == (report.level, report.unavailable)
    assert 1 == sum(each.resource == "v1/pods" for each in server.asked)


def test_a_server_that_hangs_delays_quotas_at_most_by_the_timeout(node: FakeNode, server: FakeKube):
    node.add(0)
    node.patience = 0.2
    server.delay = 3600.0
    report = node.run(throttle(0), AWAY)
    server.delay = 0.0
    assert "cannot be read: " in report.why
    assert [StepOutcome.DONE, StepOutcome.FAILED] == fates(report)


def test_events_about_repeated_reclaims_are_rate_limited(node: FakeNode, server: FakeKube):
    node.add(0)
    step = step_on("reclaim", PageCacheReclaim(1 << 20), metric="memory_total_usage", reason="memory is short")

    async def act(executor: Executor) -> None:
        for seconds in (10.0, 10.0, 600.0, 10.0):
            report = await executor.run(Plan(node.now, (step,)), state=node.state(), cycle=1, needed=always)
            assert [StepOutcome.DONE] == fates(report)
            node.now += seconds

    node.acting(act)
    assert [("Pod", "p0", "PageCacheReclaimed")] * 2 == events(server)
    reported = server.content(EVENTS, sorted(server.names(EVENTS))[0])
    assert ("page cache reclaimed, 0 bytes less: memory is short", "Warning") == (reported["message"], reported["type"])


def test_no_events_are_written_for_a_while_after_a_failure(node: FakeNode, server: FakeKube):
    node.add(0, 1, 2)
    server.forbidden = {("create", "v1/events")}
    report = node.run(throttle(0), throttle(1), throttle(2))
    assert [StepOutcome.DONE] * 3 == fates(report)
    assert 1 == sum(each.resource == "v1/events" for each in server.asked)


# --- the end ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("on_exit", "back"), [(OnExit.KEEP, False), (OnExit.RESTORE, True)])
def test_values_at_the_end_of_the_agent_follow_on_exit(node: FakeNode, server: FakeKube, on_exit: OnExit, back: bool):
    node.add(0)
    node.run(throttle(0), AWAY)
    node.acting(lambda executor: executor.shut_down(on_exit))
    assert back == (node.quota() == "max 100000")
    assert back != tainted(server)


# --- effects ---------------------------------------------------------------------------------------------------------


def test_the_effect_is_measured_one_cycle_later(node: FakeNode):
    node.add(0, 1, 2, cpu=1.0)
    node.set_quota(50_000, 1)
    node.run(throttle(0), restore(1), evict(2), limits=generous())
    node.now += 10.0
    used = {number: replace(pod.containers[0], cpu=0.25) for number, pod in node.pods.items()}
    node.pods = {number: replace(node.pods[number], cpu=0.25, containers=(used[number],)) for number in (0, 1)}
    state = node.state()

    async def act(executor: Executor) -> dict[str, Any]:
        assert not await executor.measure_effects(State(NOW))  # of the same cycle
        unknown = State(node.now, missing={"pods": "the kubelet is away"})
        assert not await executor.measure_effects(unknown)  # no pods are known, which does not mean that there are none
        found = {each.pod: each.measured for each in await executor.measure_effects(state)}
        assert not await executor.measure_effects(state)
        return found

    found = node.acting(act)
    assert {"shop/p0": {"cpu": 750.0}, "shop/p1": {"cpu": -750.0}, "shop/p2": {"memory": 1e9}} == found
    assert all(each.measured_at == node.now for each in node.deeds())


def test_a_cancelled_plan_ends_its_write_before_the_restore(node: FakeNode):
    """As at SIGTERM: the write of the step must not come after the restore."""
    node.add(0)
    writing, go_on = threading.Event(), threading.Event()

    def pause(deed: AuditEntry) -> None:
        if deed.kind == "throttle" and deed.outcome is AuditOutcome.BEGUN:
            writing.set()
            assert go_on.wait(60)

    node.listen = pause

    async def act(executor: Executor) -> None:
        plan = Plan(NOW, (throttle(0),))
        task = asyncio.create_task(executor.run(plan, state=node.state(), cycle=1, needed=always))
        await asyncio.to_thread(writing.wait, 60)
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        await executor.shut_down(OnExit.RESTORE)

    node.acting(act)
    assert "max 100000" == node.quota()
    assert ["done", "done"] == [each.outcome for each in node.deeds()]
