"""Handler for the labels of the nodes, read once per snapshot; the ETag changes only with the content."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from hashlib import blake2s

import msgspec
from aiohttp import web

from watcher.api import operations
from watcher.api.body_builder import BodyBuilder
from watcher.api.handlers.base import BODY_CACHE_BYTES, CurrentSnapshot, Handlers
from watcher.api.service import ServiceView
from watcher.core.publishing.labels import labels_document
from watcher.platform.http.parameters import query_values
from watcher.platform.http.responses import BodyCache

NO_LABELS = (
    "labels come from the Node objects of the Kubernetes API, which are unknown here: run load-watcher in the cluster, "
    'or set kubernetes.kubeconfig and kubernetes.node_names = "on"'
)


class LabelHandlers(Handlers):
    """Handler for the labels of all nodes, served or not."""

    def __init__(self, service: ServiceView, *, current: CurrentSnapshot, body_builder: BodyBuilder) -> None:
        super().__init__(service, current=current, body_builder=body_builder)
        self._read = ("", "", b"")  # tag of the snapshot, tag of the content, body
        self._kept = BodyCache(BODY_CACHE_BYTES)

    async def labels(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """The labels of the nodes as columns."""
        query_values(request.rel_url.raw_query_string, known=operations.LABELS.query_names)
        tag, body = await self._current_body()
        return await self._body_builder.tagged_response(
            request, lambda: body, tag=tag, kept=self._kept, scope=self._current.scope
        )

    async def _current_body(self) -> tuple[str, bytes]:
        """The tag of the content and the body, read again only after a tick."""
        published = self._service.published
        snapshot = "" if published is None else f"{published.tag}.{published.silent.tag}"
        if self._read[0] != snapshot or not self._read[1]:
            body = await self._body_builder.build_once(("labels", snapshot), partial(_labels_body, self._service))
            tag = blake2s(body, digest_size=8).hexdigest()
            if tag != self._read[1]:
                self._kept = BodyCache(BODY_CACHE_BYTES)
            self._read = (snapshot, tag, body)
        return self._read[1:]


def _labels_body(service: ServiceView) -> bytes:
    published = service.published
    nodes: set[str] = set()
    if published is not None:
        snapshot = published.snapshot
        nodes = {*snapshot.nodes, *snapshot.quarantined, *snapshot.lost, *published.silent.names}
    return msgspec.json.encode(labels_document(sorted(nodes), service.node_labels, reason=NO_LABELS))
