"""The hours of maxima in a database, which a running service may have open (docs/reference/store.md)."""

import numpy as np
import sqlalchemy as sa

from watcher.core.config.settings import Settings
from watcher.core.forecast.maxima import encode
from watcher.core.windows.records import MaximaHour, TickRecord
from watcher.model import Window
from watcher.service.build import store_of
from watcher.store.settings import StoreSettings


def stored_hours(url: str) -> int:
    """The number of hours of all metrics."""
    return _number(url, "SELECT count(*) FROM maxima_hour")


def oldest_hour(url: str) -> int:
    """The oldest hour since the Unix epoch."""
    return _number(url, "SELECT min(hour) FROM maxima_hour")


def _number(url: str, query: str) -> int:
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"), poolclass=sa.NullPool)
    with engine.connect() as connection:
        return int(connection.execute(sa.text(query)).scalar_one())


async def fill_week(url: str, *, now: float) -> None:
    """Add a week of maxima of the nodes and metrics in the database."""
    store = store_of(Settings().having(StoreSettings(url=url)), program="test")
    await store.open()
    try:
        known = await store.maxima()
        random, first = np.random.default_rng(3), int(now // 3600) - 168
        origins = {each.hour.metric: each.provenance for each in known}
        nodes = max((each.hour.nodes for each in known), key=len)
        for hour in range(first, first + 168, 12):
            part = tuple(
                MaximaHour(metric, each, nodes, encode(random.uniform(10, 90, (12, len(nodes)))))
                for metric in origins
                for each in range(hour, hour + 12)
            )
            windows = (Window("15m", 900),)
            store.save(TickRecord(now, now, "Prometheus", 15, windows, origins, (), (), maxima=part))
    finally:
        await store.close()
