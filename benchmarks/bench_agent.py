"""CPU time and memory of a cycle of the node agent, by number of pods.

    python -m benchmarks.bench_agent                    # 50 to 1,000 pods of three containers, about three minutes
    python -m benchmarks.bench_agent --pods 200

The node is a directory with the files of the kernel, for cgroups of either version; one of three containers has no
quota. The cost of a cycle is the CPU time of the whole `load-watcher agent` process between two cycles: it queries a
kubelet for the pods, reads the node's files, evaluates rules, plans, and records metrics. "At rest", no rule is
triggered; "busy", two rules are: one that throttles, which examines all pods because none releases anything, and one
that evicts. The agent runs in preview, because the cost of an action does not depend on the agent.

Reading the node's files is also measured separately, in its own process, and compared with the straightforward way:
pathlib with one `read_text()` per file, into dictionaries.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.bench_size import memory
from benchmarks.report import Table, amount, at_most

CONTAINERS = 3
WARM_UP = 3
INTERVAL_S = 1.0
"""Interval between cycles; a longer one would only prolong the measurement."""
TICK_S = 0.02
AT_REST, BUSY = (900, 90), (100, 1)
"""Watermarks of the two rules, in millicores and percent; the usage is 500 and 25."""
GOAL_PODS, GOAL_MS, GOAL_MB = 200, 50.0, 60.0
MIB = 1 << 20
V1_FILES = {
    "cpuacct": ("cpuacct.usage",),
    "cpu": ("cpu.stat", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.shares"),
    "memory": ("memory.usage_in_bytes", "memory.stat"),
}
V2_FILES = ("cpu.stat", "cpu.max", "cpu.weight", "memory.current", "memory.stat")


def facts(pods: int) -> list[Any]:
    """Return the pods as the kubelet reports them."""
    from tests.agent.state.node import pod

    return [pod(number, CONTAINERS) for number in range(pods)]


def make_node(root: Path, *, version: str, pods: int) -> None:
    """Create the node's /proc files and cgroups."""
    from tests.agent.state.node import container_id, uid
    from tests.fakes.cgroups import FakeCgroups
    from tests.fakes.proc import FakeProc

    FakeProc(root / "proc")
    (root / "cpu_manager_state").write_text('{"policyName":"none"}')
    groups = FakeCgroups(root / "cgroup", version, together=True)  # cpu and cpuacct, as systemd mounts them
    for number in range(pods):
        groups.add(groups.pod_path(uid(number)), cpu_ns=number, memory=90 * MIB)
        for container in range(CONTAINERS):
            path = groups.container_path(uid(number), container_id(number, container))
            groups.add(path, cpu_ns=number, memory=30 * MIB, inactive=MIB, quota=20_000 if container else None)


POLICIES = """
apiVersion: load-watcher.io/v1alpha1
kind: NodeQOS
metadata: {name: all}
spec:
  rules:
  - {name: cpu, metricRule: {name: cpu_total_usage, value: "%d"}, actionName: throttle}
  - {name: memory, metricRule: {name: memory_total_utilization, value: "%d"}, actionName: evict}
---
apiVersion: load-watcher.io/v1alpha1
kind: AvoidanceAction
metadata: {name: throttle}
spec: {throttle: {cpuThrottle: {stepCPURatio: 10}}}
---
apiVersion: load-watcher.io/v1alpha1
kind: AvoidanceAction
metadata: {name: evict}
spec: {eviction: {}}
---
apiVersion: load-watcher.io/v1alpha1
kind: PodQOS
metadata: {name: all}
spec:
  allowedActions: [throttle, evict]
  scopeSelector: {matchExpressions: [{scopeName: QOSClass, operator: In, values: [BestEffort]}]}
"""


def listed(number: int) -> dict[str, Any]:
    """Return a pod as listed by the kubelet."""
    from tests.agent.state.node import container_id, uid
    from tests.fakes.kubelet import pod

    names = [f"c{each}" for each in range(CONTAINERS)]
    whole = pod(f"web-{number}", uid(number))
    (spec,), (status,) = whole["spec"]["containers"], whole["status"]["containerStatuses"]
    whole["spec"]["containers"] = [{**spec, "name": name} for name in names]
    whole["status"] |= {
        "qosClass": "BestEffort",
        "containerStatuses": [
            {**status, "name": name, "containerID": f"containerd://{container_id(number, each)}"}
            for each, name in enumerate(names)
        ],
    }
    return whole


@contextmanager
def ticking(root: Path) -> Iterator[None]:
    """Advance the kernel counters: half of the CPU time is used, by no known container."""
    path, ended = root / "proc" / "stat", threading.Event()

    def count() -> None:
        ticks = 10_000
        while not ended.wait(TICK_S):
            ticks += 1
            line = f" {ticks} 0 0 {ticks} 0 0 0 0 0 0\n"
            path.with_suffix(".new").write_text(f"cpu {line}cpu0{line}")
            path.with_suffix(".new").replace(path)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def whole(root: Path, pods: int, *, cycles: int, watermarks: tuple[int, int]) -> dict[str, float]:
    """Return the CPU time of a cycle of `load-watcher agent` with rules at these watermarks, and its peak memory."""
    from tests.fakes.kubelet import FakeKubelet
    from tests.service import Service

    class Agent(Service):
        name, verb = "agent", "agent"

    def used(cycle: int) -> tuple[int, float]:
        """Wait for the end of a cycle; return its number and the CPU time of the process in milliseconds."""
        # On a busy machine, a long cycle may be reported as stuck, without its number.
        while (number := int(process.get("/healthz").json().get("cycle", 0))) < cycle:
            time.sleep(INTERVAL_S)  # the request uses CPU time of the process too
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        return number, 1e3 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    policies = root / "policies"
    policies.mkdir(exist_ok=True)
    (policies / "all.yaml").write_text(POLICIES % watermarks)
    places = {"proc": root / "proc", "cgroup": root / "cgroup", "policies": policies, "state_file": root / "agent.db"}
    with FakeKubelet([listed(number) for number in range(pods)]) as kubelet, ticking(root):
        places["state_file"].unlink(missing_ok=True)
        given = {**places, "interval": f"{INTERVAL_S}s", "kubernetes": "false", "kubelet": kubelet.url}
        with Agent(root, *(f"--set=agent.{name}={value}" for name, value in given.items())) as process:
            number, _ = used(WARM_UP)
            explained = process.get("/explain").json()
            assert explained["pods"] == pods
            assert bool(explained["results"]) == (watermarks == BUSY), explained["sentences"]
            first, before = used(number + 2)  # excludes the CPU time of the explanation
            last, after = used(first + cycles)
            return {"ms": (after - before) / (last - first), "MB": memory("VmHWM", of=process.pid)}


async def look(root: Path, pods: int, cycles: int) -> float:
    """Return the median CPU time of reading the node's files, in milliseconds."""
    from agent.state.collector import Collector, SystemPaths
    from tests.agent.state.node import KnownPods

    places = SystemPaths(str(root / "proc"), str(root / "cgroup"), str(root / "cpu_manager_state"))
    collector = Collector(KnownPods(facts(pods)), places=places)
    spent = []
    for _ in range(cycles):
        began = time.process_time()
        state = await collector.collect(time.time())
        spent.append(time.process_time() - began)
    assert len(state.pods) == pods
    assert len(state.metrics["container_cpu_total_usage"]) == pods * (1 + CONTAINERS)
    await collector.close()
    return 1e3 * statistics.median(spent[1:])


def plain(root: Path, cycles: int) -> float:
    """Read the files in the straightforward way: every directory below the pods' cgroups, every file as text."""
    spent = []
    before: dict[str, int] = {}
    for _ in range(cycles):
        began = time.process_time()
        read = _read_all(root / "cgroup")
        usage = {path: int(files.get("cpuacct.usage") or files["cpu.stat"].split()[1]) for path, files in read.items()}
        rates = {path: used - before.get(path, 0) for path, used in usage.items()}
        spent.append(time.process_time() - began)
        before = usage
    assert rates
    return 1e3 * statistics.median(spent[1:])


def _read_all(root: Path) -> dict[str, dict[str, str]]:
    trees = (
        [(root, V2_FILES)] if (root / "cgroup.controllers").exists() else [(root / n, f) for n, f in V1_FILES.items()]
    )
    found: dict[str, dict[str, str]] = {}
    for tree, files in trees:
        for pod in (tree / "kubepods.slice" / "kubepods-besteffort.slice").iterdir():
            for group in (pod, *_directories(pod.iterdir())):
                texts = found.setdefault(str(group.relative_to(tree)), {})
                texts |= {name: (group / name).read_text() for name in files}
    return found


def _directories(paths: Iterable[Path]) -> Iterable[Path]:
    return (path for path in paths if path.is_dir())


def apart(how: str, root: Path, pods: int, cycles: int) -> float:
    """Run one measurement in a separate process; return milliseconds."""
    arguments = ["--measure", how, "--root", str(root), "--pods", str(pods), "--cycles", str(cycles)]
    command = [sys.executable, "-m", "benchmarks.bench_agent", *arguments]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def table(version: str, sizes: Sequence[int], *, cycles: int) -> Table:
    """Return the table for one version of cgroups."""
    found = Table(
        f"CPU time of a cycle, cgroups {version}, {CONTAINERS} containers per pod",
        ["pods", "at rest", "busy", "per pod", "goal", "process", "goal", "reading", "with pathlib", "ratio"],
    )
    for pods in sizes:
        root = Path(tempfile.mkdtemp(prefix="bench-agent-"))
        try:
            make_node(root, version=version, pods=pods)
            mine, theirs = (apart(how, root, pods, cycles) for how in ("look", "plain"))
            rest, busy = (whole(root, pods, cycles=cycles, watermarks=each) for each in (AT_REST, BUSY))
        finally:
            shutil.rmtree(root)
        judged = pods == GOAL_PODS
        found.add(
            f"{pods:,}",
            amount(rest["ms"], "ms"),
            amount(busy["ms"], "ms"),
            amount(1e3 * busy["ms"] / pods, "µs"),
            at_most(busy["ms"], GOAL_MS, "ms") if judged else "",
            amount(busy["MB"], "MB"),
            at_most(busy["MB"], GOAL_MB, "MB") if judged else "",
            amount(mine, "ms"),
            amount(theirs, "ms"),
            amount(theirs / mine, "×"),
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pods", type=int, nargs="+", default=[50, 200, 1000])
    parser.add_argument(
        "--cycles",
        type=int,
        default=10,
        help="number of measured cycles per size, one per second; at least 2 (default 10)",
    )
    parser.add_argument("--measure", choices=("look", "plain"), help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure == "look":
        print(asyncio.run(look(options.root, options.pods[0], options.cycles)))
    elif options.measure == "plain":
        print(plain(options.root, options.cycles))
    else:
        for version in ("v2", "v1"):
            print(table(version, options.pods, cycles=options.cycles).markdown())


if __name__ == "__main__":
    main()
