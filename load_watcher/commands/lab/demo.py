"""`load-watcher demo`: the service with a simulated cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from load_watcher.cli.options import CONFIG, finite, service_options, store_url, with_options
from load_watcher.cli.settings import load, load_or_exit
from load_watcher.commands.serve import run

if TYPE_CHECKING:
    from watcher.core.config.settings import Settings


@click.command(short_help="Run the service with a simulated cluster.")
@click.option(
    "--nodes",
    "count",
    default=24,
    show_default=True,
    type=click.IntRange(1, 5000),
    metavar="N",
    help="Number of simulated nodes.",
)
@click.option(
    "--speed",
    default=24.0,
    show_default=True,
    type=click.FloatRange(0.1, 1440.0),
    callback=finite,
    metavar="X",
    help="Speed of the simulated load pattern, as a multiple of real time: at 24, a simulated day takes one hour. "
    "Samples have current timestamps.",
)
@click.option(
    "--seed",
    default=1,
    show_default=True,
    metavar="SEED",
    help="Random seed (whole number) of the simulated cluster: its nodes, pods, loads and faults.",
)
@with_options(
    CONFIG,
    *service_options(
        interval="refresh.interval if set, otherwise 15s or refresh.resolution, whichever is larger",
        database=store_url("a temporary file, deleted at the end"),
    ),
)
def demo(count: int, speed: float, seed: int, **given: Any) -> None:
    """Run the service with a simulated cluster.

    It includes the scheduler extender and the dashboard, and runs until SIGTERM or SIGINT. The nodes have a daily load
    cycle, bursts and monitoring faults. New pods are placed by the extender's profile `default`; if the settings have
    [scheduler] without this profile, by its first profile by name. No real cluster or metrics source is accessed. The
    database is a temporary file that is deleted at the end; only --store-url (or --set store.url) selects another one,
    store.url in the file and the environment is ignored.

    Exit code 0: stopped by a signal; 1: the service could not start; 2: the arguments or the settings are invalid.
    """
    import tempfile
    import time
    from dataclasses import replace

    from lab.demo import settings as demo_settings
    from lab.demo.past import past_windows
    from lab.demo.scheduler import DEFAULT_SCHEDULER, DemoSchedulerModule
    from lab.demo.source import DemoProvider
    from lab.fleet.cluster import SimulatedCluster
    from scorers.pasted_profile.module import PastedProfileModule
    from watcher.core.windows.settings import RefreshSettings
    from watcher.service.build import Sources
    from watcher.store.settings import StoreSettings

    with tempfile.TemporaryDirectory(prefix="load-watcher-demo-") as directory:

        def of_demo(loaded: Settings) -> Settings:
            adapted = demo_settings.adapted(loaded, store=Path(directory) / "load-watcher.db")
            return replace(adapted, parts={"scheduler": DEFAULT_SCHEDULER, **adapted.parts})

        settings = of_demo(load_or_exit(given, overrides=demo_settings.FORCED))
        cluster = SimulatedCluster(count, seed=seed, speed=speed, begun=time.time())
        click.echo("\n  ".join(demo_settings.banner_lines(cluster)))
        sources = Sources(
            provider=lambda renewed: DemoProvider(cluster, resolution=renewed[RefreshSettings].point_resolution),
            directory=lambda _renewed: None,
            past=lambda renewed: past_windows(
                cluster, windows=renewed[RefreshSettings].windows, kept=renewed[StoreSettings].keep
            ),
        )
        code = run(
            settings,
            lambda: of_demo(load(given, overrides=demo_settings.FORCED)),
            parts=(DemoSchedulerModule(cluster), PastedProfileModule()),
            sources=sources,
        )
    raise SystemExit(code)
