"""The points of a Telegraf on each node, in InfluxDB's line protocol."""

from collections.abc import Iterator, Mapping

import numpy as np

from tests.real.fleet import DISKS, NETWORK_DEVICE, Fleet

STEAL = 0.25
"""Percent, for each node at each time, so that a provider that ignores it has other values."""


def line(measurement: str, tags: Mapping[str, str], fields: Mapping[str, float | int | str], time: float) -> str:
    """One point; `time` in unix seconds, kept to the millisecond. An int field is stored as an integer."""
    names = "".join(f",{_name(tag)}={_name(value)}" for tag, value in sorted(tags.items()))
    values = ",".join(f"{_name(name)}={_value(value)}" for name, value in fields.items())
    return f"{_name(measurement, equals=False)}{names} {values} {round(time * 1000)}"


def _name(text: str, *, equals: bool = True) -> str:
    for letter in ", =" if equals else ", ":
        text = text.replace(letter, "\\" + letter)
    return text


def _value(value: float | int | str) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"{value}i" if isinstance(value, int) else repr(float(value))


def telegraf_lines(fleet: Fleet, *, tag: str = "host") -> Iterator[str]:
    """The inputs cpu (each CPU and their total), mem, diskio and net (with the loopback) with Telegraf's defaults."""
    receive, transmit = _counted(fleet.receive, fleet), _counted(fleet.transmit, fleet)
    drop_in, drop_out = _counted(fleet.receive_drop, fleet), _counted(fleet.transmit_drop, fleet)
    busy = _counted(1000.0 * fleet.disk, fleet)
    for row, node in enumerate(fleet.nodes):
        for column, time in enumerate(fleet.times.tolist()):
            used = 100.0 * float(fleet.cpu[row, column])
            for cpu, fields in (("cpu-total", cpu_fields(used)), ("cpu0", cpu_fields(0.0))):
                yield line("cpu", {tag: node, "cpu": cpu}, fields, time)
            memory = 100.0 * float(fleet.memory[row, column])
            yield line("mem", {tag: node}, {"available_percent": 100.0 - memory, "used_percent": memory / 2.0}, time)
            for number, disk in enumerate(DISKS):
                yield line("diskio", {tag: node, "name": disk}, {"io_time": int(busy[row, number, column])}, time)
            counts = {"bytes_recv": receive, "bytes_sent": transmit, "drop_in": drop_in, "drop_out": drop_out}
            values = {name: int(count[row, column]) for name, count in counts.items()}
            yield line("net", {tag: node, "interface": NETWORK_DEVICE}, values, time)
            yield line("net", {tag: node, "interface": "lo"}, {name: 7 * values[name] for name in values}, time)


def cpu_fields(used: float) -> dict[str, float]:
    """The shares of a CPU that is neither idle nor waiting nor stolen for `used` percent of the time."""
    unused = 100.0 - used - STEAL
    return {"usage_user": used, "usage_idle": 0.9 * unused, "usage_iowait": 0.1 * unused, "usage_steal": STEAL}


def _counted(rates: "np.ndarray", fleet: Fleet) -> "np.ndarray":
    """A counter of whole numbers that grows by these rates per second, from its first point on."""
    return np.rint(np.cumsum(rates * fleet.step, axis=-1))
