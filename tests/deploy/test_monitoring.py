"""Dashboards and alerts with real data: a real Prometheus that scrapes a service with its extender, one that has lost
its source, a working agent and a QoS Resource Manager, all as processes."""

from __future__ import annotations

import itertools
import json
import re
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.agent.qrm.test_main import NODE, Qrm, the_seeds_machine
from tests.agent.qrm.test_main import World as QrmWorld
from tests.agent.service.test_process import POD, AgentProcess, Machine
from tests.deploy.grafana import DASHBOARDS, Target, filled_in, label_queries, targets
from tests.fakes.kubelet import FakeKubelet
from tests.fakes.service import FakeService, Live
from tests.fakes.snapshots import publish, snapshot_of, steady
from tests.lab.demo.test_demo import Demo
from tests.real.parts import REPOSITORY, Prometheus, find_node_package
from tests.service import Service
from tests.waiting import wait_for

pytestmark = [pytest.mark.real, pytest.mark.slow]

CLUSTER = "east"
MOST_PODS = 100
OFTEN = """
[refresh]
interval = "5s"
resolution = "5s"
"""
SERVICE_SETTINGS = f"""{OFTEN}
[metrics]
types = ["CPU", "Memory", "Storage", "Bandwidth", "Energy", "Pressure"]
windows = ["5m", "10m", "15m"]
[scheduler]
shadow = ["default"]
default = {{ plugins = [ {{ name = "HighLoadFilter" }}, {{ name = "TargetLoadPacking" }} ] }}
"""
LOST_SETTINGS = f"""{OFTEN}
[provider]
name = "prometheus"
address = "http://127.0.0.1:{{port}}"
"""
# Jobs of Kubernetes often set these labels on their targets.
COMPOSED = yaml.safe_load((REPOSITORY / "deploy" / "compose" / "prometheus.yml").read_text())["scrape_configs"]
(HONOR_LABELS,) = (job.get("honor_labels", False) for job in COMPOSED if job["job_name"] == "load-watcher")
# The values of Grafana's variables in queries, in addition to those of the dashboards.
CHOSEN = {
    "cluster": CLUSTER,
    "window": "15m",
    "instance": ".*",
    "threshold": "0.2",
    "step": "1m",
    "__rate_interval": "1m",
}


@dataclass
class World:
    """The running processes and their start. `kubernetes` is the source of pods of the QoS Resource Manager."""

    service: Demo
    others: Mapping[str, Service]
    prometheus: Prometheus
    kubernetes: QrmWorld
    began: float

    def __post_init__(self) -> None:
        self._pods = iter(range(MOST_PODS))

    @property
    def node(self) -> str:
        """A node of the service."""
        found: str = sorted(self.service.get("/watcher").json()["data"]["NodeMetricsMap"])[0]
        return found

    def ask(self) -> None:
        """Some requests of users and schedulers, including invalid ones, and a new pod."""
        self.service.get("/watcher")
        self.service.get("/nowhere")
        pod = {"metadata": {"name": "web", "namespace": "default", "uid": "web"}, "spec": {"containers": []}}
        asked = {"Pod": pod, "NodeNames": [self.node, "of-another-cluster"]}
        self.service.session.post(f"{self.service.url}/scheduler/default/prioritize", json=asked, timeout=30)
        for number in itertools.islice(self._pods, 1):
            uid = f"{number:08}-1111-4000-8000-000000000000"
            self.kubernetes.pod(f"default/late{number}", uid, "online-micro_service", cpu="10m")

    def expositions(self) -> str:
        return "\n".join(each.get("/metrics").text for each in (self.service, *self.others.values()))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ExitStack() as stack:
        began = time.time()
        service = Demo(tmp_path_factory.mktemp("demo"), config=SERVICE_SETTINGS)
        nobody = stack.enter_context(socket.socket())  # owns the port, and does not listen
        nobody.bind(("127.0.0.1", 0))
        settings = LOST_SETTINGS.format(port=nobody.getsockname()[1])
        lost = Service(tmp_path_factory.mktemp("lost"), config=settings)
        agent = _agent(stack, tmp_path_factory.mktemp("agent"))
        kubernetes = stack.enter_context(the_seeds_machine())
        manager = _manager(stack, kubernetes)
        others = {"lost": lost, "agent": agent, "qrm": manager}
        for each in (service, *others.values()):
            each.launch()
            stack.callback(each.kill)
        labels = {"cluster": CLUSTER, "node": "of-the-target", "pod": "of-the-target", "namespace": "of-the-target"}
        jobs = [
            {"job_name": job, "static_configs": [{"targets": at, "labels": labels}], "honor_labels": HONOR_LABELS}
            for job, at in (
                ("load-watcher", [f"127.0.0.1:{service.port}", f"127.0.0.1:{lost.port}"]),
                ("load-watcher-agent", [f"127.0.0.1:{agent.port}"]),
                ("load-watcher-qrm", [f"127.0.0.1:{manager.port}"]),
            )
        ]
        config = {"global": {"scrape_interval": "2s", "scrape_timeout": "2s"}, "scrape_configs": jobs}
        prometheus = stack.enter_context(Prometheus(tmp_path_factory.mktemp("prometheus"), config=config))
        for each in (service, *others.values()):
            each.wait_ready()
        service.wait_for_status(200, "/readyz")
        yield World(service, others, prometheus, kubernetes, began)


def _agent(stack: ExitStack, directory: Path) -> AgentProcess:
    """An agent that throttles and restores a pod repeatedly, and cannot read a file of /proc."""
    machine = Machine(directory)
    machine.proc.path("pressure/io").write_text("damaged\n")
    stack.enter_context(machine.running())
    kubelet = stack.enter_context(FakeKubelet([POD]))
    return AgentProcess(machine.root, "--enforce", *machine.settings(kubelet=kubelet.url))


def _manager(stack: ExitStack, kubernetes: QrmWorld) -> Qrm:
    """A manager that resizes its pools by a load, and has a pod that requests more CPUs than its pool can have."""
    for name, role, cpu in (("exclusive", "storage-service", "20"), ("shared", "ETL", "4"), ("too-large", "ETL", "70")):
        kubernetes.pod(f"default/{name}", f"uid-of-{name}", role, cpu=cpu)
    load = FakeService(published=publish(snapshot_of({NODE: {"CPU": steady(26.25), "Memory": steady(40)}})))
    live = stack.enter_context(Live(load))
    settings = ('adjust_interval = "100ms"', "step_down = 0", f'watcher = "http://127.0.0.1:{live.port}"')
    return kubernetes.run(*settings, mode="dry-run")


# --- dashboards ------------------------------------------------------------------------------------------------------


def answer(world: World, target: Target, values: Mapping[str, str]) -> list[dict[str, Any]]:
    """The series with a number at some time since the start; of an instant query, now."""
    query = filled_in(target.query["expr"], values)
    if target.query["instant"]:
        return [row for row in world.prometheus.query(query) if np.isfinite(float(row["value"][1]))]
    asked = {"query": query, "start": f"{world.began:.3f}", "end": f"{time.time():.3f}", "step": "1"}
    got = world.prometheus.session.get(f"{world.prometheus.url}/api/v1/query_range", params=asked, timeout=60)
    assert got.status_code == 200, f"{target.place}: {got.text}"
    rows: list[dict[str, Any]] = got.json()["data"]["result"]
    return [row for row in rows if any(np.isfinite(float(value)) for _, value in row["values"])]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_each_query_of_a_panel_has_data(world: World, name: str) -> None:
    """And series with the labels in its legend, which may be empty, which in Prometheus means absent."""
    known = exposed(world.expositions())
    values = {**CHOSEN, "node": ".*" if name == "fleet" else world.node}
    left = {target.place: target for target in targets(name) if target.is_promql}

    def missing() -> bool:
        world.ask()
        for place, target in list(left.items()):
            if rows := answer(world, target, values):
                grouped = re.findall(r"\w+", " ".join(re.findall(r"\bby \(([^)]*)\)", target.query["expr"])))
                empty = set(grouped) & set().union(*(known[metric] for metric, _ in asked_for(target.query["expr"])))
                labels = set(re.findall(r"\{\{(\w+)\}\}", target.query["legendFormat"]))
                assert labels <= rows[0]["metric"].keys() | empty, f"{place}: {rows[0]['metric']}"
                del left[place]
        return not left

    try:
        wait_for(missing, what="data")
    except pytest.fail.Exception:
        pytest.fail(f"no data in {name}: {', '.join(left)}")


@pytest.mark.parametrize("name", DASHBOARDS)
def test_variables_offer_the_existing_values(world: World, name: str) -> None:
    values = {**CHOSEN, "node": world.node}
    expected = {"cluster": {CLUSTER}, "window": {"5m", "10m", "15m"}}
    for variable, (selector, label) in label_queries(name).items():
        asked = {"match[]": filled_in(selector, values)}
        url = f"{world.prometheus.url}/api/v1/label/{label}/values"

        def offered(url: str = url, asked: dict[str, str] = asked) -> set[str]:
            return set(world.prometheus.session.get(url, params=asked, timeout=60).json()["data"])

        found = wait_for(offered, what=f"values of ${variable}")
        assert found == expected.get(variable, found)
        assert variable != "node" or world.node in found


def test_data_of_another_cluster_are_not_shown(world: World) -> None:
    """Not even the number 0 of its nodes at risk."""
    values = {**CHOSEN, "node": ".*", "cluster": "west"}
    assert [] == [target.place for target in targets("fleet") if answer(world, target, values)]


# --- Infinity --------------------------------------------------------------------------------------------------------

SELECT = """
const jsonata = require(process.argv[1]);
const [body, selector] = JSON.parse(require('fs').readFileSync(0, 'utf8'));
jsonata(selector).evaluate(body).then((rows) => console.log(JSON.stringify(rows === undefined ? null : rows)));
"""


def selected(body: object, selector: str) -> Any:
    """The result of a root selector, by JSONata itself."""
    done = subprocess.run(
        ["node", "-e", SELECT, find_node_package("jsonata")],
        input=json.dumps([body, selector]),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert 0 == done.returncode, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", ["node", "service-health"])
def test_queries_of_infinity_have_the_configured_rows_and_columns(world: World, name: str) -> None:
    """With the times of a view of the last hour; each row has each column, with a value of its type. A series has
    sorted times, and only numbers beside them: Grafana shows no other rows."""
    now = time.time()
    values = {**CHOSEN, "node": world.node, "__from": f"{now - 3600:.0f}", "__to": f"{now:.0f}"}
    asked = [target for target in targets(name) if not target.is_promql]
    assert len(asked) >= 2
    for target in asked:
        url = filled_in(target.query["url"], values)

        def rows(url: str = url, target: Target = target) -> Any:
            got = world.service.get(url)
            return got.status == 200 and selected(got.json(), target.query["root_selector"])

        found = wait_for(rows, what=f"rows of {target.place} at {url}")
        assert isinstance(found, list), target.place
        for column in target.query["columns"]:
            kinds = {type(row[column["selector"]]) for row in found}
            wanted = {"string": {str}}.get(column["type"], {int, float})
            assert kinds <= wanted, f"{target.place}: {column['selector']}"
            if column["type"] == "timestamp_epoch_s":
                assert all(now - 86400 < row[column["selector"]] < now + 600 for row in found)
        if target.query["format"] == "timeseries":
            time_column, value_column = target.query["columns"]
            assert ("timestamp_epoch_s", "number") == (time_column["type"], value_column["type"])
            times = [row[time_column["selector"]] for row in found]
            assert times == sorted(set(times))


# --- alerts ----------------------------------------------------------------------------------------------------------

RULES = [
    rule
    for group in yaml.safe_load((REPOSITORY / "deploy" / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]


def exposed(text: str) -> dict[str, set[str]]:
    """Return the labels of each reported series; a known metric without a series yet has none."""
    found: dict[str, set[str]] = {}
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", text, flags=re.MULTILINE):
        for ending in ("_bucket", "_count", "_sum") if kind == "histogram" else ("",):
            found.setdefault(f"{name}{ending}", set())
    for name, labels in re.findall(r"^(\w+)(?:\{(.*)\})? \S+$", text, flags=re.MULTILINE):
        found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return found


def asked_for(expression: str) -> Iterator[tuple[str, set[str]]]:
    """Return each metric of load-watcher in an expression, with the labels that select it."""
    for name, matchers in re.findall(r"\b((?:load_watcher|process)_\w+)(?:\{([^}]*)\})?", expression):
        yield name, set(re.findall(r"(\w+)(?:=~|!=|!~|=)", matchers))


def test_each_queried_metric_is_exposed(world: World) -> None:
    """With its labels in selectors, in alerts and in dashboards; a typo would silently have no data."""
    wait_for(lambda: "agent_deeds_total{" in world.others["agent"].get("/metrics").text, what="the agent to act")
    known = exposed(world.expositions())
    of_dashboards = [target.query["expr"] for name in DASHBOARDS for target in targets(name) if target.is_promql]
    of_variables = [selector for name in DASHBOARDS for selector, _ in label_queries(name).values()]
    wrong = {
        f"{name} by {', '.join(sorted(labels))}"
        for expression in [*(rule["expr"] for rule in RULES), *of_dashboards, *of_variables]
        for name, labels in asked_for(expression)
        if name not in known or (known[name] and not labels <= known[name] | {"instance", "job", "cluster"})
    }
    assert set() == wrong


def test_alerts_fire_only_for_the_faults_of_these_processes(world: World) -> None:
    """The service that lost its source and never had windows, and the pod that does not fit into its pool. Alerts that
    depend on the speed of the machine, and on the load of the demo at this time, are ignored."""
    expected = {"LoadWatcherProviderDown", "LoadWatcherNoWindows", "LoadWatcherQrmInadmissiblePods"}
    by_chance = {"LoadWatcherExtenderSlow", "LoadWatcherForecastHigh", "LoadWatcherNodePressure"}
    judged = [rule for rule in RULES if rule["alert"] not in by_chance]

    def seen() -> set[str]:
        return {rule["alert"] for rule in judged if world.prometheus.query(rule["expr"])}

    wait_for(lambda: seen() == expected, what=f"{expected}, and nothing else, to be seen")
