"""The stored maxima of forecasts: after a start, in a copy, and their deletion."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from click.testing import CliRunner

from load_watcher.main import main
from tests.waiting import eventually
from tests.watcher.store.ticks import CPU, NODES, ORIGIN, RESOLUTION, START, block, count, opened, save, tick
from watcher.core.windows.records import MaximaHour, StoredMaxima, TickRecord
from watcher.model import Provenance
from watcher.store import codec
from watcher.store.codec import CodecError
from watcher.store.engines import database

HOUR = START // 3600


def hour(number: int, *, value: int = 100, nodes: tuple[str, ...] = NODES) -> MaximaHour:
    """Codes that differ by slot and node."""
    codes = value + np.arange(12, dtype=np.uint8)[:, np.newaxis] + np.arange(len(nodes), dtype=np.uint8)
    return MaximaHour(CPU, number, nodes, codes.astype(np.uint8))


def with_maxima(when: int, *hours: MaximaHour, origin: Provenance = ORIGIN) -> TickRecord:
    blocks = [block(1.0, slot=when // RESOLUTION - 3)]
    return dataclasses.replace(tick(when, blocks=blocks, records=[], origin=origin), maxima=hours)


def content(stored: list[StoredMaxima]) -> dict[tuple[int, str, bool], tuple[tuple[str, ...], bytes]]:
    return {
        (each.hour.hour, each.provenance.expression, each.own): (each.hour.nodes, each.hour.codes.tobytes())
        for each in stored
    }


def expected(*hours: MaximaHour, own: bool = True) -> dict[tuple[int, str, bool], tuple[tuple[str, ...], bytes]]:
    return {(each.hour, ORIGIN.expression, own): (each.nodes, each.codes.tobytes()) for each in hours}


async def test_stored_hours_are_found_and_replaced_by_newer_versions(place: str) -> None:
    first, second, more = hour(HOUR - 1), hour(HOUR, value=50), hour(HOUR, value=60, nodes=(*NODES, "node-d"))
    async with opened(place) as store:
        await save(store, with_maxima(START, first, second), with_maxima(START + 60, more))
        assert expected(first, more) == content(await store.maxima())
    async with opened(place) as store:
        assert expected(first, more) == content(await store.maxima())
        assert expected(first) == content(await store.maxima(range(HOUR - 2, HOUR)))


async def test_an_hour_has_the_origin_of_its_samples(place: str) -> None:
    other = dataclasses.replace(ORIGIN, expression="other")
    async with opened(place) as store:
        await save(store, with_maxima(START, hour(HOUR - 1)), with_maxima(START + 60, hour(HOUR), origin=other))
        assert {(HOUR - 1, ORIGIN.expression), (HOUR, "other")} == {
            (each.hour.hour, each.provenance.expression) for each in await store.maxima()
        }


async def test_hours_expire_by_their_own_retention_and_not_by_that_of_windows(place: str) -> None:
    async with opened(place, retention=3600.0, maxima=48 * 3600.0) as store:
        await save(store, with_maxima(START, hour(HOUR - 50), hour(HOUR - 40), hour(HOUR + 3)))
        await eventually(lambda: count(place, "maxima_hour") == 1, what="the old and the future hour to be deleted")
        assert expected(hour(HOUR - 40)) == content(await store.maxima())


async def test_a_queued_tick_keeps_the_hours_of_the_ticks_before_it() -> None:
    older = with_maxima(START, hour(HOUR - 1), hour(HOUR))
    newer = with_maxima(START + 60, hour(HOUR, value=70))
    merged, _ = codec.merge_ticks(older, newer, most_bytes=2**20)
    assert [(HOUR - 1, 100), (HOUR, 70)] == [(each.hour, int(each.codes[0, 0])) for each in merged.maxima]
    other = with_maxima(START + 60, hour(HOUR), origin=dataclasses.replace(ORIGIN, unit="percent"))
    merged, _ = codec.merge_ticks(older, other, most_bytes=2**20)
    assert [HOUR] == [each.hour for each in merged.maxima]


async def test_a_copy_has_the_maxima_with_their_nodes(place: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with opened(place) as store:
        await save(store, with_maxima(START, hour(HOUR - 1), hour(HOUR, nodes=("x", "y"))))
    target = f"sqlite:///{tmp_path / 'copy.db'}"
    result = CliRunner().invoke(main, ["db", "copy", "--from", place, "--to", target])
    assert 0 == result.exit_code, result.output
    async with opened(target) as store:
        assert expected(hour(HOUR - 1), hour(HOUR, nodes=("x", "y"))) == content(await store.maxima())


async def test_a_database_of_schema_0006_gets_the_table(place: str) -> None:
    async with opened(place) as store:
        await save(store, with_maxima(START))
    engine = sa.create_engine(place.replace("postgresql://", "postgresql+psycopg://"))
    config = Config()
    config.set_main_option("script_location", str(database.migrations_folder()))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "0006")
    engine.dispose()
    async with opened(place) as store:
        assert [] == await store.maxima()
        await save(store, with_maxima(START + 60, hour(HOUR)))
        assert expected(hour(HOUR)) == content(await store.maxima())


@pytest.mark.real
@pytest.mark.slow
async def test_a_watcher_finds_hours_that_only_others_of_its_cluster_have(server_database: str) -> None:
    async with opened(server_database, watcher="blue/a") as store:
        await save(store, with_maxima(START, hour(HOUR - 1), hour(HOUR, value=50)))
    async with opened(server_database, watcher="green/a") as store:
        await save(store, with_maxima(START, hour(HOUR - 2)))
    async with opened(server_database, watcher="blue/b") as store:
        await save(store, with_maxima(START, hour(HOUR, value=60)))
        found = content(await store.maxima())
    assert expected(hour(HOUR - 1), own=False) | expected(hour(HOUR, value=60)) == found


def test_damaged_maxima_are_an_error() -> None:
    payload = codec.encode_maxima(hour(HOUR))
    assert (hour(HOUR).codes == codec.decode_maxima(payload, nodes=3)).all()
    with pytest.raises(CodecError):
        codec.decode_maxima(payload, nodes=4)
    with pytest.raises(CodecError):
        codec.decode_maxima(payload[:-1], nodes=3)


def test_seven_days_of_five_thousand_nodes_take_less_than_60_mb() -> None:
    random = np.random.default_rng(1)
    codes = np.clip(random.normal(100, 20, 5000) + random.normal(0, 12, (12, 5000)), 1, 255).astype(np.uint8)
    nodes = tuple(f"n{i}" for i in range(5000))
    size = len(codec.encode_maxima(MaximaHour(CPU, HOUR, nodes, codes)))
    assert 2 * 168 * size <= 60e6
