"""Profiles: the plug-ins of a scheduler profile, with weights and arguments, from the settings or from a
KubeSchedulerConfiguration file.

A profile is a table `[scheduler.NAME]`:

    plugins = [ { name = "TargetLoadPacking", weight = 1, args = { targetUtilization = 50 } } ]
    from = "scheduler-config.yaml", profile = "trimaran"      instead of plugins
    precise_scores = false      scores 0 to 100 instead of 0 to 10, the scale of the extender protocol
    reserve = "prioritize"      or "bind" or "off": when a pod is reserved on its node
    bind = false                whether pods are bound through the extender

In addition, `shadow = ["NAME", …]` in [scheduler] names the profiles of shadow mode; a table named shadow is a profile.

All problems are reported at once, each with its key and a fix.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from scorers.plugin_api.arguments import ArgumentsError, read_arguments
from scorers.plugin_api.wire import without_nulls
from scorers.plugins.forecast_arguments import ForecastArguments
from scorers.profiles.registry import UnknownPlugin, extension_points, factory_of, known_names
from watcher.core.config.fields import Field
from watcher.core.config.problems import Problem
from watcher.core.config.reader import Report, lacks, made, read, readable
from watcher.core.messages import nearest
from watcher.decoding.text import read_text
from watcher.decoding.yaml_text import decode_yaml
from watcher.model import Window

Reserve = Literal["prioritize", "bind", "off"]

LARGEST_WEIGHT = 10_000
SHADOW = "shadow"
_PLUGIN = '{ name = "TargetLoadPacking", weight = 1, args = { … } }'
_PLUGINS = 'plugins = [ { name = "TargetLoadPacking" } ]'
API_GROUP = "kubescheduler.config.k8s.io/"
EXTENSION_POINTS = ("multiPoint", "filter", "preScore", "score")
OTHER_POINTS = (
    *("preEnqueue", "queueSort", "preFilter", "postFilter", "reserve", "permit", "preBind", "bind", "postBind"),
)
PROFILE_KEYS = ("schedulerName", "percentageOfNodesToScore", "plugins", "pluginConfig")
MISSPELLING_CUTOFF = (
    0.85  # similarity above which a name counts as misspelled; NodeResourcesFit and NodeResourceLimits differ more
)


@dataclass(frozen=True, slots=True)
class PluginSettings:
    """A plug-in of a profile; `points` are its enabled extension points: "filter", "score"."""

    name: str
    weight: int = 1
    args: Mapping[str, Any] = field(default_factory=dict)
    points: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    """A validated profile table [scheduler.NAME]."""

    name: str
    plugins: tuple[PluginSettings, ...]
    precise_scores: bool = False
    reserve: Reserve = "prioritize"
    bind: bool = False


class _PluginTable(msgspec.Struct):
    """An entry of `plugins`; `weight` multiplies its scores."""

    name: str
    weight: Annotated[int, msgspec.Meta(ge=1, le=LARGEST_WEIGHT)] = 1
    args: dict[str, Any] = {}


class _ProfileTable(msgspec.Struct, rename={"source": "from"}):
    """The table [scheduler.NAME]; `source` is the path of a KubeSchedulerConfiguration."""

    plugins: tuple[Any, ...] | None = None
    source: str | None = None
    profile: str | None = None
    precise_scores: bool = False
    reserve: Reserve = "prioritize"
    bind: bool = False


@dataclass(slots=True)
class _ProfileProblems:
    """Problems and notices collected while all profile tables are read."""

    served: Sequence[Window] = ()
    problems: list[Problem] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def wrong(self, key: str, message: str, cure: str) -> None:
        self.problems.append(Problem(key, message, cure))


class _TableReport(Report):
    """The problems of one table, which is at `key`."""

    def __init__(self, key: str, reading: _ProfileProblems, *, example: str) -> None:
        super().__init__()
        self._key, self._reading, self._example = key, reading, example

    def unknown(self, name: str, known: Collection[str]) -> None:
        near = nearest(name, known)
        self._wrong("unknown key", f"did you mean {near}?" if near else f"valid keys: {', '.join(known)}")

    def missing(self, field: Field) -> None:
        self._wrong("is required", f"for example {self._example}")

    def unfit(self, accepts: str, given: Any, detail: str = "", field: Field | None = None) -> None:
        cure = f"for example {self._example}" if accepts in ("a mapping", "a list") else f"write {accepts}"
        self._wrong(f"must be {accepts}; given {given!r}", cure)

    def notice(self, message: str) -> None:
        """A null is a key that is not given."""

    def _wrong(self, message: str, cure: str) -> None:
        self._reading.wrong(".".join((self._key, *map(str, self.path))), message, cure)


def read_profiles(
    scheduler: Mapping[str, Any], *, cwd: Path, served: Sequence[Window] = ()
) -> tuple[tuple[ProfileSettings, ...], tuple[Problem, ...], tuple[str, ...]]:
    """Return the profiles of the table [scheduler], problems, and notices about ignored entries. Paths in `from` are
    relative to `cwd`; `served` are the watcher's windows, empty when unknown."""
    reading = _ProfileProblems(served)
    tables = {name: table for name, table in scheduler.items() if not _is_shadow(name, table)}
    profiles = [_read_profile(name, table, reading, cwd=cwd) for name, table in tables.items()]
    found = tuple(profile for profile in profiles if profile is not None)
    _check_shadow(scheduler, tables, reading)
    _check_horizons(found, reading)
    return found, tuple(reading.problems), tuple(reading.notices)


def validate(scheduler: Mapping[str, Any], *, served: Sequence[Window] = ()) -> list[Problem]:
    """Return the problems of the table [scheduler] for the settings' list of problems; with `served`, also arguments
    that need windows which the watcher does not provide."""
    return list(read_profiles(scheduler, cwd=Path.cwd(), served=served)[1])


def read_pasted_profile(
    text: str, *, served: Sequence[Window] = ()
) -> tuple[ProfileSettings | None, tuple[Problem, ...], tuple[str, ...]]:
    """Return the profile of an untrusted YAML or JSON text: a KubeSchedulerConfiguration, or `plugins` as in
    [scheduler.NAME]. Reads no file. Returns problems and notices as `read_profiles`."""
    key, reading = "profile", _ProfileProblems(served)
    plugins: tuple[PluginSettings, ...] = ()
    try:
        document = decode_yaml(text, aliases=False)
    except msgspec.DecodeError as error:
        reading.wrong(key, f"invalid YAML: {error}", "plugins: [{name: TargetLoadPacking}]")
        return None, tuple(reading.problems), ()
    if isinstance(document, dict) and str(document.get("apiVersion", "")).startswith(API_GROUP):
        plugins = _pasted_configuration(key, _dicts(document.get("profiles")), reading)
    elif isinstance(document, dict) and set(document) == {"plugins"}:
        plugins = _plugins_of(
            key, read(_ProfileTable, document, _TableReport(key, reading, example=_PLUGINS)), reading, cwd=Path()
        )
    else:
        cure = f"start with plugins:, or with apiVersion: {API_GROUP}v1 of a KubeSchedulerConfiguration"
        reading.wrong(key, "is not a profile", cure)
    found = None if reading.problems else ProfileSettings("pasted", plugins, precise_scores=True)
    _check_horizons([] if found is None else [found], reading)
    return found, tuple(reading.problems), tuple(reading.notices)


def _pasted_configuration(
    key: str, profiles: Sequence[Mapping[str, Any]], reading: _ProfileProblems
) -> tuple[PluginSettings, ...]:
    """Return the plug-ins of the only profile, or of the only one with plug-ins of load-watcher."""
    known = set(known_names())
    with_plugins = [
        each
        for each in profiles
        if known & set(_enabled_in(each["plugins"] if isinstance(each.get("plugins"), Mapping) else {})[1])
    ]
    chosen = profiles if len(profiles) == 1 else with_plugins
    if len(chosen) == 1:
        return _plugins_in(key, chosen[0], reading)
    names = ", ".join(str(each.get("schedulerName", "default-scheduler")) for each in chosen or profiles) or "none"
    reading.wrong(key, f"must have one profile with plug-ins of load-watcher; profiles: {names}", "keep one profile")
    return ()


def shadow_of(scheduler: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the profiles of shadow mode from a valid table [scheduler]."""
    given = scheduler.get(SHADOW)
    return tuple(given) if isinstance(given, list) else ()


def _is_shadow(name: str, table: Any) -> bool:
    return name == SHADOW and not isinstance(table, Mapping)


def _check_shadow(scheduler: Mapping[str, Any], tables: Mapping[str, Any], reading: _ProfileProblems) -> None:
    key, given = f"scheduler.{SHADOW}", scheduler.get(SHADOW)
    if given is None or isinstance(given, Mapping):
        return
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        reading.wrong(key, f"{given!r} is not a list of profile names", f'for example {SHADOW} = ["default"]')
        return
    for name in sorted(set(given) - set(tables)):
        near = nearest(name, tables)
        cure = f"did you mean {near}?" if near else f"profiles are: {', '.join(tables) or 'none'}"
        reading.wrong(key, f"unknown profile {name!r}", cure)
    for name in sorted({each for each in given if given.count(each) > 1}):
        reading.wrong(key, f"{name} is listed twice", "remove one entry")


def horizons_of(profile: ProfileSettings) -> dict[str, str]:
    """Return the horizon of each plug-in that uses forecasts."""
    found = {}
    for each in profile.plugins:
        arguments, _ = read_arguments(each.name, factory_of(each.name).arguments, each.args)
        if isinstance(arguments, ForecastArguments) and arguments.ahead:
            found[each.name] = arguments.ahead
    return found


def _check_horizons(profiles: Sequence[ProfileSettings], reading: _ProfileProblems) -> None:
    """Report a second horizon: a copy of the load has the forecasts of one."""
    first = ""
    for profile in profiles:
        for plugin, horizon in horizons_of(profile).items():
            first = first or horizon
            if horizon != first:
                message = f"{plugin} uses forecasts over {horizon}, and another plug-in over {first}"
                reading.wrong(f"scheduler.{profile.name}", message, "set the same horizon for all plug-ins")


def _read_profile(name: str, table: Any, reading: _ProfileProblems, *, cwd: Path) -> ProfileSettings | None:
    key = f"scheduler.{name}"
    if not isinstance(table, Mapping):
        reading.wrong(key, "is not a table", f"write [{key}], followed by the keys of the profile")
        return None
    before = len(reading.problems)
    given = read(_ProfileTable, table, _TableReport(key, reading, example=_PLUGINS))
    named = given.plugins is not None or given.source is not None
    # A misspelt or invalid key for the plug-ins is already a problem.
    plugins = _plugins_of(key, given, reading, cwd=cwd) if named or len(reading.problems) == before else ()
    if len(reading.problems) > before:
        return None
    if given.reserve == "bind" and not given.bind:
        message = "has no effect without bind = true: pods are not bound through the extender"
        reading.notices.append(f'{key}.reserve = "bind" {message}')
    return ProfileSettings(name, plugins, given.precise_scores, given.reserve, given.bind)


def _plugins_of(key: str, table: _ProfileTable, reading: _ProfileProblems, *, cwd: Path) -> tuple[PluginSettings, ...]:
    if table.source is not None and table.plugins is not None:
        reading.wrong(key, "has both plugins and from", "remove one of them")
        return ()
    if table.source is not None:
        return _from_file(key, cwd / table.source, table.profile, reading)
    if not table.plugins:
        cure = f'{_PLUGINS}, or from = "scheduler-config.yaml"'
        reading.wrong(f"{key}.plugins", "a profile requires plug-ins", cure)
        return ()
    found = [_plugin(f"{key}.plugins[{i}]", each, reading) for i, each in enumerate(table.plugins)]
    names = [each.name for each in found if each is not None]
    for name in sorted({name for name in names if names.count(name) > 1}):
        reading.wrong(f"{key}.plugins", f"{name} is listed twice", "remove one entry")
    return tuple(each for each in found if each is not None)


def _plugin(key: str, given: Any, reading: _ProfileProblems) -> PluginSettings | None:
    values = readable(_PluginTable, given, _TableReport(key, reading, example=_PLUGIN))
    if lacks(_PluginTable, values):
        return None
    entry = made(_PluginTable, values)
    try:
        factory = factory_of(entry.name)
        _, notices = read_arguments(entry.name, factory.arguments, entry.args, windows=reading.served)
    except UnknownPlugin as error:
        reading.wrong(f"{key}.name", str(error), error.cure)
        return None
    except ArgumentsError as error:
        for problem in error.problems:
            argument, _, what = problem.partition(": ")
            reading.wrong(
                f"{key}.args.{argument}",
                what,
                f"for the arguments of {entry.name}, see docs/concepts/scheduling.md or GET "
                "/scheduler/plugins of a running service",
            )
        return None
    reading.notices.extend(notices)
    return PluginSettings(entry.name, entry.weight, entry.args, extension_points(factory))


# --- a KubeSchedulerConfiguration ------------------------------------------------------------------------------------


def _from_file(key: str, path: Path, wanted: str | None, reading: _ProfileProblems) -> tuple[PluginSettings, ...]:
    try:
        document = decode_yaml(read_text(path))
    except OSError as error:
        reading.wrong(f"{key}.from", f"{path} cannot be read: {error.strerror}", "check the path")
        return ()
    except msgspec.DecodeError as error:
        problem = f"{path} is not valid YAML: {error}"
        reading.wrong(f"{key}.from", problem, "use the KubeSchedulerConfiguration file unchanged")
        return ()
    if not isinstance(document, dict) or not str(document.get("apiVersion", "")).startswith(API_GROUP):
        cure = f"start the file with apiVersion: {API_GROUP}v1 and kind: KubeSchedulerConfiguration"
        reading.wrong(f"{key}.from", f"{path} is not a KubeSchedulerConfiguration", cure)
        return ()
    profile = _chosen(key, wanted, _dicts(document.get("profiles")), reading, path=path)
    return () if profile is None else _plugins_in(f"{key}.from", profile, reading)


def _chosen(
    key: str, wanted: Any, profiles: Sequence[Mapping[str, Any]], reading: _ProfileProblems, *, path: Path
) -> Mapping[str, Any] | None:
    names = [str(each.get("schedulerName", "default-scheduler")) for each in profiles]
    found = [each for each, name in zip(profiles, names, strict=True) if wanted in (None, name)]
    if len(found) == 1:
        return found[0]
    there = ", ".join(names) or "none"
    if wanted is None:
        reading.wrong(
            f"{key}.profile", f"{path} does not have exactly one profile: {there}", "select one with profile = …"
        )
    else:
        reading.wrong(f"{key}.profile", f"no profile {wanted!r} in {path}", f"profiles are: {there}")
    return None


def _plugins_in(key: str, profile: Mapping[str, Any], reading: _ProfileProblems) -> tuple[PluginSettings, ...]:
    before = len(reading.problems)
    sets = profile.get("plugins")
    sets = sets if isinstance(sets, Mapping) else {}
    _misspelt_keys(key, profile, PROFILE_KEYS, reading)
    _misspelt_keys(f"{key}.plugins", sets, (*EXTENSION_POINTS, *OTHER_POINTS), reading)
    known = known_names()
    args = _args_in(key, profile, known, reading)
    weights, points = _enabled_in(sets)
    for name in sorted(set(points) - set(known)):
        if not _is_misspelt(f"{key}.plugins.{min(points[name])}", name, known, reading):
            reading.notices.append(f"{key}: {name} is not a load-watcher plug-in and stays with kube-scheduler")
    for name in sorted(set(args) - set(points)):
        reading.notices.append(f"{key}: {name} has arguments in pluginConfig but is not enabled")
    found = [
        (name, _plugin(f"{key}.{name}", {"name": name, "weight": weights.get(name), "args": args.get(name)}, reading))
        for name in points
        if name in known
    ]
    for name, each in found:
        if each is not None and not points[name].intersection(each.points):
            message = f"is enabled at {', '.join(sorted(points[name]))}, which it does not implement"
            reading.wrong(f"{key}.{name}", message, f"enable it under plugins.{' or plugins.'.join(each.points)}")
    if not found and len(reading.problems) == before:
        cure = f"enable one of {', '.join(known)} under plugins.score or plugins.filter"
        reading.wrong(key, "no load-watcher plug-in is enabled", cure)
    return tuple(
        PluginSettings(each.name, each.weight, each.args, tuple(p for p in each.points if p in points[name]))
        for name, each in found
        if each is not None
    )


def _enabled_in(sets: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, set[str]]]:
    """Return, by plug-in, the weight if given and the extension points at which it is enabled; multiPoint means every
    point where the plug-in is not disabled."""
    weights: dict[str, Any] = {}
    points: dict[str, set[str]] = {}
    off = {at: {each.get("name") for each in _listed(sets, at, "disabled")} for at in ("filter", "score")}
    for point in EXTENSION_POINTS:
        for each in _listed(sets, point, "enabled"):
            name = str(each.get("name"))
            everywhere = {at for at, names in off.items() if not names & {name, "*"}}
            if where := everywhere if point == "multiPoint" else {point}:
                points.setdefault(name, set()).update(where)
            if point in ("multiPoint", "score") and each.get("weight"):
                weights[name] = each["weight"]
    return weights, points


def _listed(sets: Mapping[str, Any], point: str, which: str) -> list[Mapping[str, Any]]:
    """Return the plug-ins under "enabled" or "disabled" of an extension point."""
    found = sets.get(point)
    return _dicts(found.get(which) if isinstance(found, Mapping) else None)


def _args_in(
    key: str, profile: Mapping[str, Any], known: Sequence[str], reading: _ProfileProblems
) -> dict[str, Mapping[str, Any]]:
    """Return the arguments of known plug-ins. Report misspelled names, whose arguments would otherwise be silently
    ignored."""
    found: dict[str, Mapping[str, Any]] = {}
    for each in _dicts(profile.get("pluginConfig")):
        name, args = str(each.get("name")), each.get("args")
        if name not in known:
            _is_misspelt(f"{key}.pluginConfig", name, known, reading)
        elif name in found:
            reading.wrong(f"{key}.pluginConfig", f"{name} is listed twice", "remove one entry")
        elif args is not None and not isinstance(args, Mapping):
            reading.wrong(f"{key}.{name}.args", "is not a mapping", "args: {targetUtilization: 50}")
        else:
            found[name] = without_nulls(args or {})
    return found


def _is_misspelt(key: str, name: str, known: Sequence[str], reading: _ProfileProblems) -> bool:
    """Return whether the name is a likely misspelling of a known plug-in; if so, report a problem."""
    near = nearest(name, known, cutoff=MISSPELLING_CUTOFF)
    if near:
        reading.wrong(key, f"unknown plug-in {name}", f"did you mean {near}?")
    return bool(near)


def _misspelt_keys(key: str, given: Mapping[str, Any], known: Sequence[str], reading: _ProfileProblems) -> None:
    """Report likely misspellings of known keys, which would be ignored here; other unknown keys are left to
    kube-scheduler."""
    for each in sorted(str(name) for name in given):
        if each not in known and (near := nearest(each, known)):
            reading.wrong(f"{key}.{each}", "unknown key", f"did you mean {near}?")


def _dicts(given: Any) -> list[Mapping[str, Any]]:
    return [each for each in given if isinstance(each, Mapping)] if isinstance(given, Iterable) else []
