"""What the API says when it cannot answer truly, and why it then says nothing else.

An absent node scores 0 in the Go plug-ins and an error leaves them their last copy; so what is not known, too old, or a
remnant is an error, never a short answer. Each says what was wrong and where to look.
"""

from __future__ import annotations

from collections.abc import Collection

from aiohttp import hdrs

from watcher.api.service import Service
from watcher.core.publishing.documents import Published
from watcher.core.publishing.selection import Selection
from watcher.platform.http.parameters import names_of, shown
from watcher.platform.http.routing import ApiError


def nothing_known(service: Service) -> ApiError:
    """There is no document, or none with a node in it."""
    health = service.provider_health
    if health.ok:
        hint = "the provider answers, but has no samples of nodes; /api/v1/findings says what was found"
    elif health.ok is None:
        hint = "the provider has not been asked yet; wait for the first tick"
    else:
        hint = f"the provider does not answer: {health.reason}"
    return ApiError(404, "no_metrics", "there are no metrics yet", hint)


def stale(service: Service, age: float) -> ApiError:
    """The newest sample is `age` seconds old, which is too old."""
    health = service.provider_health
    why = f"the provider does not answer: {health.reason}" if health.ok is False else "/api/v1/findings may say why"
    return ApiError(
        503,
        "stale",
        f"the newest sample is {age:.0f} s old, and more than {service.max_staleness:.0f} s is not served",
        why,
        headers={hdrs.RETRY_AFTER: str(max(1, int(service.interval)))},
    )


def refuse_remnant(published: Published) -> None:
    """Raise if much of the fleet went missing at once: the rest must not be taken for the whole."""
    lost = published.snapshot.lost
    if lost:
        known = len(lost) + len(published.snapshot.nodes)
        raise ApiError(
            503,
            "partial_outage",
            f"{len(lost)} of {known} nodes went missing at once, and a list of the others would send pods to them",
            "nodes that are there are answered by name; /api/v1/findings says since when the others are missing",
        )


def row_of(published: Published, host: str) -> int:
    """The row of a node in the snapshot; raises where it has none, and says what is known of it."""
    row = published.row.get(host)
    if row is not None:
        return row
    if host in published.snapshot.lost:
        raise ApiError(
            503,
            "partial_outage",
            f"node {shown(host)!r} went missing together with many others",
            "/api/v1/findings says since when",
        )
    raise unknown_host(host, quarantined=host in published.snapshot.quarantined)


def unknown_host(host: str, *, quarantined: bool = False) -> ApiError:
    """Nothing is known of a node of that name, or nothing that can be right."""
    hint = "names are those of GET /watcher, upper and lower case matter; /api/v1/silent has those that fell silent"
    if quarantined:
        hint = "its metrics are left out because they cannot be right; /api/v1/findings says why"
    return ApiError(404, "unknown_host", f"there are no metrics of node {shown(host)!r}", hint)


def nothing_selected(selection: Selection, hosts: Collection[str] = ()) -> ApiError:
    """There are nodes, but none has what was selected."""
    who = (
        f"node {shown(next(iter(hosts)))!r}"
        if len(hosts) == 1
        else "any of the nodes asked for"
        if hosts
        else "any node"
    )
    what = "metrics" if selection.types is None else f"metrics of type {names_of(selection.types)}"
    hint = "leave out type and operator to see what there is" if selection.types or selection.operators else ""
    return ApiError(404, "no_metrics", f"there are no {what} of {who} in window {selection.window.label}", hint)
