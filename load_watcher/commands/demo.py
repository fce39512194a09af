"""`load-watcher demo`: the service over a simulated cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from load_watcher.cli.options import CONFIG, SERVICE, finite, with_options
from load_watcher.cli.settings import load, load_or_exit
from load_watcher.commands.serve import run

if TYPE_CHECKING:
    from watcher.platform.settings.tables import Settings


@click.command()
@click.option(
    "--nodes",
    "count",
    default=24,
    show_default=True,
    type=click.IntRange(1, 5000),
    metavar="N",
    help="How many nodes to simulate, 1 to 5000.",
)
@click.option(
    "--speed",
    default=24.0,
    show_default=True,
    type=click.FloatRange(0.1, 1440.0),
    callback=finite,
    metavar="X",
    help="How many times as fast the day passes, 0.1 to 1440; times of samples stay true.",
)
@click.option("--seed", default=1, show_default=True, metavar="SEED", help="Another number, another cluster.")
@with_options(CONFIG, *SERVICE)
def demo(count: int, speed: float, seed: int, **given: Any) -> None:
    """Run the service over a simulated cluster, extender and dashboard on, until SIGTERM.

    Its nodes have a daily swing, bursts and faults to be found; pods arrive and are placed by the profile `default`,
    or by yours. Nothing of it is real, nothing outside is asked, and what it stores is gone when it ends.
    """
    import tempfile
    import time
    from dataclasses import replace

    from load_watcher.demo import settings as demo_settings
    from load_watcher.demo.scheduler import DEFAULT_SCHEDULER, DemoPart
    from load_watcher.demo.source import DemoProvider
    from watcher.fleet.cluster import SimulatedCluster
    from watcher.service.build import Sources

    with tempfile.TemporaryDirectory(prefix="load-watcher-demo-") as directory:

        def of_demo(loaded: Settings) -> Settings:
            adapted = demo_settings.adapted(loaded, store=Path(directory) / "load-watcher.db")
            return replace(adapted, parts={"scheduler": DEFAULT_SCHEDULER, **adapted.parts})

        settings = of_demo(load_or_exit(given, beside=demo_settings.FORCED))
        cluster = SimulatedCluster(count, seed=seed, speed=speed, begun=time.time())
        click.echo("\n  ".join(demo_settings.told(cluster)))
        sources = Sources(
            provider=lambda renewed: DemoProvider(cluster, resolution=renewed.refresh.resolution),
            directory=lambda _renewed: None,
        )
        code = run(
            settings,
            lambda: of_demo(load(given, beside=demo_settings.FORCED)),
            parts=(DemoPart(cluster),),
            sources=sources,
        )
    raise SystemExit(code)
