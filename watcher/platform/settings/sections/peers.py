"""Other components that the service connects to: replicas, node agents, and components shown on the dashboard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from watcher.core.config import addresses, quantities, selections, values
from watcher.core.config.fields import SettingsTable
from watcher.core.pods.selector import PodSelection


def _peer_address(read: Callable[[Any], str]) -> Callable[[Any], str]:
    def checked(value: Any) -> str:
        if "@" in (address := read(value)):
            raise values.InvalidValue(
                "given an address with a user; use the token file of this table, or server.token_file for replicas"
            )
        return address

    return checked


_PEER = replace(
    addresses.ADDRESS, read=_peer_address(addresses.ADDRESS.read), read_text=_peer_address(addresses.ADDRESS.read_text)
)


def _peers(example: str) -> values.ValueKind:
    return values.list_of(_PEER, called=f'addresses, like ["{example}"]', may_be_empty=True)


_AUTHORITIES = values.PATH.like('"/etc/load-watcher/tls/ca.crt"')


@dataclass(frozen=True, repr=False)
class PeersSettings(SettingsTable):
    """Other replicas of the service. At its start, the service copies recent samples from a ready replica if the source
    has no history (metrics-server). Not used with other sources. The copy takes at most `timeout`."""

    urls: Annotated[
        tuple[str, ...] | None,
        _peers("http://load-watcher-headless:2020").like('["http://load-watcher-headless:2020"]'),
    ] = None
    """Base URLs of the replicas. All addresses of a host name are used, for example of a headless Service; they may
    include this process."""
    timeout: Annotated[float, quantities.duration(lowest=0.1, highest=60)] = 3.0
    """Total time that the first refresh waits for the replicas; at most 0.8 of refresh.interval."""
    ca_file: Annotated[Path | None, _AUTHORITIES] = None
    """CA certificates (PEM) to verify the certificates of the servers. Default: the system's CA certificates."""


_REQUEST_TIMEOUT = quantities.duration(lowest=0.1, highest=10)


@dataclass(frozen=True, repr=False)
class AgentsSettings(SettingsTable):
    """The node agents of the cluster (load-watcher agent). The dashboard shows their plans and audit logs
    (docs/reference/dashboard.md), and the usage of pods is read from them and not from the source
    (docs/reference/pods.md)."""

    urls: Annotated[
        tuple[str, ...] | None, _peers("http://load-watcher-agent:2023").like('["http://load-watcher-agent:2023"]')
    ] = None
    """Base URLs of the agents. All addresses of a host name are used, for example of a headless Service."""
    pods: Annotated[
        PodSelection | None,
        selections.pods(port=2023).like(
            '{ selector = "app.kubernetes.io/name=load-watcher-agent", namespace = "load-watcher-agent" }'
        ),
    ] = None
    """Label selector of the agents' pods; running and ready pods are used. Keys: selector, namespace (default: the
    namespace of this service), port, and tls_server_name, the host name in their certificates (default: plain HTTP).
    The dashboard shows each agent with its node."""
    pod_usage: Annotated[bool, values.BOOLEAN] = True
    """Whether the usage of pods is read from the agents; false: only the dashboard uses them."""
    token_file: Annotated[Path | None, values.PATH.like('"/run/secrets/load-watcher/agent-token"')] = None
    """File with the bearer token of the agents (agent.token_file); read for each request."""
    ca_file: Annotated[Path | None, _AUTHORITIES] = None
    """CA certificates (PEM) to verify the certificates of the servers. Default: the system's CA certificates."""
    timeout: Annotated[float, _REQUEST_TIMEOUT] = 3.0
    """Timeout of a request to an agent."""

    @property
    def report_pods(self) -> bool:
        """Whether the usage of pods is read from the agents."""
        return self.pod_usage and (bool(self.urls) or self.pods is not None)


@dataclass(frozen=True, repr=False)
class QrmsSettings(SettingsTable):
    """The QoS Resource Managers of the cluster (load-watcher qrm). The dashboard shows their pools and CPUs
    (docs/reference/dashboard.md)."""

    urls: Annotated[
        tuple[str, ...] | None, _peers("http://load-watcher-qrm:2024").like('["http://load-watcher-qrm:2024"]')
    ] = None
    """Base URLs of the QoS Resource Managers; host names as in agents.urls."""
    pods: Annotated[
        PodSelection | None,
        selections.pods(port=2024).like(
            '{ selector = "app.kubernetes.io/name=load-watcher-qrm", namespace = "load-watcher-qrm" }'
        ),
    ] = None
    """Label selector of the QoS Resource Managers' pods, with the keys of agents.pods."""
    token_file: Annotated[Path | None, values.PATH.like('"/run/secrets/load-watcher/qrm-token"')] = None
    """File with the bearer token of the QoS Resource Managers (qrm.token_file); read for each request."""
    ca_file: Annotated[Path | None, _AUTHORITIES] = None
    """CA certificates (PEM) to verify the certificates of the servers. Default: the system's CA certificates."""
    timeout: Annotated[float, _REQUEST_TIMEOUT] = 3.0
    """Timeout of a request to a QoS Resource Manager."""


@dataclass(frozen=True, repr=False)
class ExtenderSettings(SettingsTable):
    """The watcher whose load `load-watcher extender` uses. Other commands do not use this table."""

    watcher: Annotated[str | None, _PEER.like('"http://load-watcher:2020"')] = None
    """Base URL of the watcher (load-watcher serve). Required for load-watcher extender. Its option --watcher and the
    environment variable LOAD_WATCHER_URL also set it."""
    watcher_token_file: Annotated[Path | None, values.PATH.like('"/run/secrets/load-watcher/token"')] = None
    """File with the bearer token of the watcher, if that protects reads; read again when it changes."""
    watcher_ca_file: Annotated[Path | None, _AUTHORITIES] = None
    """CA certificates (PEM) to verify the certificates of the servers. Default: the system's CA certificates."""
