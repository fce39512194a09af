"""The fleet in a real browser: problems first, groups, trends, the table over all nodes, a phone, a single node."""

import csv
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.fakes.service import FakeService, Live
from tests.fakes.snapshots import END, publish, small_fleet, snapshot_of, steady
from tests.real.browser import Tab, chromium, tab
from tests.waiting import wait_for
from watcher.core.problems.document import FleetProblem, Severity
from watcher.core.publishing.documents import SilentBody
from watcher.core.publishing.wire import FindingsDocument, QuerySource
from watcher.core.windows.silent_nodes import SilentDocument, SilentNode
from watcher.model import Operator
from watcher.store.codec import Grid

pytestmark = pytest.mark.real

ZONE = "topology.kubernetes.io/zone"
PHONE = 390


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One for all tests."""
    with chromium() as running:
        yield running


@pytest.fixture
def light(browser: Any) -> Iterator[Tab]:
    with tab(browser) as opened:
        yield opened


def url(live: Live) -> str:
    return f"http://127.0.0.1:{live.port}/"


def zoned() -> FakeService:
    """Six nodes in two zones, one of which has no more samples."""
    rises = [*steady(20, slots=40), *steady(50, slots=20)]
    fleet = {f"web-{number}": {"CPU": steady(10 * number), "Memory": steady(50)} for number in range(1, 5)}
    fleet["ci-1"] = {"CPU": rises, "Memory": steady(30)}
    published = publish(snapshot_of(fleet))
    published.silent = SilentBody.of(SilentDocument(listed=True, nodes=[SilentNode("ci-2", END - 420.0)]))
    labels = {name: {ZONE: "a" if int(name[-1]) % 2 else "b", "pool": name[:-2]} for name in [*fleet, "ci-2"]}
    queried = QuerySource(
        "instance_device:node_disk_io_time_seconds:rate5m", "Storage", "x" * 90, "ratio", "node", 0.0, "found"
    )
    found = FindingsDocument(int(END), "enforce", [], [queried])
    return FakeService(published=published, labels=labels, found=found)


def many(nodes: int) -> FakeService:
    loads = np.random.default_rng(7).uniform(1, 80, nodes)
    fleet = {f"node-{number:04d}": {"CPU": [float(load)] * 60} for number, load in enumerate(loads)}
    return FakeService(published=publish(snapshot_of(fleet)))


def active(opened: Tab) -> str:
    """The accessible description of the active cell."""
    cells = opened.page.get_by_role("listbox", name="Nodes as cells")
    return str(cells.get_by_role("option").inner_text())


def test_problems_are_shown_first(light: Tab) -> None:
    """A sentence for each problem with a link to the node, a remedy and a command; the state is that of the worst
    one."""
    service = zoned()
    with Live(service) as live:
        light.open(f"{url(live)}#/fleet", shows="ci-2: silent for 7 min")
        panel = light.page.get_by_role("region", name="Problems")
        assert ["critical"] == panel.locator(".badge").all_inner_texts()
        assert "Check that the node runs" in panel.inner_text()
        assert "kubectl describe node ci-2" in panel.inner_text()
        state = light.page.locator("#state")
        assert ("1 critical", "bad") == (state.inner_text(), state.get_attribute("class"))
        above = light.page.locator("main").inner_text()
        assert above.index("ci-2: silent") < above.index("Colour by")
        assert [] == light.unfit()
        panel.get_by_role("link", name="ci-2").click()
        light.page.wait_for_url("**/#/node/ci-2")
        state.get_by_role("link").click()
        light.wait_for("Problem and what to do")
        service.published = publish(snapshot_of(small_fleet()), tag="t2")
        light.ask_now()
        light.page.locator("#state.good").wait_for()
        light.open(f"{url(live)}#/fleet", shows="Nothing needs an action.")
        assert [] == light.errors()


def test_the_load_of_the_fleet_over_time(browser: Any) -> None:
    """A line for CPU and one for memory, with the values at the pointer; without data, a description."""
    times = np.arange(END // 300 * 300 - 7200, END, 300, dtype=np.int64)
    loads = np.stack([np.linspace(20, 60, len(times)), np.full(len(times), 45.0)], axis=1)
    columns = tuple((f"instance:node_{name}:ratio", Operator.AVG) for name in ("cpu", "memory_utilisation"))
    day = Grid(times, columns, ("web-1",), loads[:, :, np.newaxis].astype(np.float32))
    service = zoned()
    with Live(service) as live, tab(browser, zone="UTC") as opened:
        opened.open(f"{url(live)}#/fleet", shows="is shown here: no windows are stored yet")
        service.grids = [day]
        service.clock += 20
        opened.ask_now()
        opened.wait_for("Load of the fleet, last 2 h")
        card = opened.page.locator(".over-time")
        assert "CPU 60.0 %" in card.inner_text()
        assert "all nodes. Their capacity is unknown" in card.inner_text()
        picture = card.get_by_role("img")
        spoken = picture.get_attribute("aria-label") or ""
        assert spoken.endswith(
            "CPU between 20.0 % and 60.0 %, now 60.0 %; Memory between 45.0 % and 45.0 %, now 45.0 %"
        )
        picture.hover(position={"x": 50, "y": 40})
        opened.wait_for("20.0 %")
        assert [] == opened.unfit()
        assert [] == opened.wrong


def test_a_profile_that_overloads_nodes_is_a_problem(light: Tab) -> None:
    """With a link to the comparison of profiles."""
    text = "Profile a: TargetLoadPacking overloads more nodes; pods request 0.41 times their usage"
    profile = FleetProblem(
        Severity.WARNING, "profile", "a profile overloads nodes", text, "Use b.", "load-watcher doctor"
    )
    with Live(FakeService(of_modules=[profile])) as live:
        light.open(f"{url(live)}#/fleet", shows="Use b.")
        assert "1 warning" == light.page.locator("#state").inner_text()
        light.page.get_by_role("region", name="Problems").get_by_role("link", name=text).click()
        light.page.wait_for_url("**/#/shadow")
        light.wait_for("This view compares the nodes")
        assert [] == light.wrong


def test_many_problems_are_summarized_in_a_few_sentences(light: Tab) -> None:
    """At most five at the top, and all in the view of findings, which can be filtered."""
    fleet = {f"hot-{number:02d}": {"CPU": steady(86 + number / 10)} for number in range(40)}
    with Live(FakeService(published=publish(snapshot_of(fleet)))) as live:
        light.open(f"{url(live)}#/fleet", shows="hot-30: CPU at 89 %")
        assert 5 == light.page.locator(".problems li").count()
        light.page.get_by_role("link", name="6 more problems").click()
        light.wait_for("30 more nodes (hot-00, hot-01, hot-02, …) are between 85 % and 95 %")
        assert 11 == len(light.cells("Findings"))
        light.page.get_by_label("Node contains").fill("hot-35")
        assert 1 == len(light.cells("Findings"))
        light.page.get_by_label("Severity").select_option("critical")
        assert [["no findings"]] == light.cells("Findings")
        assert [] == light.errors()


def test_findings_without_a_start_state_why(browser: Any) -> None:
    """On a phone, the full stop stays with the last term."""
    published = publish(snapshot_of({"a": {"CPU": steady(20)}}, ages={"a": 120.0}, quarantined={"q"}))
    published.silent = SilentBody.of(SilentDocument(listed=True, nodes=[SilentNode("u")]))
    with Live(FakeService(published=published)) as live, tab(browser, width=390) as phone:
        phone.open(f"{url(live)}#/findings", shows="q: quarantined")
        since = {row[1].partition(":")[0]: row[2] for row in phone.cells("Findings")}
        assert {"q": "– start not recorded", "u": "– no sample yet"} == {node: since[node] for node in "qu"}
        assert since["a"].endswith("ago")
        lines = """(whole) => {
            const walker = document.createTreeWalker(whole, NodeFilter.SHOW_TEXT), found = [];
            for (let bottom = 0; walker.nextNode();) {
                const range = document.createRange(), text = walker.currentNode;
                const button = text.parentElement.closest("button.term");
                if (button) bottom = button.getBoundingClientRect().bottom;
                if (!/^[.,]\\s*$/.test(text.data)) continue;
                range.setStart(text, 0);
                range.setEnd(text, 1);
                found.push(range.getBoundingClientRect().top < bottom);
            }
            return found; }"""
        for width in range(320, 480, 8):
            phone.page.set_viewport_size({"width": width, "height": 800})
            assert {True} == set(phone.page.locator("p.fine").filter(has_text="Terms:").evaluate(lines))
        assert [] == phone.wrong


def test_nodes_are_grouped_by_their_labels(light: Tab) -> None:
    """In cells that the arrow keys traverse group by group, and as a column of the table."""
    with Live(zoned()) as live:
        light.open(f"{url(live)}#/fleet?sort=name", shows="1 silent")
        light.page.get_by_label("Group by").select_option(label="zone")
        light.page.get_by_role("listbox", name="Nodes as cells").focus()
        found = []
        for _ in range(6):
            found.append(tuple(active(light).split(", ")[:2]))
            light.press("ArrowRight")
        assert [("ci-1", "a"), ("web-1", "a"), ("web-3", "a"), ("ci-2", "b"), ("web-2", "b"), ("web-4", "b")] == found
        light.page.get_by_text("table", exact=True).click()
        light.page.get_by_role("button", name="zone: sort").click()
        assert ["a", "a", "a", "b", "b", "b"] == [row[1] for row in light.cells("Nodes")]
        options = light.page.get_by_label("Group by").locator("option").all_inner_texts()
        assert ["no groups", "zone", "pool", "start of the name"] == options
        assert [] == light.unfit()
        assert [] == light.wrong


def test_without_labels_the_page_names_what_is_missing(light: Tab) -> None:
    """Names can be grouped by their prefixes."""
    with Live(many(40)) as live:
        light.open(f"{url(live)}#/fleet", shows="labels come from the Node objects of the Kubernetes API")
        assert [] == light.unfit()
        assert [] == light.wrong


def test_a_trend_compares_the_short_window_with_the_long_one(light: Tab) -> None:
    """A risen load is marked, in the cell and in the table; others are not."""
    with Live(zoned()) as live:
        light.open(f"{url(live)}#/fleet?sort=rising", shows="trend, 5m less 15m")
        light.page.get_by_role("listbox", name="Nodes as cells").focus()
        assert active(light).startswith("ci-1, ")
        assert "CPU trend ▲ +20.0 points" in active(light)
        light.page.get_by_text("table", exact=True).click()
        trends = {row[0]: row[3] for row in light.cells("Nodes")}
        assert ("▲ +20.0", "0.0", "–") == (trends["ci-1"], trends["web-1"], trends["ci-2"])
        assert [] == light.wrong


def test_the_table_has_all_nodes(light: Tab) -> None:
    """Sorted by its headers, in pages; the file has all rows, and columns with one value for all nodes are omitted."""
    with Live(many(5000)) as live:
        light.open(f"{url(live)}#/fleet?as=table", shows="1–100 of 5,000 nodes")
        names = [row[0] for row in light.cells("Nodes")]
        head = light.page.get_by_role("columnheader")
        assert "descending" == head.filter(has_text="CPU").get_attribute("aria-sort")
        assert ["Node", "CPU", "± deviation", "Trend", "Memory", "± deviation", "Trend"] == [
            each.strip(" ▼▲") for each in head.all_inner_texts()
        ]
        light.page.get_by_role("button", name="Node: sort").click()
        assert ["node-0000", "node-0001"] == [row[0] for row in light.cells("Nodes")[:2]]
        assert "ascending" == head.filter(has_text="Node").get_attribute("aria-sort")
        light.page.get_by_role("button", name="Node: sort").click()
        assert "node-4999" == light.cells("Nodes")[0][0] != names[0]
        light.page.get_by_role("button", name="next page").click()
        light.wait_for("101–200 of 5,000 nodes")
        assert "node-4899" == light.cells("Nodes")[0][0]
        with light.page.expect_download() as saved:
            light.page.get_by_role("button", name="Download CSV").click()
        with saved.value.path().open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert {f"node-{number:04d}" for number in range(5000)} == {row["name"] for row in rows}
        assert all(1 <= float(row["cpu"]) <= 80 and row["memory"] == "" for row in rows)
        assert [] == light.unfit()
        assert [] == light.wrong


def test_a_name_is_copied_by_a_button(browser: Any) -> None:
    with Live() as live, tab(browser) as opened:
        opened.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        opened.open(f"{url(live)}#/fleet?as=table", shows="1–3 of 3 nodes")
        opened.page.get_by_role("button", name="copy node-2").click()
        opened.page.locator(".copy.done").wait_for()
        assert "node-2" == opened.page.evaluate("navigator.clipboard.readText()")


def test_candidates_are_highlighted(light: Tab) -> None:
    """By the address; unknown names are counted, and the highlighting can be removed."""
    with Live() as live:
        light.open(f"{url(live)}#/fleet?highlight=node-1,node-3,gone", shows="2 nodes highlighted, 1 not found")
        light.page.get_by_text("table", exact=True).click()
        assert ["node-1", "node-3"] == sorted(row[0] for row in light.cells("Nodes"))
        light.page.get_by_role("button", name="clear").click()
        assert 3 == len(light.cells("Nodes"))
        assert "highlight" not in light.page.url
        assert [] == light.wrong


def test_cards_link_to_the_nodes(light: Tab) -> None:
    """The states to their nodes, the highest load to its page."""
    with Live(zoned()) as live:
        light.open(f"{url(live)}#/fleet", shows="1 silent")
        light.page.get_by_role("link", name="1 silent").click()
        wait_for(lambda: ["ci-2"] == [row[0] for row in light.cells("Nodes")], what="the silent node alone")
        light.page.locator(".numbers").get_by_role("link", name="web-4").click()
        light.page.wait_for_url("**/#/node/web-4")


def test_the_only_node_is_opened_at_once(light: Tab) -> None:
    """If the address names no view; the fleet view still exists."""
    with Live(FakeService(published=publish(snapshot_of({"laptop": {"CPU": steady(20)}})))) as live:
        light.open(url(live), shows="Pods that make the load")
        assert light.page.url.endswith("#/node/laptop")
        light.page.get_by_role("link", name="Fleet", exact=True).click()
        light.wait_for("Distribution of CPU")
        light.open(f"{url(live)}#/fleet", shows="Distribution of CPU")
        assert [] == light.errors()


SMALL = """() => [...document.querySelectorAll("main a, main button, nav a")].filter((each) => each.checkVisibility())
  .map((each) => [each.textContent, each.getBoundingClientRect()]).filter(([, box]) => box.height < 24)
  .map(([text, box]) => `${text}: ${box.width} x ${box.height}`)"""
CUT = """() => [...document.querySelectorAll(".scroll, nav")].filter((each) => each.scrollWidth > each.clientWidth + 1)
  .map((each) => each.getAttribute("aria-label"))"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_fleet_on_a_phone(browser: Any, dark: bool) -> None:
    """Nodes before numbers, names in the cells, the views in one line, no truncated column, targets of 24 pixels."""
    with Live(zoned()) as live, tab(browser, dark=dark, width=PHONE) as phone:
        for view, shows in {"fleet": "1 silent", "fleet?as=table": "Download CSV", "findings": "Check that"}.items():
            phone.open(f"{url(live)}#/{view}", shows=shows)
            assert PHONE == phone.page.evaluate("document.documentElement.scrollWidth"), view
            assert [] == phone.page.evaluate(SMALL), view
            assert [] == phone.page.evaluate(CUT), view
            assert [] == phone.unfit(), view
        assert 1 == len({each.bounding_box()["y"] for each in phone.page.locator("#views a:visible").all()})
        phone.open(f"{url(live)}#/fleet", shows="1 silent")
        cells, cards = phone.page.locator(".picture"), phone.page.locator(".numbers")
        assert cells.bounding_box()["y"] < cards.bounding_box()["y"]
        assert phone.page.get_by_label("Group by").is_hidden()
        phone.page.get_by_role("button", name="Colour, window").click()
        assert phone.page.get_by_label("Group by").is_visible()
        assert [] == phone.wrong


LUMINANCES = """async () => {
  const { heat } = await import("./web/common/theme.js");
  const linear = (each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4);
  const luminance = ([red, green, blue]) => 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
  const channels = (fill) => fill.match(/\\d+/g).map((each) => Number(each) / 255);
  return [0, 35, 60, 80, 100].map((load) => luminance(channels(heat(load).fill)));
}"""


def test_in_the_dark_scheme_more_load_has_more_contrast(browser: Any) -> None:
    """The hottest node has the highest contrast to the page."""
    with Live() as live, tab(browser, dark=True) as opened:
        opened.open(url(live), shows="all fresh")
        found = opened.page.evaluate(LUMINANCES)
        assert sorted(found) == found
        assert len(set(found)) == len(found)
