"""Configuration of a connection, and queries to Prometheus, as values.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class ConnectionConfig:
    """Address, credentials and limits of a connection. The connection checks the address."""

    address: str
    token: str = field(default="", repr=False)
    token_file: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    password_file: str = ""
    ca_file: str = ""
    client_cert: str = ""
    client_key: str = ""
    insecure_skip_verify: bool = False
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout: float = 10.0
    """Timeout in seconds for one attempt of one query, from the connection to the last byte."""
    backoff: tuple[float, ...] = (0.25, 0.5)
    """Pauses in seconds before each retry of a query."""
    max_body_bytes: int | None = None
    """Maximum size of an answer, if smaller than the bound by the memory limit (`answer_bound`)."""
    keys: str = "provider."
    """Prefix of the setting keys in error messages."""


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
