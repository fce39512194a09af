"""The plug-in protocol's bytes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.qrm.kubelet.messages import (
    add_hints,
    hints_of,
    info_from_bytes,
    info_from_message,
    info_to_message,
    request_from_message,
    request_to_message,
)
from agent.qrm.kubelet.protos import qrm_resourceplugin_v1alpha1_pb2 as pb
from agent.qrm.manager.allocation import AllocationInfo
from agent.qrm.manager.request import ContainerType, ResourceRequest
from agent.qrm.manager.topology import Hint
from tests.agent.qrm.store.test_checkpoint import infos
from tests.agent.qrm.vectors import cases, group

HINTS = {
    "no preference": None,
    "impossible": (),
    "one hint": (Hint(frozenset({0}), preferred=True),),
    "two hints": (Hint(frozenset({0}), preferred=True), Hint(frozenset({0, 1}), preferred=False)),
}


@cases("hints_wire")
def test_hints(case: dict[str, Any]):
    hints = HINTS[case["kind"]]
    response = pb.ResourceHintsResponse(pod_uid="u", resource_name="cpu")
    add_hints(response, "cpu", hints)
    assert response.SerializeToString(deterministic=True).hex() == case["hex"]
    assert hints_of(pb.ResourceHintsResponse.FromString(bytes.fromhex(case["hex"])), "cpu") == hints


def test_a_resource_without_an_entry_has_no_preference():
    assert hints_of(pb.ResourceHintsResponse(), "cpu") is None


def test_of_two_entries_for_a_resource_the_last_counts():
    """On the wire they are a map, and that is how a reader of maps takes them."""
    response = pb.ResourceHintsResponse()
    add_hints(response, "cpu", ())
    add_hints(response, "cpu", HINTS["one hint"])
    assert hints_of(response, "cpu") == HINTS["one hint"]


def test_bytes_of_a_message_as_go_wrote_them():
    (case,) = group("raw_checkpoint_corruption")
    expected = dict(case["info"])
    assert info_from_bytes(bytes.fromhex(case["hex"])) == AllocationInfo(**expected)
    with pytest.raises(ValueError, match="not a ResourceAllocationInfo"):
        info_from_bytes(b"\x0a\xff")


@given(infos)
def test_infos_round_trip(info: AllocationInfo):
    assert info_from_message(info_to_message(info)) == info


texts = st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2)
requests = st.builds(
    ResourceRequest,
    *[st.text(max_size=8)] * 5,
    container_type=st.sampled_from(ContainerType),
    container_index=st.integers(0, 100),
    hint=st.builds(Hint, st.frozensets(st.integers(0, 7)), st.booleans()),
    resource_requests=st.dictionaries(st.text(max_size=5), st.floats(0, 1e15), max_size=2),
    labels=texts,
    annotations=texts,
)


@given(requests)
def test_requests_round_trip(request: ResourceRequest):
    assert request_from_message(request_to_message(request, aligned=True)) == request
    assert request_from_message(request_to_message(request, aligned=False)).hint is None


def test_a_request_without_a_hint_has_an_empty_one_for_an_aligned_plugin():
    message = request_to_message(ResourceRequest("p", "c", "cpu"), aligned=True)
    assert message.HasField("hint")
    assert not request_from_message(message).nodes
