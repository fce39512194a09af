"""A realistic cluster: the load of N nodes over time, and its series in a Prometheus.

The same seed gives the same load. A node has its own level, a slow wave, autocorrelated noise, and bursts; a test that
needs a node at exactly 90 % overwrites that row before it makes the series:

 fleet = make_fleet(50, start=now - 960, end=now - 7, seed=1) fleet.cpu[3] = 0.9
prometheus.write(recording_rule_series(fleet))

Prometheus 2 counts a sample exactly at the start of a range and Prometheus 3 does not: end a few seconds before the
time of the query, as above, and both see the same samples.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.real.remote_write import Series

Floats = NDArray[np.float64]

DISKS = ("sda", "nvme0n1")
NETWORK_DEVICE = "eth0"
# The shares of the modes in the busy time of a CPU.
BUSY_MODES = {"user": 0.70, "system": 0.22, "softirq": 0.05, "nice": 0.03}
IDLE_MODES = {"idle": 0.985, "iowait": 0.015}

GIBIBYTE = 2.0**30


@dataclass
class Fleet:
    """The load of nodes over time; each array is [node, time] unless stated otherwise, and may be overwritten.

    A value is the mean over the step that ends at its time: a counter's rate between two samples is the later value.
    """

    nodes: list[str]
    times: Floats
    """Unix seconds, [time]."""
    cpu: Floats
    """Busy share of all CPUs, 0..1."""
    memory: Floats
    """Used share of the memory, 0..1."""
    receive: Floats
    """Bytes per second."""
    transmit: Floats
    """Bytes per second."""
    receive_drop: Floats
    """Packets per second."""
    transmit_drop: Floats
    """Packets per second."""
    disk: Floats
    """Busy share of each disk of DISKS, 0..1, [node, disk, time]."""
    memory_bytes: Floats
    """Size of the memory, [node]."""

    @property
    def step(self) -> float:
        """Seconds between two samples."""
        return float(self.times[1] - self.times[0]) if len(self.times) > 1 else 15.0


def node_names(count: int) -> list[str]:
    """node-0001, node-0002, …"""
    return [f"node-{number:04d}" for number in range(1, count + 1)]


def make_fleet(nodes: int | Sequence[str], *, start: float, end: float, step: float = 15.0, seed: int = 0) -> Fleet:
    """The load of nodes (a number, or their names) at `end`, `end - step`, … back to `start`."""
    names = node_names(nodes) if isinstance(nodes, int) else list(nodes)
    count = int(np.floor((end - start) / step + 1e-9)) + 1
    times = end - step * np.arange(count - 1, -1, -1, dtype=np.float64)
    random = np.random.default_rng(seed)
    busyness = random.beta(2.0, 4.0, size=(len(names), 1))
    cpu = np.clip(busyness + _swing(random, len(names), times) + _bursts(random, len(names), count), 0.01, 0.98)
    memory = np.clip(random.uniform(0.25, 0.8, (len(names), 1)) + 0.3 * _swing(random, len(names), times), 0.05, 0.97)
    traffic = np.exp(random.normal(16.0, 1.0, (len(names), 1))) * (0.3 + cpu) * random.uniform(0.8, 1.2, cpu.shape)
    disk = np.clip(
        random.uniform(0.0, 0.35, (len(names), len(DISKS), 1))
        + np.stack([_swing(random, len(names), times) for _ in DISKS], axis=1),
        0.0,
        1.0,
    )
    return Fleet(
        nodes=names,
        times=times,
        cpu=cpu,
        memory=memory,
        receive=traffic,
        transmit=traffic * random.uniform(0.3, 1.5, (len(names), 1)),
        receive_drop=random.poisson(0.02, cpu.shape).astype(np.float64),
        transmit_drop=random.poisson(0.01, cpu.shape).astype(np.float64),
        disk=disk,
        memory_bytes=GIBIBYTE * random.choice([16.0, 32.0, 64.0, 128.0], len(names)),
    )


def _swing(random: np.random.Generator, nodes: int, times: Floats) -> Floats:
    """A slow wave with a phase per node, and noise of which each value keeps 0.8 of the previous one; about ±0.15."""
    phase = random.uniform(0, 2 * np.pi, (nodes, 1))
    period = random.uniform(1200, 3600, (nodes, 1))
    wave = 0.08 * np.sin(2 * np.pi * times / period + phase)
    noise = random.normal(0.0, 0.02, (nodes, len(times)))
    for column in range(1, len(times)):
        noise[:, column] += 0.8 * noise[:, column - 1]
    return np.asarray(wave + noise)


def _bursts(random: np.random.Generator, nodes: int, count: int) -> Floats:
    """At about every hundredth sample, a node jumps by up to 0.4 and returns over the next samples."""
    bursts = random.uniform(0.1, 0.4, (nodes, count)) * (random.random((nodes, count)) < 0.01)
    for column in range(1, count):
        bursts[:, column] = np.maximum(bursts[:, column], 0.6 * bursts[:, column - 1])
    return bursts


Labels = Callable[[str], Mapping[str, str]]
"""Maps a node's name to the labels of its series."""


def by_instance(node: str) -> dict[str, str]:
    """`instance` is the node's name, as the Go load-watcher expects it."""
    return {"instance": node, "job": "node-exporter"}


def by_node_label(node: str) -> dict[str, str]:
    """`instance` is an address, and `node` the node's name, as kube-prometheus relabels it."""
    number = sum(ord(letter) * 31**place for place, letter in enumerate(reversed(node)))
    address = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}:9100"
    return {"instance": address, "node": node, "job": "node-exporter"}


def recording_rule_series(fleet: Fleet, *, labels: Labels = by_instance) -> list[Series]:
    """The series of the recording rules of kube-prometheus and the node mixin: eight series per node.

    The values are the fleet's own, not averaged over five minutes, so that a test can state the expected window.
    """
    rules = {
        "instance:node_cpu:ratio": fleet.cpu,
        "instance:node_memory_utilisation:ratio": fleet.memory,
        "instance:node_network_receive_bytes:rate:sum": fleet.receive,
        "instance:node_network_transmit_bytes:rate:sum": fleet.transmit,
        "instance:node_network_receive_drop_excluding_lo:rate5m": fleet.receive_drop,
        "instance:node_network_transmit_drop_excluding_lo:rate5m": fleet.transmit_drop,
    }
    series = []
    for row, node in enumerate(fleet.nodes):
        own = labels(node)
        for name, values in rules.items():
            series.append(Series({"__name__": name, **own}, fleet.times, values[row]))
        for disk, device in enumerate(DISKS):
            name = "instance_device:node_disk_io_time_seconds:rate5m"
            series.append(Series({"__name__": name, **own, "device": device}, fleet.times, fleet.disk[row, disk]))
    return series


def node_exporter_series(
    fleet: Fleet, *, labels: Labels = by_instance, cpus: int = 4, uname: bool = False
) -> list[Series]:
    """The series of node exporters: counters of CPU time, network and disks, and the two sizes of the memory.

    Six modes for each CPU, whose times add up to the wall time; `uname` adds `node_uname_info` with the node's name in
    `nodename`, for clusters in which no other label has it.
    """
    return list(_node_exporter_series(fleet, labels, cpus, uname))


def _node_exporter_series(fleet: Fleet, labels: Labels, cpus: int, uname: bool) -> Iterator[Series]:
    # Nodes have different boot times, so counters of two nodes are never equal.
    uptime = 3600.0 * (5.0 + np.arange(len(fleet.nodes)) % 97)

    def counter(rate: Floats) -> Floats:
        return np.asarray(uptime[:, np.newaxis] * rate[:, :1] + np.cumsum(rate, axis=1) * fleet.step)

    busy, idle = counter(fleet.cpu), counter(1.0 - fleet.cpu)
    counters = {
        ("node_network_receive_bytes_total", NETWORK_DEVICE): counter(fleet.receive),
        ("node_network_transmit_bytes_total", NETWORK_DEVICE): counter(fleet.transmit),
        ("node_network_receive_drop_total", NETWORK_DEVICE): counter(fleet.receive_drop),
        ("node_network_transmit_drop_total", NETWORK_DEVICE): counter(fleet.transmit_drop),
        ("node_network_receive_bytes_total", "lo"): counter(np.full_like(fleet.receive, 1000.0)),
        ("node_network_transmit_bytes_total", "lo"): counter(np.full_like(fleet.receive, 1000.0)),
        ("node_network_receive_drop_total", "lo"): counter(np.zeros_like(fleet.receive)),
        ("node_network_transmit_drop_total", "lo"): counter(np.zeros_like(fleet.receive)),
    }
    for disk, device in enumerate(DISKS):
        counters["node_disk_io_time_seconds_total", device] = counter(fleet.disk[:, disk])
    for row, node in enumerate(fleet.nodes):
        own = labels(node)
        for cpu in range(cpus):
            for spent, modes in ((busy[row], BUSY_MODES), (idle[row], IDLE_MODES)):
                for mode, share in modes.items():
                    name = {"__name__": "node_cpu_seconds_total", **own, "cpu": str(cpu), "mode": mode}
                    yield Series(name, fleet.times, spent * share)
        total = np.full_like(fleet.times, fleet.memory_bytes[row])
        yield Series({"__name__": "node_memory_MemTotal_bytes", **own}, fleet.times, total)
        available = np.round(total * (1.0 - fleet.memory[row]))
        yield Series({"__name__": "node_memory_MemAvailable_bytes", **own}, fleet.times, available)
        for (metric, device), values in counters.items():
            yield Series({"__name__": metric, **own, "device": device}, fleet.times, values[row])
        if uname:
            information = {"__name__": "node_uname_info", **own, "nodename": node, "sysname": "Linux"}
            yield Series(information, fleet.times, np.ones_like(fleet.times))


def between(series: Sequence[Series], after: float, until: float) -> list[Series]:
    """The part of series with after < time <= until: for a history up to one time, and its continuation later."""
    parts = []
    for labels, times, values in series:
        seconds = np.asarray(times)
        chosen = (seconds > after) & (seconds <= until)
        if chosen.any():
            parts.append(Series(labels, seconds[chosen], np.asarray(values)[chosen]))
    return parts
