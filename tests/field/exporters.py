"""What exporters say about a machine or a cluster: metric names and labels as their documentation and sources have
them, before any Prometheus adds the labels of the target.

An exporter of machines is called with a machine, one of clusters with all of them; both with the layout and the options
of the job. To add one, write a function and add it to EXPORTERS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.field.layout import GIB, Layout, Machine, Pod

Kind = Literal["gauge", "rate", "unused rate", "constant"]


@dataclass(frozen=True, slots=True)
class Exposed:
    """A series of an exporter. A gauge varies around its value, a rate is that of a counter; `kept` are the labels of
    the target that a recording rule keeps, None for all."""

    name: str
    value: float
    kind: Kind = "gauge"
    labels: Mapping[str, str] = field(default_factory=dict)
    kept: tuple[str, ...] | None = None


Options = Mapping[str, Any]


# --- machines --------------------------------------------------------------------------------------------------------


def node_exporter(machine: Machine, layout: Layout, options: Options) -> Iterator[Exposed]:
    """prometheus/node_exporter: cpu, meminfo, netdev, diskstats, uname, pressure."""
    modes = {"user": 0.7 * machine.cpu, "system": 0.3 * machine.cpu, "iowait": 0.02, "steal": 0.01}
    modes = {mode: modes[mode] for mode in modes if mode not in options.get("without_modes", ())}
    modes["idle"] = 1.0 - sum(modes.values())
    for cpu in range(machine.cpus):
        for mode, share in modes.items():
            yield Exposed("node_cpu_seconds_total", share, "rate", {"cpu": str(cpu), "mode": mode})
    total = machine.memory_gib * GIB
    yield Exposed("node_memory_MemTotal_bytes", total, "constant")
    yield Exposed("node_memory_MemAvailable_bytes", total * (1.0 - machine.memory))
    for device, share in (("eth0", 0.75), ("eth1", 0.25), ("lo", 9.0)):
        for direction, rate in (("transmit", machine.transmit), ("receive", machine.receive)):
            yield Exposed(f"node_network_{direction}_bytes_total", share * rate, "rate", {"device": device})
        for direction, rate in (("transmit", machine.drops), ("receive", 0.5 * machine.drops)):
            yield Exposed(f"node_network_{direction}_drop_total", share * rate, "rate", {"device": device})
    for device, share in (("nvme0n1", 1.0), ("nvme1n1", 0.3)):
        yield Exposed("node_disk_io_time_seconds_total", share * machine.disk, "rate", {"device": device})
    arch = {"amd64": "x86_64", "arm64": "aarch64"}[machine.arch]
    names = {"nodename": machine.kernel, "sysname": "Linux", "machine": arch, "domainname": "(none)"}
    yield Exposed("node_uname_info", 1.0, "constant", names)
    if machine.pressure:
        yield Exposed("node_pressure_cpu_waiting_seconds_total", machine.pressure, "rate")


def _mixin(machine: Machine, rate: str) -> Iterator[Exposed]:
    """Rules of the node-exporter mixin; they keep the labels of the target."""
    yield Exposed(f"instance:node_cpu_utilisation:{rate}", machine.cpu, "unused rate")
    yield Exposed("instance:node_memory_utilisation:ratio", machine.memory)
    for direction, value in (("transmit", machine.transmit), ("receive", machine.receive)):
        yield Exposed(f"instance:node_network_{direction}_bytes_excluding_lo:{rate}", value)
    for direction, value in (("transmit", machine.drops), ("receive", 0.5 * machine.drops)):
        yield Exposed(f"instance:node_network_{direction}_drop_excluding_lo:{rate}", value)
    for device, share in (("nvme0n1", 1.0), ("nvme1n1", 0.3)):
        name = f"instance_device:node_disk_io_time_seconds:{rate}"
        yield Exposed(name, share * machine.disk, "gauge", {"device": device})


def node_rules(machine: Machine, layout: Layout, options: Options) -> Iterator[Exposed]:
    """Recording rules over the node exporter: of the mixin, with `rate` in their names, and of kube-prometheus
    (kube-prometheus-prometheusRule.yaml), whose sums keep `instance` alone."""
    yield from _mixin(machine, options.get("rate", "rate5m"))
    if options.get("kube_prometheus", True):
        yield Exposed("instance:node_cpu:ratio", machine.cpu)
        for direction, value in (("transmit", machine.transmit), ("receive", machine.receive)):
            yield Exposed(f"instance:node_network_{direction}_bytes:rate:sum", value, kept=("instance",))


def windows_exporter(machine: Machine, layout: Layout, options: Options) -> Iterator[Exposed]:
    """prometheus-community/windows_exporter: cpu, memory, net, os."""
    shares = {"user": 0.7 * machine.cpu, "privileged": 0.3 * machine.cpu, "idle": 1.0 - machine.cpu}
    for core in range(machine.cpus):
        for mode, share in shares.items():
            yield Exposed("windows_cpu_time_total", share, "rate", {"core": f"0,{core}", "mode": mode})
    total = machine.memory_gib * GIB
    yield Exposed("windows_memory_physical_total_bytes", total, "constant")
    yield Exposed("windows_memory_available_bytes", total * (1.0 - machine.memory))
    names = {"hostname": machine.host, "domain": "", "fqdn": machine.host}
    yield Exposed("windows_os_hostname", 1.0, "constant", names)
    for name, rate in (("sent", machine.transmit), ("received", machine.receive)):
        for nic, share in (("vEthernet", 0.75), ("Ethernet_2", 0.25)):
            yield Exposed(f"windows_net_bytes_{name}_total", share * rate, "rate", {"nic": nic})


def cadvisor(machine: Machine, layout: Layout, options: Options) -> Iterator[Exposed]:
    """/metrics/cadvisor of a kubelet: each container, the pause container, the cgroup of the pod and those above it.
    With cri-dockerd (`containers: false`) only the cgroup of the pod has labels of the pod."""
    pods = [pod for pod in layout.all_pods() if pod.node == machine.key]
    yield from _cgroup("/", machine.cpu * machine.cpus, machine.memory * machine.memory_gib, {})
    kubepods = sum(pod.cores for pod in pods)
    yield from _cgroup("/kubepods.slice", kubepods, sum(pod.memory_gib for pod in pods), {})
    for pod in pods:
        names = {"namespace": pod.namespace, "pod": pod.name}
        path = f"/kubepods.slice/kubepods-pod{pod.name}.slice"
        yield from _cgroup(path, pod.cores, pod.memory_gib, names)
        if options.get("containers", True):
            for container in ("main", "sidecar") if pod.sidecar else ("main",):
                share = 0.5 if pod.sidecar else 1.0
                own = {**names, "container": container, "image": "registry/app:1", "name": f"{container}{pod.name}"}
                yield from _cgroup(f"{path}/{container}", share * pod.cores, share * pod.memory_gib, own)
            pause = {**names, "image": "registry.k8s.io/pause:3.10", "name": f"pause{pod.name}"}
            pause |= {"container": "POD"} if options.get("pause") == "POD" else {}
            yield from _cgroup(f"{path}/pause", 0.0, 0.001, pause)


def _cgroup(path: str, cores: float, gib: float, labels: Mapping[str, str]) -> Iterator[Exposed]:
    yield Exposed("container_cpu_usage_seconds_total", cores, "rate", {"id": path, "cpu": "total", **labels})
    yield Exposed("container_memory_rss", gib * GIB, "gauge", {"id": path, **labels})


def dcgm(machine: Machine, layout: Layout, options: Options) -> Iterator[Exposed]:
    """NVIDIA/dcgm-exporter: a series for each GPU (or the first ones, `only`) and, where pods share a GPU, for each of
    them."""
    shared = int(options.get("shared_by", 1))
    for i, used in enumerate(machine.gpus[: options.get("only")]):
        own = {"gpu": str(i), "UUID": f"GPU-{machine.key}-{i}", "device": f"nvidia{i}",
               "pci_bus_id": f"00000000:{i:02X}:00.0", "modelName": "NVIDIA A100",
               "Hostname": machine.host}  # fmt: skip
        for k in range(shared if i == 0 else 1):
            pod = {"namespace": "ml", "pod": f"train-{machine.number}-{k}", "container": "main", "vgpu": str(k)}
            yield Exposed("DCGM_FI_DEV_GPU_UTIL", used, "gauge", own | (pod if shared > 1 and i == 0 else {}))


def kepler(machine: Machine, layout: Layout, options: Options) -> Iterator[Exposed]:
    """Kepler 0.10 and later (docs/user/metrics.md): one counter by zone; `packages` sockets."""
    packages = int(options.get("packages", 1))
    for zone, share in (("package", 1.0), ("core", 0.6), ("dram", 0.2)):
        for i in range(packages):
            path = f"/sys/class/powercap/intel-rapl:{i}" + ("" if zone == "package" else f"/{zone}")
            labels = {"zone": zone, "path": path, "node_name": machine.name}
            yield Exposed("kepler_node_cpu_joules_total", share * machine.watts / packages, "rate", labels)
            yield Exposed("kepler_node_cpu_watts", share * machine.watts / packages, "gauge", labels)
            # Parts of the same energy by state, which must not be added to it.
            for state, part in (("active", 0.7), ("idle", 0.3)):
                value = part * share * machine.watts / packages
                yield Exposed(f"kepler_node_cpu_{state}_joules_total", value, "rate", labels)


def kepler_old(machine: Machine, layout: Layout, options: Options) -> Iterator[Exposed]:
    """Kepler before 0.10: a counter for each zone, by package, source and mode."""
    for zone, share in (("package", 1.0), ("core", 0.6), ("dram", 0.2)):
        for mode, part in (("idle", 0.4), ("dynamic", 0.6)):
            labels = {"instance": machine.name, "package": "0", "source": "rapl", "mode": mode}
            yield Exposed(f"kepler_node_{zone}_joules_total", part * share * machine.watts, "rate", labels)


def otel_host(machine: Machine, layout: Layout, options: Options) -> Iterator[Exposed]:
    """hostmetrics and kubeletstats receivers of the OpenTelemetry collector: names and attributes with dots, or with
    underscores and the suffixes of units (`translated`)."""
    translated = options.get("translated", True)

    def name(text: str, suffix: str = "") -> str:
        return text.replace(".", "_") + suffix if translated else text

    own = {name("k8s.node.name"): machine.name, name("host.name"): machine.host}
    yield Exposed(name("system.cpu.utilization", "_ratio"), machine.cpu, "gauge", own)
    yield Exposed(name("system.memory.utilization", "_ratio"), machine.memory, "gauge", own | {"state": "used"})


# --- clusters --------------------------------------------------------------------------------------------------------


def kube_state_metrics(layout: Layout, options: Options) -> Iterator[tuple[Machine, Exposed]]:
    """kube-state-metrics: nodes, pods and their requests; node, namespace and pod are those of the object."""
    by_key = {machine.key: machine for machine in layout.nodes}
    for machine in layout.nodes:
        for exposed in _node_state(machine):
            yield machine, exposed
    for pod in layout.all_pods():
        if pod.node in by_key:
            for exposed in _pod_state(pod, by_key[pod.node]):
                yield by_key[pod.node], exposed
    for machine in layout.nodes if options.get("exporter_pods", True) else ():
        labels = {"namespace": "monitoring", "pod": exporter_pod(machine), "node": machine.name,
                  "host_ip": machine.address, "pod_ip": machine.pod_address, "uid": f"uid-{exporter_pod(machine)}",
                  "created_by_kind": "DaemonSet", "created_by_name": "node-exporter"}  # fmt: skip
        yield machine, Exposed("kube_pod_info", 1.0, "constant", labels)


def _node_state(machine: Machine) -> Iterator[Exposed]:
    node = {"node": machine.name}
    info = {**node, "internal_ip": machine.address, "kernel_version": "6.8.0", "os_image": "Linux",
            "container_runtime_version": "containerd://2.1.0", "kubelet_version": "v1.34.1",
            "system_uuid": f"uuid-{machine.number}", "provider_id": "", "pod_cidr": ""}  # fmt: skip
    yield Exposed("kube_node_info", 1.0, "constant", info)
    yield Exposed("kube_node_created", 1.7e9 + machine.number, "constant", node)
    for status in ("true", "false", "unknown"):
        value = float(status == ("true" if machine.ready else "unknown"))
        yield Exposed("kube_node_status_condition", value, "constant", {**node, "condition": "Ready", "status": status})
    addresses = (("InternalIP", machine.address), ("InternalIP", machine.address6), ("Hostname", machine.host))
    for kind, address in (each for each in addresses if each[1]):
        yield Exposed("kube_node_status_addresses", 1.0, "constant", {**node, "type": kind, "address": address})
    for part, share in (("capacity", 1.0), ("allocatable", 0.95)):
        for resource, unit, size in (("cpu", "core", machine.cpus), ("memory", "byte", machine.memory_gib * GIB)):
            labels = {**node, "resource": resource, "unit": unit}
            yield Exposed(f"kube_node_status_{part}", share * size, "constant", labels)


def _pod_state(pod: Pod, machine: Machine) -> Iterator[Exposed]:
    own = {"namespace": pod.namespace, "pod": pod.name, "uid": f"uid-{pod.name}"}
    kind, _, owner = pod.owner.partition("/")
    placed = {**own, "node": machine.name, "host_ip": machine.address, "pod_ip": f"10.244.{machine.number}.9"}
    yield Exposed("kube_pod_info", 1.0, "constant", {**placed, "created_by_kind": kind, "created_by_name": owner})
    yield Exposed("kube_pod_owner", 1.0, "constant", {**own, "owner_kind": kind, "owner_name": owner})
    yield Exposed("kube_pod_status_phase", 1.0, "constant", {**own, "phase": "Running"})
    requested = (("container", "main", pod.request), ("init_container", "proxy", pod.sidecar))
    for which, container, cores in requested:
        for resource, unit, size in (("cpu", "core", cores), ("memory", "byte", 0.25 * GIB)):
            if cores:
                labels = {**own, "node": machine.name, "container": container, "resource": resource, "unit": unit}
                yield Exposed(f"kube_pod_{which}_resource_requests", size, "constant", labels)
    if pod.sidecar:
        labels = {**own, "container": "proxy", "restart_policy": "Always", "image": "proxy:1"}
        yield Exposed("kube_pod_init_container_info", 1.0, "constant", labels)
    if pod.overhead:
        yield Exposed("kube_pod_overhead_cpu_cores", pod.overhead, "constant", {**own, "runtimeclass_name": "kata"})


def kube_scheduler(layout: Layout, options: Options) -> Iterator[tuple[Machine, Exposed]]:
    """/metrics/resources of kube-scheduler: the effective request of each pod."""
    by_key = {machine.key: machine for machine in layout.nodes}
    for pod in layout.all_pods():
        labels = {"namespace": pod.namespace, "pod": pod.name, "node": by_key[pod.node].name, "priority": "0",
                  "scheduler": "default-scheduler"}  # fmt: skip
        for resource, unit, size in (("cpu", "cores", pod.requested), ("memory", "bytes", 0.25 * GIB)):
            own = {**labels, "resource": resource, "unit": unit}
            yield by_key[pod.node], Exposed("kube_pod_resource_request", size, "constant", own)


def exporter_pod(machine: Machine) -> str:
    """The name of the pod of an exporter on a machine."""
    return f"node-exporter-{machine.number}x7k2"


EXPORTERS: Mapping[str, Callable[[Machine, Layout, Options], Iterator[Exposed]]] = {
    "node": node_exporter,
    "node-rules": node_rules,
    "windows": windows_exporter,
    "cadvisor": cadvisor,
    "dcgm": dcgm,
    "kepler": kepler,
    "kepler-old": kepler_old,
    "otel": otel_host,
}
"""Exporters with one target for each machine."""
OF_THE_CLUSTER: Mapping[str, Callable[[Layout, Options], Iterator[tuple[Machine, Exposed]]]] = {
    "state": kube_state_metrics,
    "scheduler": kube_scheduler,
}
"""Exporters with one target."""
SYSTEMS = {"windows": ("windows",)}
"""The systems that an exporter runs on, Linux where it is not named."""
