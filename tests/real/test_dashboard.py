"""The dashboard in a real browser: it shows the data of the API, is accessible, and shows failures."""

import re
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from load_watcher.scoring.score_texts import number
from scorers.profiles.profiles import read_profiles
from tests.agent.qrm.test_main import RESERVED, Qrm, the_seeds_machine
from tests.agent.service.test_process import POD, AgentProcess, Machine, agent
from tests.fakes.kube import PODS, FakeKube
from tests.fakes.kubelet import FakeKubelet
from tests.fakes.service import FakeService, Live, Protection, stored
from tests.fakes.snapshots import END, publish, small_fleet, snapshot_of
from tests.lab.demo.test_demo import Demo, node_with
from tests.real.browser import Tab, chromium, tab
from tests.real.fleet import make_fleet, recording_rule_series
from tests.real.parts import Prometheus
from tests.scorers.decisions.test_shadow import Served as Shadowed
from tests.service import Service
from tests.waiting import wait_for
from tests.watcher.agent_clients.test_discovery import listed, put, selected
from tests.watcher.agent_clients.test_pages import a_dashboard, an_agent, answering, route, showing
from watcher.agent_clients.pages import EndpointKind
from watcher.core.publishing.documents import SilentBody
from watcher.core.publishing.wire import FindingEntry
from watcher.core.windows.silent_nodes import SilentDocument, SilentNode

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One for all tests."""
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """A ready simulated cluster with scheduling plug-ins."""
    with Demo(tmp_path_factory.mktemp("demo")) as running:
        running.wait_for_status(200, "/readyz")
        yield running


@pytest.fixture
def light(browser: Any) -> Iterator[Tab]:
    with tab(browser) as opened:
        yield opened


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} %"


def url(live: Live) -> str:
    return f"http://127.0.0.1:{live.port}/"


# --- with the simulated cluster --------------------------------------------------------------------------------------


def test_the_fleet_has_the_values_of_the_api(demo: Demo, light: Tab) -> None:
    """Each node with its load, in a table with the values of the cells; the page states that they are simulated."""
    light.open(f"{demo.url}/#/fleet?as=table&sort=name", shows="not a real one")

    def agree() -> bool:
        light.ask_now()
        before = demo.get("/api/v1/columns?type=CPU&type=Memory").body
        rows = {row[0]: [*row[1:3], *row[4:6]] for row in light.cells("Nodes")}  # without trends and states
        document = demo.get("/api/v1/columns?type=CPU&type=Memory").json()
        if before != demo.get("/api/v1/columns?type=CPU&type=Memory").body or not rows:
            return False
        expected: dict[str, list[str]] = {}
        for row, node in enumerate(document["nodes"]):
            values = [
                next((each["values"][row] for each in document["columns"] if each["type"] == kind
                      and each["operator"] == operator and each["values"][row] is not None), None)
                for kind in ("CPU", "Memory") for operator in ("AVG", "STD")
            ]  # fmt: skip
            expected[node] = [percent(value) for value in values]
        return all(rows.get(node, [])[:4] == values for node, values in expected.items())

    wait_for(agree, what="the table to say what the API says")
    assert not light.wrong


VIEWS = {
    "fleet": "Distribution of CPU",
    "fleet?as=table&metric=memory": "Distribution of Memory",
    "risk": "is configured in the profile default",
    "placements": "placements shown",
    "placements/missing/pod": "load-watcher does not know a node of this pod.",
    "score": "Ranking of 24 nodes by default",
    "score?profile=your own": "by the pasted profile",
    "shadow": "Placement by each profile",
    "findings": "Queries to the source",
    "node/general-a-01": "allocatable",
    "node/missing": "No node missing in the fleet",
    "terms": "safeVarianceMargin",
}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_each_view_is_accessible(demo: Demo, browser: Any, dark: bool) -> None:
    """By axe's rules, in both colour schemes, without an error."""
    wait_for(lambda: demo.get("/scheduler/shadow").json()["bindings"], what="a binding that shadow mode saw")
    with tab(browser, dark=dark) as opened:
        for view, shows in VIEWS.items():
            opened.open(f"{demo.url}/#/{view}", shows=shows)
            assert [] == opened.unfit(), view
            assert [] == opened.wrong, view


YAML = "application/yaml"
FOCUSED = "(({ activeElement: it }) => it.getAttribute('aria-label') ?? it.id + it.textContent)(document)"


def test_all_controls_are_reached_by_keyboard(demo: Demo, light: Tab) -> None:
    """Tab moves to the content, the views, the tools and the cells, each with a name."""
    light.open(f"{demo.url}/#/fleet", shows="Distribution of CPU")
    reached = []
    for _ in range(40):
        light.press("Tab")
        reached.append(light.page.evaluate(FOCUSED))
        if reached[-1] == "Nodes as cells":
            break
    assert "skip" in reached[0]
    assert any("Fleet" in each for each in reached)
    assert "Nodes as cells" in reached


def test_the_risk_view_has_the_mean_the_deviation_and_the_curve_of_the_profile(demo: Demo, light: Tab) -> None:
    """The node nearest to the line with its sum, and the target of the profile."""
    hot = node_with(demo, "is hot: ")
    light.open(f"{demo.url}/#/risk", shows="is configured in the profile default")
    nodes = light.page.get_by_role("listbox", name="Nodes by mean and deviation")

    def agree() -> bool:
        light.ask_now()
        found = demo.get(f"/watcher/{hot}?type=CPU").json()["data"]["NodeMetricsMap"][hot]["metrics"]
        mean, deviation = (next(each["value"] for each in found if each["operator"] == name) for name in ("AVG", "STD"))
        nodes.focus()
        light.press("Home")
        return nodes.get_by_role("option").inner_text().startswith(hot) and (
            f"µ + 1 × σ is {percent(mean + deviation)}" in nodes.get_by_role("option").inner_text()
        )

    wait_for(agree, what=f"the mean and deviation of {hot}")
    assert "50" == light.page.get_by_label("target utilization").input_value()


def test_a_pasted_pod_is_ranked_and_explained(demo: Demo, light: Tab) -> None:
    """As by the API; a selected node is explained, and the address names it."""
    light.open(f"{demo.url}/#/score", shows="Ranking of 24 nodes by default")
    manifest = light.page.get_by_label("Manifest").input_value()

    def ranked() -> list[tuple[str, str]]:
        answer = demo.session.post(
            f"{demo.url}/scheduler/default/score", data=manifest.encode(), headers={"Content-Type": YAML}, timeout=60
        ).json()
        return [(node["name"], f"{node['score']:.1f}" if node["passes"] else "rejected") for node in answer["nodes"]]

    def agree() -> bool:
        before = ranked()
        light.page.get_by_role("button", name="Rank nodes").click()
        light.page.wait_for_load_state("networkidle")
        shown = [(row[0], row[2]) for row in light.cells("Ranking")]
        return shown == before == ranked()

    wait_for(agree, what="the ranking to be that of the API")
    last = light.cells("Ranking")[-1][0]
    light.page.get_by_role("button", name=last).press("Enter")
    light.wait_for(f"Why {last}?")
    assert f"node={last}" in light.page.url
    assert light.page.get_by_text("usageThresholds").first.is_visible()
    assert [] == light.wrong


def test_nodes_with_equal_scores_share_a_rank(demo: Demo, light: Tab) -> None:
    """As in the stored ranking of a pod; here two scores of the real response are made equal to the best."""

    def with_ties(route: Any) -> None:
        response = route.fetch()
        body = response.json()
        for node in body["nodes"]:
            node["passes"] = True
        for node in body["nodes"][:3]:
            node["score"] = 99.0
        route.fulfill(response=response, json=body)

    light.page.route("**/scheduler/default/score", with_ties)
    light.open(f"{demo.url}/#/score", shows="Ranking of 24 nodes by default")
    assert ["1", "1", "1", "4"] == [row[1] for row in light.cells("Ranking")[:4]]
    assert [] == light.wrong


@pytest.mark.parametrize("published", [True, False])
def test_pages_of_the_documentation_are_links_once_it_is_published(demo: Demo, light: Tab, published: bool) -> None:
    """Until then they are paths in the repository."""
    url = "https://docs.example/" if published else ""

    def with_url(route: Any) -> None:
        response = route.fetch()
        empty = 'name="documentation" content="'
        route.fulfill(response=response, body=response.text().replace(f'{empty}"', f'{empty}{url}"'))

    def named(text: str) -> list[str]:
        script = "async (text) => (await import('./web/terms/definitions.js')).linked(text).map((it) => it.href ?? it)"
        found: list[str] = light.page.evaluate(script, text)
        return found

    light.page.route(f"{demo.url}/", with_url)
    light.open(f"{demo.url}/#/terms/hot", shows="HighLoadFilter")
    links = light.page.locator(".terms a").evaluate_all("(all) => all.map((each) => each.href)")
    assert ("https://docs.example/reference/review.md#partial-outages" in links) == published
    assert light.page.get_by_text("are in the repository").count() == (0 if published else 1)
    expected = ["See ", f"{url}tasks/shadow.md#a", "."] if published else ["See docs/tasks/shadow.md#a."]
    assert expected == named("See docs/tasks/shadow.md#a.")
    assert [] == light.wrong


def test_an_invalid_pod_or_profile_is_an_error_beside_the_text(demo: Demo, light: Tab) -> None:
    """With the message of the service."""
    light.open(f"{demo.url}/#/score", shows="Ranking of")
    light.page.get_by_label("Manifest").fill("kind: ConfigMap")
    light.page.get_by_role("button", name="Rank nodes").click()
    light.wait_for("the body is not a pod manifest: no pod found, only: ConfigMap")
    light.page.get_by_label("Manifest").fill("{")
    light.page.get_by_role("button", name="Rank nodes").click()
    light.wait_for("invalid YAML")
    light.open(f"{demo.url}/#/score?profile=nope", shows="no such profile: 'nope'")
    light.wait_for("profiles are: default")
    assert [] == light.errors()


def test_a_node_has_its_history_its_pods_and_its_findings(demo: Demo, light: Tab) -> None:
    """Windows of three lengths from the store, the usage of pods, and the findings of this node."""
    wrong = node_with(demo, "sometimes reports")
    demo.wait_for_status(200, f"/api/v1/history?host={wrong}")
    light.open(f"{demo.url}/#/node/{wrong}", shows="out of range")
    expected = {f"{space}/{pod}" for space, pod in pods_of(demo, wrong)}
    assert len(light.cells("Pods of this node")) > 0
    wait_for(lambda: {row[0] for row in light.cells("Pods of this node")} & expected, what=f"the pods of {wrong}")
    said = re.compile(r"newest, [\d:]{8}\s*5m \d+\.\d %\s*10m \d+\.\d %\s*15m \d+\.\d %")

    def drawn() -> bool:
        light.ask_now()
        return said.match(history_of(light, "CPU, mean")) is not None  # the sentence about the forecast follows

    wait_for(drawn, what="a minute of it to be stored, and drawn")
    assert 4 == light.page.locator(".uplot canvas").count()
    assert light.page.get_by_role("heading", name="Scores").is_visible()
    assert [] == light.wrong


def pods_of(demo: Demo, node: str) -> list[tuple[str, str]]:
    body = demo.get(f"/api/v1/pods?host={node}").json()
    return list(zip(body["namespace"], body["pod"], strict=True))


def history_of(opened: Tab, title: str) -> str:
    """The accessible description of a chart."""
    chart = opened.page.locator(".chart").filter(has=opened.page.get_by_role("heading", name=title))
    return str(chart.locator("p").text_content())


def test_findings_can_be_filtered(demo: Demo, light: Tab) -> None:
    """By kind and by node, also in the address."""
    light.open(f"{demo.url}/#/findings?kind=out_of_range", shows="Queries to the source")
    rows = light.cells("Findings")
    assert rows
    wrong = f"{node_with(demo, 'sometimes reports')}: impossible values: 6553.5 % is outside 0 to 100 %"
    assert [("warning", wrong)] == [(row[0], row[1][: len(wrong)]) for row in rows]
    light.page.get_by_label("Node contains").fill("nobody")
    assert [["no findings"]] == light.cells("Findings")


# --- agents and QoS Resource Managers --------------------------------------------------------------------------------


ROLES = [("storage-service", "20"), ("reranker", "10"), ("retriever", "10")]


@dataclass(frozen=True)
class Shown:
    """A service that shows a real agent and a real QoS Resource Manager."""

    service: Service
    agent: AgentProcess
    qrm: Qrm


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    """An agent that would throttle a pod, and a manager with the pods of the proposal's second example, both in
    dry-run; the third pod finds no CPUs, and is not admitted."""
    directory = tmp_path_factory.mktemp("shown")
    machine = Machine(directory)
    with (
        machine.running(),
        FakeKubelet([POD]) as kubelet,
        agent(machine, kubelet) as an_agent,
        the_seeds_machine() as world,
    ):
        for number, (role, cpu) in enumerate(ROLES, start=1):
            world.pod(f"default/pod{number}", f"{number}" * 8, role, cpu=cpu, memory="20Gi")
        with world.run(RESERVED, mode="dry-run", env={"LOAD_WATCHER_QRM_POLICY": "best-effort"}) as qrm:
            named = f'[agents]\nurls = ["{an_agent.url}"]\n[qrms]\nurls = ["{qrm.url}"]\n'
            with Service(directory / "service", config=named) as service:
                service.wait_for_status(200)
                yield Shown(service, an_agent, qrm)


def test_the_plan_and_the_audit_of_an_agent_are_shown(shown: Shown, light: Tab) -> None:
    """The sentences of the last cycle and its rules; no action was carried out."""
    wait_for(lambda: "TRIGGERED" in shown.agent.get("/explain").text.upper(), what="a rule to hold")
    light.open(f"{shown.service.url}/#/agents/{shown.agent.url.removeprefix('http://')}", shows="Plan summary")
    light.wait_for("preview")
    node = shown.agent.get("/explain").json()["node"]
    assert f"#/node/{node}" == light.page.get_by_role("link", name=node, exact=True).get_attribute("href")
    rules = light.cells("Rules")
    assert [["cpu.high", "cpu_total_usage", "1500"]] == [[row[0], row[2], row[4]] for row in rules]
    assert [["no actions"]] == light.cells("Audit")
    assert [] == light.unfit()
    assert [] == light.wrong


def test_the_tab_of_the_agents_is_visible_on_a_phone(shown: Shown, browser: Any) -> None:
    """The tab appears after the first response, when the view is open already."""
    with tab(browser, width=390) as phone:
        phone.open(f"{shown.service.url}/#/agents", shows="Plan summary")
        link = phone.page.locator("#views [aria-current=page]")
        wait_for(link.is_visible, what="the tab")
        box = link.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
        assert [] == phone.errors()


def test_the_outcome_of_each_step_is_shown(shown: Shown, light: Tab) -> None:
    """A planned eviction that was refused, with the reason; and a quota that was unlimited."""
    plan = shown.agent.get("/explain").json()
    plan["results"] = [
        {
            "step": {"kind": "evict", "pod": "shop/web"},
            "fate": "not allowed",
            "text": "2 a minute",
            "deed": 0,
        },
        {"step": {"kind": "scheduling"}, "fate": "done", "text": "", "deed": 3},
    ]
    deed = {"time": END, "kind": "restore", "pod": "shop/db", "reason": "", "outcome": "done", "message": ""}
    deeds = [{**deed, "before": {"quota": 1000, "period": 100000}, "after": {"quota": None, "period": 100000}}]
    with (
        Live(routes=[route("/explain", answering(plan)), route("/audit", answering({"deeds": deeds}))]) as of_plan,
        a_dashboard(of_plan.port) as live,
    ):
        light.open(f"{url(live)}#/agents", shows="Step results")
        reported = [["evict", "shop/web", "not allowed", "2 a minute"], ["scheduling", "–", "done", "–"]]
        assert reported == light.cells("Step results")
        assert ["quota 1000, period 100000", "quota unlimited, period 100000"] == light.cells("Audit")[0][4:6]
        assert [] == light.unfit()
        assert [] == light.wrong


def test_the_cpus_of_a_manager_are_shown_by_socket(shown: Shown, browser: Any) -> None:
    """Each CPU of the machine with its container, as the manager reports it; in the dark scheme, too."""
    state = wait_for(
        lambda: [found for found in [shown.qrm.state()] if len(found["pods"]) == len(ROLES)], what="all pods"
    )[0]
    with tab(browser, dark=True) as opened:
        name = shown.qrm.url.removeprefix("http://")
        opened.open(f"{shown.service.url}/#/agents/{name}", shows="NUMA node 0")
        assert 80 == opened.page.locator(".cpus .cpu").count()
        for pod in state["pods"][:2]:
            cpus = pod["containers"]["container0"]["cpu"]["allocation_result"]
            first = cpus.partition("-")[0].partition(",")[0]
            assert opened.page.locator(f".cpus .cpu[title^='CPU {first}: {pod['pod']}']").count() == 1
        rows = opened.cells("Pods of the manager")
        assert {(pod["pod"], pod["role"]) for pod in state["pods"]} == {(row[0], row[1]) for row in rows}
        assert ["admitted", "admitted", state["pods"][2]["reason"]] == [row[5] for row in rows]
        assert [] == opened.unfit()
        assert [] == opened.wrong


def test_views_of_pods_ask_for_a_token_if_one_is_set(shown: Shown, light: Tab, tmp_path: Path) -> None:
    """Also if other reads are not protected."""
    (tmp_path / "token").write_text("secret\n")
    config = f'[server]\ntoken_file = "{tmp_path}/token"\n[agents]\nurls = ["{shown.agent.url}"]\n'
    with Service(tmp_path / "service", config=config) as service:
        light.open(f"{service.url}/#/agents", shows="This service requires a token")
        light.page.get_by_label("This service requires a token").fill("secret")
        light.press("Enter")
        light.wait_for("Plan summary")
        assert light.page.locator("#token-form").is_hidden()
        assert [] == light.errors()


def test_an_unavailable_agent_is_reported(shown: Shown, light: Tab) -> None:
    """In place of its plan, without an error of the page."""
    config = '[agents]\nurls = ["http://127.0.0.1:1"]\n'
    with Service(shown.service.directory / "alone", config=config) as service:
        light.open(f"{service.url}/#/agents", shows="no response from 127.0.0.1")
        light.wait_for("check that it runs")
        assert [] == light.errors()


def test_an_agent_of_another_version_is_reported(light: Tab) -> None:
    """Its plan lacks values that the page needs; the page is not left empty."""
    with an_agent() as of_another, a_dashboard(of_another.port) as live:
        light.open(f"{url(live)}#/agents", shows="unexpected response from")
        light.wait_for("Check its version")
        assert [] == light.errors()


def test_an_address_without_an_agent_is_reported(light: Tab) -> None:
    """With the agent that is on its node now; no other agent is shown in its place."""
    with FakeKube() as kube, an_agent() as one, showing({EndpointKind.AGENT: selected(kube, port=one.port)}) as live:
        put(kube, "old", "127.0.0.1", node="node-1")
        put(kube, "other", "127.0.0.3", node="node-0")
        shown = light.page.get_by_label("Shown")
        light.open(f"{url(live)}#/agents/127.0.0.1%3A{one.port}", shows="unexpected response from")
        assert f"agent on node-1 (127.0.0.1:{one.port})" == shown.locator("option:checked").inner_text()
        kube.delete(PODS, "agents/old")
        put(kube, "new", "127.0.0.2", node="node-1")
        wait_for(lambda: f"127.0.0.2:{one.port}" in listed(live), what="the new one")
        light.ask_now()
        light.wait_for(f"No agent at 127.0.0.1:{one.port}.")
        assert f"127.0.0.1:{one.port} (not found)" == shown.locator("option:checked").inner_text()
        assert [] == light.unfit()
        light.page.get_by_role("link", name="agent on node-1").click()
        light.wait_for("no response from 127.0.0.2")
        assert f"agent on node-1 (127.0.0.2:{one.port})" == shown.locator("option:checked").inner_text()

        light.open(f"{url(live)}#/agents/10.9.9.9%3A1", shows="No agent at 10.9.9.9:1.")
        for name in ("new", "other"):
            kube.delete(PODS, f"agents/{name}")
        wait_for(lambda: not listed(live), what="none to be left")
        light.ask_now()
        light.wait_for("agent, pods with app=agent,tier in (node) in agents: no pods found")
        assert [] == light.unfit()
        assert [] == light.errors()


# --- with a real Prometheus ------------------------------------------------------------------------------------------


def test_the_dashboard_with_a_real_prometheus(tmp_path: Path, light: Tab) -> None:
    """Each node with its values in /watcher; the source is named, and nothing is marked as simulated."""
    fleet = make_fleet([f"node-{number}" for number in range(1, 6)], start=time.time() - 960, end=time.time() - 7)
    with Prometheus(tmp_path / "prometheus") as prometheus:
        prometheus.write(recording_rule_series(fleet))
        config = f'[provider]\nname = "prometheus"\naddress = "{prometheus.url}"\n[refresh]\ninterval = "10m"\n'
        with Service(tmp_path / "service", config=config + 'max_staleness = "1h"\n') as service:
            service.wait_for_status(200, "/readyz")
            light.open(f"{service.url}/#/fleet?as=table&sort=name", shows="Prometheus · newest sample")
            nodes = service.get("/watcher?type=CPU").json()["data"]["NodeMetricsMap"]
            expected = {
                name: [percent(each["value"]) for each in node["metrics"] if each["operator"] in ("AVG", "STD")]
                for name, node in nodes.items()
            }
            assert set(fleet.nodes) == set(expected)
            wait_for(lambda: {row[0]: row[1:3] for row in light.cells("Nodes")} == expected, what="all in the table")
            assert light.page.locator("#simulated").is_hidden()
            light.open(f"{service.url}/#/findings", shows="instance:node_cpu:ratio")
            assert [] == light.wrong


# --- with a fake service ---------------------------------------------------------------------------------------------


def test_stale_and_quarantined_nodes_are_marked(light: Tab) -> None:
    """Quarantined nodes are in no list of the API; a stale node has its age."""
    fleet = publish(snapshot_of(small_fleet(), ages={"node-2": 120.0}, quarantined=["stuck"]))
    with Live(FakeService(published=fleet)) as live:
        light.open(f"{url(live)}#/fleet?as=table&sort=name", shows="1 stale, 1 quarantined")
        wait_for(lambda: len(light.cells("Nodes")) == 4, what="the rows of the table")
        states = [[row[0], row[-1]] for row in light.cells("Nodes")]
        assert [["node-1", ""], ["node-2", "stale for 2 min"], ["node-3", ""]] == states[:3]
        assert [["stuck", "quarantined"]] == states[3:]
        light.page.get_by_label("Show").select_option("stale")
        wait_for(lambda: ["node-2"] == [row[0] for row in light.cells("Nodes")], what="the stale node alone")


def with_silent(*nodes: SilentNode, listed: bool = True) -> FakeService:
    """Three served nodes and these silent ones; `listed`: whether the nodes of the cluster are known."""
    published = publish(snapshot_of(small_fleet()))
    published.silent = SilentBody.of(SilentDocument(listed=listed, nodes=list(nodes)))
    return FakeService(published=published)


def test_silent_nodes_are_listed_and_not_counted_in_statistics(browser: Any) -> None:
    """With the time and values of the last sample; a node that never had samples is marked differently. Filters and
    sorting include them, the mean and the distribution do not; each has a page."""
    silent = with_silent(SilentNode("dead", END - 1200.0, 95.04, 40.0), SilentNode("unscraped"))
    silent.found.findings.append(FindingEntry("stale", "dead", "", "it is left out", "left_out", 1, 1_699_999_900, 1))
    silent.series = [stored({int(END) - 1260: 91.0})]
    since = "silent for 20 min, since Nov 14, 21:53:20"
    with Live(silent) as live, tab(browser, zone="UTC") as opened:
        opened.open(f"{url(live)}#/fleet?sort=age", shows="1 silent, 1 never reported")
        numbers = [each.split("\n") for each in opened.page.locator(".numbers dd").all_inner_texts()]
        assert [["5", "1 silent, 1 never reported"], ["45.3 %"]] == [numbers[0], numbers[2]]
        assert [] == opened.unfit()
        assert opened.page.locator("svg[role=img]").get_attribute("aria-label") == (
            "Nodes by CPU: 1 from 25 to 30 %, 1 from 50 to 55 %, 1 from 60 to 65 %"
        )
        cells = opened.page.get_by_role("listbox", name="Nodes as cells")
        cells.focus()
        assert f"dead, {since}, last CPU 95.0 %, Memory 40.0 %" == cells.get_by_role("option").inner_text()
        opened.press("ArrowRight")
        assert cells.get_by_role("option").inner_text().startswith("unscraped, never reported")
        opened.open(f"{url(live)}#/fleet?as=table&sort=age", shows="1 silent, 1 never reported")
        rows = opened.cells("Nodes")
        assert ["dead", *["–"] * 6, f"{since}; last CPU 95.0 %, Memory 40.0 %"] == rows[0]
        assert ["unscraped", *["–"] * 6, "never reported"] == rows[1]
        for state, names in {
            "silent": ["dead"],
            "unheard": ["unscraped"],
            "fresh": ["node-1", "node-2", "node-3"],
        }.items():
            opened.page.get_by_label("Show").select_option(state)
            assert names == sorted(row[0] for row in opened.cells("Nodes"))
        opened.open(f"{url(live)}#/node/dead", shows="since Nov 14, 21:53:20")
        opened.wait_for("95.0 %")
        opened.wait_for("it is left out")
        wait_for(lambda: "15m 91.0 %" in history_of(opened, "CPU, mean"), what="its history to be drawn")
        assert [] == opened.unfit()
        assert [] == opened.errors()


def test_without_a_list_of_nodes_a_note_explains_silent_nodes(browser: Any) -> None:
    """In a cluster whose nodes change often, most of them were removed. The note is absent without silent nodes."""
    gone, reported = SilentNode("gone", END - 1200.0), "a removed node is shown as silent for one day"
    service = with_silent(gone, listed=False)
    with Live(service) as live, tab(browser, width=390) as opened:
        opened.open(f"{url(live)}#/fleet", shows=reported)
        assert [] == opened.unfit()
        service.published = with_silent(gone).published
        opened.ask_now()
        opened.page.get_by_text(reported).wait_for(state="detached")
        service.published = with_silent(listed=False).published
        opened.ask_now()
        opened.wait_for("all fresh")
        assert 0 == opened.page.get_by_text(reported).count()
        assert [] == opened.errors()


def test_a_node_with_samples_is_not_silent_any_more(light: Tab) -> None:
    """Whichever of the two responses has the change first."""
    service = with_silent(SilentNode("node-1", END - 1200.0), SilentNode("dead", END - 1200.0))
    with Live(service) as live:
        light.open(f"{url(live)}#/fleet?as=table&sort=name", shows="1 silent")
        assert ["dead", "node-1", "node-2", "node-3"] == [row[0] for row in light.cells("Nodes")]
        service.published = with_silent().published
        light.ask_now()
        light.wait_for("all fresh")
        assert [] == light.wrong


def test_cells_are_reached_by_arrow_keys_and_read_by_screen_readers(light: Tab) -> None:
    """Arrow keys move between nodes, the active one is announced to screen readers, and Enter opens it."""
    with Live() as live:
        light.open(f"{url(live)}#/fleet?sort=name", shows="all fresh")
        cells = light.page.get_by_role("listbox", name="Nodes as cells")
        cells.focus()
        active = cells.get_by_role("option")
        assert active.inner_text().startswith("node-1, CPU 26.0 % ± 1.0 % (15m), Memory 40.0 %")
        light.press("ArrowRight", "ArrowRight", "ArrowLeft")
        assert active.inner_text().startswith("node-2, ")
        assert ("3", "2") == tuple(active.get_attribute(name) for name in ("aria-setsize", "aria-posinset"))
        light.press("End")
        assert active.inner_text().startswith("node-3, ")
        light.press("Enter")
        light.page.wait_for_url("**/#/node/node-3")


def test_five_thousand_nodes_are_shown(browser: Any) -> None:
    """All have cells; names that contain markup stay text."""
    names = [*(f"node-{number:04d}" for number in range(4999)), "<img src=x onerror=alert(1)>"]
    random = np.random.default_rng(7)
    fleet = {name: {"CPU": [float(load)] * 60} for name, load in zip(names, random.uniform(1, 99, 5000), strict=True)}
    with Live(FakeService(published=publish(snapshot_of(fleet)))) as live, tab(browser) as opened:
        opened.open(f"{url(live)}#/fleet", shows="all fresh")
        cells = opened.page.get_by_role("listbox", name="Nodes as cells")
        cells.focus()
        assert "5000" == cells.get_by_role("option").get_attribute("aria-setsize")
        opened.page.get_by_label("Name contains").fill("<img")
        opened.wait_for("1 of 5,000 nodes")
        cells.focus()
        assert cells.get_by_role("option").inner_text().startswith("<img src=x onerror=alert(1)>")
        assert [] == opened.wrong
        with tab(browser, width=390) as phone:
            phone.open(f"{url(live)}#/fleet", shows="all fresh")
            boxes = (
                "(all) => all.map((each) => { const { left, right, top, bottom } = each.getBoundingClientRect(); "
                "return [left, right, top, bottom]; })"
            )
            texts = phone.page.locator("svg[role=img] text").evaluate_all(boxes)
            bars = phone.page.locator("svg[role=img] rect").evaluate_all(boxes)
            assert len(texts) > 5  # the number of labels on the axis
            assert len(bars) == 20
            assert max(right for _, right, _, _ in texts) <= max(right for _, right, _, _ in bars) + 2
            for i, (left, right, top, bottom) in enumerate(texts):
                for other in [*texts[i + 1 :], *bars]:
                    assert right <= other[0] or other[1] <= left or bottom <= other[2] + 1 or other[3] <= top + 1


def test_the_curve_of_target_load_packing(browser: Any) -> None:
    """The worked example of the plug-in's reference: target 50, loads of 25, 50 and 75 %."""
    fleet = {f"at-{load}": {"CPU": [float(load)] * 60} for load in (25, 50, 75)}
    with Live(FakeService(published=publish(snapshot_of(fleet)))) as live, tab(browser) as opened:
        opened.open(f"{url(live)}#/risk?target=50", shows="The target is the plug-in's default")
        nodes = opened.page.get_by_role("listbox", name="Nodes on the curve")
        nodes.focus()
        for load, score in ((75, 25), (50, 100), (25, 75)):
            reported = nodes.get_by_role("option").inner_text()
            expected = (f"at-{load}", f"score {score} at the current load")
            assert expected == (reported.split(", ")[0], reported[reported.index("score") :])
            opened.press("ArrowRight")
        assert [] == opened.wrong


def test_numbers_have_the_format_of_load_watcher_score(light: Tab) -> None:
    """Bytes exactly, fractions with six digits."""
    values = [1073741824, 34359738368.0, 2000, 2 / 3, 99.5722, 0.00290874, True, None, {"cpu": 1000, "memory": 2**31}]
    with Live() as live:
        light.open(url(live), shows="all fresh")
        script = (
            "async (values) => { const { plain } = await import('./web/common/format.js'); return values.map(plain); }"
        )
        assert [number(value) for value in values] == light.page.evaluate(script, values)
        script = "async () => (await import('./web/common/format.js')).limits({ quota: null, period: 100000 })"
        assert "quota unlimited, period 100000" == light.page.evaluate(script)


def test_without_scheduling_plug_ins_the_page_of_a_node_states_it(light: Tab) -> None:
    """With a link to the documentation."""
    with Live() as live:
        light.open(f"{url(live)}#/node/node-1", shows="come from the Kubernetes API, through the scheduling plug-ins")
        assert [] == light.errors()


def in_percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def test_shadow_mode_shows_the_differences_of_each_profile(browser: Any) -> None:
    """The report of the API in a table that does not depend on colours, with excluded bindings and their reasons."""
    served = Shadowed()
    with served.live as live:
        for number, node in enumerate(("n0", "n0", "n3", "nowhere")):
            served.bind(f"web-{number}", to=node)
        report = served.report(seen=4)
        found = {each["profile"]: each for each in report["profiles"]}
        assert {"node_unknown"} == {each["reason"] for each in report["left_out"]}
        for dark in (False, True):
            with tab(browser, dark=dark) as opened:
                opened.open(f"{url(live)}#/shadow", shows="Placement by each profile")
                choices = {row[0]: row[1:] for row in opened.cells("Placement by each profile")}
                assert set(choices) == set(found) == {"packing", "spreading"}
                for name, each in found.items():
                    counts = [str(each[key]) for key in ("bindings", "same", "tied", "other", "none")]
                    value, low, high = (in_percent(each["other_share"][key]) for key in ("value", "low", "high"))
                    assert [*counts, f"{value} ({low} to {high})"] == choices[name]
                assert each["other"]
                cpu = {row[0]: row[2:] for row in opened.cells("Load difference to the other node") if row[1] == "CPU"}
                mean = each["difference"]["CPU"]["now"]["mean"]
                signed = f"{'−' if mean < 0 else '+'}{abs(mean):.1f} (?)"
                assert [signed, str(each["other"]), "–", "0"] == cpu[name]
                opened.wait_for(f"{name}: pods whose later load is pending: {each['other']}; unknown: 0")
                opened.wait_for("in parentheses: 95 % confidence interval; (?): too few 15-minute blocks")
                assert [["the node is unknown to the extender", "1"]] == opened.cells("Excluded pods")
                assert [] == opened.unfit()
                assert [] == opened.wrong


def test_disabled_shadow_mode_shows_how_to_enable_it(light: Tab, tmp_path: Path) -> None:
    """In lines that the service accepts. Once it is enabled, the page shows that there are no data yet."""
    with Live() as live:
        light.open(f"{url(live)}#/shadow", shows="No scheduling plug-ins are configured")
        lines = light.page.locator("pre").inner_text()
        light.page.locator("pre").focus()
        with light.page.expect_response("**/api/v1/overview"):
            light.ask_now()
        light.page.wait_for_load_state("networkidle")
        assert light.page.evaluate("document.activeElement.tagName") == "PRE"  # the user may be copying them
    assert 3 == len(lines.splitlines())
    profiles, problems, notices = read_profiles(tomllib.loads(lines)["scheduler"], cwd=tmp_path)
    assert ((), ["spreading"], ()) == (problems, [each.name for each in profiles], notices)
    served = Shadowed()
    with served.live as live:
        served.mode.names = ()
        light.open(f"{url(live)}#/shadow", shows="shadow mode is off")
        assert lines == light.page.locator("pre").inner_text()
        assert [] == light.unfit()
        served.mode.names, served.store.kept = ("packing",), 0.0
        light.open(f"{url(live)}#/shadow", shows='set store.decisions = "24h"')
        assert 0 == light.page.locator("pre").count()
        served.store.kept = 86400.0
        light.open(f"{url(live)}#/shadow", shows="no bindings observed yet")
        assert [] == light.errors()


def test_shadow_mode_asks_for_the_token_and_reports_a_failed_store(light: Tab) -> None:
    """It has data about pods, as explain has."""
    served = Shadowed(protection=Protection("secret"))
    with served.live as live:
        light.open(f"{url(live)}#/shadow", shows="This service requires a token")
        light.page.get_by_label("This service requires a token").fill("secret")
        light.press("Enter")
        light.wait_for("no bindings observed yet")
        served.store.away = "the disk is full"
        light.page.get_by_text("24 h", exact=True).click()
        light.wait_for("the disk is full")
        served.store.away = ""
        light.ask_now()
        light.wait_for("no bindings observed yet")
        assert "range=-24h" in light.page.url
        assert [] == light.errors()


def test_unchanged_data_are_not_sent_again(light: Tab) -> None:
    """Each request has the ETag of the previous response; after a tick all data are sent."""
    service, statuses = FakeService(), list[int]()
    light.page.on("response", lambda answer: statuses.append(answer.status) if answer.url.endswith("Memory") else None)
    with Live(service) as live:
        light.open(url(live), shows="all fresh")

        def asked() -> list[int]:
            light.ask_now()
            light.page.wait_for_load_state("networkidle")
            return statuses

        wait_for(lambda: 304 in asked(), what="an answer without a body")
        assert 1 == statuses.count(200)
        service.published = publish(snapshot_of(small_fleet()), tag="t2")
        wait_for(lambda: 2 == asked().count(200), what="the next tick")
        assert light.page.get_by_text("all fresh").is_visible()
        assert [] == light.wrong


def test_no_text_becomes_markup(light: Tab) -> None:
    """The browser refuses it in any code of the page."""
    with Live() as live:
        light.open(url(live), shows="all fresh")
        forgotten = "(() => { try { document.body.innerHTML = '<b>x</b>'; } catch (error) { return error.name; } })()"
        assert "TypeError" == light.page.evaluate(forgotten)


def test_an_empty_service_shows_the_reason(light: Tab) -> None:
    """And no chart."""
    with Live(FakeService(published=None)) as live:
        light.open(url(live), shows="no metrics yet")
        for view in ("fleet", "fleet?as=table", "risk", "node/node-1"):
            light.open(f"{url(live)}#/{view}", shows="Nothing to show: no metrics yet")
            light.ask_now()
            light.page.wait_for_load_state("networkidle")
        assert [] == light.wrong  # the overview states what is missing, and the page does not request it


def test_missing_data_are_named(browser: Any) -> None:
    """A minute after the start: no curve and no point, but the reason; a name wider than a phone is wrapped."""
    begun = FakeService(published=publish(snapshot_of({"node-1": {"CPU": [26.0]}})))
    begun.no_pods = "there is no container_cpu_usage_seconds_total{container!='',container!='POD',pod!=''}"
    with Live(begun) as live, tab(browser, width=390) as opened:
        opened.open(f"{url(live)}#/risk", shows="No node has a deviation yet")
        opened.open(f"{url(live)}#/node/node-1", shows="No stored data in this time range.")
        opened.wait_for("there is no container_cpu_usage_seconds_total")
        assert opened.page.evaluate("document.documentElement.scrollWidth") == 390
        assert [] == opened.errors()


def test_stale_data_stay_and_are_marked(light: Tab) -> None:
    """With their age and the reason; with new samples, the mark is removed."""
    service = FakeService()
    with Live(service) as live:
        light.open(url(live), shows="all fresh")
        assert "old" not in (light.page.locator("main").get_attribute("class") or "")
        service.clock += 400.0
        light.ask_now()
        light.wait_for("the newest sample is too old")
        light.wait_for("(max_staleness)")
        light.page.locator("main.old").wait_for()
        light.wait_for("newest sample 7 min old")
        assert light.page.get_by_text("all fresh").is_visible()
        service.published = publish(snapshot_of(small_fleet(), end=END + 400.0), tag="t2", monotonic=1400.0)
        light.ask_now()
        light.page.locator("main:not(.old)").wait_for()
        light.wait_for("ready")
        assert [] == light.errors()


def test_if_the_service_is_unavailable_the_last_data_stay(light: Tab) -> None:
    """In grey, with a message."""
    with Live() as live:
        light.open(url(live), shows="all fresh")
    light.ask_now()
    light.wait_for("no response from load-watcher")
    light.page.locator("main.old").wait_for()
    assert light.page.get_by_text("all fresh").is_visible()
    assert [] == light.errors()


def test_a_partial_outage_shows_the_lost_nodes(light: Tab) -> None:
    """A page that is opened during the outage names them."""
    fleet = publish(snapshot_of(small_fleet(), lost={"gone-1": END - 60.0}))
    with Live(FakeService(published=fleet)) as live:
        light.open(f"{url(live)}#/fleet?as=table", shows="partial outage of the monitoring")
        light.wait_for("went missing at once")
        lost = light.cells("Nodes")[-1]
        assert ["gone-1", "lost"] == [lost[0], lost[-1].partition(" for")[0]]


def test_protected_reads_ask_for_the_token(light: Tab) -> None:
    """A wrong one is an error, the right one opens the page; no address contains it."""
    with Live(protection=Protection("secret", protect_reads=True)) as live:
        light.open(url(live), shows="token required")
        light.page.get_by_label("This service requires a token").fill("wrong")
        light.press("Enter")
        light.wait_for("invalid token")
        light.page.get_by_label("This service requires a token").fill("secret")
        light.press("Enter")
        light.wait_for("all fresh")
        assert "secret" not in light.page.url
        assert [] == light.errors()
