"""`load-watcher qrm restore` as a user runs it: after a manager, beside one, and after kill -9."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.qrm.store.checkpoint import CHECKPOINT
from tests.agent.qrm.test_main import RESERVED, Qrm, World, cri, refused, the_seeds_machine
from tests.fakes.cri import FakeRuntime
from tests.real.parts import REPOSITORY
from tests.waiting import eventually

pytestmark = pytest.mark.slow

UIDS = [f"{digit * 8}-0000-4000-8000-000000000000" for digit in "12"]


@pytest.fixture
def world() -> Iterator[World]:
    with the_seeds_machine() as made:
        yield made


async def start(qrm: Qrm, *arguments: str) -> asyncio.subprocess.Process:
    """`load-watcher qrm restore` with the settings and the state of a manager."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "load_watcher", "qrm", "restore", "--config", str(qrm.config_file), *arguments),
        cwd=qrm.directory,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def restore(qrm: Qrm, *arguments: str) -> tuple[int | None, str, str]:
    """Exit code, output and errors."""
    process = await start(qrm, *arguments)
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_containers_are_restored_after_a_manager_and_not_beside_one(world: World):
    async with FakeRuntime(world.socket, containers=set()) as runtime:
        for number, uid in enumerate(UIDS):
            world.pod(f"default/pod{number}", uid, "storage-service", cpu="4")
            runtime.add(cri(uid), "container0", f"default/pod{number}", uid)
        with world.run(RESERVED) as qrm:
            await eventually(lambda: len(runtime.cpusets()) == 2, what="both to be pinned")
            code, out, err = await restore(qrm)
            assert (code, out) == (1, "")
            assert "load-watcher qrm restore: load-watcher qrm, or another restore, is running" in err
            assert "\n  stop the manager first, because it would set the values again\n" in err
            assert runtime.cpuset_of(cri(UIDS[0])) == ("2-5", "0")
        runtime.containers.remove(cri(UIDS[1]))
        gone = f"{UIDS[1]}, container container0: has ended, nothing to restore\n"
        code, out, err = await restore(qrm)
        assert (code, err) == (0, "")
        wanted = "default/pod0, container container0: restored: CpusetCpus is 0-79, CpusetMems is 0-1\n"
        assert out == f"{gone}{wanted}2 containers processed\n"
        code, out, err = await restore(qrm, "-o", "json")
        assert (code, json.loads(out)) == (
            0,
            {
                "containers": [
                    {
                        "pod": UIDS[1],
                        "container": "container0",
                        "id": "",
                        "outcome": "gone",
                        "text": "has ended, nothing to restore",
                    },
                    {
                        "pod": "default/pod0",
                        "container": "container0",
                        "id": cri(UIDS[0]),
                        "outcome": "not needed",
                        "text": "nothing to restore",
                    },
                ],
                "text": "2 containers processed",
            },
        )


async def test_a_manager_does_not_start_beside_restore_and_starts_after_kill_9(world: World):
    """The runtime hangs after the first container. The process is stopped, so that it does not give up meanwhile."""
    async with FakeRuntime(world.socket, containers=set()) as runtime:
        for number, uid in enumerate(UIDS):
            world.pod(f"default/pod{number}", uid, "storage-service", cpu="4")
            runtime.add(cri(uid), "container0", f"default/pod{number}", uid)
        with world.run(RESERVED) as qrm:
            await eventually(lambda: len(runtime.cpusets()) == 2, what="both to be pinned")
        runtime.held = len(runtime.updates) + 1
        restoring = await start(qrm)
        await eventually(lambda: runtime.waiting == 1, what="the first to be restored, and the second to wait")
        restoring.send_signal(signal.SIGSTOP)
        manager = await asyncio.to_thread(refused, qrm)
        assert "another load-watcher serves" in manager
        restoring.kill()
        await restoring.wait()
        await eventually(lambda: runtime.waiting == 0, what="the request of the killed process to be cancelled")
        runtime.hold.set()
        assert sorted(runtime.cpuset_of(cri(uid))[0] for uid in UIDS) == ["0-79", "6-9"]
        code, out, _ = await restore(qrm)
        assert code == 0
        assert "pod0, container container0: nothing to restore\n" in out
        assert "pod1, container container0: restored: CpusetCpus is 0-79, CpusetMems is 0-1\n" in out
        assert {runtime.cpuset_of(cri(uid)) for uid in UIDS} == {("0-79", "0-1")}


async def test_a_container_that_is_not_restored_and_a_node_without_a_checkpoint_are_reported(world: World):
    async with FakeRuntime(world.socket, containers=set()) as runtime:
        qrm = world.run(RESERVED)
        code, out, err = await restore(qrm)
        assert (code, out) == (1, "")
        assert f"the checkpoint {Path('load-watcher-qrm') / CHECKPOINT} does not exist" in err
        code, out, err = await restore(qrm, "--missing-ok")
        assert (code, err) == (0, "")
        assert out.endswith("does not exist: no manager has run on this node; nothing to restore\n")
        world.pod("default/pod0", UIDS[0], "storage-service", cpu="4")
        runtime.add(cri(UIDS[0]), "container0", "default/pod0", UIDS[0])
        with qrm:
            await eventually(lambda: runtime.cpusets(), what="it to be pinned")
        runtime.cpus = frozenset(range(40))
        code, out, _ = await restore(qrm)
        assert code == 1
        assert "default/pod0, container container0: not restored: " in out
        assert (await restore(qrm, "--mode", "dry-run"))[:2] == (1, out), "the stored mode"
        code, _, err = await restore(qrm, "--mode", "cgroup")
        assert (code, '"cgroup" was removed in this version: use nri or cri, which set' in err) == (2, True)
        assert (await restore(qrm, "--mode", "somehow"))[0] == 2
