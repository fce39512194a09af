"""Match of a name of the source with a node of the cluster: evidence, strength, and the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from watcher.model import FindingKind


class Evidence(StrEnum):
    """Evidence that a source name belongs to a node, strongest first. The members from INTERNAL_IP to EXTERNAL_DNS have
    the names of Kubernetes' address types, except LABEL, the label that the settings name."""

    NAME = "name"
    SPELLING = "name, ignoring port and spelling"
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
NEAR = 0.6  # minimum SequenceMatcher.ratio of a suggested name
NEARBY_NAMES = 8  # number of sorted names on each side that are compared


@dataclass(frozen=True, slots=True)
class KnownNode:
    """A node of the cluster: its addresses as (type, address), the value of the configured label, its creation time in
    unix seconds, and whether it is Ready."""

    name: str
    addresses: tuple[tuple[str, str], ...] = ()
    label: str = ""
    created: float = float("-inf")
    ready: bool = False


@dataclass(frozen=True, slots=True)
class Match:
    """Resolution of one source name. `node` is "" if it is unresolved: no node matches (`claimed` is empty), several
    nodes match (`claimed` has their names), or other source names match the same node (`rivals` has these)."""

    source: str
    node: str = ""
    by: Evidence | None = None
    claimed: tuple[str, ...] = ()
    rivals: tuple[str, ...] = ()


@dataclass(frozen=True)
class Resolution:
    """Resolution of a list of names. `nodes[k]` is the name of the node that `names[k]` belongs to, or `names[k]`
    itself if it is unresolved. Two different names never resolve to the same node."""

    names: tuple[str, ...]
    matches: Mapping[str, Match]
    created: Mapping[str, float]
    """Source name -> creation time of its node in unix seconds; only for matches by address or label, which an earlier
    node may have had."""

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        return tuple(self.matches[name].node or name for name in self.names)

    @cached_property
    def translated(self) -> bool:
        """Whether any source name differs from its node name."""
        return self.nodes != self.names

    @cached_property
    def unmapped(self) -> tuple[Match, ...]:
        """The matches of unresolved names, sorted by name."""
        return tuple(match for _, match in sorted(self.matches.items()) if not match.node)

    @cached_property
    def newest(self) -> float:
        """Newest creation time in `created` (unix seconds), -inf if it is empty."""
        return max(self.created.values(), default=float("-inf"))


@dataclass(frozen=True, slots=True)
class IdentityProblem:
    """A name that some series do not get. `kind` is AMBIGUOUS_NODE if the name may belong to two machines, and
    UNKNOWN_NODE for machines that are not nodes of the cluster."""

    kind: FindingKind
    node: str
    reason: str
