"""Check of pod usage: whether the source provides it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from load_watcher.doctor.source import TickResult
from watcher.core.config.settings import Settings
from watcher.core.messages import shorten_names
from watcher.core.pods.coverage import PodCoverage
from watcher.core.windows.settings import RefreshSettings
from watcher.platform.checks.examination import CheckContext
from watcher.platform.checks.results import CheckResult, count, fail, ok, skipped, warn
from watcher.sources import registry
from watcher.sources.base import NoPodUsage, PodFetch, Provider, fetch_pods
from watcher.sources.errors import ProviderError, ProviderRefused
from watcher.tick.pods import translated, with_gaps

GAPS_TIMEOUT_S = 10.0


async def pods(examination: CheckContext) -> Sequence[CheckResult]:
    """Check that the source provides the usage of pods. Without it, the check fails only if refresh.pods is on."""
    found = examination.get(Settings)
    wanted = found[RefreshSettings].pods
    if wanted == "off":
        return [skipped("pod usage is not fetched (refresh.pods is off)")]
    provider = registry.build(found)
    await provider.start()
    visit = examination.get(TickResult)
    try:
        fetch = await fetch_pods(provider, time.time())
        coverage = await _coverage(provider, fetch, visit)
    except (NoPodUsage, ProviderRefused) as error:
        message = f"no pod usage: {error}"
        return [fail(message, error.hint) if wanted == "on" else skipped(f"{message} (not needed for nodes)")]
    except ProviderError as error:
        message = f"cannot fetch pod usage: {error}"
        return [fail(message, error.hint) if wanted == "on" else warn(message, error.hint)]
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
    cure = "see docs/reference/pods.md for the queries and for the handling of invalid readings"
    results += [warn(finding.reason, cure) for finding in fetch.findings]
    if missing := coverage.message():
        results.append(warn(missing, "see docs/reference/pods.md for the rules of nodes without pod usage"))
    strange = sorted(set(nodes) - {*visit.nodes, *visit.names})
    if strange:
        results.append(warn(f"pods run on nodes without samples: {shorten_names(strange)}", cure))
    return results


async def _coverage(provider: Provider, fetch: PodFetch, visit: TickResult) -> PodCoverage:
    """Of which nodes with load the pod usage is known."""
    now, index = time.time(), visit.refresher.index
    measured = translated((node for node in {*fetch.usage.nodes, *fetch.nodes} if node), index)
    deadline = asyncio.get_running_loop().time() + GAPS_TIMEOUT_S
    known = PodCoverage(dict.fromkeys(measured.values(), now))
    return await with_gaps(known, provider, nodes=visit.nodes, index=index, now=now, deadline=deadline)
