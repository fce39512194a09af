"""The Grafana dashboards as documents: valid by Grafana's own types, and by the rules of this project.

test_monitoring.py tests the results of their queries.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.grafana import DASHBOARDS, INFINITY, panels, read, targets, used_variables, variables
from tests.real.parts import find_node_package

TYPES = Path(__file__).with_name("dashboards.ts")


def test_there_is_a_dashboard_for_each_part() -> None:
    assert {"fleet", "node", "service-health", "agent", "qrm"} == DASHBOARDS.keys()


# --- Grafana's own types ---------------------------------------------------------------------------------------------


def type_errors(directory: Path, documents: dict[str, Any]) -> set[str]:
    """Return the names of the documents that are not dashboards by Grafana's types, with the errors."""
    (directory / "node_modules").symlink_to(find_node_package("@grafana/schema").parents[1])
    (directory / TYPES.name).write_text(TYPES.read_text())
    for name, document in documents.items():
        beginning = f"import type {{ Checked }} from './{TYPES.stem}';\nexport const dashboard: Checked = "
        (directory / f"{name}.ts").write_text(beginning + json.dumps(document, indent=1))
    flags = ["--noEmit", "--strict", "--skipLibCheck", "--module", "esnext", "--moduleResolution", "bundler"]
    files = [TYPES.name, *(f"{name}.ts" for name in documents)]
    done = subprocess.run(
        ["node", find_node_package("typescript") / "bin" / "tsc", *flags, "--target", "es2022", *files],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode in (0, 1, 2), done.stderr
    wrong = {line for line in done.stdout.splitlines() if ": error " in line}
    assert bool(wrong) == bool(done.returncode), done.stdout
    return wrong


def broken() -> dict[str, Any]:
    """One dashboard for each kind of mistake that the types detect."""
    found = {
        name: read("node") for name in ("schema", "variable", "field", "option", "unit", "legend", "custom", "query")
    }
    lines = {
        name: next(each for each in panels(document) if each["type"] == "timeseries")
        for name, document in found.items()
    }
    stat = next(each for each in panels(found["option"]) if each["type"] == "stat")
    found["schema"]["schemaVersion"] = "41"
    found["variable"]["templating"]["list"][0]["type"] = "datasuorce"
    lines["field"]["descripton"] = lines["field"].pop("description")
    stat["options"]["graphMode"] = "nothing"
    lines["unit"]["fieldConfig"]["defaults"]["unit"] = 1
    lines["legend"]["options"]["legend"]["displayMode"] = "lines"
    lines["custom"]["fieldConfig"]["defaults"]["custom"]["drawStile"] = "line"
    lines["query"]["targets"][0]["expresion"] = "up"
    return found


@pytest.mark.real
@pytest.mark.slow
def test_the_dashboards_are_valid_for_grafana(tmp_path: Path) -> None:
    """By the types of the version in docker-compose.yml, which detect planted mistakes."""
    wrong = type_errors(tmp_path, {name: read(name) for name in DASHBOARDS} | broken())
    assert {f"{name}.ts" for name in broken()} == {line.partition("(")[0] for line in wrong}, wrong


# --- rules of this project -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_can_be_provisioned(name: str) -> None:
    """Grafana refuses one without a uid and a title, and silently loses panels that share a number."""
    document = read(name)
    assert document["uid"] == f"load-watcher-{name}"
    assert document["title"]
    assert "id" not in document
    numbers = [panel["id"] for panel in [*document["panels"], *panels(document)] if panel["type"] != "row"]
    assert len(set(numbers)) == len(list(panels(document)))
    assert used_variables(document) <= set(variables(name)) | {"datasource", "infinity"}
    assert set(variables(name)) - used_variables(document) == set()


@pytest.mark.parametrize("name", DASHBOARDS)
def test_data_sources_are_variables(name: str) -> None:
    text = json.dumps(read(name))
    assert {"${datasource}", "${infinity}"} >= set(re.findall(r'"uid": "([^"]*)"', text)) - {read(name)["uid"]}
    kinds = {each["name"]: each["query"] for each in variables(name).values() if each["type"] == "datasource"}
    assert kinds.items() <= {"datasource": "prometheus", "infinity": INFINITY}.items()
    assert ("infinity" in kinds) == any(not target.is_promql for target in targets(name))


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_panel_has_a_description_and_a_unit(name: str) -> None:
    titles = [panel["title"] for panel in panels(read(name))]
    assert len(set(titles)) == len(titles)
    for panel in panels(read(name)):
        assert panel["title"].strip(), panel
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["type"] != "stat" or panel["fieldConfig"]["defaults"]["thresholds"]["steps"], panel["title"]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_do_not_overlap(name: str) -> None:
    """Panels in a collapsed row have their position in the open row."""
    taken: dict[tuple[int, int], int] = {}
    document = read(name)
    for panel in [*document["panels"], *(each for row in document["panels"] for each in row.get("panels", ()))]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["id"]) == panel["id"], panel["title"]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_each_selector_has_the_chosen_cluster(name: str) -> None:
    """Without the right side of `on (job, instance)`, which only selects the series of the left side."""
    for target in targets(name):
        if target.is_promql:
            expression = re.sub(r"on \(job, instance\) \w+", "", target.query["expr"])
            for metric, matchers in re.findall(r"\b((?:load_watcher|process)_\w+)(\{[^}]*\})?", expression):
                assert 'cluster=~"$cluster"' in matchers, f"{target.place}: {metric}"


def test_linked_pages_exist() -> None:
    """In links of tables."""
    uids = {read(name)["uid"] for name in DASHBOARDS}
    led = {uid for path in DASHBOARDS.values() for uid in re.findall(r'"/d/([\w-]+)', path.read_text())}
    assert led
    assert led <= uids
