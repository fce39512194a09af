"""The page, the JSON document and the text of a report."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from lab.report.collected import ClusterHistory, MissingData
from lab.report.command import write
from lab.report.comparison import Interval, PolicyOutcome, ReplayResult
from lab.report.findings import ClusterReport, make_report
from lab.report.pages.document import as_document, as_text
from lab.report.pages.page import as_page
from lab.report.pages.pictures import short_names
from load_watcher.main import main
from tests.lab.report.histories import history, node_loads

EVIL = "<script>alert(1)</script>\"'&"
RESULT = ReplayResult(
    80.0, 2, 0, 2, 5, "days", 2.0,
    (
        PolicyOutcome("DefaultScheduler", 4.0, 2.0, 0.0, None, None),
        PolicyOutcome("TargetLoadPacking", 1.0, 2.0, 0.0, Interval(-3.0, -4.0, -2.0), Interval(0.0, 0.0, 0.0)),
    ),
)  # fmt: skip


CONTROLS = "w\x1be\x9bb\u202e"


class Tags(HTMLParser):
    """The tags and attributes of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.found.append((tag, dict(attrs)))


def report_of(given: ClusterHistory, result: ReplayResult | str = RESULT) -> ClusterReport:
    return make_report(given, top=15, replay=result)


def test_the_findings_are_sentences():
    findings = as_document(report_of(history()))["findings"]
    assert findings["hot"] == (
        "1 of 2 nodes was above 80 % CPU for 6.0 node-hours in the 3 days of this report, mostly 9:00 to 11:00 UTC."
    )
    assert "5.0 cores of 7.6 allocatable cores; 4.0 cores are requested" in findings["peaks"]
    assert findings["workloads"].startswith("shop/Deployment/web makes 100 % of the pods' load in the hot hours")
    assert findings["policies"].startswith("TargetLoadPacking would have had 1.0 node-hours per day above 80 %")
    assert findings["missing"] == "The source has all data that this report uses."


def test_names_are_escaped():
    """A pod's name and the node's are text on the page, also in pictures."""
    given = history(name=EVIL)
    loads = replace(given.loads, nodes=(EVIL, "node-1"))
    assert given.pods is not None
    pods = replace(given.pods, pods=(("<b>", EVIL, EVIL), given.pods.pods[1]))
    page = as_page(report_of(replace(given, loads=loads, pods=pods, owners={})))
    assert "<script" not in page
    assert "<b>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_controls_in_names_are_visible_escapes(tmp_path: Path):
    """C0 and C1 controls and bidirectional controls, on the page, in the JSON document and in the text."""
    given = history(name=CONTROLS)
    report = report_of(replace(given, loads=replace(given.loads, nodes=(CONTROLS, "node-1"))))
    write(report, tmp_path / "r.html", tmp_path / "r.json")
    page, document = (tmp_path / "r.html").read_text(), (tmp_path / "r.json").read_text()
    for text in (page, document, as_text(report, "written")):
        assert not set(CONTROLS) & set(text) - set("web")
    assert r"w\x1be\x9bb\u202e" in page
    assert json.loads(document)["hot"]["nodes"][0]["node"] == CONTROLS


def test_the_page_loads_nothing():
    page = as_page(report_of(history()))
    tags = Tags(page).found
    assert not [tag for tag, given in tags if {"src", "href", "style", "onload"} & given.keys()]
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in tags}
    assert "url(" not in page
    policy = next(given["content"] for tag, given in tags if given.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert re.match(r"default-src 'none'; style-src 'sha256-", policy)


def test_unknown_numbers_are_null():
    """No sizes, no requests, no memory: JSON has null, the page says unknown."""
    given = history()
    absent = np.full(2, np.nan)
    bare = replace(
        given,
        sizes=replace(
            given.sizes, cores=absent, bytes=absent, allocatable_cores=absent, allocatable_bytes=absent
        ),
        loads=replace(given.loads, memory=given.loads.memory.of([-1, -1])),
        requests=None, pods=None, recorded=None,
    )  # fmt: skip
    found = report_of(bare, "the recorded pods are unknown")
    text = json.dumps(as_document(found), allow_nan=False)
    assert json.loads(text)["peaks"][0]["cluster"] is None
    page = as_page(found)
    assert "unknown" in page
    assert not re.search(r"\bnan\b", page, re.IGNORECASE)
    assert "Other placements were not simulated: the recorded pods are unknown." in page


def test_missing_data_has_a_fix():
    given = history(missing=(MissingData("kube_pod_info", "other placements", "scrape kube-state-metrics"),))
    found = report_of(given, "the recorded pods are unknown")
    assert "scrape kube-state-metrics" in as_page(found)
    assert "fix: scrape kube-state-metrics" in as_text(found, "written: x")
    assert as_document(found)["missing"] == [
        {"what": "kube_pod_info", "shows": "other placements", "cure": "scrape kube-state-metrics"}
    ]


@pytest.mark.parametrize("days", [1, 2])
def test_a_short_history_states_why_there_is_no_bound(days):
    record = as_document(report_of(history(days)))["peaks"][0]["record"]
    assert record["reason"] == ""
    cut = history(days)
    loads = node_loads(cut.loads.cpu.mean[:144])
    document = as_document(report_of(replace(cut, loads=loads)))
    assert "There is no bound for the next hours: less than a day of history." in document["findings"]["peaks"]


@pytest.mark.parametrize(
    ("days", "record", "busiest"),
    [
        (7, "; in the last week), ", "coverage in the last week "),
        (3, "; at most 31 of a node), ", "coverage of the last 31 bounds "),
    ],
)
def test_the_period_of_the_judged_bounds_is_stated(days, record, busiest):
    page = as_page(report_of(history(days)))
    assert record in page
    assert busiest in page
    assert "Mean severity: " in page
    assert ("last week" in page) == (days == 7)


def test_an_end_in_the_future_is_an_error(tmp_path):
    arguments = ["report", "--prometheus", "http://127.0.0.1:9", "--file", str(tmp_path / "r.html")]
    result = CliRunner().invoke(main, [*arguments, "--end", "2999-01-01"])
    assert result.exit_code == 2
    assert "must not be in the future" in result.output


def test_names_in_pictures_lose_their_common_domain():
    assert short_names(["a.example.org", "b.example.org"]) == ["a", "b"]
    assert short_names(["a.example.org", "a.example.com"]) == ["a.example.org", "a.example.com"]
    assert short_names(["only.example.org"]) == ["only.example.org"]
    assert short_names(["a-very-long-name-of-a-node", "b"]) == ["a-very-lo…-of-a-node", "b"]
