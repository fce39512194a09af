"""The metrics of an API server that the benchmark reports, and their differences over a phase."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

LINE = re.compile(r"^(?P<name>[a-z_]+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
Labels = Mapping[str, str]

WATCHES = "apiserver_longrunning_requests"
DISPATCHED = "apiserver_flowcontrol_dispatched_requests_total"
REJECTED = "apiserver_flowcontrol_rejected_requests_total"
REQUESTS = "apiserver_request_total"
FROM_ETCD = "apiserver_storage_list_fetched_objects_total"
EVALUATED = "apiserver_storage_list_evaluated_objects_total"
FROM_CACHE = "apiserver_cache_list_fetched_objects_total"
CPU = "process_cpu_seconds_total"
MEMORY = "process_resident_memory_bytes"
NAMES = frozenset({WATCHES, DISPATCHED, REJECTED, REQUESTS, FROM_ETCD, EVALUATED, FROM_CACHE, CPU, MEMORY})


@dataclass(frozen=True)
class Scrape:
    """The values of the reported metrics at one time (unix seconds)."""

    time: float
    values: Mapping[str, list[tuple[Labels, float]]]

    def sum(self, name: str, keep: Callable[[Labels], bool] = lambda _: True) -> float:
        """The sum of the series of a metric whose labels are kept."""
        return sum(value for labels, value in self.values.get(name, ()) if keep(labels))


def parse(text: str, *, time: float) -> Scrape:
    """Read the text format of Prometheus; other metrics than NAMES are skipped."""
    values: dict[str, list[tuple[Labels, float]]] = {}
    for line in text.splitlines():
        if line.startswith("#") or re.split("[{ ]", line, maxsplit=1)[0] not in NAMES:
            continue
        found = LINE.match(line)
        if found is not None:
            labels = dict(LABEL.findall(found["labels"] or ""))
            values.setdefault(found["name"], []).append((labels, float(found["value"])))
    return Scrape(time, values)


@dataclass(frozen=True)
class Use:
    """What happened at the API server over a phase; rates are per second."""

    seconds: float
    watches: float
    agents: float
    """Requests of the agents."""
    service: float
    """Requests of the service."""
    rejected: float
    """Requests of agents and service that priority and fairness refused."""
    node_metric_writes: float
    budget_writes: float
    from_etcd: float
    """Objects read from etcd for lists."""
    from_cache: float
    """Objects read from the watch cache for lists."""
    cpu: float
    """CPU seconds per second."""
    memory: float
    """Bytes at the end."""


def use(before: Scrape, after: Scrape, *, agents: str, service: str) -> Use:
    """The difference of two scrapes of the same process. `agents` and `service` are the names of flow schemas."""
    seconds = after.time - before.time

    def rate(name: str, keep: Callable[[Labels], bool] = lambda _: True) -> float:
        return (after.sum(name, keep) - before.sum(name, keep)) / seconds

    def writes(resource: str) -> float:
        def kept(labels: Labels) -> bool:
            return labels.get("resource") == resource and labels.get("verb") in ("POST", "PATCH", "PUT", "APPLY")

        return rate(REQUESTS, kept)

    return Use(
        seconds=seconds,
        watches=after.sum(WATCHES, lambda labels: labels.get("verb") == "WATCH"),
        agents=rate(DISPATCHED, lambda labels: labels.get("flow_schema") == agents),
        service=rate(DISPATCHED, lambda labels: labels.get("flow_schema") == service),
        rejected=rate(REJECTED, lambda labels: labels.get("flow_schema") in (agents, service)),
        node_metric_writes=writes("nodemetrics"),
        budget_writes=writes("configmaps"),
        from_etcd=rate(FROM_ETCD),
        from_cache=rate(FROM_CACHE),
        cpu=rate(CPU),
        memory=after.sum(MEMORY),
    )
