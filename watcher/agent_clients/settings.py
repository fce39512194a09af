"""The sections [agents] and [qrms] of the settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from watcher.agent_clients import selections
from watcher.core.config import quantities, values
from watcher.core.config.addresses import AUTHORITIES, peers
from watcher.core.config.fields import SettingsTable
from watcher.core.pods.selector import PodSelection

_REQUEST_TIMEOUT = quantities.duration(lowest=0.1, highest=10)


@dataclass(frozen=True, repr=False)
class AgentsSettings(SettingsTable, section="agents"):
    """The node agents of the cluster (load-watcher agent). The dashboard shows their plans and audit logs
    (docs/reference/dashboard.md), and the usage of pods is read from them and not from the source
    (docs/reference/pods.md)."""

    urls: Annotated[
        tuple[str, ...] | None, peers("http://load-watcher-agent:2023").like('["http://load-watcher-agent:2023"]')
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
    ca_file: Annotated[Path | None, AUTHORITIES] = None
    """CA certificates (PEM) to verify the certificates of the servers. Default: the system's CA certificates."""
    timeout: Annotated[float, _REQUEST_TIMEOUT] = 3.0
    """Timeout of a request to an agent."""

    @property
    def report_pods(self) -> bool:
        """Whether the usage of pods is read from the agents."""
        return self.pod_usage and (bool(self.urls) or self.pods is not None)


@dataclass(frozen=True, repr=False)
class QrmsSettings(SettingsTable, section="qrms"):
    """The QoS Resource Managers of the cluster (load-watcher qrm). The dashboard shows their pools and CPUs
    (docs/reference/dashboard.md)."""

    urls: Annotated[
        tuple[str, ...] | None, peers("http://load-watcher-qrm:2024").like('["http://load-watcher-qrm:2024"]')
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
    ca_file: Annotated[Path | None, AUTHORITIES] = None
    """CA certificates (PEM) to verify the certificates of the servers. Default: the system's CA certificates."""
    timeout: Annotated[float, _REQUEST_TIMEOUT] = 3.0
    """Timeout of a request to a QoS Resource Manager."""
