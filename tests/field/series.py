"""The series that the source of a layout has, with their samples, and the machine that each is about.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from tests.field.exporters import EXPORTERS, OF_THE_CLUSTER, SYSTEMS, Exposed, Kind, exporter_pod
from tests.field.layout import Layout, Machine, Scrape
from watcher.arrays import F64

COARSE_S, FINE_S = 60, 15
RULE_S = 300.0
PAST_S, FINE_PAST_S, AHEAD_S = 4 * 3600 + 600, 1500, 540
"""Samples each minute for a report of three hours, each 15 s for the windows, and beyond now for as long as a test on a
busy machine may take: servers refuse samples further in the future."""


@dataclass(frozen=True, slots=True)
class FieldSeries:
    """A series: its labels with `__name__`, what its values are, and the key of the machine that it is about. `every`
    is the scrape interval in seconds; it has no samples in the last `stopped_s` seconds, and none before the last
    `started_s`, if not 0."""

    labels: Mapping[str, str]
    value: float
    kind: Kind
    machine: str
    every: int = FINE_S
    stopped_s: int = 0
    started_s: int = 0

    @property
    def name(self) -> str:
        return self.labels["__name__"]

    def samples(self, now: float) -> tuple[F64, F64]:
        """Times (unix seconds) and values around `now`."""
        times = _times(self.every, int(now))
        if self.stopped_s:
            times = times[times <= now - self.stopped_s]
        age = times - now + (self.started_s or 7 * 86400.0)
        if self.started_s:
            times, age = times[age >= 0.0], age[age >= 0.0]
        if self.kind == "unused rate":  # 1 minus the rates of unused modes, over counters that may be new
            full = np.minimum(1.0, age / RULE_S)
            return times, 1.0 - (1.0 - self.value * (1.0 + 0.004 * np.sin(times / 50.0))) * full
        if self.kind == "rate":
            # A little faster and slower in turn: a constant rate is that of an exporter that repeats itself.
            return times, self.value * (age + 0.5 * np.sin(2.0 * np.pi * times / 420.0))
        if self.kind == "constant":
            return times, np.full_like(times, self.value)
        # Each slot has another value, also relative to the other series, and the mean is the value.
        phase = zlib.crc32(repr(sorted(self.labels.items())).encode()) % 60
        return times, self.value * (1.0 + 0.004 * np.sin(2.0 * np.pi * (times / FINE_S + phase) / 20.0))


@cache
def _times(every: int, now: int) -> F64:
    fine = now - FINE_PAST_S
    coarse = np.arange((now - PAST_S) // COARSE_S * COARSE_S, fine, COARSE_S, dtype=np.float64)
    newest = np.arange(-(-fine // every) * every, now + AHEAD_S, every, dtype=np.float64)
    return np.concatenate([coarse[coarse < newest[0]], newest]) + 0.5


def series_of(layout: Layout) -> list[FieldSeries]:
    """All series of the layout's source."""
    found = [each for scrape in layout.scrapes for each in _scraped(layout, scrape)]
    if layout.federation is not None:
        target = layout.federation.labels
        found = [_with(each, _joined(target, each.labels, layout.federation.honor_labels)) for each in found]
    return [_with(each, {**extra, **each.labels}) for extra in layout.external for each in found]


def _with(series: FieldSeries, labels: Mapping[str, str]) -> FieldSeries:
    return replace(series, labels=labels)


def _scraped(layout: Layout, scrape: Scrape) -> Iterator[FieldSeries]:
    for machine, host, exposed in _exposed(layout, scrape):
        places = {
            "node": host.name, "host": host.host, "address": host.address, "pod_address": host.pod_address,
            "url_address": f"[{host.address}]" if ":" in host.address else host.address, "pod": exporter_pod(host),
            "address6": host.address6, "kernel": host.kernel, "cluster": host.cluster, "number": str(host.number),
            "arch": host.arch,
        }  # fmt: skip
        target = {name: text.format_map(places) for name, text in scrape.labels.items()}
        target = {name: text for name, text in target.items() if text}
        if exposed.kept is not None:
            target = {name: target[name] for name in exposed.kept if name in target}
        labels = _joined(target, exposed.labels, scrape.honor_labels)
        labels = {scrape.rename.get(name, name): text for name, text in labels.items() if name not in scrape.drop}
        kept = {"__name__": exposed.name, **labels}
        ends = scrape.stopped_s, scrape.started_s
        yield FieldSeries(kept, exposed.value, exposed.kind, machine.key, scrape.every, *ends)


def _exposed(layout: Layout, scrape: Scrape) -> Iterator[tuple[Machine, Machine, Exposed]]:
    """(machine that a series is about, machine of its target, series)."""
    chosen = [each for each in layout.machines if not scrape.targets or each.key in scrape.targets]
    if scrape.exporter in OF_THE_CLUSTER:
        for machine, exposed in OF_THE_CLUSTER[scrape.exporter](layout, scrape.options):
            if machine.key in {each.key for each in chosen} or scrape.targets == ():
                yield machine, chosen[-1], exposed
        return
    for machine in chosen:
        if machine.system in SYSTEMS.get(scrape.exporter, ("linux",)):
            if machine.outside and scrape.exporter == "cadvisor":
                continue
            for exposed in EXPORTERS[scrape.exporter](machine, layout, scrape.options):
                yield machine, machine, exposed


def _joined(target: Mapping[str, str], own: Mapping[str, str], honor: bool) -> dict[str, str]:
    """The labels of a scraped series, as Prometheus resolves conflicts with the labels of the target."""
    if honor:
        return {**target, **own}
    kept = {(f"exported_{name}" if name in target and name != "__name__" else name): own[name] for name in own}
    return {**kept, **target}


def distinct(series: Sequence[FieldSeries]) -> list[str]:
    """Label sets that occur more than once, which a real server would not store as two series."""
    seen: dict[str, int] = {}
    for each in series:
        key = repr(sorted(each.labels.items()))
        seen[key] = seen.get(key, 0) + 1
    return sorted(key for key, count in seen.items() if count > 1)
