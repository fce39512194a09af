"""Containers of a real containerd and runc: the CPUs that the kernel gives to their processes. `make containers` runs
this; it requires root and writable cgroups."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.qrm.nri.session import NriSession
from tests.real.nri.containerd import Containerd, allowed_cpus
from tests.real.nri.recording import methods
from tests.waiting import eventually

pytestmark = [pytest.mark.real, pytest.mark.slow]

UID = "22222222-0000-4000-8000-000000000000"


@pytest.fixture
def containerd() -> Iterator[Containerd]:
    with tempfile.TemporaryDirectory(prefix="nri-") as directory:
        made = Containerd(Path(directory))
        try:
            made.start()
            made.load_image()
            yield made
        finally:
            made.close()


async def test_the_session_registers_with_containerd_and_sets_cpus(containerd: Containerd):
    """The plug-in of the recordings, with a CPU that each machine has."""
    failures: list[tuple[str, str]] = []
    session = NriSession(
        containerd.nri_socket,
        lambda: methods("1"),
        name="load-watcher",
        index="50",
        failed=lambda *what: failures.append(what),
    )
    running = asyncio.create_task(session.run())
    await eventually(lambda: not session.trouble, what="the registration")

    def run() -> tuple[str, str]:
        pod = containerd.run_pod("default/pod1", UID, {})
        id = containerd.create(pod, "default/pod1", UID, {}, container="container0")
        return containerd.spec(id)["linux"]["resources"]["cpu"]["cpus"], allowed_cpus(containerd.start_container(id))

    assert await asyncio.to_thread(run) == ("1", "1")
    assert not failures
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
