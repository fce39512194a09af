"""Test environment of the benchmarks: a real Prometheus with the series of a cluster, and a real service that reads
from it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.source import METRICS, names
from tests.real.fleet import Fleet, make_fleet, node_exporter_series, recording_rule_series
from tests.real.parts import Prometheus, PromqlServer
from tests.service import Service
from tests.waiting import wait_for

HISTORY_S = 960.0  # sixteen minutes: the longest window plus the range of a rate
BEHIND_S = 7.0  # age of the newest sample at the start, so that no sample is on the edge of a range


def write_rules(prometheus: PromqlServer, fleet: Fleet) -> None:
    """Write the fleet to a Prometheus as series of recording rules."""
    prometheus.write(recording_rule_series(fleet))


def write_exporters(prometheus: PromqlServer, fleet: Fleet, *, cpus: int = 4) -> None:
    """Write the fleet to a Prometheus as scraped series of node exporters."""
    prometheus.write(node_exporter_series(fleet, cpus=cpus))


def history_until(now: float, nodes: int, *, seconds: float = HISTORY_S, ahead: float = 0.0) -> Fleet:
    """Return the load of `nodes` nodes over the last `seconds`, plus `ahead` seconds into the future."""
    return make_fleet(names(nodes), start=now - seconds, end=now - BEHIND_S + ahead)


def settings(
    prometheus: Prometheus, *, interval: str = "60s", max_staleness: str = "5m", metrics: Sequence[str] = METRICS
) -> str:
    """Return the TOML settings of a service that reads from this Prometheus."""
    return (
        f"[provider]\nname = 'prometheus'\naddress = '{prometheus.url}'\nmetrics = {json.dumps(list(metrics))}\n"
        f"[refresh]\ninterval = '{interval}'\nmax_staleness = '{max_staleness}'\n"
    )


def wait_for_windows(service: Service, *, nodes: int) -> None:
    """Wait until every node is served with a complete 15-minute window."""

    def complete() -> bool:
        answer = service.get("/watcher?type=CPU&operator=AVG", timeout=30)
        return answer.status == 200 and answer.body.count(b'"rollup":"15m"') == nodes

    wait_for(complete, what=f"the 15-minute windows of {nodes} nodes", timeout=120)


@contextmanager
def still_service(directory: Path, *, nodes: int, metrics: Sequence[str] = METRICS) -> Iterator[Service]:
    """Run a service that has its windows and only serves requests: its next tick is ten minutes away, and its
    Prometheus is stopped, so that both cores are available to the service and the load generator."""
    with Prometheus(directory / "prometheus") as prometheus:
        write_rules(prometheus, history_until(time.time(), nodes))
        text = settings(prometheus, interval="10m", max_staleness="1h", metrics=metrics)
        service = Service(directory / "service", config=text)
        service.launch()
        try:
            service.wait_ready()
            wait_for_windows(service, nodes=nodes)
        except BaseException:
            service.kill()
            raise
    with service:
        yield service
