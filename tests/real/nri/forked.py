"""Managers that start in a tenth of a second, because their modules are imported before: for tests that kill hundreds.

`python -m tests.real.nri.forked` reads lines of JSON, [config file, log file], forks a `load-watcher qrm` for each, and
writes its process id.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.real.parts import REPOSITORY
from tests.waiting import wait_for


class ManagerForks:
    """Starts managers in processes of their own."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        command = [sys.executable, "-m", "tests.real.nri.forked"]
        self._parent = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=REPOSITORY
        )
        self._pids: set[int] = set()

    def start(self, config: Path, log: Path) -> int:
        """Start a manager on any free port; return its process id."""
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(json.dumps([str(config), str(log)]) + "\n")
        self._parent.stdin.flush()
        pid = int(self._parent.stdout.readline())
        self._pids.add(pid)
        return pid

    def kill(self, pid: int) -> None:
        """End a manager with SIGKILL, and wait for its end."""
        self._pids.discard(pid)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not Path(f"/proc/{pid}").exists(), what="the end of a manager")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pid in sorted(self._pids):
            self.kill(pid)
        self._parent.communicate()


def main() -> None:
    """Fork managers until the input ends."""
    from load_watcher.commands.qrm import settings_of
    from load_watcher.main import main as load_watcher

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for the forks
    warm = False
    for line in sys.stdin:
        config, log = json.loads(line)
        if not warm:
            settings_of({"config": Path(config), "assigned": ()})
            gc.freeze()  # no copies of pages in the forks
            warm = True
        pid = os.fork()
        if pid:
            print(pid, flush=True)
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.chdir(Path(config).parent)
        load_watcher(["qrm", "--host", "127.0.0.1", "--port", "0", "--config", config])


if __name__ == "__main__":
    main()
