"""Formats the result of a comparison as text, tables or JSON."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec
from rich import markup
from rich.console import RenderableType
from rich.table import Table

from lab.compare.client import ComparisonRound
from lab.compare.comparison import Comparison, ServiceLoads
from watcher.core.messages import shorten_names, visible


def escape(text: str) -> str:
    """Text of a service as rich shows it: no markup, and control characters as escapes."""
    return markup.escape(visible(text))


def as_line(round_: ComparisonRound) -> str:
    """Progress line of one comparison."""
    both = len(round_.ours.nodes & round_.theirs.nodes)
    return f"comparison {round_.number}: {both:,} nodes known to both, window ends {_ends(round_)}"


def as_tables(comparison: Comparison, last: ComparisonRound) -> Iterator[RenderableType]:
    """Tables of services and metrics, the nodes with the highest scores, and the differences."""
    yield _services(last)
    yield _metrics(comparison)
    ours, theirs = comparison.winners
    verdict = comparison.differences_in_words()
    yield escape(
        f"TargetLoadPacking, pod with negligible requests: this service: {shorten_names(ours)}; "
        f"other service: {shorten_names(theirs)}"
    )
    if comparison.rounds > 1:
        yield f"  at least one common node in {comparison.same_winner} of {comparison.rounds} comparisons"
    if not verdict:
        yield f"[green]no difference[/] in {comparison.rounds} comparison{_s(comparison.rounds)}"
    for difference in verdict:
        yield f"[red]different:[/] {escape(difference)}"


def as_json(comparison: Comparison, last: ComparisonRound) -> str:
    """Result of the comparison as one JSON object."""
    ours, theirs = comparison.winners
    document = {
        "same": not comparison.differences_in_words(),
        "comparisons": comparison.rounds,
        "tolerance": comparison.tolerance,
        "services": {"ours": _service(last.ours), "theirs": _service(last.theirs)},
        "metrics": [
            {
                "type": difference.type,
                "operator": difference.operator,
                "nodes": len(difference.compared),
                "mean": difference.mean,
                "largest": difference.largest,
                "largest_of": difference.largest_of,
                "nodes_apart": difference.nodes_apart,
            }
            for difference in comparison.differences.values()
        ],
        "only_ours": comparison.mostly(comparison.only_here),
        "only_theirs": comparison.mostly(comparison.only_there),
        "winners": {"ours": ours, "theirs": theirs, "in_common": comparison.same_winner},
        "differences": comparison.differences_in_words(),
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def _service(answer: ServiceLoads) -> dict[str, object]:
    return {
        "nodes": len(answer.nodes),
        "source": answer.source,
        "window": answer.window,
        "window_end": answer.window_end,
    }


def _services(last: ComparisonRound) -> Table:
    table = Table("", "nodes", "window", "ends", "source", box=None, pad_edge=False)
    for name, answer in (("this service", last.ours), ("other service", last.theirs)):
        table.add_row(
            name, f"{len(answer.nodes):,}", escape(answer.window), _time(answer.window_end), escape(answer.source)
        )
    return table


def _metrics(comparison: Comparison) -> Table:
    table = Table("difference in points", "nodes", "mean", "largest", "at node", box=None, pad_edge=False)
    table.add_column(f"more than {comparison.tolerance:g}")
    for difference in comparison.differences.values():
        table.add_row(
            f"{difference.type} {difference.operator}",
            f"{len(difference.compared):,}",
            f"{difference.mean:.2f}" if difference.compared else "-",
            f"{difference.largest:.2f}" if difference.compared else "-",
            escape(difference.largest_of),
            f"{len(difference.nodes_apart):,} nodes",
        )
    return table


def _ends(round_: ComparisonRound) -> str:
    apart = abs(round_.ours.window_end - round_.theirs.window_end)
    return f"{_time(round_.ours.window_end)} and {_time(round_.theirs.window_end)} ({apart:.0f} s apart)"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%H:%M:%SZ")


def _s(number: int) -> str:
    return "" if number == 1 else "s"
