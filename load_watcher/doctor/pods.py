"""What pods use: does the source tell it?"""

from __future__ import annotations

import time
from collections.abc import Sequence

from load_watcher.doctor.source import Visit
from watcher.platform.checks.examination import Examination
from watcher.platform.checks.results import Result, count, fail, ok, skipped, some, warn
from watcher.platform.settings.tables import Settings
from watcher.providers import registry
from watcher.providers.base import NoPodUsage, ProviderError, ProviderRefused, fetch_pods


async def pods(examination: Examination) -> Sequence[Result]:
    """Whether the source tells what pods use; no matter where nobody said that it must (refresh.pods)."""
    found = examination.the(Settings)
    wanted = found.refresh.pods
    if wanted == "off":
        return [skipped("pods are not asked for (refresh.pods is off)")]
    provider = registry.build(found)
    await provider.start()
    try:
        fetch = await fetch_pods(provider, time.time())
    except (NoPodUsage, ProviderRefused) as error:
        told = f"no pod usage: {error}"
        return [fail(told, error.hint) if wanted == "on" else skipped(f"{told} (nodes do without)", error.hint)]
    except ProviderError as error:
        told = f"what pods use could not be had: {error}"
        return [fail(told, error.hint) if wanted == "on" else warn(told, error.hint)]
    finally:
        await provider.close()
    usage, origin = fetch.usage, fetch.origin
    nodes = sorted({node for node in usage.nodes if node})
    results = [
        ok(
            f"{count(len(usage.pods), 'pod')} on {count(len(nodes), 'node')}:"
            f" cores from {' '.join(origin.cores.split())}, bytes ({origin.memory_kind}) from {origin.memory}"
        )
    ]
    cure = "docs/pods.md says what is asked of the source, and what becomes of odd readings"
    results += [warn(finding.reason, cure) for finding in fetch.findings]
    visit = examination.the(Visit)
    strange = sorted(set(nodes) - {*visit.nodes, *visit.names})
    if strange:
        results.append(warn(f"pods are on nodes that have no samples: {some(strange)}", cure))
    return results
