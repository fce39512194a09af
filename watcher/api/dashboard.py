"""The dashboard's static files, and the overview document.

The files contain no cluster data, so they are served without a token even if reads need one: the page asks the user for
the token and sends it with each request. The Content-Security-Policy allows only resources served by this service, and
prevents text from being interpreted as script or markup (Trusted Types).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from html import escape
from importlib.metadata import Distribution
from pathlib import Path

from aiohttp import web

from watcher import __version__
from watcher.api import operations
from watcher.api.operations import LostNode, OverviewDocument, ReadyDocument
from watcher.api.service import ServiceView
from watcher.core.forecast.document import horizon_label
from watcher.core.koordinator.aggregates import KOORDLET
from watcher.core.messages import nearest
from watcher.core.publishing.wire import ErrorDetail, ForecastsOffer, PodsOffer
from watcher.model import default_window
from watcher.platform.http.parameters import truncated
from watcher.platform.http.responses import StaticBody, static_response
from watcher.platform.http.routing import Access, ApiError, Handler, Route

WEB = Path(__file__).parents[1] / "web"
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
NO_DOCUMENTATION = '<meta name="documentation" content="">'
HEADERS = {"Content-Security-Policy": POLICY}


def files_of(directory: Path) -> dict[str, StaticBody]:
    """The files of a directory that are served to browsers, by name."""
    return {
        path.name: StaticBody.of(path.read_bytes(), MEDIA_TYPES[path.suffix], HEADERS)
        for path in sorted(directory.iterdir())
        if path.suffix in MEDIA_TYPES
    }


def page_route(documentation: str) -> Route:
    """The route of the dashboard page (/); `documentation` is the URL of docs/, "" if it is not published."""
    text = (WEB / "index.html").read_text()
    filled = text.replace(NO_DOCUMENTATION, f'<meta name="documentation" content="{escape(documentation)}">')
    page = _serving({"index.html": StaticBody.of(filled.encode(), MEDIA_TYPES[".html"], HEADERS)}, name="index.html")
    return Route("/", "page", page, operations.PAGE, access=Access.OPEN)


def documentation_url(distributions: Iterable[Distribution]) -> str:
    """The URL of docs/ with a trailing slash, from the project URL `Documentation` of the package; "" without one."""
    for distribution in distributions:
        for entry in distribution.metadata.get_all("Project-URL") or ():
            label, _, url = entry.partition(", ")
            if label == "Documentation":
                return f"{url.rstrip('/')}/"
    return ""


def file_routes() -> Iterator[Route]:
    """Routes of the files that the page loads. They are not part of the API and not in /openapi.json."""
    yield Route("/web/{file}", "page_file", _serving(files_of(WEB)), operations.PAGE_FILE, access=Access.OPEN)
    for directory in sorted(path for path in WEB.iterdir() if path.is_dir()):  # vendor: unmodified third-party files
        path = f"/web/{directory.name}/{{file}}"
        yield Route(
            path,
            f"page_{directory.name}_file",
            _serving(files_of(directory)),
            operations.PAGE_FILE,
            access=Access.OPEN,
        )


def _serving(files: Mapping[str, StaticBody], *, name: str = "") -> Handler:
    return partial(_file, files=files, name=name)


async def _file(
    request: web.Request, captured: Sequence[str], *, files: Mapping[str, StaticBody], name: str
) -> web.Response:
    wanted = name or captured[0]
    found = files.get(wanted)
    if found is None:
        near = nearest(wanted, list(files))
        hint = f"did you mean {near}?" if near else "the dashboard is at /"
        raise ApiError(404, "not_found", f"the dashboard has no file {truncated(wanted)!r}", hint)
    return static_response(request, found)


def _forecasts_offer(service: ServiceView) -> ForecastsOffer:
    config = service.refresher.forecasts.config
    if config is None:
        return ForecastsOffer()
    return ForecastsOffer(config.level, tuple(horizon_label(hours) for hours in config.horizons))


def overview(
    service: ServiceView, ready: ReadyDocument, error: ErrorDetail | None, *, scheduler: bool, agents: bool
) -> OverviewDocument:
    """The overview document: the state reported by /readyz, and the nodes missing from the list with the reason. It is
    available in every state of the service."""
    published, pods = service.published, service.pods
    snapshot = None if published is None else published.snapshot
    lost = {} if snapshot is None else snapshot.lost
    return OverviewDocument(
        version=__version__,
        time=service.now(),
        status=ready.status if error is None else error.code,
        error=error,
        provider=ready.provider,
        windows=ready.windows,
        default_window=default_window(service.windows).label,
        interval_s=ready.interval_s,
        max_staleness_s=ready.max_staleness_s,
        snapshot=ready.snapshot,
        quarantined=[] if snapshot is None else sorted(snapshot.quarantined),
        lost=[LostNode(name, lost[name]) for name in sorted(lost)],
        scheduler=scheduler,
        agents=agents,
        aggregates=[KOORDLET],
        pods=PodsOffer(
            service.refresher.pods.impossible_reason, minutes=True, known=pods is not None and bool(pods.table.pods)
        ),
        forecasts=_forecasts_offer(service),
    )
