"""Checks kube-scheduler's configuration: mistakes that keep kube-scheduler from using load-watcher.

kube-scheduler itself reports fields and plug-ins that it does not know. It does not report plug-ins with conflicting
scores, arguments that bypass load-watcher, or a second scheduler that waits for the lease of the first.

This module checks profiles and plug-ins; `plugin_arguments` checks the plug-ins' arguments, `extenders` extender
entries, and `thresholds` conflicting thresholds. Only this module does I/O: it reads the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from load_watcher.doctor.listening import Exposition
from load_watcher.doctor.scheduler import extenders, thresholds
from load_watcher.doctor.scheduler.plugin_arguments import TRIMARAN, check_plugin_arguments
from load_watcher.doctor.scheduler.plugins import (
    PluginUse,
    ProfilePlugins,
    documents_in,
    mapping,
    mappings,
    use_of_profile,
    use_of_table,
)
from load_watcher.doctor.scheduler.profile_metrics import check_forecasts, check_requests, slow_response_bounds
from watcher.core.config.settings import Settings
from watcher.core.messages import shorten_names
from watcher.decoding.yaml_text import decode_yaml_documents
from watcher.platform.checks.examination import CheckContext, in_thread
from watcher.platform.checks.results import CheckResult, fail, ok, skipped, warn
from watcher.platform.http.settings import ServerSettings

KIND = "KubeSchedulerConfiguration"
GROUP = "kubescheduler.config.k8s.io"
RIVALS = ("NodeResourcesFit", "NodeResourcesBalancedAllocation")
"""Score plug-ins of Kubernetes that score by requests, which works against scores by load."""


async def scheduler(examination: CheckContext) -> Sequence[CheckResult]:
    """Check the given scheduler configurations, the profiles of [scheduler] with the files that they import by `from`,
    and the given configurations of evictors.
    """
    settings = examination.find(Settings)
    own = [] if settings is None else [await _own(name, table, examination.cwd) for name, table in _tables(settings)]
    service = _service(settings, own, examination.find(Exposition)) if settings is not None and own else None
    results = [result for profile in own for result in profile.results]
    profiles = [ProfilePlugins(f"[scheduler.{each.name}]", each.use) for each in own if each.use is not None]
    of_kube_scheduler: list[ProfilePlugins] = []
    for path, text in await _texts(examination.scheduler_files, "kube-scheduler's --config names", results):
        results += _of_file(path, _judged(text, service, settings))
        of_kube_scheduler += profiles_in(text, path.name)
    evictors: list[thresholds.EvictionThresholds] = []
    for path, text in await _texts(examination.evictor_files, "configures the descheduler or the agent", results):
        found, problems = thresholds.evictors_in(text)
        results += _of_file(path, problems)
        evictors += [replace(each, where=f"{path.name}: {each.where}") for each in found]
    results += thresholds.compare_thresholds([*profiles, *of_kube_scheduler], evictors)
    running = examination.find(Exposition)
    exposition = "" if running is None else running.text
    results += check_requests(profiles, exposition)
    results += check_forecasts(profiles, settings, exposition) if settings is not None else ()
    results += check_requests(of_kube_scheduler, exposition, instead="use the extender of load-watcher, and ")
    if results:
        return results
    if own:
        return [
            ok(f"no conflicts between the plug-ins of {shorten_names([f'[scheduler.{each.name}]' for each in own])}")
        ]
    return [skipped("no scheduler configuration given (--scheduler-config FILE)")]


async def _texts(paths: Sequence[Path], which: str, results: list[CheckResult]) -> list[tuple[Path, bytes]]:
    """Read the files; for each that cannot be read, append a result."""
    found = []
    for path in paths:
        text = await _read(path, f"name the file that {which}")
        if isinstance(text, CheckResult):
            results.append(text)
        else:
            found.append((path, text))
    return found


def _judged(text: bytes, service: extenders.ServiceSettings | None, settings: Settings | None) -> list[CheckResult]:
    found = list(check_configuration(text, service)) or [ok("its profiles use load-watcher; no problems found")]
    if service is None and settings is not None and any(map(_asks_our_extender, _readable(text))):
        why = "its extender cannot be checked: the settings have no [scheduler]"
        found.append(skipped(f"{why}; --config names the settings of the extender's service"))
    return found


async def _read(path: Path, cure: str) -> bytes | CheckResult:
    try:
        return await in_thread(path.read_bytes)
    except OSError as error:
        return fail(f"cannot read {path}: {error.strerror}", cure)


def _of_file(path: Path, results: Iterable[CheckResult]) -> list[CheckResult]:
    return [CheckResult(each.status, f"{path.name}: {each.what}", each.cure) for each in results]


# --- profiles of [scheduler] -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _ConfiguredProfile:
    """A profile of [scheduler.NAME] with its plug-ins (None: unknown), whether its scores are 0 to 100 (`precise`), and
    the results for its imported file."""

    name: str
    bind: bool
    precise: bool
    use: PluginUse | None
    results: Sequence[CheckResult] = ()


def _tables(settings: Settings) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Return the tables [scheduler.NAME]; other values are problems of the settings."""
    tables = settings.parts.get("scheduler", {})
    return ((name, table) for name, table in tables.items() if isinstance(table, dict))


async def _own(name: str, table: Mapping[str, Any], cwd: Path) -> _ConfiguredProfile:
    made = partial(_ConfiguredProfile, name, table.get("bind") is True, table.get("precise_scores") is True)
    if not isinstance(table.get("from"), str):
        return made(use_of_table(table))
    path, profile = cwd / table["from"], str(table.get("profile", ""))
    text = await _read(path, "name a readable file")
    if isinstance(text, CheckResult):
        return made(None, [text])
    found = list(check_imported_profile(text, profile=profile)) or [ok("the profile imported by [scheduler] is valid")]
    uses = [use for called, use in _uses(_configurations(decode_yaml_documents(text))) if profile in ("", called)]
    return made(uses[0] if len(uses) == 1 else None, _of_file(path, found))


def _service(
    settings: Settings, own: Sequence[_ConfiguredProfile], running: Exposition | None
) -> extenders.ServiceSettings:
    profiles = {each.name: extenders.ConfiguredProfile(each.bind, each.use, each.precise) for each in own}
    server = settings[ServerSettings]
    slow = {} if running is None else slow_response_bounds(running.text)
    verified = bool(server.tls_client_ca)
    return extenders.ServiceSettings(profiles, bool(server.tls_cert), verified, server.scheduler_clients, slow)


def profiles_in(content: str | bytes, name: str) -> list[ProfilePlugins]:
    """Return the profiles of a configuration with filter or score plug-ins of load-watcher; `name` is the file's
    name.
    """
    return [
        ProfilePlugins(f"{name}: profile {called}", use)
        for called, use in _uses(_readable(content))
        if use.filtering or use.scoring
    ]


def _readable(content: str | bytes) -> list[Mapping[str, Any]]:
    try:
        return list(_configurations(decode_yaml_documents(content)))
    except msgspec.DecodeError:
        return []  # reported by `check_configuration`


def _uses(configurations: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, PluginUse]]:
    """Yield the name and the plug-in use of each profile."""
    for configuration in configurations:
        for profile in mappings(configuration.get("profiles")):
            plugins = _read_plugins(profile.get("plugins"))
            named = {name for names in plugins.enabled.values() for name in names}
            filtering = {name for name in named if plugins.runs(name, "filter")}
            scoring = {name for name in named if plugins.runs(name, "score")}
            called = str(profile.get("schedulerName", "default-scheduler"))
            yield called, use_of_profile(profile, filtering=filtering, scoring=scoring)


# --- the document ----------------------------------------------------------------------------------------------------


def check_configuration(
    content: str | bytes, service: extenders.ServiceSettings | None = None
) -> Iterator[CheckResult]:
    """Yield the problems of a kube-scheduler configuration with the Trimaran plug-ins or load-watcher's extender, given
    as YAML or JSON, or inside a ConfigMap; `service` are the settings of that extender, if known.
    """
    try:
        documents = [each for each in decode_yaml_documents(content) if each is not None]
        configurations = list(_configurations(documents))
    except msgspec.DecodeError as error:
        yield fail(f"invalid YAML: {error}", "indent with spaces, not with tabs, and quote text that contains a colon")
        return
    if not configurations:
        kinds = [str(each.get("kind")) for each in documents if isinstance(each, dict)]
        found = f", only {shorten_names(kinds)}" if kinds else ""
        yield fail(f"it contains no {KIND}{found}", f"start it with apiVersion: {GROUP}/v1 and kind: {KIND}")
    for configuration in configurations:
        yield from _judge(configuration, service)


def check_imported_profile(content: str | bytes, *, profile: str) -> Iterator[CheckResult]:
    """Yield the problems of a profile ("": any) that [scheduler] imports: plug-ins of kube-scheduler with scores that
    work against load-watcher's. Problems that make the settings invalid are not repeated.
    """
    for configuration in _configurations(decode_yaml_documents(content)):
        for each in configuration.get("profiles") or ():
            name = str(each.get("schedulerName", "default-scheduler"))
            if profile in ("", name):
                plugins = _read_plugins(each.get("plugins"))
                ours = [one for one in plugins.enabled.get("score", ()) if one not in RIVALS]
                yield from _rivals(plugins, ours, where=f"profile {name}")


def _configurations(documents: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the scheduler configurations among these documents and in the data of ConfigMaps."""
    for document in documents_in(documents, marker=KIND):
        if document.get("kind") == KIND or GROUP in str(document.get("apiVersion")):
            yield document


def _judge(configuration: Mapping[str, Any], service: extenders.ServiceSettings | None) -> Iterator[CheckResult]:
    profiles = configuration.get("profiles")
    if not isinstance(profiles, list) or not all(isinstance(each, dict) for each in profiles) or not profiles:
        yield fail("it has no list of profiles, so it configures no plug-ins", "put plug-ins under profiles: [...]")
        return
    names = [str(each.get("schedulerName", "default-scheduler")) for each in profiles]
    score_by_load = False
    for each, name in zip(profiles, names, strict=True):
        plugins, where = _read_plugins(each.get("plugins")), f"profile {name}"
        scoring = [plugin for plugin in TRIMARAN if plugins.runs(plugin, "score")]
        if scoring:
            yield from _rivals(plugins, scoring, where=where)
        yield from _company(plugins, scoring, where=where)
        yield from check_plugin_arguments(each.get("pluginConfig"), scoring, where=where)
        score_by_load |= bool(scoring)
        if not scoring:
            yield from _beside_our_extender(configuration, plugins, service, where=where)
    if not score_by_load and not _asks_our_extender(configuration):
        cure = "enable one, for example plugins.score.enabled: [{name: TargetLoadPacking}]"
        yield fail(f"no profile enables a plug-in that scores by load ({', '.join(TRIMARAN)})", cure)
    yield from extenders.check_extenders(configuration.get("extenders"), service)
    yield from _lease(configuration, names)


def _asks_our_extender(configuration: Mapping[str, Any]) -> bool:
    """Whether the configuration has a scoring extender with load-watcher's path, /scheduler/PROFILE."""
    return any(each.get("prioritizeVerb") for each in _our_extenders(configuration))


def _our_extenders(configuration: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [each for each in mappings(configuration.get("extenders")) if extenders.is_load_watcher_extender(each)]


def _beside_our_extender(
    configuration: Mapping[str, Any], plugins: Plugins, service: extenders.ServiceSettings | None, *, where: str
) -> Iterator[CheckResult]:
    """Warn about Kubernetes plug-ins that score by requests, if the scores of load-watcher's extender count as much:
    weight 1 for scores 0 to 10. kube-scheduler multiplies them by 10 and by the weight."""
    scoring = [each for each in _our_extenders(configuration) if each.get("prioritizeVerb")]
    weak = [each for each in scoring if each.get("weight") == 1 and extenders.scores_up_to_ten(each, service)]
    on = [each for each in RIVALS if not plugins.is_off(each, "score")]
    if on and weak:
        message = (
            f"{where}: {' and '.join(on)} score{'s' if len(on) == 1 else ''} by requests, against the extender's load"
        )
        cure = "set precise_scores = true in the profile of load-watcher, or give the extender a higher weight"
        yield warn(message, cure)


def _lease(configuration: Mapping[str, Any], names: Sequence[str]) -> Iterator[CheckResult]:
    """Warn about a second scheduler with the lease of the first: it never becomes leader and schedules nothing."""
    given = mapping(configuration.get("leaderElection"))
    own_lease = given.get("resourceName") not in (None, "kube-scheduler")
    if "default-scheduler" not in names and given.get("leaderElect") is not False and not own_lease:
        message = "leaderElection uses the lease of the default scheduler: a second scheduler would wait for it forever"
        yield warn(message, "set leaderElection.leaderElect: false, or another leaderElection.resourceName")


# --- a profile -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plugins:
    """The plug-ins of a profile: names of enabled and of disabled plug-ins by extension point."""

    enabled: Mapping[str, Sequence[str]]
    disabled: Mapping[str, Sequence[str]]

    def runs(self, name: str, point: str) -> bool:
        """Whether the plug-in is enabled at the extension point, directly or by multiPoint."""
        if name in self.enabled.get(point, ()):
            return True
        return name in self.enabled.get("multiPoint", ()) and not {name, "*"} & set(self.disabled.get(point, ()))

    def is_off(self, name: str, point: str) -> bool:
        """Whether a plug-in that is enabled by default in Kubernetes is disabled at the extension point."""
        if name in self.enabled.get(point, ()):
            return False
        return any({name, "*"} & set(self.disabled.get(each, ())) for each in (point, "multiPoint"))


def _read_plugins(given: Any) -> Plugins:
    """Read the plug-ins of a profile. kube-scheduler itself reports entries of another form, which are skipped."""
    points = {name: mapping(each) for name, each in mapping(given).items()}
    return Plugins(
        *({name: _listed(point.get(key)) for name, point in points.items()} for key in ("enabled", "disabled"))
    )


def _listed(items: Any) -> list[str]:
    return [name for item in mappings(items) if isinstance(name := item.get("name"), str)]


def _rivals(plugins: Plugins, scoring: Sequence[str], *, where: str) -> Iterator[CheckResult]:
    """Yield problems for plug-ins that score by requests, against the plug-ins that score by load."""
    on = [each for each in RIVALS if not plugins.is_off(each, "score")]
    if on:
        verb = "scores" if len(on) == 1 else "score"
        message = f"{where}: {' and '.join(on)} {verb} by requests, against {shorten_names(scoring)}"
        names = ", ".join(f"{{name: {each}}}" for each in on)
        yield fail(message, f"add [{names}] to plugins.score.disabled")
    if any("NodeResourcesFit" in plugins.disabled.get(point, ()) for point in ("filter", "multiPoint")):
        message = f"{where}: NodeResourcesFit is also disabled as a filter: pods will be placed on full nodes"
        yield fail(message, "disable it in plugins.score.disabled only")


def _company(plugins: Plugins, scoring: Sequence[str], *, where: str) -> Iterator[CheckResult]:
    """Yield warnings for several Trimaran plug-ins in a profile, and for a missing preScore plug-in."""
    if len(scoring) > 1:
        yield warn(f"{where}: {' and '.join(scoring)} are enabled together", "enable only one of them per profile")
    if "LowRiskOverCommitment" in scoring and not plugins.runs("LowRiskOverCommitment", "preScore"):
        message = (
            f"{where}: LowRiskOverCommitment is not enabled in preScore, so it recomputes everything for each node"
        )
        yield warn(message, "add {name: LowRiskOverCommitment} to plugins.preScore.enabled")
