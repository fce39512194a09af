"""Whom the service asks besides its source: other replicas, the agents of nodes, and for the dashboard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from watcher.core.pods.selector import PodSelection
from watcher.platform.settings import addresses, quantities, selections, values
from watcher.platform.settings.declaring import Table, about


def _peer_address(read: Callable[[Any], str]) -> Callable[[Any], str]:
    def checked(value: Any) -> str:
        if "@" in (address := read(value)):
            raise values.Unfit("given one with a user; replicas know each other by server.token_file")
        return address

    return checked


_PEER = replace(
    addresses.ADDRESS, read=_peer_address(addresses.ADDRESS.read), read_text=_peer_address(addresses.ADDRESS.read_text)
)
_AUTHORITIES = about(
    values.PATH,
    "Authorities (PEM) that may have signed their certificates. Not set: those of the system.",
    example='"/etc/load-watcher/tls/ca.crt"',
)


@dataclass(frozen=True, repr=False)
class PeersSettings(Table):
    """Other replicas. A start takes over the samples of one that is ready, where the source itself does not remember
    (metrics-server). Not used with other sources, and never waited for longer than `timeout`."""

    urls: tuple[str, ...] | None = field(
        default=None,
        metadata=about(
            values.several(_PEER, called='addresses, like ["http://load-watcher-headless:2020"]'),
            "Where the replicas are. A name stands for all of its addresses, as that of a headless Service does, this "
            "process among them.",
            example='["http://load-watcher-headless:2020"]',
        ),
    )
    timeout: float = field(
        default=3.0,
        metadata=about(
            quantities.duration(lowest=0.1, highest=60),
            "How long the first refresh waits for all of them together; at most 0.8 of refresh.interval.",
        ),
    )
    ca_file: Path | None = field(default=None, metadata=_AUTHORITIES)


@dataclass(frozen=True, repr=False)
class AgentsSettings(Table):
    """The node agents of the cluster (load-watcher agent). Where they are named, what pods use is asked of them and not
    of the source (docs/pods.md)."""

    urls: tuple[str, ...] | None = field(
        default=None,
        metadata=about(
            values.several(_PEER, called='addresses, like ["http://load-watcher-agent:2023"]'),
            "Where the agents are. A name stands for all of its addresses, as that of a headless Service does.",
            example='["http://load-watcher-agent:2023"]',
        ),
    )
    pods: PodSelection | None = field(
        default=None,
        metadata=about(
            selections.pods(port=2023),
            "The pods of the agents, by label: those that run and are ready are asked at their addresses. namespace: "
            "not set, our own. tls_server_name: whom their certificates are for; not set, they are asked by http.",
            example='{ selector = "app.kubernetes.io/name=load-watcher-agent", namespace = "load-watcher-agent" }',
        ),
    )
    token_file: Path | None = field(
        default=None,
        metadata=about(
            values.PATH,
            "A file with the token that the agents want (agent.token_file), read anew each time.",
            example='"/run/secrets/load-watcher/agent-token"',
        ),
    )
    ca_file: Path | None = field(default=None, metadata=_AUTHORITIES)
    timeout: float = field(
        default=3.0, metadata=about(quantities.duration(lowest=0.1, highest=10), "How long one agent has to answer.")
    )

    @property
    def named(self) -> bool:
        """Whether there are any, so that pods are asked of them."""
        return self.urls is not None or self.pods is not None


@dataclass(frozen=True, repr=False)
class DashboardSettings(Table):
    """What the dashboard shows beside the service itself: pages of node agents and QoS Resource Managers, asked for by
    the service and only to be looked at (docs/dashboard.md)."""

    agents: tuple[str, ...] | None = field(
        default=None,
        metadata=about(
            values.several(_PEER, called='addresses, like ["http://load-watcher-agent:2023"]'),
            "Agents whose plan and audit are shown. A name stands for all of its addresses, as that of a headless "
            "Service does.",
            example='["http://load-watcher-agent:2023"]',
        ),
    )
    agent_pods: PodSelection | None = field(
        default=None,
        metadata=about(
            selections.pods(port=2023),
            "The same by label, as agents.pods. They are shown with their nodes.",
            example='{ selector = "app.kubernetes.io/name=load-watcher-agent", namespace = "load-watcher-agent" }',
        ),
    )
    qrm: tuple[str, ...] | None = field(
        default=None,
        metadata=about(
            values.several(_PEER, called='addresses, like ["http://load-watcher-qrm:2024"]'),
            "QoS Resource Managers whose pools and CPUs are shown, likewise.",
            example='["http://load-watcher-qrm:2024"]',
        ),
    )
    qrm_pods: PodSelection | None = field(
        default=None,
        metadata=about(
            selections.pods(port=2024),
            "The same by label, as agents.pods.",
            example='{ selector = "app.kubernetes.io/name=load-watcher-qrm", namespace = "load-watcher-qrm" }',
        ),
    )
    token_file: Path | None = field(
        default=None,
        metadata=about(
            values.PATH,
            "A file with the token that they want (agent.token_file, qrm.token_file), read anew each time.",
            example='"/run/secrets/load-watcher/agent-token"',
        ),
    )
    ca_file: Path | None = field(default=None, metadata=_AUTHORITIES)
