"""A process with many agents, reduced to their requests to the Kubernetes API.

The clients are those of the agent itself: the Node object (agent/state/own_node.py), in enforcing agents the control
ConfigMap (agent/executor), and with the setting for it the pods and policies of the API. What does not reach the API
server is left out: the kubelet, cgroups, and the decisions.

Commands arrive as JSON lines on standard input, and each is answered by one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import sys
import time
from pathlib import Path
from typing import Any

from agent.executor.cluster import ClusterActions
from agent.metrics.registry import Metrics
from agent.policy.source import ClusterPolicies
from agent.service.custom_metrics import installed_metrics
from agent.service.dependencies import known_metrics
from agent.state.api_pods import InformerPods
from agent.state.own_node import OwnNode
from agent.state.readings import PodsUnknown
from watcher.core.kubernetes.objects import NODES
from watcher.core.kubernetes.wire import ItemT, Resource
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import KubeAccess, find_access

CYCLE_S = 10.0
"""The agent's default interval: an enforcing agent with a triggered rule reads the control ConfigMap once per cycle."""
CONTROL = "load-watcher-agent/agent-control"


class TimedClient(KubeClient):
    """A client that remembers when it last read the Node object."""

    read_at = float("-inf")

    async def get(self, resource: Resource[ItemT], key: str, *, cached: bool = False) -> ItemT:
        found = await super().get(resource, key, cached=cached)
        if resource.plural == NODES.plural:
            self.read_at = time.monotonic()
        return found


class FleetAgent:
    """The requests of one agent."""

    def __init__(
        self, access: KubeAccess, name: str, *, metrics: Metrics, refresh: float, from_api: bool, evicting: bool
    ) -> None:
        self._client = TimedClient(lambda: access)
        self._node = OwnNode(self._client, name, interval=refresh)
        self._pods = InformerPods(self._client, name) if from_api else None
        self._policies = ClusterPolicies(self._client, metrics=known_metrics(metrics)) if from_api else None
        self._cluster = ClusterActions(self._client, node=name, control=CONTROL, clock=time.time) if evicting else None
        self._cycles: asyncio.Task[None] | None = None

    async def start(self, *, chance: random.Random) -> None:
        """Start the sources, and the cycles of an evicting agent at a random time within a cycle."""
        for source in (self._node, self._pods, self._policies):
            if source is not None:
                await source.start()
        if self._cluster is not None:
            self._cycles = asyncio.create_task(self._evict(self._cluster, chance.uniform(0.0, CYCLE_S)))

    async def _evict(self, cluster: ClusterActions, delay: float) -> None:
        await asyncio.sleep(delay)
        while True:
            await cluster.controls.read()
            await cluster.controls.spend_token(now=time.time())
            await asyncio.sleep(CYCLE_S)

    async def is_synced(self, since: float) -> bool:
        """Whether the Node object was read, after `since` (monotonic), and every informer reports that it is up to
        date."""
        if self._client.read_at <= since:
            return False
        if self._pods is None or self._policies is None:
            return True
        try:
            self._pods.listing(monotonic=time.monotonic(), max_age=0.0)
        except PodsUnknown:
            return False
        return (await self._policies.refresh()).policies is not None

    async def close(self) -> None:
        if self._cycles is not None:
            self._cycles.cancel()
            await asyncio.gather(self._cycles, return_exceptions=True)
        for source in (self._node, self._pods, self._policies):
            if source is not None:
                await source.close()
        await self._client.close()


class FleetProcess:
    """The agents of the nodes `names`."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._chance = random.Random(f"{options.seed}/{options.first}")
        self._access = find_access(kubeconfig=options.kubeconfig, environ={})
        self._metrics = installed_metrics()
        self._names = [node_name(number) for number in range(options.first, options.first + options.count)]
        self._agents: dict[str, FleetAgent] = {}

    async def do(self, command: dict[str, Any]) -> dict[str, Any]:
        """Carry out a command and return its answer."""
        match command["do"]:
            case "start":
                within = command["within"]
                await asyncio.gather(*(self._begin(name, self._chance.uniform(0.0, within)) for name in self._names))
            case "replace":
                chosen = self._chance.sample(self._names, round(command["share"] * len(self._names)))
                await asyncio.gather(*(self._agents.pop(name).close() for name in chosen))
                await asyncio.gather(*(self._begin(name, 0.0) for name in chosen))
            case "stop":
                await asyncio.gather(*(agent.close() for agent in self._agents.values()))
                self._agents.clear()
        since = command.get("since", float("-inf"))
        synced = [await agent.is_synced(since) for agent in tuple(self._agents.values())]
        return {"agents": len(self._agents), "synced": sum(synced)}

    async def _begin(self, name: str, delay: float) -> None:
        await asyncio.sleep(delay)
        agent = FleetAgent(
            self._access,
            name,
            metrics=self._metrics,
            refresh=self._options.refresh,
            from_api=self._options.sources == "api",
            evicting=self._chance.random() < self._options.evicting,
        )
        self._agents[name] = agent
        await agent.start(chance=self._chance)


def node_name(number: int) -> str:
    """The name of a node of the cluster."""
    return f"node-{number:05d}"


async def serve(options: argparse.Namespace) -> None:
    """Carry out the commands on standard input until it ends."""
    process = FleetProcess(options)
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(await process.do(json.loads(line))), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet.agents")
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--first", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--sources", choices=("kubelet", "api"), required=True)
    parser.add_argument("--evicting", type=float, required=True)
    parser.add_argument("--refresh", type=float, required=True)
    logging.disable(logging.WARNING)  # each agent warns when the API server is away
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
