"""The adjuster: sizes of the pools, and their reason, from the state of the node."""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agent.cgroups.detection import find_layout
from agent.cgroups.paths import Driver
from agent.qrm.cluster.node_windows import WatcherLoadWindows
from agent.qrm.grpc.grpc_server import PluginServer
from agent.qrm.plugins.adjuster import Adjuster, LocalUsage, ResizeDecision, WindowReading
from agent.qrm.plugins.base import ResourcePlugin
from agent.qrm.plugins.cpu import CpuPlugin
from agent.qrm.plugins.resize import PoolSettings
from agent.qrm.pods import PodContainer, QrmPod
from agent.qrm.roles import DEFAULT_ROLES
from agent.qrm.settings import read_settings
from agent.qrm.store.files import StateFile
from tests.agent.qrm.plugins.test_plugins import SEED, ask, cpu_plugin, memory_plugin
from tests.agent.qrm.vectors import machine
from tests.fakes.cgroups import FakeCgroups
from tests.fakes.service import FakeService, Live
from tests.fakes.snapshots import publish, snapshot_of, steady
from tests.waiting import eventually
from watcher.client import NodeClient
from watcher.model import Operator

ALL = ("5m", "10m", "15m")


@dataclass
class World:
    """A CPU plug-in with an online and an offline pod, their measured use, and a clock."""

    directory: Path
    plugin: ResourcePlugin = field(default_factory=lambda: cpu_plugin(reserved=""))
    settings: PoolSettings = field(default_factory=PoolSettings)
    seen: WindowReading = field(default_factory=WindowReading)
    used: dict[str, float] = field(default_factory=dict)
    pods: tuple[QrmPod, ...] | None = ()
    now: float = 1000.0

    def __post_init__(self) -> None:
        server = PluginServer(self.plugin, self.directory / "cpu.sock", StateFile(self.directory / "state"))
        self.adjuster = Adjuster(
            server,
            settings=self.settings,
            windows=self,
            usages=self,
            pods=lambda: self.pods,
            monotonic=lambda: self.now,
            clock=lambda: 1.7e9 + self.now,
        )

    def admit(self, *pods: tuple[str, str, float]) -> None:
        """Pods with these names, roles and CPUs; each has a container with its name as id."""
        for name, role, cpus in pods:
            self.plugin.allocate(ask("cpu", name, role, cpus))
            containers = (PodContainer("container0", {"cpu": cpus}, id=f"id-{name}"),)
            self.pods = (*(self.pods or ()), QrmPod(name, "ns", name, containers=containers))

    async def read_usage(self) -> dict[str, float]:
        return self.used

    def read(self, pods: Iterable[QrmPod] = (), *, monotonic: float = 0.0, max_age: float = 0.0) -> Any:
        """Both interfaces have a `read`; the one with a clock reads the windows."""
        return self.seen if monotonic else self.read_usage()

    def tick(self, seconds: float = 0.0) -> ResizeDecision | None:
        self.now += seconds
        return asyncio.run(self.adjuster.tick())

    def says(self, percent: float, *, age: float = 1.0) -> None:
        self.seen = WindowReading(dict.fromkeys(ALL, percent), age)


def decided(world: World, seconds: float = 0.0) -> dict[str, Any]:
    found = world.tick(seconds)
    assert found is not None
    return found.as_json()


def test_the_proposals_resize_from_load(tmp_path: Path):
    """28.75 % of 80 CPUs, four of them offline: 1.25 x 19 + 4 CPUs are 28, reached two by two, every 30 seconds."""
    world = World(tmp_path)
    world.admit(("p1", "online-micro_service", 4), ("p2", "ETL", 2))
    world.used = {"id-p2": 4.0}
    world.says(28.75)
    first = decided(world)
    assert (first["action"], first["from"], first["to"], first["target"]) == ("down", 76, 74, 28)
    assert first["need_cpus"] == 27.75
    assert first["online_usage_cpus"] == dict.fromkeys(ALL, 19.0)
    assert first["pools"]["online"] == "0-37,40-75"
    assert first["offline_headroom_cpus"] == 6.0  # its pool, which is two thirds busy
    assert decided(world, 5.0)["action"] == "hold: shrunk 5 s ago"
    sizes = [decided(world, 30.0)["to"] for _ in range(25)]
    assert sizes[:3] == [72, 70, 68]
    assert sizes[-1] == 28
    last = decided(world, 5.0)
    assert (last["action"], last["pools"]) == ("hold: equal", {"online": "0-13,40-53", "offline": "14-39,54-79"})
    assert last["offline_headroom_cpus"] == 62.4  # a fifth more than the 52 of its pool, four of which are used
    assert world.adjuster.directions["down"] == 24
    assert world.plugin.allocations()["p1"]["container0"].allocation_result == "0-13,40-53"


def test_a_resize_is_stored(tmp_path: Path):
    world = World(tmp_path, settings=PoolSettings(step_down=0))
    world.says(20.0)
    size = decided(world)["to"]
    kept = StateFile(tmp_path / "state").read()
    assert kept is not None
    assert kept["online"] == size < 76


def test_no_resize_while_the_pods_are_unknown(tmp_path: Path):
    world = World(tmp_path, pods=None)
    world.says(5.0)
    assert world.tick() is None
    assert world.adjuster.last is None


def test_without_data_the_sizes_stay(tmp_path: Path):
    world = World(tmp_path)
    world.seen = WindowReading(missing={"5m": "no windows from load-watcher: no answer"})
    found = decided(world)
    assert (found["action"], found["to"], found["need_cpus"]) == ("hold: no data", 76, None)
    assert found["missing"] == {"5m": "no windows from load-watcher: no answer"}
    assert found["inputs"]["online_cpus"] is None


@pytest.mark.parametrize(
    ("percent", "age", "why"),
    [(20.0, 91.0, "hold: the windows are 91 s old"), (91.0, 1.0, "hold: equal"), (20.0, None, "hold: no data")],
)
def test_stale_windows_shrink_no_pool(percent: float, age: float | None, why: str, tmp_path: Path):
    world = World(tmp_path)
    world.says(percent, age=age or 0.0)
    if age is None:
        world.seen = WindowReading()
    found = decided(world)
    assert (found["action"], found["to"]) == (why, 76)


def test_a_pool_grows_without_the_watcher(tmp_path: Path):
    """The current use of the pool's containers is enough to grow it, and not to shrink it."""
    world = World(tmp_path, settings=PoolSettings(step_down=0))
    world.admit(("p1", "online-micro_service", 4))
    world.says(20.0)
    small = decided(world)["to"]
    assert small < 30
    world.seen, world.used = WindowReading(), {"id-p1": 40.0}
    found = decided(world, 5.0)
    assert (found["action"], found["to"], found["target"]) == ("up", small + 10, 54)
    world.used = {"id-p1": 1.0}
    assert decided(world, 60.0)["action"] == "hold: no windows of the node"


def test_pods_without_a_measurement_count_with_their_requests(tmp_path: Path):
    """An exclusive pod without a known use counts with its request, an offline pod too, up to the size of its pool."""
    world = World(tmp_path)
    world.admit(("p1", "storage-service", 20), ("p2", "ETL", 3), ("p3", "transcoding", 3))
    world.says(50.0)
    inputs = decided(world)["inputs"]
    assert (inputs["exclusive_cpus"], inputs["offline_cpus"], inputs["pool_cpus"]) == (20.0, 4.0, 60)


@pytest.mark.parametrize("cpus", [1, 2, 3])
def test_machines_with_few_cpus_have_both_pools(cpus: int, tmp_path: Path):
    small = type(SEED)({cpu: each for cpu, each in machine("seed80_adjacent").cpus.items() if cpu < cpus})
    world = World(tmp_path, plugin=CpuPlugin(small, DEFAULT_ROLES, PoolSettings()))
    for percent in (5.0, 100.0):
        world.says(percent)
        found = decided(world, 60.0)
        assert 1 <= found["to"] <= cpus
        assert found["pools"]["online"]
        assert found["pools"]["offline"]
        # If one CPU is in both pools, none can be offered to offline pods.
        assert (found["offline_headroom_cpus"] == 0.0) == (cpus == 1)


def test_the_last_changes_are_kept(tmp_path: Path):
    """Each resize, and each new reason not to resize, but not each tick."""
    world = World(tmp_path)
    world.says(28.0)
    for _ in range(10):
        world.tick(5.0)
    actions = [each.resize.action for each in world.adjuster.changes]
    assert actions == ["down", "hold: shrunk 5 s ago", "down", "hold: shrunk 5 s ago"]


def test_another_plugin_than_the_builtin_one_is_an_error(tmp_path: Path):
    with pytest.raises(TypeError, match="the adjuster needs the built-in CPU plug-in, not qrm_memory_plugin"):
        World(tmp_path, plugin=memory_plugin()).tick()


# --- sources ---------------------------------------------------------------------------------------------------------


async def test_windows_of_the_watcher():
    service = FakeService(published=publish(snapshot_of({"node-1": {"CPU": steady(26), "Memory": steady(40)}})))

    async def test(address: str, node: str) -> WindowReading:
        # The clock of the service and that of the test are both 1000.
        client = NodeClient(
            address, node, windows=ALL, operators=(Operator.AVG,), backoff=0.01, monotonic=lambda: 1000.0
        )
        windows = WatcherLoadWindows(client, interval=0.1)
        await windows.start()
        try:
            assert windows.read(monotonic=1000.0, max_age=900.0).missing.keys() == set(ALL)
            waiting = "no response yet"

            def seen() -> WindowReading | None:
                found = windows.read(monotonic=1000.0, max_age=900.0)
                return None if waiting in found.missing.get("5m", "") else found

            answered = await eventually(seen, what="an answer")
            assert answered is not None
            late = windows.read(monotonic=5000.0, max_age=900.0)
            assert late.missing.keys() == set(ALL)
            return answered
        finally:
            await windows.close()

    with Live(service) as live:
        address = f"http://127.0.0.1:{live.port}"
        found = await test(address, "node-1")
        assert (found.windows, found.missing) == ({window: pytest.approx(26.0) for window in ALL}, {})
        assert found.age == pytest.approx(2.0)
        unknown = await test(address, "node-9")
        assert unknown.windows == {}
        assert "node-9" in unknown.missing["15m"]
    ahead = FakeService(published=publish(snapshot_of({"node-1": {"CPU": steady(26)}}, end=time.time() + 60.0)))
    with Live(ahead) as live:
        found = await test(f"http://127.0.0.1:{live.port}", "node-1")
        assert found.windows == {}
        assert "ahead of the clock of the watcher" in found.missing["15m"]


async def test_usage_is_read_from_control_groups(tmp_path: Path):
    uid, now = "0f5d1f0e-1111-2222-3333-444455556666", [100.0]
    fake = FakeCgroups(tmp_path / "cgroup", "v2", Driver.SYSTEMD)
    paths = {name: fake.container_path(uid, name * 64, "Burstable") for name in ("a", "b")}
    containers = tuple(PodContainer(name, id=name * 64) for name in (*paths, "c"))
    pods = [QrmPod(uid, "ns", "web", qos_class="Burstable", containers=containers)]
    fake.add(fake.pod_path(uid, "Burstable"))

    usage = LocalUsage(lambda: find_layout(str(fake.root)), monotonic=lambda: now[0])
    for seconds, expected in ((0, {}), (2, {"a" * 64: 1.5, "b" * 64: 0.5})):
        now[0] += seconds
        fake.add(paths["a"], cpu_ns=int(1.5e9) * seconds)
        fake.add(paths["b"], cpu_ns=int(0.5e9) * seconds)
        assert await usage.read(pods) == expected
    usage.close()
    nowhere = LocalUsage(lambda: find_layout(str(tmp_path)), monotonic=lambda: now[0])
    assert await nowhere.read(pods) == {}
    assert "no control groups found" in nowhere.failure


@pytest.mark.parametrize(("nest", "found"), [("crane", True), ("kubelet", False), (None, False)])
async def test_usage_is_read_from_control_groups_below_another_root(tmp_path: Path, nest: str | None, found: bool):
    """A kubelet with --cgroup-root=/crane, in the settings."""
    fake = FakeCgroups(tmp_path / "cgroup", "v2", Driver.CGROUPFS, nest="crane")
    fake.add(fake.container_path("0f5d1f0e-1111-2222-3333-444455556666", "a" * 64, "Burstable"))
    given = {"cgroup": str(fake.root), **({"cgroup_nest": nest} if nest else {})}
    settings, problems = read_settings(given, cwd=tmp_path)
    assert not problems
    usage = LocalUsage(settings.find_layout, monotonic=lambda: 100.0)
    await usage.read([])
    usage.close()
    assert ("" if found else "no kubelet groups found") in usage.failure
    assert bool(usage.failure) != found
