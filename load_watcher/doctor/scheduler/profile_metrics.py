"""Checks of profiles by the metrics of a running service: forecasts, overload by requests, and slow responses.

The argument `exposition` is the text of /metrics of the process that has the plug-ins, "" if it does not run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from load_watcher.doctor.scheduler.plugins import ProfilePlugins
from scorers.plugins.forecast_arguments import DEFAULT_HORIZON
from scorers.profiles.missing_forecasts import offered_horizons, unmet_forecasts
from scorers.profiles.overload_risk import CONDITION, overload_risk, requests_text
from watcher.core.config.settings import Settings
from watcher.core.forecast.settings import ForecastSettings
from watcher.platform.checks.results import CheckResult, ok, skipped, warn
from watcher.platform.net.settings import ExtenderSettings

MISSING = "load_watcher_scheduler_without_forecasts"
"""1 for a profile and plug-in that use windows for lack of forecasts, otherwise 0."""
RATIO = "load_watcher_scheduler_requests_to_usage_ratio"
DURATIONS = "load_watcher_scheduler_request_duration_seconds_bucket"
RARE, ENOUGH = 0.01, 100


def _samples(exposition: str, name: str) -> Iterator[tuple[Mapping[str, str], float]]:
    """Yield the labels and the value of each series of a metric."""
    lines = [line for line in exposition.splitlines() if line.startswith(name)]
    for family in text_string_to_metric_families("\n".join([*lines, ""])):
        yield from ((sample.labels, sample.value) for sample in family.samples)


def check_forecasts(profiles: Sequence[ProfilePlugins], settings: Settings, exposition: str) -> Iterator[CheckResult]:
    """Check that the plug-ins of [scheduler] with `use = "forecast"` have forecasts. Those of a separate watcher are
    compared with the profiles by the check `service`."""
    missing = {
        (labels.get("profile", ""), labels.get("plugin", "")): value for labels, value in _samples(exposition, MISSING)
    }
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


def check_requests(profiles: Sequence[ProfilePlugins], exposition: str, *, instead: str = "") -> Iterator[CheckResult]:
    """Compare the requests of pods with their usage, for profiles that need sufficient requests; `exposition` is the
    text of /metrics, "" if no service is running. `instead` precedes the fix: the plug-ins of scheduler-plugins do not
    have the recommended arguments."""
    ratios = {labels.get("resource", ""): value for labels, value in _samples(exposition, RATIO)}
    if not ratios:
        return
    found = requests_text(ratios)
    for profile in profiles:
        for plugin, args in profile.use.scoring.items():
            risk = overload_risk(plugin, args)
            if risk is None or risk.always:
                continue
            message = f"{profile.where}: {plugin} overloads more nodes than the default scheduler {CONDITION}"
            if risk.is_present(ratios):
                yield warn(f"{message}; {found}", instead + risk.remedy)
            else:
                yield ok(f"{message}; they do not: {found}")


def slow_response_bounds(exposition: str) -> dict[str, float]:
    """Return, by profile, the largest histogram bound in seconds that more than 1 % of the requests of a verb exceed,
    from the text of /metrics; 0 with fewer than 100 requests.
    """
    counts: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for labels, value in _samples(exposition, DURATIONS):
        key = labels.get("profile", ""), labels.get("verb", "")
        counts.setdefault(key, []).append((float(labels.get("le", "inf")), value))
    found: dict[str, float] = {}
    for (profile, _), buckets in counts.items():
        total = max(count for _, count in buckets)
        exceeded = [bound for bound, count in buckets if total >= ENOUGH and count < (1.0 - RARE) * total]
        found[profile] = max(found.get(profile, 0.0), *exceeded, 0.0)
    return found
