"""What one look of the node agent at its node takes: CPU time and memory, by number of pods.

    python -m benchmarks.bench_agent                    # 50 to 1,000 pods of three containers, about a minute
    python -m benchmarks.bench_agent --pods 200

The node is a directory with the files that the kernel would show, for control groups of either version; one container
of three has no quota. Beside it the straightforward way: the same files with pathlib, one `read_text()` each, into
dictionaries. Each is measured in a process of its own; ours first imports all that the agent's state needs, the clients
of kubelet, API and watcher included.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.bench_size import memory
from benchmarks.report import Table, amount, at_most

CONTAINERS = 3
CYCLES = 10
GOAL_PODS, GOAL_MS, GOAL_MB = 200, 50.0, 60.0
MIB = 1 << 20
V1_FILES = {
    "cpuacct": ("cpuacct.usage",),
    "cpu": ("cpu.stat", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.shares"),
    "memory": ("memory.usage_in_bytes", "memory.stat"),
}
V2_FILES = ("cpu.stat", "cpu.max", "cpu.weight", "memory.current", "memory.stat")


def facts(pods: int) -> list[Any]:
    """What the kubelet would tell of them."""
    from tests.agent.state.node import pod

    return [pod(number, CONTAINERS) for number in range(pods)]


def make_node(root: Path, *, version: str, pods: int) -> None:
    """Its /proc and its groups."""
    from tests.agent.state.node import container_id, uid
    from tests.fakes.cgroups import FakeCgroups
    from tests.fakes.proc import FakeProc

    FakeProc(root / "proc")
    (root / "cpu_manager_state").write_text('{"policyName":"none"}')
    groups = FakeCgroups(root / "cgroup", version)
    for number in range(pods):
        groups.add(groups.pod_path(uid(number)), cpu_ns=number, memory=90 * MIB)
        for container in range(CONTAINERS):
            path = groups.container_path(uid(number), container_id(number, container))
            groups.add(path, cpu_ns=number, memory=30 * MIB, inactive=MIB, quota=20_000 if container else None)


async def ours(root: Path, pods: int) -> dict[str, float]:
    """Cycles of the collector: the median of their CPU time, and what the process then has."""
    import agent.state.informed
    import agent.state.kubelet
    import agent.state.windows  # noqa: F401  # what they take is the agent's too
    from agent.state import Collector, Places
    from tests.agent.state.node import KnownPods

    places = Places(str(root / "proc"), str(root / "cgroup"), str(root / "cpu_manager_state"))
    collector = Collector(KnownPods(facts(pods)), places=places)
    spent = []
    for _ in range(CYCLES):
        began = time.process_time()
        state = await collector.collect(time.time())
        spent.append(time.process_time() - began)
    assert len(state.pods) == pods
    assert len(state.metrics["container_cpu_total_usage"]) == pods * (1 + CONTAINERS)
    await collector.close()
    return {"ms": 1e3 * statistics.median(spent[1:]), "MB": memory("VmHWM")}


def plain(root: Path) -> dict[str, float]:
    """The straightforward way: every directory below the pods' own, every file as text."""
    spent = []
    before: dict[str, int] = {}
    for _ in range(CYCLES):
        began = time.process_time()
        read = _read_all(root / "cgroup")
        usage = {path: int(files.get("cpuacct.usage") or files["cpu.stat"].split()[1]) for path, files in read.items()}
        rates = {path: used - before.get(path, 0) for path, used in usage.items()}
        spent.append(time.process_time() - began)
        before = usage
    assert rates
    return {"ms": 1e3 * statistics.median(spent[1:]), "MB": memory("VmHWM")}


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


def apart(how: str, root: Path, pods: int) -> dict[str, float]:
    """One measurement in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.bench_agent",
        "--measure",
        how,
        "--root",
        str(root),
        "--pods",
        str(pods),
    ]
    measured: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return measured


def table(version: str, sizes: Sequence[int]) -> Table:
    """One version of control groups."""
    found = Table(
        f"A look at the node, control groups of {version}, {CONTAINERS} containers a pod",
        ["pods", "CPU of a look", "a pod", "goal", "with pathlib", "times", "process", "goal of it"],
    )
    for pods in sizes:
        root = Path(tempfile.mkdtemp(prefix="bench-agent-"))
        try:
            make_node(root, version=version, pods=pods)
            mine, theirs = apart("ours", root, pods), apart("plain", root, pods)
        finally:
            shutil.rmtree(root)
        judged = pods == GOAL_PODS
        found.add(
            f"{pods:,}",
            amount(mine["ms"], "ms"),
            amount(1e3 * mine["ms"] / pods, "µs"),
            at_most(mine["ms"], GOAL_MS, "ms") if judged else "",
            amount(theirs["ms"], "ms"),
            amount(theirs["ms"] / mine["ms"], "×"),
            amount(mine["MB"], "MB"),
            at_most(mine["MB"], GOAL_MB, "MB") if judged else "",
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pods", type=int, nargs="+", default=[50, 200, 1000])
    parser.add_argument("--measure", choices=("ours", "plain"), help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure == "ours":
        print(json.dumps(asyncio.run(ours(options.root, options.pods[0]))))
    elif options.measure == "plain":
        print(json.dumps(plain(options.root)))
    else:
        for version in ("v2", "v1"):
            print(table(version, options.pods).markdown())


if __name__ == "__main__":
    main()
