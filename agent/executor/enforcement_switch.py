"""The emergency switch of all agents of a cluster: the control ConfigMap, with their shared eviction budget.

    data:
      enforcement: "on"            # on | off: no new steps | restore: off, and all original values are restored now
      evictions-per-minute: "10"   # in the whole cluster
      nodes-at-once: "5%"          # nodes that may evict within the same minute: a number, or a percentage of all
      recent-evictions: |          # written by the agents: unix seconds and node, one line per eviction in a minute
        1700000000.250000 node-1

Before an eviction, an agent reads the ConfigMap, counts the lines of the last minute, and adds its own line with the
resourceVersion that it read. If another agent was faster, the API server refuses the write (409); the agent reads
again, and may find the budget used up. So two agents cannot spend the same token, and no coordinator is needed.

A token is spent before the request. If no pod was evicted (the API refused, a PodDisruptionBudget protects the pod, or
the pod was gone), the agent removes its own line again, which `EvictionToken` identifies. A token that is not returned
(the agent was killed, or the API did not respond) expires after a minute, as that of an eviction does.

The times are those of the API server: a node whose clock is wrong corrects its own by the Date of the response that it
read. Otherwise it would take the lines of other nodes for expired, and remove them. Lines are removed a minute after
they expire, because clocks of API servers differ; deploy/components/agent-node-restriction refuses to remove lines of
other nodes earlier.

If the budget is unknown (no API, no ConfigMap, an invalid value), no eviction is allowed. If enforcement was last read
as off or restore, it stays so while the API is unavailable.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from watcher.core.kubernetes.errors import KubeConflict, KubeError, KubeNotFound, KubeUnreachable
from watcher.core.kubernetes.objects import CONFIG_MAPS, NODES, ConfigMap
from watcher.core.review.clocks import AHEAD_S
from watcher.decoding.text import whole_number
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.parameters import PatchKind

log = logging.getLogger(__name__)

WINDOW_S = 60.0
KEPT_S = 120.0
"""Seconds between the time of a token and the clock after which the token is removed."""
MANAGER = "load-watcher-agent"
"""Field manager of the agents' key, from whose last write agent-node-restriction has the time of a request."""
NODES_COUNTED_FOR_S = 600.0
RETRY_AFTER_S = (0.05, 0.1, 0.2, 0.4)
TICK_S = 1e-6
"""Seconds: resolution of the times in `recent-evictions`, and the smallest distance between two tokens of a node."""

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
class EvictionToken:
    """One line of `recent-evictions`: `time` in unix seconds, a multiple of TICK_S. No two tokens of a node have the
    same time."""

    time: float
    node: str


@dataclass(frozen=True, slots=True)
class ControlData:
    """Content of the ConfigMap. `problem` is the reason why no eviction is allowed regardless of the content; "" for
    none."""

    enforcement: EnforcementSwitch = EnforcementSwitch.ON
    per_minute: int = 0
    nodes_at_once: float = 0.0
    """A number of nodes or, below 1, a fraction of all nodes. "1" is one node, "100%" is infinity."""
    recent: tuple[EvictionToken, ...] = ()
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
    others = {each.node for each in last} - {node}
    if len(others) >= most:
        return f"{len(others)} other nodes evicted in the last minute, and {NODES_AT_ONCE} is {most}"
    return ""


def allowed_nodes(at_once: float, nodes: int) -> int:
    """Number of nodes that may evict within a minute; a fraction allows at least one node, for small clusters. Pure."""
    if at_once == float("inf"):
        return max(1, nodes)
    return max(1, int(at_once * nodes)) if 0 < at_once < 1 else int(at_once)


def fresh(recent: tuple[EvictionToken, ...], now: float) -> tuple[EvictionToken, ...]:
    """The tokens of the last minute; `now` in unix seconds. Pure."""
    return tuple(each for each in recent if now - WINDOW_S < each.time <= now + AHEAD_S)


def next_token(recent: tuple[EvictionToken, ...], *, node: str, now: float) -> EvictionToken:
    """The token that `node` takes at `now` (unix seconds): with this time, or the next one that the node has not used.
    Pure."""
    used, tick = {each.time for each in recent if each.node == node}, 0
    while (time := round(now + tick * TICK_S, 6)) in used:
        tick += 1
    return EvictionToken(time, node)


def without(recent: tuple[EvictionToken, ...], token: EvictionToken) -> tuple[EvictionToken, ...]:
    """The tokens without one that is returned; the same tokens if it is not among them. Pure."""
    return tuple(each for each in recent if each != token)


def _whole(text: str) -> int | None:
    text = text.strip()
    return whole_number(text)


def _nodes(text: str) -> float | None:
    number = _whole(text.strip().removesuffix("%"))
    if number is None or not text.strip().endswith("%"):
        return None if number is None else float(number)
    return float("inf") if number >= 100 else number / 100


def _recent(text: str) -> tuple[EvictionToken, ...]:
    """Parse the lines of `recent-evictions`; invalid lines are ignored."""
    found = []
    for line in text.splitlines():
        time, _, node = line.strip().partition(" ")
        seconds, _, fraction = time.partition(".")
        if _whole(seconds) is not None and _whole(fraction or "0") is not None and node:
            found.append(EvictionToken(round(float(time), 6), node))
    return tuple(found)


def _written(recent: tuple[EvictionToken, ...]) -> str:
    return "".join(f"{each.time:.6f} {each.node}\n" for each in recent)


class ControlMap:
    """Client of the control ConfigMap with the name `key` (NAMESPACE/NAME). `patience` is the timeout of a read in
    seconds."""

    def __init__(
        self,
        client: KubeClient,
        key: str,
        *,
        node: str,
        patience: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._key = key
        self._node = node
        self._patience = patience
        self._monotonic = monotonic
        self._known: tuple[float, ControlData] | None = None
        """Monotonic time and result of the last read that the API answered."""
        self.last: EnforcementSwitch | None = None
        """The last value read; None if there was no ConfigMap. At the start, the executor sets the saved value."""
        self._nodes: tuple[float, int] | None = None
        self._ahead: set[str] = set()

    async def read(self, *, max_age: float = 0.0) -> ControlData:
        """The content of the ConfigMap, read again unless the API answered a read less than `max_age` seconds ago.
        Raises nothing: if it cannot be read, evictions are not allowed, and the last value of `enforcement` stays in
        effect."""
        now = self._monotonic()
        if self._known is not None and now - self._known[0] < max_age:
            return self._known[1]
        control = await self._read()
        self._known = None if control.away else (now, control)
        return control

    async def _read(self) -> ControlData:
        try:
            async with asyncio.timeout(self._patience):
                control = read_control((await self._client.get(CONFIG_MAPS, self._key, cached=True)).data)
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

    async def spend_token(self, *, now: float) -> EvictionToken | str:
        """Spend a token of the budget for one eviction; `now` in unix seconds by this machine's clock. Returns the
        token, with the time of the API server, or the reason why none is available. Never raises."""
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

    async def return_token(self, token: EvictionToken) -> bool:
        """Return a token whose eviction removed no pod; returns whether it is known to be gone. A write without a
        response is not repeated, because the token expires anyway. Never raises."""
        try:
            async with asyncio.timeout(self._patience):
                for delay in (*RETRY_AFTER_S, None):
                    try:
                        await self._return_once(token)
                        return True
                    except KubeConflict:
                        if delay is not None:
                            await asyncio.sleep(delay)
        except (KubeError, TimeoutError) as error:
            log.debug("a token of the eviction budget was not returned, it expires after a minute: %s", error)
        return False

    async def _take_once(self, nodes: int, now: float) -> EvictionToken | str:
        read = await self._client.get(CONFIG_MAPS, self._key)
        now -= self._client.ahead_s
        control = read_control(read.data)
        if control.enforcement is not EnforcementSwitch.ON:
            return f"{ENFORCEMENT} is {control.enforcement}"
        if why := refusal(control, node=self._node, nodes=nodes, now=now):
            return why
        recent = tuple(each for each in control.recent if abs(each.time - now) < KEPT_S)
        self._log_ahead(control.recent, now)
        token = next_token(recent, node=self._node, now=now)
        await self._write(read, (*recent, token))
        return token

    def _log_ahead(self, recent: tuple[EvictionToken, ...], now: float) -> None:
        """Log each node once whose tokens are ahead of the API server, while there are any."""
        ahead = {each.node: each.time - now for each in recent if each.time > now + AHEAD_S}
        for node in sorted(ahead.keys() - self._ahead):
            log.warning(
                "ignoring an eviction of node %s in the ConfigMap %s: its time is %.0f s ahead of the clock of the API "
                "server",
                node,
                self._key,
                ahead[node],
            )
        self._ahead = set(ahead)

    async def _return_once(self, token: EvictionToken) -> None:
        read = await self._client.get(CONFIG_MAPS, self._key)
        recent = read_control(read.data).recent
        if token in recent:
            await self._write(read, without(recent, token))

    async def _write(self, read: ConfigMap, recent: tuple[EvictionToken, ...]) -> None:
        """Write the tokens. Raises KubeConflict if the ConfigMap has changed since it was `read`."""
        change = {"metadata": {"resourceVersion": read.metadata.resource_version}, "data": {RECENT: _written(recent)}}
        await self._client.patch(CONFIG_MAPS, self._key, change, kind=PatchKind.MERGE, manager=MANAGER)

    async def _count(self, now: float) -> int:
        """Number of nodes in the cluster, cached for NODES_COUNTED_FOR_S; `now` in unix seconds."""
        if self._nodes is None or not 0 <= now - self._nodes[0] < NODES_COUNTED_FOR_S:
            self._nodes = (now, await self._client.count(NODES))
        return self._nodes[1]
