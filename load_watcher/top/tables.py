"""The tables of `load-watcher top`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from load_watcher.top.usage import TYPES
from watcher.core.config.quantities import write_duration

UNKNOWN = "-"
SHORTER = "*"
"""Marks the mean of a shorter window."""
MIB = 1 << 20


def node_tables(document: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield the table of nodes in percent, and what is unknown."""
    forecast = f"<{document['horizon']}" if document["horizon"] else ""
    head = ["node"]
    for kind in TYPES:
        head += [f"{kind} {document['window']}", *([f"{kind} {forecast}"] if forecast else []), f"{kind} requested"]
    yield _table(
        [*head, "age"],
        [
            [
                node["name"],
                *(cell for kind in TYPES for cell in _node_cells(node[kind], document)),
                "" if node["age_s"] is None else write_duration(round(node["age_s"])),
            ]
            for node in document["nodes"]
        ],
        names=1,
    )
    if forecast:
        yield (
            f"{forecast}: the value stays below this bound for {document['horizon']} with a probability of "
            f"{100 * document['level']:g} %"
        )
    if shorter := sorted(
        {each[kind]["window"] for each in document["nodes"] for kind in TYPES} - {None, document["window"]}
    ):
        yield f"{SHORTER}: too few samples for {document['window']}, mean of a shorter window ({', '.join(shorter)})"
    if not document["source_ok"]:
        yield "[yellow]the source does not answer completely; load-watcher doctor shows why[/]"
    if document["silent"]:
        yield escape(f"without recent samples: {', '.join(document['silent'])}")
    yield from _requests_unknown(document)


def pod_tables(document: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield the table of pods in millicores and MiB, and what is unknown."""
    windows: Sequence[str] = document["windows"]
    head = ["namespace", "pod", "node"]
    for kind in TYPES:
        head += [f"{kind} now", *(f"{kind} {window}" for window in windows), f"{kind} requested"]
    yield _table(
        head,
        [
            [
                each["namespace"],
                each["name"],
                each["node"],
                *map(_millicores, _amounts(each["cpu"])),
                *map(_mebibytes, _amounts(each["memory"])),
            ]
            for each in document["pods"]
        ],
        names=3,
    )
    for node, cause in sorted(document["unknown"].items()):
        yield escape(f"usage of the pods on {node} is unknown: {cause}")
    yield from _requests_unknown(document)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, names: int) -> Table:
    """A table of which the first columns are names."""
    table = Table(box=None, pad_edge=False)
    for at, title in enumerate(head):
        table.add_column(title, justify="left" if at < names else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def _node_cells(values: Mapping[str, Any], document: Mapping[str, Any]) -> list[str]:
    shown = ("mean", "forecast", "requested") if document["horizon"] else ("mean", "requested")
    cells = [UNKNOWN if values[each] is None else f"{values[each]:.0f}%" for each in shown]
    return [cells[0] + SHORTER * (values["window"] not in (None, document["window"])), *cells[1:]]


def _amounts(values: Mapping[str, Any]) -> list[float | None]:
    return [values["usage"], *values["means"], values["requested"]]


def _millicores(cores: float | None) -> str:
    return UNKNOWN if cores is None else f"{1000 * cores:.0f}m"


def _mebibytes(size: float | None) -> str:
    return UNKNOWN if size is None else f"{size / MIB:.0f}Mi"


def _requests_unknown(document: Mapping[str, Any]) -> Iterator[str]:
    if document["requests_unknown"]:
        yield escape(f"requests are unknown: {document['requests_unknown']}")
