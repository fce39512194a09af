"""Short texts of a score: reasons without the score next to them, inputs and steps with units, rounded.

JSON has the exact values. watcher/web/score/why.js has the same rules for inputs and steps;
tests/real/test_dashboard.py compares their texts.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

EXACT = 1e15  # whole floats below are printed with all digits
_OF_BYTES = re.compile(r"memory|ephemeral-storage|hugepages-.*")
_AMOUNTS = (
    *("capacity", "allocatable", "measured", "of recent pods", "of pods not measured yet", "with the pod"),
    *("limits", "limits, with the pod", "requests, with the pod", "requested, with the pod"),
)
_STEP = re.compile(rf"(\S+) ({'|'.join(map(re.escape, _AMOUNTS))})")
_SHARE = re.compile(r"\S+ (mean|deviation)")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_PREDICTED = " predicted %"
_EXPECTED = " expected %"
_FORECAST = "; forecast: "


# --- inputs and steps ------------------------------------------------------------------------------------------------


def readable(plugin: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield name and text of each input and step of a plug-in in an explain response."""
    for name, value in plugin["inputs"].items():
        yield name, _input(name, value)
    for name, value in plugin["steps"].items():
        yield _step(name, value)


def amount(resource: str, value: float | None) -> str:
    """Format an amount of a resource; cpu is given in millicores."""
    if value is None:
        return "unknown"
    if resource == "cpu":
        return f"{value / 1000:.{2 if value % 100 else 1}f} cores"
    return _size(value) if _OF_BYTES.fullmatch(resource) else number(value)


def number(value: Any, *, form: str = ".6g") -> str:
    """Format a value of an explain response for display."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {number(each)}" for name, each in value.items()) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < EXACT else f"{value:{form}}"
    return "unknown" if value is None else str(value)


def _input(name: str, value: Any) -> str:
    if name == "podRequest":
        return amount("cpu", value)
    if not isinstance(value, Mapping):
        return f"{number(value)} %" if name.endswith("Utilization") else number(value)
    if name.startswith("pod"):
        said = [f"{resource} {amount(resource, each)}" for resource, each in value.items()]
    else:
        unit = " %" if name.endswith("Thresholds") else ""
        said = [f"{resource} {number(each)}{unit}" for resource, each in value.items()]
    return ", ".join(said) or "none"


def _step(name: str, value: Any) -> tuple[str, str]:
    if found := _STEP.fullmatch(name):
        return name, amount(found[1], value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return name.removesuffix(" %"), number(value)
    is_share = _SHARE.fullmatch(name) is not None
    if not is_share and not name.endswith(" %"):
        return name, number(float(f"{value:.4g}"))
    return name.removesuffix(" %"), f"{100 * value if is_share else value:.1f} %"


def _size(value: float) -> str:
    power = 0 if value < 1 else min(len(_UNITS) - 1, int(math.log2(value) // 10))
    scaled = value / 1024**power
    return f"{scaled:.{0 if power == 0 or scaled >= 100 else 1}f} {_UNITS[power]}"


# --- reasons ---------------------------------------------------------------------------------------------------------


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
