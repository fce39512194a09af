"""The service with a hostile source, in a process with the memory limit that the manifests ship."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.hostile import TOKEN
from tests.hostile.server import MIB, HostileServer
from tests.real.memory_limit import MemoryLimit
from tests.service import Service
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

LIMIT = 512 * MIB
SOURCE_CONNECTIONS = 4
READERS = 2
FILES_OF_A_READER = 2
KINDS = ("bomb", "endless spaces", "many values", "hang", "deep")


class LimitedService(Service):
    """A service in a cgroup."""

    def __init__(self, group: MemoryLimit, directory: Path, config: str) -> None:
        super().__init__(directory, config=config)
        self._group = group

    def command(self) -> Sequence[str | Path]:
        return self._group.command(*super().command())


def test_the_service_outlives_a_hostile_source_with_as_many_descriptors_as_before(tmp_path: Path):
    """Descriptors besides inbound connections: those of the source's connections and of the database."""
    with HostileServer() as source, MemoryLimit(LIMIT) as group:
        source.hostility = KINDS[0]  # the log has the reason of the first failure
        (tmp_path / "token").write_text(TOKEN)
        config = (
            f'[provider]\nname = "prometheus"\naddress = "{source.url}"\ntimeout = "3s"\n'
            f'token_file = "{tmp_path / "token"}"\n[refresh]\ninterval = "4s"\nresolution = "1s"\n'
        )
        with LimitedService(group, tmp_path / "service", config) as service:
            files = len(os.listdir(f"/proc/{service.pid}/fd"))
            for kind in KINDS:
                source.hostility = kind
                asked = source.asked + 12
                wait_for(lambda wanted=asked: source.asked >= wanted, what=f"requests that get {kind}")  # type: ignore[misc]
                assert service.is_running(), service.log()[-2000:]
                assert service.get("/healthz").status == 200
                assert service.get("/watcher").status in (404, 503)
                more = len(os.listdir(f"/proc/{service.pid}/fd")) - files
                assert more <= SOURCE_CONNECTIONS + FILES_OF_A_READER * READERS
        log = service.log()
        assert TOKEN not in log
        assert "Traceback" not in log
        assert "the answer is larger than 25 MiB" in log
        assert 0 < group.peak <= LIMIT
