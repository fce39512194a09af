"""Written settings: complete, readable again, and without secrets."""

import dataclasses
import re
import tomllib
from pathlib import Path

import pytest

from tests.schemas import draft7
from tests.settings_pages import documentation, example, json_schema
from watcher.core.config.problems import SettingsError
from watcher.service.settings.layers import LEGACY
from watcher.service.settings.loading import load
from watcher.service.settings.show import show
from watcher.service.settings.tables import KEYS, QUERIES, TABLES
from watcher.sources.settings import ProviderSettings

REPOSITORY = Path(__file__).parents[4]
SECRET = "4815162342"  # looks like a number, so that it may be read as one by mistake


# --- secrets ----------------------------------------------------------------------------------------------------------

PROMETHEUS = {"provider.name": "prometheus", "provider.address": "http://p:9090"}
GOOD = [
    {"toml": f'[provider]\ntoken = "{SECRET}"'},
    {"toml": f'[provider]\nusername = "u"\npassword = "{SECRET}"'},
    {"toml": f'[provider]\nheaders = {{ "X-Key" = "{SECRET}" }}'},
    {"toml": f'[provider]\napp_key = "{SECRET}"'},
    {"toml": f'[agent]\ntoken = "{SECRET}"\naudit = "postgresql://u:{SECRET}@h/d"'},
    {"toml": f'[store]\nurl = "postgresql://u:{SECRET}@h/d"'},
    {"toml": f'[store]\nurl = "postgresql://u@h/d?password={SECRET}"'},
    {"toml": f'[agent.inner]\nclient_secret = "{SECRET}"'},
    {"toml": f'[scheduler.default]\nplugins = [{{ args = {{ headers = {{ A = "{SECRET}" }} }} }}]'},
    {"toml": f'[qrm]\npasswords = ["{SECRET}"]'},
    {"environ": {"METRICS_PROVIDER_TOKEN": SECRET}},
    {"environ": {"METRICS_PROVIDER_APP_KEY": SECRET}},
    {"environ": {"LOAD_WATCHER_PROVIDER_HEADERS": f"X-Key={SECRET}"}},
    {"environ": {"LOAD_WATCHER_AGENT_TOKEN": SECRET}},
    {"flags": {"provider.address": f"http://u:{SECRET}@p:9090"}},
    {"flags": {"provider.token": SECRET}},
]


@pytest.mark.parametrize("given", GOOD, ids=repr)
def test_settings_do_not_show_secrets(tmp_path, given):
    """Neither config show nor repr nor a notice contains them, from any source of settings."""
    settings = _load(tmp_path, given)
    assert SECRET not in show(settings)
    assert "<hidden>" in show(settings)
    assert SECRET not in f"{settings!r} {settings} {settings.notices} {settings.origins}"
    assert SECRET not in str(dataclasses.asdict(settings[ProviderSettings]))


BAD = [
    {"toml": f'provider = "{SECRET}"'},
    {"toml": f'[provider]\ntoken = ["{SECRET}"]'},
    {"toml": f'[provider]\ntoken = "{SECRET}\\n{SECRET}"'},
    {"toml": f'[provider]\ntoken = {{ value = "{SECRET}" }}'},
    {"toml": f'[provider]\ntoken = "{SECRET}"\ntoken_file = "/etc/hosts"'},
    {"toml": f'[provider]\npassword = "{SECRET}"'},
    {"toml": f'[provider]\npasword = "{SECRET}"'},
    {"toml": f'[provider]\nheaders = "X-Key {SECRET}"'},
    {"toml": f'[provider]\nheaders = {{ "X-Key" = ["{SECRET}"] }}'},
    {"toml": f'[provider]\nheaders = {{ "X-Key" = "{SECRET}\\u0000" }}'},
    {"toml": f'[provider]\ntoken = "{SECRET}'},
    {"toml": f"[provider]\npassword = {SECRET}"},
    {"toml": f'[store]\nurl = "postgresql://u:{SECRET}@h/"'},
    {"toml": f'[store]\nurl = "postgresql+asyncpg://u:{SECRET}@h/d"'},
    {"toml": f'[store]\nurl = "postgresql://u:{SECRET}@h/d"\npassword_file = "/etc/hosts"'},
    {"toml": f'[store]\nurl = "mysql://u:{SECRET}@h/d?password={SECRET}"'},
    {"toml": f'[server]\nhost = ["http://u:{SECRET}@h"]'},
    {"toml": f'[refresh]\ninterval = "http://u:{SECRET}@h"'},
    {"environ": {"METRICS_PROVIDER_ADDRESS": f"http://u:{SECRET}@"}},
    {"environ": {"METRICS_PROVIDER_ADDRESS": f"http://u:p/{SECRET}@p:x"}},
    {"environ": {"METRICS_PROVIDER_ADDRESS": f"u:{SECRET}@p:9090"}},
    {"environ": {"METRICS_PROVIDER_ADDRESS": f"http://{SECRET}@p:9090"}},
    {"environ": {"METRICS_PROVIDER_ADDRESS": f"http://p:9090/?token={SECRET}"}},
    {"environ": {"METRICS_PROVIDER_ADDRESS": f"http://u:{SECRET}@p:9090", "LOAD_WATCHER_PROVIDER_USERNAME": "u"}},
    {"environ": {"LOAD_WATCHER_PROVIDER_TOKN": SECRET}},
    {"environ": {"LOAD_WATCHER_PROVIDER_HEADERS": f'{{"X-Key": "{SECRET}"'}},
    {"environ": {"LOAD_WATCHER_PROVIDER_HEADERS": SECRET}},
    {"flags": {"provider.pasword": SECRET}},
]


@pytest.mark.parametrize("given", BAD, ids=repr)
def test_problems_do_not_show_secrets(tmp_path, given):
    """Also those of a secret itself, and of settings beside it."""
    with pytest.raises(SettingsError) as refused:
        _load(tmp_path, given)
    assert SECRET not in f"{refused.value} {refused.value!r} {refused.value.problems}"


def _load(directory, given):
    (directory / "load-watcher.toml").write_text(given.get("toml", ""))
    environ = given.get("environ", {})
    flags = PROMETHEUS | given.get("flags", {})
    if "METRICS_PROVIDER_ADDRESS" in environ:
        flags.pop("provider.address")
    return load(flags=flags, environ=environ, cwd=directory)


# --- config show ------------------------------------------------------------------------------------------------------


def test_show_has_each_setting_and_its_origin(tmp_path):
    """Each key is under its table, with its value as TOML and its origin; a setting without a value is marked."""
    (tmp_path / "load-watcher.toml").write_text("[server]\nport = 1")
    environ = {"LOAD_WATCHER_REFRESH_WINDOWS": "5m,30m", "LOAD_WATCHER_METRICS_WINDOWS": "30m"}
    text = show(load(flags={"log.level": "warn"}, environ=environ, cwd=tmp_path))
    lines = {" ".join(line.split()) for line in text.splitlines()}
    assert {
        "[server]",
        "port = 1 # from file load-watcher.toml",
        "# tls_cert # not set",
        'windows = ["5m", "30m"] # from environment LOAD_WATCHER_REFRESH_WINDOWS',
        'level = "warning" # from flag --log-level',
        'retention = "24h" # from default',
        'name = "host" # from default: provider.name is not set; the default outside a cluster',
    } <= lines
    shown = re.findall(r"^(?:# )?([a-z_]+)(?: =|  )", text, flags=re.MULTILINE)
    assert shown == [key.setting.name for key in KEYS.values() if len(key.table) == 1]


def test_the_output_of_config_show_can_be_loaded_again(tmp_path):
    """Without secrets, it is a settings file that gives the same settings."""
    toml = """
    [provider]
    name = "prometheus"
    address = "http://p:9090"
    cluster_name = "a \\"b\\" \\u007f ü"
    [provider.queries.Memory]
    expression = 'x{a="b"}'
    unit = "percent"
    smoothing = "90s"
    [review]
    outage_fraction = 0.125
    [scheduler."a b"]
    plugins = [{ name = "Peaks", weight = 1.5, args = { on = true, since = 2000-01-01T00:00:00Z } }, {}]
    inner = { x = { y = [] } }
    [agent]
    port = 3
    """
    (tmp_path / "load-watcher.toml").write_text(toml)
    first = load(flags={}, environ={}, cwd=tmp_path)
    (tmp_path / "load-watcher.toml").write_text(show(first))
    second = load(flags={}, environ={}, cwd=tmp_path)
    assert second[ProviderSettings].queries == first[ProviderSettings].queries
    assert dataclasses.replace(second, origins={}) == dataclasses.replace(first, origins={})


# --- documentation ----------------------------------------------------------------------------------------------------


def test_the_documentation_is_up_to_date():
    """`python -m tests.settings_pages docs` writes docs/reference/settings.md from the tables."""
    assert (REPOSITORY / "docs/reference/settings.md").read_text() == documentation()


def test_the_documentation_has_each_setting():
    """Each table, key, flag and old variable."""
    text = documentation()
    sections = dict(re.findall(r"^## `\[([^\]]+)\]`\n(.*?)(?=^## )", text, flags=re.MULTILINE | re.DOTALL))
    assert set(sections) == {*TABLES, "provider.queries.<metric>"}
    for key in KEYS.values():
        section = sections["provider.queries.<metric>" if key.table[:2] == QUERIES else key.table[0]]
        assert f"| `{key.setting.name}`" in section
        assert (key.setting.kind.flag or "") in section
    assert all(f"| `{legacy.variable}` | `{legacy.key}` |" in text for legacy in LEGACY)


def test_the_example_is_up_to_date():
    """`python -m tests.settings_pages example` writes load-watcher.example.toml from the tables."""
    assert (REPOSITORY / "load-watcher.example.toml").read_text() == example()


def test_the_example_has_the_defaults(tmp_path):
    """An unchanged copy changes nothing."""
    defaults = load(flags={}, environ={}, cwd=tmp_path)
    copied = load(flags={}, environ={}, cwd=tmp_path, file=REPOSITORY / "load-watcher.example.toml")
    assert dataclasses.replace(copied, origins={}) == dataclasses.replace(defaults, origins={})


def test_commented_examples_are_valid(tmp_path):
    """Each is a valid value of its key, except for files that do not exist."""
    text = re.sub(r"^# (?=[a-z_]+ = |\[)", "", example(), flags=re.MULTILINE)
    given = tomllib.loads(text)
    assert set(given["provider"]["queries"]["CPU"]) == {"expression", "unit", "node_label", "smoothing", "guard"}
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(SettingsError) as refused:
        load(flags={}, environ={}, cwd=tmp_path, file=tmp_path / "x.toml")
    strange = [
        each for each in refused.value.problems if "does not exist" not in each.message and "both" not in each.message
    ]
    assert strange == []


def test_the_json_schema_accepts_each_example_and_refuses_misspelt_keys() -> None:
    """Each setting with its example, or its default; null is a missing value."""
    validator = draft7(json_schema())
    for key in KEYS.values():
        if key.table[:2] == QUERIES:
            continue
        (name,) = key.table
        value = tomllib.loads(f"value = {key.setting.example}")["value"]
        if value not in ([], {}):  # defaults that the parser refuses as explicit values
            assert [] == list(validator.iter_errors({name: {key.setting.name: value}})), key.name
        assert validator.is_valid({name: {key.setting.name: None}})
        assert not validator.is_valid({name: {f"{key.setting.name}x": value}})
    for wrong in ({"refresh": {"interval": "1 minute"}}, {"store": {"max_size": "1Gi"}}, {"log": {"format": "xml"}}):
        assert not validator.is_valid(wrong), wrong
