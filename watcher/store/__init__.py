"""What must outlive the process, in an SQLite file or on a PostgreSQL server.

`keeper` is the store that the service uses: one thread that writes, some that read (`workers`). `tidying` is what it
does between two saves, `decisions` what waits beside the ticks, `series` what it answers of one node, `codec` how
samples and windows look as bytes, `schema` the tables and what is asked of them, `database` whether what is there may
be opened at all, `sqlite` and `postgresql` how each of them does that, `reading` how a replay reads a file, `commands`
and `copying` what load-watcher db does. SQLAlchemy and Alembic are spoken here and in migrations/ alone.
"""
