"""Checks the arguments of plug-ins in kube-scheduler's configuration: misspelt names, unknown fields, wrong addresses.

The arguments of the Trimaran plug-ins name load-watcher's address; a wrong one makes them bypass load-watcher.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from load_watcher.doctor.kube_scheduler_api import (
    ADDRESS,
    API_VERSION,
    ARGS,
    ARGS_PLACEMENT_CURE,
    KNOWN,
    OF_PLUGINS,
    OLD_ARGS,
    PLUGINS_WITHOUT_METRICS,
    PROVIDER,
    PROVIDER_TYPES,
    TRIMARAN,
    VALUES,
)
from watcher.core.messages import nearest, printable
from watcher.platform.checks.results import CheckResult, fail, warn
from watcher.platform.net.redaction import without_credentials


def check_plugin_arguments(given: Any, scoring: Sequence[str], *, where: str) -> Iterator[CheckResult]:
    """Yield the problems of a profile's pluginConfig; `scoring` are its plug-ins that score by load."""
    items = given if isinstance(given, list) else []
    if given is not None and (not isinstance(given, list) or not all(isinstance(each, dict) for each in given)):
        yield fail(f"{where}: pluginConfig is not a list of mappings", "write pluginConfig: [{name: …, args: {…}}]")
    configured: dict[str, Mapping[str, Any]] = {}
    for item in (each for each in items if isinstance(each, dict)):
        name, args = str(item.get("name", "")), item.get("args")
        yield from unknown_fields(item, ("name", "args"), where=f"{where}, pluginConfig of {quoted(name)}")
        configured[name] = args if isinstance(args, dict) else {}
        if guess := misspelt_plugin(name):
            yield fail(f"{where}: pluginConfig is for the unknown plug-in {quoted(name)}", f"did you mean {guess}?")
        elif name in PLUGINS_WITHOUT_METRICS:
            for key in (each for each in OF_PLUGINS if each in configured[name]):
                yield fail(f"{where}: {key} is not an argument of {name}", ARGS_PLACEMENT_CURE)
        elif name in TRIMARAN and name not in scoring:
            message = f"{where}: the arguments of {name} have no effect: it is not enabled in score"
            yield fail(message, f"add {{name: {name}}} to plugins.score.enabled, or remove its pluginConfig")
    for name in scoring:
        yield from _trimaran(name, configured.get(name, {}), where=f"{where}, {name}")


def _trimaran(name: str, args: Mapping[str, Any], *, where: str) -> Iterator[CheckResult]:
    """Yield the problems of the arguments of a Trimaran plug-in."""
    for old in sorted(OLD_ARGS.keys() & args.keys()):
        yield fail(
            f"{where}: {old} is an argument of older versions; current versions refuse it",
            f"write {OLD_ARGS[old]}, or watcherAddress",
        )
    yield from unknown_fields({key: args[key] for key in args if key not in OLD_ARGS}, ARGS[name], where=where)
    version = args.get("apiVersion")
    if version not in (None, API_VERSION):
        yield fail(
            f"{where}: the apiVersion of its args is {quoted(version)}", f"set it to {API_VERSION}, or remove it"
        )
    yield from _whom_it_asks(args, key="WatcherAddress" if name == "Peaks" else "watcherAddress", where=where)
    for key, (fits, wanted) in VALUES.items():
        if key in args and key in ARGS[name] and not fits(args[key]):
            yield fail(f"{where}: {key} is {quoted(args[key])}", f"set it to {wanted}")


def _whom_it_asks(args: Mapping[str, Any], *, key: str, where: str) -> Iterator[CheckResult]:
    address, provider = args.get(key), args.get("metricProvider")
    if provider is not None:
        yield from _provider(provider, where=where)
    if address:
        yield from address_problems(str(address), where=f"{where}: {key}")
        if provider is not None:
            yield warn(f"{where}: metricProvider has no effect, since {key} is set", "remove metricProvider")
    elif provider is None:
        message = f"{where}: {key} is not set, so the plug-in uses metrics-server directly, and not load-watcher"
        yield fail(message, f"set {key}, for example {ADDRESS}")
    else:
        message = f"{where}: the plug-in uses its metricProvider directly, and not load-watcher"
        yield warn(message, f"set {key} instead of metricProvider, for example {ADDRESS}")


def _provider(given: Any, *, where: str) -> Iterator[CheckResult]:
    if not isinstance(given, dict):
        yield fail(f"{where}: metricProvider is not a mapping", "write metricProvider: {type: Prometheus, address: …}")
        return
    yield from unknown_fields(given, PROVIDER, where=f"{where}, metricProvider")
    kind = given.get("type")
    if kind not in (None, *PROVIDER_TYPES):
        guess = nearest(str(kind), PROVIDER_TYPES)
        cure = f"did you mean {guess}? Names are case-sensitive" if guess else f"use one of {', '.join(PROVIDER_TYPES)}"
        message = f"{where}: metricProvider.type {quoted(kind)} is unknown, so the scheduler will not start"
        if str(kind).casefold() == "datadog":
            message, cure = f"{where}: the plug-ins refuse metricProvider.type Datadog", "set watcherAddress instead"
        yield fail(message, cure)


def address_problems(address: str, *, where: str) -> Iterator[CheckResult]:
    """Yield the problems of load-watcher's address in a plug-in's arguments; the plug-in appends /watcher to it."""
    try:
        parts = urlsplit(address.strip())
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    message = quoted(without_credentials(address) if "://" in address else address.rpartition("@")[2])
    if parts.scheme not in ("http", "https") or not parts.hostname:
        yield fail(f"{where} {message} is not an http:// or https:// URL with a host", f"write it like {ADDRESS}")
    elif port is None:
        message = f"{where} {message} has no port, so port {443 if parts.scheme == 'https' else 80} is used"
        yield fail(message, "add the port of the service; the default is :2020")
    elif parts.path.rstrip("/").endswith("/watcher"):
        yield fail(f"{where} {message} ends with /watcher, which the plug-in appends itself", "remove /watcher")
    if address != address.strip():
        yield fail(f"{where} has leading or trailing spaces", "remove them")


# --- names, unknown fields, and quoting -------------------------------------------------------------------------------


def misspelt_plugin(name: str) -> str | None:
    """Return the most similar known plug-in for a probably misspelt name; None for a known name, and for a name that
    resembles no known one, since there are other plug-ins.
    """
    if name in (*KNOWN, "*"):
        return None
    return nearest(name, KNOWN, cutoff=0.85)


def unknown_fields(
    given: Mapping[str, Any], known: Sequence[str], *, where: str, near_only: bool = False
) -> Iterator[CheckResult]:
    """Yield problems for fields that kube-scheduler would refuse; with `near_only`, only for similar names."""
    for key in (each for each in given if each not in known):
        guess, belongs_elsewhere = nearest(str(key), known), key in OF_PLUGINS
        if guess or belongs_elsewhere or not near_only:
            cure = f"did you mean {guess}?" if guess else f"known fields: {', '.join(known)}"
            message = f"{where}: unknown field {quoted(key)}, which kube-scheduler refuses"
            yield fail(message, ARGS_PLACEMENT_CURE if belongs_elsewhere else cure)


def quoted(value: Any) -> str:
    """Quote a value of the configuration, made safe for output."""
    return f'"{printable(str(value))}"'
