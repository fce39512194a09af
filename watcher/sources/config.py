"""Settings of a connection, and queries to Prometheus, as values.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from watcher.core.config import addresses, quantities, values
from watcher.core.config.fields import SettingsTable
from watcher.core.config.values import Secret


@dataclass(frozen=True, repr=False, kw_only=True)
class ConnectionSettings(SettingsTable):
    """Address, credentials and limits of a connection. The connection checks the address."""

    address: Annotated[
        str | None, addresses.ADDRESS.like('"http://prometheus.monitoring:9090"').flagged("--address")
    ] = None
    """URL of the source. A user and password in it are used as username and password."""
    token: Annotated[Secret | None, values.SECRET.like('"…"')] = None
    """Bearer token to send. Prefer token_file."""
    token_file: Annotated[Path | None, values.PATH.like('"/var/run/secrets/kubernetes.io/serviceaccount/token"')] = None
    """File with the bearer token to send."""
    username: Annotated[str | None, values.TEXT.like('"load-watcher"')] = None
    """User for basic authentication; needs password or password_file."""
    password: Annotated[Secret | None, values.SECRET.like('"…"')] = None
    """Password of username. Prefer password_file."""
    password_file: Annotated[Path | None, values.PATH.like('"/etc/load-watcher/password"')] = None
    """File with the password of username."""
    ca_file: Annotated[Path | None, values.PATH.like('"/etc/load-watcher/prometheus-ca.crt"')] = None
    """CA certificates (PEM) to verify the source's certificate. Default: the system's CA certificates."""
    client_cert: Annotated[Path | None, values.PATH.like('"/etc/load-watcher/client.crt"')] = None
    """Client certificate (PEM) for the source, with its private key in client_key or in the same file."""
    client_key: Annotated[Path | None, values.PATH.like('"/etc/load-watcher/client.key"')] = None
    """Private key (PEM) of client_cert."""
    insecure_skip_verify: Annotated[bool, values.BOOLEAN] = False
    """Accept any certificate of the source. Insecure: the connection can be intercepted."""
    headers: Annotated[Mapping[str, Secret], addresses.HEADERS.like('{ "X-Scope-OrgID" = "team-a" }')] = field(
        default_factory=dict
    )
    """Additional HTTP headers to send, for example the tenant of Grafana Mimir."""
    timeout: Annotated[float, quantities.duration(lowest=0.1, highest=600)] = 10.0
    """Timeout of a request; at most 0.8 of refresh.interval, the deadline of a refresh. Default: 10s, or that deadline
    if it is shorter."""
    backoff: tuple[float, ...] = (0.25, 0.5)
    """Pauses in seconds before each retry of a query."""
    max_body_bytes: int | None = None
    """Maximum size of an answer, if smaller than the bound by the memory limit (`answer_bound`)."""
    keys: str = "provider."
    """Prefix of the setting keys in error messages."""

    @property
    def authorities(self) -> Path | None:
        """CA certificates (PEM) to verify the server's certificate; None for those of the system."""
        return self.ca_file


@dataclass(frozen=True, slots=True)
class InstantQuery:
    """An instant query at `time` (unix seconds)."""

    query: str
    time: float

    path = "/api/v1/query"

    def parameters(self) -> dict[str, str]:
        """Parameters of the request. Without nocache, VictoriaMetrics evaluates 30 s before now; other servers ignore
        it."""
        return {"query": self.query, "time": f"{self.time:.3f}", "nocache": "1"}


@dataclass(frozen=True, slots=True)
class RangeQuery:
    """A range query: `start` and `end` in unix seconds, `step` in seconds."""

    query: str
    start: int
    end: int
    step: int

    path = "/api/v1/query_range"

    def parameters(self) -> dict[str, str]:
        """Parameters of the request, as text."""
        return {"query": self.query, "start": f"{self.start}", "end": f"{self.end}", "step": f"{self.step}"}
