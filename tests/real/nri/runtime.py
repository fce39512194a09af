"""Drives tests/modules/nri-runtime, the runtime side of NRI: pods, containers with OCI specs, faults and restarts."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from tests.modules import programs
from tests.waiting import PATIENCE_SECONDS, wait_for

END_S = 10.0


class Refused(Exception):
    """The runtime refuses a request: its error, as the kubelet gets it."""


@dataclass(frozen=True, slots=True)
class Done:
    """An answer. `ms` is the time of the request to the plug-ins; `spec` is the OCI spec of the container, `updates`
    maps other containers to the resources that the plug-ins set."""

    ms: float
    spec: Mapping[str, Any]
    updates: Mapping[str, Mapping[str, Any]]
    raw: Mapping[str, Any]

    @property
    def cpus(self) -> str:
        """cpuset.cpus of the container, "" if it is not set."""
        return str(_cpu(self.spec).get("cpus", ""))

    @property
    def mems(self) -> str:
        """cpuset.mems of the container, "" if it is not set."""
        return str(_cpu(self.spec).get("mems", ""))

    @property
    def env(self) -> dict[str, str]:
        """The environment of the container."""
        return dict(each.split("=", 1) for each in self.spec["process"]["env"])

    @property
    def annotations(self) -> dict[str, str]:
        """The annotations of the container."""
        return dict(self.spec.get("annotations") or {})


def _cpu(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = spec.get("linux", {}).get("resources", {}).get("cpu", {})
    return found


def oci_spec(**more: Any) -> dict[str, Any]:
    """The spec of a container before the plug-ins change it."""
    process = {"cwd": "/", "args": ["/bin/app"], "env": ["PATH=/bin"], "user": {"uid": 0, "gid": 0}}
    resources = {"cpu": {"shares": 1024, "period": 100_000}, "memory": {"limit": 1 << 30}}
    return {"ociVersion": "1.2.0", "process": process, "linux": {"resources": resources}, **more}


def find_nri_runtime() -> Path:
    """The program; without it the test is skipped, or fails under LOAD_WATCHER_REQUIRE_REAL."""
    module = programs.nri_runtime()
    if not module.missing:
        return module.directory / "nri-runtime"
    reason = f"{module.directory / 'nri-runtime'} is missing: run scripts/go-programs nri-runtime"
    if os.environ.get("LOAD_WATCHER_REQUIRE_REAL") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


class NriRuntime:
    """A runtime that listens for plug-ins at `socket`, from its start to the end of the `with` block.

    `required` are plug-ins without which the default validator refuses containers, except those with the annotation
    `tolerate`; `timeout` is in seconds.
    """

    def __init__(
        self,
        socket: Path,
        *,
        required: Sequence[str] = (),
        tolerate: str = "",
        timeout: float = 2.0,
        program: Path | None = None,
    ) -> None:
        self.socket = socket
        self.events: list[Mapping[str, Any]] = []
        """What happened without a request: plug-ins that came or went, and updates that they asked for."""
        self.builtin = 1 if required else 0
        """Plug-ins of the runtime itself."""
        self._program = program or find_nri_runtime()
        self._flags = [f"-socket={socket}", f"-timeout={timeout}s", f"-required={','.join(required)}"]
        self._flags.append(f"-tolerate={tolerate}")
        self._log = socket.with_suffix(".log")
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()
        self._reader = threading.Thread()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self, state: Mapping[str, Any] | None = None) -> None:
        """Start with the pods and containers of `state`, by default none."""
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [str(self._program), *self._flags],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._answers = queue.SimpleQueue()
        arguments = (self._process, self._answers, self.events)
        self._reader = threading.Thread(target=_read, args=arguments, daemon=True)
        self._reader.start()
        given = state or {}
        self.ask("load", pods=given.get("pods", []), containers=given.get("containers", []))

    def kill(self) -> None:
        """End the process with SIGKILL, as in a restart of containerd: containers keep running."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait(END_S)
        self._reader.join(END_S)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self._process = None

    def restart(self, *, lost: Sequence[str] = ()) -> None:
        """Kill it and start it with the same pods and containers, without the containers `lost`, which have ended."""
        state = dict(self.ask("dump"))
        state["containers"] = [each for each in state.get("containers", []) if each["id"] not in lost]
        self.kill()
        self.events.clear()
        self.start(state)

    def ask(self, do: str, **fields: Any) -> Mapping[str, Any]:
        """Send a command; return the answer. Raises Refused."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **fields}) + "\n")
        self._process.stdin.flush()
        answer = self._answers.get(timeout=PATIENCE_SECONDS)
        if answer is None:
            raise AssertionError(f"the runtime has ended: {self.log()[-3000:]}")
        if error := answer.get("error"):
            raise Refused(error)
        return answer

    def log(self) -> str:
        """What the library says about plug-ins."""
        return self._log.read_text(errors="replace")

    # --- pods and containers ------------------------------------------------------------------------------------------

    def run_pod(self, name: str, uid: str, **more: Any) -> None:
        """Run the sandbox of a pod; its id is its UID. Raises Refused."""
        namespace, _, short = name.rpartition("/")
        pod = {"id": uid, "uid": uid, "name": short, "namespace": namespace or "default", **more}
        self.ask("run pod", pod=pod)

    def create(
        self, uid: str, id: str, name: str = "container0", spec: Mapping[str, Any] | None = None, **more: Any
    ) -> Done:
        """Create and start a container in the pod `uid`. Raises Refused."""
        made = {"id": id, "pod": uid, "name": name, "spec": spec or oci_spec(), **more}
        return _done(self.ask("create", container=made))

    def update(self, id: str, resources: Mapping[str, Any]) -> Done:
        """Ask for other resources as the kubelet does. Raises Refused."""
        return _done(self.ask("update", id=id, resources=resources))

    def end(self, id: str) -> Done:
        """Stop and remove a container."""
        stopped = self.ask("stop", id=id)
        self.ask("remove", id=id)
        return _done(stopped)

    def end_pod(self, uid: str) -> None:
        """Stop and remove the sandbox of a pod."""
        self.ask("stop pod", id=uid)
        self.ask("remove pod", id=uid)

    def containers(self) -> dict[str, Done]:
        """All containers by id, with the specs that their creation and later updates left."""
        found = self.ask("dump").get("containers", [])
        return {each["id"]: Done(0.0, each["spec"], {}, each) for each in found}

    def cpusets(self) -> dict[str, str]:
        """cpuset.cpus of each container, "" without."""
        return {id: each.cpus for id, each in self.containers().items()}

    # --- plug-ins -----------------------------------------------------------------------------------------------------

    @property
    def plugins(self) -> int:
        """How many plug-ins of others are connected, as of the last request."""
        counts = [event["count"] for event in list(self.events) if event["event"] == "plugins"]
        return (counts[-1] if counts else 0) - self.builtin

    def wait_for_plugin(self, what: str = "the plug-in to connect") -> None:
        """Wait until a plug-in is connected that knows all containers."""
        wait_for(lambda: self.plugins > 0, what=what)

    def asked(self) -> list[dict[str, Mapping[str, Any]]]:
        """The updates that the plug-in asked for without a request, in order, each by container."""
        return [_updates(event) for event in list(self.events) if event["event"] == "update"]


def _read(
    process: subprocess.Popen[str],
    answers: queue.SimpleQueue[Mapping[str, Any] | None],
    events: list[Mapping[str, Any]],
) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        value = json.loads(line)
        if "event" in value:
            events.append(value)
        else:
            answers.put(value)
    answers.put(None)


def _done(answer: Mapping[str, Any]) -> Done:
    return Done(answer["ms"], answer.get("container", {}).get("spec", {}), _updates(answer), answer)


def _updates(answer: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {each["id"]: each["resources"] for each in answer.get("updates", [])}
