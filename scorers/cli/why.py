"""Client of GET /scheduler/decisions for `load-watcher why`, and the tables that it prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from scorers.cli.score import ask, reasons_of, resources_text, service_time, steps_of
from scorers.cli.short_reasons import targets_of
from watcher.core.kubernetes.times import time_text

_UNITS = (("d", 86400.0), ("h", 3600.0), ("min", 60.0))


async def why(address: str, pod: str, *, at: str | None = None, limit: int, token: str | None = None) -> dict[str, Any]:
    """Return the response of GET /scheduler/decisions. `pod` is NAMESPACE/NAME or NAME; `at` is a text that
    `service_time` reads. Raises ExtenderClientError."""
    parameters = {"pod": pod, "limit": str(limit)}
    if at is not None:
        parameters["at"] = service_time(at)
    return await ask(f"{address.rstrip('/')}/scheduler/decisions", parameters=parameters, token=token)


def as_tables(document: Mapping[str, Any], *, explained: bool) -> Iterator[RenderableType]:
    """Yield the decision: time and pod, filter, ranking, and outcome; with `explained`, also the inputs and steps of
    every plug-in for every recorded node."""
    decision = document["decision"]
    yield from _heading(document["pod"], decision)
    if (filtered := decision["filter"]) is not None:
        yield from _filter(filtered)
    if (ranking := decision["ranking"]) is not None:
        yield from _ranking(ranking)
    yield f"\n[bold]{escape(decision['outcome']['sentence'])}[/]"
    if explained and ranking is not None:
        for node in _with_inputs(ranking):
            yield from steps_of({"name": node["name"], "plugins": node["plugins"]})
    if others := document["others"]:
        yield from _others(others)


def _heading(pod: str, decision: Mapping[str, Any]) -> Iterator[RenderableType]:
    when, ago = time_text(decision["time"]), duration(decision["ago_s"])
    yield escape(f"{pod}, decided {when}, {ago} ago, by the profile {decision['profile']}")
    yield escape(resources_text(decision["pod"]))
    load = decision["load"]
    if load is None:
        yield "[yellow]no load data at that time[/]"
    else:
        yield escape(f"load from {load['source']}, over {load['window']}, {load['age_s']:.0f} s old at that time")
    for plugin, instead in decision["fallbacks"].items():
        yield f"[yellow]{escape(f'{plugin} had no load data; fallback: {instead}')}[/]"


def _filter(filtered: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield f"\nfilter: {filtered['passed']:,} of {filtered['asked']:,} nodes passed{_unknown(filtered)}"
    for plugin in filtered["plugins"]:
        for each in plugin["rejected"]:
            details = each.get("details", {})
            named = [f"{name}, {details[name]}" if name in details else name for name in each["nodes"]]
            names, more = ("; " if details else ", ").join(named), each["count"] - len(each["nodes"])
            message = f"{names} and {more:,} more" if more else names
            yield escape(f"  {plugin['name']} rejected {each['count']:,}: {each['reason']} ({message})")
    yield from _reserved(filtered)


def _unknown(answer: Mapping[str, Any]) -> str:
    return f", {answer['unknown']:,} of them unknown" if answer["unknown"] else ""


def _ranking(ranking: Mapping[str, Any]) -> Iterator[RenderableType]:
    rest = "; recorded nodes:" if ranking["of"] > len(ranking["nodes"]) else ""
    yield f"\nranking of {ranking['of']:,} nodes{_unknown(ranking)}{rest}"
    yield escape(f"by {', '.join(map(_weighted, ranking['plugins']))}")
    nodes = _with_inputs(ranking)
    yield from map(escape, targets_of(nodes))
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("node", no_wrap=True)
    for name in ("score", f"of {ranking['most']}", "age"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("why", overflow="fold")
    for node in nodes:
        table.add_row(*_row(node))
    yield table
    yield from _reserved(ranking)


def _with_inputs(ranking: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the nodes with the inputs of each plug-in, which a decision stores once for all nodes."""
    inputs = {plugin["name"]: plugin["inputs"] for plugin in ranking["plugins"]}
    return [
        {**node, "plugins": [{**plugin, "inputs": inputs[plugin["name"]]} for plugin in node["plugins"]]}
        for node in ranking["nodes"]
    ]


def _reserved(answer: Mapping[str, Any]) -> Iterator[RenderableType]:
    if node := answer.get("reserved"):
        yield escape(f"the pod was reserved on {node} until it was bound")


def _weighted(plugin: Mapping[str, Any]) -> str:
    return f"{plugin['name']} × {plugin['weight']}" if plugin["weight"] != 1 else str(plugin["name"])


def _row(node: Mapping[str, Any]) -> list[str]:
    name = escape(node["name"])
    age = "-" if node["age_s"] is None else f"{max(0.0, node['age_s']):.0f} s"
    return [
        f"{node['rank']:,}.",
        f"[bold green]{name}[/]" if node["chosen"] else name,
        f"{node['score']:.1f}",
        str(node["told"]),
        age,
        escape(reasons_of(node["plugins"])),
    ]


def _others(others: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    yield "\nother decisions about this pod"
    for each in others:
        became = (each["outcome"] or "-").replace("_", " ")
        where = f" to {each['node']}" if each["node"] else ""
        yield escape(f"  {time_text(each['time'])}  {became}{where}")


def duration(seconds: float) -> str:
    """Format seconds with one unit: 45 s, 12 min, 3.5 h."""
    for unit, size in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{max(0.0, seconds):.0f} s"
