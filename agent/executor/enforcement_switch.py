"""The emergency switch of all agents of a cluster: the control ConfigMap, with their shared eviction budget.

    data:
      enforcement: "on"            # on | off: no new steps | restore: off, and all original values are restored now
      evictions-per-minute: "10"   # in the whole cluster
      nodes-at-once: "5%"          # nodes that may evict within the same minute: a number, or a percentage of all
      recent-evictions: |          # written by the agents: unix seconds and node, one line per eviction in a minute
        1700000000 node-1

Before an eviction, an agent reads the ConfigMap, counts the lines of the last minute, and adds its own line with the
resourceVersion that it read. If another agent was faster, the API server refuses the write (409); the agent reads
again, and may find the budget used up. So two agents cannot spend the same token, and no coordinator is needed. A
token is spent by the request; an eviction that a PodDisruptionBudget then refuses does not return it.

If the budget is unknown (no API, no ConfigMap, an invalid value), no eviction is allowed. If enforcement was last read
as off or restore, it stays so while the API is unavailable.
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
"""Seconds: a line that is further in the future comes from a node with a wrong clock and is ignored."""

ENFORCEMENT = "enforcement"
PER_MINUTE = "evictions-per-minute"
NODES_AT_ONCE = "nodes-at-once"
RECENT = "recent-evictions"


class EnforcementSwitch(StrEnum):
    """Value of the key `enforcement`."""

    ON = "on"
    OFF = "off"
    RESTORE = "restore"


@dataclass(frozen=True, slots=True)
class ControlData:
    """Content of the ConfigMap. `recent` are (unix seconds, node). `problem` is the reason why no eviction is allowed
    regardless of the content; "" for none."""

    enforcement: EnforcementSwitch = EnforcementSwitch.ON
    per_minute: int = 0
    nodes_at_once: float = 0.0
    """A number of nodes or, below 1, a fraction of all nodes. "1" is one node, "100%" is infinity."""
    recent: tuple[tuple[float, str], ...] = ()
    problem: str = ""
    away: bool = False
    """The API does not respond: no more requests in this cycle."""


def read_control(data: Mapping[str, str]) -> ControlData:
    """Parse the ConfigMap's data. An unknown value of `enforcement` counts as off, the safe choice. Pure."""
    problems = []
    word = data.get(ENFORCEMENT, EnforcementSwitch.ON).strip().lower()
    known = word in [each.value for each in EnforcementSwitch]
    if not known:
        problems.append(f'{ENFORCEMENT} must be "on", "off" or "restore", not {word[:40]!r}: treated as off')
    per_minute = _whole(data.get(PER_MINUTE, ""))
    if per_minute is None:
        problems.append(f"{PER_MINUTE} must be a whole number")
    nodes = _nodes(data.get(NODES_AT_ONCE, ""))
    if nodes is None:
        problems.append(f'{NODES_AT_ONCE} must be a number of nodes or a percentage of them, for example "5%"')
    return ControlData(
        EnforcementSwitch(word) if known else EnforcementSwitch.OFF,
        per_minute or 0,
        nodes or 0.0,
        _recent(data.get(RECENT, "")),
        "; ".join(problems),
    )


def refusal(control: ControlData, *, node: str, nodes: int, now: float) -> str:
    """The reason why the budget forbids an eviction on `node`, in a cluster of `nodes` nodes; "" if it allows it. `now`
    in unix seconds. Pure."""
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
    """Number of nodes that may evict within a minute; a fraction allows at least one node, for small clusters. Pure."""
    if at_once == float("inf"):
        return max(1, nodes)
    return max(1, int(at_once * nodes)) if 0 < at_once < 1 else int(at_once)


def fresh(recent: tuple[tuple[float, str], ...], now: float) -> tuple[tuple[float, str], ...]:
    """The evictions of the last minute; `now` in unix seconds. Pure."""
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
    """Parse the lines of `recent-evictions`; invalid lines are ignored."""
    found = []
    for line in text.splitlines():
        time, _, node = line.strip().partition(" ")
        if (at := _whole(time.partition(".")[0])) is not None and node:
            found.append((float(at), node))
    return tuple(found)


def _written(recent: tuple[tuple[float, str], ...]) -> str:
    return "".join(f"{time:.0f} {node}\n" for time, node in recent)


class ControlMap:
    """Client of the control ConfigMap with the name `key` (NAMESPACE/NAME). `patience` is the timeout of a read in
    seconds."""

    def __init__(self, client: KubeClient, key: str, *, node: str, patience: float) -> None:
        self._client = client
        self._key = key
        self._node = node
        self._patience = patience
        self.last: EnforcementSwitch | None = None
        """The last value read; None if there was no ConfigMap. At the start, the executor sets the saved value."""
        self._nodes: tuple[float, int] | None = None

    async def read(self) -> ControlData:
        """Read the ConfigMap. Raises nothing: if it cannot be read, evictions are not allowed, and the last value of
        `enforcement` stays in effect."""
        try:
            async with asyncio.timeout(self._patience):
                control = read_control((await self._client.get(CONFIG_MAPS, self._key)).data)
        except KubeNotFound:
            self.last = None
            return ControlData(problem=f"the ConfigMap {self._key} with the eviction budget does not exist")
        except TimeoutError:
            return self._unknown("the API does not respond", away=True)
        except KubeError as error:
            return self._unknown(str(error), away=isinstance(error, KubeUnreachable))
        self.last = control.enforcement
        return control

    def _unknown(self, why: str, *, away: bool) -> ControlData:
        problem = f"the ConfigMap {self._key} cannot be read: {why}"
        return ControlData(self.last or EnforcementSwitch.ON, problem=problem, away=away)

    async def spend_token(self, *, now: float) -> str:
        """Spend a token of the budget for one eviction; `now` in unix seconds. Returns why none is available, "" if it
        was spent. Never raises."""
        try:
            nodes = await self._count(now)
            for delay in (*RETRY_AFTER_S, None):
                try:
                    return await self._take_once(nodes, now)
                except KubeConflict:
                    if delay is not None:
                        await asyncio.sleep(delay)
        except KubeError as error:
            return f"the eviction budget of the cluster cannot be read or written: {error}"
        return "the eviction budget of the cluster could not be updated: other nodes changed it at every attempt"

    async def _take_once(self, nodes: int, now: float) -> str:
        read = await self._client.get(CONFIG_MAPS, self._key)
        control = read_control(read.data)
        if control.enforcement is not EnforcementSwitch.ON:
            return f"{ENFORCEMENT} is {control.enforcement}"
        if why := refusal(control, node=self._node, nodes=nodes, now=now):
            return why
        recent = (*fresh(control.recent, now), (now, self._node))
        change = {"metadata": {"resourceVersion": read.metadata.resource_version}, "data": {RECENT: _written(recent)}}
        await self._client.patch(CONFIG_MAPS, self._key, change, kind=PatchKind.MERGE)
        return ""

    async def _count(self, now: float) -> int:
        """Number of nodes in the cluster, cached for NODES_COUNTED_FOR_S; `now` in unix seconds."""
        if self._nodes is None or not 0 <= now - self._nodes[0] < NODES_COUNTED_FOR_S:
            self._nodes = (now, await self._client.count(NODES))
        return self._nodes[1]
