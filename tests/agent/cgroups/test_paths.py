"""Names of groups, as the kubelet and the runtimes make them, there and back."""

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cgroups.paths import (
    Driver,
    PodGroup,
    container_id,
    expand_slice,
    is_uid,
    pod_path,
    pod_segments,
    read_path,
    read_pod,
)
from agent.qos import QosClass
from tests.agent.crane import cases
from tests.real.parts import REPOSITORY

UID = "04e5e9e7-8d95-44dd-9af7-ab944405fff8"
HASH = "7c2f3f0ad4f1a9d5b6c3e8f0a1b2c3d4"
ID = "4f" * 32
KNOWN = [QosClass.GUARANTEED, QosClass.BURSTABLE, QosClass.BEST_EFFORT]


@cases("cgroup_name")
def test_segments_are_upstreams(case: dict[str, Any]):
    assert tuple(case["expected"]["head"]) == pod_segments(case["input"]["qos"], case["input"]["uid"])


@cases("cgroup_path")
def test_paths_are_upstreams(case: dict[str, Any]):
    expected, given = case["expected"]["head"], case["input"]
    if not expected:  # upstream's answer to a driver that it does not know
        assert given["driver"] not in set(Driver)
    else:
        assert expected == pod_path(Driver(given["driver"]), given["qos"], given["uid"])


@cases("expand_slice")
def test_slices_that_are_none_are_refused_as_upstream_does(case: dict[str, Any]):
    assert case["expected"]["head"] is None
    with pytest.raises(ValueError, match="not a slice name"):
        expand_slice(case["input"]["slice"])


@cases("container_id_from_key")
def test_a_pods_own_group_has_no_container_id(case: dict[str, Any]):
    """For systemd upstream takes the slice for a container and loses all pods (crane.md §7); not so here."""
    found = read_path(case["input"]["key"])
    assert found is not None
    assert found.container == ""


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("-.slice", "/"),
        ("kubepods.slice", "/kubepods.slice"),
        ("a-b.slice", "/a.slice/a-b.slice"),
        ("a-b-c.slice", "/a.slice/a-b.slice/a-b-c.slice"),
    ],
)
def test_a_slice_stands_below_those_that_its_name_begins_with(name: str, path: str):
    assert path == expand_slice(name)


@pytest.mark.parametrize("name", ["", "a", "a.scope", "-a.slice", "a-.slice", "a--b.slice", "/", "a/b.slice", ".slice"])
def test_what_is_no_slice_is_refused(name: str):
    with pytest.raises(ValueError, match="not a slice name"):
        expand_slice(name)


@pytest.mark.parametrize("uid", ["", ".", "..", "a/b", "../x", "a.b", "-a", "a" * 64, "ü", "a\n", "a b", "a_b"])
def test_a_uid_that_leads_elsewhere_is_refused(uid: str):
    assert not is_uid(uid)
    with pytest.raises(ValueError, match="not a valid pod UID"):
        pod_segments("Burstable", uid)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (f"/kubepods/besteffort/pod{UID}", PodGroup(UID, QosClass.BEST_EFFORT)),
        (f"/kubepods/pod{UID}", PodGroup(UID, QosClass.GUARANTEED)),
        (f"/kubepods/burstable/pod{HASH}/{ID}", PodGroup(HASH, QosClass.BURSTABLE, ID)),
        (f"/kubelet/kubepods/burstable/pod{UID}/{ID}", PodGroup(UID, QosClass.BURSTABLE, ID)),
        (f"/kubepods/pod{UID}/crio-{ID}", PodGroup(UID, QosClass.GUARANTEED, ID)),
        (f"/kubepods/pod{UID}/crio-conmon-{ID}", None),
        (
            f"/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-{ID}.scope",
            PodGroup(UID, QosClass.GUARANTEED, ID),
        ),
        (f"/x/kubepods-besteffort-pod{HASH}.slice/crio-{ID}.scope", PodGroup(HASH, QosClass.BEST_EFFORT, ID)),
        (f"/x/kubepods-besteffort-pod{HASH}.slice/docker-{ID}.scope", PodGroup(HASH, QosClass.BEST_EFFORT, ID)),
        (f"/x/kubepods-besteffort-pod{HASH}.slice/libpod-{ID}.scope", PodGroup(HASH, QosClass.BEST_EFFORT, ID)),
        (f"/x/kubepods-besteffort-pod{HASH}.slice/crio-conmon-{ID}.scope", None),
        (f"/x/kubepods-besteffort-pod{HASH}.slice/crio-{ID}.scope/container", None),
        (f"/kubelet.slice/x/kubelet-kubepods-burstable-pod{HASH}.slice", PodGroup(HASH, QosClass.BURSTABLE)),
        ("/kubepods/burstable", None),
        ("/kubepods.slice/kubepods-burstable.slice", None),
        ("/system.slice/containerd.service", None),
        ("/user.slice/user-0.slice/podman.slice", None),
        ("/", None),
        ("", None),
    ],
)
def test_whose_group_a_path_is(path: str, expected: PodGroup | None):
    assert expected == read_path(path)


@given(
    uid=st.from_regex(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?", fullmatch=True),
    qos=st.sampled_from(KNOWN),
    driver=st.sampled_from(Driver),
)
def test_what_was_named_is_recognised(uid: str, qos: QosClass, driver: Driver):
    path = pod_path(driver, qos, uid)
    assert PodGroup(uid, qos) == read_path(path)
    assert uid == read_pod(path.rpartition("/")[2])
    assert PodGroup(uid, qos, ID) == read_path(f"{path}/{ID}")


@given(st.text(alphabet="abz09-_./\n podscrikube", max_size=80))
def test_any_text_is_read_or_is_nobodys(text: str):
    found = read_path(text)
    assert found is None or is_uid(found.uid)
    identity = container_id(text)
    assert identity is None or not set("/.\n") & set(identity)


def test_control_groups_take_python_and_nothing_beside_it():
    """They are tried in a Linux that has no more (tests/real/test_cgroups_v2.py)."""
    command = [sys.executable, "-S", "-c", "import agent.cgroups"]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert (0, "") == (ended.returncode, ended.stderr)
