"""`load-watcher report`: a page about the load of a cluster, from its Prometheus."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from load_watcher.cli.exit_codes import FAILED, print_error
from load_watcher.cli.options import IN_SECONDS, SET, finite, output_option, to_seconds, with_options
from load_watcher.cli.printing import print_json
from load_watcher.cli.progress import progress_of
from load_watcher.cli.settings import load_or_exit

if TYPE_CHECKING:
    from watcher.sources.settings import ProviderSettings


def _end(_context: click.Context, _parameter: click.Parameter, given: str | None) -> float | None:
    """Parse --end to unix seconds."""
    if given is None:
        return None
    seconds = _moment(given)
    if not 0.0 < seconds < 1e11:
        raise click.BadParameter("must be a date (2026-01-31T12:00:00Z) or unix seconds")
    if seconds > time.time():
        raise click.BadParameter("must not be in the future")
    return seconds


def _moment(text: str) -> float:
    """Parse a date or unix seconds; return -1 for other texts."""
    from datetime import UTC, datetime

    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return -1.0


_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_CONNECTION = (
    click.option("--prometheus", "address", required=True, envvar="LOAD_WATCHER_PROVIDER_ADDRESS", show_envvar=True,
                 metavar="URL", help="URL of Prometheus, Thanos, Mimir or VictoriaMetrics, with the path before "
                 "/api/v1."),
    click.option("--token-file", type=_FILE, metavar="FILE", help="File with the bearer token to send."),
    click.option("--username", metavar="NAME", help="User for basic authentication."),
    click.option("--password-file", type=_FILE, metavar="FILE", help="File with the password of --username."),
    click.option("--ca-file", type=_FILE, metavar="FILE", help="CA certificates (PEM) that verify the server."),
    click.option("--node-label", metavar="LABEL", help="Label with the node name. [default: the first that exists of "
                 "node, kubernetes_node, nodename and instance]"),
)  # fmt: skip
_RANGE = (
    click.option("--days", default=7.0, show_default=True, type=click.FloatRange(0.125, 30.0), callback=finite,
                 metavar="N", help="Length of the time to report, in days."),
    click.option("--end", callback=_end, metavar="TIME", help="End of the time to report: a date "
                 "(2026-01-31T12:00:00Z) or unix seconds, rounded down to an hour. [default: now]"),
    click.option("--hot", default=80.0, show_default=True, type=click.FloatRange(1.0, 100.0), callback=finite,
                 metavar="PERCENT", help="Utilization in percent above which a node is hot."),
    click.option("--top", default=15, show_default=True, type=click.IntRange(1, 200), metavar="N", help="Number of "
                 "workloads to list."),
    click.option("--max-samples", default=50_000_000, show_default=True, type=click.IntRange(10_000), metavar="N",
                 help="Maximum number of values that the server computes for the report, in requests of at most "
                 "500,000. A larger number reads the pods of more nodes. Where it is too low, values are read less "
                 "often, and the page names what is missing."),
    click.option("--timeout", default="60s", show_default=True, callback=to_seconds, metavar="DURATION",
                 help=f"Timeout of one request; {IN_SECONDS}."),
    click.option("--no-simulation", is_flag=True, help="Do not simulate other placements."),
)  # fmt: skip


@click.command(short_help="Report on a cluster from its Prometheus.")
@with_options(*_CONNECTION, *_RANGE)
@click.option(
    "--file",
    default="report.html",
    show_default=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Page to write; the JSON document is written beside it, with the suffix .json. Existing files are "
    "overwritten; - is the standard output, without a JSON document.",
)
@with_options(SET, output_option())
def report(file: Path, output: str, **given: Any) -> None:
    """Report on a cluster from its Prometheus.

    Writes one HTML page: when which nodes are hot, peaks beside requests and capacity, which workloads make the load,
    and what other placements would have changed. Only reads from Prometheus; nothing has to be installed in the
    cluster. Further settings of the connection can be set with --set (provider.headers, provider.matchers) and with
    environment variables (LOAD_WATCHER_PROVIDER_TOKEN).

    From a laptop, forward a port first: kubectl -n monitoring port-forward svc/prometheus-k8s 9090

    Exit code 0: written; 2: the arguments are invalid, the server is not available, or it has no load of nodes.
    """
    from lab.report import command
    from lab.report.data.context import CollectOptions
    from lab.report.pages import document
    from load_watcher.cli.output_file import check_stdout
    from watcher.sources.errors import ProviderError

    printed = check_stdout({"--file": file}, output=output)
    try:
        beside = command.check_file(file)
        settings = command.for_report(_settings(given), given["timeout"])
        options = CollectOptions(
            time.time() if given["end"] is None else given["end"], given["days"], given["max_samples"], given["hot"]
        )
        with progress_of("report", unit="percent") as step:
            found = command.make(
                settings,
                options,
                top=given["top"],
                simulated=not given["no_simulation"],
                progress=lambda done, _part: step(done, 100),
            )
        command.write(found, file, beside)
    except (ProviderError, command.ReportError) as error:
        print_error(error, error.hint)
        raise SystemExit(FAILED) from None
    except ValueError as error:
        print_error(error, "check --prometheus and --set")
        raise SystemExit(FAILED) from None
    except OSError as error:
        print_error(f"{error.filename or file}: {error.strerror}", "check the path and the free disk space")
        raise SystemExit(FAILED) from None
    if output == "json":
        print_json(document.as_document(found))
    else:
        written = f"written: {file}" + (f" and {beside}" if beside else "")
        click.echo(document.as_text(found, written), err=printed)


def _settings(given: Mapping[str, Any]) -> ProviderSettings:
    """The settings of the source from the options and the environment. Exits with code 2 if they are invalid."""
    from watcher.sources.settings import ProviderSettings

    names = ("address", "token_file", "username", "password_file", "ca_file", "node_label")
    named = {f"provider.{name}": name for name in names if given[name] is not None}
    overrides = {key: str(given[name]) for key, name in named.items()}
    return load_or_exit(
        {"assigned": given["assigned"], "config": None},
        overrides={"provider.name": "prometheus", **overrides},
        named=named,
    )[ProviderSettings]
