"""Implementation of `load-watcher report`: collects, simulates, and writes the files."""

from __future__ import annotations

import asyncio
from dataclasses import replace as with_fields
from pathlib import Path

from lab.report.data.collect import collect
from lab.report.data.context import CollectOptions, Progress
from lab.report.findings import ClusterReport, make_report
from lab.report.pages.document import as_document
from lab.report.pages.page import as_page
from lab.report.replay import replay
from load_watcher.cli.json_text import json_text
from load_watcher.cli.output_file import is_regular, written_file
from watcher.sources.errors import ProviderUnreachable
from watcher.sources.settings import ProviderSettings

PORT_FORWARD = (
    "From a laptop, forward a port: kubectl -n monitoring port-forward svc/prometheus-k8s 9090, then use "
    "--prometheus http://127.0.0.1:9090."
)


class ReportError(Exception):
    """The report cannot be written; `hint` is advice for the user."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def check_file(page: Path) -> Path | None:
    """Check the path of the page before the queries, and return the path of the JSON document beside it; None beside
    the standard output, a device or a pipe. Raises ReportError."""
    if not is_regular(page):
        return None
    if not page.parent.is_dir():
        raise ReportError(f"directory {page.parent} does not exist", "create it, or choose another path for --file")
    document = page.with_suffix(".json")
    if document == page:
        raise ReportError(f"--file {page} is the name of the JSON document", "name the page, for example report.html")
    return document


def make(
    settings: ProviderSettings, options: CollectOptions, *, top: int, simulated: bool, progress: Progress
) -> ClusterReport:
    """Collect and compute a report. Raises ProviderError, and ValueError for an invalid address."""
    try:
        history = asyncio.run(collect(settings, options, progress=progress))
    except ProviderUnreachable as error:
        error.hint = f"{error.hint} {PORT_FORWARD}"
        raise
    progress(65, "analysis")
    result = replay(history, progress=progress) if simulated else "--no-simulation was given"
    report = make_report(history, top=top, replay=result)
    progress(100, "done")
    return report


def write(report: ClusterReport, page: Path, document: Path | None) -> None:
    """Write the files as `written_file` does. Raises OSError."""
    text = json_text(as_document(report), indent=1)
    for path, content in ((document, text + "\n"), (page, as_page(report))):
        if path is not None:
            with written_file(path) as file:
                file.write(content.encode(errors="replace"))


def for_report(settings: ProviderSettings, timeout: float) -> ProviderSettings:
    """The settings with limits that suit long range queries, `timeout` in seconds."""
    return with_fields(settings, timeout=timeout, backoff=(1.0, 3.0))
