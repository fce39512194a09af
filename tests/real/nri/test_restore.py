"""`load-watcher qrm restore` in mode nri with containerd/nri's runtime side: the plug-in requests the updates."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.agent.qrm.test_main import RESERVED, Qrm
from tests.real.nri.node import CONTAINER, NriNode, container_id, nri_node, wait_until_known
from tests.real.nri.runtime import NriRuntime, oci_spec
from tests.real.parts import REPOSITORY
from tests.waiting import PATIENCE_SECONDS, wait_for

pytestmark = [pytest.mark.real, pytest.mark.slow]

UIDS = [f"{number:08d}-0000-4000-8000-000000000000" for number in range(1, 5)]


@pytest.fixture
def node() -> Iterator[NriNode]:
    with nri_node() as made:
        yield made


def start(qrm: Qrm) -> subprocess.Popen[str]:
    """`load-watcher qrm restore` with the settings and the state of a manager."""
    return subprocess.Popen(
        [sys.executable, "-m", "load_watcher", "qrm", "restore", "--config", str(qrm.config_file)],
        cwd=qrm.directory,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def restore(qrm: Qrm) -> tuple[int, str, str]:
    """Exit code, output and errors."""
    process = start(qrm)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, out, err


def pinned(node: NriNode, runtime: NriRuntime, qrm: Qrm, count: int) -> None:
    """Create pods, each with a container that has exclusive CPUs."""
    for number, uid in enumerate(UIDS[:count]):
        node.pending(f"default/pod{number}", uid, "storage-service", cpu="4")
        wait_until_known(qrm, uid)
        assert node.create(runtime, f"default/pod{number}", uid).cpus


def test_containers_get_the_values_of_their_specs_and_a_second_run_requests_nothing(node: NriNode):
    """The second container was created with a cpuset; the third was never in the checkpoint; the fourth has ended."""
    with node.runtime() as runtime:
        with node.manage(RESERVED) as qrm:
            runtime.wait_for_plugin()
            pinned(node, runtime, qrm, 1)
            own = oci_spec()
            own["linux"]["resources"]["cpu"] |= {"cpus": "0-9", "mems": "0"}
            for number in (1, 3):
                node.pending(f"default/pod{number}", UIDS[number], "storage-service", cpu="4")
                wait_until_known(qrm, UIDS[number])
                runtime.run_pod(f"default/pod{number}", UIDS[number], annotations=node.annotations[UIDS[number]])
                spec = own if number == 1 else oci_spec()
                assert runtime.create(UIDS[number], container_id(UIDS[number]), CONTAINER, spec).cpus
        runtime.run_pod("default/pod2", UIDS[2])
        runtime.create(UIDS[2], container_id(UIDS[2]), CONTAINER, own)
        runtime.end(container_id(UIDS[3]))
        runtime.end_pod(UIDS[3])
        gone = f"{UIDS[3]}, container {CONTAINER}: has ended, nothing to restore\n"
        assert restore(qrm) == (
            0,
            f"{gone}default/pod0, container {CONTAINER}: restored: CpusetCpus is 0-79, CpusetMems is 0-1\n"
            f"default/pod1, container {CONTAINER}: restored: CpusetCpus is 0-9\n3 containers processed\n",
            "",
        )
        has = [runtime.containers()[container_id(uid)] for uid in UIDS[:3]]
        assert [(each.cpus, each.mems) for each in has] == [("0-79", "0-1"), ("0-9", "0"), ("0-9", "0")]
        assert has[0].spec["linux"]["resources"]["cpu"]["shares"] == 1024
        asked = len(runtime.asked())
        code, out, err = restore(qrm)
        assert (code, err) == (0, "")
        assert out.count("nothing to restore\n") == 3
        assert len(runtime.asked()) == asked


def test_after_kill_9_in_the_middle_and_a_restart_of_the_runtime_it_continues(node: NriNode):
    with node.runtime() as runtime:
        with node.manage(RESERVED) as qrm:
            runtime.wait_for_plugin()
            pinned(node, runtime, qrm, 4)
            given = runtime.cpusets()
            qrm.kill()
        before = len(runtime.asked())
        restoring = start(qrm)
        wait_for(lambda: len(runtime.asked()) > before, what="the first update")
        restoring.kill()
        restoring.communicate()
        runtime.restart()
        assert restore(qrm)[0] == 0
        assert set(runtime.cpusets().values()) == {"0-79"}
        with node.manage(RESERVED):
            wait_for(lambda: runtime.cpusets() == given, what="the next manager to continue with its checkpoint")


def test_without_a_runtime_it_fails_at_once_with_a_hint(node: NriNode):
    with node.runtime() as runtime, node.manage(RESERVED) as qrm:
        runtime.wait_for_plugin()
        pinned(node, runtime, qrm, 1)
    code, out, err = restore(qrm)
    assert (code, out) == (1, "")
    assert err.startswith(f"load-watcher qrm restore: cannot list the containers: {node.nri_socket}: ")
    assert "\n  check the runtime and its socket (qrm.nri_socket, qrm.runtime_socket), or set --mode cri\n" in err
