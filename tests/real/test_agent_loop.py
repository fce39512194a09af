"""The whole loop on the kernel: `load-watcher agent` as a process, child processes that burn CPU in the groups of pods,
quotas that the kernel enforces, and its usage counters.

Other processes use the machine too, so the group of these pods is the node of the agent: /proc/stat is written from the
kernel's counters of this group. The group has by far the most shares, so the pods get the CPU that they want. No test
depends on speed: deadlines are long, and decisions and steps are checked.
"""

import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.agent.policy.writing import a_rule, an_object, node_qos, text_of, write
from tests.agent.service.test_process import AgentProcess, put_over
from tests.fakes.kubelet import FakeKubelet
from tests.fakes.proc import FakeProc
from tests.real.cgroups import BUSY, Groups, need_cgroup_v1
from tests.waiting import wait_for

pytestmark = [pytest.mark.real, pytest.mark.cgroup_v1]

PERIOD = 100_000
WATERMARK, RESTORE = 700, 450
CYCLES = 50


@dataclass(frozen=True)
class Pod:
    """One container with a quota (in µs of each 100 ms; None for none) that it always uses completely."""

    name: str
    qos: str
    priority: int
    uid: str
    uses: float
    quota: int | None

    @property
    def key(self) -> str:
        return f"shop/{self.name}"

    @property
    def container(self) -> str:
        return self.uid.replace("-", "") * 2

    @property
    def group(self) -> str:
        qos = {"Guaranteed": "", "Burstable": "burstable/", "BestEffort": "besteffort/"}[self.qos]
        return f"kubepods/{qos}pod{self.uid}/{self.container}"

    def manifest(self) -> dict[str, Any]:
        """The pod as the kubelet reports it."""
        limits = {} if self.quota is None else {"cpu": f"{self.quota // 100}m"}
        requests = {} if self.quota is None else limits if self.qos == "Guaranteed" else {"cpu": "20m"}
        status = {
            "name": "main",
            "containerID": f"containerd://{self.container}",
            "state": {"running": {"startedAt": "2026-11-21T08:00:03Z"}},
        }
        container = {"name": "main", "resources": {"limits": limits, "requests": requests}}
        return {
            "metadata": {"name": self.name, "namespace": "shop", "uid": self.uid},
            "spec": {"nodeName": "node-1", "priority": self.priority, "containers": [container]},
            "status": {"phase": "Running", "qosClass": self.qos, "containerStatuses": [status]},
        }


def uid(number: int) -> str:
    return f"{number:08x}-0000-4000-8000-000000000000"


# In the order in which they may be throttled; 0.85 cores together.
SCRAPER = Pod("scraper", "BestEffort", 0, uid(1), 0.2, None)
BATCH = Pod("batch", "Burstable", 0, uid(2), 0.5, 30_000)
API = Pod("api", "Burstable", 1000, uid(3), 0.4, 20_000)
DB = Pod("db", "Guaranteed", 1000, uid(4), 0.3, 15_000)
PODS = (SCRAPER, BATCH, API, DB)


class Node:
    """The node of these pods: a separate group, below which the kubelet's groups are."""

    def __init__(self, root: Path, groups: Groups) -> None:
        self.root = root
        self.groups = groups
        self.proc = FakeProc(root / "proc")
        self.policies = root / "policies"
        self.policies.mkdir()
        (cpu,) = (each for each in groups.directories("") if each.parent.name == "cpu")
        (cpu / "cpu.shares").write_text("200000")
        self._counted = [each / "cpuacct.usage" for each in groups.directories("") if each.parent.name == "cpuacct"]
        self.children: dict[Pod, subprocess.Popen[str]] = {}
        for pod in PODS:
            groups.make(pod.group)
            if pod.quota is not None:
                self._file(pod).write_text(str(pod.quota))
            self.children[pod] = groups.run(pod.group, BUSY, pod.uses)

    def quota(self, pod: Pod) -> int | None:
        """The quota in the kernel."""
        found = int(self._file(pod).read_text())
        return None if found < 0 else found

    def changed(self) -> list[Pod]:
        return [pod for pod in PODS if self.quota(pod) != pod.quota]

    def _file(self, pod: Pod) -> Path:
        (found,) = (
            each / "cpu.cfs_quota_us"
            for each in self.groups.directories(pod.group)
            if each.is_relative_to("/sys/fs/cgroup/cpu")
        )
        return found

    def put(self, *rules: dict[str, Any]) -> None:
        """Write the policies of the node: any pod may be throttled, so only the rank protects some."""
        action = an_object(
            "AvoidanceAction",
            "throttle",
            throttle={"cpuThrottle": {"stepCPURatio": 50, "minCPURatio": 10}},
            coolDownSeconds=1,
        )
        everywhere = {"matchExpressions": [{"scopeName": "Namespace", "operator": "NotIn", "values": ["kube-system"]}]}
        anyone = an_object("PodQOS", "anyone", allowedActions=["throttle"], scopeSelector=everywhere)
        write(self.policies, all=text_of(*((node_qos_of(*rules), action, anyone) if rules else ())))

    def settings(self, kubelet: FakeKubelet) -> list[str]:
        """The settings as flags."""
        given = {
            "proc": self.proc.root,
            "policies": self.policies,
            "cgroup_driver": "cgroupfs",
            "cgroup_nest": self.groups.name,
            "interval": "400ms",
            "settle": "0s",
            "effect": "2s",
            "state_file": self.root / "agent.db",
            "node": "node-1",
            "kubelet": kubelet.url,
        }
        return [text for key, value in given.items() for text in ("--set", f"agent.{key}={value}")]

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Write /proc/stat with the kernel's counters of the group of these pods, which is the whole use."""
        ending = threading.Event()

        def count() -> None:
            while not ending.wait(0.02):
                busy = int(self._counted[0].read_text()) // 10_000_000
                ticks = int(time.monotonic() * 200)
                lines = [f"cpu  {busy:012} 0 0 {ticks - busy:012} 0 0 0 0 0 0"]
                lines += [f"cpu{n} {busy // 2:012} 0 0 {(ticks - busy) // 2:012} 0 0 0 0 0 0" for n in range(2)]
                put_over(self.proc.path("stat"), "\n".join([*lines, ""]))

        thread = threading.Thread(target=count)
        thread.start()
        try:
            yield
        finally:
            ending.set()
            thread.join()


def node_qos_of(*rules: dict[str, Any]) -> dict[str, Any]:
    extra = f"high: {{restoreValue: '{RESTORE}'}}"
    return node_qos(*rules, annotations={"load-watcher.io/rules": extra})


RULE = a_rule(metricRule={"name": "cpu_total_usage", "value": str(WATERMARK)}, avoidanceThreshold=2, restoreThreshold=3)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    need_cgroup_v1()
    with Groups() as groups:
        node = Node(tmp_path, groups)
        with node.counted():
            yield node


@pytest.fixture
def kubelet() -> Iterator[FakeKubelet]:
    with FakeKubelet([pod.manifest() for pod in PODS]) as kubelet:
        yield kubelet


class Watched:
    """The explanations of an agent, each cycle once."""

    def __init__(self, process: AgentProcess) -> None:
        self._process = process
        self.cycles: dict[int, dict[str, Any]] = {}

    def next(self) -> dict[str, Any]:
        """The explanation of the next cycle."""

        def new() -> dict[str, Any] | None:
            found: dict[str, Any] = self._process.get("/explain").json()
            if found["plan"] is None or found["cycle"] in self.cycles:
                time.sleep(0.1)  # the agent has other work than its explanation
                return None
            self.cycles[found["cycle"]] = found
            return found

        found = wait_for(new, what="the next cycle")
        assert found is not None
        return found

    def until(self, wanted: str, times: int = 1) -> dict[str, Any]:
        """The last of this number of successive explanations with this verdict of the rule."""
        seen = 0

        def reached() -> dict[str, Any] | None:
            nonlocal seen
            found = self.next()
            seen = seen + 1 if rule_of(found)["verdict"] == wanted else 0
            return found if seen >= times else None

        found = wait_for(reached, what=f"{times} cycles of {wanted}")
        assert found is not None
        return found


def rule_of(explained: dict[str, Any]) -> dict[str, Any]:
    (rule,) = explained["plan"]["rules"]
    found: dict[str, Any] = rule
    return found


def deeds_of(process: AgentProcess) -> list[dict[str, Any]]:
    """The audit entries that were done, oldest first."""
    found: list[dict[str, Any]] = process.get("/audit?limit=1000&outcome=done").json()["deeds"]
    return found[::-1]


def stage_of(explained: dict[str, Any], kind: str) -> dict[str, Any] | None:
    return next((each for each in explained["plan"]["stages"] if each["kind"] == kind), None)


def chosen(stage: dict[str, Any]) -> list[str]:
    return [each["pod"] for each in stage["candidates"] if each["chosen"]]


def judge(cycles: Sequence[dict[str, Any]]) -> None:
    """No cycle planned a step for a pod of higher rank if one of lower rank was enough, nor for more pods than its gap
    needed."""
    for explained in cycles:
        stage = stage_of(explained, "throttle")
        if stage is None or not chosen(stage):
            continue
        ranked = [pod.key for pod in PODS]
        assert ranked == [each["pod"] for each in stage["candidates"]], stage
        released = [each["released"]["cpu"] for each in stage["candidates"] if each["chosen"]]
        assert sum(released[:-1]) < stage["gap"], stage
        useless = [each for each in stage["candidates"][: ranked.index(chosen(stage)[-1])] if not each["chosen"]]
        # Pods of lower rank that were not selected could release nothing.
        assert all(not each["released"] or each["released"]["cpu"] <= 0 for each in useless), stage


def in_order_of_rank(node: Node) -> set[Pod]:
    """Throttled pods are in the order of their rank. `judge` checks their number against the read values: a thread here
    writes the node's /proc/stat, and if it is late, half a second counts twice, and the agent is right to throttle
    more."""
    hit = node.changed()
    assert list(PODS[: len(hit)]) == hit
    return set(hit)


class BareAgent(AgentProcess):
    """The agent as in the DaemonSet: root without any capability."""

    def command(self) -> Sequence[str | Path]:
        return ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", *super().command()]


@contextmanager
def running(node: Node, kubelet: FakeKubelet) -> Iterator[AgentProcess]:
    with BareAgent(node.root, "--enforce", *node.settings(kubelet)) as process:
        yield process


def test_usage_settles_just_below_the_watermark_and_quotas_are_restored(node: Node, kubelet: FakeKubelet):
    node.put(RULE)
    with running(node, kubelet) as process:
        watched = Watched(process)
        # It was above, acted, and then the kernel counted less than the watermark three times in a row.
        watched.until("triggered")
        wait_for(node.changed, what="a quota to be taken")
        watched.until("holding", times=3)
        settled = watched.next()["cycle"]
        acted = {deed["cycle"]: deed for deed in deeds_of(process)}
        assert 1 <= len(acted) <= 3  # one plan closes the gap; the usage of half a second may differ
        assert {SCRAPER, BATCH} <= in_order_of_rank(node)
        # In the next fifty cycles it almost never changes a quota, and restores none that it would lower again.
        while watched.next()["cycle"] < settled + CYCLES:
            pass
        changes = [deed for deed in deeds_of(process) if deed["cycle"] > settled]
        assert not [deed for deed in changes if deed["kind"] != "throttle"]
        assert len(changes) <= 3
        in_order_of_rank(node)
        judge(list(watched.cycles.values()))
        # The load ends: two pods become idle. All quotas are restored exactly.
        for pod in (BATCH, API):
            node.children[pod].kill()
        watched.until("restored")
        wait_for(lambda: not node.changed(), what="every quota to be what it was")
        wait_for(
            lambda: "load_watcher_agent_quotas_held 0.0" in process.get("/metrics").text, what="nothing to be owed"
        )


def test_after_kill_9_the_next_start_restores_the_original_quotas(node: Node, kubelet: FakeKubelet):
    node.put(RULE)
    with running(node, kubelet) as process:
        wait_for(node.changed, what="a quota to be taken")
        process.kill()  # for any pods
        taken = node.changed()
        assert taken
        node.put()  # no policy requires it any more
        process.start()
        wait_for(lambda: not node.changed(), what="every quota to be what it was")
        given_back = {pod.key for pod in taken}
        wait_for(
            lambda: given_back <= {deed["pod"] for deed in deeds_of(process) if deed["kind"] == "restore"},
            what="the audit to say so",
        )
