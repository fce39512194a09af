"""Client of the extender's HTTP API for `load-watcher score`, and the tables that it prints.

why.py (past decisions) and shadow.py (shadow mode) use it too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from scorers.cli.numbers import number, readable
from scorers.cli.short_reasons import short_reason, targets_of
from watcher.core.config.quantities import write_size
from watcher.core.messages import printable
from watcher.decoding.json_text import decode_json
from watcher.platform.net.failures import cluster_hint, failure_reason
from watcher.platform.net.http_body import TOO_LARGE_HINT, AnswerTooLarge, answer_bound, read_body
from watcher.platform.net.session import client_session

TIMEOUT_S = 30.0
MOST_SHOWN = 40  # nodes per table, best first

_ALL_PATHS = "/openapi.json"  # occurs in the hint of a 404 for an unknown path
_NO_SCHEDULER = (
    "add [scheduler.NAME] to the settings of that service "
    "(docs/concepts/scheduling.md), or try load-watcher demo, which has one"
)

_UNIT_S = {"w": 604800.0, "d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_SPAN = r"([0-9]+(?:\.[0-9]+)?) *(w(?:eeks?)?|d(?:ays?)?|h(?:ours?)?|m(?:in(?:ute)?s?)?|s(?:ec(?:ond)?s?)?) *"
_AGO = re.compile(rf"-?((?:{_SPAN})+)(?:ago)?")


class ExtenderClientError(Exception):
    """The extender did not answer or refused the request; `hint` is the suggested fix."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


@contextmanager
def reading(url: str) -> Iterator[None]:
    """Raise ExtenderClientError if the answer of `url` that is read in the block lacks a field, or if a field has an
    unexpected type."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        problem = f"the field {error} is missing" if isinstance(error, KeyError) else f"a field is invalid: {error}"
        raise ExtenderClientError(
            printable(f"{url} returned JSON that is not a response of a load-watcher extender: {problem}"),
            hint="check that this is the address of a load-watcher service, and that it has the version of this "
            "command (load-watcher --version)",
        ) from error


async def explain(
    address: str,
    profile: str,
    pod: Mapping[str, Any],
    *,
    nodes: Sequence[str] = (),
    plugins: Sequence[str] = (),
    token: str | None = None,
) -> dict[str, Any]:
    """Return the response of POST /scheduler/{profile}/explain. Empty `nodes` means all known nodes, empty `plugins`
    all plug-ins of the profile. Raises ExtenderClientError."""
    body = msgspec.json.encode({"Pod": pod, **({"NodeNames": list(nodes)} if nodes else {})})
    document = await ask(f"{address.rstrip('/')}/scheduler/{profile}/explain", body=body, token=token)
    with reading(address):
        if nodes and not document["nodes"]:
            unknown = ", ".join(sorted(set(nodes)))
            raise ExtenderClientError(f"unknown node: {unknown}", hint="omit --node to rank all known nodes")
        return by_plugins(document, plugins) if plugins and document["nodes"] else document


def by_plugins(document: Mapping[str, Any], wanted: Sequence[str]) -> dict[str, Any]:
    """Return the response as if the profile had only these plug-ins. Raises ExtenderClientError for a plug-in that the
    profile lacks."""
    own = (each["name"] for each in document["nodes"][0]["plugins"] if not _is_of_kube_scheduler(each))
    profile, there = document["profile"], sorted(set(own))
    if missing := sorted(set(wanted) - set(there)):
        message = f"the profile {profile} has no plug-in {', '.join(missing)}"
        raise ExtenderClientError(
            message, hint=f"its plug-ins: {', '.join(there)}; --profile NAME selects another profile"
        )
    nodes = [_by_plugins(node, wanted) for node in document["nodes"]]
    return {**document, "nodes": sorted(nodes, key=lambda each: (not each["passes"], -each["score"], each["name"]))}


def _by_plugins(node: Mapping[str, Any], wanted: Sequence[str]) -> dict[str, Any]:
    """Recompute a node's score as the weighted mean, as in `ranking`; a missing score counts as 0. The filters of
    kube-scheduler stay."""
    plugins = [each for each in node["plugins"] if each["name"] in wanted or _is_of_kube_scheduler(each)]
    scoring = _scoring({"plugins": plugins})
    total = sum(each["weight"] * min(max(each["score"] or 0.0, 0.0), 100.0) for each in scoring)
    passes = all(each["passes"] for each in plugins if each["point"] == "filter")
    score = total / sum(each["weight"] for each in scoring) if scoring else 0.0
    return {**node, "score": score, "passes": passes, "plugins": plugins}


def _is_of_kube_scheduler(plugin: Mapping[str, Any]) -> bool:
    return "of" in plugin


async def ask(
    url: str, *, parameters: Mapping[str, str] = {}, body: bytes | None = None, token: str | None = None
) -> dict[str, Any]:
    """Send a POST with a JSON body, or a GET if `body` is None, and return the decoded response. Raises
    ExtenderClientError."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    if body is not None:
        headers["Content-Type"] = "application/json"
    method = "GET" if body is None else "POST"
    try:
        async with (
            client_session(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as session,
            session.request(
                method, url, params=parameters, data=body, headers=headers, allow_redirects=False
            ) as response,
        ):
            answer, status = await read_body(response, answer_bound()), response.status
    except AnswerTooLarge as error:
        raise ExtenderClientError(f"{url}: {error}", hint=TOO_LARGE_HINT) from error
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        hint = "check that load-watcher runs at this address and has [scheduler.NAME] in its settings"
        more = cluster_hint(url, environ=os.environ, home=Path.home())
        message = f"no response from {url}: {failure_reason(error, url=url)}"
        raise ExtenderClientError(message, hint="\n".join(filter(None, (hint, more)))) from error
    try:
        document: dict[str, Any] = decode_json(answer, type=dict[str, Any])
    except msgspec.DecodeError:
        raise ExtenderClientError(
            f"{url} returned status {status} and a body that is not JSON",
            hint="check that this is the address of a load-watcher service",
        ) from None
    if status != 200:
        found = document.get("error")
        problem: Mapping[str, Any] = found if isinstance(found, dict) else {}
        hint = printable(str(problem.get("hint", "")))
        if status == 404 and _ALL_PATHS in hint:
            raise ExtenderClientError(f"{url} does not exist", hint=_NO_SCHEDULER)
        raise ExtenderClientError(printable(str(problem.get("message", f"status {status}"))), hint=hint)
    return document


def service_time(text: str) -> str:
    """Convert a duration before now ("10m", "1h30m", "10 minutes ago", "-10m") to the form that the service reads
    ("-600.000s"). Return other texts, such as dates or unix seconds, unchanged for the service to parse."""
    ago = _AGO.fullmatch(text.strip().lower())
    if ago is None:
        return text
    seconds = sum(float(count) * _UNIT_S[unit[0]] for count, unit in re.findall(_SPAN, ago[1]))
    return f"-{seconds:.3f}s"


def as_tables(document: Mapping[str, Any], *, explained: bool) -> Iterator[RenderableType]:
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


def _scoring(node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [each for each in node["plugins"] if each["point"] == "score"]


def _why(node: Mapping[str, Any]) -> str:
    """Return the reasons of the filters that reject the node, otherwise those of the scoring plug-ins."""
    rejecting = [each for each in node["plugins"] if each["point"] == "filter" and not each["passes"]]
    return reasons_of(rejecting or _scoring(node))


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
