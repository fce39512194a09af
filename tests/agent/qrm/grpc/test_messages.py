"""The plug-in protocol's bytes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.qrm.grpc.messages import (
    add_hints,
    hints_of,
    info_from_bytes,
    info_from_message,
    info_to_message,
    request_for_plugin,
    request_from_message,
    request_to_message,
)
from agent.qrm.grpc.protos import qrm_resourceplugin_v1alpha1_pb2 as pb
from agent.qrm.manager.allocation import AllocationInfo
from agent.qrm.manager.request import CannotAllocate, ContainerType, ResourceRequest
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
    """On the wire they are a map, and readers of maps use the last entry of a key."""
    response = pb.ResourceHintsResponse()
    add_hints(response, "cpu", ())
    add_hints(response, "cpu", HINTS["one hint"])
    assert hints_of(response, "cpu") == HINTS["one hint"]


def test_a_message_encoded_by_go_is_read():
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


# --- requests of other managers --------------------------------------------------------------------------------------

ROLE, LABEL = "kubernetes.io/pod-role", "katalyst.kubewharf.io/pod_role"
TYPE, POD_TYPE = "kubernetes.io/resource-type", "katalyst.kubewharf.io/pod_type"
MILLICPU = "resource.katalyst.kubewharf.io/reclaimed_millicpu"


@pytest.mark.parametrize(
    ("sent", "labels", "annotations", "role"),
    [
        ("from-label", {LABEL: "from-label"}, {ROLE: "own"}, "own"),
        ("", {}, {ROLE: "own"}, "own"),
        ("sent", {LABEL: "from-label"}, {}, "sent"),
        ("", {LABEL: "from-label"}, {}, "from-label"),
        ("", {}, {}, ""),
    ],
)
def test_the_role_is_the_annotation_of_the_pod(
    sent: str, labels: dict[str, str], annotations: dict[str, str], role: str
):
    """Katalyst's manager sends the label as the role, and passes the annotations on."""
    message = pb.ResourceRequest(pod_role=sent, resource_name="cpu", labels=labels, annotations=annotations)
    assert request_for_plugin(message, external=True).pod_role == role


@pytest.mark.parametrize(
    ("sent", "annotations", "kind"),
    [
        ("katalyst", {TYPE: "own", POD_TYPE: "katalyst"}, "own"),
        ("", {POD_TYPE: "katalyst"}, "katalyst"),
        ("x", {}, "x"),
    ],
)
def test_the_type_is_the_annotation_of_the_pod(sent: str, annotations: dict[str, str], kind: str):
    message = pb.ResourceRequest(pod_type=sent, resource_name="cpu", annotations=annotations)
    assert request_for_plugin(message, external=True).pod_type == kind


@pytest.mark.parametrize(
    ("resource", "sent", "level", "external", "quantity"),
    [
        ("cpu", {MILLICPU: 2000.0}, "reclaimed_cores", True, 2.0),  # hints of Katalyst's manager
        ("cpu", {"cpu": 2000.0}, "reclaimed_cores", True, 2.0),  # an allocation of Katalyst's manager
        ("cpu", {"cpu": 2.0}, "reclaimed_cores", False, 2.0),
        ("cpu", {"cpu": 2.0}, "shared_cores", True, 2.0),
        ("cpu", {"cpu": 2.0}, "", True, 2.0),
        ("cpu", {"best-effort-cpu": 2.0}, "", True, 2.0),
        (MILLICPU, {MILLICPU: 2000.0}, "reclaimed_cores", True, 2000.0),
        ("memory", {"memory": 4096.0}, "reclaimed_cores", True, 4096.0),
        ("memory", {"resource.katalyst.kubewharf.io/reclaimed_memory": 4096.0}, "reclaimed_cores", True, 4096.0),
    ],
)
def test_the_quantity_is_the_only_one_in_the_unit_of_the_plugin(
    resource: str, sent: dict[str, float], level: str, external: bool, quantity: float
):
    annotations = {"katalyst.kubewharf.io/qos_level": level} if level else {}
    message = pb.ResourceRequest(resource_name=resource, resource_requests=sent, annotations=annotations)
    assert request_for_plugin(message, external=external).resource_requests == {resource: quantity}


@pytest.mark.parametrize("sent", [{}, {"a": 1.0, "b": 2.0}])
def test_no_quantity_is_chosen_from_several(sent: dict[str, float]):
    request = request_for_plugin(pb.ResourceRequest(resource_name="cpu", resource_requests=sent), external=True)
    assert request.resource_requests == sent
    with pytest.raises(CannotAllocate, match="contains quantities only for"):
        _ = request.quantity
