"""`load-watcher serve` in a process forked from one that has imported it: a start costs no second of imports."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any, cast

from tests.service import Service

IMPORTED = [
    "load_watcher.main",
    "load_watcher.commands.serve",
    "scorers.extender.service",
    "watcher.sources.influxdb.provider",
    "watcher.sources.metrics_server.provider",
    "watcher.sources.prometheus.provider",
    "watcher.service.main",
]
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.field.forked", *IMPORTED])


def _serve(arguments: Sequence[str], folder: Path, log: Path) -> None:
    """The forked process: run the command with its output in `log`."""
    os.chdir(folder)
    with log.open("ab") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    from load_watcher import main

    main.main(list(arguments), prog_name="load-watcher")


class _Process:
    """A forked process with what `Server` needs of a Popen."""

    def __init__(self, process: ForkServerProcess) -> None:
        self._process = process
        self.pid = process.pid
        self.terminate, self.kill = process.terminate, process.kill

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise TimeoutExpired("load-watcher serve", timeout or 0.0)
        return self._process.exitcode


class ForkedService(Service):
    """A `load-watcher serve` without the time of a new interpreter."""

    def launch(self) -> None:
        arguments = [str(each) for each in self.command()[3:]]
        process = _context.Process(target=_serve, args=(arguments, self.directory, self._log_path), daemon=True)
        process.start()
        self.process = cast(Any, _Process(process))
