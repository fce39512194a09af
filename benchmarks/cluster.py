"""What the benchmarks measure against: a real Prometheus that knows a cluster, a real service fed by it."""

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

HISTORY_S = 960.0  # sixteen minutes: the longest window, and what a rate reaches back
BEHIND_S = 7.0  # the newest sample's age at the start, so that no sample stands on the edge of a range


def write_rules(prometheus: PromqlServer, fleet: Fleet) -> None:
    """Give the fleet to a Prometheus as the recording rules would have stored it."""
    prometheus.write(recording_rule_series(fleet))


def write_exporters(prometheus: PromqlServer, fleet: Fleet, *, cpus: int = 4) -> None:
    """Give the fleet to a Prometheus as node exporters would have been scraped."""
    prometheus.write(node_exporter_series(fleet, cpus=cpus))


def history_until(now: float, nodes: int, *, seconds: float = HISTORY_S, ahead: float = 0.0) -> Fleet:
    """The load of so many nodes over the last minutes, and `ahead` seconds on."""
    return make_fleet(names(nodes), start=now - seconds, end=now - BEHIND_S + ahead)


def settings(
    prometheus: Prometheus, *, interval: str = "60s", max_staleness: str = "5m", metrics: Sequence[str] = METRICS
) -> str:
    """The TOML file of a service that is fed by this Prometheus."""
    return (
        f"[provider]\nname = 'prometheus'\naddress = '{prometheus.url}'\nmetrics = {json.dumps(list(metrics))}\n"
        f"[refresh]\ninterval = '{interval}'\nmax_staleness = '{max_staleness}'\n"
    )


def wait_for_windows(service: Service, *, nodes: int) -> None:
    """Wait until every node is served with its whole 15-minute window."""

    def complete() -> bool:
        answer = service.get("/watcher?type=CPU&operator=AVG", timeout=30)
        return answer.status == 200 and answer.body.count(b'"rollup":"15m"') == nodes

    wait_for(complete, what=f"the 15-minute windows of {nodes} nodes", timeout=120)


@contextmanager
def still_service(directory: Path, *, nodes: int, metrics: Sequence[str] = METRICS) -> Iterator[Service]:
    """A service that has its windows and then does nothing but serve: its next tick is ten minutes away, and the
    Prometheus that fed it is gone, so that both cores belong to who serves and who asks."""
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
