"""`load-watcher qrm restore`: containers get the values back that they had before, in each mode; what ended is named,
and what cannot be restored is an error."""

import asyncio
import fcntl
import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.qrm.manager.allocation import AllocationInfo, Allocations
from agent.qrm.pods import PodContainer, QrmPod
from agent.qrm.runtime.cri import CriRuntime
from agent.qrm.runtime.nri.protos import qrm_nri_v1alpha1_pb2 as pb
from agent.qrm.runtime.nri.table import MAX_SYNCHRONIZED
from agent.qrm.runtime.nri.ttrpc import (
    PLUGIN_CONNECTION,
    PLUGIN_SERVICE,
    REQUEST,
    RESPONSE,
    RUNTIME_CONNECTION,
    CallFailed,
    CallRequest,
    Message,
    decode_response,
    encode_request,
    encode_response,
)
from agent.qrm.runtime.nri.ttrpc import encode as encode_message
from agent.qrm.runtime.restore import (
    UNKNOWN,
    OriginalValues,
    RecordingApply,
    RestoredContainer,
    record_mode,
    recorded_mode,
    restore,
)
from agent.qrm.settings import QrmSettings, read_settings
from agent.qrm.store.checkpoint import CHECKPOINT, encode
from agent.service.node_server import CannotRun
from tests.agent.qrm.plugins.test_sysfs import as_files, put
from tests.agent.qrm.vectors import machine
from tests.fakes.cri import FakeRuntime
from tests.fakes.nri import RuntimeSocket, raw

UIDS = tuple(f"{number:08d}-0000-4000-8000-000000000000" for number in range(4))
IDS = tuple(digit * 64 for digit in "abcd")
ALL = ("0-79", "0-1")


class Node:
    """The proposal's machine, with a checkpoint in which containers have CPUs and memory nodes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.allocations = Allocations()
        self.state = directory / "state"
        self.state.mkdir()
        as_files(directory / "sys", machine("seed80_adjacent"))

    def settings(self, mode: str, **more: Any) -> QrmSettings:
        given = {"mode": mode, "state_dir": str(self.state), "sys": str(self.directory / "sys")}
        given |= {"cgroup": str(self.directory / "cgroup"), "kubelet_dir": str(self.directory / "kubelet")}
        found, problems = read_settings({**given, **more}, cwd=self.directory)
        assert not problems
        return found

    def allocated(self, uid: str, name: str = "main", **properties: str) -> None:
        """An allocation of a container in the checkpoint: by default CPUs and memory nodes."""
        for resource, (key, value) in enumerate((properties or {"CpusetCpus": "2-5", "CpusetMems": "0"}).items()):
            info = AllocationInfo(key.replace("_", "."), allocation_result=value)
            self.allocations.set(uid, name, f"resource{resource}", info)
        (self.state / CHECKPOINT).write_bytes(encode(self.allocations))

    def kubelet(self, **states: Any) -> None:
        """State files of the kubelet."""
        for name, state in states.items():
            put(self.directory, f"kubelet/{name}_manager_state", json.dumps(state))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def reported(found: list[RestoredContainer]) -> list[tuple[str, str, str, str]]:
    return [(each.pod, each.container, each.outcome.value, each.text) for each in found]


async def restored(settings: QrmSettings) -> list[RestoredContainer]:
    return list((await restore(settings)).containers)


# --- through the container runtime -----------------------------------------------------------------------------------


async def test_containers_get_all_cpus_and_memory_nodes_and_a_second_run_changes_nothing(node: Node):
    """Only containers of the checkpoint; those that ended are named."""
    node.allocated(UIDS[0])
    node.allocated(UIDS[0], "sidecar", CpusetCpus="6-7")
    node.allocated(UIDS[1], "ended")
    node.allocated(UIDS[2], "card", **{"": "eth0"})
    async with FakeRuntime(node.directory / "cri.sock", containers=set()) as runtime:
        runtime.add(IDS[0], "main", "shop/web", UIDS[0], cpuset_cpus="2-5", cpuset_mems="0", cpu_shares=512)
        runtime.add(IDS[1], "sidecar", "shop/web", UIDS[0], cpuset_cpus="6-7", cpuset_mems="1")
        runtime.add(IDS[2], "other", "shop/web", UIDS[0], cpuset_cpus="8", cpuset_mems="1")
        runtime.add(IDS[3], "main", "shop/db", UIDS[3], cpuset_cpus="9")
        settings = node.settings("cri", runtime_socket=str(runtime.path))
        gone = (UIDS[1], "ended", "gone", "has ended, nothing to restore")
        assert reported(await restored(settings)) == [
            gone,
            ("shop/web", "main", "done", "restored: CpusetCpus is 0-79, CpusetMems is 0-1"),
            ("shop/web", "sidecar", "done", "restored: CpusetCpus is 0-79"),
        ]
        assert [runtime.cpuset_of(id) for id in IDS] == [ALL, ("0-79", "1"), ("8", "1"), ("9", "")]
        sent = len(runtime.updates)
        assert reported(await restored(settings)) == [
            gone,
            ("shop/web", "main", "not needed", "nothing to restore"),
            ("shop/web", "sidecar", "not needed", "nothing to restore"),
        ]
        assert len(runtime.updates) == sent


async def test_a_container_that_was_never_pinned_is_left_alone(node: Node):
    """The manager ended between its checkpoint and the update."""
    node.allocated(UIDS[0])
    async with FakeRuntime(node.directory / "cri.sock", containers=set()) as runtime:
        runtime.add(IDS[0], "main", "shop/web", UIDS[0])
        (found,) = await restored(node.settings("cri", runtime_socket=str(runtime.path)))
        assert found.outcome.value == "not needed"
        assert not runtime.updates


async def test_a_runtime_that_reports_no_resources_is_sent_the_same_values_each_time(node: Node):
    node.allocated(UIDS[0])
    async with FakeRuntime(node.directory / "cri.sock", containers=set(), reports=False) as runtime:
        runtime.add(IDS[0], "main", "shop/web", UIDS[0], cpuset_cpus="2-5", cpuset_mems="0")
        for _ in range(2):
            (found,) = await restored(node.settings("cri", runtime_socket=str(runtime.path)))
            assert found.outcome.value == "done"
        assert runtime.updates == [(IDS[0], {"cpuset_cpus": "0-79", "cpuset_mems": "0-1"})] * 2


async def test_memory_nodes_without_cpus_are_restored_too(node: Node):
    node.allocated(UIDS[0])
    put(node.directory / "sys", "devices/system/node/has_memory", "0-2")
    async with FakeRuntime(node.directory / "cri.sock", containers=set()) as runtime:
        runtime.add(IDS[0], "main", "shop/web", UIDS[0], cpuset_cpus="2-5", cpuset_mems="0")
        await restore(node.settings("cri", runtime_socket=str(runtime.path)))
        assert runtime.cpuset_of(IDS[0]) == ("0-79", "0-2")


async def test_sets_of_the_kubelets_own_managers_are_restored_and_not_overwritten(node: Node):
    """The administrator has turned the kubelet's managers on: a container with its own CPUs, others with the rest."""
    node.kubelet(
        cpu={
            "policyName": "static",
            "defaultCpuSet": "0-9,20-79",
            "entries": {UIDS[0]: {"main": "10-14"}, UIDS[1]: {"main": "15-19"}},
        },
        memory={
            "policyName": "Static",
            "machineState": {"0": {}},
            "entries": {UIDS[1]: {"main": [{"numaAffinity": [1], "type": "memory", "size": 1}]}},
        },
    )
    for uid in UIDS[:3]:
        node.allocated(uid)
    async with FakeRuntime(node.directory / "cri.sock", containers=set()) as runtime:
        runtime.add(IDS[0], "main", "a/kubelets", UIDS[0], cpuset_cpus="10-14", cpuset_mems="0-1")
        runtime.add(IDS[1], "main", "b/overwritten", UIDS[1], cpuset_cpus="2-5", cpuset_mems="0")
        runtime.add(IDS[2], "main", "c/shared", UIDS[2], cpuset_cpus="2-5", cpuset_mems="0")
        settings = node.settings("cri", runtime_socket=str(runtime.path))
        assert reported(await restored(settings)) == [
            ("a/kubelets", "main", "not needed", "nothing to restore"),
            ("b/overwritten", "main", "done", "restored: CpusetCpus is 15-19, CpusetMems is 1"),
            ("c/shared", "main", "done", "restored: CpusetCpus is 0-9,20-79, CpusetMems is 0-1"),
        ]
        assert runtime.cpuset_of(IDS[0]) == ("10-14", "0-1")
        (node.directory / "kubelet" / "cpu_manager_state").write_text("{")
        with pytest.raises(CannotRun, match=r"(?s)cpu_manager_state is not a state file.*check qrm.kubelet_dir"):
            await restore(settings)


async def test_other_properties_get_the_stored_values_and_unknown_ones_are_reported(node: Node):
    node.allocated(UIDS[0], CpuShares="512", CpusetCpus="2-5")
    node.allocated(UIDS[1], CpuShares="512", CpusetCpus="2-5")
    originals = OriginalValues(node.state)
    await originals.record(IDS[0], {"CpuShares": 1024, "CpusetCpus": "0-39"})
    await originals.record(IDS[1], {"CpuShares": UNKNOWN})
    async with FakeRuntime(node.directory / "cri.sock", containers=set()) as runtime:
        for number in range(2):
            runtime.add(IDS[number], "main", f"pod/{number}", UIDS[number], cpuset_cpus="2-5", cpu_shares=512)
        assert reported(await restored(node.settings("cri", runtime_socket=str(runtime.path)))) == [
            ("pod/0", "main", "done", "restored: CpuShares is 1024, CpusetCpus is 0-39"),
            (
                "pod/1",
                "main",
                "failed",
                "restored: CpusetCpus is 0-79; the values of CpuShares before the allocation are unknown: create the "
                "container again to restore them",
            ),
        ]
        assert [runtime.resources[id].cpu_shares for id in IDS[:2]] == [1024, 512]


async def test_the_mode_cri_restores_what_the_mode_nri_set(node: Node):
    """Without the socket of NRI. The OOM score was set when the container was created and is not recorded."""
    node.allocated(UIDS[0], CpusetCpus="2-5", OomScoreAdj="-5")
    node.allocated(UIDS[1])
    await OriginalValues(node.state).record(IDS[1], {"CpusetCpus": "0-9"})
    record_mode(node.state, "nri")
    async with FakeRuntime(node.directory / "cri.sock", containers=set()) as runtime:
        runtime.add(IDS[0], "main", "shop/web", UIDS[0], cpuset_cpus="2-5")
        runtime.add(IDS[1], "main", "shop/db", UIDS[1], cpuset_cpus="6-9", cpuset_mems="0")
        assert reported(await restored(node.settings("cri", runtime_socket=str(runtime.path)))) == [
            ("shop/db", "main", "done", "restored: CpusetCpus is 0-9, CpusetMems is 0-1"),
            (
                "shop/web",
                "main",
                "failed",
                "restored: CpusetCpus is 0-79; the values of OomScoreAdj before the allocation are unknown: create the "
                "container again to restore them",
            ),
        ]


async def test_a_container_that_the_runtime_refuses_is_reported_and_the_others_are_restored(node: Node):
    for uid in UIDS[:2]:
        node.allocated(uid)
    async with FakeRuntime(node.directory / "cri.sock", containers=set(), cpus="0-39") as runtime:
        runtime.add(IDS[0], "main", "pod/0", UIDS[0], cpuset_cpus="2-5")
        runtime.add(IDS[1], "main", "pod/1", UIDS[1], cpuset_cpus="0-79", cpuset_mems="0")
        refused, other = await restored(node.settings("cri", runtime_socket=str(runtime.path)))
        assert refused.outcome.value == "failed"
        assert "not restored:" in refused.text
        assert "INVALID_ARGUMENT: CPUs 40-79 are not there" in refused.text
        assert other.text == "restored: CpusetMems is 0-1"


async def test_without_a_runtime_nothing_is_restored(node: Node):
    node.allocated(UIDS[0])
    for mode, key, other in (("cri", "runtime_socket", "nri"), ("nri", "nri_socket", "cri")):
        hint = f"\n  check the runtime and its socket .*, or set --mode {other}$"
        with pytest.raises(CannotRun, match=f"(?s)cannot list the containers: .*none.sock.*{hint}"):
            await restore(node.settings(mode, **{key: str(node.directory / "none.sock")}))


async def test_lists_of_the_runtime_beyond_the_limit_are_an_error_at_once(node: Node):
    """The last part is not awaited."""
    node.allocated(UIDS[0])
    socket = node.directory / "nri.sock"
    part = pb.SynchronizeRequest(containers=[pb.Container(id="x" * 4_000_000)], more=True).SerializeToString()
    streams = range(1, 19, 2)

    def send(runtime: RuntimeSocket) -> list[bytes]:
        plugin = runtime.accept()
        plugin.read_until(lambda: bool(plugin.calls), "RegisterPlugin")
        plugin.send(raw(RUNTIME_CONNECTION, next(iter(plugin.calls)), RESPONSE, encode_response(b"")))
        for number, stream in enumerate(streams, start=1):
            request = encode_request(CallRequest(PLUGIN_SERVICE, "Synchronize", part, 1.0))
            plugin.send(encode_message(Message(PLUGIN_CONNECTION, stream, REQUEST, request)))
            plugin.read_until(lambda number=number: len(plugin.answers) == number, "the answer")  # type: ignore[misc]
        return [plugin.answers[stream] for stream in streams]

    with RuntimeSocket(socket) as runtime:
        sent = asyncio.create_task(asyncio.to_thread(send, runtime))
        with pytest.raises(CannotRun) as caught:
            await restore(node.settings("nri", nri_socket=str(socket)))
        *kept, refused = await sent
    assert all(pb.SynchronizeResponse.FromString(decode_response(each)).more for each in kept)
    with pytest.raises(CallFailed, match=f"exceed {MAX_SYNCHRONIZED} bytes"):
        decode_response(refused)
    assert str(caught.value).startswith(f"cannot list the containers: {socket}: Synchronize: the pods and containers")


# --- several pods with several containers ----------------------------------------------------------------------------


def pods_of(ids: Mapping[tuple[str, str], str]) -> list[QrmPod]:
    found: dict[str, QrmPod] = {}
    for (uid, name), id in ids.items():
        pod = found.get(uid, QrmPod(uid, "shop", f"pod-{uid[7]}"))
        found[uid] = replace(pod, containers=(*pod.containers, PodContainer(name, id=id)))
    return list(found.values())


async def test_each_container_of_several_pods_gets_its_own_values_back(node: Node):
    """The manager sets them in several rounds, restarts, and sets them again; a container is replaced."""
    ids = {(uid, name): f"{uid[7]}{name}" * 8 for uid in UIDS[:3] for name in ("main", "proxy")}
    shares = {id: 1000 + number for number, id in enumerate(ids.values())}
    async with FakeRuntime(node.directory / "cri.sock", containers=set()) as runtime:
        client = CriRuntime(runtime.path)
        for (uid, name), id in ids.items():
            node.allocated(uid, name, CpuShares="512", CpusetCpus="2-5")
            runtime.add(id, name, f"shop/pod-{uid[7]}", uid, cpu_shares=shares[id])
        for given in (512, 256):
            originals = OriginalValues(node.state)
            originals.read()
            manager = RecordingApply(client, originals, lambda: pods_of(ids))
            for pod in pods_of(ids):
                for container in pod.containers:
                    await manager.apply(pod, container, {"CpuShares": given, "CpusetCpus": "2-5"})
        ended = ids.pop((UIDS[1], "proxy"))
        runtime.containers.remove(ended)
        successor = ids[UIDS[1], "proxy"] = "successor" * 4
        runtime.add(successor, "proxy", f"shop/pod-{UIDS[1][7]}", UIDS[1], cpu_shares=700)
        (pod,) = (each for each in pods_of(ids) if each.uid == UIDS[1])
        await manager.apply(pod, pod.containers[-1], {"CpuShares": 256, "CpusetCpus": "2-5"})
        shares[successor] = 700
        assert {runtime.resources[id].cpu_shares for id in ids.values()} == {256}

        results = await restored(node.settings("cri", runtime_socket=str(runtime.path)))
        assert {each.outcome.value for each in results} == {"done"}
        assert {(each.pod, each.container) for each in results} == {(f"shop/pod-{u[7]}", name) for u, name in ids}
        for id in ids.values():
            assert (runtime.resources[id].cpu_shares, runtime.cpuset_of(id)[0]) == (shares[id], "0-79")
        await client.close()


async def test_files_of_version_0_1_0_are_read(node: Node):
    """With the names and contents of the time before `restore` was one module."""
    content = b'{"containers":{"a":{"CpuShares":1024,"Unified.io.weight":""},"b":{"CpuShares":2}}}'
    (node.state / "original_values").write_bytes(content[:-1] + b',"crc32":%d}' % zlib.crc32(content))
    mode = b'{"mode":"nri"}'
    (node.state / "last_mode").write_bytes(mode[:-1] + b',"crc32":%d}' % zlib.crc32(mode))
    originals = OriginalValues(node.state)
    originals.read(replace_damaged=False)
    assert (originals.of("a"), originals.of("b"), originals.of("c")) == ({"CpuShares": 1024}, {"CpuShares": 2}, {})
    assert originals.missing("a", {"CpuShares", "Unified.io.weight"}) == set()
    assert recorded_mode(node.state) == "nri"


# --- requirements of restore -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["dry-run", "server"])
async def test_the_mode_is_the_stored_one_of_the_manager(node: Node, mode: str):
    """Without a stored mode, nothing was set; the settings may already be those of dry-run."""
    node.allocated(UIDS[0])
    async with FakeRuntime(node.directory / "cri.sock", containers=set()) as runtime:
        runtime.add(IDS[0], "main", "shop/web", UIDS[0], cpuset_cpus="2-5")
        settings = node.settings(mode, runtime_socket=str(runtime.path))
        report = await restore(settings)
        assert (report.containers, report.text) == (
            (),
            "the manager has set nothing on containers: nothing to restore",
        )
        record_mode(node.state, "cri")
        (found,) = (await restore(settings)).containers
        assert found.outcome.value == "done"


@pytest.mark.parametrize("mode", ["cri", "nri", "dry-run"])
async def test_the_removed_mode_cgroup_is_an_error(node: Node, mode: str):
    """The runtime does not report what was written to cgroup files."""
    node.allocated(UIDS[0])
    record_mode(node.state, "cgroup")
    with pytest.raises(CannotRun) as caught:
        await restore(node.settings(mode))
    assert str(caught.value) == (
        "the manager had the mode cgroup, which was removed in this version\n  run load-watcher qrm restore of "
        f"the earlier version; or restart the pods, and delete {node.state / 'last_mode'}"
    )


async def test_an_invalid_stored_mode_is_an_error(node: Node):
    node.allocated(UIDS[0])
    record_mode(node.state, "later")
    with pytest.raises(CannotRun, match=r"last_mode has the unknown mode 'later'\n  set --mode to that of the manager"):
        await restore(node.settings("dry-run"))
    for content in (b"{", b"{}"):
        (node.state / "last_mode").write_bytes(content)
        with pytest.raises(CannotRun, match=r"(?s)last_mode, with .*is unusable: .*\n  move it away, and set --mode"):
            await restore(node.settings("cri"))


async def test_a_missing_or_damaged_checkpoint_is_an_error_and_remains(node: Node):
    settings = node.settings("cri")
    with pytest.raises(CannotRun, match=r"kubelet_qrm_checkpoint does not exist: no containers are known"):
        await restore(settings)
    checkpoint = node.state / CHECKPOINT
    for content in (b"", b"{}", b"something else"):
        checkpoint.write_bytes(content)
        with pytest.raises(CannotRun, match=r"(?s)is unusable: .*\n  start load-watcher qrm with the same mode"):
            await restore(settings)
        assert checkpoint.read_bytes() == content
        assert not list(node.state.glob("*corrupt*"))


async def test_damaged_stored_values_are_an_error_and_remain(node: Node):
    node.allocated(UIDS[0])
    (node.state / "original_values").write_bytes(b"{")
    with pytest.raises(CannotRun, match=r"(?s)original_values, with .*is unusable: .*\n  move it away"):
        await restore(node.settings("cri"))
    assert (node.state / "original_values").read_bytes() == b"{"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


async def test_it_is_refused_while_a_manager_has_the_state(node: Node):
    node.allocated(UIDS[0])
    async with FakeRuntime(node.directory / "cri.sock", containers=set()) as runtime:
        runtime.add(IDS[0], "main", "shop/web", UIDS[0], cpuset_cpus="2-5")
        settings = node.settings("cri", runtime_socket=str(runtime.path))
        with (
            locked(node.state / ".kubelet.sock.lock"),
            pytest.raises(CannotRun, match=r"is running with the state in .*\n  stop the manager first"),
        ):
            await restore(settings)
        assert not runtime.updates
        await restore(settings)
        assert runtime.updates
