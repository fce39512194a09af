"""Client of the extender's HTTP API for `load-watcher score`, `why` and `shadow`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from load_watcher.cli.service_client import ServiceClientError, ask, reading

_NO_SCHEDULER = (
    "add [scheduler.NAME] to the settings of that service "
    "(docs/concepts/scheduling.md), or try load-watcher demo, which has one"
)
_ask = partial(ask, needs=" and has [scheduler.NAME] in its settings", unknown_path=_NO_SCHEDULER)

_UNIT_S = {"w": 604800.0, "d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_SPAN = r"([0-9]+(?:\.[0-9]+)?) *(w(?:eeks?)?|d(?:ays?)?|h(?:ours?)?|m(?:in(?:ute)?s?)?|s(?:ec(?:ond)?s?)?) *"
_AGO = re.compile(rf"-?((?:{_SPAN})+)(?:ago)?")


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
    all plug-ins of the profile. Raises ServiceClientError."""
    body = msgspec.json.encode({"Pod": pod, **({"NodeNames": list(nodes)} if nodes else {})})
    document = await _ask(f"{address.rstrip('/')}/scheduler/{profile}/explain", body=body, token=token)
    with reading(address):
        if nodes and not document["nodes"]:
            unknown = ", ".join(sorted(set(nodes)))
            raise ServiceClientError(f"unknown node: {unknown}", hint="omit --node to rank all known nodes")
        return by_plugins(document, plugins) if plugins and document["nodes"] else document


async def why(address: str, pod: str, *, at: str | None = None, limit: int, token: str | None = None) -> dict[str, Any]:
    """Return the response of GET /scheduler/decisions. `pod` is NAMESPACE/NAME or NAME; `at` is a text that
    `service_time` reads. Raises ServiceClientError."""
    parameters = {"pod": pod, "limit": str(limit)}
    if at is not None:
        parameters["at"] = service_time(at)
    return await _ask(f"{address.rstrip('/')}/scheduler/decisions", parameters=parameters, token=token)


async def shadow(address: str, *, since: str | None = None, token: str | None = None) -> dict[str, Any]:
    """Return the response of GET /scheduler/shadow; `since` is a text that `service_time` reads. Raises
    ServiceClientError."""
    parameters = {} if since is None else {"from": service_time(since)}
    return await _ask(f"{address.rstrip('/')}/scheduler/shadow", parameters=parameters, token=token)


def service_time(text: str) -> str:
    """Convert a duration before now ("10m", "1h30m", "10 minutes ago", "-10m") to the form that the service reads
    ("-600.000s"). Return other texts, such as dates or unix seconds, unchanged for the service to parse."""
    ago = _AGO.fullmatch(text.strip().lower())
    if ago is None:
        return text
    seconds = sum(float(count) * _UNIT_S[unit[0]] for count, unit in re.findall(_SPAN, ago[1]))
    return f"-{seconds:.3f}s"


# --- the response of explain, with some of the plug-ins --------------------------------------------------------------


def by_plugins(document: Mapping[str, Any], wanted: Sequence[str]) -> dict[str, Any]:
    """Return the response as if the profile had only these plug-ins. Raises ServiceClientError for a plug-in that the
    profile lacks."""
    own = (each["name"] for each in document["nodes"][0]["plugins"] if not _is_of_kube_scheduler(each))
    profile, there = document["profile"], sorted(set(own))
    if missing := sorted(set(wanted) - set(there)):
        message = f"the profile {profile} has no plug-in {', '.join(missing)}"
        raise ServiceClientError(
            message, hint=f"its plug-ins: {', '.join(there)}; --profile NAME selects another profile"
        )
    nodes = [_by_plugins(node, wanted) for node in document["nodes"]]
    return {**document, "nodes": sorted(nodes, key=lambda each: (not each["passes"], -each["score"], each["name"]))}


def _by_plugins(node: Mapping[str, Any], wanted: Sequence[str]) -> dict[str, Any]:
    """Recompute a node's score as the weighted mean, as in `ranking`; a missing score counts as 0. The filters of
    kube-scheduler stay."""
    plugins = [each for each in node["plugins"] if each["name"] in wanted or _is_of_kube_scheduler(each)]
    scoring = scoring_plugins({"plugins": plugins})
    total = sum(each["weight"] * min(max(each["score"] or 0.0, 0.0), 100.0) for each in scoring)
    passes = all(each["passes"] for each in plugins if each["point"] == "filter")
    score = total / sum(each["weight"] for each in scoring) if scoring else 0.0
    return {**node, "score": score, "passes": passes, "plugins": plugins}


def _is_of_kube_scheduler(plugin: Mapping[str, Any]) -> bool:
    return "of" in plugin


def scoring_plugins(node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the scoring plug-ins of a node of an explain response."""
    return [each for each in node["plugins"] if each["point"] == "score"]
