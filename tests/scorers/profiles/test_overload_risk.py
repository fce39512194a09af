"""Profiles that overload more nodes than the default scheduler if pods request too little."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scorers.profiles.overload_risk import overload_notices
from scorers.profiles.profiles import read_profiles

BOTH = {"resources": ["cpu", "memory"]}


def notices(*plugins: dict[str, Any]) -> tuple[str, ...]:
    (profile,), problems, _ = read_profiles({"p": {"plugins": list(plugins)}}, cwd=Path())
    assert not problems
    return overload_notices(profile)


@pytest.mark.parametrize(
    ("name", "args", "remedy"),
    [
        ("TargetLoadPacking", {}, 'set resources = ["cpu", "memory"]'),
        ("TargetLoadPacking", {"resources": ["cpu", "memory"], "podDemand": "requests"}, "remove podDemand"),
        ("LoadVariationRiskBalancing", {"formula": "upstream"}, 'set formula = "kep"'),
        ("TargetLoadPacking", {"resources": ["cpu"]}, 'set resources = ["cpu", "memory"]'),
        ("TargetLoadPacking", BOTH | {"targetUtilization": 71}, "set targetUtilization to 70 or less"),
        ("Peaks", {"NodePowerModel": {"a": {"k0": 1.0, "k1": 1.0, "k2": 0.1}}}, "use another score plug-in"),
        (
            "LowRiskOverCommitment",
            {},
            'use another score plug-in, such as LoadVariationRiskBalancing with formula = "kep"',
        ),
    ],
)
def test_a_notice_names_the_condition_and_the_remedy(name: str, args: dict[str, Any], remedy: str) -> None:
    (found,) = notices({"name": name, "args": args})
    assert f"{name} with these arguments overloads more nodes than the default scheduler if pods request less" in found
    assert remedy in found


@pytest.mark.parametrize(
    ("name", "args"), [("NodeResourceLimits", {}), ("TargetLoadPacking", {"resources": ["memory"]})]
)
def test_a_plug_in_that_is_worse_with_sufficient_requests_too_has_another_condition(
    name: str, args: dict[str, Any]
) -> None:
    (found,) = notices({"name": name, "args": args})
    assert f"{name} with these arguments overloads more nodes than the default scheduler even if pods request" in found


def test_the_recommended_arguments_have_no_notice() -> None:
    assert () == notices(
        {"name": "TargetLoadPacking", "args": BOTH | {"targetUtilization": 70}},
        {"name": "LoadVariationRiskBalancing", "args": {"formula": "kep"}},
        {"name": "LoadAwareScheduling"},
        {"name": "HighLoadFilter", "args": {"usageThresholds": {"cpu": 80}}},
    )
