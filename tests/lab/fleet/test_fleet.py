"""The simulated cluster: reproducible by its seed, with consistent sums, and a load that follows the placement of
pods."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.demo.source import METRICS, DemoProvider
from lab.fleet import faults
from lab.fleet.cluster import KEPT_S, LONGEST_JOB_S, REMEMBERED_S, SimulatedCluster
from lab.fleet.load import DayPattern, RunningPods, node_load, pod_cores, pod_memory, system_cores, wanted_cores
from watcher.core.kubernetes.errors import KubeConflict, KubeError, KubeNotFound
from watcher.core.kubernetes.objects import Pod
from watcher.core.kubernetes.quantity import nano
from watcher.model import METRIC_BY_KEY, SeriesBatch

BEGUN = 1_795_000_000.0
REACH_S = 1020.0


def cluster(nodes: int = 24, *, seed: int = 1, speed: float = 24.0) -> SimulatedCluster:
    return SimulatedCluster(nodes, seed=seed, speed=speed, begun=BEGUN)


def fetched(simulated: SimulatedCluster, since: float, until: float, *, resolution: int = 15) -> dict[str, SeriesBatch]:
    provider = DemoProvider(simulated, resolution=resolution)
    return {batch.metric.key: batch for batch in asyncio.run(provider.fetch(since, until)).batches}


def of_node(batch: SeriesBatch, node: str) -> tuple[np.ndarray, np.ndarray]:
    """Times and values of the samples of one node."""
    rows = batch.series == batch.nodes.index(node)
    return batch.time[rows], batch.value[rows]


def place_all(simulated: SimulatedCluster, now: float) -> list[tuple[str, str]]:
    """Bind each waiting pod to the first node with room for it; return the pods with their nodes."""
    placed = []
    for pod in simulated.waiting():
        key = f"{pod.metadata.namespace}/{pod.metadata.name}"
        for node in simulated.fitting_nodes(key)[:1]:
            simulated.bind(key, node=node, uid=pod.metadata.uid, now=now)
            placed.append((key, node))
    return placed


def all_at(simulated: SimulatedCluster, time: float) -> np.ndarray:
    return np.full(len(simulated.fleet.names), time)


def past(simulated: SimulatedCluster) -> bytes:
    """All samples of a quarter of an hour, after some minutes of arrivals, as bytes."""
    for minute in range(1, 6):
        simulated.advance(BEGUN + 60.0 * minute)
        place_all(simulated, BEGUN + 60.0 * minute)
    batches = fetched(simulated, BEGUN - REACH_S, BEGUN + 300.0)
    arrays = [array for batch in batches.values() for array in (batch.series, batch.time, batch.value)]
    return "\n".join(simulated.pods()).encode() + b"".join(array.tobytes() for array in arrays)


# --- one seed, one cluster -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes() -> None:
    """Nodes, pods, arrivals and every sample."""
    first, again, other = past(cluster()), past(cluster()), past(cluster(seed=2))
    assert first == again
    assert first != other
    assert cluster().fleet.faults.descriptions()[0] == "memory-c-01 is hot: it has a runaway process"  # in each process


@pytest.mark.slow
def test_samples_of_a_time_are_always_the_same() -> None:
    """Fetches overlap and repeat the same values; pods that ended since are still in them."""
    simulated = cluster()
    reported = {}
    for now in range(0, 300, 4):  # seconds: samples are between two reads, and pods start and end there
        simulated.advance(BEGUN + now)
        place_all(simulated, BEGUN + now)
        reported[now] = fetched(simulated, BEGUN + now - 16.0, BEGUN + now + 3.9)["CPU"].value
    ends = simulated.running.end
    assert np.count_nonzero(ends < BEGUN + 300.0) > 5
    for now, values in reported.items():
        assert np.array_equal(values, fetched(simulated, BEGUN + now - 16.0, BEGUN + now + 3.9)["CPU"].value), now


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    nodes=st.integers(1, 40),
    seed=st.integers(0, 2**32),
    speed=st.floats(0.1, 1440.0),
    offset=st.floats(-86_400.0, 86_400.0),
)
def test_the_load_of_a_node_is_that_of_its_pods_and_its_own(nodes: int, seed: int, speed: float, offset: float) -> None:
    """At any time, of any cluster; finite, and at most the capacity."""
    simulated = cluster(nodes, seed=seed, speed=speed)
    fleet, pods, time = simulated.fleet, simulated.running, np.full(nodes, BEGUN + offset)
    load, used, own = node_load(fleet, pods, time), pod_cores(fleet, pods, time), system_cores(fleet, time)
    for row in range(nodes):
        assert load.cores[row] == pytest.approx(own[row] + sum(used[pods.row == row]), rel=1e-9)
    assert (used >= 0.0).all()
    assert (used <= wanted_cores(pods, time[pods.row], fleet.pattern) + 1e-12).all()
    assert (load.cores <= fleet.cores).all()
    assert (load.memory <= fleet.memory).all()
    for each in (load.cores, load.memory, load.transmitted, load.received, load.watts):
        assert (np.isfinite(each) & (each > 0.0)).all()
    for percent in (load.disk, load.pressure, load.disk_pressure):
        assert ((percent >= 0.0) & (percent <= 100.0)).all()
    assert ((load.disk_pressure_full >= 0.0) & (load.disk_pressure_full <= load.disk_pressure)).all()


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2, 3, 24, 300])
def test_a_cluster_has_the_requested_number_of_nodes_and_pods_that_fit(nodes: int) -> None:
    """The requests on a node fit on it, as the scheduler of the first pods ensured."""
    simulated = cluster(nodes)
    assert len(simulated.nodes) == nodes == len(simulated.fleet.names)
    asked = dict.fromkeys(simulated.nodes, 0)
    for key in simulated.pods():
        pod = simulated.pod(key)
        assert pod is not None
        requests = pod.spec.containers[0].resources.requests
        asked[pod.spec.node_name] += nano(requests["cpu"])
    assert all(0 < total <= nano(simulated.nodes[name].status.allocatable["cpu"]) for name, total in asked.items())
    assert len({key_uid(simulated, key) for key in simulated.pods()}) == len(simulated.pods())


def key_uid(simulated: SimulatedCluster, key: str) -> str:
    pod = simulated.pod(key)
    assert pod is not None
    return pod.metadata.uid


# --- the course of the day -------------------------------------------------------------------------------------------


def test_the_speed_is_that_of_the_day_and_not_of_the_samples() -> None:
    """At double speed, the load has the value of double the time; samples keep their distance."""
    quiet = steady(cluster().running)
    slow, fast = DayPattern(BEGUN, 24.0), DayPattern(BEGUN, 48.0)
    later, sooner = np.full(len(quiet), BEGUN + 600.0), np.full(len(quiet), BEGUN + 300.0)
    assert np.allclose(wanted_cores(quiet, later, slow), wanted_cores(quiet, sooner, fast))
    for speed in (0.1, 1440.0):
        times, _ = of_node(fetched(cluster(speed=speed), BEGUN - 300.0, BEGUN)["CPU"], "general-a-01")
        assert np.allclose(np.diff(times), 15.0)
        assert ((times >= BEGUN - 300.0) & (times <= BEGUN)).all()


def test_a_day_has_a_peak() -> None:
    """Pods that serve people use most in the daytime."""
    simulated = cluster(speed=24.0)
    pods = simulated.running.where(simulated.running.peak == 14.0)

    def wanted(hour: float) -> float:
        time = np.full(len(pods), BEGUN + (hour - 9.0) * 3600.0 / 24.0)
        return float(wanted_cores(pods, time, simulated.fleet.pattern).sum())

    assert wanted(14.0) > 2.0 * wanted(26.0)


def steady(pods: RunningPods) -> RunningPods:
    """The same pods without the parts of the load that do not depend on the speed."""
    return replace(pods, noise=np.zeros(len(pods)))


# --- the closed loop -------------------------------------------------------------------------------------------------


def test_a_bound_pod_is_in_the_load_of_its_node_until_it_ends() -> None:
    """From the moment of its binding, with its own use, and on no other node."""
    simulated = cluster()
    simulated.advance(BEGUN + 120.0)
    pod = next(each for each in simulated.waiting() if each.metadata.owner_references[0].kind == "Job")
    key, bound = f"{pod.metadata.namespace}/{pod.metadata.name}", BEGUN + 130.0
    node = simulated.fitting_nodes(key)[0]
    row = simulated.fleet.names.index(node)
    before = simulated.running
    simulated.bind(key, node=node, uid=pod.metadata.uid, now=bound)

    def rise(time: float) -> np.ndarray:
        now = all_at(simulated, time)
        return node_load(simulated.fleet, simulated.running, now).cores - node_load(simulated.fleet, before, now).cores

    used = pod_cores(simulated.fleet, simulated.running, all_at(simulated, bound + 10.0))[-1]
    assert used > 0.0
    assert rise(bound + 10.0)[row] == pytest.approx(used)
    assert np.count_nonzero(rise(bound + 10.0)) == 1
    assert not rise(bound - 1.0).any()
    ends = bound + LONGEST_JOB_S
    assert simulated.pod(key) is not None
    simulated.advance(ends + KEPT_S)
    assert simulated.pod(key) is None
    assert simulated.running.end[simulated.running.begin == bound] <= ends


def test_notifications_give_the_same_pods_as_a_list() -> None:
    """Step by step; the cluster neither becomes empty nor full."""
    simulated = cluster()
    followed: dict[str, Pod | None] = {key: simulated.pod(key) for key in simulated.pods()}
    phases = set()

    def note(key: str, old: Pod | None, new: Pod | None) -> None:
        assert followed.get(key) is old
        if new is None:
            del followed[key]
        else:
            followed[key] = new
            phases.add(new.status.phase)

    simulated.subscribe(note)
    began = len(followed)
    bound = 0
    for second in range(0, 3600, 5):
        simulated.advance(BEGUN + second)
        bound += len(place_all(simulated, BEGUN + second))
    assert followed == {key: simulated.pod(key) for key in simulated.pods()}
    assert phases == {"Pending", "Running", "Succeeded"}
    assert 150 < bound < 450  # 24 nodes have 4.8 arrivals a minute
    assert abs(len(followed) - began) < 60
    simulated.advance(BEGUN + 2.0 * REMEMBERED_S)
    assert (simulated.running.end >= BEGUN + REMEMBERED_S).all()


def test_a_cluster_whose_pods_are_not_placed_gets_no_more_pods() -> None:
    simulated = cluster()
    simulated.advance(BEGUN + 7200.0)
    assert len(simulated.waiting()) == 25


def test_invalid_bindings_are_refused_as_by_the_api() -> None:
    """And change nothing."""
    simulated = cluster()
    simulated.advance(BEGUN)
    (pod,) = simulated.waiting()
    key, uid = f"{pod.metadata.namespace}/{pod.metadata.name}", pod.metadata.uid
    bad: list[tuple[type[KubeError], str, str, str]] = [
        (KubeNotFound, "shop/nobody", "general-a-01", uid),
        (KubeNotFound, key, "nowhere", uid),
        (KubeConflict, key, "general-a-01", "another"),
    ]
    for error, which, node, given_uid in bad:
        with pytest.raises(error):
            simulated.bind(which, node=node, uid=given_uid, now=BEGUN)
    assert simulated.waiting() == (pod,)
    simulated.bind(key, node="general-a-01", uid=uid, now=BEGUN)
    with pytest.raises(KubeConflict, match="is already bound to node general-a-01"):
        simulated.bind(key, node="general-a-02", uid=uid, now=BEGUN)


# --- faults ----------------------------------------------------------------------------------------------------------


def test_each_fault_is_visible_in_the_first_fetch() -> None:
    """A hot node, a silent one, one with repeated samples, and one with invalid values; no other node has a fault."""
    simulated = cluster()
    named, batches = simulated.fleet.faults, fetched(simulated, BEGUN - REACH_S, BEGUN)
    cpu = batches["CPU"]
    assert len({named.hot, named.silent, named.frozen, named.impossible}) == 4
    means = {node: of_node(cpu, node)[1].mean() for node in cpu.nodes if node != named.impossible}
    assert max(means, key=lambda node: means[node]) == named.hot
    assert means[named.hot] > 80.0
    times, _ = of_node(cpu, named.silent)
    assert times.max() < BEGUN - 120.0
    assert len(times) > 50
    for key in METRICS:
        times, values = of_node(batches[key], named.frozen)
        assert len(set(values[times > BEGUN - 220.0])) == 1, key
    _, values = of_node(cpu, named.impossible)
    assert 5 <= np.count_nonzero(values > 100.0) <= 7
    others = np.isin(cpu.series, [cpu.nodes.index(node) for node in named_nodes(named)], invert=True)
    assert ((cpu.value[others] > 0.0) & (cpu.value[others] < 100.0)).all()


@pytest.mark.slow
def test_faults_begin_and_end() -> None:
    simulated = cluster()
    named = simulated.fleet.faults
    later = BEGUN + 3000.0
    times, _ = of_node(fetched(simulated, BEGUN, later)["CPU"], named.silent)
    gaps = np.diff(times)
    assert np.count_nonzero(gaps > 300.0) == 1
    _, values = of_node(fetched(simulated, BEGUN, later)["CPU"], named.frozen)
    still = np.count_nonzero(np.diff(values) == 0.0)
    assert 55 < still < 75  # six minutes of the first time, and ten of the second


@pytest.mark.parametrize(("nodes", "expected"), [(1, 0), (2, 1), (4, 2), (8, 3), (12, 4)])
def test_small_clusters_have_fewer_faults(nodes: int, expected: int) -> None:
    """One silent node of two would be an outage of the monitoring."""
    assert len(cluster(nodes).fleet.faults.descriptions()) == expected


def named_nodes(named: faults.Faults) -> set[str]:
    return {named.hot, named.silent, named.frozen, named.impossible}


# --- the provider ----------------------------------------------------------------------------------------------------


async def test_a_fetch_has_one_sample_per_slot_and_node_in_order() -> None:
    """Each node at its own offset; only the requested metrics, and nothing for an empty span."""
    simulated = cluster(3)
    provider = DemoProvider(simulated, resolution=10)
    fetch = await provider.fetch(BEGUN - 100.0, BEGUN, only=[METRIC_BY_KEY["Memory"].name])
    (batch,) = fetch.batches
    assert (batch.metric.key, batch.nodes) == ("Memory", simulated.fleet.names)
    assert set(fetch.plans) == {METRIC_BY_KEY["Memory"].name}
    slots = np.floor(batch.time / 10.0)
    assert len(set(zip(batch.series.tolist(), slots.tolist(), strict=True))) == len(slots) == 30
    assert (np.diff(batch.series) >= 0).all()
    for row in range(3):
        assert (np.diff(batch.time[batch.series == row]) > 0.0).all()
    assert ((batch.value > 0.0) & (batch.value < 100.0)).all()
    empty = await provider.fetch(BEGUN, BEGUN - 1.0)
    assert [len(each.value) for each in empty.batches] == [0] * len(METRICS)


async def test_the_usage_of_pods_is_that_in_the_load_of_their_nodes() -> None:
    """The same cores and bytes."""
    simulated = cluster()
    provider = DemoProvider(simulated, resolution=15)
    reported = await provider.fetch_pods(BEGUN + 5.0)
    now = all_at(simulated, BEGUN + 5.0)
    assert reported.usage.cores.sum() == pytest.approx(pod_cores(simulated.fleet, simulated.running, now).sum())
    memory = pod_memory(simulated.running, now[simulated.running.row], simulated.fleet.pattern)
    assert reported.usage.memory.sum() == pytest.approx(memory.sum())
    assert len(reported.usage.pods) == len(simulated.pods())
    assert reported.origin.source == "Demo"
    assert set(simulated.fleet.names) == set(provider.node_names())
    capacities = await provider.capacities()
    assert capacities["general-a-01"].milli_cores == 8000
