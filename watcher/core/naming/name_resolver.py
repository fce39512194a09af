"""Resolve the names that a source uses to nodes of the cluster.

Schedulers use the node names that `kubectl get nodes` prints; sources use names of machines. Prometheus uses address
and port, Telegraf and Datadog use host names, with or without a domain. With the cluster's node list, each source name
is resolved by the strongest evidence available, never by a guess: load under the wrong name sends pods to a full node.
A name that matches no node or several nodes is kept as it is, with a finding; the same applies if two source names
match the same node.

This module resolves a list of names at one moment; renames.py follows changes over time.

Pure: no I/O, no clock. docs/reference/node-names.md has the rules for operators.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from functools import cached_property
from ipaddress import IPv6Address, ip_address

from watcher.core.naming.evidence import (
    CANDIDATES,
    NEAR,
    NEARBY_NAMES,
    OF_THE_NAME,
    STRENGTH,
    Evidence,
    KnownNode,
    Match,
    Resolution,
)
from watcher.core.review.findings import report
from watcher.model import Finding, FindingKind, Remedy

CACHED_NAMES = 100_000
CACHED_RESOLUTIONS = 64  # lists of names whose resolution is cached: a few per metric


_NUMBERS = re.compile(r"[\d.]+", re.ASCII)  # an IPv4 address; never a host name


# --- spelling --------------------------------------------------------------------------------------------------------


_PORT = re.compile(r"\d+|(?=[a-z0-9-]{1,15}\Z)[a-z0-9]*-?[a-z][a-z0-9-]*", re.ASCII)  # RFC 6335 for names


_URL = re.compile(r"https?://([^/]+)(?:/.*)?\Z|([^/]+:[^/:]+)/", re.IGNORECASE)


def without_port(instance: str) -> str:
    """Remove the port, a number or a name: `10.0.0.1:9100` -> `10.0.0.1`, `[::1]:9100` -> `::1`, `node-1:metrics` ->
    `node-1`; and the scheme and path of a URL: `https://node-1:9100/metrics`, `node-1:metrics/cadvisor`. Text without a
    port is unchanged, also a bare IPv6 address."""
    if url := _URL.match(instance):
        instance = url[1] or url[2]
    if instance.startswith("["):
        host, bracket, rest = instance[1:].partition("]")
        return host if bracket and (not rest or (rest[0] == ":" and _PORT.fullmatch(rest[1:]))) else instance
    host, _, port = instance.rpartition(":")
    return host if host and ":" not in host and _PORT.fullmatch(port) else instance


def spelling(name: str) -> str:
    """Return the canonical form of a name: in lower case, without port, brackets and final dot; IPv6 addresses in their
    shortest form, IPv4-mapped IPv6 addresses as IPv4."""
    host = without_port(name).removesuffix(".").lower()
    if ":" not in host:
        return host  # an IPv4 address also has only one form
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)


def _without_domain(host: str) -> str:
    """Return the part before the first dot, "" for a name without a domain and for an address."""
    first, dot, _ = host.partition(".")
    return first if dot and not _NUMBERS.fullmatch(host) else ""


# --- the index -------------------------------------------------------------------------------------------------------


class NodeIndex:
    """Index of the cluster's nodes by name, addresses and label. Immutable, so resolutions can be cached."""

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
        for evidence in _ADDRESSES.values():
            self._claims[evidence] = {text: self._holders(nodes) for text, nodes in self._claims[evidence].items()}
        self._resolved: dict[tuple[str, ...], Resolution] = {}
        self._near: dict[str, tuple[str, ...]] = {}
        self._found: dict[str, Match] = {}

    def resolve(self, names: tuple[str, ...]) -> Resolution:
        """Resolve names, taking into account that they occur together. The order does not matter; results are cached
        per list."""
        known = self._resolved.get(names)
        if known is None:
            if len(self._resolved) >= CACHED_RESOLUTIONS:
                self._resolved.clear()
            known = self._resolved[names] = self._resolve(names)
        return known

    def find(self, name: str) -> Match:
        """Resolve one name by itself; cached."""
        found = self._found.get(name)
        if found is None:
            if len(self._found) >= CACHED_NAMES:
                self._found.clear()  # threads share the cache
            found = self._found[name] = self._look_up(name)
        return found

    def candidates(self, name: str) -> tuple[str, ...]:
        """Return the nodes with the most similar names, host names or addresses, most similar first, at most three."""
        near = self._near.get(name)
        if near is None:
            if len(self._near) >= 1000:
                self._near.clear()
            near = self._near[name] = self._nearest(spelling(name))
        return near

    def without_series(self, named: Iterable[str]) -> tuple[str, ...]:
        """Return the nodes of the cluster that are not in `named`, sorted."""
        return tuple(sorted(self.nodes.keys() - set(named)))

    # --- internal ---

    def _holders(self, claimed: tuple[str, ...]) -> tuple[str, ...]:
        """Of several nodes with one address, those that are Ready, and of these the newest: a replaced node may keep
        its Node object for a while."""
        if len(claimed) < 2:
            return claimed
        nodes = [self.nodes[name] for name in claimed]
        best = max((node.ready, node.created) for node in nodes)
        return tuple(node.name for node in nodes if (node.ready, node.created) == best)

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
        """Return the nodes whose Hostname or label is the first part of a name with a domain. A node whose own name has
        a domain is left out: if it were this node, the name would have matched before."""
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
        """Canonical text (name, address or label) -> the nodes that have it."""
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
    """Resolve several names of one node: the name with the strongest evidence keeps the node if no other name has the
    same evidence; yield the other names as unresolved."""
    strongest = min(STRENGTH[match.by] for match in several if match.by is not None)
    first = [match for match in several if match.by is not None and STRENGTH[match.by] == strongest]
    for match in several:
        if match not in first or len(first) > 1:
            rivals = tuple(sorted(other.source for other in several if other is not match))
            yield replace(match, node="", claimed=(match.node,), rivals=rivals)


def _around(texts: Sequence[str], text: str, *, turned: bool = False) -> Iterator[str]:
    """Yield the texts next to `text` in sorted order, which begin like it; `turned` texts are reversed back."""
    place = bisect_left(texts, text)
    for near in texts[max(0, place - NEARBY_NAMES) : place + NEARBY_NAMES]:
        yield near[::-1] if turned else near


def _akin(one: str, other: str) -> bool:
    """Return whether both have the same host name, with or without domain, or in two domains."""
    return one.partition(".")[0] == other.partition(".")[0] and not one[:1].isdigit()


# --- messages and findings -------------------------------------------------------------------------------------------


def describe_match(match: Match, index: NodeIndex) -> str:
    """Describe a match as text: the node and the evidence, or why the name is unresolved, and similar names."""
    if match.node:
        return f"is node {match.node} (by its {match.by})"
    if match.rivals:
        node, others = match.claimed[0], ", ".join(match.rivals[:CANDIDATES])
        return f"is node {node} (by its {match.by}), and so is {others}: the source should use one name per node"
    if match.claimed:
        nodes = " and ".join(match.claimed[:CANDIDATES])
        return f"is the {match.by} of several nodes, {nodes}: delete Node objects of nodes that no longer exist"
    near = index.candidates(match.source)
    return "is not a name, address or label of a node" + (f"; most similar: {', '.join(near)}" if near else "")


def findings(resolution: Resolution, index: NodeIndex, *, now: float) -> tuple[Finding, ...]:
    """Return findings about unresolved names: unknown to the cluster, or ambiguous."""
    unknown = [match for match in resolution.unmapped if not match.claimed]
    ambiguous = [match for match in resolution.unmapped if match.claimed]
    kept = "; the source's name is used unchanged"
    return report(
        FindingKind.UNKNOWN_NODE,
        Remedy.REPORTED,
        metric="",
        nodes=[match.source for match in unknown],
        times=[now] * len(unknown),
        reason=lambda i: describe_match(unknown[i], index) + kept,
        summary="these are not names, addresses or labels of nodes of the cluster; they are used unchanged",
    ) + report(
        FindingKind.AMBIGUOUS_NODE,
        Remedy.REPORTED,
        metric="",
        nodes=[match.source for match in ambiguous],
        times=[now] * len(ambiguous),
        reason=lambda i: describe_match(ambiguous[i], index) + kept,
        summary="they match several nodes, or a node that other names match too; they are used unchanged",
    )


def missing_findings(nodes: Sequence[str], *, now: float) -> tuple[Finding, ...]:
    """Return findings about nodes of the cluster without a series in the source."""
    text = "the source has no series of this node: the node is new, is not scraped, or has another name in the source"
    return report(
        FindingKind.MISSING,
        Remedy.LEFT_OUT,
        metric="",
        nodes=nodes,
        times=[now] * len(nodes),
        reason=lambda _i: text,
        summary="nodes of the cluster without a series in the source",
    )
