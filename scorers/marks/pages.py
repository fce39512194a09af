"""Handler of GET /api/v1/marks: the marks and the pressure of each node, and why a node has none."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from aiohttp import hdrs, web

from scorers.marks.annotation import ABSENT
from scorers.marks.planner import MarkPlan, NodeMarks
from scorers.marks.pressure import HOT, MIDDLE
from watcher.platform.http.openapi import Operation, ResponseSpec
from watcher.platform.http.routing import JSON, Route
from watcher.platform.kube.settings import MarksSettings


class NodeMarksDocument(msgspec.Struct, frozen=True):
    """The marks that a node should have (`degree`, `score`), those that it has (`written_degree`, `written_score`), and
    its pressure with its range: cold, middle or hot. `cooling`: in the middle because of recent moves. null: none."""

    node: str
    degree: int
    written_degree: int
    range: str
    cooling: bool
    load: float | None = None
    score: int | None = None
    written_score: int | None = None
    pressure: float | None = None


class MarksDocument(msgspec.Struct, frozen=True):
    """Body of GET /api/v1/marks. `mode` is write or preview, `writer` whether this replica writes, `reason` why no node
    has marks and pressure, "" if nodes may have them."""

    taints: bool
    annotation: bool
    pressure: bool
    mode: str
    writer: bool
    reason: str
    nodes: list[NodeMarksDocument]


class MarksPages:
    """`plan` returns the newest plan, `reason` why there is none or why it is empty, `written` the marks that the nodes
    have, and `is_writer` whether this replica writes."""

    def __init__(
        self,
        settings: MarksSettings,
        *,
        plan: Callable[[], MarkPlan | None],
        reason: Callable[[], str],
        written: Callable[[], dict[str, NodeMarks]],
        is_writer: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._plan = plan
        self._reason = reason
        self._written = written
        self._is_writer = is_writer

    def routes(self) -> list[Route]:
        """Return the routes for the watcher's application."""
        operation = Operation(
            "the marks and the pressure of the nodes", {200: ResponseSpec("the marks of each node", MarksDocument)}
        )
        return [Route("/api/v1/marks", "marks", self.marks, operation)]

    async def marks(self, _request: web.Request, _captured: Sequence[str]) -> web.Response:
        """Return a MarksDocument with the newest plan."""
        plan, settings = self._plan(), self._settings
        document = MarksDocument(
            settings.taints,
            settings.annotation,
            settings.pressure,
            "preview" if settings.preview else "write",
            self._is_writer(),
            self._reason(),
            [] if plan is None else node_documents(plan, self._written()),
        )
        headers = {hdrs.CONTENT_TYPE: JSON, hdrs.CACHE_CONTROL: "no-store"}
        return web.Response(body=msgspec.json.encode(document), headers=headers)


def node_documents(plan: MarkPlan, written: dict[str, NodeMarks]) -> list[NodeMarksDocument]:
    """Return the marks of the nodes of a plan; `written` has the marks of the nodes that have some."""
    found = plan.pressures
    return [
        NodeMarksDocument(
            node,
            wanted.degree,
            written.get(node, NodeMarks()).degree,
            "middle" if found.cooling[i] or code == MIDDLE else "hot" if code == HOT else "cold",
            bool(found.cooling[i]),
            _finite(plan.loads[i]),
            _score(wanted.score),
            _score(written.get(node, NodeMarks()).score),
            _finite(found.values[i], digits=3),
        )
        for i, (node, wanted, code) in enumerate(
            zip(plan.wanted, plan.wanted.values(), found.state.ranges.tolist(), strict=True)
        )
    ]


def _score(score: int) -> int | None:
    return None if score == ABSENT else score


def _finite(value: float, *, digits: int = 1) -> float | None:
    return None if np.isnan(value) else round(float(value), digits)
