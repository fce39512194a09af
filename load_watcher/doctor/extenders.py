"""How kube-scheduler asks our extender: an address, verbs and limits that are right for it to hear of, and to wait for,
our answers.

The facts are those of kube-scheduler's own extender client: the scheme of urlPrefix decides about TLS, enableHTTPS
without a CA means that no certificate is verified, a filter that fails fails the pod unless the extender is ignorable,
while a prioritize that fails is passed over, and without httpTimeout it waits for five seconds.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, urlsplit

from prometheus_client.parser import text_string_to_metric_families

from load_watcher.doctor.plugins import PluginUse
from watcher.platform.checks.results import Result, fail, some, warn
from watcher.platform.net.loopback import is_loopback
from watcher.platform.net.redaction import shown, without_credentials
from watcher.platform.settings.values import nearest

FIELDS = (
    *("urlPrefix", "filterVerb", "preemptVerb", "prioritizeVerb", "weight", "bindVerb", "enableHTTPS", "tlsConfig"),
    *("httpTimeout", "nodeCacheCapable", "managedResources", "ignorable"),
)
VERBS = {"filterVerb": "filter", "prioritizeVerb": "prioritize", "bindVerb": "bind"}
PATH = re.compile(r"/+scheduler/+(?P<profile>[^/]+)(?P<rest>(?:/.*)?)")
ADDRESS = "http://load-watcher.load-watcher.svc:2020/scheduler/default"
SHORTEST_S, LONGEST_S, DEFAULT_S = 0.05, 1.0, 5.0
"""All plug-ins over 5,000 nodes take up to 25 ms here (docs/performance.md), and the way takes its time."""
DURATIONS = "load_watcher_scheduler_request_duration_seconds_bucket"
RARE, ENOUGH = 0.01, 100
_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d*)?(?:ns|us|µs|ms|s|m|h))+")


@dataclass(frozen=True, slots=True)
class OwnProfile:
    """A profile of [scheduler.NAME]; `plugins` is None where it cannot be told which it has."""

    bind: bool = False
    plugins: PluginUse | None = None


@dataclass(frozen=True, slots=True)
class OwnService:
    """What our settings say of what is asked. `client_ca`: whether clients' certificates are verified. `slow` by
    profile: longer than so many seconds takes more than one in a hundred requests, where a running service tells."""

    profiles: Mapping[str, OwnProfile]
    tls: bool = False
    client_ca: bool = False
    slow: Mapping[str, float] = field(default_factory=dict)


def is_ours(extender: Any) -> bool:
    """Whether its address has a path like ours, /scheduler/PROFILE."""
    return isinstance(extender, dict) and "/scheduler/" in str(extender.get("urlPrefix"))


def judge(extenders: Any, service: OwnService | None) -> Iterator[Result]:
    """What is wrong with the extenders of a scheduler configuration; `service` is None where our settings cannot be
    read."""
    if extenders is None:
        return
    if not isinstance(extenders, list) or not all(isinstance(each, dict) for each in extenders):
        yield fail("extenders is no list of mappings", f"write extenders: [{{urlPrefix: {ADDRESS}, …}}]")
        return
    binders = [each for each in extenders if each.get("bindVerb")]
    if len(binders) > 1:
        told = f"{len(binders)} extenders have a bindVerb, and the scheduler will not start"
        yield fail(told, "leave bindVerb to one of them")
    for each in extenders:
        if is_ours(each):
            where = f"extender {without_credentials(str(each['urlPrefix']))}"
            yield from _fields(each, where)
            yield from _address(each, where, service)
            yield from _verbs(each, where)
            yield from _waiting(each, where, slow={} if service is None else service.slow)


def _fields(extender: Mapping[str, Any], where: str) -> Iterator[Result]:
    for key in extender:
        if key not in FIELDS:
            guess = nearest(str(key), FIELDS)
            cure = f"did you mean {guess}?" if guess else f"it may have {', '.join(FIELDS)}"
            yield fail(f'{where}: unknown field "{shown(str(key))}", which kube-scheduler refuses', cure)


# --- where it asks ---------------------------------------------------------------------------------------------------


def _address(extender: Mapping[str, Any], where: str, service: OwnService | None) -> Iterator[Result]:
    try:
        parts = urlsplit(str(extender["urlPrefix"]))
        parts.port  # noqa: B018  # raises for what is none
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        yield fail(f"{where}: urlPrefix is no address", f"write it like {ADDRESS}")
        return
    yield from _tls(extender, parts, where, service)
    found = PATH.match(parts.path)
    if found is None or found["rest"].strip("/"):
        rest = parts.path if found is None else found["rest"]
        cure = "end it with /scheduler/ and the name of the profile: kube-scheduler adds the verb itself"
        yield fail(f"{where}: there is nothing of ours at {shown(rest)}", cure)
    elif service is not None:
        yield from _profile(extender, parts, found["profile"], where, service)


def _tls(extender: Mapping[str, Any], parts: SplitResult, where: str, service: OwnService | None) -> Iterator[Result]:
    config = extender.get("tlsConfig")
    given = config if isinstance(config, dict) else {}
    if parts.scheme == "http" and (extender.get("enableHTTPS") or given):
        told = f"{where}: it is asked by http, whatever enableHTTPS and tlsConfig say"
        yield fail(told, "write https:// in urlPrefix, or leave enableHTTPS and tlsConfig out")
    has_ca = bool(given.get("caFile") or given.get("caData"))
    unverified = given.get("insecure") is True or (extender.get("enableHTTPS") is True and not has_ca)
    if parts.scheme == "https" and unverified:
        told = f"{where}: its certificate is not verified, so that anybody on the way can place pods"
        yield warn(told, "set tlsConfig.caFile (or caData) to the authority that signed it, and leave insecure out")
    if service is not None and service.tls != (parts.scheme == "https"):
        serves = "https (server.tls_cert)" if service.tls else "http"
        yield fail(
            f"{where}: these settings serve {serves}",
            f"write {'https' if service.tls else 'http'}:// in urlPrefix, or change server.tls_cert",
        )


def _profile(
    extender: Mapping[str, Any], parts: SplitResult, name: str, where: str, service: OwnService
) -> Iterator[Result]:
    profile = service.profiles.get(name)
    if profile is None:
        known = sorted(service.profiles)
        guess = nearest(name, known)
        cure = f"did you mean {guess}?" if guess else f"there are {some(known)}" if known else "there is none"
        told = f"{where}: these settings have no profile [scheduler.{shown(name)}], so that each request is a 404"
        yield fail(told, f"{cure}; where they are not those of the service that is asked, give its by --config")
        return
    if extender.get("bindVerb"):
        yield from _bind(parts, name, profile, where, service)
    if profile.plugins is None or profile.plugins.others:
        return  # those of somebody else may filter or not
    filters = sorted(profile.plugins.filtering)
    if extender.get("filterVerb") and not filters:
        told = f"{where}: it is asked to filter, and no plug-in of [scheduler.{name}] filters"
        yield warn(told, "leave filterVerb out: it costs a request for each pod")
    if filters and not extender.get("filterVerb"):
        told = f"{where}: it has no filterVerb, so that {some(filters)} of [scheduler.{name}] rejects no node"
        yield fail(told, "add filterVerb: filter")


def _bind(parts: SplitResult, name: str, profile: OwnProfile, where: str, service: OwnService) -> Iterator[Result]:
    if not profile.bind:
        told = f"{where}: it is asked to bind, which is off in [scheduler.{name}], so that no pod is bound"
        yield fail(told, f"set bind = true in [scheduler.{name}], or leave bindVerb out")
    elif not service.client_ca and not is_loopback(str(parts.hostname)):
        told = f"{where}: it is asked to bind from another machine without a certificate, which is refused"
        yield fail(told, "set server.tls_client_ca here, and certFile and keyFile of tlsConfig there")


# --- what it asks for, and how long it waits -------------------------------------------------------------------------


def _verbs(extender: Mapping[str, Any], where: str) -> Iterator[Result]:
    for key, verb in VERBS.items():
        given = extender.get(key)
        if given and str(given).strip("/") != verb:
            yield fail(f'{where}: {key} is "{shown(str(given))}", which is none of ours', f"write {key}: {verb}")
    if extender.get("preemptVerb"):
        yield fail(f"{where}: it is asked about preemption, which it does not know", "leave preemptVerb out")
    if not any(extender.get(key) for key in VERBS):
        yield fail(f"{where}: it has no verb, so that it is never asked", "add prioritizeVerb: prioritize")
    weight = extender.get("weight", 0)
    if extender.get("prioritizeVerb") and not (isinstance(weight, int) and weight > 0):
        told = f"{where}: its weight is {shown(str(weight))}, and the scheduler will not start"
        yield fail(told, "set a weight of 1 or more, beside prioritizeVerb")
    if extender.get("managedResources"):
        told = f"{where}: it has managedResources, so that it is asked for pods alone that request one of these"
        yield warn(told, "leave managedResources out")


def _waiting(extender: Mapping[str, Any], where: str, *, slow: Mapping[str, float]) -> Iterator[Result]:
    if extender.get("filterVerb") and extender.get("ignorable") is not True:
        told = f"{where}: it is not ignorable, so that no pod is scheduled while load-watcher is away"
        yield warn(told, "set ignorable: true")
    if extender.get("nodeCacheCapable") is not True:
        told = f"{where}: it is not nodeCacheCapable, so that every request has the whole of each node, 10 kB of it"
        yield warn(told, "set nodeCacheCapable: true, names are enough")
    given = extender.get("httpTimeout")
    seconds = _seconds(given)
    path = PATH.search(str(extender["urlPrefix"]))
    longer = slow.get(path["profile"], 0.0) if path is not None else 0.0
    if seconds is None:
        yield fail(f'{where}: httpTimeout "{shown(str(given))}" is no duration', "write it like 200ms")
    elif seconds > LONGEST_S:
        default = " (there is no httpTimeout)" if given is None else ""
        told = f"{where}: each pod waits up to {seconds:g} s{default} while load-watcher hangs"
        yield warn(told, "set httpTimeout: 200ms")
    elif seconds <= longer:
        told = f"{where}: it is waited for {1000 * seconds:g} ms, and more than one request in a hundred takes longer"
        yield warn(told, f"set httpTimeout to more than {1000 * longer:g} ms; docs/performance.md says what to expect")
    elif seconds < SHORTEST_S:
        told = f"{where}: it is waited for {1000 * seconds:g} ms, in which a large cluster may not be ranked"
        yield warn(told, "set httpTimeout: 200ms")


def slow_answers(exposition: str) -> dict[str, float]:
    """From the page /metrics of a running service: the largest bound (seconds) by profile that more than one in a
    hundred of its requests exceed, of each verb; 0 where there were fewer than a hundred."""
    lines = [line for line in exposition.splitlines() if line.startswith(DURATIONS)]
    counts: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for family in text_string_to_metric_families("\n".join([*lines, ""])):
        for sample in family.samples:
            labels = sample.labels
            key = labels.get("profile", ""), labels.get("verb", "")
            counts.setdefault(key, []).append((float(labels.get("le", "inf")), sample.value))
    found: dict[str, float] = {}
    for (profile, _), buckets in counts.items():
        total = max(count for _, count in buckets)
        exceeded = [bound for bound, count in buckets if total >= ENOUGH and count < (1.0 - RARE) * total]
        found[profile] = max(found.get(profile, 0.0), *exceeded, 0.0)
    return found


def _seconds(given: Any) -> float | None:
    """Of a Go duration; None for what is none. 0 is the default, as kube-scheduler has it."""
    if given is None or given == 0 or given == "0":
        return DEFAULT_S
    if not isinstance(given, str) or _DURATION.fullmatch(given) is None:
        return None
    parts: Sequence[tuple[str, str]] = re.findall(r"(\d+(?:\.\d*)?)(ns|us|µs|ms|s|m|h)", given)
    return sum(float(number) * _UNITS_S[unit] for number, unit in parts) or DEFAULT_S
