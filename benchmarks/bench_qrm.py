"""Cost of the QoS Resource Manager on a full node: allocation, reconcile round, restart, and merge of hints.

    python -m benchmarks.bench_qrm                  # 110 pods, a quarter of a minute
    python -m benchmarks.bench_qrm --pods 20

The plug-ins for CPUs and memory are served on unix sockets as in `load-watcher qrm` and called by gRPC; each decision
is synced to the disk of the temporary directory before the response. A third of the pods has exclusive CPUs. For
comparison with the allocation, the same state is written and synced alone; for comparison with the merge, the rule of
Kubernetes is applied to the product of all lists in the same process. The column CPU is the process time of both ends
of each call; on a busy machine the remaining time is waiting.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from agent.qrm.grpc.grpc_server import PluginServer
from agent.qrm.grpc.plugin_client import PluginEndpoint
from agent.qrm.main import Checkpoint
from agent.qrm.manager.allocation import Allocations
from agent.qrm.manager.manager import Manager
from agent.qrm.manager.request import ResourceRequest
from agent.qrm.manager.settings import AllocationSettings
from agent.qrm.manager.topology import ALIGNED, Hint, TopologyPolicy, merge, most_of_narrowest
from agent.qrm.plugins.base import ResourcePlugin
from agent.qrm.plugins.cpu import CpuPlugin
from agent.qrm.plugins.cpu_topology import CpuTopology, LogicalCpu
from agent.qrm.plugins.memory import MemoryPlugin
from agent.qrm.plugins.resize import PoolSettings
from agent.qrm.pods import ROLE_ANNOTATION, PodContainer, QrmPod
from agent.qrm.roles import DEFAULT_ROLES
from agent.qrm.runtime import dry_run
from agent.qrm.store.files import StateFile, write_atomic
from benchmarks.report import Table, amount, at_most
from tests.agent.qrm.manager.hint_order import compare

GOAL_PODS, ALLOCATE_MS, ROUND_MS, RESTORE_MS = 110, 15.0, 100.0, 50.0
ROLES = ("online-micro_service", "ETL", "storage-service")
GIB = 1 << 30
NODES = 2
CPUS = 256


def machine() -> CpuTopology:
    """Return two sockets of 64 cores with two threads each."""
    cores = CPUS // 2
    cpus = {i: LogicalCpu(i, i % cores, i % cores // 64, i % cores // 64, i % cores // 8) for i in range(CPUS)}
    return CpuTopology(cpus, dict.fromkeys(range(NODES), 512 * GIB))


def pod(number: int) -> QrmPod:
    """Return a pod with a running container."""
    container = PodContainer("main", {"cpu": 1.0, "memory": 1.0 * GIB}, id=f"container-{number}")
    role = {ROLE_ANNOTATION: ROLES[number % len(ROLES)]}
    return QrmPod(f"uid-{number}", "default", f"pod-{number}", annotations=role, containers=(container,))


class Stopwatch:
    """Wall-clock and process times of its `with` blocks, in milliseconds."""

    def __init__(self) -> None:
        self._walls: list[float] = []
        self._cpus: list[float] = []

    def __enter__(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def __exit__(self, *_: object) -> None:
        self._walls.append(1e3 * (time.perf_counter() - self._began[0]))
        self._cpus.append(1e3 * (time.process_time() - self._began[1]))

    @property
    def median(self) -> float:
        return statistics.median(self._walls)

    @property
    def p99(self) -> float:
        """Return the 99th percentile of the wall-clock times in milliseconds."""
        return sorted(self._walls)[min(len(self._walls) - 1, int(0.99 * len(self._walls)))]

    @property
    def cpu(self) -> float:
        """Return the median of the process times in milliseconds."""
        return statistics.median(self._cpus)


async def node(directory: Path, pods: int, rounds: int) -> Table:
    """Measure the operations of a node with `pods` pods."""
    found = Table(f"{pods} pods, plug-ins over gRPC, state synced to disk", ["", "CPU", "median", "p99", "goal"])

    def add(what: str, took: Stopwatch, goal: float | None = None) -> None:
        judged = at_most(took.p99, goal, "ms") if goal is not None and pods >= GOAL_PODS else ""
        found.add(what, amount(took.cpu, "ms"), amount(took.median, "ms"), amount(took.p99, "ms"), judged)

    async with AsyncExitStack() as stack:
        on = machine()
        plugins: list[ResourcePlugin] = [
            CpuPlugin(on, DEFAULT_ROLES, PoolSettings(), reserved=frozenset({0, CPUS // 2})),
            MemoryPlugin(on, DEFAULT_ROLES, reserved=dict.fromkeys(range(NODES), GIB)),
        ]
        allocations, path = Allocations(), directory / "checkpoint"
        checkpoint = Checkpoint(path, Counter())
        manager = Manager(
            AllocationSettings(),
            allocations,
            nodes=frozenset(range(NODES)),
            recent=0.0,
            save=lambda: checkpoint.save(allocations),
            monotonic=time.monotonic,
        )
        for plugin in plugins:
            server = PluginServer(plugin, directory / f"{plugin.name}.sock", StateFile(directory / plugin.name))
            await server.start()
            stack.push_async_callback(server.stop)
            endpoint = PluginEndpoint(plugin.resource, directory / f"{plugin.name}.sock")
            stack.push_async_callback(endpoint.close)
            await endpoint.open()
            await manager.plugins.register(plugin.resource, endpoint)
        running = [pod(number) for number in range(pods)]
        admissions = Stopwatch()
        for each in running:
            with admissions:
                admission = await manager.admit(each)
            assert admission.admitted, admission
        cpu = PluginEndpoint("cpu", directory / f"{plugins[0].name}.sock")
        stack.push_async_callback(cpu.close)
        add("Allocate for one more container", await _allocations(cpu, rounds), ALLOCATE_MS)
        state = (directory / plugins[0].name).read_bytes()
        add("write of that state only", _repeated(lambda: write_atomic(directory / "alone", state), 50))
        add("admission of a pod: two plug-ins, checkpoint", admissions)
        add("reconcile round without changes", await _rounds(manager, running, rounds), ROUND_MS)
        add("restore of the checkpoint", _repeated(lambda: _restored(path, allocations), 20), RESTORE_MS)
    return found


async def _allocations(cpu: PluginEndpoint, rounds: int) -> Stopwatch:
    """Measure the allocation of a container with an exclusive CPU, which is then removed."""
    took = Stopwatch()
    for number in range(rounds):
        request = ResourceRequest(
            f"more-{number}", "main", "cpu", pod_role="storage-service", resource_requests={"cpu": 1.0}
        )
        with took:
            given = await cpu.allocate(request)
        assert given is not None
        assert given["cpu"].allocated_quantity == 1.0
        await cpu.remove_pod(request.pod_uid)
    return took


async def _rounds(manager: Manager, pods: Sequence[QrmPod], rounds: int) -> Stopwatch:
    """Measure rounds after the first one, which updates all containers."""
    took = Stopwatch()
    await manager.reconcile(pods, dry_run)
    for _ in range(max(5, rounds // 10)):
        with took:
            done = await manager.reconcile(pods, dry_run)
        assert not done.failed, done
    return took


def _repeated(act: Callable[[], object], times: int) -> Stopwatch:
    took = Stopwatch()
    for _ in range(times):
        with took:
            act()
    return took


def _restored(path: Path, expected: Allocations) -> None:
    assert Checkpoint(path, Counter()).read() == expected


# --- hints -----------------------------------------------------------------------------------------------------------


def every_set(nodes: int) -> list[Hint]:
    """Return every set of NUMA nodes, single nodes preferred: the hints of a plug-in whose container fits anywhere."""
    sets = (set(each) for size in range(1, nodes + 1) for each in itertools.combinations(range(nodes), size))
    return [Hint(frozenset(each), preferred=len(each) == 1) for each in sets]


def by_product(lists: Sequence[Sequence[Hint]], nodes: int) -> Hint | None:
    """Compare each combination with the best so far."""
    everywhere = frozenset(range(nodes))
    needed = most_of_narrowest(lists)
    best: Hint | None = None
    for chosen in itertools.product(*lists):
        sets = [hint.nodes for hint in chosen if hint.nodes is not None]
        preferred = all(hint.preferred for hint in chosen) and len(set(sets)) <= 1
        best = compare(needed, best, Hint(everywhere.intersection(*sets), preferred))
    return best


def merges(shapes: Sequence[tuple[int, int]]) -> Table:
    """Measure merges by number of NUMA nodes and resources, each with a hint for every set of nodes."""
    found = Table(
        "Merge of hints, every set of nodes hinted",
        ["nodes, resources", "combinations", "numeric", "others", "product", "ratio"],
    )
    for nodes, resources in shapes:
        lists = [every_set(nodes)] * resources
        given = [dict(zip((*ALIGNED, *map(str, range(resources))), lists, strict=False))]
        numeric = _repeated(partial(merge, TopologyPolicy.NUMERIC, range(nodes), given), 5).median
        ours = _repeated(partial(merge, TopologyPolicy.RESTRICTED, range(nodes), given), 5).median
        count = len(lists[0]) ** resources
        theirs = None
        if count <= 1_000_000:
            theirs = _repeated(partial(by_product, lists, nodes), 1).median
            (best,) = set(merge(TopologyPolicy.RESTRICTED, range(nodes), given).hints.values())
            assert best == by_product(lists, nodes)
        found.add(
            f"{nodes}, {resources}",
            f"{count:,}" if count < 10**9 else f"{count:.0e}",
            amount(numeric, "ms"),
            amount(ours, "ms"),
            amount(theirs, "ms"),
            amount(None if theirs is None else theirs / ours, "×"),
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pods", type=int, default=GOAL_PODS)
    parser.add_argument("--rounds", type=int, default=300)
    options = parser.parse_args()
    # The path of a unix socket is limited to 107 bytes.
    with tempfile.TemporaryDirectory(prefix="bench-qrm-") as directory:
        print(asyncio.run(node(Path(directory), options.pods, options.rounds)).markdown())
    small = options.pods < GOAL_PODS
    print(merges([(2, 3)] if small else [(2, 3), (4, 3), (8, 2), (8, 6)]).markdown())


if __name__ == "__main__":
    main()
