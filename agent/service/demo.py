"""`load-watcher agent demo`: the agent on its own control group and its own busy processes, on any Linux machine.

Two BestEffort pods and one Guaranteed pod are processes of this program. A rule is written whose watermark is below the
measured usage, so the agent throttles the BestEffort pods; then the Guaranteed pod ends, and the agent restores them.
Without write access to the control groups the plan is shown, and nothing is changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import yaml

from agent.audit.log import Audit
from agent.cgroups.detection import KubeletGroups, Layout, NoCgroups, Version, find_layout
from agent.cgroups.paths import Driver
from agent.clocks import Clocks
from agent.executor.executor import Executor, Permissions
from agent.metrics.options import DecisionOptions
from agent.metrics.registry import Metrics
from agent.model import ContainerState, PodState, State
from agent.policy.source import DirectoryPolicies
from agent.qos import QosClass
from agent.service.dependencies import known_metrics, open_audit
from agent.service.loop import Agent, NodeIdentity
from agent.service.settings import AgentSettings
from agent.state.collector import Collector, SystemPaths
from agent.state.proc_reader import ProcReader
from agent.state.readings import MetricReadings, PodFacts

INTERVAL_S = 2.0
MEASURED_S = 4.0
LOADED_SHARE = 0.45
"""Fraction of the time after which the Guaranteed pod ends."""
REMOVE_ATTEMPTS = 50
CORES = {"batch-a": 0.4, "batch-b": 0.3, "web": 0.6}
_BUSY = """
import ctypes, os, signal, sys, time
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # ends with the demonstration
if os.getppid() != int(sys.argv[1]):
    sys.exit()
sys.stdin.readline()
share = float(sys.argv[2])
while True:
    start = time.process_time()
    while time.process_time() - start < 0.05 * share:
        pass
    time.sleep(0.05 * (1 - share))
"""


@dataclass(slots=True)
class DemoPod:
    """A pod of one container, which is one process."""

    facts: PodFacts
    process: subprocess.Popen[str]

    @property
    def name(self) -> str:
        return self.facts.pod.name


class DemoPods:
    """The pods of the demonstration, as a pod source of the agent."""

    def __init__(self, pods: list[DemoPod]) -> None:
        self.pods = pods

    async def start(self) -> None:
        """Do nothing: the pods are known."""

    async def close(self) -> None:
        """Do nothing: the pods are known."""

    def listing(self, *, monotonic: float, max_age: float) -> tuple[PodFacts, ...]:
        """The pods whose process runs."""
        return tuple(each.facts for each in self.pods if each.process.poll() is None)


class ProcessCollector:
    """Measures the node, and the pods by the CPU time of their processes, without control groups."""

    def __init__(self, pods: DemoPods) -> None:
        self._pods = pods
        self._node = ProcReader("/proc", interfaces=(), cpu_manager_state="/nonexistent")
        self._before: dict[str, tuple[float, float]] = {}

    async def start(self) -> None:
        """Do nothing: nothing is kept open."""

    async def close(self) -> None:
        """Do nothing: nothing is kept open."""

    async def collect(self, now: float) -> State:
        """Read the state of the node; `now` in unix seconds."""
        readings = MetricReadings()
        self._node.read(readings, now=now, monotonic=time.monotonic, longest=10.0 * INTERVAL_S)
        series = {name: tuple(each) for name, each in readings.series.items()}
        running = [each for each in self._pods.pods if each.process.poll() is None]
        return State(now, series, tuple(self._measured(each) for each in running), readings.missing)

    def _measured(self, pod: DemoPod) -> PodState:
        at, used = time.monotonic(), _cpu_seconds(pod.process.pid)
        before = self._before.get(pod.name)
        self._before[pod.name] = at, used
        cpu = None if before is None or at <= before[0] else (used - before[1]) / (at - before[0])
        containers = tuple(replace(each, cpu=cpu) for each in pod.facts.pod.containers)
        return replace(pod.facts.pod, cpu=cpu, containers=containers)


def _cpu_seconds(process: int) -> float:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _pods() -> Iterator[DemoPods]:
    pods = []
    try:
        for name, share in CORES.items():
            command = [sys.executable, "-c", _BUSY, str(os.getpid()), str(share)]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
            container = ContainerState("main", uuid.uuid4().hex * 2)
            qos = QosClass.GUARANTEED if name == "web" else QosClass.BEST_EFFORT
            state = PodState("demo", name, str(uuid.uuid4()), qos=qos, containers=(container,))
            pods.append(DemoPod(PodFacts(state, state.uid), process))
        yield DemoPods(pods)
    finally:
        for each in pods:
            each.process.kill()
        for each in pods:
            each.process.wait()
            if each.process.stdin is not None:
                each.process.stdin.close()


class DemoGroups:
    """The control groups of the demonstration: NAME/kubepods/…, as a kubelet with --cgroup-root creates them."""

    def __init__(self, root: Path) -> None:
        self.name = f"load-watcher-demo-{os.getpid()}"
        self._version = find_layout(str(root)).version
        if self._version is Version.V2:
            self._trees = [root]
        else:
            self._trees = sorted({(root / name).resolve() for name in ("cpu", "cpuacct", "memory")})
        self._made: list[Path] = []
        self._enabled: list[Path] = []

    def make(self, pods: DemoPods) -> None:
        """Create the groups and put the processes into them. Raises OSError."""
        layout = Layout("", self._version, Driver.CGROUPFS, self.name)
        for pod in pods.pods:
            segments = {QosClass.GUARANTEED: ()}.get(pod.facts.pod.qos, ("besteffort",))
            path = layout.path_of(("kubepods", *segments, f"pod{pod.facts.pod.uid}")).lstrip("/")
            for tree in self._trees:
                place = self._directory(tree, f"{path}/{pod.facts.pod.containers[0].id}")
                (place / "cgroup.procs").write_text(str(pod.process.pid))
        for tree in self._trees:  # the demonstration gets its CPU on a busy machine, too
            for file, most in (("cpu.shares", 100_000), ("cpu.weight", 4_000)):
                if (place := tree / self.name / file).exists():
                    place.write_text(str(most))

    def _directory(self, tree: Path, path: str) -> Path:
        place = tree
        for part in path.split("/"):
            self._enable(place)
            place = place / part
            if not place.exists():
                place.mkdir()
                self._made.append(place)
        return place

    def _enable(self, place: Path) -> None:
        control = place / "cgroup.subtree_control"
        if self._version is not Version.V2:
            return
        missing = [each for each in ("cpu", "memory") if each not in control.read_text().split()]
        if missing:
            control.write_text(" ".join(f"+{each}" for each in missing))
            self._enabled.append(control)

    def remove(self) -> None:
        """Remove the groups, which takes a moment after their processes have ended."""
        for place in reversed(self._made):
            for _ in range(REMOVE_ATTEMPTS):
                try:
                    place.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.1)
        for control in self._enabled:
            if control.exists() and control.parent in self._trees:
                with contextlib.suppress(OSError):
                    control.write_text("-cpu -memory")


def _policies(watermark: int) -> str:
    group = "ensurance.crane.io/v1alpha1"
    rule = {
        "name": "high",
        "metricRule": {"name": "cpu_total_usage", "value": str(watermark)},
        "avoidanceThreshold": 2,
        "restoreThreshold": 2,
        "actionName": "throttle",
        "strategy": "None",
    }
    documents = [
        ("NodeQOS", "demo", {"nodeQualityProbe": {"nodeLocalGet": {"localCacheTTLSeconds": 60}}, "rules": [rule]}),
        ("AvoidanceAction", "throttle", {"coolDownSeconds": 1, "throttle": {"cpuThrottle": {"stepCPURatio": 30}}}),
        (
            "PodQOS",
            "best-effort",
            {
                "allowedActions": ["throttle"],
                "scopeSelector": {
                    "matchExpressions": [{"scopeName": "QOSClass", "operator": "In", "values": ["BestEffort"]}]
                },
            },
        ),
    ]
    return yaml.safe_dump_all(
        {"apiVersion": group, "kind": kind, "metadata": {"name": name}, "spec": spec} for kind, name, spec in documents
    )


def run(say: Callable[[str], object], *, seconds: float, cgroup: Path = Path("/sys/fs/cgroup")) -> None:
    """Run the demonstration for about `seconds`; `say` prints a line. Leaves nothing behind."""
    log = logging.getLogger("agent")
    with ExitStack() as stack:
        stack.callback(log.setLevel, log.level)
        log.setLevel(logging.ERROR)  # `say` prints the decisions
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="load-watcher-demo-")))
        groups, why = None, ""
        try:
            groups = DemoGroups(cgroup)
        except NoCgroups as error:
            why = str(error)
        if groups is not None:
            stack.callback(groups.remove)
        pods = stack.enter_context(_pods())
        if groups is not None:
            try:
                groups.make(pods)
            except OSError as error:
                groups.remove()
                groups, why = None, f"{error.filename}: {error.strerror}"
        if groups is None:
            say(f"preview only, because the control groups cannot be changed ({why}); run as root to see the effect")
        asyncio.run(_show(say, pods, groups, directory, cgroup, seconds))
    say("the processes, the control groups and the files of the demonstration are removed")


async def _show(
    say: Callable[[str], object],
    pods: DemoPods,
    groups: DemoGroups | None,
    directory: Path,
    cgroup: Path,
    seconds: float,
) -> None:
    collector: Collector | ProcessCollector = ProcessCollector(pods)
    if groups is not None:
        places = SystemPaths(cgroup=str(cgroup))
        collector = Collector(pods, places=places, interval=INTERVAL_S, driver=Driver.CGROUPFS, nest=groups.name)
    for each in pods.pods:
        assert each.process.stdin is not None
        each.process.stdin.write("\n")
        each.process.stdin.flush()
    await collector.collect(time.time())
    await asyncio.sleep(MEASURED_S)
    used = (await collector.collect(time.time())).value("cpu_total_usage")
    if used is None:
        say("the CPU usage of this machine cannot be measured")
        return
    watermark = max(1, int(used - 1000.0 * 0.5 * (CORES["batch-a"] + CORES["batch-b"])))
    busy = used > 950.0 * (os.cpu_count() or 1)
    say("other programs use all CPUs, so a quota cannot lower the usage" if busy else "the pods are measured")
    say(f"the machine uses {used:.0f} millicores; the rule keeps the usage below {watermark}")
    (directory / "policies.yaml").write_text(_policies(watermark))
    nest = groups.name if groups else None
    kubelet_groups = KubeletGroups(partial(find_layout, str(cgroup), driver=Driver.CGROUPFS, nest=nest))
    audit = open_audit(replace(AgentSettings(), state_file=directory / "agent.db"))
    permissions = Permissions(enforce=groups is not None, beside_others=True)
    executor = Executor(audit, kubelet_groups, permissions=permissions)
    agent = _agent(collector, executor, audit, directory)
    try:
        await _cycles(agent, say, pods, seconds - MEASURED_S)
        restored = await executor.restore_all(reason="the demonstration ends")
        if groups is not None:
            say(f"{len(restored)} quotas were restored at the end")
    finally:
        await collector.close()
        kubelet_groups.close()
        audit.close()


def _agent(collector: Collector | ProcessCollector, executor: Executor, audit: Audit, directory: Path) -> Agent:
    """An agent that reads its policies from `directory`."""
    metrics = Metrics()
    return Agent(
        collector=collector,
        policies=DirectoryPolicies(directory, metrics=known_metrics(metrics)),
        executor=executor,
        audit=audit,
        metrics=metrics,
        options=DecisionOptions(settle=0.0, effect=2.0 * INTERVAL_S),
        surroundings=NodeIdentity("demo"),
        clocks=Clocks(),
        interval=INTERVAL_S,
    )


async def _cycles(agent: Agent, say: Callable[[str], object], pods: DemoPods, seconds: float) -> None:
    """Run cycles, and print each decision that differs from the one before."""
    began, before = time.monotonic(), ""
    web = next(each for each in pods.pods if each.name == "web")
    while (elapsed := time.monotonic() - began) < seconds:
        if elapsed >= LOADED_SHARE * seconds and web.process.poll() is None:
            say("web ends: the machine has free CPU again")
            web.process.kill()
            web.process.wait()
        cycle = await agent.cycle()
        lines = [*(cycle.plan.sentences if cycle.plan else ())]
        lines += [f"   {each.fate}: {each.text}" for report in cycle.reports for each in report.results if each.text]
        text = "\n".join(lines)
        if text != before:
            say(f"--- {elapsed:.0f} s\n{text}")
        before = text
        await asyncio.sleep(INTERVAL_S)
