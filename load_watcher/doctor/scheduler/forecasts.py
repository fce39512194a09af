"""Checks whether the plug-ins with `use = "forecast"` have forecasts: by the settings, and by the running service."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from prometheus_client.parser import text_string_to_metric_families

from load_watcher.doctor.scheduler.thresholds import ProfilePlugins
from scorers.plugins.forecast_arguments import DEFAULT_HORIZON
from scorers.profiles.missing_forecasts import offered_horizons, unmet_forecasts
from watcher.core.forecast.settings import ForecastSettings
from watcher.platform.checks.results import CheckResult, ok, skipped, warn
from watcher.platform.net.settings import ExtenderSettings

if TYPE_CHECKING:
    from watcher.core.config.settings import Settings

MISSING = "load_watcher_scheduler_without_forecasts"


def check_forecasts(profiles: Sequence[ProfilePlugins], settings: Settings, exposition: str) -> Iterator[CheckResult]:
    """Check the profiles of [scheduler]; `exposition` is the text of /metrics of the process that has the plug-ins, ""
    if it does not run. The forecasts of a separate watcher are compared with the profiles by the check `service`."""
    missing = _missing(exposition)
    offered = None if settings[ExtenderSettings].watcher is not None else offered_horizons(settings[ForecastSettings])
    for profile in profiles:
        used = {**profile.use.filtering, **profile.use.scoring}
        for plugin, args in sorted(used.items()):
            if args.get("use") == "forecast":
                where = f"{profile.where}: {plugin}"
                yield _check(where, args, offered, missing.get((profile.where[len("[scheduler.") : -1], plugin)))


def _check(where: str, args: Mapping[str, Any], offered: Sequence[str] | None, missing: float | None) -> CheckResult:
    unmet = None if offered is None else unmet_forecasts(str(args.get("horizon", DEFAULT_HORIZON)), offered)
    if unmet is not None:
        return warn(f"{where} needs {unmet[0]}; it uses windows", unmet[1])
    if missing is None:
        return skipped(f"{where} uses forecasts; whether nodes have some is known once the service runs")
    if missing:
        cure = "GET /api/v1/forecasts has the reason for each node; new nodes have no forecast for a day or longer"
        return warn(f'{where} has use = "forecast", but no node has a forecast, so it uses windows', cure)
    return ok(f"{where} uses forecasts")


def _missing(exposition: str) -> dict[tuple[str, str], float]:
    """Return 1 for each profile and plug-in that uses windows for lack of forecasts, otherwise 0."""
    lines = [line for line in exposition.splitlines() if line.startswith(MISSING)]
    families = text_string_to_metric_families("\n".join([*lines, ""]))
    samples = [sample for family in families for sample in family.samples]
    return {(each.labels.get("profile", ""), each.labels.get("plugin", "")): each.value for each in samples}
