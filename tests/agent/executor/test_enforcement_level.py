"""How much may be done at all, and what is done when something stands in the way."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agent.audit.log import AuditEntry, AuditOutcome
from agent.decision.plan import Plan
from agent.executor.executor import Executor
from agent.executor.groups import CgroupLock
from agent.executor.permissions import OnExit
from agent.executor.report import EnforcementLevel, PlanReport, StepOutcome
from agent.model import SCHEDULING_CONDITION, SCHEDULING_TAINT, PodState, ReclaimStep, SchedulingStep, State, Step
from tests.agent.executor.node import (
    CONTROL,
    NOW,
    FakeNode,
    always,
    events,
    evict,
    generous,
    restore,
    throttle,
    with_api,
)
from tests.fakes.kube import CONFIG_MAPS, EVENTS, NODES, PODS, Asked, FakeKube
from tests.fakes.kube_rules import status_object

AWAY = SchedulingStep(disable=True, reason="cpu is short")
WELCOME = SchedulingStep(disable=False, reason="cpu is enough")


@pytest.fixture
def server() -> Iterator[FakeKube]:
    with FakeKube() as server:
        yield server


@pytest.fixture
def node(tmp_path: Path, server: FakeKube) -> Iterator[FakeNode]:
    node = with_api(tmp_path, server)
    yield node
    node.close()


def fates(report: PlanReport) -> list[StepOutcome]:
    return [each.fate for each in report.results]


def tainted(server: FakeKube) -> bool:
    content = server.content(NODES, "node-1")
    taints = [each["key"] for each in content.get("spec", {}).get("taints", [])]
    conditions = {each["type"]: each["status"] for each in content["status"]["conditions"]}
    assert (SCHEDULING_TAINT in taints) == (conditions.get(SCHEDULING_CONDITION) == "True")
    return SCHEDULING_TAINT in taints


def changes(server: FakeKube) -> list[str]:
    """What was asked of the API that changes something."""
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
def test_beside_another_agent_nothing_is_enforced(node: FakeNode, rival: PodState):
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


def test_of_two_of_ours_one_enforces(node: FakeNode):
    """Whatever files they keep: what both see is the groups."""
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
    top.mkdir()  # the kubelet made it anew: who comes first has it
    assert () == first.acquire()
    assert second.acquire()
    first.release()
    second.release()
    assert () == CgroupLock(lambda: str(top / "not there")).acquire()


def test_when_another_agent_comes_everything_is_given_back_to_it(node: FakeNode, server: FakeKube):
    node.add(0)
    node.run(throttle(0), AWAY)
    node.pods[9] = PodState("koordinator-system", "koordlet-x", "k", labels={"koord-app": "koordlet"}, host_paths=True)
    report = node.run(throttle(0, before=50_000, after=40_000))
    assert EnforcementLevel.RESTORE_ALL is report.level
    assert ("max 100000", False) == (node.quota(), tainted(server))
    assert EnforcementLevel.PREVIEW is node.run(throttle(0)).level


def test_preview_after_enforcing_says_what_still_stands(node: FakeNode):
    node.add(0)
    node.run(throttle(0))
    report = node.run(enforce=False)
    assert "1 changes of an earlier run stay until load-watcher agent restore is run" in report.why
    assert "50000 100000" == node.quota()


def test_another_agent_without_a_pod_is_found_by_its_process(node: FakeNode):
    node.add(0)
    comm = node.directory / "proc" / "77" / "comm"
    comm.parent.mkdir(parents=True)
    comm.write_text("koordlet\n")
    report = node.run(throttle())
    assert (EnforcementLevel.PREVIEW, True) == (report.level, "koordlet (process)" in report.why)


@pytest.mark.parametrize(
    "line", ["0::/../../kubepods-burstable-poduid_9.slice/cri-containerd-c.scope", "4:cpu:/kubepods/poduid-9/c"]
)
def test_a_process_of_a_pod_without_access_to_the_host_is_no_agent(node: FakeNode, line: str):
    """Any container may name its processes so."""
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
    """Usage is read again before each, with what was done so far."""
    node.add(0, 1, 2)
    asked: list[list[str]] = []

    async def needed(step: Step, done: Sequence[Step]) -> str:
        asked.append([each.uid for each in done if not isinstance(each, SchedulingStep)])
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
    assert (evict(1), throttle(2)) == report.booked  # the pod that had gone releases all the same


def test_where_the_audit_cannot_be_written_nothing_is_done(node: FakeNode, server: FakeKube):
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


def test_new_pods_are_kept_away_and_let_in_again(node: FakeNode, server: FakeKube):
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


def test_a_taint_that_could_not_be_taken_off_is_tried_again(node: FakeNode, server: FakeKube):
    """In the next cycles, until it can or until the opposite is wanted."""
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


def test_a_rule_that_stays_triggered_sets_the_taint_once_and_looks_after_it_later(node: FakeNode, server: FakeKube):
    """Else every cycle would be a deed, and the audit would have nothing else in it after two days."""

    async def act(executor: Executor) -> list[StepOutcome]:
        found = []
        for seconds in (0.0, 10.0, 20.0, 330.0):
            node.now = NOW + seconds
            plan = Plan(node.now, (AWAY,), scheduling_disabled=True)
            found += fates(await executor.run(plan, state=node.state(), cycle=1, needed=always))
            if seconds == 20.0:
                server.node("node-1")  # somebody took it off
        return found

    assert [StepOutcome.DONE, StepOutcome.NOT_NEEDED, StepOutcome.NOT_NEEDED, StepOutcome.DONE] == node.acting(act)
    assert tainted(server)


def test_a_taint_that_an_earlier_run_could_not_take_off_is_taken_off_by_the_next(node: FakeNode, server: FakeKube):
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
def test_off_keeps_everything_new_from_being_done(node: FakeNode, server: FakeKube, word: str):
    """A word that is not known too: somebody wanted something stopped."""
    node.add(0, 1)
    node.run(throttle(0), AWAY)
    control(server, enforcement=word)
    report = node.run(AWAY, throttle(1), evict(1), restore(0), WELCOME, limits=generous())
    assert EnforcementLevel.RESTORE_ONLY is report.level
    assert [StepOutcome.NOT_ALLOWED] * 3 + [StepOutcome.DONE] * 2 == fates(report)
    assert ("max 100000", "max 100000", False) == (node.quota(0), node.quota(1), tainted(server))


def test_restore_gives_everything_back_within_a_cycle_that_has_nothing_to_do(node: FakeNode, server: FakeKube):
    node.add(0, 1)
    node.run(throttle(0), AWAY)
    control(server, enforcement="restore")
    report = node.run()
    assert EnforcementLevel.RESTORE_ALL is report.level
    assert ("max 100000", False) == (node.quota(0), tainted(server))
    assert [StepOutcome.NOT_ALLOWED] == fates(node.run(throttle(1)))


def test_a_brake_that_was_pulled_stays_so_while_the_api_is_away_even_over_a_restart(node: FakeNode, server: FakeKube):
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
def test_without_a_budget_only_quotas_are_changed(node: FakeNode, server: FakeKube, trouble: str):
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


def test_that_less_is_done_than_was_asked_for_is_in_the_log_once(
    node: FakeNode, server: FakeKube, caplog: pytest.LogCaptureFixture
):
    """And that all is done again. Who only looks into the log would think that it acts."""
    caplog.set_level("INFO", logger="agent.executor.executor")
    node.add(0, 1)

    async def act(executor: Executor) -> None:
        server.delete(CONFIG_MAPS, CONTROL)
        for number in range(1, 5):
            if number == 3:
                control(server)
            await executor.run(Plan(NOW, (throttle(0),)), state=node.state(), cycle=number, needed=always)

    node.acting(act)
    told = [each.getMessage() for each in caplog.records if "enforcement res" in each.getMessage()]
    assert len(told) == 2, told
    assert told[0].startswith("enforcement restricted to 'throttle only': the ConfigMap ")
    assert told[1] == "full enforcement resumed"


def test_while_the_api_is_away_nothing_is_asked_of_it_but_once(node: FakeNode, server: FakeKube):
    """Quotas must not wait for Events, nor for a taint; that is tried again when the API is back."""
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


def test_an_api_that_goes_away_in_the_middle_of_a_plan_is_waited_for_once(node: FakeNode, server: FakeKube):
    node.add(0, 1, 2, 3)

    def busy(request: Asked) -> web.Response | None:
        away = request.resource == "v1/pods"
        return web.json_response(status_object(503, "the server is ending"), status=503) if away else None

    server.fault = busy
    report = node.run(evict(0), evict(1), evict(2), throttle(3), limits=generous())
    assert [StepOutcome.NOT_ALLOWED] * 3 + [StepOutcome.DONE] == fates(report)
    assert (EnforcementLevel.THROTTLE_ONLY, {}) == (report.level, report.unavailable)
    assert 1 == sum(each.resource == "v1/pods" for each in server.asked)


def test_a_server_that_hangs_holds_quotas_up_for_as_long_as_our_patience_lasts(node: FakeNode, server: FakeKube):
    node.add(0)
    node.patience = 0.2
    server.delay = 3600.0
    report = node.run(throttle(0), AWAY)
    server.delay = 0.0
    assert "cannot be read: " in report.why
    assert [StepOutcome.DONE, StepOutcome.FAILED] == fates(report)


def test_page_cache_that_is_taken_again_and_again_is_told_now_and_then(node: FakeNode, server: FakeKube):
    node.add(0)
    step = ReclaimStep("shop/p0", "uid-0", 1 << 20, "memory_total_usage", reason="memory is short")

    async def act(executor: Executor) -> None:
        for seconds in (10.0, 10.0, 600.0, 10.0):
            report = await executor.run(Plan(node.now, (step,)), state=node.state(), cycle=1, needed=always)
            assert [StepOutcome.DONE] == fates(report)
            node.now += seconds

    node.acting(act)
    assert [("Pod", "p0", "PageCacheReclaimed")] * 2 == events(server)
    told = server.content(EVENTS, sorted(server.names(EVENTS))[0])
    assert ("page cache reclaimed, 0 bytes less: memory is short", "Warning") == (told["message"], told["type"])


def test_events_that_cannot_be_written_are_given_up_for_a_while(node: FakeNode, server: FakeKube):
    node.add(0, 1, 2)
    server.forbidden = {("create", "v1/events")}
    report = node.run(throttle(0), throttle(1), throttle(2))
    assert [StepOutcome.DONE] * 3 == fates(report)
    assert 1 == sum(each.resource == "v1/events" for each in server.asked)


# --- the end ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("on_exit", "back"), [(OnExit.KEEP, False), (OnExit.RESTORE, True)])
def test_what_becomes_of_it_all_when_the_agent_ends(node: FakeNode, server: FakeKube, on_exit: OnExit, back: bool):
    node.add(0)
    node.run(throttle(0), AWAY)
    node.acting(lambda executor: executor.shut_down(on_exit))
    assert back == (node.quota() == "max 100000")
    assert back != tainted(server)


# --- effects ---------------------------------------------------------------------------------------------------------


def test_what_was_planned_is_held_against_what_is_measured_a_cycle_later(node: FakeNode):
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


def test_who_is_cancelled_has_ended_writing_before_everything_is_put_back(node: FakeNode):
    """As at SIGTERM: the step that is being written must not come after the restoring."""
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
