"""Where stores are tested: in a file, and on a real PostgreSQL."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.parts import PostgreSQL

SERVER = (pytest.mark.real, pytest.mark.slow)
BOTH = ("sqlite", pytest.param("postgresql", marks=SERVER))


@pytest.fixture(scope="session")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgreSQL]:
    """One server for all tests of a worker; who breaks it takes one of its own."""
    with PostgreSQL(tmp_path_factory.mktemp("postgresql")) as server:
        yield server


@pytest.fixture(scope="session")
def shared_database(postgresql: PostgreSQL) -> str:
    """The URL of a database for tests that keep apart by their watchers' names."""
    return postgresql.new_database()


@pytest.fixture
def server_database(postgresql: PostgreSQL) -> str:
    """The URL of an empty database on a server."""
    return postgresql.new_database()


@pytest.fixture(params=BOTH)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database that does not exist yet, or is empty: of a file, and on a server."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'a.db'}"
    url: str = request.getfixturevalue("server_database")
    return url


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, text=True
    )
    if mounted.returncode:
        reason = f"cannot mount a tmpfs: {mounted.stderr.strip()}"
        if os.environ.get("LOAD_WATCHER_REQUIRE_REAL") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    yield place
    subprocess.run(["umount", str(place)], check=True)


def enlarge(disk: Path) -> None:
    """Make it one of 64 MB."""
    subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
