"""Settings of removed features: each source of settings gives an error that states what replaces them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest

from watcher.core.config import values
from watcher.core.config.fields import SettingsTable
from watcher.core.config.problems import Problem, SettingsError
from watcher.core.config.section_reader import read_table
from watcher.core.config.values import InvalidValue
from watcher.platform.provider_names import REMOVED as PROVIDERS
from watcher.service.settings.loading import load
from watcher.service.settings.tables import KEYS, REMOVED, TABLES


@dataclass(frozen=True, repr=False)
class NodeLampSettings(SettingsTable):
    """A table of a node process with a removed key."""

    removed: ClassVar[Mapping[str, str]] = {"colour": "use agent.light"}
    light: Annotated[str, values.choice(("on", "off"), removed={"dim": 'use "off"'})] = "on"


def validate(given: Mapping[str, Any]) -> list[Problem]:
    return read_table(NodeLampSettings, given, section="agent", cwd=Path())[1]


def problem_of(
    directory: Path,
    toml: str = "",
    *,
    environ: Mapping[str, str] | None = None,
    assigned: Mapping[str, str] | None = None,
) -> tuple[str, str, str]:
    """Return key, message and cure of the only problem."""
    (directory / "load-watcher.toml").write_text(toml)
    with pytest.raises(SettingsError) as refused:
        load(flags={}, environ=environ or {}, assigned=assigned, cwd=directory, part_validators={"agent": validate})
    (problem,) = refused.value.problems
    return problem.key, problem.message, problem.cure


DASHBOARD = REMOVED["dashboard"]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            {"toml": '[dashboard]\nagents = ["http://a:2023"]\nqrm = []'},
            ("dashboard", "was removed in this version (file load-watcher.toml)", DASHBOARD),
        ),
        (
            {"environ": {"LOAD_WATCHER_DASHBOARD_AGENT_PODS": "app=a"}},
            ("LOAD_WATCHER_DASHBOARD_AGENT_PODS", "was removed in this version (environment)", DASHBOARD),
        ),
        (
            {"environ": {"LOAD_WATCHER_DEFAULT_DASHBOARD_QRM": "http://q:2024"}},
            ("LOAD_WATCHER_DEFAULT_DASHBOARD_QRM", "was removed in this version (environment)", DASHBOARD),
        ),
        (
            {"assigned": {"dashboard.qrm_pods": "app=qrm"}},
            ("dashboard.qrm_pods", "was removed in this version (flag --set dashboard.qrm_pods)", DASHBOARD),
        ),
        (
            {"environ": {"LOAD_WATCHER_PEERS_CA_FILE": "/ca.crt"}},
            ("LOAD_WATCHER_PEERS_CA_FILE", "was removed in this version (environment)", REMOVED["peers"]),
        ),
        (
            {"environ": {"METRICS_PROVIDER_NAME": "SignalFx", "SIGNALFX_CLUSTER_NAME": "c"}},
            (
                "provider.name",
                "the provider signalfx was removed in this version (environment METRICS_PROVIDER_NAME)",
                PROVIDERS["signalfx"],
            ),
        ),
        ({"toml": '[agent]\ncolour = "red"'}, ("agent.colour", "was removed in this version", "use agent.light")),
        (
            {"environ": {"LOAD_WATCHER_AGENT_COLOUR": "red"}},
            (
                "agent.colour",
                "was removed in this version (environment LOAD_WATCHER_AGENT_COLOUR)",
                "use agent.light",
            ),
        ),
        (
            {"assigned": {"agent.colour": "red"}},
            ("agent.colour", "was removed in this version (flag --set agent.colour)", "use agent.light"),
        ),
        (
            {"toml": '[agent]\nlight = "Dim"'},
            (
                "agent.light",
                'must be "on" or "off"; "Dim" was removed in this version: use "off"',
                'for example agent.light = "on"',
            ),
        ),
        (
            {"environ": {"LOAD_WATCHER_AGENT_LIGHT": "dim"}},
            (
                "agent.light",
                'must be "on" or "off"; "dim" was removed in this version: use "off" '
                "(environment LOAD_WATCHER_AGENT_LIGHT)",
                "for example LOAD_WATCHER_AGENT_LIGHT=on",
            ),
        ),
    ],
)
def test_a_removed_setting_states_what_replaces_it(
    tmp_path: Path, given: dict[str, Any], problem: tuple[str, str, str]
) -> None:
    assert problem_of(tmp_path, **given) == problem


def test_a_key_that_only_begins_like_a_removed_one_is_unknown(tmp_path: Path) -> None:
    key, message, _ = problem_of(tmp_path, '[dashboards]\nagents = ["http://a:2023"]')
    assert (key, message) == ("dashboards", "unknown section (file load-watcher.toml)")


def test_a_removed_value_is_not_in_the_schema() -> None:
    kind = values.choice(("on",), removed={"dim": 'use "on"'})
    assert kind.schema["enum"] == ["on"]
    with pytest.raises(InvalidValue, match="was removed in this version"):
        kind.read_text("DIM")


def test_no_removed_setting_exists() -> None:
    """Otherwise the error is never given."""
    assert not set(REMOVED) & {*KEYS, *TABLES}
