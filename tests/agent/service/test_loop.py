"""The agent's cycles: their saved state, also after a restart, and their explanations."""

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.cgroups.base import Tree
from agent.cgroups.detection import Layout
from agent.cgroups.errors import CgroupBusy, CgroupRefused
from agent.cgroups.v2 import ALL, GroupV2
from agent.cgroups.values import Quota
from agent.clocks import Clocks
from agent.decision.analysis import NodeEvent
from agent.decision.eviction_limits import EvictionLimits
from agent.decision.plan import RuleVerdict
from agent.executor.executor import Executor
from agent.executor.report import EnforcementLevel
from agent.metrics.options import DecisionOptions
from agent.metrics.registry import Metrics
from agent.model import MetricSample, State
from agent.policy.source import DirectoryPolicies, PolicySource
from agent.qos import QosClass
from agent.service.loop import ANALYZER_STATE_KEY, Agent, NodeIdentity
from tests.agent.executor.node import CONTROL, FakeNode, with_api
from tests.agent.policy.writing import a_rule, an_object, node_qos, text_of, throttling, write
from tests.fakes.kube import BUDGETS, CONFIG_MAPS, FakeKube

METRICS, OPTIONS = Metrics(), DecisionOptions(settle=0.0)
BEST_EFFORT = {"matchExpressions": [{"scopeName": "QOSClass", "operator": "In", "values": ["BestEffort"]}]}


@dataclass
class Scripted:
    """A node with a usage set by the test and the quotas of its control groups."""

    node: FakeNode
    used: float | None = 1000.0
    looks: int = 0
    throttled: bool | None = None
    memory: float | None = None
    """Used memory of the node in bytes; None if it is not measured."""

    async def collect(self, now: float) -> State:
        self.looks += 1
        pods = []
        for number, pod in sorted(self.node.pods.items()):
            quota = self.node.quota(number).split()[0]
            limited = None if quota == "max" else int(quota)
            container = replace(pod.containers[0], quota=limited, throttled=self.throttled)
            pods.append(replace(pod, containers=(container,)))
        if self.used is None:
            return State(now, {}, tuple(pods), {"cpu_total_usage": "it is the first look"})
        seen = {"cpu_total_usage": self.used, "memory_total_usage": self.memory}
        series = {name: (MetricSample(value, now),) for name, value in seen.items() if value is not None}
        return State(now, series, tuple(pods))


@dataclass
class World:
    """An agent that runs single cycles on a node whose clock the test sets."""

    node: FakeNode
    policies: Path
    monotonic: float = 0.0
    reported: list[NodeEvent] = field(default_factory=list)
    enforce: bool = True
    tick: float = 0.0
    """Seconds by which the monotonic clock advances at each read."""
    boot: str = "boot-1"
    limits: EvictionLimits | None = None

    def __post_init__(self) -> None:
        self.collector = Scripted(self.node)
        self.policies.mkdir(exist_ok=True)

    def put(self, *rules: dict[str, Any], **action: Any) -> None:
        """Write policies with these rules; no policies without rules."""
        allowed = an_object("PodQOS", "be", allowedActions=["throttle"], scopeSelector=BEST_EFFORT)
        objects = (node_qos(*rules), throttling(**action), allowed) if rules else ()
        write(self.policies, all=text_of(*objects))

    def agent(self, executor: Executor, policies: PolicySource | None = None) -> Agent:
        async def tell(event: NodeEvent) -> None:
            self.reported.append(event)

        return Agent(
            collector=self.collector,
            policies=policies or DirectoryPolicies(self.policies, metrics=METRICS),
            executor=executor,
            audit=self.node.audit,
            metrics=METRICS,
            options=OPTIONS,
            surroundings=NodeIdentity("node-1"),
            clocks=Clocks(lambda: self.node.now, self.passed, self.boot),
            interval=10.0,
            emit_event=tell,
        )

    def run(self, test: Callable[[Agent], Awaitable[None]]) -> None:
        """Run `test` as one process of the agent."""

        async def inside(executor: Executor) -> None:
            agent = self.agent(executor)
            await agent.load_state()
            await test(agent)

        limits = {} if self.limits is None else {"limits": self.limits}
        self.node.acting(inside, enforce=self.enforce, monotonic=lambda: self.monotonic, boot=self.boot, **limits)

    def step_clock(
        self,
        before: Callable[[Agent], Awaitable[None]],
        jump: float,
        after: Callable[[Agent], Awaitable[None]],
        *,
        restart: bool,
    ) -> None:
        """Set the wall clock by `jump` seconds, while one agent runs, or between two."""

        async def both(agent: Agent) -> None:
            await before(agent)
            self.node.now += jump
            await after(agent)

        if not restart:
            self.run(both)
            return
        self.run(before)
        self.node.now += jump
        self.run(after)

    def passed(self) -> float:
        self.monotonic += self.tick
        return self.monotonic

    async def cycle(self, agent: Agent, used: float | None, *, seconds: float = 10.0) -> None:
        self.collector.used = used
        await agent.cycle()
        self.node.now += seconds
        self.monotonic += seconds


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    node = FakeNode(tmp_path / "node")
    node.add(0, 1, qos=QosClass.BEST_EFFORT)
    yield World(node, tmp_path / "policies")
    node.close()


def test_nothing_is_restored_while_the_labels_of_the_node_are_unknown(world: World):
    """As after a restart, until the API responds: a NodeQOS with a selector does not count as removed."""
    selecting = node_qos(a_rule())
    selecting["spec"]["selector"] = {"matchLabels": {"pool": "batch"}}
    allowed = an_object("PodQOS", "be", allowedActions=["throttle"], scopeSelector=BEST_EFFORT)
    write(world.policies, all=text_of(selecting, throttling(), allowed))
    quotas = []

    def of(labels: dict[str, str] | None) -> None:
        async def test(agent: Agent) -> None:
            agent.surroundings = replace(agent.surroundings, labels=lambda: labels)
            await world.cycle(agent, 4050.0)
            quotas.append(len(world.node.audit.original_quotas()))

        world.run(test)

    for labels in ({"pool": "batch"}, None, {"pool": "web"}):
        of(labels)
    assert [1, 1, 0] == quotas


@pytest.mark.parametrize(("quota", "outcomes"), [(300_000, ["done", "foreign"]), (150_000, ["done"])])
def test_a_quota_raised_by_another_program_stays_and_needs_no_restore(tmp_path: Path, quota: int, outcomes: list[str]):
    node = FakeNode(tmp_path / "node")
    node.add(0, qos=QosClass.BEST_EFFORT, quota=150_000)
    world = World(node, tmp_path / "policies")
    world.put(a_rule())

    async def test(agent: Agent) -> None:
        await world.cycle(agent, 4150.0)
        assert {"c0"} == set(node.audit.original_quotas())
        node.set_quota(quota)
        await world.cycle(agent, 1000.0)

    world.run(test)
    assert (f"{quota} 100000", {}) == (node.quota(), dict(node.audit.original_quotas()))
    assert outcomes == [deed.outcome.value for deed in node.deeds()]
    node.close()


def verdicts(agent: Agent) -> list[RuleVerdict]:
    assert agent.last.plan
    return [finding.verdict for finding in agent.last.plan.rules]


def test_counts_continue_from_cycle_to_cycle(world: World):
    world.put(a_rule(avoidanceThreshold=2))

    async def test(agent: Agent) -> None:
        await world.cycle(agent, 4150.0)
        assert verdicts(agent) == [RuleVerdict.COUNTING]
        assert world.node.quota(0) == "max 100000"
        await world.cycle(agent, 4150.0)
        assert verdicts(agent) == [RuleVerdict.TRIGGERED]
        assert "90000 100000" in {world.node.quota(0), world.node.quota(1)}

    world.run(test)


@pytest.mark.parametrize(("pause", "verdict"), [(20.0, RuleVerdict.TRIGGERED), (31.0, RuleVerdict.COUNTING)])
def test_counts_survive_a_restart_without_missed_cycles(world: World, pause: float, verdict: RuleVerdict):
    world.put(a_rule(avoidanceThreshold=2))

    async def before(agent: Agent) -> None:
        await world.cycle(agent, 4150.0, seconds=pause)

    async def after(agent: Agent) -> None:
        await world.cycle(agent, 4150.0)
        assert verdicts(agent) == [verdict]

    world.run(before)
    world.run(after)


def test_throttled_pods_are_restored_after_a_restart(world: World):
    world.put(a_rule(), coolDownSeconds=1)

    async def before(agent: Agent) -> None:
        await world.cycle(agent, 4400.0)
        assert world.node.audit.original_quotas()

    async def after(agent: Agent) -> None:
        world.collector.throttled = False
        for _ in range(8):
            await world.cycle(agent, 1000.0)
        assert {world.node.quota(0), world.node.quota(1)} == {"max 100000"}
        assert not world.node.audit.original_quotas()

    world.run(before)
    world.run(after)


def test_removed_policies_restore_all_values(world: World):
    world.put(a_rule())

    async def test(agent: Agent) -> None:
        await world.cycle(agent, 4400.0)
        assert world.node.audit.original_quotas()
        world.put()
        await world.cycle(agent, 4400.0)
        await world.cycle(agent, 4400.0)
        assert {world.node.quota(0), world.node.quota(1)} == {"max 100000"}

    world.run(test)


def test_nothing_is_changed_before_policies_were_read(world: World):
    world.put(a_rule())

    async def before(agent: Agent) -> None:
        await world.cycle(agent, 4400.0)

    world.run(before)
    throttled = [world.node.quota(0), world.node.quota(1)]
    write(world.policies, all="kind: [")

    async def after(agent: Agent) -> None:
        await world.cycle(agent, 1000.0)
        assert agent.last.plan is None
        explanation = agent.explanation()
        assert explanation["policies"]["known"] is False
        assert explanation["policies"]["problems"]
        assert explanation["sentences"] == ["no policies were read yet: no action taken"]

    world.run(after)
    assert [world.node.quota(0), world.node.quota(1)] == throttled


GENTLE = "load-watcher.io/gentle-steps"


def knob(world: World, name: str, number: int = 0) -> str:
    return world.node.cgroups.read(world.node.cgroups.pod_path(f"uid-{number}"), name).strip()


def test_a_weight_is_lowered_before_the_quota_and_restored_after_it(world: World):
    world.put(a_rule(), coolDownSeconds=1, annotations={GENTLE: "cpu.weight"})
    seen: list[tuple[str, str]] = []

    async def cycles(agent: Agent, used: float, count: int) -> None:
        for _ in range(count):
            await world.cycle(agent, used)
            seen.append((knob(world, "cpu.weight"), world.node.quota(0).split()[0]))

    async def until_throttled(agent: Agent) -> None:
        await cycles(agent, 4050.0, 5)

    async def then_quiet(agent: Agent) -> None:
        world.collector.throttled = False
        await cycles(agent, 1000.0, 3)

    world.run(until_throttled)
    world.run(then_quiet)  # after a restart
    assert [("1", "max")] * 4 + [("1", "90000")] == seen[:5]
    assert [("1", "max"), ("100", "max"), ("100", "max")] == seen[5:]
    assert ("100", "max 100000", 0) == (
        knob(world, "cpu.weight", 1),
        world.node.quota(1),
        world.node.audit.count_originals(),
    )
    assert ["throttle", "throttle", "restore", "restore"] == [deed.kind for deed in world.node.deeds()]


class _Refusing(GroupV2):
    """Refuses the weight, as the kernel does for a group with cpu.idle (EINVAL)."""

    __slots__ = ()
    refused_quotas = 0

    def set_only_quota(self, quota: Quota) -> None:
        if type(self).refused_quotas:
            type(self).refused_quotas -= 1
            raise CgroupRefused(f"the kernel does not take {quota}", path=self.path)
        super().set_only_quota(quota)

    def set_weight(self, weight: int) -> None:
        raise CgroupRefused(f"the kernel does not take {weight}", path=self.path)

    def set_memory_high(self, limit: int | None) -> None:
        raise CgroupBusy(f"the kernel does not take {limit}", path=self.path)


class _RefusingNode(FakeNode):
    def tree(self, layout: Layout) -> Tree:
        if self._tree is None:
            self._tree = Tree({ALL: layout.root}, _Refusing)
        return self._tree


@pytest.fixture
def refusing(tmp_path: Path) -> Iterator[World]:
    """A node whose kernel accepts quotas but no soft limits."""
    with FakeKube() as server:
        server.node("node-1")
        server.put(CONFIG_MAPS, CONTROL, data={"evictions-per-minute": "100", "nodes-at-once": "100%"})
        node = _RefusingNode(tmp_path / "node", server=server)
        node.add(0, 1, qos=QosClass.BEST_EFFORT)
        yield World(node, tmp_path / "policies")
        node.close()


def test_a_pod_whose_weight_cannot_be_lowered_gets_a_quota(refusing: World):
    refusing.put(a_rule(), annotations={GENTLE: "cpu.weight"})

    async def test(agent: Agent) -> None:
        await refusing.cycle(agent, 4050.0)
        assert ["90000 100000", "max 100000"] == [refusing.node.quota(0), refusing.node.quota(1)]

    refusing.run(test)
    assert [("throttle", "failed"), ("throttle", "done")] == [
        (deed.kind, deed.outcome) for deed in refusing.node.deeds() if deed.pod
    ]


def test_a_pod_whose_memory_high_cannot_be_lowered_is_evicted(refusing: World):
    """Once the soft limits of all other pods are refused, too."""
    allowed = an_object("PodQOS", "be", allowedActions=["hold"], scopeSelector=BEST_EFFORT)
    high = a_rule(metricRule={"name": "memory_total_usage", "value": "8000000000"}, actionName="hold")
    hold = an_object("AvoidanceAction", "hold", annotations={GENTLE: "memory.high"}, eviction={})
    write(refusing.policies, all=text_of(node_qos(high), hold, allowed))

    async def test(agent: Agent) -> None:
        refusing.collector.memory = 8.04e9
        for _ in range(2):
            await refusing.cycle(agent, 1000.0)
        reported = [each["why"] for each in agent.explanation()["plan"]["stages"][0]["candidates"]]
        assert "the kernel recently refused to lower its memory.high" in reported

    refusing.run(test)
    refused = [("hold", "shop/p0", "failed"), ("hold", "shop/p1", "failed")]
    assert [*refused, ("evict", "shop/p0", "done")] == [
        (deed.kind, deed.pod, deed.outcome) for deed in refusing.node.deeds() if deed.pod
    ]


@pytest.mark.parametrize("evicts", [False, True])
def test_a_refused_quota_releases_nothing_and_changes_the_plan(refusing: World, evicts: bool):
    """As with nested groups of version 1, or with a burst on a kernel that does not show it."""
    throttle = an_object(
        "AvoidanceAction",
        "throttle",
        throttle={"cpuThrottle": {"stepCPURatio": 10}},
        **({"eviction": {}} if evicts else {}),
    )
    allowed = an_object("PodQOS", "be", allowedActions=["throttle"], scopeSelector=BEST_EFFORT)
    write(refusing.policies, all=text_of(node_qos(a_rule()), throttle, allowed))
    _Refusing.refused_quotas = 1 if not evicts else 100

    async def test(agent: Agent) -> None:
        for used in (4050.0, 4350.0, 4350.0, 4350.0):
            await refusing.cycle(agent, used)

    try:
        refusing.run(test)
    finally:
        _Refusing.refused_quotas = 0
    deeds = [(deed.kind, deed.pod, str(deed.outcome)) for deed in refusing.node.deeds() if deed.pod]
    assert deeds.count(("throttle", "shop/p0", "failed")) == 1
    if evicts:
        assert deeds[:3] == [
            ("throttle", "shop/p0", "failed"),
            ("throttle", "shop/p1", "failed"),
            ("evict", "shop/p0", "done"),
        ]
    else:
        assert deeds[1] == ("throttle", "shop/p1", "done")


def holding(world: World, *, rule: bool = True) -> None:
    """Policies that lower memory.high of BestEffort pods while the node uses more than 8 GB."""
    allowed = an_object("PodQOS", "be", allowedActions=["hold"], scopeSelector=BEST_EFFORT)
    high = a_rule(metricRule={"name": "memory_total_usage", "value": "8000000000"}, actionName="hold")
    hold = an_object("AvoidanceAction", "hold", coolDownSeconds=1, annotations={GENTLE: "memory.high"})
    write(world.policies, all=text_of(node_qos(high), hold, allowed) if rule else "")


def test_memory_high_is_lowered_by_the_gap_and_restored_pod_by_pod(world: World):
    holding(world)

    async def test(agent: Agent) -> None:
        world.collector.memory = 8.05e9  # 55 MB are wanted, and a pod gives 50 MB at most
        await world.cycle(agent, 1000.0)
        held = [int(knob(world, "memory.high", number)) for number in (0, 1)]
        assert [949_944_320, 995_033_088] == held  # in multiples of 64 KiB
        await world.cycle(agent, 1000.0)
        assert held == [int(knob(world, "memory.high", number)) for number in (0, 1)]  # it is in flight
        world.collector.memory = 7e9
        left = []
        for _ in range(6):
            await world.cycle(agent, 1000.0)
            left.append(world.node.audit.count_originals())
        assert [1, 1, 1, 1, 0, 0] == left
        assert ["max", "max"] == [knob(world, "memory.high", number) for number in (0, 1)]

    world.run(test)


def test_a_removed_policy_restores_knobs_at_once(world: World):
    holding(world)

    async def test(agent: Agent) -> None:
        world.collector.memory = 9e9
        await world.cycle(agent, 1000.0)
        assert 2 == world.node.audit.count_originals()
        holding(world, rule=False)
        await world.cycle(agent, 1000.0)
        assert 0 == world.node.audit.count_originals()
        assert ["max", "max"] == [knob(world, "memory.high", number) for number in (0, 1)]

    world.run(test)


def test_a_removed_rule_restores_what_other_rules_of_its_action_cannot(world: World):
    """A rule on memory cannot throttle, and one on CPU cannot lower memory.high, for any action."""
    allowed = an_object("PodQOS", "be", allowedActions=["both"], scopeSelector=BEST_EFFORT)
    throttle = {"cpuThrottle": {"stepCPURatio": 10}}
    both = an_object("AvoidanceAction", "both", throttle=throttle, annotations={GENTLE: "memory.high"})
    cpu = a_rule(actionName="both")
    memory = a_rule("memory", metricRule={"name": "memory_total_usage", "value": "8000000000"}, actionName="both")

    def put(*rules: dict[str, Any]) -> None:
        write(world.policies, all=text_of(node_qos(*rules), both, allowed))

    async def test(agent: Agent) -> None:
        for taken, left, used, in_use in ((cpu, memory, 4050.0, 7e9), (memory, cpu, 1000.0, 9e9)):
            put(cpu, memory)
            world.collector.memory = in_use
            await world.cycle(agent, used)
            assert world.node.audit.count_originals(), taken
            put(left)
            await world.cycle(agent, used)
            assert not world.node.audit.count_originals(), taken

    world.run(test)


def test_preview_shows_the_soft_limits(world: World):
    holding(world)
    world.enforce = False

    async def test(agent: Agent) -> None:
        world.collector.memory = 9e9
        await world.cycle(agent, 1000.0)
        reported = [each["text"] for each in agent.explanation()["results"] if each["step"]["kind"] == "hold"]
        assert [f"would set memory.high of shop/p{number} to 949944320" for number in (0, 1)] == reported
        assert ["max", "max"] == [knob(world, "memory.high", number) for number in (0, 1)]

    world.run(test)


def test_preview_changes_nothing_and_reports_the_steps(world: World):
    world.put(a_rule())
    world.enforce = False

    async def test(agent: Agent) -> None:
        await world.cycle(agent, 4400.0)
        assert agent.explanation()["stance"] == EnforcementLevel.PREVIEW
        assert {result["fate"] for result in agent.explanation()["results"]} == {"would"}
        assert {world.node.quota(0), world.node.quota(1)} == {"max 100000"}
        await world.cycle(agent, 4400.0)
        assert len(agent.explanation()["in_flight"]) == 0

    world.run(test)


def test_preview_stays_within_the_eviction_limits_of_the_node(world: World):
    """By default, one pod of an owner."""
    for number, pod in world.node.pods.items():
        world.node.pods[number] = replace(pod, owner="ReplicaSet/web")
    evicting(world)
    world.enforce = False

    async def test(agent: Agent) -> None:
        await world.cycle(agent, 9000.0)
        results = agent.explanation()["results"]
        assert ["shop/p0"] == [each["step"]["pod"] for each in results if each["step"]["kind"] == "evict"]
        assert "eviction limit of ReplicaSet/web in namespace shop reached" in str(
            agent.explanation()["plan"]["stages"]
        )

    world.run(test)


def test_a_triggered_or_restored_rule_has_one_event(world: World):
    world.put(a_rule(), coolDownSeconds=1)

    async def test(agent: Agent) -> None:
        for used in (4400.0, 4400.0, 4400.0, 1000.0, 1000.0):
            await world.cycle(agent, used)
        assert [(event.type, event.reason) for event in world.reported] == [
            ("Warning", "AvoidanceTriggered"),
            ("Normal", "RestoreTriggered"),
        ]

    world.run(test)


def test_the_explanation_is_valid_json(world: World):
    world.put(a_rule())

    async def test(agent: Agent) -> None:
        for used in (4400.0, None, math.inf):
            await world.cycle(agent, used)
            body = msgspec.json.encode(agent.explanation())
            json.loads(body, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
        assert "cpu_total_usage" in agent.explanation()["plan"]["rules"][0]["text"]

    world.run(test)


def test_a_missing_metric_is_reported_and_nothing_is_changed(world: World):
    world.put(a_rule())

    async def test(agent: Agent) -> None:
        await world.cycle(agent, None)
        assert verdicts(agent) == [RuleVerdict.MISSING]
        assert agent.explanation()["missing"] == {"cpu_total_usage": "it is the first look"}
        assert {world.node.quota(0), world.node.quota(1)} == {"max 100000"}

    world.run(test)


def test_usage_is_read_again_before_a_step_unless_it_is_fresh(world: World):
    world.put(a_rule())

    async def test(agent: Agent) -> None:
        await world.cycle(agent, 4400.0)
        assert world.collector.looks == 1

    world.run(test)


def test_an_audit_file_that_cannot_be_written_stops_all_steps(world: World):
    world.put(a_rule())

    async def test(agent: Agent) -> None:
        world.node.audit.close()
        await world.cycle(agent, 4400.0)
        assert agent.last.trouble
        assert agent.explanation()["trouble"] == agent.last.trouble
        assert {world.node.quota(0), world.node.quota(1)} == {"max 100000"}

    world.run(test)
    world.node.audit = world.node.open_audit()


def evicting(world: World) -> None:
    """Policies that evict BestEffort pods while the node uses more than 4 cores."""
    allowed = an_object("PodQOS", "be", allowedActions=["evict"], scopeSelector=BEST_EFFORT)
    rule = a_rule(actionName="evict")
    write(world.policies, all=text_of(node_qos(rule), an_object("AvoidanceAction", "evict", eviction={}), allowed))


def test_a_protected_pod_is_replaced_by_another_in_the_same_cycle(tmp_path: Path):
    """The first pod in the order has a disruption budget."""
    with FakeKube() as server:
        node = with_api(tmp_path / "node", server)
        node.add(0, qos=QosClass.BEST_EFFORT, cpu=2.0)
        node.add(1, qos=QosClass.BEST_EFFORT)
        server.pod("shop/p0", node="node-1", metadata={"uid": "uid-0", "labels": {"app": "x"}})
        covered = {"selector": {"matchLabels": {"app": "x"}}}
        server.put(BUDGETS, "shop/b", spec=covered, status={"disruptionsAllowed": 0})
        world = World(node, tmp_path / "policies")
        evicting(world)

        async def test(agent: Agent) -> None:
            await world.cycle(agent, 4500.0)
            fates = [(each["step"].get("pod"), each["fate"]) for each in agent.explanation()["results"]]
            assert ("shop/p0", "protected") in fates
            assert ("shop/p1", "done") in fates

        world.run(test)
        node.close()


def test_an_error_during_a_plan_keeps_the_steps_before_it(tmp_path: Path):
    """Two pods are to be evicted; after the first one the node cannot be read again. It counts in the next cycle."""

    class Failing(Scripted):
        async def collect(self, now: float) -> State:
            if self.looks == 3:
                self.looks += 1
                raise RuntimeError("a bug of the agent")
            return await super().collect(now)

    with FakeKube() as server:
        node = with_api(tmp_path / "node", server)
        node.add(0, 1, 2, qos=QosClass.BEST_EFFORT)
        world = World(node, tmp_path / "policies")
        evicting(world)
        world.collector = Failing(node)

        async def test(agent: Agent) -> None:
            world.tick = 2.0  # usage is read again before every step
            await world.cycle(agent, 5500.0)
            assert "RuntimeError" in agent.explanation()["trouble"]
            assert 1 == agent.failures
            (gone,) = agent.explanation()["in_flight"]
            assert ("evict", "shop/p0") == (gone["kind"], gone["pod"])
            await world.cycle(agent, 4500.0)
            assert ["shop/p0"] == [each["pod"] for each in agent.explanation()["in_flight"]]

        world.run(test)
        node.close()


STEPS = [sign * step for step in (6.0, 60.0, 600.0, 3_600.0, 86_400.0) for sign in (1, -1)]
"""Of the wall clock, in seconds; up to 5 s count as the time between two cycles."""


@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("jump", STEPS)
def test_a_clock_change_does_not_change_deadlines_of_steps_in_flight(tmp_path: Path, jump: float, restart: bool):
    """An evicted pod counts until its deadline, and no other pod replaces it."""
    with FakeKube() as server:
        node = with_api(tmp_path / "node", server)
        node.add(0, 1, 2, qos=QosClass.BEST_EFFORT)
        world = World(node, tmp_path / "policies")
        evicting(world)

        def going(agent: Agent) -> list[tuple[str, float]]:
            return [(each["pod"], each["deadline"] - node.now) for each in agent.explanation()["in_flight"]]

        async def before(agent: Agent) -> None:
            await world.cycle(agent, 4500.0)
            assert [("shop/p0", 50.0)] == going(agent)  # its grace period, 30 s, minus the elapsed time

        async def after(agent: Agent) -> None:
            await world.cycle(agent, 4500.0)
            assert [("shop/p0", pytest.approx(40.0, abs=1.0))] == going(agent)

        world.step_clock(before, jump, after, restart=restart)
        node.close()


@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("jump", STEPS)
def test_a_clock_change_does_not_change_a_cool_down(world: World, jump: float, restart: bool, caplog):
    """It is logged once."""
    world.put(a_rule(), coolDownSeconds=25)
    world.collector.throttled = False

    async def before(agent: Agent) -> None:
        await world.cycle(agent, 4050.0)

    async def after(agent: Agent) -> None:
        for owed in (1, 1, 0):
            await world.cycle(agent, 1000.0)
            assert owed == len(world.node.audit.original_quotas())

    world.step_clock(before, jump, after, restart=restart)
    assert 1 == sum("wall clock jumped by" in each for each in caplog.messages)


@contextmanager
def one_eviction(
    folder: Path,
) -> Iterator[tuple[World, Callable[[], int], Callable[[Agent], Coroutine[Any, Any, None]]]]:
    """A node where a rule would evict three pods and the limit allows one; the number of evictions; and a first cycle,
    which evicts one pod."""
    with FakeKube() as server:
        node = with_api(folder / "node", server)
        node.add(0, 1, 2, qos=QosClass.BEST_EFFORT)
        world = World(node, folder / "policies")
        evicting(world)
        world.limits = EvictionLimits(evictions_per_node=1)

        def evicted() -> int:
            return sum(each.kind == "evict" for each in node.deeds())

        async def before(agent: Agent) -> None:
            await world.cycle(agent, 8500.0)
            assert 1 == evicted()

        yield world, evicted, before
        node.close()


@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("jump", STEPS)
def test_a_clock_change_does_not_change_the_eviction_limits(tmp_path: Path, jump: float, restart: bool):
    """The limit of evictions within ten minutes holds for ten minutes."""
    with one_eviction(tmp_path) as (world, evicted, before):

        async def after(agent: Agent) -> None:
            for seconds, count in ((550.0, 1), (60.0, 1), (10.0, 2)):
                await world.cycle(agent, 8500.0, seconds=seconds)
                assert count == evicted()

        world.step_clock(before, jump, after, restart=restart)


@pytest.mark.parametrize("between", ["agent", "machine"])
@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("jump", [3_600.0, -3_600.0])
def test_evictions_before_a_clock_change_count_after_another_restart(
    tmp_path: Path, jump: float, restart: bool, between: str
):
    """The audit has times of the old clock, and the saved state has only the new clock."""
    with one_eviction(tmp_path) as (world, evicted, before):

        async def meanwhile(agent: Agent) -> None:
            await world.cycle(agent, 8500.0, seconds=100.0)
            assert 1 == evicted()

        async def after(agent: Agent) -> None:
            for seconds, count in ((400.0, 1), (80.0, 1), (30.0, 1), (10.0, 2)):
                await world.cycle(agent, 8500.0, seconds=seconds)
                assert count == evicted()

        world.step_clock(before, jump, meanwhile, restart=restart)
        if between == "machine":
            world.boot, world.monotonic = "boot-2", 5.0
        world.run(after)


@pytest.mark.parametrize("ahead", [60.0, 600.0, 3_600.0, 86_400.0])
def test_a_state_from_the_future_counts_from_now_after_a_reboot(world: World, ahead: float, caplog):
    """The clock was ahead before, and it is unknown when it was set back. No cool-down becomes longer."""
    world.put(a_rule(), coolDownSeconds=25)
    world.collector.throttled = False

    async def before(agent: Agent) -> None:
        await world.cycle(agent, 4050.0)

    async def after(agent: Agent) -> None:
        for owed in (1, 1, 1, 0):
            await world.cycle(agent, 1000.0)
            assert owed == len(world.node.audit.original_quotas())

    world.run(before)
    world.node.now, world.monotonic, world.boot = world.node.now - ahead, 0.0, "boot-2"
    world.run(after)
    (said,) = (each for each in caplog.messages if "the saved state is" in each)
    assert f"{ahead - 10.0:.0f} s ahead of the clock of this node" in said


def test_a_cool_down_continues_after_an_upgrade_from_a_version_with_one_for_all_rules(world: World):
    world.put(a_rule(), coolDownSeconds=25)
    world.collector.throttled = False

    async def before(agent: Agent) -> None:
        await world.cycle(agent, 4050.0)
        saved = world.node.audit.load_value(ANALYZER_STATE_KEY, dict[str, Any])
        assert saved is not None
        (last,) = {each.pop("last_triggered") for each in saved["rules"].values()}
        world.node.audit.save_value(ANALYZER_STATE_KEY, {**saved, "last_triggered": last})

    async def after(agent: Agent) -> None:
        for owed in (1, 1, 0):
            await world.cycle(agent, 1000.0)
            assert owed == len(world.node.audit.original_quotas())

    world.run(before)
    world.run(after)


def test_a_monotonic_clock_that_stops_or_jumps_ends_no_cycle(world: World):
    world.put(a_rule(), coolDownSeconds=1)

    async def test(agent: Agent) -> None:
        for leap in (-10.0, 3600.0, 0.0):
            await world.cycle(agent, 4050.0)
            world.monotonic += leap
        assert (3, "") == (agent.last.number, agent.last.trouble)
        assert 1 == len(world.node.audit.original_quotas())

    world.run(test)


@pytest.mark.parametrize("whole", [True, False], ids=["the pod", "the container"])
def test_a_pod_that_ends_between_plan_and_write_is_replaced_by_another(world: World, whole: bool):
    class Ending(Scripted):
        async def collect(self, now: float) -> State:
            state = await super().collect(now)
            if self.looks == 1:
                world.node.cgroups.remove(world.node.cgroups.pod_path("uid-0") if whole else world.node.path(0))
                del world.node.pods[0]
            return state

    world.put(a_rule())
    world.collector = Ending(world.node)

    async def test(agent: Agent) -> None:
        await world.cycle(agent, 4050.0)
        fates = [
            (each["step"]["pod"], each["fate"]) for each in agent.explanation()["results"] if "pod" in each["step"]
        ]
        assert [("shop/p0", "gone"), ("shop/p1", "done")] == fates
        assert {"c1"} == set(world.node.audit.original_quotas())
        assert "90000 100000" == world.node.quota(1)

    world.run(test)


def test_a_failed_cycle_is_counted_and_the_next_one_runs(world: World):
    class Failing(Scripted):
        async def collect(self, now: float) -> State:
            self.looks += 1
            if self.looks == 1:
                raise RuntimeError("a bug of the agent")
            raise asyncio.CancelledError

    world.put(a_rule())
    world.collector = Failing(world.node)

    async def test(agent: Agent) -> None:
        agent.interval = 0.001
        world.monotonic += 0.01
        with pytest.raises(asyncio.CancelledError):
            await agent.run()
        assert agent.failures == 1
        assert world.collector.looks == 2

    world.run(test)
