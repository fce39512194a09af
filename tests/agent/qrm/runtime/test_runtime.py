"""Properties are applied over the socket of the runtime, or only logged."""

import logging
from pathlib import Path

import pytest

from agent.qrm.manager.admission import ApplyFailed
from agent.qrm.pods import PodContainer, QrmPod
from agent.qrm.runtime import FoundContainer, dry_run
from agent.qrm.runtime.cri import CriRuntime
from tests.fakes.cri import FakeRuntime

ID = "a" * 64
UID = "0f5d1f0e-1111-2222-3333-444455556666"


async def test_dry_run_logs_the_properties_that_it_would_set(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO):
        await dry_run(QrmPod(UID, "default", "web"), PodContainer("main", id=ID), {"CpusetCpus": "0-1"})
    assert "would set CpusetCpus=0-1 on default/web, container main (dry-run)" in caplog.text


# --- the runtime's socket --------------------------------------------------------------------------------------------


def found(id: str = ID) -> FoundContainer:
    return FoundContainer(id, "main", "default/web", UID)


async def test_the_runtime_gets_only_the_properties_that_are_set(tmp_path: Path):
    async with FakeRuntime(tmp_path / "cri.sock", containers={ID}) as fake:
        runtime = CriRuntime(fake.path)
        await runtime.set(found(), {"CpusetCpus": "2-21", "CpusetMems": "0"})
        await runtime.set(found(), {"CpuShares": 512, "Unified.io.weight": "50"})
        assert fake.updates == [
            (ID, {"cpuset_cpus": "2-21", "cpuset_mems": "0"}),
            (ID, {"cpu_shares": 512, "unified": {"io.weight": "50"}}),
        ]
        with pytest.raises(ApplyFailed, match=r"of default/web, container main \(bbbb.*NOT_FOUND: no such"):
            await runtime.set(found("b" * 64), {"CpusetCpus": "2-21"})
        with pytest.raises(ApplyFailed, match="INVALID_ARGUMENT: CPUs 80 are not there"):
            await runtime.set(found(), {"CpusetCpus": "79-80"})
        await runtime.close()


async def test_without_a_runtime_at_the_socket_all_updates_fail(tmp_path: Path):
    runtime = CriRuntime(tmp_path / "none.sock")
    with pytest.raises(ApplyFailed, match=r"none.sock: UpdateContainerResources of .* UNAVAILABLE"):
        await runtime.set(found(), {"CpusetCpus": "0"})
    await runtime.close()
