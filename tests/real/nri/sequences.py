"""Random sequences of pods, SIGKILL of the manager, restarts of the runtime and resizes of pools, against
containerd/nri's runtime side: exclusive CPUs stay disjoint, and all containers are pinned in the end.

    python -m tests.real.nri.sequences [--sequences N] [--seed TEXT] [--workers N] [--only NAME]

The exit status is 1 if there is a finding. A finding names its sequence and its steps; `--only NAME` runs it again.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests

from tests.agent.qrm.runtime.nri.overlap import overlaps, shared_with
from tests.agent.qrm.runtime.nri.sequences import Found, run_checks, without_log
from tests.agent.qrm.test_main import NODE, RESERVED
from tests.fakes.service import FakeService, Live
from tests.fakes.snapshots import publish, snapshot_of, steady
from tests.real.nri.forked import ManagerForks
from tests.real.nri.node import NriNode, container_id, container_name, nri_node
from tests.real.nri.runtime import Refused
from tests.waiting import PATIENCE_SECONDS, SHORTEST_PAUSE_SECONDS
from watcher.core.publishing.documents import Published

STEPS = 14
SETTLE_S = 30.0
EXCLUSIVE = "storage-service"
ROLES = (EXCLUSIVE, EXCLUSIVE, EXCLUSIVE, "online-micro_service", "ETL")
PERIOD = "100ms"
LINES = ('adjust_interval = "100ms"', "step_down = 0", 'min_down_period = "0s"')
LISTENS = re.compile(rb"load-watcher qrm listens on (\S+)\n")
LOADS = (5.0, 26.25, 60.0, 95.0)
"""Load of the node in percent; each leads to other pools."""


@dataclass
class ProcessLife:
    """One sequence on a node of its own directory. `load` sets the load of the node."""

    name: str
    node: NriNode
    forks: ManagerForks
    watcher: str
    load: Callable[[float], None]
    steps: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.name)
        self._pods: dict[str, str] = {}  # roles by UID, of the pods whose containers were created
        self._cpus: dict[str, list[int]] = {}  # requests of their containers
        self._made = 0
        self._pid: int | None = None
        self._url = ""
        self._http = requests.Session()
        self._http.trust_env = False
        self._config = self.node.directory / self.name.replace("/", "-") / "settings.toml"
        self._log = self._config.with_suffix(".log")
        self._logged = 0  # bytes of earlier managers

    def run(self) -> None:
        """Run all steps. Raises Found."""
        self._config.parent.mkdir()
        with self.node.runtime() as self._runtime:
            try:
                self._start()
                for _ in range(STEPS):
                    self._random.choice(self._possible())()
                    self._check_exclusive()
                self._settle()
            finally:
                self._stop()
                for uid in list(self._pods):
                    self.node.delete(self._pod(uid))
                self._http.close()
                shutil.rmtree(self._config.parent)

    def _possible(self) -> list[Callable[[], None]]:
        """Steps, more likely ones repeatedly."""
        steps = [self._create, self._create, self._create, self._resize, self._restart_runtime]
        if self._pods:
            steps += [self._end, self._create_again, self._resize_pod, self._resize_pod]
        if self._pid is not None:
            return [*steps, self._kill, self._kill_meanwhile]
        return [*steps, self._start, self._start]

    # --- steps --------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self.steps.append("start manager")
        lines = (RESERVED, *LINES, f'watcher = "{self.watcher}"')
        self._config.write_text(self.node.settings(*lines, period=PERIOD))
        self._log.touch()
        self._url, self._logged = "", self._log.stat().st_size
        self._pid = self.forks.start(self._config, self._log)
        if self._random.random() < 0.8:
            self._await(lambda: self._runtime.plugins > 0, "the plug-in")

    def _kill(self) -> None:
        self.steps.append("kill manager")
        assert self._pid is not None
        self.forks.kill(self._pid)
        self._pid = None

    def _stop(self) -> None:
        if self._pid is not None:
            self.forks.kill(self._pid)

    def _kill_meanwhile(self) -> None:
        """SIGKILL while a container is created, after a random time."""
        self.steps.append("kill during")
        assert self._pid is not None
        timer = threading.Timer(self._random.uniform(0, 0.03), self.forks.kill, [self._pid])
        self._create(meanwhile=timer.start)
        timer.join()
        self._pid = None

    def _create(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self._made += 1
        uid = f"{self._made:08d}-{zlib.crc32(self.name.encode()) % 10**4:04d}-4000-8000-000000000000"
        role = self._random.choice(ROLES)
        self._cpus[uid] = [self._random.randint(1, 8) for _ in range(self._random.choice((1, 1, 2, 3)))]
        self.steps.append(f"create {self._made} {role} {self._cpus[uid]}")
        self._put(uid, role)
        if self._pid is not None and self._random.random() < 0.8:
            self._await(lambda: self._knows(uid), "the pod to be known", fatal=False)
        meanwhile()
        try:
            self.node.create(self._runtime, self._pod(uid), uid)
            self._pods[uid] = role
            for at in range(1, len(self._cpus[uid])):
                self._runtime.create(uid, container_id(uid, at), container_name(at))
        except Refused:
            self.steps.append("refused")
            self._forget(uid)

    def _put(self, uid: str, role: str) -> None:
        """Put a pod with the requests of its containers into the API server."""
        self.node.pending(self._pod(uid), uid, role, cpu=" ".join(map(str, self._cpus[uid])))

    def _resize_pod(self) -> None:
        """The API has new requests, then the runtime updates the container as the kubelet asks for."""
        uid = self._random.choice(sorted(self._pods))
        at, cpus = self._random.randrange(len(self._cpus[uid])), self._random.choice((1, 2, 5, 12, 30, 100))
        self.steps.append(f"resize {uid[:8]}/{at} to {cpus}")
        self._cpus[uid][at] = cpus
        self._put(uid, self._pods[uid])
        self._runtime.update(container_id(uid, at), {"cpu": {"shares": cpus * 1024}})

    def _create_again(self) -> None:
        """A container ends, and another one with its name starts in the same pod."""
        uid = self._random.choice(sorted(self._pods))
        at = self._random.randrange(len(self._cpus[uid]))
        self.steps.append(f"restart container {uid[:8]}/{at}")
        self._runtime.end(container_id(uid, at))
        with suppress(Refused):
            self._runtime.create(uid, container_id(uid, at), container_name(at))
            return
        self._forget(uid)

    def _end(self) -> None:
        uid = self._random.choice(sorted(self._pods))
        self.steps.append(f"end {uid[:8]}")
        self._forget(uid)

    def _forget(self, uid: str) -> None:
        for id in self._ids(uid).values():
            with suppress(Refused):  # it does not exist
                self._runtime.end(id)
        with suppress(Refused):
            self._runtime.end_pod(uid)
        self.node.delete(self._pod(uid))
        self._pods.pop(uid, None)

    def _ids(self, uid: str) -> dict[str, str]:
        """The ids of the containers of a pod, by name."""
        return {container_name(at): container_id(uid, at) for at in range(len(self._cpus[uid]))}

    def _resize(self) -> None:
        load = self._random.choice(LOADS)
        self.steps.append(f"load {load}")
        self.load(load)

    def _restart_runtime(self) -> None:
        lost = [uid for uid in sorted(self._pods) if self._random.random() < 0.2]
        self.steps.append(f"restart runtime, lost {[uid[:8] for uid in lost]}")
        self._runtime.restart(lost=[id for uid in lost for id in self._ids(uid).values()])
        for uid in lost:
            self._forget(uid)

    # --- checks -------------------------------------------------------------------------------------------------------

    def _check_exclusive(self) -> None:
        """Exclusive CPUs are disjoint after each step; containers that started unpinned have none yet."""
        if shared := overlaps(self._exclusive()):
            raise Found(f"exclusive CPUs are shared: {shared}")

    def _exclusive(self) -> dict[str, str]:
        given = self._runtime.cpusets()
        return {
            id: given[id] for uid, role in self._pods.items() if role == EXCLUSIVE for id in self._ids(uid).values()
        }

    def _settle(self) -> None:
        """With a manager, all containers are pinned, and pools have no exclusive CPUs."""
        if self._pid is None:
            self._start()
        self._await(self._settled, "all containers to be pinned")
        self._check_exclusive()

    def _settled(self) -> bool:
        """Whether each container has what the manager allocated. A pod may be inadmissible, or run without CPUs that no
        pool has; those have nothing that others have exclusively."""
        self._check_exclusive()
        state, given = self._state(), self._runtime.cpusets()
        pods = {pod["uid"]: pod for pod in state.get("pods", [])}
        if not self._pods.keys() <= pods.keys():
            return False
        wanted = {id: _allocated(pods[uid], name) for uid in self._pods for name, id in self._ids(uid).items()}
        return all(given[id] == cpus for id, cpus in wanted.items()) and self._apart()

    def _apart(self) -> bool:
        """Whether no pool has exclusive CPUs."""
        exclusive, given = self._exclusive(), self._runtime.cpusets()
        ids = (id for uid in self._pods for id in self._ids(uid).values())
        pools = {id: given[id] for id in ids if id not in exclusive}
        return not shared_with(pools, exclusive)

    # --- waiting ------------------------------------------------------------------------------------------------------

    def _pod(self, uid: str) -> str:
        return f"default/pod-{uid[:13]}"

    def _knows(self, uid: str) -> bool:
        return any(pod["uid"] == uid for pod in self._state().get("pods", []))

    def _state(self) -> dict[str, Any]:
        """What the manager says; empty while it does not answer."""
        if not self._url:
            listens = LISTENS.search(self._log.read_bytes(), self._logged)
            if listens is None:
                return {}
            self._url = listens[1].decode()
        try:
            found: dict[str, Any] = self._http.get(f"{self._url}/qrm", timeout=PATIENCE_SECONDS).json()
        except requests.RequestException:
            return {}
        return found

    def _check_alive(self) -> None:
        if self._pid is not None and not Path(f"/proc/{self._pid}").exists():
            raise Found(f"the manager has ended: {self._log.read_text()[-1000:]}")

    def _await(self, condition: Callable[[], bool], what: str, *, fatal: bool = True) -> None:
        until = time.monotonic() + (SETTLE_S if fatal else 2.0)
        while not condition():
            self._check_alive()
            if time.monotonic() > until:
                if fatal:
                    raise Found(f"waited {SETTLE_S:g} s for {what}: {self._runtime.cpusets()}; {self._state()}")
                return
            time.sleep(SHORTEST_PAUSE_SECONDS)


def _allocated(pod: Mapping[str, Any], container: str) -> str:
    """The CPUs of a container in the manager's state, "" without an allocation."""
    return str(pod["containers"][container].get("cpu", {}).get("allocation_result", ""))


class Checked:
    """Runs sequences, and keeps the findings."""

    def __init__(self) -> None:
        self.findings: list[str] = []
        self.steps: Counter[str] = Counter()

    def run(self, names: Sequence[str]) -> None:
        """Run the sequences with these names."""
        service = FakeService(published=_at(LOADS[0]))

        def load(percent: float) -> None:
            service.published = _at(percent)

        with nri_node() as node, ManagerForks() as forks, Live(service) as live:
            for name in names:
                sequence = ProcessLife(name, node, forks, f"http://127.0.0.1:{live.port}", load)
                try:
                    sequence.run()
                except Found as error:
                    self.findings.append(f"{name}: {error}\n  {'; '.join(sequence.steps)}")
                self.steps.update(step.split()[0] for step in sequence.steps)


def _at(percent: float) -> Published:
    return publish(snapshot_of({NODE: {"CPU": steady(percent), "Memory": steady(40)}}))


def check(names: Sequence[str]) -> tuple[list[str], Counter[str]]:
    """Run sequences on a node of their own; return the findings and the number of steps by kind."""
    checked = Checked()
    with without_log():  # killed managers do not end their watches
        checked.run(names)
    return checked.findings, checked.steps


def main(arguments: Sequence[str] | None = None) -> int:
    """Run sequences; return the exit status."""
    prog, workers = "python -m tests.real.nri.sequences", 2 + (os.cpu_count() or 1)
    return run_checks(check, arguments, prog=prog, sequences=1000, workers=workers)


if __name__ == "__main__":
    sys.exit(main())
