"""Settings of Datadog: required ones, the Go load-watcher's environment, and the errors."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from load_watcher_cloud.provider import CloudProvider
from watcher.core.config.problems import SettingsError
from watcher.core.config.settings import Settings
from watcher.service.settings.loading import load
from watcher.sources import registry
from watcher.sources.settings import ProviderSettings

pytestmark = pytest.mark.usefixtures("reachable")
DATADOG = '[provider]\nname = "datadog"\ntoken = "k"\napp_key = "a"\n'


def loaded(tmp_path: Path, toml: str = "", environ: Mapping[str, str] | None = None) -> Settings:
    """The settings of a file and an environment."""
    (tmp_path / "load-watcher.toml").write_text(toml)
    return load(flags={}, environ=environ or {}, cwd=tmp_path)


def test_keys_are_sufficient(tmp_path: Path):
    """The address has a default."""
    settings = loaded(tmp_path, DATADOG)
    built = registry.build(settings)
    assert isinstance(built, CloudProvider)
    assert ("Datadog", "https://api.datadoghq.com") == (built.source, settings[ProviderSettings].address)
    assert "default of the provider" in settings.origins["provider.address"]


def test_the_environment_of_the_go_service_has_its_old_meaning(tmp_path: Path):
    environ = {
        "METRICS_PROVIDER_NAME": "Datadog",
        "METRICS_PROVIDER_ADDRESS": "https://api.eu0.example.com",
        "METRICS_PROVIDER_TOKEN": "k",
        "METRICS_PROVIDER_APP_KEY": "a",
        "DATADOG_HOST_NAME_SUFFIX": ".datadog",
        "DATADOG_CLUSTER_NAME": "c-datadog",
        "SIGNALFX_HOST_NAME_SUFFIX": ".signalfx",
    }
    provider = loaded(tmp_path, environ=environ)[ProviderSettings]
    assert ("datadog", ".datadog", "c-datadog") == (provider.name, provider.host_name_suffix, provider.cluster_name)
    assert "https://api.eu0.example.com" == provider.address
    assert provider.token is not None
    assert provider.app_key is not None
    assert ("k", "a") == (provider.token.reveal(), provider.app_key.reveal())


def test_a_host_name_is_a_valid_address_of_datadog(tmp_path: Path):
    """The Go load-watcher accepts nothing else there; for other providers it stays an error."""
    environ = {"METRICS_PROVIDER_ADDRESS": " api.datadoghq.eu"}
    assert "https://api.datadoghq.eu" == loaded(tmp_path, DATADOG, environ)[ProviderSettings].address
    with pytest.raises(SettingsError):
        loaded(tmp_path, '[provider]\nname = "prometheus"', environ)


@pytest.mark.parametrize(
    ("toml", "key", "says", "cure"),
    [
        ('[provider]\nname = "datadog"\napp_key = "a"', "provider.token", "an API key", "provider.token_file"),
        ('[provider]\nname = "datadog"\ntoken = "k"', "provider.app_key", "application key", "provider.app_key_file"),
        (DATADOG + 'host_name_suffix = "*,x:"', "provider.host_name_suffix", "cannot contain", ".example.com"),
        (DATADOG + 'cluster_name = "a b"', "provider.cluster_name", "cannot contain", "production"),
    ],
)
def test_missing_and_invalid_settings_are_reported(tmp_path: Path, toml: str, key: str, says: str, cure: str):
    """With the key and a remedy."""
    with pytest.raises(SettingsError) as refused:
        loaded(tmp_path, toml)
    ((found, message, advice),) = ((each.key, each.message, each.cure) for each in refused.value.problems)
    assert key == found
    assert says in message
    assert cure in advice


def test_one_application_key_is_sufficient(tmp_path: Path):
    """In a file or not, but not both."""
    (tmp_path / "key").write_text("a")
    with pytest.raises(SettingsError) as refused:
        loaded(tmp_path, DATADOG + 'app_key_file = "key"')
    assert ["provider.app_key"] == [each.key for each in refused.value.problems]
    loaded(tmp_path, DATADOG.replace('app_key = "a"', 'app_key_file = "key"'))


@pytest.mark.parametrize("suffix", ["HOST_NAME_SUFFIX", "CLUSTER_NAME"])
def test_old_names_are_only_read_for_their_provider(tmp_path: Path, suffix: str):
    environ = {"METRICS_PROVIDER_NAME": "DATADOG", f"DATADOG_{suffix}": "\0"}
    with pytest.raises(SettingsError) as refused:
        loaded(tmp_path, environ=environ)
    found = [problem for problem in refused.value.problems if problem.key == f"provider.{suffix.lower()}"]
    assert [f"environment DATADOG_{suffix}" in problem.message for problem in found] == [True]
    assert loaded(tmp_path, environ={f"DATADOG_{suffix}": "\0"})[ProviderSettings].cluster_name is None
