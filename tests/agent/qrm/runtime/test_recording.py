"""The values that properties had before the manager set them are on disk before they are overwritten."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from agent.qrm.manager.admission import ApplyFailed
from agent.qrm.pods import PodContainer, QrmPod
from agent.qrm.runtime import Runtime
from agent.qrm.runtime.cri import CriRuntime
from agent.qrm.runtime.restore import OriginalValues, RecordingApply
from tests.fakes.cri import FakeRuntime

UID = "0f5d1f0e-1111-2222-3333-444455556666"
IDS = ("a" * 64, "b" * 64)


def pod(*ids: str) -> QrmPod:
    containers = tuple(PodContainer(f"container{number}", id=id) for number, id in enumerate(ids))
    return QrmPod(UID, "default", "web", qos_class="Burstable", containers=containers)


def recording(runtime: Runtime, directory: Path, pods: Sequence[QrmPod]) -> RecordingApply:
    """The values as a manager loads them at its start."""
    originals = OriginalValues(directory)
    originals.read()
    return RecordingApply(runtime, originals, lambda: pods)


def stored(directory: Path, id: str) -> dict[str, int | str]:
    originals = OriginalValues(directory)
    originals.read()
    return dict(originals.of(id))


async def test_the_first_value_is_stored_also_after_a_restart(tmp_path: Path):
    """A value that was unset is not replaced later by the manager's own."""
    web = pod(*IDS)
    async with FakeRuntime(tmp_path / "cri.sock", containers=set()) as fake:
        fake.add(IDS[0], "container0", "default/web", UID, cpu_shares=1024)
        fake.add(IDS[1], "container1", "default/web", UID)
        for shares in (512, 256):
            runtime = CriRuntime(fake.path)
            for container in web.containers:
                made = recording(runtime, tmp_path, [web])
                await made.apply(web, container, {"CpuShares": shares, "CpusetCpus": "2-5"})
            await runtime.close()
        assert [fake.resources[id].cpu_shares for id in IDS] == [256, 256]
    assert [stored(tmp_path, id) for id in IDS] == [{"CpuShares": 1024}, {}]


async def test_values_of_other_pods_stay(tmp_path: Path):
    """In one run of the manager, and after a restart."""
    first, second = (
        QrmPod(f"{UID[:-1]}{at}", "default", f"web-{at}", containers=(PodContainer("c", id=id),))
        for at, id in enumerate(IDS)
    )
    async with FakeRuntime(tmp_path / "cri.sock", containers=set()) as fake:
        for number, each in enumerate((first, second)):
            fake.add(IDS[number], "c", each.key, each.uid, cpu_shares=100 + number)
        runtime = CriRuntime(fake.path)
        made = recording(runtime, tmp_path, [first, second])
        for each in (first, second):
            await made.apply(each, each.containers[0], {"CpuShares": 50})
        for each in (first, second):
            restarted = recording(runtime, tmp_path, [first, second])
            await restarted.apply(each, each.containers[0], {"CpuShares": 25})
        await runtime.close()
    assert [stored(tmp_path, id) for id in IDS] == [{"CpuShares": 100}, {"CpuShares": 101}]


async def test_cpusets_alone_need_no_file_and_no_call(tmp_path: Path):
    async with FakeRuntime(tmp_path / "cri.sock", containers={IDS[0]}) as fake:
        runtime = CriRuntime(fake.path)
        web = pod(IDS[0])
        await recording(runtime, tmp_path, [web]).apply(web, web.containers[0], {"CpusetCpus": "2-5"})
        await runtime.close()
        assert fake.updates
    assert not list(tmp_path.glob("original_values*"))


async def test_nothing_is_set_if_the_value_cannot_be_read_or_stored(tmp_path: Path):
    async with FakeRuntime(tmp_path / "cri.sock", containers=set()) as fake:
        runtime = CriRuntime(fake.path)
        web = pod(IDS[0])
        made = recording(runtime, tmp_path / "missing", [web])
        with pytest.raises(ApplyFailed, match="default/web, container container0 has ended"):
            await made.apply(web, web.containers[0], {"CpuShares": 512})
        fake.add(IDS[0], "container0", "default/web", UID, cpu_shares=1024)
        with pytest.raises(ApplyFailed, match=r"container0: cannot write .*original_values: No such file"):
            await made.apply(web, web.containers[0], {"CpuShares": 512})
        assert not fake.updates
        await runtime.close()


async def test_values_of_containers_that_ended_are_removed(tmp_path: Path):
    async with FakeRuntime(tmp_path / "cri.sock", containers=set()) as fake:
        runtime = CriRuntime(fake.path)
        for number, id in enumerate(IDS):
            fake.add(id, "container0", "default/web", UID, cpu_shares=100 + number)
            web = pod(id)
            await recording(runtime, tmp_path, [web]).apply(web, web.containers[0], {"CpuShares": 50})
            assert fake.resources[id].cpu_shares == 50
        await runtime.close()
    assert [stored(tmp_path, id) for id in IDS] == [{}, {"CpuShares": 101}]
