"""Rows of decisions: writing, reading and deleting. Times are in microseconds since 1970."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import sqlalchemy as sa

from watcher.core.decisions import (
    KINDS,
    MICROSECONDS,
    DecisionKind,
    DecisionOutcome,
    DecisionQuery,
    DecisionsExtent,
    StoredDecision,
)
from watcher.store.codec import HOUR
from watcher.store.history.rows import hour_of
from watcher.store.schema import row_errors
from watcher.store.tables import Rows, decision

_COLUMNS = tuple(column.name for column in decision.c if column.name != "watcher")  # the fields of StoredDecision


def put_decisions(mine: Rows, decisions: Iterable[StoredDecision], outcomes: Iterable[DecisionOutcome]) -> None:
    """Store decisions (one with the same time is replaced), then outcomes of these or older decisions."""
    mine.upsert(decision, [{name: getattr(each, name) for name in _COLUMNS} for each in decisions])
    message = [{"at": each.time, "on": each.node, "became": each.outcome} for each in outcomes]
    if message:
        this = mine.of_watcher(decision) & (decision.c.time == sa.bindparam("at", type_=sa.BigInteger))
        update = sa.update(decision).where(this)
        mine.execute(update.values(node=sa.bindparam("on"), outcome=sa.bindparam("became")), message)


def _of_kind(mine: Rows, kind: DecisionKind) -> sa.ColumnElement[bool]:
    return mine.of_watcher(decision) & (decision.c.kind == kind)


@row_errors()
def decisions(mine: Rows, query: DecisionQuery) -> list[StoredDecision]:
    """The decisions of a query."""
    when = decision.c.time
    statement = sa.select(*(decision.c[name] for name in _COLUMNS)).where(
        _of_kind(mine, query.kind), when >= query.start, when < query.end
    )
    if query.pod is not None:
        namespace, pod = query.pod
        statement = statement.where(decision.c.namespace == namespace, decision.c.pod == pod)
    if query.namespace:
        statement = statement.where(decision.c.namespace == query.namespace)
    if query.part:
        statement = statement.where(decision.c.pod.contains(query.part, autoescape=True))
    if query.node:
        statement = statement.where(decision.c.node == query.node)
    statement = statement.order_by(when.desc() if query.newest else when).limit(query.limit)
    return [StoredDecision(**row) for row in mine.execute(statement).mappings()]


@row_errors()
def placements_held(mine: Rows, *, start: int, but: Collection[int] = ()) -> DecisionsExtent:
    """The number of placements since `start`, except those at the times `but`, and the times of the first and last."""
    when = decision.c.time
    columns = sa.func.count(), sa.func.min(when), sa.func.max(when)
    query = sa.select(*columns).where(_of_kind(mine, "placement"), when >= start, when.not_in(but))
    return DecisionsExtent(*mine.execute(query).one())


def forget_surplus(mine: Rows, pods: Iterable[tuple[str, str]], *, most: int, share: int) -> None:
    """While there are more than `most` placements, delete the oldest of those of these pods (namespace, name) that have
    more than `share`, so that no pod displaces the decisions about others."""
    when, placements = decision.c.time, _of_kind(mine, "placement")
    over: int | None = None  # all placements are counted only for a pod with more than its share
    for namespace, pod in sorted(set(pods)):
        of_pod = placements & (decision.c.namespace == namespace) & (decision.c.pod == pod)
        surplus = _count(mine, of_pod) - share
        if surplus <= 0:
            continue
        over = _count(mine, placements) - most if over is None else over
        if over <= 0:
            return
        surplus = min(over, surplus)
        oldest = sa.select(when).where(of_pod).order_by(when).limit(surplus)
        mine.execute(sa.delete(decision).where(of_pod, when.in_(oldest)))
        over -= surplus


def _count(mine: Rows, which: sa.ColumnElement[bool]) -> int:
    found: int = mine.execute(sa.select(sa.func.count()).select_from(decision).where(which)).scalar_one()
    return found


def forget_decisions(mine: Rows, *, oldest: int, newest: int, most: int, limit: int) -> int:
    """Delete decisions outside oldest <= time <= newest and, of each kind, all but the newest `most`, at most `limit`
    per kind and call. Returns the largest number of deleted rows of a kind. `newest` handles clocks that were set back,
    as in forget_windows."""
    return max(_forget(mine, kind, oldest=oldest, newest=newest, most=most, limit=limit) for kind in KINDS)


def _forget(mine: Rows, kind: DecisionKind, *, oldest: int, newest: int, most: int, limit: int) -> int:
    when = decision.c.time
    times = sa.select(when).where(_of_kind(mine, kind))
    surplus = mine.execute(times.order_by(when.desc()).offset(most).limit(1)).scalar_one_or_none()
    first = oldest if surplus is None else max(oldest, surplus + 1)
    outside = times.where((when < first) | (when > newest)).order_by(when).limit(limit)
    return mine.execute(sa.delete(decision).where(_of_kind(mine, kind), when.in_(outside))).rowcount


@row_errors()
def decision_hours(mine: Rows) -> set[int]:
    """The hours (unix seconds) of the oldest and newest decision."""
    ends = sa.select(sa.func.min(decision.c.time), sa.func.max(decision.c.time)).where(mine.of_watcher(decision))
    return {hour_of(time // MICROSECONDS) for time in mine.execute(ends).one() if time is not None}


def forget_decisions_of_hour(mine: Rows, hour: int) -> None:
    """Delete the decisions of an hour (unix seconds)."""
    within = decision.c.time.between(hour * MICROSECONDS, (hour + HOUR) * MICROSECONDS - 1)
    mine.execute(sa.delete(decision).where(mine.of_watcher(decision), within))
