"""Detection of the control groups of a machine."""

from pathlib import Path

import pytest

from agent.cgroups.detection import NoCgroups, Version, find_layout, open_tree
from agent.cgroups.paths import Driver, pod_segments
from tests.fakes.cgroups import FakeCgroups

UID = "04e5e9e7-8d95-44dd-9af7-ab944405fff8"


@pytest.mark.parametrize("version", list(Version))
@pytest.mark.parametrize("driver", list(Driver))
@pytest.mark.parametrize("nest", ["", "kubelet"])
def test_version_driver_and_root_are_detected(tmp_path: Path, version: Version, driver: Driver, nest: str):
    fake = FakeCgroups(tmp_path / "cgroup", version, driver, nest=nest)
    fake.add(fake.pod_path(UID, "Burstable"), cpu_ns=5000)
    layout = find_layout(str(fake.root))
    assert (version, driver, nest) == (layout.version, layout.driver, layout.nest)
    path = layout.path_of(pod_segments("Burstable", UID))
    assert fake.pod_path(UID, "Burstable") == path
    with open_tree(layout) as tree, tree.open(path) as group:
        assert group.cpu_usage_ns() == 5000


def test_of_two_layouts_the_one_with_pods_is_used(tmp_path: Path):
    """After a change of the driver, the empty groups of the old driver exist until the machine restarts."""
    fake = FakeCgroups(tmp_path / "cgroup", "v2", Driver.CGROUPFS)
    fake.add("/kubepods.slice/kubepods-besteffort.slice")
    fake.add("/kubepods.slice/kubepods-burstable.slice")
    fake.add(fake.pod_path(UID))
    assert find_layout(str(fake.root)).driver is Driver.CGROUPFS
    assert find_layout(str(fake.root), driver=Driver.SYSTEMD).driver is Driver.SYSTEMD


@pytest.mark.parametrize("version", list(Version))
def test_a_machine_without_a_kubelet_has_groups_and_no_driver(tmp_path: Path, version: Version):
    fake = FakeCgroups(tmp_path / "cgroup", version)
    fake.add("/system.slice", cpu_ns=3000)
    layout = find_layout(str(fake.root))
    assert (version, None) == (layout.version, layout.driver)
    with pytest.raises(NoCgroups, match="no kubelet groups found") as raised:
        layout.path_of(pod_segments("Burstable", UID))
    assert "mounted" in raised.value.hint
    with open_tree(layout) as tree, tree.open("/system.slice") as group:
        assert group.cpu_usage_ns() == 3000


def test_the_parent_group_can_be_configured(tmp_path: Path):
    fake = FakeCgroups(tmp_path / "cgroup", "v1", Driver.CGROUPFS, nest="crane")
    fake.add(fake.pod_path(UID))
    assert find_layout(str(fake.root)).driver is None
    assert find_layout(str(fake.root), nest="crane").driver is Driver.CGROUPFS


def test_a_directory_without_groups_is_reported(tmp_path: Path):
    with pytest.raises(NoCgroups, match="no control groups found in") as raised:
        find_layout(str(tmp_path))
    assert "/sys/fs/cgroup" in raised.value.hint


def test_cpu_and_cpuacct_may_be_one_tree_with_two_links(tmp_path: Path):
    fake = FakeCgroups(tmp_path / "cgroup", "v1", Driver.CGROUPFS, together=True)
    fake.add(fake.pod_path(UID), cpu_ns=7000, quota=20_000)
    layout = find_layout(str(fake.root))
    with open_tree(layout) as tree, tree.open(fake.pod_path(UID)) as group:
        assert (7000, 20_000) == (group.cpu_usage_ns(), group.quota().quota)


def test_a_link_out_of_the_root_is_not_a_controller(tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cgroup").mkdir()
    (tmp_path / "cgroup" / "cpu").symlink_to("../elsewhere")
    with pytest.raises(NoCgroups):
        find_layout(str(tmp_path / "cgroup"))
