"""Settings of a database on a server: the name of the watcher, the password, and errors."""

import socket
import sys
from pathlib import Path

import pytest

from watcher.core.config.problems import SettingsError
from watcher.core.config.settings import Settings
from watcher.platform.logs import ClusterSettings
from watcher.service.settings.loading import load
from watcher.store.settings import StoreSettings

SERVER = 'url = "postgresql://watcher@db.example/watcher"\n'


def loaded(tmp_path: Path, store: str, *, cluster: str = "", **environ: str) -> Settings:
    head = f'[cluster]\nname = "{cluster}"\n' if cluster else ""
    (tmp_path / "load-watcher.toml").write_text(f"{head}[store]\n{store}")
    return load(flags={}, environ=environ, cwd=tmp_path)


def test_a_watcher_on_a_server_has_a_default_name(tmp_path: Path):
    """That of its pod, otherwise of its host; the origin is named."""
    settings = loaded(tmp_path, SERVER, POD_NAME="load-watcher-0")
    assert ("load-watcher-0", "environment POD_NAME") == (
        settings[StoreSettings].watcher_name(settings[ClusterSettings].name),
        settings.origins["store.watcher_id"],
    )
    settings = loaded(tmp_path, SERVER)
    assert socket.gethostname() == settings[StoreSettings].watcher_name(settings[ClusterSettings].name)
    assert "default, the host name" == settings.origins["store.watcher_id"]
    settings = loaded(tmp_path, SERVER + 'watcher_id = "a"', POD_NAME="load-watcher-0")
    assert "a" == settings[StoreSettings].watcher_name(settings[ClusterSettings].name)


def test_watchers_with_one_name_in_two_clusters_are_different(tmp_path: Path):
    """The cluster's name precedes it."""
    own = SERVER + 'watcher_id = "load-watcher-0"'
    given = [loaded(tmp_path, own, cluster=cluster) for cluster in ("", "prod-1", "prod-2")]
    names = {each[StoreSettings].watcher_name(each[ClusterSettings].name) for each in given}
    assert {"load-watcher-0", "prod-1/load-watcher-0", "prod-2/load-watcher-0"} == names


def test_a_file_has_one_watcher_for_any_name(tmp_path: Path):
    """So that a pod with another name, or a cluster that gets a name, finds the history in its file."""
    settings = loaded(
        tmp_path, 'url = "sqlite:///a.db"\nwatcher_id = "a"\npassword_file = "/etc/hosts"', cluster="c", POD_NAME="p"
    )
    assert "" == settings[StoreSettings].watcher_name(settings[ClusterSettings].name)
    expected = {f"store.{name} is set but not used: store.url names a file" for name in ("watcher_id", "password_file")}
    assert expected <= set(settings.notices)


@pytest.mark.parametrize(
    ("store", "key", "says", "cure"),
    [
        (SERVER + 'watcher_id = "a/b"', "store.watcher_id", "contains a /", "choose a name"),
        (SERVER + 'password_file = "none"', "store.password_file", "does not exist", "name an existing file"),
        (
            'url = "postgresql://u:pw@h/d"\npassword_file = "/etc/hosts"',
            "store.url",
            "store.password_file is set as well",
            "remove one of them",
        ),
    ],
)
def test_invalid_settings_are_errors_of_their_keys(tmp_path: Path, store: str, key: str, says: str, cure: str):
    with pytest.raises(SettingsError) as refused:
        loaded(tmp_path, store)
    (problem,) = refused.value.problems
    assert key == problem.key
    assert says in problem.message
    assert cure in problem.cure


def test_without_psycopg_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Before a connection is tried."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(SettingsError) as refused:
        loaded(tmp_path, SERVER)
    (problem,) = refused.value.problems
    assert "store.url" == problem.key
    assert "pip install '.[postgres]' in a clone" in problem.cure
