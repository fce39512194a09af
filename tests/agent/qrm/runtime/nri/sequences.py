"""Random sequences of pods with one to three containers, in-place resizes, SIGKILL of the manager, restarts of the
runtime and resizes of pools in one event loop: exclusive CPUs stay disjoint, no container of an admitted pod has fewer
CPUs than it requests without a reason, and all containers are pinned in the end.

    python -m tests.agent.qrm.runtime.nri.sequences [--sequences N] [--seed TEXT] [--workers N] [--only NAME]

Manager, plug-ins, checkpoint and session are those of `load-watcher qrm`; the runtime is tests/fakes/nri_runtime.py. A
SIGKILL cancels all tasks of the manager and leaves the files. tests/real/nri/sequences.py does the same with processes
and containerd's runtime side. The exit status is 1 if there is a finding.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path

from agent import cpuset
from agent.qrm.pods import ROLE_ANNOTATION, PodContainer, QrmPod
from agent.qrm.runtime.nri.protos import qrm_nri_v1alpha1_pb2 as pb
from agent.qrm.runtime.nri.ttrpc import CallFailed
from tests.agent.qrm.runtime.nri.memory import GIB, MemoryManager, PodsCopy, node_loop
from tests.agent.qrm.runtime.nri.overlap import overlaps, shared_with
from tests.fakes.nri_runtime import MemoryRuntime

STEPS = 14
CHUNK = 100
SETTLE_S = 20.0
EXCLUSIVE = "storage-service"
ROLES = (EXCLUSIVE, EXCLUSIVE, EXCLUSIVE, "online-micro_service", "ETL")
SIZES = (8, 20, 40, 60)
"""Sizes of the online pool."""
TURNS = 150
"""Turns of the event loop within which a SIGKILL comes; the creation of a container takes about half as many."""
IN_MEMORY = Path("/dev/shm")


class Found(AssertionError):
    """A sequence has a result that must not be."""


@dataclass
class Life:
    """One sequence on a node with files in `directory`."""

    name: str
    directory: Path
    steps: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.name)
        self._roles: dict[str, str] = {}  # of the pods with a container, by UID
        self._ids: dict[str, dict[str, str]] = {}  # of their containers, by name
        self._made = 0
        self._copy = PodsCopy()
        self._runtime = MemoryRuntime(self.directory / "nri.sock")
        self._manager: MemoryManager | None = None

    async def run(self) -> None:
        """Run all steps. Raises Found."""
        await self._runtime.start()
        try:
            await self._start()
            for _ in range(STEPS):
                await self._random.choice(self._possible())()
                self._check_exclusive()
            await self._settle()
        finally:
            if self._manager is not None:
                await self._manager.kill()
            await self._runtime.stop()

    def _possible(self) -> list[Callable[[], Awaitable[None]]]:
        """Steps, more likely ones repeatedly."""
        steps = [self._create, self._create, self._create, self._restart_runtime]
        if self._roles:
            steps += [self._end, self._create_again, self._resize_pod, self._resize_pod]
        if self._manager is not None:
            return [*steps, self._resize, self._round, self._kill, self._kill_during]
        return [*steps, self._start, self._start]

    # --- steps --------------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        self.steps.append("start manager")
        self._manager = MemoryManager(self.directory, self._runtime.socket, self._copy)
        await self._manager.start()
        if self._random.random() < 0.8:
            await self._connected()

    async def _connected(self) -> None:
        until = time.monotonic() + SETTLE_S
        while self._runtime.plugin is None:
            if time.monotonic() > until:
                raise Found("the plug-in does not connect")
            await asyncio.sleep(0.001)

    async def _kill(self) -> None:
        self.steps.append("kill manager")
        assert self._manager is not None
        await self._manager.kill()
        self._manager = None

    async def _kill_during(self) -> None:
        """SIGKILL while a container is created."""
        turns = self._random.randint(0, TURNS)
        self.steps.append(f"kill during (turn {turns})")
        creating = asyncio.create_task(self._create())
        for _ in range(turns):
            await asyncio.sleep(0)
        assert self._manager is not None
        await self._manager.kill()
        self._manager = None
        await creating

    async def _create(self) -> None:
        self._made += 1
        uid, role = f"pod-{self._made}", self._random.choice(ROLES)
        cpus = [self._random.randint(1, 8) for _ in range(self._random.choice((1, 1, 2, 3)))]
        if self._random.random() < 0.1:
            cpus[-1] = self._random.choice((30, 60, 100))
        self.steps.append(f"create {self._made} {role} {cpus}")
        containers = tuple(_container(f"container{at}", size) for at, size in enumerate(cpus))
        pod = QrmPod(uid, "default", uid, annotations={ROLE_ANNOTATION: role}, containers=containers)
        if self._random.random() < 0.8:
            self._copy.known[uid] = pod
        self._round_meanwhile()
        sandbox = pb.PodSandbox(id=uid, uid=uid, name=uid, namespace="default")
        try:
            await self._runtime.run_pod(sandbox)
            self._roles[uid], self._ids[uid] = role, {}
            for each in containers:
                await self._runtime.create(sandbox, self._runtime_container(uid, each.name, f"{uid}-{each.name}-"))
                self._ids[uid][each.name] = f"{uid}-{each.name}-"
                self._copy.known[uid] = pod
        except CallFailed as error:
            self.steps.append(f"refused {error}")
            await self._forget(uid)

    def _runtime_container(self, uid: str, name: str, id: str) -> pb.Container:
        return pb.Container(id=id, pod_sandbox_id=uid, name=name)

    async def _create_again(self) -> None:
        """A container ends, and another one with its name, and perhaps its id, starts in the same pod."""
        uid = self._random.choice(sorted(self._roles))
        name = self._random.choice(sorted(self._ids[uid]))
        self.steps.append(f"restart container {uid}/{name}")
        self._round_meanwhile()
        id = self._ids[uid].pop(name)
        await self._runtime.end(id)
        if self._random.random() < 0.5:
            id += "0"
        try:
            await self._runtime.create(self._runtime.pods[uid], self._runtime_container(uid, name, id))
            self._ids[uid][name] = id
        except CallFailed as error:
            self.steps.append(f"refused {error}")
            await self._forget(uid)

    async def _resize_pod(self) -> None:
        """The API has new requests before or after the runtime updates the container."""
        uid = self._random.choice(sorted(self._roles))
        name, cpus = self._random.choice(sorted(self._ids[uid])), self._random.choice((1, 2, 5, 12, 30, 100))
        first = self._random.random() < 0.8
        self.steps.append(f"resize {uid}/{name} to {cpus}{'' if first else ', later in the API'}")
        pod = self._copy.known[uid]
        containers = tuple(_container(name, cpus) if each.name == name else each for each in pod.containers)
        if first:
            self._copy.known[uid] = replace(pod, containers=containers)
        self._round_meanwhile()
        await self._runtime.update(self._ids[uid][name])
        self._copy.known[uid] = replace(pod, containers=containers)

    async def _end(self) -> None:
        uid = self._random.choice(sorted(self._roles))
        self.steps.append(f"end {uid}")
        self._round_meanwhile()
        await self._forget(uid)

    async def _forget(self, uid: str) -> None:
        for id in self._ids.get(uid, {}).values():
            if id in self._runtime.containers:
                await self._runtime.end(id)
        await self._runtime.end_pod(uid)
        self._copy.known.pop(uid, None)
        self._roles.pop(uid, None)
        self._ids.pop(uid, None)

    async def _resize(self) -> None:
        size = self._random.choice(SIZES)
        self.steps.append(f"resize {size}")
        assert self._manager is not None
        await self._manager.resize(size)

    async def _round(self) -> None:
        self.steps.append("round")
        assert self._manager is not None
        await self._manager.rounds.round()

    def _round_meanwhile(self) -> None:
        if self._manager is not None and self._random.random() < 0.5:
            self._manager.begin(self._manager.rounds.round())

    async def _restart_runtime(self) -> None:
        lost = [uid for uid in sorted(self._roles) if self._random.random() < 0.2]
        self.steps.append(f"restart runtime, lost {lost}")
        await self._runtime.restart(lost=[id for uid in lost for id in self._ids[uid].values()])
        for uid in lost:
            await self._forget(uid)

    # --- checks -------------------------------------------------------------------------------------------------------

    def _given(self) -> dict[tuple[str, str], str]:
        return {(uid, name): self._runtime.cpus(id) for uid, ids in self._ids.items() for name, id in ids.items()}

    def _exclusive(self) -> dict[tuple[str, str], str]:
        return {key: cpus for key, cpus in self._given().items() if self._roles[key[0]] == EXCLUSIVE}

    def _check_exclusive(self) -> None:
        """Exclusive CPUs are disjoint after each step; containers that started unpinned have none yet."""
        if shared := overlaps(self._exclusive()):
            raise Found(f"exclusive CPUs are shared: {shared}")

    async def _settle(self) -> None:
        """With a manager, rounds pin all containers, and pools have no exclusive CPUs."""
        if self._manager is None:
            await self._start()
        until = time.monotonic() + SETTLE_S
        while not await self._settled():
            if time.monotonic() > until:
                raise Found(f"not all containers are pinned: {self._given()}; {self._wanted()}; {self._unmet()}")
            await asyncio.sleep(0.001)

    async def _settled(self) -> bool:
        assert self._manager is not None
        await self._connected()
        await self._manager.rounds.round()
        self._check_exclusive()
        given, exclusive = self._given(), self._exclusive()
        pools = {key: cpus for key, cpus in given.items() if key not in exclusive}
        return given == self._wanted() and not shared_with(pools, exclusive) and not self._unmet()

    def _unmet(self) -> str:
        """What is wrong, for example while an admission is under way: each container has the CPUs that it requests, or
        a reason; of a pod, all containers have CPUs or none."""
        assert self._manager is not None
        manager, wanted = self._manager.manager, self._wanted()
        for uid, ids in self._ids.items():
            asked = {each.name: each.requests["cpu"] for each in self._copy.known[uid].containers}
            has = {name: len(cpuset.parse(wanted[uid, name])) for name in ids}
            if any(has.values()) != all(has.values()):
                return f"only some containers of {uid} have CPUs: {has}"
            few = [name for name in ids if 0 < has[name] < asked[name] and not manager.missing(uid, name)]
            many = [name for name in ids if self._roles[uid] == EXCLUSIVE and has[name] > asked[name]]
            if few or many:
                return f"{uid} requests {asked} and has {has}"
        return ""

    def _wanted(self) -> dict[tuple[str, str], str]:
        """The CPUs that the manager has allocated; "" for an inadmissible pod."""
        assert self._manager is not None
        properties = self._manager.manager.properties
        return {key: str(properties(*key).get("CpusetCpus", "")) for key in self._given()}


def _container(name: str, cpus: int) -> PodContainer:
    return PodContainer(name, {"cpu": float(cpus), "memory": float(GIB)})


@contextmanager
def without_log() -> Iterator[None]:
    """Without the errors that faults cause."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(before)


def check(names: Sequence[str]) -> tuple[list[str], Counter[str]]:
    """Run sequences; return the findings and the number of steps by kind."""
    findings, steps = [], Counter[str]()
    for name in names:
        where = IN_MEMORY if IN_MEMORY.is_dir() else None
        with without_log(), tempfile.TemporaryDirectory(prefix="nri-", dir=where) as directory:
            life = Life(name, Path(directory))
            try:
                with node_loop() as runner:
                    runner.run(life.run())
            except Found as error:
                findings.append(f"{name}: {error}\n  {'; '.join(life.steps)}")
            steps.update(" ".join(step.split()[:1]) for step in life.steps)
    return findings, steps


def run_checks(
    check: Callable[[Sequence[str]], tuple[list[str], Counter[str]]],
    arguments: Sequence[str] | None,
    *,
    prog: str,
    sequences: int,
    workers: int,
) -> int:
    """Run sequences in processes; return the exit status. `sequences` and `workers` are the defaults."""
    parser = argparse.ArgumentParser(prog=prog)
    parser.add_argument("--sequences", type=int, default=sequences, help="number of sequences (default: %(default)s)")
    parser.add_argument("--seed", default="1", help="seed of the sequences (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=workers, help="number of nodes at a time")
    parser.add_argument("--only", help="run only this sequence, for example 1/17")
    options = parser.parse_args(arguments)
    names = [options.only] if options.only else [f"{options.seed}/{number}" for number in range(options.sequences)]
    began, found, counts = time.perf_counter(), 0, Counter[str]()
    chunks = [names[at : at + CHUNK] for at in range(0, len(names), CHUNK)]
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        for chunk, (findings, steps) in zip(chunks, pool.map(check, chunks), strict=True):
            found += len(findings)
            counts.update(steps)
            print("\n".join([*findings, f"{chunk[0]} to {chunk[-1]}: {len(findings)} findings"]), flush=True)
    counted = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    print(f"{len(names)} sequences ({counted}) in {time.perf_counter() - began:.0f} s: {found} findings")
    return 1 if found else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run sequences; return the exit status."""
    prog = "python -m tests.agent.qrm.runtime.nri.sequences"
    return run_checks(check, arguments, prog=prog, sequences=10_000, workers=os.cpu_count() or 1)


if __name__ == "__main__":
    sys.exit(main())
