"""Other components that the service connects to: node agents, QoS Resource Managers, and the extender's watcher."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from watcher.core.pods.selector import PodSelection
from watcher.platform.settings import addresses, quantities, selections, values
from watcher.platform.settings.field_metadata import Setting, SettingsTable, described, setting


def _peer_address(read: Callable[[Any], str]) -> Callable[[Any], str]:
    def checked(value: Any) -> str:
        if "@" in (address := read(value)):
            raise values.InvalidValue("given an address with a user; use the token file of this table")
        return address

    return checked


_PEER = replace(
    addresses.ADDRESS, read=_peer_address(addresses.ADDRESS.read), read_text=_peer_address(addresses.ADDRESS.read_text)
)


def _peers(example: str) -> values.ValueKind:
    return values.list_of(_PEER, called=f'addresses, like ["{example}"]', may_be_empty=True)


_AUTHORITIES = Setting(
    values.PATH,
    "CA certificates (PEM) to verify the certificates of the servers. Default: the system's CA certificates.",
    example='"/etc/load-watcher/tls/ca.crt"',
)
_REQUEST_TIMEOUT = quantities.duration(lowest=0.1, highest=10)


@dataclass(frozen=True, repr=False)
class AgentsSettings(SettingsTable):
    """The node agents of the cluster (load-watcher agent). The dashboard shows their plans and audit logs
    (docs/reference/dashboard.md), and the usage of pods is read from them and not from the source
    (docs/reference/pods.md)."""

    urls: tuple[str, ...] | None = setting(
        None,
        _peers("http://load-watcher-agent:2023"),
        "Base URLs of the agents. All addresses of a host name are used, for example of a headless Service.",
        example='["http://load-watcher-agent:2023"]',
    )
    pods: PodSelection | None = setting(
        None,
        selections.pods(port=2023),
        "Label selector of the agents' pods; running and ready pods are used. Keys: selector, namespace (default: "
        "the namespace of this service), port, and tls_server_name, the host name in their certificates (default: "
        "plain HTTP). The dashboard shows each agent with its node.",
        example='{ selector = "app.kubernetes.io/name=load-watcher-agent", namespace = "load-watcher-agent" }',
    )
    pod_usage: bool = setting(
        True, values.BOOLEAN, "Whether the usage of pods is read from the agents; false: only the dashboard uses them."
    )
    token_file: Path | None = setting(
        None,
        values.PATH,
        "File with the bearer token of the agents (agent.token_file); read for each request.",
        example='"/run/secrets/load-watcher/agent-token"',
    )
    ca_file: Path | None = described(None, _AUTHORITIES)
    timeout: float = setting(3.0, _REQUEST_TIMEOUT, "Timeout of a request to an agent.")

    @property
    def report_pods(self) -> bool:
        """Whether the usage of pods is read from the agents."""
        return self.pod_usage and (bool(self.urls) or self.pods is not None)


@dataclass(frozen=True, repr=False)
class QrmsSettings(SettingsTable):
    """The QoS Resource Managers of the cluster (load-watcher qrm). The dashboard shows their pools and CPUs
    (docs/reference/dashboard.md)."""

    urls: tuple[str, ...] | None = setting(
        None,
        _peers("http://load-watcher-qrm:2024"),
        "Base URLs of the QoS Resource Managers; host names as in agents.urls.",
        example='["http://load-watcher-qrm:2024"]',
    )
    pods: PodSelection | None = setting(
        None,
        selections.pods(port=2024),
        "Label selector of the QoS Resource Managers' pods, with the keys of agents.pods.",
        example='{ selector = "app.kubernetes.io/name=load-watcher-qrm", namespace = "load-watcher-qrm" }',
    )
    token_file: Path | None = setting(
        None,
        values.PATH,
        "File with the bearer token of the QoS Resource Managers (qrm.token_file); read for each request.",
        example='"/run/secrets/load-watcher/qrm-token"',
    )
    ca_file: Path | None = described(None, _AUTHORITIES)
    timeout: float = setting(3.0, _REQUEST_TIMEOUT, "Timeout of a request to a QoS Resource Manager.")


@dataclass(frozen=True, repr=False)
class ExtenderSettings(SettingsTable):
    """The watcher whose load `load-watcher extender` uses. Other commands do not use this table."""

    watcher: str | None = setting(
        None,
        _PEER,
        "Base URL of the watcher (load-watcher serve). Required for load-watcher extender. Its option --watcher "
        "and the environment variable LOAD_WATCHER_URL also set it.",
        example='"http://load-watcher:2020"',
    )
    watcher_token_file: Path | None = setting(
        None,
        values.PATH,
        "File with the bearer token of the watcher, if that protects reads; read again when it changes.",
        example='"/run/secrets/load-watcher/token"',
    )
    watcher_ca_file: Path | None = described(None, _AUTHORITIES)
