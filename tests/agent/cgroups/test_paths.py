"""Names of groups as the kubelet and the runtimes create them, in both directions."""

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cgroups.paths import (
    Driver,
    container_id,
    expand_slice,
    group_path,
    is_uid,
    pod_segments,
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
def test_segments_are_equal_to_those_of_crane(case: dict[str, Any]):
    assert tuple(case["expected"]["head"]) == pod_segments(case["input"]["qos"], case["input"]["uid"])


@cases("cgroup_path")
def test_paths_are_equal_to_those_of_crane(case: dict[str, Any]):
    expected, given = case["expected"]["head"], case["input"]
    if not expected:  # Crane's result for an unknown driver
        assert given["driver"] not in set(Driver)
    else:
        assert expected == group_path(pod_segments(given["qos"], given["uid"]), Driver(given["driver"]))


@cases("expand_slice")
def test_invalid_slices_are_refused_as_by_crane(case: dict[str, Any]):
    assert case["expected"]["head"] is None
    with pytest.raises(ValueError, match="not a slice name"):
        expand_slice(case["input"]["slice"])


@cases("container_id_from_key")
def test_a_pods_own_group_has_no_container_id(case: dict[str, Any]):
    """For systemd, Crane reads the slice as a container and loses all pods."""
    name = case["input"]["key"].rpartition("/")[2]
    assert read_pod(name) is not None


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("-.slice", "/"),
        ("kubepods.slice", "/kubepods.slice"),
        ("a-b.slice", "/a.slice/a-b.slice"),
        ("a-b-c.slice", "/a.slice/a-b.slice/a-b-c.slice"),
    ],
)
def test_a_slice_is_below_the_slices_of_its_name_prefixes(name: str, path: str):
    assert path == expand_slice(name)


@pytest.mark.parametrize("name", ["", "a", "a.scope", "-a.slice", "a-.slice", "a--b.slice", "/", "a/b.slice", ".slice"])
def test_an_invalid_slice_is_refused(name: str):
    with pytest.raises(ValueError, match="not a slice name"):
        expand_slice(name)


@pytest.mark.parametrize("uid", ["", ".", "..", "a/b", "../x", "a.b", "-a", "a" * 64, "ü", "a\n", "a b", "a_b"])
def test_a_uid_with_a_path_is_refused(uid: str):
    assert not is_uid(uid)
    with pytest.raises(ValueError, match="not a valid pod UID"):
        pod_segments("Burstable", uid)


@pytest.mark.parametrize(
    ("name", "uid"),
    [
        (f"pod{UID}", UID),
        (f"pod{HASH}", HASH),
        (f"kubepods-pod{UID.replace('-', '_')}.slice", UID),
        (f"kubepods-besteffort-pod{HASH}.slice", HASH),
        (f"kubelet-kubepods-burstable-pod{HASH}.slice", HASH),
        ("burstable", None),
        ("kubepods-burstable.slice", None),
        ("containerd.service", None),
        ("podman.slice", None),
        ("", None),
    ],
)
def test_the_pod_of_a_group_name(name: str, uid: str | None):
    assert uid == read_pod(name)


@pytest.mark.parametrize(
    ("name", "identity"),
    [
        (ID, ID),
        (f"crio-{ID}", ID),
        (f"cri-containerd-{ID}.scope", ID),
        (f"crio-{ID}.scope", ID),
        (f"docker-{ID}.scope", ID),
        (f"libpod-{ID}.scope", ID),
        (f"crio-conmon-{ID}", None),
        (f"crio-conmon-{ID}.scope", None),
        (f"kubepods-besteffort-pod{HASH}.slice", None),
        ("", None),
    ],
)
def test_the_container_of_a_group_name(name: str, identity: str | None):
    assert identity == container_id(name)


@given(
    uid=st.from_regex(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?", fullmatch=True),
    qos=st.sampled_from(KNOWN),
    driver=st.sampled_from(Driver),
)
def test_created_names_are_recognized(uid: str, qos: QosClass, driver: Driver):
    path = group_path(pod_segments(qos, uid), driver)
    assert uid == read_pod(path.rpartition("/")[2])


@given(st.text(alphabet="abz09-_./\n podscrikube", max_size=80))
def test_any_text_is_a_pod_group_or_none(text: str):
    found = read_pod(text)
    assert found is None or is_uid(found)
    identity = container_id(text)
    assert identity is None or not set("/.\n") & set(identity)


def test_control_groups_import_only_the_standard_library():
    """tests/real/test_cgroups_v2.py runs them in a Linux that has nothing else."""
    command = [sys.executable, "-S", "-c", "import agent.cgroups"]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert (0, "") == (ended.returncode, ended.stderr)
