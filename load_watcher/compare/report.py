"""What a comparison found, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from load_watcher.compare.client import Round
from load_watcher.compare.comparison import Answer, Comparison, some


def as_line(round_: Round) -> str:
    """One comparison while it goes on."""
    both = len(round_.ours.nodes & round_.theirs.nodes)
    return f"comparison {round_.number}: {both:,} nodes known to both, window ends {_ends(round_)}"


def as_tables(comparison: Comparison, last: Round) -> Iterator[RenderableType]:
    """The two services, the metrics, the nodes that one lacks, the winners, and the verdict."""
    yield _services(last)
    yield _metrics(comparison)
    ours, theirs = comparison.winners
    verdict = comparison.verdict()
    yield escape(f"TargetLoadPacking, for a pod that needs next to nothing: here {some(ours)}; there {some(theirs)}")
    if comparison.rounds > 1:
        yield f"  a node in common in {comparison.same_winner} of {comparison.rounds} comparisons"
    if not verdict:
        yield f"[green]the same[/], as far as {comparison.rounds} comparison{_s(comparison.rounds)} can tell"
    for difference in verdict:
        yield f"[red]different:[/] {escape(difference)}"


def as_json(comparison: Comparison, last: Round) -> str:
    """The same as one JSON object."""
    ours, theirs = comparison.winners
    document = {
        "same": not comparison.verdict(),
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
        "only_ours": comparison.mostly(comparison.only_ours),
        "only_theirs": comparison.mostly(comparison.only_theirs),
        "winners": {"ours": ours, "theirs": theirs, "in_common": comparison.same_winner},
        "differences": comparison.verdict(),
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def _service(answer: Answer) -> dict[str, object]:
    return {
        "nodes": len(answer.nodes),
        "source": answer.source,
        "window": answer.window,
        "window_end": answer.window_end,
    }


def _services(last: Round) -> Table:
    table = Table("", "nodes", "window", "ends", "source", box=None, pad_edge=False)
    for name, answer in (("here", last.ours), ("there", last.theirs)):
        table.add_row(
            name, f"{len(answer.nodes):,}", escape(answer.window), _time(answer.window_end), escape(answer.source)
        )
    return table


def _metrics(comparison: Comparison) -> Table:
    table = Table("points apart", "nodes", "mean", "largest", "of", box=None, pad_edge=False)
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


def _ends(round_: Round) -> str:
    apart = abs(round_.ours.window_end - round_.theirs.window_end)
    return f"{_time(round_.ours.window_end)} here and {_time(round_.theirs.window_end)} there ({apart:.0f} s apart)"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%H:%M:%SZ")


def _s(number: int) -> str:
    return "" if number == 1 else "s"
