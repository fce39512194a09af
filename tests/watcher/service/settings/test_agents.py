"""Settings of agents by label: the syntax of a selection, and the errors of invalid ones."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from watcher.agent_clients.settings import AgentsSettings, QrmsSettings
from watcher.core.config.problems import SettingsError
from watcher.core.config.settings import Settings
from watcher.core.pods.selector import PodSelection
from watcher.service.settings.loading import load
from watcher.service.settings.tables import KEYS

BY_LABEL = "app.kubernetes.io/name=load-watcher-agent"
SELECTORS = (
    BY_LABEL,
    "app=web",
    "app==web , tier != db",
    "app in (web, api),env notin (test),!canary,owned",
    "example.com/role=",
    "weight>3",
    "app in ()",
    "in in(in)",
)
# With the part of its error.
NO_SELECTORS = {
    "app=web,": "a requirement is missing at the end",
    "app=web;tier=db": "invalid requirement 'app=web;tier=db'",
    "app in web": "invalid requirement 'app in web'",
    "app in (web": "invalid requirement 'app in (web'",
    "a=b,-c=d": "invalid requirement '-c=d'",
    "a b": "invalid requirement 'a b'",
    "a/b/c=d": "invalid requirement 'a/b/c=d'",
    "Example.com/role=x": "invalid requirement 'Example.com/role=x'",
    "=x": "invalid requirement '=x'",
    f"app={'x' * 64}": f"invalid requirement 'app={'x' * 36}'",
}


def loaded(
    directory: Path, toml: str = "", environ: Mapping[str, str] | None = None, flags: Mapping[str, Any] | None = None
) -> Settings:
    """The settings of a file, an environment and flags."""
    (directory / "load-watcher.toml").write_text(toml)
    return load(flags=flags or {}, environ=environ or {}, cwd=directory)


@pytest.mark.parametrize(
    ("toml", "selection"),
    [
        (f'[agents]\npods = "{BY_LABEL}"', PodSelection(BY_LABEL, 2023)),
        (f'[qrms]\npods = "{BY_LABEL}"', PodSelection(BY_LABEL, 2024)),
        (
            f'[agents]\npods = {{ selector = "{BY_LABEL}", namespace = "agents", port = 80, tls_server_name = "a.b" }}',
            PodSelection(BY_LABEL, 80, "agents", "a.b"),
        ),
        (f'[agents.pods]\nselector = "{BY_LABEL}"\nport = 2030', PodSelection(BY_LABEL, 2030)),
    ],
    ids=["text", "its own port", "table", "section"],
)
def test_a_selection_is_a_text_or_a_table(tmp_path: Path, toml: str, selection: PodSelection) -> None:
    """Its written form can be read again."""
    settings = loaded(tmp_path, toml)
    assert selection in (settings[AgentsSettings].pods, settings[QrmsSettings].pods)
    section = "agents" if settings[AgentsSettings].pods else "qrms"
    written = KEYS[f"{section}.pods"].setting.kind.write(selection)
    assert settings.named(section) == loaded(tmp_path, f"[{section}]\npods = {written}").named(section)


@pytest.mark.parametrize(
    "text", [BY_LABEL, f'{{"selector": "{BY_LABEL}", "namespace": "agents"}}'], ids=["selector", "json"]
)
def test_the_environment_has_the_selector_or_json(tmp_path: Path, text: str) -> None:
    selection = loaded(tmp_path, environ={"LOAD_WATCHER_AGENTS_PODS": text})[AgentsSettings].pods
    assert selection is not None
    assert (BY_LABEL, 2023) == (selection.selector, selection.port)
    assert ("agents" if "agents" in text else "") == selection.namespace


@pytest.mark.parametrize("selector", SELECTORS)
def test_each_valid_selector_of_kubernetes_is_accepted(tmp_path: Path, selector: str) -> None:
    found = loaded(tmp_path, f'[agents]\npods = "{selector}"')[AgentsSettings].pods
    assert found is not None
    assert selector == found.selector


@pytest.mark.parametrize("selector", NO_SELECTORS)
def test_the_error_of_an_invalid_selector_names_the_place(tmp_path: Path, selector: str) -> None:
    with pytest.raises(SettingsError) as caught:
        loaded(tmp_path, f'[agents]\npods = "{selector}"')
    (problem,) = caught.value.problems
    reported = f'selector of the selection must be text; "{selector}" is not a label selector: {NO_SELECTORS[selector]}'
    assert ("agents.pods", True) == (problem.key, reported in problem.message), problem.message


@pytest.mark.parametrize(
    ("value", "reported"),
    [
        ('""', "selector of the selection must be text; given empty text"),
        ("7", "must be a label selector"),
        ('{ namespace = "agents" }', "the selection has no selector"),
        (
            '{ selector = "a=b", namespaces = "agents" }',
            "selection has the unknown key 'namespaces'; did you mean namespace?",
        ),
        (
            '{ selector = "a=b", namespace = "Agents" }',
            'namespace of the selection must be a valid namespace name; given "A',
        ),
        ('{ selector = "a=b", port = "http" }', "port of the selection must be a whole number"),
        ('{ selector = "a=b", port = 0 }', "port of the selection must be a whole number"),
        ('{ selector = "a=b", tls_server_name = "x/y" }', "tls_server_name of the selection must be a host name"),
        ('{ selector = "a=b", tls_server_name = "x:1" }', "tls_server_name of the selection must be a host name"),
    ],
)
def test_an_invalid_selection_is_an_error_with_a_remedy(tmp_path: Path, value: str, reported: str) -> None:
    """With the key."""
    with pytest.raises(SettingsError) as caught:
        loaded(tmp_path, f"[agents]\npods = {value}")
    (problem,) = caught.value.problems
    assert ("agents.pods", True) == (problem.key, reported in problem.message), problem.message
    assert "for example agents.pods = " in problem.cure


def test_invalid_json_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="invalid JSON: "):
        loaded(tmp_path, environ={"LOAD_WATCHER_AGENTS_PODS": "{selector"})


def test_agents_report_the_usage_of_pods_unless_it_is_off(tmp_path: Path) -> None:
    named = '[agents]\nurls = ["http://a:2023"]\n'
    reporting = [
        loaded(tmp_path, text)[AgentsSettings].report_pods for text in (named, f"{named}pod_usage = false", "")
    ]
    assert [True, False, False] == reporting
