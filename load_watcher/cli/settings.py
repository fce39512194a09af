"""Loads the settings in effect for a command from its options, the environment and the settings file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from load_watcher.cli.exit_codes import BAD_SETTINGS, print_settings_problems

if TYPE_CHECKING:
    from watcher.core.config.problems import Problem
    from watcher.core.config.settings import Settings
    from watcher.model import Window

# For commands that use no source of samples: these need no configured provider, and detect none.
NO_SOURCE = {"provider.name": "host"}


def load(
    given: Mapping[str, Any],
    *,
    overrides: Mapping[str, str] | None = None,
    own_windows: bool | None = True,
    named: Mapping[str, str] | None = None,
) -> Settings:
    """Load the settings from these options, the process's environment and the file. `overrides` holds more values by
    key, with the precedence of flags. `own_windows`: [scheduler] must use only windows of [refresh]; None: unless
    extender.watcher is set, so that these are the settings of `load-watcher extender`. `named` has the parameter of the
    command that set an override, by key, for messages. Raises SettingsError.
    """
    from watcher.core.config import problems
    from watcher.core.windows.settings import RefreshSettings
    from watcher.platform.net.settings import ExtenderSettings
    from watcher.service.settings import loading

    flags = _flags(given) | dict(overrides or {})
    validators = {"scheduler": _check_scheduler, "agent": _check_agent, "qrm": _check_qrm}
    loaded = loading.load(
        flags=flags,
        assigned=given["assigned"],
        environ=os.environ,
        file=given["config"],
        cwd=Path.cwd(),
        origins=_origins(named or {}),
        part_validators=validators,
    )
    if own_windows is None:
        own_windows = loaded[ExtenderSettings].watcher is None
    if own_windows and (
        unserved := _check_scheduler(loaded.parts.get("scheduler", {}), served=loaded[RefreshSettings].windows)
    ):
        raise problems.SettingsError(unserved)
    return loaded


def load_or_exit(
    given: Mapping[str, Any],
    *,
    overrides: Mapping[str, str] | None = None,
    own_windows: bool | None = True,
    named: Mapping[str, str] | None = None,
) -> Settings:
    """Like `load`, but print the problems and exit with code 2 if the settings are invalid."""
    from watcher.core.config.problems import SettingsError

    try:
        return load(given, overrides=overrides, own_windows=own_windows, named=named)
    except SettingsError as error:
        print_settings_problems(error)
        raise SystemExit(BAD_SETTINGS) from None


def load_part_or_exit(
    part: str, given: Mapping[str, Any], *, own: Sequence[str], overrides: Mapping[str, str] | None = None
) -> Settings:
    """Load the settings for a process that runs one module, for example `agent`: the options named in `own` set keys
    of that module's table. Exits with code 2 if the settings are invalid.
    """
    named = {f"{part}.{name}": name for name in own if given.get(name) is not None}
    values = {key: str(given[name]) for key, name in named.items()}
    others = {name: value for name, value in given.items() if name not in own}
    return load_or_exit(others, overrides={**NO_SOURCE, **values, **(overrides or {})}, named=named)


def _origins(named: Mapping[str, str]) -> dict[str, str]:
    """Return the source of each setting that a parameter of the running command set: "flag --mode", or "environment
    LOAD_WATCHER_URL"."""
    context, found = click.get_current_context(silent=True), dict[str, str]()
    parameters = {} if context is None else {each.name: each for each in context.command.params}
    for key, name in named.items():
        if context is not None and (parameter := parameters.get(name)) is not None:
            from_environment = context.get_parameter_source(name) is ParameterSource.ENVIRONMENT
            found[key] = f"environment {parameter.envvar}" if from_environment else f"flag {parameter.opts[0]}"
    return found


def _flags(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the options by full setting key."""
    from watcher.service.settings.tables import KEYS

    flags = {"log.level": "debug"} if given.get("verbose") else {}
    named = {key: each.setting.kind.flag for key, each in KEYS.items()}
    options = {key: flag.removeprefix("--").replace("-", "_") for key, flag in named.items() if flag}
    return flags | {key: given[name] for key, name in options.items() if given.get(name) is not None}


def _check_scheduler(table: Mapping[str, Any], *, served: Sequence[Window] = ()) -> list[Problem]:
    if not table:  # importing the scorers would add a third to the memory of the agent
        return []
    from scorers.profiles.profiles import validate

    return validate(table, served=served)


def scheduler_notices(settings: Settings) -> list[str]:
    """Return the notices about the profiles of valid settings: ignored entries, risks of overload, and plug-ins that
    need the load of GPUs without GPU in provider.metrics, or disabled forecasts (if the settings name the watcher, it
    has metrics and forecasts of its own).
    """
    table = settings.parts.get("scheduler", {})
    if not table:
        return []
    from scorers.profiles.gpu_load import missing_gpu_notices
    from scorers.profiles.missing_forecasts import missing_forecast_notices
    from scorers.profiles.overload_risk import overload_notices
    from scorers.profiles.profiles import read_profiles
    from watcher.core.forecast.settings import ForecastSettings
    from watcher.platform.net.settings import ExtenderSettings
    from watcher.sources.settings import ProviderSettings

    profiles, _, notices = read_profiles(table, cwd=Path.cwd())
    of_watcher = settings[ExtenderSettings].watcher is not None
    gpu = of_watcher or any(each.key == "GPU" for each in settings[ProviderSettings].wanted)
    found = [
        f"scheduler.{profile.name}: {text}"
        for profile in profiles
        for text in (
            *overload_notices(profile),
            *(() if gpu else missing_gpu_notices(profile)),
            *(() if of_watcher else missing_forecast_notices(profile, settings[ForecastSettings])),
        )
    ]
    return [*notices, *found]


def qrm_notices(settings: Settings) -> list[str]:
    """Return the notices about the table [qrm] of valid settings."""
    table = settings.parts.get("qrm", {})
    if not table:
        return []
    from agent.qrm.settings import notices

    return list(notices(table, cwd=Path.cwd()))


def settings_document(settings: Settings) -> dict[str, Any]:
    """Return the settings in effect as `{"settings": [{"key", "value", "origin"}]}`, with the values that `config show`
    prints: secrets are hidden. The tables of other packages, for example [agent], are one entry each."""
    from watcher.decoding.text import decode_toml
    from watcher.service.settings.show import show
    from watcher.service.settings.tables import KEYS
    from watcher.sources.settings import ProviderSettings

    shown = decode_toml(show(settings))
    keys = [*KEYS, *(f"provider.queries.{metric}" for metric in settings[ProviderSettings].queries), *settings.parts]
    found = []
    for key in keys:
        value: Any = shown
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        found.append({"key": key, "value": value, "origin": settings.origins.get(key, "default")})
    return {"settings": found}


def _check_agent(table: Mapping[str, Any]) -> list[Problem]:
    from agent.service.settings import validate

    return validate(table)


def _check_qrm(table: Mapping[str, Any]) -> list[Problem]:
    from agent.qrm.settings import validate

    return validate(table)
