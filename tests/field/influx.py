"""What Telegraf on each machine of a layout writes into InfluxDB, in line protocol.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.field.layout import Layout, Machine, Scrape
from tests.field.series import AHEAD_S, FINE_PAST_S
from tests.real.telegraf import cpu_fields, line

STEP_S = 10
DISKS = (("nvme0n1", 1.0), ("nvme1n1", 0.3))
INTERFACES = (("eth0", 0.75), ("eth1", 0.25), ("lo", 9.0))
"""Devices, with the share of the machine's load that each has."""


def telegraf_rows(layout: Layout) -> Iterator[tuple[str, dict[str, str], Machine, float]]:
    """(key of the metric, tags, machine, value) of each series of the metrics that the points have, in the unit of the
    metric but shares of 1."""
    for scrape, machine in _targets(layout):
        tags = _tags(scrape, machine)
        yield "CPU", {**tags, "cpu": "cpu-total"}, machine, machine.cpu
        for name, share in DISKS:
            yield "Storage", {**tags, "name": name}, machine, share * machine.disk
        for interface, share in INTERFACES:
            if interface != "lo":
                yield "NetworkTransmit", {**tags, "interface": interface}, machine, share * machine.transmit


def telegraf_points(layout: Layout, now: float) -> Iterator[str]:
    """The inputs cpu, mem, net and diskio of each job with the exporter `telegraf`, whose labels are its tags."""
    start = int(now - FINE_PAST_S) // STEP_S * STEP_S
    for scrape, machine in _targets(layout):
        yield from _points(machine, _tags(scrape, machine), start, int(now + AHEAD_S))


def _targets(layout: Layout) -> Iterator[tuple[Scrape, Machine]]:
    for scrape in layout.scrapes:
        for machine in layout.machines:
            if not scrape.targets or machine.key in scrape.targets:
                yield scrape, machine


def _tags(scrape: Scrape, machine: Machine) -> dict[str, str]:
    names = {
        "node": machine.name,
        "host": machine.host,
        "kernel": machine.kernel,
        "number": str(machine.number),
        "address": machine.address,
        "cluster": machine.cluster,
    }
    return {tag: text.format_map(names) for tag, text in scrape.labels.items()}


def _points(machine: Machine, tags: dict[str, str], start: int, end: int) -> Iterator[str]:
    for time in range(start, end, STEP_S):
        passed, wave = time - start + 1000.0, 1.0 + 0.004 * float(np.sin(time / STEP_S))
        yield line("cpu", {**tags, "cpu": "cpu-total"}, cpu_fields(100.0 * machine.cpu * wave), time)
        memory = 100.0 * machine.memory * wave
        yield line("mem", tags, {"available_percent": 100.0 - memory, "used_percent": memory / 2.0}, time)
        for name, share in DISKS:
            yield line("diskio", {**tags, "name": name}, {"io_time": int(1000 * share * machine.disk * passed)}, time)
        for interface, share in INTERFACES:
            rates = {
                "bytes_sent": machine.transmit,
                "bytes_recv": machine.receive,
                "drop_out": machine.drops,
                "drop_in": 0.5 * machine.drops,
            }
            counts = {field: int(share * rate * passed) for field, rate in rates.items()}
            yield line("net", {**tags, "interface": interface}, counts, time)
