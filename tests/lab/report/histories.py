"""Collected histories of small clusters, the input of the report."""

import numpy as np

from lab.report.collected import (
    ClusterHistory,
    MissingData,
    NodeLoads,
    NodeRequests,
    NodeSample,
    NodeSizes,
    PodLoads,
    RecordedPods,
    utilization_grid,
)

DAY_S, SLOT_S, STEP_S = 86400, 300, 900
BEGINS = 20_000 * DAY_S
GIB = float(1 << 30)


def node_loads(cpu: np.ndarray, *, begins: int = BEGINS, memory: float = 40.0) -> NodeLoads:
    """`cpu` [slots, n] in percent; memory is equal on all nodes. Nodes are hot above 80 %."""
    names = tuple(f"node-{i}" for i in range(cpu.shape[1]))
    of_memory = np.full_like(cpu, memory)
    first, second = (utilization_grid(each, SLOT_S, slots=len(cpu), threshold=80.0) for each in (cpu, of_memory))
    return NodeLoads(names, begins, first, second, 80.0)


def daily(days: int, *, nodes: int = 2, hot: float = 95.0, calm: float = 30.0) -> np.ndarray:
    """The first node is `hot` from 9:00 to 11:00, everything else is `calm`."""
    cpu = np.full((days * 288, nodes), calm)
    for day in range(days):
        cpu[day * 288 + 9 * 12 : day * 288 + 11 * 12, 0] = hot
    return cpu


def history(
    days: int = 3, *, name: str = "web-6d4b75c9f8-abcde", missing: tuple[MissingData, ...] = ()
) -> ClusterHistory:
    """Two nodes of 4 cores, and on each a pod of 1 core that exists all the time."""
    loads = node_loads(daily(days))
    ends = BEGINS + days * DAY_S
    keys = (("shop", name, "node-0"), ("shop", "db-0", "node-1"))
    steps = days * DAY_S // STEP_S
    ones = np.ones((steps, 2))
    sample = NodeSample(loads.nodes, (), 2)
    recorded = RecordedPods(
        sample, keys, ("Deployment/web", ""), BEGINS, STEP_S, np.ones((steps + 1, 2), dtype=np.bool_),
        np.ones((steps + 1, 2)), np.full((steps + 1, 2), GIB), np.full(2, 0.5), np.full(2, GIB),
    )  # fmt: skip
    return ClusterHistory(
        "http://prometheus:9090",
        BEGINS,
        ends,
        loads,
        NodeSizes(*(np.full(2, size) for size in (4.0, 16 * GIB, 3.8, 15 * GIB))),
        NodeRequests(np.full(2, 2.0), np.full(2, 4 * GIB)),
        PodLoads(keys, BEGINS, STEP_S, ones, sample),
        {("shop", name): "Deployment/web"},
        recorded,
        missing,
    )
