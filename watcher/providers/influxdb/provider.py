"""Samples from an InfluxDB that Telegraf writes to: 1.x, 2.x and 3.x.

The servers speak two languages, and none of them speaks both well. So a question is put in either (influxdb_plans.py),
answers come as the same points (influxdb_answers.py), and loads are made of those here and nowhere else
(influxdb_loads.py). Four questions bring the seven usual metrics, because Telegraf keeps what belongs together in one
measurement.

One failing question costs its metrics, not the fetch.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from watcher.model import FindingKind, Metric, Remedy
from watcher.providers.base import Fetch, ProviderError, QueryFailure, QueryPlan
from watcher.providers.connection import connection, queries_of
from watcher.providers.fetching import Fetches, Fetching, Outcome, Silence, answered, fetched
from watcher.providers.influxdb.cpu_load import load_of
from watcher.providers.influxdb.queries import LOOK_BACK_S, NODE_TAG, InfluxConfig, Plan
from watcher.providers.influxdb.transport import Reply, Transport
from watcher.providers.queries import QueryConfig

if TYPE_CHECKING:
    from watcher.platform.settings.tables import Settings

__all__ = ["InfluxConfig", "InfluxProvider", "QueryConfig", "from_settings"]


@dataclass(slots=True)
class _Watch:
    """What is known of one wanted metric."""

    metric: Metric
    plan: Plan | None
    silence: Silence = field(default_factory=Silence)


class InfluxProvider:
    """A Provider (providers/base.py) over the query APIs of InfluxDB. Raises ValueError for a configuration that
    cannot work."""

    def __init__(self, config: InfluxConfig) -> None:
        self._config = config
        self._transport = Transport(config)
        self._watches = {metric.name: _Watch(metric, config.plan(metric)) for metric in config.wanted()}
        self._fetches = Fetches(max_seconds=config.max_seconds, fetch_deadline=config.fetch_deadline)

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
        fetching = self._fetches.begin(since, until)
        watches = [watch for name, watch in self._watches.items() if only is None or name in only]
        questions: dict[int, list[tuple[_Watch, Plan]]] = {}
        for watch in watches:
            if watch.plan is not None:
                # one source object stands for one question; two queries of the operator's own are never the same
                questions.setdefault(id(watch.plan.source), []).append((watch, watch.plan))
            elif fetching.present:
                reason = f"Telegraf's schema does not have it: set provider.queries.{watch.metric.key}"
                fetching.find(FindingKind.NO_SERIES, watch.metric, reason, Remedy.LEFT_OUT)
        try:
            outcomes = await answered(self._fetch_together(asked, fetching) for asked in questions.values())
        except ProviderError:
            self._transport.doubt()
            raise
        plans = {name: _shown(watch.plan) for name, watch in self._watches.items() if watch.plan and watch.silence.had}
        self._fetches.announce(plans, address=self._transport.address)
        return fetched(outcomes, fetching, plans=plans)

    # --- one question ------------------------------------------------------------------------------------------------

    async def _fetch_together(self, asked: Sequence[tuple[_Watch, Plan]], fetching: Fetching) -> list[Outcome]:
        """The metrics of one question."""
        plans = [plan for _, plan in asked]
        back = LOOK_BACK_S if any(plan.counter for plan in plans) else 0.0
        since, until = math.floor(1000 * (fetching.since - back)), math.ceil(1000 * fetching.until)
        try:
            reply = await self._transport.ask(plans[0].source, since, until, deadline=fetching.deadline)
        except ProviderError as error:
            for watch, _ in asked:
                watch.silence.note(False, present=fetching.present)
            return [QueryFailure(watch.metric.name, error) for watch, _ in asked]
        if reply.clock_offset_s is not None:
            fetching.clock.append(reply.clock_offset_s)
        return [await self._digest(watch, plan, reply, fetching) for watch, plan in asked]

    async def _digest(self, watch: _Watch, plan: Plan, reply: Reply, fetching: Fetching) -> Outcome:
        """One metric's samples, its failure, or None where it has none in this span."""
        try:
            load = await self._transport.aside.do(
                load_of, plan, reply.series, since=fetching.since, until=fetching.until
            )
        except ProviderError as error:
            watch.silence.note(False, present=fetching.present)
            return QueryFailure(watch.metric.name, error)
        fetching.findings += load.findings
        watch.silence.note(load.batch is not None, present=fetching.present)
        if fetching.present and watch.silence.worth_telling:
            self._report_absence(watch, plan, reply, fetching)
        return load.batch

    def _report_absence(self, watch: _Watch, plan: Plan, reply: Reply, fetching: Fetching) -> None:
        reason = f"there are no points for {plan.shown} in the last {fetching.until - fetching.since:.0f} s"
        if reply.series and plan.counter:
            reason += ", or no two within two minutes"
        fetching.find(FindingKind.NO_SERIES, watch.metric, reason, Remedy.LEFT_OUT)


def from_settings(settings: Settings) -> InfluxProvider:
    """The provider that the settings describe. Raises ValueError as InfluxConfig does."""
    given = settings.provider
    return InfluxProvider(
        InfluxConfig(
            **connection(settings),
            username=given.username or "",
            password=given.password.reveal() if given.password else "",
            password_file=str(given.password_file or ""),
            dialect=given.dialect,
            database=given.database,
            bucket=given.bucket,
            org=given.org,
            node_tag=given.node_label or NODE_TAG,
            metrics=tuple(metric.key for metric in given.wanted),
            queries=queries_of(settings),
        )
    )


# --- pure pieces -----------------------------------------------------------------------------------------------------


def _shown(plan: Plan) -> QueryPlan:
    return QueryPlan(plan.metric.name, plan.shown, plan.unit, plan.node_tag, plan.smoothing_s, plan.reason)
