"""Metrics and log messages of the extender: requests, response times, and the use of fallbacks.

Requests are counted as they are answered. All other values are copied once a second in the event loop, because a scrape
runs in another thread and must not read changing data. This also logs the start of a fallback without waiting for a
request.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import get_args

import numpy as np
from prometheus_client.metrics_core import Metric as Family

from scorers.cluster.request_ratio import requests_to_usage
from scorers.cluster.table import ClusterTable
from scorers.decisions.records import LEFT_OUT, Kind
from scorers.decisions.shadow import ShadowMode
from scorers.extender.reservations import Reservations
from scorers.profiles.ranking import ProfileRunner
from watcher.model import MetricType
from watcher.platform.telemetry.instruments import Timings, counter, gauge

log = logging.getLogger(__name__)

ANSWER_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
"""Histogram buckets in seconds. 0.2 s is the extender timeout in the kube-scheduler configuration under deploy/."""


@dataclass(frozen=True, slots=True)
class _TableSnapshot:
    """State of the table at the last copy. `fallback` by profile and plug-in is "" if load is used; `requested` is the
    ratio of requests to usage by resource, `missing` says why a plug-in has no forecasts."""

    nodes: int = 0
    without_load: int = 0
    reservations: int = 0
    deferred: int = 0
    fallback: Mapping[tuple[str, str], str] = field(default_factory=dict)
    requested: Mapping[str, float] = field(default_factory=dict)
    missing: Mapping[tuple[str, str], str] = field(default_factory=dict)


class SchedulerTelemetry:
    """Prometheus metrics of one extender."""

    def __init__(self, table: ClusterTable, profiles: Mapping[str, ProfileRunner], reservations: Reservations) -> None:
        self._reservations = reservations
        self._table = table
        self._profiles = profiles
        text = "Response time of the extender in seconds, including reading the request."
        self._answers = Timings("scheduler_request_duration_seconds", text, ("profile", "verb"), ANSWER_S)
        self._blind: Counter[tuple[str, str]] = Counter()
        self._unknown: Counter[str] = Counter()
        self._seen = _TableSnapshot()

    # --- per request -------------------------------------------------------------------------------------------------

    def answered(self, profile: str, verb: str, seconds: float) -> None:
        """Count a response to a request of a profile, successful or not."""
        self._answers.observe(seconds, profile, verb)
        if verb != "bind" and not any(self._table.has_load(kind) for kind in (MetricType.CPU, MetricType.MEMORY)):
            self._blind[profile, verb] += 1

    def unknown(self, profile: str, nodes: int) -> None:
        """Count nodes in a request that the table does not know."""
        if nodes:
            self._unknown[profile] += nodes

    # --- once a second -----------------------------------------------------------------------------------------------

    def update(self, *, now: float) -> None:
        """Copy the values for the next scrape, and log when a plug-in starts or stops using its fallback."""
        table = self._table
        fallback = {
            (name, plugin): instead
            for name, profile in self._profiles.items()
            for plugin, instead in profile.fallbacks(now=now).items()
        }
        for (name, plugin), instead in fallback.items():
            before = self._seen.fallback.get((name, plugin), "")
            if instead and not before:
                message = (
                    "scheduler profile %s: most nodes have no load data for plug-in %s; fallback until they do: %s"
                )
                log.warning(message, name, plugin, instead)
            elif before and not instead:
                log.info("scheduler profile %s: plug-in %s uses load data again", name, plugin)
        missing = self._missing_forecasts()
        known = table.known
        without = int(np.count_nonzero(np.isnan(table.load.sampled()[known])))
        nodes, requested = int(np.count_nonzero(known)), requests_to_usage(table)
        self._seen = _TableSnapshot(
            nodes, without, len(table.reserved), self._reservations.deferred, fallback, requested, missing
        )

    def _missing_forecasts(self) -> dict[tuple[str, str], str]:
        """Return why plug-ins use windows instead of forecasts, and log when that begins and ends."""
        missing = {
            (name, plugin): why
            for name, profile in self._profiles.items()
            for plugin, why in profile.missing_forecasts().items()
        }
        for (name, plugin), why in missing.items():
            before = self._seen.missing.get((name, plugin), "")
            if why and not before:
                message = "scheduler profile %s: no node has a forecast for plug-in %s, so it uses windows: %s"
                log.warning(message, name, plugin, why)
            elif before and not why:
                log.info("scheduler profile %s: plug-in %s uses forecasts", name, plugin)
        return missing

    def collect(self) -> Iterator[Family]:
        """Yield the metric families; called by the registry at a scrape."""
        yield from self._answers.collect()
        blind = [({"profile": name, "verb": verb}, count) for (name, verb), count in list(self._blind.items())]
        yield counter("scheduler_requests_without_load", "Requests answered while most nodes had no load data.", blind)
        unknown = [({"profile": name}, count) for name, count in list(self._unknown.items())]
        yield counter("scheduler_unknown_nodes", "Nodes in requests that the extender does not know.", unknown)
        seen = self._seen
        fallback = [({"profile": name, "plugin": one}, int(bool(on))) for (name, one), on in seen.fallback.items()]
        text = "Whether a plug-in uses its fallback because most nodes have no load data (1) or not (0)."
        yield gauge("scheduler_fallback", text, fallback)
        missing = [({"profile": name, "plugin": one}, int(bool(why))) for (name, one), why in seen.missing.items()]
        text = "Whether a plug-in with use = forecast uses windows because no node has a forecast (1) or not (0)."
        yield gauge("scheduler_without_forecasts", text, missing)
        yield gauge("scheduler_nodes", "Nodes of the cluster known to the extender.", [({}, seen.nodes)])
        yield gauge(
            "scheduler_nodes_without_load",
            "Nodes known to the extender that have no load data.",
            [({}, seen.without_load)],
        )
        text = "Requests of pods divided by the measured usage of the nodes with load data."
        requested = [({"resource": resource}, ratio) for resource, ratio in seen.requested.items()]
        yield gauge("scheduler_requests_to_usage_ratio", text, requested)
        text = "Pods with a reservation on a node that are not bound yet."
        yield gauge("scheduler_reservations", text, [({}, seen.reservations)])
        text = "Requests whose pod was not reserved before the API reported it, because of too many such pods."
        yield counter("scheduler_deferred_reservations", text, [({}, seen.deferred)])


class ShadowTelemetry:
    """Prometheus metrics of shadow mode."""

    def __init__(self, mode: ShadowMode) -> None:
        self._mode = mode

    def collect(self) -> Iterator[Family]:
        """Yield the metric families; called by the registry at a scrape. All label values start at 0, so that the first
        event is an increase."""
        mode = self._mode
        chosen = {(name, kind): 0 for name in mode.names for kind in get_args(Kind)} | dict(mode.chosen)
        text = "Bound pods by the placement that a profile of shadow mode would have chosen."
        rows = [({"profile": name, "outcome": kind}, count) for (name, kind), count in chosen.items()]
        yield counter("scheduler_shadow_bindings", text, rows)
        left_out = (dict.fromkeys(LEFT_OUT, 0) if mode.names else {}) | dict(mode.left_out)
        text = "Bound pods that shadow mode did not evaluate, by reason."
        yield counter(
            "scheduler_shadow_left_out", text, [({"reason": reason}, count) for reason, count in left_out.items()]
        )
