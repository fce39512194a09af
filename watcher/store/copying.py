"""Copies all rows of a watcher from one database to another, for a change of store.url.

Both databases are locked during the copy, so no service may be using these rows. The rows are counted on both sides
inside the writing transaction; it is rolled back if the counts differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from watcher.store import schema
from watcher.store import tables as store_tables
from watcher.store.engines.database import Database
from watcher.store.errors import StoreError
from watcher.store.tables import Rows, maxima_hour, node_list, sample_block, window_minute

BATCH = 100  # rows per statement: up to about 40 MB of minutes at 50,000 nodes
OWNER = "load-watcher db copy"
Progress = Callable[[int, int], None]
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CopyReport:
    """Result of a copy: a message, the names of the databases, and the number of rows and bytes."""

    text: str
    source: str
    target: str
    rows: int
    size: int


def copy(
    source: Database,
    target: Database,
    *,
    upgrade: bool = True,
    replace: bool = False,
    progress: Progress = lambda done, total: None,
) -> CopyReport:
    """Copy the rows of the source's watcher to the target's watcher.

    `upgrade`: migrate an older schema on either side first; `replace`: delete existing rows of the target's watcher
    first; `progress` is called with (rows copied, total rows). On failure, raises StoreError and changes no row.
    """
    with source, target:
        for database in (source, target):
            if database is source and database.revision() is None:
                raise StoreError(f"{database.name} has nothing to copy: the database does not exist")
            database.acquire(owner=OWNER)
            database.prepare(upgrade=upgrade)
        with target.store_errors(doing="written"), target.writing() as here:
            _make_room(here, target, replace=replace)
            with source.reading() as there:
                with source.store_errors(doing="read"):
                    total, size = _extent(there)
                if not total:
                    raise StoreError(f"{source.name} has nothing to copy{_of(source)}")
                done = 0
                nodes: dict[int, int] = {}
                for table, rows in _batches(source, there):
                    _put(here, table, rows, nodes=nodes)
                    done += len(rows)
                    progress(done, total)
            if _extent(here) != (total, size):
                raise StoreError(
                    f"{target.name} and {source.name} have different rows after the copy; the copy was rolled back",
                    hint="this is a bug in load-watcher; please report it",
                )
    text = (
        f"copied {total:,} rows, {size / 1e6:.1f} MB of samples, windows and decisions, "
        f"from {source.name}{_of(source)} to {target.name}{_of(target)}"
    )
    return CopyReport(text, source.name, target.name, total, size)


def only_watcher(database: Database) -> str:
    """The only watcher with rows in a database. Raises StoreError, which lists all watchers, for none or several."""
    with database:
        if database.revision() is None:
            raise StoreError(f"{database.name} has nothing to copy: the database does not exist")
        with database.store_errors(doing="read"), database.reading() as mine:
            names = schema.watchers(mine.connection)
    if len(names) != 1:
        found = ", ".join(f'"{name}"' for name in names) or "none"
        raise StoreError(
            f"{database.name} has the rows of {len(names)} watchers: {found}", hint="select one with --from-watcher"
        )
    return names[0]


def _of(database: Database) -> str:
    return f' (watcher "{database.watcher}")' if database.watcher else ""


def _make_room(here: Rows, target: Database, *, replace: bool) -> None:
    if replace:
        schema.forget_all(here)
    elif _extent(here)[0]:
        raise StoreError(
            f"{target.name} already has rows{_of(target)}",
            hint="use --replace to remove them, or choose another store.watcher_id",
        )


def _extent(mine: Rows) -> tuple[int, int]:
    """The number of rows, and the size of their payloads in bytes."""
    tables = store_tables.metadata.tables.values()
    counts = (
        mine.execute(sa.select(sa.func.count()).select_from(table).where(mine.of_watcher(table))) for table in tables
    )
    return sum(int(count.scalar_one()) for count in counts), schema.stored_bytes(mine)


def _batches(source: Database, there: Rows) -> Iterator[tuple[sa.Table, list[Row]]]:
    """All rows in batches; node lists before the rows that reference them."""
    with source.store_errors(doing="read"):
        tables = sorted(store_tables.metadata.tables.values(), key=lambda table: (table is not node_list, table.name))
        for table in tables:
            query = sa.select(table).where(there.of_watcher(table)).order_by(*table.primary_key).limit(BATCH)
            start = 0
            while True:
                with schema.row_errors():
                    rows = [dict(row) for row in there.execute(query.offset(start)).mappings()]
                if not rows:
                    break
                yield table, rows
                start += len(rows)


def _put(here: Rows, table: sa.Table, rows: list[Row], *, nodes: dict[int, int]) -> None:
    """Store rows for the target's watcher. `nodes` maps the ids of node lists in the source to ids in the target."""
    if table is node_list:
        for row in rows:
            nodes[row["id"]] = schema.add_nodes(here, row["hash"], row["payload"])
        return
    for row in rows:
        row["watcher"] = here.watcher
        if table in (sample_block, window_minute, maxima_hour):
            row["nodes"] = nodes[row["nodes"]]
        if table is sample_block:
            del row["id"]  # assigned by the target: ids only record the write order
    here.execute(sa.insert(table), rows)
