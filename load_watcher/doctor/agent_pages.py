"""Dashboard check: whether the configured agents and QoS Resource Managers can be found."""

from __future__ import annotations

from collections.abc import Sequence

from watcher.agents.discovery import AgentPlaces, Found
from watcher.agents.pages import Kind, named_places
from watcher.platform.checks.examination import Examination
from watcher.platform.checks.results import Result, count, ok, skipped, some, warn
from watcher.platform.settings.tables import Settings

CALLED = {Kind.AGENT: "agent", Kind.QRM: "QoS Resource Manager"}


async def dashboard(examination: Examination) -> Sequence[Result]:
    """Check that the configured host names resolve and the label selectors find ready pods. Sends no page requests."""
    named = named_places(examination.the(Settings))
    if not named:
        return [skipped("no agents are configured in [dashboard]")]
    return [result for kind, places in named.items() for result in _told(kind, await _found(places))]


async def _found(places: AgentPlaces) -> Found:
    try:
        return await places.find()
    finally:
        await places.close()


def _told(kind: Kind, found: Found) -> list[Result]:
    results = [warn(f"{CALLED[kind]}, {each.where}: {each.message}", each.hint) for each in found.troubles]
    if found.places:
        where = [f"{place.node} ({place.name})" if place.node else place.name for place in found.places]
        results.insert(0, ok(f"{count(len(where), CALLED[kind])} found: {some(where)}"))
    return results
