"""What containerd/nri's runtime side sent in a recording (tests/real/nri/recording.py), decoded and answered without
Go."""

import asyncio
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.qrm.runtime.nri.protos import qrm_nri_v1alpha1_pb2 as pb
from agent.qrm.runtime.nri.ttrpc import (
    PLUGIN_CONNECTION,
    REQUEST,
    RESPONSE,
    CallFailed,
    CallRequest,
    FrameDecoder,
    Message,
    Method,
    NriSession,
    decode_request,
    decode_response,
)
from tests.fakes.nri import RuntimeSocket, decoded, recorded

LIFE = recorded("life")
UID = "bc9e28df-1b5c-4099-8866-6110277184e0"


@pytest.fixture
def socket() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nri-") as directory:
        yield Path(directory, "nri.sock")


def requests(steps: list[bytes]) -> list[CallRequest]:
    messages = [message for step in steps for message in decoded(step)]
    return [decode_request(each.data or b"") for each in messages if each.connection == PLUGIN_CONNECTION]


def test_each_request_of_a_life_is_decoded():
    found = requests(LIFE)
    assert [each.method for each in found] == [
        "Configure",
        "Synchronize",
        "RunPodSandbox",
        "CreateContainer",
        "ValidateContainerAdjustment",
        "PostCreateContainer",
        "StartContainer",
        "PostStartContainer",
        "UpdateContainer",
        "StopContainer",
        "RemoveContainer",
        "StopPodSandbox",
        "RemovePodSandbox",
    ]
    assert {each.service for each in found} == {"nri.pkg.api.v1alpha1.Plugin"}
    configure = pb.ConfigureRequest.FromString(found[0].payload)
    assert (configure.runtime_name, configure.request_timeout) == ("nri-runtime", 2000)
    synchronize = pb.SynchronizeRequest.FromString(found[1].payload)
    assert [pod.name for pod in synchronize.pods] == ["before0"]
    assert not synchronize.more
    create = pb.CreateContainerRequest.FromString(found[3].payload)
    assert (create.pod.uid, create.pod.annotations["kubernetes.io/pod-role"]) == (UID, "storage-service")
    assert (create.container.name, list(create.container.env)) == ("container0", ["PATH=/bin"])
    assert create.container.linux.resources.cpu.shares.value == 1024
    update = pb.UpdateContainerRequest.FromString(found[8].payload)
    assert update.linux_resources.cpu.shares.value == 512
    assert update.container.linux.resources.cpu.cpus == "2-21"


def test_the_responses_to_the_plugins_calls_are_decoded():
    messages = [message for step in LIFE for message in decoded(step)]
    responses = [decode_response(each.data or b"") for each in messages if each.type == RESPONSE]
    assert responses[0] == b""
    (failed,) = pb.UpdateContainersResponse.FromString(responses[1]).failed
    assert failed.container_id == "unknown"


def test_a_synchronization_in_chunks_has_each_container_once():
    parts = [
        pb.SynchronizeRequest.FromString(each.payload)
        for each in requests(recorded("chunks"))
        if each.method == "Synchronize"
    ]
    assert [part.more for part in parts] == [*[True] * (len(parts) - 1), False]
    assert len(parts) > 1
    assert len({each.id for part in parts for each in part.containers}) == 64
    assert len({each.id for part in parts for each in part.pods}) == 64


@given(st.lists(st.integers(1, 400), min_size=1, max_size=20))
def test_the_recording_is_decoded_in_pieces_of_any_size(sizes: list[int]):
    whole = b"".join(LIFE)
    decoder, found, at, turn = FrameDecoder(), list[Message](), 0, 0
    while at < len(whole):
        size = sizes[turn % len(sizes)]
        found += decoder.feed(whole[at : at + size])
        at, turn = at + size, turn + 1
    assert found == decoded(whole)
    assert not decoder.incomplete


def methods(seen: list[str]) -> Mapping[str, Method]:
    """A plug-in that notes what it is asked."""

    def named(name: str) -> Method:
        async def method(payload: bytes) -> bytes:
            seen.append(name)
            if name == "CreateContainer":
                answer = pb.CreateContainerResponse()
                answer.adjust.linux.resources.cpu.cpus = "2-21"
                return answer.SerializeToString()
            if name == "RunPodSandbox":
                raise CallFailed(2, "no room")
            return b""

        return method

    return {each.name: named(each.name) for each in pb.DESCRIPTOR.services_by_name["Plugin"].methods}


async def test_a_session_answers_the_recording(socket: Path):
    """Each request gets one answer: a message, or the error of the plug-in."""
    seen: list[str] = []
    failures: list[tuple[str, str]] = []
    steps = [step for step in LIFE if decoded(step)[0].type == REQUEST]
    registered = next(step for step in LIFE if decoded(step)[0].type == RESPONSE)
    with RuntimeSocket(socket) as runtime:
        session = NriSession(
            socket, lambda: methods(seen), name="x", index="50", failed=lambda *what: failures.append(what)
        )
        running = asyncio.create_task(session.run())
        plugin = await asyncio.to_thread(runtime.accept)
        await asyncio.to_thread(plugin.replay, [registered, *steps])
        assert plugin.calls == {1: "RegisterPlugin"}
        assert (seen, session.trouble) == ([each.method for each in requests(LIFE)], "")
        answers = list(plugin.answers.values())
        create = pb.CreateContainerResponse.FromString(decode_response(answers[3]))
        assert create.adjust.linux.resources.cpu.cpus == "2-21"
        with pytest.raises(CallFailed, match="no room"):
            decode_response(answers[2])
        assert not failures
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
