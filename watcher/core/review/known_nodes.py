"""A bound on the nodes whose samples are kept: a wrong label for the node gives new names with every fetch.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from watcher.core.review.findings import some_of
from watcher.core.windows.records import SampleBlock, TickRecord
from watcher.model import SeriesBatch

NameT = TypeVar("NameT", str, tuple[str, str])


def refused_names(
    names: Iterable[NameT], *, known: Collection[NameT], cluster: Collection[NameT] = (), most: int
) -> frozenset[NameT]:
    """Return the new names of nodes (or pods) beyond `most`, in the order of the names. Nodes of the cluster are never
    refused, and have their place before others."""
    kept = {*known, *cluster}
    new = sorted(set(names) - kept)
    return frozenset(new[max(0, most - len(kept)) :])


def without_nodes(batch: SeriesBatch, refused: Collection[str]) -> SeriesBatch:
    """Return the batch without the series of these nodes."""
    keep = np.array([node not in refused for node in batch.nodes], dtype=np.bool_)
    if keep.all():
        return batch
    number = np.cumsum(keep) - 1
    rows, of_kept = np.flatnonzero(keep).tolist(), keep[batch.series]
    return replace(
        batch,
        nodes=_at(batch.nodes, rows),
        series=number[batch.series[of_kept]],
        time=batch.time[of_kept],
        value=batch.value[of_kept],
        devices=_at(batch.devices, rows),
        sharers=_at(batch.sharers, rows),
    )


def _at(values: Sequence[str], rows: Iterable[int]) -> tuple[str, ...]:
    return tuple(values[row] for row in rows) if values else ()


def refusal(new: int, refused: Collection[str], *, most: int) -> str:
    """Return the reason for a finding: `new` names came in a fetch, some were refused."""
    return (
        f"{new:,} new node names in a fetch, such as {some_of(refused)}: {len(refused):,} are left out, because "
        f"{most:,} nodes are kept within the memory limit. Is node_label right? docs/reference/node-names.md explains "
        "names; for more nodes, raise the memory limit of the container"
    )


def restored_within(restored: TickRecord, *, most: int) -> tuple[TickRecord, int]:
    """Return the samples of at most `most` nodes, those with the newest samples first, and the number of the others."""
    names: dict[str, None] = {}
    for block in sorted(restored.blocks, key=lambda block: -block.first_slot):
        names |= dict.fromkeys(block.nodes)
    if len(names) <= most:
        return restored, 0
    kept = frozenset(list(names)[:most])
    blocks = tuple(_of_nodes(block, kept) for block in restored.blocks)
    return replace(restored, blocks=tuple(block for block in blocks if block.nodes)), len(names) - most


def _of_nodes(block: SampleBlock, kept: Collection[str]) -> SampleBlock:
    columns = [column for column, node in enumerate(block.nodes) if node in kept]
    nodes = tuple(block.nodes[column] for column in columns)
    return replace(block, nodes=nodes, values=block.values[:, columns], offset_ms=block.offset_ms[:, columns])
