"""Reads the sources of settings: the TOML file, the environment and flags. Values are not parsed or validated here.

Each source yields `RawValue` values by full key. An unknown key is a problem that names the nearest known key: ignoring
a misspelt setting would silently use the default.

The environment has two special cases. Variables of the Go load-watcher keep their meaning. Kubernetes sets service link
variables in every pod of a namespace; for a service named load-watcher they look like settings and are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from watcher.core.config.model_values import LEVEL
from watcher.core.config.problems import Problem, removed
from watcher.core.config.section_reader import RawValue
from watcher.core.config.values import InvalidValue, describe, toml_or_text, write_text
from watcher.core.messages import nearest
from watcher.decoding.text import decode_toml, read_text
from watcher.service.settings.tables import KEYS, PARTS, REMOVED, TABLES

DEFAULT_FILE = "load-watcher.toml"
PREFIX = "LOAD_WATCHER_"
DEFAULT_PREFIX = "LOAD_WATCHER_DEFAULT_"
"""Of the defaults of container images and manifests, which every other source overrides."""
CONFIG = "LOAD_WATCHER_CONFIG"
INNER_TABLES = frozenset(".".join(key.table[:depth]) for key in KEYS.values() for depth in range(2, len(key.table) + 1))
NOT_SETTINGS = (
    CONFIG,
    "LOAD_WATCHER_CACHE",
    "LOAD_WATCHER_KUBERNETES",
    "LOAD_WATCHER_REAL_PARTS",
    "LOAD_WATCHER_REQUIRE_REAL",
    "LOAD_WATCHER_URL",
)

_YAML = re.compile(r"---|[\w.]+:(\s|$)")  # possible begin of a YAML document; never valid in TOML


@dataclass
class SourceValues:
    """The values from one source. `parts` are the tables of other packages, by name."""

    given: dict[str, RawValue] = field(default_factory=dict)
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)
    part_keys: dict[str, str] = field(default_factory=dict)
    """Origins of single keys of parts, by full key."""
    part_origin: str = ""
    problems: list[Problem] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


# --- the file --------------------------------------------------------------------------------------------------------


def file_layer(path: Path, *, shown: str) -> SourceValues:
    """Read the TOML file; `shown` is its name in messages."""
    layer = SourceValues(part_origin=f"file {shown}")
    text = ""
    try:
        text = read_text(path)
        document = decode_toml(text)
    except OSError as error:
        layer.problems.append(Problem("config", f"cannot read {shown}: {error.strerror}", "name a readable TOML file"))
    except msgspec.DecodeError as error:  # the parser's messages contain line and column
        said = _with_place(error, text)
        layer.problems.append(Problem("config", f"{shown}: invalid TOML: {said}", _cure_of(said, text)))
    else:
        _take_document(layer, document, origin=f"file {shown}")
    return layer


def _with_place(error: Exception, text: str) -> str:
    """Return the parser's message, with line and column also if it only mentions the end of the document."""
    line, column = text.count("\n") + 1, len(text) - text.rfind("\n")
    said = (str(error).splitlines() or ["unknown error"])[0]
    return said.replace("at end of document", f"at line {line}, column {column}, the end")


def _cure_of(said: str, text: str) -> str:
    """Return the fix for an error of the decoders, which names the place."""
    if "not UTF-8" in said:
        return "save it as UTF-8"
    if "nested too deeply" in said:
        return "remove nested brackets"
    first = next((line for line in map(str.strip, text.splitlines()) if line and line[0] != "#"), "")
    if _YAML.match(first):
        return 'it looks like YAML; TOML has [server] and below it port = 2020, in place of "server:" and "port: 2020"'
    place = re.search(r"Cannot (?:declare|overwrite) .* ?\(at line (\d+)", said)
    name = re.match(r"\s*(\[[^\]]*\]+|[^=\[]+?(?=\s*=))", text.splitlines()[int(place[1]) - 1]) if place else None
    if name:
        return f"{_printable(name[1])} exists twice: keep one, and delete the other or move its keys"
    return "fix the syntax at this place"


def _take_document(layer: SourceValues, document: Mapping[str, Any], *, origin: str) -> None:
    for section, content in document.items():
        if section not in TABLES and section not in PARTS:
            layer.problems.append(_unknown_section(section, origin=origin))
        elif not isinstance(content, dict):
            layer.problems.append(_no_table(section, content, origin=origin))
        elif section in PARTS:
            layer.parts[section] = content
        else:
            _take_table(layer, (section,), content, origin=origin)


def _take_table(layer: SourceValues, table: tuple[str, ...], content: Mapping[str, Any], *, origin: str) -> None:
    for name, value in content.items():
        key = ".".join((*table, name))
        if key in KEYS:
            layer.given[key] = RawValue(value, origin)
        elif key not in INNER_TABLES:
            layer.problems.append(_unknown_key(key, origin=origin))
        elif not isinstance(value, dict):
            layer.problems.append(_no_table(key, value, origin=origin))
        else:
            _take_table(layer, (*table, name), value, origin=origin)


def _no_table(name: str, content: object, *, origin: str) -> Problem:
    return Problem(
        name,
        f"must be a table, [{name}]; given {describe(content, private=True)} ({origin})",
        f"start the table with [{name}]",
    )


def _unknown_section(section: str, *, origin: str) -> Problem:
    if instead := _instead_of(section):
        return removed(section, instead, origin)
    sections = (*TABLES, *PARTS)
    if homes := [key for key in KEYS if key.rpartition(".")[2] == section]:
        cure = f"did you mean {homes[0]}?"
    elif guess := nearest(section, sections):
        cure = f"did you mean [{guess}]?"
    else:
        cure = f"known sections: {', '.join(f'[{name}]' for name in sections)}"
    return Problem(_printable(section), f"unknown section ({origin})", cure)


def _instead_of(name: str) -> str | None:
    """Return what to use instead of a former table, of a former key, or of a variable without its prefix."""
    given = f"{name.replace('.', '_').lower()}_"
    return next((instead for old, instead in REMOVED.items() if given.startswith(f"{old.replace('.', '_')}_")), None)


def _unknown_key(key: str, *, origin: str) -> Problem:
    if instead := _instead_of(key):
        return removed(_printable(key), instead, origin)
    return Problem(_printable(key), f"unknown setting ({origin})", _nearest_key(key))


def _printable(name: str) -> str:
    return name if name.isprintable() and len(name) <= 120 else write_text(name[:120])


def _nearest_key(key: str) -> str:
    """Return a fix that names the most similar setting, or the settings of the table."""
    table, _, name = key.rpartition(".")
    siblings = {each.rpartition(".")[2]: each for each in (*KEYS, *INNER_TABLES) if each.rpartition(".")[0] == table}
    if guess := nearest(name, siblings):
        return f"did you mean {siblings[guess]}?"
    if homes := [each for each in KEYS if each.rpartition(".")[2] == name and each.count(".") == 1]:
        return f"did you mean {homes[0]}?"
    if guess := nearest(key, KEYS):
        return f"did you mean {guess}?"
    if siblings:
        return f"{table} has {', '.join(siblings)}"
    return "docs/reference/settings.md lists all settings"


# --- flags -----------------------------------------------------------------------------------------------------------


def flag_layer(
    flags: Mapping[str, Any], assigned: Mapping[str, str], origins: Mapping[str, str] | None = None
) -> SourceValues:
    """Read the flags (by full key; None: not given), which take precedence over the keys that --set has `assigned`.
    `origins` name the source of a flag that is not the usual option of its key: "flag --prometheus"."""
    layer, origin_of = SourceValues(part_origin="flag --set"), origins or {}
    for name, value in (*assigned.items(), *flags.items()):
        if value is None:
            continue
        key = KEYS.get(name)
        if key is not None:
            option = key.setting.kind.flag if name in flags else None
            origin = origin_of.get(name, f"flag {option or f'--set {name}'}")
            layer.given[name] = RawValue(value, origin, text=isinstance(value, str))
        elif name.partition(".")[0] in PARTS:
            _take_part(layer, name, str(value))
            layer.part_keys[name] = origin_of.get(name, f"flag --set {name}")
        else:
            layer.problems.append(_unknown_key(name, origin=f"flag --set {_printable(name)}"))
    return layer


def _take_part(layer: SourceValues, name: str, text: str) -> None:
    part, *path = name.split(".")
    table = layer.parts.setdefault(part, {})
    for step in path[:-1]:
        inner = table.setdefault(step, {})
        if not isinstance(inner, dict):
            layer.problems.append(
                Problem(name, f"is inside {step}, which is set to a single value", "set only one of them")
            )
            return
        table = inner
    if path:
        table[path[-1]] = toml_or_text(text)  # the types in other packages' tables are unknown here
    else:
        layer.problems.append(_no_table(part, text, origin="flag --set"))


# --- the environment -------------------------------------------------------------------------------------------------


def environment_layer(environ: Mapping[str, str]) -> SourceValues:
    """Read LOAD_WATCHER_<SECTION>_<KEY>. Empty variables count as not set, since compose files pass unset ones so."""
    return _variables({name: text for name, text in environ.items() if not name.startswith(DEFAULT_PREFIX)}, PREFIX)


def default_layer(environ: Mapping[str, str]) -> SourceValues:
    """Read LOAD_WATCHER_DEFAULT_<SECTION>_<KEY>, which every other source of settings overrides."""
    return _variables(environ, DEFAULT_PREFIX)


def _variables(environ: Mapping[str, str], prefix: str) -> SourceValues:
    layer = SourceValues(part_origin="environment")
    by_variable = {prefix + key.environment.removeprefix(PREFIX): name for name, key in KEYS.items()}
    for variable, text in environ.items():
        if not variable.startswith(prefix) or variable in NOT_SETTINGS or not text.strip():
            continue
        if _is_service_link(variable, text):
            continue
        if variable in by_variable:
            layer.given[by_variable[variable]] = RawValue(text, f"environment {variable}", text=True)
        elif part := _part_key(variable.removeprefix(prefix)):
            _take_part(layer, part, text)
            layer.part_keys[part] = f"environment {variable}"
        else:
            layer.problems.append(_unknown_variable(variable, by_variable, prefix))
    return layer


_SERVICE_LINK = re.compile(
    r"(LOAD_WATCHER|METRICS_PROVIDER)_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)",
    re.ASCII,
)


def _is_service_link(variable: str, text: str) -> bool:
    """Whether this is a service link variable of Kubernetes, for a service named load-watcher… or
    metrics-provider….
    """
    if variable.endswith("_PORT") and re.match(r"(tcp|udp|sctp)://", text):
        return True
    return _SERVICE_LINK.fullmatch(variable) is not None


def _part_key(variable: str) -> str | None:
    """Return "agent.port" for AGENT_PORT, or None for variables outside [agent] and [qrm]. Scheduler profiles have
    names of the user's choice and can be set only in the file or with --set.
    """
    part, _, name = variable.lower().partition("_")
    return f"{part}.{name}" if part in ("agent", "qrm") and name else None


def _unknown_variable(variable: str, known: Mapping[str, str], prefix: str) -> Problem:
    # Compared without the common prefix, which would make all names similar.
    name = variable.removeprefix(prefix)
    if instead := _instead_of(name):
        return removed(_printable(variable), instead, "environment")
    names = [each.removeprefix(prefix) for each in (*known, *NOT_SETTINGS) if each.startswith(prefix)]
    guess = next((each for each in names if each.endswith(f"_{name}")), None) or nearest(name, names)
    cure = f"did you mean {prefix}{guess}?" if guess else "docs/reference/settings.md lists all settings"
    return Problem(_printable(variable), "unknown setting (environment)", cure)


# --- variables of the Go load-watcher --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LegacyVariable:
    """A variable of the Go load-watcher; used only with the provider `only`, if set."""

    variable: str
    key: str
    meaning: str
    only: str | None = None


LEGACY = (
    LegacyVariable(
        "METRICS_PROVIDER_NAME",
        "provider.name",
        "`KubernetesMetricsServer`, `Prometheus`, `Datadog`, `InfluxDB` or any value of `provider.name`, "
        "case-insensitive. An unknown name is an error; in the Go load-watcher it meant metrics-server. With "
        "`Prometheus` the default address is `http://prometheus-k8s:9090`, as in the Go load-watcher.",
    ),
    LegacyVariable(
        "METRICS_PROVIDER_ADDRESS",
        "provider.address",
        "Same value. With the provider datadog a host name is enough: `api.datadoghq.eu`.",
    ),
    LegacyVariable("METRICS_PROVIDER_TOKEN", "provider.token", "Same value."),
    LegacyVariable("METRICS_PROVIDER_APP_KEY", "provider.app_key", "Same value."),
    LegacyVariable(
        "DATADOG_HOST_NAME_SUFFIX", "provider.host_name_suffix", "Only with the provider datadog.", "datadog"
    ),
    LegacyVariable("DATADOG_CLUSTER_NAME", "provider.cluster_name", "Only with the provider datadog.", "datadog"),
    LegacyVariable(
        "INSECURE_SKIP_VERIFY",
        "provider.insecure_skip_verify",
        "`true`, case-insensitive; any other value is false.",
    ),
    LegacyVariable(
        "ENABLE_OPENSHIFT_AUTH", "provider.openshift_auth", "True if set, even to `false` or to an empty value."
    ),
    LegacyVariable("KUBE_CONFIG", "provider.kubeconfig", "Same value."),
    LegacyVariable(
        "LOG_LEVEL",
        "log.level",
        "`panic`, `fatal`, `error`, `warn`, `info`, `debug` or `trace`. Any other value is ignored with a notice, "
        "since other programs use this variable too.",
    ),
)


def legacy_layer(environ: Mapping[str, str], *, provider: str) -> SourceValues:
    """Read the Go load-watcher's variables; `provider` is the name of the chosen provider."""
    layer = SourceValues(notices=list(_misspelt_legacy(environ)))
    for legacy in LEGACY:
        text = environ.get(legacy.variable)
        if text is None or legacy.only not in (None, provider):
            continue
        origin = f"environment {legacy.variable}"
        if legacy.variable == "ENABLE_OPENSHIFT_AUTH":
            layer.given[legacy.key] = RawValue(True, origin)
        elif not text.strip():
            continue
        elif legacy.variable == "INSECURE_SKIP_VERIFY":
            layer.given[legacy.key] = RawValue(text.strip().lower() == "true", origin)
        elif legacy.variable == "METRICS_PROVIDER_ADDRESS" and provider == "datadog" and "://" not in text:
            layer.given[legacy.key] = RawValue(f"https://{text.strip()}", origin, text=True)
        elif legacy.variable == "LOG_LEVEL" and not _names_level(text):
            layer.notices.append(f"LOG_LEVEL={describe(text)} ignored: unknown log level")
        else:
            layer.given[legacy.key] = RawValue(text, origin, text=True)
    return layer


LEGACY_PREFIX = "METRICS_PROVIDER_"


def _misspelt_legacy(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a notice for each unknown variable with the Go load-watcher's prefix. It is not an error, since other
    programs may use the prefix. Notices do not contain the values, which may be secrets.
    """
    known = [each.variable.removeprefix(LEGACY_PREFIX) for each in LEGACY if each.variable.startswith(LEGACY_PREFIX)]
    for variable, text in sorted(environ.items()):
        name = variable.removeprefix(LEGACY_PREFIX)
        if name == variable or name in known or not text.strip() or _is_service_link(variable, text):
            continue
        guess = nearest(name, known)
        names = ", ".join(LEGACY_PREFIX + each for each in known)
        message = f"did you mean {LEGACY_PREFIX}{guess}?" if guess else f"known variables: {names}"
        yield f"environment {_printable(variable)} ignored: unknown setting; {message}"


def _names_level(text: str) -> bool:
    try:
        LEVEL.read_text(text)
    except InvalidValue:
        return False
    return True
