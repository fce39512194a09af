"""Checks the extender entries of kube-scheduler's configuration that refer to load-watcher: address, verbs, timeouts.

Behaviour of kube-scheduler's extender client: the scheme of urlPrefix selects TLS; enableHTTPS without a CA disables
the verification of the certificate; a failed filter request fails the pod unless the extender is ignorable; a failed
prioritize request is ignored; the default of httpTimeout is five seconds.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, urlsplit

from load_watcher.doctor.scheduler.plugins import PluginUse, mapping
from watcher.core.messages import nearest, printable, shorten_names
from watcher.platform.checks.results import CheckResult, fail, warn
from watcher.platform.net.loopback import is_loopback
from watcher.platform.net.redaction import without_credentials

FIELDS = (
    *("urlPrefix", "filterVerb", "preemptVerb", "prioritizeVerb", "weight", "bindVerb", "enableHTTPS", "tlsConfig"),
    *("httpTimeout", "nodeCacheCapable", "managedResources", "ignorable"),
)
VERBS = {"filterVerb": "filter", "prioritizeVerb": "prioritize", "bindVerb": "bind"}
PATH = re.compile(r"/+scheduler/+(?P<profile>[^/]+)(?P<rest>(?:/.*)?)")
ADDRESS = "http://load-watcher.load-watcher.svc:2020/scheduler/default"
SHORTEST_S, LONGEST_S, DEFAULT_S = 0.05, 1.0, 5.0
"""Recommended range and default of httpTimeout in seconds. All plug-ins with 5,000 nodes take up to 25 ms
(docs/concepts/performance.md), without the network."""
_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d*)?(?:ns|us|µs|ms|s|m|h))+")


@dataclass(frozen=True, slots=True)
class ConfiguredProfile:
    """A profile of [scheduler.NAME]; `plugins` is None if its plug-ins are unknown. `precise`: its scores are 0 to
    100."""

    bind: bool = False
    plugins: PluginUse | None = None
    precise: bool = False


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """Settings and measurements of the load-watcher service. `client_ca`: whether client certificates are verified;
    `clients`: the names of those that filter, prioritize and bind need, empty if these are open.
    `slow`: by profile, a duration in seconds that more than 1 % of the requests exceed, if a service is running.
    """

    profiles: Mapping[str, ConfiguredProfile]
    tls: bool = False
    client_ca: bool = False
    clients: Sequence[str] = ()
    slow: Mapping[str, float] = field(default_factory=dict)


def is_load_watcher_extender(extender: Any) -> bool:
    """Whether the extender's urlPrefix contains the path of load-watcher's extender, /scheduler/PROFILE."""
    return isinstance(extender, dict) and "/scheduler/" in str(extender.get("urlPrefix"))


def scores_up_to_ten(extender: Mapping[str, Any], service: ServiceSettings | None) -> bool:
    """Whether the settings have the profile of this extender, and its scores are 0 to 10."""
    try:
        found = PATH.match(urlsplit(str(extender["urlPrefix"])).path)
    except ValueError:  # reported by check_extenders
        return False
    profile = None if found is None or service is None else service.profiles.get(found["profile"])
    return profile is not None and not profile.precise


def check_extenders(extenders: Any, service: ServiceSettings | None) -> Iterator[CheckResult]:
    """Yield the problems of the extenders in a scheduler configuration; `service` is None if the settings of
    load-watcher are unknown.
    """
    if extenders is None:
        return
    if not isinstance(extenders, list) or not all(isinstance(each, dict) for each in extenders):
        yield fail("extenders is not a list of mappings", f"write extenders: [{{urlPrefix: {ADDRESS}, …}}]")
        return
    binders = [each for each in extenders if each.get("bindVerb")]
    if len(binders) > 1:
        message = f"{len(binders)} extenders have a bindVerb, so the scheduler will not start"
        yield fail(message, "keep bindVerb for only one of them")
    for each in extenders:
        if is_load_watcher_extender(each):
            where = f"extender {without_credentials(str(each['urlPrefix']))}"
            yield from _fields(each, where)
            yield from _address(each, where, service)
            yield from _verbs(each, where)
            yield from _waiting(each, where, slow={} if service is None else service.slow)


def _fields(extender: Mapping[str, Any], where: str) -> Iterator[CheckResult]:
    for key in extender:
        if key not in FIELDS:
            guess = nearest(str(key), FIELDS)
            cure = f"did you mean {guess}?" if guess else f"known fields: {', '.join(FIELDS)}"
            yield fail(f'{where}: unknown field "{printable(str(key))}", which kube-scheduler refuses', cure)


# --- address ---------------------------------------------------------------------------------------------------------


def _address(extender: Mapping[str, Any], where: str, service: ServiceSettings | None) -> Iterator[CheckResult]:
    try:
        parts = urlsplit(str(extender["urlPrefix"]))
        parts.port  # noqa: B018  # raises ValueError for an invalid port
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        yield fail(f"{where}: urlPrefix is not an http or https URL", f"write it like {ADDRESS}")
        return
    yield from _tls(extender, parts, where, service)
    found = PATH.match(parts.path)
    if found is None or found["rest"].strip("/"):
        rest = parts.path if found is None else found["rest"]
        cure = "end it with /scheduler/ and the name of the profile; kube-scheduler appends the verb"
        yield fail(f"{where}: load-watcher serves nothing at {printable(rest)}", cure)
    elif service is not None:
        yield from _profile(extender, parts, found["profile"], where, service)


def _tls(
    extender: Mapping[str, Any], parts: SplitResult, where: str, service: ServiceSettings | None
) -> Iterator[CheckResult]:
    given = mapping(extender.get("tlsConfig"))
    if parts.scheme == "http" and (extender.get("enableHTTPS") or given):
        message = f"{where}: plain HTTP is used, since enableHTTPS and tlsConfig do not change the scheme"
        yield fail(message, "write https:// in urlPrefix, or remove enableHTTPS and tlsConfig")
    has_ca = bool(given.get("caFile") or given.get("caData"))
    unverified = given.get("insecure") is True or (extender.get("enableHTTPS") is True and not has_ca)
    if parts.scheme == "https" and unverified:
        message = f"{where}: its certificate is not verified, so that responses can be forged to place pods"
        yield warn(
            message, "set tlsConfig.caFile (or caData) to the CA certificate that signed it, and remove insecure"
        )
    if service is not None and service.clients and not _has_certificate(given):
        names = ", ".join(service.clients)
        message = f"{where}: server.scheduler_clients requires a client certificate, so each request returns 403"
        yield fail(message, f"set certFile and keyFile in tlsConfig, of a certificate for {names}")
    if service is not None and service.tls != (parts.scheme == "https"):
        serves = "https (server.tls_cert)" if service.tls else "http"
        yield fail(
            f"{where}: the settings of load-watcher configure {serves}",
            f"write {'https' if service.tls else 'http'}:// in urlPrefix, or change server.tls_cert",
        )


def _has_certificate(config: Mapping[str, Any]) -> bool:
    """Whether a tlsConfig has a client certificate with its key."""
    return all(config.get(f"{part}File") or config.get(f"{part}Data") for part in ("cert", "key"))


def _profile(
    extender: Mapping[str, Any], parts: SplitResult, name: str, where: str, service: ServiceSettings
) -> Iterator[CheckResult]:
    profile = service.profiles.get(name)
    if profile is None:
        known = sorted(service.profiles)
        guess = nearest(name, known)
        cure = (
            f"did you mean {guess}?"
            if guess
            else f"known profiles: {shorten_names(known)}"
            if known
            else "there is none"
        )
        message = f"{where}: the settings have no profile [scheduler.{printable(name)}], so each request returns 404"
        yield fail(message, f"{cure}; if the extender's service has other settings, give them with --config")
        return
    if extender.get("bindVerb"):
        yield from _bind(parts, name, profile, where, service)
    if profile.plugins is None or profile.plugins.others:
        return  # unknown plug-ins may filter
    filters = sorted(profile.plugins.filtering)
    if extender.get("filterVerb") and not filters:
        message = f"{where}: it has a filterVerb, but no plug-in of [scheduler.{name}] filters"
        yield warn(message, "remove filterVerb; it costs a request per pod")
    if filters and not extender.get("filterVerb"):
        message = (
            f"{where}: it has no filterVerb, so {shorten_names(filters)} of [scheduler.{name}] cannot reject nodes"
        )
        yield fail(message, "add filterVerb: filter")


def _bind(
    parts: SplitResult, name: str, profile: ConfiguredProfile, where: str, service: ServiceSettings
) -> Iterator[CheckResult]:
    if not profile.bind:
        message = f"{where}: it has a bindVerb, but binding is off in [scheduler.{name}], so no pod is bound"
        yield fail(message, f"set bind = true in [scheduler.{name}], or remove bindVerb")
    elif not service.client_ca and not is_loopback(str(parts.hostname)):
        message = f"{where}: bind requests from another machine are refused without a client certificate"
        yield fail(
            message, "set server.tls_client_ca of load-watcher, and certFile and keyFile in the extender's tlsConfig"
        )


# --- verbs and timeouts ----------------------------------------------------------------------------------------------


def _verbs(extender: Mapping[str, Any], where: str) -> Iterator[CheckResult]:
    for key, verb in VERBS.items():
        given = extender.get(key)
        if given and str(given).strip("/") != verb:
            yield fail(f'{where}: {key} is "{printable(str(given))}", an unknown verb', f"write {key}: {verb}")
    if extender.get("preemptVerb"):
        yield fail(f"{where}: it has a preemptVerb, which load-watcher does not support", "remove preemptVerb")
    if not any(extender.get(key) for key in VERBS):
        yield fail(f"{where}: it has no verb, so it is never called", "add prioritizeVerb: prioritize")
    weight = extender.get("weight", 0)
    if extender.get("prioritizeVerb") and not (isinstance(weight, int) and weight > 0):
        message = f"{where}: its weight is {printable(str(weight))}, so the scheduler will not start"
        yield fail(message, "set a weight of 1 or more in addition to prioritizeVerb")
    if extender.get("managedResources"):
        message = f"{where}: it has managedResources, so it is called only for pods that request one of these"
        yield warn(message, "remove managedResources")


def _waiting(extender: Mapping[str, Any], where: str, *, slow: Mapping[str, float]) -> Iterator[CheckResult]:
    if extender.get("filterVerb") and extender.get("ignorable") is not True:
        message = f"{where}: it is not ignorable, so no pod is scheduled while load-watcher is unavailable"
        yield warn(message, "set ignorable: true")
    if extender.get("nodeCacheCapable") is not True:
        message = (
            f"{where}: it is not nodeCacheCapable, so every request contains whole node objects of about 10 kB each"
        )
        yield warn(message, "set nodeCacheCapable: true; load-watcher needs only node names")
    given = extender.get("httpTimeout")
    seconds = _seconds(given)
    path = PATH.search(str(extender["urlPrefix"]))
    longer = slow.get(path["profile"], 0.0) if path is not None else 0.0
    if seconds is None:
        yield fail(f'{where}: httpTimeout "{printable(str(given))}" is not a duration', "write it like 200ms")
    elif seconds > LONGEST_S:
        default = " (httpTimeout is not set)" if given is None else ""
        message = f"{where}: each pod waits up to {seconds:g} s{default} if load-watcher hangs"
        yield warn(message, "set httpTimeout: 200ms")
    elif seconds <= longer:
        message = f"{where}: the timeout is {1000 * seconds:g} ms, but more than 1 % of the requests take longer"
        yield warn(
            message,
            f"set httpTimeout to more than {1000 * longer:g} ms; docs/concepts/performance.md has typical times",
        )
    elif seconds < SHORTEST_S:
        message = f"{where}: the timeout is {1000 * seconds:g} ms, which may be too short for a large cluster"
        yield warn(message, "set httpTimeout: 200ms")


def _seconds(given: Any) -> float | None:
    """Parse a Go duration into seconds; None if it is invalid. Unset and 0 mean kube-scheduler's default."""
    if given is None or given == 0 or given == "0":
        return DEFAULT_S
    if not isinstance(given, str) or _DURATION.fullmatch(given) is None:
        return None
    parts: Sequence[tuple[str, str]] = re.findall(r"(\d+(?:\.\d*)?)(ns|us|µs|ms|s|m|h)", given)
    return sum(float(number) * _UNITS_S[unit] for number, unit in parts) or DEFAULT_S
