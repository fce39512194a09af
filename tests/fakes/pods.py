"""Published pods from readings of a test, through the real table."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tests.fakes.snapshots import END, WINDOWS
from watcher.core.pods.coverage import PodCoverage
from watcher.core.pods.published import PublishedPods
from watcher.core.pods.table import Pod, PodOrigin, PodUsage, empty_table, merge_readings

Readings = Mapping[Pod, tuple[str, float, float]]
"""Node, cores and bytes by namespace and name."""


def publish_pods(
    readings: Readings,
    *,
    minutes: int = 3,
    tag: str = "p1",
    monotonic: float = 1000.0,
    age_s: float = 1.0,
    coverage: PodCoverage | None = None,
    pressure: Mapping[Pod, tuple[float, float, float]] | None = None,
) -> PublishedPods:
    """The published state of pods with a constant usage over this number of minutes, until END; with the coverage of
    the readings, or another one. `pressure` is that of some pods, by resource."""
    table = empty_table(15)
    nodes, cores, memory = zip(*readings.values(), strict=True) if readings else ((), (), ())
    for minute in range(1 - minutes, 1):
        time = END + 60.0 * minute
        columns = (np.array(column, dtype=np.float64) for column in ([time] * len(readings), cores, memory))
        waits = [pressure.get(pod, (np.nan,) * 3) for pod in readings] if pressure else None
        usage = replace(
            PodUsage(tuple(readings), nodes, *columns), pressure=None if waits is None else np.array(waits).T
        )
        table = merge_readings(table, usage, now=time, silent_s=90.0, stale_s=300.0)
    return PublishedPods(
        table,
        origin=PodOrigin("Prometheus", "sum by (namespace, pod) (rate(…))", 120.0, "container_memory_rss", "rss"),
        windows=WINDOWS,
        cadence_s=60.0,
        timestamp=END + 1.0,
        tag=tag,
        monotonic=monotonic,
        age_s=age_s,
        coverage=coverage,
    )


def small_pods() -> Readings:
    """Three pods on two nodes, one of which reports no memory."""
    return {
        ("a", "web-0"): ("node-1", 0.25, 2.0**30),
        ("a", "web-1"): ("node-2", 1.5, 2.0**31),
        ("b", "job"): ("node-2", 0.0, float("nan")),
    }


def many_pods(count: int) -> Readings:
    """This number of pods, thirty per node."""
    use = np.random.default_rng(3).random((count, 2)).tolist()
    return {
        (f"team-{number % 50:02d}", f"deployment-{number // 10:05d}-7d9f8b6c5-{number:05d}"): (
            f"node-{number // 30:05d}",
            cores,
            memory * 2**30,
        )
        for number, (cores, memory) in enumerate(use)
    }
