"""Published documents from samples of a test: through the real history, windows and encoder."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from watcher.core.publishing.documents import Published
from watcher.core.windows.history import History, name_order
from watcher.model import METRIC_BY_KEY, Cells, Provenance, Snapshot, Window

WINDOWS = (Window("5m", 300), Window("10m", 600), Window("15m", 900))
END = 1_700_000_000.0  # the time of the newest sample
RESOLUTION = 15

Samples = Mapping[str, Mapping[str, Sequence[float]]]
"""node -> key of a metric -> values, one per slot; the last one is that of END, so longer lists begin earlier."""


def snapshot_of(
    samples: Samples,
    *,
    windows: tuple[Window, ...] = WINDOWS,
    source: str = "Prometheus",
    ages: Mapping[str, float] | None = None,
    lost: Mapping[str, float] | None = None,
    quarantined: Collection[str] = (),
    end: float = END,
) -> Snapshot:
    """The snapshot of a tick at `end` + 1 s with these samples. `ages` marks nodes as silent or held."""
    history = History(resolution=RESOLUTION, windows=windows)
    names = tuple(samples)
    for key in dict.fromkeys(key for metrics in samples.values() for key in metrics):
        rows = [(row, metrics[key]) for row, metrics in enumerate(samples.values()) if key in metrics]
        node = np.concatenate([np.full(len(values), row, dtype=np.int64) for row, values in rows])
        value = np.concatenate([np.asarray(values, dtype=np.float64) for _, values in rows])
        time = np.concatenate([end - RESOLUTION * np.arange(len(values))[::-1] for _, values in rows])
        history.append(METRIC_BY_KEY[key], Cells(names, node, (time // RESOLUTION).astype(np.int64), time, value))
    order = name_order(history.names)
    nodes = tuple(history.names[column] for column in order)
    metrics = tuple(
        history.windows_of(
            metric, recent=history.recent(metric), provenance=Provenance(source, "up", "ratio", 300.0), order=order
        )
        for metric in history.metrics
    )
    sampled = np.fmax.reduce([metric.sampled for metric in metrics]) if metrics else np.empty(0)
    return Snapshot(
        timestamp=end + 1.0,
        end=history.end if history.names else end,
        source=source,
        resolution=RESOLUTION,
        windows=windows,
        nodes=nodes,
        metrics=metrics,
        sampled=sampled,
        age_s=np.array([(ages or {}).get(node, np.nan) for node in nodes], dtype=np.float64),
        quarantined=frozenset(quarantined),
        lost=dict(lost or {}),
        on_demand=lambda name, operator: history.statistic(name, operator, end=history.end, nodes=nodes),
        samples=lambda name: history.samples(name, end=history.end, nodes=nodes),
    )


def publish(snapshot: Snapshot, *, tag: str = "t1", monotonic: float = 1000.0, age_s: float = 1.0) -> Published:
    """The snapshot as the tick publishes it."""
    published = Published(snapshot, tag=tag, monotonic=monotonic, age_s=age_s)
    published.encode_default()
    return published


def steady(value: float, *, slots: int = 60) -> list[float]:
    """A load that alternates by one point around `value`, for `slots` slots: 60 fill 15 minutes."""
    return [value + (1.0 if slot % 2 else -1.0) for slot in range(slots)]


def small_fleet() -> dict[str, dict[str, list[float]]]:
    """Three nodes: two with a full window of 15 minutes, one that joined five minutes ago."""
    return {
        "node-1": {"CPU": steady(26), "Memory": steady(40), "NetworkReceive": steady(1e6)},
        "node-2": {"CPU": steady(60), "Memory": steady(70), "NetworkReceive": steady(2e6)},
        "node-3": {"CPU": steady(50, slots=20), "Memory": steady(20, slots=20)},
    }


def large_fleet(nodes: int) -> dict[str, dict[str, list[float]]]:
    """Many nodes with four metrics each."""
    spread = np.random.default_rng(7).random((nodes, 4)) * 80
    keys = ("CPU", "Memory", "NetworkReceive", "NetworkTransmit")
    return {
        f"node-{row:05d}.example.com": {key: steady(base) for key, base in zip(keys, bases, strict=True)}
        for row, bases in enumerate(spread.tolist())
    }
