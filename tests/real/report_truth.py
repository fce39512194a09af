"""Clusters with a known load, as blocks of a Prometheus, and the figures that a report must find.

The load is piecewise constant over GRID_S seconds. All counters are exact integrals of it, at scrape times that are
different for each target; so each figure follows from the arrays, without a Prometheus.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.real.parts import Prometheus, run_program

Array = NDArray[np.float64]

GRID_S = 10
DAY_S = 86400
BEGINS = 20_000 * DAY_S
MEAN_S = 300
"""The load of a node is the mean of this many seconds, as in the recording rules of the node exporter."""
GIB = float(1 << 30)
CORES, MEMORY, ALLOCATABLE = 8.0, 32 * GIB, 0.95
SYSTEM = 0.16
"""Cores that the system of each node uses."""
CPUS = 2
"""CPUs in the node exporter's series."""


@dataclass(frozen=True)
class TruePod:
    """A pod with its cores in each grid interval, 0 where it does not exist; `restarts` are seconds after the begin at
    which its container starts again, with a new ID."""

    name: str
    node: str
    owner: tuple[str, str]
    cores: Array
    lives: NDArray[np.bool_]
    requested: float = 0.5
    restarts: tuple[float, ...] = ()
    namespace: str = "shop"

    @property
    def workload(self) -> str:
        kind, name = self.owner
        if kind == "ReplicaSet":
            return f"Deployment/{name.rpartition('-')[0]}"
        return f"CronJob/{name.rpartition('-')[0]}" if kind == "Job" else f"{kind}/{name}"


@dataclass(frozen=True)
class TrueNode:
    """A node: when it exists, the times at which it gets another address, and when cAdvisor is not scraped."""

    name: str
    up: NDArray[np.bool_]
    addresses: tuple[tuple[float, str], ...]
    unscraped: tuple[float, float] | None = None


@dataclass(frozen=True)
class TrueCluster:
    """Nodes and pods over `days`; `cluster` is the label of all series, "" for none."""

    days: float
    nodes: tuple[TrueNode, ...]
    pods: tuple[TruePod, ...]
    cluster: str = ""
    memory: Mapping[str, Array] = field(default_factory=dict)

    @property
    def ends(self) -> int:
        return BEGINS + round(self.days * DAY_S)

    # --- figures ------------------------------------------------------------------------------------------------------

    def used(self, node: TrueNode) -> Array:
        """Cores by grid interval; NaN while the node does not exist."""
        total = np.full(len(node.up), SYSTEM)
        for pod in self.pods:
            if pod.node == node.name:
                total = total + pod.cores
        return np.where(node.up, np.minimum(total, CORES), np.nan)

    def utilization(self, node: TrueNode) -> Array:
        """Percent of capacity: the mean of the MEAN_S seconds before the end of each grid interval."""
        width = MEAN_S // GRID_S
        used = self.used(node)
        sums = np.cumsum(np.concatenate([[0.0], np.nan_to_num(used)]))
        counts = np.cumsum(np.concatenate([[0.0], np.isfinite(used)]))
        first = np.maximum(np.arange(len(used)) + 1 - width, 0)
        last = np.arange(len(used)) + 1
        with np.errstate(invalid="ignore"):
            means = (sums[last] - sums[first]) / (counts[last] - counts[first])
        return np.where(node.up, 100.0 * means / CORES, np.nan)

    def hot(self, node: TrueNode, threshold: float = 80.0) -> NDArray[np.bool_]:
        return np.asarray(self.utilization(node) > threshold)

    def hot_hours(self, node: TrueNode) -> float:
        return float(np.count_nonzero(self.hot(node)) * GRID_S / 3600.0)

    def bursts(self, node: TrueNode) -> int:
        """How often the node becomes hot."""
        return int(np.count_nonzero(np.diff(self.hot(node).astype(np.int8)) > 0))

    def workloads(self) -> dict[str, tuple[float, float, float]]:
        """Mean cores, share of the load of all pods, and share of it on hot nodes while they are hot."""
        hot = {node.name: self.hot(node) for node in self.nodes}
        mean: dict[str, float] = {}
        heat: dict[str, float] = {}
        for pod in self.pods:
            mean[pod.workload] = mean.get(pod.workload, 0.0) + float(pod.cores.mean())
            heat[pod.workload] = heat.get(pod.workload, 0.0) + float(pod.cores[hot[pod.node]].sum())
        total, hottest = sum(mean.values()), sum(heat.values()) or np.nan
        return {name: (mean[name], mean[name] / total, heat[name] / hottest) for name in mean}


# --- series ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scraping:
    """How the series are made: the scrape interval in seconds, and whether recording rules exist."""

    interval: float = 30.0
    rules: bool = True
    counters: bool = False
    capacity: bool = True


Line = tuple[str, Mapping[str, str], Array, Array]
"""Name, labels, times, and values of a series."""


def series(truth: TrueCluster, scraping: Scraping, seed: int = 1) -> Iterator[Line]:
    random = np.random.default_rng(seed)
    own = {"cluster": truth.cluster} if truth.cluster else {}
    for node in truth.nodes:
        for name, labels, times, values in _of_node(truth, node, scraping, random.uniform(0.0, scraping.interval)):
            yield name, {**labels, **own}, times, values
        for name, labels, times, values in _of_pods(truth, node, scraping, random.uniform(0.0, scraping.interval)):
            yield name, {**labels, **own}, times, values
    for name, labels, times, values in _of_state(truth, scraping):
        yield name, {**labels, **own}, times, values


def _times(truth: TrueCluster, every: float, offset: float = 0.0) -> Array:
    found: Array = np.arange(BEGINS + offset, truth.ends + 1.0, every)
    return found


def _at(grid: Array, times: Array) -> Array:
    """The integral of a load (per second) up to each time."""
    edges = BEGINS + GRID_S * np.arange(len(grid) + 1)
    return np.interp(times, edges, np.concatenate([[0.0], np.cumsum(grid) * GRID_S]))


def _during(mask: NDArray[np.bool_], times: Array) -> NDArray[np.bool_]:
    place = np.clip(((times - BEGINS) // GRID_S).astype(np.int64), 0, len(mask) - 1)
    return np.asarray(mask[place])


def _of_node(truth: TrueCluster, node: TrueNode, scraping: Scraping, offset: float) -> Iterator[Line]:
    busy = np.nan_to_num(truth.used(node)) / CORES
    memory = truth.memory.get(node.name, np.full(len(busy), 0.5))
    for i, (since, address) in enumerate(node.addresses):
        until = node.addresses[i + 1][0] if i + 1 < len(node.addresses) else truth.days * DAY_S + 1.0
        labels = {"node": node.name, "instance": f"{address}:9100", "job": "node-exporter"}

        def part(times: Array, since: float = since, until: float = until) -> Array:
            inside = (times >= BEGINS + since) & (times < BEGINS + until) & _during(node.up, times)
            return times[inside]

        scraped = part(_times(truth, scraping.interval, offset))
        if scraping.rules:
            evaluated = part(_times(truth, 30.0, 7.0))
            edges = BEGINS + since
            first = np.maximum(evaluated - MEAN_S, edges)
            values = (_at(busy, evaluated) - _at(busy, first)) / np.maximum(evaluated - first, 1.0)
            yield "instance:node_cpu:ratio", labels, evaluated, values
            yield (
                "instance:node_memory_utilisation:ratio",
                labels,
                evaluated,
                memory[((evaluated - BEGINS) // GRID_S).astype(np.int64).clip(0, len(memory) - 1)],
            )
        if scraping.counters:
            for cpu in map(str, range(CPUS)):
                for mode, share in (("user", busy), ("idle", 1.0 - busy)):
                    values = _at(share, scraped) - _at(share, np.array([BEGINS + since]))
                    yield "node_cpu_seconds_total", {**labels, "cpu": cpu, "mode": mode}, scraped, values
            place = ((scraped - BEGINS) // GRID_S).astype(np.int64).clip(0, len(memory) - 1)
            yield "node_memory_MemTotal_bytes", labels, scraped, np.full(len(scraped), MEMORY)
            yield "node_memory_MemAvailable_bytes", labels, scraped, MEMORY * (1.0 - memory[place])


def _of_pods(truth: TrueCluster, node: TrueNode, scraping: Scraping, offset: float) -> Iterator[Line]:
    times = _times(truth, scraping.interval, offset)
    if node.unscraped is not None:
        low, high = node.unscraped
        times = times[(times < BEGINS + low) | (times >= BEGINS + high)]
    labels = {"node": node.name, "instance": f"{node.addresses[-1][1]}:10250", "job": "kubelet"}
    alive = times[_during(node.up, times)]
    yield "machine_cpu_cores", labels, alive, np.full(len(alive), CORES)
    for pod in truth.pods:
        if pod.node != node.name:
            continue
        lives = times[_during(pod.lives, times)]
        of_pod = {**labels, "namespace": pod.namespace, "pod": pod.name}
        begins = BEGINS + GRID_S * int(np.argmax(pod.lives))
        yield (
            "container_cpu_usage_seconds_total", {**of_pod, "id": f"/kubepods/pod{pod.name}"}, lives,
            _at(pod.cores, lives),
        )  # fmt: skip
        starts = [float(begins), *(BEGINS + each for each in pod.restarts), truth.ends + 1.0]
        for i, (low, high) in enumerate(itertools.pairwise(starts)):
            own = lives[(lives >= low) & (lives < high)]
            values = _at(pod.cores, own) - _at(pod.cores, np.array([low]))
            of_container = {**of_pod, "container": "main", "id": f"/kubepods/pod{pod.name}/{i}"}
            yield "container_cpu_usage_seconds_total", of_container, own, values
            yield "container_memory_rss", of_container, own, np.full(len(own), 0.5 * GIB)


def _of_state(truth: TrueCluster, scraping: Scraping) -> Iterator[Line]:
    times = _times(truth, 60.0, 11.0)
    job = {"job": "kube-state-metrics", "instance": "10.9.9.9:8080"}
    for node in truth.nodes:
        up = times[_during(node.up, times)]
        for resource, unit, size in (("cpu", "core", CORES), ("memory", "byte", MEMORY)):
            labels = {**job, "node": node.name, "resource": resource, "unit": unit}
            if scraping.capacity:
                yield "kube_node_status_capacity", labels, up, np.full(len(up), size)
            yield "kube_node_status_allocatable", labels, up, np.full(len(up), ALLOCATABLE * size)
    for pod in truth.pods:
        lives = times[_during(pod.lives, times)]
        own = {**job, "namespace": pod.namespace, "pod": pod.name}
        kind, owner = pod.owner
        info = {**own, "node": pod.node, "created_by_kind": kind, "created_by_name": owner}
        yield "kube_pod_info", info, lives, np.ones(len(lives))
        yield "kube_pod_status_phase", {**own, "phase": "Running"}, lives, np.ones(len(lives))
        for resource, unit, size in (("cpu", "core", pod.requested), ("memory", "byte", GIB)):
            labels = {**own, "node": pod.node, "container": "main", "resource": resource, "unit": unit}
            yield "kube_pod_container_resource_requests", labels, lives, np.full(len(lives), size)


# --- blocks ----------------------------------------------------------------------------------------------------------


def prometheus_of(folder: Path, lines: Iterator[Line], days: float) -> Prometheus:
    """A Prometheus that has these series in blocks, not started."""
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "series.om"
    with text.open("w") as file:
        for name, labels, times, values in lines:
            whole = ",".join(f'{label}="{value}"' for label, value in labels.items())
            start = f"{name}{{{whole}}} "
            pairs = zip(values.tolist(), times.tolist(), strict=True)
            file.writelines(f"{start}{value!r} {time:.3f}\n" for value, time in pairs)
        file.write("# EOF\n")
    blocks = f"{2 ** int(np.ceil(np.log2(24 * days))) * 2}h"
    made = run_program(
        "promtool", "tsdb", "create-blocks-from", "--max-block-duration", blocks, "openmetrics", text, folder / "tsdb"
    )
    assert made.returncode == 0, made.stdout
    text.unlink()
    return Prometheus(folder, flags=["--storage.tsdb.retention.time=100y"], remote_write=False)


# --- loads -----------------------------------------------------------------------------------------------------------


def seconds(days: float) -> Array:
    """The middle of each grid interval, in seconds after the begin."""
    return np.asarray(GRID_S * (np.arange(round(days * DAY_S) // GRID_S) + 0.5), dtype=np.float64)


def periodic(days: float, cores: float, *, every: float, lasts: float, offset: float = 0.0) -> Array:
    """`cores` in the first `lasts` of every `every` seconds, else 0."""
    return np.where((seconds(days) - offset) % every < lasts, cores, 0.0)


def daily(days: float, cores: float, *, since_h: float, until_h: float, else_: float) -> Array:
    hour = seconds(days) / 3600.0 % 24.0
    return np.where((hour >= since_h) & (hour < until_h), cores, else_)


def noisy(days: float, cores: float, seed: int) -> Array:
    """Levels of five minutes to an hour."""
    random = np.random.default_rng(seed)
    lengths = random.integers(30, 360, size=round(days * 300))
    levels = random.gamma(2.0, cores / 2.0, size=len(lengths))
    found: Array = np.repeat(levels, lengths)[: round(days * DAY_S) // GRID_S]
    return np.asarray(np.minimum(found, 2.0))


def pods_of(name: str, node: str, cores: Array, **more: object) -> TruePod:
    """A pod of a Deployment that lives all the time."""
    owner = ("ReplicaSet", f"{name}-6d4b75c9f8")
    given = TruePod(f"{name}-6d4b75c9f8-{node[-1]}abcd", node, owner, cores, np.ones(len(cores), dtype=np.bool_))
    return replace(given, **more)  # type: ignore[arg-type]


def jobs(days: float, node: str, cores: float, *, every_s: float, lasts_s: float, offset_s: float) -> list[TruePod]:
    """The pods of a CronJob, one after another."""
    at = seconds(days)
    found = []
    for i, begin in enumerate(np.arange(offset_s, days * DAY_S - lasts_s, every_s).tolist()):
        lives = (at >= begin) & (at < begin + lasts_s)
        name = f"backup-{29000000 + i}"
        found.append(TruePod(f"{name}-x{i:03d}a", node, ("Job", name), np.where(lives, cores, 0.0), lives, 1.0))
    return found


def hard_cluster(days: float = 2.0, *, offset: float = 0.0, cluster: str = "", scale: float = 1.0) -> TrueCluster:
    """Loads that samples with gaps between them miss: bursts, jobs, restarts, a node that is created again, one that
    ends, and one whose cAdvisor is not scraped for three hours."""
    grid = round(days * DAY_S) // GRID_S
    always = np.ones(grid, dtype=np.bool_)
    at = seconds(days)
    recreated = (at < 0.4 * days * DAY_S) | (at >= 0.4 * days * DAY_S + 5400)
    ended = at < 0.63 * days * DAY_S
    names = [f"node-{i}" for i in range(1, 7)]
    address: list[tuple[tuple[float, str], ...]] = [((0.0, f"10.0.0.{i}"),) for i in range(1, 7)]
    address[3] = ((0.0, "10.0.0.4"), (0.4 * days * DAY_S, "10.0.0.44"))
    gap = (0.5 * days * DAY_S + 500.0, 0.5 * days * DAY_S + 500.0 + 3 * 3600)
    ups = [always, always, always, recreated, always, ended]
    nodes = tuple(
        TrueNode(name, up, where, gap if i == 4 else None)
        for i, (name, up, where) in enumerate(zip(names, ups, address, strict=True))
    )
    pods = [
        # 86 % of the load of its node, in the first ten of every fifteen minutes
        pods_of("burst", "node-1", scale * periodic(days, 6.6, every=900, lasts=600, offset=offset), requested=1.0),
        pods_of("hourly", "node-1", periodic(days, 1.8, every=3600, lasts=300, offset=600 + offset)),
        pods_of("morning", "node-2", daily(days, 6.8, since_h=9.04, until_h=11.37, else_=1.2), requested=3.0,
                restarts=(0.3 * DAY_S + 333.0, 0.9 * DAY_S + 47.0)),
        pods_of("batch", "node-3", periodic(days, 7.2, every=3600, lasts=600, offset=offset + 200)),
        pods_of("web", "node-4", np.where(recreated, 2.5, 0.0), lives=recreated),
        pods_of("queue", "node-5", np.full(grid, 1.5)),
        pods_of("old", "node-6", np.where(ended, 3.0, 0.0), lives=ended, requested=2.0),
        *jobs(days, "node-3", 2.0, every_s=7200, lasts_s=1500, offset_s=1830),
    ]  # fmt: skip
    for i, node in enumerate(names):
        up = ups[i]
        log = pods_of("log", node, np.where(up, scale * 0.3, 0.0), lives=up, owner=("DaemonSet", "log"), requested=0.2)
        pods.append(replace(log, name=f"log-{i}abcd"))
        # The load in the time without samples of node-5 must follow from the rest.
        load = np.full(grid, 0.5) if i == 4 else noisy(days, 0.5, 10 + i)
        pods.append(pods_of(f"app{i}", node, np.where(up, load, 0.0), lives=up))
    memory = {node: 0.3 + 0.1 * i + 0.05 * np.sin(at / DAY_S * 2 * np.pi) for i, node in enumerate(names)}
    return TrueCluster(days, nodes, tuple(pods), cluster, memory)
