"""Requests that would take more memory than the manifests allow are refused, and the process lives."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.real.memory_limit import MIB, MemoryLimit
from tests.real.parts import REPOSITORY
from tests.service import Service
from tests.waiting import PATIENCE_SECONDS, wait_for

pytestmark = pytest.mark.slow

FILTER = "/scheduler/default/filter"
NO_ANSWER = 0  # the connection was closed while the body was sent


class Limited(Service):
    """A demo in a cgroup with the memory limit of the manifests."""

    verb = "demo"

    def __init__(self, directory: Path, limit: MemoryLimit, *arguments: str) -> None:
        super().__init__(directory, *arguments, env={"TMPDIR": str(directory)})
        self._limit = limit

    def command(self) -> Sequence[str | Path]:
        return self._limit.command(*super().command())

    def post(self, body: bytes, path: str = FILTER, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
        """Status and body of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)
        try:
            connection.request("POST", path, body, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            return response.status, response.read()
        except ConnectionError:
            return NO_ANSWER, b""
        finally:
            connection.close()


def shipped_limit() -> int:
    """The memory limit of deploy/base in bytes."""
    (container,) = yaml.safe_load((REPOSITORY / "deploy/base/deployment.yaml").read_text())["spec"]["template"]["spec"][
        "containers"
    ]
    limit: str = container["resources"]["limits"]["memory"]
    return int(limit.removesuffix("Mi")) * MIB


@contextmanager
def probed(service: Service) -> Iterator[list[int]]:
    """Request /healthz repeatedly, with the timeout of the manifests' probes; return the statuses, 0 without a
    response."""
    statuses: list[int] = []
    stop = threading.Event()

    def probe() -> None:
        while not stop.wait(0.02):
            connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=5)
            try:
                connection.request("GET", "/healthz")
                statuses.append(connection.getresponse().status)
            except OSError:
                statuses.append(0)
            finally:
                connection.close()

    thread = threading.Thread(target=probe)
    thread.start()
    try:
        yield statuses
    finally:
        stop.set()
        thread.join()


def a_node(number: int) -> dict[str, Any]:
    """A Node object with the size and shape of a cloud provider's, 6.6 kB."""
    name = f"node-{number:05d}"
    labels = {f"example.com/label-{each:02d}": f"value-{each}" for each in range(40)}
    images = [{"names": [f"registry.example.com/image-{each}:1", "x" * 40], "sizeBytes": 1} for each in range(25)]
    conditions = [{"type": f"Condition{each}", "status": "False", "message": "y" * 80} for each in range(8)]
    status = {"conditions": conditions, "images": images, "allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110"}}
    return {"metadata": {"name": name, "labels": labels}, "spec": {"providerID": name}, "status": status}


@cache
def whole_nodes(count: int) -> bytes:
    nodes = ",".join(json.dumps(a_node(number)) for number in range(count))
    return (POD + '"Nodes":{"items":[' + nodes + "]}}").encode()


POD = '{"Pod":{"metadata":{"name":"web"},"spec":{"containers":[]}},'
EMPTY = '{"pod":{"x":[' + ",".join(["{}"] * 6_000_000) + ']},"nodenames":[]}'
HOSTILE: dict[str, Callable[[], bytes]] = {
    "objects in the pod": lambda: EMPTY.encode(),
    "objects in the pod, as Go spells it": lambda: EMPTY.replace("pod", "Pod").replace("node", "Node").encode(),
    "a pod of 200,000 containers": lambda: POD.replace("[]", f"[{'{},' * 200_000}{{}}]").encode() + b'"NodeNames":[]}',
    "names": lambda: (POD + '"NodeNames":[' + ",".join(['"a"'] * 11_000_000) + "]}").encode(),
    "names in a megabyte": lambda: (POD + '"NodeNames":[' + ",".join(['"a"'] * 250_000) + "]}").encode(),
    "nodes without names": lambda: (POD + '"Nodes":{"items":[' + ",".join(["{}"] * 15_000_000) + "]}}").encode(),
    "nodes of names only": lambda: (
        POD + '"Nodes":{"items":[' + ",".join(['{"metadata":{"name":"a"}}'] * 450_000) + "]}}"
    ).encode(),
    "numbers for nodes": lambda: (POD + '"Nodes":{"items":[' + "1," * 20_000_000 + "1]}}").encode(),
    "nulls for nodes": lambda: (POD + '"nodes":{"items":[' + "null," * 9_000_000 + "1]}}").encode(),
    "unknown keys": lambda: ("{" + ",".join(f'"{each:x}":1' for each in range(4_000_000)) + "}").encode(),
    "deep": lambda: b'{"Pod":' + b"[" * 30_000_000,
    "spaces": lambda: b" " * (45 << 20),
}


NOT_READ = ("250 MiB", "250 MiB in pieces")


@pytest.fixture(params=[False, True], ids=["no token", "token set, none sent"])
def demo(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Limited, MemoryLimit]]:
    arguments = ["--nodes", "50"]
    if request.param:
        token = tmp_path / "token"
        token.write_text("s3cret")
        arguments += ["--set", f"server.token_file={token}", "--set", "server.protect_reads=true"]
    with MemoryLimit(shipped_limit()) as limit, Limited(tmp_path / "demo", limit, *arguments) as service:
        yield service, limit


def test_hostile_bodies_are_refused(demo: tuple[Limited, MemoryLimit]) -> None:
    """One after the other, three concurrently, and compressed; probes are answered meanwhile."""
    service, limit = demo
    statuses: dict[str, list[int]] = {}
    with probed(service) as probes, ThreadPoolExecutor(3) as pool:
        for name, made in HOSTILE.items():
            body = made()
            statuses[name] = [service.post(body)[0]]
            statuses[name] += [status for status, _ in pool.map(service.post, [body] * 3)]
        packed = gzip.compress(EMPTY.encode())
        assert len(packed) < 30_000
        for coding, body in (("gzip", packed), ("gzip", b"garbage"), ("deflate", b""), ("zstd", b"x"), ("br", b"x")):
            status, answer = service.post(body, headers={"Content-Encoding": coding})
            assert (status, json.loads(answer)["error"]["code"]) == (415, "unsupported_encoding"), coding
        statuses["250 MiB"] = [service.post(b" " * (250 << 20))[0]]
        statuses["250 MiB in pieces"] = [service.post(iter([b" " * MIB] * 250))[0]]  # type: ignore[arg-type]

    assert service.is_running()
    assert 0 == limit.kills
    assert {200} == set(probes)
    refused = {name: set(found) for name, found in statuses.items() if name not in NOT_READ}
    assert all(found <= {400, 413, 503} for found in refused.values()), statuses
    assert all(statuses[name][0] in (413, NO_ANSWER) for name in NOT_READ), statuses
    assert "Traceback" not in service.log()


def test_requests_of_5000_whole_nodes_are_answered(tmp_path: Path) -> None:
    """With 5,000 nodes in the service and several concurrent schedulers, some of which do not read their response."""
    body = whole_nodes(5000)
    assert 25 * MIB < len(body) < 40 * MIB
    with MemoryLimit(shipped_limit()) as limit, Limited(tmp_path / "demo", limit, "--nodes", "5000") as service:
        wait_for(lambda: service.get("/watcher").status == 200, what="load of the nodes")
        idle = limit.peak
        with probed(service) as probes, ExitStack() as stack:
            status, answer = service.post(body)
            assert (status, len(json.loads(answer)["Nodes"]["items"])) == (200, 5000)
            alone = limit.peak
            for _ in range(4):
                silent = stack.enter_context(socket.create_connection(("127.0.0.1", service.port)))
                typed = "Content-Type: application/json\r\nHost: localhost"
                head = f"POST {FILTER} HTTP/1.1\r\n{typed}\r\nContent-Length: {len(body)}\r\n\r\n"
                silent.sendall(head.encode() + body)
            with ThreadPoolExecutor(3) as pool:
                found = {status for status, _ in pool.map(service.post, [body] * 6)}
            assert found <= {200, 503}
        print(f"peak MiB: idle {idle / MIB:.0f}, one request {alone / MIB:.0f}, many {limit.peak / MIB:.0f}")
        assert service.is_running()
        assert 0 == limit.kills
        assert {200} == set(probes)
        # The connections above are closed; the service detects it when it writes to them.
        wait_for(lambda: service.post(body)[0] == 200, what="answer after the silent clients are gone")
