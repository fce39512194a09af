"""The QoS-aware adjuster: resizes the CPU pools every few seconds according to the node's load, and logs the changes.

It combines the load windows of this node from load-watcher, the current usage of the containers in each pool, and their
requests. `resize` computes the new sizes, the CPU plug-in stores them, and the manager's next round applies them to the
containers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from agent import cpuset
from agent.cgroups.detection import Layout, NoCgroups
from agent.cgroups.errors import CgroupError
from agent.cpuset import CpuSet
from agent.model import ContainerState, PodState
from agent.qos import QosClass
from agent.qrm.grpc.grpc_server import PluginServer
from agent.qrm.plugins.base import ResourcePlugin
from agent.qrm.plugins.cpu import CpuPlugin
from agent.qrm.plugins.resize import PoolLoad, PoolSettings, PoolState, Resize, headroom, resize
from agent.qrm.pods import QrmPod
from agent.qrm.roles import EXCLUSIVE, OFFLINE, ONLINE
from agent.state.cgroup_usage import CgroupUsageReader
from agent.state.readings import MetricReadings, PodFacts
from watcher.platform.repeated_errors import RepeatedErrors

log = logging.getLogger(__name__)

LONGEST_S = 60.0
"""Usage measured over a longer interval, in seconds, is ignored as outdated."""
REMEMBERED = 50
"""Number of decisions in the history."""


# --- inputs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WindowReading:
    """CPU usage of the node in percent (0–100) by window, the age of the oldest window in seconds, and the reasons for
    missing windows."""

    windows: Mapping[str, float] = field(default_factory=dict)
    age: float | None = None
    missing: Mapping[str, str] = field(default_factory=dict)


class LocalUsage:
    """Current CPU usage of containers, read from their control groups. `find` detects the cgroup layout."""

    def __init__(self, find: Callable[[], Layout], *, monotonic: Callable[[], float]) -> None:
        self._find = find
        self._monotonic = monotonic
        self._usage: CgroupUsageReader | None = None
        self.failure = ""

    async def read(self, pods: Iterable[QrmPod]) -> dict[str, float]:
        """CPUs in use by container id, averaged since the previous call. Containers without a measurement are
        omitted."""
        return await asyncio.to_thread(self._read, [_facts(pod) for pod in pods])

    def close(self) -> None:
        """Close the control groups; the next read opens it again."""
        if self._usage is not None:
            self._usage.close()
            self._usage = None

    def _read(self, facts: Sequence[PodFacts]) -> dict[str, float]:
        try:
            measured = self._opened().read(
                facts, MetricReadings(), now=0.0, monotonic=self._monotonic, longest=LONGEST_S
            )
        except (NoCgroups, CgroupError) as error:
            self.close()
            if not self.failure:
                log.warning("cannot read the CPU usage of containers: %s. %s", error, error.hint)
            self.failure = str(error)
            return {}
        self.failure = ""
        return {each.id: each.cpu for pod in measured for each in pod.containers if each.cpu is not None}

    def _opened(self) -> CgroupUsageReader:
        if self._usage is None:
            self._usage = CgroupUsageReader(self._find(), proc_root="/proc")
        return self._usage


def _facts(pod: QrmPod) -> PodFacts:
    qos = QosClass(pod.qos_class) if pod.qos_class in set(QosClass) else QosClass.UNKNOWN
    containers = tuple(ContainerState(each.name, each.id) for each in pod.containers if each.id)
    return PodFacts(PodState(pod.namespace, pod.name, pod.uid, qos, containers=containers), group_uid=pod.uid)


class ContainerCpuUsage(Protocol):
    """A source of the CPU usage of containers."""

    async def read(self, pods: Iterable[QrmPod]) -> dict[str, float]:
        """CPUs in use by container id."""
        ...


class LoadWindows(Protocol):
    """A source of the load windows of the node."""

    def read(self, *, monotonic: float, max_age: float) -> WindowReading: ...


# --- decisions -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ResizeDecision:
    """The inputs and the result of one tick. `time` is in unix seconds."""

    time: float
    load: PoolLoad
    pools: PoolState
    resize: Resize
    online: str
    offline: str
    headroom: float
    """CPUs that offline pods are offered; more than the size of their pool while the pool is partly idle."""
    missing: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The decision as JSON; unknown values are null."""
        return {
            "time": round(self.time, 3),
            "action": self.resize.action,
            "from": self.pools.online,
            "to": self.resize.size,
            "target": self.resize.target,
            "need_cpus": _rounded(self.resize.need),
            "online_usage_cpus": {name: _rounded(value) for name, value in self.resize.used.items()},
            "inputs": {
                "node_cpus": self.load.total,
                "pool_cpus": self.pools.cpus,
                "windows_percent": {name: _rounded(value) for name, value in self.load.windows.items()},
                "windows_age_s": _rounded(self.load.age),
                "offline_cpus": _rounded(self.load.offline),
                "online_cpus": _rounded(self.load.online),
                "exclusive_cpus": _rounded(self.load.exclusive),
                "online_requests": self.pools.requests,
            },
            "pools": {ONLINE: self.online, OFFLINE: self.offline},
            "offline_headroom_cpus": _rounded(self.headroom),
            "missing": dict(self.missing),
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


class Adjuster:
    """Resizes the pools of a served CPU plug-in. `windows` and `usages` are None if not available. `pods` returns the
    last known pods of this node, or None while they are unknown; without pods the adjuster makes no decision."""

    def __init__(
        self,
        cpu: PluginServer,
        *,
        settings: PoolSettings,
        windows: LoadWindows | None,
        usages: ContainerCpuUsage | None,
        pods: Callable[[], Sequence[QrmPod] | None],
        monotonic: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self._cpu = cpu
        self._settings = settings
        self._windows = windows
        self._usages = usages
        self._pods = pods
        self._monotonic = monotonic
        self._clock = clock
        self._last_shrink: float | None = None
        self._last_data = monotonic()
        self.last: ResizeDecision | None = None
        self.changes: deque[ResizeDecision] = deque(maxlen=REMEMBERED)
        self.directions: Counter[str] = Counter()

    async def run(self, every: float) -> None:
        """Run a tick every `every` seconds until cancelled."""
        errors, unwritten = RepeatedErrors(log), ""
        while True:
            try:
                await self.tick()
                unwritten = ""
                errors.succeeded()
            except OSError as error:
                why = error.strerror or str(error)
                if why != unwritten:
                    log.error("cannot write the state of the CPU pools: %s; their sizes remain unchanged", why)
                unwritten = why
            except Exception as error:
                errors.failed(error, "adjusting the CPU pools failed; their sizes remain unchanged")
            await asyncio.sleep(every)

    async def tick(self) -> ResizeDecision | None:
        """Make and apply one decision; None while the pods are unknown, because the load cannot be assigned to pools
        then. Raises OSError if the new state cannot be written; the pools then remain unchanged."""
        pods = self._pods()
        if pods is None:
            return None
        used = {} if self._usages is None else await self._usages.read(pods)
        now = self._monotonic()
        seen = WindowReading()
        if self._windows is not None:
            seen = self._windows.read(monotonic=now, max_age=self._settings.forget_after)
        ids = {(pod.uid, each.name): each.id for pod in pods for each in pod.containers if each.id}
        found = await self._cpu.change(lambda plugin: self._decide(_as_cpu(plugin), seen, used, ids, now))
        self._remember(found, now)
        return found

    def _decide(
        self,
        cpu: CpuPlugin,
        seen: WindowReading,
        used: Mapping[str, float],
        ids: Mapping[tuple[str, str], str],
        now: float,
    ) -> ResizeDecision:
        """Runs under the lock of the plug-in, so that the state cannot change between the decision and the resize."""
        members, before = cpu.members(), cpu.pools
        load = _load(cpu, members, used, ids, seen)
        if load.windows or load.online is not None:
            self._last_data = now
        load = replace(load, silent_for=now - self._last_data)
        settings = replace(
            self._settings, align=cpu.machine.cpus_per_core, min_online=cpu.least_online, min_offline=cpu.least_offline
        )
        pools = PoolState(
            cpus=cpu.pool_cpus,
            online=len(before[ONLINE]),
            nodes=min(len(cpu.machine.nodes), cpu.least_offline),
            requests=float(sum(members[ONLINE].values())),
            last_shrink=self._last_shrink,
        )
        if before[ONLINE] & before[OFFLINE]:
            decided = Resize(pools.online, "hold: too few CPUs for two pools", pools.online, None)
        else:
            decided = resize(load, pools, now=now, settings=settings)
        if decided.size != pools.online:
            cpu.resize(decided.size)
        after = cpu.pools
        texts = cpuset.text(after[ONLINE]), cpuset.text(after[OFFLINE])
        offered = self._headroom(load, after)
        return ResizeDecision(self._clock(), load, pools, decided, *texts, offered, missing=seen.missing)

    def _headroom(self, load: PoolLoad, pools: Mapping[str, CpuSet]) -> float:
        """Headroom in CPUs; 0 if the offline pool shares all its CPUs with the online pool."""
        supply = float(len(pools[OFFLINE] - pools[ONLINE]))
        if not supply:
            return 0.0
        last = 0.0 if self.last is None else self.last.headroom
        return headroom(last=last, supply=supply, utilization=(load.offline or 0.0) / supply)

    def _remember(self, found: ResizeDecision, now: float) -> None:
        changed = found.resize.action in ("up", "down")
        if changed:
            self.directions[found.resize.action] += 1
            log.info(
                "resized the online pool from %d to %d CPUs (target %d, needed %.2f)",
                found.pools.online,
                found.resize.size,
                found.resize.target,
                found.resize.need or 0.0,
            )
        if found.resize.shrinks:
            self._last_shrink = now
        if changed or self.last is None or _kind(found) != _kind(self.last):
            self.changes.append(found)
        self.last = found


def _kind(decision: ResizeDecision) -> str:
    """The action without numbers, to detect a change of the action."""
    return "".join(character for character in decision.resize.action if not character.isdigit())


def _as_cpu(plugin: ResourcePlugin) -> CpuPlugin:
    if not isinstance(plugin, CpuPlugin):
        raise TypeError(f"the adjuster needs the built-in CPU plug-in, not {plugin.name}")
    return plugin


def _load(
    cpu: CpuPlugin,
    members: Mapping[str, Mapping[tuple[str, str], int]],
    used: Mapping[str, float],
    ids: Mapping[tuple[str, str], str],
    seen: WindowReading,
) -> PoolLoad:
    """The load of the node by class of pods. A container without a measurement counts with its request, except in the
    online pool, because that would hide its actual usage."""

    def measured(key: tuple[str, str]) -> float | None:
        return used.get(ids.get(key, ""))

    def assumed(name: str) -> float:
        return sum(float(asked) if (now := measured(key)) is None else now for key, asked in members[name].items())

    online = [value for key in members[ONLINE] if (value := measured(key)) is not None]
    return PoolLoad(
        total=len(cpu.machine.all),
        windows=seen.windows,
        age=seen.age,
        offline=min(assumed(OFFLINE), float(len(cpu.pools[OFFLINE]))),
        online=sum(online) if online else None,
        exclusive=assumed(EXCLUSIVE),
    )
