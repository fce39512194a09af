"""Validation of combinations of settings, and of the files that they name.

Valid values can be inconsistent: a timeout longer than the tick, windows that are not multiples of the resolution, a
private key without its certificate. Every conflict names all values involved. A conflict is not reported if one of its
keys has an invalid value, since the default used in its place would cause false alarms.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from watcher.api.settings import MetricsSettings
from watcher.core.config.addresses import has_password, is_server
from watcher.core.config.fields import settings_of
from watcher.core.config.problems import Problem
from watcher.core.config.quantities import write_duration
from watcher.core.config.settings import Settings
from watcher.core.config.values import write_text
from watcher.core.forecast.settings import ForecastSettings
from watcher.core.messages import install_extra
from watcher.core.queries.influxdb import SINCE, UNTIL, is_template
from watcher.core.queries.matchers import is_label_name
from watcher.core.queries.promql import is_plain
from watcher.core.windows.settings import RefreshSettings
from watcher.core.windows.slot_widths import usable_widths
from watcher.koordinator.settings import KoordinatorSettings
from watcher.model import METRIC_BY_KEY, SOURCE_UNITS
from watcher.platform.kube.settings import KubernetesSettings, MarksSettings
from watcher.service.settings.tables import KEYS, QUERIES
from watcher.sources.settings import ProviderSettings
from watcher.store.settings import StoreSettings

# Example addresses of the providers that require one.
EXAMPLE_ADDRESSES = {"prometheus": "http://prometheus.monitoring:9090", "influxdb": "http://influxdb.monitoring:8086"}
# Effect of an unset provider.name, by the provider that is then chosen.
DEFAULTS = {
    "host": "the load of this machine would be read",
    "metrics-server": "this cluster's metrics-server would be used",
}
DEADLINE = 0.8  # share of refresh.interval after which an unfinished refresh is aborted


@dataclass(frozen=True, slots=True)
class Conflict:
    """An inconsistency between the values of `keys`; it is reported for the first of them."""

    keys: tuple[str, ...]
    message: str
    cure: str


def conflicts(settings: Settings, *, refused: Collection[str]) -> list[Problem]:
    """Return all inconsistencies between settings that involve no key of `refused`."""
    return [
        Problem(each.keys[0], each.message, each.cure)
        for check in (
            _server,
            _provider,
            _kubernetes,
            _credentials,
            _queries,
            _promql,
            _influxdb,
            _datadog,
            _replay,
            _refresh,
            _windows,
            _forecast,
            _store,
            _metrics,
            _koordinator,
            _marks,
            _files,
        )
        for each in check(settings)
        if not set(each.keys) & set(refused)
    ]


def value_of(settings: Settings, key: str) -> Any:
    """Return the value of a setting by its full key, for example "refresh.interval"."""
    table, _, name = key.partition(".")
    return getattr(settings.named(table), name)


def _is(settings: Settings, key: str) -> str:
    """Return "KEY = VALUE (ORIGIN)", for use in a message."""
    value = KEYS[key].setting.kind.write(value_of(settings, key))
    return f"{key} = {value} ({settings.origins.get(key, 'default')})"


def _both(settings: Settings, one: str, other: str, *, because: str) -> Iterator[Conflict]:
    """Yield a conflict if both keys are set. It contains their origins but not their values, which may be secret."""
    if value_of(settings, one) is not None and value_of(settings, other) is not None:
        places = f"{one} ({settings.origins[one]}) and {other} ({settings.origins[other]})"
        yield Conflict((one, other), f"both {places} are set; {because}", "remove one of them")


def _needs(settings: Settings, key: str, *needed: str) -> Iterator[Conflict]:
    """Yield a conflict if `key` is set and none of `needed` is."""
    if value_of(settings, key) and all(value_of(settings, each) is None for each in needed):
        origin = settings.origins.get(key, "default")
        message = f"is not set, and {key} ({origin}) needs {' or '.join(needed)}"
        yield Conflict((needed[0], key, *needed[1:]), message, f"set {' or '.join(needed)}, or remove {key}")


def _server(settings: Settings) -> Iterator[Conflict]:
    yield from _needs(settings, "server.tls_cert", "server.tls_key")
    yield from _needs(settings, "server.tls_key", "server.tls_cert")
    yield from _needs(settings, "server.tls_client_ca", "server.tls_cert")
    yield from _needs(settings, "server.protect_reads", "server.token_file")
    yield from _needs(settings, "server.scheduler_clients", "server.tls_client_ca")


def _address(origin: str, address: str) -> str:
    """Format provider.address in the syntax of the source that set provider.name."""
    if origin.startswith("flag "):
        return f"--address {address}"
    if origin.startswith("environment "):
        return f"{origin.removeprefix('environment ').removesuffix('_NAME')}_ADDRESS={address}"
    return f'provider.address = "{address}"'


def _provider(settings: Settings) -> Iterator[Conflict]:
    provider, refresh = settings[ProviderSettings], settings[RefreshSettings]
    if provider.name in EXAMPLE_ADDRESSES and provider.address is None:
        name = provider.name
        message = f"is not set, and the provider {name} has no default address (provider.name: {provider.reason})"
        cure = (
            f"set provider.address, for example {_address(settings.origins['provider.name'], EXAMPLE_ADDRESSES[name])}"
        )
        yield Conflict(("provider.address", "provider.name"), message, cure)
    if provider.address is not None and provider.name in DEFAULTS and "provider.name" not in settings.origins:
        address = _is(settings, "provider.address")
        message = f"is not set, so {DEFAULTS[provider.name]}, and {address} would not be used"
        yield Conflict(("provider.name", "provider.address"), message, 'set provider.name, for example to "prometheus"')
    deadline = DEADLINE * refresh.interval
    if provider.timeout > deadline * (1 + 1e-9):
        message = (
            f"{_is(settings, 'provider.timeout')} is longer than {DEADLINE} of {_is(settings, 'refresh.interval')}, "
            f"{write_duration(round(deadline, 3))}, after which a refresh is aborted"
        )
        yield Conflict(("provider.timeout", "refresh.interval"), message, "lower the timeout or raise the interval")


def _kubernetes(settings: Settings) -> Iterator[Conflict]:
    yield from _needs(settings, "kubernetes.context", "kubernetes.kubeconfig", "provider.kubeconfig")


def _credentials(settings: Settings) -> Iterator[Conflict]:
    header = "both would set the Authorization header"
    yield from _both(settings, "provider.token", "provider.token_file", because="only one token can be used")
    yield from _both(settings, "provider.password", "provider.password_file", because="only one password can be used")
    yield from _both(settings, "provider.token", "provider.username", because=header)
    yield from _both(settings, "provider.token_file", "provider.username", because=header)
    yield from _needs(settings, "provider.username", "provider.password", "provider.password_file")
    yield from _needs(settings, "provider.password", "provider.username")
    yield from _needs(settings, "provider.password_file", "provider.username")
    yield from _needs(settings, "provider.client_key", "provider.client_cert")
    if any(name.casefold() == "authorization" for name in settings[ProviderSettings].headers):
        for key in ("provider.token", "provider.token_file", "provider.username"):
            yield from _both(settings, "provider.headers", key, because=header)


def _queries(settings: Settings) -> Iterator[Conflict]:
    wanted = {metric.key for metric in settings[ProviderSettings].wanted}
    for name, query in settings[ProviderSettings].queries.items():
        table, metric = ".".join((*QUERIES, name)), METRIC_BY_KEY[name]
        if name not in wanted:
            message = f"is set, but {_is(settings, 'provider.metrics')} does not include {name}"
            yield Conflict((table, "provider.metrics"), message, f'add "{name}" to provider.metrics')
        if SOURCE_UNITS[query.unit][0] != metric.unit:
            fitting = [unit for unit, (ours, _) in SOURCE_UNITS.items() if ours == metric.unit]
            message = f'is "{query.unit}", which cannot be converted to {metric.unit.value}, the unit of {name}'
            yield Conflict((f"{table}.unit",), message, f"use one of {', '.join(fitting)}")


def _promql(settings: Settings) -> Iterator[Conflict]:
    """Check values that are inserted into PromQL queries, so that they cannot break or change a query."""
    if settings[ProviderSettings].name != "prometheus":
        return
    labels = {"provider.node_label": settings[ProviderSettings].node_label}
    for name, query in settings[ProviderSettings].queries.items():
        table = ".".join((*QUERIES, name))
        labels[f"{table}.node_label"] = query.node_label
        if query.guard is not None and not is_plain(query.guard):
            message = f"is {write_text(query.guard)}, which is not a metric name or selector"
            yield Conflict(
                (f"{table}.guard",), message, f"name raw series, for example {KEYS[f'{table}.guard'].setting.example}"
            )
    for key, label in labels.items():
        if label is not None and not is_label_name(label):
            message = f"is {write_text(label)}, which is not a valid label name"
            yield Conflict((key,), message, f"for example {key} = {KEYS[key].setting.example}")


def _influxdb(settings: Settings) -> Iterator[Conflict]:
    """Check the settings that the provider influxdb and its query language need."""
    provider = settings[ProviderSettings]
    if provider.name != "influxdb":
        return
    if provider.dialect != "influxql":  # InfluxQL accesses a bucket by a database name, without an organization
        yield from _needs(settings, "provider.bucket", "provider.org")
    if provider.dialect == "flux":
        dialect = _is(settings, "provider.dialect")
        if provider.bucket is None:
            message = f"is not set, and {dialect} needs it"
            example = KEYS["provider.bucket"].setting.example
            cure = f"set provider.bucket and provider.org, for example provider.bucket = {example}"
            yield Conflict(("provider.bucket", "provider.dialect"), message, cure)
        if find_spec("influxdb_client") is None:
            message = f"{dialect} needs the library influxdb-client, which is not installed"
            yield Conflict(("provider.dialect",), message, f"{install_extra('influxdb')}, or use influxql")
    for name, query in provider.queries.items():
        if not is_template(query.expression):
            message = f"is {write_text(query.expression)}, which has no time range"
            cure = f"use {SINCE} and {UNTIL} for the begin and end of the range (docs/tasks/influxdb.md)"
            yield Conflict((".".join((*QUERIES, name, "expression")),), message, cure)


# Values that are safe inside a Datadog scope: without characters that end the value.
_HOST_SUFFIX = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_CLUSTER = re.compile(r"[\w./:-]+")


def _datadog(settings: Settings) -> Iterator[Conflict]:
    """Check the credentials for Datadog, and the values that are inserted into its queries."""
    provider = settings[ProviderSettings]
    if provider.name != "datadog":
        return
    yield from _both(settings, "provider.app_key", "provider.app_key_file", because="only one key can be used")
    for key, what in (("token", "an API key"), ("app_key", "an application key")):
        name = f"provider.{key}"
        if value_of(settings, name) is None and value_of(settings, f"{name}_file") is None:
            message = f"is not set, and the provider {provider.name} needs {what}"
            yield Conflict((name, f"{name}_file", "provider.name"), message, f"set {name}_file or {name}")
    for key, allowed in (("host_name_suffix", _HOST_SUFFIX), ("cluster_name", _CLUSTER)):
        text = getattr(provider, key)
        if text is not None and not allowed.fullmatch(text):
            message = f"is {write_text(text)}, which has characters that a query to {provider.name} cannot contain"
            name = f"provider.{key}"
            yield Conflict((name,), message, f"for example {name} = {KEYS[name].setting.example}")


def _refresh(settings: Settings) -> Iterator[Conflict]:
    refresh, interval = settings[RefreshSettings], _is(settings, "refresh.interval")
    if refresh.resolution and refresh.interval < refresh.resolution:
        message = f"{interval} is shorter than {_is(settings, 'refresh.resolution')}: refreshes would add no new slots"
        cure = "raise the interval or lower the resolution"
        yield Conflict(("refresh.interval", "refresh.resolution"), message, cure)
    if refresh.max_staleness < refresh.interval:
        limit = _is(settings, "refresh.max_staleness")
        message = f"{limit} is shorter than {interval}: responses would become stale between refreshes"
        cure = "raise max_staleness or lower the interval"
        yield Conflict(("refresh.max_staleness", "refresh.interval"), message, cure)


def _windows(settings: Settings) -> Iterator[Conflict]:
    keys = ("refresh.windows", "refresh.resolution")
    width, resolution = settings[RefreshSettings].resolution, _is(settings, "refresh.resolution")
    origin = settings.origins.get("refresh.windows", "default")
    if not width:
        if not usable_widths(settings[RefreshSettings].windows):
            labels = ", ".join(f'"{window.label}"' for window in settings[RefreshSettings].windows)
            message = f"{labels} ({origin}) have no common slot of 5s, 6s, 10s, 12s or 15s"
            yield Conflict(keys, message, "choose windows that are multiples, or set refresh.resolution")
        return
    for window in settings[RefreshSettings].windows:
        if window.seconds % width:
            message = f'"{window.label}" ({origin}) is not a whole multiple of {resolution}'
            yield Conflict(keys, message, "choose windows that are multiples, or another resolution")
        elif window.seconds < 2 * width:
            message = f'"{window.label}" ({origin}) is less than two slots of {resolution}'
            yield Conflict(keys, message, "choose longer windows, or a finer resolution")


def _forecast(settings: Settings) -> Iterator[Conflict]:
    forecast = settings[ForecastSettings]
    if forecast.horizon not in forecast.horizons:
        message = f"{_is(settings, 'forecast.horizon')} is not among {_is(settings, 'forecast.horizons')}"
        labels = ", ".join(f'"{hours}h"' for hours in forecast.horizons)
        yield Conflict(("forecast.horizon", "forecast.horizons"), message, f"set it to one of {labels}, or add it")


def _store(settings: Settings) -> Iterator[Conflict]:
    longest = settings[RefreshSettings].windows[-1]
    if settings[StoreSettings].retention < longest.seconds:
        windows = _is(settings, "refresh.windows")
        message = f"{_is(settings, 'store.retention')} is shorter than the longest of {windows}"
        yield Conflict(("store.retention", "refresh.windows"), message, f'set it to at least "{longest.label}"')
    if "/" in (settings[StoreSettings].watcher_id or ""):
        message = f"{_is(settings, 'store.watcher_id')} contains a /, which separates it from cluster.name"
        yield Conflict(("store.watcher_id",), message, "choose a name without /, for example the host name")
    if is_server(settings[StoreSettings].url):
        yield from _server_store(settings)


def _server_store(settings: Settings) -> Iterator[Conflict]:
    """Check the settings that only a PostgreSQL server needs."""
    if find_spec("psycopg") is None:
        message = f"{_is(settings, 'store.url')} needs the library psycopg, which is not installed"
        yield Conflict(("store.url",), message, install_extra("postgres"))
    if settings[StoreSettings].password_file is not None and has_password(settings[StoreSettings].url):
        message = "contains a password, and store.password_file is set as well"
        yield Conflict(("store.url", "store.password_file"), message, "remove one of them")


def _replay(settings: Settings) -> Iterator[Conflict]:
    provider = settings[ProviderSettings]
    if provider.name != "replay":
        return
    if provider.trace is None:
        cure = 'set it to a trace or a database file, for example provider.trace = "trace.csv.gz"'
        yield Conflict(("provider.trace", "provider.name"), "is not set, and replay needs a recording", cure)
    elif _is_store(settings, provider.trace):
        message = f"{_is(settings, 'provider.trace')} is this service's own database (store.url), which it writes to"
        yield Conflict(("provider.trace", "store.url"), message, "replay a copy, or set another store.url")


def _is_store(settings: Settings, path: Path) -> bool:
    _, is_file, store = settings[StoreSettings].url.partition("sqlite:///")
    return bool(is_file) and Path(store).resolve() == path.resolve()


def _metrics(settings: Settings) -> Iterator[Conflict]:
    computed = {window.label for window in settings[RefreshSettings].windows}
    for label in settings[MetricsSettings].windows:
        if label not in computed:
            origin = settings.origins.get("metrics.windows", "default")
            message = f'"{label}" ({origin}) is not in {_is(settings, "refresh.windows")}'
            yield Conflict(("metrics.windows", "refresh.windows"), message, "use only windows of refresh.windows")


def _needs_nodes(settings: Settings, key: str) -> Iterator[Conflict]:
    """Yield a conflict if `key` is true and the names of the nodes of the cluster are not read."""
    wanted, provider = settings[KubernetesSettings].node_names, settings[ProviderSettings].name
    unread = wanted == "off" or (wanted == "auto" and provider in ("host", "replay"))
    if value_of(settings, key) and unread and provider != "metrics-server":
        message = f"is true, but the nodes of the cluster are not read ({_is(settings, 'kubernetes.node_names')})"
        cure = f'set kubernetes.node_names = "on", or remove {key}'
        yield Conflict((key, "kubernetes.node_names", "provider.name"), message, cure)


def _marks(settings: Settings) -> Iterator[Conflict]:
    marks = settings[MarksSettings]
    for key in ("marks.taints", "marks.annotation", "marks.pressure"):
        yield from _needs_nodes(settings, key)
    if marks.is_on and marks.forecast and not settings[ForecastSettings].enabled:
        message = f"is true, but there are no forecasts ({_is(settings, 'forecast.enabled')})"
        yield Conflict(("marks.forecast", "forecast.enabled"), message, "set forecast.enabled = true")


def _koordinator(settings: Settings) -> Iterator[Conflict]:
    for key in ("koordinator.publish", "koordinator.thresholds"):
        yield from _needs_nodes(settings, key)
    yield from _thresholds(settings)
    served = {window.seconds for window in settings[RefreshSettings].windows}
    koordinator = settings[KoordinatorSettings]
    named = {"koordinator.aggregate_durations": [each.seconds for each in koordinator.aggregate_durations or ()]}
    named["koordinator.nodes"] = [
        seconds for rule in koordinator.nodes for seconds in rule.part.durations_s or () if seconds not in served
    ]
    for key, durations in named.items():
        for seconds in dict.fromkeys(durations):
            if seconds not in served:
                origin, label = settings.origins.get(key, "default"), write_duration(seconds)
                message = f'"{label}" ({origin}) is not in {_is(settings, "refresh.windows")}'
                cure = f'use only windows of refresh.windows, or add "{label}" to it'
                yield Conflict((key, "refresh.windows"), message, cure)


def _thresholds(settings: Settings) -> Iterator[Conflict]:
    koordinator = settings[KoordinatorSettings]
    if koordinator.thresholds and not settings[ForecastSettings].enabled:
        message = f"is true, but there are no forecasts ({_is(settings, 'forecast.enabled')})"
        cure = "set forecast.enabled = true, or remove koordinator.thresholds"
        yield Conflict(("koordinator.thresholds", "forecast.enabled"), message, cure)
    for resource in ("cpu", "memory"):
        lowest, highest = (f"{end}_{resource}_threshold" for end in ("lowest", "highest"))
        if getattr(koordinator, lowest) > getattr(koordinator, highest):
            message = f"{getattr(koordinator, lowest)} is above {_is(settings, f'koordinator.{highest}')}"
            cure = f"set koordinator.{lowest} to at most koordinator.{highest}"
            yield Conflict((f"koordinator.{lowest}", f"koordinator.{highest}"), message, cure)


def _files(settings: Settings) -> Iterator[Conflict]:
    """Check that named files exist, are readable and not empty. provider.kubeconfig is checked only if it is used,
    since KUBE_CONFIG may be set for other programs.
    """
    for table in ("server", "provider", "kubernetes", "agents", "qrms", "extender", "store"):
        for each in settings_of(type(settings.named(table))).values():
            key, path = f"{table}.{each.name}", getattr(settings.named(table), each.name)
            used = (
                settings[ProviderSettings].name == "metrics-server" and settings[KubernetesSettings].kubeconfig is None
            )
            read = key != "provider.kubeconfig" or used
            if isinstance(path, Path) and read and (trouble := _trouble_with(path)):
                yield Conflict(
                    (key,), f"{_is(settings, key)} {trouble}", "name an existing file that is readable and not empty"
                )


def _trouble_with(path: Path) -> str | None:
    # Only regular files are opened: a pipe can be read only once.
    if path.is_dir():
        return "is a directory"
    if not path.exists():
        return "does not exist"
    if not os.access(path, os.R_OK):
        return "is not readable by this process"
    if path.is_file() and not path.read_bytes().strip():
        return "is empty"
    return None
