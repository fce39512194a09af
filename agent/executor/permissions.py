"""Permitted actions of the executor, and the treatment of its changes when the agent stops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from agent.audit.log import Audit
from agent.decision.eviction_limits import EvictionLimits
from agent.executor.cluster import ClusterActions
from agent.executor.groups import CgroupLock, Groups
from agent.executor.knob_writer import KnobWriter
from agent.executor.report import RecentEvictions
from watcher.platform.repeated_errors import RepeatedErrors


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """Permissions from the settings of this node."""

    enforce: bool = False
    limits: EvictionLimits = field(default_factory=EvictionLimits)
    beside_others: bool = False
    """Enforce although a koordlet, a crane-agent or another load-watcher agent manages the same groups."""
    claim: CgroupLock | None = None
    """Lock on the control groups against other load-watcher agents."""
    proc: Path = Path("/proc")
    """Path of the host's /proc, to detect processes of other agents."""


class OnExit(StrEnum):
    """Handling of lowered quotas and the taint at a regular shutdown."""

    KEEP = "keep"
    """They stay, and a restarted agent continues from them."""
    RESTORE = "restore"


@dataclass(frozen=True, slots=True)
class ExecutorMeans:
    """Dependencies for carrying out steps."""

    audit: Audit
    groups: Groups
    quotas: KnobWriter
    cluster: ClusterActions | None
    limits: EvictionLimits
    recent: RecentEvictions
    clock: Callable[[], float]
    errors: RepeatedErrors
