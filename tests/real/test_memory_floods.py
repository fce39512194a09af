"""Endless responses of small parts: the process stays within the memory limit of the manifests, reports what it drops,
and recovers."""

from __future__ import annotations

import contextlib
import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.fakes.prometheus import Asked, FakePrometheus, matrix, values, vector
from tests.real.memory_limit import MemoryLimit
from tests.real.test_request_memory import shipped_limit
from tests.service import Service
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

RULES = ("instance:node_cpu:ratio", "instance:node_memory_utilisation:ratio")
NODES = ("a", "b", "c")
CONFIG = """
[provider]
name = "prometheus"
address = "{address}"

[refresh]
interval = "10s"
resolution = "2s"
max_staleness = "1m"
{more}
"""
KUBERNETES = """
[kubernetes]
kubeconfig = "{kubeconfig}"
node_names = "on"
"""
EXTENDER = """
[scheduler.default]
plugins = [{ name = "TargetLoadPacking" }]
"""


class Limited(Service):
    """A service in a cgroup with the memory limit of the manifests."""

    def __init__(self, directory: Path, limit: MemoryLimit, config: str) -> None:
        super().__init__(directory, config=config)
        self._limit = limit

    def command(self) -> Sequence[str | Path]:
        return self._limit.command(*super().command())

    def health(self) -> tuple[str, str]:
        """Status and reason of the source."""
        document = self.get("/watcher/health").json()
        return document.get("status", ""), document.get("reason", "")

    def nodes(self) -> set[str]:
        answer = self.get("/watcher")
        return set(answer.json()["data"]["NodeMetricsMap"]) if answer.status == 200 else set()


@pytest.fixture
def limit() -> Iterator[MemoryLimit]:
    with MemoryLimit(shipped_limit()) as made:
        yield made
        assert made.kills == 0


@pytest.fixture
def run(limit: MemoryLimit, running: Any, tmp_path: Path) -> Callable[..., Limited]:
    def start(address: str, more: str = "") -> Limited:
        made = Limited(tmp_path / "service", limit, CONFIG.format(address=address, more=more))
        running(made)
        made.start()
        return made

    return start


class Fleet:
    """Recording rules for three nodes, and for `flood` new names with every answer."""

    def __init__(self) -> None:
        self.flood = 0
        self.answers = 0
        self._made = 0
        self._chance = random.Random(1)

    def __call__(self, asked: Asked) -> bytes:
        if not any(rule in asked.query for rule in RULES):
            return vector()
        now = float(asked.parameters.get("time") or asked.parameters["end"])
        if "timestamp(" in asked.query or asked.query.startswith("count"):
            return values(*(({"node": name}, str(now)) for name in NODES))
        new = [f"10.0.0.{self._made + i}" for i in range(self.flood)]
        self._made += self.flood
        self.answers += 1
        return matrix(*(({"node": name}, [(now, str(self._chance.uniform(0.2, 0.6)))]) for name in (*NODES, *new)))


def test_new_node_names_with_every_fetch(run: Callable[..., Limited], limit: MemoryLimit) -> None:
    """As with a wrong node_label. The nodes that were known before stay, and the finding names the cause."""
    fleet = Fleet()
    with FakePrometheus(fleet) as source:
        service = run(source.url)
        wait_for(lambda: service.nodes() == set(NODES), what="three nodes")
        fleet.flood = 20_000
        wait_for(lambda: "new node names in a fetch" in service.health()[1], what="the refusal")
        begun = fleet.answers
        wait_for(lambda: fleet.answers >= begun + 4, what="two more fetches")
        wait_for(lambda: set(NODES) <= service.nodes(), what="the nodes that were known before")
        found = service.get("/api/v1/findings").json()["findings"]
        assert [each for each in found if each["kind"] == "memory" and "node_label" in each["reason"]]
        fleet.flood = 0
        wait_for(lambda: service.health()[0] == "ok", what="the end of the flood")
        wait_for(lambda: set(NODES) <= service.nodes(), what="the nodes that were known before")
        assert service.stop() == 0


# --- Kubernetes ------------------------------------------------------------------------------------------------------

PLACE = b"NAME-OF-OBJECT"


def encoded(kind: str, name: str) -> bytes:
    """A Node or a Pod of 15 kilobytes, most of them labels."""
    labels = {f"label-{i}": f"{name}-{i}" for i in range(400)}
    metadata = {"name": name, "uid": name, "resourceVersion": "7", "labels": labels}
    return json.dumps({"metadata": metadata | ({"namespace": "default"} if kind == "pods" else {})}).encode()


class Api:
    """A Kubernetes API with three nodes and no pods; or, for the resource `endless`, pages without end; or, for the
    resource `flood`, a watch that sends new objects, which are deleted when it ends."""

    def __init__(self) -> None:
        self.endless = self.flood = ""
        self.lists: Counter[str] = Counter()
        self._made = 0
        self._flooded: list[bytes] = []
        self._page = {kind: b",".join([encoded(kind, "x")] * 200) for kind in ("nodes", "pods")}
        self._object = {kind: encoded(kind, PLACE.decode()) for kind in ("nodes", "pods")}

    def listing(self, kind: str, query: dict[str, list[str]]) -> bytes:
        self.lists[kind] += not query.get("continue")
        items, more = b",".join(encoded("nodes", name) for name in NODES) if kind == "nodes" else b"", b""
        if self.endless == kind and "limit" in query:
            self._made += 1
            items, more = self._page[kind], b',"continue":"%d"' % self._made
        elif self.endless == kind:
            items = b",".join([self._page[kind]] * 10)  # too large for one answer
        head = b'{"kind":"%sList","apiVersion":"v1","metadata":{"resourceVersion":"7"%s},"items":[%s]}'
        return head % (b"Node" if kind == "nodes" else b"Pod", more, items)

    def events(self, kind: str) -> Iterator[bytes]:
        """New objects until the flood ends; then they are deleted."""
        while self.flood == kind:
            names = [b"flood-%09d" % (self._made + i) for i in range(20)]
            self._made += len(names)
            self._flooded += names
            yield b"".join(self._event(b"ADDED", kind, name) for name in names)
        while self._flooded and not self.flood:
            gone, self._flooded = self._flooded[:20], self._flooded[20:]
            yield b"".join(self._event(b"DELETED", kind, name) for name in gone)

    def _event(self, what: bytes, kind: str, name: bytes) -> bytes:
        return b'{"type":"%s","object":%s}\n' % (what, self._object[kind].replace(PLACE, name))


@pytest.fixture
def api() -> Iterator[tuple[Api, str]]:
    """The API and its address."""
    made = Api()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            kind, query = parts.path.rpartition("/")[2], parse_qs(parts.query)
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            if "watch" in query:
                self.send_header("Connection", "close")
                self.end_headers()
                return self.watch(kind)
            body = made.listing(kind, query)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return None

        def watch(self, kind: str) -> None:
            self.close_connection = True
            bookmark = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"7"}}}\n'
            while not stopped.is_set():
                for lines in made.events(kind) if made.flood in ("", kind) else ():
                    self.wfile.write(lines)
                self.wfile.write(bookmark)
                stopped.wait(0.2)

        def handle(self) -> None:
            with contextlib.suppress(OSError):
                super().handle()

        def log_message(self, *_: object) -> None:
            pass

    stopped = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield made, f"http://127.0.0.1:{server.server_port}"
    stopped.set()
    server.shutdown()
    server.server_close()
    thread.join()


def kubernetes(url: str, path: Path) -> str:
    """The settings for this API."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {}}],
    }
    path.write_text(json.dumps(content))
    return KUBERNETES.format(kubeconfig=path)


def test_a_list_with_endless_pages_is_refused(
    run: Callable[..., Limited], api: tuple[Api, str], tmp_path: Path
) -> None:
    """Each attempt is refused within the limit; the next one is made when the memory of the previous one is free."""
    server, url = api
    server.endless = "nodes"
    with FakePrometheus(Fleet()) as source:
        service = run(source.url, kubernetes(url, tmp_path / "kubeconfig"))
        wait_for(lambda: "which do not fit into the memory limit" in service.health()[1], what="a refusal")
        begun = server.lists["nodes"]
        wait_for(lambda: server.lists["nodes"] > begun, what="another attempt")
        wait_for(lambda: service.nodes() == set(NODES), what="the nodes of the source")
        server.endless = ""
        wait_for(lambda: service.health() == ("ok", ""), what="the list")
        wait_for(lambda: "watching nodes again" in service.log(), what="the nodes of the cluster")
        assert service.stop() == 0


def test_a_watch_with_endless_objects_is_limited(
    run: Callable[..., Limited], api: tuple[Api, str], tmp_path: Path
) -> None:
    """New pods are left out at the limit; once the others are deleted, the pods are listed again."""
    server, url = api
    with FakePrometheus(Fleet()) as source:
        service = run(source.url, kubernetes(url, tmp_path / "kubeconfig") + EXTENDER)
        wait_for(lambda: server.lists["pods"], what="the pods of the cluster")
        server.flood = "pods"
        wait_for(lambda: "the memory limit is reached with" in service.health()[1], what="a refusal")
        assert "pods in the local copy; new ones are left out" in service.health()[1]
        assert service.nodes() == set(NODES)
        begun, server.flood = server.lists["pods"], ""
        wait_for(lambda: server.lists["pods"] > begun, what="another list")
        wait_for(lambda: service.health() == ("ok", ""), what="the end of the flood")
        assert service.stop() == 0
