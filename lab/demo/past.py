"""The days before the demo began: the windows that a service would have stored, and the maxima of forecasts.

The simulated load is a function of time, so the windows of any minute can be computed. They describe the load itself,
without the faults of the monitoring, which begin minutes before the demo.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import fields, replace

import numpy as np

from lab.fleet.cluster import SimulatedCluster
from lab.fleet.load import RunningPods, node_load
from watcher.arrays import F64
from watcher.core.forecast.maxima import SLOT_S
from watcher.core.windows.records import WindowRecord
from watcher.core.windows.statistics import window_statistics
from watcher.model import DEFAULT_OPERATORS, METRIC_BY_KEY, SeriesBatch, Window

REACH_S = 86_400
MINUTE = 60
HOUR = 3_600
MANY_NODES = 500
AT_ONCE = 16_000
"""Number of pods and times that are computed at once."""
COARSE_STEP_S = 600  # the step of the day's chart of the dashboard
KEYS = ("CPU", "Memory")


def past_windows(
    cluster: SimulatedCluster, *, windows: Sequence[Window], kept: Collection[str]
) -> Iterator[Sequence[WindowRecord]]:
    """The windows of CPU and memory, restricted to the types `kept`, for the day before the cluster began: one list per
    hour, the newest first. The newest hour has every minute; a cluster of more than MANY_NODES has one value per
    COARSE_STEP_S before it, because it would take minutes and hundreds of megabytes otherwise."""
    keys = [key for key in KEYS if METRIC_BY_KEY[key].type in kept]
    if not keys:
        return
    end = int(cluster.begun // MINUTE) * MINUTE
    for until in range(end, end - REACH_S, -HOUR):
        coarse = until != end and len(cluster.nodes) > MANY_NODES
        yield _hour(cluster, keys, windows, until=until, step=COARSE_STEP_S if coarse else MINUTE)


def past_maxima(cluster: SimulatedCluster, key: str, since: float, until: float) -> SeriesBatch:
    """The maximum of two readings in each five minutes between two times (unix seconds, multiples of 300), with the
    time of the middle of the five minutes."""
    starts = range(int(since), int(until), SLOT_S)
    readings = [start + quarter * SLOT_S // 4 for start in starts for quarter in (1, 3)]
    shares = _shares(cluster, [key], readings)[:, 0]
    nodes = len(cluster.fleet.names)
    highest = shares.reshape(len(starts), 2, nodes).max(axis=1)
    series = np.repeat(np.arange(nodes, dtype=np.int64), len(starts))
    time = np.tile(np.array(starts, dtype=np.float64) + SLOT_S / 2, nodes)
    return SeriesBatch(METRIC_BY_KEY[key], tuple(cluster.fleet.names), series, time, highest.T.reshape(-1))


def _hour(
    cluster: SimulatedCluster, keys: Sequence[str], windows: Sequence[Window], *, until: int, step: int
) -> list[WindowRecord]:
    lengths = [max(1, window.seconds // MINUTE) for window in windows]
    times = range(until, until - HOUR - max(lengths) * MINUTE, -MINUTE)
    shares = _shares(cluster, keys, times)  # newest first
    order = np.argsort(np.array(cluster.fleet.names))
    names = tuple(cluster.fleet.names[row] for row in order.tolist())
    columns = tuple((METRIC_BY_KEY[key].name, operator) for key in keys for operator in DEFAULT_OPERATORS)
    records = []
    for time in range(until, until - HOUR, -step):
        first = (until - time) // MINUTE
        values = shares[first : first + max(lengths)].reshape(max(lengths), -1)
        found = window_statistics(values, np.ones(values.shape, dtype=bool), lengths=lengths)
        for row, window in enumerate(windows):
            both = np.stack([found.mean[row], found.deviation[row]])  # (operators, keys * nodes)
            by_column = both.reshape(len(DEFAULT_OPERATORS), len(keys), -1).transpose(1, 0, 2)[:, :, order]
            payload = by_column.reshape(len(columns), -1).astype(np.float32)
            records.append(WindowRecord(window=window, time=time, nodes=names, columns=columns, values=payload))
    return records


def _shares(cluster: SimulatedCluster, keys: Sequence[str], times: Sequence[int]) -> F64:
    """Load in percent of the capacity at `times` (unix seconds), shape (times, keys, nodes)."""
    pods = cluster.running
    # Each initial pod has replaced one with the same load; otherwise the load would grow from nothing over days.
    pods = replace(pods, begin=np.where(pods.begin <= cluster.begun, -np.inf, pods.begin))
    most = max(1, AT_ONCE // max(1, len(pods)))
    parts = [times[first : first + most] for first in range(0, len(times), most)]
    return np.concatenate([_shares_at_once(cluster, keys, pods, part) for part in parts])


def _shares_at_once(cluster: SimulatedCluster, keys: Sequence[str], pods: RunningPods, times: Sequence[int]) -> F64:
    """As `_shares`, with the nodes at each time as nodes of one fleet: a call for each time takes ten times as long."""
    nodes, copies = len(cluster.fleet.names), len(times)
    columns = {each.name: np.tile(getattr(pods, each.name), copies) for each in fields(pods)}
    columns["row"] += np.repeat(nodes * np.arange(copies), len(pods))
    one = cluster.fleet
    fleet = replace(
        one,
        names=one.names * copies,
        key=np.tile(one.key, copies),
        cores=np.tile(one.cores, copies),
        memory=np.tile(one.memory, copies),
        system_cores=np.tile(one.system_cores, copies),
        idle_watts=np.tile(one.idle_watts, copies),
        busy_watts=np.tile(one.busy_watts, copies),
    )
    load = node_load(fleet, RunningPods(**columns), np.repeat(np.array(times, dtype=np.float64), nodes))
    values = {"CPU": 100.0 * load.cores / fleet.cores, "Memory": 100.0 * load.memory / fleet.memory}
    return np.stack([values[key].reshape(copies, nodes) for key in keys], axis=1)
