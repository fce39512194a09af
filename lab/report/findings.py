"""A report as a value, and its findings as sentences.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime

from lab.report.analyse import HotHours, hot_hours
from lab.report.collected import ClusterHistory, MissingData
from lab.report.comparison import ReplayResult
from lab.report.peaks import NodePeaks, ResourcePeaks, resource_peaks
from lab.report.workloads import WorkloadShares, workload_shares
from watcher.core.forecast.document import judged_period
from watcher.core.forecast.maxima import SLOT_S
from watcher.core.review.findings import some_of

GIB = 1 << 30
ENOUGH = 0.95
"""Share of the time that must have values."""


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """Everything on the page. `replay` is a text if it was impossible."""

    history: ClusterHistory
    heat: HotHours
    cpu: ResourcePeaks
    memory: ResourcePeaks | None
    workloads: WorkloadShares | None
    replay: ReplayResult | str
    top: int

    @property
    def missing(self) -> tuple[MissingData, ...]:
        return self.history.missing


def make_report(history: ClusterHistory, *, top: int, replay: ReplayResult | str) -> ClusterReport:
    """Compute all findings. Raises ValueError without CPU utilization."""
    cpu = resource_peaks(history, "cpu")
    if cpu is None:
        raise ValueError("a report needs the CPU utilization of nodes")
    shares = None
    if history.pods is not None:
        shares = workload_shares(history.pods, history.loads, history.owners)
    return ClusterReport(
        history,
        hot_hours(history.loads),
        cpu,
        resource_peaks(history, "memory"),
        shares,
        replay,
        top,
    )


# --- sentences -------------------------------------------------------------------------------------------------------


def period(history: ClusterHistory) -> str:
    """The time range of the report, such as "7 days"."""
    hours = (history.ends - history.begins) // 3600
    return f"{hours // 24:,} days" if hours % 24 == 0 and hours > 24 else f"{hours:,} hours"


def moment(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M UTC")


def duration(seconds: float) -> str:
    """A time span in minutes, such as "5 minutes"."""
    minutes = seconds / 60.0
    return f"{minutes:g} minute" + ("" if minutes == 1 else "s")


def number(value: float | None, digits: int = 1, unit: str = "") -> str:
    """A value for readers, "unknown" without one."""
    if value is None or not math.isfinite(value):
        return "unknown"
    return f"{value:,.{digits}f}{unit}"


def amount(value: float, resource: str) -> str:
    """Cores, or bytes as GiB."""
    return number(value, 1, " cores") if resource == "cpu" else number(value / GIB, 1, " GiB")


def hot_sentence(report: ClusterReport) -> str:
    heat, history = report.heat, report.history
    nodes = len(history.loads.nodes)
    whole = f"in the {period(history)} of this report{_known_part(report)}"
    if not heat.hot_nodes:
        peak = max((each.cpu_peak for each in heat.nodes if math.isfinite(each.cpu_peak)), default=math.nan)
        return (
            f"None of {_nodes(nodes)} was above {heat.threshold:g} % CPU {whole}; the highest value was "
            f"{number(peak, 0)} %."
        )
    when = "at all hours of the day"
    if heat.busy is not None:
        when = f"mostly {heat.busy[0]}:00 to {heat.busy[1]}:00 UTC"
    verb = "was" if heat.hot_nodes == 1 else "were"
    return (
        f"{heat.hot_nodes:,} of {_nodes(nodes)} {verb} above {heat.threshold:g} % CPU for "
        f"{number(heat.node_hours, 1)} node-hours {whole}, {when}."
    )


def _known_part(report: ClusterReport) -> str:
    """How much of the time has values, if it is clearly less than all of it."""
    hours, known = (report.history.ends - report.history.begins) / 3600.0, report.heat.known_hours
    return f", of which {known:,.1f} hours have values" if known < ENOUGH * hours else ""


def peaks_sentence(report: ClusterReport) -> str:
    cluster, record = report.cpu.cluster, report.cpu.record
    if cluster is None:
        highest = report.cpu.nodes[0]
        return (
            f"The highest CPU peak is {number(highest.peak_percent, 0)} % on {highest.node}; cores are unknown without "
            "the sizes of the nodes."
        )
    allocatable = f"{number(cluster.allocatable)} allocatable cores"
    text = f"At its peak, the cluster used {amount(cluster.peak, 'cpu')} of {allocatable}"
    if math.isfinite(cluster.requested):
        text += f"; {amount(cluster.requested, 'cpu')} are requested"
    if record.reason:
        return f"{text}. There is no bound for the next hours: {record.reason}."
    if not math.isfinite(cluster.bound):
        known = sum(math.isfinite(each.bound) for each in report.cpu.nodes)
        return f"{text}. {known:,} of {_nodes(len(report.cpu.nodes))} have a bound for the next {record.horizon_h} h."
    freed = amount(cluster.freed, "cpu")
    return (
        f"{text}. {freed} are above the peaks that are expected in the next {record.horizon_h} hours (level "
        f"{100.0 * record.level:.0f} %); later peaks may be higher."
    )


def bound_text(peaks: NodePeaks, resources: ResourcePeaks) -> str:
    """The statement of a bound with its level and its record."""
    record = resources.record
    if not math.isfinite(peaks.bound_percent):
        return f"no bound: {record.reason or 'less than a day of values'}"
    coverage = peaks.coverage
    stated = "no bound has been judged"
    if math.isfinite(coverage):
        stated = f"coverage {judged_period(record.hours)} {100.0 * coverage:.1f} %"
    level = f"level {100.0 * record.level:.0f} %"
    return f"peak of the next {record.horizon_h} h at most {peaks.bound_percent:.0f} % ({level}, {stated})"


def workloads_sentence(report: ClusterReport) -> str:
    shares = report.workloads
    if shares is None or not shares.workloads:
        return "The workloads are unknown: the source has no usage of pods."
    hot = shares.hot_values > 0
    first = shares.workloads[0]
    top = shares.workloads[: report.top]
    if hot:
        total = sum(each.hot_share for each in top)
        return (
            f"{first.namespace}/{first.workload} makes {share_text(first.hot_share, first.hot_share_error, 0)} of the "
            f"pods' load in the hot "
            f"hours; the first {len(top)} of {len(shares.workloads):,} workloads make {100.0 * total:.0f} %."
        )
    total = sum(each.share for each in top)
    return (
        f"{first.namespace}/{first.workload} makes {share_text(first.share, first.share_error, 0)} of the pods' load; "
        f"the first {len(top)} "
        f"of {len(shares.workloads):,} workloads make {100.0 * total:.0f} %."
    )


def share_text(share: float, error: float, digits: int) -> str:
    """A share in percent, with half of its interval if it is an estimate; "unknown" for NaN."""
    text = number(100.0 * share, digits, " %")
    return f"{text} (± {100.0 * error:.1f})" if math.isfinite(error) and error > 0.0 else text


def replay_sentence(report: ClusterReport) -> str:
    result = report.replay
    if isinstance(result, str):
        return f"Other placements were not simulated: {result}."
    others = [each for each in result.policies if each.overload_difference is not None]
    better = [each for each in others if each.overload_difference and each.overload_difference.high < 0.0]
    default = result.policies[0]
    if not better:
        return (
            f"With the default scheduler, {number(default.overload)} node-hours per day would have been above "
            f"{result.threshold:g} % (recorded: {number(result.recorded_overload)}); no policy has significantly fewer."
        )
    best = min(better, key=lambda each: (each.overload, each.policy))
    return (
        f"{best.policy} would have had {number(best.overload, 1)} node-hours per day above {result.threshold:g} %, the "
        f"default scheduler {number(default.overload, 1)}."
    )


def missing_sentence(report: ClusterReport) -> str:
    if not report.missing:
        return "The source has all data that this report uses."
    return (
        f"{len(report.missing)} kinds of data are missing."
        if len(report.missing) > 1
        else "One kind of data is missing."
    )


def sampling_sentences(report: ClusterReport) -> tuple[str, ...]:
    """How the values were sampled, and what that hides."""
    loads, found = report.history.loads, []
    every = [duration(each.sampled_every) for each in (loads.cpu, loads.memory)]
    found.append(
        f"A node is hot while its CPU utilization, a mean of {duration(max(SLOT_S, loads.cpu.sampled_every))}, is "
        f"above {loads.threshold:g} %. CPU and memory of all nodes were read every {every[0]} and {every[1]}."
    )
    if loads.cpu.sampled_every > SLOT_S:
        found.append("CPU was read less often to stay within --max-samples: shorter peaks are not visible.")
    if report.workloads is not None:
        found += _pod_sentences(report.workloads)
    return tuple(found)


def _pod_sentences(shares: WorkloadShares) -> tuple[str, ...]:
    sample, every = shares.sample, f"as means of {duration(shares.step)}"
    gaps = (
        f"The pods of {_nodes(len(shares.gaps))} ({some_of(shares.gaps)}) have no usage for a part of the time; the "
        "mean of the rest is used for this part.",
    )[: len(shares.gaps)]
    if sample.is_complete:
        return (f"The usage of {shares.pods:,} pods was read {every}.", *gaps)
    chosen = len(sample.nodes) - len(sample.hottest)
    hottest = f"the {len(sample.hottest):,} hottest, and " if sample.hottest else ""
    return (
        f"The usage of pods was read {every} on {len(sample.nodes):,} of {_nodes(sample.total)}: {hottest}{chosen:,} "
        "chosen by a hash of their names. Figures of workloads are estimates for all nodes; ± is half of the 95 % "
        "interval, and workloads of few pods may be missing. --max-samples sets the size of the sample.",
        *gaps,
    )


def replay_sentences(result: ReplayResult, nodes: int) -> tuple[str, ...]:
    """What the simulation is, and its limits."""
    chosen = f"{result.nodes:,} of {_nodes(nodes)}"
    if result.hottest:
        chosen += f", of which the {result.hottest:,} hottest, so that there is more overload than in the cluster"
    return (
        f"Simulated: {chosen}, up to {result.pods:,} pods, {result.replays} replays of 24 hours. All pods are placed "
        "again, at random times of the day before, except those of DaemonSets and static pods. Load that is not of a "
        "recorded pod stays on its node.",
        f"Recorded placement, from the same values: {number(result.recorded_overload, 1)} node-hours per day above "
        f"{result.threshold:g} % CPU or memory.",
        "The differences are paired, with 95 % intervals of Student's t distribution over "
        f"{result.replays} {result.over}. Plug-ins have their default arguments and new load every 5 minutes. Not "
        "simulated: taints, node selectors, affinity, pods that live less than 5 minutes.",
    )


def _nodes(count: int) -> str:
    return f"{count:,} node" + ("" if count == 1 else "s")
