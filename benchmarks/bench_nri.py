"""Latency of CreateContainer with the QoS Resource Manager as a plug-in of containerd/nri's runtime side.

    python -m benchmarks.bench_nri                  # 30, 110 and 250 pods, two minutes
    python -m benchmarks.bench_nri --pods 20

`load-watcher qrm` runs in mode nri as a process; the runtime is tests/modules/nri-runtime (`make nri-runtime`). A third
of the pods has exclusive CPUs. On a node with this many pods, further pods are created and removed in turn. The time is
that of the runtime's request to its plug-ins, without those for the pod's sandbox. Rounds run every 200 ms, 15 times as
often as by default, so more creations wait for a round than on a real node.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks.bench_qrm import CPUS, GIB, ROLES, machine
from benchmarks.report import Table, amount, at_most
from tests.agent.qrm.plugins.test_sysfs import as_files, put
from tests.agent.qrm.test_main import Qrm
from tests.real.nri.node import NriNode, container_id, nri_node, wait_until_known
from tests.real.nri.runtime import Done, NriRuntime

GOAL_PODS, GOAL_MS = 110, 50.0
SETTINGS = (f'reserved_cpus = "0,{CPUS // 2}"', "metrics_port = 0", "adjust = false")


def new_pod(node: NriNode, qrm: Qrm, runtime: NriRuntime, number: int) -> tuple[str, Done]:
    """Create a pod as the scheduler and the kubelet do; return its UID and the runtime's answer."""
    uid, name = f"{number:08d}-0000-4000-8000-000000000000", f"default/pod-{number}"
    node.pending(name, uid, ROLES[number % len(ROLES)], cpu="1")
    wait_until_known(qrm, uid)
    done = node.create(runtime, name, uid)
    assert done.cpus, f"{name} is not pinned"
    return uid, done


def measured(pods: int, rounds: int) -> tuple[float, float, float]:
    """The times of `rounds` creations on a node with `pods` pods in milliseconds: median, 99th percentile, longest."""
    with nri_node() as node:
        on = machine()
        as_files(node.directory / "sys", on)
        for number in on.nodes:
            put(node.directory / "sys", f"devices/system/node/node{number}/meminfo", f"MemTotal: {512 * GIB >> 10} kB")
        with node.runtime() as runtime, node.manage(*SETTINGS) as qrm:
            runtime.wait_for_plugin()
            for number in range(pods):
                new_pod(node, qrm, runtime, number)
            times = sorted(_one_more(node, qrm, runtime, pods + number) for number in range(rounds))
    return times[len(times) // 2], times[min(len(times) - 1, int(0.99 * len(times)))], times[-1]


def _one_more(node: NriNode, qrm: Qrm, runtime: NriRuntime, number: int) -> float:
    uid, done = new_pod(node, qrm, runtime, number)
    runtime.end(container_id(uid))
    runtime.end_pod(uid)
    node.delete(f"default/pod-{number}")
    return done.ms


def table(sizes: Sequence[int], rounds: int) -> Table:
    """Measure nodes of these sizes."""
    found = Table("CreateContainer with the plug-in", ["pods", "median", "p99", "goal", "longest"])
    for pods in sizes:
        median, p99, longest = measured(pods, rounds)
        goal = at_most(p99, GOAL_MS, "ms") if pods == GOAL_PODS else ""
        found.add(str(pods), amount(median, "ms"), amount(p99, "ms"), goal, amount(longest, "ms"))
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pods", type=int, nargs="+", default=[30, GOAL_PODS, 250])
    parser.add_argument("--rounds", type=int, default=300)
    options = parser.parse_args()
    print(table(options.pods, options.rounds).markdown())


if __name__ == "__main__":
    main()
