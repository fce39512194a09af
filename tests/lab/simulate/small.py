"""Small traces for the tests of simulation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab.simulate.engine import SimulationOptions, simulate
from lab.simulate.policies import find_policy
from lab.simulate.results import SimulationRun
from lab.simulate.trace_columns import TraceColumns, read_course
from lab.traces.records import EndRecord, LoadRecord, NodeRecord, PodRecord, Record, UsageRecord

BEGUN = 1_700_000_040.0  # the begin of a minute
GIB = 2**30


def node(name: str, cores: float = 8.0, *, at: float = 0.0, pods: int = 110, gib: int = 32) -> NodeRecord:
    return NodeRecord(BEGUN + at, name, cores, gib * GIB, pods=pods)


def load(name: str, cores: float | None, *, at: float = 0.0, gib: float | None = None) -> LoadRecord:
    return LoadRecord(BEGUN + at, name, cores, None if gib is None else int(gib * GIB))


def pod(
    uid: str,
    cores: float = 1.0,
    *,
    at: float = 0.0,
    gib: int = 1,
    lifetime: float | None = None,
    priority: int = 0,
    owner: str = "",
    limit: float | None = None,
) -> PodRecord:
    return PodRecord(BEGUN + at, uid, f"shop/{uid}", cores, gib * GIB, limit, None, lifetime, priority, owner)


def usage(uid: str, cores: float | None, *, at: float = 0.0) -> UsageRecord:
    return UsageRecord(BEGUN + at, uid, cores)


def course(*records: Record, minutes: int = 10) -> TraceColumns:
    return read_course([*records, EndRecord(BEGUN + 60.0 * minutes)])


def run(of: TraceColumns, policy: str = "LeastAllocated", **options: float | int) -> SimulationRun:
    return simulate(of, find_policy(policy, {}, cwd=Path())[0], SimulationOptions(**options))  # type: ignore[arg-type]


def placed(of: TraceColumns, result: SimulationRun) -> dict[str, str]:
    """uid -> the first node of each placed pod."""
    found = zip(of.pods, result.first_node.tolist(), strict=True)
    return {each.record.uid: of.names[node] for each, node in found if node >= 0}


def cpu(result: SimulationRun, node: int) -> Sequence[float]:
    """The wanted CPU of a node, minute by minute, in percent."""
    return [round(100.0 * float(share), 3) for share in result.series.cpu[:, node]]
