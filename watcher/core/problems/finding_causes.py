"""The kinds of findings in words, each with its severity and its cure. docs/reference/review.md explains the tests.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from watcher.core.problems.document import Severity
from watcher.model import FindingKind, Remedy

DOCTOR = "load-watcher doctor"


@dataclass(frozen=True, slots=True)
class FindingCause:
    """A kind of finding: `words` follow "node: ", `severity` applies while the finding repeats."""

    words: str
    severity: Severity
    cure: str
    command: str = ""


CAUSES: Mapping[FindingKind, FindingCause] = {
    FindingKind.MISSING: FindingCause(
        "samples are missing",
        Severity.WARNING,
        "Nothing if the node is new or was removed; otherwise let the source scrape it.",
        DOCTOR,
    ),
    FindingKind.STALE: FindingCause(
        "some metrics are stale", Severity.WARNING, "Check the exporter of the node.", DOCTOR
    ),
    FindingKind.NON_FINITE: FindingCause(
        "values that are not numbers",
        Severity.WARNING,
        "Check the expression of the query: a division by zero is the usual reason.",
        DOCTOR,
    ),
    FindingKind.OUT_OF_RANGE: FindingCause(
        "impossible values",
        Severity.WARNING,
        "Check the exporter, and the unit of the query in [provider.queries].",
        DOCTOR,
    ),
    FindingKind.FROZEN: FindingCause(
        "the exporter repeats the same values", Severity.WARNING, "Restart the exporter on the node."
    ),
    FindingKind.COUNTER_RESET: FindingCause(
        "a counter decreased",
        Severity.INFO,
        "Nothing if the node or its exporter restarted; if it repeats, use rate() in the query.",
    ),
    FindingKind.JUMP: FindingCause(
        "unusual load",
        Severity.INFO,
        "Nothing: the jump may be real, so the value is used. If it repeats, compare it with the node itself.",
    ),
    FindingKind.DUPLICATE_SERIES: FindingCause(
        "several series for one metric",
        Severity.WARNING,
        "Remove the second scrape job, replica or agent, or the extra label: each node and each device must have one "
        "series.",
        DOCTOR,
    ),
    FindingKind.UNKNOWN_NODE: FindingCause(
        "the name matches no node of the cluster",
        Severity.WARNING,
        "Nothing if it is not a node; otherwise set kubernetes.node_label or the node_label of the query.",
        DOCTOR,
    ),
    FindingKind.AMBIGUOUS_NODE: FindingCause(
        "the name matches several nodes",
        Severity.WARNING,
        "Delete the Node object that is no longer in use, or make the source name each node in one way.",
        DOCTOR,
    ),
    FindingKind.NODE_NAMES: FindingCause(
        "node names changed or cannot be read",
        Severity.WARNING,
        "Nothing after a rename; otherwise grant the missing permission on nodes.",
        DOCTOR,
    ),
    FindingKind.CLOCK_SKEW: FindingCause(
        "the clocks differ",
        Severity.WARNING,
        "Synchronize the clocks (NTP, chrony) of the source and of load-watcher.",
        "timedatectl",
    ),
    FindingKind.FUTURE_SAMPLE: FindingCause(
        "samples from the future",
        Severity.WARNING,
        "Synchronize the clocks (NTP, chrony) of the node and of load-watcher.",
        "timedatectl",
    ),
    FindingKind.CLOCK_STEP: FindingCause(
        "the clock of load-watcher was set back",
        Severity.WARNING,
        "Configure the clock to be slewed instead of stepped.",
        "timedatectl",
    ),
    FindingKind.SHORT_COVERAGE: FindingCause(
        "too few samples for the longest window",
        Severity.INFO,
        "Nothing for a new node; otherwise look for gaps between its scrapes.",
    ),
    FindingKind.PARTIAL_OUTAGE: FindingCause(
        "many nodes are missing or have implausible values at once",
        Severity.CRITICAL,
        "Check the monitoring system, not the nodes.",
        DOCTOR,
    ),
    FindingKind.PARTIAL_RESPONSE: FindingCause(
        "the source responds with incomplete data", Severity.WARNING, "Check the storage behind the source.", DOCTOR
    ),
    FindingKind.QUERY_FAILED: FindingCause(
        "a query to the source failed", Severity.WARNING, "Read the message of the source in the reason.", DOCTOR
    ),
    FindingKind.NO_SERIES: FindingCause(
        "the source has no series for a metric",
        Severity.INFO,
        "Install the exporter or the recording rule if you need the metric, or configure [provider.queries].",
        DOCTOR,
    ),
    FindingKind.SOURCE: FindingCause(
        "the origin of a metric changed", Severity.INFO, "Nothing if the change was intended."
    ),
    FindingKind.RESOLUTION: FindingCause(
        "samples are dropped because slots are too long", Severity.INFO, "Follow the reason of the finding."
    ),
    FindingKind.MEMORY: FindingCause(
        "not all received data fit into the memory limit",
        Severity.CRITICAL,
        "Check node_label and the labels of pods, or raise the memory limit.",
        DOCTOR,
    ),
    FindingKind.STORE: FindingCause(
        "the database cannot be written or read",
        Severity.CRITICAL,
        "Free space for the database, or correct store.url. Windows are served from memory meanwhile.",
        DOCTOR,
    ),
}

ACTIONS: Mapping[str, str] = {
    Remedy.REPORTED: "no data was changed",
    Remedy.DROPPED: "the values were dropped",
    Remedy.CLAMPED: "the values were limited to 0 to 100 %",
    Remedy.CARRIED: "the previous value was used",
    Remedy.SHORTER_WINDOW: "a shorter window is used",
    Remedy.QUARANTINED: "the node is not served",
    Remedy.LEFT_OUT: "the data is not served",
    Remedy.HELD: "the last data is served with its age",
    Remedy.COMBINED: "the series were combined",
    Remedy.RENAMED: "the node was renamed",
    Remedy.HISTORY_EMPTIED: "the history was emptied and is fetched again",
    Remedy.SET_ASIDE: "the database file was set aside",
}
"""What was done about a finding, in words."""
