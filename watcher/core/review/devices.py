"""Reduction of series to devices: duplicates of a device count once, before a sum or mean over the devices of a node.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set

import numpy as np

from watcher.arrays import I64
from watcher.core.review.findings import _of_cells, _per_cell, _starts
from watcher.model import OF_TARGET, Cells, Combine, Finding, FindingKind, Metric, Remedy, SeriesBatch

DUPLICATES = (
    "several series of one device (or of the node as a whole), as from two scrape jobs, replicas or agents; the"
    " largest is used once"
)


def take(cells: Cells, order: I64) -> Cells:
    return Cells(cells.names, cells.node[order], cells.slot[order], cells.time[order], cells.value[order])


def once_per_device(batch: SeriesBatch, cells: Cells, key: I64, series: I64) -> tuple[Cells, I64, tuple[Finding, ...]]:
    """Reduce the samples of several series of one device to the largest. Input and result are sorted by key; within a
    key the result is sorted by device, so that a sum is rounded the same way for any order of the series."""
    devices = _without_numbers(batch)
    sharers = batch.sharers or batch.devices
    targets = _codes([each.rpartition(OF_TARGET)[0] for each in sharers])
    device, sharer, target = _codes(devices)[series], _codes(sharers)[series], targets[series]
    order = np.lexsort((cells.value, sharer, target, device, key))
    cells, key, device = take(cells, order), key[order], device[order]
    sharer, target = sharer[order], target[order]
    changed = np.append(True, (key[1:] != key[:-1]) | (device[1:] != device[:-1]))
    of_one_target = np.append(True, (sharer[1:] != sharer[:-1]) & (target[1:] == target[:-1]))
    repeated = ~(changed | of_one_target)
    starts = np.flatnonzero(changed)
    reduced = Cells(
        cells.names,
        cells.node[starts],
        cells.slot[starts],
        np.maximum.reduceat(cells.time, starts),
        np.maximum.reduceat(cells.value, starts),
    )
    several = np.flatnonzero(np.logical_or.reduceat(repeated, starts))
    findings = _duplicates(batch.metric, reduced, several, DUPLICATES)
    key, device = key[starts], device[starts]
    names = sorted(set(devices))
    reduced, key, device, more = _without_unlabelled(batch.metric, names, reduced, key, device)
    reduced, key, other = _of_one_kind(batch, devices, names, reduced, key, device)
    return reduced, key, findings + more + other


# --- labels of one device --------------------------------------------------------------------------------------------


def _without_numbers(batch: SeriesBatch) -> tuple[str, ...]:
    """The device of each series, by its unique label where it has one, and otherwise by that of the node's device with
    the same number: one exporter may have both labels, and another one the number alone."""
    metric = batch.metric
    if metric.numbers is None:
        return batch.devices
    at, known = metric.numbers, [device.split("\0") for device in batch.devices]
    unique: dict[tuple[str, str], set[str]] = defaultdict(set)
    for node, labels in zip(batch.nodes, known, strict=True):
        if len(labels) == len(metric.devices) and labels[0] and labels[at]:
            unique[node, labels[at]].add(labels[0])
    found = []
    for node, labels in zip(batch.nodes, known, strict=True):
        if len(labels) == len(metric.devices):
            same = unique.get((node, labels[at]), set()) if labels[at] and not labels[0] else set()
            name = next(iter(same)) if len(same) == 1 else labels[0]
            labels = [name, *labels[1:at], "" if name else labels[at], *labels[at + 1 :]]
        found.append("\0".join(labels))
    return tuple(found)


def _of_one_kind(
    batch: SeriesBatch, devices: Sequence[str], names: Sequence[str], cells: Cells, key: I64, device: I64
) -> tuple[Cells, I64, tuple[Finding, ...]]:
    """Keep, of each key, the samples of devices with labels of one kind: a zone of one exporter and a package of
    another one may be the same device. Of sums, the largest is kept, of means, the one of most devices. Input and
    result are sorted by key."""
    kinds = _kinds(batch, devices, names, set(zip(cells.node.tolist(), device.tolist(), strict=True)))
    kind = np.array([kinds.get(pair, 0) for pair in zip(cells.node.tolist(), device.tolist(), strict=True)])
    if not kind.any():
        return cells, key, ()
    starts = _starts(key)
    weight = cells.value if batch.metric.combine is Combine.SUM else np.ones(len(key))
    totals = np.array([np.add.reduceat(np.where(kind == each, weight, 0.0), starts) for each in range(kind.max() + 1)])
    keep = kind == _per_cell(totals.argmax(axis=0), starts, len(key))
    affected = np.logical_or.reduceat(~keep, starts)
    return cells.where(keep), key[keep], _duplicates(batch.metric, cells, starts[affected], _KINDS)


_KINDS = (
    "series of devices with different labels, such as zone and package, which may be of the same device; only those"
    " with the larger total, or the most devices, are used: use the series of one exporter"
)


def _kinds(
    batch: SeriesBatch, devices: Sequence[str], names: Sequence[str], pairs: Set[tuple[int, int]]
) -> Mapping[tuple[int, int], int]:
    """Number of the kind by node and device, for nodes with devices that have no label in common: these are of
    different kinds."""
    groups: dict[str, set[int]] = defaultdict(set)
    for name, given in zip(devices, batch.devices, strict=True):
        groups[name] |= {i for i, text in enumerate(given.split("\0")) if text}
    if len({frozenset(each) for each in groups.values()}) < 2:
        return {}
    of_node: dict[int, list[int]] = defaultdict(list)
    for node, device in sorted(pairs):
        of_node[node].append(device)
    found: dict[tuple[int, int], int] = {}
    for node, several in of_node.items():
        kinds: list[set[int]] = []
        for device in several:
            own = groups[names[device]]
            joined = own.union(*(each for each in kinds if each & own))
            kinds = [*(each for each in kinds if not each & own), joined]
        kinds.sort(key=sorted)
        for device in several:
            found[node, device] = next((i for i, each in enumerate(kinds) if each & groups[names[device]]), 0)
    return found


def _without_unlabelled(
    metric: Metric, names: Sequence[str], cells: Cells, key: I64, device: I64
) -> tuple[Cells, I64, I64, tuple[Finding, ...]]:
    """Keep, of each key, either the samples whose device has all labels or those that lack some: a series without the
    label of its device may be another one's duplicate, or the total. Of sums, the larger one is kept. Input and result
    are sorted by key. `names` are the devices by their number."""
    pairs = sorted(set(zip(cells.node.tolist(), device.tolist(), strict=True)))
    unlabelled = {pair for pair in pairs if _lacks_labels(pair, pairs, names)} if _differ_in_labels(names) else set()
    if not unlabelled:
        return cells, key, device, ()
    partial = np.array([pair in unlabelled for pair in zip(cells.node.tolist(), device.tolist(), strict=True)])
    starts = _starts(key)
    has_partial, has_full = (np.logical_or.reduceat(each, starts) for each in (partial, ~partial))
    larger = np.zeros(len(starts), dtype=bool)
    if metric.combine is Combine.SUM:
        parts = (np.add.reduceat(np.where(each, cells.value, 0.0), starts) for each in (partial, ~partial))
        larger = np.greater(*parts)
    keep = partial == _per_cell(~has_full | (has_partial & larger), starts, len(key))
    findings = _duplicates(metric, cells, starts[has_partial & has_full], _UNLABELLED)
    return cells.where(keep), key[keep], device[keep], findings


_UNLABELLED = (
    "series without a label of their device beside series with it, which may be of the same device; they are not added"
    " to each other: check the relabelling of the scrape jobs"
)


def _differ_in_labels(devices: Sequence[str]) -> bool:
    return len({tuple(map(bool, device.split("\0"))) for device in devices}) > 1


def _lacks_labels(pair: tuple[int, int], pairs: Sequence[tuple[int, int]], names: Sequence[str]) -> bool:
    """Whether another device of the node has all labels of this one and more."""
    node, device = pair
    own = names[device].split("\0")
    rivals = pairs[bisect_left(pairs, (node, -1)) : bisect_left(pairs, (node + 1, -1))]
    return any(_has_more(names[other].split("\0"), own) for _, other in rivals if other != device)


def _has_more(labels: Sequence[str], than: Sequence[str]) -> bool:
    return than == [""] or (len(labels) == len(than) and all(b in ("", a) for a, b in zip(labels, than, strict=True)))


def _duplicates(metric: Metric, cells: Cells, at: I64, what: str) -> tuple[Finding, ...]:
    """The findings of the nodes of the cells `at`: they have `what`."""
    first = np.zeros(len(cells.node), dtype=bool)
    first[at] = True
    return _of_cells(
        FindingKind.DUPLICATE_SERIES,
        Remedy.COMBINED,
        cells,
        first,
        metric=metric,
        text=lambda _value, _time: f"has {what}",
        summary=f"have {what}",
    )


def _codes(texts: Sequence[str]) -> I64:
    """Number each text by its place in the sorted order of all."""
    place = {text: number for number, text in enumerate(sorted(set(texts)))}
    return np.array([place[text] for text in texts], dtype=np.int64)
