"""Runs load-watcher on a layout: the real source with the series, `serve` with the extender, `doctor` and `report`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from load_watcher import main
from tests.doctor import Reported, doctor
from tests.fakes.influxdb import FakeInfluxDB
from tests.fakes.kube import FakeKube
from tests.field.forked import ForkedService
from tests.field.influx import telegraf_points
from tests.field.layout import GIB, Layout, Machine, Pod
from tests.field.series import series_of
from tests.real.cluster_history import OUT_OF_ORDER
from tests.real.flux import FluxCompiler, FluxServer
from tests.real.parts import InfluxDB, Prometheus, PromqlServer, VictoriaMetrics
from tests.real.remote_write import Series
from tests.service import Service
from tests.waiting import wait_for

TOKEN = "a-token-of-a-test"
HOT_PERCENT = 80
FORECAST = "[forecast]\nenabled = false\n"
QUICK = """[refresh]
interval = "3s"
resolution = "3s"
windows = ["6s"]
pods = "on"
"""
"""For a source that only knows the present: windows that are complete after seconds."""
PODS = '[refresh]\npods = "on"\n'
SCHEDULER = f"""[scheduler.field]
plugins = [
  {{ name = "HighLoadFilter", args = {{ usageThresholds = {{ cpu = {HOT_PERCENT} }} }} }},
  {{ name = "LoadVariationRiskBalancing", weight = 1 }},
]
"""
Document = Mapping[str, Any]


@dataclass
class Outcome:
    """What load-watcher says. `loads` are averages of 15 minutes, or the newest values of a source without a past, by
    node and metric name; `findings` are those of the service; `failed` and `scores` are the extender's."""

    loads: dict[str, dict[str, float]] = field(default_factory=dict)
    findings: list[Document] = field(default_factory=list)
    pods: dict[str, Document] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    scores: dict[str, int] = field(default_factory=dict)
    doctor: Reported | None = None
    report: Document | None = None
    report_error: str = ""

    def kinds(self) -> set[str]:
        return {each["kind"] for each in self.findings}


def run(layout: Layout, folder: Path, *, now: float | None = None) -> Outcome:
    """Run everything on a layout, below a folder of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    now = time.time() if now is None else now
    outcome = Outcome()
    with ExitStack() as stack:
        settings = stack.enter_context(_source(layout, folder, now))
        kube = stack.enter_context(FakeKube()) if layout.api or layout.source == "metrics-server" else None
        if kube is not None:
            _fill(kube, layout)
            _measure(kube, layout)
            settings += f'[kubernetes]\nkubeconfig = "{kube.kubeconfig(folder / "kubeconfig")}"\n{SCHEDULER}'
        settings += FORECAST + (PODS if layout.expect.pods and layout.source != "metrics-server" else "")
        service = ForkedService(folder / "service", *layout.assigned, config=settings)
        stack.callback(service.kill)
        service.launch()
        if layout.source in ("prometheus", "victoriametrics"):
            _report(layout, settings, folder, outcome)
        _ask(service.wait_ready(), layout, outcome, kube)
        # Its patience is a share of the interval, which is short in QUICK.
        patient = ("--set", "refresh.interval=60s")
        outcome.doctor = doctor("--config", str(service.config_file), *layout.assigned, *patient)
    return outcome


# --- source ----------------------------------------------------------------------------------------------------------


@contextmanager
def _source(layout: Layout, folder: Path, now: float) -> Iterator[str]:
    """A source with the layout's series; gives the settings that name it."""
    metrics = json.dumps(list(layout.expect.metrics))
    common = f"metrics = {metrics}\n"
    if layout.source == "metrics-server":
        yield f'[provider]\nname = "metrics-server"\n{QUICK}'
    elif layout.source in ("influxdb1", "influxdb2"):
        with _influx(layout, folder, now) as settings:
            yield f'[provider]\nname = "influxdb"\n{common}{settings}'
    else:
        with _promql(layout, folder) as server:
            server.write([Series(each.labels, *each.samples(now)) for each in series_of(layout)])
            yield f'[provider]\nname = "prometheus"\naddress = "{server.url}"\n{common}'


def _promql(layout: Layout, folder: Path) -> PromqlServer:
    if layout.source == "victoriametrics":
        return VictoriaMetrics(folder / "source")
    return Prometheus(folder / "source", config=OUT_OF_ORDER)


@contextmanager
def _influx(layout: Layout, folder: Path, now: float) -> Iterator[str]:
    points = list(telegraf_points(layout, now))
    if layout.source == "influxdb1":
        with InfluxDB(folder / "source") as server:
            server.write(points)
            yield f'address = "{server.url}"\n'
    else:
        with FluxCompiler() as compiler:
            flux = FluxServer(compiler, "telegraf", token=TOKEN)
            flux.write(points)
            with FakeInfluxDB(flux) as emulated:
                yield f'address = "{emulated.url}"\nbucket = "telegraf"\norg = "example"\ntoken = "{TOKEN}"\n'


# --- cluster ---------------------------------------------------------------------------------------------------------


def _fill(kube: FakeKube, layout: Layout) -> None:
    """The objects of the cluster."""
    names = {machine.key: machine.name for machine in layout.nodes}
    for machine in layout.nodes:
        _put_node(kube, machine)
    for pod in layout.all_pods():
        if pod.node in names:
            _put_pod(kube, pod, names[pod.node])


def _measure(kube: FakeKube, layout: Layout) -> None:
    """What metrics-server says now, where it is the source. The values change a little each second: constant ones are
    those of a frozen source."""
    if layout.source != "metrics-server":
        return
    now = datetime.now(UTC)
    when = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    for machine in layout.nodes:
        memory = round(machine.memory * machine.memory_gib * GIB) + 4096 * now.second
        cpu = round(machine.cpu * machine.cpus * 1e9) + 1000 * now.second
        kube.usage(machine.name, time=when, cpu=f"{cpu}n", memory=str(memory))
    for pod in layout.all_pods():
        kube.pod_usage(f"{pod.namespace}/{pod.name}", (f"{round(pod.cores * 1e9)}n", "512Mi"), time=when)


def _put_node(kube: FakeKube, machine: Machine) -> None:
    size = {"cpu": str(machine.cpus), "memory": f"{machine.memory_gib:g}Gi"}
    status = {
        "addresses": [
            *({"type": "InternalIP", "address": each} for each in (machine.address, machine.address6) if each),
            {"type": "Hostname", "address": machine.host},
        ],
        "conditions": [{"type": "Ready", "status": "True" if machine.ready else "Unknown"}],
        "capacity": size,
        "allocatable": dict(size),
    }
    labels = {"kubernetes.io/os": machine.system, "kubernetes.io/arch": machine.arch}
    metadata = {"creationTimestamp": machine.created, "labels": labels}
    kube.node(machine.name, metadata=metadata, status=status)


def _put_pod(kube: FakeKube, pod: Pod, node: str) -> None:
    kind, _, owner = pod.owner.partition("/")
    spec: dict[str, Any] = {"containers": [_container("main", pod.request)]}
    if pod.sidecar:
        spec["initContainers"] = [{**_container("proxy", pod.sidecar), "restartPolicy": "Always"}]
    if pod.whole:
        spec["resources"] = {"requests": {"cpu": f"{round(1000 * pod.whole)}m"}}
    if pod.overhead:
        spec["overhead"] = {"cpu": f"{round(1000 * pod.overhead)}m"}
    references = [{"apiVersion": "apps/v1", "kind": kind, "name": owner, "uid": f"uid-{owner}", "controller": True}]
    metadata = {"uid": f"uid-{pod.name}", "ownerReferences": references}
    kube.pod(f"{pod.namespace}/{pod.name}", node=node, spec=spec, metadata=metadata)


def _container(name: str, cores: float) -> dict[str, Any]:
    return {"name": name, "resources": {"requests": {"cpu": f"{round(1000 * cores)}m", "memory": "256Mi"}}}


# --- queries ---------------------------------------------------------------------------------------------------------


def _ask(service: Service, layout: Layout, outcome: Outcome, kube: FakeKube | None) -> None:
    if layout.expect.refused:
        wait_for(lambda: _findings(service), what="findings")
    else:
        wait_for(lambda: _is_ready(service, layout, kube), what=f"{layout.name} to be ready")
    outcome.loads = _loads(service, ("Latest", "") if layout.source == "metrics-server" else ("AVG", "15m"))
    if layout.expect.pods:
        wait_for(lambda: _pods(service) or _no_pods(service), what=f"pods of {layout.name}")
    outcome.pods = _pods(service)
    outcome.findings = _findings(service)
    if kube is not None:
        _ask_extender(service, layout, outcome)


def _is_ready(service: Service, layout: Layout, kube: FakeKube | None) -> bool:
    if kube is not None:
        _measure(kube, layout)
    return service.get("/readyz").status == 200


def _no_pods(service: Service) -> bool:
    """Whether the service has found that there is no usage of pods."""
    return any(each["metric"] == "pods" and each["kind"] == "no_series" for each in _findings(service))


def _ask_extender(service: Service, layout: Layout, outcome: Outcome) -> None:
    if outcome.loads:
        nodes = f"{service.url}/scheduler/field/nodes"
        wait_for(
            lambda: any(each["load"] for each in service.session.get(nodes, timeout=60).json()["nodes"].values()),
            what="loads in the extender",
        )
    pod = {"metadata": {"name": "new", "namespace": "shop", "uid": "new"}, "spec": {"containers": [{"name": "main"}]}}
    question = {"Pod": pod, "NodeNames": sorted(machine.name for machine in layout.nodes)}
    outcome.scores = {each["Host"]: each["Score"] for each in _post(service, "prioritize", question)}
    outcome.failed = _post(service, "filter", question)["FailedNodes"] or {}


def _post(service: Service, verb: str, body: Document) -> Any:
    answer = service.session.post(f"{service.url}/scheduler/field/{verb}", json=body, timeout=60)
    assert answer.status_code == 200, f"{verb}: {answer.status_code} {answer.text}"
    return answer.json()


def _findings(service: Service) -> list[Document]:
    answer = service.get("/api/v1/findings")
    found: list[Document] = answer.json()["findings"] if answer.status == 200 else []
    return found


def _pods(service: Service) -> dict[str, Document]:
    answer = service.get("/api/v1/pods")
    if answer.status != 200:
        return {}
    columns = answer.json()
    rows = zip(*(columns[name] for name in ("namespace", "pod", "node", "cores")), strict=True)
    return {f"{namespace}/{pod}": {"node": node, "cores": cores} for namespace, pod, node, cores in rows}


def _loads(service: Service, wanted: tuple[str, str]) -> dict[str, dict[str, float]]:
    answer = service.get(f"/watcher?operator={wanted[0]}")
    if answer.status != 200:
        return {}
    found: dict[str, dict[str, float]] = {}
    for node, document in answer.json()["data"]["NodeMetricsMap"].items():
        loads = found.setdefault(node, {})
        for each in document["metrics"]:
            if (each["operator"], each["rollup"]) == wanted:
                loads[each["name"]] = each["value"]
    return found


def _report(layout: Layout, settings: str, folder: Path, outcome: Outcome) -> None:
    address = settings.partition('address = "')[2].partition('"')[0]
    given = ["--days", "0.125", "--no-simulation", "--file", str(folder / "report.html"), *layout.assigned]
    result = CliRunner().invoke(main.main, ["report", "--prometheus", address, *given])
    if result.exit_code:
        outcome.report_error = result.output
    else:
        outcome.report = json.loads((folder / "report.json").read_text())
