"""What a fleet of agents and one service cost an API server.

    make fleet                                      # 2,000 agents, about seven minutes
    python -m benchmarks.fleet --agents 500 --seconds 30
    python -m benchmarks.fleet --sources api        # pods and policies from the API: one and three watches per agent

A real API server with its default limits serves one service, the agents' clients, and another client that lists nodes
and pods at a steady rate. The other client is measured without agents, with agents, and without agents again. The exit
code is 1 if a goal is missed, and 2 if the benchmark could not run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import pytest

from agent.state.own_node import REFRESH_S
from benchmarks.fleet.control_plane import AGENT, OTHER, SERVICE, ControlPlane, FleetService
from benchmarks.fleet.processes import CONTROL_PLANE, Fleet, OtherClient
from benchmarks.fleet.result import Phase, Result
from benchmarks.fleet.scrape import Scrape, use
from benchmarks.report import machine
from tests.modules.programs import kubernetes
from tests.real.kube import ApiServer, Etcd
from tests.real.parts import Server

ROLLOUT = 0.1
TIMEOUT_S = 180.0
NEW_NODE = "new-after-restart"
ServerT = TypeVar("ServerT", bound=Server)


class Run:
    """One run: the control plane, the other client, the service, and the fleet."""

    def __init__(self, options: argparse.Namespace, plane: ControlPlane, other: OtherClient, fleet: Fleet) -> None:
        self._options = options
        self._plane = plane
        self._other = other
        self._fleet = fleet
        self.result = Result(options.agents)

    def phases(self, service: Callable[[], FleetService]) -> None:
        """Measure every phase; `service` starts the service."""
        self._measured("without agents", agents=0)
        running = service()
        self._measured("start", self._start)
        self._measured("steady state")
        self._restart(running)
        self._measured("rollout of 10 %", self._replace)
        running.stop(TIMEOUT_S)  # a busy machine gives little time to its low priority
        self._fleet.do("stop")
        self._measured("without agents again", agents=0)

    def _measured(
        self, name: str, converge: Callable[[], tuple[float, int]] | None = None, *, agents: int | None = None
    ) -> None:
        """Measure a phase that lasts at least --seconds, and begins with what has to converge."""
        say(name)
        before = self._plane.scrape()
        began = time.time()
        converged = (None, 0) if converge is None else converge()
        time.sleep(max(0.0, began + self._options.seconds - time.time()))
        self._add(name, before, began, time.time(), agents=agents, converged=converged)

    def _add(
        self,
        name: str,
        before: Scrape,
        began: float,
        ended: float,
        *,
        agents: int | None = None,
        converged: tuple[float | None, int] = (None, 0),
        service: float | None = None,
    ) -> None:
        used = use(before, self._plane.scrape(), agents=AGENT[1], service=SERVICE[1])
        others = self._other.between(began, ended)
        count = self._options.agents if agents is None else agents
        seconds, synced = converged
        self.result.phases.append(Phase(name, count, used, others, synced, seconds, service))

    def _start(self) -> tuple[float, int]:
        began = time.monotonic()
        self._fleet.do("start", within=self._options.start)
        return self._fleet.wait_synced(began=began, since=began, timeout=TIMEOUT_S)

    def _replace(self) -> tuple[float, int]:
        began = time.monotonic()
        self._fleet.do("replace", share=ROLLOUT)
        return self._fleet.wait_synced(began=began, since=float("-inf"), timeout=TIMEOUT_S)

    def _restart(self, service: FleetService) -> None:
        """Restart the API server; the phase begins when it is ready again."""
        say("restart")
        launched, ready = self._plane.restart(outage=self._options.outage)
        before, began = self._plane.scrape(), time.time()
        self._plane.api.make("/api/v1/nodes", metadata={"name": NEW_NODE})
        current = service.wait_known(NEW_NODE, timeout=TIMEOUT_S) - ready
        converged = self._fleet.wait_synced(began=ready, since=launched, timeout=TIMEOUT_S)
        time.sleep(max(0.0, began + self._options.seconds - time.time()))
        self._add("restart", before, began, time.time(), converged=converged, service=current)


def say(phase: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {phase}", file=sys.stderr, flush=True)


def started(stack: ExitStack, server: ServerT) -> ServerT:
    """Start a server. It is killed with the stack: a slow end must not cost the result."""
    stack.callback(server.kill)
    server.start()
    return server


def run(options: argparse.Namespace) -> Result:
    """Run all phases."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="load-watcher-fleet-")))
        etcd = started(stack, Etcd(directory / "etcd"))
        api = started(stack, ApiServer(directory / "api", etcd))
        plane = ControlPlane(api, directory, nodes=options.agents, pods=options.agents * options.pods_per_node)
        say("objects")
        plane.fill()
        other = stack.enter_context(OtherClient(plane.kubeconfig(OTHER), directory, rate=options.rate))
        fleet = Fleet(
            plane.kubeconfig(AGENT),
            count=options.agents,
            processes=options.processes,
            seed=options.seed,
            sources=options.sources,
            evicting=options.evicting,
            refresh=options.refresh,
        )
        stack.callback(fleet.close)

        def service() -> FleetService:
            made = FleetService(directory / "service", plane.kubeconfig(SERVICE), nodes=options.agents)
            return started(stack, made)

        measured = Run(options, plane, other, fleet)
        measured.phases(service)
        return measured.result


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__.partition("\n")[0])
    parser.add_argument("--agents", type=int, default=2000, help="number of agents and of nodes (default: 2000)")
    parser.add_argument("--seed", type=int, default=1, help="seed of all random times (default: 1)")
    parser.add_argument("--seconds", type=float, default=60.0, help="shortest duration of a phase (default: 60)")
    parser.add_argument(
        "--sources",
        choices=("kubelet", "api"),
        default="kubelet",
        help="where the agents get pods and policies: from the kubelet and a file, as by default, or from the API",
    )
    parser.add_argument(
        "--evicting", type=float, default=0.05, help="share of agents that want to evict all the time (default: 0.05)"
    )
    parser.add_argument(
        "--refresh", type=float, default=REFRESH_S, help=f"seconds between two reads of a Node (default: {REFRESH_S:g})"
    )
    parser.add_argument("--pods-per-node", type=int, default=5, help="pods on each node (default: 5)")
    parser.add_argument("--rate", type=float, default=5.0, help="LISTs per second of the other client (default: 5)")
    parser.add_argument("--start", type=float, default=30.0, help="seconds within which the agents start (default: 30)")
    parser.add_argument("--outage", type=float, default=20.0, help="seconds without an API server (default: 20)")
    parser.add_argument("--processes", type=int, default=2, help="processes with agents (default: 2)")
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    if missing := kubernetes().missing:
        print(f"{', '.join(missing)} missing in {kubernetes().directory}: run make kubernetes", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))  # ends the processes as Ctrl-C does
    with contextlib.suppress(PermissionError):  # only root may
        os.setpriority(os.PRIO_PROCESS, 0, CONTROL_PLANE)
    try:
        result = run(options)
    except (Exception, pytest.fail.Exception):  # a server that does not start or stop in time fails a test
        traceback.print_exc()
        print("the benchmark was aborted: the cause is above", file=sys.stderr)
        return 2
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    result.notes.append(
        f"{machine()}; Kubernetes {kubernetes().version}. Everything ran on this machine: etcd, the API server and the "
        f"other client ({options.rate:g} LISTs of up to 500 objects per second) at nice {niceness}, the service and "
        f"the agents at nice {niceness + 15}."
    )
    print(result.tables())
    if options.json is not None:
        options.json.write_text(json.dumps(result.document(), indent=1) + "\n")
    return 0 if all(goal.reached for goal in result.goals()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
