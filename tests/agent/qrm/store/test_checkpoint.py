"""The bytes of the checkpoint."""

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.qrm.manager.allocation import AllocationInfo, Allocations, WireHint, WireHints, from_json
from agent.qrm.store.checkpoint import BadCheckpoint, Entry, checksum, decode, encode
from tests.agent.qrm.vectors import cases, group

INFO = AllocationInfo(
    "CpusetCpus",
    is_scalar_resource=True,
    allocated_quantity=2.0,
    allocation_result="0-1",
    resource_hints=WireHints((WireHint((0,), preferred=True),)),
)


@cases("checkpoint_checksum")
def test_checksum(case: dict[str, Any]):
    entries = case["entries"]
    read = None if entries is None else msgspec.convert(entries, list[Entry])
    assert checksum(read) == case["checksum"]


names = st.text(max_size=8)
hint_lists = st.lists(st.builds(WireHint, st.lists(st.integers(0, 7)).map(tuple), st.booleans()), max_size=2)
infos = st.builds(
    AllocationInfo,
    oci_property_name=st.sampled_from(["", "CpusetCpus", "CpusetMems"]),
    is_node_resource=st.booleans(),
    is_scalar_resource=st.booleans(),
    allocated_quantity=st.floats(0, 1e15),
    allocation_result=names,
    envs=st.dictionaries(names, names, max_size=2),
    annotations=st.dictionaries(names, names, max_size=2),
    resource_hints=st.none() | hint_lists.map(lambda hints: WireHints(tuple(hints))),
    topology_assignments=st.dictionaries(st.integers(0, 7), st.integers(0, 2**40), max_size=2),
)


@given(st.lists(st.tuples(names, names, names, infos), max_size=6))
def test_round_trip(entries: list[tuple[str, str, str, AllocationInfo]]):
    allocations = Allocations()
    for entry in entries:
        allocations.set(*entry)
    again = decode(encode(allocations))
    assert again == allocations
    assert encode(again) == encode(allocations)


def written() -> bytes:
    allocations = Allocations()
    allocations.set("uid-1", "main", "cpu", INFO)
    return encode(allocations)


@pytest.mark.parametrize("at", range(0, len(written()), 7))
def test_a_changed_byte_is_detected(at: int):
    damaged = bytearray(written())
    damaged[at] ^= 1
    with contextlib.suppress(BadCheckpoint):
        assert decode(bytes(damaged)) == decode(written())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a checkpoint of pod resources"),
        (b"{}", "missing required field `Data`"),
        (b'{"Data":{"PodResourceEntries":[{}]},"Checksum":1}', "missing required field `PodUID`"),
        (written()[:-20], "not a checkpoint of pod resources"),
        (written().replace(b"0-1", b"0-7"), "the checksum is"),
    ],
)
def test_an_invalid_checkpoint_is_an_error_with_its_reason(data: bytes, reason: str):
    with pytest.raises(BadCheckpoint, match=reason):
        decode(data)


def file_with(info: str) -> bytes:
    entries = (Entry("u", "c", "memory", info),)
    body = {"Data": {"PodResourceEntries": msgspec.to_builtins(entries)}, "Checksum": checksum(entries)}
    return msgspec.json.encode(body)


def test_the_complete_message_of_the_patched_kubelet_is_read():
    seen: list[bytes] = []

    def from_message(message: bytes) -> AllocationInfo:
        seen.append(message)
        return INFO

    assert decode(file_with("\n\x0aCpusetMems\x18\x01"), from_message=from_message).get("u", "c", "memory") == INFO
    assert seen == [b"\n\x0aCpusetMems\x18\x01"]


def test_the_message_of_the_patched_kubelet_that_json_damaged_is_an_error():
    (case,) = group("raw_checkpoint_corruption")
    text = bytes.fromhex(case["hex_after_json"]).decode()
    with pytest.raises(
        BadCheckpoint, match="pod u, container c, resource memory: a protobuf message that the kubelet damaged"
    ):
        decode(file_with(text), from_message=lambda _: INFO)


def test_without_protobuf_the_error_names_the_extra_to_install():
    with pytest.raises(BadCheckpoint, match=r"pip install '\.\[qrm\]' in a clone"):
        decode(file_with("\n\x01a"))


def test_the_proposals_misspelling_is_read():
    assert from_json('{"oci_property_name":"CpusetCpus","allocatation_result":"0-1"}').allocation_result == "0-1"


def test_a_null_among_the_hints_of_upstream_is_skipped():
    info = from_json('{"resource_hints":{"hints":[null,{"nodes":[1],"preferred":true}]}}')
    assert [hint.nodes for hint in info.hints] == [frozenset({1})]


def test_removing_an_allocation_leaves_no_empty_levels():
    allocations = Allocations()
    allocations.set("p", "c", "cpu", INFO)
    allocations.set("p", "c", "memory", INFO)
    allocations.remove("p", "c", "cpu")
    assert allocations.pods == {"p"}
    allocations.remove("p", "c", "memory")
    assert allocations.pods == frozenset()
    allocations.remove("p", "c")
    allocations.remove("q")
    assert allocations == Allocations()
