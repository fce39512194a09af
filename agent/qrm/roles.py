"""Maps pod roles to classes: pods with exclusive CPUs and memory, and pods that share a pool.

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
    """The class of each role. Roles without a class belong to the online pool.

    Pods of an exclusive role get exclusive CPUs and exclusive memory of NUMA nodes; pods of other exclusive roles are
    not placed on these nodes.
    """

    classes: Mapping[str, str]
    """By role: "online", "offline" or "exclusive"."""
    nic: frozenset[str] = frozenset()
    """Roles that get a network card without requesting one."""

    def class_of(self, role: str) -> str:
        return self.classes.get(role, ONLINE)

    def is_exclusive(self, role: str) -> bool:
        return self.class_of(role) == EXCLUSIVE


def role_table(classes: Mapping[str, Sequence[str]], *, nic: Sequence[str] = ()) -> RoleTable:
    """Build the table from lists of roles by class. Raises ValueError for an unknown class, or a role in two
    classes."""
    by_role: dict[str, str] = {}
    for name, roles in classes.items():
        if name not in (*POOLS, EXCLUSIVE):
            raise ValueError(f"{name!r} is not a class of roles; valid classes are {', '.join((*POOLS, EXCLUSIVE))}")
        for role in roles:
            if by_role.setdefault(role, name) != name:
                raise ValueError(f"the role {role!r} is in the classes {by_role[role]} and {name}; only one is allowed")
    return RoleTable(by_role, frozenset(nic))


DEFAULT_ROLES = role_table(
    {
        ONLINE: ("online-micro_service",),
        OFFLINE: ("ETL", "transcoding"),
        EXCLUSIVE: ("storage-service", "re-caller", "retriever", "reranker", "numa-enhancement"),
    },
    nic=("numa-enhancement",),
)
"""The default roles."""
