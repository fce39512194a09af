"""The page of one node in a real browser, and the definitions of the terms of the page."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.pods import publish_pods, small_pods
from tests.fakes.service import FakeService, Live
from tests.fakes.snapshots import publish, snapshot_of
from tests.lab.demo.test_demo import Demo, node_with
from tests.real.browser import Tab, chromium, tab
from tests.real.fleet import make_fleet, recording_rule_series
from tests.real.parts import REPOSITORY, Prometheus
from tests.service import Service
from tests.waiting import wait_for
from watcher.core.publishing.documents import Published

pytestmark = pytest.mark.real

DEFINITION = ".definition:popover-open"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    with Demo(tmp_path_factory.mktemp("demo")) as running:
        running.wait_for_status(200, "/readyz")
        running.wait_for_status(200, "/api/v1/pods")
        yield running


@pytest.fixture
def light(browser: Any) -> Iterator[Tab]:
    with tab(browser) as opened:
        yield opened


def test_the_page_begins_with_the_load_and_its_sources(demo: Demo, light: Tab) -> None:
    """The state is that of the load; used, requested, allocatable and limits have numbers; a process outside of all
    pods is the first row, and pods are links, ordered by use."""
    hot = node_with(demo, "is hot: ")
    light.open(f"{demo.url}/#/node/{hot}", shows="hot: CPU at")
    light.wait_for("requested")
    light.wait_for("zone eu-")
    known = demo.get(f"/scheduler/default/nodes/{hot}").json()["nodes"][hot]
    parts = light.page.locator(".resource").first.locator("dl > div").all_inner_texts()
    for name, key in (("requested", "requested"), ("allocatable", "allocatable"), ("limits", "limits")):
        share = 100 * known[key]["cpu"] / known["capacity"]["cpu"]
        assert any(part.startswith(name) and f"{share:.0f} %" in part for part in parts), parts
    wait_for(lambda: light.cells("Pods of this node")[0][0] == "outside of pods", what="the load outside of pods")
    rows = light.cells("Pods of this node")[1:]
    used = [float(row[1].split(" ")[0]) for row in rows]
    assert used == sorted(used, reverse=True)
    assert all(re.fullmatch(r"\d+\.\d+ cores\s*(<1|\d+) %", row[1]) for row in rows)
    links = light.page.get_by_role("table", name="Pods of this node").get_by_role("link")
    assert links.first.get_attribute("href") == f"#/placements/{rows[0][0]}"
    assert [] == light.wrong


def test_links_lead_back_to_the_fleet_and_to_the_neighbours(demo: Demo, light: Tab) -> None:
    """In the order and with the filter of the fleet; the tab of the fleet is marked."""
    light.open(f"{demo.url}/#/fleet?as=table&sort=name&text=general", shows="Distribution of CPU")
    names = [row[0] for row in light.cells("Nodes")]
    assert len(names) > 3
    light.page.get_by_role("link", name=names[1], exact=True).click()
    light.wait_for(f"2 of {len(names)} in the order of the fleet")
    assert light.page.locator("#views a[aria-current]").inner_text() == "Fleet"
    light.page.get_by_role("link", name="next").click()
    light.page.wait_for_url(f"**/#/node/{names[2]}")
    for expected in (names[1], names[0]):
        light.page.get_by_role("link", name="previous").click()
        light.page.wait_for_url(f"**/#/node/{expected}")
    light.wait_for(f"1 of {len(names)} in the order of the fleet")
    assert 0 == light.page.get_by_role("link", name="previous").count()
    light.page.get_by_role("link", name="← Fleet").click()
    light.page.wait_for_url("**/#/fleet?as=table&sort=name&text=general*")


def test_a_chart_shows_the_values_and_the_time_at_the_pointer(demo: Demo, light: Tab) -> None:
    light.open(f"{demo.url}/#/node/general-a-01?range=-24h", shows="newest, ")
    assert "Time:" not in light.page.locator("main").inner_text()
    light.wait_for("Pressure, the share of the time in which tasks wait: CPU")
    plot = light.page.locator(".u-over").first
    legend = light.page.locator(".chart-legend").first
    said = re.compile(r"\w+ \d+, [\d:]{8}\s*5m \d+\.\d %\s*10m \d+\.\d %\s*15m \d+\.\d %")

    def at_the_pointer() -> bool:
        plot.hover(position={"x": 200, "y": 40})
        return said.fullmatch(legend.inner_text()) is not None

    wait_for(at_the_pointer, what="the values of twelve hours ago")
    light.page.locator("h1").hover()
    wait_for(lambda: legend.inner_text().startswith("newest"), what="the newest values again")


def test_an_unknown_node_is_reported_once_with_the_next_step(demo: Demo, light: Tab) -> None:
    light.open(f"{demo.url}/#/node/general-x", shows="No node general-x in the fleet")
    assert 1 == len(light.page.locator("main .card:visible").all())
    light.ask_now()
    light.page.wait_for_load_state("networkidle")
    assert [] == light.wrong  # without requests for data that the list of nodes excludes
    light.page.get_by_role("button", name="Look for its stored history").click()
    light.wait_for("No history of general-x is stored.")
    link = light.page.get_by_role("link", name="Nodes with")
    assert link.get_attribute("href") == "#/fleet?as=table&text=general"
    link.click()
    light.wait_for("general-a-01")
    assert [] == light.errors()


def test_a_phone_shows_the_load_first_and_truncates_nothing(demo: Demo, browser: Any) -> None:
    """Every control is at least 24 px high and wide (WCAG 2.2), and no table is wider than its card."""
    hot = node_with(demo, "is hot: ")
    with tab(browser, width=390) as opened:
        opened.open(f"{demo.url}/#/node/{hot}", shows="hot: CPU at")
        wait_for(lambda: opened.cells("Pods of this node"), what="the pods")
        opened.wait_for("newest, ")
        page = opened.page
        assert 390 == page.evaluate("document.documentElement.scrollWidth")
        assert page.locator(".track").first.bounding_box()["y"] < 700
        wide = """[...document.querySelectorAll('main .scroll')]
            .filter((each) => each.scrollWidth > each.clientWidth + 1).length"""
        assert 0 == page.evaluate(wide)
        small = """[...document.querySelectorAll('main a, main button, main summary')]
            .filter((each) => each.checkVisibility())
            .map((each) => [each.textContent, each.getBoundingClientRect()])
            .filter(([, box]) => box.height > 0 && box.height < 24).map(([text]) => text)"""
        assert ["score explorer"] == page.evaluate(small)  # in a sentence, which WCAG excepts
        assert page.evaluate("document.documentElement.scrollHeight") < 3000


def test_a_definition_opens_by_keyboard_by_pointer_and_by_touch(demo: Demo, browser: Any, light: Tab) -> None:
    """It describes the button; Escape closes it, and its link leads to all terms."""
    light.open(f"{demo.url}/#/node/general-a-01", shows="requested")
    button = light.page.get_by_role("button", name="requested", exact=True).first
    button.focus()
    assert "sum of the requests" in light.page.locator(DEFINITION).inner_text()
    assert button.get_attribute("aria-expanded") == "true"
    assert [] == light.unfit()
    light.press("Escape")
    assert 0 == light.page.locator(DEFINITION).count()
    light.page.get_by_role("button", name="limits", exact=True).first.hover()
    assert "may exceed the capacity" in light.page.locator(DEFINITION).inner_text()
    light.page.locator(DEFINITION).get_by_role("link").click()
    light.wait_for("safeVarianceMargin")
    assert "may exceed the capacity" in light.page.locator(".terms .chosen").inner_text()
    context = browser.new_context(viewport={"width": 390, "height": 900}, has_touch=True, is_mobile=True)
    try:
        phone = Tab(context.new_page())
        phone.open(f"{demo.url}/#/node/general-a-01", shows="requested")
        phone.page.get_by_role("button", name="allocatable", exact=True).first.tap()
        box = phone.page.locator(DEFINITION).bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
    finally:
        context.close()


def test_the_definitions_link_to_existing_pages(demo: Demo, light: Tab) -> None:
    """Each with an existing heading or anchor, so that the links of a release work."""
    light.open(f"{demo.url}/#/terms", shows="safeVarianceMargin")
    terms = light.page.evaluate("async () => (await import('./web/terms/definitions.js')).TERMS")
    assert {"stale", "silent", "unheard", "quarantined", "lost", "window", "margin", "mean", "deviation"} <= set(terms)
    for name, text, page in terms.values():
        path, _, anchor = page.partition("#")
        written = (REPOSITORY / "docs" / path).read_text()
        headings = [re.sub(r"[^\w -]", "", each).strip().lower().replace(" ", "-")
                    for each in re.findall(r"^#+ (.+)$", written, flags=re.MULTILINE)]  # fmt: skip
        assert not anchor or anchor in headings or f'id="{anchor}"' in written, (name, page)
        assert text.endswith(".")


def test_with_prometheus_only_the_page_names_each_missing_part_once(tmp_path: Path, light: Tab) -> None:
    """Load and history are shown; requests, labels and scores are named once, with the lines that enable them; pods,
    with the missing series. Opening the page causes no finding."""
    fleet = make_fleet([f"node-{number}" for number in range(1, 6)], start=time.time() - 960, end=time.time() - 7)
    with Prometheus(tmp_path / "prometheus") as prometheus:
        prometheus.write(recording_rule_series(fleet))
        config = f'[provider]\nname = "prometheus"\naddress = "{prometheus.url}"\n[refresh]\ninterval = "5s"\n'
        with Service(tmp_path / "service", config=config + 'max_staleness = "1h"\n') as service:
            service.wait_for_status(200, "/readyz")
            light.open(f"{service.url}/#/node/node-1", shows="[scheduler.default]")
            light.wait_for("container_cpu_usage_seconds_total")
            assert 2 == light.page.locator(".resource").count()
            assert 1 == light.page.locator("main").inner_text().count("[scheduler.default]")
            assert "No scheduling plug-ins" not in light.page.locator("main").inner_text()
            assert [] == [
                each for each in service.get("/api/v1/findings").json()["findings"] if each["metric"] == "pods"
            ]
            assert [] == light.unfit()
            assert [] == light.wrong


def test_a_node_without_pods_is_marked(light: Tab) -> None:
    """Without a request that would be refused, while pods of other nodes are known."""
    service = FakeService(pods=publish_pods(small_pods()))
    with Live(service) as live:
        light.open(f"http://127.0.0.1:{live.port}/#/node/node-3", shows="No pods with usage run on this node")
        light.open(f"http://127.0.0.1:{live.port}/#/node/node-2", shows="a/web-1")
        assert "Pressure" not in light.page.locator("main").inner_text()
        assert [] == light.wrong


def test_the_pods_of_a_node_have_their_pressure(light: Tab) -> None:
    """For each resource for which the source has it."""
    service = FakeService(pods=publish_pods(small_pods(), pressure={("a", "web-1"): (12.4, 0.0, float("nan"))}))
    with Live(service) as live:
        light.open(f"http://127.0.0.1:{live.port}/#/node/node-2", shows="CPU 12 %, memory 0 %")
        assert 1 == light.page.locator("main").inner_text().count("CPU 12 %")
        assert [] == light.wrong


def test_the_view_of_agents_describes_how_to_enable_it(light: Tab) -> None:
    with Live() as live:
        light.open(f"http://127.0.0.1:{live.port}/#/agents", shows="The plans and actions of the node agents")
        assert "[agents]" in light.page.get_by_label("Settings").inner_text()


def test_a_definition_stays_open_while_the_page_is_refreshed(light: Tab) -> None:
    """Unchanged data do not replace the term."""
    with Live(FakeService(published=publish(snapshot_of({"node-1": {"CPU": [26.0] * 60}})))) as live:
        light.open(f"http://127.0.0.1:{live.port}/#/node/node-1", shows="used")
        light.page.get_by_role("button", name="used", exact=True).first.focus()
        with light.page.expect_response("**/api/v1/columns**"):
            light.ask_now()
        light.page.wait_for_load_state("networkidle")
        assert "measured load" in light.page.locator(DEFINITION).inner_text()


def loaded(percent: float) -> Published:
    """Two nodes, with a separate tag for each load."""
    fleet = {name: {"CPU": [percent] * 60} for name in ("node-1", "node-2")}
    return publish(snapshot_of(fleet), tag=f"t{percent:.0f}")


@pytest.mark.parametrize("pointer", [False, True], ids=["focused", "hovered"])
def test_a_definition_stays_open_over_new_data(light: Tab, pointer: bool) -> None:
    """With the new load beside it; the page of the next node has no open definition."""
    service = FakeService(published=loaded(26.0))
    with Live(service) as live:
        light.open(f"http://127.0.0.1:{live.port}/#/node/node-1", shows="26.0 %")
        used = light.page.get_by_role("button", name="used", exact=True).first
        if pointer:
            used.hover()
            light.page.locator(DEFINITION).hover()
        else:
            used.focus()
        for percent in (37.0, 88.0, 89.0):  # the heading has a term from 85 % on
            service.published = loaded(percent)
            light.ask_now()
            light.wait_for(f"{percent} %")
            assert "measured load" in light.page.locator(DEFINITION).inner_text()
            assert pointer or "used" == light.page.evaluate("document.activeElement.textContent")
        light.page.get_by_role("link", name="next").click()
        light.wait_for("2 of 2 by CPU load")
        light.wait_for("hot: CPU at 89.0 %")
        assert 0 == light.page.locator(DEFINITION).count()
        service.published = loaded(90.0)
        light.ask_now()
        light.wait_for("hot: CPU at 90.0 %")
        assert [] == light.wrong


def test_a_closed_definition_stays_closed_over_new_data(light: Tab) -> None:
    service = FakeService(published=loaded(88.0))
    with Live(service) as live:
        light.open(f"http://127.0.0.1:{live.port}/#/node/node-1", shows="hot: CPU at 88.0 %")
        light.page.get_by_role("button", name="hot: CPU").focus()
        light.press("Escape")
        service.published = loaded(89.0)
        light.ask_now()
        light.wait_for("hot: CPU at 89.0 %")
        assert light.page.evaluate("document.activeElement.textContent").startswith("hot: CPU at 89.0 %")
        assert 0 == light.page.locator(DEFINITION).count()


def test_the_states_in_the_legend_of_the_fleet_have_definitions(light: Tab) -> None:
    fleet = publish(
        snapshot_of({"node-1": {"CPU": [26.0] * 60}, "node-2": {"CPU": [26.0] * 60}}, ages={"node-2": 120.0})
    )
    with Live(FakeService(published=fleet)) as live:
        light.open(f"http://127.0.0.1:{live.port}/#/fleet", shows="Distribution of CPU")
        light.page.locator(".legend").get_by_role("button", name="stale").click()
        light.ask_now()
        light.page.wait_for_load_state("networkidle")
        assert "three sample intervals" in light.page.locator(DEFINITION).inner_text()
        assert [] == light.unfit()
