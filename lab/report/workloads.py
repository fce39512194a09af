"""Which workloads make the load.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lab.report.collected import NodeLoads, NodeSample, PodLoads
from lab.report.names import workload_of
from watcher.arrays import F64, I64, Bool
from watcher.core.forecast.maxima import SLOT_S
from watcher.core.intervals import NORMAL_975


@dataclass(frozen=True, slots=True)
class WorkloadShare:
    """Cores of one workload: mean and peak of the sum over its pods; its share of the cores of all pods, and of those
    on hot nodes while they were hot (NaN if no node was hot). Estimates, if the nodes are a sample: the errors are half
    of the 95 % intervals of the shares, 0 if all nodes were read and NaN if unknown."""

    namespace: str
    workload: str
    pods: int
    mean_cores: float
    peak_cores: float
    share: float
    hot_share: float
    share_error: float = 0.0
    hot_share_error: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkloadShares:
    """Workloads sorted by their share of the hot hours, then by share. `hot_values` is the number of values of pods on
    hot nodes. `pods` were read, on the nodes of `sample`. For a part of the time, the pods of the nodes in `gaps` have
    no values although the nodes have load; then each pod counts with its mean over the rest of the time."""

    workloads: tuple[WorkloadShare, ...]
    pods: int
    step: int
    total_cores: float
    hot_values: int
    sample: NodeSample
    gaps: tuple[str, ...] = ()


def workload_shares(pods: PodLoads, loads: NodeLoads, owners: Mapping[tuple[str, str], str]) -> WorkloadShares:
    """Sum the cores of pods by workload."""
    names = [(namespace, workload_of(pod, owners.get((namespace, pod), ""))) for namespace, pod, _ in pods.pods]
    order = sorted(set(names))
    place = {name: i for i, name in enumerate(order)}
    index = np.array([place[name] for name in names], dtype=np.int64)
    known = np.isfinite(pods.cores).any(axis=1)
    unknown = _unknown_at(pods, loads)[known]
    used = np.where(unknown, 0.0, np.nan_to_num(pods.cores[known]))
    measured = (~unknown).sum(axis=0)
    used = np.where(unknown, used.sum(axis=0) / np.maximum(measured, 1), used)
    hot = np.where(unknown, 0.0, _at(pods, loads, loads.cpu.hot)[known])
    weights = _weights(pods)
    sums = np.zeros((len(used), len(order)))
    np.add.at(sums.T, index, (used * weights).T)
    mean, peak = sums.mean(axis=0), sums.max(axis=0)
    share, share_error = _shares(pods, index, used.mean(axis=0), len(order))
    heat, heat_error = _shares(pods, index, (hot * used).sum(axis=0), len(order))
    count = np.rint(np.bincount(index, weights=weights, minlength=len(order)))
    columns = (count.astype(np.int64), mean, peak, share, heat, share_error, heat_error)
    rows = [
        WorkloadShare(namespace, workload, *(column[i].item() for column in columns))
        for i, (namespace, workload) in enumerate(order)
    ]
    rows.sort(
        key=lambda each: (-np.nan_to_num(each.hot_share), -np.nan_to_num(each.share), each.namespace, each.workload)
    )
    values = int(np.count_nonzero((hot > 0.0) & (used > 0.0)))
    gaps = sorted({pods.pods[i][2] for i in np.flatnonzero(unknown.any(axis=0)).tolist()})
    return WorkloadShares(tuple(rows), len(pods.pods), pods.step, float(mean.sum()), values, pods.sample, tuple(gaps))


def _weights(pods: PodLoads) -> F64:
    """The number of nodes that the node of each pod stands for [pods]."""
    sample = pods.sample
    if sample.is_complete:
        return np.ones(len(pods.pods))
    hottest = set(sample.hottest)
    return np.array([1.0 if node in hottest else sample.weight for _, _, node in pods.pods])


def _shares(pods: PodLoads, index: I64, amounts: F64, workloads: int) -> tuple[F64, F64]:
    """The share of each workload in the amounts of all pods [pods], and half of its 95 % interval; NaN if all amounts
    are 0. `index` has the workload of each pod.

    The share is a ratio of two totals, estimated from the nodes that were chosen by a hash; the variance of such an
    estimate is that of the residuals by node (Cochran, Sampling Techniques, 1977, chapter 6). The hottest nodes add no
    variance, because all of them were read."""
    weighted = np.bincount(index, weights=amounts * _weights(pods), minlength=workloads)
    total = float(weighted.sum())
    if not total:
        return np.full(workloads, np.nan), np.full(workloads, np.nan)
    share = weighted / total
    sample = pods.sample
    if sample.is_complete:
        return share, np.zeros(workloads)
    chosen = sorted(set(sample.nodes) - set(sample.hottest))
    if len(chosen) < 2:
        return share, np.full(workloads, np.nan)
    row = {node: i for i, node in enumerate(chosen)}
    rows = np.array([row.get(node, -1) for _, _, node in pods.pods], dtype=np.int64)
    inside = rows >= 0
    by_node = np.bincount(
        rows[inside] * workloads + index[inside], weights=amounts[inside], minlength=len(chosen) * workloads
    ).reshape(len(chosen), workloads)
    residuals = by_node - share * by_node.sum(axis=1, keepdims=True)
    population = sample.total - len(sample.hottest)
    variance = population**2 * (1.0 - len(chosen) / population) * residuals.var(axis=0, ddof=1) / len(chosen)
    return share, NORMAL_975 * np.sqrt(variance) / total


def _unknown_at(pods: PodLoads, loads: NodeLoads) -> Bool:
    """Whether the node of each pod had load, and no pod of the node had a value, in each step [steps, pods]. The step
    before and the one after such a step count too, because a part of them was not measured."""
    place = {node: i for i, node in enumerate(dict.fromkeys(node for _, _, node in pods.pods))}
    index = np.array([place[node] for _, _, node in pods.pods], dtype=np.int64)
    measured = np.zeros((len(pods.cores), len(place)), dtype=np.bool_)
    np.logical_or.at(measured.T, index, np.isfinite(pods.cores).T)
    gaps = (_at(pods, loads, np.isfinite(loads.cpu.mean)) > 0.0) & ~measured[:, index]
    unknown = gaps.copy()
    unknown[1:] |= gaps[:-1]
    unknown[:-1] |= gaps[1:]
    return unknown


def _at(pods: PodLoads, loads: NodeLoads, of_nodes: F64 | Bool) -> F64:
    """The mean over each step of the values [slots, nodes] for the node of each pod [steps, pods]; 0 for nodes without
    load, and for slots without values."""
    width, steps = pods.step // SLOT_S, len(pods.cores)
    values = np.zeros((steps * width, len(loads.nodes) + 1))
    known = np.nan_to_num(of_nodes[: steps * width].astype(np.float64))
    values[: len(known), :-1] = known
    means = values.reshape(steps, width, -1).mean(axis=1)
    place = {node: i for i, node in enumerate(loads.nodes)}
    found: F64 = means[:, [place.get(node, -1) for _, _, node in pods.pods]]
    return found
