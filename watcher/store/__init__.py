"""What must outlive the process, in one SQLite file.

`keeper` is the store that the service uses: one thread that writes, some that read. `tidying` is what it does between
two saves, `codec` how samples and windows look as bytes, `schema` the tables and what is asked of them, `database`
whether the file may be opened at all, `looking` the same for who only wants to know. SQLAlchemy and Alembic are spoken
here and in migrations/ alone.
"""

from watcher.store.database import StoreError, StoreInUse, StoreUnusable, current, upgrade, vacuum
from watcher.store.keeper import Store, StoredSeries, StoreStatus
from watcher.store.looking import Look, look

__all__ = [
    "Look",
    "Store",
    "StoreError",
    "StoreInUse",
    "StoreStatus",
    "StoreUnusable",
    "StoredSeries",
    "current",
    "look",
    "upgrade",
    "vacuum",
]
