"""Results of simulations in comparison: as a table, as CSV, and as a self-contained HTML page. The output is identical
for identical runs.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from rich import markup
from rich.table import Table

from lab.escaping import escape
from lab.simulate.results import RunSummary, SimulationRun

COLUMNS = (
    ("overload_node_minutes", "over-\nload", "node-minutes with CPU or memory demand above the threshold"),
    ("unmet_core_hours", "unmet core-hours", "core-hours of demand beyond the nodes' capacity"),
    ("nodes_used_mean", "nodes\nused", "nodes with at least one pod that is not of a DaemonSet, mean over time"),
    ("cpu_mean", "CPU\nmean", "percent in use, mean over all node-minutes"),
    ("cpu_p95", "CPU\np95", "percent in use, 95th percentile over all node-minutes"),
    ("cpu_p99", "CPU\np99", "percent in use, 99th percentile over all node-minutes"),
    ("cpu_spread", "CPU\nspread", "standard deviation between nodes in percentage points, mean over time"),
    ("memory_p99", "memory p99", "percent in use, 99th percentile over all node-minutes"),
    ("unschedulable", "never\nplaced", "pods that never found a node"),
    ("waited", "waited", "pods that had to wait for a node"),
    ("evictions", "evic-\ntions", "pods that the agent's planner would have to evict"),
)
"""Field of a Summary, heading, and description. A page shows all columns; a table shows only columns with a narrow
heading."""
NARROW = tuple((name, heading) for name, heading, _ in COLUMNS if "\n" in heading)
_DIGITS = 3  # decimal places of numbers in CSV


@dataclass(frozen=True, slots=True)
class SimulationSetup:
    """The simulation's parameters: name, note and size of the trace, and the options. `minutes` is the length of the
    trace, `refresh` and `delay` are in seconds, `overload` is a fraction."""

    trace: str
    note: str
    nodes: int
    pods: int
    minutes: int
    refresh: float
    delay: float
    overload: float
    seed: int
    place_existing: bool
    throttle: bool

    def sentences(self) -> list[str]:
        """The parameters in a few sentences."""
        size = f"{self.nodes:,} nodes, {self.pods:,} pods, {self.minutes / 60.0:g} hours in steps of a minute"
        return [
            f"{self.trace}: {size}" + (f"; {self.note}" if self.note else ""),
            f"Windows are published every {self.refresh:g} s, {self.delay:g} s after their newest sample; "
            f"a node is overloaded above {100.0 * self.overload:g} % of its CPU or memory; seed {self.seed}",
            *(["Pods that existed when the trace began are placed too"] if self.place_existing else []),
            *(["Pods on nodes with too little CPU run longer"] if self.throttle else []),
        ]


def as_table(summaries: Iterable[RunSummary]) -> Table:
    """A table for a terminal of 80 columns."""
    table = Table(box=None, padding=(0, 1, 0, 0))
    table.add_column("policy", no_wrap=True, vertical="bottom")
    for _, heading in NARROW:
        table.add_column(heading, justify="right", no_wrap=True)
    for summary in summaries:
        table.add_row(markup.escape(summary.policy), *(_shown(getattr(summary, name)) for name, _ in NARROW))
    return table


def as_document(setup: SimulationSetup, summaries: Iterable[RunSummary]) -> dict[str, Any]:
    """The document of --output json: `{"trace", "nodes", "pods", "minutes", "refresh_s", "delay_s", "overload_percent",
    "seed", "place_existing", "throttle", "policies": [RunSummary]}`; unknown values are null."""
    return {
        "trace": setup.trace,
        "note": setup.note,
        "nodes": setup.nodes,
        "pods": setup.pods,
        "minutes": setup.minutes,
        "refresh_s": setup.refresh,
        "delay_s": setup.delay,
        "overload_percent": 100.0 * setup.overload,
        "seed": setup.seed,
        "place_existing": setup.place_existing,
        "throttle": setup.throttle,
        "policies": [{name: _known(value) for name, value in asdict(summary).items()} for summary in summaries],
    }


def _known(value: str | float | None) -> str | float | None:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_csv(summaries: Iterable[RunSummary]) -> str:
    """One line per policy, with all fields of a Summary."""
    names = [each.name for each in fields(RunSummary)]
    return _csv(names, ([_exact(getattr(summary, name)) for name in names] for summary in summaries))


def series_csv(runs: Iterable[SimulationRun]) -> str:
    """One line per policy and minute (`time` in unix seconds)."""
    return _csv(
        ("policy", "time", "overloaded_nodes", "nodes_used", "cpu_mean", "cpu_p95", "waiting_pods"),
        (row for run in runs for row in _minutes(run)),
    )


def _minutes(run: SimulationRun) -> Iterable[list[str]]:
    minute, waiting = run.minutes(), run.series.waiting.tolist()
    columns = (minute.overloaded.tolist(), minute.used.tolist(), minute.mean.tolist(), minute.p95.tolist(), waiting)
    for i, values in enumerate(zip(*columns, strict=True)):
        yield [run.policy, f"{run.begins + 60.0 * i:.0f}", *(_exact(value) for value in values)]


def _csv(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


def _exact(value: str | float | None) -> str:
    """A value for CSV; unknown values are empty."""
    if isinstance(value, str):
        return value
    if value is None or math.isnan(value):
        return ""
    return str(value) if isinstance(value, int) else f"{value:.{_DIGITS}f}"


def _shown(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


# --- the page --------------------------------------------------------------------------------------------------------

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .6rem; text-align: right; border-bottom: 1px solid #8884; }
th:first-child, td:first-child { text-align: left; }
th { vertical-align: bottom; font-weight: 600; }
td.best { font-weight: 700; }
figure { margin: 1.5rem 0; } svg { display: block; width: 100%; height: auto; } svg text { fill: currentColor; }
dt { font-weight: 600; } .scroll { overflow-x: auto; }
""".strip()
_NEITHER = "cpu_mean"  # neither high nor low is better


def as_page(setting: SimulationSetup, summaries: Sequence[RunSummary], chart: str) -> str:
    """An HTML page with the `chart`, an SVG element. The lowest value of a column is bold; whether lower is better
    depends on the goal."""
    names = ", ".join(summary.policy for summary in summaries)
    lines = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Simulation of {escape(setting.trace)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>",
        "<h1>Simulation: one trace under several policies</h1>",
        *(f"<p>{escape(sentence)}.</p>" for sentence in setting.sentences()),
        '<div class="scroll"><table>',
        *_table(summaries),
        "</table></div>",
        f'<figure role="img" aria-label="Load under {escape(names)}">{chart}</figure>',
        "<dl>",
        *(f"<dt>{escape(_flat(heading))}</dt><dd>{escape(message)}</dd>" for _, heading, message in COLUMNS),
        "</dl>\n</body>\n</html>",
    ]
    return "\n".join(lines) + "\n"


def _table(summaries: Sequence[RunSummary]) -> Iterable[str]:
    heads = "".join(f'<th scope="col">{escape(_flat(heading))}</th>' for _, heading, _ in COLUMNS)
    yield f'<thead><tr><th scope="col">policy</th>{heads}</tr></thead>\n<tbody>'
    for summary in summaries:
        cells = "".join(_cell(name, summary, summaries) for name, _, _ in COLUMNS)
        yield f'<tr><th scope="row">{escape(summary.policy)}</th>{cells}</tr>'
    yield "</tbody>"


def _cell(name: str, summary: RunSummary, all_of_them: Sequence[RunSummary]) -> str:
    value: float | None = getattr(summary, name)
    if value is None:  # a value that is None for one run is None for all runs
        return f"<td>{_shown(value)}</td>"
    best = name != _NEITHER and value == min(getattr(each, name) for each in all_of_them)
    mark = ' class="best"' if best and len(all_of_them) > 1 else ""
    return f"<td{mark}>{_shown(value)}</td>"


def _flat(heading: str) -> str:
    return heading.replace("-\n", "").replace("\n", " ")
