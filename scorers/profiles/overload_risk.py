"""Profiles that overload more nodes than the default scheduler in a scenario of docs/concepts/simulation.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scorers.profiles.profiles import ProfileSettings

UNDER_REQUESTED = 0.5
"""Ratio of requests to usage below which the default scheduler can overload fewer nodes than these profiles."""
CONDITION = "if pods request less than about half of their usage"
HIGHEST_TARGET = 70.0
"""The highest simulated `targetUtilization` with less overload than the default scheduler under CONDITION; percent."""

_OTHER_PLUGIN = 'use another score plug-in, such as LoadVariationRiskBalancing with formula = "kep"'


@dataclass(frozen=True, slots=True)
class OverloadRisk:
    """A score plug-in overloads more nodes than the default scheduler under CONDITION, or also with sufficient requests
    (`always`)."""

    remedy: str
    always: bool = False

    @property
    def condition(self) -> str:
        """When the plug-in overloads more nodes."""
        return "even if pods request enough" if self.always else CONDITION


def overload_risk(plugin: str, args: Mapping[str, Any]) -> OverloadRisk | None:
    """Return the risk of a score plug-in with valid arguments, which may be null; None if it has none."""
    if plugin == "TargetLoadPacking":
        return _packing_risk(args)
    if plugin == "LoadVariationRiskBalancing":
        return None if args.get("formula") == "kep" else OverloadRisk('set formula = "kep"')
    if plugin in ("LowRiskOverCommitment", "Peaks"):
        return OverloadRisk(_OTHER_PLUGIN)
    return OverloadRisk(_OTHER_PLUGIN, always=True) if plugin == "NodeResourceLimits" else None


def _packing_risk(args: Mapping[str, Any]) -> OverloadRisk | None:
    resources, target = args.get("resources") or ("cpu",), args.get("targetUtilization")
    if not isinstance(resources, Sequence) or not {"cpu", "memory"}.issubset(resources):
        others = "".join(f', "{each}"' for each in resources if each not in ("cpu", "memory"))
        return OverloadRisk(f'set resources = ["cpu", "memory"{others}]', always="cpu" not in resources)
    if args.get("podDemand") == "requests":
        return OverloadRisk("remove podDemand")
    if isinstance(target, int | float) and target > HIGHEST_TARGET:
        return OverloadRisk(f"set targetUtilization to {HIGHEST_TARGET:g} or less")
    return None


def overload_notices(profile: ProfileSettings) -> tuple[str, ...]:
    """Return one sentence for each score plug-in of the profile with this risk."""
    risks = {each.name: overload_risk(each.name, each.args) for each in profile.plugins if "score" in each.points}
    return tuple(
        f"{name} with these arguments overloads more nodes than the default scheduler {risk.condition}; {risk.remedy} "
        "(docs/concepts/simulation.md)"
        for name, risk in risks.items()
        if risk is not None
    )
