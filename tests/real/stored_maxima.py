"""The hours of maxima in a database, which a service may have open (docs/reference/store.md)."""

import sqlalchemy as sa


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
