"""Tables of the decision log and of shadow mode, for `load-watcher why` and `load-watcher shadow`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from load_watcher.scoring.score_texts import targets_of
from load_watcher.scoring.scores import reasons_of, resources_text, steps_of
from watcher.core.kubernetes.times import time_text

_UNITS = (("d", 86400.0), ("h", 3600.0), ("min", 60.0))


def duration(seconds: float) -> str:
    """Format seconds with one unit: 45 s, 12 min, 3.5 h."""
    for unit, size in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{max(0.0, seconds):.0f} s"


# --- one decision ----------------------------------------------------------------------------------------------------


def decision_tables(document: Mapping[str, Any], *, explained: bool) -> Iterator[RenderableType]:
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


# --- shadow mode -----------------------------------------------------------------------------------------------------


def shadow_tables(document: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield the number of bindings, each profile's placements and load differences, and the bindings left out."""
    count, asked = document["bindings"], document["candidates"]
    if document["first"] is None:
        yield "no bindings observed yet"
        return
    source = f", load from {document['source']}" if document["source"] else ""
    yield f"{count:,} pods bound from {time_text(document['first'])} to {time_text(document['last'])}{source}"
    yield f"candidate nodes: sent by kube-scheduler for {asked['asked']:,} pods, estimated for {asked['estimated']:,}"
    if document["truncated"]:
        yield "[yellow]truncated: only the newest bindings are included; a later --since covers a complete period[/]"
    yield _choices(document)
    yield _differences(document)
    yield from _small_print(document)
    if document["left_out"]:
        yield "\nleft out"
        for each in document["left_out"]:
            yield escape(f"  {each['count']:,}: {each['message']}")


def _choices(document: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, title="\nplacement by each profile", title_justify="left")
    table.add_column("profile")
    for name in ("pods", "same node", "equal score", "other node", "no node", "other node, share"):
        table.add_column(name, justify="right")
    for each in document["profiles"]:
        counts = [each[key] for key in ("bindings", "same", "tied", "other", "none")]
        table.add_row(escape(each["profile"]), *(f"{count:,}" for count in counts), _share(each["other_share"]))
    return table


def _share(share: Mapping[str, Any]) -> str:
    if share["value"] is None:
        return "-"
    return f"{share['value']:.0%} ({share['low']:.0%} to {share['high']:.0%})"


def _differences(document: Mapping[str, Any]) -> Table:
    title = (
        f"\nload of the other node minus load of the actual node, mean over {document['window']}, in percentage points"
    )
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    later = f"{duration(document['later_s'])} later"
    for name in ("profile", "resource"):
        table.add_column(name)
    for name in ("at binding", "pods", later, "pods"):
        table.add_column(name, justify="right")
    for each in document["profiles"]:
        for resource, found in each["difference"].items():
            now, after = found["now"], found["later"]
            cells = [_interval(now), f"{now['count']:,}", _interval(after), f"{after['count']:,}"]
            table.add_row(escape(each["profile"]), resource, *cells)
    return table


def _interval(found: Mapping[str, Any]) -> str:
    if found["mean"] is None:
        return "-"
    if found["low"] is None:
        return f"{found['mean']:+.1f} (?)"
    return f"{found['mean']:+.1f} ({found['low']:+.1f} to {found['high']:+.1f})"


def _notices(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the notices about profiles, and the ratio that decides whether they apply."""
    notices = [(name, text) for name, texts in sorted(document["notices"].items()) for text in texts]
    for name, text in notices:
        yield escape(f"\nnotice: {name}: {text}")
    if notices and (ratios := document["requests_to_usage"]):
        of_cluster = ", ".join(f"{ratio:.2f} times their {name} usage" for name, ratio in ratios.items())
        yield f"the pods of this cluster request {of_cluster}"


def _small_print(document: Mapping[str, Any]) -> Iterator[str]:
    later = duration(document["later_s"])
    yield from _notices(document)
    yield f"\nin parentheses: {document['confidence']:.0%} confidence interval; (?): too few 15-minute blocks"
    for each in document["profiles"]:
        after = each["difference"]["CPU"]["later"]
        if each["pod_cpu"] is not None:
            message = (
                f"{later} later the actual node also runs the pod, which requests {each['pod_cpu']:.1f} % of its CPU"
            )
            yield escape(f"{each['profile']}: {message}")
        if after["pending"] or after["unknown"]:
            message = f"pods whose later load is pending: {after['pending']:,}; unknown: {after['unknown']:,}"
            yield escape(f"{each['profile']}: {message}")
        if each["with_other_settings"]:
            yield escape(
                f"{each['profile']}: {each['with_other_settings']:,} pods excluded: evaluated with different settings"
            )
