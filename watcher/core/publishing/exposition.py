"""The windows of all nodes in Prometheus' text format, for people whose dashboards and alerts live there.

20,000 lines at 5,000 nodes are too many for a metrics library, which builds an object for each. They change once per
tick, so they are written once per snapshot, with templates, when the first scrape comes.

Values are in base units: ratios from 0 to 1, bytes and packets per second, watts. Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from watcher.arrays import F64
from watcher.core.publishing.compression import CHUNK_NODES
from watcher.core.publishing.documents import Part, number_texts, select, to_wire
from watcher.core.publishing.selection import Selection
from watcher.model import METRIC_BY_KEY, Metric, MetricType, Operator, Snapshot, Window

PREFIX = "load_watcher_node_"


@dataclass(frozen=True, slots=True)
class View:
    """What of a snapshot is shown. Each type, operator and window multiplies the series that Prometheus keeps."""

    types: tuple[MetricType, ...] = (MetricType.CPU, MetricType.MEMORY)
    operators: tuple[Operator, ...] = (Operator.AVG, Operator.STD)
    windows: tuple[str, ...] = ("15m",)


@dataclass(frozen=True, slots=True)
class Family:
    """A metric of ours on /metrics: its samples are those of our metrics `members` (by key), each under its own label
    `resource`, times `factor`."""

    name: str
    help: str
    members: Mapping[str, str]
    factor: float = 1.0


FAMILIES: tuple[Family, ...] = (
    Family(
        "utilisation_ratio",
        "Share of a node's capacity in use, 0 to 1.",
        {"CPU": "CPU", "Memory": "Memory", "Storage": "Storage", "GPU": "GPU"},
        0.01,
    ),
    Family("network_receive_bytes_per_second", "Bytes that a node received.", {"NetworkReceive": "Network"}),
    Family("network_transmit_bytes_per_second", "Bytes that a node sent.", {"NetworkTransmit": "Network"}),
    Family(
        "network_receive_drop_packets_per_second",
        "Received packets that a node dropped.",
        {"NetworkReceiveDrop": "Network"},
    ),
    Family(
        "network_transmit_drop_packets_per_second",
        "Packets to send that a node dropped.",
        {"NetworkTransmitDrop": "Network"},
    ),
    Family(
        "power_watts",
        "Power that a node, or a part of it, draws.",
        {
            "EnergyPackage": "Package",
            "EnergyCore": "Core",
            "EnergyUncore": "Uncore",
            "EnergyDram": "Dram",
            "EnergyOther": "Other",
            "EnergyGPU": "GPU",
            "EnergyPlatform": "Platform",
            "EnergyHost": "Host",
        },
    ),
    Family(
        "pressure_ratio",
        "Share of time in which some task of a node waited for the resource (PSI some, 10 s), 0 to 1.",
        {"PressureCPU": "CPU", "PressureMemory": "Memory", "PressureIO": "IO"},
        0.01,
    ),
)
_FALLBACK = "Label window is the window asked for; a node with too few samples for it stands with its next shorter one."


@dataclass(frozen=True, slots=True)
class Column:
    """One series per node: `values` [n] in the family's unit, NaN where there is none."""

    resource: str
    operator: str
    window: str
    values: F64


def node_windows(snapshot: Snapshot, view: View) -> bytes:
    """The exposition of a snapshot's nodes; empty if there is nothing to show."""
    parts = [
        (window, select(snapshot, Selection(window, view.types, view.operators))) for window in _windows(snapshot, view)
    ]
    nodes = [escape(node) for node in snapshot.nodes]
    texts: list[bytes] = []
    for family in FAMILIES:
        columns = [column for key in family.members for column in _columns(family, METRIC_BY_KEY[key], parts, view)]
        if columns:
            name = PREFIX + family.name
            texts.append(f"# HELP {name} {family.help} {_FALLBACK}\n# TYPE {name} gauge\n".encode())
            for column in columns:
                texts.extend(_lines(name, column, nodes))
    return b"".join(texts)


def _windows(snapshot: Snapshot, view: View) -> list[Window]:
    return [window for window in snapshot.windows if window.label in view.windows]


def _columns(
    family: Family, metric: Metric, parts: Sequence[tuple[Window, Sequence[Part]]], view: View
) -> Iterator[Column]:
    """The columns of one metric. A selection has one part per window that nodes fell back to: each node stands in one
    of them, so they are put together. What a selection adds for the schedulers' sake is passed over."""
    shown: set[tuple[str, str]] = set()
    for window, selected in parts:
        for operator in view.operators:
            label = "" if operator is Operator.LATEST else window.label
            found = [part.values for part in selected if part.metric is metric and part.operator is operator]
            if not found or (operator, label) in shown:
                continue
            shown.add((operator, label))
            values = to_wire(np.fmax.reduce(found) * family.factor)
            if not np.isnan(values).all():
                yield Column(family.members[metric.key], operator, label, values)


def _lines(name: str, column: Column, nodes: Sequence[bytes]) -> Iterator[bytes]:
    """The samples of a column, a thousand nodes at a time."""
    start_of_line = f'{name}{{node="'.encode()
    rest = f'",resource="{column.resource}",operator="{column.operator}",window="{column.window}"}} '.encode()
    for start in range(0, len(nodes), CHUNK_NODES):
        values = column.values[start : start + CHUNK_NODES]
        known = np.flatnonzero(~np.isnan(values))
        here = nodes[start : start + CHUNK_NODES]
        names = here if len(known) == len(values) else [here[row] for row in known.tolist()]
        pairs = zip(names, number_texts(values[known]), strict=True)
        yield b"".join([b"%b%b%b%b\n" % (start_of_line, node, rest, text) for node, text in pairs])


def escape(value: str) -> bytes:
    """A label's value, as the text format wants it."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n").encode("utf-8", "replace")
