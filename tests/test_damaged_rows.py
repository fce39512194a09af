"""Damaged rows of SQLite: a flipped bit, or another program, changes one column and leaves a valid file. The reader
raises the error of its component with the name of the file and a remedy, or continues without the row."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from agent.audit.database import AuditError
from agent.audit.log import Audit, AuditEntry, AuditOutcome
from agent.cgroups.values import Quota
from agent.decision.analysis import AnalyzerState
from agent.decision.ledger import InFlight
from tests.watcher.store import ticks
from watcher.store.errors import StoreError

Refusal = TypeVar("Refusal", bound=Exception)

NOT_TEXT = "CAST(x'FF' AS TEXT)"
OTHERS = ("x'FF'", "''", "'['", "7", "-1.5", "'x'", "'{}'", "'[]'", f"'{'1' * 5000}'", "'1e999'")
"""SQL of a damaged value: a column of SQLite accepts each of them."""


def damaged_columns(path: Path) -> Iterator[tuple[str, str, str]]:
    """Damage one column of a row after the other: with text that is not UTF-8, and with one of OTHERS. Yields table,
    column and SQL."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        used = [name for name in tables if connection.execute(f"SELECT EXISTS (SELECT 1 FROM {name})").fetchone()[0]]
        columns = [(table, row[1]) for table in used for row in connection.execute(f"PRAGMA table_info({table})")]
    healthy = path.read_bytes()
    for (table, column), other in zip(columns, itertools.cycle(OTHERS)):
        for sql in (NOT_TEXT, other):
            for each in path.parent.glob(f"{path.name}*"):  # a new file: a traceback may keep the old one open
                each.unlink()
            path.write_bytes(healthy)
            with closing(sqlite3.connect(path)) as connection, suppress(sqlite3.IntegrityError), connection:
                connection.execute(f'UPDATE "{table}" SET "{column}" = {sql}')
            yield table, column, sql


def refusal(kind: type[Refusal], read: Callable[[], object]) -> Refusal | None:
    """The error of an expected refusal; any other exception is a fault."""
    try:
        read()
    except kind as error:
        return error
    return None


@pytest.mark.slow
def test_damaged_rows_of_the_audit_file(tmp_path: Path):
    path = tmp_path / "agent.db"
    with closing(Audit.open(path, now=1.0)) as audit:
        entry = AuditEntry(
            time=1.0,
            kind="throttle",
            cycle=1,
            pod="shop/a",
            uid="uid",
            container="main",
            container_id="c1",
            planned={"cpu": 5.0},
        )
        begun = audit.begin_change(entry, path="/a", found=Quota(None), intended=Quota(50_000))
        audit.record_effect(audit.finish(begun, AuditOutcome.DONE, now=2.0), {"cpu": 1.0}, now=3.0)
        audit.save_value("ledger", ())
    reads: tuple[Callable[[Audit], object], ...] = (
        lambda audit: audit.entries(),
        lambda audit: audit.evictions(),
        lambda audit: audit.totals(),
        lambda audit: audit.original_quotas(),
        lambda audit: audit.originals_by_key(),
        lambda audit: audit.load_value("ledger", tuple[InFlight, ...]),
        lambda audit: audit.load_value("ledger", AnalyzerState),
        lambda audit: audit.entries_without_effect(since=0.0, before=9.0),
    )
    for damage in damaged_columns(path):
        with closing(Audit.open(path, now=1.0)) as audit:
            for read in reads:
                said = refusal(AuditError, partial(read, audit))
                assert said is None or (str(path) in str(said) and said.hint), (damage, said)


@pytest.mark.slow
def test_damaged_rows_of_the_database(tmp_path: Path):
    """A start sets the file aside or refuses it; a running service answers that the history cannot be read."""
    path = tmp_path / "w.db"

    async def written() -> None:
        async with ticks.opened(path) as store:
            await ticks.save(store, replace(ticks.tick(ticks.START), lost={"x": 1.0}))

    async def read() -> None:
        async with ticks.opened(path) as store:
            await store.history(host="node-a", window="15m", start=ticks.START - 60, end=ticks.START + 60)

    asyncio.run(written())
    for damage in damaged_columns(path):
        said = refusal(StoreError, lambda: asyncio.run(read()))
        assert said is None or (str(path) in str(said) and said.hint), (damage, said)
