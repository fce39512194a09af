"""Error responses for missing, outdated or incomplete data.

The Go plug-ins score an absent node with 0, but keep their last copy on an error. Therefore missing, outdated or
incomplete data is reported as an error and never as a shorter list. Each error has a cause and a hint.
"""

from __future__ import annotations

from collections.abc import Collection

from aiohttp import hdrs

from watcher.api.service import ServiceView
from watcher.core.publishing.documents import Published
from watcher.core.publishing.selection import Selection
from watcher.core.windows.settings import RefreshSettings
from watcher.platform.http.parameters import names_of, truncated
from watcher.platform.http.routing import ApiError


def no_metrics_error(service: ServiceView) -> ApiError:
    """The error if no document with at least one node is published."""
    health = service.refresher.provider_health
    if health.ok:
        hint = "the provider responds but returns no samples of nodes; see /api/v1/findings"
    elif health.ok is None:
        hint = "the provider has not been queried yet; wait for the first tick"
    else:
        hint = f"the provider does not respond: {health.reason}"
    return ApiError(404, "no_metrics", "no metrics yet", hint)


def stale_error(service: ServiceView, age: float) -> ApiError:
    """The error for a newest sample that is older than max_staleness; `age` in seconds."""
    health = service.refresher.provider_health
    why = f"the provider does not respond: {health.reason}" if health.ok is False else "see /api/v1/findings"
    return ApiError(
        503,
        "stale",
        f"the newest sample is {age:.0f} s old, more than {service.max_staleness:.0f} s (max_staleness)",
        why,
        headers={hdrs.RETRY_AFTER: str(max(1, int(service.settings[RefreshSettings].interval)))},
    )


def check_complete(published: Published) -> None:
    """Raise ApiError during a partial outage: a list of the remaining nodes would look complete."""
    lost = published.snapshot.lost
    if lost:
        known = len(lost) + len(published.snapshot.nodes)
        raise ApiError(
            503,
            "partial_outage",
            f"{len(lost)} of {known} nodes went missing at once; a list of only the other nodes would attract pods to "
            "them",
            "request the remaining nodes by name; /api/v1/findings shows since when nodes are missing",
        )


def row_of(published: Published, host: str) -> int:
    """The row of a node in the snapshot. Raises ApiError with the reason if the node is not in it."""
    row = published.row.get(host)
    if row is not None:
        return row
    if host in published.snapshot.lost:
        raise ApiError(
            503,
            "partial_outage",
            f"node {truncated(host)!r} is missing in a partial outage",
            "/api/v1/findings shows since when",
        )
    raise unknown_host_error(host, quarantined=host in published.snapshot.quarantined)


def unknown_host_error(host: str, *, quarantined: bool = False) -> ApiError:
    """The error for a node that is unknown or quarantined."""
    hint = "names are case-sensitive; GET /watcher lists the nodes with metrics, /api/v1/silent the silent nodes"
    if quarantined:
        hint = "the node is quarantined because its metrics are implausible; /api/v1/findings shows the reason"
    return ApiError(404, "unknown_host", f"no metrics for node {truncated(host)!r}", hint)


def empty_selection_error(selection: Selection, hosts: Collection[str] = ()) -> ApiError:
    """The error if no node has the selected metrics."""
    who = (
        f"node {truncated(next(iter(hosts)))!r}"
        if len(hosts) == 1
        else "any of the requested nodes"
        if hosts
        else "any node"
    )
    what = "metrics" if selection.types is None else f"metrics of type {names_of(selection.types)}"
    hint = "omit type and operator to list all metrics" if selection.types or selection.operators else ""
    return ApiError(404, "no_metrics", f"no {what} for {who} in window {selection.window.label}", hint)
