"""The settings that `load-watcher demo` uses, its errors, and its output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lab.demo import settings as demo_settings
from lab.fleet.cluster import SimulatedCluster
from load_watcher.main import main
from watcher.core.config.settings import Settings
from watcher.core.windows.settings import RefreshSettings
from watcher.koordinator.settings import KoordinatorSettings
from watcher.platform.logs import ClusterSettings
from watcher.service.settings import loading
from watcher.sources.settings import ProviderSettings
from watcher.store.settings import StoreSettings

STORE = Path("/tmp/of-the-demo.db")


def adapted(tmp_path: Path, text: str = "", *, environ: Any = None, **flags: Any) -> Settings:
    (tmp_path / "load-watcher.toml").write_text(text)
    given = {key.replace("__", "."): value for key, value in flags.items()} | demo_settings.FORCED
    return demo_settings.adapted(loading.load(flags=given, environ=environ or {}, cwd=tmp_path), store=STORE)


def test_the_configured_source_and_cluster_are_ignored(tmp_path: Path) -> None:
    """Neither the source of the file nor the cluster of the environment is used, and no notice mentions them."""
    text = """
        [provider]
        name = "prometheus"
        address = "http://prometheus:9090"
        token = "s3cret"
        [provider.queries.CPU]
        expression = "x"
        unit = "ratio"
        [koordinator]
        report_interval = "90s"
        publish = true
    """
    found = adapted(tmp_path, text, environ={"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert (found[ProviderSettings].name, found[ProviderSettings].address, found[ProviderSettings].token) == (
        "demo",
        None,
        None,
    )
    assert found[ProviderSettings].queries == {}
    assert found.notices == ()
    assert (found[KoordinatorSettings].report_interval, found[KoordinatorSettings].publish) == (90, False)


@pytest.mark.parametrize(
    ("text", "flags", "url"),
    [
        ("", {}, f"sqlite:///{STORE}"),
        ('[store]\nurl = "sqlite:///real.db"', {}, f"sqlite:///{STORE}"),
        ('[store]\nurl = "postgresql://u@db/real"\nwatcher_id = "w"', {}, f"sqlite:///{STORE}"),
        ('[store]\nurl = "sqlite:///real.db"', {"store__url": "sqlite:///mine.db"}, "sqlite:///mine.db"),
    ],
)
def test_the_configured_database_is_not_used(tmp_path: Path, text: str, flags: dict[str, str], url: str) -> None:
    """It may be a real one; only a flag selects it."""
    found = adapted(tmp_path, text, **flags)
    assert (found[StoreSettings].url, found[StoreSettings].watcher_name(found[ClusterSettings].name)) == (url, "")
    environ = {"LOAD_WATCHER_STORE_URL": "sqlite:///real.db"}
    assert adapted(tmp_path, environ=environ)[StoreSettings].url == f"sqlite:///{STORE}"


@pytest.mark.parametrize(
    ("text", "interval"),
    [("", 15.0), ('[refresh]\nresolution = "30s"', 30.0), ('[refresh]\ninterval = "40s"', 40.0)],
)
def test_the_interval_is_short_unless_it_is_configured(tmp_path: Path, text: str, interval: float) -> None:
    assert adapted(tmp_path, text)[RefreshSettings].interval == interval


def test_pods_are_fetched_from_the_start_unless_they_are_off(tmp_path: Path) -> None:
    assert adapted(tmp_path)[RefreshSettings].pods == "on"
    assert adapted(tmp_path, refresh__pods="off")[RefreshSettings].pods == "off"


def test_the_output_states_that_the_data_are_simulated_and_the_faults() -> None:
    """With the names of the nodes, and the length of a day."""
    first, *faults = demo_settings.banner_lines(SimulatedCluster(24, seed=1, speed=24.0, begun=1e9))
    assert first.startswith("simulated cluster, all data is generated: 24 nodes, ")
    assert first.endswith("a simulated day takes 1h")
    assert len(faults) == 4
    (alone,) = demo_settings.banner_lines(SimulatedCluster(1, seed=1, speed=1.0, begun=1e9))
    assert ": 1 node, " in alone
    assert alone.endswith("a simulated day takes 24h")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--nodes", "0"], "--nodes"),
        (["--nodes", "5001"], "1<=x<=5000"),
        (["--nodes", "many"], "--nodes"),
        (["--speed", "0"], "0.1<=x<=1440"),
        (["--speed", "-3"], "--speed"),
        (["--speed", "nan"], "must be a number"),
        (["--speed", "inf"], "--speed"),
        (["--seed", "x"], "--seed"),
        (["--provider", "prometheus"], "No such option"),
        (["--set", "server.port=x"], "server.port"),
    ],
)
def test_invalid_arguments_are_exit_code_2(arguments: list[str], said: str, tmp_path: Path, monkeypatch: Any) -> None:
    """With the option or the key."""
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["demo", *arguments], prog_name="load-watcher")
    assert result.exit_code == 2
    assert said in result.stderr
    assert not list(tmp_path.iterdir())
