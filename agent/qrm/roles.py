"""Which pods get CPUs and memory of their own, and which share a pool: by the pod's role.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ONLINE = "online"
OFFLINE = "offline"
POOLS = (ONLINE, OFFLINE)
EXCLUSIVE = "exclusive"


@dataclass(frozen=True, slots=True)
class RoleTable:
    """Roles by class (seed 002, Examples 1 to 3). A role that no class names is one of the pool `online`.

    Pods of an exclusive role get CPUs, and memory of NUMA nodes, of their own; no other exclusive role gets on a node
    that has them.
    """

    classes: Mapping[str, str]
    """By role: "online", "offline" or "exclusive"."""
    nic: frozenset[str] = frozenset()
    """Roles that get a network card without asking for one."""

    def class_of(self, role: str) -> str:
        return self.classes.get(role, ONLINE)

    def is_exclusive(self, role: str) -> bool:
        return self.class_of(role) == EXCLUSIVE


def role_table(classes: Mapping[str, Sequence[str]], *, nic: Sequence[str] = ()) -> RoleTable:
    """From class to roles. Raises ValueError for a class that there is not, or a role that is in two."""
    by_role: dict[str, str] = {}
    for name, roles in classes.items():
        if name not in (*POOLS, EXCLUSIVE):
            raise ValueError(f"{name!r} is no class of roles: those are {', '.join((*POOLS, EXCLUSIVE))}")
        for role in roles:
            if by_role.setdefault(role, name) != name:
                raise ValueError(f"the role {role!r} is in the classes {by_role[role]} and {name}: it can be in one")
    return RoleTable(by_role, frozenset(nic))


SEED_ROLES = role_table(
    {
        ONLINE: ("online-micro_service",),
        OFFLINE: ("ETL", "transcoding"),
        EXCLUSIVE: ("storage-service", "re-caller", "retriever", "reranker", "numa-enhancement"),
    },
    nic=("numa-enhancement",),
)
"""The roles that the seed names."""
