"""Devices and duplicates in a real Prometheus: series of one device from two jobs, two replicas or several pods count
once, and the parts of a node are summed, for each metric with devices; and the pressure of nodes."""

import time
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from tests.conftest import StartPrometheus
from tests.real.remote_write import Series
from tests.real.test_prometheus_provider import by_key, fetch
from watcher.core.review.samples import combine
from watcher.core.review.settings import ReviewSettings
from watcher.model import FindingKind
from watcher.sources.base import Fetch

pytestmark = pytest.mark.real

STEP = 15.0
NODE = {"node": "n1", "instance": "10.0.0.1:9100"}
JOBS: tuple[Mapping[str, str], ...] = ({"job": "node-exporter"}, {"job": "kubernetes-service-endpoints"})


def times(shift: float = 0.0) -> np.ndarray:
    """Sixteen minutes that end 5 s ago."""
    return np.floor(time.time()) - 5.0 - shift - STEP * np.arange(64)[::-1]


IMPORTED = time.time()


def fresh(series: Sequence[Series]) -> list[Series]:
    """Series that were made when this module was imported, with times until now."""
    late = np.floor(time.time() - IMPORTED)
    return [each._replace(times=np.asarray(each.times) + late) for each in series]


def level(name: str, value: float, **labels: str) -> Series:
    """A gauge whose values vary slightly."""
    at = times()
    return Series({"__name__": name, **NODE, **labels}, at, value + 1e-6 * (np.arange(len(at)) % 7))


def counter(name: str, rate: float, *, shift: float = 0.0, **labels: str) -> Series:
    """A counter with this growth per second."""
    at = times(shift)
    return Series({"__name__": name, **NODE, **labels}, at, rate * (at - at[0]) + 5000.0)


def of_two_jobs(series: Sequence[Series]) -> list[Series]:
    """The series of two jobs, of which the second one scrapes seven seconds earlier."""
    return [
        Series({**each.labels, **job}, np.asarray(each.times) - 7.0 * late, each.values)
        for each in series
        for late, job in enumerate(JOBS)
    ]


def value_of(got: Fetch, key: str) -> float:
    """The newest value of the node, as in a window."""
    cells, _ = combine(by_key(got)[key], resolution=15, limits=ReviewSettings())
    assert {"n1"} == set(cells.names)
    return float(cells.value[np.argmax(cells.time)])


def duplicates(got: Fetch, key: str) -> list[str]:
    """The nodes with a finding for duplicates, of the source and of the review."""
    batch = by_key(got)[key]
    _, found = combine(batch, resolution=15, limits=ReviewSettings())
    return sorted({each.node for each in (*got.findings, *found) if each.kind is FindingKind.DUPLICATE_SERIES})


CPU = [
    counter("node_cpu_seconds_total", share, cpu=cpu, mode=mode)
    for cpu, shares in (("0", (0.5, 0.1, 0.1, 0.3)), ("1", (0.1, 0.0, 0.0, 0.9)))
    for mode, share in zip(("idle", "iowait", "steal", "user"), shares, strict=True)
]
NETWORK = [
    counter("node_network_transmit_bytes_total", rate, device=device)
    for device, rate in (("eth0", 4e6), ("eth1", 1e6), ("lo", 9e6))
]
DROPS = [
    counter("node_network_receive_drop_total", rate, device=device) for device, rate in (("eth0", 3.0), ("eth1", 2.0))
]
RULE = [level("instance:node_network_transmit_bytes:rate:sum", 5e6)]
KEPLER = [
    counter("kepler_node_package_joules_total", watts, package=package, mode=mode, source="rapl")
    for package in ("0", "1")
    for mode, watts in (("idle", 20.0), ("dynamic", 40.0))
]
KEPLER_0_10 = [
    counter("kepler_node_cpu_joules_total", watts, zone=zone, path=f"/sys/class/powercap/intel-rapl:{number}")
    for number, (zone, watts) in enumerate((("package", 70.0), ("package", 50.0), ("core", 30.0), ("dram", 9.0)))
]
PRESSURE = [
    counter("node_pressure_memory_waiting_seconds_total", 0.4),
    counter("node_pressure_memory_stalled_seconds_total", 0.1),
    counter("node_pressure_cpu_waiting_seconds_total", 0.25),
    counter("node_pressure_io_waiting_seconds_total", 0.05),
    counter("node_pressure_io_stalled_seconds_total", 0.02),
]


@pytest.mark.parametrize(
    ("series", "key", "expected"),
    [
        (CPU, "CPU", 60.0),
        (NETWORK, "NetworkTransmit", 5e6),
        (DROPS, "NetworkReceiveDrop", 5.0),
        (RULE, "NetworkTransmit", 5e6),
        (KEPLER, "EnergyPackage", 120.0),
        (KEPLER_0_10, "EnergyPackage", 120.0),
        (KEPLER_0_10, "EnergyCore", 30.0),
        ([level("scaph_host_power_microwatts", 90e6)], "EnergyHost", 90.0),
        ([level("DCGM_FI_DEV_GPU_UTIL", value, UUID=f"GPU-{value}") for value in (90.0, 10.0)], "GPU", 50.0),
        (PRESSURE, "PressureMemory", 40.0),
    ],
    ids=["cpu", "traffic", "drops", "rule", "kepler", "kepler 0.10", "core", "scaphandre", "gpu", "pressure"],
)
def test_two_jobs_change_no_value_and_are_a_finding(
    start_prometheus: StartPrometheus, series: list[Series], key: str, expected: float
):
    """The same value from one job, without a finding, and from two, with one."""
    alone, twice = start_prometheus(), start_prometheus()
    alone.write(fresh([Series({**each.labels, **JOBS[0]}, each.times, each.values) for each in series]))
    twice.write(fresh(of_two_jobs(series)))
    for server, nodes in ((alone, []), (twice, ["n1"])):
        got = fetch(server, until=time.time(), metrics=(key,))
        assert () == got.failures
        assert expected == pytest.approx(value_of(got, key), rel=1e-3)
        assert nodes == duplicates(got, key)


def test_pods_that_share_a_gpu_are_not_duplicates(start_prometheus: StartPrometheus):
    """dcgm-exporter has a series for each pod; the mean is over GPUs, and without a UUID the index is the GPU."""
    server = start_prometheus()
    shared = [
        level("DCGM_FI_DEV_GPU_UTIL", 90.0, gpu="0", exported_pod=f"train-{number}", vgpu=str(number))
        for number in range(3)
    ]
    server.write([*shared, level("DCGM_FI_DEV_GPU_UTIL", 10.0, gpu="1")])
    got = fetch(server, until=time.time(), metrics=("GPU",))
    assert 50.0 == pytest.approx(value_of(got, "GPU"), rel=1e-3)
    assert [] == duplicates(got, "GPU")


def test_the_pressure_of_nodes_is_a_share_of_the_time(start_prometheus: StartPrometheus):
    """Some and full, from node exporter's counters: waiting and stalled."""
    server = start_prometheus()
    server.write(fresh(PRESSURE))
    wanted = {
        "PressureCPU": 25.0,
        "PressureMemory": 40.0,
        "PressureIO": 5.0,
        "PressureMemoryFull": 10.0,
        "PressureIOFull": 2.0,
    }
    got = fetch(server, until=time.time(), metrics=tuple(wanted))
    assert () == got.failures == got.findings
    assert wanted == pytest.approx({key: value_of(got, key) for key in wanted}, rel=1e-3)
