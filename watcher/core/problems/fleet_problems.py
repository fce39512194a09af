"""Computes the problems of the fleet from published data.

Each silent, stale, lost, quarantined, unheard or hot node is in exactly one problem of these kinds. Findings that only
repeat such a state are left out; the other findings are grouped by node and cause. Up to NAMED nodes of a kind have a
problem of their own, the others share one.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace

from watcher.core.koordinator.report import Capacity
from watcher.core.pods.table import PodTable
from watcher.core.problems.document import (
    SEVERITIES,
    FleetProblem,
    ProblemsDocument,
    Severity,
    duration_text,
    node_command,
)
from watcher.core.problems.finding_causes import ACTIONS, CAUSES, DOCTOR
from watcher.core.problems.hot_nodes import CRITICAL_PERCENT, HotNode, hot_nodes
from watcher.core.publishing.wire import ErrorDetail, FindingEntry
from watcher.core.review.findings import some_of
from watcher.core.windows.hot_loads import HOT_PERCENT, HotLoads, hot_loads
from watcher.core.windows.silent_nodes import SilentDocument, SilentNode
from watcher.model import METRIC_BY_NAME, FindingKind, MetricType, ProviderHealth, Remedy, Snapshot

NAMED = 10
"""Nodes of one kind and severity that have a problem of their own."""
ACTIVE_INTERVALS = 3.0
ACTIVE_AT_LEAST_S = 300.0
"""A finding that was not repeated for longer is past: its severity is info."""
REPEATED_INTERVALS = 2.0
"""A finding that every tick repeats is past after this time."""
HOT_CURE = "Keep new pods away, and move or limit the pods that make the load."
_OF_FLEET = ("source", "service", "lost")
_NEEDED = (MetricType.CPU, MetricType.MEMORY)
_OF_SOURCE = (FindingKind.QUERY_FAILED, FindingKind.PARTIAL_RESPONSE)
_OF_STATE = (FindingKind.STALE, FindingKind.MISSING, FindingKind.FROZEN, FindingKind.SHORT_COVERAGE)
_OF_STATE_OF_MANY = (*_OF_STATE, FindingKind.PARTIAL_OUTAGE)
_DROPPED = (FindingKind.OUT_OF_RANGE, FindingKind.NON_FINITE, FindingKind.COUNTER_RESET, FindingKind.FUTURE_SAMPLE)


@dataclass(frozen=True, slots=True)
class ProblemInputs:
    """Published data at `now` (unix seconds). `error` is the reason why the service is not ready; `pods` is None if pod
    usage is unknown; `capacities` are by node; `host`: the only node is the machine of load-watcher; `of_modules` are
    problems that the modules of the service report; `hot` has the starts of high loads that began before the samples of
    the snapshot."""

    now: float
    interval_s: float
    health: ProviderHealth
    snapshot: Snapshot | None = None
    silent: SilentDocument = field(default_factory=lambda: SilentDocument(listed=False, nodes=[]))
    error: ErrorDetail | None = None
    findings: Sequence[FindingEntry] = ()
    pods: PodTable | None = None
    capacities: Mapping[str, Capacity] = field(default_factory=dict)
    host: bool = False
    of_modules: Sequence[FleetProblem] = ()
    hot: HotLoads = field(default_factory=HotLoads)


def problems_document(given: ProblemInputs) -> ProblemsDocument:
    """Return all problems, ordered by severity, start (the oldest first) and name. Of equal severity, problems of the
    whole fleet come first, and problems that several nodes share come last."""
    states = [*_state_problems(given)]
    named = {node for problem in states for node in problem.nodes}
    hot = _hot_nodes(given)
    problems = [*_service_problems(given), *states, *_hot_problems(given, hot, _stale_ages(given.snapshot))]
    problems += [*_finding_problems(given, of_state=named), *given.of_modules]
    problems.sort(key=_rank)
    counts = {severity.value: sum(each.severity is severity for each in problems) for severity in SEVERITIES}
    worst = problems[0].severity if problems else None
    return ProblemsDocument(int(given.now), worst, counts, problems)


def _rank(problem: FleetProblem) -> tuple[int, int, bool, int, tuple[str, ...], str]:
    reach = 0 if problem.kind in _OF_FLEET else 2 if len(problem.nodes) > 1 else 1
    return (
        SEVERITIES.index(problem.severity), reach, problem.since is None, problem.since or 0, problem.nodes,
        problem.text,
    )  # fmt: skip


# --- service and source ----------------------------------------------------------------------------------------------


def _service_problems(given: ProblemInputs) -> Iterator[FleetProblem]:
    health, error = given.health, given.error
    if health.ok is False:
        text = f"The source does not respond since {duration_text(given.now - health.since)}: {health.reason}"
        cure = "Check the address, the credentials and the network path to the source. The last windows are served."
        yield FleetProblem(
            Severity.CRITICAL, "source", "the source does not respond", text, cure, DOCTOR, since=int(health.since)
        )
    elif health.partial:
        cure = CAUSES[FindingKind.PARTIAL_RESPONSE].cure
        text = f"The source responds with incomplete data: {health.reason}"
        yield FleetProblem(
            Severity.WARNING, "source", "the source responds with incomplete data", text, cure, DOCTOR,
            since=int(health.since),
        )  # fmt: skip
    if error is not None and error.code == "warming_up":
        yield FleetProblem(Severity.INFO, "service", "windows are filling", f"Not ready: {error.message}", error.hint)
    elif error is not None and not (health.ok is False or error.code == "partial_outage"):
        text = f"Not ready: {error.message}"
        yield FleetProblem(Severity.CRITICAL, "service", "the service is not ready", text, error.hint, DOCTOR)


# --- states of nodes -------------------------------------------------------------------------------------------------


def _state_problems(given: ProblemInputs) -> Iterator[FleetProblem]:
    """Yield the problems of nodes that are silent, unheard, lost, quarantined, or stale and not hot."""
    snapshot, silent = given.snapshot, given.silent
    lost = {} if snapshot is None else snapshot.lost
    quarantined = frozenset() if snapshot is None else snapshot.quarantined
    elsewhere = lost.keys() | quarantined | set(() if snapshot is None else snapshot.nodes)
    listed = [node for node in silent.nodes if node.name not in elsewhere]
    if lost:
        yield _lost(given, lost)
    yield from _silent(given, [node for node in listed if node.sampled is not None])
    unheard = [node.name for node in listed if node.sampled is None]
    cure = "Nothing if the node is new; otherwise install the exporter on it, or let the source scrape it."
    yield from _each_or_together(
        [
            FleetProblem(
                Severity.WARNING, "unheard", "never reported",
                f"{name}: never reported; the node is in the cluster, but not in the source", cure, DOCTOR, (name,),
            )
            for name in unheard
        ],
        "{} never reported",
    )  # fmt: skip
    cure = "Restart the exporter on the node. The node is served again once its values change."
    yield from _each_or_together(
        [
            FleetProblem(
                Severity.WARNING, "quarantined", "quarantined",
                f"{name}: quarantined, because its exporter repeats the same values", cure,
                "" if given.host else _pods_command(name), (name,),
            )
            for name in sorted(quarantined - lost.keys())
        ],
        "{} are quarantined, because their exporters repeat the same values",
    )  # fmt: skip


def _lost(given: ProblemInputs, lost: Mapping[str, float]) -> FleetProblem:
    names = tuple(sorted(lost))
    since = min(lost.values())
    text = f"{_counted(names)} went missing at once {duration_text(given.now - since)} ago: partial outage"
    cure = CAUSES[FindingKind.PARTIAL_OUTAGE].cure
    return FleetProblem(Severity.CRITICAL, "lost", "lost in a partial outage", text, cure, DOCTOR, names, int(since))


def _silent(given: ProblemInputs, nodes: Sequence[SilentNode]) -> Iterator[FleetProblem]:
    """Silent nodes are critical if the nodes of the cluster are known; otherwise they may have been removed."""
    severity = Severity.CRITICAL if given.silent.listed else Severity.WARNING
    cure = "Check that the node runs and that its exporter answers."
    if not given.silent.listed:
        cure += " Nothing if the node was removed: it is forgotten after a day."
    found = []
    for node in sorted(nodes, key=lambda each: (each.sampled or 0.0, each.name)):
        since = node.sampled or 0.0
        last = [
            f"{what} {value:.0f} %" for what, value in (("CPU", node.cpu), ("memory", node.memory)) if value is not None
        ]
        text = f"{node.name}: silent for {duration_text(given.now - since)}"
        text += f"; its last load was {' and '.join(last)}" if last else ""
        command = node_command(node.name)
        found.append(FleetProblem(severity, "silent", "silent", text, cure, command, (node.name,), int(since)))
    yield from _each_or_together(found, "{} are silent")


def _stale_ages(snapshot: Snapshot | None) -> dict[str, float]:
    """The age in seconds of the nodes that are served with their last windows."""
    if snapshot is None:
        return {}
    rows = np.flatnonzero(~np.isnan(snapshot.age_s)).tolist()
    return {snapshot.nodes[row]: float(snapshot.age_s[row]) for row in rows}


def _hot_nodes(given: ProblemInputs) -> list[HotNode]:
    if given.snapshot is None:
        return []
    starts = hot_loads(given.snapshot, given.hot).starts
    return hot_nodes(given.snapshot, starts, given.pods, given.capacities)


def _hot_problems(given: ProblemInputs, hot: Sequence[HotNode], ages: Mapping[str, float]) -> Iterator[FleetProblem]:
    """Yield hot nodes, and stale nodes that are not hot."""
    critical: list[FleetProblem] = []
    below: list[FleetProblem] = []
    early: list[FleetProblem] = []  # without a complete window: one sample is not a lasting load
    for node in hot:
        age, severity = ages.get(node.name), Severity.CRITICAL if node.critical else Severity.WARNING
        group = critical if node.critical else below if node.complete else early
        group.append(_hot_problem(given, node, severity, age=age))
    window = "" if given.snapshot is None else given.snapshot.windows[0].label
    over = f" (mean of {window})"
    yield from _each_or_together(critical, f"{{}} are at {CRITICAL_PERCENT:.0f} % or more{over}", cure=HOT_CURE)
    together = f"{{}} are between {HOT_PERCENT:.0f} % and {CRITICAL_PERCENT:.0f} %{over}"
    yield from _each_or_together(below, together, cure=HOT_CURE)
    together = f"{{}} are at {HOT_PERCENT:.0f} % or more (newest sample; the {window} windows are not complete yet)"
    yield from _each_or_together(early, together, cure=HOT_CURE)
    is_hot = {node.name for node in hot}
    stale = [(age, name) for name, age in ages.items() if name not in is_hot]
    cure = "Check the exporter of the node, or the scrapes of the source."
    yield from _each_or_together(
        [
            FleetProblem(
                Severity.WARNING, "stale", "stale", f"{name}: the newest sample is {duration_text(age)} old", cure,
                DOCTOR if given.host else node_command(name), (name,), int(given.now - age),
            )
            for age, name in sorted(stale, key=lambda each: (-each[0], each[1]))
        ],
        "{} are stale",
    )  # fmt: skip


def _hot_problem(given: ProblemInputs, node: HotNode, severity: Severity, *, age: float | None) -> FleetProblem:
    text = f"{node.name}: {' and '.join(each.text(given.now) for each in node.resources)}"
    text += f"; {node.load}" if node.load else ""
    text += f"; its newest sample is {duration_text(age)} old" if age is not None else ""
    cure, command = HOT_CURE, f"kubectl cordon {node.name}"
    if given.host:
        cure, command = "Find the process that makes the load.", "top"
    elif node.outside:
        cure = f"Find the process on the node; kubectl cordon {node.name} keeps new pods away."
        command = f"kubectl debug node/{node.name} -it --image=busybox -- chroot /host top"
    elif node.pods:
        namespace, name = node.pods[0]
        cure = f"Limit or move {namespace}/{name}; kubectl cordon {node.name} keeps new pods away."
        command = f"kubectl --namespace {namespace} describe pod {name}"
    starts = [each.start.since for each in node.resources if each.start is not None]
    since = int(min(starts)) if starts else None
    return FleetProblem(severity, "hot", "high load", text, cure, command, (node.name,), since)


def _pods_command(node: str) -> str:
    return f"kubectl get pods --all-namespaces --field-selector spec.nodeName={node}"


def _each_or_together(problems: Sequence[FleetProblem], together: str, *, cure: str = "") -> Iterator[FleetProblem]:
    """Yield the first problems unchanged and the others as one, whose sentence is `together` with the nodes for {}.
    `cure` is that of the others if the cures name nodes or pods."""
    named = len(problems) if len(problems) <= NAMED + 1 else NAMED
    yield from problems[:named]
    rest = problems[named:]
    if not rest:
        return
    first, nodes = rest[0], tuple(node for problem in rest for node in problem.nodes)
    yield replace(
        first,
        text=together.format(_counted(nodes, more=True)),
        cure=cure or first.cure,
        command=DOCTOR if first.command else "",
        nodes=nodes,
        since=min((problem.since for problem in rest if problem.since is not None), default=None),
        last_seen=max((problem.last_seen for problem in rest if problem.last_seen is not None), default=None),
        findings=sum(problem.findings for problem in rest),
        metrics=tuple(sorted({metric for problem in rest for metric in problem.metrics})),
    )


def _counted(nodes: Sequence[str], *, more: bool = False) -> str:
    """The number of nodes with the first names: "312 more nodes (a, b, c, …)", or one name."""
    if len(nodes) == 1:
        return nodes[0]
    return f"{len(nodes):,}{' more' if more else ''} nodes ({some_of(nodes)})"


# --- findings --------------------------------------------------------------------------------------------------------


def _finding_problems(given: ProblemInputs, *, of_state: Iterable[str]) -> Iterator[FleetProblem]:
    """Yield the findings grouped by node and cause, without those that a state of the node or the source explains."""
    explained = {*of_state, *_stale_ages(given.snapshot)}
    groups: dict[tuple[str, FindingKind], list[FindingEntry]] = {}
    dropping = {
        (entry.node, entry.metric): kind for entry in given.findings if (kind := FindingKind(entry.kind)) in _DROPPED
    }
    for entry in given.findings:
        kind = FindingKind(entry.kind)
        if given.health.ok is False and kind in _OF_SOURCE:
            continue
        if kind in _OF_STATE and entry.node in explained:
            continue
        if not entry.node and kind in _OF_STATE_OF_MANY and explained:
            continue
        if kind is FindingKind.MISSING and entry.metric:  # the slot of a dropped sample
            kind = dropping.get((entry.node, entry.metric), kind)
        groups.setdefault((entry.node, kind), []).append(entry)
    causes: dict[tuple[Severity, str], list[FleetProblem]] = {}
    for (node, kind), entries in groups.items():
        problem = _finding_problem(given, node, kind, entries)
        if node:
            causes.setdefault((problem.severity, problem.kind), []).append(problem)
        else:
            yield problem
    for problems in causes.values():
        problems.sort(key=lambda each: (-(each.last_seen or 0), each.nodes))
        yield from _each_or_together(problems, f"{{}}: {problems[0].cause}")


def _finding_problem(
    given: ProblemInputs, node: str, kind: FindingKind, entries: Sequence[FindingEntry]
) -> FleetProblem:
    cause = CAUSES[kind]
    same = [entry for entry in entries if entry.kind == kind] or list(entries)
    newest = max(same, key=lambda entry: (entry.last_seen, entry.metric))
    last = max(entry.last_seen for entry in entries)
    severity = cause.severity
    metrics = tuple(sorted({entry.metric for entry in entries if entry.metric}))
    if newest.remedy == Remedy.CLAMPED:
        severity = Severity.INFO
    if kind is FindingKind.NO_SERIES and any(_needed(metric) for metric in metrics):
        severity = Severity.WARNING
    past = _is_past(given, node, kind, last)
    if past:
        severity = Severity.INFO
    where = f"{node}: " if node else ""
    text = f"{where}{cause.words}: {newest.reason}"
    if len(metrics) > 1:
        text += f" (and {len(metrics) - 1} more metric{'s' if len(metrics) > 2 else ''})"
    if newest.remedy != Remedy.REPORTED:  # reasons of these often say it
        text = f"{text}; {ACTIONS.get(newest.remedy, newest.remedy)}"
    text += f"; last seen {duration_text(given.now - last)} ago" if past else ""
    since, count = min(entry.first_seen for entry in entries), sum(entry.count for entry in entries)
    nodes = (node,) if node else ()
    text = text if node else text[:1].upper() + text[1:]
    return FleetProblem(
        severity, kind.value, cause.words, text, cause.cure, cause.command, nodes, since, last, count, metrics
    )


def _is_past(given: ProblemInputs, node: str, kind: FindingKind, last: int) -> bool:
    """Return whether a finding is over. A silent metric is reported at every tick; a node that was frozen, and is not
    in quarantine, is served again. `last` is in unix seconds."""
    if kind is FindingKind.FROZEN and node:
        return True
    if kind is FindingKind.STALE:
        return given.now - last > REPEATED_INTERVALS * given.interval_s
    return given.now - last > max(ACTIVE_INTERVALS * given.interval_s, ACTIVE_AT_LEAST_S)


def _needed(metric: str) -> bool:
    known = METRIC_BY_NAME.get(metric)
    return known is not None and known.type in _NEEDED
