"""`load-watcher serve`: runs the service."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from load_watcher.cli.options import SERVE, with_options
from load_watcher.cli.settings import load, load_or_exit

if TYPE_CHECKING:
    from watcher.core.config.settings import Settings
    from watcher.platform.modules import ServiceModule
    from watcher.service.build import Sources


@click.command(short_help="Run the service.")
@with_options(*SERVE)
def serve(**given: Any) -> None:
    """Run the service until SIGTERM or SIGINT. SIGHUP reloads the settings.

    Exit code 0: stopped by a signal; 1: the service could not start, for example because the port is in use; 2: the
    arguments or the settings are invalid.
    """
    settings = load_or_exit(given)
    raise SystemExit(run(settings, lambda: load(given), parts=_parts(settings)))


def run(
    settings: Settings,
    reread: Callable[[], Settings],
    *,
    parts: Sequence[ServiceModule],
    sources: Sources | None = None,
) -> int:
    """Serve with these settings until a signal; return the exit code. `reread` reloads the settings."""
    import logging

    from watcher.platform.logs import ClusterSettings, LogSettings, setup_logging
    from watcher.sources.settings import ProviderSettings

    cluster = settings[ClusterSettings].name or ""
    setup_logging(settings[LogSettings], cluster=cluster)
    logger = logging.getLogger(__name__)
    for notice in settings.notices:
        logger.warning("settings: %s", notice)
    logger.info("provider of samples: %s (%s)", settings[ProviderSettings].name, settings[ProviderSettings].reason)
    from watcher.service import build, main

    def reload() -> Settings:
        renewed = reread()
        setup_logging(renewed[LogSettings], cluster=cluster)
        return renewed

    return main.run(settings, reload=reload, parts=parts, sources=sources or build.FROM_SETTINGS)


def _parts(settings: Settings) -> Sequence[ServiceModule]:
    """Return the modules of other packages that these settings enable; they are imported only if used."""
    from scorers.pasted_profile.module import PastedProfileModule
    from watcher.platform.kube.settings import MarksSettings

    parts: list[ServiceModule] = [PastedProfileModule()]
    if "scheduler" in settings.parts:
        from scorers.extender.service import SchedulerModule

        parts.insert(0, SchedulerModule())
    if settings[MarksSettings].is_on:
        from scorers.marks.module import MarksModule

        parts.append(MarksModule())
    return parts
