"""Which node of the cluster a source means.

Schedulers know nodes by the names that `kubectl get nodes` prints; sources know machines. A Prometheus knows them by
address and port, Telegraf and Datadog by host name, with or without a domain. With the cluster's list of nodes at hand
the one becomes the other, by the strongest evidence there is, and never by a guess: a load under the wrong name sends
pods to a node that is full. What fits no node, or more than one, keeps the name that the source gives it, with a
finding; so do two names of the source that mean the same node.

Here is what a list of names means at one moment. How that changes with time is in naming.py.

Pure: no I/O, no clock. docs/node-names.md has the rules for operators.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from functools import cached_property
from ipaddress import IPv6Address, ip_address

from watcher.core.naming.resolution import (
    CANDIDATES,
    NEAR,
    NEIGHBOURS,
    OF_THE_NAME,
    STRENGTH,
    Evidence,
    KnownNode,
    Match,
    Resolution,
)
from watcher.core.review.findings import report
from watcher.model import Finding, FindingKind, Remedy

KEPT_TUPLES = 64  # lists of names whose resolution is remembered: some per metric


_NUMBERS = re.compile(r"[\d.]+", re.ASCII)  # an IPv4 address, or nothing that is a host name


# --- spelling --------------------------------------------------------------------------------------------------------


def without_port(instance: str) -> str:
    """`10.0.0.1:9100` -> `10.0.0.1`, `[::1]:9100` -> `::1`; what has no port stays, a bare IPv6 address too."""
    if instance.startswith("["):
        host, bracket, rest = instance[1:].partition("]")
        return host if bracket and (not rest or re.fullmatch(r":\d+", rest)) else instance
    host, _, port = instance.rpartition(":")
    return host if host and ":" not in host and port.isascii() and port.isdigit() else instance


def spelling(name: str) -> str:
    """The one way to write a name: without port, brackets and final dot, in small letters; addresses in their shortest
    form, an IPv4 address in the guise of IPv6 as what it is."""
    host = without_port(name).removesuffix(".").lower()
    if ":" not in host:
        return host  # an IPv4 address too has one form only
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)


def _without_domain(host: str) -> str:
    """The part before the first dot, "" where there is no domain, or it is an address."""
    first, dot, _ = host.partition(".")
    return first if dot and not _NUMBERS.fullmatch(host) else ""


# --- the index -------------------------------------------------------------------------------------------------------


class NodeIndex:
    """The nodes of the cluster by all that they are known by. Immutable, so what was resolved once stays true."""

    def __init__(self, nodes: Iterable[KnownNode]) -> None:
        self.nodes: Mapping[str, KnownNode] = {node.name: node for node in sorted(nodes, key=lambda node: node.name)}
        self._claims: dict[Evidence, dict[str, tuple[str, ...]]] = {
            evidence: {} for evidence in Evidence if evidence not in (Evidence.NAME, Evidence.SHORT)
        }
        for node in self.nodes.values():
            for evidence, text in _known_by(node):
                claimed = self._claims[evidence].get(text, ())
                if node.name not in claimed:
                    self._claims[evidence][text] = (*claimed, node.name)
        self._resolved: dict[tuple[str, ...], Resolution] = {}
        self._near: dict[str, tuple[str, ...]] = {}

    def resolve(self, names: tuple[str, ...]) -> Resolution:
        """What these names mean together. The order plays no part, and the same list is worked out once."""
        known = self._resolved.get(names)
        if known is None:
            if len(self._resolved) >= KEPT_TUPLES:
                self._resolved.clear()
            known = self._resolved[names] = self._resolve(names)
        return known

    def candidates(self, name: str) -> tuple[str, ...]:
        """The nodes with the nearest names, host names or addresses, the nearest first, at most three."""
        if name not in self._near:
            if len(self._near) >= 1000:
                self._near.clear()
            self._near[name] = self._nearest(spelling(name))
        return self._near[name]

    def without_series(self, named: Iterable[str]) -> tuple[str, ...]:
        """The nodes of the cluster that are not among these names, in order."""
        return tuple(sorted(self.nodes.keys() - set(named)))

    # --- inside ---

    def _resolve(self, names: tuple[str, ...]) -> Resolution:
        found = {name: self._look_up(name) for name in names}
        claimants: dict[str, list[Match]] = {}
        for match in found.values():
            if match.node:
                claimants.setdefault(match.node, []).append(match)
        for several in claimants.values():
            if len(several) > 1:
                found.update((match.source, match) for match in _settled(several))
        created = {
            name: self.nodes[match.node].created
            for name, match in found.items()
            if match.node and match.by not in OF_THE_NAME
        }
        return Resolution(names, found, created)

    def _look_up(self, name: str) -> Match:
        if name in self.nodes:
            return Match(name, name, Evidence.NAME)
        text = spelling(name)
        for evidence, claims in self._claims.items():
            if text in claims:
                return _match(name, evidence, claims[text])
        return _match(name, Evidence.SHORT, self._by_short(text))

    def _by_short(self, text: str) -> tuple[str, ...]:
        """The nodes whose Hostname or label is the first part of a name with a domain. A node whose own name has a
        domain is left out: it was not this one, or the name would have been its own."""
        short = _without_domain(text)
        if not short:
            return ()
        claimed = {*self._claims[Evidence.HOSTNAME].get(short, ()), *self._claims[Evidence.LABEL].get(short, ())}
        return tuple(sorted(node for node in claimed if not _without_domain(node)))

    def _nearest(self, text: str) -> tuple[str, ...]:
        scores: dict[str, float] = {}
        matcher = SequenceMatcher(None, "", text, autojunk=False)
        for near in {*_around(self._sorted, text), *_around(self._reversed, text[::-1], turned=True)}:
            matcher.set_seq1(near)
            ratio = 1.0 if _akin(near, text) else matcher.ratio()
            for node in self._all[near] if ratio >= NEAR else ():
                scores[node] = max(scores.get(node, 0.0), ratio)
        return tuple(sorted(scores, key=lambda node: (-scores[node], node))[:CANDIDATES])

    @cached_property
    def _all(self) -> Mapping[str, tuple[str, ...]]:
        """All nodes by all texts."""
        both: dict[str, tuple[str, ...]] = {}
        for claims in self._claims.values():
            for text, nodes in claims.items():
                both[text] = tuple(dict.fromkeys((*both.get(text, ()), *nodes)))
        return both

    @cached_property
    def _sorted(self) -> Sequence[str]:
        return sorted(self._all)

    @cached_property
    def _reversed(self) -> Sequence[str]:
        return sorted(text[::-1] for text in self._all)


def _known_by(node: KnownNode) -> Iterator[tuple[Evidence, str]]:
    yield Evidence.SPELLING, spelling(node.name)
    for kind, address in node.addresses:
        if kind in _ADDRESSES and address:
            yield _ADDRESSES[kind], spelling(address)
    if node.label:
        yield Evidence.LABEL, spelling(node.label)


_ADDRESSES: Mapping[str, Evidence] = {
    evidence.value: evidence
    for evidence in (
        Evidence.INTERNAL_IP,
        Evidence.HOSTNAME,
        Evidence.EXTERNAL_IP,
        Evidence.INTERNAL_DNS,
        Evidence.EXTERNAL_DNS,
    )
}


def _match(name: str, evidence: Evidence, claimed: tuple[str, ...]) -> Match:
    if len(claimed) == 1:
        return Match(name, claimed[0], evidence)
    return Match(name, "", evidence if claimed else None, claimed)


def _settled(several: Sequence[Match]) -> Iterator[Match]:
    """Names that mean one node: the one with the strongest evidence stays, if it is alone with that."""
    strongest = min(STRENGTH[match.by] for match in several if match.by is not None)
    first = [match for match in several if match.by is not None and STRENGTH[match.by] == strongest]
    for match in several:
        if match not in first or len(first) > 1:
            rivals = tuple(sorted(other.source for other in several if other is not match))
            yield replace(match, node="", claimed=(match.node,), rivals=rivals)


def _around(texts: Sequence[str], text: str, *, turned: bool = False) -> Iterator[str]:
    """Those that would stand beside it in the order: they begin like it."""
    place = bisect_left(texts, text)
    for near in texts[max(0, place - NEIGHBOURS) : place + NEIGHBOURS]:
        yield near[::-1] if turned else near


def _akin(one: str, other: str) -> bool:
    """Whether they are the same host with and without domain, or in two domains."""
    return one.partition(".")[0] == other.partition(".")[0] and not one[:1].isdigit()


# --- saying it -------------------------------------------------------------------------------------------------------


def told(match: Match, index: NodeIndex) -> str:
    """In words: which node it is and by what, or why that cannot be told, and what would."""
    if match.node:
        return f"is node {match.node} (by its {match.by})"
    if match.rivals:
        node, others = match.claimed[0], ", ".join(match.rivals[:CANDIDATES])
        return f"means node {node} (by its {match.by}), and so does {others}: the source should name it in one way only"
    if match.claimed:
        nodes = " and ".join(match.claimed[:CANDIDATES])
        return f"is the {match.by} of several nodes, {nodes}: is one of them gone, and its Node object left behind?"
    near = index.candidates(match.source)
    return "is no name, address or label of a node" + (f"; nearest: {', '.join(near)}" if near else "")


def findings(resolution: Resolution, index: NodeIndex, *, now: float) -> tuple[Finding, ...]:
    """About the names that keep the source's: unknown to the cluster, or of more than one."""
    unknown = [match for match in resolution.unmapped if not match.claimed]
    ambiguous = [match for match in resolution.unmapped if match.claimed]
    kept = "; it keeps the name that the source gives it"
    return report(
        FindingKind.UNKNOWN_NODE,
        Remedy.REPORTED,
        metric="",
        nodes=[match.source for match in unknown],
        times=[now] * len(unknown),
        reason=lambda i: told(unknown[i], index) + kept,
        summary="these are no names, addresses or labels of nodes of the cluster; they keep the names that they have",
    ) + report(
        FindingKind.AMBIGUOUS_NODE,
        Remedy.REPORTED,
        metric="",
        nodes=[match.source for match in ambiguous],
        times=[now] * len(ambiguous),
        reason=lambda i: told(ambiguous[i], index) + kept,
        summary="they mean more than one node, or one that others mean too; they keep the names that the source gives",
    )


def missing(nodes: Sequence[str], *, now: float) -> tuple[Finding, ...]:
    """About nodes of the cluster of which the source has nothing."""
    text = "the source has no series of it: is it new, or not scraped, or known there by another name?"
    return report(
        FindingKind.MISSING,
        Remedy.LEFT_OUT,
        metric="",
        nodes=nodes,
        times=[now] * len(nodes),
        reason=lambda _i: text,
        summary="nodes of the cluster of which the source has no series",
    )
