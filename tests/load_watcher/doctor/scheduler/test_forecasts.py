"""The doctor says whether plug-ins with `use = "forecast"` have forecasts."""

from __future__ import annotations

from typing import Any

import pytest

from load_watcher.doctor.scheduler.plugins import ProfilePlugins, use_of
from load_watcher.doctor.scheduler.profile_metrics import check_forecasts
from watcher.core.config.settings import Settings
from watcher.core.forecast.settings import ForecastSettings
from watcher.platform.checks.results import CheckStatus

METRICS = 'load_watcher_scheduler_without_forecasts{{profile="default",plugin="HighLoadFilter"}} {missing}\n'
ON, OFF = Settings(), Settings().having(ForecastSettings(enabled=False))


def profile(**args: Any) -> list[ProfilePlugins]:
    return [ProfilePlugins("[scheduler.default]", use_of({"HighLoadFilter": args, "Peaks": {}}))]


@pytest.mark.parametrize(
    ("args", "settings", "metrics", "status", "text"),
    [
        ({}, ON, METRICS.format(missing=0), CheckStatus.OK, "HighLoadFilter uses forecasts"),
        ({}, ON, METRICS.format(missing=1), CheckStatus.WARN, "but no node has a forecast, so it uses windows"),
        ({}, OFF, METRICS.format(missing=1), CheckStatus.WARN, "needs forecasts, which are disabled"),
        ({}, ON, "", CheckStatus.SKIPPED, "is known once the service runs"),
        ({"horizon": "24h"}, ON, METRICS.format(missing=0), CheckStatus.OK, "uses forecasts"),
    ],
)
def test_a_plug_in_with_forecasts(
    args: dict[str, Any], settings: Settings, metrics: str, status: CheckStatus, text: str
) -> None:
    (found,) = check_forecasts(profile(use="forecast", **args), settings, metrics)
    assert found.status is status
    assert text in found.what


def test_plugins_with_windows_need_no_forecasts() -> None:
    assert list(check_forecasts(profile(), OFF, "")) == []
