"""The command line `load-watcher`. Each command has a file in commands/."""

from __future__ import annotations

import click

from load_watcher.commands import (
    agent,
    compare,
    config,
    db,
    demo,
    doctor,
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
    """Windows of node load for Kubernetes scheduling.

    Settings come from flags, then the environment (LOAD_WATCHER_<SECTION>_<KEY>), then load-watcher.toml.
    """
