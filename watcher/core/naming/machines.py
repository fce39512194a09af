"""Whether series with one name are of several machines: by identifiers, kernels and CPU counters.

Two servers that scrape one exporter, or two jobs, read the same counters: the idle time of a CPU grows by at most the
time between the readings. Those of two machines are hours apart, also if all labels but one are equal.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from watcher.core.naming.labels import NODE_LABELS, Labels, host_of, instance_of, may_be_of, names_of, own

MACHINE_IDS = ("boot_id", "system_uuid")
"""Labels that differ between machines. machine_id does not: cloned machines have the same."""
KERNEL = ("sysname", "release", "version", "machine")
"""Labels of node_uname_info that one machine has one value of."""
SKEW_S = 120.0
"""Seconds by which the times of two readings may be wrong: clocks differ, and federation without honor_timestamps adds
its interval."""
NEAR_S = 30.0
"""The same for readings that show one machine."""
YOUNG_S = 86_400.0
"""Idle seconds below which equal counters do not show one machine: machines of two clusters may start together."""
MOST_READINGS = 8
"""Readings of one value of a label; more are those of a proxy for many machines."""
OF_TIME = "time"
"""Value of the label `mode` for the time of a reading."""


@dataclass(frozen=True, slots=True)
class IdleReading:
    """Idle seconds of the first CPU of a target, read at `at` (unix seconds)."""

    labels: Labels
    idle_s: float
    at: float

    def may_be_of(self, other: IdleReading, skew_s: float = SKEW_S) -> bool:
        """Whether both may be of one machine, which may have started again between them."""
        first, second = sorted((self, other), key=lambda each: each.at)
        passed, grown = second.at - first.at + skew_s, second.idle_s - first.idle_s
        return -skew_s <= grown <= passed or second.idle_s <= passed


def idle_readings(rows: Iterable[tuple[Labels, float]]) -> list[IdleReading]:
    """The readings from series with idle seconds (`mode` is idle) and with times (`mode` is OF_TIME)."""
    idle: dict[tuple[tuple[str, str], ...], tuple[Labels, float]] = {}
    times: dict[tuple[tuple[str, str], ...], float] = {}
    for row, value in rows:
        key = tuple(sorted(pair for pair in row.items() if pair[0] not in ("__name__", "mode")))
        if row.get("mode") == OF_TIME:
            times[key] = value
        else:
            idle[key] = row, value
    return [IdleReading(row, value, times[key]) for key, (row, value) in idle.items() if key in times]


@dataclass(frozen=True)
class MachineEvidence:
    """`rows` are series of kube_node_info and of kubelets, with boot_id and system_uuid of a node, `host_names` those
    of node_uname_info."""

    rows: Sequence[Labels]
    host_names: Sequence[Labels]
    readings: Sequence[IdleReading]

    def differ(self, node: str, series: Sequence[Labels], label: str, values: Set[str]) -> bool | None:
        """Whether the values of a label are those of different machines with the name `node` and these series; None if
        unknown."""
        chosen = sorted(values)
        of_identifiers = self._by_identifiers(node, label, chosen)
        if of_identifiers or self._by_kernels(node, series, label, chosen):
            return True
        return self._by_counters(node, series, label, chosen) if of_identifiers is None else False

    def are_several(self, node: str, series: Sequence[Labels]) -> bool:
        """Whether the targets of these series of a node are known to be of several machines, whatever their labels."""
        found = self._readings_of(node, series)
        if len(found) > MOST_READINGS:
            return False
        return any(not self._may_be_one(node, one, other) for one, other in combinations(found, 2))

    def _may_be_one(self, node: str, one: IdleReading, other: IdleReading) -> bool:
        """Whether two readings of a node may be of one machine: by its identifiers if these are known for all labels
        that differ, otherwise by the counters."""
        if one.may_be_of(other):
            return True
        labels = {label for label, _ in one.labels.items() ^ other.labels.items()}
        return bool(labels) and all(
            self._by_identifiers(node, label, [each.labels.get(label, "") for each in (one, other)]) is False
            for label in labels
        )

    def _by_identifiers(self, node: str, label: str, values: Sequence[str]) -> bool | None:
        found = [[self._ids.get((kind, node, label, text), set()) for text in values] for kind in MACHINE_IDS]
        known = [ids for ids in found if all(ids)]
        return any(_are_disjoint(ids) for ids in known) if known else None

    def _by_kernels(self, node: str, series: Sequence[Labels], label: str, values: Sequence[str]) -> bool:
        names = names_of(node, series)
        for place in {instance_of(row) for row in series} - {""}:
            every = [row for row in self._kernels.get(place, ()) if may_be_of(row, names)]
            rows = [[row for row in every if row.get(label) == text] for text in values]
            for name in (*KERNEL, "nodename"):
                found = [{_kernel(row, name) for row in each} - {""} for each in rows]
                if all(found) and _are_disjoint(found):
                    return True
        return False

    def _by_counters(self, node: str, series: Sequence[Labels], label: str, values: Sequence[str]) -> bool | None:
        every = self._readings_of(node, series)
        groups = [[each for each in every if each.labels.get(label) == text] for text in values]
        if not all(groups) or max(map(len, groups)) > MOST_READINGS:
            return None
        if not all(one.may_be_of(other) for group in groups for one, other in combinations(group, 2)):
            return None  # another label distinguishes them
        pairs = [(a, b) for one, other in combinations(groups, 2) for a in one for b in other]
        if not all(a.may_be_of(b) for a, b in pairs):
            return True
        is_near = all(min(a.idle_s, b.idle_s) > YOUNG_S and a.may_be_of(b, NEAR_S) for a, b in pairs)
        return False if is_near else None

    def _readings_of(self, node: str, series: Sequence[Labels]) -> Sequence[IdleReading]:
        """The readings of the targets of these series' instances, or of their hosts, or otherwise of this node; without
        those of other nodes."""
        by_instance, by_host, by_node = self._indexed
        names, places = names_of(node, series), {instance_of(row) for row in series} - {""}
        hosts = {host_of({"instance": place}) for place in places}
        for found in (
            [each for place in places for each in by_instance.get(place, ())],
            [each for host in hosts for each in by_host.get(host, ())],
        ):
            if of_node := [each for each in found if may_be_of(each.labels, names)]:
                return of_node
        return by_node.get(node, ())

    @cached_property
    def _indexed(self) -> tuple[Mapping[str, Sequence[IdleReading]], ...]:
        by_instance: dict[str, list[IdleReading]] = defaultdict(list)
        by_host: dict[str, list[IdleReading]] = defaultdict(list)
        by_node: dict[str, list[IdleReading]] = defaultdict(list)
        for each in self.readings:
            by_instance[instance_of(each.labels)].append(each)
            by_host[host_of(each.labels)].append(each)
            for name in {own(each.labels, label) for label in NODE_LABELS} - {""}:
                by_node[name].append(each)
        return by_instance, by_host, by_node

    @cached_property
    def _kernels(self) -> Mapping[str, Sequence[Labels]]:
        found: dict[str, list[Labels]] = defaultdict(list)
        for row in self.host_names:
            found[instance_of(row)].append(row)
        return found

    @cached_property
    def _ids(self) -> Mapping[tuple[str, str, str, str], Set[str]]:
        """The identifiers by kind, node, label and value of the label, without those that several nodes have: some
        vendors give all machines one UUID."""
        nodes: dict[tuple[str, str], set[str]] = defaultdict(set)
        for row in self.rows:
            for kind in MACHINE_IDS:
                nodes[kind, row.get(kind, "")].add(own(row, "node"))
        found: dict[tuple[str, str, str, str], set[str]] = defaultdict(set)
        for row in self.rows:
            for kind in MACHINE_IDS:
                if (text := row.get(kind, "")) and len(nodes[kind, text]) == 1:
                    for label in row:
                        found[kind, own(row, "node"), label, row[label]].add(text)
        return found


def _kernel(row: Labels, name: str) -> str:
    """A label of the kernel; "" for the host name of a pod, which changes with each rollout."""
    text = own(row, name)
    return "" if name == "nodename" and text == own(row, "pod") else text


def _are_disjoint(several: Sequence[Set[str]]) -> bool:
    """Whether two of these have nothing in common."""
    return any(not one & other for one, other in combinations(several, 2))
