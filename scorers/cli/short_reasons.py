"""Reasons of plug-ins shortened for a column of a table, which has the score next to it.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_PREDICTED = " predicted %"
_EXPECTED = " expected %"
_FORECAST = "; forecast: "


def short_reason(plugin: Mapping[str, Any]) -> str:
    """Return the reason without the score and the target: the load that the plug-in predicts, or the load above a
    threshold of a filter. Otherwise the reason of the plug-in without the score at its end."""
    steps, reason = plugin["steps"], str(plugin["reason"])
    if predicted := _predicted(plugin):
        return f"would be at {', '.join(f'{resource} {value:.1f} %' for resource, value in predicted.items())}"
    thresholds = plugin.get("inputs", {}).get("usageThresholds")
    if not plugin.get("passes", True) and isinstance(thresholds, Mapping):
        above = [
            f"{resource} {value:.1f} %, above the threshold of {thresholds[resource]:g} %"
            for resource, value in _of_resources(steps, _EXPECTED).items()
            if value is not None and value > thresholds.get(resource, math.inf)
        ]
        if above:
            return "; ".join(above) + _forecast(reason, plugin)
    return _without_score(reason, plugin)


def _without_score(reason: str, plugin: Mapping[str, Any]) -> str:
    score = plugin.get("score")
    return reason if score is None else reason.removesuffix(f": {score:.0f}")


def _forecast(reason: str, plugin: Mapping[str, Any]) -> str:
    """Return the part of the reason that states the forecast of the node."""
    _, mark, said = _without_score(reason, plugin).partition(_FORECAST)
    return mark + said


def targets_of(nodes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the target of each plug-in whose reasons `short_reason` replaces by predicted loads."""
    shortened = (plugin for node in nodes for plugin in node["plugins"] if _predicted(plugin))
    targets = {plugin["name"]: plugin["inputs"]["targetUtilization"] for plugin in shortened}
    for name, target in targets.items():
        yield f"target of {name}: {target:g} %"


def _predicted(plugin: Mapping[str, Any]) -> dict[str, float]:
    """Return the predicted load of each resource in percent; empty if one is unknown, or without a target."""
    found = _of_resources(plugin["steps"], _PREDICTED) if "targetUtilization" in plugin.get("inputs", {}) else {}
    known = {resource: value for resource, value in found.items() if value is not None}
    return known if len(known) == len(found) else {}


def _of_resources(steps: Mapping[str, Any], suffix: str) -> dict[str, float | None]:
    return {name.removesuffix(suffix): value for name, value in steps.items() if name.endswith(suffix)}
