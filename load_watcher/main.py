"""The command line `load-watcher`. Each command has a module in `load_watcher.commands`."""

from __future__ import annotations

import click

from load_watcher.commands import (
    agent,
    compare,
    config,
    db,
    demo,
    doctor,
    extender,
    qrm,
    record,
    score,
    serve,
    shadow,
    simulate,
    why,
)
from watcher import __version__

COMMANDS: tuple[click.Command, ...] = (
    serve.serve,
    demo.demo,
    extender.extender,
    doctor.doctor,
    compare.compare,
    score.score,
    why.why,
    shadow.shadow,
    record.record,
    simulate.simulate,
    config.config,
    agent.agent,
    qrm.qrm,
    db.db,
)


@click.group(commands=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="load-watcher", message="%(prog)s %(version)s")
def main() -> None:
    """Real-load-aware scheduling and node protection for Kubernetes.

    Settings are read from flags, environment variables (LOAD_WATCHER_<SECTION>_<KEY>) and the TOML file, in this order
    of precedence; docs/settings.md lists all of them. A command exits with 2 if its arguments or the settings are
    invalid; doctor reports invalid settings as a failed check and exits with 1.

    A DURATION is a number with a unit, for example 250ms, 30s, 15m or 1h30m; without a unit it is in seconds.
    """
