"""A layout: one kind of installation as data, read from `layouts/NAME.yaml`, and what is true about it.

The file says which exporters an installation has, by which labels it scrapes them, which machines and pods there are
with what load, and what load-watcher must make of it. `series.py` turns it into series. Pure: no I/O but reading files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

LAYOUTS = Path(__file__).parent / "layouts"
GIB = 2.0**30
# Loads that differ between machines in each metric, so that a load under another machine's name shows. The first
# machine is hot.
CPU = (0.88, 0.22, 0.41, 0.13, 0.57, 0.31, 0.49, 0.66)
MEMORY = (0.35, 0.62, 0.27, 0.48, 0.71, 0.19, 0.55, 0.43)
TRANSMIT = (40e6, 12e6, 5e6, 21e6, 8e6, 3e6, 30e6, 17e6)
DISK = (0.30, 0.15, 0.45, 0.07, 0.22, 0.61, 0.37, 0.52)

Source = Literal["prometheus", "victoriametrics", "influxdb1", "influxdb2", "metrics-server"]


class Machine(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A machine and its load: shares of 1, bytes and packets per second, watts. `name` is the name of the Node object;
    `key` differs where two clusters have equal names; `kernel` is the host name of the kernel, where it is not that of
    the kubelet. A machine that is `outside` has no Node object."""

    name: str
    key: str = ""
    system: Literal["linux", "windows", "virtual"] = "linux"
    arch: str = "amd64"
    host: str = ""
    kernel: str = ""
    address: str = ""
    address6: str = ""
    pod_address: str = ""
    cluster: str = ""
    outside: bool = False
    ready: bool = True
    created: str = "2026-01-01T00:00:00Z"
    cpus: int = 4
    memory_gib: float = 16.0
    cpu: float = -1.0
    memory: float = -1.0
    transmit: float = -1.0
    disk: float = -1.0
    drops: float = -1.0
    gpus: tuple[float, ...] = ()
    watts: float = 120.0
    pressure: float = 0.0
    number: int = 0

    @property
    def receive(self) -> float:
        return 0.6 * self.transmit

    def truth(self) -> dict[str, float]:
        """What load-watcher must say, by key of the metric, in the unit of the metric."""
        known = {
            "CPU": 100.0 * self.cpu,
            "Memory": 100.0 * self.memory,
            "Storage": 100.0 * self.disk,
            "NetworkTransmit": self.transmit,
            "NetworkReceive": self.receive,
            "NetworkTransmitDrop": self.drops,
            "NetworkReceiveDrop": 0.5 * self.drops,
            "EnergyPackage": self.watts,
            "EnergyCore": 0.6 * self.watts,
            "EnergyDram": 0.2 * self.watts,
        }
        if self.pressure:
            known["PressureCPU"] = 100.0 * self.pressure
        return known | ({"GPU": sum(self.gpus) / len(self.gpus)} if self.gpus else {})


class Pod(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A pod: use and requests in cores and GiB; `sidecar` and `overhead` are cores requested beside its container,
    `whole` is what the pod requests as a whole (spec.resources)."""

    name: str
    node: str
    namespace: str = "shop"
    owner: str = "ReplicaSet/web-6d4cf56db6"
    cores: float = 0.5
    memory_gib: float = 0.5
    request: float = 1.0
    sidecar: float = 0.0
    overhead: float = 0.0
    whole: float = 0.0

    @property
    def requested(self) -> float:
        return (self.whole or self.request + self.sidecar) + self.overhead


class Scrape(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A job: an exporter, the labels of its targets (with {node}, {host}, {address}, {pod}, {pod_address}, {cluster}
    and others of the machine, as in series.py), and what is done to the labels of its series. As Prometheus does, a
    label of the exporter that the target has too becomes exported_LABEL, unless `honor_labels`. Without `targets`, all
    machines have the exporter; an exporter of the whole cluster runs on one of them."""

    exporter: str
    labels: dict[str, str] = {}
    honor_labels: bool = False
    targets: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    rename: dict[str, str] = {}
    options: dict[str, Any] = {}
    every: int = 15
    stopped_s: int = 0
    started_s: int = 0
    """Seconds since the first sample; 0 for one before the longest window."""


class Federation(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A Prometheus that scrapes /federate of the one with the jobs."""

    labels: dict[str, str]
    honor_labels: bool = False


class Expectation(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """What must come. `unknown` are nodes without load, `refused` are machines whose load must be under no name;
    `findings` are the kinds that must be there beside those that may; `doctor` is its worst result; `words` stand in
    the findings and in the doctor's lines. `no_pods` are nodes whose pods have no known usage."""

    metrics: tuple[str, ...] = ("CPU", "Memory", "Storage", "NetworkTransmit", "NetworkReceive")
    unknown: tuple[str, ...] = ()
    refused: bool = False
    findings: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    doctor: Literal["ok", "warn", "fail"] = "ok"
    report: bool = True
    pods: bool = True
    no_pods: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    """Nodes that are newer than the time of the report."""


class Layout(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The file. `versions` are those whose documentation or source, in `references`, has the labels. `set` has
    settings of load-watcher, as `--set` takes them. `external` are the label sets of the Prometheus servers that write
    to the source: each series is there once for each."""

    title: str
    about: str
    versions: dict[str, str]
    references: tuple[str, ...]
    machines: tuple[Machine, ...]
    scrapes: tuple[Scrape, ...] = ()
    name: str = ""
    source: Source = "prometheus"
    api: bool = True
    set: dict[str, str] = {}
    pods: tuple[Pod, ...] | None = None
    federation: Federation | None = None
    external: tuple[dict[str, str], ...] = ({},)
    expect: Expectation = Expectation()
    of_scraper: tuple[str, ...] = ()
    """Labels that name the machine of the scraper, and not that of the series."""
    prometheus_3: bool = False
    """Whether the source is a Prometheus 3, which `scripts/go-programs prometheus` builds."""
    wrong: str = ""
    """What is still wrong in load-watcher; the layout is then tried and not required."""

    @property
    def assigned(self) -> list[str]:
        """The settings as arguments of serve, doctor and report."""
        return [text for key, value in self.set.items() for text in ("--set", f"{key}={value}")]

    @property
    def nodes(self) -> tuple[Machine, ...]:
        """The machines with a Node object."""
        return tuple(machine for machine in self.machines if not machine.outside)

    def all_pods(self) -> tuple[Pod, ...]:
        """The pods of the file, or one of a Deployment and one of a DaemonSet for each node."""
        if self.pods is not None:
            return self.pods
        found = []
        for machine in self.nodes:
            if machine.system != "linux":
                continue
            used = machine.cpu * machine.cpus
            found += [
                Pod(
                    name=f"web-6d4cf56db6-{machine.number}x7k2",
                    node=machine.key,
                    cores=0.5 * used,
                    request=0.6 * used,
                ),
                Pod(
                    name=f"log-{machine.number}b9zq",
                    namespace="kube-system",
                    node=machine.key,
                    owner="DaemonSet/log",
                    cores=0.1 * used,
                    memory_gib=0.25,
                    request=0.1,
                ),
            ]
        return tuple(found)


def read_layout(path: Path) -> Layout:
    """Read a layout. Raises msgspec.ValidationError for what the file must not have."""
    layout = msgspec.yaml.decode(path.read_bytes(), type=Layout)
    layout.name = path.stem
    for i, machine in enumerate(layout.machines):
        machine.number = i + 1
        machine.key = machine.key or machine.name
        machine.host = machine.host or machine.name
        machine.kernel = machine.kernel or machine.host
        machine.address = machine.address or f"10.0.0.{i + 11}"
        machine.pod_address = machine.pod_address or f"10.244.{i + 1}.5"
        defaults: Mapping[str, float] = {
            "cpu": CPU[i % 8],
            "memory": MEMORY[i % 8],
            "transmit": TRANSMIT[i % 8],
            "disk": DISK[i % 8],
            "drops": 1.0 + i,
        }
        for name, value in defaults.items():
            if getattr(machine, name) < 0.0:
                setattr(machine, name, value)
    return layout


def read_layouts() -> dict[str, Layout]:
    """All layouts by name."""
    return {path.stem: read_layout(path) for path in sorted(LAYOUTS.glob("*.yaml"))}
