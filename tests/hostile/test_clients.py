"""Each outbound client against each hostile response, in a process with the memory limit that the manifests ship."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.hostile import TOKEN
from tests.hostile.clients import CLIENTS
from tests.hostile.server import HOSTILITIES, MIB, WAITING, HostileServer
from tests.real.memory_limit import MemoryLimit
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[2]
OF_AGENT = {"node", "kubelet", "agent query"}
LIMITS = {True: 192 * MIB, False: 512 * MIB}
"""Bytes, as in deploy/agent/daemonset.yaml and deploy/base/deployment.yaml."""
TAKEN = {True: 30 * MIB, False: 100 * MIB}
"""Bytes that agent and service need besides their clients; the process here gets that much less."""
LOG_LINES = 3
USED_ADDRESS = "using the Kubernetes API at"
"""Part of a line that is logged once, with the first request."""
ALL = os.environ.get("LOAD_WATCHER_HOSTILE") == "all"
"""Set by `make hostile`. Otherwise the responses that end by a timeout are left out; the timeouts of the clients have
tests of their own. The clients that share their reading with another client get only the responses in `FEW`."""
SHARED = {"influxql", "influxdb", "metrics-server", "agent usage", "compare", "score", "why", "shadow", "doctor"}
FEW = {
    "bomb",
    "broken gzip",
    "deep object",
    "echo",
    "empty",
    "empty object",
    "endless error",
    "endless spaces",
    "many objects",
    "other object",
    "page",
    "redirect",
}
LOG_CHARACTERS = 2_000


def chosen(name: str) -> list[str]:
    """The responses for a client."""
    if ALL:
        return sorted(HOSTILITIES)
    return sorted(FEW if name in SHARED else HOSTILITIES.keys() - WAITING)


@pytest.mark.parametrize("name", CLIENTS)
def test_a_hostile_response_is_an_error_and_costs_neither_the_process_nor_the_token(tmp_path: Path, name: str):
    of_agent = name in OF_AGENT
    limit = LIMITS[of_agent] - TAKEN[of_agent]
    with HostileServer() as server, MemoryLimit(limit) as group, (tmp_path / "log").open("w+") as log:
        command = group.command(sys.executable, "-m", "tests.hostile.clients", name, server.url, str(tmp_path))
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "NO_COLOR": "1"}
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment, text=True
        )
        try:
            assert read(process) == "ready"
            for hostility in chosen(name):
                server.hostility, before = hostility, server.asked
                assert process.stdin is not None
                process.stdin.write(f"{hostility}\n")
                process.stdin.flush()
                said = read(process)
                assert said is not None, (
                    f"{hostility} ended the process ({process.wait()}, peak {group.peak >> 20} MiB):\n{tail(log)}"
                )
                assert server.asked > before, f"{hostility}: the client sent no request"
                assert TOKEN not in said
            assert server.elsewhere == 0, "a redirect was followed"
            assert process.stdin is not None
            process.stdin.close()  # the end of its work
            assert process.wait(PATIENCE_SECONDS) == 0
        finally:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        check(tail(log, whole=True), chosen(name))


def read(process: subprocess.Popen[str]) -> str | None:
    """The next answer, None if the process has ended."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], PATIENCE_SECONDS)
    assert ready, "no answer in time"
    line = process.stdout.readline()
    return str(json.loads(line)) if line else None


def check(log: str, hostilities: Sequence[str]) -> None:
    """Few short lines for each hostility, without a traceback and the token."""
    assert TOKEN not in log
    assert "Traceback" not in log
    parts = re.split(rf"^(?:{'|'.join(hostilities)})$", log, flags=re.MULTILINE)
    for part, hostility in zip(parts, hostilities, strict=False):
        lines = [line for line in part.strip().splitlines() if USED_ADDRESS not in line]
        assert len(lines) <= LOG_LINES, (hostility, lines[:10])
        assert len(part) <= LOG_CHARACTERS, (hostility, part[:1000])


def tail(log: object, *, whole: bool = False) -> str:
    text = Path(log.name).read_text()  # type: ignore[attr-defined]
    return text if whole else text[-3000:]
