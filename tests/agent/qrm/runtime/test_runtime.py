"""Properties on their way to containers: by a runtime's socket, by files of control groups, and not at all."""

import asyncio
import logging
import os
from collections.abc import Iterator
from contextlib import AsyncExitStack, nullcontext
from pathlib import Path

import pytest

from agent.cgroups.detection import Layout, NoCgroups, Version, find_layout
from agent.cgroups.paths import Driver
from agent.qrm.main import applier
from agent.qrm.manager.admission import ApplyFailed
from agent.qrm.manager.allocation import Properties
from agent.qrm.pods import PodContainer, QrmPod
from agent.qrm.runtime import dry_run
from agent.qrm.runtime.cgroup import CgroupRuntime
from agent.qrm.runtime.cri import CriRuntime
from agent.qrm.settings import read_settings
from tests.fakes.cgroups import FakeCgroups
from tests.fakes.cri import FakeRuntime
from tests.real.cgroups import BUSY, ROOT, Groups
from tests.waiting import wait_for

ID = "a" * 64
UID = "0f5d1f0e-1111-2222-3333-444455556666"


def pod(uid: str = UID, *, qos: str = "Burstable", container: str = ID) -> tuple[QrmPod, PodContainer]:
    main = PodContainer("main", {"cpu": 1.0}, id=container)
    return QrmPod(uid, "default", "web", qos_class=qos, containers=(main,)), main


async def test_dry_run_says_what_it_would_do(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO):
        await dry_run(*pod(), {"CpusetCpus": "0-1"})
    assert "would set CpusetCpus=0-1 on default/web, container main (dry-run)" in caplog.text


# --- the runtime's socket --------------------------------------------------------------------------------------------


async def test_the_runtime_is_sent_what_is_set_and_nothing_else(tmp_path: Path):
    async with FakeRuntime(tmp_path / "cri.sock", containers={ID}) as fake:
        runtime = CriRuntime(fake.path)
        await runtime.apply(*pod(), {"CpusetCpus": "2-21", "CpusetMems": "0"})
        await runtime.apply(*pod(), {"CpuShares": 512, "Unified.io.weight": "50"})
        assert fake.updates == [
            (ID, {"cpuset_cpus": "2-21", "cpuset_mems": "0"}),
            (ID, {"cpu_shares": 512, "unified": {"io.weight": "50"}}),
        ]
        with pytest.raises(ApplyFailed, match=r"of default/web, container main \(bbbb.*NOT_FOUND: no such"):
            await runtime.apply(*pod(container="b" * 64), {"CpusetCpus": "2-21"})
        with pytest.raises(ApplyFailed, match="INVALID_ARGUMENT: CPUs 80 are not there"):
            await runtime.apply(*pod(), {"CpusetCpus": "79-80"})
        await runtime.close()


async def test_no_runtime_listens(tmp_path: Path):
    runtime = CriRuntime(tmp_path / "none.sock")
    with pytest.raises(ApplyFailed, match=r"none.sock: UpdateContainerResources of .* UNAVAILABLE"):
        await runtime.apply(*pod(), {"CpusetCpus": "0"})
    await runtime.close()


# --- files of control groups -----------------------------------------------------------------------------------------


@pytest.fixture(params=[("v1", Driver.CGROUPFS), ("v2", Driver.SYSTEMD), ("hybrid", Driver.SYSTEMD)])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[CgroupRuntime, Path]:
    """A runtime over a machine with one container, and the directory of that container's files."""
    version, driver = request.param
    fake = FakeCgroups(tmp_path / "cgroup", version, driver)
    path = fake.container_path(UID, ID, "Burstable")
    fake.add(path)
    place = fake.root / ("" if version == "v2" else "cpuset") / path.lstrip("/")
    place.mkdir(parents=True, exist_ok=True)
    for name, text in (("cgroup.procs", ""), ("cpuset.cpus", "0-79\n"), ("cpuset.mems", "0-1\n")):
        (place / name).write_text(text)
    return CgroupRuntime(lambda: find_layout(str(fake.root))), place


def set_on(runtime: CgroupRuntime, properties: Properties, **which: str) -> None:
    asyncio.run(runtime.apply(*pod(**which), properties))


def test_files_are_written(machine: tuple[CgroupRuntime, Path]):
    runtime, place = machine
    set_on(runtime, {"CpusetCpus": "2-21", "CpusetMems": "0"}, qos="")  # its class is found out
    assert (place / "cpuset.cpus").read_text() == "2-21"
    assert (place / "cpuset.mems").read_text() == "0"


@pytest.mark.parametrize(("nest", "found"), [("crane", True), ("kubelet", False), (None, False)])
async def test_groups_that_are_in_another(tmp_path: Path, nest: str | None, found: bool):
    """A kubelet with --cgroup-root=/crane, by the settings."""
    fake = FakeCgroups(tmp_path / "cgroup", "v2", Driver.CGROUPFS, nest="crane")
    path = fake.container_path(UID, ID, "Burstable")
    fake.add(path)
    place = fake.root / path.lstrip("/")
    for name, text in (("cpuset.cpus", "0-79\n"), ("cpuset.mems", "0-1\n")):
        (place / name).write_text(text)
    given = {"mode": "cgroup", "cgroup": str(fake.root), **({"cgroup_nest": nest} if nest else {})}
    settings, problems = read_settings(given, cwd=tmp_path)
    assert not problems

    with nullcontext() if found else pytest.raises(ApplyFailed, match="no kubelet groups found"):
        async with AsyncExitStack() as stack:
            await applier(settings, stack)(*pod(), {"CpusetCpus": "2-21"})
    assert (place / "cpuset.cpus").read_text() == ("2-21" if found else "0-79\n")


def test_what_is_set_already_is_not_written(machine: tuple[CgroupRuntime, Path]):
    runtime, place = machine
    (place / "cpuset.cpus").write_text("0-1,2-3\n")
    set_on(runtime, {"CpusetCpus": "0-3"})
    assert (place / "cpuset.cpus").read_text() == "0-1,2-3\n"


def test_cpus_are_put_back_when_memory_nodes_fail(machine: tuple[CgroupRuntime, Path]):
    runtime, place = machine
    (place / "cpuset.mems").unlink()
    with pytest.raises(ApplyFailed, match=r"container main: .*cpuset.mems: this group has no such file"):
        set_on(runtime, {"CpusetCpus": "2-21", "CpusetMems": "0"})
    assert (place / "cpuset.cpus").read_text() == "0-79"


@pytest.mark.parametrize("machine", [("v2", Driver.SYSTEMD)], indirect=True)
def test_an_inherited_set_is_put_back_as_the_cpus_of_the_group(machine: tuple[CgroupRuntime, Path]):
    """A kernel does not accept an empty set for a group with processes."""
    runtime, place = machine
    (place / "cpuset.cpus").write_text("\n")
    (place / "cpuset.cpus.effective").write_text("0-63\n")
    (place / "cpuset.mems").unlink()
    with pytest.raises(ApplyFailed, match=r"cpuset\.mems"):
        set_on(runtime, {"CpusetCpus": "2-21", "CpusetMems": "0"})
    assert (place / "cpuset.cpus").read_text() == "0-63"


def test_a_container_that_is_not_there(machine: tuple[CgroupRuntime, Path]):
    runtime, _ = machine
    for which in ({"container": "b" * 64}, {"uid": "11111111-0000"}, {"qos": "Guaranteed"}):
        with pytest.raises(ApplyFailed, match="the container has no group here"):
            set_on(runtime, {"CpusetCpus": "0"}, **which)
    with pytest.raises(ApplyFailed, match="is not a valid pod UID"):
        set_on(runtime, {"CpusetCpus": "0"}, uid="../../etc")


def test_what_files_cannot_set_is_refused_before_anything_is_written(machine: tuple[CgroupRuntime, Path]):
    runtime, place = machine
    with pytest.raises(ApplyFailed, match="OomScoreAdj cannot be set through cgroup files: use the mode cri"):
        set_on(runtime, {"CpusetCpus": "0", "OomScoreAdj": 5})
    assert (place / "cpuset.cpus").read_text() == "0-79\n"


def test_any_file_of_the_group_by_its_name(tmp_path: Path):
    for version, place in (("v2", ""), ("v1", "memory")):
        fake = FakeCgroups(tmp_path / version, version, Driver.CGROUPFS)
        path = fake.container_path(UID, ID, "Burstable")
        fake.add(path)
        file = "memory.high" if version == "v2" else "memory.oom_control"
        set_on(CgroupRuntime(lambda: find_layout(str(fake.root))), {f"Unified.{file}": "1"})  # noqa: B023
        assert (fake.root / place / path.lstrip("/") / file).read_text() == "1"


def test_a_machine_without_control_groups(tmp_path: Path):
    def find() -> Layout:
        raise NoCgroups("no control groups found", hint="mount them")

    with pytest.raises(ApplyFailed, match=r"no control groups found. mount them"):
        set_on(CgroupRuntime(find), {"CpusetCpus": "0"})


# --- the kernel ------------------------------------------------------------------------------------------------------


def need_cpuset() -> None:
    reason = f"{ROOT / 'cpuset'} cannot be written: no control groups of version 1 with cpusets here"
    if os.access(ROOT / "cpuset", os.W_OK):
        return
    if os.environ.get("LOAD_WATCHER_REQUIRE_REAL") == "1" and not (ROOT / "cgroup.controllers").exists():
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture
def groups() -> Iterator[Groups]:
    need_cpuset()
    with Groups(controllers=("cpuset",)) as groups:
        yield groups


@pytest.mark.real
@pytest.mark.cgroup_v1
@pytest.mark.slow
def test_a_real_process_runs_where_it_was_told_to(groups: Groups):
    """Cpusets of the kernel: a process that is busy now and then goes where its container is put, and stays where it is
    when the kernel refuses."""
    everywhere = {name: (ROOT / "cpuset" / f"cpuset.{name}").read_text() for name in ("cpus", "mems")}
    below = f"kubepods/burstable/pod{UID}/{ID}"
    groups.make(below)
    for depth in range(5):
        (directory,) = groups.directories("/".join(below.split("/")[:depth]))
        for name, all_of_it in everywhere.items():
            (directory / f"cpuset.{name}").write_text(all_of_it)
    child = groups.run(below, BUSY, 0.1)
    allowed = sorted(os.sched_getaffinity(child.pid))
    layout = Layout(str(ROOT), Version.V1, Driver.CGROUPFS, nest=groups.name)
    runtime = CgroupRuntime(lambda: layout)
    for cpu in (allowed[0], allowed[-1]):
        set_on(runtime, {"CpusetCpus": str(cpu), "CpusetMems": "0"})
        wait_for(lambda cpu=cpu: os.sched_getaffinity(child.pid) == {cpu}, what=f"the child to be on CPU {cpu}")  # type: ignore[misc]
    with pytest.raises(ApplyFailed, match=r"cpuset.mems: '7' cannot be written: the kernel rejects the value"):
        set_on(runtime, {"CpusetCpus": str(allowed[0]), "CpusetMems": "7"})
    assert os.sched_getaffinity(child.pid) == {allowed[-1]}, "half of a decision was left on the container"
    with pytest.raises(ApplyFailed, match=r"cpuset.cpus: '4000' cannot be written"):
        set_on(runtime, {"CpusetCpus": "4000"})
    assert os.sched_getaffinity(child.pid) == {allowed[-1]}
    assert child.poll() is None
