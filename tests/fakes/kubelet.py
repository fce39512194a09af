"""A kubelet's /pods over a real socket: the format of a real one (v1.29, containerd), a token, and faults.

Its properties: a PodList without versions, an annotation with the source of each pod, the hash of its manifest as the
uid of a static pod, and managed fields.
"""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

Answer = tuple[int, bytes]


def pod(name: str, uid: str, **given: Any) -> dict[str, Any]:
    """A pod as the kubelet lists it; `given` are top-level parts (metadata, spec, status) that are merged in."""
    identity = f"{abs(hash(uid)) % 10**12:064d}"
    whole: dict[str, Any] = {
        "metadata": {
            "name": name,
            "generateName": f"{name.rpartition('-')[0]}-",
            "namespace": "default",
            "uid": uid,
            "resourceVersion": "123456",
            "creationTimestamp": "2026-11-21T08:00:00Z",
            "labels": {"app": "web", "pod-template-hash": "7d9c"},
            "annotations": {
                "kubernetes.io/config.seen": "2026-11-21T08:00:01.123456789Z",
                "kubernetes.io/config.source": "api",
            },
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": "web-7d9c",
                    "uid": "0f0e",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
            "managedFields": [{"manager": "kube-controller-manager", "operation": "Update", "fieldsV1": {"f:x": {}}}],
        },
        "spec": {
            "volumes": [{"name": "kube-api-access", "projected": {"sources": [], "defaultMode": 420}}],
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example/main:1.2.3",
                    "resources": {
                        "limits": {"cpu": "1", "memory": "512Mi"},
                        "requests": {"cpu": "250m", "memory": "256Mi"},
                    },
                    "terminationMessagePath": "/dev/termination-log",
                    "imagePullPolicy": "IfNotPresent",
                }
            ],
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 45,
            "dnsPolicy": "ClusterFirst",
            "nodeName": "node-1",
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "tolerationSeconds": 300}],
            "priority": 0,
            "enableServiceLinks": True,
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-21T08:00:05Z"}],
            "hostIP": "10.0.0.7",
            "podIP": "10.244.0.5",
            "startTime": "2026-11-21T08:00:01Z",
            "containerStatuses": [
                {
                    "name": "main",
                    "state": {"running": {"startedAt": "2026-11-21T08:00:03Z"}},
                    "lastState": {},
                    "ready": True,
                    "restartCount": 0,
                    "containerID": f"containerd://{identity}",
                    "started": True,
                }
            ],
            "qosClass": "Burstable",
        },
    }
    for part, values in given.items():
        whole[part] = {**whole[part], **values}
    return whole


@dataclass
class FakeKubelet:
    """Serves /pods to clients with the token; `fault` may respond instead, `port` is set while it runs."""

    pods: list[dict[str, Any]] = field(default_factory=list)
    token: str = ""
    tls: ssl.SSLContext | None = None
    fault: Callable[[], Answer | None] = lambda: None
    asked: int = 0

    def __enter__(self) -> Self:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = fake._answer(self.path, self.headers.get("Authorization", ""))
                self.send_response(status)
                self.send_header("Content-Type", "application/json" if status == 200 else "text/plain")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with contextlib.suppress(OSError):  # the client has disconnected
                    self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if self.tls is not None:
            self._server.socket = self.tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self._server.server_port}"

    def _answer(self, path: str, authorization: str) -> Answer:
        self.asked += 1
        if self.token and authorization != f"Bearer {self.token}":
            return 401, b"Unauthorized"
        if (instead := self.fault()) is not None:
            return instead
        if path != "/pods":
            return 404, b"404 page not found"
        return 200, json.dumps({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": self.pods}).encode()
