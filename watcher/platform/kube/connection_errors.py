"""The errors of failures below HTTP: names, connections, TLS, and responses that are not HTTP."""

from __future__ import annotations

import errno
import os

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from watcher.core.kubernetes.errors import KubeError, KubeMalformed, KubeRefused, KubeUnreachable
from watcher.core.messages import printable
from watcher.platform.net.failures import name_problem
from watcher.platform.net.resolver import HINT as NAMES_HINT
from watcher.platform.net.resolver import NameServerSilent, unanswered
from watcher.platform.net.tls import tls_cure, tls_error, tls_reason


def connection_error(error: Exception, *, what: str, host: str | None) -> KubeError:
    """The KubeError that corresponds to a failure below HTTP."""
    if refused := tls_error(error):
        names = {
            "authority": "certificate-authority in the kubeconfig (ca.crt of the service account)",
            "client": "client-certificate and client-key in the kubeconfig",
            "address": "server (or tls-server-name) in the kubeconfig",
        }
        return KubeRefused(tls_reason(refused), hint=tls_cure(refused, **names))
    if isinstance(error, TimeoutError):
        silent = unanswered([host or ""])
        return KubeUnreachable(silent or f"no response to the request for {what} in time", hint=silent and NAMES_HINT)
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        hint = NAMES_HINT if isinstance(error.os_error, NameServerSilent) else ""
        return KubeUnreachable(name_problem(error), hint=hint)
    said = printable(str(error)) or type(error).__name__
    if isinstance(error, aiohttp.ClientPayloadError) and "not completed" in said:  # with the repr of another error
        said = "the connection ended within the response"
    if isinstance(error, OSError) and error.errno is not None and error.errno in errno.errorcode:
        # asyncio replaces the system's message by the address; aiohttp's has "ssl:default" even without TLS
        said = os.strerror(error.errno)
    if isinstance(error, (aiohttp.ClientResponseError, HttpProcessingError, ValueError)):
        return KubeMalformed(f"the response for {what} is not valid HTTP: {said}")
    return KubeUnreachable(f"the connection failed during the request for {what}: {said}")
