"""The ConfigMap by which one hand stops all agents of a cluster, and by which they share a budget of evictions.

    data:
      enforcement: "on"            # on | off: nothing new is done | restore: off, and everything is given back now
      evictions-per-minute: "10"   # in the whole cluster
      nodes-at-once: "5%"          # nodes that may evict within the same minute: a number, or a share of all nodes
      recent-evictions: |          # kept by the agents: unix seconds and node, a line for each of the last minute
        1700000000 node-1

An agent that wants to evict reads the map, counts the lines of the last minute, and writes its own line under the
condition that the map is still what it read (resourceVersion). Who comes second is refused by the API server (409),
reads again, and may find the budget used up. So no two agents spend the same token, and none needs to be in charge. A
token is spent by asking; an eviction that a PodDisruptionBudget then refuses does not bring it back.

Whatever makes the budget unknown (no API, no map, a value that cannot be read) allows no eviction. A brake that was
seen pulled stays pulled while the API is away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from watcher.core.kubernetes.errors import KubeConflict, KubeError, KubeNotFound, KubeUnreachable
from watcher.core.kubernetes.objects import CONFIG_MAPS, NODES
from watcher.platform.kube.client import KubeClient, PatchKind

WINDOW_S = 60.0
NODES_COUNTED_FOR_S = 600.0
RETRY_AFTER_S = (0.05, 0.1, 0.2, 0.4)
AHEAD_S = 60.0
"""A line that is further in the future was written by a clock that is wrong."""

ENFORCEMENT = "enforcement"
PER_MINUTE = "evictions-per-minute"
NODES_AT_ONCE = "nodes-at-once"
RECENT = "recent-evictions"


class Enforcement(StrEnum):
    """What the map says of acting at all."""

    ON = "on"
    OFF = "off"
    RESTORE = "restore"


@dataclass(frozen=True, slots=True)
class Control:
    """What the map says. `problem` is why no eviction is allowed, whatever it says; "" for none."""

    enforcement: Enforcement = Enforcement.ON
    per_minute: int = 0
    nodes_at_once: float = 0.0
    """A number of nodes; or, below 1, a share of all. "1" is one node, "100%" is infinity."""
    recent: tuple[tuple[float, str], ...] = ()
    problem: str = ""
    away: bool = False
    """The API does not answer: nothing is to be asked of it in this cycle."""


def read_control(data: Mapping[str, str]) -> Control:
    """The map's data. A word for `enforcement` that is not known is taken for off: somebody wanted something stopped.
    Pure."""
    problems = []
    word = data.get(ENFORCEMENT, Enforcement.ON).strip().lower()
    known = word in [each.value for each in Enforcement]
    if not known:
        problems.append(f'{ENFORCEMENT} must be "on", "off" or "restore", and is {word[:40]!r}: taken for off')
    per_minute = _whole(data.get(PER_MINUTE, ""))
    if per_minute is None:
        problems.append(f"{PER_MINUTE} must be a whole number")
    nodes = _nodes(data.get(NODES_AT_ONCE, ""))
    if nodes is None:
        problems.append(f'{NODES_AT_ONCE} must be a number of nodes or a share of them, like "5%"')
    return Control(
        Enforcement(word) if known else Enforcement.OFF,
        per_minute or 0,
        nodes or 0.0,
        _recent(data.get(RECENT, "")),
        "; ".join(problems),
    )


def refusal(control: Control, *, node: str, nodes: int, now: float) -> str:
    """Why `node` may not evict now, by the last minute of a cluster of so many `nodes`; "" if it may. Pure."""
    if control.problem:
        return control.problem
    last = fresh(control.recent, now)
    if len(last) >= control.per_minute:
        return f"the cluster had {len(last)} evictions in the last minute, and {PER_MINUTE} is {control.per_minute}"
    most = allowed_nodes(control.nodes_at_once, nodes)
    others = {name for _, name in last} - {node}
    if len(others) >= most:
        return f"{len(others)} other nodes evicted in the last minute, and {NODES_AT_ONCE} is {most}"
    return ""


def allowed_nodes(at_once: float, nodes: int) -> int:
    """Of a share at least one node, so that a small cluster is not stuck. Pure."""
    if at_once == float("inf"):
        return max(1, nodes)
    return max(1, int(at_once * nodes)) if 0 < at_once < 1 else int(at_once)


def fresh(recent: tuple[tuple[float, str], ...], now: float) -> tuple[tuple[float, str], ...]:
    """The lines of the last minute. Pure."""
    return tuple(each for each in recent if now - WINDOW_S < each[0] <= now + AHEAD_S)


def _whole(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 12 else None


def _nodes(text: str) -> float | None:
    number = _whole(text.strip().removesuffix("%"))
    if number is None or not text.strip().endswith("%"):
        return None if number is None else float(number)
    return float("inf") if number >= 100 else number / 100


def _recent(text: str) -> tuple[tuple[float, str], ...]:
    """Lines that cannot be read are nobody's."""
    found = []
    for line in text.splitlines():
        time, _, node = line.strip().partition(" ")
        if (at := _whole(time.partition(".")[0])) is not None and node:
            found.append((float(at), node))
    return tuple(found)


def _written(recent: tuple[tuple[float, str], ...]) -> str:
    return "".join(f"{time:.0f} {node}\n" for time, node in recent)


class Controls:
    """The map of this cluster, NAMESPACE/NAME. `patience` is how many seconds a look at it may take."""

    def __init__(self, client: KubeClient, key: str, *, node: str, patience: float) -> None:
        self._client = client
        self._key = key
        self._node = node
        self._patience = patience
        self.last: Enforcement | None = None
        """What was last read; None if there was no map. Whoever starts with what the process before it knew sets it."""
        self._nodes: tuple[float, int] | None = None

    async def look(self) -> Control:
        """What the map says now. Raises nothing: where it cannot be read, evictions are not allowed, and a brake that
        was pulled when it last could be stays so."""
        try:
            async with asyncio.timeout(self._patience):
                control = read_control((await self._client.get(CONFIG_MAPS, self._key)).data)
        except KubeNotFound:
            self.last = None
            return Control(problem=f"there is no ConfigMap {self._key}, which says how many evictions are allowed")
        except TimeoutError:
            return self._unknown("the API does not answer", away=True)
        except KubeError as error:
            return self._unknown(str(error), away=isinstance(error, KubeUnreachable))
        self.last = control.enforcement
        return control

    def _unknown(self, why: str, *, away: bool) -> Control:
        problem = f"the ConfigMap {self._key} cannot be read: {why}"
        return Control(self.last or Enforcement.ON, problem=problem, away=away)

    async def take(self, *, now: float) -> str:
        """Spend a token of the budget for one eviction; returns why there is none, "" if it is spent. Never raises."""
        try:
            nodes = await self._count(now)
            for delay in (*RETRY_AFTER_S, None):
                try:
                    return await self._take_once(nodes, now)
                except KubeConflict:
                    if delay is not None:
                        await asyncio.sleep(delay)
        except KubeError as error:
            return f"the budget of the cluster cannot be asked: {error}"
        return "other nodes were quicker, every time"

    async def _take_once(self, nodes: int, now: float) -> str:
        read = await self._client.get(CONFIG_MAPS, self._key)
        control = read_control(read.data)
        if control.enforcement is not Enforcement.ON:
            return f"{ENFORCEMENT} is {control.enforcement}"
        if why := refusal(control, node=self._node, nodes=nodes, now=now):
            return why
        recent = (*fresh(control.recent, now), (now, self._node))
        change = {"metadata": {"resourceVersion": read.metadata.resource_version}, "data": {RECENT: _written(recent)}}
        await self._client.patch(CONFIG_MAPS, self._key, change, kind=PatchKind.MERGE)
        return ""

    async def _count(self, now: float) -> int:
        """How many nodes the cluster has; asked seldom."""
        if self._nodes is None or not 0 <= now - self._nodes[0] < NODES_COUNTED_FOR_S:
            self._nodes = (now, await self._client.count(NODES))
        return self._nodes[1]
