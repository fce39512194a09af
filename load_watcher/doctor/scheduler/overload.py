"""Checks whether a profile overloads more nodes than the default scheduler would, by the requests and usage of pods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.parser import text_string_to_metric_families

from load_watcher.doctor.scheduler.thresholds import ProfilePlugins
from scorers.profiles.overload_risk import CONDITION, overload_risk, requests_text
from watcher.platform.checks.results import CheckResult, ok, warn

RATIO = "load_watcher_scheduler_requests_to_usage_ratio"


def check_requests(profiles: Sequence[ProfilePlugins], exposition: str, *, instead: str = "") -> Iterator[CheckResult]:
    """Compare the requests of pods with their usage, for profiles that need sufficient requests; `exposition` is the
    text of /metrics, "" if no service is running. `instead` precedes the fix: the plug-ins of scheduler-plugins do not
    have the recommended arguments."""
    ratios = _ratios(exposition)
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


def _ratios(exposition: str) -> dict[str, float]:
    lines = [line for line in exposition.splitlines() if line.startswith(RATIO)]
    families = text_string_to_metric_families("\n".join([*lines, ""]))
    return {sample.labels.get("resource", ""): sample.value for family in families for sample in family.samples}
