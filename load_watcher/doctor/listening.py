"""Who listens where the service is to listen, and how a service that runs already is doing by its own account."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp
import msgspec
import psutil

from watcher.api.operations import AliveDocument, ReadyDocument
from watcher.core.publishing.wire import ErrorDocument, FindingEntry, FindingsDocument
from watcher.model import FindingKind
from watcher.platform.checks.examination import Examination, aside
from watcher.platform.checks.results import Result, count, fail, ok, skipped, some, warn
from watcher.platform.net.loopback import EVERYWHERE
from watcher.platform.net.redaction import shown, without_credentials
from watcher.platform.settings.tables import Settings
from watcher.service.build import token_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ANSWER_S = 5.0
RECENT_S = 300
"""How long ago a finding of a running service may have been seen last, in seconds, and still count."""
SOURCES = {
    "host": "Host",
    "prometheus": "Prometheus",
    "influxdb": "InfluxDB",
    "metrics-server": "KubernetesMetricsServer",
    "datadog": "Datadog",
    "signalfx": "SignalFx",
    "replay": "Replay",
}
"""How the source of each provider begins."""


@dataclass(frozen=True, slots=True)
class Serving:
    """Where a load-watcher answers, "" if none does at the address of the settings."""

    url: str


@dataclass(frozen=True, slots=True)
class Exposition:
    """The page /metrics of the running service, "" where it does not let us read it."""

    text: str


# --- the port --------------------------------------------------------------------------------------------------------


async def port(examination: Examination) -> Sequence[Result]:
    """Whether the address of the settings can be listened on, or a load-watcher listens there already."""
    found = examination.the(Settings)
    server = found.server
    where = f"{server.host}:{server.port}"
    examination.leave(Serving(""))
    if server.port == 0:
        return [ok(f"any free port of {server.host} will be taken (server.port = 0)")]
    try:
        await aside(lambda: _try_to_bind(server.host, server.port))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            return [_unbindable(error, where=where)]
    else:
        return [ok(f"{where} is free, nothing runs there yet")]
    listener = await aside(lambda: _listener_on(server.port))
    url = own_url(found)
    with suppress(aiohttp.ClientError, OSError):
        async with _session(found, url=url) as session:
            if await _is_ours(session, url):
                examination.leave(Serving(url))
                told = f"a load-watcher listens on {where} already ({listener})"
                if unlike := await _unlike(session, url, found):
                    cure = "another one: end it, or set another server.port; this one: give its flags to the doctor too"
                    return [warn(f"{told}, and not with these settings: {unlike}", cure)]
                return [ok(f"{told}, with settings like these; a second one would not start")]
    return [fail(f"{where} is taken by {listener}", "end that program, or set another server.port")]


async def _unlike(session: aiohttp.ClientSession, url: str, settings: Settings) -> str:
    """What tells the service there from one with these settings, in words; "" for nothing, or where it cannot be
    told."""
    _, body = await _get(session, f"{url}/readyz")
    try:
        there = msgspec.json.decode(body, type=ReadyDocument)
    except msgspec.DecodeError:
        return ""
    refresh, source = settings.refresh, SOURCES.get(settings.provider.name, "")
    told = there.snapshot.source if there.snapshot is not None and there.provider.ok else ""  # else of another start
    pairs = [
        ("source", told or source, source or told),
        ("windows", ", ".join(there.windows), ", ".join(window.label for window in refresh.windows)),
        ("refresh.interval", f"{there.interval_s:g} s", f"{refresh.interval:g} s"),
        ("refresh.max_staleness", f"{there.max_staleness_s:g} s", f"{refresh.max_staleness:g} s"),
    ]
    return "; ".join(f"{what} {shown(its)} there, {ours} here" for what, its, ours in pairs if its != ours)


def own_url(settings: Settings) -> str:
    """Where this machine finds the service of these settings."""
    host = EVERYWHERE.get(settings.server.host, settings.server.host)
    scheme = "https" if settings.server.tls_cert else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings.server.port}"


def _try_to_bind(host: str, port: int) -> None:
    """Take the address as the service would, and let it go. Raises OSError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except UnicodeError as error:  # an empty or overlong part between two dots
        raise socket.gaierror(socket.EAI_NONAME, "no name of a host") from error
    for family, kind, protocol, _, address in found:
        with closing(socket.socket(family, kind, protocol)) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)


def _unbindable(error: OSError, *, where: str) -> Result:
    if isinstance(error, socket.gaierror):
        return fail(f"{where}: this name cannot be resolved", "set server.host to an address of this machine")
    if error.errno == errno.EADDRNOTAVAIL:
        cure = "set server.host to an address of this machine, or 0.0.0.0 for all of them"
        return fail(f"{where} is no address of this machine", cure)
    if error.errno in (errno.EACCES, errno.EPERM):
        cure = "set a server.port of 1024 or more, the usual one is 2020"
        return fail(f"{where} may not be listened on by this user ({error.strerror})", cure)
    return fail(f"{where} cannot be listened on: {error.strerror or error}", "set another server.host or server.port")


def _listener_on(port: int) -> str:
    """The process that listens on a port, in words."""
    try:
        pids = {
            each.pid
            for each in psutil.net_connections("tcp")
            if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port
        }
        named = [f"{psutil.Process(pid).name()}, process {pid}" for pid in sorted(pid for pid in pids if pid)]
    except (psutil.Error, OSError):
        named = []
    return some(named) or f"a process that user {os.geteuid()} may not see"


# --- a running service -----------------------------------------------------------------------------------------------


async def service(examination: Examination) -> Sequence[Result]:
    """What a running service says of itself: alive, ready, its source, and what its review of samples found."""
    found = examination.the(Settings)
    url = examination.url or examination.the(Serving).url
    if not url:
        return [skipped(f"none answers at {own_url(found)}", "to ask one elsewhere, name it with --url")]
    where = without_credentials(url)
    try:
        async with _session(found, url=url) as session:
            if not await _is_ours(session, url):
                cure = "check --url; the Go load-watcher is not asked either, it has no /healthz: docs/migrating.md"
                return [fail(f"what answers at {where} is no load-watcher", cure)]
            token = await aside(lambda: token_of(found))
            results = [*await _states(session, url, token=token), *await _findings(session, url, token=token)]
            with suppress(aiohttp.ClientError, OSError):  # it has told what it should
                status, page = await _get(session, f"{url}/metrics", token=token)
                examination.leave(Exposition(page.decode(errors="replace") if status == 200 else ""))
            return results
    except (aiohttp.ClientError, OSError) as error:
        cure = "is it running, and is its address right? From inside a pod it may be another one"
        return [fail(f"{where} does not answer: {_reason(error)}", cure)]


async def _states(session: aiohttp.ClientSession, url: str, *, token: str | None) -> Sequence[Result]:
    results = []
    for path, well, cure in (
        ("/readyz", "it is ready: a window young enough is served", "what keeps it from that is among the other lines"),
        (
            "/watcher/health",
            "its source answered at its last refresh",
            "the checks of the source say more, and its log",
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


def _not_well(path: str, status: int, body: bytes, *, cure: str) -> Result:
    error = _error_of(body)
    if error is None:
        return fail(f"{path} answers {status}: {_start_of(body)}", cure)
    told = f"{path} answers {status}: {error.error.message}"
    if error.error.code == "warming_up":
        return warn(told, error.error.hint or cure)
    return fail(told, cure)


async def _findings(session: aiohttp.ClientSession, url: str, *, token: str | None) -> Sequence[Result]:
    status, body = await _get(session, f"{url}/api/v1/findings", token=token)
    if status == 401:
        return []  # said already
    try:
        document = msgspec.json.decode(body, type=FindingsDocument)
    except msgspec.DecodeError:
        return [warn(f"/api/v1/findings answers {status} and no findings: {_start_of(body)}", "is it another version?")]
    return list(of_kinds([each for each in document.findings if document.timestamp - each.last_seen <= RECENT_S])) or [
        ok("its review of samples found nothing lately")
    ]


def of_kinds(findings: Sequence[FindingEntry]) -> Iterator[Result]:
    """One line for each kind of finding, told by its newest: a failure where much of the fleet is affected, since all
    answers are then refused before long, else a warning."""
    by_kind: dict[str, list[FindingEntry]] = {}
    for each in findings:
        by_kind.setdefault(each.kind, []).append(each)
    for kind, entries in by_kind.items():
        newest = entries[0]
        of = " ".join(part for part in (newest.node, newest.metric) if part)
        others = f" (and {count(len(entries) - 1, 'other')} of this kind)" if len(entries) > 1 else ""
        told = f"{kind}: {f'{of}: ' if of else ''}{newest.reason}{others}"
        cure = f"docs/review.md says what {kind} means; /api/v1/findings has all of them"
        yield fail(told, cure) if kind == FindingKind.PARTIAL_OUTAGE else warn(told, cure)


def _unauthorised() -> Result:
    cure = "set server.token_file to the file with its token, as for serve (server.protect_reads is on there)"
    return fail("it does not let us read without its token", cure)


# --- asking ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _session(settings: Settings, *, url: str) -> AsyncIterator[aiohttp.ClientSession]:
    """A session that trusts the service's own certificate beside the authorities of the system."""
    trust = ssl.create_default_context()
    if settings.server.tls_cert is not None:
        trust.load_verify_locations(settings.server.tls_cert)
        trust.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        trust.check_hostname = url != own_url(settings)  # its certificate need not name 127.0.0.1
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=trust),
        timeout=aiohttp.ClientTimeout(total=ANSWER_S),
        trust_env=False,
    ) as session:
        yield session


async def _get(session: aiohttp.ClientSession, url: str, *, token: str | None = None) -> tuple[int, bytes]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with session.get(url, allow_redirects=False, headers=headers) as response:
        return response.status, await response.read()


async def _is_ours(session: aiohttp.ClientSession, url: str) -> bool:
    """Whether a load-watcher answers there. It is not told our token before it is known for one."""
    status, body = await _get(session, f"{url}/healthz")
    if status == 503:
        error = _error_of(body)
        return error is not None and error.error.code == "not_alive"
    try:
        return status == 200 and msgspec.json.decode(body, type=AliveDocument).status == "alive"
    except msgspec.DecodeError:
        return False


def _error_of(body: bytes) -> ErrorDocument | None:
    try:
        return msgspec.json.decode(body, type=ErrorDocument)
    except msgspec.DecodeError:
        return None


def _start_of(body: bytes) -> str:
    return shown(body[:1024].decode(errors="replace")) or "nothing"


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {ANSWER_S:g} s"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "its name cannot be resolved"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"its certificate is not trusted: {error.certificate_error}"
    if isinstance(error, aiohttp.ClientConnectorError):
        return os.strerror(error.errno) if error.errno else str(error.os_error)
    return str(error) or type(error).__name__
