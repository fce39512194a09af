"""A small Kubernetes API server over a real socket, with the behavior of the real one and faults on request: increasing
versions, lists in pages that expire, watches that end, expire and send bookmarks, selectors, patches and conflicts,
eviction under a budget, binding, custom resources, Status objects, quantities in canonical form, discovery for kubectl,
and metrics-server's API.

tests/real/test_kube_apiserver.py sends it and the real one the same requests; tests/real/test_kubectl.py runs Debian's
kubectl with it. It does not validate objects, has no roles except `forbidden`, and applies no defaults.

It runs in its own thread, so that processes can send requests too. Tests may call its methods (`put`, `delete`,
`compact`, `drop_connections`) and set the fault fields from any thread.
"""

import asyncio
import base64
import copy
import json
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import Any, Self

from aiohttp import web

from tests.fakes.kube_rules import (
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    Item,
    Refusal,
    canonical,
    check_event,
    full_name,
    group_of,
    has_fields,
    has_labels,
    managed,
    patched,
    status_object,
)

NODES = "v1/nodes"
PODS = "v1/pods"
NAMESPACES = "v1/namespaces"
BUDGETS = "policy/v1/poddisruptionbudgets"
NODE_METRICS = "metrics.k8s.io/v1beta1/nodes"
LEASES = "coordination.k8s.io/v1/leases"
ACCESS_REVIEWS = "authorization.k8s.io/v1/selfsubjectaccessreviews"
EVENTS = "v1/events"
CONFIG_MAPS = "v1/configmaps"
POD_METRICS = "metrics.k8s.io/v1beta1/pods"
REMEMBERED = 10_000
VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
SUCCESS = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
NEW: dict[str, Item] = {PODS: {"phase": "Pending"}, NAMESPACES: {"phase": "Active"}, BUDGETS: {"disruptionsAllowed": 0}}
"""The status of a new object."""
CREATED = "2026-11-21T08:00:00Z"


@dataclass(frozen=True)
class Kind:
    """The kind of the objects of a resource; `parts` are its subresources, `custom` marks those of a CRD."""

    name: str
    namespaced: bool = False
    parts: tuple[str, ...] = ()
    custom: bool = False


KINDS = {
    NODES: Kind("Node", parts=("status",)),
    PODS: Kind("Pod", namespaced=True, parts=("status", "binding", "eviction")),
    NAMESPACES: Kind("Namespace"),
    BUDGETS: Kind("PodDisruptionBudget", namespaced=True, parts=("status",)),
    EVENTS: Kind("Event", namespaced=True),
    CONFIG_MAPS: Kind("ConfigMap", namespaced=True),
    "apps/v1/daemonsets": Kind("DaemonSet", namespaced=True),
    LEASES: Kind("Lease", namespaced=True),
    NODE_METRICS: Kind("NodeMetrics"),
    ACCESS_REVIEWS: Kind("SelfSubjectAccessReview"),
    POD_METRICS: Kind("PodMetrics", namespaced=True),
}


@dataclass(frozen=True)
class Asked:
    """A request: the verb as in RBAC ("list", "watch", "get", "create", …), the resource with its subresource
    ("v1/pods/eviction"), the parameters, the object's NAMESPACE/NAME, and the body."""

    verb: str
    resource: str
    parameters: Mapping[str, str]
    key: str = ""
    namespace: str = ""
    body: Any = None
    content_type: str = ""
    agent: str = ""

    @property
    def manager(self) -> str:
        """The writer: as stated, otherwise the program at the begin of its User-Agent."""
        return self.parameters.get("fieldManager") or self.agent.partition("/")[0]


Fault = Callable[[Asked], web.Response | None]


@dataclass
class FakeKube:
    """The server. `token` is the valid one, with "" each client is accepted; `forbidden` has (verb, resource) pairs;
    `fault` may respond instead of the server, `delay` slows each response; `bookmarks` can be withheld; `evictions` are
    the accepted versions of Eviction; with `kubelet`, deleted pods end at once, as if the kubelet ran. Its clock is
    `clock_s` seconds ahead of that of this machine."""

    token: str = "a-token"
    forbidden: set[tuple[str, str]] = field(default_factory=set)
    clock_s: float = 0.0
    fault: Fault = lambda _: None
    delay: float = 0.0
    bookmarks: bool = True
    evictions: tuple[str, ...] = ("policy/v1", "policy/v1beta1")
    kubelet: bool = False
    tls: ssl.SSLContext | None = None
    asked: list[Asked] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._version = 1000
        self._kinds: dict[str, Kind] = {}
        self._objects: dict[str, dict[str, Item]] = {}
        self._events: dict[str, deque[tuple[int, Item | None, Item | None]]] = {}
        self._oldest = 1000
        self._pages: dict[str, tuple[int, list[Item]]] = {}
        self._lock = threading.RLock()
        self._news = asyncio.Event()
        self._open: dict[int, web.Request] = {}
        for resource, kind in KINDS.items():
            self._define(resource, kind)

    def _define(self, resource: str, kind: Kind) -> None:
        self._kinds[resource] = kind
        self._objects[resource], self._events[resource] = {}, deque(maxlen=REMEMBERED)

    # --- for tests ---------------------------------------------------------------------------------------------------

    def define(self, resource: str, kind: str, *, namespaced: bool = False) -> None:
        """Add a kind, as a CustomResourceDefinition does."""
        with self._lock:
            self._define(resource, Kind(kind, namespaced, ("status",), custom=True))

    def undefine(self, resource: str) -> None:
        """Remove a CustomResourceDefinition with its objects."""
        with self._lock:
            for key in list(self._objects[resource]):
                self.delete(resource, key)
            del self._kinds[resource], self._objects[resource]

    def put_by(self, manager: str, resource: str, key: str, **content: Any) -> None:
        """The same for a custom resource, with managed fields of the writer."""
        with self._lock:
            old = self._objects[resource].get(key, {})
            self._store(resource, key, self._managed(resource, old, copy.deepcopy(content), manager=manager))

    def put(self, resource: str, key: str, **content: Any) -> None:
        """Add or replace an object: ADDED or MODIFIED for watches. The namespace of a namespaced object is "default" if
        it has none."""
        namespace, _, name = key.rpartition("/")
        with self._lock:
            if self._kinds[resource].namespaced:
                key = f"{namespace or 'default'}/{name}"
                self._objects[NAMESPACES].setdefault(namespace or "default", {"metadata": {"name": namespace}})
            self._store(resource, key, copy.deepcopy(content))

    def delete(self, resource: str, key: str) -> None:
        """Remove an object: DELETED, with its last content and its own version."""
        with self._lock:
            self._store(resource, key, None)

    def compact(self) -> None:
        """Remove older versions: they and their pages are 410."""
        with self._lock:
            self._oldest = self._version
            self._pages.clear()
            for events in self._events.values():
                events.clear()

    def drop_connections(self) -> None:
        """Close each open connection."""

        def cut() -> None:
            for request in tuple(self._open.values()):
                if request.transport is not None:
                    request.transport.abort()

        self._loop.call_soon_threadsafe(cut)

    def node(self, name: str, *, cpu: str = "4", memory: str = "8Gi", **content: Any) -> None:
        """A node with this capacity, which is all allocatable."""
        size = {"cpu": cpu, "memory": memory}
        status = {"capacity": size, "allocatable": dict(size), "conditions": [], **content.pop("status", {})}
        self.put(NODES, name, status=status, **content)

    def pod(self, key: str, *, node: str = "", phase: str = "Running", **content: Any) -> None:
        """A pod with one container, in "default" without a namespace."""
        spec = {"containers": [{"name": "main"}], **({"nodeName": node} if node else {}), **content.pop("spec", {})}
        self.put(PODS, key, spec=spec, status={"phase": phase, **content.pop("status", {})}, **content)

    def usage(self, name: str, *, time: str, cpu: str = "1", memory: str = "2Gi", window: str = "10.062s") -> None:
        """The usage of a node in metrics-server; `time` as in RFC 3339."""
        self.put(NODE_METRICS, name, timestamp=time, window=window, usage={"cpu": cpu, "memory": memory})

    def pod_usage(
        self, key: str, *containers: tuple[str, str], time: str, window: str = "15.2s", **content: Any
    ) -> None:
        """The usage of a pod in metrics-server, in "default" without a namespace: (cpu, memory) of each of its
        containers."""
        used = [
            {"name": f"c{number}", "usage": {"cpu": cpu, "memory": memory}}
            for number, (cpu, memory) in enumerate(containers)
        ]
        self.put(POD_METRICS, key, **{"timestamp": time, "window": window, "containers": used, **content})

    def names(self, resource: str) -> set[str]:
        """The names of the existing objects."""
        with self._lock:
            return set(self._objects[resource])

    def content(self, resource: str, key: str) -> Item:
        """The current content of an object."""
        with self._lock:
            return copy.deepcopy(self._objects[resource][key])

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

    # --- start and stop ----------------------------------------------------------------------------------------------

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
        app.router.add_route("*", "/{tail:.*}", self._answer)
        app.on_response_prepare.append(self._date)
        runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", getattr(self, "port", 0), ssl_context=self.tls)
        await site.start()
        self.port: int = runner.addresses[0][1]
        started.set()
        await self._stop.wait()
        await site.stop()
        assert runner.server is not None
        for connection in (
            runner.server.connections
        ):  # idle ones too: otherwise TLS would send its closure after the end of the event loop
            if connection.transport is not None:
                connection.transport.abort()
        await runner.cleanup()

    async def _date(self, _: web.Request, response: web.StreamResponse) -> None:
        response.headers["Date"] = formatdate(time.time() + self.clock_s, usegmt=True)

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    # --- objects -----------------------------------------------------------------------------------------------------

    def _store(self, resource: str, key: str, item: Item | None) -> Item:
        """Replace or remove an object; returns it as watches see it."""
        self._version += 1
        old = self._objects[resource].pop(key, None)
        new = copy.deepcopy(old) if item is None else item
        assert new is not None
        namespace, _, name = key.rpartition("/")
        metadata = {"name": name, **({"namespace": namespace} if namespace else {}), **new.get("metadata", {})}
        known = {} if old is None else {each: old["metadata"][each] for each in ("uid", "creationTimestamp")}
        made = {"uid": f"uid-{self._version}", "creationTimestamp": CREATED}
        new["metadata"] = {**made, **known, **metadata, "resourceVersion": str(self._version)}
        for quantities in (new.get("status", {}).get(which) or {} for which in ("capacity", "allocatable")):
            quantities.update({each: canonical(value) for each, value in quantities.items()})
        if item is not None:
            self._objects[resource][key] = new
        self._events[resource].append((self._version, old, None if item is None else new))
        if hasattr(self, "_loop") and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)
        return new

    def _there(self, resource: str, key: str) -> Item:
        name, plural = key.rpartition("/")[2], full_name(resource)
        if key not in self._objects[resource]:
            raise Refusal(404, f'{plural} "{name}" not found', name=name, kind=plural)
        return self._objects[resource][key]

    # --- responses ---------------------------------------------------------------------------------------------------

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self._open[id(request)] = request
        try:
            asked = await self._read(request)
            self.asked.append(asked)
            if self.delay:
                await asyncio.sleep(self.delay)
            if (odd := self.fault(asked)) is not None:
                return odd
            if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
                raise Refusal(401, "Unauthorized")
            if not asked.resource:
                return self._discover(request.path.strip("/"))
            if (asked.verb, asked.resource) in self.forbidden:
                raise _forbidden(asked)
            if asked.verb == "watch":
                return await self._watch(request, asked)
            with self._lock:
                return self._list(asked) if asked.verb == "list" else self._one(asked)
        except Refusal as refusal:
            return web.json_response(refusal.body, status=refusal.code)
        finally:
            self._open.pop(id(request), None)

    async def _read(self, request: web.Request) -> Asked:
        """The requested objects; without a resource if the path is unknown."""
        parts = request.path.strip("/").split("/")
        group, rest = ("v1", parts[2:]) if parts[0] == "api" else ("/".join(parts[1:3]), parts[3:])
        namespace = ""
        if rest[:1] == ["namespaces"] and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        plural, name, part, *_ = [*rest, "", "", ""]
        resource = f"{group}/{plural}"
        kind = self._kinds.get(resource)
        if kind is None or (part and part not in kind.parts):
            return Asked(request.method, "", dict(request.query))
        watches = request.query.get("watch") in ("1", "true")
        verb = VERBS.get(request.method) or ("watch" if watches else "get" if name else "list")
        return Asked(
            verb,
            f"{resource}/{part}" if part else resource,
            dict(request.query),
            key="/".join(filter(None, (namespace, name))) if name else "",
            namespace=namespace,
            body=await _body(request),
            content_type=request.content_type,
            agent=request.headers.get("User-Agent", ""),
        )

    def _discover(self, path: str) -> web.Response:
        groups: dict[str, list[str]] = {}
        for resource in self._kinds:
            groups.setdefault(resource.rpartition("/")[0], []).append(resource)
        if path == "version":
            return web.json_response({"major": "1", "minor": "30", "gitVersion": "v1.30.0"})
        if path == "api":
            return web.json_response({"kind": "APIVersions", "versions": ["v1"]})
        if path == "apis":
            described = [
                {"name": group.partition("/")[0], "versions": [version], "preferredVersion": version}
                for group in groups
                if "/" in group
                for version in [{"groupVersion": group, "version": group.partition("/")[2]}]
            ]
            return web.json_response({"kind": "APIGroupList", "apiVersion": "v1", "groups": described})
        group = path.partition("/")[2]
        if group.rpartition("/")[0] in groups:
            raise Refusal(404, "the server could not find the requested resource")
        if group not in groups:
            return web.Response(status=404, text="404 page not found\n")
        resources = [one for resource in groups[group] for one in self._described(resource)]
        return web.json_response(
            {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group, "resources": resources}
        )

    def _described(self, resource: str) -> list[Item]:
        kind, plural = self._kinds[resource], resource.rpartition("/")[2]
        common = {"namespaced": kind.namespaced, "singularName": ""}
        verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
        parts = [{"name": f"{plural}/{part}", "kind": kind.name, "verbs": ["create"], **common} for part in kind.parts]
        for part in parts:
            if part["name"] == "pods/eviction":
                part |= {"kind": "Eviction", "group": "policy", "version": self.evictions[-1].rpartition("/")[2]}
        return [{"name": plural, "kind": kind.name, "verbs": verbs, **common}, *parts]

    def _selects(self, asked: Asked, item: Item | None) -> bool:
        parameters = asked.parameters
        return (
            item is not None
            and (not asked.namespace or item["metadata"].get("namespace") == asked.namespace)
            and (not asked.key or item["metadata"]["name"] == asked.key.rpartition("/")[2])
            and has_labels(item, parameters.get("labelSelector", ""))
            and has_fields(item, parameters.get("fieldSelector", ""), resource=asked.resource)
        )

    def _refuse_unknown(self, asked: Asked) -> None:
        """Invalid selectors are refused even if there are no objects."""
        has_labels({"metadata": {}}, asked.parameters.get("labelSelector", ""))
        has_fields({"metadata": {}}, asked.parameters.get("fieldSelector", ""), resource=asked.resource)

    def _list(self, asked: Asked) -> web.Response:
        limit, token = int(asked.parameters.get("limit", 0)), asked.parameters.get("continue", "")
        at_least = asked.parameters.get("resourceVersion", "")
        if at_least.isdecimal() and int(at_least) > self._version:
            text = f"Too large resource version: {at_least}, current: {self._version}"
            raise Refusal(504, text, reason="Timeout", causes=[{"reason": "ResourceVersionTooLarge", "message": text}])
        if at_least == "0":  # from the watch cache, which has no pages
            limit = 0
        if token and token not in self._pages:
            raise Refusal(410, "The provided continue parameter is too old")
        self._refuse_unknown(asked)
        there = [item for item in self._objects[asked.resource].values() if self._selects(asked, item)]
        version, items = self._pages.get(token) or (self._version, there)
        metadata: Item = {"resourceVersion": str(version)}
        if asked.resource in (NODE_METRICS, POD_METRICS):  # metrics-server has neither versions nor pages
            metadata, limit = {}, 0
        if limit and len(items) > limit:
            items, rest = items[:limit], items[limit:]
            metadata["continue"] = base64.b64encode(f"{version}/{len(self._pages)}".encode()).decode()
            if not {"labelSelector", "fieldSelector"} & asked.parameters.keys():
                metadata["remainingItemCount"] = len(rest)
            self._pages[metadata["continue"]] = (version, rest)
        kind, api = self._kinds[asked.resource].name, asked.resource.rpartition("/")[0]
        return web.json_response({"kind": f"{kind}List", "apiVersion": api, "metadata": metadata, "items": items})

    # --- one object --------------------------------------------------------------------------------------------------

    def _one(self, asked: Asked) -> web.Response:
        resource, part = asked.resource, ""
        if resource not in self._kinds:
            resource, _, part = resource.rpartition("/")
        if part == "eviction":
            return self._evict(asked)
        if part == "binding":
            return self._bind(asked)
        if resource == ACCESS_REVIEWS:
            return self._review(asked)
        if asked.verb == "create":
            metadata = asked.body["metadata"]
            name = metadata.setdefault("name", f"{metadata.get('generateName', '')}{self._version:05x}")
            key = f"{asked.namespace}/{name}" if asked.namespace else name
            if key in self._objects[resource]:
                text = f'{full_name(resource)} "{name}" already exists'
                raise Refusal(409, text, reason="AlreadyExists", name=name)
            custom = self._kinds[resource].custom
            item = {**asked.body, "status": {**NEW.get(resource, {}), **asked.body.get("status", {})}}
            if resource == EVENTS:
                check_event(item, asked.namespace)
            if custom and "status" in self._kinds[resource].parts:
                del item["status"]  # it is only written through its subresource
            item = self._managed(resource, {}, item, manager=asked.manager)
            return self._shown(resource, self._store(resource, key, item), status=201)
        item = self._there(resource, asked.key)
        if asked.verb == "delete":
            options = {**asked.parameters, **(asked.body or {})}
            if resource == PODS:
                self._end(asked.key, item, grace=int(options.get("gracePeriodSeconds", 30)))
            else:
                self.delete(resource, asked.key)
            return web.json_response({**SUCCESS, "code": 200})
        if asked.verb == "get":
            return self._shown(resource, item)
        new = asked.body if asked.verb == "update" else self._patched(asked, item, resource=resource)
        return self._shown(
            resource, self._change(asked.key, item, new, resource=resource, part=part, manager=asked.manager)
        )

    def _review(self, asked: Asked) -> web.Response:
        """Whether the reviewed request is not forbidden."""
        about = asked.body["spec"]["resourceAttributes"]
        names = (about.get(each, "") for each in ("group", "version", "resource", "subresource"))
        allowed = (about["verb"], "/".join(filter(None, names))) not in self.forbidden
        item = {**asked.body, "metadata": {"creationTimestamp": None}, "status": {"allowed": allowed}}
        return self._shown(ACCESS_REVIEWS, item, status=201)

    def _patched(self, asked: Asked, item: Item, *, resource: str) -> Item:
        taken = [JSON_PATCH, MERGE_PATCH, *([] if self._kinds[resource].custom else [STRATEGIC_PATCH])]
        if not asked.content_type.endswith(("-patch+json", "-patch+yaml")):
            raise Refusal(415, "415: Unsupported Media Type")
        if asked.content_type not in taken:
            media = "the body of the request was in an unknown format - accepted media types include: "
            raise Refusal(415, media + ", ".join([*taken, "application/apply-patch+yaml"]))
        return patched(item, asked.body, asked.content_type)

    def _managed(self, resource: str, old: Item, new: Item, *, manager: str, part: str = "") -> Item:
        """The written part of a custom resource, with its managed fields."""
        if not self._kinds[resource].custom or not manager:
            return new
        entries = old.get("metadata", {}).get("managedFields", [])
        version = resource.rpartition("/")[0]
        entries = managed(old, new, entries, manager=manager, part=part, version=version)
        return {**new, "metadata": {**new.get("metadata", {}), "managedFields": entries}}

    def _change(self, key: str, old: Item, new: Item, *, resource: str, part: str, manager: str = "") -> Item:
        """Store a change of an object: of its status only through that subresource, of other fields without it."""
        plural, name = full_name(resource), key.rpartition("/")[2]
        if new["metadata"].get("resourceVersion", old["metadata"]["resourceVersion"]) != self.versions(resource)[key]:
            modified = "the object has been modified; please apply your changes to the latest version and try again"
            raise Refusal(
                409, f'Operation cannot be fulfilled on {plural} "{name}": {modified}', name=name, kind=plural
            )
        if part == "status":
            new = {**old, "status": new.get("status", {})}
        elif "status" in self._kinds[resource].parts and "status" in old:
            new = {**new, "status": old["status"]}
        if new == old:
            return old
        return self._store(resource, key, copy.deepcopy(self._managed(resource, old, new, manager=manager, part=part)))

    def _shown(self, resource: str, item: Item, *, status: int = 200) -> web.Response:
        return web.json_response(self._whole(resource, item), status=status)

    def _end(self, key: str, pod: Item, *, grace: int = 30) -> None:
        """Delete a pod as the server does: a bound one stays until its kubelet has ended it."""
        ended = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
        if not pod["spec"].get("nodeName") or ended or not grace:
            return self.delete(PODS, key)
        mark = {"deletionTimestamp": "2026-11-21T08:10:00Z", "deletionGracePeriodSeconds": grace}
        self._store(PODS, key, {**pod, "metadata": {**pod["metadata"], **mark}})
        if self.kubelet:
            self.delete(PODS, key)
        return None

    def _evict(self, asked: Asked) -> web.Response:
        version, options = asked.body["apiVersion"], asked.body.get("deleteOptions") or {}
        if version not in self.evictions:
            why = f'no kind "Eviction" is registered for version "{version}" in scheme "fakes/kube.py"'
            raise Refusal(
                400, f'Eviction in version "{version.partition("/")[2]}" cannot be handled as a Eviction: {why}'
            )
        pod, name = self._there(PODS, asked.key), asked.key.rpartition("/")[2]
        if pod["status"]["phase"] != "Pending" and "deletionTimestamp" not in pod["metadata"]:
            self._ask_budgets(pod)  # before the uid is checked, as in Kubernetes
        uid = (options.get("preconditions") or {}).get("uid", pod["metadata"]["uid"])
        if uid != pod["metadata"]["uid"]:
            why = f"the UID in the precondition ({uid}) does not match the UID in record ({pod['metadata']['uid']})"
            why += ". The object might have been deleted and then recreated"
            raise Refusal(409, f'Operation cannot be fulfilled on Pod "{name}": {why}', name=name, kind="Pod")
        pod = _disrupted(pod)
        self._end(asked.key, pod, grace=options.get("gracePeriodSeconds", 30))
        return web.json_response(
            {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}, status=201
        )

    def _ask_budgets(self, pod: Item) -> None:
        """Use one disruption of the pod's budget."""
        there = self._objects[BUDGETS]
        mine = [
            key for key in there if key.partition("/")[0] == pod["metadata"]["namespace"] and _covers(there[key], pod)
        ]
        if len(mine) > 1:
            raise Refusal(
                500, "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
            )
        for key in mine:
            allowed = there[key]["status"]["disruptionsAllowed"]
            if allowed <= 0:
                why = f"The disruption budget {key.rpartition('/')[2]} needs more healthy pods"
                cause = {"reason": "DisruptionBudget", "message": why}
                text = "Cannot evict pod as it would violate the pod's disruption budget."
                raise Refusal(429, text, causes=[cause])
            left: dict[str, Any] = {"disruptionsAllowed": allowed - 1}
            if allowed == 1:
                left["conditions"] = [{"type": "DisruptionAllowed", "status": "False", "reason": "InsufficientPods"}]
            self._store(BUDGETS, key, {**there[key], "status": left})

    def _bind(self, asked: Asked) -> web.Response:
        pod, name, node = self._there(PODS, asked.key), asked.key.rpartition("/")[2], asked.body["target"]["name"]
        if bound := pod["spec"].get("nodeName"):
            why = f'pod {name} is already assigned to node "{bound}"'
            raise Refusal(409, f'Operation cannot be fulfilled on pods/binding "{name}": {why}', name=name)
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-21T08:01:00Z"}
        status = {**pod["status"], "conditions": [*pod["status"].get("conditions", []), scheduled]}
        self._store(PODS, asked.key, {**pod, "spec": {**pod["spec"], "nodeName": node}, "status": status})
        return web.json_response(
            {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}, status=201
        )

    # --- watches -----------------------------------------------------------------------------------------------------

    async def _watch(self, request: web.Request, asked: Asked) -> web.StreamResponse:
        since = int(asked.parameters.get("resourceVersion") or 0)
        end = self._loop.time() + float(asked.parameters.get("timeoutSeconds", 1800))
        self._refuse_unknown(asked)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        if not since:
            with self._lock:
                there = [item for item in self._objects[asked.resource].values() if self._selects(asked, item)]
                since = self._version
            for item in there:
                await response.write(line("ADDED", self._whole(asked.resource, item)))
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
            for since, old, new in news:
                await self._tell(response, asked, old, new, version=since)
            left = end - self._loop.time()
            if left <= 0:
                if self.bookmarks and now_at > first and asked.parameters.get("allowWatchBookmarks") == "true":
                    mark = {"metadata": {"resourceVersion": str(now_at)}}
                    await response.write(line("BOOKMARK", self._whole(asked.resource, mark)))
                return response
            try:
                async with asyncio.timeout(left):
                    await waiting.wait()
            except TimeoutError:
                continue

    async def _tell(
        self, response: web.StreamResponse, asked: Asked, old: Item | None, new: Item | None, *, version: int
    ) -> None:
        """The event of a change for a watch with this selection: an object that leaves it is DELETED."""
        was, is_now = self._selects(asked, old), self._selects(asked, new)
        if not was and not is_now:
            return
        item = new if is_now else copy.deepcopy(old)
        assert item is not None
        item = {**item, "metadata": {**item["metadata"], "resourceVersion": str(version)}}
        kind = "MODIFIED" if was and is_now else "ADDED" if is_now else "DELETED"
        await response.write(line(kind, self._whole(asked.resource, item)))

    def _whole(self, resource: str, item: Item) -> Item:
        """The form of a watch: with kind and apiVersion, which the items of a list lack."""
        return {"kind": self._kinds[resource].name, "apiVersion": resource.rpartition("/")[0], **item}


def _disrupted(pod: Item) -> Item:
    """A pod with the condition that the eviction API has set since 1.26."""
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    others = [each for each in pod["status"].get("conditions", []) if each["type"] != condition["type"]]
    return {**pod, "status": {**pod["status"], "conditions": [*others, condition]}}


def _covers(budget: Item, pod: Item) -> bool:
    wanted, labels = budget["spec"]["selector"]["matchLabels"], pod["metadata"].get("labels", {})
    together = budget["metadata"]["namespace"] == pod["metadata"]["namespace"]
    return together and all(labels.get(key) == value for key, value in wanted.items())


def _forbidden(asked: Asked) -> Refusal:
    group, what = group_of(asked.resource)
    plural, name = what.partition("/")[0], asked.key.rpartition("/")[2]
    where = f'in the namespace "{asked.namespace}"' if asked.namespace else "at the cluster scope"
    why = f'User "tester" cannot {asked.verb} resource "{what}" in API group "{group}" {where}'
    full = f"{plural}.{group}" if group else plural
    return Refusal(403, f"{full}{f' {json.dumps(name)}' if name else ''} is forbidden: {why}", name=name)


async def _body(request: web.Request) -> Any:
    if request.content_type == "application/vnd.kubernetes.protobuf":  # clients then use JSON
        raise Refusal(415, "this server reads no protobuf")
    return json.loads(await request.read() or b"null")


def line(kind: str, item: Any) -> bytes:
    """A line of a watch."""
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"
