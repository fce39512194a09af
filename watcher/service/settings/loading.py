"""Builds the `Settings` object from flags, environment and file, or reports all problems.

The steps: read each source, merge by precedence key by key, choose the provider, parse every value, fill in computed
defaults, and check the combinations. No step stops at the first problem.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from watcher import model
from watcher.core.config.addresses import is_server
from watcher.core.config.problems import Problem, SettingsError
from watcher.core.config.reader import readable
from watcher.core.config.section_reader import RawValue, SectionReport
from watcher.core.config.settings import Settings
from watcher.core.config.values import Secret, describe
from watcher.core.messages import nearest
from watcher.platform import provider_names
from watcher.service.settings.checks import DEADLINE, conflicts
from watcher.service.settings.layers import (
    CONFIG,
    DEFAULT_FILE,
    SourceValues,
    default_layer,
    environment_layer,
    file_layer,
    flag_layer,
    legacy_layer,
)
from watcher.service.settings.tables import KEYS, TABLES
from watcher.sources.settings import ProviderSettings
from watcher.store.settings import StoreSettings

Validator = Callable[[Mapping[str, Any]], list[Problem]]

NAME, ADDRESS = "provider.name", "provider.address"
# Keys that a provider does not use, with the reason; setting one of them gives a notice.
UNUSED: Mapping[str, tuple[tuple[str, ...], str]] = {
    "host": (("address", "queries"), "the provider host reads only this machine"),
    "metrics-server": (
        ("address", "token", "token_file", "username", "ca_file", "client_cert", "insecure_skip_verify", "queries"),
        "the provider metrics-server connects to the cluster of the kubeconfig, or to its own cluster",
    ),
    "datadog": (("username",), "the provider datadog authenticates with its two keys"),
    "replay": (
        ("address", "token", "token_file", "username", "matchers", "queries"),
        "the provider replay reads provider.trace",
    ),
}
UPSTREAM_NAMES = {"kubernetesmetricsserver": "metrics-server"}
UPSTREAM_ADDRESS = "http://prometheus-k8s:9090"
# Address of the default site; other sites of Datadog have other addresses.
CLOUD_ADDRESSES = {"datadog": "https://api.datadoghq.com"}


def load(
    *,
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    cwd: Path,
    file: Path | None = None,
    assigned: Mapping[str, str] | None = None,
    origins: Mapping[str, str] | None = None,
    part_validators: Mapping[str, Validator] | None = None,
) -> Settings:
    """Load the settings from flags (by full key; None: not given), keys `assigned` by --set, the environment and the
    file.

    If `file` is None, the file is LOAD_WATCHER_CONFIG, or else load-watcher.toml in `cwd` if it exists. `origins` name
    the sources of flags as in `flag_layer`. `part_validators` check the tables of other packages, by name
    ("scheduler", "agent", "qrm"). Raises SettingsError with all problems.
    """
    layers = _Layers(
        default_layer(environ),
        _file(file, environ=environ, cwd=cwd),
        environment_layer(environ),
        flag_layer(flags, assigned or {}, origins),
    )
    chosen = _choose_provider(layers.merged(legacy_layer(environ, provider="")).get(NAME), environ=environ)
    legacy = legacy_layer(environ, provider=chosen.name)
    reading = _read(layers.merged(legacy), cwd=cwd)
    _split_credentials(reading)
    _fill_in(reading, chosen, environ)
    settings = _assemble(reading, chosen)
    settings = replace(settings, parts=layers.parts())
    problems = [*layers.problems(), *reading.problems]
    if not layers.file_failed:
        problems += chosen.problems
        problems += conflicts(settings, refused=reading.refused | ({NAME, ADDRESS} if chosen.problems else set()))
    problems += _part_problems(layers, settings.parts, part_validators or {})
    if problems:
        raise SettingsError(problems)
    origins = {**settings.origins, **layers.part_origins()}
    notices = (
        *legacy.notices,
        *_unused(settings),
        *_unmatched(settings),
    )
    return replace(settings, origins={**dict.fromkeys(_plain_keys(), "default"), **origins}, notices=notices)


def _plain_keys() -> list[str]:
    return [name for name, key in KEYS.items() if len(key.table) == 1]


# --- the sources, weakest first --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Layers:
    defaults: SourceValues
    file: SourceValues
    environment: SourceValues
    flags: SourceValues

    @property
    def file_failed(self) -> bool:
        """Whether the file could not be read, so that settings that seem to be missing may be in it."""
        return any(problem.key == "config" for problem in self.file.problems)

    def merged(self, legacy: SourceValues) -> dict[str, RawValue]:
        """Return the value of each key from the source with the highest precedence."""
        weaker = {**self.defaults.given, **self.file.given, **legacy.given}
        return {**weaker, **self.environment.given, **self.flags.given}

    def parts(self) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for layer in self._all():
            for part, table in layer.parts.items():
                merged[part] = _overlaid(merged.get(part, {}), table)
        return merged

    def part_origins(self) -> dict[str, str]:
        names = sorted({part for layer in self._all() for part in layer.parts})
        found = {part: [layer.part_origin for layer in self._all() if part in layer.parts] for part in names}
        return {part: ", ".join(dict.fromkeys(origins)) for part, origins in found.items()}

    def problems(self) -> list[Problem]:
        return [problem for layer in self._all() for problem in layer.problems]

    def _all(self) -> tuple[SourceValues, ...]:
        return (self.defaults, self.file, self.environment, self.flags)


def _overlaid(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    both = {key: _overlaid(below[key], above[key]) for key in above if _are_tables(below.get(key), above[key])}
    return {**below, **above, **both}


def _are_tables(*candidates: object) -> bool:
    return all(isinstance(each, dict) for each in candidates)


def _file(file: Path | None, *, environ: Mapping[str, str], cwd: Path) -> SourceValues:
    named = file or (Path(environ[CONFIG]) if environ.get(CONFIG, "").strip() else None)
    if named is not None:
        return file_layer(cwd / named, shown=str(named))
    default = cwd / DEFAULT_FILE
    return file_layer(default, shown=DEFAULT_FILE) if default.exists() else SourceValues()


# --- the provider ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Chosen:
    name: str
    reason: str
    given: RawValue | None
    problems: list[Problem] = field(default_factory=list)


def _choose_provider(given: RawValue | None, *, environ: Mapping[str, str]) -> _Chosen:
    """Choose the provider, with the reason. An unknown name is a problem; it never selects a default silently."""
    if given is None:
        if environ.get("KUBERNETES_SERVICE_HOST"):
            reason = "provider.name is not set; the default in a cluster (KUBERNETES_SERVICE_HOST is set)"
            return _Chosen("metrics-server", reason, given)
        return _Chosen("host", "provider.name is not set; the default outside a cluster", given)
    if not isinstance(given.value, str) or not given.value.strip():
        message = f"must be the name of a provider; given {describe(given.value)} ({given.origin})"
        return _Chosen("host", "", given, [Problem(NAME, message, f"choose one of {_known()}")])
    folded = given.value.strip().casefold()
    spelt = UPSTREAM_NAMES | {name.casefold(): name for name in provider_names.known_names()}
    if folded in spelt:
        return _Chosen(spelt[folded], f"set by {given.origin}", given)
    if folded in provider_names.EXAMPLES:
        message = f"the provider {folded} ({given.origin}) is in a package that is not installed"
        install = f"run pip install ./{provider_names.EXAMPLES[folded]} in a clone of load-watcher"
        cure = f"{install}, or choose one of {_known()}"
        return _Chosen("host", "", given, [Problem(NAME, message, cure)])
    if instead := provider_names.REMOVED.get(folded):
        message = f"the provider {folded} was removed in this version ({given.origin})"
        return _Chosen("host", "", given, [Problem(NAME, message, instead)])
    guess = nearest(folded, spelt)
    message = f"unknown provider {describe(given.value)} ({given.origin})"
    cure = f"choose one of {_known()}" + (f"; did you mean {spelt[guess]}?" if guess else "")
    return _Chosen("host", "", given, [Problem(NAME, message, cure)])


def _known() -> str:
    return ", ".join(sorted(provider_names.known_names()))


# --- values ----------------------------------------------------------------------------------------------------------


@dataclass
class _ParsedValues:
    """Parsed values and their origins by full key, the problems, and the keys of invalid values (`refused`)."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)

    def take(self, key: str, value: Any, origin: str) -> None:
        self.values[key], self.origins[key] = value, origin

    def refuse(self, key: str, message: str, cure: str) -> None:
        self.problems.append(Problem(key, message, cure))
        self.refused.add(key)


def _read(given: Mapping[str, RawValue], *, cwd: Path) -> _ParsedValues:
    reading = _ParsedValues()
    for section, table in TABLES.items():
        report = SectionReport(section, cwd=cwd)
        for name, value in readable(table, _nested(given, section), report).items():
            reading.values[f"{section}.{name}"] = value
        reading.problems += report.problems
    reading.refused.update(problem.key for problem in reading.problems)
    reading.origins.update({key: each.origin for key, each in given.items() if key not in {NAME, *reading.refused}})
    return reading


def _nested(given: Mapping[str, RawValue], section: str) -> dict[str, Any]:
    """Return the values of a section, with its inner tables; the provider is already chosen."""
    found: dict[str, Any] = {}
    for key in sorted((KEYS[name] for name in given if name != NAME), key=lambda key: key.table):
        if key.table[0] == section:
            table = found
            for step in key.table[1:]:
                table = table.setdefault(step, {})
            table[key.setting.name] = given[key.name]
    return found


def _split_credentials(reading: _ParsedValues) -> None:
    """Move user and password from the address to provider.username and provider.password, so that the address can be
    logged.
    """
    address = reading.values.get(ADDRESS)
    if address is None or "@" not in urlsplit(address).netloc:
        return
    parts, origin = urlsplit(address), reading.origins[ADDRESS]
    if "provider.username" in reading.values or "provider.password" in reading.values:
        message = f"contains a user ({origin}), and provider.username or provider.password is set as well"
        reading.refuse(ADDRESS, message, "remove one of them")
    elif not parts.username or not parts.password:
        message = f"contains a user without a password, or a password without a user ({origin})"
        reading.refuse(ADDRESS, message, "set provider.username and provider.password_file, or provider.token_file")
    else:
        reading.take("provider.username", unquote(parts.username), origin)
        reading.take("provider.password", Secret(unquote(parts.password)), origin)
    plain = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    reading.take(ADDRESS, plain, origin)


def _fill_in(reading: _ParsedValues, chosen: _Chosen, environ: Mapping[str, str]) -> None:
    """Fill in the defaults that depend on other settings or on the environment."""
    legacy = chosen.given is not None and chosen.given.origin == "environment METRICS_PROVIDER_NAME"
    if legacy and chosen.name == "prometheus" and ADDRESS not in reading.values:
        reading.take(ADDRESS, UPSTREAM_ADDRESS, "default with METRICS_PROVIDER_NAME=Prometheus")
    if chosen.name in CLOUD_ADDRESSES and ADDRESS not in reading.values:
        reading.take(ADDRESS, CLOUD_ADDRESSES[chosen.name], f"default of the provider {chosen.name}")
    interval, timeout = reading.values.get("refresh.interval"), "provider.timeout"
    if interval is not None and timeout not in reading.values and DEADLINE * interval < KEYS[timeout].setting.default:
        reading.take(timeout, round(DEADLINE * interval, 3), f"default, {DEADLINE} of refresh.interval")
    shown, served = "metrics.windows", reading.values.get("refresh.windows")
    if served and shown not in reading.values:
        label = model.default_window(served).label
        reading.take(shown, (label,), "default, the window of GET /watcher")
    if is_server(reading.values.get("store.url", "")) and "store.watcher_id" not in reading.values:
        pod = environ.get("POD_NAME", "").strip()
        origin = "environment POD_NAME" if pod else "default, the host name"
        reading.take("store.watcher_id", pod or socket.gethostname(), origin)


# --- tables ----------------------------------------------------------------------------------------------------------


def _assemble(reading: _ParsedValues, chosen: _Chosen) -> Settings:
    """Build the tables. Invalid values are replaced by their defaults here; they are reported as problems."""
    if chosen.given is not None:
        reading.take(NAME, chosen.name, chosen.given.origin)
    tables: dict[str, dict[str, Any]] = {name: {} for name in TABLES}
    for key, value in reading.values.items():
        section, _, name = key.partition(".")
        tables[section][name] = value
    tables["provider"].update(name=chosen.name, reason=chosen.reason)
    tables["kubernetes"]["of_provider"] = tables["provider"].get("kubeconfig")
    built = [TABLES[name](**content) for name, content in tables.items()]
    return Settings(origins=dict(reading.origins)).having(*built)


# --- notices, and tables of other packages ---------------------------------------------------------------------------


def _unused(settings: Settings) -> list[str]:
    provider = settings[ProviderSettings]
    names, reason = UNUSED.get(provider.name, ((), ""))
    unused = [f"provider.{name} is set but not used: {reason}" for name in names if getattr(provider, name)]
    of_servers = () if is_server(settings[StoreSettings].url) else ("password_file", "watcher_id")
    unused += [
        f"store.{name} is set but not used: store.url names a file"
        for name in of_servers
        if getattr(settings[StoreSettings], name)
    ]
    return unused


def _unmatched(settings: Settings) -> list[str]:
    """Return notices for queries without provider.matchers, whose results may contain nodes of other clusters."""
    provider = settings[ProviderSettings]
    if not provider.matchers:
        return []
    if provider.name in provider_names.PROVIDERS and provider.name != "prometheus":
        return ["provider.matchers is set but not used: only the provider prometheus adds matchers to its queries"]
    without = [
        f"provider.queries.{name}.expression is sent without provider.matchers and does not contain the label "
        f"{each.label}: its result may contain nodes of other clusters"
        for name, query in provider.queries.items()
        for each in provider.matchers
        if each.label not in query.expression
    ]
    return list(dict.fromkeys(without))


def _part_problems(layers: _Layers, parts: Mapping[str, Any], validators: Mapping[str, Validator]) -> Iterator[Problem]:
    """Yield the problems of the tables of other packages. Validators write an example as in the file; here it gets the
    syntax of the source that the value is from."""
    origins = {**layers.defaults.part_keys, **layers.environment.part_keys, **layers.flags.part_keys}
    for name, table in parts.items():
        for problem in validators[name](table) if name in validators else ():
            origin, cure, start = origins.get(problem.key), problem.cure, f"for example {problem.key} = "
            if origin is None:
                yield problem
                continue
            if cure.startswith(start):
                cure = f"for example {RawValue(None, origin).example(problem.key, cure.removeprefix(start))}"
            yield Problem(problem.key, f"{problem.message} ({origin})", cure)
