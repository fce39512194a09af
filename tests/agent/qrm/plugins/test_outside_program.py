"""The plug-in of the cluster tests as a process beside `load-watcher qrm`: both ways to register, and restarts."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from tests.agent.qrm.test_main import Qrm, World, given, world
from tests.cluster import plugin_program
from tests.cluster.plugin_program import Way
from tests.fakes.kube import PODS
from tests.real.parts import REPOSITORY
from tests.waiting import wait_for

__all__ = ["world"]  # a fixture
pytestmark = pytest.mark.slow
RESOURCE = "example.org/disk"
PROGRAM = Path(plugin_program.__file__).read_text()


@contextlib.contextmanager
def running(way: Way, state: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a plug-in until the end of the block, and kill it, which leaves its socket."""
    command = [sys.executable, "-c", PROGRAM, way, RESOURCE, str(state)]
    process = subprocess.Popen(command, cwd=REPOSITORY)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def live(qrm: Qrm) -> bool:
    return bool(qrm.state()["plugins"].get(RESOURCE, {}).get("live"))


def disk(qrm: Qrm, pod: str) -> str:
    return str(given(qrm).get(f"default/{pod}", {}).get(RESOURCE, {}).get("allocation_result", ""))


@pytest.mark.parametrize("way", get_args(Way))
def test_a_plug_in_registers_again_after_it_and_the_manager_have_restarted(world: World, way: Way):
    state = world.directory / "qrm" / "load-watcher-qrm"
    one, two, three = (f"{number}1111111-0000-4000-8000-000000000000" for number in range(3))

    def requesting(name: str, uid: str) -> None:
        world.pod(f"default/{name}", uid, "ETL", cpu="1", requests={RESOURCE: "1"})

    with contextlib.ExitStack() as stack:
        with world.run(mode="dry-run") as qrm:
            with running(way, state):
                wait_for(lambda: live(qrm), what="the plug-in to be registered")
                requesting("one", one)
                wait_for(lambda: disk(qrm, "one") == "disk-0", what="the first disk")
            wait_for(lambda: not live(qrm), what="the manager to miss the plug-in")
            stack.enter_context(running(way, state))
            wait_for(lambda: live(qrm), what="the plug-in to be registered again")
            requesting("two", two)
            wait_for(lambda: disk(qrm, "two") == "disk-1", what="the second disk")
        with world.run(mode="dry-run") as qrm:
            wait_for(lambda: live(qrm), what="the plug-in to be registered with the next manager")
            wait_for(lambda: disk(qrm, "one") == "disk-0", what="the first disk as before")
            wait_for(lambda: disk(qrm, "two") == "disk-1", what="the second disk as before")
            requesting("three", three)
            wait_for(lambda: qrm.state()["inadmissible"], what="the pod for which there is no disk")
            world.kube.delete(PODS, "default/one")
            wait_for(lambda: disk(qrm, "three") == "disk-0", what="the disk of the pod that ended")
