"""Another client of the API server: lists nodes and pods in turn at a steady rate, 500 objects at a time as kubectl
does, and prints the time of the request, its status (0 for none), and its latency as a JSON line each.

The requests are sent at fixed times: a request that waits for the previous one counts from the time at which it was
due.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import time
from pathlib import Path

import aiohttp

from watcher.platform.kube.credentials import find_access
from watcher.platform.net.session import client_session

PATHS = ("/api/v1/nodes?limit=500", "/api/v1/pods?limit=500")
TIMEOUT_S = 60.0


async def probe(kubeconfig: Path, *, rate: float) -> None:
    """List `rate` times per second until the process is ended."""
    access = find_access(kubeconfig=kubeconfig, environ={})
    headers = {**await access.headers(), "Accept": "application/json"}
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with client_session(tls=access.tls, headers=headers, timeout=timeout) as session:
        due = time.time()
        tasks: set[asyncio.Task[None]] = set()
        for path in itertools.cycle(PATHS):
            task = asyncio.create_task(ask(session, access.server + path, due=due))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            due += 1.0 / rate
            await asyncio.sleep(max(0.0, due - time.time()))


async def ask(session: aiohttp.ClientSession, url: str, *, due: float) -> None:
    """Send one request and print its result."""
    status = 0
    try:
        async with session.get(url) as response:
            await response.read()
            status = response.status
    except (aiohttp.ClientError, TimeoutError):
        pass
    print(json.dumps({"due": due, "status": status, "seconds": time.time() - due}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet.probe")
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--rate", type=float, required=True)
    options = parser.parse_args()
    asyncio.run(probe(options.kubeconfig, rate=options.rate))


if __name__ == "__main__":
    main()
