"""Groups that stay open between cycles: what they read after a group was removed or created again, and their
descriptors."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cgroups.base import Group, Tree
from agent.cgroups.detection import find_layout, open_tree
from agent.cgroups.errors import CgroupGone
from agent.cgroups.kept_groups import KeptGroups
from agent.cgroups.paths import Driver
from tests.fakes.cgroups import FakeCgroups

UIDS = tuple(f"04e5e9e7-8d95-44dd-9af7-ab944405fff{number}" for number in range(4))
MANY = 1000


@pytest.fixture(params=["v1", "v2"])
def fake(request: pytest.FixtureRequest, tmp_path: Path) -> FakeCgroups:
    fake = FakeCgroups(tmp_path / "cgroup", request.param, Driver.CGROUPFS)
    for uid in UIDS:
        fake.add(fake.pod_path(uid), cpu_ns=1_000)
    return fake


@pytest.fixture
def tree(fake: FakeCgroups) -> Iterator[Tree]:
    with open_tree(find_layout(str(fake.root))) as tree:
        yield tree


def usage(group: Group) -> int:
    return group.cpu_usage_ns()


def opened() -> int:
    """The number of file descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


def read(kept: KeptGroups, tree: Tree, *paths: str) -> list[int]:
    """Read these groups in one cycle."""
    with kept.cycle():
        return [kept.read(path, lambda path=path: tree.open(path), usage) for path in paths]  # type: ignore[misc]


def test_a_kept_group_is_read_again_without_new_descriptors(fake: FakeCgroups, tree: Tree):
    path, kept, before = fake.pod_path(UIDS[0]), KeptGroups(MANY), opened()
    assert [1_000] == read(kept, tree, path)
    assert opened() >= before + 2  # the directory and the file
    before = opened()
    fake.add(path, cpu_ns=2_000)
    assert [2_000] == read(kept, tree, path)
    assert before == opened()
    kept.close()


def test_a_new_group_at_the_path_of_a_removed_group_is_read(fake: FakeCgroups, tree: Tree):
    """A container that is created again has the path of the removed container."""
    path, kept = fake.pod_path(UIDS[0]), KeptGroups(MANY)
    assert [1_000] == read(kept, tree, path)
    fake.remove(path)
    fake.add(path, cpu_ns=7_000)
    assert [7_000] == read(kept, tree, path)
    kept.close()


def test_a_removed_group_is_gone_and_releases_its_descriptors(fake: FakeCgroups, tree: Tree):
    path, kept, before = fake.pod_path(UIDS[0]), KeptGroups(MANY), opened()
    read(kept, tree, path)
    assert opened() > before
    fake.remove(path)
    with pytest.raises(CgroupGone):
        read(kept, tree, path)
    assert before == opened()


def test_groups_that_a_cycle_did_not_read_are_closed(fake: FakeCgroups, tree: Tree):
    """The pod ended, and nothing reads its group again."""
    paths, kept, before = [fake.pod_path(uid) for uid in UIDS], KeptGroups(MANY), opened()
    read(kept, tree, *paths)
    assert opened() > before
    read(kept, tree)
    assert before == opened()


def test_groups_beyond_the_descriptors_are_read_and_closed(fake: FakeCgroups, tree: Tree):
    """With descriptors for two groups, all four are read in each cycle, and two of them stay open."""
    paths, before = [fake.pod_path(uid) for uid in UIDS], opened()
    enough = KeptGroups(MANY)
    read(enough, tree, paths[0])
    of_one = opened() - before
    enough.close()
    few = KeptGroups(2 * tree.open(paths[0]).most_descriptors)
    for _ in range(2):
        assert [1_000] * len(paths) == read(few, tree, *paths)
        assert 2 * of_one == opened() - before
    few.close()
    assert before == opened()


def test_descriptors_of_closed_groups_are_available_again(fake: FakeCgroups, tree: Tree):
    paths, before = [fake.pod_path(uid) for uid in UIDS], opened()
    kept = KeptGroups(tree.open(paths[0]).most_descriptors)
    for path in paths:
        for _ in range(2):  # the group of the cycle before is closed at the end of the first cycle
            assert [1_000] == read(kept, tree, path)
        assert opened() > before
    kept.close()
    assert before == opened()


def test_a_closed_collection_opens_its_groups_again(fake: FakeCgroups, tree: Tree):
    path, kept, before = fake.pod_path(UIDS[0]), KeptGroups(MANY), opened()
    read(kept, tree, path)
    kept.close()
    assert before == opened()
    assert [1_000] == read(kept, tree, path)
    kept.close()
