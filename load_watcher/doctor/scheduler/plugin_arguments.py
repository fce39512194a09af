"""Checks the arguments of the Trimaran plug-ins in kube-scheduler's configuration.

They name load-watcher's address; a wrong one makes the plug-ins bypass load-watcher. The other arguments are those of
this project's plug-ins of the same names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from load_watcher.doctor.scheduler.plugins import mappings
from scorers.plugin_api.arguments import ArgumentsError, read_arguments
from scorers.profiles.registry import factory_of
from watcher.core.messages import printable
from watcher.platform.checks.results import CheckResult, fail, warn
from watcher.platform.net.redaction import without_credentials

TRIMARAN = ("TargetLoadPacking", "LoadVariationRiskBalancing", "LowRiskOverCommitment", "Peaks")
ADDRESS = "http://load-watcher.load-watcher.svc.cluster.local:2020"


def check_plugin_arguments(given: Any, scoring: Sequence[str], *, where: str) -> Iterator[CheckResult]:
    """Yield the problems of a profile's pluginConfig; `scoring` are its plug-ins that score by load."""
    configured = {str(item.get("name")): args for item in mappings(given) if isinstance(args := item.get("args"), dict)}
    for name in (each for each in TRIMARAN if each in configured and each not in scoring):
        message = f"{where}: the arguments of {name} have no effect: it is not enabled in score"
        yield fail(message, f"add {{name: {name}}} to plugins.score.enabled, or remove its pluginConfig")
    for name in scoring:
        yield from _trimaran(name, configured.get(name, {}), where=f"{where}, {name}")


def _trimaran(name: str, args: Mapping[str, Any], *, where: str) -> Iterator[CheckResult]:
    """Yield the problems of the arguments of a Trimaran plug-in."""
    key = "WatcherAddress" if name == "Peaks" else "watcherAddress"
    address, provider = args.get(key), args.get("metricProvider")
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
    try:
        read_arguments(name, factory_of(name).arguments, args)
    except ArgumentsError as error:
        for problem in error.problems:
            yield fail(f"{where}: {problem}", f"see the arguments of {name} in docs/concepts/scheduling.md")


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


def quoted(value: Any) -> str:
    """Quote a value of the configuration, made safe for output."""
    return f'"{printable(str(value))}"'
