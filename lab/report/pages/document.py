"""A report as JSON, and as text for the terminal.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import math
from dataclasses import asdict, fields, is_dataclass
from typing import Any

import numpy as np

from lab.report import findings
from lab.report.findings import ClusterReport
from lab.report.peaks import NodePeaks, ResourcePeaks
from watcher import __version__
from watcher.core.messages import visible

DIGITS = 4
NEXT = (
    ("load-watcher serve --provider prometheus --address URL", "the service with this Prometheus, and its page"),
    ("load-watcher demo", "a simulated cluster with the scheduling plug-ins"),
    ("load-watcher doctor --provider prometheus --address URL", "check a deployment, with fixes"),
    ("load-watcher shadow", "compare policies on the live cluster without binding pods; see docs/tasks/shadow.md"),
)
"""Next commands, with what they do."""


def as_document(report: ClusterReport) -> dict[str, Any]:
    """The JSON document. Unknown numbers are null; times are unix seconds, memory is in bytes, shares are 0 to 1."""
    history = report.history
    document: dict[str, Any] = clean(
        {
            "version": __version__,
            "source": history.address,
            "begins": history.begins,
            "ends": history.ends,
            "nodes": len(history.loads.nodes),
            "sampled_every_s": history.loads.cpu.sampled_every,
            "findings": {
                "hot": findings.hot_sentence(report),
                "peaks": findings.peaks_sentence(report),
                "workloads": findings.workloads_sentence(report),
                "policies": findings.replay_sentence(report),
                "missing": findings.missing_sentence(report),
            },
            "hot": asdict(report.heat),
            "peaks": [_peaks(each) for each in (report.cpu, report.memory) if each is not None],
            "workloads": None if report.workloads is None else asdict(report.workloads),
            "policies": {"reason": report.replay} if isinstance(report.replay, str) else asdict(report.replay),
            "missing": [asdict(each) for each in report.missing],
            "remarks": list(history.remarks),
            "queries": [asdict(each) for each in history.queries],
        }
    )
    return document


def _peaks(resources: ResourcePeaks) -> dict[str, Any]:
    def row(peaks: NodePeaks) -> dict[str, Any]:
        own = {each.name: getattr(peaks, each.name) for each in fields(peaks)}
        return {**own, "freed": peaks.freed, "excess": peaks.excess}

    return {
        "resource": resources.resource,
        "cluster": None if resources.cluster is None else row(resources.cluster),
        "nodes": [row(each) for each in resources.nodes],
        "record": asdict(resources.record),
    }


def clean(value: Any) -> Any:
    """The value with NaN and infinity as None, floats with DIGITS decimals, and arrays as lists."""
    if isinstance(value, dict):
        return {key: clean(each) for key, each in value.items()}
    if isinstance(value, np.ndarray):
        return clean(value.tolist())
    if isinstance(value, list | tuple):
        return [clean(each) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        return clean(asdict(value))
    if isinstance(value, float):
        return round(value, DIGITS) if math.isfinite(value) else None
    return value


def as_text(report: ClusterReport, files: str) -> str:
    """The findings for a terminal; `files` names the written files."""
    history = report.history
    lines = [
        f"{history.address}, {findings.moment(history.begins)} to {findings.moment(history.ends)}",
        "",
        f"hot hours   {findings.hot_sentence(report)}",
        f"peaks       {findings.peaks_sentence(report)}",
        f"            Busiest node {report.cpu.nodes[0].node}: {findings.bound_text(report.cpu.nodes[0], report.cpu)}.",
        f"workloads   {findings.workloads_sentence(report)}",
        f"policies    {findings.replay_sentence(report)}",
        f"missing     {findings.missing_sentence(report)}",
        *(line for each in report.missing for line in (f"            {each.what}", f"              fix: {each.cure}")),
        *(f"note        {each}" for each in (*findings.sampling_sentences(report), *history.remarks)),
        "",
        files,
    ]
    return "\n".join(map(visible, lines))
