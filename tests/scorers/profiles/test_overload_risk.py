"""Profiles that overload more nodes than the default scheduler if pods request too little."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scorers.profiles.overload_risk import overload_notices
from scorers.profiles.profiles import read_profiles


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


def test_the_recommended_arguments_have_no_notice() -> None:
    assert () == notices(
        {"name": "TargetLoadPacking", "args": {"resources": ["cpu", "memory"]}},
        {"name": "LoadVariationRiskBalancing", "args": {"formula": "kep"}},
        {"name": "LoadAwareScheduling"},
        {"name": "HighLoadFilter", "args": {"usageThresholds": {"cpu": 80}}},
    )
