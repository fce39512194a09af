"""Samples from an InfluxDB that Telegraf writes to: 1.x, 2.x and 3.x.

The servers speak two languages, and none of them speaks both well. So a question is put in either (influxdb_plans.py),
answers come as the same points (influxdb_answers.py), and loads are made of those here and nowhere else
(influxdb_loads.py). Four questions bring the seven usual metrics, because Telegraf keeps what belongs together in one
measurement.

One failing question costs its metrics, not the fetch.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from watcher.model import METRIC_BY_NAME, Finding, FindingKind, Metric, Remedy, SeriesBatch
from watcher.providers.base import (
    Fetch,
    ProviderError,
    ProviderMalformed,
    ProviderRefused,
    ProviderUnreachable,
    QueryFailure,
    QueryPlan,
)
from watcher.providers.influxdb_loads import load_of
from watcher.providers.influxdb_plans import LOOK_BACK_S, NODE_TAG, InfluxConfig, Plan, QueryConfig
from watcher.providers.influxdb_transport import Reply, Transport

if TYPE_CHECKING:
    from watcher.settings import Settings

__all__ = ["InfluxConfig", "InfluxProvider", "QueryConfig", "from_settings"]

log = logging.getLogger(__name__)

SILENT_FETCHES = 3
"""After so many in a row without a point a metric that had some is reported."""
FETCH_SHARE = 0.75
"""Of an interval; a little less than the 0.8 of a tick, so that late metrics fail by themselves, not with the tick."""


@dataclass(slots=True)
class _Watch:
    """What is known of one wanted metric: `had` once it brought samples, `silent` fetches in a row that did not."""

    metric: Metric
    plan: Plan | None
    had: bool = False
    silent: int = 0


@dataclass(slots=True)
class _Fetching:
    """One fetch under way. `present` is false for a look back (backfill), whose emptiness means nothing."""

    since: float
    until: float
    deadline: float
    present: bool
    findings: list[Finding] = field(default_factory=list)
    clock: list[float] = field(default_factory=list)

    def find(self, kind: FindingKind, metric: Metric, reason: str, remedy: Remedy) -> None:
        self.findings.append(Finding(kind, "", metric.name, self.until, reason, remedy))


class InfluxProvider:
    """A Provider (providers/base.py) over the query APIs of InfluxDB. Raises ValueError for a configuration that
    cannot work."""

    def __init__(self, config: InfluxConfig) -> None:
        self._config = config
        self._transport = Transport(config)
        self._watches = {metric.name: _Watch(metric, config.plan(metric)) for metric in config.wanted()}
        self._latest = float("-inf")
        self._announced: Mapping[str, QueryPlan] = {}

    @property
    def source(self) -> str:
        """The name on the wire."""
        return "InfluxDB"

    @property
    def remembers(self) -> bool:
        """It can be asked for the past."""
        return True

    async def start(self) -> None:
        """Asks nothing."""
        self._transport.start()

    async def close(self) -> None:
        """Hang up everything."""
        await self._transport.close()

    async def fetch(self, since: float, until: float, *, only: Collection[str] | None = None) -> Fetch:
        """Samples with since <= time <= until (unix seconds) of the wanted metrics, or of those that `only` names.

        Raises ProviderError if every question failed: unreachable before refused before malformed.
        """
        fetching = self._begin(since, until)
        watches = [watch for name, watch in self._watches.items() if only is None or name in only]
        questions: dict[int, list[tuple[_Watch, Plan]]] = {}
        for watch in watches:
            if watch.plan is not None:
                # one source object stands for one question; two queries of the operator's own are never the same
                questions.setdefault(id(watch.plan.source), []).append((watch, watch.plan))
            elif fetching.present:
                reason = f"Telegraf's schema does not have it: set provider.queries.{watch.metric.key}"
                fetching.find(FindingKind.NO_SERIES, watch.metric, reason, Remedy.LEFT_OUT)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._fetch_together(asked, fetching)) for asked in questions.values()]
        results = [result for task in tasks for result in task.result()]
        failures = tuple(result for result in results if isinstance(result, QueryFailure))
        if failures and len(failures) == sum(map(len, questions.values())):
            self._transport.doubt()
            raise _most_telling(failures)
        plans = {name: _shown(watch.plan) for name, watch in self._watches.items() if watch.plan and watch.had}
        self._announce(plans)
        return Fetch(
            batches=tuple(result for result in results if isinstance(result, SeriesBatch)),
            failures=failures,
            plans=plans,
            findings=tuple(fetching.findings),
            clock_offset_s=min(fetching.clock, key=abs) if fetching.clock else None,
        )

    def _begin(self, since: float, until: float) -> _Fetching:
        present = until >= self._latest
        self._latest = max(self._latest, until)
        deadline = asyncio.get_running_loop().time() + self._config.fetch_deadline
        return _Fetching(max(since, until - self._config.max_seconds), until, deadline, present)

    def _announce(self, plans: Mapping[str, QueryPlan]) -> None:
        """One log line when something else is read than before."""
        changed = [plan for name, plan in plans.items() if self._announced.get(name) != plan]
        self._announced = plans
        if changed:
            uses = "; ".join(
                f"{METRIC_BY_NAME[plan.metric].key}: {plan.expression} by {plan.node_label}" for plan in changed
            )
            log.info("using %s for %s", self._transport.address, uses)

    # --- one question ------------------------------------------------------------------------------------------------

    async def _fetch_together(
        self, asked: Sequence[tuple[_Watch, Plan]], fetching: _Fetching
    ) -> list[SeriesBatch | QueryFailure | None]:
        """The metrics of one question."""
        plans = [plan for _, plan in asked]
        back = LOOK_BACK_S if any(plan.counter for plan in plans) else 0.0
        since, until = math.floor(1000 * (fetching.since - back)), math.ceil(1000 * fetching.until)
        try:
            reply = await self._transport.ask(plans[0].source, since, until, deadline=fetching.deadline)
        except ProviderError as error:
            for watch, _ in asked:
                watch.silent += fetching.present
            return [QueryFailure(watch.metric.name, error) for watch, _ in asked]
        if reply.clock_offset_s is not None:
            fetching.clock.append(reply.clock_offset_s)
        return [await self._digest(watch, plan, reply, fetching) for watch, plan in asked]

    async def _digest(
        self, watch: _Watch, plan: Plan, reply: Reply, fetching: _Fetching
    ) -> SeriesBatch | QueryFailure | None:
        """One metric's samples, its failure, or None where it has none in this span."""
        try:
            load = await self._transport.aside(load_of, plan, reply.series, since=fetching.since, until=fetching.until)
        except ProviderError as error:
            watch.silent += fetching.present
            return QueryFailure(watch.metric.name, error)
        fetching.findings += load.findings
        watch.had |= load.batch is not None
        if fetching.present:
            watch.silent = 0 if load.batch is not None else watch.silent + 1
            self._report_absence(watch, plan, reply, fetching)
        return load.batch

    def _report_absence(self, watch: _Watch, plan: Plan, reply: Reply, fetching: _Fetching) -> None:
        if not watch.silent or (watch.had and watch.silent < SILENT_FETCHES):
            return
        reason = f"there are no points for {plan.shown} in the last {fetching.until - fetching.since:.0f} s"
        if reply.series and plan.counter:
            reason += ", or no two within two minutes"
        fetching.find(FindingKind.NO_SERIES, watch.metric, reason, Remedy.LEFT_OUT)


def from_settings(settings: Settings) -> InfluxProvider:
    """The provider that the settings describe. Raises ValueError as InfluxConfig does."""
    given, refresh = settings.provider, settings.refresh
    return InfluxProvider(
        InfluxConfig(
            address=given.address or "",
            token=given.token.reveal() if given.token else "",
            token_file=str(given.token_file or ""),
            username=given.username or "",
            password=given.password.reveal() if given.password else "",
            password_file=str(given.password_file or ""),
            ca_file=str(given.ca_file or ""),
            client_cert=str(given.client_cert or ""),
            client_key=str(given.client_key or ""),
            insecure_skip_verify=given.insecure_skip_verify,
            headers={name: value.reveal() for name, value in given.headers.items()},
            timeout=given.timeout,
            fetch_deadline=FETCH_SHARE * refresh.interval,
            dialect=given.dialect,
            database=given.database,
            bucket=given.bucket,
            org=given.org,
            node_tag=given.node_label or NODE_TAG,
            metrics=tuple(metric.key for metric in given.wanted),
            queries={
                key: QueryConfig(query.expression, query.unit, query.node_label, query.smoothing)
                for key, query in given.queries.items()
            },
            max_seconds=max(window.seconds for window in refresh.windows),
        )
    )


# --- pure pieces -----------------------------------------------------------------------------------------------------


def _shown(plan: Plan) -> QueryPlan:
    return QueryPlan(plan.metric.name, plan.shown, plan.unit, plan.node_tag, plan.smoothing_s, plan.reason)


def _most_telling(failures: Sequence[QueryFailure]) -> ProviderError:
    """The one error to raise for many: nobody asks about refusals of a source that cannot be reached."""
    for kind in (ProviderUnreachable, ProviderRefused, ProviderMalformed):
        for failure in failures:
            if isinstance(failure.error, kind):
                return failure.error
    return failures[0].error
