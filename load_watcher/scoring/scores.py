"""Tables of the response of explain, for `load-watcher score`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from load_watcher.scoring.extender_client import scoring_plugins
from load_watcher.scoring.score_texts import number, readable, short_reason, targets_of
from watcher.core.config.quantities import write_size

MOST_SHOWN = 40  # nodes per table, best first


def score_tables(document: Mapping[str, Any], *, explained: bool) -> Iterator[RenderableType]:
    """Yield the ranking as a table; with `explained`, also the steps of every plug-in for every node."""
    yield escape(f"{document['pod']['key']}: {resources_text(document['pod'])}")
    load = document.get("load")
    if load is None:
        yield "[yellow]no load data[/]"
    else:
        yield escape(f"load from {load['source']}, {load['age_s']:.0f} s old")
    nodes: Sequence[Mapping[str, Any]] = document["nodes"]
    shown = nodes[:MOST_SHOWN]
    yield from map(escape, targets_of(shown))
    yield _ranking(shown, now=document["time"])
    if len(nodes) > len(shown):
        yield f"and {len(nodes) - len(shown)} more nodes; --node NODE or -o json shows them"
    if unchecked := document["pod"].get("unchecked"):
        yield escape(f"rules of the pod that were not checked: {', '.join(unchecked)}")
    if unknown := document.get("unknown"):
        yield escape(f"unknown nodes: {', '.join(unknown)}")
    if explained:
        for node in shown:
            yield from steps_of(node)


def resources_text(pod: Mapping[str, Any]) -> str:
    """Return a pod's requests and limits as text, from an explain response or a decision."""
    of_pod = {kind: _amounts(pod[kind]) for kind in ("requests", "limits")}
    asked = "; ".join(f"{kind} {amounts}" for kind, amounts in of_pod.items() if amounts)
    return asked or "no requests or limits"


def _amounts(amounts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {_amount(name, value)}" for name, value in amounts.items() if value)


def _amount(name: str, value: int) -> str:
    if name == "cpu":
        return f"{value}m"
    of_bytes = name in ("memory", "ephemeral-storage") or name.startswith("hugepages-")
    return write_size(value) if of_bytes else f"{value:,}"


def _ranking(nodes: Sequence[Mapping[str, Any]], *, now: float) -> Table:
    """Return the table of nodes: score, age of the newest sample, and reason."""
    table = Table(box=None, pad_edge=False)
    table.add_column("node", no_wrap=True)
    table.add_column("score", justify="right")
    table.add_column("age", justify="right", no_wrap=True)
    table.add_column("why", overflow="fold")
    best = max((node["score"] for node in nodes if node["passes"]), default=0.0)
    for node in nodes:
        age = "-" if node["sampled"] is None else f"{max(0.0, now - node['sampled']):.0f} s"
        table.add_row(escape(node["name"]), _score(node, best=best), age, escape(_why(node)))
    return table


def _score(node: Mapping[str, Any], *, best: float) -> str:
    if not node["passes"]:
        return "[red]rejected[/]"
    style = "yellow" if node["score"] == 0.0 else "bold green" if node["score"] == best else ""
    return f"[{style}]{node['score']:.1f}[/]" if style else f"{node['score']:.1f}"


def _why(node: Mapping[str, Any]) -> str:
    """Return the reasons of the filters that reject the node, otherwise those of the scoring plug-ins."""
    rejecting = [each for each in node["plugins"] if each["point"] == "filter" and not each["passes"]]
    return reasons_of(rejecting or scoring_plugins(node))


def reasons_of(plugins: Sequence[Mapping[str, Any]]) -> str:
    """Return the short reasons of plug-ins; of several plug-ins, each on a line with the name and the score."""
    if len(plugins) == 1:
        return short_reason(plugins[0])
    scores = (f" {number(each['score'], form='.0f')}" if "score" in each else "" for each in plugins)
    return "\n".join(
        f"{each['name']}{score}: {short_reason(each)}" for each, score in zip(plugins, scores, strict=True)
    )


def steps_of(node: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield a node's measured load with windows and age, and the inputs and steps of each plug-in with units."""
    yield f"\n[bold]{escape(node['name'])}[/]"
    for metric, values in node.get("load", {}).items():
        windows = node["windows"][metric]
        each = [
            f"{operator} {number(value)}{_over(windows['covers_s'][operator])}" for operator, value in values.items()
        ]
        age = "" if windows["age_s"] is None else f"; newest sample {max(0.0, windows['age_s']):.0f} s old"
        yield escape(f"  {metric}: {', '.join(each)}{age}")
    for plugin in node["plugins"]:
        yield escape(f"  {plugin['name']}: {plugin['reason']}")
        for name, text in readable(plugin):
            yield escape(f"    {name}: {text}")


def _over(seconds: float | None) -> str:
    if not seconds:
        return ""
    return f" over {seconds / 60:g}m" if seconds % 3600 else f" over {seconds / 3600:g}h"
