"""The alerts: promtool accepts them, they fire for faults, and they link to existing runbooks.

That every metric in them is exposed is in test_monitoring.py.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.real.parts import REPOSITORY, run_program

RULES = REPOSITORY / "deploy" / "alerts.yaml"
UNIT_TESTS = Path(__file__).with_name("alerts_test.yaml")
GROUPS: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"]
ALERTS: dict[str, dict[str, Any]] = {rule["alert"]: rule for group in GROUPS for rule in group["rules"]}


def anchors(page: Path) -> list[str]:
    """The anchors of the headings of the page, as GitHub and GitLab make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


@pytest.mark.real
def test_promtool_accepts_the_rules() -> None:
    checked = run_program("promtool", "check", "rules", RULES)
    assert 0 == checked.returncode, checked.stdout
    assert f"{len(ALERTS)} rules found" in checked.stdout


@pytest.mark.slow
@pytest.mark.real
def test_each_alert_fires_only_for_its_fault() -> None:
    """By Prometheus' own evaluation, a moment before and after; no alert fires without a fault."""
    tried = run_program("promtool", "test", "rules", UNIT_TESTS)
    assert 0 == tried.returncode, tried.stdout


def test_there_is_a_fault_for_each_alert() -> None:
    text = UNIT_TESTS.read_text()
    assert [] == [name for name in ALERTS if f'alertname="{name}"' not in text and f"alertname: {name}" not in text]


def test_no_two_alerts_have_one_name() -> None:
    counted = Counter(rule["alert"] for group in GROUPS for rule in group["rules"])
    assert {1} == set(counted.values())


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_has_a_description_and_a_runbook(name: str) -> None:
    """The runbook is a section of an existing page."""
    rule = ALERTS[name]
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert {"summary", "description", "runbook_url"} == rule["annotations"].keys()
    assert all(text == text.strip() and text for text in rule["annotations"].values())
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert anchor == name.lower()
    assert anchor in anchors(REPOSITORY / page)


def test_no_section_is_about_a_removed_alert() -> None:
    sections = re.findall(r"^### (\S+)$", (REPOSITORY / "docs" / "tasks" / "alerts.md").read_text(), flags=re.MULTILINE)
    assert sections == list(ALERTS)  # also in the order of the rules


def test_the_links_of_the_page_have_targets() -> None:
    page = REPOSITORY / "docs" / "tasks" / "alerts.md"
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        assert not anchor or anchor in anchors(page.parent / path if path else page), target
