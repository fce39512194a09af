"""Profiles that overload more nodes than the default scheduler in a scenario of docs/simulation.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scorers.profiles.profiles import ProfileSettings

UNDER_REQUESTED = 0.5
"""Ratio of requests to usage below which the default scheduler can overload fewer nodes than these profiles."""
CONDITION = "if pods request less than about half of their usage"


def remedy_of(plugin: str, args: Mapping[str, Any]) -> str:
    """Return what to change if this score plug-in with these arguments overloads more nodes than the default scheduler
    under CONDITION; "" if it does not."""
    if plugin == "TargetLoadPacking":
        if args.get("podDemand") == "requests":
            return "remove podDemand"
        resources = args.get("resources")
        with_memory = isinstance(resources, Sequence) and "memory" in resources
        return "" if with_memory else 'set resources = ["cpu", "memory"]'
    if plugin == "LoadVariationRiskBalancing":
        return "" if args.get("formula") == "kep" else 'set formula = "kep"'
    if plugin == "LowRiskOverCommitment":
        return 'use another score plug-in, such as LoadVariationRiskBalancing with formula = "kep"'
    return ""


def overload_notices(profile: ProfileSettings) -> tuple[str, ...]:
    """Return one sentence for each score plug-in of the profile with this risk."""
    scoring = [each for each in profile.plugins if "score" in each.points]
    return tuple(
        f"{each.name} with these arguments overloads more nodes than the default scheduler {CONDITION}; {remedy} "
        "(docs/simulation.md)"
        for each in scoring
        if (remedy := remedy_of(each.name, each.args))
    )
