"""Settings of the InfluxDB source: required ones for each language, and the errors of invalid ones."""

import sys
from pathlib import Path

import pytest

from watcher.core.config.problems import SettingsError
from watcher.service.settings.loading import load
from watcher.sources import registry
from watcher.sources.influxdb.provider import InfluxProvider
from watcher.sources.settings import ProviderSettings

BASE = '[provider]\nname = "influxdb"\naddress = "http://influxdb:8086"\n'
FLUX = BASE + 'dialect = "flux"\nbucket = "telegraf"\norg = "example"\ntoken = "t"\n'
QUERY = "[provider.queries.CPU]\nunit = 'percent'\nexpression = "


def problems(tmp_path: Path, toml: str) -> list[tuple[str, str, str]]:
    """Key, message and remedy of each problem."""
    (tmp_path / "load-watcher.toml").write_text(toml)
    with pytest.raises(SettingsError) as refused:
        load(flags={}, environ={}, cwd=tmp_path)
    return [(each.key, each.message, each.cure) for each in refused.value.problems]


@pytest.mark.parametrize(
    "toml",
    [
        BASE,
        BASE + 'dialect = "influxql"\nbucket = "b"',
        BASE + 'database = "d"',
        BASE + 'username = "u"\npassword = "p"',
        FLUX,
        FLUX.replace('"flux"', '"influxql"'),
    ],
    ids=["address alone", "bucket as database", "database", "password", "flux", "both named"],
)
def test_sufficient_settings_build_a_provider(tmp_path: Path, toml: str):
    (tmp_path / "load-watcher.toml").write_text(toml)
    assert isinstance(registry.build(load(flags={}, environ={}, cwd=tmp_path)), InfluxProvider)


@pytest.mark.parametrize("name", ["InfluxDB", "influxdb", "INFLUXDB"])
def test_the_old_name_selects_it(tmp_path: Path, name: str):
    """METRICS_PROVIDER_NAME in any case, with its address."""
    environ = {"METRICS_PROVIDER_NAME": name, "METRICS_PROVIDER_ADDRESS": "http://influxdb:8086"}
    settings = load(flags={}, environ=environ, cwd=tmp_path)
    assert ("influxdb", "http://influxdb:8086") == (settings[ProviderSettings].name, settings[ProviderSettings].address)


@pytest.mark.parametrize(
    ("toml", "key", "says", "cure"),
    [
        ('[provider]\nname = "influxdb"', "provider.address", "has no default", "http://influxdb.monitoring:8086"),
        (BASE + 'dialect = "sql"', "provider.dialect", '"influxql" or "flux"', 'dialect = "influxql"'),
        (BASE + 'bucket = "b"', "provider.org", "provider.bucket", "set provider.org"),
        (BASE + 'dialect = "flux"', "provider.bucket", 'provider.dialect = "flux"', "provider.org"),
        (FLUX + 'username = "u"\npassword = "p"', "provider.token", "Authorization", "remove one of them"),
        (BASE + QUERY + "'SELECT 1'", "provider.queries.CPU.expression", "has no time range", "<since> and <until>"),
        (BASE + QUERY + "'<since>'", "provider.queries.CPU.expression", "has no time range", "docs/tasks/influxdb.md"),
    ],
)
def test_missing_and_invalid_settings_are_errors_with_a_remedy(
    tmp_path: Path, toml: str, key: str, says: str, cure: str
):
    """With the key."""
    ((found, message, advice),) = problems(tmp_path, toml)
    assert key == found
    assert says in message
    assert cure in advice


def test_flux_without_its_library_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """At start, not at the first fetch."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for module in [name for name in sys.modules if name.partition(".")[0] == "influxdb_client"]:
        monkeypatch.delitem(sys.modules, module)
    ((key, message, cure),) = problems(tmp_path, FLUX)
    assert "provider.dialect" == key
    assert "influxdb-client" in message
    assert "pip install '.[influxdb]' in a clone" in cure
