"""The views of placements and scores in a real browser, compared with the API."""

import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from load_watcher.scoring.score_texts import readable
from tests.fakes.service import Live
from tests.lab.demo.test_demo import Demo
from tests.real.browser import Tab, chromium, tab
from tests.real.fleet import make_fleet, recording_rule_series
from tests.real.parts import REPOSITORY, Prometheus
from tests.service import Service
from tests.waiting import wait_for

pytestmark = pytest.mark.real
POD = (REPOSITORY / "docs" / "examples" / "pod.yaml").read_text()
YAML = "application/yaml"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One for all tests."""
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """A ready simulated cluster with a bound pod; its days are short, so pods are created often."""
    with Demo(tmp_path_factory.mktemp("demo"), "--speed", "200") as running:
        running.wait_for_status(200, "/readyz")
        wait_for(lambda: running.get("/scheduler/placements?outcome=bound").json()["placements"], what="a placement")
        yield running


@pytest.fixture
def light(browser: Any) -> Iterator[Tab]:
    with tab(browser) as opened:
        yield opened


def url(live: Live) -> str:
    return f"http://127.0.0.1:{live.port}/"


def test_the_inputs_and_steps_of_a_score_have_the_units_of_load_watcher_score(demo: Demo, light: Tab) -> None:
    """Those of each plug-in, in the demo and beyond."""
    answer = demo.session.post(
        f"{demo.url}/scheduler/default/score", data=POD, headers={"Content-Type": YAML}, timeout=60
    ).json()
    others: list[dict[str, Any]] = [
        {"inputs": {"podRequest": 1250, "podLimits": {"cpu": 0, "memory": 3 << 30}, "formula": "kep"}, "steps": {}},
        {"inputs": {"podEstimate": {}}, "steps": {"cpu mean": 0.3761, "cpu with the pod": None, "cpu %": None}},
        {"inputs": {}, "steps": {"cpu limits, with the pod": 9990, "rise in watts": 2.90874, "cpu risk": 2 / 3}},
    ]
    plugins = [plugin for node in answer["nodes"] for plugin in node["plugins"]] + others
    light.open(f"{demo.url}/#/fleet", shows="Distribution of CPU")
    script = "async (all) => { const { readable } = await import('./web/score/why.js'); return all.map(readable); }"
    assert [[list(pair) for pair in readable(plugin)] for plugin in plugins] == light.page.evaluate(script, plugins)
    assert [("podRequest", "1.25 cores"), ("podLimits", "cpu 0.0 cores, memory 3.0 GiB")] == list(readable(others[0]))[
        :2
    ]


def test_a_pasted_profile_is_scored_without_scheduling_plug_ins(tmp_path: Path, light: Tab) -> None:
    """With a real Prometheus as the only source; each of the offered texts is a valid profile."""
    fleet = make_fleet([f"node-{number}" for number in range(1, 7)], start=time.time() - 960, end=time.time() - 7)
    with Prometheus(tmp_path / "prometheus") as prometheus:
        prometheus.write(recording_rule_series(fleet))
        config = f'[provider]\nname = "prometheus"\naddress = "{prometheus.url}"\n[refresh]\ninterval = "10m"\n'
        with Service(tmp_path / "service", config=config + 'max_staleness = "1h"\n') as service:
            service.wait_for_status(200, "/readyz")
            light.open(f"{service.url}/#/score", shows="Ranking of 6 nodes by the pasted profile")
            light.wait_for("scored at their current load, without the pod")
            without = light.cells("Ranking")
            light.page.get_by_label("Cores of a node").fill("16")
            light.page.get_by_label("Memory of a node").fill("16Gi")
            light.page.get_by_role("button", name="Rank nodes").click()
            light.wait_for("Assumed for 6 nodes: 16 cores and 16 GiB, as entered.")
            assert without != light.cells("Ranking")
            for name, shows in (
                ("LoadVariationRiskBalancing", "scores lowest: load with the pod"),
                (
                    "LowRiskOverCommitment",
                    "is left out: it needs requests and limits of the pods",
                ),
                ("Peaks", "Why node-1?"),
                ("KubeSchedulerConfiguration", "target"),
            ):
                light.page.get_by_label("Start from").select_option(name)
                light.page.get_by_role("button", name="Rank nodes").click()
                light.wait_for(shows)
            assert [] == light.unfit()
            light.page.get_by_label("Profile: plug-ins").fill("plugins: [{name: TargetLoadPackin}]")
            light.page.get_by_role("button", name="Rank nodes").click()
            light.wait_for("did you mean TargetLoadPacking?")
            assert [] == light.errors()


def test_the_result_of_a_click_is_visible_on_a_phone(demo: Demo, browser: Any) -> None:
    """No text of the ranking is truncated, and the explanation of the last node is on the screen."""
    with tab(browser, width=390) as phone:
        phone.open(f"{demo.url}/#/score", shows="Ranking of 24 nodes by default")
        assert phone.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        cut = "(cells) => cells.filter((cell) => cell.scrollWidth > cell.clientWidth + 1).length"
        assert phone.page.locator("table td").evaluate_all(cut) == 0
        name = phone.cells("Ranking")[-1][0]
        phone.page.get_by_role("button", name=name).click()
        heading = phone.page.get_by_role("heading", name=f"Why {name}?")
        heading.wait_for()
        assert heading.evaluate(
            "(it) => { const { top } = it.getBoundingClientRect(); return top >= 0 && top < innerHeight; }"
        )


def test_placements_are_listed_when_they_are_decided(demo: Demo, browser: Any) -> None:
    """Newest first, as in the API; a new one is added at the top, and the existing entries stay."""
    with tab(browser) as opened:
        opened.open(f"{demo.url}/#/placements", shows="placements shown")
        rows = opened.page.locator(".feed > li")
        rows.last.evaluate("(row) => { row.dataset.mark = 'stays'; }")
        before = rows.count()

        def grew() -> bool:
            opened.ask_now()
            return rows.count() > before

        wait_for(grew, what="another placement", timeout=120)
        assert rows.last.get_attribute("data-mark") == "stays"
        listed = demo.get("/scheduler/placements").json()["placements"]
        names = rows.locator("a.pod").all_inner_texts()
        found = [f"{each['pod']['namespace']}/{each['pod']['name']}" for each in listed]
        assert names == found[-len(names) :]
        node = next(each["node"] for each in listed if each["node"])
        opened.page.get_by_label("Node").fill(node)
        opened.press("Enter")
        wait_for(lambda: {each[1] for each in links(opened)} == {node}, what="the filter by node")
        opened.page.get_by_label("Outcome").select_option("rejected")
        opened.wait_for("No placements")
        assert not opened.wrong


def links(opened: Tab) -> list[list[str]]:
    script = "(rows) => rows.map((row) => [...row.querySelectorAll('.head a')].map((link) => link.innerText))"
    found: list[list[str]] = opened.page.locator(".feed > li").evaluate_all(script)
    return found


def test_the_page_of_a_pod_explains_its_placement(demo: Demo, light: Tab) -> None:
    """The sentence, the ranking, the comparison with a chosen node, and the candidates in the fleet."""
    listed = demo.get("/scheduler/placements?outcome=bound").json()["placements"]
    entry = next(each for each in listed if each["rejected"] and len(each["candidates"]) > 1)
    pod, path = entry["pod"], f"{entry['pod']['namespace']}/{entry['pod']['name']}"
    light.open(f"{demo.url}/#/placements/{path}?at={int(entry['time'])}", shows=f"Pod {pod['namespace']}/{pod['name']}")
    light.wait_for(entry["sentence"][1:])
    decision = demo.get(f"/scheduler/decisions?pod={path}&at={int(entry['time'])}").json()["decision"]
    expected = [[each["name"], str(each["rank"]), f"{each['score']:.1f}"] for each in decision["ranking"]["nodes"]]
    assert expected == [row[:3] for row in light.cells("Recorded ranking")]
    there = expected[-1][0]
    light.page.get_by_label("Other node").select_option(there)
    (row, *_rest) = light.cells(f"{entry['node']} and {there}")
    assert row[0].startswith("TargetLoadPacking")
    rejected = decision["filter"]["plugins"][0]["rejected"][0]
    light.page.get_by_label("Other node").select_option(rejected["nodes"][0])
    light.wait_for(f"HighLoadFilter rejected it: {rejected['reason']}, {rejected['details'][rejected['nodes'][0]]}")
    href = light.page.get_by_role("link", name="Show these candidates in the fleet").get_attribute("href")
    assert href == f"#/fleet?highlight={','.join(row[0] for row in expected)}"
    assert not light.wrong


def test_a_pod_without_a_decision_is_shown_with_its_node(demo: Demo, light: Tab) -> None:
    pods = demo.get("/api/v1/pods").json()
    decided = {each["pod"]["name"] for each in demo.get("/scheduler/placements?limit=200").json()["placements"]}
    i = next(i for i, name in enumerate(pods["pod"]) if name not in decided)
    light.open(f"{demo.url}/#/placements/{pods['namespace'][i]}/{pods['pod'][i]}", shows="The pod runs on")
    assert light.page.get_by_role("link", name=pods["node"][i]).is_visible()
    assert [] == light.wrong


def test_without_scheduling_plug_ins_the_views_show_how_to_enable_them(light: Tab) -> None:
    """With the necessary lines."""
    with Live() as live:
        light.open(f"{url(live)}#/placements", shows="This view lists each decision of kube-scheduler")
        assert "plugins" in tomllib.loads(light.page.locator("pre").inner_text())["scheduler"]["default"]
        light.open(f"{url(live)}#/shadow", shows="This view compares")
