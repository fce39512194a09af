"""Checks of the settings, and of the environment in which the service runs."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator, Sequence

from load_watcher.doctor.separate_extender import is_configured
from watcher.core.config.problems import SettingsError
from watcher.core.config.settings import Settings
from watcher.platform.checks.examination import CheckContext, in_thread
from watcher.platform.checks.results import CheckResult, fail, ok, warn
from watcher.platform.http.settings import ServerSettings
from watcher.platform.net.loopback import is_loopback
from watcher.platform.net.settings import ExtenderSettings
from watcher.platform.net.tls import file_reason
from watcher.service.build import tls_of
from watcher.sources.settings import ProviderSettings

IN_CLUSTER = "KUBERNETES_SERVICE_HOST"


async def settings(examination: CheckContext) -> Sequence[CheckResult]:
    """Check that the settings are valid; report each problem, or the provider of samples."""
    try:
        found = await in_thread(examination.load)
    except SettingsError as error:
        return [fail(f"{problem.key}: {problem.message}", problem.cure) for problem in error.problems]
    examination.put(found)
    provider = found[ProviderSettings]
    notices = [warn(notice, "remove it, unless it is meant for another program") for notice in found.notices]
    if is_configured(found):
        return [ok(f"valid for load-watcher extender with the watcher at {found[ExtenderSettings].watcher}"), *notices]
    return [ok(f"valid; provider of samples: {provider.name} ({provider.reason})"), *notices]


async def surroundings(examination: CheckContext) -> Sequence[CheckResult]:
    """Check valid settings for mistakes in this environment: TLS files, and settings that are unsuitable for a pod."""
    found = examination.get(Settings)
    results = [*await in_thread(lambda: list(_certificates(found)))]
    results += list(_odd(found, in_cluster=IN_CLUSTER in examination.environ, node="NODE_NAME" in examination.environ))
    where = "a pod of a cluster" if IN_CLUSTER in examination.environ else "not a pod"
    return results or [ok(f"{where}; the settings match this environment")]


def _certificates(found: Settings) -> Iterator[CheckResult]:
    try:
        tls_of(found)
    except (ssl.SSLError, OSError) as error:
        yield fail(
            f"cannot use the TLS files of [server]: {file_reason(error)}",
            "tls_cert, tls_key and tls_client_ca must be PEM files; tls_key must belong to tls_cert and be unencrypted",
        )


def _odd(found: Settings, *, in_cluster: bool, node: bool) -> Iterator[CheckResult]:
    if found[ProviderSettings].name == "host" and not is_configured(found) and in_cluster and not node:
        name = socket.gethostname()
        yield fail(
            f"NODE_NAME is not set, so the load of this node is reported under the name of the container, {name}",
            "set the variable NODE_NAME of the container with fieldRef spec.nodeName (the downward API)",
        )
    host = found[ServerSettings].host
    if in_cluster and is_loopback(host):
        yield warn(
            f"server.host is {host}: only containers of this pod can reach the service, probes cannot",
            "set server.host to ::, unless the service is a sidecar of the scheduler",
        )
    if found[ProviderSettings].insecure_skip_verify:
        yield warn(
            "provider.insecure_skip_verify is set: the credentials and responses can be intercepted and changed",
            "set provider.ca_file to the CA certificate of the source instead",
        )
