"""Profiles whose plug-ins use forecasts that the settings of the watcher do not provide."""

from __future__ import annotations

from collections.abc import Sequence

from scorers.profiles.profiles import ProfileSettings, horizons_of
from watcher.core.forecast.settings import ForecastSettings


def offered_horizons(forecast: ForecastSettings) -> list[str]:
    """Return the horizons that can be requested from a watcher with these settings."""
    return [f"{hours}h" for hours in forecast.horizons] if forecast.enabled else []


def unmet_forecasts(horizon: str, offered: Sequence[str], *, where: str = "") -> tuple[str, str] | None:
    """Return the missing forecasts and a remedy if the plug-ins need this horizon ("": none) and it is not among the
    offered ones. `where` names the watcher."""
    if not horizon or horizon in offered:
        return None
    if not offered:
        return f"forecasts, which are disabled{where}", 'set forecast.enabled = true, or use = "window" for the plug-in'
    there = ", ".join(offered)
    cure = f'add "{horizon}" to forecast.horizons, or set horizon to one of them'
    return f"forecasts over {horizon}{where}, but forecast.horizons has {there}", cure


def missing_forecast_notices(profile: ProfileSettings, forecast: ForecastSettings) -> tuple[str, ...]:
    """Return one sentence for each plug-in of the profile that uses forecasts which the table [forecast] disables."""
    offered = offered_horizons(forecast)
    found = {plugin: unmet_forecasts(horizon, offered) for plugin, horizon in horizons_of(profile).items()}
    return tuple(
        f"{plugin} needs {lacking[0]}, so it uses windows; {lacking[1]}" for plugin, lacking in found.items() if lacking
    )
