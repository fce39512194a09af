"""The command `load-watcher top`: usage, forecasts and requests of nodes and pods."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any

import click

from load_watcher.cli.options import CLIENT_OPTIONS, OUTPUT, read_token, with_options

SORT = click.option(
    "--sort",
    type=click.Choice(("cpu", "memory", "name")),
    default="cpu",
    show_default=True,
    help="Sort by usage, highest first, or by name.",
)
WATCH = click.option("--watch", is_flag=True, help="Print the table again every 15 s, until interrupted.")
WATCH_S = 15.0


@click.group(short_help="Show usage, forecasts and requests.")
def top() -> None:
    """Show usage beside requests, of nodes or pods, from a running service."""


@top.command("nodes", short_help="Show nodes.")
@click.option("--window", default="15m", show_default=True, metavar="WINDOW", help="Window of the means.")
@click.option("--horizon", metavar="HORIZON", help="Horizon of the forecasts. [default: the one of the service]")
@SORT
@WATCH
@with_options(*CLIENT_OPTIONS)
@OUTPUT
def nodes(window: str, horizon: str | None, sort: Any, **given: Any) -> None:
    """Show CPU and memory of nodes in percent of their capacity.

    Per resource: the mean of the window, the upper bound of the forecast, and the requests of the pods in percent of
    what is allocatable. Requests require [scheduler] in the settings of the service. "-" is unknown.

    Exit code 0: shown; 2: the arguments are invalid, or the request failed.
    """
    from load_watcher.top.tables import node_tables
    from load_watcher.top.usage import nodes_document

    def request(address: str, token: str | None) -> Coroutine[Any, Any, dict[str, Any]]:
        return nodes_document(address, window=window, horizon=horizon, order=sort, token=token)

    _show(request, node_tables, **given)


@top.command("pods", short_help="Show pods.")
@click.option("--node", "of_nodes", multiple=True, metavar="NODE", help="Only pods on this node; can be repeated.")
@click.option(
    "-n", "--namespace", "namespaces", multiple=True, metavar="NAME", help="Only this namespace; can be repeated."
)
@SORT
@WATCH
@with_options(*CLIENT_OPTIONS)
@OUTPUT
def pods(of_nodes: tuple[str, ...], namespaces: tuple[str, ...], sort: Any, **given: Any) -> None:
    """Show CPU and memory of pods.

    Per resource: the newest reading, the mean of each window, and the request. Requests require [scheduler] in the
    settings of the service. "-" is unknown.

    Exit code 0: shown; 2: the arguments are invalid, or the request failed.
    """
    from load_watcher.top.tables import pod_tables
    from load_watcher.top.usage import pods_document

    def request(address: str, token: str | None) -> Coroutine[Any, Any, dict[str, Any]]:
        return pods_document(address, nodes=of_nodes, namespaces=namespaces, order=sort, token=token)

    _show(request, pod_tables, **given)


def _show(
    request: Callable[[str, str | None], Coroutine[Any, Any, dict[str, Any]]],
    tables: Callable[[Mapping[str, Any]], Iterator[Any]],
    *,
    watch: bool,
    **given: Any,
) -> None:
    """Print the answer once, or again and again. A request that fails ends the command."""
    from load_watcher.cli.answers import print_answer

    if watch and given["output"] != "text":
        raise click.BadOptionUsage("watch", "--watch requires -o text")
    token = read_token(given["token_file"])
    while True:
        if watch:
            click.clear()
        print_answer(request(given["url"].rstrip("/"), token), tables, url=given["url"], output=given["output"])
        if not watch:
            return
        time.sleep(WATCH_S)
