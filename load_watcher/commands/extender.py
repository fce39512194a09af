"""`load-watcher extender`: runs the scheduling plug-ins as a process of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from load_watcher.cli.exit_codes import BAD_SETTINGS, print_settings_problems
from load_watcher.cli.options import (
    CONFIG,
    LOGGING,
    SET,
    listening_options,
    store_url,
    watcher_url,
    with_options,
)
from load_watcher.cli.settings import NO_SOURCE, load

if TYPE_CHECKING:
    from watcher.core.config.settings import Settings


@click.command(short_help="Run the scheduler extender as a process.")
@with_options(
    CONFIG,
    watcher_url("the watcher, for example http://load-watcher:2020 (extender.watcher). [default: extender.watcher]"),
    *listening_options("server", port=2025, protected=False),
    store_url("sqlite:///load-watcher-extender.db"),
    *LOGGING,
    SET,
)
def extender(**given: Any) -> None:
    """Run the scheduling plug-ins with the load of a watcher (load-watcher serve) at another address.

    It serves the same paths under /scheduler as serve with [scheduler], and stores decisions in a database of its own.
    If the watcher does not answer, its last load is used until it is too old; without load, plug-ins use their
    fallback. It runs until SIGTERM or SIGINT. SIGHUP reloads the settings.

    Exit code 0: stopped by a signal; 1: it could not start, for example because the port is in use; 2: the arguments or
    the settings are invalid, or the watcher does not offer data that a plug-in needs.
    """
    from load_watcher.extender.process import start_process
    from watcher.core.config.problems import SettingsError
    from watcher.platform.logs import ClusterSettings, LogSettings, setup_logging
    from watcher.service import main

    try:
        settings = settings_of(given)
        cluster = settings[ClusterSettings].name or ""
        setup_logging(settings[LogSettings], cluster=cluster)

        def reload() -> Settings:
            renewed = settings_of(given)
            setup_logging(renewed[LogSettings], cluster=cluster)
            return renewed

        code = main.run_process(lambda: start_process(settings), settings, reload=reload)
    except SettingsError as error:
        print_settings_problems(error)
        raise SystemExit(BAD_SETTINGS) from None
    raise SystemExit(code)


def settings_of(given: Mapping[str, Any]) -> Settings:
    """Return the settings of the process with these options. Raises SettingsError."""
    from load_watcher.extender.process import adapted

    overrides = {**NO_SOURCE, **({"extender.watcher": given["watcher"]} if given["watcher"] else {})}
    return adapted(load(given, overrides=overrides, own_windows=False))
