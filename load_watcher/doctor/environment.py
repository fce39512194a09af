"""The settings themselves, and whether they fit the place we run in."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator, Sequence

from watcher.platform.checks.examination import Examination, aside
from watcher.platform.checks.results import Result, fail, ok, warn
from watcher.platform.settings.problems import SettingsError
from watcher.platform.settings.tables import Settings
from watcher.service.build import tls_of

IN_CLUSTER = "KUBERNETES_SERVICE_HOST"
LOOPBACK = ("127.", "localhost", "::1")


async def settings(examination: Examination) -> Sequence[Result]:
    """Whether the settings can be used: each problem with its key, else where the samples come from."""
    try:
        found = await aside(examination.load)
    except SettingsError as error:
        return [fail(f"{problem.key}: {problem.message}", problem.cure) for problem in error.problems]
    examination.leave(found)
    provider = found.provider
    notices = [warn(notice, "leave it out, if it is not meant for another program") for notice in found.notices]
    return [ok(f"valid; samples come from {provider.name}: {provider.reason}"), *notices]


async def surroundings(examination: Examination) -> Sequence[Result]:
    """What is valid and still wrong here: in a pod, or for the host provider without its node's name."""
    found = examination.the(Settings)
    results = [*await aside(lambda: list(_certificates(found)))]
    results += list(_odd(found, in_cluster=IN_CLUSTER in examination.environ, node="NODE_NAME" in examination.environ))
    where = "a pod of a cluster" if IN_CLUSTER in examination.environ else "not a pod"
    return results or [ok(f"{where}, which fits the settings")]


def _certificates(found: Settings) -> Iterator[Result]:
    try:
        tls_of(found)
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or error.strerror or type(error).__name__
        yield fail(
            f"the TLS files in [server] do not work: {reason}",
            "tls_cert, tls_key and tls_client_ca must be PEM files, and the key the certificate's, without a password",
        )


def _odd(found: Settings, *, in_cluster: bool, node: bool) -> Iterator[Result]:
    if found.provider.name == "host" and in_cluster and not node:
        name = socket.gethostname()
        yield fail(
            f"NODE_NAME is not set, so the load of this node is reported under the name of the container, {name}",
            "give the container the variable NODE_NAME from fieldRef spec.nodeName (the downward API)",
        )
    if in_cluster and found.server.host.startswith(LOOPBACK):
        yield warn(
            f"server.host is {found.server.host}: only this pod's own containers reach the service, probes do not",
            "set LOAD_WATCHER_SERVER_HOST=0.0.0.0, unless it is a sidecar of the scheduler",
        )
    if found.provider.insecure_skip_verify:
        yield warn(
            "provider.insecure_skip_verify is set: anyone on the way can read the credentials and change the answers",
            "set provider.ca_file to the authority that signed the source's certificate instead",
        )
