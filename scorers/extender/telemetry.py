"""What the extender tells about itself, on /metrics and in the log: who asks, how long answers take, what they rest on.

Requests are counted as plain integers. All else is looked at once a second by who keeps the table up, so that a scrape,
which comes in another thread, reads nothing that changes under it, and a profile that begins to do without load says so
whether a pod asks or not.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import get_args

import numpy as np
from prometheus_client.metrics_core import Metric as Family

from scorers.cluster.table import Table
from scorers.profiles.ranking import Profile
from scorers.shadow.mode import ShadowMode
from scorers.shadow.records import LEFT_OUT, Kind
from watcher.model import MetricType
from watcher.platform.telemetry.instruments import Timings, counter, gauge

log = logging.getLogger(__name__)

ANSWER_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
"""0.2 s is how long kube-scheduler waits by the configuration that we ship."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """The table at the last look. `fallback` by profile and plug-in is "" where load is scored by."""

    nodes: int = 0
    without_load: int = 0
    reservations: int = 0
    fallback: Mapping[tuple[str, str], str] = field(default_factory=dict)


class SchedulerTelemetry:
    """One extender's."""

    def __init__(self, table: Table, profiles: Mapping[str, Profile]) -> None:
        self._table = table
        self._profiles = profiles
        text = "How long the extender took for an answer, reading the request included."
        self._answers = Timings("scheduler_request_duration_seconds", text, ("profile", "verb"), ANSWER_S)
        self._blind: Counter[tuple[str, str]] = Counter()
        self._unknown: Counter[str] = Counter()
        self._seen = _Seen()

    # --- counted per request -----------------------------------------------------------------------------------------

    def answered(self, profile: str, verb: str, seconds: float) -> None:
        """A request to one of the profiles was answered, well or not."""
        self._answers.observe(seconds, profile, verb)
        if verb != "bind" and not any(self._table.measures(kind) for kind in (MetricType.CPU, MetricType.MEMORY)):
            self._blind[profile, verb] += 1

    def unknown(self, profile: str, nodes: int) -> None:
        """So many nodes were asked about that the table does not know."""
        if nodes:
            self._unknown[profile] += nodes

    # --- looked at ---------------------------------------------------------------------------------------------------

    def look(self, *, now: float) -> None:
        """Take down what the next scrapes are told, and log where a plug-in begins or ceases to do without load."""
        table = self._table
        fallback = {
            (name, plugin): instead
            for name, profile in self._profiles.items()
            for plugin, instead in profile.fallbacks(now=now).items()
        }
        for (name, plugin), instead in fallback.items():
            before = self._seen.fallback.get((name, plugin), "")
            if instead and not before:
                told = (
                    "scheduler profile %s: most nodes lack the load that %s goes by; until they have it, it goes by %s"
                )
                log.warning(told, name, plugin, instead)
            elif before and not instead:
                log.info("scheduler profile %s: %s goes by load", name, plugin)
        known = table.known
        without = int(np.count_nonzero(np.isnan(table.load.sampled()[known])))
        self._seen = _Seen(int(np.count_nonzero(known)), without, len(table.reserved), fallback)

    def collect(self) -> Iterator[Family]:
        """Called by the registry at a scrape."""
        yield from self._answers.collect()
        blind = [({"profile": name, "verb": verb}, count) for (name, verb), count in list(self._blind.items())]
        yield counter("scheduler_requests_without_load", "Requests answered while most nodes had no load.", blind)
        unknown = [({"profile": name}, count) for name, count in list(self._unknown.items())]
        yield counter("scheduler_unknown_nodes", "Nodes asked about that the extender does not know.", unknown)
        seen = self._seen
        fallback = [({"profile": name, "plugin": one}, int(bool(on))) for (name, one), on in seen.fallback.items()]
        text = "Whether a plug-in scores by something else, since most nodes have no load."
        yield gauge("scheduler_fallback", text, fallback)
        yield gauge("scheduler_nodes", "Nodes of the cluster that the extender knows.", [({}, seen.nodes)])
        yield gauge("scheduler_nodes_without_load", "Those of them without a load.", [({}, seen.without_load)])
        text = "Pods that are counted on a node before they are bound."
        yield gauge("scheduler_reservations", text, [({}, seen.reservations)])


class ShadowTelemetry:
    """Shadow mode's."""

    def __init__(self, mode: ShadowMode) -> None:
        self._mode = mode

    def collect(self) -> Iterator[Family]:
        """Called by the registry at a scrape. What may come is 0 from the start, so that the first of it is a rise."""
        mode = self._mode
        chosen = {(name, kind): 0 for name in mode.names for kind in get_args(Kind)} | dict(mode.chosen)
        text = "Pods that were bound, by what a profile of shadow mode would have done with them."
        rows = [({"profile": name, "outcome": kind}, count) for (name, kind), count in chosen.items()]
        yield counter("scheduler_shadow_bindings", text, rows)
        left_out = (dict.fromkeys(LEFT_OUT, 0) if mode.names else {}) | dict(mode.left_out)
        text = "Pods that were bound, of which shadow mode can say nothing."
        yield counter(
            "scheduler_shadow_left_out", text, [({"reason": reason}, count) for reason, count in left_out.items()]
        )
