"""Checks of `load-watcher extender`: the watcher that its settings name, and its own status page.

Settings with extender.watcher are those of `load-watcher extender`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from watcher.decoding.json_text import decode_json
from watcher.platform.checks.examination import CheckContext
from watcher.platform.checks.results import CheckResult, fail, ok, skipped, warn
from watcher.platform.net.settings import ExtenderSettings

if TYPE_CHECKING:
    from load_watcher.extender.pages import ExtenderReady
    from watcher.core.config.settings import Settings


def is_configured(settings: Settings) -> bool:
    """Whether these are the settings of `load-watcher extender`."""
    return settings[ExtenderSettings].watcher is not None


async def check_watcher(found: Settings, examination: CheckContext) -> Sequence[CheckResult]:
    """Check that the watcher answers and offers the data of the profiles."""
    from load_watcher.extender.process import PROGRAM
    from scorers.extender.hosting import unmet_profiles
    from scorers.extender.remote import RemoteHost
    from watcher.client import WatcherError
    from watcher.service.build import store_of
    from watcher.store.decisions.store import StoreDecisions

    host = RemoteHost(found, StoreDecisions(store_of(found, program=PROGRAM)))
    try:
        await host.renew()
    except WatcherError as error:
        return [fail(str(error), error.hint or "check extender.watcher, and the log of the watcher")]
    described = host.description
    version = "" if described is None else described.version
    windows = ", ".join(window.label for window in host.windows)
    unmet = unmet_profiles(found.parts["scheduler"], host, windows=host.windows, cwd=examination.cwd)
    return [
        ok(f"the watcher at {host.url} answers: version {version}, windows {windows}"),
        *(fail(f"{each.key}: {each.message}", each.cure) for problems in unmet.values() for each in problems),
        skipped("load-watcher extender has no source of samples: run doctor with the settings of the watcher"),
    ]


def status_page(body: bytes) -> ExtenderReady | None:
    """Decode /readyz of `load-watcher extender`; None if it is the page of another process."""
    from load_watcher.extender.pages import ExtenderReady

    try:
        return decode_json(body, type=ExtenderReady)
    except msgspec.DecodeError:
        return None


def check_status(page: ExtenderReady) -> Sequence[CheckResult]:
    """Report the state of a running `load-watcher extender`."""
    log = "see the log of the extender"
    watcher = page.watcher
    results = [
        ok(f"load-watcher extender is ready: it knows {page.nodes} nodes")
        if page.status == "ready"
        else fail("load-watcher extender is not ready: it does not know the nodes and pods of the cluster", log),
        ok("it gets load from the watcher")
        if watcher.ok
        else fail(f"it gets no load from the watcher: {watcher.reason}", "check extender.watcher and the watcher"),
    ]
    results += [
        warn(f"profile {name} lacks data: {problem}", log) for name, lacks in page.lacks.items() for problem in lacks
    ]
    return results
