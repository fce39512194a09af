"""Reads and writes of groups through their interface, on trees of regular files. The responses of the kernel to invalid
values are in tests/real."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cgroups import values
from agent.cgroups.base import Group, Tree
from agent.cgroups.detection import find_layout, open_tree
from agent.cgroups.errors import (
    CgroupDenied,
    CgroupError,
    CgroupGarbled,
    CgroupGone,
    CgroupUnapplied,
    CgroupUnsupported,
)
from agent.cgroups.paths import Driver
from agent.cgroups.v2 import shares_of_weight
from agent.cgroups.values import CpuUsage, MemoryUsage, Quota
from tests.fakes.cgroups import FakeCgroups, open_below

UID = "04e5e9e7-8d95-44dd-9af7-ab944405fff8"
ID = "4f" * 32
MIB = 1 << 20


@pytest.fixture(params=["v1", "v2", "hybrid"])
def fake(request: pytest.FixtureRequest, tmp_path: Path) -> FakeCgroups:
    fake = FakeCgroups(tmp_path / "cgroup", request.param, Driver.CGROUPFS)
    fake.add(fake.pod_path(UID), cpu_ns=9_000_000)
    fake.add(
        fake.container_path(UID, ID),
        cpu_ns=8_000_000,
        quota=20_000,
        periods=90,
        throttled=88,
        memory=64 * MIB,
        inactive=24 * MIB,
        limit=128 * MIB,
        pressure=12.5,
    )
    return fake


@pytest.fixture
def tree(fake: FakeCgroups) -> Iterator[Tree]:
    with open_tree(find_layout(str(fake.root))) as tree:
        yield tree


@pytest.fixture
def group(fake: FakeCgroups, tree: Tree) -> Iterator[Group]:
    with tree.open(fake.container_path(UID, ID)) as group:
        yield group


def test_all_values_of_a_group_are_read(fake: FakeCgroups, group: Group):
    assert group.cpu() == CpuUsage(8_000_000, 90, 88, 88 * 7_000)
    assert group.cpu_usage_ns() == 8_000_000
    assert group.quota() == Quota(20_000, 100_000)
    assert group.quota().cores == 0.2
    assert group.memory() == MemoryUsage(64 * MIB, 40 * MIB)
    assert group.processes() == ()
    assert group.children() == []


def test_unlimited_values_are_none(fake: FakeCgroups, tree: Tree):
    with tree.open(fake.pod_path(UID)) as group:
        assert group.quota() == Quota(None)
        assert math.isinf(group.quota().cores)
        assert group.children() == [ID]


def test_a_group_can_be_opened_level_by_level(fake: FakeCgroups, tree: Tree):
    with tree.open(fake.pod_path(UID)) as pod, pod.child(ID) as container:
        assert container.path == fake.container_path(UID, ID)
        assert container.cpu_usage_ns() == 8_000_000
        assert pod.cpu_usage_ns() == 9_000_000


def test_only_version_2_has_pressure(fake: FakeCgroups, group: Group):
    if fake.version == "v1":
        with pytest.raises(CgroupUnsupported):
            group.pressure("cpu")
        return
    found = group.pressure("memory")
    assert (12.5, 1.5, 0.75, 12345) == (found.some.avg10, found.some.avg60, found.some.avg300, found.some.total_us)
    assert found.full is not None
    assert found.full.avg10 == 0.25


@pytest.mark.parametrize("quota", [Quota(5_000), Quota(None), Quota(150_000), Quota(10_000, 50_000)])
def test_a_written_quota_is_read_back(fake: FakeCgroups, group: Group, quota: Quota):
    group.set_quota(quota)
    assert quota == group.quota()
    path = fake.container_path(UID, ID)
    if fake.version == "v2":
        assert fake.read(path, "cpu.max") == f"{quota.quota or 'max'} {quota.period}"
    else:
        assert fake.read(path, "cpu.cfs_quota_us") == f"{quota.quota or -1}"


def test_a_written_weight_is_read_back(fake: FakeCgroups, group: Group):
    group.set_weight(512)
    assert group.weight() == 512
    assert group.shares() == (512 if fake.version != "v2" else shares_of_weight(512))


@pytest.mark.parametrize(("weight", "shares"), [(1, 2), (100, 2598), (10_000, 262144), (39, 999)])
def test_shares_and_weights_convert_like_in_the_kubelet(weight: int, shares: int):
    assert shares == shares_of_weight(weight)
    assert weight == 1 + (shares - 2) * 9999 // 262142


def test_memory_high_is_in_whole_pages_and_only_in_version_2(fake: FakeCgroups, group: Group):
    if fake.version != "v2":
        with pytest.raises(CgroupUnsupported, match="version 2"):
            group.set_memory_high(MIB)
        with pytest.raises(CgroupUnsupported, match="version 2"):
            group.memory_high()
        return
    group.set_memory_high(MIB + 1)
    assert group.memory_high() == MIB
    group.set_memory_high(None)
    assert group.memory_high() is None


def test_reclaiming_returns_the_decrease_of_the_usage(fake: FakeCgroups, group: Group):
    assert group.reclaim(10 * MIB) == 0
    path = fake.container_path(UID, ID)
    written = fake.read(path, "memory.reclaim" if fake.version == "v2" else "memory.force_empty")
    assert written == (str(10 * MIB) if fake.version == "v2" else "0")


# --- failures --------------------------------------------------------------------------------------------------------

READINGS = ("cpu_usage_ns", "cpu", "quota", "weight", "memory", "processes")


def read(group: Group, reading: str) -> Any:
    return getattr(group, reading)()


@pytest.mark.parametrize("reading", READINGS)
def test_a_missing_group_is_gone(fake: FakeCgroups, tree: Tree, reading: str):
    with tree.open(fake.container_path(UID, "0" * 64)) as group, pytest.raises(CgroupGone):
        read(group, reading)


@pytest.mark.parametrize("reading", READINGS)
def test_a_group_that_is_removed_while_open_is_gone(fake: FakeCgroups, group: Group, reading: str):
    read(group, reading)
    fake.remove(fake.pod_path(UID))
    with pytest.raises(CgroupGone, match=UID):
        read(group, reading)
    with pytest.raises(CgroupGone):
        group.set_quota(Quota(5000))


def test_a_missing_file_in_an_existing_group_is_unsupported(fake: FakeCgroups, group: Group):
    path = fake.container_path(UID, ID)
    for directory in fake.directories(path):
        (directory / "cpu.stat").unlink(missing_ok=True)
    with pytest.raises(CgroupUnsupported, match=r"cpu\.stat") as raised:
        group.cpu()
    assert "subtree_control" in raised.value.hint


CONTENTS = {
    "cpuacct.usage": "cpu_usage_ns",
    "cpu.stat": "cpu",
    "cpu.cfs_quota_us": "quota",
    "cpu.cfs_period_us": "quota",
    "cpu.shares": "weight",
    "memory.usage_in_bytes": "memory",
    "memory.stat": "memory",
    "cpu.max": "quota",
    "cpu.weight": "weight",
    "memory.current": "memory",
}
GARBAGE = [b"", b"\n", b"garbage\n", b"\xff\xfe\x00", b"12 monkeys\n", b"1_0\n", b"nan\n", b"-7.5\n", b"max max max\n"]


@pytest.mark.parametrize("garbage", GARBAGE, ids=repr)
def test_an_invalid_content_is_reported_with_its_file(fake: FakeCgroups, group: Group, garbage: bytes):
    path = fake.container_path(UID, ID)
    tried = 0
    for name, reading in CONTENTS.items():
        if not any((each / name).exists() for each in fake.directories(path)):
            continue
        before = fake.read(path, name)
        fake.write(path, name, garbage)
        with pytest.raises(CgroupGarbled, match=name):
            read(group, reading)
        fake.write(path, name, before)
        read(group, reading)
        tried += 1
    assert tried >= 5


def test_max_is_invalid_where_a_number_is_required(fake: FakeCgroups, group: Group):
    usage = "memory.current" if fake.version == "v2" else "memory.usage_in_bytes"
    fake.write(fake.container_path(UID, ID), usage, "max\n")
    with pytest.raises(CgroupGarbled, match=usage):
        group.memory()


def test_the_working_set_is_never_negative(fake: FakeCgroups, group: Group):
    """The two files are read one after the other, and the cache may grow in between."""
    stat = b"inactive_file 999999999999\ntotal_inactive_file 999999999999\n"
    fake.write(fake.container_path(UID, ID), "memory.stat", stat)
    assert group.memory() == MemoryUsage(64 * MIB, 0)


@pytest.mark.parametrize("path", ["/..", "/../..", "/kubepods/../..", "/kubepods/./besteffort"])
def test_a_path_out_of_the_tree_is_refused(tree: Tree, path: str):
    with tree.open(path) as group, pytest.raises(CgroupDenied, match="not a valid group name"):
        group.cpu_usage_ns()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b"])
def test_an_invalid_name_is_refused(fake: FakeCgroups, tree: Tree, name: str):
    with tree.open(fake.pod_path(UID)) as pod, pod.child(name) as group, pytest.raises(CgroupDenied):
        group.cpu_usage_ns()


def test_links_are_not_followed(fake: FakeCgroups, tree: Tree, tmp_path: Path):
    for directory in fake.directories("/kubepods"):
        (directory / "link").symlink_to(directory / "besteffort")
    with tree.open("/kubepods/link") as group, pytest.raises(CgroupDenied, match="symbolic link"):
        group.cpu_usage_ns()
    path = fake.container_path(UID, ID)
    (tmp_path / "secret").write_text("20000 100000")
    for directory in fake.directories(path):
        for name in ("cpu.max", "cpu.cfs_quota_us"):
            if (directory / name).exists():
                (directory / name).unlink()
                (directory / name).symlink_to(tmp_path / "secret")
    with tree.open(path) as group, pytest.raises(CgroupDenied, match="symbolic link"):
        group.quota()
    with tree.open(path) as group, pytest.raises(CgroupError):
        group.set_quota(Quota(5000))
    assert (tmp_path / "secret").read_text() == "20000 100000"


def test_a_value_that_the_kernel_did_not_keep_is_reported(tmp_path: Path):
    """Version 1 accepts -2 and then has -1 (crane.md §10.1)."""
    fake = FakeCgroups(tmp_path / "cgroup", "v1")
    fake.add(fake.pod_path(UID))
    with (
        open_tree(find_layout(str(fake.root))) as tree,
        tree.open(fake.pod_path(UID)) as group,
        pytest.raises(CgroupUnapplied) as raised,
    ):
        group.set_quota(Quota(-2))
    expected = "Quota(quota=-2, period=100000, burst=0) was written, but the file contains Quota(quota=None"
    assert expected in str(raised.value)
    assert "Another process" in raised.value.hint


def test_no_file_descriptor_stays_open(fake: FakeCgroups):
    with open_tree(find_layout(str(fake.root))) as tree:
        for path in (fake.pod_path(UID), fake.container_path(UID, ID), "/nowhere/else"):
            with tree.open(path) as group:
                try:
                    group.memory()
                    group.cpu()
                except CgroupError:
                    pass
    assert open_below(fake.root) == []


# --- parsers ---------------------------------------------------------------------------------------------------------


@given(st.binary(max_size=60))
def test_any_content_is_parsed_or_raises_a_value_error(text: bytes):
    for parser in (values.integer, values.natural, values.limit, values.cpu_max, values.pressure):
        try:
            parser(text)
        except (ValueError, KeyError):
            continue


@given(st.text(alphabet="abcusage_ \n0123456789", max_size=60))
def test_a_field_is_found_by_its_whole_key(text: str):
    lines = [line.split(" ") for line in text.split("\n")]
    expected = next((line for line in lines if line[0] == "usage" and len(line) > 1), None)
    try:
        found = values.field(text.encode(), b"usage")
    except ValueError:
        return
    assert (found is None) == (expected is None)
