"""A report as one HTML page without external resources. Every name comes from outside and is escaped.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from lab.escaping import escape
from lab.report import findings
from lab.report.analyse import NodeHeat, hourly_peaks
from lab.report.comparison import Interval, PolicyOutcome
from lab.report.findings import ClusterReport, number
from lab.report.pages import pictures
from lab.report.pages.document import NEXT
from lab.report.pages.style import STYLE
from lab.report.peaks import NodePeaks, ResourcePeaks
from lab.report.workloads import WorkloadShare
from watcher.core.forecast.document import judged_period

SHOWN_NODES = 20
TABLE_ROWS = 10


def as_page(report: ClusterReport) -> str:
    """The page. Its content security policy allows nothing but its own style."""
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    history = report.history
    source = escape(history.address)
    when = f"{findings.moment(history.begins)} to {findings.moment(history.ends)}"
    lines = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Load of {source}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>",
        f'<h1>Load of {len(history.loads.nodes):,} nodes</h1><p class="quiet">{source}, {when}</p>',
        *_section("Hot hours", findings.hot_sentence(report), _hot(report)),
        *_section("Peaks, requests and capacity", findings.peaks_sentence(report), _peaks(report)),
        *_section("Workloads", findings.workloads_sentence(report), _workloads(report)),
        *_section("Other placements", findings.replay_sentence(report), _policies(report)),
        *_section("What is missing", findings.missing_sentence(report), _missing(report)),
        *_section("How this was read", "All values are from queries to the source; nothing was changed.", _how(report)),
        "</main>\n</body>\n</html>",
    ]
    return "\n".join(lines) + "\n"


def _section(title: str, finding: str, content: Iterable[str]) -> Iterator[str]:
    yield f'<section class="card"><h2>{escape(title)}</h2><p class="finding">{escape(finding)}</p>'
    yield from content
    yield "</section>"


def _figure(picture: str, caption: str, *, wide: bool = False) -> str:
    kind = "scroll wide" if wide else "scroll"
    return (
        f'<figure><div class="{kind}" tabindex="0">{picture}</div><figcaption>{escape(caption)}</figcaption></figure>'
    )


Row = Sequence[str]
"""The cells of a row; the first is its heading."""


def _table(caption: str, heads: Sequence[str], rows: Iterable[Row]) -> Iterator[str]:
    """A table that becomes a list of cards on a narrow screen. All columns after the first have numbers or short
    texts."""
    yield f"<table><caption>{escape(caption)}</caption><thead><tr>"
    yield "".join(f'<th scope="col">{escape(head)}</th>' for head in heads)
    yield "</tr></thead><tbody>"
    for first, *others in rows:
        cells = "".join(
            f'<td data-label="{escape(head)}">{escape(cell)}</td>' for head, cell in zip(heads[1:], others, strict=True)
        )
        yield f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>'
    yield "</tbody></table>"


def _text(lines: Iterable[str], kind: str = "") -> Iterator[str]:
    start = f'<p class="{kind}">' if kind else "<p>"
    return (f"{start}{escape(line)}</p>" for line in lines)


def _legend(kinds: Sequence[tuple[str, str]]) -> str:
    items = (
        f'<span><svg viewBox="0 0 12 12" class="key" aria-hidden="true"><rect width="12" height="12" class="{kind}"/>'
        f"</svg>{escape(label)}</span>"
        for kind, label in kinds
    )
    return f'<p class="legend">{"".join(items)}</p>'


# --- sections --------------------------------------------------------------------------------------------------------


def _hot(report: ClusterReport) -> Iterator[str]:
    heat, loads = report.heat, report.history.loads
    if heat.memory_hot_nodes:
        yield from _text(
            [
                f"Memory was above {heat.threshold:g} % on {heat.memory_hot_nodes:,} nodes for "
                f"{number(heat.memory_node_hours)} node-hours."
            ]
        )
    if heat.hot_nodes:
        caption = f"Node-hours above {heat.threshold:g} % CPU, by day and hour of the day (UTC)."
        yield _figure(pictures.day_map(heat), caption)
        most = f"{np.nanmax(heat.by_day):,.1f} node-hours"
        yield _legend((("none", "no data"), ("h0", "0"), ("h1", "more than 0"), ("h6", most)))
    shown = heat.nodes[:SHOWN_NODES]
    names = [each.node for each in shown]
    caption = f"Highest CPU utilization in each hour (UTC), of the {len(names)} nodes with the most hot hours."
    yield _figure(pictures.node_map(names, hourly_peaks(loads, names), loads.begins), caption, wide=True)
    steps = ("h0", "≤ 20 %"), ("h1", "≤ 40 %"), ("h2", "≤ 60 %"), ("h3", "≤ 70 %"), ("h4", "≤ 80 %"), ("h5", "≤ 90 %")
    yield _legend((*steps, ("h6", "> 90 %"), ("none", "no data")))
    heads = ("node", "hot hours", "CPU mean", "CPU peak", "memory mean", "memory peak")
    yield from _table("The hottest nodes", heads, map(_heat_row, shown[:TABLE_ROWS]))
    yield from _rest(len(heat.nodes))


def _heat_row(each: NodeHeat) -> Row:
    percent = (each.cpu_mean, each.cpu_peak, each.memory_mean, each.memory_peak)
    return (each.node, number(each.cpu_hot_hours), *(number(value, 0, " %") for value in percent))


def _peaks(report: ClusterReport) -> Iterator[str]:
    resources = [each for each in (report.cpu, report.memory) if each is not None]
    clusters = [(each.resource, each.cluster) for each in resources if each.cluster is not None]
    if clusters:
        heads = ("cluster", *_PEAK_HEADS)
        yield from _table(
            "Cluster, cores and GiB",
            heads,
            (_amounts("CPU" if kind == "cpu" else kind, kind, cluster) for kind, cluster in clusters),
        )
        horizon = f"{report.cpu.record.horizon_h} hours"
        note = (
            f"The bound is the highest use that is expected in the next {horizon}; one in twenty is exceeded. Could be "
            "freed: what is allocatable above the bounds of the nodes."
        )
        yield from _text([note], "quiet")
    first = report.cpu.nodes[0]
    yield from _text([f"Busiest node {first.node}: {findings.bound_text(first, report.cpu)}."])
    for each in resources:
        yield from _text([_record_text(each)])
    yield _figure(
        pictures.peak_bars(report.cpu.nodes[:SHOWN_NODES]),
        "CPU of the nodes with the highest peaks, in percent of capacity.",
    )
    yield _legend((("mean", "mean"), ("peak", "peak"), ("bound", "bound of the next 6 h"), ("requested", "requested")))
    for each in resources:
        title = "CPU by node, in cores" if each.resource == "cpu" else "Memory by node, in GiB"
        unit = "" if clusters else " (percent of capacity)"
        rows = (_amounts(peaks.node, each.resource, peaks) for peaks in each.nodes[:TABLE_ROWS])
        yield from _table(f"{title}{unit}, highest peaks first", ("node", *_PEAK_HEADS), rows)
        yield from _rest(len(each.nodes))


def _rest(count: int) -> Iterator[str]:
    """Where the nodes are that a table omits."""
    if count > TABLE_ROWS:
        yield from _text([f"{count - TABLE_ROWS:,} more nodes are in the JSON document."], "quiet")


def _record_text(each: ResourcePeaks) -> str:
    record, name = each.record, "CPU" if each.resource == "cpu" else "Memory"
    if record.reason or not record.count:
        return f"{name}: no record of bounds: {record.reason or 'no bound is older than its horizon'}."
    when = judged_period(record.hours)
    issued = when if when == "in the last week" else f"at most {record.hours} of a node"
    return (
        f"{name}: of {record.count:,} bounds for {record.horizon_h} h (level {100.0 * record.level:.0f} %; {issued}), "
        f"{100.0 * record.coverage:.1f} % held. Mean severity: {100.0 * record.severity:.2f} % of the peak; a bound "
        "that held counts as 0."
    )


_PEAK_HEADS = ("allocatable", "requested", "mean", "peak", "bound of 6 h", "coverage", "above the bound")


def _amounts(name: str, resource: str, peaks: NodePeaks) -> Row:
    coverage = number(100.0 * peaks.coverage, 1, " %")
    if math.isfinite(peaks.capacity):
        unit = 1.0 if resource == "cpu" else float(findings.GIB)
        values = (peaks.allocatable, peaks.requested, peaks.mean, peaks.peak, peaks.bound)
        return (name, *(number(value / unit) for value in values), coverage, number(peaks.freed / unit))
    percent = (peaks.mean_percent, peaks.peak_percent, peaks.bound_percent)
    return (name, "unknown", "unknown", *(number(value, 0, " %") for value in percent), coverage, "unknown")


def _workloads(report: ClusterReport) -> Iterator[str]:
    shares = report.workloads
    if shares is None:
        return
    heads = ("workload", "share of hot hours", "share of load", "mean", "peak", "pods")
    yield from _table(
        "Workloads by their share of the hot hours", heads, map(_share_row, shares.workloads[: report.top])
    )
    note = (
        "The share of hot hours is of the cores of all pods on hot nodes while they were hot. A pod counts once for "
        "each node that it ran on."
    )
    if not shares.sample.is_complete:
        nodes, total = len(shares.sample.nodes), shares.sample.total
        note += f" Estimated from the pods on {nodes:,} of {total:,} nodes; ± is half of the 95 % interval."
    yield from _text([note], "quiet")


def _share_row(each: WorkloadShare) -> Row:
    hot = findings.share_text(each.hot_share, each.hot_share_error, 1)
    share = findings.share_text(each.share, each.share_error, 1)
    cores = (number(value, 2, " cores") for value in (each.mean_cores, each.peak_cores))
    return f"{each.namespace}/{each.workload}", hot, share, *cores, f"{each.pods:,}"


def _policies(report: ClusterReport) -> Iterator[str]:
    result = report.replay
    if isinstance(result, str):
        return
    heads = ("policy", "overload per day", "difference", "nodes used", "difference of nodes", "pods that fit nowhere")
    yield from _table("Policies, means per day", heads, map(_policy_row, result.policies))
    caption = "Overload node-hours per day: difference to the default scheduler, with 95 % intervals. Left is better."
    yield _figure(pictures.policy_dots(result), caption)
    yield from _text(findings.replay_sentences(result, len(report.history.loads.nodes)), "quiet")


def _policy_row(each: PolicyOutcome) -> Row:
    overload = number(each.overload, 1, " node-hours")
    differences = _interval(each.overload_difference), _interval(each.nodes_difference)
    return each.policy, overload, differences[0], number(each.nodes_used), differences[1], number(each.unschedulable)


def _interval(found: Interval | None) -> str:
    if found is None:
        return "–"
    if not math.isfinite(found.low):
        return f"{found.mean:+,.1f} (one replay, no interval)"
    mean, low, high = (f"{round(value, 1) + 0.0:+,.1f}" for value in (found.mean, found.low, found.high))
    return f"{mean} ({low} to {high})"


def _missing(report: ClusterReport) -> Iterator[str]:
    if report.missing:
        heads = ("missing", "it would show", "fix")
        yield from _table("Missing data", heads, ((each.what, each.shows, each.cure) for each in report.missing))
    yield "<h3>Next</h3><dl>"
    for command, what in NEXT:
        yield f"<dt><code>{escape(command)}</code></dt><dd>{escape(what)}</dd>"
    yield "</dl>"


def _how(report: ClusterReport) -> Iterator[str]:
    yield from _text(findings.sampling_sentences(report))
    yield from _text(report.history.remarks, "quiet")
    heads = ("purpose", "step", "requests", "values", "query")
    rows = (
        (each.purpose, f"{each.step:,} s", f"{each.requests:,}", f"{each.values:,}", each.expression)
        for each in report.history.queries
    )
    yield "<details><summary>Queries</summary>"
    yield from _table("Queries", heads, rows)
    yield "</details>"
