"""Taking in what was given: a TOML file, the environment, flags. Not yet whether the values are any good.

Each source gives `Given` values by full key, and problems for keys that do not exist, with the nearest that does: a
misspelt setting that is passed over in silence is a default that nobody chose.

The environment has two peculiarities. The Go load-watcher's own names keep their meaning, odd ones included. And
Kubernetes puts addresses of services into the environment of every pod of the namespace; those of a service that is
called load-watcher look just like our settings and are none.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from watcher.platform.settings.model_values import LEVEL
from watcher.platform.settings.problems import Problem
from watcher.platform.settings.tables import KEYS, PARTS, TABLES
from watcher.platform.settings.values import Unfit, describe, nearest, write_text

DEFAULT_FILE = "load-watcher.toml"
PREFIX = "LOAD_WATCHER_"
CONFIG = "LOAD_WATCHER_CONFIG"
INNER_TABLES = frozenset(".".join(key.table[:depth]) for key in KEYS.values() for depth in range(2, len(key.table) + 1))
NOT_SETTINGS = (CONFIG, "LOAD_WATCHER_REAL_PARTS", "LOAD_WATCHER_REQUIRE_REAL", "LOAD_WATCHER_REQUIRE_KUBE")

_YAML = re.compile(r"---|[\w.]+:(\s|$)")  # how a document of YAML may begin, and no TOML


@dataclass(frozen=True, slots=True)
class Given:
    """A value as it was given: a TOML value, or `text` that is yet to be read. `origin` says where."""

    value: Any
    origin: str
    text: bool = False


@dataclass
class Layer:
    """All that one source gave. `parts` are the tables of other packages, by name."""

    given: dict[str, Given] = field(default_factory=dict)
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)
    part_origin: str = ""
    problems: list[Problem] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


# --- the file --------------------------------------------------------------------------------------------------------


def file_layer(path: Path, *, shown: str) -> Layer:
    """What the TOML file says; `shown` is its name for people."""
    layer = Layer(part_origin=f"file {shown}")
    text = ""
    try:
        text = path.read_bytes().decode("utf-8-sig")  # an editor of Windows begins a file with a mark
        document = tomllib.loads(text)
    except OSError as error:
        layer.problems.append(
            Problem("config", f"{shown} cannot be read: {error.strerror}", "name a TOML file that can be")
        )
    except UnicodeDecodeError as error:
        layer.problems.append(
            Problem("config", f"{shown} is not UTF-8 at byte {error.start}, so it is no TOML", "save it as UTF-8")
        )
    except RecursionError:
        layer.problems.append(Problem("config", f"{shown} is nested too deeply", "take the brackets apart"))
    except ValueError as error:  # its own errors say line and column
        layer.problems.append(Problem("config", f"{shown} is no TOML: {_with_place(error, text)}", _cure_of(text)))
    else:
        _take_document(layer, document, origin=f"file {shown}")
    return layer


def _with_place(error: Exception, text: str) -> str:
    """What the parser says, with line and column where it says only that the document ended."""
    line, column = text.count("\n") + 1, len(text) - text.rfind("\n")
    said = (str(error).splitlines() or ["it cannot be read"])[0]
    return said.replace("at end of document", f"at line {line}, column {column}, the end")


def _cure_of(text: str) -> str:
    first = next((line for line in map(str.strip, text.splitlines()) if line and line[0] != "#"), "")
    if _YAML.match(first):
        return 'it looks like YAML: write [server] and port = 2020 below it where YAML has "server:" and "port: 2020"'
    return "mend it at that place"


def _take_document(layer: Layer, document: Mapping[str, Any], *, origin: str) -> None:
    for section, content in document.items():
        if section not in TABLES and section not in PARTS:
            layer.problems.append(_unknown_section(section, origin=origin))
        elif not isinstance(content, dict):
            layer.problems.append(_no_table(section, content, origin=origin))
        elif section in PARTS:
            layer.parts[section] = content
        else:
            _take_table(layer, (section,), content, origin=origin)


def _take_table(layer: Layer, table: tuple[str, ...], content: Mapping[str, Any], *, origin: str) -> None:
    for name, value in content.items():
        key = ".".join((*table, name))
        if key in KEYS:
            layer.given[key] = Given(value, origin)
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
        f"begin it with [{name}]",
    )


def _unknown_section(section: str, *, origin: str) -> Problem:
    sections = (*TABLES, *PARTS)
    if homes := [key for key in KEYS if key.rpartition(".")[2] == section]:
        cure = f"did you mean {homes[0]}?"
    elif guess := nearest(section, sections):
        cure = f"did you mean [{guess}]?"
    else:
        cure = f"there are {', '.join(f'[{name}]' for name in sections)}"
    return Problem(_printable(section), f"is no section of the settings ({origin})", cure)


def _unknown_key(key: str, *, origin: str) -> Problem:
    return Problem(_printable(key), f"is no setting ({origin})", _nearest_key(key))


def _printable(name: str) -> str:
    return name if name.isprintable() and len(name) <= 120 else write_text(name[:120])


def _nearest_key(key: str) -> str:
    """A word about which setting may have been meant."""
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
    return "docs/settings.md lists those that are"


# --- flags -----------------------------------------------------------------------------------------------------------


def flag_layer(flags: Mapping[str, Any]) -> Layer:
    """What flags say, by full key; None is a flag that was not used."""
    layer = Layer(part_origin="flag --set")
    for name, value in flags.items():
        if value is None:
            continue
        key = KEYS.get(name)
        if key is not None:
            layer.given[name] = Given(value, f"flag {key.setting.flag or f'--set {name}'}", text=isinstance(value, str))
        elif name.partition(".")[0] in PARTS:
            _take_part(layer, name, str(value))
        else:
            layer.problems.append(_unknown_key(name, origin=f"flag --set {_printable(name)}"))
    return layer


def _take_part(layer: Layer, name: str, text: str) -> None:
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
        table[path[-1]] = _toml_or_text(text)
    else:
        layer.problems.append(_no_table(part, text, origin="flag --set"))


def _toml_or_text(text: str) -> Any:
    """The value that this text is in TOML, else the text: other packages' tables have types that only they know."""
    try:
        return tomllib.loads(f"value = {text}")["value"] if "\n" not in text else text
    except (ValueError, RecursionError):
        return text


# --- the environment -------------------------------------------------------------------------------------------------


def environment_layer(environ: Mapping[str, str]) -> Layer:
    """What LOAD_WATCHER_<SECTION>_<KEY> say. Empty is the same as not set: that is what compose files pass on."""
    layer = Layer(part_origin="environment")
    by_variable = {key.environment: name for name, key in KEYS.items()}
    for variable, text in environ.items():
        if not variable.startswith(PREFIX) or variable in NOT_SETTINGS or not text.strip():
            continue
        if _is_service_link(variable, text):
            continue
        if variable in by_variable:
            layer.given[by_variable[variable]] = Given(text, f"environment {variable}", text=True)
        elif part := _part_key(variable):
            _take_part(layer, part, text)
        else:
            layer.problems.append(_unknown_variable(variable, by_variable))
    return layer


_SERVICE_LINK = re.compile(
    r"(LOAD_WATCHER|METRICS_PROVIDER)_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)",
    re.ASCII,
)


def _is_service_link(variable: str, text: str) -> bool:
    """Whether Kubernetes put it there for a service whose name begins with load-watcher, or metrics-provider."""
    if variable.endswith("_PORT") and re.match(r"(tcp|udp|sctp)://", text):
        return True
    return _SERVICE_LINK.fullmatch(variable) is not None


def _part_key(variable: str) -> str | None:
    """agent.port for LOAD_WATCHER_AGENT_PORT. Profiles of the scheduler have names of their own: only in the file."""
    part, _, name = variable.removeprefix(PREFIX).lower().partition("_")
    return f"{part}.{name}" if part in ("agent", "qrm") and name else None


def _unknown_variable(variable: str, known: Mapping[str, str]) -> Problem:
    # Compared without what all of them begin with, which alone would make any two of them near.
    name, names = variable.removeprefix(PREFIX), [each.removeprefix(PREFIX) for each in (*known, *NOT_SETTINGS)]
    guess = next((each for each in names if each.endswith(f"_{name}")), None) or nearest(name, names)
    cure = f"did you mean {PREFIX}{guess}?" if guess else "docs/settings.md lists those there are"
    return Problem(_printable(variable), "is no setting (environment)", cure)


# --- the names that load-watcher had before us -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Legacy:
    """A variable of the Go load-watcher. `only` names the one provider for which it means anything."""

    variable: str
    key: str
    meaning: str
    only: str | None = None


LEGACY = (
    Legacy(
        "METRICS_PROVIDER_NAME",
        "provider.name",
        "`KubernetesMetricsServer`, `Prometheus`, `SignalFx`, `Datadog`, `InfluxDB` or a name of ours, in any case. "
        "An unknown name is an error; it used to mean metrics-server. With `Prometheus` the address defaults to "
        "`http://prometheus-k8s:9090`, as it did.",
    ),
    Legacy(
        "METRICS_PROVIDER_ADDRESS",
        "provider.address",
        "As it is. With the provider datadog a host alone will do, as it did: `api.datadoghq.eu`.",
    ),
    Legacy("METRICS_PROVIDER_TOKEN", "provider.token", "As it is."),
    Legacy("METRICS_PROVIDER_APP_KEY", "provider.app_key", "As it is."),
    Legacy("SIGNALFX_HOST_NAME_SUFFIX", "provider.host_name_suffix", "Only with the provider signalfx.", "signalfx"),
    Legacy("SIGNALFX_CLUSTER_NAME", "provider.cluster_name", "Only with the provider signalfx.", "signalfx"),
    Legacy("DATADOG_HOST_NAME_SUFFIX", "provider.host_name_suffix", "Only with the provider datadog.", "datadog"),
    Legacy("DATADOG_CLUSTER_NAME", "provider.cluster_name", "Only with the provider datadog.", "datadog"),
    Legacy(
        "INSECURE_SKIP_VERIFY",
        "provider.insecure_skip_verify",
        "Only the word `true`, in any case; anything else is false.",
    ),
    Legacy("ENABLE_OPENSHIFT_AUTH", "provider.openshift_auth", "Being set is enough, even to `false` or to nothing."),
    Legacy("KUBE_CONFIG", "provider.kubeconfig", "As it is."),
    Legacy(
        "LOG_LEVEL",
        "log.level",
        "`panic`, `fatal`, `error`, `warn`, `info`, `debug` or `trace`. Any other word is passed over with a notice, "
        "since other programs use this name too.",
    ),
)


def legacy_layer(environ: Mapping[str, str], *, provider: str) -> Layer:
    """What the Go load-watcher's variables say; `provider` is the name of the one that will be used."""
    layer = Layer(notices=list(_misspelt_legacy(environ)))
    for legacy in LEGACY:
        text = environ.get(legacy.variable)
        if text is None or legacy.only not in (None, provider):
            continue
        origin = f"environment {legacy.variable}"
        if legacy.variable == "ENABLE_OPENSHIFT_AUTH":
            layer.given[legacy.key] = Given(True, origin)
        elif not text.strip():
            continue
        elif legacy.variable == "INSECURE_SKIP_VERIFY":
            layer.given[legacy.key] = Given(text.strip().lower() == "true", origin)
        elif legacy.variable == "METRICS_PROVIDER_ADDRESS" and provider == "datadog" and "://" not in text:
            layer.given[legacy.key] = Given(f"https://{text.strip()}", origin, text=True)
        elif legacy.variable == "LOG_LEVEL" and not _names_level(text):
            layer.notices.append(f"LOG_LEVEL={describe(text)} names no level and is passed over")
        else:
            layer.given[legacy.key] = Given(text, origin, text=True)
    return layer


LEGACY_PREFIX = "METRICS_PROVIDER_"


def _misspelt_legacy(environ: Mapping[str, str]) -> Iterator[str]:
    """Variables that begin like the Go load-watcher's and are none. A notice: others may have the same beginning. Their
    values may be secrets."""
    known = [each.variable.removeprefix(LEGACY_PREFIX) for each in LEGACY if each.variable.startswith(LEGACY_PREFIX)]
    for variable, text in sorted(environ.items()):
        name = variable.removeprefix(LEGACY_PREFIX)
        if name == variable or name in known or not text.strip() or _is_service_link(variable, text):
            continue
        guess = nearest(name, known)
        names = ", ".join(LEGACY_PREFIX + each for each in known)
        told = f"did you mean {LEGACY_PREFIX}{guess}?" if guess else f"there are {names}"
        yield f"environment {_printable(variable)} is passed over, it is no setting; {told}"


def _names_level(text: str) -> bool:
    try:
        LEVEL.read_text(text)
    except Unfit:
        return False
    return True
