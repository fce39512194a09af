"""Priority and fairness: the same with kustomize and with Helm, for the accounts of the other manifests."""

from __future__ import annotations

from typing import Any

import pytest

from tests.deploy.rendering import Manifest, charted, kustomized, of_part
from tests.deploy.test_manifests import DEPLOY, problems

pytestmark = [pytest.mark.real, pytest.mark.slow]

VALUES: dict[str, Any] = {"flowSchema": {"enabled": True}, "agent": {"enabled": True}}
KINDS = ("FlowSchema", "PriorityLevelConfiguration")
PARTS = ("load-watcher", "load-watcher-agent")


@pytest.fixture(scope="module")
def manifests() -> list[Manifest]:
    return kustomized(DEPLOY / "flowcontrol")


def accounts(rendered: list[Manifest]) -> set[tuple[str, str]]:
    """Namespace and name of each ServiceAccount."""
    found = (each["metadata"] for each in rendered if each["kind"] == "ServiceAccount")
    return {(each["namespace"], each["name"]) for each in found}


def subjects(rendered: list[Manifest]) -> set[tuple[str, str]]:
    """Namespace and name of each account in a FlowSchema."""
    return {
        (subject["serviceAccount"]["namespace"], subject["serviceAccount"]["name"])
        for each in rendered
        if each["kind"] == "FlowSchema"
        for rule in each["spec"]["rules"]
        for subject in rule["subjects"]
    }


def test_the_manifests_are_valid_for_kubernetes(manifests: list[Manifest]) -> None:
    assert [] == problems(manifests)
    assert [] == problems(charted(VALUES))


@pytest.mark.parametrize("part", PARTS)
def test_the_chart_and_the_manifests_are_equal(manifests: list[Manifest], part: str) -> None:
    """In a release in the namespace that kustomize uses."""
    expected = of_part(manifests, part)
    assert {f"{kind} {part}" for kind in KINDS} == expected.keys()
    chart = of_part(charted(VALUES, namespace=part), part)
    assert expected == {name: each for name, each in chart.items() if each["kind"] in KINDS}


def test_the_accounts_are_those_of_the_other_manifests(manifests: list[Manifest]) -> None:
    installed = kustomized(DEPLOY / "overlays" / "metrics-server") + kustomized(DEPLOY / "agent")
    assert accounts(installed) == subjects(manifests)
    chart = charted({**VALUES, "fullnameOverride": "other"}, namespace="shop")
    assert accounts(chart) == subjects(chart) == {("shop", "other"), ("shop", "other-agent")}


def test_it_is_disabled_by_default_and_follows_the_agent() -> None:
    assert not [each for each in charted({"agent": {"enabled": True}}) if each["kind"] in KINDS]
    assert len(KINDS) == len([each for each in charted({"flowSchema": {"enabled": True}}) if each["kind"] in KINDS])
