"""The windows of all nodes in Prometheus' text format, for dashboards and alerts in Prometheus.

5,000 nodes have 20,000 lines, too many for a metrics library, which builds an object for each line. They change once
per tick, so they are written once per snapshot, with templates, at the first scrape.

Values are in base units: ratios from 0 to 1, bytes and packets per second, watts. Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from watcher.arrays import F64
from watcher.core.publishing.compression import CHUNK_NODES
from watcher.core.publishing.documents import MetricColumn, number_texts, select, to_wire
from watcher.core.publishing.selection import Selection
from watcher.model import METRIC_BY_KEY, METRIC_BY_NAME, Metric, MetricType, Operator, Snapshot, Window

PREFIX = "load_watcher_node_"


@dataclass(frozen=True, slots=True)
class View:
    """The exported part of a snapshot. Each type, operator and window multiplies the number of series in Prometheus."""

    types: tuple[MetricType, ...] = (MetricType.CPU, MetricType.MEMORY)
    operators: tuple[Operator, ...] = (Operator.AVG, Operator.STD)
    windows: tuple[str, ...] = ("15m",)


@dataclass(frozen=True, slots=True)
class Family:
    """A metric family on /metrics. `members` maps keys of node metrics to values of the label `resource`; the values
    are multiplied by `factor`."""

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
    Family("network_receive_bytes_per_second", "Bytes per second that a node receives.", {"NetworkReceive": "Network"}),
    Family("network_transmit_bytes_per_second", "Bytes per second that a node sends.", {"NetworkTransmit": "Network"}),
    Family(
        "network_receive_drop_packets_per_second",
        "Received packets per second that a node drops.",
        {"NetworkReceiveDrop": "Network"},
    ),
    Family(
        "network_transmit_drop_packets_per_second",
        "Outgoing packets per second that a node drops.",
        {"NetworkTransmitDrop": "Network"},
    ),
    Family(
        "power_watts",
        "Power in watts that a node, or a part of it, draws.",
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
        "Share of time in which some task of a node waits for the resource (PSI some), 0 to 1.",
        {"PressureCPU": "CPU", "PressureMemory": "Memory", "PressureIO": "IO"},
        0.01,
    ),
    Family(
        "pressure_full_ratio",
        "Share of time in which all tasks of a node wait for the resource (PSI full), 0 to 1.",
        {"PressureMemoryFull": "Memory", "PressureIOFull": "IO"},
        0.01,
    ),
)
_FALLBACK = "Label window is the requested window; a node with too few samples has the value of the next shorter one."


FORECAST = PREFIX + "forecast_ratio"
_FORECAST_HELP = "Upper bound of the load of a node within the next hours (label horizon), as a share of its capacity."


@dataclass(frozen=True, slots=True)
class ExpositionColumn:
    """One series per node: `values` [n] in the family's unit, NaN without a value."""

    resource: str
    operator: str
    window: str
    values: F64


def node_windows(snapshot: Snapshot, view: View) -> bytes:
    """Return the exposition text of a snapshot's nodes; b"" without values."""
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
                labels = f'resource="{column.resource}",operator="{column.operator}",window="{column.window}"'
                texts.extend(_lines(name, labels, column.values, nodes))
    return b"".join([*texts, *_forecast_lines(snapshot, view, nodes)])


def _forecast_lines(snapshot: Snapshot, view: View, nodes: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the bounds of the default horizon. Without any, the family is known but empty, so that alerts are valid."""
    if snapshot.forecasts is None:
        return
    horizon = snapshot.forecasts.horizon
    yield f"# HELP {FORECAST} {_FORECAST_HELP}\n# TYPE {FORECAST} gauge\n".encode()
    for (name, label), bounds in snapshot.forecasts.bounds.items():
        kind = METRIC_BY_NAME[name].type
        if label == horizon and kind in view.types:
            yield from _lines(FORECAST, f'resource="{kind}",horizon="{horizon}"', to_wire(bounds * 0.01), nodes)


def _windows(snapshot: Snapshot, view: View) -> list[Window]:
    return [window for window in snapshot.windows if window.label in view.windows]


def _columns(
    family: Family, metric: Metric, parts: Sequence[tuple[Window, Sequence[MetricColumn]]], view: View
) -> Iterator[ExpositionColumn]:
    """Yield the columns of one metric. A selection has one column per window that nodes fell back to; each node is in
    one of them, so they are merged. Operators that a selection adds for schedulers are skipped."""
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
                yield ExpositionColumn(family.members[metric.key], operator, label, values)


def _lines(name: str, labels: str, column: F64, nodes: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the lines of a column [n] without NaN, in chunks of a thousand nodes; `labels` follow the node."""
    start_of_line = f'{name}{{node="'.encode()
    rest = f'",{labels}}} '.encode()
    for start in range(0, len(nodes), CHUNK_NODES):
        values = column[start : start + CHUNK_NODES]
        known = np.flatnonzero(~np.isnan(values))
        here = nodes[start : start + CHUNK_NODES]
        names = here if len(known) == len(values) else [here[row] for row in known.tolist()]
        pairs = zip(names, number_texts(values[known]), strict=True)
        yield b"".join([b"%b%b%b%b\n" % (start_of_line, node, rest, text) for node, text in pairs])


def escape(value: str) -> bytes:
    """Escape a label value for the text format."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n").encode("utf-8", "replace")
