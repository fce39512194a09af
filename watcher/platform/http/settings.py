"""The section [server] of the settings: address, TLS and authentication."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from watcher.core.config import values
from watcher.core.config.fields import SettingsTable


@dataclass(frozen=True, repr=False)
class ServerSettings(SettingsTable, section="server"):
    """The address, TLS and authentication of the HTTP API."""

    host: Annotated[str, values.TEXT.flagged("--host")] = "127.0.0.1"
    """Address to listen on; :: serves IPv4 as well. It is the default of the container image."""
    port: Annotated[int, values.integer(lowest=0, highest=65535).flagged("--port")] = 2020
    """Port to listen on; 0 selects a free port."""
    hosts: Annotated[
        tuple[str, ...] | None,
        values.list_of(values.NAME, called="host names", may_be_empty=True).like('["load-watcher.example.org"]'),
    ] = None
    """Further host names under which clients reach the service while server.host is a loopback address, for example
    through a proxy on the same machine. Requests with other names in the Host header are refused; IP addresses and
    localhost are always accepted."""
    tls_cert: Annotated[Path | None, values.PATH.like('"/etc/load-watcher/tls/tls.crt"')] = None
    """Server certificate for HTTPS (PEM, with its chain); needs tls_key."""
    tls_key: Annotated[Path | None, values.PATH.like('"/etc/load-watcher/tls/tls.key"')] = None
    """Private key (PEM) of tls_cert."""
    tls_client_ca: Annotated[Path | None, values.PATH.like('"/etc/load-watcher/tls/clients.crt"')] = None
    """CA certificates (PEM) to verify client certificates. These are optional; a verified one replaces the token for
    reads. Needs tls_cert."""
    token_file: Annotated[Path | None, values.PATH.like('"/etc/load-watcher/token"')] = None
    """File with the bearer token for requests that change state or read details (decisions, pods, pages of agents);
    with protect_reads, for all reads."""
    protect_reads: Annotated[bool, values.BOOLEAN] = False
    """Whether reads need the token of token_file as well."""
    scheduler_clients: Annotated[
        tuple[str, ...],
        values.list_of(values.NAME, called="certificate names", may_be_empty=True).like('["system:kube-scheduler"]'),
    ] = ()
    """Names of the client certificates that may send filter, prioritize and bind to the extender: common name of the
    subject, or DNS name. All other requests to these paths are refused, also from loopback. Empty: filter and
    prioritize are open to every client. Needs tls_client_ca."""
