"""Series of a layout as load-watcher decodes them, and what goes wrong with series in the field.

A `World` has the series of one moment: those of the metrics, and those that name nodes (node_uname_info,
kube_node_info, kube_pod_info). `mutate` changes it as installations do by accident; each mutation keeps the truth: a
series stays about its machine. `judge` takes a world through naming and reduction. Pure: no I/O, no clock, no
Prometheus.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np

from tests.field.exporters import exporter_pod
from tests.field.influx import telegraf_rows
from tests.field.layout import Layout, Machine
from tests.field.series import FieldSeries, series_of
from watcher.core.naming.candidates import NamingEvidence
from watcher.core.naming.evidence import Evidence, KnownNode
from watcher.core.naming.identity import Identities, identify
from watcher.core.naming.machines import IdleReading
from watcher.core.naming.name_resolver import NodeIndex
from watcher.core.review.samples import clean, combine
from watcher.core.review.settings import ReviewSettings
from watcher.model import METRIC_BY_KEY, SOURCE_UNITS, Finding, Metric, SeriesBatch
from watcher.sources.prometheus.node_names import known_nodes

NOW = 1.8e9
RESOLUTION_S = 15
UP_S = 7 * 86400.0
FOREIGN = ("stranger", "172.31.255.9")
"""Name and address of a machine that no layout has."""
FOREIGN_LOAD = 0.97
NEW_ADDRESS = "10.244.99.7"
DECODED: Mapping[str, tuple[tuple[str, str], ...]] = {
    "CPU": (
        ("instance:node_cpu:ratio", "ratio"),
        ("instance:node_cpu_utilisation:rate5m", "ratio"),
        ("system_cpu_utilization_ratio", "ratio"),
        ("system.cpu.utilization", "ratio"),
    ),
    "NetworkTransmit": (("node_network_transmit_bytes_total", "bytes/s"),),
    "Storage": (("node_disk_io_time_seconds_total", "ratio"),),
    "GPU": (("DCGM_FI_DEV_GPU_UTIL", "percent"),),
    "EnergyPackage": (("kepler_node_package_joules_total", "watts"), ("kepler_node_cpu_joules_total", "watts")),
}
"""The series of each metric, the first that a layout has, with their unit; a counter stands for its rate."""


FACTS = ("node_uname_info", "kube_node_info", "kube_pod_info", "kube_node_created", "kube_node_status_addresses")


@dataclass(frozen=True)
class Row:
    """A series: its labels, its machine, and its value (NaN: that of the exporter; None: it has ended)."""

    labels: Mapping[str, str]
    machine: str
    value: float | None


@dataclass
class World:
    """Rows by metric key, and the rows that name nodes, by series name. `reported` lists the mutations."""

    layout: Layout
    metrics: dict[str, list[Row]]
    facts: dict[str, list[Row]]
    reported: list[str] = field(default_factory=list)

    @property
    def only_foreign(self) -> bool:
        """Whether nothing but a machine outside was added."""
        return all(each.startswith("foreign") for each in self.reported)

    def groups(self) -> list[list[Row]]:
        """All lists of rows, which mutations change in place."""
        return [*self.metrics.values(), *self.facts.values()]


def world_of(layout: Layout) -> World:
    """The world before any mutation."""
    if layout.source in ("influxdb1", "influxdb2"):
        return _world_of_telegraf(layout)
    every: dict[str, list[FieldSeries]] = {}
    label, _, value = layout.set.get("provider.matchers", "").partition("=")
    for series in series_of(layout):
        if label and series.labels.get(label) != value.strip('"'):
            continue
        every.setdefault(series.name, []).append(series)
    metrics = {}
    for key, choices in DECODED.items():
        name = next((name for name, _ in choices if name in every), "")
        rows = [Row(each.labels, each.machine, each.value) for each in every.get(name, ()) if _counts(each)]
        if key == "CPU" and not rows:
            rows = _cpu_of_raw(layout, every)
        if rows:
            metrics[key] = rows
    facts = {name: [Row(each.labels, each.machine, each.value) for each in every.get(name, ())] for name in FACTS}
    facts["idle"] = [Row(each.labels, each.machine, each.value) for each in _first_idle(every)]
    ready = every.get("kube_node_status_condition", ())
    facts["ready"] = [Row(each.labels, each.machine, each.value) for each in ready if each.labels["status"] == "true"]
    return World(layout, metrics, facts)


def _first_idle(every: Mapping[str, Sequence[FieldSeries]]) -> list[FieldSeries]:
    """The idle time of the first CPU of each target."""
    first = {("cpu", "0"), ("mode", "idle")}
    return [each for each in every.get("node_cpu_seconds_total", ()) if first <= set(each.labels.items())]


def _world_of_telegraf(layout: Layout) -> World:
    """Points in InfluxDB: the labels are their tags, and nothing else names nodes."""
    metrics: dict[str, list[Row]] = {}
    for key, tags, machine, value in telegraf_rows(layout):
        metrics.setdefault(key, []).append(Row(tags, machine.key, value))
    return World(layout, metrics, {name: [] for name in FACTS})


def _counts(series: FieldSeries) -> bool:
    """Whether the product's query selects it."""
    return series.labels.get("device") != "lo" and series.labels.get("zone", "package") == "package"


def _cpu_of_raw(layout: Layout, every: Mapping[str, Sequence[FieldSeries]]) -> list[Row]:
    """CPU use as the expression over the counters gives it: a value for each target."""
    truth = {machine.key: machine.cpu for machine in layout.machines}
    rows: dict[str, Row] = {}
    for each in every.get("node_cpu_seconds_total", ()):
        labels = {name: text for name, text in each.labels.items() if name not in ("cpu", "mode", "__name__")}
        rows.setdefault(repr(sorted(labels.items())), Row(labels, each.machine, truth[each.machine]))
    return list(rows.values())


# --- mutations -------------------------------------------------------------------------------------------------------


def _drop_label(world: World, random: Random) -> None:
    rows = random.choice([rows for rows in world.groups() if rows])
    i = random.randrange(len(rows))
    labels = dict(rows[i].labels)
    name = random.choice(sorted(labels.keys() - {"__name__"}) or ["__name__"])
    labels.pop(name)
    world.reported.append(f"drop {name} of {rows[i].labels}")
    rows[i] = replace(rows[i], labels=labels)


def _duplicate_job(world: World, random: Random) -> None:
    job = random.choice(sorted({row.labels.get("job", "") for rows in world.metrics.values() for row in rows}))
    extra = random.choice([{}, {"endpoint": "second"}, {"prometheus_replica": "b"}, {"service": "annotated"}])
    world.reported.append(f"duplicate job {job} with {extra}")
    for rows in world.groups():
        again = [row for row in rows if row.labels.get("job", "") == job]
        rows += [replace(row, labels={**row.labels, "job": "second", **extra}) for row in again]


def _foreign_machine(world: World, random: Random) -> None:
    """A machine outside, in the shape of one of the series, with fewer or other labels."""
    shape = random.choice(["same labels", "instance only", "no node label", "other cluster", "no instance"])
    model = random.choice(sorted({row.machine for row in world.metrics["CPU"]})) if "CPU" in world.metrics else ""
    world.reported.append(f"foreign machine like {model} ({shape})")
    host, address = FOREIGN
    machine = next((each for each in world.layout.machines if each.key == model), None)
    if machine is None:
        return
    for key, rows in world.metrics.items():
        for row in [row for row in rows if row.machine == model]:
            rows.append(Row(_foreign(row.labels, machine, host, address, shape), "stranger", _foreign_value(key)))
    for row in [row for row in world.facts["node_uname_info"] if row.machine == model]:
        labels = {**_foreign(row.labels, machine, host, address, shape), "nodename": host}
        world.facts["node_uname_info"].append(Row(labels, "stranger", 1.0))


def _foreign(labels: Mapping[str, str], machine: Machine, host: str, address: str, shape: str) -> dict[str, str]:
    addresses = [each for each in (machine.address, machine.address6, machine.pod_address) if each]
    names = (machine.name, machine.host, machine.kernel, *addresses)
    found = {}
    for label, text in labels.items():
        changed = text.replace(exporter_pod(machine), "another-pod")
        for name in names:
            new = address if name in addresses and ":" not in name else host
            changed = changed.replace(name, new)
        found[label] = changed
    if shape == "instance only":
        return {name: text for name, text in found.items() if name in ("__name__", "instance", "job", "device")}
    if shape == "no node label":
        gone = ("node", "kubernetes_node", "node_name", "Hostname", "pod")
        return {name: text for name, text in found.items() if name not in gone}
    if shape == "other cluster":
        return {**found, "cluster": "elsewhere"}
    if shape == "no instance":
        return {name: text for name, text in found.items() if "instance" not in name}
    return found


def _foreign_value(key: str) -> float:
    return {"CPU": FOREIGN_LOAD, "Storage": FOREIGN_LOAD, "GPU": 97.0, "EnergyPackage": 997.0}.get(key, 97e6)


def _rename_label(world: World, random: Random) -> None:
    rows = random.choice([rows for rows in world.groups() if rows])
    names = sorted({name for row in rows for name in row.labels} - {"__name__"})
    name = random.choice(names) if names else "__name__"
    to = random.choice([f"exported_{name}", f"{name}_2", "hostname", "node_name", "machine"])
    whole = random.random() < 0.5
    chosen = range(len(rows)) if whole else [random.randrange(len(rows))]
    world.reported.append(f"rename {name} to {to} of {'all' if whole else rows[chosen[0]].labels}")
    for i in chosen:
        labels = rows[i].labels
        if to not in labels:
            rows[i] = replace(rows[i], labels={(to if key == name else key): text for key, text in labels.items()})


def _restart_exporter(world: World, random: Random) -> None:
    """A new pod of the exporter; series of the old one have ended or have their last value."""
    machine = random.choice(world.layout.machines)
    pod, address = exporter_pod(machine), machine.pod_address
    lingering = random.random() < 0.5
    world.reported.append(f"restart exporter of {machine.key}, old series {'linger' if lingering else 'end'}")
    for rows in world.groups():
        for i, row in enumerate(list(rows)):
            new = {
                name: text.replace(pod, f"{pod}n").replace(address, NEW_ADDRESS) for name, text in row.labels.items()
            }
            if row.machine == machine.key and new != row.labels:
                rows.append(replace(row, labels=new))
                rows[i] = row if lingering else replace(row, value=None)


def _swap_instances(world: World, random: Random) -> None:
    """Two series of a metric have each other's instance."""
    rows = world.metrics[random.choice(sorted(world.metrics))]
    having = [i for i, row in enumerate(rows) if row.labels.get("instance")]
    if len(having) < 2:
        return
    i, j = random.sample(having, 2)
    world.reported.append(f"swap instances of {rows[i].labels} and {rows[j].labels}")
    one, other = rows[i].labels["instance"], rows[j].labels["instance"]
    rows[i] = replace(rows[i], labels={**rows[i].labels, "instance": other})
    rows[j] = replace(rows[j], labels={**rows[j].labels, "instance": one})


def _not_a_number(world: World, random: Random) -> None:
    rows = world.metrics[random.choice(sorted(world.metrics))]
    i = random.randrange(len(rows))
    world.reported.append(f"NaN in {rows[i].labels}")
    rows[i] = replace(rows[i], value=math.nan)


def _stale_marker(world: World, random: Random) -> None:
    rows = random.choice([rows for rows in world.groups() if rows])
    i = random.randrange(len(rows))
    world.reported.append(f"end of {rows[i].labels}")
    rows[i] = replace(rows[i], value=None)


MUTATIONS: tuple[Callable[[World, Random], None], ...] = (
    _drop_label,
    _duplicate_job,
    _foreign_machine,
    _rename_label,
    _restart_exporter,
    _swap_instances,
    _not_a_number,
    _stale_marker,
)


def mutate(world: World, random: Random) -> World:
    """The world after one to three mutations."""
    copied = World(
        world.layout,
        {key: list(rows) for key, rows in world.metrics.items()},
        {name: list(rows) for name, rows in world.facts.items()},
    )
    for _ in range(random.choice((1, 1, 2, 3))):
        random.choice(MUTATIONS)(copied, random)
    return copied


# --- naming and reduction --------------------------------------------------------------------------------------------


@dataclass
class Judged:
    """What the product makes of a metric: the load of each node, its findings, and the node of each row."""

    loads: Mapping[str, float]
    findings: Sequence[Finding]
    found: Identities
    rows: Sequence[Row]


def evidence_of(world: World) -> NamingEvidence:
    """The evidence that a world has: the nodes of the API, or of kube-state-metrics."""
    facts = {name: [row for row in rows if row.value is not None] for name, rows in world.facts.items()}
    if world.layout.api:
        nodes = [_known(machine) for machine in world.layout.nodes]
    else:
        every = [
            row
            for name in ("kube_node_info", "ready", "kube_node_created", "kube_node_status_addresses")
            for row in facts[name]
        ]
        nodes = known_nodes([(row.labels, row.value or 0.0) for row in every])
    index = NodeIndex(nodes) if nodes else None
    host_names = [row.labels for row in facts["node_uname_info"]]
    idle = [IdleReading(row.labels, UP_S * (row.value or 0.0), NOW) for row in facts.get("idle", ())]
    return NamingEvidence(index, host_names, [row.labels for row in facts["kube_pod_info"]], idle=idle)


def _known(machine: Machine) -> KnownNode:
    internal = [(Evidence.INTERNAL_IP.value, each) for each in (machine.address, machine.address6) if each]
    addresses = (*internal, (Evidence.HOSTNAME.value, machine.host))
    return KnownNode(machine.name, addresses, "", 1.7e9 + machine.number, machine.ready)


def judge(world: World, key: str) -> Judged:
    """The loads of one metric."""
    metric = METRIC_BY_KEY[key]
    rows = [row for row in world.metrics[key] if row.value is not None]
    labels = [row.labels for row in rows]
    if world.layout.source in ("influxdb1", "influxdb2"):
        found = _resolved(identify(labels, NamingEvidence(), configured="host"), evidence_of(world).nodes)
    else:
        configured = world.layout.set.get(f"provider.queries.{key}.node_label")
        found = identify(labels, evidence_of(world), configured=configured)
    batch = _batch(metric, rows, found, world)
    if batch is None:
        return Judged({}, (), found, rows)
    limits = ReviewSettings()
    cells, findings = combine(batch, resolution=RESOLUTION_S, limits=limits)
    reviewed = clean(metric, cells, now=NOW, limits=limits)
    kept = reviewed.cells
    loads = {kept.names[node]: float(value) for node, value in zip(kept.node, kept.value, strict=True)}
    return Judged(loads, (*findings, *reviewed.findings), found, rows)


def _resolved(found: Identities, index: NodeIndex | None) -> Identities:
    """The names of the source as the refresh resolves them to nodes."""
    if index is None:
        return found
    nodes = dict(zip(names := tuple({name for name in found.names if name}), index.resolve(names).nodes, strict=True))
    return replace(found, nodes=tuple(nodes[name] if name else None for name in found.names))


def _batch(metric: Metric, rows: Sequence[Row], found: Identities, world: World) -> SeriesBatch | None:
    named = [(row, node) for row, node in zip(rows, found.nodes, strict=True) if node is not None]
    if not named:
        return None
    factor = SOURCE_UNITS[_unit(metric.key, rows)][1]
    return SeriesBatch(
        metric,
        tuple(node for _, node in named),
        np.arange(len(named)),
        np.full(len(named), NOW - 5.0),
        np.array([factor * (math.nan if row.value is None else row.value) for row, _ in named]),
        tuple(metric.device_of(row.labels) for row, _ in named),
        tuple(metric.sharer_of(row.labels) for row, _ in named),
    )


def _unit(key: str, rows: Sequence[Row]) -> str:
    return next(unit for name, unit in DECODED[key] if name == rows[0].labels.get("__name__", name))
