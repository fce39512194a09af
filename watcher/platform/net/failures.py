"""Reasons of failed HTTP requests in words, and how to reach a service in a cluster. The texts of aiohttp repeat the
address, and contain "ssl:default" without TLS."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from watcher.core.messages import printable
from watcher.platform.net.loopback import is_loopback
from watcher.platform.net.resolver import NameServerSilent, unanswered
from watcher.platform.net.tls import tls_error, tls_reason


def failure_reason(error: BaseException, *, url: str) -> str:
    """Describe a failure below HTTP of a request to this URL ("" if unknown), without the address of the server."""
    if isinstance(error, TimeoutError):
        return unanswered([urlsplit(url).hostname or ""]) or "no response in time"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return name_problem(error)
    if refused := tls_error(error):
        return tls_reason(refused)
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the server closed the connection without a response"
    if isinstance(error, OSError):
        return f"the connection failed: {printable(system_reason(error))}"
    return printable(str(error)) or type(error).__name__


def name_problem(error: aiohttp.ClientConnectorDNSError) -> str:
    """Why a name has no address."""
    silent = isinstance(error.os_error, NameServerSilent)
    return printable(str(error.os_error)) if silent else "the host name cannot be resolved"


def system_reason(error: OSError) -> str:
    """The operating system's error text. asyncio replaces it with "Connect call failed" and the address."""
    if error.errno is not None and error.errno in errno.errorcode:
        return os.strerror(error.errno)
    return error.strerror or type(error).__name__


def cluster_hint(url: str, *, environ: Mapping[str, str], home: Path) -> str:
    """How to reach a service in a cluster, if no service answers at `url` on this machine, and the machine is a pod or
    has a kubeconfig; otherwise "". The names are those of deploy/."""
    if not is_loopback(urlsplit(url).hostname or ""):
        return ""
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return "in a pod, use --url http://load-watcher.load-watcher:2020 or the environment variable LOAD_WATCHER_URL"
    if environ.get("KUBECONFIG") or (home / ".kube" / "config").exists():
        return (
            "if it runs in a cluster, forward its port first: "
            "kubectl -n load-watcher port-forward service/load-watcher 2020"
        )
    return ""
