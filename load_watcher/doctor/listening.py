"""Checks of the service's port, and of a running service by its own status pages."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass

import aiohttp
import msgspec
import psutil

from load_watcher.doctor import separate_extender
from load_watcher.healthcheck import own_url
from watcher.api.operations import AliveDocument, ReadyDocument
from watcher.core.config.settings import Settings
from watcher.core.messages import printable, shorten_names
from watcher.core.publishing.wire import ErrorDocument, FindingEntry, FindingsDocument
from watcher.core.windows.settings import RefreshSettings
from watcher.decoding.json_text import decode_json
from watcher.model import FindingKind
from watcher.platform.checks.examination import CheckContext, in_thread
from watcher.platform.checks.results import CheckResult, count, fail, ok, skipped, warn
from watcher.platform.http.settings import ServerSettings
from watcher.platform.net.failures import failure_reason
from watcher.platform.net.http_body import answer_bound, read_body
from watcher.platform.net.listening import any_address_socket, host_port, is_any_ipv6
from watcher.platform.net.redaction import without_credentials
from watcher.platform.net.session import client_session
from watcher.platform.net.tls import client_context
from watcher.service.build import token_of
from watcher.sources.settings import ProviderSettings

ANSWER_S = 5.0
RECENT_S = 300
"""Maximum age in seconds of findings of a running service that are reported."""
SOURCES = {
    "host": "Host",
    "prometheus": "Prometheus",
    "influxdb": "InfluxDB",
    "metrics-server": "KubernetesMetricsServer",
    "datadog": "Datadog",
    "replay": "Replay",
}
"""Source name (snapshot.source of /readyz) of each provider."""


@dataclass(frozen=True, slots=True)
class DetectedService:
    """URL of the load-watcher that runs at the address of the settings, "" for none."""

    url: str


@dataclass(frozen=True, slots=True)
class Exposition:
    """Text of /metrics of the running service, "" if it is not accessible."""

    text: str


# --- the port --------------------------------------------------------------------------------------------------------


async def port(examination: CheckContext) -> Sequence[CheckResult]:
    """Check that the address of the settings is free, or that a load-watcher already listens there."""
    found = examination.get(Settings)
    server = found[ServerSettings]
    where = host_port(server.host, server.port)
    examination.put(DetectedService(""))
    if server.port == 0:
        return [ok(f"a free port of {server.host} will be selected (server.port = 0)")]
    try:
        await in_thread(lambda: _try_to_bind(server.host, server.port))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            return [_unbindable(error, where=where)]
    else:
        return [ok(f"{where} is free")]
    listener = await in_thread(lambda: _listener_on(server.port))
    url = own_url(found)
    with suppress(aiohttp.ClientError, OSError):
        async with _session(found, url=url) as session:
            if await _is_ours(session, url):
                examination.put(DetectedService(url))
                message = f"a load-watcher already listens on {where} ({listener})"
                if unlike := await _unlike(session, url, found):
                    cure = (
                        "stop it or set another server.port; if it is this service, give its options to doctor as well"
                    )
                    return [warn(f"{message}, with other settings: {unlike}", cure)]
                return [ok(f"{message}, with equal settings; a second one cannot start")]
    return [fail(f"{where} is in use by {listener}", "stop that program, or set another server.port")]


async def detected_url(examination: CheckContext) -> str:
    """Return the URL of the load-watcher at the address of the settings, "" for none; `--only` may omit the check of
    the port."""
    if examination.find(DetectedService) is None:
        await port(examination)
    return examination.get(DetectedService).url


async def _unlike(session: aiohttp.ClientSession, url: str, settings: Settings) -> str:
    """Describe the differences between the settings of the running service and `settings`; "" if there are none, or if
    they are unknown.
    """
    _, body = await _get(session, f"{url}/readyz")
    if separate_extender.is_configured(settings) != (separate_extender.status_page(body) is not None):
        return "one of them is load-watcher extender"
    try:
        there = decode_json(body, type=ReadyDocument)
    except msgspec.DecodeError:
        return ""
    refresh, source = settings[RefreshSettings], SOURCES.get(settings[ProviderSettings].name, "")
    # Otherwise the snapshot may be one that was restored from an earlier start.
    message = there.snapshot.source if there.snapshot is not None and there.provider.ok else ""
    pairs = [
        ("source", message or source, source or message),
        ("windows", ", ".join(there.windows), ", ".join(window.label for window in refresh.windows)),
        ("refresh.interval", f"{there.interval_s:g} s", f"{refresh.interval:g} s"),
        ("refresh.max_staleness", f"{there.max_staleness_s:g} s", f"{refresh.max_staleness:g} s"),
    ]
    return "; ".join(f"{what} is {printable(its)} there, {ours} here" for what, its, ours in pairs if its != ours)


def _try_to_bind(host: str, port: int) -> None:
    """Bind the address like the service and release it. Raises OSError."""
    if is_any_ipv6(host):
        any_address_socket(port).close()
        return
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except UnicodeError as error:  # an empty or overlong part between two dots
        raise socket.gaierror(socket.EAI_NONAME, "not a host name") from error
    for family, kind, protocol, _, address in found:
        with closing(socket.socket(family, kind, protocol)) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)


def _unbindable(error: OSError, *, where: str) -> CheckResult:
    if isinstance(error, socket.gaierror):
        return fail(f"{where}: cannot resolve the host name", "set server.host to an address of this machine")
    if error.errno == errno.EADDRNOTAVAIL:
        cure = "set server.host to an address of this machine, or :: for all of them"
        return fail(f"{where} is not an address of this machine", cure)
    if error.errno in (errno.EACCES, errno.EPERM):
        cure = "set server.port to 1024 or more; the default is 2020"
        return fail(f"this user may not listen on {where} ({error.strerror})", cure)
    return fail(f"cannot listen on {where}: {error.strerror or error}", "set another server.host or server.port")


def _listener_on(port: int) -> str:
    """Describe the processes that listen on a TCP port."""
    try:
        pids = {
            each.pid
            for each in psutil.net_connections("tcp")
            if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port
        }
        named = [f"{psutil.Process(pid).name()}, process {pid}" for pid in sorted(pid for pid in pids if pid)]
    except (psutil.Error, OSError):
        named = []
    return shorten_names(named) or f"a process that is not visible to user {os.geteuid()}"


# --- a running service -----------------------------------------------------------------------------------------------


async def service(examination: CheckContext) -> Sequence[CheckResult]:
    """Check a running service by its own reports: liveness, readiness, source, and findings of the sample review."""
    found = examination.get(Settings)
    url = examination.url or await detected_url(examination)
    if not url:
        return [skipped(f"no service runs at {own_url(found)}; --url checks another one")]
    where = without_credentials(url)
    try:
        async with _session(found, url=url) as session:
            if not await _is_ours(session, url):
                cure = (
                    "check --url; the Go load-watcher cannot be checked, since it has no "
                    "/healthz (docs/tasks/migrating.md)"
                )
                return [fail(f"the server at {where} is not a load-watcher", cure)]
            token = await in_thread(lambda: token_of(found))
            _, body = await _get(session, f"{url}/readyz", token=token)
            if page := separate_extender.status_page(body):
                results = [*separate_extender.check_status(page)]
            else:
                results = [*await _states(session, url, token=token), *await _findings(session, url, token=token)]
            with suppress(aiohttp.ClientError, OSError):  # /metrics is optional
                status, body = await _get(session, f"{url}/metrics", token=token)
                examination.put(Exposition(body.decode(errors="replace") if status == 200 else ""))
            return results
    except (aiohttp.ClientError, OSError) as error:
        cure = "check that it runs and that the address is correct; inside a pod, another address may be needed"
        return [fail(f"no response from {where}: {failure_reason(error, url=url)}", cure)]


async def _states(session: aiohttp.ClientSession, url: str, *, token: str | None) -> Sequence[CheckResult]:
    results = []
    for path, well, cure in (
        ("/readyz", "the service is ready: it serves a current window", "see the other results for the reason"),
        (
            "/watcher/health",
            "the last refresh of the service succeeded",
            "see the results of the source checks, and the log of the service",
        ),
    ):
        status, body = await _get(session, url + path, token=token)
        if status == 200:
            results.append(ok(well))
        elif status == 401:
            results.append(_unauthorised())
        else:
            results.append(_not_well(path, status, body, cure=cure))
    return results


def _not_well(path: str, status: int, body: bytes, *, cure: str) -> CheckResult:
    error = _error_of(body)
    if error is None:
        return fail(f"{path} returned {status}: {_start_of(body)}", cure)
    message = f"{path} returned {status}: {error.error.message}"
    if error.error.code == "warming_up":
        return warn(message, error.error.hint or cure)
    return fail(message, cure)


async def _findings(session: aiohttp.ClientSession, url: str, *, token: str | None) -> Sequence[CheckResult]:
    status, body = await _get(session, f"{url}/api/v1/findings", token=token)
    if status == 401:
        return []  # reported by _states
    try:
        document = decode_json(body, type=FindingsDocument)
    except msgspec.DecodeError:
        return [
            warn(f"/api/v1/findings: {status}, no findings: {_start_of(body)}", "check that its version is the same")
        ]
    return list(
        summarize_findings([each for each in document.findings if document.timestamp - each.last_seen <= RECENT_S])
    ) or [ok("no recent findings of the sample review")]


SERIOUS = (FindingKind.PARTIAL_OUTAGE, FindingKind.AMBIGUOUS_NODE)


def summarize_findings(findings: Sequence[FindingEntry]) -> Iterator[CheckResult]:
    """Yield one result for each kind of finding, with the text of the newest. It is a warning; for a partial outage it
    is a failure, since all requests will then be refused soon; also for two machines with one name.
    """
    by_kind: dict[str, list[FindingEntry]] = {}
    for each in findings:
        by_kind.setdefault(each.kind, []).append(each)
    for kind, entries in by_kind.items():
        newest = entries[0]
        of = " ".join(part for part in (newest.node, newest.metric) if part)
        others = f" (and {count(len(entries) - 1, 'other')} of this kind)" if len(entries) > 1 else ""
        message = f"{kind}: {f'{of}: ' if of else ''}{newest.reason}{others}"
        cure = f"see docs/reference/review.md for {kind}; /api/v1/findings lists all findings"
        yield (fail if kind in SERIOUS else warn)(message, cure)


def _unauthorised() -> CheckResult:
    cure = "set server.token_file to the file with the token of the service; the service has server.protect_reads"
    return fail("the service requires its token for reads", cure)


# --- requests --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _session(settings: Settings, *, url: str) -> AsyncIterator[aiohttp.ClientSession]:
    """Open a session that trusts the service's own certificate and the system's CA certificates."""
    trust = client_context()
    if settings[ServerSettings].tls_cert is not None:
        trust.load_verify_locations(settings[ServerSettings].tls_cert)
        trust.check_hostname = url != own_url(settings)  # the certificate may not include 127.0.0.1
    async with client_session(
        tls=trust,
        timeout=aiohttp.ClientTimeout(total=ANSWER_S),
        trust_env=False,
    ) as session:
        yield session


async def _get(session: aiohttp.ClientSession, url: str, *, token: str | None = None) -> tuple[int, bytes]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with session.get(url, allow_redirects=False, headers=headers) as response:
        return response.status, await read_body(response, answer_bound())


async def _is_ours(session: aiohttp.ClientSession, url: str) -> bool:
    """Whether a load-watcher runs at `url`. The request has no token, since the server may be another program."""
    status, body = await _get(session, f"{url}/healthz")
    if status == 503:
        error = _error_of(body)
        return error is not None and error.error.code == "not_alive"
    try:
        return status == 200 and decode_json(body, type=AliveDocument).status == "alive"
    except msgspec.DecodeError:
        return False


def _error_of(body: bytes) -> ErrorDocument | None:
    try:
        return decode_json(body, type=ErrorDocument)
    except msgspec.DecodeError:
        return None


def _start_of(body: bytes) -> str:
    return printable(body[:1024].decode(errors="replace")) or "nothing"
