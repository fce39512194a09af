"""`load-watcher compare`: compares the answers of two services."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from load_watcher.cli.exit_codes import FAILED, print_error
from load_watcher.cli.options import IN_SECONDS, OUTPUT, read_token, service_url, to_address, to_seconds, token_file
from load_watcher.cli.printing import print_tables


@click.command(short_help="Compare the responses of two services.")
@click.option(
    "--with",
    "other",
    required=True,
    callback=to_address,
    metavar="URL",
    help="Base URL of the other service, for example the Go load-watcher.",
)
@service_url("Base URL of this service.")
@token_file("File with the bearer token for this service. [default: no token]")
@click.option(
    "--for",
    "duration",
    default="0s",
    callback=to_seconds,
    metavar="DURATION",
    help=f"Repeat the comparison for this long, for example 15m or 1h; {IN_SECONDS}. [default: compare once]",
)
@click.option(
    "--every",
    default="30s",
    show_default=True,
    callback=to_seconds,
    metavar="DURATION",
    help=f"Interval between comparisons when --for is given; {IN_SECONDS}.",
)
@click.option(
    "--tolerance",
    default=5.0,
    show_default=True,
    metavar="POINTS",
    help="Ignore differences of a node's CPU or memory value of up to this many percentage points.",
)
@click.option(
    "--target",
    default=40.0,
    show_default=True,
    type=click.FloatRange(0, 100, min_open=True, max_open=True),
    metavar="PERCENT",
    help="targetUtilization of TargetLoadPacking, in percent, for the comparison of the chosen nodes.",
)
@OUTPUT
def compare(**given: Any) -> None:
    """Compare the responses of two services.

    The comparison covers metric values, missing nodes, and the node that TargetLoadPacking would choose.

    Exit code 0: they agree; 1: they differ: in more than half of the comparisons, a node or a value is missing or a
    value differs; or in at least half of them, the chosen nodes differ; 2: the first comparison failed (later failures
    are skipped), or the arguments are invalid.
    """
    import asyncio
    from contextlib import suppress

    from lab.compare import client, report
    from lab.compare import comparison as compare_comparison
    from scorers.plugins.target_load_packing import packing_scores

    ours = client.Side("this service", given["url"], read_token(given["token_file"]))
    sides = ours, client.Side("the other service", given["other"])
    comparison = compare_comparison.Comparison(partial(packing_scores, target=given["target"]), given["tolerance"])
    rounds: list[client.ComparisonRound] = []

    def tell(done: client.ComparisonRound) -> None:
        rounds[:] = [done]
        if given["duration"]:
            click.echo(report.as_line(done), err=True)

    def warn(text: str) -> None:
        click.echo(f"comparison skipped: {text}", err=True)

    try:
        with suppress(KeyboardInterrupt):  # earlier comparisons are still reported
            asyncio.run(
                client.run(
                    *sides, comparison, duration=given["duration"], every=given["every"], on_progress=tell, warn=warn
                )
            )
    except client.CompareError as error:
        print_error(error, error.hint)
        raise SystemExit(FAILED) from None
    if not rounds:
        raise SystemExit(FAILED)
    if given["output"] == "json":
        click.echo(report.as_json(comparison, rounds[0]))
    else:
        print_tables(report.as_tables(comparison, rounds[0]))
    raise SystemExit(1 if comparison.differences_in_words() else 0)
