"""Asking a running extender to explain how it ranks nodes for a pod, and telling it to people.

asking_why.py does it for a decision of the past.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import aiohttp
import msgspec
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from watcher.platform.settings.quantities import write_size

TIMEOUT_S = 30.0
MOST_SHOWN = 40  # nodes, best first
EXACT = 1e15  # bytes and millicores below are told to the last one

_ALL_PATHS = "/openapi.json"  # told to whoever asks for a path that nobody serves
_NO_SCHEDULER = (
    "it takes [scheduler.NAME] in the settings of that service (docs/scheduling.md); load-watcher demo has one"
)

_UNIT_S = {"w": 604800.0, "d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_SPAN = r"([0-9]+(?:\.[0-9]+)?) *(w(?:eeks?)?|d(?:ays?)?|h(?:ours?)?|m(?:in(?:ute)?s?)?|s(?:ec(?:ond)?s?)?) *"
_AGO = re.compile(rf"-?((?:{_SPAN})+)(?:ago)?")


class AskError(Exception):
    """The extender could not be asked, or refused; `hint` says what to do."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


async def explain(
    address: str,
    profile: str,
    pod: Mapping[str, Any],
    *,
    nodes: Sequence[str] = (),
    plugins: Sequence[str] = (),
    token: str | None = None,
) -> dict[str, Any]:
    """The answer of POST /scheduler/{profile}/explain, over these nodes or, without any, over all that are known; by
    these of its plug-ins or, without any, by all. Raises AskError."""
    body = msgspec.json.encode({"Pod": pod, **({"NodeNames": list(nodes)} if nodes else {})})
    document = await ask(f"{address.rstrip('/')}/scheduler/{profile}/explain", body=body, token=token)
    if nodes and not document["nodes"]:
        unknown = ", ".join(sorted(set(nodes)))
        raise AskError(f"no such node is known: {unknown}", hint="without --node those that are known are ranked")
    return by_plugins(document, plugins) if plugins and document["nodes"] else document


def by_plugins(document: Mapping[str, Any], wanted: Sequence[str]) -> dict[str, Any]:
    """An answer as if the profile had only these of its plug-ins. Raises AskError for one that it does not have."""
    profile, there = document["profile"], sorted({each["name"] for each in document["nodes"][0]["plugins"]})
    if missing := sorted(set(wanted) - set(there)):
        told = f"the profile {profile} has no plug-in {', '.join(missing)}"
        raise AskError(told, hint=f"it has {', '.join(there)}; --profile NAME asks another")
    nodes = [_by_plugins(node, wanted) for node in document["nodes"]]
    return {**document, "nodes": sorted(nodes, key=lambda each: (not each["passes"], -each["score"], each["name"]))}


def _by_plugins(node: Mapping[str, Any], wanted: Sequence[str]) -> dict[str, Any]:
    """The score is the mean by weights, as in `ranking`, where what is no number counts as 0."""
    plugins = [each for each in node["plugins"] if each["name"] in wanted]
    scoring = _scoring({"plugins": plugins})
    total = sum(each["weight"] * min(max(each["score"] or 0.0, 0.0), 100.0) for each in scoring)
    passes = all(each["passes"] for each in plugins if each["point"] == "filter")
    score = total / sum(each["weight"] for each in scoring) if scoring else 0.0
    return {**node, "score": score, "passes": passes, "plugins": plugins}


async def ask(
    url: str, *, parameters: Mapping[str, str] = {}, body: bytes | None = None, token: str | None = None
) -> dict[str, Any]:
    """The answer to a POST with a JSON body, or to a GET without one. Raises AskError."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    if body is not None:
        headers["Content-Type"] = "application/json"
    method = "GET" if body is None else "POST"
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as session,
            session.request(method, url, params=parameters, data=body, headers=headers) as response,
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
        hint = str(told.get("hint", ""))
        if status == 404 and _ALL_PATHS in hint:
            raise AskError(f"there is nothing at {url}", hint=_NO_SCHEDULER)
        raise AskError(str(told.get("message", f"status {status}")), hint=hint)
    return document


def moment_asked(text: str) -> str:
    """A moment as the service reads it, from how long ago it was in people's words: 10m, 1h30m, "10 minutes ago", -10m.
    Anything else, like a date or unix seconds, is left to the service to read, or to refuse."""
    ago = _AGO.fullmatch(text.strip().lower())
    if ago is None:
        return text
    seconds = sum(float(count) * _UNIT_S[unit[0]] for count, unit in re.findall(_SPAN, ago[1]))
    return f"-{seconds:.3f}s"


def as_tables(document: Mapping[str, Any], *, explained: bool) -> Iterator[RenderableType]:
    """The ranking as a table; with `explained` every plug-in's steps of every node after it."""
    yield escape(f"{document['pod']['key']}: {asked_for(document['pod'])}")
    load = document.get("load")
    if load is None:
        yield "[yellow]there is no load to go by[/]"
    else:
        yield escape(f"load from {load['source']}, {load['age_s']:.0f} s old")
    nodes: Sequence[Mapping[str, Any]] = document["nodes"]
    shown = nodes[:MOST_SHOWN]
    yield _ranking(shown, now=document["time"])
    if len(nodes) > len(shown):
        yield f"and {len(nodes) - len(shown)} more nodes; --node NODE or -o json shows them"
    if unknown := document.get("unknown"):
        yield escape(f"not known to the scorers: {', '.join(unknown)}")
    if explained:
        for node in shown:
            yield from steps_of(node)


def asked_for(pod: Mapping[str, Any]) -> str:
    """What a pod requests, and its limits, of explain or of a decision."""
    of_pod = {kind: _amounts(pod[kind]) for kind in ("requests", "limits")}
    asked = "; ".join(f"{kind} {amounts}" for kind, amounts in of_pod.items() if amounts)
    return asked or "it requests nothing, and has no limits"


def _amounts(amounts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {_amount(name, value)}" for name, value in amounts.items() if value)


def _amount(name: str, value: int) -> str:
    if name == "cpu":
        return f"{value}m"
    of_bytes = name in ("memory", "ephemeral-storage") or name.startswith("hugepages-")
    return write_size(value) if of_bytes else f"{value:,}"


def _ranking(nodes: Sequence[Mapping[str, Any]], *, now: float) -> Table:
    """One row a node: its score, the age of what is known of it, and why."""
    table = Table(box=None, pad_edge=False)
    table.add_column("node", no_wrap=True)
    table.add_column("score", justify="right")
    table.add_column("age", justify="right", no_wrap=True)
    table.add_column("why")
    for node in nodes:
        score = f"{node['score']:.1f}" if node["passes"] else "[red]rejected[/]"
        age = "-" if node["sampled"] is None else f"{max(0.0, now - node['sampled']):.0f} s"
        table.add_row(escape(node["name"]), score, age, escape(_why(node)))
    return table


def _scoring(node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [each for each in node["plugins"] if each["point"] == "score"]


def _why(node: Mapping[str, Any]) -> str:
    """What rejects the node; else what the plug-ins that score it say."""
    rejecting = [each for each in node["plugins"] if each["point"] == "filter" and not each["passes"]]
    return reasons_of(rejecting or _scoring(node))


def reasons_of(plugins: Sequence[Mapping[str, Any]]) -> str:
    """What plug-ins say; of several a line each, with its name and the score that it gave."""
    if len(plugins) == 1:
        return str(plugins[0]["reason"])
    scores = (f" {number(each['score'], form='.0f')}" if "score" in each else "" for each in plugins)
    return "\n".join(f"{each['name']}{score}: {each['reason']}" for each, score in zip(plugins, scores, strict=True))


def steps_of(node: Mapping[str, Any]) -> Iterator[RenderableType]:
    """What was measured, with its windows and its age, and every input and step of each plug-in."""
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
        for name, value in {**plugin["inputs"], **plugin["steps"]}.items():
            yield escape(f"    {name}: {number(value)}")


def _over(seconds: float | None) -> str:
    return f" over {seconds / 60:g}m" if seconds else ""


def number(value: Any, *, form: str = ".6g") -> str:
    """A value of explain as people write it."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {number(each)}" for name, each in value.items()) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < EXACT else f"{value:{form}}"
    return "not known" if value is None else str(value)
