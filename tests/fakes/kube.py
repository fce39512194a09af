"""A small Kubernetes API server over a real socket, with the manners of the real one (testing.md §4.3) and faults on
request: versions that count up, lists in pages that expire, watches that end, forget and send bookmarks, Status
objects, quantities that come back in another spelling, and metrics-server's API.

It runs in a thread of its own, so that processes can ask it too. What a test does to it (`put`, `delete`, `compact`,
`drop_connections`, the fault fields) may be done from any thread.
"""

import asyncio
import base64
import copy
import json
import ssl
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from aiohttp import web

from watcher.kube import nano

NODES = "v1/nodes"
NODE_METRICS = "metrics.k8s.io/v1beta1/nodes"
KINDS = {NODES: "Node", "v1/pods": "Pod", NODE_METRICS: "NodeMetrics"}
REASONS = {400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 410: "Expired"}
REMEMBERED = 10_000


@dataclass(frozen=True)
class Asked:
    """A request: "list" or "watch", the resource, the parameters."""

    verb: str
    resource: str
    parameters: Mapping[str, str]


Fault = Callable[[Asked], web.Response | None]


@dataclass
class FakeKube:
    """The server. `token` is the one that it knows, "" lets everybody in; `forbidden` holds (verb, resource) pairs;
    `fault` may answer in the server's place, `delay` slows every answer; `bookmarks` can be withheld."""

    token: str = "a-token"
    forbidden: set[tuple[str, str]] = field(default_factory=set)
    fault: Fault = lambda _: None
    delay: float = 0.0
    bookmarks: bool = True
    tls: ssl.SSLContext | None = None
    asked: list[Asked] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._version = 1000
        self._objects: dict[str, dict[str, Any]] = {resource: {} for resource in KINDS}
        self._events: dict[str, deque[tuple[int, str, Any]]] = {r: deque(maxlen=REMEMBERED) for r in KINDS}
        self._oldest = 1000
        self._pages: dict[str, tuple[int, list[Any]]] = {}
        self._lock = threading.RLock()
        self._news = asyncio.Event()
        self._open: dict[int, web.Request] = {}

    # --- what tests do -----------------------------------------------------------------------------------------------

    def put(self, resource: str, name: str, **content: Any) -> None:
        """Add or replace an object: ADDED or MODIFIED for those who watch."""
        with self._lock:
            kind = "MODIFIED" if name in self._objects[resource] else "ADDED"
            self._version += 1
            item = copy.deepcopy(content)
            item["metadata"] = {"name": name, "resourceVersion": str(self._version), **item.get("metadata", {})}
            capacity = item.get("status", {}).get("capacity", {})
            capacity.update({key: canonical(value) for key, value in capacity.items()})
            self._objects[resource][name] = item
            self._tell(resource, kind, item)

    def delete(self, resource: str, name: str) -> None:
        """Remove an object: DELETED, with its last content and a version of its own."""
        with self._lock:
            self._version += 1
            item = copy.deepcopy(self._objects[resource].pop(name))
            item["metadata"]["resourceVersion"] = str(self._version)
            self._tell(resource, "DELETED", item)

    def compact(self) -> None:
        """Forget what was before now: older versions and pages are 410."""
        with self._lock:
            self._oldest = self._version
            self._pages.clear()
            for events in self._events.values():
                events.clear()

    def drop_connections(self) -> None:
        """Cut every connection that is open."""

        def cut() -> None:
            for request in tuple(self._open.values()):
                if request.transport is not None:
                    request.transport.abort()

        self._loop.call_soon_threadsafe(cut)

    def node(self, name: str, *, cpu: str = "4", memory: str = "8Gi") -> None:
        """A node with this capacity."""
        self.put(NODES, name, status={"capacity": {"cpu": cpu, "memory": memory}, "conditions": []})

    def usage(self, name: str, *, time: str, cpu: str = "1", memory: str = "2Gi", window: str = "10.062s") -> None:
        """What metrics-server knows of a node; `time` as in RFC 3339."""
        self.put(NODE_METRICS, name, timestamp=time, window=window, usage={"cpu": cpu, "memory": memory})

    def names(self, resource: str) -> set[str]:
        """The names of what there is."""
        with self._lock:
            return set(self._objects[resource])

    def versions(self, resource: str) -> dict[str, str]:
        """The version of each object by name."""
        with self._lock:
            return {name: item["metadata"]["resourceVersion"] for name, item in self._objects[resource].items()}

    def kubeconfig(self, path: Path, *, token: str | None = None, **cluster: Any) -> Path:
        """Write a kubeconfig for this server."""
        user = {"token": self.token if token is None else token}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "tester"}}],
            "clusters": [{"name": "fake", "cluster": {"server": self.url, **cluster}}],
            "users": [{"name": "tester", "user": user}],
        }
        path.write_text(json.dumps(content))  # JSON is YAML
        return path

    # --- life --------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(started)), daemon=True)
        self._thread.start()
        assert started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}"

    async def _serve(self, started: threading.Event) -> None:
        self._loop, self._stop, self._news = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        app = web.Application()
        app.router.add_get("/api/{version}/{plural}", self._answer)
        app.router.add_get("/apis/{group}/{version}/{plural}", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", getattr(self, "port", 0), ssl_context=self.tls)
        await site.start()
        self.port: int = runner.addresses[0][1]
        started.set()
        await self._stop.wait()
        for request in tuple(self._open.values()):
            if request.transport is not None:
                request.transport.abort()
        await runner.cleanup()

    def _tell(self, resource: str, kind: str, item: Any) -> None:
        self._events[resource].append((self._version, kind, item))
        if hasattr(self, "_loop") and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    # --- answers -----------------------------------------------------------------------------------------------------

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        group, info = request.match_info.get("group"), request.match_info
        resource = "/".join(part for part in (group, info["version"], info["plural"]) if part)
        verb = "watch" if request.query.get("watch") in ("1", "true") else "list"
        asked = Asked(verb, resource, dict(request.query))
        self.asked.append(asked)
        self._open[id(request)] = request
        try:
            if self.delay:
                await asyncio.sleep(self.delay)
            if (odd := self.fault(asked)) is not None:
                return odd
            if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
                return status(401, "Unauthorized")
            if resource not in KINDS:
                return status(404, "the server could not find the requested resource")
            if (verb, resource) in self.forbidden:
                return status(403, f'{info["plural"]} is forbidden: User "tester" cannot {verb} resource "nodes"')
            return self._list(asked) if verb == "list" else await self._watch(request, asked)
        finally:
            self._open.pop(id(request), None)

    def _list(self, asked: Asked) -> web.Response:
        limit, token = int(asked.parameters.get("limit", 0)), asked.parameters.get("continue", "")
        with self._lock:
            if token and token not in self._pages:
                return status(410, "The provided continue parameter is too old")
            version, items = self._pages.get(token) or (self._version, list(self._objects[asked.resource].values()))
            metadata: dict[str, Any] = {"resourceVersion": str(version)}
            if asked.resource == NODE_METRICS:  # metrics-server knows neither versions nor pages
                metadata, limit = {}, 0
            if limit and len(items) > limit:
                items, rest = items[:limit], items[limit:]
                metadata["continue"] = base64.b64encode(f"{version}/{len(self._pages)}".encode()).decode()
                metadata["remainingItemCount"] = len(rest)
                self._pages[metadata["continue"]] = (version, rest)
            kind, api = KINDS[asked.resource], asked.resource.rpartition("/")[0]
            return web.json_response({"kind": f"{kind}List", "apiVersion": api, "metadata": metadata, "items": items})

    async def _watch(self, request: web.Request, asked: Asked) -> web.StreamResponse:
        since = int(asked.parameters["resourceVersion"])
        seconds = float(asked.parameters["timeoutSeconds"])
        end = self._loop.time() + seconds
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        first = since
        while True:
            with self._lock:
                expired = since < self._oldest
                news = [event for event in self._events[asked.resource] if event[0] > since]
                now_at, waiting = self._version, self._news
            if expired:
                gone = status_object(410, f"too old resource version: {since} ({self._oldest})")
                await response.write(line("ERROR", gone))
                return response
            for version, kind, item in news:
                await response.write(line(kind, self._whole(asked.resource, item)))
                since = version
            left = end - self._loop.time()
            if left <= 0:
                if self.bookmarks and now_at > first:
                    mark = {"metadata": {"resourceVersion": str(now_at)}}
                    await response.write(line("BOOKMARK", self._whole(asked.resource, mark)))
                return response
            try:
                async with asyncio.timeout(left):
                    await waiting.wait()
            except TimeoutError:
                continue

    def _whole(self, resource: str, item: Any) -> Any:
        """As a watch has it: with kind and apiVersion, which the items of a list lack."""
        return {"kind": KINDS[resource], "apiVersion": resource.rpartition("/")[0], **item}


def line(kind: str, item: Any) -> bytes:
    """A line of a watch."""
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


def status_object(code: int, message: str) -> dict[str, Any]:
    """Kubernetes' description of a failure."""
    reason = REASONS.get(code, "InternalError")
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code} | {
        "message": message
    }


def status(code: int, message: str) -> web.Response:
    """An answer that is such a description."""
    return web.json_response(status_object(code, message), status=code)


def canonical(quantity: str) -> str:
    """A quantity as Kubernetes writes it: without fraction, in the largest unit that allows this ("4000" is "4k")."""
    left = nano(quantity)
    sign, left = ("-", -left) if left < 0 else ("", left)
    binary = quantity.endswith("i") and left % 10**9 == 0 and left // 10**9 >= 1024
    if binary:
        left //= 10**9
        units, base = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"], 1024
    else:
        exponent = "e" in quantity.lower()[1:] and quantity[-1].isdigit()
        units = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"]
        units, base = ([f"e{power}" for power in range(-9, 19, 3)] if exponent else units), 1000
    at = 0
    while left and left % base == 0 and at + 1 < len(units):
        left, at = left // base, at + 1
    suffix = units[at] if left else ""
    return f"{sign}{left}{'' if suffix == 'e0' else suffix}"
