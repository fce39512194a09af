"""InfluxQL and Flux queries for each metric, for Telegraf's schema.

Telegraf stores some loads directly (percent of memory) and others as counters (bytes sent). Both query languages have
functions for counters, but they differ in edge cases, defaults and deviations. Therefore nothing is computed on the
server: a query returns the stored points of a few fields, which are the same in both languages. cpu_load.py
computes the loads.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from watcher.core.cpu_use import UNUSED
from watcher.core.queries.influxdb import SINCE, UNTIL
from watcher.model import METRIC_BY_KEY, Metric
from watcher.sources.settings import ProviderSettings

NODE_TAG = "host"
DATABASE = "telegraf"
"""Telegraf's default database."""

LOOK_BACK_S = 120.0
"""Maximum age in seconds, before the start of the range, of the point that precedes a counter's first growth.
Windows with a longer interval between points have insufficient coverage."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# --- names and times in the query languages --------------------------------------------------------------------------


def influxql_name(name: str) -> str:
    """Quote an identifier of InfluxQL."""
    return '"' + _escaped(name, '"') + '"'


def influxql_string(text: str) -> str:
    """Quote a string of InfluxQL."""
    return "'" + _escaped(text, "'") + "'"


def _escaped(text: str, quote: str) -> str:
    return text.replace("\\", "\\\\").replace(quote, "\\" + quote).replace("\n", "\\n")


def flux_string(text: str) -> str:
    """Quote a string of Flux. `${` would start an expression, so the dollar sign and control characters are escaped
    by number."""
    return '"' + "".join(map(_flux_letter, text)) + '"'


def _flux_letter(letter: str) -> str:
    if letter in '"\\':
        return "\\" + letter
    return f"\\x{ord(letter):02x}" if letter == "$" or ord(letter) < 0x20 or ord(letter) == 0x7F else letter


def _flux_time(milliseconds: int) -> str:
    moment = EPOCH + timedelta(milliseconds=milliseconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{milliseconds % 1000:03d}Z"


# --- queries ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FieldQuery:
    """Query for the points of some fields of a measurement. `only` are required tag values, `without` excluded tag
    values. Times are unix milliseconds, both ends inclusive."""

    measurement: str
    fields: tuple[str, ...]
    only: Mapping[str, str] = field(default_factory=dict)
    without: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def influxql(self, since: int, until: int) -> str:
        """InfluxQL query, grouped by all tags, so that each series is separate."""
        conditions = [f"{influxql_name(tag)} = {influxql_string(value)}" for tag, value in self.only.items()]
        for tag, values in self.without.items():
            conditions += [f"{influxql_name(tag)} != {influxql_string(value)}" for value in values]
        conditions += [f"time >= {since}ms", f"time <= {until}ms"]
        fields = ", ".join(map(influxql_name, self.fields))
        return f"SELECT {fields} FROM {influxql_name(self.measurement)} WHERE {' AND '.join(conditions)} GROUP BY *"

    def flux(self, since: int, until: int, *, bucket: str) -> str:
        """Flux query. Tables keep their stored grouping by all tags and the field. `stop` of a Flux range is
        exclusive."""
        conditions = [f"r._measurement == {flux_string(self.measurement)}"]
        conditions += [f"r[{flux_string(tag)}] == {flux_string(value)}" for tag, value in self.only.items()]
        for tag, values in self.without.items():
            conditions += [f"r[{flux_string(tag)}] != {flux_string(value)}" for value in values]
        fields = " or ".join(f"r._field == {flux_string(name)}" for name in self.fields)
        return (
            f"from(bucket: {flux_string(bucket)})"
            f" |> range(start: {_flux_time(since)}, stop: {_flux_time(until + 1)})"
            f" |> filter(fn: (r) => {' and '.join(conditions)} and ({fields}))"
            f' |> drop(columns: ["_start", "_stop"])'
        )


@dataclass(frozen=True, slots=True)
class QueryTemplate:
    """A configured query in the language of the dialect, with the placeholders <since> and <until>."""

    text: str

    def influxql(self, since: int, until: int) -> str:
        """InfluxQL query, for conditions such as `time >= <since> AND time <= <until>`. Times are unix milliseconds."""
        return self.text.replace(SINCE, f"{since}ms").replace(UNTIL, f"{until}ms")

    def flux(self, since: int, until: int, *, bucket: str) -> str:
        """Flux query, for example with `range(start: <since>, stop: <until>)`. The expression contains its bucket.
        Times are unix milliseconds."""
        return self.text.replace(SINCE, _flux_time(since)).replace(UNTIL, _flux_time(until + 1))


# --- Telegraf's schema -----------------------------------------------------------------------------------------------

CPU = FieldQuery("cpu", tuple(f"usage_{mode}" for mode in UNUSED), only={"cpu": "cpu-total"})
MEMORY = FieldQuery("mem", ("available_percent", "used_percent"))
DISKS = FieldQuery("diskio", ("io_time",))
# "all" contains the kernel's counts per protocol, not per device.
NETWORK = FieldQuery("net", ("bytes_sent", "bytes_recv", "drop_in", "drop_out"), without={"interface": ("lo", "all")})


@dataclass(frozen=True, slots=True)
class InfluxQueryPlan:
    """Query for a metric. `counter` is the field whose growth per second is the value, None if the points are
    values. `unit` (a key of model.SOURCE_UNITS) is the unit of the values, or of the growth per second multiplied by
    `scale`. `smoothing_s` is the averaging time in seconds. `shown` and `reason` are for display."""

    metric: Metric
    source: FieldQuery | QueryTemplate
    unit: str
    shown: str
    reason: str
    counter: str | None = None
    scale: float = 1.0
    node_tag: str = NODE_TAG
    smoothing_s: float = 0.0


def _growth(
    key: str, source: FieldQuery, counter: str, unit: str, reason: str, *, scale: float = 1.0
) -> InfluxQueryPlan:
    where = "".join(f" without {tag} {' and '.join(values)}" for tag, values in source.without.items())
    shown = f"growth of {source.measurement}.{counter}{where}"
    return InfluxQueryPlan(METRIC_BY_KEY[key], source, unit, shown, reason, counter, scale)


_SUM = "Telegraf's schema; the sum over interfaces"
TELEGRAF: Mapping[str, InfluxQueryPlan] = {
    "CPU": InfluxQueryPlan(
        METRIC_BY_KEY["CPU"],
        CPU,
        "percent",
        "100 - usage_idle - usage_iowait - usage_steal of cpu where cpu = cpu-total",
        "Telegraf's schema; idle, iowait and steal do not count as use, as in kube-prometheus",
    ),
    "Memory": InfluxQueryPlan(
        METRIC_BY_KEY["Memory"],
        MEMORY,
        "percent",
        "100 - available_percent of mem, else its used_percent",
        "Telegraf's schema; 1 - available / total, as in kube-prometheus",
    ),
    "Storage": _growth(
        "Storage", DISKS, "io_time", "percent", "Telegraf's schema; milliseconds busy, the busiest device", scale=0.1
    ),
    "NetworkTransmit": _growth("NetworkTransmit", NETWORK, "bytes_sent", "bytes/s", _SUM),
    "NetworkReceive": _growth("NetworkReceive", NETWORK, "bytes_recv", "bytes/s", _SUM),
    "NetworkTransmitDrop": _growth("NetworkTransmitDrop", NETWORK, "drop_out", "packets/s", _SUM),
    "NetworkReceiveDrop": _growth("NetworkReceiveDrop", NETWORK, "drop_in", "packets/s", _SUM),
}


# --- the queries of the settings --------------------------------------------------------------------------------------


def database_of(settings: ProviderSettings) -> str:
    """Database for InfluxQL. InfluxDB 2.x maps a database name to the bucket of that name (DBRP mapping)."""
    return settings.database or settings.bucket or DATABASE


def plan_of(metric: Metric, settings: ProviderSettings) -> InfluxQueryPlan | None:
    """Query for a metric; None if it is neither configured nor in Telegraf's schema."""
    tag = settings.node_label or NODE_TAG
    if configured := settings.queries.get(metric.key):
        text = re.sub(r"\s+", " ", configured.expression.strip())
        source = QueryTemplate(configured.expression.strip())
        tag = configured.node_label or tag
        return InfluxQueryPlan(
            metric, source, configured.unit, text, "configured", node_tag=tag, smoothing_s=configured.smoothing
        )
    usual = TELEGRAF.get(metric.key)
    if usual is None:
        return None
    # independent of the detected language: otherwise a server upgrade would discard the history
    places = dict.fromkeys(place for place in (settings.database, settings.bucket) if place)
    shown = f"{usual.shown} in {' or '.join(places) or DATABASE}"
    return InfluxQueryPlan(
        metric, usual.source, usual.unit, shown, usual.reason, usual.counter, usual.scale, node_tag=tag
    )
