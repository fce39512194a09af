"""Client of GET /scheduler/shadow for `load-watcher shadow`, and the tables that it prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from scorers.cli.score import ask, service_time
from scorers.cli.why import duration
from watcher.core.kubernetes.times import time_text


async def shadow(address: str, *, since: str | None = None, token: str | None = None) -> dict[str, Any]:
    """Return the response of GET /scheduler/shadow; `since` is a text that `service_time` reads. Raises
    ExtenderClientError."""
    parameters = {} if since is None else {"from": service_time(since)}
    return await ask(f"{address.rstrip('/')}/scheduler/shadow", parameters=parameters, token=token)


def as_tables(document: Mapping[str, Any]) -> Iterator[RenderableType]:
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
    told = [(name, text) for name, texts in sorted(document["notices"].items()) for text in texts]
    for name, text in told:
        yield escape(f"\nnotice: {name}: {text}")
    if told and (ratios := document["requests_to_usage"]):
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
