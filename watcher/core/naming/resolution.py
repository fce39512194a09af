"""How a name of the source matches a node of the cluster: evidence, strength, and the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property


class Evidence(StrEnum):
    """By what a name of the source is known to be a node's, the strongest first. Those between INTERNAL_IP and
    EXTERNAL_DNS are called as Kubernetes calls its types of addresses, but for the label that the settings name."""

    NAME = "name"
    SPELLING = "name, but for port or spelling"
    INTERNAL_IP = "InternalIP"
    HOSTNAME = "Hostname"
    LABEL = "label"
    EXTERNAL_IP = "ExternalIP"
    INTERNAL_DNS = "InternalDNS"
    EXTERNAL_DNS = "ExternalDNS"
    SHORT = "host name without domain"


STRENGTH: Mapping[Evidence, int] = {evidence: rank for rank, evidence in enumerate(Evidence)}
OF_THE_NAME = (Evidence.NAME, Evidence.SPELLING)
CANDIDATES = 3
NEAR = 0.6  # SequenceMatcher.ratio from which on two names are worth a word
NEIGHBOURS = 8  # of the sorted names, to either side, that are compared


@dataclass(frozen=True, slots=True)
class KnownNode:
    """What the cluster says of a node: its addresses as (type, address), the value of the configured label, and when
    it was created, unix seconds."""

    name: str
    addresses: tuple[tuple[str, str], ...] = ()
    label: str = ""
    created: float = float("-inf")


@dataclass(frozen=True, slots=True)
class Match:
    """What one name of the source means. `node` is "" where that cannot be told: no node is known by it (`claimed` is
    empty), several are (`claimed` names them), or other names mean the same node (`rivals` names those)."""

    source: str
    node: str = ""
    by: Evidence | None = None
    claimed: tuple[str, ...] = ()
    rivals: tuple[str, ...] = ()


@dataclass(frozen=True)
class Resolution:
    """What a list of names means. `nodes[k]` is the name that `names[k]` gets: that of its node, else its own; two
    different names never get the same one."""

    names: tuple[str, ...]
    matches: Mapping[str, Match]
    created: Mapping[str, float]
    """when the node of a name was created, for what a node may take over from another: addresses, labels"""

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        return tuple(self.matches[name].node or name for name in self.names)

    @cached_property
    def translated(self) -> bool:
        """Whether any name changed."""
        return self.nodes != self.names

    @cached_property
    def unmapped(self) -> tuple[Match, ...]:
        """The names that keep what they are, sorted."""
        return tuple(match for _, match in sorted(self.matches.items()) if not match.node)

    @cached_property
    def newest(self) -> float:
        """When the last of them was created."""
        return max(self.created.values(), default=float("-inf"))
