"""The usage thresholds of nodes that koord-scheduler reads from an annotation, from the forecasts of the nodes.

koord-scheduler rejects a node if its usage with the pod exceeds a threshold. The threshold of a resource is

    highest - (highest - lowest) * min(1, usage / bound)          in percent of the node, rounded down

where `usage` is the mean of the default window and `bound` the forecast over the default horizon. The threshold is high
in the valley of the load, where more pods may run, and `lowest` at its peak (Koordinator's proposal of load-aware
scheduling, "Node Thresholds Customization"). A resource without a bound has its highest threshold, as the annotation
replaces the scheduler's own thresholds as a whole.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from watcher.arrays import F64
from watcher.core.forecast.states import STATES, ForecastState
from watcher.decoding.json_text import decode_json
from watcher.model import METRIC_BY_KEY, Snapshot, SnapshotForecasts, default_window

ANNOTATION = "scheduling.koordinator.sh/usage-thresholds"
STEP = 5
"""Points by which a threshold must differ from the written one before it is written."""
METRIC_OF = {"cpu": "CPU", "memory": "Memory"}
"""The metric of each resource, in the order of the annotation."""
_PENDING = STATES.index(ForecastState.PENDING)


@dataclass(frozen=True, slots=True)
class ThresholdRange:
    """The lowest and the highest threshold of a resource in percent, 1 to 100."""

    lowest: int
    highest: int


class UsageThresholds(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The annotation's JSON, reduced to the part that load-watcher writes: percent of a node by resource."""

    usage_thresholds: dict[str, int] = {}

    def text(self) -> str:
        """Return the value of the annotation; the same thresholds always give the same text."""
        return msgspec.json.encode(self).decode()


NO_THRESHOLDS = UsageThresholds()
"""The scheduler's own thresholds apply."""


def read_thresholds(text: str) -> UsageThresholds | None:
    """Return the thresholds of an annotation; None if load-watcher cannot have written it."""
    try:
        return decode_json(text, type=UsageThresholds)
    except msgspec.DecodeError:
        return None


def node_thresholds(snapshot: Snapshot, ranges: Mapping[str, ThresholdRange]) -> dict[str, UsageThresholds]:
    """Return the thresholds of the nodes by name: NO_THRESHOLDS for nodes without a bound. `ranges` are by resource.
    Left out are nodes whose usage or forecast is not known now; their annotations remain."""
    forecasts = snapshot.forecasts
    if forecasts is None or not snapshot.nodes:
        return {}
    usage = {resource: _usage(snapshot, key) for resource, key in METRIC_OF.items()}
    bound = {resource: _bound(forecasts, key) for resource, key in METRIC_OF.items()}
    wanted = {resource: _thresholds(usage[resource], bound[resource], ranges[resource]) for resource in METRIC_OF}
    unknown = [~np.isnan(snapshot.age_s)]  # silent, or held in an outage
    for resource, key in METRIC_OF.items():
        unknown.append(forecasts.states[METRIC_BY_KEY[key].name, forecasts.horizon] == _PENDING)
        unknown.append(~np.isnan(bound[resource]) & np.isnan(usage[resource]))
    left = np.array(np.vstack(unknown).any(axis=0), dtype=np.bool_)
    some = ~np.array(np.isnan(np.vstack(list(bound.values()))).all(axis=0), dtype=np.bool_)
    return {
        node: UsageThresholds({resource: int(each[row]) for resource, each in wanted.items()})
        if some[row]
        else NO_THRESHOLDS
        for row, node in enumerate(snapshot.nodes)
        if not left[row]
    }


def differ(wanted: UsageThresholds, written: UsageThresholds | None) -> int:
    """Return by how many points two annotations differ at most, at least STEP if they do not have the same resources: a
    resource without a threshold counts as 100. `written` is None if load-watcher cannot have written it."""
    one, other = wanted.usage_thresholds, {} if written is None else written.usage_thresholds
    points = max((abs(one.get(each, 100) - other.get(each, 100)) for each in {*one, *other}), default=0)
    return points if written is not None and one.keys() == other.keys() else max(points, STEP)


def _thresholds(usage: F64, bound: F64, within: ThresholdRange) -> F64:
    """Return the threshold of each node [n]."""
    known = ~np.isnan(usage) & (bound > 0.0)
    share = np.divide(np.minimum(usage, bound), bound, out=np.zeros_like(bound), where=known)
    return np.floor(within.highest - (within.highest - within.lowest) * share + 1e-9)


def _usage(snapshot: Snapshot, key: str) -> F64:
    """Return the mean of the default window in percent [n], NaN if unknown."""
    name, row = METRIC_BY_KEY[key].name, snapshot.windows.index(default_window(snapshot.windows))
    found = [windows for windows in snapshot.metrics if windows.metric.name == name]
    return found[0].average[row] if found else np.full(len(snapshot.nodes), np.nan)


def _bound(forecasts: SnapshotForecasts, key: str) -> F64:
    return forecasts.bounds[METRIC_BY_KEY[key].name, forecasts.horizon]
