"""What the executor may do, and what it does with its changes when the agent stops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from agent.audit.log import Audit
from agent.decision.eviction_limits import Limits
from agent.executor.cgroup_lock import Claim
from agent.executor.cluster import Cluster
from agent.executor.groups import Groups
from agent.executor.knob_writer import Quotas
from agent.executor.recent_evictions import RecentEvictions


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """What the operator of this node allows."""

    enforce: bool = False
    limits: Limits = field(default_factory=Limits)
    beside_others: bool = False
    """Also beside a koordlet, a crane-agent or another load-watcher agent."""
    claim: Claim | None = None
    """To the control groups, against other load-watcher agents."""
    proc: Path = Path("/proc")
    """Where the processes of the node are seen, other agents among them."""


class OnExit(StrEnum):
    """What becomes of quotas and the taint when the agent ends in good order."""

    KEEP = "keep"
    """They stay; a new start goes on from there."""
    RESTORE = "restore"


@dataclass(frozen=True, slots=True)
class _Means:
    """What steps are carried out with."""

    audit: Audit
    groups: Groups
    quotas: Quotas
    cluster: Cluster | None
    limits: Limits
    recent: RecentEvictions
    clock: Callable[[], float]
