"""Settings for several clusters on one source: the cluster's name, and the matchers of its series."""

from pathlib import Path

import pytest

from watcher.core.config.problems import SettingsError
from watcher.core.config.settings import Settings
from watcher.core.queries.matchers import Matcher
from watcher.platform.logs import ClusterSettings
from watcher.service.settings.loading import load
from watcher.service.settings.show import show
from watcher.sources import registry
from watcher.sources.prometheus.provider import PrometheusProvider
from watcher.sources.settings import ProviderSettings

BASE = '[provider]\nname = "prometheus"\naddress = "http://thanos:9090"\n'
VARIABLE = "LOAD_WATCHER_PROVIDER_MATCHERS"


def loaded(tmp_path: Path, toml: str = BASE, **environ: str) -> Settings:
    (tmp_path / "load-watcher.toml").write_text(toml)
    return load(flags={}, environ=environ, cwd=tmp_path)


def problem(tmp_path: Path, toml: str = BASE, **environ: str) -> tuple[str, str, str]:
    """Key, message and remedy of the only problem."""
    with pytest.raises(SettingsError) as refused:
        loaded(tmp_path, toml, **environ)
    (only,) = refused.value.problems
    return only.key, only.message, only.cure


@pytest.mark.parametrize(
    ("toml", "written"),
    [
        ('matchers = { cluster = "prod-1" }', '{ cluster = "prod-1" }'),
        ('matchers = { cluster = "a\\"b\\\\", env = "" }', '{ cluster = "a\\"b\\\\", env = "" }'),
        ("[provider.matchers]\ncluster = 'prod-1'", '{ cluster = "prod-1" }'),
        ("matchers = ['cluster=\"prod-1\"']", '{ cluster = "prod-1" }'),
        ("matchers = ['cluster=\"a\"', 'env=~\"x|y\"']", r'["cluster=\"a\"", "env=~\"x|y\""]'),
        ("matchers = ['env!=\"x\"', 'env!=\"y\"']", r'["env!=\"x\"", "env!=\"y\""]'),
        ("matchers = {}", "{}"),
        ('[provider.matchers]\n"k8s.cluster.name" = "a"', '{ "k8s.cluster.name" = "a" }'),
        ("", "{}"),
    ],
)
def test_matchers_are_a_table_or_a_list(tmp_path: Path, toml: str, written: str):
    """Both reach the provider, and `config show` writes a form that is read as the same."""
    settings = loaded(tmp_path, BASE + toml)
    provider = registry.build(settings)
    assert isinstance(provider, PrometheusProvider)
    assert f"matchers = {written}" in show(settings)
    assert (
        settings[ProviderSettings].matchers
        == loaded(tmp_path, f"{BASE}matchers = {written}")[ProviderSettings].matchers
    )


@pytest.mark.parametrize("text", ['cluster="a", env=~"x|y"', '{cluster="a",env=~"x|y"}'])
def test_the_environment_has_matchers_in_the_syntax_of_promql(tmp_path: Path, text: str):
    """With braces or without."""
    expected = (Matcher("cluster", "=", "a"), Matcher("env", "=~", "x|y"))
    assert expected == loaded(tmp_path, **{VARIABLE: text})[ProviderSettings].matchers
    (tmp_path / "load-watcher.toml").write_text(BASE)
    assert expected == load(flags={"provider.matchers": text}, environ={}, cwd=tmp_path)[ProviderSettings].matchers


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ('{ "my label " = "a" }', '"my label " is not a label name'),
        ('{ __name__ = "up" }', "__name__ is not allowed: the queries select series by it"),
        ("{ shard = 1 }", "the value of shard must be text; given 1"),
        ('{ cluster = ["a", "b"] }', "the value of cluster must be text; given a list"),
        ("['cluster=a']", '"cluster=a" does not have the form label="value"'),
        ('[\'cluster="a",env="b"\']', "each item of the list must be text with one matcher"),
        ("['']", "each item of the list must be text with one matcher"),
        ("[1]", "each item of the list must be text with one matcher; given 1"),
        ("['a=\"b\"', 'a = \"b\"']", 'a="b" is listed twice'),
        (r"""['a=~"\d+"']""", "write a backslash as two backslashes"),
        ('"cluster=a"', 'must be a table of label values, like { cluster = "prod-1" }'),
    ],
)
def test_an_invalid_matcher_is_an_error(tmp_path: Path, value: str, part: str):
    """With its key and an example."""
    key, message, cure = problem(tmp_path, f"{BASE}matchers = {value}")
    assert "provider.matchers" == key
    assert part in message
    assert 'for example provider.matchers = { cluster = "prod-1" }' == cure


def test_an_invalid_matcher_in_the_environment_is_an_error(tmp_path: Path):
    """With the name of the variable."""
    key, message, _ = problem(tmp_path, **{VARIABLE: "cluster=a"})
    assert "provider.matchers" == key
    assert VARIABLE in message


@pytest.mark.parametrize(
    ("toml", "notices"),
    [
        (BASE, 0),
        (BASE + "matchers = { cluster = 'a' }", 0),
        (BASE + "matchers = { cluster = 'a' }\nqueries.CPU = { expression = 'x{cluster=\"a\"}', unit = 'ratio' }", 0),
        (BASE + "matchers = { cluster = 'a' }\nqueries.CPU = { expression = 'x', unit = 'ratio' }", 1),
        ("provider = { name = 'host', matchers = { cluster = 'a' } }", 1),
    ],
)
def test_matchers_without_an_effect_are_noted(tmp_path: Path, toml: str, notices: int):
    """A configured expression is sent unchanged, and other providers do not use matchers."""
    found = [notice for notice in loaded(tmp_path, toml).notices if "provider.matchers" in notice]
    assert notices == len(found)


def test_the_name_of_the_cluster_is_optional(tmp_path: Path):
    """In [cluster] or the environment."""
    assert loaded(tmp_path)[ClusterSettings].name is None
    assert "prod-1" == loaded(tmp_path, BASE + '[cluster]\nname = "prod-1"')[ClusterSettings].name
    assert "prod-2" == loaded(tmp_path, LOAD_WATCHER_CLUSTER_NAME="prod-2")[ClusterSettings].name


@pytest.mark.parametrize("value", ['""', "7", '"a\\nb"', f'"{"x" * 254}"'])
def test_a_cluster_s_name_is_printable(tmp_path: Path, value: str):
    """It is used in log lines and labels."""
    key, message, _ = problem(tmp_path, f"{BASE}[cluster]\nname = {value}")
    assert "cluster.name" == key
    assert "at most 253 printable characters" in message
