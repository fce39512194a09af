"""Asking a running extender to explain how it ranks nodes for a pod, and telling it to people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import aiohttp
import msgspec
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

TIMEOUT_S = 30.0


class AskError(Exception):
    """The extender could not be asked, or refused; `hint` says what to do."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


async def explain(
    address: str, profile: str, pod: Mapping[str, Any], *, nodes: Sequence[str] = (), token: str | None = None
) -> dict[str, Any]:
    """The answer of POST /scheduler/{profile}/explain, over these nodes or, without any, over all that are known."""
    url = f"{address.rstrip('/')}/scheduler/{profile}/explain"
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    body = msgspec.json.encode({"Pod": pod, **({"NodeNames": list(nodes)} if nodes else {})})
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as session,
            session.post(url, data=body, headers=headers) as response,
        ):
            answer, status = await response.read(), response.status
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        reason = str(error) or type(error).__name__
        hint = "is load-watcher running there, with a [scheduler.NAME] in its settings?"
        raise AskError(f"no answer from {url}: {reason}", hint=hint) from error
    try:
        document: dict[str, Any] = msgspec.json.decode(answer, type=dict[str, Any])
    except msgspec.DecodeError:
        raise AskError(f"{url} answered {status} and no JSON", hint="is this the address of a load-watcher?") from None
    if status != 200:
        found = document.get("error")
        told: Mapping[str, Any] = found if isinstance(found, dict) else {}
        raise AskError(str(told.get("message", f"status {status}")), hint=str(told.get("hint", "")))
    return document


def as_tables(document: Mapping[str, Any], *, explained: bool) -> Iterator[RenderableType]:
    """The ranking as a table; with `explained` every plug-in's steps of every node after it."""
    load = document.get("load")
    if load is None:
        yield "[yellow]there is no load to go by[/]"
    else:
        yield escape(f"load from {load['source']}, {load['age_s']:.0f} s old")
    table = Table("node", "score", "passes", box=None, pad_edge=False)
    nodes: Sequence[Mapping[str, Any]] = document["nodes"]
    named = [f"{each['name']} ({each['point']})" for each in nodes[0]["plugins"]] if nodes else []
    for name in named:
        table.add_column(name)
    for node in nodes:
        told = [_short(each) for each in node["plugins"]]
        table.add_row(escape(node["name"]), f"{node['score']:.1f}", "yes" if node["passes"] else "[red]no[/]", *told)
    yield table
    if unknown := document.get("unknown"):
        yield escape(f"not known to the scorers: {', '.join(unknown)}")
    if explained:
        for node in nodes:
            yield from _steps(node)


def _short(plugin: Mapping[str, Any]) -> str:
    return f"{plugin['score']:.0f}" if plugin["point"] == "score" else ("yes" if plugin["passes"] else "no")


def _steps(node: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield f"\n[bold]{escape(node['name'])}[/]"
    for plugin in node["plugins"]:
        yield escape(f"  {plugin['name']}: {plugin['reason']}")
        for name, value in {**plugin["inputs"], **plugin["steps"]}.items():
            yield escape(f"    {name}: {_number(value)}")


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "not known" if value is None else str(value)
