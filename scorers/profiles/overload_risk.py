"""Profiles that overload more nodes than the default scheduler in a scenario of docs/concepts/simulation.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scorers.profiles.profiles import ProfileSettings
from watcher.core.problems.document import FleetProblem, Severity

UNDER_REQUESTED = 0.5
"""Ratio of requests to usage below which the default scheduler can overload fewer nodes than these profiles."""
CONDITION = "if pods request less than about half of their usage"
HIGHEST_TARGET = 70.0
"""The highest simulated `targetUtilization` with less overload than the default scheduler under CONDITION; percent."""

PROBLEM_KIND = "profile"
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

    def is_present(self, ratios: Mapping[str, float]) -> bool:
        """Whether the condition holds with these ratios of requests to usage by resource."""
        return self.always or min(ratios.values(), default=UNDER_REQUESTED) < UNDER_REQUESTED


def overload_risk(plugin: str, args: Mapping[str, Any]) -> OverloadRisk | None:
    """Return the risk of a score plug-in with valid arguments, which may be null; None if it has none."""
    if plugin == "TargetLoadPacking":
        return _packing_risk(args)
    if plugin == "LoadVariationRiskBalancing":
        return None if args.get("formula") == "kep" else OverloadRisk('set formula = "kep"')
    if plugin in ("LowRiskOverCommitment", "Peaks"):
        return OverloadRisk(_OTHER_PLUGIN)
    return OverloadRisk(_OTHER_PLUGIN, always=True) if plugin == "NodeResourceLimits" else None


def requests_text(ratios: Mapping[str, float]) -> str:
    """The ratios in words: "the pods of this cluster request 0.41 times their cpu usage"."""
    found = (f"{ratio:.2f} times their {resource} usage" for resource, ratio in sorted(ratios.items()))
    return f"the pods of this cluster request {', '.join(found)}"


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


def overload_problems(profiles: Iterable[ProfileSettings], ratios: Mapping[str, float]) -> list[FleetProblem]:
    """Return a problem for each score plug-in of the profiles that overloads more nodes than the default scheduler with
    these ratios of requests to usage by resource; none while the ratios are unknown."""
    return [
        FleetProblem(
            Severity.WARNING,
            PROBLEM_KIND,
            "a profile overloads nodes",
            f"Profile {profile.name}: {each.name} with these arguments overloads more nodes than the default scheduler "
            f"{risk.condition}; {requests_text(ratios)}",
            f"{risk.remedy[:1].upper()}{risk.remedy[1:]} (docs/concepts/simulation.md).",
            "load-watcher doctor",
        )
        for profile in sorted(profiles, key=lambda each: each.name)
        for each in profile.plugins
        if ratios and "score" in each.points
        if (risk := overload_risk(each.name, each.args)) is not None and risk.is_present(ratios)
    ]
