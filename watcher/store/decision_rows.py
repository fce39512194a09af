"""Rows of scheduling decisions and shadow bindings: writing, reading and deleting."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import sqlalchemy as sa

from watcher.core.decisions import DecisionOutcome, DecisionsExtent, StoredDecision, StoredShadow
from watcher.store.codec import HOUR
from watcher.store.schema import _forget, hour_of
from watcher.store.tables import MICROSECONDS, Rows, decision, shadow_binding


def put_decisions(mine: Rows, decisions: Iterable[StoredDecision], outcomes: Iterable[DecisionOutcome]) -> None:
    """Store decisions (one with the same time is replaced), then outcomes of these or older decisions."""
    mine.upsert(decision, [_decision_row(each) for each in decisions])
    message = [{"at": each.time, "on": each.node, "became": each.outcome} for each in outcomes]
    if message:
        this = mine.of_watcher(decision) & (decision.c.time == sa.bindparam("at", type_=sa.BigInteger))
        update = sa.update(decision).where(this)
        mine.execute(update.values(node=sa.bindparam("on"), outcome=sa.bindparam("became")), message)


def _decision_row(each: StoredDecision) -> dict[str, Any]:
    return {
        "time": each.time,
        "namespace": each.namespace,
        "pod": each.pod,
        "uid": each.uid,
        "node": each.node,
        "outcome": each.outcome,
        "payload": each.payload,
    }


def decisions_of(
    mine: Rows, namespace: str, pod: str, *, start: int, end: int, limit: int, newest: bool
) -> list[StoredDecision]:
    """Decisions for a pod with start <= time < end (microseconds), newest first if `newest`, otherwise oldest first."""
    when = decision.c.time
    query = (
        sa.select(*(column for column in decision.c if column.name != "watcher"))
        .where(mine.of_watcher(decision), decision.c.namespace == namespace, decision.c.pod == pod)
        .where(when >= start, when < end)
        .order_by(when.desc() if newest else when)
        .limit(limit)
    )
    return [StoredDecision(**row) for row in mine.execute(query).mappings()]


def decisions_held(mine: Rows, *, start: int, but: Collection[int] = ()) -> DecisionsExtent:
    """The number of decisions since `start`, except those at the times `but`, and the times of the first and last.
    Times are in microseconds."""
    when = decision.c.time
    columns = sa.func.count(), sa.func.min(when), sa.func.max(when)
    query = sa.select(*columns).where(mine.of_watcher(decision), when >= start, when.not_in(but))
    return DecisionsExtent(*mine.execute(query).one())


def put_shadows(mine: Rows, shadows: Iterable[StoredShadow]) -> None:
    """Store shadow bindings; one with the same time is replaced."""
    mine.upsert(shadow_binding, [{"time": each.time, "payload": each.payload} for each in shadows])


def shadows(mine: Rows, *, start: int, end: int, limit: int) -> list[StoredShadow]:
    """The newest `limit` shadow bindings with start <= time < end (microseconds), newest first."""
    when = shadow_binding.c.time
    query = sa.select(when, shadow_binding.c.payload).where(mine.of_watcher(shadow_binding), when >= start, when < end)
    return [StoredShadow(**row) for row in mine.execute(query.order_by(when.desc()).limit(limit)).mappings()]


_DECIDED = (decision, shadow_binding)


def forget_decisions(mine: Rows, *, oldest: int, newest: int, most: int, limit: int) -> int:
    """Delete decisions outside oldest <= time <= newest (microseconds) and all but the newest `most`, at most `limit`
    per call; likewise shadow bindings. Returns the larger of the two numbers of deleted rows. `newest` handles clocks
    that were set back, as in forget_windows."""
    return max(_forget(mine, table, oldest=oldest, newest=newest, most=most, limit=limit) for table in _DECIDED)


def decision_hours(mine: Rows) -> set[int]:
    """The hours (unix seconds) of the oldest and newest decision, and of the oldest and newest shadow binding."""
    ends = [
        mine.execute(
            sa.select(sa.func.min(table.c.time), sa.func.max(table.c.time)).where(mine.of_watcher(table))
        ).one()
        for table in _DECIDED
    ]
    return {hour_of(time // MICROSECONDS) for both in ends for time in both if time is not None}


def forget_decisions_of_hour(mine: Rows, hour: int) -> None:
    """Delete the decisions and shadow bindings of an hour (unix seconds)."""
    for table in _DECIDED:
        within = table.c.time.between(hour * MICROSECONDS, (hour + HOUR) * MICROSECONDS - 1)
        mine.execute(sa.delete(table).where(mine.of_watcher(table), within))
