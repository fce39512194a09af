"""The labels of the nodes as a compact document: each distinct value once, and an index per node.

A label is included if it can group nodes: unique values (kubernetes.io/hostname) cannot.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

MOST_VALUES = 200
"""Distinct values of a label; a label with more does not group nodes for a reader."""
MOST_LABELS = 60
FIRST = (
    "topology.kubernetes.io/zone",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "kubernetes.io/arch",
)
"""Well-known labels, which come first."""


class LabelColumn(msgspec.Struct, frozen=True):
    """One label: its distinct values in ascending order, and for each node the index of its value, null without the
    label."""

    name: str
    values: list[str]
    nodes: list[int | None]


class LabelsDocument(msgspec.Struct, frozen=True):
    """Body of /api/v1/labels. `nodes` are all nodes by name; the lists of `labels` have one item per node. `left_out`
    are the names of labels that do not group nodes, such as a label with a different value on every node. `reason` says
    why no labels are known, "" if some are."""

    nodes: list[str]
    labels: list[LabelColumn]
    left_out: list[str]
    reason: str = ""


def labels_document(
    nodes: Sequence[str], labels_of: Callable[[str], Mapping[str, str]], *, reason: str
) -> LabelsDocument:
    """Return the labels of `nodes`. `reason` is for a document without labels."""
    columns: dict[str, dict[int, str]] = {}
    for row, node in enumerate(nodes):
        for name, value in labels_of(node).items():
            columns.setdefault(name, {})[row] = value
    labels: list[LabelColumn] = []
    left_out: list[str] = []
    for name in sorted(columns, key=lambda each: (FIRST.index(each) if each in FIRST else len(FIRST), each)):
        values = sorted(set(columns[name].values()))
        unique = len(values) == len(columns[name]) > 1 and name not in FIRST
        if unique or len(values) > MOST_VALUES or len(labels) == MOST_LABELS:
            left_out.append(name)
            continue
        place = {value: at for at, value in enumerate(values)}
        of = [place[columns[name][row]] if row in columns[name] else None for row in range(len(nodes))]
        labels.append(LabelColumn(name, values, of))
    return LabelsDocument(list(nodes), labels, left_out, "" if columns else reason)
