"""Clusters whose nodes have different exporters or rules, against a real Prometheus: each node has a value of its own
query, once, also when the series change while the service runs."""

import time
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from tests.conftest import StartPrometheus
from tests.fetches import sections
from tests.real.parts import PromqlServer
from tests.real.remote_write import Series
from tests.real.test_prometheus_provider import by_key, fetch, promql, run
from watcher.core.naming.evidence import Evidence, KnownNode
from watcher.core.naming.name_resolver import NodeIndex
from watcher.core.review.samples import combine
from watcher.core.review.settings import ReviewSettings
from watcher.model import METRIC_BY_KEY, SeriesBatch
from watcher.sources.base import Fetch
from watcher.sources.prometheus.metrics import OTHERS_EVERY_FETCHES
from watcher.sources.prometheus.provider import PrometheusProvider

pytestmark = pytest.mark.real
__all__ = ["promql"]

STEP = 15.0


def times() -> np.ndarray:
    """Half an hour that ends 5 s ago: the first ten minutes of a series have no maxima."""
    return np.floor(time.time()) - 5.0 - STEP * np.arange(120)[::-1]


def gauge(name: str, value: float, **labels: str) -> Series:
    at = times()
    return Series({"__name__": name, **labels}, at, np.full(len(at), value))


def counter(name: str, rate: float, **labels: str) -> Series:
    at = times()
    return Series({"__name__": name, **labels}, at, rate * (at - at[0]) + 5000.0)


def old_kepler(watts: float, **node: str) -> list[Series]:
    return [
        counter("kepler_node_package_joules_total", watts / 2, package="0", mode=mode, **node)
        for mode in ("idle", "dynamic")
    ]


def new_kepler(watts: float, **node: str) -> list[Series]:
    return [counter("kepler_node_cpu_joules_total", watts, zone="package", path="/sys/intel-rapl:0", **node)]


def rules(percent: float, **node: str) -> list[Series]:
    return [
        gauge("instance:node_cpu_utilisation:rate5m", percent / 100, **node),
        gauge("instance:node_memory_utilisation:ratio", percent / 200, **node),
        gauge("instance:node_network_transmit_bytes_excluding_lo:rate5m", percent * 1e4, **node),
    ]


def linux(percent: float, **node: str) -> list[Series]:
    """The node exporter of a node with these rules."""
    return [
        *(
            counter("node_cpu_seconds_total", share, cpu="0", mode=mode, **node)
            for mode, share in (("idle", 1 - percent / 100), ("user", percent / 100), ("steal", 0.0), ("iowait", 0.0))
        ),
        gauge("node_memory_MemTotal_bytes", 1e9, **node),
        gauge("node_memory_MemAvailable_bytes", 1e9 * (1 - percent / 200), **node),
        counter("node_network_transmit_bytes_total", percent * 1e4, device="eth0", **node),
    ]


def windows(percent: float, *, total: str = "windows_memory_physical_total_bytes", **node: str) -> list[Series]:
    return [
        *(
            counter("windows_cpu_time_total", share, core=core, mode=mode, **node)
            for core in ("0,0", "0,1")
            for mode, share in (("idle", 1 - percent / 100), ("user", percent / 100))
        ),
        gauge(total, 1e9, **node),
        gauge("windows_memory_available_bytes", 1e9 * (1 - percent / 200), **node),
        counter("windows_net_bytes_sent_total", percent * 1e4, nic="Ethernet", **node),
    ]


def newest(batch: SeriesBatch) -> dict[str, float]:
    """The newest value of each node, as in a window."""
    cells, _ = combine(batch, resolution=15, limits=ReviewSettings())
    found: dict[str, tuple[float, float]] = {}
    for node, at, value in zip(cells.node, cells.time, cells.value, strict=True):
        name = cells.names[node]
        found[name] = max(found.get(name, (0.0, 0.0)), (float(at), float(value)))
    return {name: round(value, 3) for name, (_, value) in sorted(found.items())}


def of(got: Fetch, key: str) -> dict[str, float]:
    assert not got.failures
    return newest(by_key(got)[key])


def test_two_generations_of_kepler_side_by_side(promql: PromqlServer):
    """n2 has both, as during a rollout: it counts once."""
    promql.write(
        [
            *old_kepler(120.0, node="n1", instance="10.0.0.1:9102"),
            *old_kepler(100.0, node="n2", instance="10.0.0.2:9102"),
            *new_kepler(100.0, node_name="n2", instance="10.0.0.2:28282"),
            *new_kepler(80.0, node_name="n3", instance="10.0.0.3:28282"),
        ]
    )
    got = fetch(promql, until=time.time(), metrics=("EnergyPackage",))
    assert {"n1": 120.0, "n2": 100.0, "n3": 80.0} == pytest.approx(of(got, "EnergyPackage"), rel=1e-3)
    (plan,) = got.plans.values()
    assert "other nodes (1): " in plan.reason
    assert "kepler_node_cpu_joules_total" in plan.reason


KEYS = ("CPU", "Memory", "NetworkTransmit")


def values(percent: float) -> tuple[float, ...]:
    return percent, percent / 2, percent * 1e4


@pytest.mark.parametrize("total", ["windows_memory_physical_total_bytes", "windows_cs_physical_memory_bytes"])
def test_rules_of_linux_nodes_and_a_windows_exporter(promql: PromqlServer, total: str):
    """The rules cover Linux nodes only, whose raw series exist as well."""
    nodes = {f"10.0.0.{number}": percent for number, percent in ((1, 20.0), (2, 30.0))}
    for node, percent in nodes.items():
        promql.write([*rules(percent, instance=f"{node}:9100"), *linux(percent, instance=f"{node}:9100")])
    promql.write(windows(60.0, instance="10.0.0.3:9182", total=total))
    got = fetch(promql, until=time.time(), metrics=KEYS)
    for place, key in enumerate(KEYS):
        expected = {node: values(percent)[place] for node, percent in {**nodes, "10.0.0.3": 60.0}.items()}
        assert expected == pytest.approx(of(got, key), rel=1e-3)


@pytest.mark.parametrize("known", [True, False], ids=["kube_node_info", "no nodes known"])
def test_a_rule_that_keeps_another_label_than_the_raw_series(promql: PromqlServer, known: bool):
    """The rule has the label node, raw series have the address: no node has both as names."""
    promql.write(
        [
            *rules(20.0, node="n1"),
            *linux(20.0, instance="10.0.0.1:9100"),
            *linux(70.0, instance="10.0.0.2:9100"),
        ]
    )
    if known:
        promql.write(
            [gauge("kube_node_info", 1.0, node=f"n{number}", internal_ip=f"10.0.0.{number}") for number in (1, 2)]
        )
    got = fetch(promql, until=time.time(), metrics=("CPU",))
    assert ({"n1": 20.0, "n2": 70.0} if known else {"n1": 20.0}) == pytest.approx(of(got, "CPU"), rel=1e-3)


def test_names_of_the_kubernetes_api(promql: PromqlServer):
    """The API server lists the nodes: each address stays an address, and no node has two."""
    promql.write(
        [*rules(20.0, node="n1"), *linux(20.0, instance="10.0.0.1:9100"), *linux(70.0, instance="10.0.0.2:9100")]
    )
    index = NodeIndex([KnownNode(f"n{n}", ((Evidence.INTERNAL_IP.value, f"10.0.0.{n}"),)) for n in (1, 2)])

    async def work(provider: PrometheusProvider) -> Fetch:
        provider.know_nodes(index)
        now = time.time()
        return await provider.fetch(now - 180.0, now)

    got: Fetch = run(sections(address=promql.url, metrics=("CPU",)), work)
    assert {"n1": 20.0, "10.0.0.2": 70.0} == pytest.approx(of(got, "CPU"), rel=1e-3)


def test_series_that_appear_later_are_found(start_prometheus: StartPrometheus):
    """First the new Kepler only; an old one, a better candidate, appears on another node, and then on the same."""
    server = start_prometheus()
    server.write(new_kepler(80.0, node_name="n3", instance="10.0.0.3:28282"))

    async def work(provider: PrometheusProvider) -> Sequence[Mapping[str, float]]:
        async def values_of(fetches: int) -> Mapping[str, float]:
            """The values of these fetches; later ones only have new samples."""
            found: dict[str, float] = {}
            for _ in range(fetches):
                now = time.time()
                got = await provider.fetch(now - 180.0, now)
                for batch in got.batches:
                    once = list(batch.nodes)
                    assert sorted(set(once)) == sorted(once)
                    found |= newest(batch)
            return found

        found = [await values_of(1)]
        server.write(old_kepler(120.0, node="n1", instance="10.0.0.1:9102"))
        found.append(await values_of(OTHERS_EVERY_FETCHES))
        server.write(old_kepler(80.0, node="n3", instance="10.0.0.3:9102"))
        found.append(await values_of(2 * OTHERS_EVERY_FETCHES))
        return found

    first, second, third = run(sections(address=server.url, metrics=("EnergyPackage",)), work)
    assert {"n3": 80.0} == pytest.approx(first, rel=1e-3)
    for each in (second, third):
        assert {"n1": 120.0, "n3": 80.0} == pytest.approx({"n1": 0.0, "n3": 80.0, **each}, rel=1e-3)


def test_maxima_of_all_nodes(start_prometheus: StartPrometheus):
    server = start_prometheus()
    server.write([*rules(20.0, instance="10.0.0.1:9100"), *windows(60.0, instance="10.0.0.3:9182")])
    end = 300.0 * int(time.time() / 300 - 0.5)
    name = METRIC_BY_KEY["CPU"].name

    async def work(provider: PrometheusProvider) -> Fetch:
        now = time.time()
        await provider.fetch(now - 180.0, now)
        return await provider.fetch_maxima(end - 300.0, end, metric=name)

    got: Fetch = run(sections(address=server.url, metrics=("CPU",)), work)
    assert {"10.0.0.1": 20.0, "10.0.0.3": 60.0} == pytest.approx(of(got, "CPU"), rel=1e-2)
